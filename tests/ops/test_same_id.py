"""pack → convert or repair → export → pack: one id in every engine, for every kind of data set, and the same files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import storeds
from _damaged import PICTURES
from mask_files import mask, write

ENGINES = ("lmdb", "hdf5", "mongodb")
DAMAGED = {f"{key}.jpg": picture for key, picture in PICTURES.items() if picture.is_readable}
SUFFIXES = (".jpg", ".png")


def coco() -> str:
    """Return annotations with boxes, crowds, keypoints, and keys that storeds does not know."""
    size = {"width": 96, "height": 64}
    common = {"iscrowd": 0, "category_id": 7, "image_id": 42}
    points = {"keypoints": [41, 6, 2, 50.5, 20, 1], "num_keypoints": 2}
    crowd = {"size": [64, 96], "counts": [100, 50, 64 * 96 - 150]}
    return json.dumps(
        {
            "info": {"year": 2026},
            "images": [
                {"id": 42, "file_name": "a.jpg", **size, "licence": 1},
                {"id": 7, "file_name": "b.jpg", **size},
            ],
            "annotations": [
                {"id": 900, "bbox": [40, 5, 40, 40.25], "area": 1610, **common, **points, "mine": [1]},
                {"id": 901, "bbox": [1, 5, 40, 40], "area": 50, **common, "iscrowd": 1, "segmentation": crowd},
            ],
            "categories": [{"id": 7, "name": "person", "keypoints": ["head", "tail"]}],
        }
    )


class Case(NamedTuple):
    """The files of a data set, what of them is packed, how the store is copied, and the formats that keep all of it."""

    files: Mapping[str, bytes | int | str]
    source: str = ""
    options: Mapping[str, Any] = {}
    copy: Callable[[str, str], Any] = storeds.convert
    formats: tuple[str, ...] = ("folder",)


CAPTIONS = [{"image": f"{n}.jpg", "captions": ["Ü", f"{n}\n\u2028"]} for n in range(2)]
CASES = {
    "classes": Case({f"{name}/{n}.jpg": n for name in ("cat", "dog") for n in range(3)}),
    "masks": Case(
        {**{f"images/train/{n}.jpg": n for n in range(3)}, **{f"masks/train/{n}.png": mask(n) for n in range(3)}},
        options={"kind": "masks", "classes": list("abcd")},
    ),
    "boxes and keypoints": Case(
        {"a.jpg": 0, "b.jpg": 1, "annotations.json": coco()}, "annotations.json", formats=("folder", "coco")
    ),
    "captions": Case(
        {"0.jpg": 0, "1.jpg": 1, "list.jsonl": "\n".join(map(json.dumps, CAPTIONS))},
        "list.jsonl",
        {"caption_columns": ["captions"]},
    ),
    "damaged": Case({name: picture.blob for name, picture in DAMAGED.items()}, options={"kind": "flat"}),
    "repaired": Case(
        {name: picture.blob for name, picture in DAMAGED.items()}, options={"kind": "flat"}, copy=storeds.repair
    ),
}


def pictures(folder: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.rglob("*") if path.suffix in SUFFIXES)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_packing_the_export_of_a_copy_gives_the_same_id(
    engine: str, case: Case, make_engine_url: Callable[[str], str], tmp_path: Path
) -> None:
    root = write(tmp_path / "files", case.files)
    start = ENGINES.index(engine)
    first, second, third = (make_engine_url(each) for each in (*ENGINES[start:], *ENGINES[:start]))
    packed = storeds.pack(root / case.source, first, **case.options)
    copied = case.copy(first, second)
    is_repaired = case.copy is storeds.repair
    assert (copied.id != packed.id) == is_repaired
    for format in case.formats:
        done = storeds.export(second, tmp_path / format, format=format)
        assert (dict(done.left_out), done.notes) == ({}, ())
        assert (pictures(tmp_path / format) != pictures(root)) == is_repaired
        source = tmp_path / format / ("annotations.json" if format == "coco" else "")
        again = storeds.pack(source, third, overwrite=True)
        assert (again.id, again.fields, again.attrs) == (copied.id, packed.fields, packed.attrs)
        assert again.findings == packed.findings
        if case.options.get("kind") == "flat":
            assert again.findings == Counter(picture.finding for picture in DAMAGED.values())
