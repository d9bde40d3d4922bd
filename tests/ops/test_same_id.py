"""A store → its copy in another engine → an export → a store of that: one id, for every kind of value and of damage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import storeds
from _damaged import PICTURES
from mask_files import mask, write
from photographs import jpeg

ENGINES = ("lmdb", "hdf5", "mongodb", "memory")
DAMAGED = {f"{key}.jpg": picture for key, picture in PICTURES.items() if picture.is_readable}
SUFFIXES = (".jpg", ".png")


ARRAY: dict[str, Any] = {"kind": "array", "shape": [None]}
EVERYTHING: dict[str, Any] = {
    "label": {"kind": "int", "role": "label"},
    "left": {"kind": "image", "role": "image"},
    "right": "image",
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {**ARRAY, "dtype": "float64", "shape": [None, 4], "role": "boxes", "format": "cxcywh", "relative": True},
    "labels": {**ARRAY, "dtype": "int64", "role": "labels"},
    "points": {**ARRAY, "dtype": "float32", "shape": [None, 17, 3], "role": "keypoints"},
    "area": {**ARRAY, "dtype": "float16", "of": "boxes"},
    "crowd": {**ARRAY, "dtype": "bool", "of": "boxes"},
    "instances": {"kind": "json", "role": "mask", "format": "coco"},
    "depth": {**ARRAY, "dtype": "float32", "shape": [None, None]},
    "phase": {**ARRAY, "dtype": "complex64", "shape": [2]},
    **{"file_name": "str", "images": "bytes", "score": "float", "flag": "bool", "note": "json", "key": "str"},
}


def everything(number: int) -> dict[str, Any]:
    """Return a record with a value of every kind; `number` boxes."""
    rng = np.random.default_rng(number)
    size = rng.uniform(0.1, 0.5, (number, 2))
    return {
        "label": number - 1,
        "left": jpeg(number),
        "right": jpeg(number + 1),
        "mask": mask(number, "P"),
        "boxes": np.concatenate([rng.uniform(0.3, 0.6, (number, 2)), size], axis=1),
        "labels": np.arange(number),
        "points": rng.normal(20, 9, (number, 17, 3)).astype("f4"),
        "area": rng.normal(20, 9, number).astype("f2"),
        "crowd": np.arange(number) == 1,
        "instances": [[[0.1, 0, 9, 0, 9, 9.3]]] * number,
        "depth": np.full((number, 3), np.nan, "f4"),
        "phase": np.array([1j, number], "c8"),
        "file_name": f"“{number}”\n",
        "images": bytes([number, 0, 255]),
        "score": [float("nan"), -0.0, float("inf"), 1e-300][number],
        "flag": bool(number % 2),
        "note": {"é": [1, None, 2**60, 0.1]},
        "key": f"a/{number}.jpg",
    }


def write_everything(root: Path, url: str) -> storeds.Meta:
    """Write records of every kind of field, with the files of their pictures below `root`."""
    records = [everything(number) for number in range(4)]
    for number, record in enumerate(records):
        write(root, {f"{name}{number}.jpg": record[name] for name in ("left", "right", "mask")})
    with storeds.open_writer(url, EVERYTHING) as writer:
        writer.append(records)
        return writer.publish({"licence": "CC0", "nested": {"a": [1, 2.5, None]}})


def write_annotations(root: Path, url: str) -> storeds.Meta:
    """Pack photographs and annotations with boxes, crowds, keypoints, and keys that storeds does not know."""
    size, common = {"width": 96, "height": 64}, {"iscrowd": 0, "category_id": 7, "image_id": 42}
    points = {"keypoints": [41, 6, 2, 50.5, 20, 1], "num_keypoints": 2}
    crowd = {"size": [64, 96], "counts": [100, 50, 64 * 96 - 150]}
    document = {
        "info": {"year": 2026},
        "images": [{"id": 42, "file_name": "a.jpg", **size, "licence": 1}, {"id": 7, "file_name": "b.jpg", **size}],
        "annotations": [
            {"id": 900, "bbox": [40, 5, 40, 40.25], "area": 1610, **common, **points, "mine": [1]},
            {"id": 901, "bbox": [1, 5, 40, 40], "area": 50, **common, "iscrowd": 1, "segmentation": crowd},
        ],
        "categories": [{"id": 7, "name": "person", "keypoints": ["head", "tail"]}],
    }
    write(root, {"a.jpg": 0, "b.jpg": 1, "annotations.json": json.dumps(document)})
    return storeds.pack(root / "annotations.json", url)


def write_damaged(root: Path, url: str) -> storeds.Meta:
    """Pack whole and damaged pictures."""
    write(root, {name: picture.blob for name, picture in DAMAGED.items()})
    packed = storeds.pack(root, url, kind="flat")
    assert packed.findings == Counter(picture.finding for picture in DAMAGED.values())
    return packed


class Case(NamedTuple):
    """What writes a store, how it is copied, the formats that keep all of it, and the folders in an export as a folder."""

    write: Callable[[Path, str], storeds.Meta]
    copy: Callable[[str, str], Any] = storeds.convert
    formats: tuple[str, ...] = ("folder",)
    folders: frozenset[str] = frozenset()


CASES = {
    # Pictures, bytes, and arrays that JSON cannot hold; the other arrays are in metadata.jsonl.
    "everything": Case(write_everything, folders=frozenset(("left", "right", "masks", "depth", "phase", "images"))),
    "annotations": Case(write_annotations, formats=("folder", "coco")),
    "damaged": Case(write_damaged),
    "repaired": Case(write_damaged, storeds.repair),
}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, without those of storeds alone."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def pictures(folder: Path) -> list[bytes]:
    return sorted(blob for name, blob in files_of(folder).items() if name.endswith(SUFFIXES))


@pytest.mark.parametrize(("case", "engine"), [*zip(CASES.values(), ENGINES, strict=True)], ids=CASES)
def test_the_store_of_an_export_of_a_copy_has_the_same_id(
    engine: str, case: Case, make_engine_url: Callable[[str], str], tmp_path: Path
) -> None:
    start = ENGINES.index(engine)
    first, second, third, fourth = (make_engine_url(each) for each in (*ENGINES[start:], *ENGINES[:start]))
    meta = case.write(tmp_path / "files", first)
    copied = case.copy(first, second)
    is_repaired = case.copy is storeds.repair
    assert (copied.id != meta.id) == is_repaired
    assert (copied.count, storeds.info(second).attrs) == (meta.count, meta.attrs)
    report = storeds.verify(second)
    assert (report.count, report.id) == (meta.count, copied.id)
    assert {finding.kind for finding in report.findings} <= {picture.finding for picture in DAMAGED.values()}
    for format in case.formats:
        out = tmp_path / format
        done = storeds.export(second, out, format=format)
        assert (dict(done.left_out), done.notes) == ({}, ())
        assert case.folders in (frozenset(), {path.name for path in out.iterdir() if path.is_dir()})
        assert (pictures(out) != pictures(tmp_path / "files")) == is_repaired
        again = storeds.pack(out / ("annotations.json" if format == "coco" else ""), third, overwrite=True)
        assert (again.id, again.fields, again.attrs) == (copied.id, meta.fields, meta.attrs)
        assert again.findings == getattr(meta, "findings", again.findings)
        storeds.export(third, tmp_path / f"{format} again", format=format)
        assert files_of(tmp_path / f"{format} again") == files_of(out)
    assert storeds.convert(third, fourth).id == copied.id
