"""Test every damage to every encoding: the finding of `triage`, the recovered share, and the result of `repair`.

Each test takes one encoding and one damage, and lists all failing cases. ``jpeg_corpus.TABLE`` defines the classes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest

from jpeg_corpus import DAMAGES, NOT_JPEG, Case, cases, groups
from jpeg_encodings import ENCODINGS, encode
from jpeg_truth import Anatomy, anatomy, decode, same_mcus
from storeds.jpeg import Finding, examine, repair, triage

GROUPS = groups()
SEVERAL_SCANS = [name for name in ENCODINGS if not anatomy(encode(name)).one_scan]
DEADLINE = 2.0  # seconds for one triage: a hang or an allocation that a header asked for, not a slow machine
# Damages after which the first bytes are the original's and the rest says nothing.
CUTS = frozenset(name for name in DAMAGES if name.startswith("cut ") or name == "zero-filled tail")


@pytest.mark.share(150)
@pytest.mark.parametrize(("encoding", "damage"), GROUPS, ids=[" - ".join(group) for group in GROUPS])
def test_damage(encoding: str, damage: str) -> None:
    wrong = [f"{case.name}: {complaint}" for case in cases(encoding, damage) for complaint in complaints(case)]
    assert not wrong, f"{len(wrong)} complaints:\n" + "\n".join(wrong[:40])


def complaints(case: Case) -> Iterator[str]:
    before = bytes(bytearray(case.blob))
    start = time.perf_counter()
    finding = triage(case.blob)
    seconds = time.perf_counter() - start
    if seconds > DEADLINE:
        yield f"took {seconds:.1f} s"
    if finding.kind not in case.admitted:
        yield f"{finding}, expected {' or '.join(sorted(case.admitted))}"
    if finding.format != case.format and (case.format or finding.kind != "not_jpeg"):
        yield f"is called {finding.format}, expected {case.format}"
    yield from of_figures(case, finding)
    yield from of_repair(case, finding)
    if case.blob != before:
        yield "the blob itself was changed"


def of_figures(case: Case, finding: Finding) -> Iterator[str]:
    share, offset = finding.recovered, finding.offset
    if offset is not None and not 0 <= offset <= len(case.blob):
        yield f"offset {offset} of {len(case.blob)} bytes"
    if finding.kind == "not_jpeg":
        if share is not None or finding.format is None:
            yield f"recovered {share}, format {finding.format}"
    elif share is None or not 0 <= share <= 1:
        yield f"recovered {share}"
    elif (
        finding.kind in ("intact", "trailing_data", "missing_eoi") and share != 1 and case.damage in {*CUTS, "nothing"}
    ):
        yield f"{finding.kind}, but recovered {share}"
    elif finding.kind == "truncated_header" and share != 0:
        yield f"nothing to show, but recovered {share}"
    elif finding.kind == "truncated_scan" and case.damage in CUTS:
        yield from of_severity(case, finding, share)


def of_severity(case: Case, finding: Finding, share: float) -> Iterator[str]:
    about = anatomy(case.whole)
    if share >= 1:
        yield f"truncated, but recovered {share}"
    if about.progressive and finding.exact:
        yield "the share of a progressive file is a bound, never exact"
    if case.cut is None or about.progressive or not about.huffman:
        return
    if about.one_scan:
        columns, rows = about.mcus
        truth, total = same_mcus(case.whole, case.cut), columns * rows
        if looks_filled(case) and not finding.exact:
            share = max(share, truth / total)
        if abs(share - truth / total) > max(0.02, 1 / total) + 1e-9:
            yield f"recovered {share:.4f}, truth {truth}/{total} = {truth / total:.4f}"
    else:
        least, most = share_of_scans(about, case.cut)
        if not least - 1e-9 <= share <= most + 1e-9:
            yield f"recovered {share:.4f}, truth between {least:.4f} and {most:.4f}"


def looks_filled(case: Case) -> bool:
    """Whether what is left of the picture ends in zeros, which a file that was never filled does too."""
    return case.whole[: case.cut].endswith(bytes(4))


def share_of_scans(about: Anatomy, cut: int) -> tuple[float, float]:
    """Return the share of all blocks that the whole scans hold, without and with the one that is cut; a scan each."""
    (width, height), (across, down) = about.size, about.mcu
    luma = -(-width // 8) * -(-height // 8)
    chroma = -(-width // across) * -(-height // down)
    until = list(itertools.accumulate((luma, chroma, chroma), initial=0))
    whole = sum(cut >= scan.stop for scan in about.scans)
    begun = sum(cut > scan.start for scan in about.scans)
    return until[whole] / until[-1], until[max(begun, whole)] / until[-1]


def of_repair(case: Case, finding: Finding) -> Iterator[str]:
    repaired = repair(case.blob, finding)
    if finding.kind in ("intact", "trailing_data", "not_jpeg", "truncated_header"):
        if repaired is not case.blob:
            yield f"{finding.kind}, but not the identical object"
        return
    if repair(repaired) is not repaired:
        yield "a second repair changes it again"
    if case.damage not in CUTS or finding.kind == "corrupt_data":
        return
    try:
        pixels = decode(repaired)
    except Exception as error:
        yield f"does not decode: {error!r}"
    else:
        yield from of_pixels(case, finding, pixels)


def of_pixels(case: Case, finding: Finding, pixels: np.ndarray) -> Iterator[str]:
    original = decode(case.whole)
    if pixels.shape != original.shape:
        yield f"shape {pixels.shape}, not {original.shape}"
    elif finding.kind == "missing_eoi":
        if "truncated_scan" not in case.admitted and not np.array_equal(pixels, original):
            yield "missing_eoi, but other pixels"
    elif case.cut is not None and not anatomy(case.whole).progressive and not looks_filled(case):
        about = anatomy(case.whole)
        # The last row of MCUs has no lower neighbour to enlarge its chroma with.
        rows = (same_mcus(case.whole, case.cut) // about.mcus[0] - 1) * about.mcu[1]
        if rows > 0 and not np.array_equal(pixels[:rows], original[:rows]):
            yield f"the first {rows} rows differ"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_whole_file_is_described(encoding: str) -> None:
    whole = encode(encoding)
    about, found = anatomy(whole), triage(whole)
    assert (found.kind, found.recovered, found.exact, found.offset, found.format) == ("intact", 1.0, True, None, None)
    assert repair(whole) is whole
    assert found.scans == len(about.scans)
    assert found.scan is None
    assert found.frame is not None
    assert (found.frame.width, found.frame.height) == about.size
    four = "CMYK" in encoding or encoding == "YCCK"
    assert found.frame.components == (1 if "grayscale" in encoding else 4 if four else 3)
    assert found.frame.process == about.process + ", arithmetic" * about.arithmetic
    intervals = [whole[part.at + 3 : part.at + 5] for part in about.parts if part.marker == 0xDD]
    assert found.restart_interval == (int.from_bytes(intervals[-1]) if intervals else 0)
    assert found.frame.precision == 8


@pytest.mark.parametrize("encoding", SEVERAL_SCANS)
def test_the_longer_a_file_of_several_scans_the_more_is_there(encoding: str) -> None:
    cut = {case.cut: case for damage in sorted(CUTS - {"zero-filled tail"}) for case in cases(encoding, damage)}
    places = sorted(at for at in cut if at is not None and at > 1)
    # Zeros at the end may be no data, so they count for nothing.
    findings = [(at, triage(cut[at].blob)) for at in places if not cut[at].blob.endswith(bytes(4))]
    shares = [(at, found.recovered, found.scans) for at, found in findings]
    for (at, share, scans), (later, more, whole) in itertools.pairwise(shares):
        assert share is not None
        assert more is not None
        assert share <= more, f"{share} at {at}, but {more} at {later}"
        assert scans <= whole, f"{scans} scans at {at}, but {whole} at {later}"
    about = anatomy(encode(encoding))
    for at, found in findings:
        if found.kind == "truncated_scan":
            truth = sum(at >= scan.stop for scan in about.scans)
            # Only the next marker says that a progressive scan is whole.
            unseen = about.progressive and any(0 <= at - scan.stop <= 1 for scan in about.scans)
            assert found.scans in {truth, truth - unseen}, f"{found}, cut at {at}"
            assert found.scan == found.scans + 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_following_every_code_reports_no_whole_picture(encoding: str) -> None:
    assert examine(encode(encoding)).kind == "intact"
    for damage in ("trailing zeros", "trailing garbage", "trailing JPEG"):
        found = {examine(case.blob).kind for case in cases(encoding, damage)[:3]}
        assert found <= cases(encoding, damage)[0].admitted


def test_following_every_code_finds_most_holes() -> None:
    """The rest end where the picture does: after some wrong codes, Huffman data are read right again."""
    kinds = [
        examine(case.blob).kind
        for encoding in ENCODINGS
        if anatomy(encode(encoding)).one_scan
        for case in cases(encoding, "zeroed hole in a scan")
        if int(case.place.split()[0]) >= 64
    ]
    assert len(kinds) > 150
    assert set(kinds) <= {"corrupt_data", "truncated_scan", "intact"}
    assert kinds.count("intact") < 0.2 * len(kinds)


def test_the_corpus_is_large_enough() -> None:
    assert sum(len(cases(*group)) for group in GROUPS) >= 5000
    assert len(ENCODINGS) >= 12
    assert len({damage for _, damage in GROUPS}) >= 12
    assert {"1x1", "CMYK", "4:2:0", "4:2:2", "4:4:4", "EXIF thumbnail", "ICC profile", NOT_JPEG} <= {
        e for e, _ in GROUPS
    }
