"""Test `examine` and `repair`: every damage to every encoding, against libjpeg's own program and against Pillow."""

from __future__ import annotations

import io
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import jpeg_oracle
from jpeg_corpus import DAMAGES, HIDDEN, Case, cases, groups
from jpeg_encodings import ENCODINGS, RARE, encode, save, separate_scans, with_jfif, without
from jpeg_truth import anatomy, mcus_there
from photographs import jpeg, photograph
from storeds.jpeg import Verdict, examine, repair

EOI = b"\xff\xd9"
ALL = (*ENCODINGS, *RARE)
JPEG_LS = Path(__file__).parents[1] / "support" / "pictures" / "jpeg-ls.jpg"
DEADLINE = 5.0  # seconds for one picture: a hang, or an allocation that a header asked for, not a slow machine
GROUPS = groups((*DAMAGES, *HIDDEN), ALL)
FINDINGS = {"intact", "trailing_data", "missing_eoi", "truncated_scan", "truncated_header", "corrupt_data", "not_jpeg"}


def pixels(blob: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert("RGB"))


# --- Whole pictures ---


@pytest.mark.parametrize("encoding", ALL)
def test_a_whole_picture_is_intact_and_stays_as_it_is(encoding: str) -> None:
    whole = encode(encoding)
    assert examine(whole) == Verdict("intact", 1.0)
    assert repair(whole) is whole


@pytest.mark.parametrize("tail", [b"\x00" * 64, b"\xff" * 3, b"garbage", jpeg(2), b"\xff\xd8", EOI * 1000])
def test_bytes_after_the_end_marker_are_no_damage(tail: bytes) -> None:
    for encoding in ("4:2:0", "progressive", "restart every row"):
        blob = encode(encoding) + tail
        assert examine(blob) == Verdict("trailing_data", 1.0)
        assert repair(blob) is blob


def test_parameters_that_libjpeg_ignores_are_no_damage_and_hide_none() -> None:
    odd = bytearray(with_jfif(jpeg(0), 9, 1))
    odd[odd.index(b"\xff\xda") + 12] = 62  # the end of the band, which only progressive files have
    assert examine(bytes(odd)).finding == "intact"
    assert examine(bytes(odd[:-300]) + EOI).finding == "corrupt_data"


def test_jpeg_ls_is_named() -> None:
    assert examine(JPEG_LS.read_bytes()) == Verdict("not_jpeg", 0.0)
    assert "JPEG-LS" in examine(JPEG_LS.read_bytes()).reason


# --- Damaged ones ---


@pytest.mark.share(250)
@pytest.mark.parametrize(("encoding", "damage"), GROUPS, ids=[" - ".join(group) for group in GROUPS])
def test_no_damage_that_a_decoder_sees_is_silent(encoding: str, damage: str) -> None:
    wrong = [f"{case.name}: {complaint}" for case in cases(encoding, damage) for complaint in complaints(case)]
    assert not wrong, f"{len(wrong)} complaints:\n" + "\n".join(wrong[:40])


def complaints(case: Case) -> Iterator[str]:
    before = bytes(bytearray(case.blob))
    start = time.perf_counter()
    verdict = examine(case.blob)
    if time.perf_counter() - start > DEADLINE:
        yield f"took {time.perf_counter() - start:.1f} s"
    if verdict.finding not in FINDINGS or not 0.0 <= verdict.recovered <= 1.0:
        yield f"{verdict}"
    if bool(verdict.reason) == (verdict.finding == "intact"):
        yield f"{verdict.finding}, with the reason {verdict.reason!r}"
    about = anatomy(case.whole)
    # This `djpeg` reads no lossless file, and takes minutes for a frame of 65,500 × 65,500.
    is_readable = about.process != "lossless" and case.damage != "a huge frame"
    is_seen = is_readable and not is_refused(case.blob) and jpeg_oracle.examine(case.blob).is_damaged
    if is_seen and verdict.is_whole and verdict.finding == "intact":
        yield f"intact, but libjpeg says: {', '.join(jpeg_oracle.examine(case.blob).complaints)}"
    if verdict.recovered not in (0.0, 1.0) and verdict.finding != "truncated_scan":
        yield f"{verdict.finding} with the share {verdict.recovered}"
    if verdict.finding in ("corrupt_data", "truncated_header", "not_jpeg") and verdict.recovered:
        yield f"{verdict.finding}, but recovered {verdict.recovered}"
    yield from of_cut(case, verdict)
    yield from of_repair(case, verdict)
    if case.blob != before:
        yield "the blob itself was changed"


