"""Mistakes that a new user makes. Each once led to a wrong model or an unclear message, without an error."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import storeds
from _disks import small_disk
from _foreign_hdf5 import write
from _traps_epochs import jittered_dataset, numbered_store, one_pass
from _traps_format import (
    change_label,
    exit_code,
    flip,
    graft_record,
    lead_astray,
    numbered_records,
    page_number_bits,
    swap_records,
)
from _traps_pack import photos, stored_records, storeds_command
from _verdicts import unjudged
from _writing import FIELDS, WriterProcess, fork
from photographs import jpeg
from storeds import errors
from storeds.protocols import SupportsBatchArrays
from storeds.testing import run_mongod

FILE_ENGINES = ("lmdb", "hdf5")
ENGINES = (*FILE_ENGINES, "mongodb")
MakeUrl = Callable[[str], str]
STOREDS = str(Path(sys.executable).with_name("storeds"))

# 1. Validation data in training

TWO_SPLITS = """
[dataset]
url = "{url}"
fields = ["key"]
decode = "bytes"
[loader]
batch_size = 3
num_workers = 0
[splits.train.loader]
shuffle = true
[splits.val.dataset]
{val}
"""


@pytest.fixture
def packed_in_two_splits(tmp_path: Path) -> str:
    for number in range(20):
        file = tmp_path / "photos" / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(number))
    storeds.pack(tmp_path / "photos", f"hdf5://{tmp_path}/photos.h5", split={"train": 0.8, "val": 0.2})
    return f"hdf5://{tmp_path}/photos.h5"


def texts_of(url: str, field: str) -> list[str]:
    """Return a text field of a native HDF5 store, read by h5py alone."""
    with h5py.File(url.removeprefix("hdf5://")) as file:
        data, offsets = bytes(file[f"records/{field}/data"][:]), file[f"records/{field}/offsets"][:].tolist()
    return [data[start:stop].decode() for start, stop in pairwise(offsets)]


def test_a_split_without_a_placeholder_takes_only_its_own_records(packed_in_two_splits: str, tmp_path: Path) -> None:
    url, file = packed_in_two_splits, tmp_path / "config.toml"
    file.write_text(TWO_SPLITS.format(url=url, val="seed = 1"))
    written = list(zip(texts_of(url, "key"), texts_of(url, "split"), strict=True))
    for split in ("train", "val"):
        loader = storeds.build_loader(storeds.load_config(file), split)
        assert sorted(key for (keys,) in loader for key in keys) == sorted(key for key, own in written if own == split)


def test_two_splits_that_share_records_are_refused_unless_the_config_allows_it(
    packed_in_two_splits: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    text = TWO_SPLITS.format(url=packed_in_two_splits, val="where = { label = 0 }")
    file.write_text(text)
    for split in ("train", "val"):
        with pytest.raises(errors.ConfigError, match=r"splits .*train.* share \d+ records .*allow_overlap = true"):
            storeds.build_loader(storeds.load_config(file), split)
    file.write_text(f"allow_overlap = true\n{text}")
    assert len(storeds.build_dataset(storeds.load_config(file), "val")) == 10


def test_two_splits_of_a_store_without_splits_are_refused(tmp_path: Path) -> None:
    with storeds.open_writer(tmp_path / "all.lmdb", {"image": "image", "label": "int"}) as writer:
        writer.append({"image": jpeg(n), "label": n} for n in range(4))
    tables = {"train": {}, "val": {"dataset": {"transform": ["ToTensor"]}}}
    config = storeds.load_config({"dataset": {"url": f"lmdb://{tmp_path}/all.lmdb"}, "splits": tables})
    with pytest.raises(errors.ConfigError, match=r"splits 'train' and 'val' of the config share 4 records"):
        storeds.build_loader(config, "train")


# 2. Frozen epochs


LOADERS: dict[str, tuple[type[storeds.StoreLoader], dict[str, Any]]] = {
    "main process": (storeds.StoreLoader, {}),
    "workers": (storeds.StoreLoader, {"num_workers": 2, "multiprocessing_context": "fork"}),
    "persistent": (storeds.StoreLoader, {"num_workers": 2, "persistent_workers": True}),
    "spawned": (
        storeds.StoreLoader,
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
    ),
    "threads": (storeds.ThreadLoader, {"num_workers": 2}),
}


def augmenting_loader(url: str, how: str, seed: int | None) -> storeds.StoreLoader:
    kind, arguments = LOADERS[how]
    return kind(jittered_dataset(url, seed), batch_size=4, shuffle=True, **arguments)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("how", "seed"), [*((how, 7) for how in LOADERS), *((how, None) for how in LOADERS if how != "spawned")]
)
def test_each_pass_has_a_new_order_and_new_pixels_and_a_run_can_be_repeated(
    tmp_path: Path, how: str, seed: int | None
) -> None:
    url = numbered_store(tmp_path)
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        loader = augmenting_loader(url, how, seed)
        runs.append([one_pass(loader) for _ in range(3)])
    orders = [[int(value) for value in epoch] for epoch in runs[0]]
    assert [sorted(order) for order in orders] == [list(range(12))] * 3
    assert len(set(map(tuple, orders))) == 3
    assert len({value for epoch in runs[0] for value in epoch}) == 3 * 12
    assert runs[0] == runs[1]


@pytest.mark.parametrize("how", ["main process", "workers", "threads"])
def test_without_a_seed_two_runs_differ(tmp_path: Path, how: str) -> None:
    url = numbered_store(tmp_path)
    first, second = (one_pass(augmenting_loader(url, how, None)) for _ in range(2))
    assert [int(value) for value in first] != [int(value) for value in second]
    assert set(first).isdisjoint(second)


@pytest.mark.parametrize("how", ["main process", "workers", "persistent", "threads"])
def test_set_epoch_on_the_loader_or_on_the_dataset_sets_both(tmp_path: Path, how: str) -> None:
    url = numbered_store(tmp_path)
    loader = augmenting_loader(url, how, 7)
    counted = [one_pass(loader) for _ in range(4)]
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch, loader.dataset.set_epoch):  # type: ignore[attr-defined]
        set_epoch(2)
        assert loader.dataset.epoch == 2  # type: ignore[attr-defined]
        assert [one_pass(loader), one_pass(loader)] == counted[2:]


@pytest.mark.parametrize("how", ["main process", "persistent", "threads"])
def test_a_resumed_run_continues_with_the_next_epoch(tmp_path: Path, how: str) -> None:
    url = numbered_store(tmp_path)
    whole = augmenting_loader(url, how, 7)
    epochs = [one_pass(whole) for _ in range(4)]
    stopped = augmenting_loader(url, how, 7)
    one_pass(stopped)
    begun = one_pass([next(iter(stopped))])
    resumed = augmenting_loader(url, how, 7)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert [begun + one_pass(resumed), one_pass(resumed)] == epochs[1:3]
    after = augmenting_loader(url, how, 7)  # a state from the end of an epoch
    after.load_state_dict(resumed.state_dict())
    assert one_pass(after) == epochs[3]


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "fastai", "transformers"])
def test_every_framework_gets_a_new_order_and_new_pixels_in_each_epoch(tmp_path: Path, framework: str) -> None:
    script = Path(__file__).parent.joinpath("support", "_frameworks.py")
    command = [sys.executable, "-W", "ignore", str(script), framework, numbered_store(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    fits = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    assert len(fits) == 6, ended.stderr
    for (what, seed, given), again in zip(fits[::2], fits[1::2], strict=True):
        orders = {tuple(map(int, given[at : at + 12])) for at in range(0, 36, 12)}
        assert [sorted(order) for order in orders] == [list(range(12))] * 3, (what, seed)
        assert len(set(given)) == 36, (what, seed)
        assert again == [what, seed, given]


def test_ranks_without_a_seed_agree_on_one_order(tmp_path: Path) -> None:
    url, script = numbered_store(tmp_path), Path(__file__).parent.joinpath("support", "_seedless_ranks.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, str(script), url, str(tmp_path)], env=environment, timeout=200, check=True)
    runs = list(zip(*(json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)), strict=True))
    for one, other in zip(*runs[0], strict=True):  # the loader's epochs, and the stream's
        epochs = [mine + theirs for mine, theirs in zip(one, other, strict=True)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
        assert len(set(map(tuple, epochs))) == 3
    assert runs[1] == runs[0]  # each rank had called torch.manual_seed


@pytest.mark.parametrize("how", ["main process", "workers", "threads"])
def test_loaders_iterated_side_by_side_keep_their_own_epochs(tmp_path: Path, how: str) -> None:
    dataset = jittered_dataset(numbered_store(tmp_path), 7)
    kind, arguments = LOADERS[how]
    one, other = (kind(dataset, batch_size=4, shuffle=True, **arguments) for _ in range(2))
    expected = [one_pass(one) for _ in range(4)]
    one.set_epoch(1)
    other.set_epoch(3)
    side_by_side = list(zip(one, other, strict=True))
    assert one_pass(batch for batch, _ in side_by_side) == expected[1]
    assert one_pass(batch for _, batch in side_by_side) == expected[3]


# 3. Several images in a sample


def palette_png(number: int) -> bytes:
    """Return a mask as VOC has them: class numbers, shown by a palette."""
    image = Image.fromarray(np.full((64, 96), number % 5, np.uint8), "P")
    image.putpalette([7 * each % 256 for each in range(768)])
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


@pytest.fixture
def segmentation(tmp_path: Path) -> str:
    """URL of four records of an image, a mask and a label."""
    url = f"lmdb://{tmp_path}/segmentation.lmdb"
    with storeds.open_writer(url, {"image": "image", "mask": "image", "label": "int"}) as writer:
        writer.append({"image": jpeg(n), "mask": palette_png(n), "label": n} for n in range(4))
    return url


PAIR = ["image", "mask"]
FLIP = ["RandomHorizontalFlip", "ToTensor"]


@pytest.mark.parametrize(
    "transform",
    [
        "RandomHorizontalFlip",
        [{"name": "Resize", "size": 32}, "ToTensor"],
        "torchvision.transforms.v2.RandomCrop",
        "torchvision.transforms.v2.RandomRotation",
        "albumentations.HorizontalFlip",
        lambda image: image,
    ],
)
def test_cropping_the_image_without_its_mask_is_refused(segmentation: str, transform: Any) -> None:
    if isinstance(transform, str) and "." in transform:
        package, _, kind = transform.rpartition(".")
        module = pytest.importorskip(package)
        options = {"RandomCrop": {"size": 32}, "RandomRotation": {"degrees": 9}}.get(kind, {})
        # One by its name, the others as the objects that a user makes.
        made = module.Compose([getattr(module, kind)(**options)])
        transform = {"name": transform, **options} if kind == "RandomCrop" else made
    with pytest.raises(errors.ConfigError, match=r"'image'.*'mask' would stay.*transforms=.*fields=.*transform="):
        storeds.StoreDataset(segmentation, fields=PAIR, transform=transform)
    storeds.StoreDataset(segmentation, transform=transform)  # image and label


def test_separate_random_flips_of_image_and_mask_are_refused_and_equal_resizes_are_not(segmentation: str) -> None:
    with pytest.raises(errors.ConfigError, match="'image' and 'mask' would each be cropped or flipped differently"):
        storeds.StoreDataset(segmentation, fields=PAIR, transform={"image": FLIP, "mask": FLIP})
    small = {"name": "Resize", "size": [8, 8], "interpolation": "nearest"}
    dataset = storeds.StoreDataset(segmentation, fields=PAIR, transform={"image": small, "mask": small})
    assert [each.size for each in dataset[1]] == [(8, 8), (8, 8)]
    with pytest.raises(errors.ConfigError, match=r"'mask' would mix class numbers.*'nearest'"):
        storeds.StoreDataset(segmentation, fields=PAIR, transform={"mask": {"name": "Resize", "size": [8, 8]}})


def test_a_transform_named_for_an_element_changes_only_that_element(segmentation: str) -> None:
    config = {"dataset": {"url": segmentation, "fields": PAIR, "transform": {"image": FLIP}, "decode": "tensor"}}
    image, mask = storeds.build_dataset(storeds.load_config(config))[3]
    assert image.dtype == torch.float32
    assert mask.unique().tolist() == [3]


@pytest.mark.parametrize("fields", [PAIR, ["mask", "image"]])
def test_a_mask_beside_an_image_keeps_its_class_numbers(segmentation: str, fields: list[str]) -> None:
    for decode in ("pil", "tensor"):
        for number in range(4):
            dataset = storeds.StoreDataset(segmentation, fields=fields, decode=decode, mode="L", as_dict=True)
            sample = dataset[number]
            with Image.open(io.BytesIO(palette_png(number))) as mask, Image.open(io.BytesIO(jpeg(number))) as image:
                assert np.array_equal(np.squeeze(np.asarray(sample["mask"])), np.asarray(mask))
                assert np.array_equal(np.squeeze(np.asarray(sample["image"])), np.asarray(image.convert("L")))
    both = storeds.StoreDataset(segmentation, fields=PAIR, mode={"mask": "RGB"})[0]
    assert [image.mode for image in both] == ["RGB", "RGB"]


def test_target_transform_and_targets_take_the_field_label_at_any_position(segmentation: str) -> None:
    dataset = storeds.StoreDataset(segmentation, fields=["image", "mask", "label"], target_transform=lambda n: n + 10)
    assert dataset[3][2] == 13
    assert dataset.targets == [0, 1, 2, 3]


def encoded(array: Any, kind: str = "png") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def test_float_images_do_not_turn_black_and_wide_integers_do_not_turn_white(tmp_path: Path) -> None:
    arrays = [np.full((8, 8), 0.5, np.float32), np.full((8, 8), 70_000, np.int32), np.full((8, 8), 200, np.float32)]
    with storeds.open_writer(f"{tmp_path}/x.lmdb", {"image": "image"}) as writer:
        writer.append({"image": encoded(array, "tiff")} for array in arrays)
    dataset = storeds.StoreDataset(f"{tmp_path}/x.lmdb")
    for at, mode in enumerate(("F", "I")):
        with pytest.raises(errors.DecodeError, match=rf"values from .* would clip to 0 … 255.*mode='{mode}'"):
            dataset[at]
    assert np.asarray(dataset[2][0]).max() == 200
    assert storeds.verify(f"{tmp_path}/x.lmdb").ok  # the files are whole
    unchanged = storeds.StoreDataset(f"{tmp_path}/x.lmdb", mode="unchanged")
    assert all(np.array_equal(unchanged[at][0], array) for at, array in enumerate(arrays))


def test_grey_images_are_not_padded_with_empty_colours(tmp_path: Path) -> None:
    with storeds.open_writer(f"{tmp_path}/x.lmdb", {"image": "image"}) as writer:
        writer.append({"image": encoded(np.zeros(shape, np.uint8))} for shape in ((8, 8), (8, 8, 3)))
    dataset = storeds.StoreDataset(f"{tmp_path}/x.lmdb", decode="tensor", mode="unchanged")
    with pytest.raises(errors.ConfigError, match="images of 1 and 3 channels make no batch.*mode='RGB'.*pad"):
        storeds.collate(dataset[:])
    assert storeds.collate(dataset[:], pad=[0])[0].mask.shape == (2, 3)


def test_class_numbers_of_a_palette_are_not_scaled_to_fractions(segmentation: str) -> None:
    dataset = storeds.StoreDataset(segmentation, fields=PAIR, transform={"mask": "ToTensor"})
    with pytest.raises(errors.TransformError, match="palette image holds numbers .*decode='tensor'"):
        dataset[1]


# 4. Channels-last arrays

SHAPES = [(64, 48, 3), (3, 64, 48), (64, 64, 4), (4, 64, 64), (48, 64, 1), (64, 48), (5, 64, 48, 3), (5, 3, 64, 48)]


def planes(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> torch.Tensor:
    """Return an array image as a tensor with the channels first, by the test's own knowledge of its shape."""
    tensor = torch.from_numpy(array)
    if len(shape) == 2:
        return tensor[None]
    return tensor if shape[-3] in (1, 3, 4) else tensor.movedim(-1, -3)


