"""The samples that TensorFlow gets are those of a StoreDataset, by digest, in the same order; with real TensorFlow."""

from __future__ import annotations

import hashlib
import io
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from PIL import Image

import storeds
from storeds import StoreDataset, StoreIterable
from storeds.errors import ConfigError, MissingDependencyError
from storeds.loaders import EpochSampler, to_tf_dataset
from storeds.records.canonical_json import canonical_json

COUNT = 41
FIELDS: dict[str, Any] = {
    "image": "image",
    "label": "int",
    "name": "str",
    "weight": "float",
    "flag": "bool",
    "doc": "json",
    "raw": "bytes",
    "box": {"kind": "array", "dtype": "float32", "shape": [2, 2]},
    "wave": {"kind": "array", "dtype": "int16", "shape": [None]},
    "path": {"kind": "array", "dtype": "float64", "shape": [None, 2]},
}
ALL = tuple(FIELDS)
ENGINES = ("lmdb", "hdf5", "memory")


def jpeg(number: int, size: tuple[int, int]) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def record(number: int) -> dict[str, Any]:
    draw = np.random.default_rng(number)
    return {
        "image": jpeg(number, (16 + number % 3, 12 + number % 2)),
        "label": number - 5,
        "name": f"nämé {number}\0",
        "weight": [0.1, float("nan"), -0.0, 1e300][number % 4],
        "flag": number % 3 == 0,
        "doc": [{"b": [number, None]}, [], "text", 1.5, None][number % 5],
        "raw": bytes([number % 256]) * (number % 7) + b"\0",
        "box": draw.random((2, 2), np.float32),
        "wave": draw.integers(-9, 9, number * 5 % 11).astype(np.int16),
        "path": draw.random((number * 3 % 4, 2)),
    }


