"""The sheet of damaged pictures that `verify` draws."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
from _packing import storeds_command, storeds_json
from make_store import make_store
from photographs import jpeg, photograph
from storeds.cli import app
from storeds.ops import ContactSheet, Finding

# What a sheet looks like: pixels of a tile, of the gap and of a line below it, and tiles in a row.
_SIDE, _GAP, _LINE, _HEADING, _COLUMNS = 160, 12, 15, 30, 10


def tiles(path: Path, *sections: int) -> list[tuple[Any, Any]]:
    """Return (picture, text below it) of each tile, as arrays; `sections` says how many each kind of damage has."""
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        sheet = np.asarray(image)
    across, down = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP
    found = []
    top = _GAP + _HEADING
    for count in sections:
        top += _HEADING
        for number in range(count):
            left, upper = _GAP + number % _COLUMNS * across, top + number // _COLUMNS * down
            tile = sheet[upper : upper + down, left : left + _SIDE]
            found.append((tile[:_SIDE], tile[_SIDE : _SIDE + 2 * _LINE]))
        top += -(-count // _COLUMNS) * down
    return found


def test_the_sheet_shows_damaged_pictures_repaired_the_most_frequent_kind_first(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)
    shown = storeds_command("verify", url, "--contact-sheet", path, code=1)
    assert f"{path}: 4 pictures" in shown
    kinds = {"truncated_scan": 4, "not_jpeg": 2, "corrupt_data": 2, "missing_eoi": 1, "truncated_header": 1}
    drawn = dict(zip(("no pixel", "filled up", "half", "coarse"), tiles(path, 4), strict=True))
    assert len({text.tobytes() for _, text in drawn.values()}) == 4
    colours = {key: len(np.unique(picture.reshape(-1, 3), axis=0)) for key, (picture, _) in drawn.items()}
    assert [count > 300 for count in colours.values()] == [False, True, True, True]  # the first has text only
    # "no end", of 96 x 64, in the middle of its tile: every pixel of the photograph is there.
    report = storeds.verify(url)
    assert {kind: report.kinds[kind] for kind in kinds} == kinds
    ContactSheet(path).draw(url, [each for each in report.findings if each.kind == "missing_eoi"])
    ((picture, _),) = tiles(path, 1)
    assert np.abs(picture[48:112, 32:128].astype(int) - np.asarray(photograph(1), int)).mean() < 8


def test_the_worst_thirty_of_a_kind_are_shown_worst_first(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    make_store({"image": "image"}, ({"image": jpeg(n, (40, 40))[:-2]} for n in range(8)), url)
    findings = [Finding("truncated_scan", "", n % 8, f"{n}", "image", (n + 1) / 101) for n in range(100)]
    crashes = [Finding("crash", "a reason " * 90, n, "0.jpg") for n in range(5000)]
    assert ContactSheet(path).draw(url, [*findings[::-1], *crashes]) == 30
    texts = [text.tobytes() for _, text in tiles(path, 30, 30)[30:]]
    for place in (0, 29):
        ContactSheet(path).draw(url, [findings[place]])
        assert tiles(path, 1)[0][1].tobytes() == texts[place]


def test_names_in_any_script_and_of_any_length_fit(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    keys = ["名前/é.jpg", "x" * 10_000, "tab\tline\nnul\0", ""]
    make_store({"key": "str", "image": "image"}, ({"key": key, "image": jpeg(0)[:-2]} for key in keys), url)
    ContactSheet(path).draw(url, storeds.verify(url).findings)
    assert len({text.tobytes() for _, text in tiles(path, len(keys))}) == len(keys)
    assert r"tab\tline\nnul\x00" in storeds_command("verify", url, code=1)


def test_a_store_without_damage_gets_a_sheet_that_says_so(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    write(url, {"whole": PICTURES["whole"]})
    path.write_bytes(b"an older one")
    storeds_command("verify", url, "--contact-sheet", path)
    with Image.open(path) as sheet:
        assert np.asarray(sheet).min() < 100
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "sheet.png"]


@pytest.mark.parametrize("name", ["nowhere/sheet.png", "folder.png", "sheet.jpg"])
def test_an_unwritable_sheet_raises_before_checking(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    error = storeds_json("verify", "/nowhere.lmdb", "--contact-sheet", tmp_path / name, code=2)["error"]
    assert error["type"] == "ConfigError"
    assert name in error["message"]
    assert os.listdir(tmp_path) == ["folder.png"]


def test_a_failed_sheet_keeps_the_older_file_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    path.write_bytes(b"an older one")
    write(url)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", fail)
    result = CliRunner().invoke(app, ["verify", url, "--contact-sheet", str(path), "--json"])
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["findings"]) == 11
    assert f"the contact sheet {path} was not drawn: no space left" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "sheet.png"]
    assert path.read_bytes() == b"an older one"
