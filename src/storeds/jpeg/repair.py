"""Makes the least change to a damaged JPEG that lets a decoder finish."""

from __future__ import annotations

import re

from storeds.jpeg.finding import Finding
from storeds.jpeg.structure import EOI, parse
from storeds.jpeg.triage import triage

__all__ = ["repair"]

_RESTART = re.compile(rb"\xff[\xd0-\xd7]")


def repair(blob: bytes, finding: Finding | None = None) -> bytes:
    """Return `blob` up to the end of its last whole part, with an end marker; or the identical object.

    Parameters
    ----------
    blob : bytes
        Any bytes. Changed is only a JPEG that has a picture and ends, or stops making sense, before its end marker. A
        segment that is itself cut is dropped, because it would swallow the marker as its data.
    finding : Finding, optional
        What `triage` says about `blob`, where it is known already.

    Returns
    -------
    bytes
        What was decodable before decodes to the same pixels; no pixel is guessed. Data with restart markers that stop
        making sense, but go on with one, keep all bytes: decoders find the next marker, and the pixels after it, by themselves.
    """
    finding = finding or triage(blob)
    if finding.offset is None or not _has_picture(finding) or parse(bytes(blob)).ending == "eoi":
        return blob
    if finding.kind == "corrupt_data" and finding.restart_interval and _RESTART.search(blob, finding.offset):
        return blob if blob.endswith(EOI) else blob + EOI
    return blob[: finding.offset] + EOI


def _has_picture(finding: Finding) -> bool:
    if finding.kind == "corrupt_data":
        return finding.scans > 0 or finding.scan is not None
    return finding.kind in ("missing_eoi", "truncated_scan")
