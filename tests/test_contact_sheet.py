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
from photographs import jpeg, photograph
from storeds import errors
from storeds.cli import app
from storeds.ops import ContactSheet, Finding
from storeds.ops.contact_sheet import _COLUMNS, _GAP, _GREY, _LINE, _LINES, _MOST, _SIDE


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def tiles(path: Path, count: int) -> list[tuple[Any, Any]]:
    """Return (picture, text below it) of each tile, as arrays."""
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        sheet = np.asarray(image)
    across, down = _SIDE + _GAP, _SIDE + _LINES * _LINE + _GAP
    found = []
    for number in range(count):
        left, top = _GAP + number % _COLUMNS * across, _LINE + _GAP + number // _COLUMNS * down
        tile = sheet[top : top + down, left : left + _SIDE]
        found.append((tile[:_SIDE], tile[_SIDE : _SIDE + _LINES * _LINE]))
    return found


def is_grey(picture: Any) -> bool:
    """Whether it is the tile of what does not decode: of one colour but for the text in its middle."""
    return bool((picture[: _SIDE // 3] == _GREY).all())


def test_the_sheet_shows_each_damaged_picture_mended_and_says_which_and_how_much(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)
    shown = run("verify", url, "--contact-sheet", path, code=1)
    told = [key for key, picture in PICTURES.items() if picture.told not in (None, "trailing_data")]
    assert f"{path}: {len(told)} pictures" in shown
    drawn = tiles(path, len(told))
    for key, (picture, text) in zip(told, drawn, strict=True):
        undecodable = PICTURES[key].told in ("image", "too_large", "truncated_header")
        assert is_grey(picture) == undecodable, key
        lines = [text[_LINE * n : _LINE * (n + 1)] for n in range(_LINES)]
        for line in lines if key != "huge" else lines[:2]:
            assert (line.min(axis=2) < 100).any(), key
    assert len({text.tobytes() for _, text in drawn}) == len(told)
    # "no end", enlarged as it fits: every pixel of the photograph is there.
    picture = drawn[told.index("no end")][0]
    assert np.abs(picture[-64:, 32:128].astype(int) - np.asarray(photograph(1), int)).mean() < 8


def test_undecodable_tiles_tell_of_records_that_cannot_be_read_too(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[data.index(PICTURES["half"].blob) + 400] ^= 1
    (tmp_path / "a.h5").write_bytes(data)
    findings = [finding for finding in storeds.verify(url).findings if finding.key == "half"]
    assert [finding.kind for finding in findings] == ["record"]
    assert ContactSheet(path).draw(url, findings) == 1
    assert is_grey(tiles(path, 1)[0][0])


def test_many_findings_make_one_sheet_of_bounded_size(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": jpeg(n % 8, (300, 200))[:-2]} for n in range(_MOST + 50))
    report = storeds.verify(url)
    assert len(report.findings) == _MOST + 50
    assert ContactSheet(path).draw(url, report.findings) == _MOST
    with Image.open(path) as sheet:
        assert sheet.width < 2000
        assert sheet.height < 5000
    assert len({picture.tobytes() for picture, _ in tiles(path, _MOST)}) == 8


def test_names_in_any_script_and_of_any_length_fit(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    keys = ["名前/é.jpg", "x" * 10_000, "tab\tline\nnul\0", ""]
    with storeds.open_writer(url, {"key": "str", "image": "image"}) as writer:
        writer.append({"key": key, "image": jpeg(0)[:-2]} for key in keys)
    ContactSheet(path).draw(url, storeds.verify(url).findings)
    assert len({text.tobytes() for _, text in tiles(path, len(keys))}) == len(keys)
    shown = run("verify", url, code=1)
    assert r"tab\tline\nnul\x00" in shown


def test_a_store_without_damage_gets_a_sheet_that_says_so(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    write(url, {"whole": PICTURES["whole"]})
    path.write_bytes(b"an older one")
    run("verify", url, "--contact-sheet", path)
    with Image.open(path) as sheet:
        assert np.asarray(sheet).min() < 100
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "sheet.png"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/sheet.png", "cannot be written: No such file or directory"),
        ("folder.png", "is a folder"),
        ("sheet.jpg", r"does not end in \.png"),
    ],
)
def test_a_sheet_that_cannot_be_written_is_told_before_anything_is_checked(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(errors.ConfigError, match=message):
        ContactSheet(tmp_path / name)
    error = json.loads(run("verify", "/nowhere.lmdb", "--contact-sheet", tmp_path / name, "--json", code=2))["error"]
    assert error["type"] == "ConfigError"
    assert os.listdir(tmp_path) == ["folder.png"]


def test_a_sheet_that_fails_half_way_leaves_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    path.write_bytes(b"an older one")
    with pytest.raises(errors.StoreNotFoundError):
        ContactSheet(path).draw(f"lmdb://{tmp_path}/none.lmdb", [Finding("missing_eoi", "", 0, image="image")])
    assert os.listdir(tmp_path) == ["sheet.png"]
    assert path.read_bytes() == b"an older one"