def is_refused(blob: bytes) -> bool:
    """Whether simplejpeg refuses a kind of file, such as CMYK with subsampled colours. Then only Pillow reads it, silently."""
    try:
        simplejpeg.decode_jpeg_header(blob, strict=False)
    except ValueError as error:
        return "subsampling" in str(error)
    except KeyError:
        return False
    return False


def of_cut(case: Case, verdict: Verdict) -> Iterator[str]:
    """Say what is wrong with the verdict on a file that is only cut."""
    about = anatomy(case.whole)
    if case.cut is None or case.cut >= about.end or case.cut < 2:
        return
    first = "truncated_header" if case.cut < about.scans[0].start else "truncated_scan"
    names = {first} if case.cut < about.scans[-1].stop - 1 else {first, "missing_eoi"}
    if case.damage == "zero-filled tail" or not about.huffman:  # zeros may be data; arithmetic codes may end early
        names |= {"missing_eoi", "truncated_header", "truncated_scan", "corrupt_data"}
    if verdict.finding not in names:
        yield f"{verdict}, expected {' or '.join(sorted(names))}"
    if verdict.finding != "truncated_scan" or not about.one_scan or not about.huffman:
        return
    if case.whole[: case.cut].endswith(bytes(4)):  # zeros that are data look like a file that was never filled
        return
    columns, rows = about.mcus
    there, total = mcus_there(case.whole, case.cut), columns * rows
    if verdict.recovered * total - there > 2:
        yield f"claims {verdict.recovered * total:.1f} of {total} MCUs, truth {there}"
    if there - verdict.recovered * total > 2 + 0.05 * total:
        yield f"says {verdict.recovered * total:.1f} of {total} MCUs, truth {there}"


def of_repair(case: Case, verdict: Verdict) -> Iterator[str]:
    repaired = repair(case.blob)
    if repair(repaired) is not repaired:
        yield "a second repair changes it again"
    if verdict.finding not in ("missing_eoi", "truncated_scan"):
        if verdict.is_whole and repaired is not case.blob:
            yield f"{verdict.finding}, but not the identical object"
        return
    if not verdict.recovered:
        return
    try:
        shape = pixels(repaired).shape
    except Exception as error:
        yield f"{verdict}, but it does not decode: {error!r}"
        return
    if case.cut is not None and shape != pixels(case.whole).shape:
        yield f"shape {shape}, not {pixels(case.whole).shape}"
    if case.cut is not None and verdict.finding == "missing_eoi" and "arithmetic" not in case.encoding:
        differ = (pixels(repaired) != pixels(case.whole)).any(axis=2).mean()
        if differ > (0.02 if case.damage == "zero-filled tail" else 0.0):
            yield f"missing_eoi, but {differ:.3f} of the pixels differ"


# --- Shares ---

LARGE: dict[str, Callable[[Image.Image], bytes]] = {
    "4:2:0": lambda p: save(p),
    "4:4:4": lambda p: save(p, subsampling="4:4:4", quality=92),
    "optimised": lambda p: save(p, optimize=True, quality=40),
    "grayscale": lambda p: save(p.convert("L")),
    "CMYK": lambda p: save(p.convert("CMYK")),
    "restart markers": lambda p: save(p, restart_marker_blocks=4),
    "restart every row": lambda p: save(p, restart_marker_rows=1),
    "JFIF 3.1": lambda p: with_jfif(save(p), 3, 1),
}
SEVERAL: dict[str, Callable[[Image.Image], bytes]] = {
    "progressive": lambda p: save(p, progressive=True),
    "progressive 4:4:4": lambda p: save(p, progressive=True, subsampling="4:4:4", quality=90),
    "progressive grayscale": lambda p: save(p.convert("L"), progressive=True),
    "progressive, restart markers": lambda p: save(p, progressive=True, restart_marker_blocks=20),
    "a scan each": lambda p: separate_scans(p, 2),
}


