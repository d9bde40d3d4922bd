"""Test the verdict on every damage that only a decoder finds, against the report of libjpeg itself.

`make test-full` (``STOREDS_TEST_FULL``) adds the damage that shows in the structure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jpeg_oracle
from jpeg_corpus import DAMAGES, HIDDEN, NOT_JPEG, Case, cases, groups
from jpeg_encodings import ENCODINGS, RARE, encode
from jpeg_truth import anatomy, mcus_there
from shares import FULL
from storeds.jpeg import examine

ALL = (*ENCODINGS, *RARE)
EVERY = (*HIDDEN, *DAMAGES)
DAMAGED = [
    *groups(EVERY if FULL else HIDDEN),
    *groups(EVERY if FULL else (*HIDDEN, "cut in a scan", "bit flip in the headers", "bit flips everywhere"), RARE),
]
# A frame of 65,500 × 65,500 takes `djpeg` minutes.
GROUPS = [group for group in dict.fromkeys(DAMAGED) if group[0] != NOT_JPEG and group[1] != "a huge frame"]


@pytest.mark.parametrize("encoding", ALL)
def test_a_whole_picture_is_intact(encoding: str) -> None:
    verdict = examine(encode(encoding))
    assert (verdict.kind, verdict.recovered, verdict.exact, verdict.is_whole) == ("intact", 1.0, True, True)


@pytest.mark.share(150)
@pytest.mark.parametrize(("encoding", "damage"), GROUPS, ids=[" - ".join(group) for group in GROUPS])
def test_a_verdict_names_the_damage_that_libjpeg_reports(encoding: str, damage: str) -> None:
    found = [f"{case.name}: {complaint}" for case in cases(encoding, damage) for complaint in complaints(case)]
    assert not found, f"{len(found)} complaints:\n" + "\n".join(found[:40])


def complaints(case: Case) -> Iterator[str]:
    verdict = examine(case.blob)
    readable = anatomy(case.whole).process != "lossless"  # for this `djpeg`
    seen = jpeg_oracle.examine(case.blob)
    if readable and seen.is_damaged and verdict.is_whole:
        yield f"{verdict.kind}, but libjpeg says: {', '.join(seen.complaints)}"
    if verdict.kind not in case.admitted and (seen.is_damaged or case.damage in HIDDEN):
        yield f"{verdict.kind} ({verdict.reason}), expected {' or '.join(sorted(case.admitted))}"
    yield from of_share(case, verdict.kind, verdict.recovered, verdict.exact)


def of_share(case: Case, kind: str, share: float, exact: bool) -> Iterator[str]:
    about = anatomy(case.whole)
    if kind != "truncated_scan" or case.cut is None or not about.one_scan or not about.huffman:
        return
    if case.whole[: case.cut].endswith(bytes(4)):  # zeros that are data look like a file that was never filled
        return
    columns, rows = about.mcus
    there = mcus_there(case.whole, case.cut)
    if abs(share * columns * rows - there) > 1 + 1e-6 and (exact or case.damage in HIDDEN):
        yield f"recovered {share:.4f} of {columns * rows} MCUs, truth {there}"
