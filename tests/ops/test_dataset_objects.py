"""Datasets as sources of `pack`: samples, the files of ImageFolder, the records of `StoreDataset`, and what is refused."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import storeds
from _packing import Source, records_of
from mask_files import write
from photographs import jpeg, photograph
from storeds.errors import ConfigError
from storeds.protocols import Field


class Pair(NamedTuple):
    Picture: Any
    Score: float


@pytest.mark.parametrize(
    ("sample", "fields", "kinds"),
    [
        ((jpeg(0), 1), None, {"image": "image", "label": "int"}),
        ((jpeg(0), np.int64(1)), None, {"image": "image", "label": "int"}),
        ((jpeg(0), torch.tensor(1)), None, {"image": "image", "label": "int"}),
        ((jpeg(0), 1, "x", b"y", [1], {"a": np.float32(1)}), None,
         {"image": "image", "label": "int", "field2": "str", "field3": "bytes", "field4": "array", "field5_a": "float"}),
        ((1, jpeg(0)), None, {"field0": "int", "field1": "image"}),
        (b"alone", None, {"field0": "bytes"}),
        ({"Img": jpeg(0), "is ok": True}, None, {"img": "image", "is_ok": "bool"}),
        (Pair(jpeg(0), 1.5), None, {"picture": "image", "score": "float"}),
        ((jpeg(0), 1), ["photo", "y"], {"photo": "image", "y": "int"}),
        ({"a": jpeg(0), "b": 1, "c": 2}, {"c": "float", "a": "bytes"}, {"c": "float", "a": "bytes"}),
        ({"A b": 1, "c": 2}, ["a_b"], {"a_b": "int"}),
        ({"A b": 1, "c": 2}, {"A b": "float"}, {"a_b": "float"}),
    ],
)  # fmt: skip
def test_elements_become_fields(sample: Any, fields: Any, kinds: dict[str, str]) -> None:
    source = Source([sample, sample], fields=fields)
    assert list(source.kinds.items()) == list(kinds.items())
    assert source.bad == []
    assert len(source.records) == 2
    if "label" in kinds:
        assert [(label, type(label)) for label in source.column("label")] == [(1, int)] * 2


def test_tensors_and_arrays_become_arrays() -> None:
    tensors = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    source = Source(TensorDataset(tensors, torch.tensor([5, 6])))
    assert source.rows.fields == {"field0": Field("array", "<f4", (3, 4)), "label": Field("int")}
    np.testing.assert_array_equal(source.column("field0")[1], tensors[1].numpy())
    assert (source.column("label"), type(source.column("label")[0])) == ([5, 6], int)
    (note,) = source.rows.notes
    assert "is stored as an array of <f4 (3, 4), not as an image" in note
    source = Source([{"x": np.arange(3, dtype=">i2"), "y": np.float64(2.5)}])
    assert source.rows.fields == {"x": Field("array", "<i2", (3,)), "y": Field("float")}
    spec = {"x": {"kind": "array", "dtype": "float64", "shape": [None]}}
    assert [len(value) for value in Source([(np.zeros(2),), (np.zeros(3),)], fields=spec).column("x")] == [2, 3]


def test_an_unchanged_pil_image_is_stored_as_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"0.jpg": 0}) / "0.jpg"
    loaded, smaller, drawn = Image.open(path), Image.open(path), Image.open(path)
    loaded.load()
    smaller.thumbnail((20, 20))
    drawn.load()
    drawn.putpixel((0, 0), (1, 2, 3))
    images = [Image.open(path), Image.open(io.BytesIO(jpeg(0))), loaded, smaller, drawn, photograph(1)]
    blobs = Source([(image,) for image in images]).column("image")
    assert [blob == jpeg(0) for blob in blobs] == [True, True, True, False, False, False]
    for image, blob in zip(images, blobs, strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(blob))), np.asarray(image))
    assert {Image.open(io.BytesIO(blob)).format for blob in blobs[3:]} == {"PNG"}
    for image in images[:3]:
        image.close()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr"])
def test_a_pil_image_of_any_mode_is_stored_without_loss(mode: str) -> None:
    image = photograph(0).convert("I" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray((np.asarray(image).astype(np.uint16) * 251).astype(np.uint16))
    (blob,) = Source([(image,)]).column("image")
    with Image.open(io.BytesIO(blob)) as back:
        assert back.size == image.size
        assert np.array_equal(np.asarray(back.convert(image.mode)), np.asarray(image))


class Canvas(Sequence[Any]):
    """A dataset that draws every sample on the same picture and the same array."""

    def __init__(self) -> None:
        self.image, self.array, self.readers = Image.new("RGB", (9, 9)), np.zeros(3, np.int16), set[int]()

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: Any) -> Any:
        self.readers.add(threading.get_ident())
        self.image.paste((index % 256, index // 256, 7), (0, 0, 9, 9))
        self.array[:] = index
        return self.image, index, self.array


def test_samples_are_read_by_the_calling_thread_and_may_share_their_memory(tmp_path: Path) -> None:
    canvas = Canvas()
    packed = storeds.pack(canvas, f"lmdb://{tmp_path}/a.lmdb", workers=3)
    assert canvas.readers == {threading.get_ident()}
    assert re.search(r"so each is stored without loss, as PNG, .* pass quality=90", packed.notes[0])
    for position, record in enumerate(records_of(tmp_path / "a.lmdb")):
        with Image.open(io.BytesIO(record["image"])) as image:
            assert (image.format, image.getpixel((4, 4))) == ("PNG", (position % 256, position // 256, 7))
        assert record["field2"].tolist() == [position] * 3


class Broken(Sequence[Any]):
    classes = ("a", "b")
    targets = (0, 1, 0)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        if index == 1:
            raise OSError("image file is truncated")
        return jpeg(index), self.targets[index]


def test_an_exception_of_the_dataset_is_a_bad_item() -> None:
    source = Source(Broken())
    assert source.bad == ["sample 1: cannot be read: OSError: image file is truncated"]
    assert source.column("label") == [0, 0]
    assert source.rows.attrs["classes"] == ["a", "b"]


def test_keys_that_most_samples_lack_are_counted() -> None:
    samples = [{"x": 1}, {"x": 2, "more": 3}, {"x": 4, "more": 5, "y": 6}]
    source = Source(samples)
    assert (source.column("x"), source.column("more")) == ([1, 2, 4], [None, 3, 5])
    assert source.rows.late_notes() == ["left out 'y', which most samples lack and 1 sample has"]
    assert list(Source(samples, fields=["x"]).rows.late_notes()) == []


FIRST = (jpeg(0), 1, np.zeros(2), "s", 1.0)
# Which element of a sample is another, which value it has, and the reason.
UNLIKE: list[tuple[int, Any, str]] = [
    (1, None, "its label is None"),
    (1, True, "its label is a bool, and the field is of kind int: expected int"),
    (1, 2**63, "its label cannot be stored: outside the int64 range"),
    (0, 1, "its image is a int, and the field is of kind image: expected bytes"),
    (2, np.zeros(2, "f4"), "its field2 is a ndarray, and the field is of kind array: expected dtype"),
    (3, "\ud800", "its field3 cannot be stored: text with a lone surrogate at character 0"),
    (2, np.zeros((1, 2)), "its field2 cannot be stored: its array has the shape (1, 2), others (2,)"),
    (0, photograph(0).convert("HSV"), "its image is a PIL image of mode HSV, which has no"),
    (0, {"bytes": None, "path": "/no/such.jpg"}, "its image cannot be read: No such file"),
]


def test_a_sample_unlike_the_first_is_a_bad_item() -> None:
    others = [(*FIRST[:at], value, *FIRST[at + 1 :]) for at, value, _ in UNLIKE]
    source = Source([FIRST, *others, FIRST[:2]])
    reasons = [*(reason for *_, reason in UNLIKE), "has 2 elements, but the first sample has 5"]
    starts = [f"sample {number}: {reason}" for number, reason in enumerate(reasons, 1)]
    assert [line[: len(start)] for line, start in zip(source.bad, starts, strict=True)] == starts
    assert len(source.records) == 1


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ([], {}, "the list is empty"),
        ([(jpeg(0), None)], {}, "'field1' of the first sample is None, which no field can store; pass fields="),
        ([(object(),)], {}, "'field0' of the first sample is a object, which no field can store"),
        ([(torch.zeros(2, dtype=torch.bfloat16),)], {}, "sample 0 has a value that cannot be a NumPy array"),
        ([(jpeg(0), 1)], {"fields": ["a"]}, r"fields: 1 names \(a\) for 2 elements of a sample"),
        ([(jpeg(0), 1)], {"fields": "image"}, "fields='image' must be a list of names"),
        ([(jpeg(0), 1)], {"columns": ["image"]}, "columns: not supported for samples of a list; only fields= is"),
        ([{"a": 1}], {"fields": ["b"]}, "fields: the first sample has no 'b', only 'a'"),
        ([{1: 1}], {}, "the keys of a sample must be text"),
        (Subset(Broken(), [1, 1]), {}, "none of the samples that were tried can be read.*sample 0 .*: OSError"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_unsupported_datasets_raise(dataset: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Source(dataset, **options)


def test_an_imagefolder_is_packed_as_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    names = [f"{kind}/{n}.jpg" for kind in ("cat", "dog", "emu") for n in range(5)]
    tree = write(tmp_path / "tree", {name: number for number, name in enumerate(names)})
    wanted = storeds.pack(tree, "memory://folder", overwrite=True)
    plain = datasets.ImageFolder(str(tree))
    cropped = datasets.ImageFolder(str(tree), transform=lambda image: image.resize((2, 2)))
    monkeypatch.chdir(tmp_path)
    for folder, notes in ((plain, 0), (datasets.ImageFolder("tree"), 0), (cropped, 1)):
        packed = storeds.pack(folder, "memory://plain", overwrite=True)
        assert (packed.id, len(packed.notes)) == (wanted.id, notes)
    assert packed.notes[0].startswith("its transform is not applied: pack stores the original files or records")
    source = Source(ConcatDataset([Subset(plain, [0, -8]), Subset(Subset(plain, [3, 14]), [1])]))
    assert source.column("image") == [jpeg(n) for n in (0, 7, 14)]
    assert (source.column("label"), source.column("key")) == ([0, 1, 2], [names[n] for n in (0, 7, 14)])
    (image, *_) = Source(cropped, fields=["image", "label"]).column("image")
    assert Image.open(io.BytesIO(image)).size == (2, 2)
    other = datasets.ImageFolder(str(tree))
    other.classes = ["emu", "dog", "cat"]
    with pytest.raises(ConfigError, match="have different classes, so one label would mean several"):
        Source(ConcatDataset([plain, other]))
    # What reads other pixels than those of the files, or gives other labels, is packed sample by sample.
    for changed in (
        datasets.ImageFolder(str(tree), loader=lambda path: photograph(11)),
        datasets.ImageFolder(str(tree), target_transform=lambda label: label + 40),
        type("Own", (datasets.ImageFolder,), {"__getitem__": lambda self, index: (photograph(11), 40)})(str(tree)),
    ):
        taken = Source(changed)
        assert taken.kinds == {"image": "image", "label": "int"}
        assert taken.records[0] != {"image": jpeg(0), "label": 0}


def test_a_dataset_of_a_store_is_packed_as_its_records(tmp_path: Path) -> None:
    url, tree = f"lmdb://{tmp_path}/a.lmdb", write(tmp_path / "tree", {f"{n // 5}/{n}.jpg": n for n in range(10)})
    stored = storeds.pack(tree, url, split={"train": 0.8, "val": 0.2})
    everything = storeds.StoreDataset(url, decode="tensor")
    assert storeds.pack(everything, "memory://copy", overwrite=True).id == stored.id
    original = records_of(url, *stored.fields)
    chosen = [each for each in original if each["split"] == "val"]
    assert Source(storeds.StoreDataset(url, where={"split": "val"})).records == chosen
    nested = Subset(Subset(everything, [4, 5]), [1, 1])
    order = [9, 0, 7, *range(10), 5, 5]
    source = Source(ConcatDataset([Subset(everything, [9, 0, -3]), everything, nested]))
    assert source.records == [original[n] for n in order]
    wanted = [{name: original[n][name] for name in ("key", "label")} for n in order]
    assert [row.values for row in source.rows.strata()] == wanted  # type: ignore[misc, union-attr]
    assert [item.values for item in source.rows.items(11)] == [original[n] for n in order[11:]]  # type: ignore[union-attr]
    assert source.rows.attrs == stored.attrs
    # The records of stores with other fields cannot be mixed, so these are packed sample by sample.
    storeds.pack(tree, f"lmdb://{tmp_path}/b.lmdb")
    other = storeds.StoreDataset(f"lmdb://{tmp_path}/b.lmdb")
    assert set(Source(ConcatDataset([everything, other])).kinds) == {"field0", "label"}