def pixels(shape: tuple[int, ...], count: int = 4, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 200, (count, *shape)).astype(dtype)


@pytest.mark.parametrize("engine", ENGINES)
def test_crops_of_arrays_cut_rows_and_columns_in_both_channel_orders(engine: str, make_engine_url: MakeUrl) -> None:
    for shape in SHAPES:
        images, url = pixels(shape), make_engine_url(engine)
        with storeds.open_writer(url, {"x": {"kind": "array", "dtype": "uint8", "shape": shape}}) as writer:
            writer.append({"x": image} for image in images)
        crop = pytest.importorskip("torchvision.transforms").CenterCrop((16, 24))
        dataset = storeds.StoreDataset(url, reader="array", transform=[{"name": "CenterCrop", "size": [16, 24]}])
        mirrored = storeds.StoreDataset(url, reader="array", transform=[{"name": "RandomHorizontalFlip", "p": 1}])
        plain = storeds.StoreDataset(url, reader="array", decode="tensor")
        for number, image in enumerate(images):
            expected = planes(image, shape)
            assert torch.equal(dataset[number][0], crop(expected))
            assert torch.equal(mirrored[number][0], expected.flip(-1))
            assert torch.equal(plain[number][0], expected)
            assert torch.equal(storeds.StoreDataset(url, reader="array")[number][0], torch.from_numpy(image))
        loaders = [storeds.StoreLoader(plain, batch_size=4), storeds.ThreadLoader(plain, batch_size=4, num_workers=1)]
        for loader in (*loaders, torch.utils.data.DataLoader(plain, batch_size=4, num_workers=1)):
            ((batch,),) = list(loader)
            assert torch.equal(batch, torch.stack([planes(image, shape) for image in images]))
            assert batch.is_contiguous()


