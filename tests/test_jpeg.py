"""What a missing end marker is, and that nothing else is touched."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from photographs import jpeg, photograph
from storeds.jpeg import repair

ENCODINGS: dict[str, dict[str, object]] = {
    "baseline": {},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0},
    "optimised": {"optimize": True, "quality": 30},
    "restart markers": {"restart_marker_blocks": 4},
    "a comment that holds an end marker": {"comment": b"so it ends: \xff\xd9 \xff\xd9"},
    "a thumbnail in EXIF": {"exif": b"Exif\x00\x00" + jpeg(1, (16, 16))},
}


def pixels(blob: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.fixture(params=ENCODINGS)
def whole(request: pytest.FixtureRequest) -> bytes:
    return jpeg(0, **ENCODINGS[request.param])


def test_a_whole_file_comes_back_as_the_identical_object(whole: bytes) -> None:
    assert repair(whole) is whole


@pytest.mark.parametrize("tail", [b"\x00" * 64, b"\xff" * 3, b"garbage", jpeg(2), b"\xff\xd8"])
def test_bytes_after_the_end_marker_are_no_damage(whole: bytes, tail: bytes) -> None:
    blob = whole + tail
    assert repair(blob) is blob


def test_a_missing_end_marker_is_restored_and_every_pixel_is_the_same(whole: bytes) -> None:
    mended = repair(whole[:-2])
    assert mended == whole
    assert (pixels(mended) == pixels(whole)).all()


def test_half_an_end_marker_is_completed(whole: bytes) -> None:
    assert (pixels(repair(whole[:-1])) == pixels(whole)).all()


def test_a_file_cut_anywhere_after_its_first_scan_began_decodes(whole: bytes) -> None:
    scan = whole.rindex(b"\xff\xda") if b"Exif" in whole else whole.index(b"\xff\xda")
    for cut in range(scan + 20, len(whole), 97):
        assert pixels(repair(whole[:cut])).shape == (64, 96, 3)


def test_a_segment_cut_between_progressive_scans_does_not_swallow_the_marker() -> None:
    whole = jpeg(0, progressive=True)
    table = whole.rindex(b"\xff\xc4")  # the Huffman table of the last scan
    for cut in range(table + 1, table + 12):
        assert pixels(repair(whole[:cut])).shape == (64, 96, 3)


def test_a_file_cut_before_any_scan_is_left_alone(whole: bytes) -> None:
    blob = whole[:200]
    assert repair(blob) is blob


def test_what_is_no_jpeg_is_left_alone() -> None:
    buffer = io.BytesIO()
    photograph().save(buffer, "PNG")
    for blob in (b"", b"\xff", b"\xff\xd8", b"<html>", buffer.getvalue()[:-4]):
        assert repair(blob) is blob


@given(st.binary(max_size=400))
def test_any_bytes_come_back_whole_or_with_one_marker_at_the_end(tail: bytes) -> None:
    blob = b"\xff\xd8" + tail
    mended = repair(blob)
    assert mended is blob or (mended.endswith(b"\xff\xd9") and blob.startswith(mended[:-2]))
    assert repair(mended) == mended
