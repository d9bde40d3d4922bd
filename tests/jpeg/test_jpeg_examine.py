"""Test that `examine` reports every damage that libjpeg reports, and none in whole pictures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from jpeg_encodings import ENCODINGS, encode, save
from jpeg_truth import same_mcus
from photographs import jpeg
from storeds.jpeg import examine, inspect_jpeg, repair, triage

EOI = b"\xff\xd9"
JPEG_LS = Path(__file__).parents[1] / "support" / "pictures" / "jpeg-ls.jpg"


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
def test_a_cut_with_an_appended_end_marker_is_found(encoding: str) -> None:
    whole = encode(encoding)
    for percent in (50, 70, 90):
        verdict = examine(whole[: len(whole) * percent // 100] + EOI)
        assert verdict.kind == "truncated_scan"
        assert verdict.recovered < 1.0


def test_damage_behind_a_header_warning_is_found() -> None:
    blob = bytearray(jpeg(0))
    blob[blob.index(b"JFIF") + 5] = 9  # a revision that is not known
    assert examine(bytes(blob)).kind == "intact"
    assert examine(bytes(blob[:-300]) + EOI).kind == "truncated_scan"


def test_a_picture_without_quantisation_tables_does_not_decode() -> None:
    verdict = examine(without(jpeg(0), 0xDB))
    assert (verdict.kind, verdict.recovered) == ("corrupt_data", 0.0)
    assert "quantisation table" in verdict.reason


@pytest.mark.parametrize(
    "encoding", ["arithmetic", "arithmetic, restart markers", "arithmetic, progressive", "lossless"]
)
def test_a_missing_end_marker_is_the_only_damage(encoding: str) -> None:
    whole = encode(encoding)
    assert examine(whole).to_text() == "intact"
    assert examine(whole[:-2]).to_text() == "missing_eoi"
    assert repair(whole[:-2]) == whole
    assert examine(whole[: len(whole) - 120]).kind == "truncated_scan"


def test_jpeg_ls_is_named() -> None:
    finding = triage(JPEG_LS.read_bytes())
    assert (finding.kind, finding.format) == ("not_jpeg", "JPEG-LS")


def test_a_frame_of_motion_jpeg_has_the_standard_huffman_tables() -> None:
    blob = without(jpeg(0), 0xC4)
    assert examine(blob).to_text() == "intact"
    assert examine(blob[:-2]).kind == "missing_eoi"
    assert examine(blob[:-400] + EOI).to_text() == examine(jpeg(0)[:-400] + EOI).to_text()


def test_tables_of_another_file_are_found() -> None:
    one, other = jpeg(0, optimize=True), jpeg(1, optimize=True, quality=20)
    start, stop = one.index(b"\xff\xc4"), one.index(b"\xff\xda")
    tables = other[other.index(b"\xff\xc4") : other.index(b"\xff\xda")]
    verdict = examine(one[:start] + tables + one[stop:])
    assert verdict.kind in ("corrupt_data", "truncated_scan")
    assert verdict.recovered < 1.0


def test_a_progressive_picture_without_huffman_tables_does_not_decode() -> None:
    verdict = examine(without(jpeg(0, progressive=True), 0xC4))
    assert (verdict.is_whole, verdict.recovered) == (False, 0.0)


def test_the_share_of_a_small_picture_is_exact() -> None:
    whole = jpeg(1, (65, 49))
    units = 5 * 4
    for cut in range(whole.index(b"\xff\xda") + 30, len(whole) - 4, 7):
        for blob in (whole[:cut], whole[:cut] + EOI):
            assert abs(examine(blob).recovered * units - same_mcus(whole, cut)) <= 1.0


def test_a_picture_of_one_unit_that_is_cut_lacks_more_than_its_end_marker() -> None:
    whole = jpeg(0, (8, 8), quality=95)
    for cut in range(whole.index(b"\xff\xda") + 14, len(whole) - 4):
        assert examine(whole[:cut]).kind == "truncated_scan"


def test_surplus_before_a_restart_marker_is_found() -> None:
    whole = jpeg(0, (160, 120), restart_marker_blocks=7)
    at = whole.index(b"\xff\xd3")
    finding = inspect_jpeg(whole[:at] + b"\x12\x34\x56" + whole[at:], deep=True)  # which libjpeg passes over
    assert finding.kind == "corrupt_data"
    assert finding.recovered == pytest.approx(1 - 7 / 80)
    assert not finding.exact
    verdict = examine(whole[:at] + b"\x12\x34\x56" * 8 + whole[at:])
    assert (verdict.kind, verdict.exact) == ("corrupt_data", False)
    padded = examine(whole[:at] + bytes(20) + whole[at:])
    assert padded.to_text() == "corrupt_data"
    assert "surplus" in padded.reason


def test_surplus_bytes_cost_no_pixel() -> None:
    whole = jpeg(0)
    at = whole.index(b"\xff\xdb")
    assert examine(whole[:at] + b"\x12\x34" + whole[at:]).to_text() == "corrupt_data"


@pytest.mark.parametrize("encoding", ["4:2:0", "4:4:4", "optimised", "restart every row", "quality 98"])
def test_zero_fill_before_an_end_marker_is_found(encoding: str) -> None:
    whole = encode(encoding)
    cut = len(whole) * 6 // 10
    verdict = examine(whole[:cut] + bytes(len(whole) - cut - 2) + EOI)
    assert verdict.kind == "truncated_scan"
    assert verdict.recovered == pytest.approx(examine(whole[:cut]).recovered, abs=0.03)


def test_a_cut_file_with_restart_markers_keeps_its_name_when_it_is_repaired() -> None:
    whole = encode("restart every 7 blocks")
    for cut in range(whole.index(b"\xff\xda") + 20, len(whole) - 2, 61):
        assert repair(whole[:cut]) == repair(whole[:cut], triage(whole[:cut]))
        found = examine(whole[:cut])
        again = examine(repair(whole[:cut]))
        assert (again.kind, again.recovered) == (found.kind, found.recovered)


def test_a_zero_byte_of_data_stays_where_the_end_marker_is_zero() -> None:
    whole = ending_in_zero()
    assert repair(whole[:-2] + b"\x00\x00") == whole


def ending_in_zero() -> bytes:
    """Return a picture whose data end in a zero byte."""
    for shade in range(1, 256):
        for width in range(8, 200, 8):
            blob = save(Image.new("L", (width, 8), shade), optimize=True, quality=90)
            if blob[-3] == 0:
                return blob
    raise AssertionError("none found")


def test_scan_parameters_that_libjpeg_warns_of_cost_no_pixel() -> None:
    blob = bytearray(jpeg(0))
    blob[blob.index(b"\xff\xda") + 12] = 62
    assert examine(bytes(blob)).to_text() == "corrupt_data"


def steps(blob: bytes) -> int:
    """Return how many lines of Python `examine` runs for `blob`."""
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        examine(blob)
    finally:
        sys.settrace(None)
    return count


def pictures_after_an_index(size: int) -> bytes:
    """Return a picture whose index says that others follow, and many empty ones."""
    whole = encode("two pictures (MPO)")
    return whole + b"\xff\xd8\xff\xd9" * (size // 4)


def tables_before_each_scan(size: int) -> bytes:
    """Return a progressive file of 90 scans with many Huffman tables."""
    whole = jpeg(0, progressive=True)
    start = whole.rindex(b"\xff\xda")
    stop = start + 2 + int.from_bytes(whole[start + 2 : start + 4], "big")
    table = b"\xff\xc4\x00\x15\x10\x00\x01" + bytes(14) + b"\x01\x02"
    return whole[:start] + table * min(size // 23, 9_000) + whole[start:stop] * 80 + whole[stop:-30]


def many_restarts(size: int) -> bytes:
    """Return a file with a restart marker after each byte, cut."""
    whole = jpeg(0, (640, 480), restart_marker_blocks=1)
    start = whole.index(b"\xff\xda") + 14
    return whole[:start] + b"".join(bytes((at * 37 % 255, 0xFF, 0xD0 + at % 8)) for at in range(size // 3))


def many_strays(size: int) -> bytes:
    """Return a file with other markers and wrong numbers among its restart markers, and an end marker after each."""
    whole = jpeg(0, (640, 480), restart_marker_blocks=1)
    start = whole.index(b"\xff\xda") + 14
    pieces = (bytes((at % 255, 0xFF, 0xD0 + at * at % 8, 0xFF, 0x53, 0xFF, 0xD9)) for at in range(size // 7))
    return whole[:start] + b"".join(pieces) + whole[-200:]


def repeated(piece: bytes, before: int = 0) -> Callable[[int], bytes]:
    return lambda size: jpeg(0)[: jpeg(0).index(b"\xff\xda") + before] + piece * (size // len(piece))


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "pictures after an index": pictures_after_an_index,
    "tables before each scan": tables_before_each_scan,
    "restart after each byte": many_restarts,
    "strays among restart markers": many_strays,
    "zeros": repeated(b"\x00", 14),
    "stuffed ff": repeated(b"\xff\x00", 14),
    "ff": repeated(b"\xff", 14),
    "restart markers without an interval": repeated(b"\x01\xff\xd0", 14),
    "stray markers": repeated(b"\x01\xff\xdc\x00\x02", 14),
    "codes": repeated(bytes(range(1, 250)), 14),
    "junk between segments": repeated(b"\xff\x00\x01"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_work_doubles_at_most_where_the_bytes_do(name: str) -> None:
    small, large = HOSTILE[name](40_000), HOSTILE[name](80_000)
    examine(small)  # what is computed once
    assert steps(large) < 2.4 * steps(small) + 2_000
    assert steps(large) < 40 * len(large)


def test_a_damaged_file_that_claims_a_huge_frame_takes_no_memory_for_it() -> None:
    whole = bytearray(encode("progressive"))
    at = whole.index(b"\xff\xc2")
    whole[at + 5 : at + 9] = (12_000).to_bytes(2, "big") * 2
    cut = bytes(whole[: whole.index(b"\xff\xda") + 40])
    program = (
        "import resource, sys\n"
        "from storeds.jpeg import examine\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(examine(sys.stdin.buffer.read()).kind)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=cut, capture_output=True, check=True)  # ours
    kind, kilobytes = done.stdout.split()
    assert kind == b"truncated_scan"
    assert int(kilobytes) < 100_000
