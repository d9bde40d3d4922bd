"""The sheet of damaged pictures that ``storeds show --damaged`` draws."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import storeds
from _damaged import PICTURES, write
from _packing import storeds_command
from photographs import photograph
from storeds.ops import Finding, Report, show

# What a sheet looks like: pixels of a tile, of the gap and of a line below it, and tiles in a row.
_SIDE, _GAP, _LINE, _HEADING, _COLUMNS = 160, 12, 15, 30, 10


def tiles(path: Path, count: int) -> list[tuple[Any, Any]]:
    """Return (picture, text below it) of each tile, as arrays."""
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        sheet = np.asarray(image)
    across, down = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP
    found = []
    for number in range(count):
        left, upper = _GAP + number % _COLUMNS * across, _GAP + _HEADING + number // _COLUMNS * down
        tile = sheet[upper : upper + down, left : left + _SIDE]
        found.append((tile[:_SIDE], tile[_SIDE : _SIDE + 2 * _LINE]))
    return found


def test_the_sheet_shows_damaged_pictures_repaired_the_most_frequent_kind_first(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)
    assert f"{path}: 11 damaged records" in storeds_command("show", url, "--damaged", "-o", path)
    names = ("no pixel", "filled up", "half", "coarse")  # all are truncated_scan, and other kinds have two at most
    assert sorted(list(PICTURES)[position] for position in storeds.verify(url).worst()[:4]) == sorted(names)
    drawn = tiles(path, 11)
    assert len({text.tobytes() for _, text in drawn}) == 11
    colours = [len(np.unique(picture.reshape(-1, 3), axis=0)) for picture, _ in drawn[:4]]
    assert [count > 300 for count in colours] == [False, True, True, True]  # the first has text only
    # "no end", of 96 x 64, in the middle of its tile: every pixel of the photograph is there.
    show(url, [list(PICTURES).index("no end")]).save(path)
    ((picture, _),) = tiles(path, 1)
    assert np.abs(picture[48:112, 32:128].astype(int) - np.asarray(photograph(1), int)).mean() < 8


def test_the_worst_thirty_of_a_kind_are_shown_and_no_record_that_ended_a_process() -> None:
    cuts = [Finding("truncated_scan", "", n, f"{n}", "image", (n + 1) / 101) for n in range(100)]
    rare, crashes = [Finding("record", "", 200)], [Finding("crash", "", n) for n in range(300, 500)]
    findings = [*rare, *crashes, *cuts[::-1], Finding("column", "", 250), Finding("id", "")]
    assert Report("", "", 500, findings=findings).worst() == [*range(30), 200]


def test_a_store_without_damage_gets_a_sheet_that_says_so(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    write(url, {"whole": PICTURES["whole"]})
    path.write_bytes(b"an older one")
    storeds_command("show", url, "--damaged", "-o", path)
    with Image.open(path) as sheet:
        assert np.asarray(sheet).min() < 100
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "sheet.png"]


@pytest.mark.parametrize("name", ["nowhere/sheet.png", "folder.png", "sheet.jpg"])
def test_what_cannot_be_a_sheet_is_refused_before_checking(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    assert name in storeds_command("show", "/nowhere.lmdb", "--damaged", "-o", tmp_path / name, code=2)
    for choice in (("--worst",), ("--where", "image=1"), ("--keys-file", tmp_path / "a.txt")):
        said = storeds_command("show", "/nowhere.lmdb", "--damaged", *choice, "-o", tmp_path / "a.png", code=2)
        assert "leave out the other choices" in said
    assert os.listdir(tmp_path) == ["folder.png"]