def write(url: str, numbers: Iterable[int]) -> str:
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append(record(number) for number in numbers)
    return url


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stores")
    places = {"lmdb": f"lmdb://{folder}/a.lmdb", "hdf5": f"hdf5://{folder}/a.h5", "memory": f"memory://{folder.name}"}
    return {engine: write(url, range(COUNT)) for engine, url in places.items()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for number, bounds in enumerate([(0, 13), (13, 14), (14, COUNT)]):
        write(f"hdf5://{folder}/{number}.h5", range(*bounds))
    return folder


def plain(value: Any) -> Any:
    """Return a torch dataset's value as TensorFlow should have it."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, Image.Image):
        return np.asarray(value)
    if isinstance(value, (dict, list)) or value is None:
        return canonical_json(value).encode()
    return value.encode() if isinstance(value, str) else value


def digest(sample: Iterable[Any]) -> str:
    """Return a checksum over types, shapes and bytes."""
    seen = hashlib.sha256()
    for value in sample:
        value = plain(value)
        array = None if isinstance(value, bytes) else np.asarray(value)
        seen.update(value if array is None else f"{array.dtype}{array.shape}".encode() + array.tobytes())
        seen.update(b"|")
    return seen.hexdigest()


def samples(dataset: Any) -> list[str]:
    return [digest(sample) for sample in dataset.as_numpy_iterator()]


def json_as_text(sample: tuple[Any, ...], fields: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(canonical_json(v).encode() if n == "doc" else v for n, v in zip(fields, sample, strict=True))


def truth(dataset: StoreDataset, order: Iterable[int]) -> list[str]:
    return [digest(json_as_text(sample, dataset.reader.fields)) for sample in dataset[list(order)]]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_of_field_is_the_same_in_order(urls: dict[str, str], engine: str) -> None:
    made = to_tf_dataset(urls[engine], fields=ALL, read_batch=7)
    spec = dict(zip(ALL, made.element_spec, strict=True))
    assert spec["image"] == tf.TensorSpec((None, None, 3), tf.uint8)
    assert [spec[name].dtype for name in ("label", "weight", "flag")] == [tf.int64, tf.float64, tf.bool]
    assert [spec[name] for name in ("name", "doc", "raw")] == [tf.TensorSpec((), tf.string)] * 3
    assert spec["box"] == tf.TensorSpec((2, 2), tf.float32)
    assert spec["wave"] == tf.TensorSpec((None,), tf.int16)
    assert spec["path"] == tf.TensorSpec((None, 2), tf.float64)
    assert int(made.cardinality()) == COUNT
    assert samples(made) == truth(StoreDataset(urls[engine], fields=ALL), range(COUNT))


@pytest.mark.parametrize("engine", ENGINES)
def test_two_epochs_are_shuffled_as_by_the_sampler(urls: dict[str, str], engine: str) -> None:
    dataset = StoreDataset(urls[engine], seed=3, transform=[{"name": "RandomResizedCrop", "size": 8}])
    made = to_tf_dataset(dataset, shuffle=True, epoch=1)
    sampler, orders = EpochSampler(COUNT, seed=3), []
    for epoch, got in ((1, samples(made)), (2, samples(made))):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        dataset.set_epoch(epoch)
        assert got == truth(dataset, orders[-1])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(COUNT))


def test_repeat_begins_the_next_epoch_and_passes_side_by_side_do_not_disturb_each_other(urls: dict[str, str]) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 1, "transform": [{"name": "RandomResizedCrop", "size": 8}]}
    made = to_tf_dataset(urls["lmdb"], **how)
    one, two = samples(made), samples(made)
    assert samples(to_tf_dataset(urls["lmdb"], **how).repeat(2)) == one + two
    fresh = to_tf_dataset(urls["lmdb"], **how)
    both = list(tf.data.Dataset.zip((fresh, fresh)).as_numpy_iterator())
    assert sorted([[digest(a) for a, _ in both], [digest(b) for _, b in both]]) == sorted([one, two])


@pytest.mark.parametrize("drop", [False, True])
def test_batches(urls: dict[str, str], drop: bool) -> None:
    fields = ("label", "box", "name", "index")
    made = to_tf_dataset(urls["hdf5"], reader="array", fields=fields, batch_size=9, drop_last=drop, as_dict=True)
    assert made.element_spec["box"] == tf.TensorSpec((9 if drop else None, 2, 2), tf.float32)
    assert int(made.cardinality()) == (4 if drop else 5)
    batches = list(made.as_numpy_iterator())
    assert [len(batch["label"]) for batch in batches] == [9] * 4 + [5] * (not drop)
    got = [digest(batch[name][at] for name in fields) for batch in batches for at in range(len(batch["label"]))]
    dataset = StoreDataset(urls["hdf5"], reader="array", fields=fields)
    assert got == truth(dataset, range(36 if drop else COUNT))


def test_one_storage_call_a_batch(urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from storeds.backends import Store

    calls, original = [], Store.get_arrays

    def counted(self: Any, positions: Any, /, fields: Any = None) -> Any:
        calls.append(len(positions))
        return original(self, positions, fields)

    made = to_tf_dataset(urls["lmdb"], reader="array", fields=["label", "box"], batch_size=10, shuffle=True, seed=0)
    monkeypatch.setattr(Store, "get_arrays", counted)
    list(made)
    assert sorted(calls) == [1, 10, 10, 10, 10]


@pytest.mark.parametrize("drop", [False, True])
def test_ragged_batches(urls: dict[str, str], drop: bool) -> None:
    fields = ("wave", "path", "image", "label")
    made = to_tf_dataset(urls["lmdb"], fields=fields, batch_size=8, ragged=True, drop_last=drop)
    size = 8 if drop else None
    assert made.element_spec[0] == tf.RaggedTensorSpec((size, None), tf.int16, 1)
    assert made.element_spec[1] == tf.RaggedTensorSpec((size, None, 2), tf.float64, 1)
    assert made.element_spec[2] == tf.RaggedTensorSpec((size, None, None, 3), tf.uint8, 2)
    got = []
    for *varied, labels in made:
        assert all(isinstance(value, tf.RaggedTensor) for value in varied)
        for at in range(len(labels)):
            dense = [v[at].to_tensor() if isinstance(v[at], tf.RaggedTensor) else v[at] for v in varied]
            got.append(digest([*(each.numpy() for each in dense), int(labels[at])]))
    dataset = StoreDataset(urls["lmdb"], fields=fields)
    assert got == truth(dataset, range(40 if drop else COUNT))


def test_ragged_by_name_leaves_the_others_dense(urls: dict[str, str]) -> None:
    made = to_tf_dataset(
        urls["lmdb"],
        fields=["image", "wave"],
        batch_size=4,
        ragged=["wave"],
        transform=[{"name": "Resize", "size": [9, 8]}],
    )
    assert made.element_spec == (
        tf.TensorSpec((None, 9, 8, 3), tf.uint8),
        tf.RaggedTensorSpec((None, None), tf.int16, 1),
    )
    assert sum(len(images) for images, _ in made) == COUNT


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return URLs of three files with four clips of 1 to 6 frames each."""
    folder = tmp_path_factory.mktemp("films")
    urls = [f"hdf5://{folder}/{number}.h5" for number in range(3)]
    for number, url in enumerate(urls):
        with storeds.open_writer(url, {"image": "image", "video": "int", "frame": "int", "label": "int"}) as writer:
            for clip in range(4):
                frames = range(1 + (2 * clip + number) % 6)
                writer.append(
                    {"image": jpeg(50 * number + 7 * clip + at, (8, 6)), "video": clip, "frame": at, "label": number}
                    for at in frames
                )
    return urls


@pytest.mark.parametrize("batch_size", [None, 5])
def test_clips_of_many_files_are_ragged_and_each_file_is_opened_once(
    films: list[str], batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storeds.backends.hdf5.reading import Hdf5Opener

    order: dict[str, Any] = {"shuffle": True, "block_size": 2, "window": 3, "seed": 3}
    opened, original = [], Hdf5Opener.open

    def counted(self: Any) -> Any:
        opened.append(self.url)
        return original(self)

    made = to_tf_dataset(films, reader="video", batch_size=batch_size, ragged=True, **order)
    monkeypatch.setattr(Hdf5Opener, "open", counted)
    got = []
    for clips, labels in made:
        if batch_size is None:
            got.append(digest([clips.numpy(), int(labels)]))
        else:
            got += [digest([clips[at].to_tensor().numpy(), int(label)]) for at, label in enumerate(labels)]
    assert all(opened.count(url) <= 1 for url in films)
    stream = StoreIterable(films, reader="video", decode="tensor", **order)
    assert got == [digest([clip.numpy().transpose(0, 2, 3, 1), label]) for clip, label in stream]
    assert len(set(got)) == 12


@pytest.mark.parametrize("batch_size", [None, 2])
def test_arrays_without_values(tmp_path: Path, batch_size: int | None) -> None:
    # TensorFlow's unbatch() ends the process on rows of no values.
    url = f"lmdb://{tmp_path}/a.lmdb"
    fields = {name: {"kind": "array", "dtype": "int16", "shape": [size]} for name, size in (("a", 0), ("b", None))}
    with storeds.open_writer(url, fields) as writer:
        writer.append({"a": np.zeros(0, "i2"), "b": np.zeros(0, "i2")} for _ in range(4))
    made = to_tf_dataset(url, reader="array", batch_size=batch_size)
    shape, count = ((0,), 4) if batch_size is None else ((2, 0), 2)
    assert [[value.shape for value in sample] for sample in made.as_numpy_iterator()] == [[shape, shape]] * count


def test_the_first_pass_is_of_the_epoch_that_the_source_is_in(shards: Path) -> None:
    dataset = StoreDataset(f"hdf5://{shards}/*.h5", seed=5, transform=[{"name": "RandomResizedCrop", "size": 8}])
    dataset.set_epoch(3)
    expected = truth(dataset, range(COUNT))
    assert samples(to_tf_dataset(dataset)) == expected
    assert samples(to_tf_dataset(dataset, epoch=2)) != expected


def test_ranks_share_an_epoch(shards: Path) -> None:
    union = [
        label
        for rank in range(2)
        for (label,) in to_tf_dataset(
            f"hdf5://{shards}/*.h5", reader="array", fields=["label"], num_replicas=2, rank=rank, shuffle=True, seed=1
        ).as_numpy_iterator()
    ]
    assert set(union) == set(range(-5, COUNT - 5))
    assert len(union) == COUNT + 1


def test_an_error_names_the_element_that_tensorflow_has_no_type_for(urls: dict[str, str]) -> None:
    for wrong, reported in (
        ({"a": 1}, "element 'label' is dict"),
        (torch.zeros(2, dtype=torch.bfloat16), "element 'label' is torch.bfloat16"),
        ([[1], [1, 2]], "element 'label' is a list that cannot be stacked"),
    ):
        with pytest.raises(ConfigError, match=reported):
            to_tf_dataset(urls["lmdb"], reader="array", fields=["label"], transform=lambda _, wrong=wrong: wrong)


@pytest.mark.parametrize("decode", ["pil", "tensor"])
@pytest.mark.parametrize("mode", ["RGB", "L", "unchanged"])
def test_images_are_channels_last_however_they_are_decoded(urls: dict[str, str], decode: str, mode: str) -> None:
    made = to_tf_dataset(urls["lmdb"], fields=["image"], decode=decode, mode=mode)
    channels = 1 if mode == "L" else 3
    assert made.element_spec == (tf.TensorSpec((None, None, channels), tf.uint8),)
    dataset = StoreDataset(urls["lmdb"], fields=["image"], mode=mode)
    for (got,), (image,) in zip(made.as_numpy_iterator(), dataset[:], strict=True):
        expected = np.asarray(image)
        assert np.array_equal(got, expected if channels == 3 else expected[..., None])


def test_bytes_are_strings_and_transforms_are_looked_at(urls: dict[str, str]) -> None:
    blobs = list(to_tf_dataset(urls["lmdb"], fields=["image"], decode="bytes").as_numpy_iterator())
    assert blobs == [(record(number)["image"],) for number in range(COUNT)]
    made = to_tf_dataset(urls["lmdb"], transform=[{"name": "Resize", "size": [8, 6]}, "ToTensor"], batch_size=4)
    assert made.element_spec[0] == tf.TensorSpec((None, 8, 6, 3), tf.float32)
    made = to_tf_dataset(
        urls["lmdb"], transform=lambda image: np.asarray(image).astype("f4").mean(axis=0), read_batch=3
    )
    assert made.element_spec[0] == tf.TensorSpec((None, 3), tf.float32)
    assert sum(1 for _ in made) == COUNT


def test_shapes_may_be_stated(urls: dict[str, str]) -> None:
    how: dict[str, Any] = {"transform": [{"name": "Resize", "size": [8, 6]}], "fields": ["image"]}
    assert to_tf_dataset(urls["lmdb"], shapes={"image": (8, None, 3)}, **how).element_spec[0].shape == (8, None, 3)
    with pytest.raises(tf.errors.OpError, match=r"shapes=\{'image'"):
        list(to_tf_dataset(urls["lmdb"], shapes={"image": (8, 7, 3)}, **how))


@pytest.fixture
def one_bad(tmp_path: Path) -> str:
    url = f"lmdb://{tmp_path}/bad.lmdb"
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append({**record(n), **({"image": b"no image"} if n == 7 else {})} for n in range(10))
    return url


def test_an_error_says_what_ours_says(one_bad: str) -> None:
    with pytest.raises(ValueError) as ours:
        StoreDataset(one_bad)[7]
    got = []
    with pytest.raises(tf.errors.OpError) as theirs:
        for _, label in to_tf_dataset(one_bad, read_batch=5):
            got.append(int(label) + 5)
    assert got == list(range(5))
    assert f"DecodeError: {ours.value}" in str(theirs.value)
    with pytest.raises(tf.errors.OpError, match=r"record 7 of lmdb://"):
        list(to_tf_dataset(one_bad, batch_size=5, transform=[{"name": "Resize", "size": [8, 8]}]))


def test_bad_samples_are_skipped_or_replaced_and_counted(one_bad: str) -> None:
    dataset = StoreDataset(one_bad, on_error="skip", transform=[{"name": "Resize", "size": [8, 8]}])
    made = to_tf_dataset(dataset)
    assert [int(label) + 5 for _, label in made] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert int(made.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert [len(labels) for _, labels in to_tf_dataset(dataset, batch_size=4)] == [4, 3, 2]
    assert dataset.report().bad == {"not_jpeg": 2}
    other = to_tf_dataset(
        one_bad, on_error="replace", seed=0, batch_size=5, transform=[{"name": "Resize", "size": [8, 8]}]
    )
    assert [len(labels) for _, labels in other] == [5, 5]


def test_a_store_that_is_closed_is_reported(urls: dict[str, str]) -> None:
    dataset = StoreDataset(urls["lmdb"], reader="array", fields=["label"])
    made = to_tf_dataset(dataset)
    dataset.close()
    with pytest.raises(tf.errors.OpError, match="ClosedError"):
        list(made)


def test_a_pass_that_is_left_ends_its_threads(urls: dict[str, str]) -> None:
    for _ in range(3):
        for _ in to_tf_dataset(urls["lmdb"], read_batch=2).take(3):
            pass
    for _ in range(100):
        alive = [each.name for each in threading.enumerate() if each.name.startswith("storeds-read-ahead")]
        if not alive:
            return
        threading.Event().wait(0.05)
    pytest.fail(f"still there: {alive}")


def test_empty_stores_and_wrong_arguments(tmp_path: Path, urls: dict[str, str]) -> None:
    url = write(f"lmdb://{tmp_path}/empty.lmdb", [])
    with pytest.raises(ConfigError, match="cannot be inferred: there are none"):
        to_tf_dataset(url)
    dataset = StoreDataset(urls["lmdb"])
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (urls["lmdb"], {"batch_size": 0}, "batch_size"),
        (urls["lmdb"], {"epoch": -1}, "epoch"),
        (urls["lmdb"], {"read_ahead": -1}, "read_ahead"),
        (urls["lmdb"], {"drop_remainder": True}, "is now drop_last"),
        (urls["lmdb"], {"window": 5, "shuffle": True}, "block_size"),
        (urls["lmdb"], {"ragged": ["imgae"]}, "'imgae'.*'image'"),
        (urls["lmdb"], {"shapes": {"imgae": (1,)}}, "'imgae'.*'image'"),
        (dataset, {"decode": "bytes"}, "exists already"),
        (urls["lmdb"], {"ragged": "wave"}, r"a list of elements, such as \['wave'\]"),
        (urls["lmdb"], {"shapes": {"image": (224, "a", 3)}}, "a length of 'image' must be an int"),
        (urls["lmdb"], {"shapes": {"image": (-1, None, 3)}}, "a length of 'image' must be at least 0"),
        (urls["lmdb"], {"drop_last": True}, "pass batch_size"),
        (urls["lmdb"], {"on_error": "skip", "batch_size": 2, "drop_last": True}, "use 'replace'"),
    ]
    for source, how, match in wrong:
        with pytest.raises(ConfigError, match=match):
            to_tf_dataset(source, **how)


def test_without_tensorflow_the_error_says_what_to_install(
    urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'storeds\[tf\]'"):
        to_tf_dataset(urls["lmdb"])


def test_keras_trains_on_it(urls: dict[str, str]) -> None:
    def scaled(image: Image.Image) -> Any:
        return np.asarray(image.resize((8, 8)), np.float32) / 255

    made = to_tf_dataset(urls["hdf5"], fields=["image", "label"], batch_size=8, shuffle=True, seed=0, transform=scaled)
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    history = model.fit(made, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2


def test_many_orders_of_small_blocks(urls: dict[str, str]) -> None:
    expected = truth(StoreDataset(urls["memory"], reader="array", fields=["label", "wave"]), range(COUNT))
    for read_batch, read_ahead in itertools.product((1, 3, COUNT, 100), (0, 1, 4)):
        how: dict[str, Any] = {"read_batch": read_batch, "read_ahead": read_ahead}
        made = to_tf_dataset(urls["memory"], reader="array", fields=["label", "wave"], **how)
        assert samples(made) == expected


def test_the_example_of_videos_reads_them_with_tensorflow(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "examples" / "seeds" / "hdf5_videos.py"
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "60 videos in 12 batches of TensorFlow's" in done.stdout
