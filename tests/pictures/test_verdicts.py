"""Test `examine` and `repair`: every damage to every encoding, against libjpeg's own program and against Pillow."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jpeg_corpus import Sample, random_corpus
from jpeg_encodings import ENCODINGS, OTHERS, RARE, encode, stored, with_fill_bytes, with_jfif
from jpeg_truth import anatomy, by_djpeg, mcus_there
from photographs import by_pillow, jpeg, photograph, saved
from shares import FULL as EVERY
from shares import SEED, examples
from storeds.pictures import Verdict, examine, repair

EOI = b"\xff\xd9"
ALL = (*ENCODINGS, *RARE)
DEADLINE = 60.0  # seconds of the processor for one picture: a loop, or an allocation that a header asked for
FINDINGS = {"intact", "trailing_data", "missing_eoi", "truncated_scan", "truncated_header", "corrupt_data", "not_jpeg"}


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


def unusual(
    *,
    size: tuple[int, int] = (96, 64),
    plain: bool = False,
    sampling: tuple[tuple[int, int], ...] = (),
    **options: Any,
) -> bytes:
    """Return a JPEG that simplejpeg refuses: CMYK with subsampled colours, or RGB with odd sampling factors."""
    picture = Image.new("RGB", size, (10, 200, 30)) if plain else photograph(0, size)
    if not sampling:
        return saved(picture.convert("CMYK"), "JPEG", **options)
    factors = ",".join(f"{h}x{v}" for h, v in sampling)
    more = [f"-{name}" for name, value in options.items() if value]
    command = ["cjpeg", "-sample", factors, *more]
    return subprocess.run(command, input=saved(picture, "PPM"), capture_output=True, check=True).stdout


_ODD = ((2, 2), (1, 1), (1, 2))
UNUSUAL = [
    {"progressive": progressive, "subsampling": subsampling, **more}
    for progressive in (False, True)
    for subsampling in (1, 2)
    for more in (
        *({}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}, {"optimize": True}, {"quality": 100}),
        *({"plain": True}, {"plain": True, "restart_marker_blocks": 1}, {"size": (1, 1)}, {"size": (17, 33)}),
    )
] + [
    {"sampling": sampling, "progressive": progressive, "arithmetic": arithmetic}
    for sampling in (_ODD, ((3, 1), (1, 1), (1, 1)), ((1, 1), (2, 2), (1, 1)))
    for progressive in (False, True)
    for arithmetic in (False, True)
]


@pytest.mark.parametrize("options", UNUSUAL, ids=str)
def test_what_only_pillow_decodes_is_whole_unless_its_data_end_early(options: dict[str, Any]) -> None:
    whole = unusual(**options)
    assert not by_djpeg(whole).is_damaged
    assert examine(whole) == Verdict("intact", 1.0)
    if options.get("arithmetic") or options.get("plain") or options.get("size"):
        return  # a decoder cannot tell where arithmetic codes end
    scan = anatomy(whole).scans[0]
    for removed in (20, 100):
        damaged = whole[: scan.stop - removed] + whole[scan.stop :]
        assert by_djpeg(damaged).is_damaged
        assert examine(damaged) == Verdict("corrupt_data", 0.0)


def test_fill_bytes_of_what_only_pillow_decodes_are_no_damage() -> None:
    for progressive in (False, True):
        assert examine(with_fill_bytes(unusual(progressive=progressive, subsampling=2))) == Verdict("intact", 1.0)


# --- Damaged ones ---


def one_mcu() -> bytes:
    whole = jpeg(0, (8, 8), quality=95)
    return whole[: whole.index(b"\xff\xda") + 14]


def odd_parameters() -> bytes:
    """Return a whole picture with parameters that libjpeg ignores, after a warning that may hide others."""
    odd = bytearray(with_jfif(jpeg(0), 9, 1))
    odd[odd.index(b"\xff\xda") + 12] = 62  # the end of the band, which only progressive files have
    return bytes(odd)


RESTARTS = encode("restart after each block")
STRAY = RESTARTS.index(b"\xff\xd3", anatomy(RESTARTS).scans[0].start)
HALF = jpeg(0, (160, 120))[:1800]
FULL = encode("4:4:4")
CODE = anatomy(FULL).scans[0].start + 244
CASES: dict[str, tuple[bytes, Verdict]] = {
    "JPEG-LS": (stored("jpeg-ls"), Verdict("not_jpeg", 0.0)),
    "odd parameters": (odd_parameters(), Verdict("intact", 1.0)),
    "odd parameters, and ended early": (odd_parameters()[:-300] + EOI, Verdict("corrupt_data", 0.0)),
    "no data of the only MCU": (one_mcu(), Verdict("truncated_scan", 0.0)),
    "some data of the only MCU": (jpeg(0, (8, 8), quality=95)[:-4], Verdict("truncated_scan", 0.0)),
    # What follows it looks like a segment that is longer than the file.
    "a stray marker": (RESTARTS[: STRAY + 1] + b"\xdb\xff" + RESTARTS[STRAY + 3 :], Verdict("corrupt_data", 0.0)),
    # libjpeg-turbo's fast decoder passes over it without a warning.
    "a code that no table has": (FULL[:CODE] + b"\xfe\xfe" + FULL[CODE + 2 :], Verdict("corrupt_data", 0.0)),
    "ended at a marker": (RESTARTS[:STRAY] + EOI, Verdict("corrupt_data", 0.0)),
    "space that was never written": (HALF + bytes(4096), examine(HALF)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_finding_of_a_file(name: str) -> None:
    blob, expected = CASES[name]
    assert examine(blob) == expected
    if name == "space that was never written":
        assert repair(blob) == repair(HALF)


def test_no_damage_that_a_decoder_sees_is_silent() -> None:
    samples = [sample for sample in random_corpus(SEED, 12_000 if EVERY else 1_000) if sample.is_jpeg and sample.damage]
    wrong = [f"{sample.name}: {each}" for sample in samples for each in complaints(sample)]
    assert not wrong, f"{len(wrong)} complaints about {len(samples)}, seed {SEED}:\n" + "\n".join(wrong[:40])


def complaints(sample: Sample) -> Iterator[str]:
    before = bytes(bytearray(sample.blob))
    start = time.process_time()
    verdict = examine(sample.blob)
    if time.process_time() - start > DEADLINE:
        yield f"took {time.process_time() - start:.1f} s"
    if verdict.finding not in FINDINGS or bool(verdict.reason) == (verdict.finding == "intact"):
        yield f"{verdict}, with the reason {verdict.reason!r}"
    shares = {"truncated_scan": 0.0 <= verdict.recovered < 1.0, "corrupt_data": verdict.recovered == 0.0}
    whole_or_none = verdict.recovered == (verdict.is_whole or verdict.finding == "missing_eoi")
    if not shares.get(verdict.finding, whole_or_none):
        yield f"{verdict.finding} with the share {verdict.recovered}"
    about = anatomy(sample.whole)
    # This `djpeg` reads no lossless file, and takes minutes for a frame of 65,500 × 65,500.
    is_readable = about.process != "lossless" and sample.damage != "a huge frame" and not is_refused(sample.blob)
    if is_readable and verdict.finding == "intact" and by_djpeg(sample.blob).is_damaged:
        yield f"intact, but libjpeg says: {', '.join(by_djpeg(sample.blob).complaints)}"
    if sample.damage.startswith(("cut", "zero-filled")) and sample.cut is not None and 2 <= sample.cut < about.end:
        yield from of_cut(sample, sample.cut, verdict)
    yield from of_repair(sample, verdict)
    if sample.blob != before:
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


def of_cut(sample: Sample, cut: int, verdict: Verdict) -> Iterator[str]:
    """Say what is wrong with the verdict on a file that is only cut."""
    about = anatomy(sample.whole)
    first = "truncated_header" if cut < about.scans[0].start else "truncated_scan"
    names = {first} if cut < about.scans[-1].stop - 1 else {first, "missing_eoi"}
    if sample.damage == "zero-filled tail" or not about.huffman:  # zeros may be data; arithmetic codes may end early
        names |= {"missing_eoi", "truncated_header", "truncated_scan", "corrupt_data"}
    if verdict.finding not in names:
        yield f"{verdict}, expected {' or '.join(sorted(names))}"
    if verdict.finding != "truncated_scan" or not about.one_scan or not about.huffman:
        return
    if sample.whole[:cut].endswith(bytes(4)):  # zeros that are data look like a file that was never filled
        return
    there, total = sample.mcus
    if not there - 2 - 0.05 * total <= verdict.recovered * total <= there + 2:
        yield f"says {verdict.recovered * total:.1f} of {total} MCUs, truth {there}"


def of_repair(sample: Sample, verdict: Verdict) -> Iterator[str]:
    repaired = repair(sample.blob)
    if repair(repaired) is not repaired:
        yield "a second repair changes it again"
    if verdict.is_whole and repaired is not sample.blob:
        yield f"{verdict.finding}, but not the identical object"
    if verdict.finding not in ("missing_eoi", "truncated_scan") or not verdict.recovered:
        return
    try:
        pixels = by_pillow(repaired)
    except Exception as error:
        yield f"{verdict}, but it does not decode: {error!r}"
        return
    if sample.cut is None:
        return
    if pixels.shape != by_pillow(sample.whole).shape:
        yield f"shape {pixels.shape}, not {by_pillow(sample.whole).shape}"
    elif verdict.finding == "missing_eoi" and "arithmetic" not in sample.encoding:
        differ = (pixels != by_pillow(sample.whole)).any(axis=2).mean()
        if differ > (0.02 if sample.damage == "zero-filled tail" else 0.0):
            yield f"missing_eoi, but {differ:.3f} of the pixels differ"


# --- Shares ---

LARGE = ("4:2:0", "4:4:4", "optimised", "grayscale", "CMYK", "restart every 7 blocks", "restart every row")
SEVERAL = [name for name in ENCODINGS if name.startswith(("progressive", "a scan each"))]


@pytest.mark.parametrize("encoding", LARGE)
def test_the_share_of_a_large_cut_file_is_right(encoding: str) -> None:
    for number in range(3):
        whole = ENCODINGS[encoding](photograph(10 + number, (320, 240)))
        about = anatomy(whole)
        scan, (columns, rows) = about.scans[0], about.mcus
        for percent in (1, 7, 30, 50, 75, 99):
            cut = scan.start + (scan.stop - scan.start) * percent // 100
            verdict, truth = examine(whole[:cut]), mcus_there(whole, cut) / (columns * rows)
            assert verdict.finding == "truncated_scan"
            assert -0.05 <= verdict.recovered - truth <= 2 / (columns * rows), (percent, verdict, truth)


def last_scan_there(whole: bytes, cut: int, scan: Any) -> float:
    """Return the share of the rows of a scan that `cut` bytes decode to the same pixels as the whole scan."""
    there, all_of_it = (by_pillow(blob + EOI) for blob in (whole[:cut].rstrip(b"\xff"), whole[: scan.stop]))
    differ = (there != all_of_it).any(axis=(1, 2))
    return float(differ.argmax() / len(differ)) if differ.any() else 1.0


@pytest.mark.parametrize("encoding", SEVERAL)
def test_the_share_of_several_scans_grows_with_the_bytes_and_by_what_their_pixels_show(encoding: str) -> None:
    whole = ENCODINGS[encoding](photograph(11, (256, 256)))
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


@pytest.mark.parametrize("encoding", ["4:2:0", "4:4:4", "optimised", "restart every 7 blocks", "progressive"])
def test_bytes_missing_in_the_middle_are_corrupt_data_and_never_repaired(encoding: str) -> None:
    whole = encode(encoding)
    scan = anatomy(whole).scans[-1]
    for size in (1, 3):
        at = (scan.start + scan.stop) // 2
        blob = whole[:at] + whole[at + size :]
        if by_djpeg(blob).is_damaged:
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


# --- Any bytes ---


CHANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40), st.binary(max_size=9)), max_size=4)


@settings(max_examples=examples(400))
@given(st.sampled_from([name for name in (*ALL, *OTHERS) if len(encode(name)) < 50_000]), CHANGES)
def test_any_bytes_are_accepted(encoding: str, changes: list[tuple[int, int, bytes]]) -> None:
    blob = encode(encoding)
    for at, taken, put in changes:
        blob = blob[:at] + put + blob[at + taken :]
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
    "ff": repeated(b"\xff", 14),
    "restart markers without an interval": repeated(b"\x01\xff\xd0", 14),
    "stray markers": repeated(b"\x01\xff\xdc\x00\x02", 14),
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
