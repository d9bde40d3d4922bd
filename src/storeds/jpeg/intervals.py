"""Finds out which restart interval each part of damaged data holds, from the markers that are left.

Restart markers count modulo 8. A decoder that meets a wrong one continues at a place that may be wrong, or not at all.
The number of intervals of the scan is known, so the parts can be counted from both ends: see `place_parts`. These
functions know bytes and numbers only; ``entropy.py`` follows the codes, and ``rebuild.py`` writes the repaired scan.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from storeds.protocols import Array

__all__ = ["LOST", "end_after_strays", "place_parts"]

LOST = -1
"""The place of a part whose interval is not certain."""

_RST0, _SOI, _EOI, _SOS = 0xD0, 0xD8, 0xD9, 0xDA
_SEGMENTS = frozenset((0xC4, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)))
_MAX_SEGMENTS = 16
# This many markers with consecutive numbers are no coincidence.
_SURE = 3
# A tiny file may claim more intervals than memory can hold.
_MAX_MISSING = 1 << 16


def end_after_strays(blob: bytes, at: int, restarts: bytes, due: int) -> tuple[int, bytes]:
    """Return where the data of a scan end, if the marker at `at` does not belong to them but the data may go on.

    A wrong bit can turn data or a restart marker into any marker. The data go on if restart markers with consecutive
    numbers follow, and up to the next scan.

    Parameters
    ----------
    restarts : bytes
        Last byte of each restart marker before `at`.
    due : int
        Number of restart markers that the scan should have.

    Returns
    -------
    int, bytes
        The end, and the last byte of each marker before it, strays included. `at` and `restarts` if the data end there.
    """
    missing = due - len(restarts)
    if blob[at + 1] == _EOI and (at + 2 == len(blob) or blob.startswith(b"\xff\xd8", at + 2)):
        return at, restarts
    if _begins_segments(blob, at):
        return at, restarts
    data = np.frombuffer(blob, np.uint8)[at:]
    places = ((data[:-1] == 0xFF) & (data[1:] != 0) & (data[1:] != 0xFF)).nonzero()[0]
    markers = data[places + 1]
    is_restart = (markers & 0xF8) == _RST0
    stop = 0
    for index in (~is_restart).nonzero()[0].tolist():
        first = at + int(places[index])
        is_next = _begins_segments(blob, first)
        if is_next or blob.startswith(b"\xff\xd8\xff", first):
            markers, is_restart = markers[:index], is_restart[:index]
            stop = index if is_next else 0
            break
    last = _last_certain(markers, is_restart, missing, due) if missing > 0 else -1
    # Trailing bytes may look like another scan. After a wrong end marker the right one is at the end.
    is_end = markers[0] == _EOI and not blob.endswith(b"\xff\xd9")
    if last < 0 and (is_end or not stop):
        return at, restarts
    if not stop:
        strays = (~is_restart[last:]).nonzero()[0]
        stop = last + int(strays[0]) if len(strays) else len(markers)
    end = at + int(places[stop]) if stop < len(places) else len(blob)
    return end, restarts + markers[:stop].tobytes()


def _last_certain(markers: Array, is_restart: Array, missing: int, due: int) -> int:
    """Return the index of the last restart marker that certainly belongs to the scan, -1 if there is none."""
    follows = is_restart[1:] & is_restart[:-1] & (((markers[1:] - markers[:-1]) & 7) == 1)
    runs = (follows[1:] & follows[:-1]).nonzero()[0]
    last = int(runs[-1]) + _SURE - 1 if len(runs) else -1
    (left,) = is_restart[last + 1 :].nonzero()
    if not len(left) or markers[last + 1 + left[-1]] & 7 != (due - 1) & 7:
        return last
    # Near the end of the scan fewer markers follow. An end marker may be a real one, followed by something else.
    first = end = last + 1 + int(left[-1])
    while first > 0 and follows[first - 1]:
        first -= 1
    needed = max(min(missing - 1, _SURE), 1) if markers[0] == _EOI else 1
    return end if end - first + 1 >= needed else last


def _begins_segments(blob: bytes, at: int) -> bool:
    """Return whether valid segments begin at `at` and lead to a scan or to the end of the file."""
    for number in range(_MAX_SEGMENTS):
        if at + 2 > len(blob) or blob[at] != 0xFF:
            return False
        marker, length = blob[at + 1], int.from_bytes(blob[at + 2 : at + 4])
        if marker == _SOS:
            return 8 <= length <= 14 and blob[at + 4 : at + 5] == bytes([(length - 6) // 2]) and length % 2 == 0
        if marker not in _SEGMENTS:
            return number > 0 and marker == _EOI
        at += 2 + max(length, 2)
    return True


class _Run(NamedTuple):
    """Parts with consecutive numbers. `number` is that of the first one's interval modulo 8; None if unknown."""

    parts: list[int]
    number: int | None


