"""Makes the least change to a damaged JPEG that lets a decoder finish."""

from __future__ import annotations

import re

from storeds.jpeg.finding import Finding
from storeds.jpeg.structure import EOI, SOI, parse
from storeds.jpeg.triage import without_filling

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
        What `triage` says about `blob`, where it is known already. Without one the markers are walked, which takes a few
        percent of the time of a decode.

    Returns
    -------
    bytes
        What was decodable before decodes to the same pixels; no pixel is guessed. Data with restart markers that stop
        making sense, but go on with one, keep all bytes: decoders find the next marker, and the pixels after it, by themselves.
    """
    data = bytes(blob)
    if not data.startswith(SOI):
        return blob
    found = parse(data)
    if found.ending == "eoi":
        return blob
    if finding is None or finding.offset is None:
        _, found = without_filling(data, found)
        has_picture, end = bool(found.scans), found.end
    else:
        has_picture, end = bool(found.scans) and finding.kind != "truncated_header", finding.offset
    if not has_picture:
        return blob
    if found.ending == "stray" and found.interval and _RESTART.search(data, end):
        return blob if data.endswith(EOI) else blob + EOI
    return blob[:end] + EOI