def test_an_hdf5_file_of_channels_last_images_trains_on_the_right_pixels(tmp_path: Path) -> None:
    images = pixels((64, 64, 3), dtype=np.uint16)
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["images"], file["labels"] = images, np.arange(4)
    transform = [{"name": "RandomResizedCrop", "size": 32}, "RandomHorizontalFlip"]
    config = {"dataset": {"url": str(tmp_path / "plain.h5"), "reader": "array", "seed": 3, "transform": transform}}
    image, label = storeds.build_dataset(storeds.load_config(config))[1]
    whole = storeds.StoreDataset(tmp_path / "plain.h5", reader="array", decode="tensor", fields=["labels", "images"])
    assert (image.shape, image.dtype, label) == ((3, 32, 32), torch.uint16, 1)
    assert torch.equal(whole[2][1], torch.from_numpy(images[2]).permute(2, 0, 1))
    assert whole.reader.data == "images"


@pytest.mark.parametrize("shape", [(3, 64, 3), (64, 64, 64), (4, 64, 4), (None, None, None), (64, 2, 64)])
def test_an_ambiguous_channel_axis_is_an_error_that_asks_for_channels(shape: tuple[int, ...], tmp_path: Path) -> None:
    stored = tuple(edge or 32 for edge in shape)
    image = pixels(stored, 1)[0]
    with storeds.open_writer(f"{tmp_path}/x.h5", {"x": {"kind": "array", "dtype": "uint8", "shape": shape}}) as writer:
        writer.append([{"x": image}])
    mirror = [{"name": "RandomHorizontalFlip", "p": 1}]
    for arguments in ({"transform": mirror}, {"decode": "tensor"}):
        with pytest.raises(errors.ConfigError, match=r"'x' holds arrays of shape .*channels='last'.*channels='first'"):
            storeds.StoreDataset(f"{tmp_path}/x.h5", reader="array", **arguments)
    expected = {"last": torch.from_numpy(image).permute(2, 0, 1).flip(-1), "first": torch.from_numpy(image).flip(-1)}
    for channels in ("last", "first"):
        table = {"url": f"{tmp_path}/x.h5", "reader": "array", "channels": channels, "transform": mirror}
        dataset = storeds.build_dataset(storeds.load_config({"dataset": table}))
        assert torch.equal(dataset[0][0], expected[channels])