@pytest.mark.parametrize("encoding", LARGE)
def test_the_share_of_a_large_cut_file_is_right(encoding: str) -> None:
    for number in range(3):
        whole = LARGE[encoding](photograph(10 + number, (320, 240)))
        about = anatomy(whole)
        scan, (columns, rows) = about.scans[0], about.mcus
        for percent in (1, 7, 30, 50, 75, 99):
            cut = scan.start + (scan.stop - scan.start) * percent // 100
            verdict, truth = examine(whole[:cut]), mcus_there(whole, cut) / (columns * rows)
            assert verdict.finding == "truncated_scan"
            assert -0.05 <= verdict.recovered - truth <= 2 / (columns * rows), (percent, verdict, truth)


def last_scan_there(whole: bytes, cut: int, scan: Any) -> float:
    """Return the share of the rows of a scan that `cut` bytes decode to the same pixels as the whole scan."""
    there, all_of_it = (pixels(blob + EOI) for blob in (whole[:cut].rstrip(b"\xff"), whole[: scan.stop]))
    differ = (there != all_of_it).any(axis=(1, 2))
    return float(differ.argmax() / len(differ)) if differ.any() else 1.0


@pytest.mark.parametrize("encoding", SEVERAL)
def test_the_share_of_several_scans_grows_with_the_bytes_and_by_what_their_pixels_show(encoding: str) -> None:
    whole = SEVERAL[encoding](photograph(11, (256, 256)))
    scans = anatomy(whole).scans
    before = 0.0
    for scan in scans:
        last = examine(whole[: scan.stop] + whole[scan.stop : scan.stop + 3]).recovered
        for percent in (20, 50, 80):
            cut = scan.start + (scan.stop - scan.start) * percent // 100
            verdict = examine(whole[:cut])
            assert verdict.finding == "truncated_scan"
            truth = before + (last - before) * last_scan_there(whole, cut, scan)
            assert before - 1e-9 <= verdict.recovered <= last + 1e-9
            assert abs(verdict.recovered - truth) <= 0.05, (scan, percent, verdict, truth)
        before = last
    assert before == 1.0


def test_a_picture_of_one_mcu_that_is_cut_lacks_more_than_its_end_marker() -> None:
    whole = jpeg(0, (8, 8), quality=95)
    for cut in range(whole.index(b"\xff\xda") + 14, len(whole) - 4):
        assert examine(whole[:cut]) == Verdict("truncated_scan", 0.0)


@pytest.mark.parametrize("encoding", ["4:2:0", "4:4:4", "optimised", "restart every 7 blocks", "progressive"])
def test_bytes_missing_in_the_middle_are_corrupt_data_and_never_repaired(encoding: str) -> None:
    whole = encode(encoding)
    scan = anatomy(whole).scans[-1]
    for size in (1, 3):
        at = (scan.start + scan.stop) // 2
        blob = whole[:at] + whole[at + size :]
        if jpeg_oracle.examine(blob).is_damaged:
            assert examine(blob) == Verdict("corrupt_data", 0.0)
            assert repair(blob) is blob


# --- Repair ---


@pytest.mark.parametrize(
    "encoding", ["4:2:0", "progressive", "restart every row", "EXIF thumbnail", "comment with markers"]
)
def test_a_missing_end_marker_is_restored(encoding: str) -> None:
    whole = encode(encoding)
    for blob in (whole[:-1], whole[:-2], memoryview(whole[:-2]), bytearray(whole[:-2])):
        assert repair(blob) == whole  # type: ignore[arg-type]
    assert examine(whole[:-2]) == examine(whole[:-1]) == Verdict("missing_eoi", 1.0)


