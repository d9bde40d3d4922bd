"""Decides what is wrong with a byte string that should be a JPEG, and how much of its picture is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from storeds.jpeg.coverage import coverage, units_of
from storeds.jpeg.entropy import Walk, lost_restart, walk
from storeds.jpeg.estimate import estimate
from storeds.jpeg.finding import Finding, Kind
from storeds.jpeg.sniff import sniff
from storeds.jpeg.structure import EOI, SOI, Structure, parse

__all__ = ["triage"]

# What a file that was allocated and never filled ends with; fewer zeros may be data.
_ZEROS = 16
Effort = Literal["quick", "exact", "deep"]
# What some encoders fill up the data of a scan with.
_PADDING = b"\x00\xff"
_INTACT = "its structure is intact"


def triage(blob: bytes, *, effort: Effort = "exact") -> Finding:
    """Return what is wrong with `blob`, which should be a JPEG.

    Parameters
    ----------
    blob : bytes
        Any bytes.
    effort : str
        For a picture whose end is missing, ``"exact"`` follows its Huffman codes, some ten times the time of a decode;
        ``"quick"`` decodes it twice at an eighth of its size, which about half the time counts the MCU that was cut as one
        that is there (and seldom the next one too), so that it cannot tell a picture that lacks its last bytes from one that
        lacks its end marker. ``"deep"`` follows the codes of every picture: that finds
        data which end before their end marker, or make no sense.

    Returns
    -------
    Finding
        A picture whose structure is intact takes a walk over its markers, a few percent of the time of a decode.

    Notes
    -----
    A pure function that raises on no bytes, in time proportional to their number and, but for ``"quick"``, whatever
    decoders are installed. Thread-safe.
    """
    blob = bytes(blob)  # of a memoryview or bytearray; bytes themselves are not copied
    if not blob.startswith(SOI):
        name = sniff(blob)
        return Finding("not_jpeg", f"it is no JPEG but {name}", 0, format=name)
    found = parse(blob)
    if found.ending != "eoi":
        return _without_end(blob, found, effort)
    finding = _with_end(blob, found, deep=effort == "deep")
    return finding if found.junk is None else _with_junk(finding, found.junk)


def _finding(kind: Kind, found: Structure, reason: str, **values: object) -> Finding:
    return Finding(
        kind,
        reason,
        frame=found.frame,
        restart_interval=found.interval,
        **{"scans": len(found.scans), **values},  # type: ignore[arg-type]  # each has its own type
    )


def _with_end(blob: bytes, found: Structure, *, deep: bool) -> Finding:
    """Return the finding for a file whose end marker was met."""
    at = found.end - len(EOI)
    if found.frame is None or not found.scans:
        return _finding("truncated_header", found, f"it ends at byte {at} without a picture", offset=at, recovered=0.0)
    if deep or found.junk is not None or _is_too_short(found) or _is_early(blob, found):
        short = _follow_all(blob, found, at)
        if short is not None:
            return short
    share = coverage(found, found.scans)
    if share < 1.0:
        scan = len(found.scans) + 1
        reason = f"it ends at byte {at} after {len(found.scans)} scans, which do not carry every coefficient"
        return _finding("truncated_scan", found, reason, offset=at, scan=scan, recovered=share, exact=False)
    lost = _lost_restart(found, at)
    if lost is not None:
        return lost
    if found.end == len(blob) or (found.multi_picture and _next_is_whole(blob, found.end)):
        return Finding("intact", _INTACT, None, found.frame, found.interval, len(found.scans), None, 1.0)
    reason = f"{len(blob) - found.end:,} bytes follow the picture, which ends at byte {found.end}"
    return _finding("trailing_data", found, reason, offset=found.end, recovered=1.0)


def _with_junk(finding: Finding, junk: tuple[int, int]) -> Finding:
    """Return the finding for a file in which bytes outside the scans belong to nothing, whatever else is wrong."""
    first, last = junk
    rest = "all scans are whole" if finding.recovered == 1.0 else finding.reason
    reason = f"bytes {first} to {last} belong to nothing; {rest}"
    return replace(finding, kind="corrupt_data", reason=reason, offset=first, exact=False)


def _lost_restart(found: Structure, at: int) -> Finding | None:
    """Return the finding for the first scan whose restart markers are not those that are due."""
    for number, scan in enumerate(found.scans):
        part = lost_restart(found, scan)
        if part is not None:
            share, _ = _with_part(
                found, number, coverage(found, found.scans[:number]), Walk(part * scan.interval, "bad")
            )
            reason = f"restart marker {part + 1} of scan {number + 1}, bytes {scan.start} to {scan.stop}, is not there"
            return _finding(
                "corrupt_data", found, reason, offset=at, scans=number, scan=number + 1, recovered=share, exact=False
            )
    return None


def _is_too_short(found: Structure) -> bool:
    """Whether the first scan has fewer bits than blocks, as when a tiny file claims an enormous frame."""
    assert found.frame is not None
    scan = found.scans[0]
    bits = 8 * (scan.stop - scan.start)
    # The quick look is enough for any real picture: no unit of a scan is smaller than one block.
    return found.frame.width * found.frame.height > 64 * bits and units_of(found, scan) > bits


def _is_early(blob: bytes, found: Structure) -> bool:
    """Whether the end marker met may be a flipped bit in the data: what follows ends as a picture does."""
    return found.end < len(blob) and blob.endswith(EOI) and not blob.startswith(SOI, found.end)


def _next_is_whole(blob: bytes, at: int) -> bool:
    """Whether whole pictures follow, as the index of a multi-picture file says."""
    while blob.startswith(SOI, at):
        found = parse(blob[at:])
        if found.ending != "eoi":
            return False
        at += found.end
        if at == len(blob):
            return True
    return not blob[at:].strip(b"\x00")


def _follow_all(blob: bytes, found: Structure, at: int) -> Finding | None:
    """Return what is wrong inside the scans; None if every code is there, or none can be followed."""
    for number, scan in enumerate(found.scans):
        seen = walk(blob, found, scan, deep=True)
        surplus = seen.ending == "done" and seen.left >= 8 and blob[scan.stop - 1] not in _PADDING
        unknown = seen.ending == "bad" and not seen.units and not _is_too_short(found)
        if (seen.ending == "done" and not surplus) or unknown:
            continue
        before = coverage(found, found.scans[:number])
        share, exact = _with_part(found, number, before, seen)
        kind: Kind = "truncated_scan" if seen.ending == "cut" else "corrupt_data"
        what = "ends early" if seen.ending == "cut" else "makes no sense"
        reason = f"the data of scan {number + 1}, bytes {scan.start} to {scan.stop}, {what} after {seen.units} MCUs"
        return _finding(kind, found, reason, offset=at, scans=number, scan=number + 1, recovered=share, exact=exact)
    return None


def _with_part(found: Structure, number: int, before: float, seen: Walk) -> tuple[float, bool]:
    """Return the share of the picture in the scans before `number` and the part of that one, and whether it is exact."""
    after = coverage(found, found.scans[: number + 1])
    share = before + (after - before) * seen.units / max(units_of(found, found.scans[number]), 1)
    return share, len(found.scans) == 1 and after == 1.0 and (seen.units > 0 or seen.ending == "cut")


def _without_end(blob: bytes, found: Structure, effort: Effort) -> Finding:
    """Return the finding for a file whose end marker was not met."""
    zeros = len(blob) - len(blob.rstrip(b"\x00"))
    if zeros and _is_fill(blob, found, zeros, effort):
        inner = parse(blob[:-zeros])
        if inner.ending == "cut":
            inner.filled = zeros
            blob, found = blob[:-zeros], inner
    if found.scans and _is_too_short(found):
        short = _follow_all(blob, found, found.end)
        if short is not None:
            return short
    if found.ending == "stray":
        return _corrupt(blob, found)
    return _cut(blob, found, effort)


def _is_fill(blob: bytes, found: Structure, zeros: int, effort: Effort) -> bool:
    """Whether the zeros at the end are no data, as in a file that was allocated and never filled."""
    if effort != "quick" and found.in_scan and coverage(found, found.scans) == 1.0:
        seen = walk(blob, found, found.scans[-1])
        if seen.ending == "done":
            return seen.left >= 8
    return zeros >= _ZEROS


def _cut(blob: bytes, found: Structure, effort: Effort) -> Finding:
    if found.frame is None or not found.scans:
        reason = f"it is cut {found.reason}, before any pixel{_zeros(found)}"
        return _finding("truncated_header", found, reason, offset=found.end, recovered=0.0)
    last = len(found.scans) - 1
    share, before = coverage(found, found.scans), coverage(found, found.scans[:-1])
    if not found.in_scan:
        if share == 1.0:
            return _missing_eoi(found)
        reason = (
            f"it is cut {found.reason}, after {last + 1} scans, which do not carry every coefficient{_zeros(found)}"
        )
        return _finding("truncated_scan", found, reason, offset=found.end, scan=last + 2, recovered=share, exact=False)
    if share == 1.0 or last == 0 or found.frame.process in ("baseline", "extended"):
        seen = _units(blob, found, effort)
        if seen.ending == "done" and share == 1.0:
            return _missing_eoi(found)
        recovered, exact = _with_part(found, last, before, seen)
        # Zeros that were taken for filling may have been data.
        exact = exact and effort != "quick" and not found.filled
    else:
        seen, recovered, exact = Walk(0, "cut"), before, False
    scan = found.scans[-1]
    whole = last + (seen.ending == "done")
    reason = f"it is cut {found.reason}, number {last + 1}, which begins at byte {scan.start}{_zeros(found)}"
    return _finding(
        "truncated_scan",
        found,
        reason,
        offset=found.end,
        scans=whole,
        scan=whole + 1,
        recovered=recovered,
        exact=exact,
    )


def _zeros(found: Structure) -> str:
    return f"; {found.filled:,} zero bytes follow" if found.filled else ""


def _units(blob: bytes, found: Structure, effort: Effort) -> Walk:
    """Return how much of the last scan is there."""
    scan = found.scans[-1]
    share = estimate(blob, found) if effort == "quick" else None
    if share is None:
        return walk(blob, found, scan)
    units = units_of(found, scan)
    done = round(share * units)
    if scan.interval:  # each restart marker counts its interval; and where one is missing, decoders heed no ending
        restarts = len(scan.restarts)
        done = min(max(done, restarts * scan.interval), (restarts + 1) * scan.interval, units)
    return Walk(done, "done" if done == units else "cut")


def _missing_eoi(found: Structure) -> Finding:
    reason = f"all of the picture is there, but no end marker at byte {found.end}"
    return _finding("missing_eoi", found, reason, offset=found.end, recovered=1.0)


def _corrupt(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file in which something stands where it cannot."""
    if not found.scans:
        return _finding("corrupt_data", found, found.reason, offset=found.end, recovered=0.0, exact=False)
    last = len(found.scans) - 1
    before = coverage(found, found.scans[:-1])
    seen = walk(blob, found, found.scans[-1])
    recovered, exact = _with_part(found, last, before, seen)
    whole = last + (seen.ending == "done")
    return _finding(
        "corrupt_data",
        found,
        found.reason,
        offset=found.end,
        scans=whole,
        scan=None if seen.ending == "done" else last + 1,
        recovered=recovered,
        exact=exact,
    )
