"""Test the readers with a store in memory."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import pytest
import torch
from PIL import Image

from photographs import jpeg
from storeds import Backend, SampleContext, StoreDataset, errors, open_backend, open_writer, register_decoder
from storeds.protocols import Field
from storeds.readers import ArrayReader, ImageReader
from storeds.registry import DECODERS
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
    with open_writer("memory://readers", FIELDS, overwrite=True) as writer:
        writer.append(record(number) for number in range(6))
    with open_backend("memory://readers") as opened:
        yield opened


def build(reader: Any, backend: Backend, index: int) -> tuple[dict[str, Any], SampleContext]:
    bound = reader.bind(backend)
    context = SampleContext(index)
    records = backend.get_many(bound.locate(index, context), bound.stored)
    return bound.build(records, context), context


def decoded(blob: bytes, mode: str = "RGB") -> np.ndarray:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert(mode))


def test_by_default_a_sample_is_the_image_and_the_label(backend: Backend) -> None:
    sample, _ = build(ImageReader(), backend, 4)
    assert list(sample) == ["image", "label"]
    assert sample["image"].mode == "RGB"
    assert (np.asarray(sample["image"]) == decoded(jpeg(4))).all()
    assert sample["label"] == 1


def test_elements_have_the_requested_order(backend: Backend) -> None:
    sample, _ = build(ImageReader(("index", "key", "mask")), backend, 2)
    assert list(sample) == ["index", "key", "mask"]
    assert (sample["index"], sample["key"]) == (2, "k2")
    assert (np.asarray(sample["mask"]) == decoded(jpeg(3))).all()


def test_bytes_are_the_stored_bytes_even_of_a_damaged_image() -> None:
    blob = jpeg(0)[:-2]
    with open_writer("memory://readers-cut", {"image": "image"}, overwrite=True) as writer:
        writer.append([{"image": blob}])
    with open_backend("memory://readers-cut") as backend:
        sample, context = build(ImageReader(decode="bytes"), backend, 0)
        assert sample["image"] == blob
        assert not context.notes


def test_a_jpeg_without_its_end_is_repaired_and_noted() -> None:
    with open_writer("memory://readers-cut", {"image": "image"}, overwrite=True) as writer:
        writer.append([{"image": jpeg(0)[:-2]}, {"image": jpeg(0)}])
    with open_backend("memory://readers-cut") as backend:
        repaired, context = build(ImageReader(), backend, 0)
        assert (np.asarray(repaired["image"]) == decoded(jpeg(0))).all()
        assert context.notes
        assert not build(ImageReader(), backend, 1)[1].notes
        with pytest.raises(errors.DecodeError, match="repair is off"):
            build(ImageReader(repair=False), backend, 0)


@pytest.mark.parametrize("options", [{"progressive": True}, {}, {"restart_marker_blocks": 2}])
def test_min_recovered_rejects_a_picture_and_names_its_share(options: dict[str, Any]) -> None:
    whole = jpeg(0, (320, 240), **options)
    with open_writer("memory://readers-half", {"image": "image"}, overwrite=True) as writer:
        writer.append([{"image": whole[: len(whole) // 3]}, {"image": whole[:-9]}])
    with open_backend("memory://readers-half") as backend:
        with pytest.raises(errors.DecodeError, match=r"\d %.* of it is there, less than min_recovered=0.5") as raised:
            build(ImageReader(), backend, 0)
        assert raised.value.kind == "truncated_scan"
        (note,) = build(ImageReader(min_recovered=0.0), backend, 0)[1].notes
        assert note.kind == "truncated_scan"
        assert build(ImageReader(), backend, 1)[1].notes


def test_a_picture_cut_before_any_pixel_is_an_error() -> None:
    with open_writer("memory://readers-header", {"image": "image"}, overwrite=True) as writer:
        writer.append([{"image": jpeg(0)[:40]}])
    with (
        open_backend("memory://readers-header") as backend,
        pytest.raises(errors.DecodeError, match="the store.s verdict: truncated_header"),
    ):
        build(ImageReader(min_recovered=0.0), backend, 0)


@pytest.mark.parametrize("bad", [-0.1, 1.1, True])
def test_min_recovered_is_a_share(bad: float) -> None:
    with pytest.raises(errors.ConfigError, match="number from 0 to 1"):
        ImageReader(min_recovered=bad)


@pytest.mark.parametrize("blob", [b"", b"<html>not found</html>", b"\x89PNG\r\n\x1a\n"])
def test_undecodable_bytes_are_a_decode_error_with_their_beginning(blob: bytes) -> None:
    with open_writer("memory://readers-bad", {"image": "image"}, overwrite=True) as writer:
        writer.append([{"image": blob}])
    with open_backend("memory://readers-bad") as backend, pytest.raises(errors.DecodeError) as raised:
        build(ImageReader(), backend, 0)
    assert (blob[:4].hex(" ") if blob else "it is empty") in str(raised.value)


def test_a_store_without_images_is_rejected_with_its_fields() -> None:
    with open_writer("memory://no-images", {"x": "float"}, overwrite=True) as writer:
        writer.append([{"x": 1.0}])
    with (
        open_backend("memory://no-images") as backend,
        pytest.raises(errors.ConfigError, match=r"x \(float\).*'array'"),
    ):
        ImageReader().bind(backend)


def test_unknown_names_are_rejected_with_a_suggestion(backend: Backend) -> None:
    with pytest.raises(errors.ConfigError, match="did you mean 'label'"):
        ImageReader(("image", "lable")).bind(backend)
    with pytest.raises(errors.ConfigError, match="twice"):
        ImageReader(("image", "image")).bind(backend)
    with pytest.raises(errors.ConfigError, match="did you mean 'tensor'"):
        ImageReader(decode="tensr")
    with pytest.raises(errors.ConfigError, match="Pillow mode"):
        ImageReader(mode="RGBBB")


def test_a_registered_decoder_is_used(backend: Backend) -> None:
    register_decoder("length", lambda blob, mode: (len(blob), mode))
    try:
        assert build(ImageReader(decode="length", mode="L"), backend, 3)[0]["image"] == (len(jpeg(3)), "L")
    finally:
        del DECODERS._known["length"]


def test_arrays_come_as_tensors_of_the_same_dtype_and_shape(backend: Backend) -> None:
    sample, _ = build(ArrayReader(("x", "label")), backend, 5)
    assert sample["x"].dtype == torch.float32
    assert (sample["x"].numpy() == record(5)["x"]).all()
    assert sample["label"] == 2
    sample["x"].zero_()
    assert (build(ArrayReader(("x",)), backend, 5)[0]["x"].numpy() == record(5)["x"]).all()


def test_an_array_reader_takes_every_field_by_default(backend: Backend) -> None:
    assert list(build(ArrayReader(), backend, 0)[0]) == list(FIELDS)


@pytest.mark.parametrize("reader", [ImageReader(("image", "label", "index"), mode="L"), ArrayReader()])
def test_a_bound_reader_survives_pickling(reader: Any, backend: Backend) -> None:
    bound = reader.bind(backend)
    copy = pickle.loads(pickle.dumps(bound))
    assert copy == bound
    assert len(copy) == len(backend)


class TestImageReaderKeepsTheContract(ReaderTests):
    @pytest.fixture
    def reader(self) -> ImageReader:
        return ImageReader(("image", "label", "index"))

    @pytest.fixture
    def content(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return FIELDS, [record(number) for number in range(5)]


class TestArrayReaderKeepsTheContract(ReaderTests):
    refuses = None

    @pytest.fixture
    def reader(self) -> ArrayReader:
        return ArrayReader()

    @pytest.fixture
    def content(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return FIELDS, [record(number) for number in range(5)]


@dataclass(frozen=True)
class BindsItself(ArrayReader):
    """A plug-in's reader that does without the base's binding, and has a name for an option that others use for theirs."""

    strided: str = "no"
    mode: str = "train"

    def bind(self, backend: Backend, /) -> Self:
        kinds = tuple(backend.meta.fields.get(name, Field("int")) for name in ("x", "index"))
        return replace(self, fields=("x", "index"), count=len(backend), kinds=kinds)


def test_a_plug_in_reader_may_name_its_options_freely() -> None:
    with open_writer("memory://binds-itself", {"x": "int"}, overwrite=True) as writer:
        writer.append([{"x": 5}, {"x": 6}])
    options = {"mode": "val", "strided": "yes"}
    dataset = StoreDataset("memory://binds-itself", reader=cast("Any", BindsItself), reader_options=options)
    assert dataset[:] == [(5, 0), (6, 1)]
    assert isinstance(dataset.reader, BindsItself)
    assert (dataset.reader.mode, dataset.reader.strided) == ("val", "yes")


@pytest.fixture
def pixels() -> np.ndarray[Any, Any]:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 12, 10, 3), np.uint8)
    fields = {"images": {"kind": "array", "dtype": "uint8", "shape": [12, 10, 3], "role": "image"}, "labels": "int"}
    with open_writer("memory://pixels", fields, overwrite=True) as writer:
        writer.append({"images": pixels[at], "labels": at} for at in range(4))
    return pixels


def test_arrays_that_are_declared_as_images_are_images_for_every_decoder(pixels: np.ndarray[Any, Any]) -> None:
    def of_file(blob: bytes, mode: str, /) -> Any:
        with Image.open(io.BytesIO(blob)) as image:
            return np.asarray(image.convert(mode))

    for mode in ("RGB", "L"):
        for at, expected in enumerate(Image.fromarray(each).convert(mode) for each in pixels):
            rows = np.asarray(expected).reshape(12, 10, -1)
            for decode in ("pil", "tensor", "fast", of_file):
                image, label = StoreDataset("memory://pixels", decode=decode, mode=mode)[at]
                found = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
                assert (found.reshape(12, 10, -1) == rows).all()
                assert (label, isinstance(image, Image.Image)) == (at, decode == "pil")


def test_transforms_of_images_take_pixels(pixels: np.ndarray[Any, Any]) -> None:
    dataset = StoreDataset("memory://pixels", decode="tensor", transform=[{"name": "CenterCrop", "size": 6}])
    assert (dataset[2][0].permute(1, 2, 0).numpy() == pixels[2, 3:9, 2:8]).all()


def test_an_array_that_is_no_image_is_a_bad_sample() -> None:
    fields = {"image": {"kind": "array", "dtype": "uint8", "shape": [None, None, None, 3], "role": "image"}}
    with open_writer("memory://volumes", fields, overwrite=True) as writer:
        writer.append([{"image": np.zeros((2, 4, 4, 3), np.uint8)}])
    with pytest.raises(errors.DecodeError, match="is no image of 1, 3 or 4 channels; reader='array' reads it"):
        StoreDataset("memory://volumes")[0]
