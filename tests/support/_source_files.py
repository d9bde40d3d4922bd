"""The files of data sets that tests pack: lists, tar and Parquet files, the text of YOLO and Pascal VOC, turned pictures."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
from PIL import Image, ImageOps

from photographs import jpeg, saved
from picture_stores import exif

__all__ = ["NAMES", "jsonl", "sides_of", "table", "tar", "thing", "turned_picture", "voc", "yolo"]

NAMES = "names: [cat, dog]\n"
"""The classes in a data.yaml of `yolo`."""


def jsonl(*rows: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def tar(members: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def table(**columns: Any) -> bytes:
    """Return a Parquet file with a photograph in each row, as plain bytes, as pandas and others store them."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    rows = len(next(iter(columns.values())))
    parquet.write_table(pyarrow.table({"image": [jpeg(n) for n in range(rows)], **columns}), buffer, row_group_size=2)
    return buffer.getvalue()


def yolo(labels: Mapping[str, str | bytes | None], yaml: str = "", **more: Any) -> dict[str, Any]:
    """Return the files of a data set with one photograph for each label file; None is an image without one."""
    files: dict[str, Any] = {"data.yaml": f"{yaml or 'train: images/train'}\n{NAMES}"}
    for number, (name, text) in enumerate(labels.items()):
        files[f"images/{name}.jpg"] = number % 5
        files |= {} if text is None else {f"labels/{name}.txt": text}
    return {**files, **more}


def voc(*objects: str, size: str = "<width>96</width><height>64</height>") -> str:
    """Return the annotation of an image; an empty `size` leaves its size out."""
    size = size and f"<size>{size}</size>"
    return f"<annotation><folder>VOC</folder><filename>x.jpg</filename>{size}{''.join(objects)}</annotation>"


def thing(
    name: str, *sides: str, more: str = "<pose>Left</pose><truncated>1</truncated><difficult>0</difficult>"
) -> str:
    """Return one object of an annotation, with its box from the first to the last pixel."""
    box = "".join(f"<{side}>{at}</{side}>" for side, at in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True))
    return f"<object><name>{escape(name)}</name>{more}<bndbox>{box}</bndbox></object>"


def turned_picture(orientation: int, height: int = 40) -> tuple[bytes, Any, Any]:
    """Return a white rectangle on black, and where it is in the picture as displayed and as stored."""
    pixels = np.zeros((height, 60), np.uint8)
    pixels[5:9, 20:50] = 255
    picture = saved(Image.fromarray(pixels), "JPEG", quality=100, exif=exif(orientation))
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(picture)))
    return picture, np.asarray(shown) > 128, pixels > 128


def sides_of(white: Any) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of what is white."""
    rows, columns = np.flatnonzero(white.any(1)), np.flatnonzero(white.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
