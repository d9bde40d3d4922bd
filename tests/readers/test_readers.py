"""Test the readers with a store in memory."""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import h5py
import lmdb
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from make_store import make_store
from photographs import by_pillow, jpeg, saved
from picture_stores import picture_store
from storeds import (
    Backend,
    Record,
    SampleContext,
    StoreDataset,
    StoreLoader,
    build_dataset,
    errors,
    open_backend,
    readers,
)
from storeds.ops import stats
from storeds.registry import READERS
from storeds.testing import ReaderTests

FIELDS: dict[str, Any] = {
    "key": "str",
    "image": "image",
    "label": "int",
    "mask": "image",
    "x": {"kind": "array", "dtype": "float32", "shape": [2, None]},
}


def record(number: int) -> dict[str, Any]:
    x = np.arange(2 * number, dtype="f4").reshape(2, number)
    return {"key": f"k{number}", "image": jpeg(number), "label": number % 3, "mask": jpeg(number + 1), "x": x}


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend(make_store(FIELDS, [record(number) for number in range(6)])) as opened:
        yield opened


def build(reader: Any, backend: Backend, index: int) -> tuple[dict[str, Any], SampleContext]:
    bound = reader.bind(backend)
    context = SampleContext(index)
    records = backend.get_many(bound.locate(index, context), bound.stored)
    return bound.build(records, context), context


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: readers.image(("image", "image")), "twice"),
        (lambda: readers.image(min_recovered=-0.1), "number from 0 to 1"),
        (lambda: readers.image(min_recovered=True), "number from 0 to 1"),
    ],
)
def test_invalid_options_are_named(make: Any, says: str, backend: Backend) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        make().bind(backend)


def test_arrays_come_as_tensors_of_the_same_dtype_and_shape(backend: Backend) -> None:
    sample, _ = build(readers.array(("x", "label")), backend, 5)
    assert sample["x"].dtype == torch.float32
    assert (sample["x"].numpy() == record(5)["x"]).all()
    assert sample["label"] == 2
    sample["x"].zero_()
    assert (build(readers.array(("x",)), backend, 5)[0]["x"].numpy() == record(5)["x"]).all()


class TestReadersKeepTheContract(ReaderTests):
    refuses = None

    @pytest.fixture(params=[readers.image(("image", "label", "index")), readers.array()], ids=["image", "array"])
    def reader(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def content(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return FIELDS, [record(number) for number in range(5)]


@dataclass(frozen=True)
class Doubled:
    """A plug-in's reader: it implements the protocol and nothing else, and its options have names that others use too."""

    strided: str = "no"
    mode: str = "train"
    count: int = 0
    fields: ClassVar[tuple[str, ...]] = ("x", "index")
    stored: ClassVar[tuple[str, ...]] = ("x",)
    data: ClassVar[str | None] = "x"
    target: ClassVar[str | None] = None

    def bind(self, backend: Backend, /) -> Self:
        return replace(self, count=len(backend))

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        return (index,)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        return {"x": 2 * records[0]["x"], "index": context.index}


def test_a_plug_in_reader_needs_the_protocol_alone_and_may_name_its_options_freely() -> None:
    url = make_store({"x": "int"}, [{"x": 5}, {"x": 6}])
    options = {"mode": "val", "strided": "yes"}
    dataset = StoreDataset(url, reader=cast("Any", Doubled), reader_options=options)
    assert dataset[:] == [(10, 0), (12, 1)]
    assert isinstance(dataset.reader, Doubled)
    assert (dataset.reader.mode, dataset.reader.strided) == ("val", "yes")
    assert (dataset.column("x").tolist(), "Doubled" in repr(dataset)) == ([5, 6], True)
    for given, says in (({"transforms": MIRROR}, "whole samples"), ({"reader_options": {"fold": 1}}, "made already")):
        with pytest.raises(errors.ConfigError, match=says):
            StoreDataset(url, reader=Doubled(), **given)
    with pytest.raises(errors.ConfigError, match="reader 'Doubled' takes no fields"):
        StoreDataset(url, reader=cast("Any", Doubled), fields=["x"])


def test_arrays_that_are_declared_as_images_are_images_for_every_decoder() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 12, 10, 3), np.uint8)
    fields = {"images": {"kind": "array", "dtype": "uint8", "shape": [12, 10, 3], "role": "image"}, "labels": "int"}
    url = make_store(fields, [{"images": pixels[at], "labels": at} for at in range(4)])
    for mode in ("RGB", "L"):
        for at, expected in enumerate(Image.fromarray(each).convert(mode) for each in pixels):
            rows = np.asarray(expected).reshape(12, 10, -1)
            for decode in ("pil", "tensor", "fast", by_pillow):
                image, label = StoreDataset(url, decode=decode, mode=mode)[at]
                found = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
                assert (found.reshape(12, 10, -1) == rows).all()
                assert (label, isinstance(image, Image.Image)) == (at, decode == "pil")
    dataset = StoreDataset(url, decode="tensor", transform=[{"name": "CenterCrop", "size": 6}])
    assert (dataset[2][0].permute(1, 2, 0).numpy() == pixels[2, 3:9, 2:8]).all()


