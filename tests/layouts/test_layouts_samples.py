"""Stores of other tools that hold masks and boxes: their fields get roles by config, and samples are those of a native store."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from _foreign_lmdb import numbered
from make_store import make_store
from photographs import saved
from storeds import StoreDataset, errors

COUNT = 8
CLASSES = ["cat", "dog"]
RNG = np.random.default_rng(4)
HEIGHT, WIDTH = 30, 40


IMAGES = [RNG.integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8) for _ in range(COUNT)]
MASKS = [RNG.integers(0, 9, (HEIGHT, WIDTH)).astype(np.uint8) for _ in range(COUNT)]
BOXES = [RNG.integers(1, 15, (number, 4)).astype(np.float32) for number in range(COUNT)]  # xywh
LABELS = [RNG.integers(0, 2, number) for number in range(COUNT)]
PICTURES = [saved(Image.fromarray(each)) for each in IMAGES]  # lossless, so that files of pixels hold the same
TRANSFORMS = [{"name": "RandomResizedCrop", "size": 24}, "RandomHorizontalFlip"]
BOXES_ROLE = {"role": "boxes", "format": "xywh"}
NAMES_ROLE = {"role": "labels", "classes": CLASSES}


Case = tuple[Any, dict[str, Any]]
"""What to open, and the arguments of StoreDataset."""


def pickled(tmp_path: Path) -> Case:
    values = [
        {"img": PICTURES[n], "seg": MASKS[n], "bbox": BOXES[n].tolist(), "cls": LABELS[n].tolist()}
        for n in range(COUNT)
    ]
    return numbered(tmp_path / "pickled", [*map(pickle.dumps, values)]), {
        "fields": {"image": "img", "mask": "seg", "boxes": "bbox", "labels": "cls"},
        "roles": {"mask": "mask", "boxes": BOXES_ROLE, "labels": NAMES_ROLE},
    }


def groups_of_pixels(tmp_path: Path) -> Case:
    with h5py.File(tmp_path / "pixels.h5", "w") as file:
        for number in range(COUNT):
            group = file.create_group(f"sample_{number}")
            group["image"], group["mask"] = IMAGES[number], MASKS[number]
            group["boxes"], group["labels"] = BOXES[number], LABELS[number]
    return f"hdf5://{tmp_path}/pixels.h5", {
        "layout": "per_sample",
        "fields": ["image", "mask", "boxes", "labels"],
        "roles": {"image": "image", "mask": "mask", "boxes": BOXES_ROLE, "labels": "labels"},
        "channels": "last",
    }


@pytest.fixture(scope="module")
def native() -> str:
    fields = {
        "image": {"kind": "image", "role": "image"},
        "mask": {"kind": "image", "role": "mask"},
        "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], **BOXES_ROLE},
        "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    }
    columns = zip(PICTURES, [saved(Image.fromarray(mask)) for mask in MASKS], BOXES, LABELS, strict=True)
    return make_store(fields, (dict(zip(fields, row, strict=True)) for row in columns), attrs={"classes": CLASSES})


@pytest.mark.parametrize("make", [pickled, groups_of_pixels])
def test_samples_are_those_of_a_native_store(make: Callable[[Path], Case], native: str, tmp_path: Path) -> None:
    expected = StoreDataset(native, transforms=TRANSFORMS, seed=2)
    source, settings = make(tmp_path)
    dataset = StoreDataset(source, **settings, transforms=TRANSFORMS, seed=2)
    assert len(dataset) == COUNT
    for sample, other in zip(dataset[:], expected[:], strict=True):
        assert len(sample) == 4
        for value, wanted in zip(sample, other, strict=True):
            assert value.dtype == wanted.dtype
            assert torch.equal(value.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"\x00\x01\x02", "do not tell their type"),
        ([[1, 2, 3, 4], [1, 2]], "boxes are rows of 4 numbers"),
        ([["a", "b", "c", "d"]], "boxes are rows of 4 numbers"),
    ],
)
def test_rows_of_an_unclear_form_are_refused(value: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(errors.RecordError, match=rf"record 1 .*: field 'boxes'.*{says}"):
        with_rows(tmp_path / "unclear", value)[1]


def with_rows(path: Path, value: Any) -> StoreDataset:
    """Return the pictures and the boxes of a store whose rows are all `value`."""
    url = numbered(path, [pickle.dumps({"img": PICTURES[number], "rows": value}) for number in range(3)])
    return StoreDataset(url, fields={"image": "img", "boxes": "rows"}, roles={"boxes": BOXES_ROLE})


def test_rows_may_be_json_text_or_npy_files(tmp_path: Path) -> None:
    npy = io.BytesIO()
    np.save(npy, BOXES[4])
    for number, value in enumerate((json.dumps(BOXES[4].tolist()), npy.getvalue(), BOXES[4].ravel())):
        assert np.array_equal(with_rows(tmp_path / f"{number}", value)[0][1].numpy(), BOXES[4])
