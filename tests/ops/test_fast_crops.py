"""``pack --fast-crops`` and ``convert --fast-crops``: the same bytes in every engine, counted, never silent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from _packing import records_of, stored_records, storeds_command, storeds_json
from make_store import make_store
from mask_files import write
from photographs import by_pillow, jpeg, photograph, saved
from storeds import errors, open_backend
from storeds.ops import info

MakeUrl = Callable[[str], str]


FILES = {
    **{f"photo-{at:02}": jpeg(at, (448, 240), quality=88) for at in range(12)},
    "with-markers": jpeg(3, (448, 240), restart_marker_blocks=4),
    "progressive": jpeg(2, (448, 240), quality=60, progressive=True),
    "half": jpeg(1, (448, 240))[:4000],
    "small": jpeg(1, (64, 48)),
    "other": saved(photograph(3, (448, 240))),
}
OUTCOMES = {"had them": 1, "damaged": 1, "too small": 1, "no JPEG": 1}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", {f"{key}.jpg": blob for key, blob in FILES.items()})


def pack(source: Any, url: str, **options: Any) -> Any:
    return storeds.pack(source, url, **{"kind": "flat", "fast_crops": True, **options})


def stored(url: str) -> dict[str, tuple[bytes, str]]:
    """Return key → picture and verdict."""
    found = records_of(url, "key", "image", "image_finding")
    return {row["key"].removesuffix(".jpg"): (row["image"], row["image_finding"]) for row in found}


def test_pack_marks_what_gains_and_reports_the_rest(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    packed = pack(tree, url)
    assert sum(packed.restarts.values()) == len(FILES)
    assert OUTCOMES.items() <= packed.restarts.items()
    assert packed.restarts["added"] >= 12
    changed = 0
    for record in stored_records(tmp_path / "a.lmdb"):
        key = record["key"].removesuffix(".jpg")
        if record["image"] != FILES[key]:
            changed += 1
            assert np.array_equal(by_pillow(record["image"]), by_pillow(FILES[key]))
            assert b"\xff\xdd\x00\x04" in record["image"]
            assert record["image_finding"] == "intact"
    assert changed == packed.restarts["added"]
    assert packed.fast_crops == info(url).fast_crops == changed + 1
    assert storeds.verify(url).kinds == {"truncated_scan": 1}


@pytest.mark.parametrize(
    ("engine", "way"), [("hdf5", "pack"), ("mongodb", "convert"), ("lmdb", "copy"), ("hdf5", "again")]
)
def test_every_way_gives_the_same_bytes(
    make_engine_url: MakeUrl, engine: str, way: str, tree: Path, tmp_path: Path
) -> None:
    plain, marked, url = f"lmdb://{tmp_path}/plain.lmdb", f"lmdb://{tmp_path}/marked.lmdb", make_engine_url(engine)
    expected, before = pack(tree, marked, workers=1), storeds.pack(tree, plain, kind="flat")
    if way == "pack":
        found = pack(tree, url, workers=3)
    else:
        found = storeds.convert(plain if way == "convert" else marked, url, fast_crops=way != "copy")
    assert found.id == expected.id != before.id
    assert found.fast_crops == info(url).fast_crops == expected.fast_crops
    assert stored(url) == stored(marked)
    of_again = {**OUTCOMES, "had them": expected.fast_crops}
    assert found.restarts == {"copy": {}, "again": of_again}.get(way, expected.restarts)


def test_without_the_option_nothing_changes_but_the_ready_are_counted(tree: Path, tmp_path: Path) -> None:
    packed = storeds.pack(tree, f"hdf5://{tmp_path}/a.h5", kind="flat")
    assert (packed.restarts, packed.fast_crops) == ({}, 1)  # the picture that came with markers
    copy = storeds.convert(f"hdf5://{tmp_path}/a.h5", f"lmdb://{tmp_path}/b.lmdb")
    assert (copy.id, copy.fast_crops, copy.restarts) == (packed.id, 1, {})
    assert {key: blob for key, (blob, _) in stored(f"lmdb://{tmp_path}/b.lmdb").items()} == FILES
    with open_backend([f"hdf5://{tmp_path}/a.h5"] * 2) as both:
        assert both.meta.fast_crops == 2
    unsaid = make_store({"image": "image"}, ({"image": blob} for blob in FILES.values()))
    assert info(unsaid).fast_crops is None
    assert storeds.convert(unsaid, f"lmdb://{tmp_path}/c.lmdb").fast_crops == 1


@pytest.mark.parametrize("command", ["pack", "convert"])
def test_a_missing_program_is_an_error(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    plain = f"lmdb://{tmp_path}/plain.lmdb"
    storeds.pack(tree, plain, kind="flat")
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    source = tree if command == "pack" else plain
    said = storeds_command(command, source, f"lmdb://{tmp_path}/new.lmdb", "--fast-crops", code=2)
    assert "apt install libjpeg-turbo-progs" in said
    assert sorted(os.listdir(tmp_path)) == before


def test_a_program_that_dies_stops_the_pack(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, url = pack(tree, f"lmdb://{tmp_path}/whole.lmdb"), f"lmdb://{tmp_path}/a.lmdb"
    path, program, count = os.environ["PATH"], tmp_path / "bin" / "jpegtran", tmp_path / "count"
    die = f"echo x >> {count}\n[ $(wc -l < {count}) -gt 5 ] && kill -9 $$"
    write(tmp_path, {"bin/jpegtran": f'#!/bin/sh\n{die}\nPATH={path} exec jpegtran "$@"\n'})
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{path}")
    with pytest.raises(errors.StoredsError, match="was ended by signal 9"):
        pack(tree, url, workers=1)
    monkeypatch.setenv("PATH", path)
    assert pack(tree, url, resume=True).id == whole.id


def test_the_commands_report_the_outcomes(tree: Path, tmp_path: Path) -> None:
    said = storeds_command("pack", tree, tmp_path / "a.lmdb", "--kind", "flat", "--fast-crops")
    assert "restart markers: added 13, damaged 1, no JPEG 1, too small 1, had them 1" in said
    assert "14 of 17 pictures ready" in storeds_command("info", tmp_path / "a.lmdb")
    assert storeds_json("info", tmp_path / "a.lmdb")["fast_crops"] == 14


def test_all_fields_of_a_record_are_marked(tmp_path: Path) -> None:
    fields = {"left": "image", "right": "image", "label": "int"}
    records = [{"left": FILES["photo-00"], "right": FILES["small"], "label": at} for at in range(3)]
    copy = storeds.convert(make_store(fields, records), f"hdf5://{tmp_path}/b.h5", fast_crops=True)
    assert (copy.restarts, copy.fast_crops) == ({"added": 3, "too small": 3}, 3)
    assert "3 of 6 pictures ready" in storeds_command("info", f"hdf5://{tmp_path}/b.h5")
