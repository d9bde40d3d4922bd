"""Test the readers with a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import pytest
import torch
from PIL import Image

from photographs import by_pillow, jpeg
from picture_stores import memory_store
from storeds import Backend, SampleContext, StoreDataset, errors, open_backend, register_decoder
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
    with open_backend(memory_store(FIELDS, [record(number) for number in range(6)])) as opened:
        yield opened


def build(reader: Any, backend: Backend, index: int) -> tuple[dict[str, Any], SampleContext]:
    bound = reader.bind(backend)
    context = SampleContext(index)
    records = backend.get_many(bound.locate(index, context), bound.stored)
    return bound.build(records, context), context


def test_by_default_a_sample_is_the_image_and_the_label(backend: Backend) -> None:
    sample, _ = build(ImageReader(), backend, 4)
    assert list(sample) == ["image", "label"]
    assert sample["image"].mode == "RGB"
    assert (np.asarray(sample["image"]) == by_pillow(jpeg(4))).all()
    assert sample["label"] == 1


def test_elements_have_the_requested_order(backend: Backend) -> None:
    sample, _ = build(ImageReader(("index", "key", "mask")), backend, 2)
    assert list(sample) == ["index", "key", "mask"]
    assert (sample["index"], sample["key"]) == (2, "k2")
    assert (np.asarray(sample["mask"]) == by_pillow(jpeg(3))).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ImageReader(("image", "lable")), "did you mean 'label'"),
        (lambda: ImageReader(("image", "image")), "twice"),
        (lambda: ImageReader(decode="tensr"), "did you mean 'tensor'"),
        (lambda: ImageReader(mode="RGBBB"), "Pillow mode"),
        (lambda: ImageReader(min_recovered=-0.1), "number from 0 to 1"),
        (lambda: ImageReader(min_recovered=True), "number from 0 to 1"),
    ],
)
def test_invalid_options_are_named(make: Any, says: str, backend: Backend) -> None:
    with pytest.raises(errors.ConfigError, match=says):
        make().bind(backend)


def test_a_store_without_images_is_rejected_with_its_fields() -> None:
    with pytest.raises(errors.ConfigError, match=r"x \(float\).*'array'"):
        StoreDataset(memory_store({"x": "float"}, [{"x": 1.0}]), reader="image")


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


class TestReadersKeepTheContract(ReaderTests):
    refuses = None

    @pytest.fixture(params=[ImageReader(("image", "label", "index")), ArrayReader()], ids=["image", "array"])
    def reader(self, request: pytest.FixtureRequest) -> Any:
        return request.param

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
    url = memory_store({"x": "int"}, [{"x": 5}, {"x": 6}])
    options = {"mode": "val", "strided": "yes"}
    dataset = StoreDataset(url, reader=cast("Any", BindsItself), reader_options=options)
    assert dataset[:] == [(5, 0), (6, 1)]
    assert isinstance(dataset.reader, BindsItself)
    assert (dataset.reader.mode, dataset.reader.strided) == ("val", "yes")


def test_arrays_that_are_declared_as_images_are_images_for_every_decoder() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 12, 10, 3), np.uint8)
    fields = {"images": {"kind": "array", "dtype": "uint8", "shape": [12, 10, 3], "role": "image"}, "labels": "int"}
    url = memory_store(fields, [{"images": pixels[at], "labels": at} for at in range(4)])
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


def test_an_array_that_is_no_image_is_a_bad_sample() -> None:
    fields = {"image": {"kind": "array", "dtype": "uint8", "shape": [None, None, None, 3], "role": "image"}}
    url = memory_store(fields, [{"image": np.zeros((2, 4, 4, 3), np.uint8)}])
    with pytest.raises(errors.DecodeError, match="is no image of 1, 3 or 4 channels; reader='array' reads it"):
        StoreDataset(url)[0]
