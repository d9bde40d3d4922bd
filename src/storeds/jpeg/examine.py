"""Judges a picture: by its structure, by one strict decode, and by its codes if that decode warns."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import simplejpeg
from PIL import Image

from storeds.jpeg.formats import examine_other
from storeds.jpeg.markers import EOI, MAX_PIXELS, SOI, Frame, Structure, has_all_restarts, parse, without_metadata
from storeds.jpeg.rebuild import with_intervals_in_place
from storeds.jpeg.triage import Finding, find_in_data, triage, without_filling
from storeds.records.fields import Verdict

__all__ = ["examine", "inspect_jpeg", "repair"]

# Limit of pixels times scans, the work of decoding a progressive file: twice a phone's largest picture in ten scans.
_MAX_WORK = 1 << 31
# libjpeg ignores the parameters that this warning is about.
_WITHOUT_EFFECT = "Invalid SOS parameters for sequential JPEG"
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")

# Processes that libjpeg-turbo decodes to 8-bit samples.
_PROCESSES = frozenset(("baseline", "extended", "progressive", "extended, arithmetic", "progressive, arithmetic"))
_BITS = (8, 12)
# Messages with which simplejpeg refuses a kind of JPEG, whatever its data.
_REFUSALS = (
    "Unsupported color conversion",
    "Unsupported JPEG data precision",
    "Unsupported JPEG process",
    "Fractional sampling",
    "Not implemented",
    "Sorry, arithmetic",
    "tjDecompressHeader",
    "Could not determine",
)
# The message for an unknown subsampling, and for an invalid table before the first scan.
_NO_HEADER = "tjDecompressHeader"
_LUMA = frozenset(((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4)))
# Warnings about metadata change no pixel, and hide later ones: libjpeg keeps the first.
_HARMLESS = (
    "Warning: unknown JFIF revision",
    "Unknown Adobe color transform",
    "Corrupt JPEG data: bad ICC marker",
)
_EXTRANEOUS = "Corrupt JPEG data: "


class _NotDecodableError(ValueError):
    """simplejpeg decodes no JPEG of this kind, damaged or not: 12 bits, lossless, an unusual subsampling."""


def examine(blob: bytes) -> Verdict:
    """Judge a picture by its structure and by whether it decodes without a warning.

    A pure function of the bytes that raises for none. Thread-safe; works in several processes at once.
    """
    if not blob.startswith(SOI):
        return examine_other(blob)
    finding = inspect_jpeg(blob)
    recovered = 0.0 if finding.recovered is None else finding.recovered
    return Verdict(finding.kind, recovered, finding.exact, finding.reason)


def inspect_jpeg(blob: bytes, *, deep: bool = False) -> Finding:
    """Return what is wrong with the structure and the data of `blob`, which should be a JPEG.

    A pure function that raises for no bytes. Thread-safe.

    Parameters
    ----------
    deep : bool
        Follow the codes of every picture, which takes about 20 times as long as a decode. This finds surplus bytes that
        decoders skip silently: up to eight before a restart marker.
    """
    finding = triage(blob)
    frame = finding.frame
    if frame is None or not finding.recovered:
        return finding
    pixels = frame.width * frame.height
    # For several scans a decoder holds all coefficients in memory, and for a damaged file it fills in what is missing.
    if pixels > MAX_PIXELS and (finding.scans > 1 or finding.is_damaged):
        return finding
    if finding.scans * pixels > _MAX_WORK:
        reason = f"{finding.scans} scans of {frame.width} x {frame.height} pixels are more than any real picture has"
        return replace(finding, kind="corrupt_data", reason=reason, recovered=0.0, exact=False)
    if finding.recovered == 1.0:
        whole = repair(blob, finding) if finding.is_damaged else blob
        finding = _inspect_data(whole, finding, frame, deep=deep)
    if finding.is_damaged and not _is_decodable(repair(blob, finding), frame):
        reason = f"{finding.reason}; the rest does not decode"
        return replace(finding, recovered=0.0, exact=True, reason=reason)
    return finding


def _inspect_data(blob: bytes, finding: Finding, frame: Frame, *, deep: bool) -> Finding:
    """Return what a strict decode finds in the data of a whole structure, or `finding`."""
    try:
        warning = _first_message(blob, frame, strict=True)
    except _NotDecodableError:
        warning, deep = None, True
    if warning is None and not deep:
        return finding
    found = parse(blob)
    inside = find_in_data(blob, found, found.end - len(EOI))
    if inside is not None:
        return replace(inside, reason=f"{inside.reason} ({warning or 'decoders do not warn'})")
    if warning is None or finding.kind == "corrupt_data":  # the warning is about surplus bytes outside the scans
        return finding
    reason = f"its structure is whole, but libjpeg warns: {warning}"
    share = 1.0 if warning.startswith(_WITHOUT_EFFECT) else 0.0
    return replace(finding, kind="corrupt_data", reason=reason, recovered=share, exact=share == 1.0)


def repair(blob: bytes, finding: Finding | None = None) -> bytes:
    """Make the smallest change to a damaged JPEG that lets a decoder finish.

    Parameters
    ----------
    blob : bytes
        Any bytes.
    finding : Finding, optional
        Result of `triage` for `blob`. Without it, `repair` walks the markers, a few percent of the time of a decode.

    Returns
    -------
    bytes
        `blob` up to the end of its last whole part, followed by an end marker. The identical object if it is not a
        JPEG, has no picture, or reaches its end marker with all restart markers. A segment that is cut is dropped,
        since it would take the end marker for its data. No pixel is guessed: what was decodable decodes to the same
        pixels. Where restart markers are damaged or missing, the intervals that are left get their places, see
        ``storeds.jpeg.rebuild.with_intervals_in_place``.
    """
    data = bytes(blob)
    if not data.startswith(SOI):
        return blob
    found = parse(data)
    ended = _with_end(data, found, finding)
    ended = ended if all(has_all_restarts(found, scan) for scan in found.scans) else with_intervals_in_place(ended)
    return blob if ended == data else ended


def _with_end(blob: bytes, found: Structure, finding: Finding | None) -> bytes:
    """Return a JPEG up to the end of its last whole part, with an end marker."""
    if found.ending == "eoi":
        return blob
    if finding is None or finding.offset is None:
        _, found = without_filling(blob, found)
        has_picture, end = bool(found.scans), found.end
    else:
        has_picture, end = bool(found.scans) and finding.kind != "truncated_header", finding.offset
    if not has_picture:
        return blob
    assert found.frame is not None
    # Nothing is known about the places of intervals in arithmetic coding. Decoders continue at the next marker.
    if "arithmetic" in found.frame.process and found.ending == "stray" and _RESTART.search(blob, end):
        return blob if blob.endswith(EOI) else blob + EOI
    return blob[:end] + EOI


def _is_decodable(blob: bytes, frame: Frame) -> bool:
    """Return whether decoders give pixels for `blob`, which may be damaged but ends with an end marker.

    True for JPEGs of a kind that simplejpeg does not decode.
    """
    try:
        message = _first_message(blob, frame, strict=False)
    except _NotDecodableError:
        return True
    # simplejpeg fails on surplus bytes before the frame header, where libjpeg only warns.
    is_warning = message is not None and message.startswith(_EXTRANEOUS)
    return (message is None or is_warning) and _opens(blob, frame, load=is_warning)


def _first_message(blob: bytes, frame: Frame, *, strict: bool) -> str | None:
    """Decode at an eighth of the size; return libjpeg-turbo's first error, or warning if `strict`, about the data.

    Pillow hides libjpeg's warnings; simplejpeg raises on each. So this decode finds damage that leaves the structure
    whole: invalid codes, data that end early, surplus bytes, tables with which no scan can be decoded. It takes half
    the time of a decode and releases the GIL. Warnings about metadata do not count: an unknown JFIF revision or Adobe
    transform, a damaged colour profile. The caller limits the pixels: a progressive file takes 2 bytes of memory per
    sample.

    Raises
    ------
    _NotDecodableError
        simplejpeg decodes no JPEG of this kind.
    """
    if frame.process in _PROCESSES and frame.precision not in _BITS:
        return f"no JPEG of this kind has {frame.precision} bits"
    if frame.process not in _PROCESSES or frame.precision != 8:
        raise _NotDecodableError(f"{frame.process}, {frame.precision} bits")
    message = _decode(blob, frame, strict)
    if message is None:
        return None
    if message.startswith(_HARMLESS):
        message = _decode(without_metadata(blob), frame, strict)
    if message is not None and message.startswith(_REFUSALS):
        if message.startswith(_NO_HEADER) and (_has_usual_sampling(blob) or not _opens(blob, frame, load=True)):
            return "no decoder accepts its headers"
        raise _NotDecodableError(message)
    return message


def _has_usual_sampling(blob: bytes) -> bool:
    """Return whether simplejpeg supports the subsampling, so that it refuses the headers for another reason."""
    components = parse(blob).components
    factors = [(component.h, component.v) for component in components]
    last = {factors[0], (1, 1)} if len(factors) == 4 else {(1, 1)}
    usual = factors[0] in _LUMA and set(factors[1:3]) <= {(1, 1)} and set(factors[3:]) <= last
    return len(factors) == 1 or (len(factors) in (3, 4) and usual)


def _decode(blob: bytes, frame: Frame, strict: bool) -> str | None:
    colorspace = "CMYK" if frame.components == 4 else "GRAY"
    try:
        # simplejpeg ignores min_factor without a minimum size.
        simplejpeg.decode_jpeg(blob, colorspace=colorspace, min_height=1, min_width=1, min_factor=8, strict=strict)
    except ValueError as error:
        return str(error)
    return None


def _opens(blob: bytes, frame: Frame, *, load: bool) -> bool:
    """Return whether Pillow accepts the header, which it parses itself, and with `load` the data."""
    if frame.width * frame.height > (Image.MAX_IMAGE_PIXELS or 0):
        return True  # Pillow would warn of, or refuse, the size alone
    try:
        with Image.open(io.BytesIO(blob)) as image:
            if load:
                image.load()
            return True
    except Exception:  # damaged bytes make it raise errors of any type
        return False
