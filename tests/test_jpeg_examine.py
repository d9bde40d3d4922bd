"""What `examine` says of a picture: every damage that libjpeg reports, and none in a whole one."""

from __future__ import annotations

import pytest

from jpeg_encodings import ENCODINGS, encode
from photographs import jpeg
from storeds.jpeg import examine

EOI = b"\xff\xd9"


def without(blob: bytes, marker: int) -> bytes:
    """Return `blob` without the segments of that marker before its first scan."""
    kept, at = blob[:2], 2
    while blob[at + 1] != 0xDA:
        stop = at + 2 + int.from_bytes(blob[at + 2 : at + 4], "big")
        kept += b"" if blob[at + 1] == marker else blob[at:stop]
        at = stop
    return kept + blob[at:]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_whole_picture_is_intact(encoding: str) -> None:
    assert examine(encode(encoding)).to_text() == "intact"


@pytest.mark.parametrize("encoding", ["4:2:0", "4:4:4", "optimised", "restart every row", "progressive"])
def test_an_appended_end_marker_hides_no_cut(encoding: str) -> None:
    whole = encode(encoding)
    for percent in (50, 70, 90):
        verdict = examine(whole[: len(whole) * percent // 100] + EOI)
        assert verdict.kind == "truncated_scan"
        assert verdict.recovered < 1.0


def test_a_header_that_libjpeg_only_warns_about_hides_no_damage() -> None:
    blob = bytearray(jpeg(0))
    blob[blob.index(b"JFIF") + 5] = 9  # a revision that is not known
    assert examine(bytes(blob)).kind == "intact"
    assert examine(bytes(blob[:-300]) + EOI).kind == "truncated_scan"


def test_a_picture_without_quantisation_tables_does_not_decode() -> None:
    verdict = examine(without(jpeg(0), 0xDB))
    assert (verdict.kind, verdict.recovered) == ("corrupt_data", 0.0)
    assert "quantisation table" in verdict.reason
