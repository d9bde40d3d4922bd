"""Examines a JPEG: its structure, one strict decode, and only where that warns the codes, to name what is wrong."""

from __future__ import annotations

from dataclasses import replace

from storeds.jpeg.codes import in_data
from storeds.jpeg.finding import Finding
from storeds.jpeg.repair import repair
from storeds.jpeg.strict import NotDecodableError, is_decodable, probe
from storeds.jpeg.structure import EOI, parse
from storeds.jpeg.triage import triage

__all__ = ["examine_jpeg"]


# libjpeg ignores the parameters that it warns of.
_WITHOUT_EFFECT = "Invalid SOS parameters for sequential JPEG"


def examine_jpeg(blob: bytes) -> Finding:
    """Return what is wrong with `blob`, which should be a JPEG: in its structure, and in its data.

    A pure function that raises for no bytes. Thread-safe.
    """
    finding = triage(blob)
    frame = finding.frame
    if frame is None or not finding.recovered:
        return finding
    if finding.recovered == 1.0:
        finding = _in_data(repair(blob, finding), finding)
    if finding.is_damaged and not is_decodable(repair(blob, finding), frame):
        reason = f"{finding.reason}; what is there does not decode"
        return replace(finding, recovered=0.0, exact=True, reason=reason)
    return finding


def _in_data(blob: bytes, finding: Finding) -> Finding:
    """Return `finding`, of a whole structure, or what a strict decode finds in the data."""
    assert finding.frame is not None
    try:
        warning = probe(blob, finding.frame)
    except NotDecodableError:
        warning = None
    if warning is None:
        return finding
    found = parse(blob)
    inside = in_data(blob, found, found.end - len(EOI))
    if inside is not None:
        return replace(inside, reason=f"{inside.reason} ({warning})")
    reason = f"its structure is whole, but libjpeg says: {warning}"
    share = 1.0 if warning.startswith(_WITHOUT_EFFECT) else 0.0
    return replace(finding, kind="corrupt_data", reason=reason, recovered=share, exact=share == 1.0)