def test_space_that_was_never_written_is_dropped() -> None:
    whole = jpeg(0, (160, 120))
    cut = whole[: len(whole) // 2]
    assert examine(cut + bytes(4096)) == examine(cut)
    assert repair(cut + bytes(4096)) == repair(cut)


def test_a_segment_cut_between_scans_does_not_swallow_the_marker() -> None:
    whole = jpeg(0, progressive=True)
    table = whole.rindex(b"\xff\xc4")  # the Huffman table of the last scan
    for cut in range(table + 1, table + 12):
        assert repair(whole[:cut]) == whole[:table] + EOI


def test_what_is_no_cut_jpeg_stays_as_it_is() -> None:
    png = io.BytesIO()
    photograph().save(png, "PNG")
    for blob in (b"", b"\xff", b"\xff\xd8", jpeg(0)[:200], b"<html>", png.getvalue()[:-4]):
        assert repair(blob) is blob


# --- Any bytes ---


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A small JPEG with some bytes changed, cut out or doubled."""
    options: list[dict[str, Any]] = [{}, {"progressive": True}, {"restart_marker_blocks": 2}]
    blob = bytearray(jpeg(0, (40, 24), **draw(st.sampled_from(options))))
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


@given(st.one_of(mutated(), st.binary(max_size=400).map(lambda tail: b"\xff\xd8" + tail)))
def test_any_bytes_are_accepted(blob: bytes) -> None:
    verdict, repaired = examine(blob), repair(blob)
    assert verdict.finding in FINDINGS
    assert 0.0 <= verdict.recovered <= 1.0
    assert repaired is blob or (repaired.endswith(EOI) and blob.startswith(repaired[:-2]))
    assert repair(repaired) == repaired
    if verdict.is_whole:
        assert repaired is blob


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


def repeated(piece: bytes, before: int = 0) -> Callable[[int], bytes]:
    return lambda size: jpeg(0)[: jpeg(0).index(b"\xff\xda") + before] + piece * (size // len(piece))


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "pictures after an index": lambda size: encode("two pictures (MPO)") + b"\xff\xd8\xff\xd9" * (size // 4),
    "zeros": repeated(b"\x00", 14),
    "stuffed ff": repeated(b"\xff\x00", 14),
    "ff": repeated(b"\xff", 14),
    "restart markers without an interval": repeated(b"\x01\xff\xd0", 14),
    "stray markers": repeated(b"\x01\xff\xdc\x00\x02", 14),
    "codes": repeated(bytes(range(1, 250)), 14),
    "junk between segments": repeated(b"\xff\x00\x01"),
    "scans": lambda size: jpeg(0)[:-2] + jpeg(0)[jpeg(0).index(b"\xff\xda") :][:14] * (size // 14) + EOI,
    "comments": lambda size: b"\xff\xd8" + b"\xff\xfe\x00\x02" * (size // 4) + jpeg(0)[2:],
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
    whole[at + 5 : at + 9] = struct.pack(">HH", 12_000, 12_000)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = {examine(bytes(blob)).recovered for blob in (whole, whole[:-2], whole[: whole.index(b"\xff\xda") + 40])}
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(writer, b"%d %d" % (found == {0.0}, more))
        os._exit(0)
    os.waitpid(pid, 0)
    is_refused, kilobytes = map(int, os.read(reader, 100).split())
    assert is_refused
    assert kilobytes < 100_000


def test_every_finding_is_described_for_people() -> None:
    assert [Verdict("truncated_scan", share).share for share in (0.0, 0.6249, 0.9999, 1.0)] == [
        "0 %",
        "62.4 %",
        "99.9 %",
        "100 %",
    ]
    assert without(jpeg(0), 0xDB)
    assert examine(without(jpeg(0), 0xDB)).finding == "corrupt_data"