def test_settings_that_a_reader_would_ignore_are_refused(tmp_path: Path) -> None:
    with storeds.open_writer(f"{tmp_path}/x.h5", {"x": "float", "image": "image"}) as writer:
        writer.append([{"x": 1.0, "image": jpeg(0)}])
    for ignored in ({"mode": "L"}, {"decode": "pil"}, {"transform": ["ToTensor"], "channels": "last"}):
        with pytest.raises(errors.ConfigError, match=r"mode|decode|channels"):
            storeds.StoreDataset(f"{tmp_path}/x.h5", reader="array", fields=["x"], **ignored)
    with pytest.raises(errors.ConfigError, match="takes no channels"):
        storeds.StoreDataset(f"{tmp_path}/x.h5", channels="last")


# 6. External randomness

AUGMENT = [
    {"name": "albumentations.RandomResizedCrop", "size": [24, 24]},
    {"name": "albumentations.HorizontalFlip", "p": 0.5},
    {
        "name": "albumentations.OneOf",
        "transforms": [{"name": "albumentations.ColorJitter"}, "albumentations.GaussNoise"],
    },
]


def augment() -> Any:
    """Return the config of transforms of albumentations."""
    pytest.importorskip("albumentations")
    return AUGMENT


def shift() -> Any:
    """Return transforms of torchvision."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    return v2.Compose([v2.RandomCrop(24), v2.ColorJitter(0.5, 0.5)])


@pytest.fixture
def photographs(tmp_path: Path) -> str:
    """URL of eight photographs."""
    url = f"lmdb://{tmp_path}/photographs.lmdb"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": jpeg(n)} for n in range(8))
    return url


def in_order(loader: Iterable[Any]) -> torch.Tensor:
    return torch.cat([batch[0] for batch in loader])


@pytest.mark.parametrize(
    ("make_transform", "starts"),
    [(augment, ("fork", "spawn")), (shift, ("fork",))],  # tests/conftest.py makes torchvision importable here only
)
def test_a_seed_decides_what_other_libraries_draw_in_every_kind_of_worker(
    photographs: str, make_transform: Callable[[], Any], starts: tuple[str, ...]
) -> None:
    transform = make_transform()

    def dataset() -> storeds.StoreDataset:
        return storeds.StoreDataset(photographs, decode="tensor", seed=5, transform=transform)

    alone = [dataset()[at][0] for at in (7, 6, 5, 4, 3, 2, 1, 0)][::-1]
    assert len({image.numpy().tobytes() for image in alone}) == 8
    for start in starts:
        loader = storeds.StoreLoader(dataset(), batch_size=2, num_workers=2, multiprocessing_context=start)
        assert torch.equal(in_order(loader), torch.stack(alone))
    threads = storeds.ThreadLoader(dataset(), batch_size=1, num_workers=4)
    assert torch.equal(in_order(threads), torch.stack(alone))
    again = dataset()
    again.set_epoch(1)
    assert not torch.equal(again[0][0], alone[0])


@pytest.mark.parametrize("decode", ["pil", "tensor"])
def test_albumentations_gives_the_same_pixels_as_without_storeds(photographs: str, decode: str) -> None:
    albumentations = pytest.importorskip("albumentations")
    steps = [albumentations.CenterCrop(24, 32), albumentations.VerticalFlip(p=1)]
    for transform in (albumentations.Compose(steps), steps, [*steps, albumentations.Normalize(), "ToTensor"]):
        (made,) = storeds.StoreDataset(photographs, decode=decode, transform=transform)[2]
        with Image.open(io.BytesIO(jpeg(2))) as image:
            expected = albumentations.Compose(steps)(image=np.array(image.convert("RGB")))["image"]
        if transform is not steps and isinstance(transform, list):
            expected = albumentations.Normalize()(image=expected)["image"]
        is_tensor = isinstance(made, torch.Tensor)
        assert np.array_equal(made.permute(1, 2, 0).numpy() if is_tensor else np.asarray(made), expected)


def test_without_a_seed_workers_do_not_repeat_each_other(photographs: str) -> None:
    dataset = storeds.StoreDataset(photographs, decode="tensor", transform=augment())
    everything: Any = torch.utils.data.ConcatDataset([torch.utils.data.Subset(dataset, [0]) for _ in range(8)])
    torch.manual_seed(1)
    images = in_order(torch.utils.data.DataLoader(everything, batch_size=4, num_workers=2))
    assert len({image.numpy().tobytes() for image in images}) == 8
    torch.manual_seed(1)
    again = in_order(torch.utils.data.DataLoader(everything, batch_size=4, num_workers=2))
    assert torch.equal(again, images)


# 8. Missing labels


def test_a_list_without_a_column_of_labels_is_refused_unless_no_label_is_given(tmp_path: Path) -> None:
    photos(tmp_path, "0.jpg", "1.jpg")
    (tmp_path / "list.csv").write_text("file,klass\n0.jpg,cat\n1.jpg,dog\n")
    target = f"lmdb://{tmp_path}/a.lmdb"
    refused = storeds_command("pack", tmp_path / "list.csv", target, code=2)
    assert "'klass'" in refused
    assert "--option label_column=klass" in refused
    assert "--no-label" in refused
    assert not (tmp_path / "a.lmdb").exists()
    packed = storeds_command("pack", tmp_path / "list.csv", target, "--option", "label_column=klass")
    assert "file → image, klass → label" in packed
    assert [record["label"] for record in stored_records(tmp_path / "a.lmdb")] == [0, 1]
    unlabelled = json.loads(
        storeds_command("pack", tmp_path / "list.csv", target, "--no-label", "--overwrite", "--json")
    )
    assert unlabelled["columns"] == {"file": "image", "klass": "klass"}


def test_labels_that_a_table_with_missing_cells_wrote_as_floats_are_integers(tmp_path: Path) -> None:
    photos(tmp_path, "0.jpg", "1.jpg", "2.jpg")
    (tmp_path / "list.csv").write_text("path,label\n0.jpg,10.0\n1.jpg,2.0\n2.jpg,0.0\n")
    storeds.pack(tmp_path / "list.csv", f"lmdb://{tmp_path}/a.lmdb")
    assert [record["label"] for record in stored_records(tmp_path / "a.lmdb")] == [10, 2, 0]


# 9. Records that moved, columns that changed


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_at_another_position_is_an_error_that_names_both_positions(
    make_engine_url: MakeUrl, engine: str
) -> None:
    url, records = make_engine_url(engine), numbered_records(100)
    with storeds.open_writer(url, {"image": "image", "label": "int", "key": "str"}) as writer:
        writer.append(records)
    swap_records(url, 0, 81)
    with storeds.open_backend(url) as backend:
        found = unjudged(backend.get_many(range(100)))
    assert "belongs to position 81" in str(found[0])
    assert "belongs to position 0" in str(found[81])
    assert found[1:81] + found[82:] == records[1:81] + records[82:]
    with pytest.raises(errors.RecordError, match="record 0.* belongs to position 81"):
        storeds.StoreDataset(url, decode="bytes")[0]
    assert {finding.position for finding in storeds.verify(url, workers=0).findings} >= {0, 81}


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_a_record_of_another_store_is_an_error(make_engine_url: MakeUrl, engine: str) -> None:
    ours, theirs = make_engine_url(engine), make_engine_url(engine)
    for url, image in ((ours, b"ours"), (theirs, b"them")):
        with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
            writer.append({"image": image * 1250, "label": at} for at in range(4))
    graft_record(ours, theirs, 2)
    with storeds.open_backend(ours) as backend:
        found = backend.get_many(range(4))
    assert "belongs to another store" in str(found[2])
    assert [one["image"][:4] for one in found if isinstance(one, dict)] == [b"ours"] * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_changed_label_is_an_error_in_every_way_of_reading(make_engine_url: MakeUrl, engine: str) -> None:
    url, records = make_engine_url(engine), numbered_records(60)
    with storeds.open_writer(url, {"image": "image", "label": "int", "key": "str"}) as writer:
        writer.append(records)
    change_label(url, 7, 20, "000020.jpg")
    backend: Any
    with storeds.open_backend(url) as backend:
        # A query for some fields of MongoDB documents is not verified; a column or a whole record is.
        for fields in (["label"], ["key"], ["label", "key"]) if engine != "mongodb" else ([*records[0]],):
            found = backend.get_many(range(60), fields)
            assert isinstance(found[7], errors.RecordError)
            del found[7]
            assert found == [{name: record[name] for name in fields} for record in records[:7] + records[8:]]
        for name in ("label", "key"):
            with pytest.raises(errors.StoredsError, match="does not match its checksum"):
                backend.column(name)
        if isinstance(backend, SupportsBatchArrays):
            with pytest.raises(errors.RecordError, match="record 7"):
                backend.get_arrays([3, 7], ["label"])
    for where in ({"label": 7}, {"label": 20}, {"label": 3}, {"key": "000007.jpg"}):
        with pytest.raises(errors.StoredsError, match="does not match its checksum"):
            storeds.StoreDataset(url, where=where)
    with pytest.raises(errors.StoredsError, match="does not match its checksum"):
        storeds.StoreDataset(url, decode="bytes").targets  # noqa: B018
    assert not storeds.verify(url, workers=0).ok


def test_a_flipped_bit_in_a_page_number_or_the_head_of_a_page_never_gives_another_record(tmp_path: Path) -> None:
    path, records = tmp_path / "train.lmdb", numbered_records(400)
    with storeds.open_writer(path, {"image": "image", "label": "int", "key": "str"}) as writer:
        writer.append(records)
    data = path.read_bytes()

    def is_right_or_an_error() -> bool:
        try:
            with storeds.open_backend(path) as backend:
                found = [backend.get_many([at], [*records[0]])[0] for at in range(400)]
        except errors.StoredsError:
            return True
        return all(one == records[at] or isinstance(one, errors.RecordError) for at, one in enumerate(found))

    chance = random.Random(9)
    heads = [8 * place + chance.randrange(128) for place in range(0, len(data), 4096)]
    for bit in chance.sample(sorted(page_number_bits(data)), 60) + chance.sample(heads, 40):
        path.write_bytes(flip(data, bit))
        assert exit_code(is_right_or_an_error) != 1, bit


# 10. A damaged LMDB file


@pytest.fixture
def deadly(tmp_path: Path) -> Path:
    """Path of an LMDB store of 200 records; reading the last one ends the process."""
    path = tmp_path / "deadly.lmdb"
    with storeds.open_writer(path, {"image": "bytes"}) as writer:
        writer.append({"image": bytes(1000)} for _ in range(200))
    lead_astray(path, 199)
    return path


def test_verify_names_the_record_whose_page_is_damaged(deadly: Path) -> None:
    findings = [finding for finding in storeds.verify(f"lmdb://{deadly}").findings if finding.position is not None]
    assert 199 in {finding.position for finding in findings}
    assert {finding.kind for finding in findings} == {"crash"}
    assert "the process that read it died of SIG" in findings[-1].message
    assert len(findings) <= 4  # records of one page


def test_a_worker_killed_by_a_damaged_file_is_an_error_that_names_the_file(deadly: Path) -> None:
    dataset = storeds.StoreDataset(f"lmdb://{deadly}", reader="array", fields=["image"])
    with pytest.raises(RuntimeError, match=rf"(?s)worker.*storeds verify lmdb://{deadly}"):
        list(storeds.StoreLoader(dataset, batch_size=50, num_workers=1))


# 11. Full disks, leftovers, two writers, deadlines


@pytest.mark.parametrize("engine", FILE_ENGINES)
def test_a_full_disk_is_reported_as_full_and_resume_succeeds_with_more_room(tmp_path: Path, engine: str) -> None:
    fields = {"key": "str", "blob": "bytes"}
    records = [{"key": str(n), "blob": bytes([n]) * 3000} for n in range(60)]
    with small_disk(tmp_path / "disk", "12k") as disk:
        url, size, refused, done = f"{engine}://{disk}/store", 12, 0, 0
        while not (disk / "store").exists():
            try:
                with storeds.open_writer(url, fields, commit_every=10, resume=True) as writer:
                    assert writer.count >= done  # nothing durable is lost
                    writer.append(records[writer.count :])
            except errors.StoredsError as error:
                assert "the disk is full" in str(error)
                assert f"the tmpfs file system at {disk} has " in str(error)
                kept = re.search(r"the first (\d+) records are safe", str(error))
                size, refused, done = size + 37, refused + 1, int(kept[1]) if kept else done
                subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)
        assert refused > 4
        with storeds.open_backend(url) as backend:
            assert backend.get_many(range(60)) == records


@pytest.mark.parametrize("written", [1, 4096, 6000])
def test_an_lmdb_writer_killed_while_its_file_is_created_can_be_resumed_or_restarted(
    tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"lmdb://{tmp_path}/store"
    create = lmdb.open

    def die(path: str, **options: Any) -> None:
        create(path, **options).close()
        os.truncate(path, written)  # the kernel has written this much when the signal arrives
        os.kill(os.getpid(), signal.SIGKILL)

    def write(*, resume: bool) -> None:
        with storeds.open_writer(url, {"x": "int"}, resume=resume, overwrite=not resume) as writer:
            writer.append([{"x": 1}])

    for resume in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(lmdb, "open", die)
            pid = fork(lambda: write(resume=False))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        again = fork(functools.partial(write, resume=resume))  # in a child, as reading half a page may end the process
        assert os.waitstatus_to_exitcode(os.waitpid(again, 0)[1]) == 0
        assert storeds.info(url).count == 1
        os.remove(tmp_path / "store")


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_a_second_writer_fails_with_an_error_that_names_the_first(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    first = WriterProcess(url)
    first.ask("begin", "first", overwrite=True)
    first.ask("append", "first", count=7)
    with pytest.raises(
        errors.StoreExistsError, match=rf"written by process {first.pid} on .*, since 20.*if it is dead"
    ):
        storeds.open_writer(url, FIELDS, overwrite=True)
    first.ask("append", "first", count=2)
    first.kill()
    with storeds.open_writer(url, FIELDS, plan="first", resume=True) as writer:  # at once: the system knows it is dead
        assert writer.count == 9
    with storeds.open_backend(url) as backend:
        assert backend.get_many(range(9)) == [{"job": "first", "at": n} for n in range(9)]


def run_seeded_program(*arguments: str) -> None:
    """Run a program that fails if a global generator of Python, NumPy or torch was drawn from."""
    script = Path(__file__).parent.joinpath("support", "_seeded_program.py")
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.share(1)
@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb", "memory"])
def test_nothing_draws_from_the_global_generators(engine: str, make_engine_url: MakeUrl) -> None:
    run_seeded_program("use", make_engine_url(engine), make_engine_url(engine))


def test_losing_mongodb_ends_an_epoch_of_a_thread_loader_within_the_deadline(tmp_path: Path) -> None:
    with run_mongod(tmp_path / "server") as uri:
        url = f"{uri}/db/lost?timeoutMS=5000"
        with storeds.open_writer(url, {"x": "int"}) as writer:
            writer.append({"x": n} for n in range(1000))
        dataset = storeds.StoreDataset(url, reader="array", fields=["x"])
        epoch = iter(storeds.ThreadLoader(dataset, batch_size=4, num_workers=4))
        next(epoch)
    start = time.monotonic()
    with pytest.raises(errors.UnavailableError, match="timeoutMS=5000"):
        list(epoch)
    assert time.monotonic() - start < 9.5  # each thread once spent the deadline a second time
    dataset.close()


def test_losing_a_mongodb_node_does_not_change_the_random_numbers_of_a_program(tmp_path: Path) -> None:
    run_seeded_program("lose_a_node", str(tmp_path / "server"))


# 12. Hostile text

DIGITS = "9" * 5000


def test_numbers_of_5000_digits_are_refused_in_configs_overrides_and_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEED", DIGITS)
    config = {"dataset": {"url": f"lmdb://{tmp_path}/x.lmdb", "seed": "${SEED}"}}
    for refused in (
        lambda: storeds.load_config(config),
        lambda: storeds.load_config({"dataset": {"url": "x", "where": {"label": 10**5000}}}),
        lambda: storeds.load_config({"dataset": {"url": "x"}}, overrides=[f"loader.batch_size={DIGITS}"]),
        lambda: storeds.open_backend(f"hdf5://{tmp_path}/x.h5?cache_bytes={DIGITS}"),
        lambda: storeds.open_backend(f"mongodb://host.invalid/db/c?timeoutMS={DIGITS}"),
        lambda: storeds.open_backend(f"mongodb://host.invalid:{DIGITS}/db/c"),
    ):
        with pytest.raises(errors.ConfigError):
            refused()


@pytest.mark.parametrize(
    "url",
    [
        "MongoDB://user:PW@host.invalid/db/c?tls=maybe",
        "mongod@://user:PW@host.invalid/db/c",
        "mongo db://user:PW@host.invalid/db/c",
        "mongodb//user:PW@host.invalid/db/c",
        "mongodb ://user:PW@host.invalid/db/c",
        "mongdb://user:PW@host.invalid/db/c",
        " mongodb://user:PW@host.invalid/db/c",
        "//user:PW@host.invalid/db/c",
        "memory://user:PW@host",
        "mongodb://user:p@PW/wo@host.invalid/db/c",
        "mongodb://user:PW/wo@host.invalid/db/c",
        "mongodb://user:a?PW@host.invalid/db/c",
        "mongodb://host.invalid/db/c?serverSelectionTimeoutMS=50&tlsCertificateKeyFilePassword=PW",
    ],
)
@pytest.mark.parametrize(
    "password", ["Hunter2Sesame", "x Hunter2Sesame", "x\N{NO-BREAK SPACE}Hunter2Sesame", "x\x1bHunter2Sesame"]
)
def test_no_error_and_no_repr_shows_the_password_of_a_misspelt_url(url: str, password: str, tmp_path: Path) -> None:
    url = url.replace("PW", password)
    shown = repr(storeds.load_config({"dataset": {"url": url}}))
    for refused in (
        lambda: storeds.open_backend(url),
        lambda: storeds.open_writer(url, {"x": "int"}),
        lambda: storeds.build_dataset({"dataset": {"url": url}}),
    ):
        with pytest.raises(errors.StoredsError) as raised:
            refused()
        shown += "".join(traceback.format_exception(raised.value))
    assert "Sesame" not in shown


def test_no_part_of_a_password_is_looked_up_as_a_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **options: asked.append(host))
    with pytest.raises(errors.ConfigError, match=r"mongodb://user:\*\*\*@host/db/c.* must be percent-encoded"):
        storeds.open_backend("mongodb://user:p@ss/wo@host/db/c?serverSelectionTimeoutMS=100")
    assert asked == []


def test_the_name_of_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    name = "\x1b]0;title\x07\x9b31m\x1b[2J.jpg"
    photos(tmp_path / "tree", "cat/1.jpg")
    (tmp_path / "tree/cat" / name).write_bytes(b"<html>")
    for options, code in ((["--on-bad", "skip"], 0), (["--overwrite"], 3)):
        shown = storeds_command("pack", tmp_path / "tree", f"lmdb://{tmp_path}/a.lmdb", *options, code=code)
        assert r"\x1b]0;title\x07\x9b31m\x1b[2J.jpg" in shown
        assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    exact = storeds_command("pack", tmp_path / "tree", f"lmdb://{tmp_path}/b.lmdb", "--on-bad", "skip", "--json")
    assert json.loads(exact)["problems"][0]["name"] == f"cat/{name}"


# 13. Interpreter exit


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("owner", ["__main__", "os"])
def test_a_writer_left_open_at_exit_says_nothing_and_can_be_resumed(
    make_engine_url: MakeUrl, engine: str, owner: str
) -> None:
    url = make_engine_url(engine)
    script = f"""
