"""Examines a picture: its structure, one strict decode, and only where that warns the codes, to name what is wrong."""

from __future__ import annotations

from dataclasses import replace

from storeds.jpeg.codes import in_data
from storeds.jpeg.finding import MAX_PIXELS, Finding
from storeds.jpeg.other import examine_other
from storeds.jpeg.repair import repair
from storeds.jpeg.strict import NotDecodableError, is_decodable, probe
from storeds.jpeg.structure import EOI, SOI, parse
from storeds.jpeg.triage import triage
from storeds.records.fields import Verdict

__all__ = ["examine", "examine_jpeg"]

# Pixels times scans: the work of decoding a progressive file. A phone's largest picture in ten scans takes half of it.
_MAX_WORK = 1 << 31
# libjpeg ignores the parameters that it warns of.
_WITHOUT_EFFECT = "Invalid SOS parameters for sequential JPEG"


def examine(blob: bytes) -> Verdict:
    """Return the verdict on a picture: its structure, and whether it decodes without a warning.

    A pure function of the bytes that raises for none. Thread-safe; may be called in several processes.
    """
    if not blob.startswith(SOI):
        return examine_other(blob)
    finding = examine_jpeg(blob)
    recovered = 0.0 if finding.recovered is None else finding.recovered
    return Verdict(finding.kind, recovered, finding.exact, finding.reason)


def examine_jpeg(blob: bytes, *, deep: bool = False) -> Finding:
    """Return what is wrong with `blob`, which should be a JPEG: in its structure, and in its data.

    A pure function that raises for no bytes. Thread-safe.

    Parameters
    ----------
    deep : bool
        Follow the codes of every picture, some twenty times the time of a decode. This finds bytes that belong to nothing,
        which decoders pass over in silence: up to eight before a restart marker.
    """
    finding = triage(blob)
    frame = finding.frame
    if frame is None or not finding.recovered:
        return finding
    pixels = frame.width * frame.height
    # A decoder would hold all coefficients of several scans in memory, and fill what a damaged file lacks.
    if pixels > MAX_PIXELS and (finding.scans > 1 or finding.is_damaged):
        return finding
    if finding.scans * pixels > _MAX_WORK:
        reason = f"{finding.scans} scans of {frame.width} x {frame.height} pixels are more than any picture has"
        return replace(finding, kind="corrupt_data", reason=reason, recovered=0.0, exact=False)
    if finding.recovered == 1.0:
        whole = repair(blob, finding) if finding.is_damaged else blob
        finding = _in_data(whole, finding, deep=deep)
    if finding.is_damaged and not is_decodable(repair(blob, finding), frame):
        reason = f"{finding.reason}; what is there does not decode"
        return replace(finding, recovered=0.0, exact=True, reason=reason)
    return finding


def _in_data(blob: bytes, finding: Finding, *, deep: bool) -> Finding:
    """Return `finding`, of a whole structure, or what a strict decode finds in the data."""
    assert finding.frame is not None
    try:
        warning = probe(blob, finding.frame)
    except NotDecodableError:
        warning, deep = None, True
    if warning is None and not deep:
        return finding
    found = parse(blob)
    inside = in_data(blob, found, found.end - len(EOI))
    if inside is not None:
        return replace(inside, reason=f"{inside.reason} ({warning or 'decoders do not warn'})")
    if warning is None or finding.kind == "corrupt_data":  # as bytes outside the scans belong to nothing
        return finding
    reason = f"its structure is whole, but libjpeg says: {warning}"
    share = 1.0 if warning.startswith(_WITHOUT_EFFECT) else 0.0
    return replace(finding, kind="corrupt_data", reason=reason, recovered=share, exact=share == 1.0)
