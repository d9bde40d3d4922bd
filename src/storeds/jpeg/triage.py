"""Decides what is wrong with a byte string that should be a JPEG, and how much of its picture is there."""

from __future__ import annotations

from dataclasses import replace

from storeds.jpeg.codes import finding_of, in_data, is_too_short, share_with_part
from storeds.jpeg.endings import walk_by_endings
from storeds.jpeg.entropy import ZERO_RUN, Follower, Walk, has_all_restarts
from storeds.jpeg.finding import Finding
from storeds.jpeg.formats import sniff
from storeds.jpeg.structure import EOI, SOI, Structure, coverage, parse

__all__ = ["triage", "without_filling"]

_INTACT = "its structure is intact"
# More pictures in one file are not walked; a phone's have three.
_MAX_PICTURES = 100
_JPEG_LS = 0xF7


def triage(blob: bytes) -> Finding:
    """Return what is wrong with the structure of `blob`, which should be a JPEG.

    Parameters
    ----------
    blob : bytes
        Any bytes.

    Returns
    -------
    Finding
        A picture whose structure is whole takes a walk over its markers, a few percent of the time of a decode. Of one
        whose end is missing, the Huffman codes are followed, some twenty times the time of a decode.

    Notes
    -----
    What is wrong inside the data of a whole structure is not seen; `storeds.jpeg.examine` sees that. A pure function that
    raises on no bytes, in time proportional to their number. Thread-safe.
    """
    blob = bytes(blob)  # of a memoryview or bytearray; bytes themselves are not copied
    if not blob.startswith(SOI):
        name = sniff(blob)
        return Finding("not_jpeg", f"it is no JPEG but {name}", 0, format=name)
    found = parse(blob)
    if found.frame is None and found.ending == "stray" and _has_frame_of_jpeg_ls(blob, found.end):
        return Finding("not_jpeg", "it is no JPEG but JPEG-LS", 0, format="JPEG-LS")
    if found.ending != "eoi":
        finding = _without_end(blob, found)
    else:
        _take_filling(blob, found)
        finding = _with_end(blob, found)
        if found.junk is not None:
            finding = _with_junk(finding, found.junk)
    return _without_table(finding, found.undefined) if found.undefined else finding


def _has_frame_of_jpeg_ls(blob: bytes, at: int) -> bool:
    """Return whether a frame header of JPEG-LS begins there: one flipped bit of a fill byte FF gives its marker too."""
    header = blob[at : at + 10]
    return len(header) == 10 and header[1] == _JPEG_LS and int.from_bytes(header[2:4]) == 8 + 3 * header[9]


def _take_filling(blob: bytes, found: Structure) -> None:
    """Count zeros from a cut between two scans to an end marker that was added as filling."""
    if found.junk is not None and found.junk[1] == found.end - len(EOI):
        first, last = found.junk
        if last - first >= ZERO_RUN and not blob[first:last].strip(b"\x00"):
            found.junk, found.filled = None, last - first