import {owner}, storeds
{owner}.writer = storeds.open_writer({url!r}, {{"x": "int"}}, commit_every=2)
{owner}.writer.append([{{"x": n}} for n in range(5)])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)
    with storeds.open_writer(url, {"x": "int"}, resume=True) as writer:
        assert writer.count == 4


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "reading",
    [
        "iter(storeds.StoreIterable(url, reader='array', fields=['x']))",
        "iter(storeds.ThreadLoader(dataset, num_workers=2, batch_size=2))",
        "iter(storeds.StoreLoader(dataset, num_workers=1, batch_size=2))",
    ],
)
def test_an_epoch_left_unfinished_at_exit_says_nothing(make_engine_url: MakeUrl, reading: str) -> None:
    url = make_engine_url("lmdb")
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append({"x": n} for n in range(50))
    script = f"""
import os, storeds
url = {url!r}
dataset = storeds.StoreDataset(url, reader="array", fields=["x"])
os.epoch = {reading}
next(os.epoch)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# 14. Configs in every form


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    with storeds.open_writer(tmp_path / "all.lmdb", {"image": "image", "label": "int", "split": "str"}) as writer:
        writer.append({"image": jpeg(n), "label": n, "split": "val" if n % 3 == 0 else "train"} for n in range(12))
    file = tmp_path / "config.yaml"
    file.write_text(
        f"dataset: {{url: 'lmdb://{tmp_path}/all.lmdb', transform: [{{name: Resize, size: [8, 8]}}, ToTensor]}}\n"
        "loader: {batch_size: 4, num_workers: 0}\n"
    )
    return file


def labels_in(loader: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


def test_a_loader_and_a_dataset_are_built_from_the_path_of_a_config_or_a_mapping(config_file: Path) -> None:
    mapping = yaml.safe_load(config_file.read_text())
    for config in (config_file, str(config_file), mapping):
        assert labels_in(storeds.build_loader(config, "val")) == [[0, 3, 6, 9]]
        assert storeds.build_dataset(config, "train").targets == [1, 2, 4, 5, 7, 8, 10, 11]


def test_a_dataset_takes_its_store_as_url(config_file: Path) -> None:
    url = yaml.safe_load(config_file.read_text())["dataset"]["url"]
    assert storeds.StoreDataset(url=url, where={"split": "val"}).targets == [0, 3, 6, 9]


def test_single_values_of_a_config_are_overridden(config_file: Path) -> None:
    overrides = ["loader.batch_size=16", "dataset.transform.0.size=[4, 6]", "splits.val.dataset.transform=null"]
    config = storeds.load_config(config_file, overrides=overrides)
    assert config.loader.batch_size == 16
    assert config.dataset.transform == [{"name": "Resize", "size": [4, 6]}, "ToTensor"]
    assert config.source_for("val").transform is None
    with pytest.raises(errors.ConfigError, match="unknown key 'loader.bach_size'; did you mean 'batch_size'"):
        storeds.load_config(config_file, overrides=["loader.bach_size=16"])


def test_a_config_of_omegaconf_is_taken_and_a_missing_value_named(config_file: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    conf = omegaconf.OmegaConf
    config = conf.merge(conf.load(config_file), {"size": 2, "loader": {"batch_size": "${size}"}})
    assert isinstance(config, omegaconf.DictConfig)
    with pytest.raises(errors.ConfigError, match="unknown key 'size'"):
        storeds.load_config(config)
    assert labels_in(storeds.build_loader({"dataset": config.dataset, "loader": config.loader}, "val")) == [
        [0, 3],
        [6, 9],
    ]
    config.dataset.url = "???"
    with pytest.raises(errors.ConfigError, match="url"):
        storeds.build_dataset({"dataset": config.dataset})


def test_hydra_instantiates_datasets_and_loaders(config_file: Path) -> None:
    instantiate = pytest.importorskip("hydra.utils").instantiate
    conf = pytest.importorskip("omegaconf").OmegaConf
    whole = conf.create({"_target_": "storeds.build_loader", "split": "val", "config": conf.load(config_file)})
    assert labels_in(instantiate(whole)) == [[0, 3, 6, 9]]
    table = {"_target_": "storeds.StoreDataset", **yaml.safe_load(config_file.read_text())["dataset"]}
    for given in (table, conf.create(table)):
        dataset = instantiate(given, where={"split": ["val"]}, as_dict=True)
        assert dataset[1]["image"].shape == (3, 8, 8)
        assert dataset[1]["label"] == 3


# 15. Folders of 🤗 datasets, cut files, appending


@pytest.mark.parametrize("engine", [*ENGINES, "memory"])
def test_appending_to_a_store_is_refused_with_a_way_that_keeps_its_records(
    make_engine_url: MakeUrl, engine: str
) -> None:
    url, more, both = (make_engine_url(engine) for _ in range(3))
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with pytest.raises(errors.StoreExistsError) as refusal:
        storeds.open_writer(url, {"x": "int"})
    said = str(refusal.value)
    assert "never changes" in said
    assert said.index("To add records") < said.index("convert") < said.index("delete") < said.index("overwrite=True")
    with storeds.open_writer(more, {"x": "int"}) as writer:  # as it says
        writer.append([{"x": 2}])
    storeds.convert([url, more], both)
    for stores in ([url, more], both):
        with storeds.open_backend(stores) as backend:
            assert backend.get_many(range(2)) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("native", [False, True])
def test_a_cut_hdf5_file_says_how_much_of_it_is_there(tmp_path: Path, native: bool) -> None:
    path = tmp_path / "a.h5"
    if native:
        with storeds.open_writer(path, {"x": "int"}) as writer:
            writer.append({"x": at} for at in range(1000))
    else:
        write(path, {"data": np.zeros((1000, 10)), "label": np.arange(1000)})
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(
        errors.FormatError, match=r"a\.h5 is cut short: [\d,]+ of its [\d,]+ bytes .*copy or download it again$"
    ):
        storeds.open_backend(path)


# 16. The command line


def test_a_split_has_its_share_of_every_class(tmp_path: Path) -> None:
    names = [f"{kind}/{n}.jpg" for kind, count in (("cat", 10), ("dog", 20), ("emu", 5)) for n in range(count)]
    source = photos(tmp_path / "tree", *names)
    shown = storeds_command("pack", source, f"lmdb://{tmp_path}/a.lmdb", "--split", "train=0.8,val=0.2")
    assert "35 records" in shown
    records = stored_records(tmp_path / "a.lmdb")
    counts = Counter((record["key"].split("/")[0], record["split"]) for record in records)
    assert counts == {
        ("cat", "train"): 8,
        ("cat", "val"): 2,
        ("dog", "train"): 16,
        ("dog", "val"): 4,
        ("emu", "train"): 4,
        ("emu", "val"): 1,
    }
    info = storeds_command("info", f"lmdb://{tmp_path}/a.lmdb")
    assert "cat 10, dog 20, emu 5" in info
    assert "train 28, val 7" in info
    assert f"({(tmp_path / 'a.lmdb').stat().st_size:,} bytes)" in info


def test_pack_says_how_many_items_it_left_out_and_why(tmp_path: Path) -> None:
    source = photos(tmp_path / "tree", "cat/1.jpg")
    for number in range(3):
        (source / "cat" / f"empty{number}.jpg").write_bytes(b"")
    (source / "cat/page.jpg").write_bytes(b"<html>")
    shown = storeds_command("pack", source, f"lmdb://{tmp_path}/a.lmdb", "--on-bad", "skip")
    assert (
        "4 of 5 items bad, 4 left out: 3 items: is empty (cat/empty0.jpg, cat/empty1.jpg, cat/empty2.jpg); 1 item: "
        in shown
    )
    assert "a.lmdb: 1 record, id" in shown


def test_the_command_line_helps(tmp_path: Path) -> None:
    for command in ("pack", "convert", "info", "verify", "repair", "bench", "backends", "config", "demo"):
        assert "Usage" in storeds_command(command, "-h")
    choices = re.sub(r"[\s│]+", "", storeds_command("pack", "--help"))
    assert "raise|skip|keep" in choices
    assert "--install-completion" in storeds_command("-h")
    (tmp_path / "photos.lmdb").touch()
    environment = {**os.environ, "_STOREDS_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    for typed, offered in (("lm", "lmdb://"), ("lmdb://pho", "lmdb://photos.lmdb"), ("//pho", "//photos.lmdb")):
        environment["COMP_WORDS"] = f"storeds info {typed}"
        done = subprocess.run([STOREDS], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout.split() == [offered]


def test_a_pipe_gets_no_empty_lines(tmp_path: Path) -> None:
    source = photos(tmp_path / "tree", "cat/1.jpg")
    for command, lines in ((["pack", source], 2), (["convert", tmp_path / "a.lmdb"], 1)):
        target = tmp_path / f"{'a' if command[0] == 'pack' else 'b'}.lmdb"
        done = subprocess.run([STOREDS, *map(str, command), str(target)], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert done.stdout.count("\n") == lines
        assert "\n\n" not in done.stdout


# 21. LMDB entries that are not records


# 22. Two readings of one store


def test_options_on_a_path_without_a_scheme_are_an_error_that_gives_the_url_to_write(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": np.arange(5)})
    for name in ("*.h5?locking=false", "b.h5?locking=false"):
        with pytest.raises(errors.ConfigError, match=re.escape(f"write hdf5://{tmp_path}/{name}")):
            storeds.open_backend(f"{tmp_path}/{name}")
    with pytest.raises(errors.ConfigError, match=r"options need a scheme: write lmdb://.*b\.lmdb\?readahead=true"):
        storeds.open_writer(f"{tmp_path}/b.lmdb?readahead=true", {"x": "int"})


# 24. Hidden folders


def test_a_hidden_folder_is_not_a_class(tmp_path: Path) -> None:
    photos(tmp_path / "tree", ".ipynb_checkpoints/1.jpg", "__MACOSX/1.jpg", "cat/1.jpg", "cat/._1.jpg", "dog/2.jpg")
    packed = storeds.pack(tmp_path / "tree", f"lmdb://{tmp_path}/a.lmdb")
    assert packed.attrs["classes"] == ["cat", "dog"]
    assert packed.notes == (
        "left out 2 hidden folders (.ipynb_checkpoints, __MACOSX) and 1 hidden file (cat/._1.jpg); rename what is to "
        "be packed",
    )
    assert [(record["key"], record["label"]) for record in stored_records(tmp_path / "a.lmdb")] == [
        ("cat/1.jpg", 0),
        ("dog/2.jpg", 1),
    ]