# The channels of arrays lie first or last

SHAPES = [(64, 48, 3), (3, 64, 48), (64, 64, 4), (48, 64, 1), (64, 48), (5, 64, 48, 3), (5, 3, 64, 48)]
MIRROR = [{"name": "RandomHorizontalFlip", "p": 1}]


def array_store(shape: tuple[int | None, ...], arrays: Any) -> str:
    return make_store({"x": {"kind": "array", "dtype": "uint8", "shape": shape}}, [{"x": each} for each in arrays])


def planes(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> torch.Tensor:
    """Return an array image as a tensor with the channels first, by the test's own knowledge of its shape."""
    tensor = torch.from_numpy(array)
    if len(shape) == 2:
        return tensor[None]
    return tensor if shape[-3] in (1, 3, 4) else tensor.movedim(-1, -3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transforms_of_arrays_move_rows_and_columns_in_both_channel_orders(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 200, (4, *shape), np.uint8)
    url = array_store(shape, images)
    crop = StoreDataset(url, reader="array", transform=[{"name": "CenterCrop", "size": [16, 24]}])
    mirrored = StoreDataset(url, reader="array", transform=MIRROR)
    plain = StoreDataset(url, reader="array", decode="tensor")
    for number, image in enumerate(images):
        expected = planes(image, shape)
        top, left = (expected.shape[-2] - 16) // 2, (expected.shape[-1] - 24) // 2
        assert torch.equal(crop[number][0], expected[..., top : top + 16, left : left + 24])
        assert torch.equal(mirrored[number][0], expected.flip(-1))
        assert torch.equal(plain[number][0], expected)
        assert torch.equal(StoreDataset(url, reader="array")[number][0], torch.from_numpy(image))
    for loader in (StoreLoader(plain, batch_size=4), torch.utils.data.DataLoader(plain, batch_size=4)):
        ((batch,),) = list(loader)
        assert torch.equal(batch, torch.stack([planes(image, shape) for image in images]))
        assert batch.is_contiguous()


@pytest.mark.parametrize("shape", [(3, 64, 3), (64, 64, 64), (64, 2, 64)], ids=str)
def test_an_ambiguous_channel_axis_is_an_error_that_asks_for_channels(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 200, shape, np.uint8)
    url = array_store(shape, [image])
    for arguments in ({"transform": MIRROR}, {"decode": "tensor"}):
        with pytest.raises(errors.ConfigError, match=r"'x' holds arrays of shape .*channels='last'.*channels='first'"):
            StoreDataset(url, reader="array", **arguments)
    expected = {"last": torch.from_numpy(image).permute(2, 0, 1).flip(-1), "first": torch.from_numpy(image).flip(-1)}
    for channels, pixels in expected.items():
        dataset = StoreDataset(url, reader="array", channels=channels, transform=MIRROR)
        assert torch.equal(dataset[0][0], pixels)


def test_settings_that_a_reader_would_ignore_are_refused() -> None:
    url = make_store({"x": "float", "image": "image"}, [{"x": 1.0, "image": jpeg(0)}])
    for ignored in ({"mode": "L"}, {"decode": "pil"}, {"transform": ["ToTensor"], "channels": "last"}):
        with pytest.raises(errors.ConfigError, match=r"mode|decode|channels"):
            StoreDataset(url, reader="array", fields=["x"], **ignored)


# Every option of a reader changes something, or is an error


def outcome(url: str, reader: Any, options: dict[str, Any], **arguments: Any) -> Any:
    """Return what all samples of a dataset are, or the error that it or one of them raises."""
    try:
        dataset = StoreDataset(url, reader=reader, reader_options=options, **arguments)
    except errors.ConfigError as error:
        return error
    samples: list[Any] = []
    for at in range(len(dataset)):
        try:
            samples.append([*map(comparable, dataset[at])])
        except errors.RecordError as error:
            samples.append(str(error))
    return samples


def comparable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [*map(comparable, value)]
    if isinstance(value, Image.Image):
        return value.mode, value.size, hash(value.tobytes())
    return (value.dtype, value.shape, hash(str(value.tolist()))) if hasattr(value, "tolist") else value


def film() -> bytes:
    av, file = pytest.importorskip("av"), io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(5):
            colours = np.full((48, 64, 3), (50 * number, 255, 0), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(colours, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def rotated_jpeg(number: int) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    return saved(Image.fromarray(pixels), "JPEG", exif=exif.tobytes())


STEPS: dict[str, Any] = {"video": "int", "half": "int", "label": "int", "boxes": {"kind": "json", "role": "boxes"}}
PIXELS = {"kind": "array", "dtype": "uint8", "shape": [3, 40, 4], "role": "image"}
# What a store holds → the kind of the field `x`, and its value in record i.
CONTENTS: dict[str, tuple[Any, Any]] = {
    "image files": ("image", lambda i: rotated_jpeg(i)[: -300 if i == 1 else None]),
    "array images": (PIXELS, lambda i: np.random.default_rng(i).integers(0, 255, (3, 40, 4)).astype(np.uint8)),
    "numbers": ("float", float),
    "video files": ("bytes", lambda i: film()),
}
WINDOWS = {"x": [-1, 0]}
OPTIONS: dict[str, Any] = {
    **{"decode": "tensor", "mode": "L", "repair": False, "min_recovered": 1.0, "orient": True, "max_pixels": 10},
    **{"channels": {"x": "first"}, "roles": {"label": {"role": "label", "classes": [1, 0]}}, "box_format": "cxcywh"},
    **{"frames": 3, "stride": 2, "clips": 2, "sampling": "uniform", "short": "error", "per_frame": ["label"]},
    **{"windows": {"x": [1]}, "ends": "drop", "by": "half"},
}
OF_FILES = {"decode", "mode", "repair", "min_recovered", "orient", "max_pixels"}
OF_ARRAYS = {"decode", "mode", "channels"}
OF_CLIPS = {"frames", "stride", "clips", "sampling", "short", "by"}
OF_WINDOWS = {"windows", "stride", "ends", "by"}
OF_SAMPLES = {"roles", "box_format"}
EFFECTS: dict[tuple[str, str], set[str]] = {
    ("image", "image files"): OF_FILES,
    ("image", "array images"): OF_ARRAYS,
    ("image", "numbers"): set(),
    ("image", "video files"): set(),
    ("sample", "image files"): OF_FILES | OF_SAMPLES,
    ("sample", "array images"): {"channels"} | OF_SAMPLES,
    ("sample", "numbers"): OF_SAMPLES,
    ("sample", "video files"): OF_SAMPLES,
    ("array", "image files"): set(),
    ("array", "array images"): {"decode", "channels"},
    ("array", "numbers"): set(),
    ("array", "video files"): set(),
    ("video", "image files"): OF_FILES | OF_CLIPS | {"per_frame"},
    ("video", "array images"): OF_ARRAYS | OF_CLIPS | {"per_frame"},
    ("video", "numbers"): OF_CLIPS | {"per_frame"},
    ("video", "video files"): {"frames", "stride", "clips", "sampling", "short", "decode", "mode", "max_pixels", "by"},
    ("sequence", "image files"): OF_FILES | OF_WINDOWS,
    ("sequence", "array images"): OF_ARRAYS | OF_WINDOWS,
    ("sequence", "numbers"): OF_WINDOWS,
    ("sequence", "video files"): OF_WINDOWS,
}


def option_names(reader: str) -> list[str]:
    return [name for name in inspect.signature(READERS.get(reader)).parameters if name != "fields"]


@pytest.fixture(scope="module", params=CONTENTS)
def contents(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind, value = CONTENTS[request.param]
    return request.param, make_store(
        {**STEPS, "x": kind},
        [
            {"video": i // 3, "half": i // 2, "label": i % 2, "boxes": [[0, 0, 2 + i, 3]], "x": value(i)}
            for i in range(4)
        ],
    )


@pytest.mark.parametrize(
    ("reader", "name"),
    [(each, name) for each in ("image", "sample", "array", "video", "sequence") for name in option_names(each)],
)
def test_every_option_changes_samples_or_is_an_error(contents: tuple[str, str], reader: str, name: str) -> None:
    content, url = contents
    base: dict[str, Any] = {}
    fields = ["x", "label", "boxes"] if reader == "sample" else ["x", "label"]
    if content == "array images" and reader != "sequence":
        base["channels"] = "last"
    if content == "array images" and reader == "sequence":
        base["channels"] = {"x": "last"}
    if reader == "array" and content == "array images":
        base["decode"] = "tensor"
    if reader == "sequence":
        base |= {"windows": WINDOWS, "by": "video"}
    if reader == "video":
        frames = 9 if name == "short" else 2
        base |= {"frames": frames, "sampling": "spaced", "by": "x" if content == "video files" else "video"}
    value = "pil" if name == "decode" and reader != "image" else OPTIONS[name]
    if reader == "array" and name == "decode":
        value = None if content == "array images" else "tensor"
    before = outcome(url, READERS.get(reader), base, fields=fields)
    after = outcome(url, READERS.get(reader), {**base, name: value}, fields=fields)
    assert not isinstance(before, errors.ConfigError), before
    if name in EFFECTS[reader, content]:
        assert not isinstance(after, errors.ConfigError), after
        assert before != after
    else:
        assert isinstance(after, errors.ConfigError), after
        assert name in str(after)


# Values that no colour mode holds


def test_values_that_would_clip_are_refused_and_class_numbers_stay() -> None:
    arrays = [np.full((8, 8), 0.5, np.float32), np.full((8, 8), 70_000, np.int32), np.full((8, 8), 200, np.float32)]
    url = picture_store([saved(Image.fromarray(array), "TIFF") for array in arrays])
    with_a_gap = saved(Image.fromarray(np.array([[np.nan, 1], [200, 3]], np.float32)), "TIFF")
    with pytest.raises(errors.DecodeError, match="values from nan to nan"):
        StoreDataset(picture_store([with_a_gap]))[0]
    for at, mode in enumerate(("F", "I")):
        with pytest.raises(errors.DecodeError, match=rf"values from .* would clip to 0 … 255.*mode='{mode}'"):
            StoreDataset(url)[at]
    assert np.asarray(StoreDataset(url)[2][0]).max() == 200
    unchanged = StoreDataset(url, mode="unchanged")
    assert all(np.array_equal(unchanged[at][0], array) for at, array in enumerate(arrays))
    ids = Image.fromarray(np.full((64, 96), 3, np.uint8), "P")
    ids.putpalette([7 * each % 256 for each in range(768)])
    url = make_store({"image": "image", "mask": "image"}, [{"image": jpeg(0), "mask": saved(ids)}])
    small = {"name": "Resize", "size": [8, 8], "interpolation": "nearest"}
    for decode, transform in (("pil", None), ("tensor", None), ("pil", {"image": small, "mask": small})):
        dataset = StoreDataset(url, fields=["mask", "image"], decode=decode, mode="L", transform=transform)
        assert np.unique(np.asarray(dataset[0][0])).tolist() == [3]
    assert StoreDataset(url, fields=["image", "mask"], mode={"mask": "RGB"})[0][1].mode == "RGB"
    with pytest.raises(errors.ConfigError, match="'mask' would mix class numbers.*'nearest'"):
        StoreDataset(url, fields=["image", "mask"], transform={"mask": {"name": "Resize", "size": [8, 8]}})


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (["left", "right"], "['left', 'right', 'label']"),
        (["image", "depth", "side"], "['image', 'depth', 'side', 'label']"),
        (["image", "mask"], None),
        (["image"], None),
    ],
    ids=str,
)
def test_a_store_of_several_images_says_that_samples_have_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: list[str], line: str | None
) -> None:
    record = {**dict.fromkeys(fields, jpeg(1)), "label": 1}
    declared = {name: "int" if name == "label" else "image" for name in record}
    url = make_store(declared, [record], f"lmdb://{tmp_path}/several.lmdb")
    dataset = StoreDataset(url, reader=cast(Any, readers.image))
    dataset[0], dataset[0], pickle.loads(pickle.dumps(dataset))[0]
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == (line is not None)
    assert dataset.reader.fields == (fields[0], "label")
    if line is not None:
        assert said[0].endswith(f"pass fields={line}")
        assert len(StoreDataset(url, fields=ast.literal_eval(line))[0]) == len(record)
        assert len(caplog.records) == 1


# Arrays that have the shape of images


def grey_store(engine: str, tmp_path: Path, images: Any) -> str:
    """Return a store, native or of another tool, of one array of shape (height, width) a record and its label."""
    if engine == "hdf5 of others":
        with h5py.File(tmp_path / "grey.h5", "w") as file:
            file["digits"], file["target"] = images, np.arange(len(images))
        return str(tmp_path / "grey.h5")
    if engine == "lmdb of others":
        with (
            lmdb.open(str(tmp_path / "grey.lmdb"), map_size=1 << 24) as environment,
            environment.begin(write=True) as t,
        ):
            for number, image in enumerate(images):
                t.put(b"%04d" % number, pickle.dumps({"digits": image, "target": number}))
        return str(tmp_path / "grey.lmdb")
    fields = {"digits": {"kind": "array", "dtype": str(images.dtype), "shape": [None, 28]}, "target": "int"}
    return make_store(fields, [{"digits": image, "target": number} for number, image in enumerate(images)])


@pytest.mark.parametrize(
    ("engine", "dtype"), [("hdf5 of others", np.uint8), ("lmdb of others", np.uint16), ("native", np.uint16)]
)
def test_grey_arrays_train_like_files_of_their_pixels(engine: str, dtype: Any, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (4, 30, 28)).astype(dtype)
    url = grey_store(engine, tmp_path, images)
    files = picture_store([saved(Image.fromarray(image)) for image in images])
    for mode, form in itertools.product(("RGB", "L", "unchanged"), ("pil", "tensor", "fast")):
        grey = StoreDataset(url, mode=mode, decode=form)
        of_files = StoreDataset(files, mode=mode, decode=form, fields=["image"])
        assert [comparable(grey[at][0]) for at in range(4)] == [comparable(of_files[at][0]) for at in range(4)]
        if mode == "unchanged":
            assert all(np.array_equal(np.squeeze(grey[at][0]), images[at]) for at in range(4))
    assert StoreDataset(url, mode="unchanged", decode="tensor")[1][0].shape == (1, 30, 28)
    steps = ["ToTensor", {"name": "Normalize", "mean": [0.5], "std": [0.25]}]
    dataset = StoreDataset(
        url, mode="L", transform=[{"name": "Resize", "size": 24}, {"name": "RandomCrop", "size": 16}, *steps]
    )
    for loader in (StoreLoader(dataset, batch_size=4), torch.utils.data.DataLoader(dataset, batch_size=4)):
        ((batch, labels),) = list(loader)
        assert batch.shape == (4, 1, 16, 16)
        assert labels.tolist() == [0, 1, 2, 3]
    levels = images >> 8 if dtype is np.uint16 else images
    assert stats(url, mode="L").mean == pytest.approx([levels.mean() / 255])
    (crop,) = StoreDataset(url, fields=["digits"], transforms=[{"name": "CenterCrop", "size": 16}])[2]
    assert np.array_equal(crop, images[2][None, 7:23, 6:22])


def test_of_several_arrays_the_user_names_the_image() -> None:
    grey = {"kind": "array", "dtype": "uint8", "shape": [30, 28]}
    record = {name: np.full((30, 28), number, np.uint8) for number, name in enumerate(("left", "right", "mask"))}
    url = make_store({"left": grey, "right": grey, "mask": grey, "label": "int"}, [{**record, "label": 5}])
    for steps in (None, ["ToTensor"]):
        with pytest.raises(errors.ConfigError, match="arrays left, right have the shape of one: .*fields=") as caught:
            StoreDataset(url, transforms=steps)
    with pytest.raises(errors.ConfigError, match="arrays left, right"):
        stats(url)
    pasted = ast.literal_eval(str(caught.value).partition("fields=")[2].partition("]")[0] + "]")
    assert StoreDataset(url, decode="tensor", fields=pasted)[0][0].shape == (3, 30, 28)
    assert stats(url, field="right", mode="L").mean == [1 / 255]
    both = StoreDataset(url, fields=["right", "left", "mask"], mode="L")[0]
    assert [each.mode for each in both[:2]] == ["L", "L"]
    assert np.array_equal(both[2], record["mask"])


@pytest.mark.parametrize(
    "declared",
    [
        {"x": {"kind": "array", "dtype": "float32", "shape": [28, 28]}},
        {"x": {"kind": "array", "dtype": "uint8", "shape": [28, 4]}},
        {"x": {"kind": "array", "dtype": "uint8", "shape": [784]}},
        {"x": {"kind": "array", "dtype": "uint8", "shape": [2, 28, 28, 3]}},
        {"x": {"kind": "array", "dtype": "uint16", "shape": [28, 28, 3]}},
        {"x": {"kind": "array", "dtype": "uint8", "shape": [28, 28, 5]}},
        {"labels": {"kind": "array", "dtype": "uint8", "shape": [28, 28]}},
        {"label_map": {"kind": "array", "dtype": "uint8", "shape": [28, 28]}},
    ],
    ids=str,
)
def test_other_arrays_are_not_taken_for_images(declared: dict[str, Any]) -> None:
    ((name, field),) = declared.items()
    url = make_store(declared, [{name: np.ones(field["shape"], field["dtype"])}])
    dataset = StoreDataset(url)
    assert dataset.reader.data == name
    assert dataset[0][0].shape == tuple(field["shape"])  # an image would have its channels first


@pytest.mark.parametrize(
    ("reader", "shape"), [("image", (None, None, None)), ("sample", (3, 40, 4)), ("video", (None, 40, None))]
)
def test_an_image_of_ambiguous_shape_needs_channels_when_the_dataset_is_made(
    reader: str, shape: tuple[int | None, ...]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (3, 40, 4)).astype(np.uint8)
    field = {"kind": "array", "dtype": "uint8", "shape": list(shape), "role": "image"}
    url = make_store({"x": field, "video": "int"}, [{"x": pixels, "video": 0}])
    own: dict[str, Any] = {"reader": reader, "fields": ["x"]}
    if reader != "sample":
        own |= {"decode": "tensor", "mode": "unchanged"}
    with pytest.raises(errors.ConfigError, match=r"'x' holds arrays of shape .*channels='last'.*channels=\{'x': …\}"):
        StoreDataset(url, **own)
    expected = {"first": pixels, "last": pixels.transpose(2, 0, 1)}
    for place, by_name in itertools.product(("argument", "config", "reader_options"), (False, True)):
        for channels, planes in expected.items():
            given: dict[str, Any] = {"channels": {"x": channels} if by_name else channels}
            if place == "reader_options":
                given = {"reader_options": given}
            if place == "config":
                dataset: Any = build_dataset({"dataset": {"url": url, **own, **given}})
            else:
                dataset = StoreDataset(url, **own, **given)
            assert np.array_equal(np.squeeze(dataset[0][0]), planes)


MP4 = b"\0\0\0\x18ftypisom" + bytes(20)


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"id": b"n7", "clip": MP4}, "reader='video' and reader_options={'by': 'clip'} reads videos in 'clip'"),
        ({"video": MP4}, "reader='video' reads videos in 'video'"),
        ({"id": b"n7"}, ""),
        ({"id": b""}, ""),
    ],
)
def test_the_video_reader_is_proposed_for_videos_alone(values: dict[str, bytes], hint: str) -> None:
    end = re.escape(f", and {hint}" if hint else "reader 'array' reads any field") + "$"
    with pytest.raises(errors.ConfigError, match=end):
        StoreDataset(make_store(dict.fromkeys(values, "bytes"), [values]))


