"""Test the repair of missing end markers, and `triage` and `repair` with any bytes."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from photographs import jpeg, photograph
from storeds.jpeg import Verdict, examine, markers, repair, triage

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
def test_bytes_after_the_end_marker_are_not_damage(whole: bytes, tail: bytes) -> None:
    blob = whole + tail
    assert repair(blob) is blob


def test_a_missing_end_marker_is_restored_and_every_pixel_is_the_same(whole: bytes) -> None:
    repaired = repair(whole[:-2])
    assert repaired == whole
    assert (pixels(repaired) == pixels(whole)).all()


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


def test_a_file_cut_before_any_scan_is_left_unchanged(whole: bytes) -> None:
    blob = whole[:200]
    assert repair(blob) is blob


def test_other_formats_are_left_unchanged() -> None:
    buffer = io.BytesIO()
    photograph().save(buffer, "PNG")
    for blob in (b"", b"\xff", b"\xff\xd8", b"<html>", buffer.getvalue()[:-4]):
        assert repair(blob) is blob


@given(st.binary(max_size=400))
def test_repair_of_any_bytes_changes_only_the_end(tail: bytes) -> None:
    blob = b"\xff\xd8" + tail
    repaired = repair(blob)
    assert repaired is blob or (repaired.endswith(b"\xff\xd9") and blob.startswith(repaired[:-2]))
    assert repair(repaired) == repaired


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A small JPEG with some bytes changed, cut out or doubled."""
    options = draw(st.sampled_from(list(ENCODINGS.values())))
    blob = bytearray(jpeg(0, (40, 24), **options))
    for _ in range(draw(st.integers(0, 4))):
        at, length = draw(st.integers(0, len(blob) - 1)), draw(st.integers(1, 40))
        change = draw(st.sampled_from(["byte", "cut", "zeros", "double"]))
        if change == "byte":
            blob[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del blob[at : min(at + length, len(blob) - 1)]
        elif change == "zeros":
            blob[at : at + length] = bytes(len(blob[at : at + length]))
        else:
            blob[at:at] = blob[at : at + length]
    return bytes(blob)


@given(mutated())
def test_triage_and_repair_accept_any_bytes(blob: bytes) -> None:
    finding = triage(blob)
    assert finding.reason
    assert finding.recovered is None or 0.0 <= finding.recovered <= 1.0
    assert json.loads(json.dumps(finding.to_json()))["kind"] == finding.kind
    repaired = repair(blob)
    assert repair(repaired) == repaired
    if not finding.is_damaged:
        assert repaired is blob
    verdict = examine(blob)
    assert Verdict.from_text(verdict.to_text()) == replace(verdict, reason="")


def scans(number: int) -> bytes:
    """Return a progressive file with that many scans, each as empty as a scan may be."""
    whole = jpeg(0, progressive=True)
    start = whole.rindex(b"\xff\xda")
    header = whole[start : start + 2 + int.from_bytes(whole[start + 2 : start + 4], "big")]
    return whole[:-2] + header * number + b"\xff\xd9"


def test_ten_thousand_scans_or_segments_are_rejected() -> None:
    finding = triage(scans(10_000))
    assert finding.kind == "corrupt_data"
    assert "more than 100 scans" in finding.reason
    comments = b"\xff\xd8" + b"\xff\xfe\x00\x02" * 20_000 + jpeg(0)[2:]
    assert "more than 10,000 segments" in triage(comments).reason


@pytest.mark.parametrize("length", [0, 1])
def test_a_segment_cannot_be_shorter_than_its_length(length: int) -> None:
    blob = bytearray(jpeg(0))
    blob[4:6] = length.to_bytes(2, "big")
    finding = triage(bytes(blob))
    assert finding.kind == "corrupt_data"
    assert f"claims a length of {length}" in finding.reason


def test_work_depends_on_the_bytes_and_not_on_the_claimed_size() -> None:
    whole = jpeg(0, (640, 480), progressive=True)
    frame = whole.index(b"\xff\xc2") + 5
    claims = whole[:frame] + (65500).to_bytes(2, "big") * 2 + whole[frame + 4 :]
    calls = 0

    def count(*_: Any) -> Any:
        nonlocal calls
        calls += 1
        return count

    for blob in (claims, claims[:-2], claims[: len(claims) // 2]):
        calls = 0
        sys.settrace(count)  # every line that runs
        try:
            finding = triage(blob)
        finally:
            sys.settrace(None)
        assert finding.is_damaged
        assert finding.recovered is not None
        assert finding.recovered < 0.1
        assert calls < 40 * len(blob)


@pytest.mark.parametrize("junk", [b"\x00", b"\x00\x00", b"\xab\xcd", b"\xff\x00"])
@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda"])
def test_bytes_between_segments_are_reported_and_lose_no_pixel(junk: bytes, marker: bytes) -> None:
    whole = jpeg(0)
    at = whole.index(marker)
    blob = whole[:at] + junk + whole[at:]
    finding = triage(blob)
    assert (finding.kind, finding.recovered, finding.offset) == ("corrupt_data", 1.0, at)
    assert f"bytes {at} to" in finding.reason
    assert repair(blob) is blob
    assert (pixels(blob) == pixels(whole)).all()


def test_any_buffer_is_accepted() -> None:
    for blob in (memoryview(jpeg(0)[:-2]), bytearray(jpeg(0)[:-2])):
        assert triage(blob).kind == "missing_eoi"  # type: ignore[arg-type]


@given(
    st.lists(st.sampled_from([b"\xff", b"\x00", b"\xd0", b"\xd7", b"\xd9", b"\xcf", b"a"])).map(b"".join),
    st.integers(1, 9),
)
def test_the_data_of_a_scan_end_at_the_first_other_marker(data: bytes, chunk: int) -> None:
    end = re.search(rb"\xff[^\x00\xd0-\xd7\xff]", data)
    stop = end.start() if end else len(data)
    with mock.patch.object(markers, "_CHUNK", chunk):
        assert markers._end_of_data(b"before" + data, 6, 1) == (
            6 + stop,
            b"".join(re.findall(rb"\xff([\xd0-\xd7])", data[:stop])),
        )


def test_the_switch_for_truncated_images_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = jpeg(0, (320, 240))[:-200]
    expected = examine(cut)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert examine(cut) == expected
    assert examine(jpeg(0)[:-2]).kind == "missing_eoi"
