"""Write the stores of ``tests/fixtures/827ee2f1`` with the source of that commit, and `truth.json` beside them.

They show that storeds reads what an earlier storeds wrote, so nobody may write them again with a newer source. ::

    git worktree add /tmp/old 827ee2f1
    PYTHONPATH=/tmp/old/src:tests/support .venv/bin/python tests/support/make_old_stores.py tests/fixtures/827ee2f1

LMDB and HDF5 stores are the files themselves. A MongoDB store is the BSON documents of its collection, end to end, as
``mongodump`` writes them. A store has the same records in every engine. For each store, `truth.json` has what the old source
wrote and found (id, build of each engine, fields, findings of ``verify``), and the checksum of each record, which
`plain_formats` computes from the values that were written.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pymongo
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS
from PIL import Image

import storeds
from photographs import jpeg, photograph, saved
from plain_formats import READ, checksum, stored_row
from storeds.testing import run_mongod

__all__ = ["STORES"]

ENGINES = ("lmdb", "hdf5", "mongodb")

KINDS: dict[str, Any] = {
    "image": "image",
    "raw": "bytes",
    "key": "str",
    "label": "int",
    "real": "float",
    "flag": "bool",
    "doc": "json",
    "point": {"kind": "array", "dtype": "float64", "shape": []},
    "box": {"kind": "array", "dtype": "float32", "shape": [2, 3]},
    "bits": {"kind": "array", "dtype": "bool", "shape": [5]},
    "wave": {"kind": "array", "dtype": "complex64", "shape": [2]},
    "swapped": {"kind": "array", "dtype": ">i8", "shape": [3]},
    "hollow": {"kind": "array", "dtype": "int16", "shape": [0, 4]},
    "half": {"kind": "array", "dtype": "float16", "shape": [None]},
    "pixels": {"kind": "array", "dtype": "uint8", "shape": [None, None, 3]},
}
TEXTS = ["", "plain", "\0", "in\0side", "naïve 😀 \u200b\uffff\U0010ffff", "x" * 300, "$a.b", "trailing\0"]
INTEGERS = [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 255, -(2**31) - 1]
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1]
DOCUMENTS: list[Any] = [
    None,
    True,
    -0.0,
    2**70,
    "\0 😀",
    [],
    {},
    {"b": [1, {"a": None, "": [[]]}], "a.b": 1.5, "$set": "x"},
]

ROLES: dict[str, Any] = {
    "image": {"kind": "image", "role": "image"},
    "segments": {"kind": "image", "role": "mask"},
    "instances": {"kind": "array", "dtype": "bool", "shape": [None, 16, 24], "role": "mask", "of": "boxes"},
    "outlines": {"kind": "json", "role": "mask", "format": "coco", "of": "boxes"},
    "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xyxy"},
    "faces": {"kind": "json", "role": "boxes", "format": "cxcywh", "relative": True},
    "joints": {"kind": "array", "dtype": "float32", "shape": [None, 2, 3], "role": "keypoints", "of": "boxes"},
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels", "of": "boxes"},
    "label": {"kind": "int", "role": "label"},
    "caption": {"kind": "json", "role": "text"},
}


@dataclass(frozen=True)
class Content:
    """What one store is written from.

    Attributes
    ----------
    pictures : bool
        Whether the writer examines images.
    part_bytes : int
        From which size on a record in MongoDB has its large values in parts of that size.
    engines : tuple of str
        Those whose files are kept.
    """

    fields: dict[str, Any]
    records: list[dict[str, Any]]
    attrs: dict[str, Any] = field(default_factory=dict)
    fast_crops: int | None = None
    pictures: bool = True
    part_bytes: int = 15 << 20
    engines: tuple[str, ...] = ENGINES


def kinds(count: int) -> list[dict[str, Any]]:
    """Return records of every kind; the images go through whole, fast to crop, cut short, followed by bytes, and PNG."""
    plain, fast = jpeg(0, (32, 24)), jpeg(1, (32, 24), restart_marker_rows=1)
    images = [plain, fast, plain[:-60], plain + b"more", saved(photograph(2, (12, 8)))]
    return [kind(at, images[at % len(images)]) for at in range(count)]


def kind(at: int, image: bytes) -> dict[str, Any]:
    """Return record `at` of the store of all kinds."""
    noise = np.random.default_rng(at)
    return {
        "image": image,
        "raw": noise.bytes([0, 30, 1, 200, 9000][at] if at < 5 else at),  # one above a page of LMDB
        "key": TEXTS[at % 8],
        "label": INTEGERS[at % 8],
        "real": FLOATS[at % 8],
        "flag": at % 3 == 0,
        "doc": DOCUMENTS[at % 8],
        "point": np.array(FLOATS[at % 8]),
        "box": noise.standard_normal((2, 3)).astype("f4"),
        "bits": np.arange(5) % (at + 1) == 0,
        "wave": np.array([complex(at, -0.0), complex(math.nan, math.inf)], "c8"),
        "swapped": np.array([at, -at, 2**62], ">i8"),
        "hollow": np.empty((0, 4), "i2"),
        "half": np.arange(at % 4, dtype="f2") / 8,
        "pixels": noise.integers(0, 256, (at % 3, 4, 3), dtype="u1"),
    }


def roles(boxes: int) -> dict[str, Any]:
    """Return a record with this many boxes, and what describes them."""
    outline = [[1, 1, 20, 1, 20, 10.5]]
    return {
        "image": jpeg(3, (24, 16)),
        "segments": saved(Image.fromarray(np.arange(16 * 24, dtype="u2").reshape(16, 24).astype("u1") % 3)),
        "instances": np.arange(boxes * 16 * 24).reshape(boxes, 16, 24) % (boxes + 2) == 0,
        "outlines": [outline, {"size": [16, 24], "counts": [40, 8, 16 * 24 - 48]}][:boxes],
        "boxes": np.array([[0, 0, 24, 16], [1.5, 2, 10, 9.25]], "f4")[:boxes],
        "faces": [[0.5, 0.5, 0.25, 0.5]] * (2 - boxes),
        "joints": np.array([[[1, 2, 2], [0, 0, 0]], [[-3, 4.5, 1], [23, 15, 2]]], "f4")[:boxes],
        "labels": np.array([1, 0])[:boxes],
        "label": boxes % 2,
        "caption": ["a cat", "ein Dög"][:boxes],
    }


FEW = {"image": "image", "label": "int", "boxes": ROLES["boxes"]}
LARGE = {"blob": "bytes", "text": "str", "frames": {"kind": "array", "dtype": "uint16", "shape": [None, 16]}}
CLASSES = {"classes": {"label": ["off", "on"], "labels": ["cat", "dög"]}, "made by": {"z": None, "a": [1.5, True]}}
STORES = {
    "kinds": Content(KINDS, kinds(10), {"note": "ü", "nested": {"b": [1, 2.5, None]}}, fast_crops=2),
    "roles": Content(ROLES, [roles(2), roles(0), roles(1)], CLASSES),
    "one": Content({"image": "image", "label": "int"}, [{"image": jpeg(0, (24, 16)), "label": 3}], pictures=False),
    "empty": Content(FEW, [], {"classes": ["cat"]}),
    "parts": Content(
        LARGE,
        [
            {"blob": b"\xff\xd8" * 1600, "text": "short", "frames": np.arange(16, dtype="u2").reshape(1, 16)},
            {"blob": b"", "text": "é\0" * 900, "frames": np.arange(1600, dtype="u2").reshape(100, 16)},
            {"blob": b"small", "text": "", "frames": np.empty((0, 16), "u2")},
        ],
        part_bytes=1000,  # the files stay small
        engines=("mongodb",),
    ),
}


def main(target: Path) -> None:
    """Write every store in every engine, keep those of its `engines`, and write what is true of them."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    truth = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        run_mongod(folder) as server,
        pymongo.MongoClient[Any](server) as client,
    ):
        for name, content in STORES.items():
            urls = {engine: f"{engine}://{folder}/{name}.{engine}" for engine in ("lmdb", "hdf5")}
            truth[name] = write(content, {**urls, "mongodb": f"{server}/old/{name}"})
            documents = client["old"].get_collection(name, DEFAULT_RAW_BSON_OPTIONS).find()
            (target / f"{name}.bson").write_bytes(b"".join(document.raw for document in documents))
            for engine in urls.keys() & content.engines:
                shutil.copy(f"{folder}/{name}.{engine}", target)
    (target / "truth.json").write_text(one_line_a_key(truth), encoding="utf-8")


