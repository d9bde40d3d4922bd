"""Data sets of Pascal VOC: links, pictures that EXIF turns, encodings and random boxes; `test_sources` has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import storeds
from _packing import Source, records_of
from _source_files import sides_of, thing, turned_picture, voc
from mask_files import write
from photographs import saved
from shares import examples
from storeds.errors import ConfigError, RecordError
from storeds.ops.packing import Packed

CAT = thing("cat", "1", "1", "96", "64")


def packed(root: Path, **options: Any) -> tuple[Packed, list[dict[str, Any]]]:
    """Pack a data set; return what `pack` returns, and the records."""
    meta = storeds.pack(root, "memory://voc", kind="voc", overwrite=True, **options)
    return meta, records_of("memory://voc")


@pytest.mark.parametrize("path", ["Annotations/a.xml", "SegmentationClass/a.png"])
def test_files_are_not_read_through_links_out_of_the_folder(path: str, tmp_path: Path) -> None:
    files: dict[str, Any] = {"JPEGImages/a.jpg": 0, "Annotations/a.xml": voc(CAT), "SegmentationClass/a.png": 0}
    root = write(tmp_path / "set", files)
    (root / path).rename(tmp_path / "outside")
    (root / path).symlink_to(tmp_path / "outside")
    with pytest.raises(RecordError, match=f"{path}: is a link to {tmp_path}/outside, outside {root}"):
        packed(root)
    assert packed(root, allow_outside=True)[0].count == 1


def annotation_of(white: Any, *, has_size: bool = True) -> str:
    """Return the annotation of the white rectangle, with the size of the picture that it is seen in."""
    left, top, right, bottom = sides_of(white)
    size = f"<width>{white.shape[1]}</width><height>{white.shape[0]}</height>"
    return voc(thing("cat", *map(str, (left + 1, top + 1, right, bottom))), size=size if has_size else "")


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_boxes_are_turned_if_the_size_is_that_of_the_picture_as_displayed(orientation: int, tmp_path: Path) -> None:
    picture, shown, _ = turned_picture(orientation)
    write(tmp_path, {"JPEGImages/a.jpg": picture, "Annotations/a.xml": annotation_of(shown)})
    meta, (record,) = packed(tmp_path)
    assert (record["boxes"].tolist(), meta.notes) == ([[20, 5, 50, 9]], ())


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize(("height", "has_size"), [(40, True), (60, True), (40, False)])
def test_boxes_and_masks_are_taken_as_stored(orientation: int, height: int, has_size: bool, tmp_path: Path) -> None:
    picture, _, stored = turned_picture(orientation, height)
    seen = saved(Image.fromarray(stored.astype(np.uint8)))
    write(tmp_path, {"JPEGImages/a.jpg": picture, "SegmentationClass/a.png": seen})
    write(tmp_path, {"Annotations/a.xml": annotation_of(stored, has_size=has_size)})
    meta, (record,) = packed(tmp_path)
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    # Turned together when read, the box is still around the pixels of the mask.
    dataset = storeds.StoreDataset("memory://voc", reader="sample", as_dict=True, reader_options={"orient": True})
    (left, top, right, bottom), inside = dataset[0]["boxes"][0].int().tolist(), dataset[0]["mask"].numpy() == 1
    assert inside[top:bottom, left:right].all()
    assert inside.sum() == (bottom - top) * (right - left)
    noted = [note for note in meta.notes if "1 picture has an EXIF orientation" in note]
    assert len(noted) == (orientation > 1)  # tools that show the picture turned may write its size as stored


@pytest.mark.parametrize(
    "sides", ["", "<width>0</width><height>0</height>", "<width/><height/><depth/>", "<depth>3</depth>"]
)
def test_an_empty_size_is_a_missing_one(sides: str, tmp_path: Path) -> None:
    write(tmp_path, {"JPEGImages/a.jpg": 0, "Annotations/a.xml": voc(CAT, size=sides)})
    assert packed(tmp_path)[1][0]["boxes"].tolist() == [[0, 0, 96, 64]]


def test_what_is_left_out_is_counted_and_attributes_are_kept(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "JPEGImages/a.jpg": 0,
        "JPEGImages/b.heic": b"x",
        "JPEGImages/a.xml": "",
        "Objects/a.png": 0,
    }
    cat = thing("cat", "1", "1", "9", "9", more='<part id="3">tail</part><attributes><b v="1"/>x</attributes>')
    write(tmp_path, {**files, "Annotations/a.xml": voc(cat.replace("<object>", '<object id="7">'))})
    meta, (record,) = packed(tmp_path)
    assert record["objects"] == [
        {"@id": "7", "part": {"@id": "3", "#text": "tail"}, "attributes": {"b": {"@v": "1"}, "#text": "x"}}
    ]
    assert meta.notes == (
        "left out 1 file of other kinds: 1 *.heic, such as JPEGImages/b.heic",
        "left out 1 folder beside those of images, annotations and masks: Objects",
        "left out 1 file in a folder of other files: JPEGImages/a.xml",
    )


@pytest.mark.parametrize(("encoding", "name"), [("Shift_JIS", "猫"), ("ISO-8859-1", "Ärger"), ("UTF-16", "狗")])
def test_annotations_in_other_encodings(encoding: str, name: str, tmp_path: Path) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>{voc(thing(name, "1", "1", "9", "9"))}'
    write(tmp_path, {"JPEGImages/a.jpg": 0, "Annotations/a.xml": text.encode(encoding)})
    assert packed(tmp_path)[0].attrs["classes"] == [name]


side = st.integers(0, 1000).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 1000)))


@settings(max_examples=examples(50))
@given(boxes=st.lists(st.tuples(st.sampled_from(["cat", "a & b", "Ärger"]), side, side), max_size=6))
def test_random_annotations_read_as_written(boxes: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("set")
    # Thousandths of the width and height, from the first to the last pixel.
    rows = [(name, *(1 + x * 0.095 for x in xs), *(1 + y * 0.063 for y in ys)) for name, xs, ys in boxes]
    things = [thing(name, repr(left), repr(top), repr(right), repr(bottom)) for name, left, right, top, bottom in rows]
    source = Source(write(root, {"JPEGImages/a.jpg": 0, "Annotations/a.xml": voc(*things)}), kind="voc")
    (record,), classes = source.records, cast("list[str]", source.rows.attrs["classes"])
    assert classes == sorted({row[0] for row in rows})
    assert [classes[label] for label in record["labels"]] == [row[0] for row in rows]
    assert record["boxes"].tolist() == [[left - 1, top - 1, right, bottom] for _, left, right, top, bottom in rows]


@pytest.mark.parametrize("below", ["", "first/"])
def test_annotations_may_lie_beside_their_pictures(below: str, tmp_path: Path) -> None:
    names = [f"{below}{name}" for name in ("a", "b")]
    files: dict[str, Any] = {f"{name}.jpg": 0 for name in names} | {f"{name}.xml": voc(CAT) for name in names}
    meta, records = packed(write(tmp_path, files))
    assert [(record["key"], record["boxes"].tolist()) for record in records] == [
        (f"{name}.jpg", [[0, 0, 96, 64]]) for name in names
    ]
    assert (meta.attrs["classes"], meta.notes) == (["cat"], ())
    (tmp_path / f"{below}b.xml").unlink()
    with pytest.raises(RecordError, match=rf"{below}b\.jpg: has no annotation \({below}b\.xml\)"):
        packed(tmp_path)
    for xml in tmp_path.rglob("*.xml"):
        xml.unlink()
    with pytest.raises(ConfigError, match="and no XML files beside pictures"):
        packed(tmp_path)
