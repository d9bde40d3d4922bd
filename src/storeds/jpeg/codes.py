"""Says what following the codes of a JPEG finds: where its data end, or stop making sense, and how much is before that."""

from __future__ import annotations

from storeds.jpeg.entropy import Follower, Walk, has_all_restarts
from storeds.jpeg.finding import Finding, Kind
from storeds.jpeg.structure import Structure, coverage, units_of

__all__ = ["finding_of", "in_data", "is_too_short", "share_with_part"]


def finding_of(kind: Kind, found: Structure, reason: str, **values: object) -> Finding:
    """Return a finding with what the walk over the markers met."""
    return Finding(
        kind,
        reason,
        frame=found.frame,
        restart_interval=found.interval,
        **{"scans": len(found.scans), **values},  # type: ignore[arg-type]  # each has its own type
    )


def in_data(blob: bytes, found: Structure, at: int) -> Finding | None:
    """Return what is wrong in the data of the scans of a file that ends at byte `at`.

    None if every code is there and makes sense, or none can be followed.
    """
    follower, padded = Follower(blob, found), None
    for number in range(len(found.scans)):
        seen = follower.walk(number)
        if seen.ending == "surplus" and not seen.doubtful:
            padded = number if padded is None else padded
            continue
        finding = _in_scan(found, number, seen, at)
        if finding is not None:
            return finding
    if padded is None:
        return None
    scan = found.scans[padded]
    reason = f"every MCU is there, but zeros or ff that belong to nothing are in the data of scan {padded + 1}, bytes {scan.start} to {scan.stop}"
    return finding_of("corrupt_data", found, reason, offset=at, recovered=1.0)


def _in_scan(found: Structure, number: int, seen: Walk, at: int) -> Finding | None:
    """Return what the walk through a scan says is wrong with it."""
    scan = found.scans[number]
    where = f"scan {number + 1}, bytes {scan.start} to {scan.stop},"
    kind: Kind = "corrupt_data"
    sure = seen._replace(units=seen.units - seen.doubtful)
    if seen.ending == "done" or (seen.ending == "unknown" and not is_too_short(found)):
        if has_all_restarts(found, scan):
            return None
        reason = f"the restart markers of {where} are not those that are due"
        seen = seen._replace(units=0)
    elif seen.ending == "bad":
        reason, seen = f"the data of {where} make no sense somewhere; {sure.units} MCUs are outside that", sure
    elif seen.ending == "surplus":
        reason, seen = f"bytes that belong to nothing are in the data of {where} so some of it is not what it was", sure
    elif seen.doubtful and found.ending == "eoi" and not is_too_short(found):
        reason, seen = f"the data of {where} end as they should, but MCUs are missing before", sure
    else:
        kind = "truncated_scan" if number == len(found.scans) - 1 else kind
        reason = f"the data of {where} end early, after {seen.units} MCUs"
    share, exact = share_with_part(found, number, seen)
    exact = exact and kind == "truncated_scan"
    return finding_of(kind, found, reason, offset=at, scans=number, scan=number + 1, recovered=share, exact=exact)


def share_with_part(found: Structure, number: int, seen: Walk) -> tuple[float, bool]:
    """Return the share of the picture in the scans before `number` and the part of that one, and whether it is exact."""
    before, after = coverage(found, found.scans[:number]), coverage(found, found.scans[: number + 1])
    units = max(units_of(found, found.scans[number]), 1)
    share = after if seen.units == units else before + (after - before) * seen.units / units
    return share, len(found.scans) == 1 and after == 1.0 and seen.ending != "unknown"


def is_too_short(found: Structure) -> bool:
    """Whether the first scan has fewer bits than blocks, as when a tiny file claims an enormous frame."""
    assert found.frame is not None
    if "arithmetic" in found.frame.process:  # which takes less than a bit for what is likely
        return False
    scan = found.scans[0]
    bits = 8 * (scan.stop - scan.start)
    # The quick look is enough for any real picture: no unit of a scan is smaller than one block.
    return found.frame.width * found.frame.height > 64 * bits and units_of(found, scan) > bits
