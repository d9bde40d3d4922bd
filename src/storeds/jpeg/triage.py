"""Judges the structure of a JPEG: what is wrong with it, and how much of its picture is there."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import simplejpeg

from storeds.jpeg.entropy import ZERO_RUN, Follower, Walk
from storeds.jpeg.formats import sniff
from storeds.jpeg.markers import (
    EOI,
    MAX_PIXELS,
    SOI,
    Frame,
    Scan,
    Structure,
    coverage,
    has_all_restarts,
    parse,
    units_of,
)
from storeds.protocols import Array

__all__ = ["Finding", "Kind", "find_in_data", "triage", "without_filling"]

_INTACT = "its structure is intact"
# A phone writes up to three pictures into one file.
_MAX_PICTURES = 100
_JPEG_LS = 0xF7

Kind = Literal[
    "intact",
    "trailing_data",
    "missing_eoi",
    "truncated_scan",
    "truncated_header",
    "corrupt_data",
    "not_jpeg",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of inspecting one byte string that should be a JPEG.

    Attributes
    ----------
    kind : str
        ``intact`` (the structure is; only a checksum proves bytes), ``trailing_data`` (a whole picture followed by
        other bytes: no damage), ``missing_eoi`` (only the end marker is missing), ``truncated_scan`` (the picture ends
        early), ``truncated_header`` (the file ends before any pixel), ``corrupt_data`` (something is invalid), or
        ``not_jpeg``.
    reason : str
        One sentence with positions in bytes from the start.
    offset : int or None
        Position where the problem begins: where the picture ends, or becomes invalid. None if there is no problem.
    frame : Frame or None
        Contents of the frame header. None if there is none.
    restart_interval : int
        MCUs between restart markers in the last scan, 0 for none.
    scans : int
        Number of whole scans.
    scan : int or None
        Number of the cut scan, counted from 1.
    recovered : float or None
        Share of the picture that is there, 0 to 1. None if the bytes are not a JPEG. For one scan, the share of its
        MCUs. For several scans, the share of the coefficients, where each missing bit of precision halves a
        coefficient.
    exact : bool
        Whether `recovered` is exact. Otherwise it is a lower bound.
    format : str or None
        Format of bytes that are not a JPEG: ``PNG``, ``WebP``, ``GIF``, ``HTML``, ``empty``, … ``unknown``.
    """

    kind: Kind
    reason: str
    offset: int | None = None
    frame: Frame | None = None
    restart_interval: int = 0
    scans: int = 0
    scan: int | None = None
    recovered: float | None = None
    exact: bool = True
    format: str | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether part of the file is missing or wrong. Trailing bytes and other formats are not damage."""
        return self.kind not in ("intact", "trailing_data", "not_jpeg")

    @property
    def share(self) -> str:
        """`recovered` as text: ``62 %``, ``at least 40 %`` or ``unknown``."""
        if self.recovered is None:
            return "unknown"
        # Rounded down, so that only a whole picture is 100 %.
        percent = f"{math.floor(1000 * self.recovered) / 10:g} %"
        return percent if self.exact else f"at least {percent}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {**asdict(self), "frame": self.frame and self.frame._asdict()}

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def triage(blob: bytes) -> Finding:
    """Inspect the structure of `blob`, which should be a JPEG.

    Parameters
    ----------
    blob : bytes
        Any bytes.

    Returns
    -------
    Finding
        What is wrong, if anything. A whole structure takes one walk over the markers, a few percent of the time of a
        decode. If the end is missing, `triage` follows the Huffman codes, which takes about 20 times as long as a
        decode.

    Notes
    -----
    `triage` does not see errors inside the data of a whole structure; `storeds.jpeg.examine` does. It is a pure
    function, raises for no bytes, takes time in proportion to their number, and is thread-safe.
    """
    blob = bytes(blob)  # copies a memoryview or bytearray, but not bytes
    if not blob.startswith(SOI):
        name = sniff(blob)
        return Finding("not_jpeg", f"it is not a JPEG but {name}", 0, format=name)
    found = parse(blob)
    if found.frame is None and found.ending == "stray" and _is_jpeg_ls(blob, found.end):
        return Finding("not_jpeg", "it is not a JPEG but JPEG-LS", 0, format="JPEG-LS")
    if found.ending != "eoi":
        finding = _without_end(blob, found)
    else:
        _count_filling(blob, found)
        finding = _with_end(blob, found)
        if found.junk is not None:
            finding = _with_junk(finding, found.junk)
    return _without_table(finding, found.undefined) if found.undefined else finding


def _is_jpeg_ls(blob: bytes, at: int) -> bool:
    """Return whether a JPEG-LS frame header begins at `at`. Its marker alone may be a fill byte with one wrong bit."""
    header = blob[at : at + 10]
    return len(header) == 10 and header[1] == _JPEG_LS and int.from_bytes(header[2:4]) == 8 + 3 * header[9]


def _count_filling(blob: bytes, found: Structure) -> None:
    """Count zeros between two scans and an appended end marker as filling."""
    if found.junk is not None and found.junk[1] == found.end - len(EOI):
        first, last = found.junk
        if last - first >= ZERO_RUN and not blob[first:last].strip(b"\x00"):
            found.junk, found.filled = None, last - first


def _with_end(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file with an end marker."""
    at = found.end - len(EOI)
    if found.frame is None or not found.scans:
        reason = f"it ends at byte {at} without a picture"
        return _finding("truncated_header", found, reason, offset=at, recovered=0.0)
    restarts = all(has_all_restarts(found, scan) for scan in found.scans)
    if not restarts or found.junk is not None or _is_too_short(found) or _is_early(blob, found):
        finding = find_in_data(blob, found, at)
        if finding is not None:
            return finding
    if coverage(found, found.scans) < 1.0:
        return _without_scans(blob, found, at)
    if found.end == len(blob) or (found.multi_picture and _next_is_whole(blob, found.end)):
        return Finding("intact", _INTACT, None, found.frame, found.interval, len(found.scans), None, 1.0)
    reason = f"{len(blob) - found.end:,} bytes follow the picture, which ends at byte {found.end}"
    return _finding("trailing_data", found, reason, offset=found.end, recovered=1.0)


