"""The sheet of damaged pictures that `verify` draws."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
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

# What a sheet looks like: pixels, then tiles in a row, lines below a tile, and tiles on a sheet.
_SIDE, _GAP, _LINE, _HEADING = 160, 12, 15, 30
_COLUMNS, _LINES, _MAX_TILES = 10, 3, 200


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def tiles(path: Path, *sections: int) -> list[tuple[Any, Any]]:
    """Return (picture, text below it) of each tile, as arrays; `sections` says how many each kind of damage has."""
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        sheet = np.asarray(image)
    columns = min(_COLUMNS, max(5, *sections))
    across, down = _SIDE + _GAP, _SIDE + _LINES * _LINE + _GAP
    found = []
    top = _GAP + _HEADING
    for count in sections:
        top += _HEADING
        for number in range(count):
            left, upper = _GAP + number % columns * across, top + number // columns * down
            tile = sheet[upper : upper + down, left : left + _SIDE]
            found.append((tile[:_SIDE], tile[_SIDE : _SIDE + _LINES * _LINE]))
        top += -(-count // columns) * down
    return found


def test_the_sheet_shows_damaged_pictures_repaired_the_most_frequent_kind_first(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)
    shown = run("verify", url, "--contact-sheet", path, code=1)
    assert f"{path}: 4 pictures" in shown
    drawn = tiles(path, 3, 1)  # truncated_scan, missing_eoi
    for picture, text in drawn:
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 100
        for line in range(2):
            assert (text[_LINE * line : _LINE * (line + 1)].min(axis=2) < 100).any()
    assert len({text.tobytes() for _, text in drawn}) == 4
    # "no end", of 96 x 64, in the middle of its tile: every pixel of the photograph is there, and none is hatched.
    assert np.abs(drawn[3][0][48:112, 32:128].astype(int) - np.asarray(photograph(1), int)).mean() < 8


def test_the_lost_part_is_hatched(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    whole = jpeg(0, (160, 160))
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": whole[: len(whole) * part // 100]} for part in (40, 60, 80))
    findings = storeds.verify(url).findings
    ContactSheet(path).draw(url, findings)
    with Image.open(io.BytesIO(whole)) as image:
        photo = np.asarray(image).astype(int)
    for finding, (picture, _) in zip(findings, tiles(path, 3), strict=True):
        assert finding.recovered is not None
        row = 16 * int(finding.recovered * 10)  # of ten rows of units
        assert np.abs(picture[: row - 16] - photo[: row - 16]).mean() < 8
        red = (picture[:, :, 0] > 180) & (picture[:, :, 1] < 40) & (picture[:, :, 2] < 40)
        assert not red[: row - 1].any()
        assert red[row + 16 :].any(axis=1).all()
        assert 0.05 < red[row + 16 :].mean() < 0.6


def test_progressive_pictures_are_not_hatched(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    whole = jpeg(0, (160, 160), progressive=True)
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append([{"image": whole[: len(whole) * 2 // 3]}])
    ContactSheet(path).draw(url, storeds.verify(url).findings)
    ((picture, text),) = tiles(path, 1)
    assert not ((picture[:, :, 0] > 180) & (picture[:, :, 1:].max(axis=2) < 40)).any()
    assert (text[2 * _LINE :].min(axis=2) < 150).any()  # it says that the place is not known


def test_a_picture_with_unknown_loss_is_not_hatched(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append([{"image": jpeg(0, (160, 160))}])
    finding = Finding("corrupt_data", "", 0, image="image", recovered=0.0)
    assert ContactSheet(path).draw(url, [finding]) == 1
    ((picture, _),) = tiles(path, 1)
    assert not ((picture[:, :, 0] > 180) & (picture[:, :, 1:].max(axis=2) < 40)).any()


def numbered(number: int) -> bytes:
    """Return a JPEG of noise whose first unit has a colour of its own."""
    pixels = np.random.default_rng(number).integers(0, 256, (_SIDE, _SIDE, 3), np.uint8)
    pixels[:16, :16] = (number % 16 * 16, number // 16 * 16, 128)
    return saved(Image.fromarray(pixels))


def saved(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def number_of(picture: Any) -> int:
    red, green, _ = picture[2:12, 2:12].reshape(-1, 3).mean(axis=0)
    return int(round(red / 16) + 16 * round(green / 16))


def test_worst_and_typical_pictures_are_shown_in_order(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    parts = np.random.default_rng(0).uniform(0.15, 0.95, 150)
    blobs = [numbered(n) for n in range(150)]
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": blob[: int(len(blob) * part)]} for blob, part in zip(blobs, parts, strict=True))
    findings = storeds.verify(url).findings
    assert ContactSheet(path).draw(url, findings) == 30
    order = sorted(range(150), key=lambda n: findings[n].recovered or 0.0)
    drawn = [number_of(picture) for picture, _ in tiles(path, 30)]
    assert drawn[:10] == order[:10]
    places = [order.index(number) for number in drawn]
    assert np.diff(places[9:]).tolist() == [7] * 20
    assert drawn[-1] == order[-1]


def test_the_sheet_is_of_bounded_size(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append({"image": jpeg(n % 8, (300, 200))[:-2]} for n in range(20))
    findings = [
        Finding(f"kind {kind}", "damaged", n % 20, f"{n}.jpg", "image", n / 100)
        for kind in range(12)
        for n in range(100)
    ]
    listed = [Finding("not_jpeg", "a reason " * 90, 0, "0.jpg", "image", 0.0, format="HTML")] * 5000
    assert ContactSheet(path).draw(url, [*findings, *listed]) == _MAX_TILES
    with Image.open(path) as sheet:
        assert sheet.width < 2000
        assert sheet.height < 6000


def test_records_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[data.index(PICTURES["half"].blob) + 400] ^= 1
    (tmp_path / "a.h5").write_bytes(data)
    findings = [finding for finding in storeds.verify(url).findings if finding.key == "half"]
    assert [finding.kind for finding in findings] == ["record"]
    assert ContactSheet(path).draw(url, findings) == 0
    with Image.open(path) as sheet:
        line = np.asarray(sheet)[_GAP + 2 * _HEADING :][:_LINE]
    for left in (_GAP, 2 * _GAP + _SIDE, 3 * _GAP + 2 * _SIDE):  # its name, the kind, the reason
        assert (line[:, left : left + 20].min(axis=2) < 150).any()


def test_pictures_of_an_undecodable_kind_are_listed(tmp_path: Path) -> None:
    url, path = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "sheet.png"
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append([{"image": b"<html>"}])
    heights = []
    for count in (1, 35, 40, 1000):
        finding = Finding("a kind", "it is cut", 0, "0", "image", 0.5)
        assert ContactSheet(path).draw(url, [replace(finding, key=str(n), position=0) for n in range(count)]) == 0
        with Image.open(path) as sheet:
            heights.append(sheet.height)
    assert np.diff(heights).tolist() == [34 * _LINE, 5 * _LINE, _LINE]


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
def test_an_unwritable_sheet_raises_before_checking(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(errors.ConfigError, match=message):
        ContactSheet(tmp_path / name)
    error = json.loads(run("verify", "/nowhere.lmdb", "--contact-sheet", tmp_path / name, "--json", code=2))["error"]
    assert error["type"] == "ConfigError"
    assert os.listdir(tmp_path) == ["folder.png"]


def test_a_failed_sheet_keeps_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    path.write_bytes(b"an older one")
    with pytest.raises(errors.StoreNotFoundError):
        ContactSheet(path).draw(f"lmdb://{tmp_path}/none.lmdb", [Finding("missing_eoi", "", 0, image="image")])
    assert os.listdir(tmp_path) == ["sheet.png"]
    assert path.read_bytes() == b"an older one"


def test_a_failed_sheet_keeps_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = f"hdf5://{tmp_path}/a.h5", tmp_path / "sheet.png"
    write(url)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", fail)
    result = CliRunner().invoke(app, ["verify", url, "--contact-sheet", str(path), "--json"])
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["findings"]) == 11
    assert f"the contact sheet {path} was not drawn: no space left" in result.stderr
