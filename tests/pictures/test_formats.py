"""Test pictures that are not JPEGs: whole files are intact, and no cut that costs pixels is silent."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from PIL import Image, ImageFile

from jpeg_encodings import OTHERS, chunk, encode
from shares import FULL, share
from storeds.pictures import Verdict, examine, format_of_picture, repair


def first_frame(blob: bytes) -> Any:
    """Return what readers return of a picture: its first frame, None if Pillow raises."""
    try:
        with Image.open(io.BytesIO(blob)) as image:
            return np.asarray(image.convert("RGBA"))
    except Exception:
        return None


@pytest.mark.parametrize("name", OTHERS)
def test_whole_files_are_intact(name: str) -> None:
    assert examine(encode(name)) == Verdict("intact", 1.0)
    assert format_of_picture(encode(name)) in (name.partition(",")[0], "unknown", "text")


@pytest.mark.parametrize("name", OTHERS)
def test_every_cut_that_costs_pixels_is_damage(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    whole = encode(name)
    for end in (*range(0, len(whole) - 40, 1 if FULL else 20), *range(len(whole) - 40, len(whole))):
        verdict = examine(whole[:end])
        assert repair(whole[:end]) == whole[:end]
        if verdict.recovered:
            assert np.array_equal(first_frame(whole[:end]), first_frame(whole)), end
            assert verdict.recovered == 1.0
            assert verdict.finding in ("intact", "missing_eoi")
        else:
            assert verdict.finding in ("corrupt_data", "not_jpeg"), end
            assert verdict.reason
    capfd.readouterr()


@pytest.mark.parametrize("name", [name for name in OTHERS if name.startswith("PNG")])
def test_a_changed_byte_of_a_png_is_always_damage(name: str) -> None:
    whole = encode(name)
    for at in share(range(len(whole)), 250):
        changed = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        assert not examine(changed).is_whole, at


@pytest.mark.parametrize("name", ["GIF", "TIFF, LZW", "WebP", "AVIF", "JPEG 2000"])
def test_wrong_bytes_that_pillow_refuses_are_corrupt_data(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    whole = encode(name)
    for at in range(12, len(whole) - 4, 1 if FULL else 20):
        blob = whole[:at] + bytes(4) + whole[at + 4 :]
        assert examine(blob).is_whole == (first_frame(blob) is not None)
    capfd.readouterr()


def test_a_process_that_loads_cut_images_is_warned_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr("storeds.pictures.formats._warned", False)
    caplog.set_level(logging.WARNING, "storeds")
    for _ in range(3):
        examine(encode("WebP"))
        assert not examine(encode("PNG")[:-40]).is_whole
    assert sum("LOAD_TRUNCATED_IMAGES" in record.message for record in caplog.records) == 1


def test_the_files_of_other_packages_are_intact() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    folders = (Path(skimage.__file__).parent / "data", Path(matplotlib.__file__).parent / "mpl-data")
    suffixes = (".png", ".gif", ".webp", ".tif", ".tiff", ".bmp")
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes]
    assert len(paths) > 30
    for path in paths:
        found = examine(path.read_bytes()).finding
        assert found == ("not_jpeg" if path.name == "multipage_rgb.tif" else "intact"), path


# Files of about `size` bytes that say the same as often as they can.
HOSTILE: dict[str, Callable[[int], bytes]] = {
    "chunks": lambda size: encode("PNG")[:33] + chunk(b"teSt", b"") * (size // 12),
    "sub-blocks": lambda size: encode("GIF")[:781] + b"," + bytes(9) + b"\x08" + b"\x01a" * (size // 2),
    "zeros": lambda size: encode("GIF")[:781] + bytes(size),
    "boxes": lambda size: encode("AVIF")[:32] + b"\0\0\0\x08free" * (size // 8),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_proportional_to_the_bytes(name: str) -> None:
    blob = HOSTILE[name](800_000)
    begin = time.process_time()
    assert not examine(blob).is_whole
    assert time.process_time() - begin < 3