def _with_junk(finding: Finding, junk: tuple[int, int]) -> Finding:
    """Return the finding for a file with surplus bytes outside the scans, whatever else is wrong."""
    first, last = junk
    rest = "all scans are whole" if finding.recovered == 1.0 else finding.reason
    reason = f"bytes {first} to {last} are surplus; {rest}"
    return replace(finding, kind="corrupt_data", reason=reason, offset=first, exact=finding.recovered == 1.0)


def _without_table(finding: Finding, undefined: str) -> Finding:
    """Return the finding for a file with a scan whose quantisation table is not defined before it."""
    reason = f"{undefined} is not defined, so nothing decodes; {finding.reason}"
    return replace(finding, kind="corrupt_data", reason=reason, recovered=0.0, exact=True)


def _is_early(blob: bytes, found: Structure) -> bool:
    """Return whether the end marker may be a wrong bit in the data: the file goes on and ends like a picture."""
    return found.end < len(blob) and blob.endswith(EOI) and not blob.startswith(SOI, found.end)


def _next_is_whole(blob: bytes, at: int) -> bool:
    """Return whether only whole pictures follow, as the index of a multi-picture file declares."""
    for _ in range(_MAX_PICTURES):
        if not blob.startswith(SOI, at):
            return not blob[at:].strip(b"\x00")
        found = parse(blob, at)
        if found.ending != "eoi":
            return False
        at = found.end
    return False


def without_filling(blob: bytes, found: Structure) -> tuple[bytes, Structure]:
    """Remove zeros that are not data from the end of a file without an end marker; return it and its structure."""
    zeros = len(blob) - len(blob.rstrip(b"\x00"))
    filling = _filling(blob, found, zeros) if zeros else 0
    if filling:
        inner = parse(blob[:-filling])
        if inner.ending == "cut":
            inner.filled = filling
            return blob[:-filling], inner
    return blob, found