def _with_end(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file whose end marker was met."""
    at = found.end - len(EOI)
    if found.frame is None or not found.scans:
        reason = f"it ends at byte {at} without a picture"
        return finding_of("truncated_header", found, reason, offset=at, recovered=0.0)
    restarts = all(has_all_restarts(found, scan) for scan in found.scans)
    if not restarts or found.junk is not None or is_too_short(found) or _is_early(blob, found):
        short = in_data(blob, found, at)
        if short is not None:
            return short
    if coverage(found, found.scans) < 1.0:
        return _without_scans(blob, found, at)
    if found.end == len(blob) or (found.multi_picture and _next_is_whole(blob, found.end)):
        return Finding("intact", _INTACT, None, found.frame, found.interval, len(found.scans), None, 1.0)
    reason = f"{len(blob) - found.end:,} bytes follow the picture, which ends at byte {found.end}"
    return finding_of("trailing_data", found, reason, offset=found.end, recovered=1.0)


def _with_junk(finding: Finding, junk: tuple[int, int]) -> Finding:
    """Return the finding for a file in which bytes outside the scans belong to nothing, whatever else is wrong."""
    first, last = junk
    rest = "all scans are whole" if finding.recovered == 1.0 else finding.reason
    reason = f"bytes {first} to {last} belong to nothing; {rest}"
    return replace(finding, kind="corrupt_data", reason=reason, offset=first, exact=finding.recovered == 1.0)


def _without_table(finding: Finding, undefined: str) -> Finding:
    """Return the finding for a file in which a scan needs a table that was not defined before it."""
    reason = f"{undefined} is not defined, so nothing decodes; {finding.reason}"
    return replace(finding, kind="corrupt_data", reason=reason, recovered=0.0, exact=True)


def _is_early(blob: bytes, found: Structure) -> bool:
    """Whether the end marker met may be a flipped bit in the data: what follows ends as a picture does."""
    return found.end < len(blob) and blob.endswith(EOI) and not blob.startswith(SOI, found.end)


def _next_is_whole(blob: bytes, at: int) -> bool:
    """Whether whole pictures follow, as the index of a multi-picture file says."""
    for _ in range(_MAX_PICTURES):
        if not blob.startswith(SOI, at):
            return not blob[at:].strip(b"\x00")
        found = parse(blob, at)
        if found.ending != "eoi":
            return False
        at = found.end
    return False


def without_filling(blob: bytes, found: Structure) -> tuple[bytes, Structure]:
    """Return a file whose end marker was not met, and its structure, without the zeros at its end that are no data."""
    zeros = len(blob) - len(blob.rstrip(b"\x00"))
    filling = _filling(blob, found, zeros) if zeros else 0
    if filling:
        inner = parse(blob[:-filling])
        if inner.ending == "cut":
            inner.filled = filling
            return blob[:-filling], inner
    return blob, found


def _without_end(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file whose end marker was not met."""
    blob, found = without_filling(blob, found)
    if found.scans and is_too_short(found):
        short = in_data(blob, found, found.end)
        if short is not None:
            return short
    return _corrupt(blob, found) if found.ending == "stray" else _cut(blob, found)


def _filling(blob: bytes, found: Structure, zeros: int) -> int:
    """Return how many of the zeros at the end are no data, as in a file that was allocated and never filled."""
    if found.in_scan and coverage(found, found.scans) == 1.0:
        seen = Follower(blob, found).walk(len(found.scans) - 1)
        spare = min(zeros, seen.left // 8)
        if seen.ending in ("done", "surplus"):
            return spare if _are_data(zeros - spare, spare, seen.left % 8) else zeros
    return zeros if zeros >= ZERO_RUN else 0


def _are_data(zeros: int, spare: int, padding: int) -> bool:
    """Whether `zeros` that complete a picture were its data, where `spare` more and some bits of the last one are left.

    Encoders fill the last byte up with ones. So zeros are data only where nothing but the end marker is missing too: one,
    or many in a flat picture.
    """
    return zeros == 0 or (not padding and spare <= len(EOI) and (zeros == 1 or zeros >= ZERO_RUN))


def _cut(blob: bytes, found: Structure) -> Finding:
    if found.frame is None or not found.scans:
        reason = f"it is cut {found.reason}, before any pixel{_zeros(found)}"
        return finding_of("truncated_header", found, reason, offset=found.end, recovered=0.0)
    share, last = coverage(found, found.scans), len(found.scans) - 1
    if not found.in_scan:
        return (
            _missing_eoi(found) if share == 1.0 else _without_scans(blob, found, found.end, f"it is cut {found.reason}")
        )
    seen = Follower(blob, found).walk(last)
    if seen.ending == "unknown" and share == 1.0:
        seen = walk_by_endings(blob, found)
    if seen.ending in ("done", "surplus") and share == 1.0:
        return _missing_eoi(found)
    scan = found.scans[last]
    reason = f"it is cut {found.reason}, number {last + 1}, which begins at byte {scan.start}{_zeros(found)}"
    # Zeros that were taken for filling may have been data.
    return _truncated(found, seen, reason, found.end, exact=not found.filled)


def _without_scans(blob: bytes, found: Structure, at: int, what: str = "") -> Finding:
    """Return the finding for a file whose scans do not carry every coefficient; the last may be cut."""
    seen = Follower(blob, found).walk(len(found.scans) - 1)
    what = what or f"it ends at byte {at}"
    reason = f"{what}, after {len(found.scans)} scans, which do not carry every coefficient{_zeros(found)}"
    if seen.ending == "bad" and not found.scans[-1].ah:  # a refinement makes no sense where a scan before it is missing
        share, _ = share_with_part(found, len(found.scans) - 1, seen)
        reason = f"{reason}; the data of the last make no sense"
        return finding_of("corrupt_data", found, reason, offset=at, scan=len(found.scans), recovered=share, exact=False)
    return _truncated(found, seen, reason, at, exact=False)


def _truncated(found: Structure, seen: Walk, reason: str, at: int, *, exact: bool) -> Finding:
    """Return the finding for a file that ends in or after its last scan, through which the walk went like `seen`."""
    last = len(found.scans) - 1
    share, known = share_with_part(found, last, seen)
    whole = last + (seen.ending in ("done", "surplus"))
    return finding_of(
        "truncated_scan",
        found,
        reason,
        offset=at,
        scans=whole,
        scan=whole + 1,
        recovered=share,
        exact=exact and known,
    )


def _zeros(found: Structure) -> str:
    return f"; {found.filled:,} zero bytes follow" if found.filled else ""


def _missing_eoi(found: Structure) -> Finding:
    reason = f"all of the picture is there, but no end marker at byte {found.end}"
    return finding_of("missing_eoi", found, reason, offset=found.end, recovered=1.0)


def _corrupt(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file in which something stands where it cannot."""
    if not found.scans:
        return finding_of("corrupt_data", found, found.reason, offset=found.end, recovered=0.0, exact=False)
    last = len(found.scans) - 1
    seen = Follower(blob, found).walk(last)
    share, _ = share_with_part(found, last, seen)
    whole = last + (seen.ending in ("done", "surplus"))
    return finding_of(
        "corrupt_data",
        found,
        found.reason,
        offset=found.end,
        scans=whole,
        scan=None if whole > last else last + 1,
        recovered=share,
        exact=False,
    )
