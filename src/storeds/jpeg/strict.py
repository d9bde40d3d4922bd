"""Decodes a JPEG once at an eighth of its size, and returns what libjpeg-turbo has against its data.

Pillow shows no warning of libjpeg's. simplejpeg raises on each, so this decode tells damage that leaves the structure whole:
codes that make no sense, data that end too early, bytes left over, tables that no scan can be read with.
"""

from __future__ import annotations

import io

import simplejpeg
from PIL import Image

from storeds.jpeg.finding import Frame
from storeds.jpeg.structure import parse

__all__ = ["NotDecodableError", "is_decodable", "probe"]

# Processes that libjpeg-turbo decodes to 8-bit samples.
_PROCESSES = frozenset(("baseline", "extended", "progressive", "extended, arithmetic", "progressive, arithmetic"))
_BITS = (8, 12)
# What simplejpeg has against a kind of JPEG, whatever its data.
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
# Its refusal where it does not know the subsampling, and where any table before the first scan makes no sense.
_NO_HEADER = "tjDecompressHeader"
_LUMA = frozenset(((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4)))
# Warnings about metadata, which change no pixel and hide what comes later: libjpeg keeps the first warning.
_HARMLESS = (
    "Warning: unknown JFIF revision",
    "Unknown Adobe color transform",
    "Corrupt JPEG data: bad ICC marker",
)
_EXTRANEOUS = "Corrupt JPEG data: "
_COM, _SOS, _APP0, _APP15, _FILL = 0xFE, 0xDA, 0xE0, 0xEF, 0xFF


class NotDecodableError(ValueError):
    """simplejpeg decodes no JPEG of this kind, damaged or not: 12 bits, lossless, an unusual subsampling."""


def probe(blob: bytes, frame: Frame) -> str | None:
    """Return the first warning or error of libjpeg-turbo about the data of `blob`, None if it has none.

    Parameters
    ----------
    blob : bytes
        A JPEG whose structure `storeds.jpeg.triage` calls whole. Bytes after the end marker are not looked at.
    frame : Frame
        ``finding.frame``. The caller bounds its pixels: a progressive file takes 2 bytes of memory for each sample.

    Raises
    ------
    NotDecodableError
        simplejpeg decodes no JPEG of this kind: 12 bits, lossless, hierarchical, an unusual subsampling.

    Notes
    -----
    Takes about half the time of a decode, releases Python's lock, and is thread-safe. Warnings about metadata do not count:
    an unknown JFIF revision or Adobe transform, a damaged colour profile.
    """
    return _first(blob, frame, strict=True)


def is_decodable(blob: bytes, frame: Frame) -> bool:
    """Return whether decoders give pixels for `blob`, which may be damaged but ends with an end marker.

    True for JPEGs of a kind that simplejpeg does not decode. Thread-safe.
    """
    try:
        message = _first(blob, frame, strict=False)
    except NotDecodableError:
        return True
    # simplejpeg fails on bytes that belong to nothing before the frame header, which is but a warning of libjpeg's.
    is_warning = message is not None and message.startswith(_EXTRANEOUS)
    return (message is None or is_warning) and _opens(blob, frame, load=is_warning)


def _first(blob: bytes, frame: Frame, *, strict: bool) -> str | None:
    """Return the first error, or warning if `strict`, that is about more than a header."""
    if frame.process in _PROCESSES and frame.precision not in _BITS:
        return f"no JPEG of this kind has {frame.precision} bits"
    if frame.process not in _PROCESSES or frame.precision != 8:
        raise NotDecodableError(f"{frame.process}, {frame.precision} bits")
    message = _decode(blob, frame, strict)
    if message is not None and message.startswith(_HARMLESS):
        message = _decode(_without_metadata(blob), frame, strict)
    if message is not None and message.startswith(_REFUSALS):
        if message.startswith(_NO_HEADER) and (_is_sampled_as_usual(blob) or not _opens(blob, frame, load=True)):
            return "no decoder accepts its headers"
        raise NotDecodableError(message)
    return message


def _is_sampled_as_usual(blob: bytes) -> bool:
    """Return whether simplejpeg knows this subsampling, so that it refuses the headers for something else."""
    components = parse(blob).components
    factors = [(component.h, component.v) for component in components]
    last = {factors[0], (1, 1)} if len(factors) == 4 else {(1, 1)}
    usual = factors[0] in _LUMA and set(factors[1:3]) <= {(1, 1)} and set(factors[3:]) <= last
    return len(factors) == 1 or (len(factors) in (3, 4) and usual)


def _decode(blob: bytes, frame: Frame, strict: bool) -> str | None:
    colorspace = "CMYK" if frame.components == 4 else "GRAY"
    try:
        # min_factor takes effect only where a least size is given.
        simplejpeg.decode_jpeg(blob, colorspace=colorspace, min_height=1, min_width=1, min_factor=8, strict=strict)
    except ValueError as error:
        return str(error)
    return None


def _opens(blob: bytes, frame: Frame, *, load: bool) -> bool:
    """Return whether Pillow takes the header, which it reads by itself, and if `load` the data."""
    if frame.width * frame.height > (Image.MAX_IMAGE_PIXELS or 0):
        return True  # Pillow would warn of, or refuse, the size alone
    try:
        with Image.open(io.BytesIO(blob)) as image:
            if load:
                image.load()
            return True
    except Exception:  # it raises whatever it likes on damaged bytes
        return False


def _without_metadata(blob: bytes) -> bytes:
    """Return a copy in which the APPn segments before the first scan are comments."""
    copy = bytearray(blob)
    at = 2
    while at + 4 <= len(blob) and blob[at] == 0xFF and blob[at + 1] >= 0xC0 and blob[at + 1] != _SOS:
        if blob[at + 1] == _FILL:
            at += 1
            continue
        if _APP0 <= blob[at + 1] <= _APP15:
            copy[at + 1] = _COM
        at += 2 + (blob[at + 2] << 8 | blob[at + 3])
    return bytes(copy)