def _without_end(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file without an end marker."""
    blob, found = without_filling(blob, found)
    if found.scans and _is_too_short(found):
        finding = find_in_data(blob, found, found.end)
        if finding is not None:
            return finding
    return _invalid(blob, found) if found.ending == "stray" else _cut(blob, found)


def _filling(blob: bytes, found: Structure, zeros: int) -> int:
    """Return how many of the zeros at the end are not data, as in a file that was allocated and not filled."""
    if found.in_scan and coverage(found, found.scans) == 1.0:
        walk = Follower(blob, found).walk(len(found.scans) - 1)
        spare = min(zeros, walk.left // 8)
        if walk.ending in ("done", "surplus"):
            return spare if _are_data(zeros - spare, spare, walk.left % 8) else zeros
    return zeros if zeros >= ZERO_RUN else 0


def _are_data(zeros: int, spare: int, padding: int) -> bool:
    """Return whether `zeros` that complete a picture are data, if `spare` zeros and some `padding` bits follow.

    Encoders pad the last byte with ones. So zeros are data only if nothing but the end marker is missing as well: a
    single one, or many in a flat picture.
    """
    return zeros == 0 or (not padding and spare <= len(EOI) and (zeros == 1 or zeros >= ZERO_RUN))


def _cut(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file whose bytes run out."""
    if found.frame is None or not found.scans:
        reason = f"it is cut {found.reason}, before any pixel{_zeros(found)}"
        return _finding("truncated_header", found, reason, offset=found.end, recovered=0.0)
    share, last = coverage(found, found.scans), len(found.scans) - 1
    if not found.in_scan:
        if share == 1.0:
            return _missing_eoi(found)
        return _without_scans(blob, found, found.end, f"it is cut {found.reason}")
    walk = Follower(blob, found).walk(last)
    if walk.ending == "unknown" and share == 1.0:
        walk = _compare_endings(blob, found)
    if walk.ending in ("done", "surplus") and share == 1.0:
        return _missing_eoi(found)
    scan = found.scans[last]
    reason = f"it is cut {found.reason}, number {last + 1}, which begins at byte {scan.start}{_zeros(found)}"
    # Zeros that count as filling may be data.
    return _truncated(found, walk, reason, found.end, exact=not found.filled)


def _without_scans(blob: bytes, found: Structure, at: int, what: str = "") -> Finding:
    """Return the finding for a file whose scans lack coefficients. The last scan may be cut."""
    walk = Follower(blob, found).walk(len(found.scans) - 1)
    what = what or f"it ends at byte {at}"
    reason = f"{what}, after {len(found.scans)} scans, which lack some coefficients{_zeros(found)}"
    if walk.ending == "bad" and not found.scans[-1].ah:  # a refinement is invalid if a scan before it is missing
        share, _ = _share_with_part(found, len(found.scans) - 1, walk)
        reason = f"{reason}; the data of the last are invalid"
        return _finding("corrupt_data", found, reason, offset=at, scan=len(found.scans), recovered=share, exact=False)
    return _truncated(found, walk, reason, at, exact=False)


def _truncated(found: Structure, walk: Walk, reason: str, at: int, *, exact: bool) -> Finding:
    """Return the finding for a file that ends in or after its last scan, along which `walk` went."""
    last = len(found.scans) - 1
    share, known = _share_with_part(found, last, walk)
    whole = last + (walk.ending in ("done", "surplus"))
    values = {"scans": whole, "scan": whole + 1, "recovered": share, "exact": exact and known}
    return _finding("truncated_scan", found, reason, offset=at, **values)


def _zeros(found: Structure) -> str:
    return f"; {found.filled:,} zero bytes follow" if found.filled else ""


def _missing_eoi(found: Structure) -> Finding:
    reason = f"all of the picture is there, but there is no end marker at byte {found.end}"
    return _finding("missing_eoi", found, reason, offset=found.end, recovered=1.0)


def _invalid(blob: bytes, found: Structure) -> Finding:
    """Return the finding for a file with something invalid between its segments."""
    if not found.scans:
        return _finding("corrupt_data", found, found.reason, offset=found.end, recovered=0.0, exact=False)
    last = len(found.scans) - 1
    walk = Follower(blob, found).walk(last)
    share, _ = _share_with_part(found, last, walk)
    whole = last + (walk.ending in ("done", "surplus"))
    values = {"scans": whole, "scan": None if whole > last else last + 1, "recovered": share, "exact": False}
    return _finding("corrupt_data", found, found.reason, offset=found.end, **values)


def _finding(kind: Kind, found: Structure, reason: str, **values: object) -> Finding:
    """Return a finding with the facts that the walk over the markers found."""
    return Finding(
        kind,
        reason,
        frame=found.frame,
        restart_interval=found.interval,
        **{"scans": len(found.scans), **values},  # type: ignore[arg-type]  # each value has its own type
    )


def find_in_data(blob: bytes, found: Structure, at: int) -> Finding | None:
    """Follow the codes of all scans; return what is wrong with the data.

    Parameters
    ----------
    at : int
        Position where the picture ends.

    Returns
    -------
    Finding or None
        None if every code is there and valid, or if no code can be followed.
    """
    follower, padded = Follower(blob, found), None
    for number in range(len(found.scans)):
        walk = follower.walk(number)
        if walk.ending == "surplus" and not walk.doubtful:
            padded = number if padded is None else padded
            continue
        finding = _find_in_scan(found, number, walk, at)
        if finding is not None:
            return _with_other_intervals(finding, found, follower)
    if padded is None:
        return None
    scan = found.scans[padded]
    where = f"scan {padded + 1}, bytes {scan.start} to {scan.stop}"
    reason = f"every MCU is there, but surplus zeros or ff are in the data of {where}"
    return _finding("corrupt_data", found, reason, offset=at, recovered=1.0)


def _with_other_intervals(finding: Finding, found: Structure, follower: Follower) -> Finding:
    """Return the finding on one of several scans with the share of all, if restart markers end the damage."""
    whole = coverage(found, found.scans)
    share, scans = whole, found.scans
    if len(scans) == 1 or finding.kind != "corrupt_data" or not all(scan.interval for scan in scans):
        return finding
    for number, scan in enumerate(scans):
        walk = follower.walk(number)
        if walk.ending == "unknown":
            return finding
        lost = 1 - (walk.units - walk.doubtful) / units_of(found, scan)
        if lost > 0:  # refinements of what is lost are of no use
            share -= lost * (whole - coverage(found, [other for other in scans if other is not scan]))
    assert finding.recovered is not None
    return replace(finding, recovered=max(share, finding.recovered))


def _find_in_scan(found: Structure, number: int, walk: Walk, at: int) -> Finding | None:
    """Return what is wrong with a scan, according to the walk through it."""
    scan = found.scans[number]
    where = f"scan {number + 1}, bytes {scan.start} to {scan.stop},"
    kind: Kind = "corrupt_data"
    sure = walk._replace(units=walk.units - walk.doubtful)
    if walk.ending == "done" or (walk.ending == "unknown" and not _is_too_short(found)):
        if has_all_restarts(found, scan):
            return None
        reason = f"the restart markers of {where} are not the expected ones"
        if walk.ending == "done":
            values = {"scan": number + 1, "recovered": 1.0}
            return _finding(kind, found, f"{reason}, but every MCU is there", offset=at, **values)
    elif walk.ending == "bad":
        reason, walk = f"part of the data of {where} is invalid; {sure.units} MCUs are outside that part", sure
    elif walk.ending == "surplus":
        reason, walk = f"the data of {where} have surplus bytes, so part of them has changed", sure
    elif walk.doubtful and found.ending == "eoi" and not _is_too_short(found):
        reason, walk = f"the data of {where} end as expected, but MCUs before the end are missing", sure
    else:
        kind = "truncated_scan" if number == len(found.scans) - 1 else kind
        reason = f"the data of {where} end early, after {walk.units} MCUs"
    share, exact = _share_with_part(found, number, walk)
    exact = exact and kind == "truncated_scan" and not _may_lack_others(found, scan, walk)
    return _finding(kind, found, reason, offset=at, scans=number, scan=number + 1, recovered=share, exact=exact)


def _may_lack_others(found: Structure, scan: Scan, walk: Walk) -> bool:
    """Return whether other restart intervals than the last may be missing: their numbers repeat after 8."""
    if not scan.interval:
        return False
    parts = len(scan.restarts) + 1
    missing = -(-units_of(found, scan) // scan.interval) - parts
    return missing > 0 and missing % 8 == 0 and walk.units == parts * scan.interval


def _share_with_part(found: Structure, number: int, walk: Walk) -> tuple[float, bool]:
    """Return the share of the picture up to the walked part of scan `number`, and whether it is exact."""
    before, after = coverage(found, found.scans[:number]), coverage(found, found.scans[: number + 1])
    units = max(units_of(found, found.scans[number]), 1)
    share = after if walk.units == units else before + (after - before) * walk.units / units
    return share, len(found.scans) == 1 and after == 1.0 and walk.ending != "unknown"


def _is_too_short(found: Structure) -> bool:
    """Return whether the first scan has fewer bits than blocks, as in a tiny file that claims an enormous frame."""
    assert found.frame is not None
    if "arithmetic" in found.frame.process:  # a likely symbol takes less than a bit
        return False
    scan = found.scans[0]
    bits = 8 * (scan.stop - scan.start)
    # The first condition suffices for every real picture, since no unit of a scan is smaller than a block.
    return found.frame.width * found.frame.height > 64 * bits and units_of(found, scan) > bits


# Without ff it contains no marker, and it is longer than what a decoder reads ahead.
_NOISE = np.random.default_rng(0).integers(0, 255, 64, np.uint8).tobytes()


def _compare_endings(blob: bytes, found: Structure) -> Walk:
    """Return how much of the last scan of a cut file is there, if it uses arithmetic coding.

    Decodes the picture twice, with the end marker at once and after noise: up to the cut both agree. libjpeg warns in
    neither case. The walk is ``done`` if the ending changes no pixel, otherwise ``unknown``. With several scans only
    all or nothing can be determined.
    """
    frame = found.frame
    if frame is None or "arithmetic" not in frame.process or frame.width * frame.height > MAX_PIXELS:
        return Walk(0, "unknown")
    whole, single = blob[: found.end].rstrip(b"\xff"), len(found.scans) == 1
    try:
        differ = _lightness(whole + EOI, frame, small=single) != _lightness(whole + _NOISE + EOI, frame, small=single)
    except ValueError:
        return Walk(0, "unknown")
    units = units_of(found, found.scans[-1])
    if not differ.any():
        return Walk(units, "done")
    if not single:
        return Walk(0, "unknown")
    across = max(component.h for component in found.components) if len(found.components) > 1 else 1
    down = max(component.v for component in found.components) if len(found.components) > 1 else 1
    rows, columns = differ.nonzero()
    return Walk(int((rows // down * -(-differ.shape[1] // across) + columns // across).min()), "unknown")


def _lightness(blob: bytes, frame: Frame, *, small: bool) -> Array:
    """Return the lightness of the picture, one value for each 8 x 8 pixels if `small`."""
    side = 8 if small else 1
    # simplejpeg leaves pixels that it does not decode unwritten, so the buffer is zeroed here.
    pixels = np.zeros((-(-frame.height // side), -(-frame.width // side), 1), np.uint8)
    options = {"min_height": 1, "min_width": 1, "min_factor": 8} if small else {}
    # Not strict: libjpeg warns of the noise after the data.
    simplejpeg.decode_jpeg(blob, colorspace="GRAY", buffer=pixels, strict=False, **options)
    return pixels[:, :, 0]
