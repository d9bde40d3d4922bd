"""Data sets of Pascal VOC: what `pack` reads is what the XML says, and everything wrong with a file is reported."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

import storeds
from _verdicts import unjudged
from photographs import jpeg
from storeds.errors import RecordError
from storeds.ops.packing import Packed

ENGINES = ("lmdb", "hdf5", "mongodb")
WIDTH, HEIGHT = 96, 64
CAT = ("cat", "1", "1", "96", "64")
DOG = ("dog", "10", "20.5", "30", "40")


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def element(
    name: str, *sides: str, more: str = "<pose>Left</pose><truncated>1</truncated><difficult>0</difficult>"
) -> str:
    box = "".join(
        f"<{side}>{text}</{side}>" for side, text in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True)
    )
    return f"<object><name>{escape(name)}</name>{more}<bndbox>{box}</bndbox></object>"


def annotation(*objects: str, size: str = f"<width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth>") -> str:
    head = "<folder>VOC2012</folder><filename>x.jpg</filename><path>/home/me/x.jpg</path>"
    source = "<source><database>made</database></source><segmented>0</segmented>"
    return f"<annotation>{head}{source}<size>{size}</size>{''.join(objects)}</annotation>"


def add(root: Path, name: str, text: str | None, *, picture: bytes | None = None) -> None:
    put(
        root / f"JPEGImages/{name}.jpg",
        jpeg(len(os.listdir(root)) if root.exists() else 0) if picture is None else picture,
    )
    if text is not None:
        put(root / f"Annotations/{name}.xml", text)


def mask(size: tuple[int, int] = (WIDTH, HEIGHT), mode: str = "P") -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(np.full(size[::-1], 8, np.uint8)).convert(mode)
    if mode == "P":
        image.putpalette(bytes(range(256)) * 3)
    image.save(buffer, "PNG")
    return buffer.getvalue()


def packed(root: Path, **options: Any) -> tuple[Packed, list[dict[str, Any]]]:
    """Pack a data set; return what `pack` returns, and the records."""
    meta = storeds.pack(root, "memory://voc", kind="voc", overwrite=True, **options)
    with storeds.open_backend("memory://voc") as backend:
        return meta, unjudged(backend.get_many(range(len(backend))))


def problems(root: Path, **options: Any) -> str:
    """Return the message that lists what is wrong with a data set."""
    with pytest.raises(RecordError) as caught:
        packed(root, **options)
    return str(caught.value)


@pytest.mark.parametrize("path", ["Annotations/a.xml", "SegmentationClass/a.png"])
def test_files_are_not_read_through_links_out_of_the_folder(path: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    add(root, "a", annotation(element(*CAT)))
    put(root / "SegmentationClass/a.png", mask())
    (root / path).rename(tmp_path / "outside")
    (root / path).symlink_to(tmp_path / "outside")
    assert f"{path}: is a link to {tmp_path}/outside, outside {root}" in problems(root)
    assert packed(root, allow_outside=True)[0].count == 1


def turned_picture(orientation: int, height: int = 40) -> tuple[bytes, Any]:
    """Return a white rectangle on black, and where it is in the picture as displayed."""
    pixels = np.zeros((height, 60), np.uint8)
    pixels[5:9, 20:50] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=100, exif=exif)
    return buffer.getvalue(), np.asarray(ImageOps.exif_transpose(Image.open(buffer))) > 128


def annotation_of(shown: Any, *, has_size: bool = True) -> str:
    """Return the annotation of a rectangle as seen, with the size of what was seen."""
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    box = [str(number + 1) for number in (columns[0], rows[0], columns[-1], rows[-1])]
    size = f"<width>{shown.shape[1]}</width><height>{shown.shape[0]}</height>"
    text = annotation(element("cat", *box), size=size)
    return text if has_size else text.replace(f"<size>{size}</size>", "")


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_boxes_are_turned_if_the_size_is_that_of_the_picture_as_displayed(orientation: int, tmp_path: Path) -> None:
    picture, shown = turned_picture(orientation)
    add(tmp_path, "a", annotation_of(shown), picture=picture)
    meta, (record,) = packed(tmp_path)
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    assert meta.notes == ()


@pytest.mark.parametrize(("orientation", "height", "has_size"), [
    *((orientation, 40, True) for orientation in range(1, 9)),
    *((orientation, 60, True) for orientation in range(1, 9)),
    *((orientation, 40, False) for orientation in range(1, 9)),
])  # fmt: skip
def test_boxes_and_masks_are_taken_as_stored(orientation: int, height: int, has_size: bool, tmp_path: Path) -> None:
    picture, _ = turned_picture(orientation, height)
    stored = np.asarray(Image.open(io.BytesIO(picture))) > 128
    add(tmp_path, "a", annotation_of(stored, has_size=has_size), picture=picture)
    buffer = io.BytesIO()
    Image.fromarray(stored.astype(np.uint8)).save(buffer, "PNG")
    put(tmp_path / "SegmentationClass/a.png", buffer.getvalue())
    meta, (record,) = packed(tmp_path)
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    # Turned together when read, the box is still around the pixels of the mask.
    dataset = storeds.StoreDataset("memory://voc", reader="sample", as_dict=True, reader_options={"orient": True})
    (left, top, right, bottom), inside = dataset[0]["boxes"][0].int().tolist(), dataset[0]["mask"].numpy() == 1
    assert inside[top:bottom, left:right].all()
    assert inside.sum() == (bottom - top) * (right - left)
    is_unproven = orientation > 1 and (orientation < 5 or height == 60 or not has_size)
    noted = [note for note in meta.notes if "1 picture has an EXIF orientation" in note]
    assert len(noted) == is_unproven


@pytest.mark.parametrize("encoding", ["GB2312", "Shift_JIS", "euc-kr", "ISO-8859-1", "UTF-16"])
def test_annotations_in_other_encodings(encoding: str, tmp_path: Path) -> None:
    name = {"Shift_JIS": "猫", "euc-kr": "고양이", "ISO-8859-1": "Ärger"}.get(encoding, "狗")
    text = f'<?xml version="1.0" encoding="{encoding}"?>{annotation(element(name, "1", "1", "9", "9"))}'
    add(tmp_path, "a", None)
    put(tmp_path / "Annotations/a.xml", text.encode(encoding))
    assert packed(tmp_path)[0].attrs["classes"] == [name]


side = st.integers(0, 1000).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 1000)))


@given(boxes=st.lists(st.tuples(st.sampled_from(["cat", "a & b", "Ärger"]), side, side), max_size=6))
def test_random_annotations_read_as_written(boxes: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("set")
    # Thousandths of the width and height, from the first to the last pixel.
    rows = [(name, *(1 + x * 0.095 for x in xs), *(1 + y * 0.063 for y in ys)) for name, xs, ys in boxes]
    texts = [element(name, repr(left), repr(top), repr(right), repr(bottom)) for name, left, right, top, bottom in rows]
    add(root, "a", annotation(*texts))
    meta, (record,) = packed(root)
    classes: Any = meta.attrs["classes"]
    assert classes == sorted({row[0] for row in rows})
    assert [classes[label] for label in record["labels"]] == [row[0] for row in rows]
    assert record["boxes"].tolist() == [[left - 1, top - 1, right, bottom] for _, left, right, top, bottom in rows]