def place_parts(markers: bytes, count: int, *, has_end: bool, is_whole: Callable[[int, int], bool]) -> list[int]:
    """Return for each part of the data of a scan the number of its interval, or -1 where that is not certain.

    Parameters
    ----------
    markers : bytes
        Last byte of each marker between two parts. Bytes that do not belong to a restart marker are strays.
    count : int
        Number of intervals that the scan should have.
    has_end : bool
        Whether the last part is the end of the scan. Then parts can be counted from there.
    is_whole : callable
        Tells whether a part, given its index, holds exactly the interval with a number.

    Notes
    -----
    One wrong marker between two parts is a damaged restart marker if exactly one number is missing there. It is no
    marker at all if no number is missing. Where numbers are missing, intervals are lost: as many as bring the last part
    to its place. If several places come into question, the parts between them have no place. Takes linear time.
    """
    parts = len(markers) + 1
    if (parts == count or (parts > count and not has_end)) and _differ_singly(markers[: count - 1]):
        return list(range(parts))
    places = [LOST] * parts
    runs = _joined(_runs(markers))
    missing = count - sum(len(run.parts) for run in runs)
    anchored = has_end and missing <= _MAX_MISSING
    if len(runs) == 1:
        _assign(places, runs[0].parts, 0)
        if anchored and missing > 0 and missing % 8 == 0:
            _move_past_loss(places, runs[0].parts, missing, is_whole)
        return places
    steps = _steps(runs)
    if len(steps) == 1 and missing > 0 and (missing - steps[0]) % 8 == 0:
        steps = [missing]
    if not anchored or sum(steps) != missing:
        _assign(places, runs[0].parts, 0)
        last = runs[-1]
        first = count - len(last.parts)
        if anchored and first >= len(runs[0].parts) and last.number == first % 8:
            _assign(places, last.parts, first)
        return places
    at = 0
    for index, (run, step) in enumerate(zip(runs, [0, *steps], strict=True)):
        at += step
        _assign(places, run.parts, at)
        if step < 0:  # two parts for the same interval
            places[run.parts[0]] = places[runs[index - 1].parts[-1]] = LOST
        at += len(run.parts)
    places[0] = 0
    return places


def _move_past_loss(places: list[int], parts: list[int], missing: int, is_whole: Callable[[int, int], bool]) -> None:
    """Move the parts after a loss of `missing` intervals, a multiple of 8, so that the last part is the end.

    The loss is where a part is damaged, or where parts without a place follow. Without such a part, the last intervals
    are missing.
    """
    followed = [after == part + 1 for part, after in pairwise(parts)]
    damaged = [at for at, part in enumerate(parts[:-1]) if not (followed[at] and is_whole(part, at))]
    if not damaged:
        return
    for at, part in enumerate(parts[damaged[0] + 1 :], damaged[0] + 1):
        places[part] = at + missing if at > damaged[-1] else LOST


def _numbers(markers: bytes) -> list[int | None]:
    """Return for each part the number modulo 8 of its interval, None after a stray marker."""
    return [0, *((marker + 1) % 8 if marker & 0xF8 == _RST0 else None for marker in markers)]


def _differ_singly(markers: bytes) -> bool:
    """Return whether no two markers in a row have a wrong number, if each marker is there."""
    wrong = [number != at % 8 for at, number in enumerate(_numbers(markers))]
    return not any(one and two for one, two in pairwise(wrong))


def _runs(markers: bytes) -> list[_Run]:
    """Split the parts where their numbers are not consecutive."""
    runs: list[_Run] = []
    before: int | None = None
    for part, number in enumerate(_numbers(markers)):
        if before is not None and number == (before + 1) % 8:
            runs[-1].parts.append(part)
        else:
            runs.append(_Run([part], number))
        before = number
    return runs


def _joined(runs: list[_Run]) -> list[_Run]:
    """Join runs around single wrong markers, and drop parts that begin with a marker that is none."""
    joined = [runs[0]]
    for at, run in enumerate(runs[1:], 1):
        last = joined[-1]
        assert last.number is not None  # part 0 has number 0, and no other run without a number is kept
        due = (last.number + len(last.parts)) % 8
        after = runs[at + 1].number if at + 1 < len(runs) else None
        is_single = len(run.parts) == 1
        if run.number == due or (is_single and after == (due + 1) % 8):
            last.parts.extend(run.parts)
        elif run.number is not None and not (is_single and after == due):
            joined.append(run)
    return joined


def _steps(runs: list[_Run]) -> list[int]:
    """Return the smallest number of missing intervals between each two runs; -1 if one is there twice."""
    steps = []
    for before, after in pairwise(runs):
        assert before.number is not None
        assert after.number is not None
        step = (after.number - before.number - len(before.parts)) % 8
        steps.append(-1 if step == 7 else step)
    return steps


def _assign(places: list[int], parts: list[int], first: int) -> None:
    for number, part in enumerate(parts):
        places[part] = first + number