def one_line_a_key(truth: dict[str, dict[str, Any]]) -> str:
    """Return JSON that people can compare by lines."""
    stores = []
    for name, store in truth.items():
        lines = [f'    "{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in store.items()]
        stores.append(f'  "{name}": {{\n' + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(stores) + "\n}\n"


def write(content: Content, urls: dict[str, str]) -> dict[str, Any]:
    """Write a store in every engine; return what is true of it."""
    metas = {}
    for engine, url in urls.items():
        with patch("storeds.backends.mongodb.documents._LARGE", content.part_bytes):
            writer = storeds.open_writer(url, content.fields, check=content.pictures, commit_every=7)
            writer.append(content.records)
            metas[engine] = writer.publish(content.attrs, fast_crops=content.fast_crops)
    body, stored, sums = READ["lmdb"](urls["lmdb"])
    fields = {row["name"]: {key: value for key, value in row.items() if key != "name"} for row in body["fields"]}
    # The verdicts are the old writer's; everything else is what was passed to it.
    verdicts = [{name: row[name] for name in fields if name not in content.fields} for row in stored]
    rows = [{**record, **verdict} for record, verdict in zip(content.records, verdicts, strict=True)]
    checksums = [checksum(stored_row(row, fields)).hex() for row in rows]
    assert {meta.id for meta in metas.values()} == {body["id"]}
    assert checksums == [each.hex() for each in sums]
    reports = [storeds.verify(url).findings for url in urls.values()]
    assert all(report == reports[0] for report in reports)
    return {
        "id": body["id"],
        "builds": {engine: metas[engine].build for engine in content.engines},
        "count": body["count"],
        "fast_crops": content.fast_crops,
        "attrs": content.attrs,
        "fields": body["fields"],
        "records": checksums,
        "findings": [[finding.position, finding.kind, finding.recovered] for finding in reports[0]],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