def test_the_number_with_the_role_label_is_in_a_sample_by_default() -> None:
    fields = {"image": "image", "x": "int", "species": {"kind": "int", "role": "label"}}
    url = make_store(fields, [{"image": jpeg(0), "x": 7, "species": 3}])
    assert StoreDataset(url)[0][1] == 3


def test_a_label_of_null_is_a_bad_record(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for number in range(8):
            value = {"image": jpeg(number), "label": None if number == 4 else 1}
            transaction.put(b"%d" % number, pickle.dumps(value))
    with pytest.raises(errors.RecordError, match="record 4 of .*field 'label' is null"):
        StoreDataset(f"lmdb://{tmp_path}/a")[4]
    loader = StoreLoader(StoreDataset(f"lmdb://{tmp_path}/a", decode="tensor", on_error="skip"), batch_size=8)
    (batch,) = loader
    assert list(batch[1]) == [1] * 7


def test_a_store_of_arrays_without_pictures_gives_its_arrays(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.ones((4, 8, 8, 3), "f4"), np.arange(4)
    plain, moved = StoreDataset(tmp_path / "a.h5"), StoreDataset(tmp_path / "a.h5", decode="tensor")
    assert [each[3][0].shape for each in (plain, moved)] == [(8, 8, 3), (3, 8, 8)]
    assert plain[3][1] == 3
