"""Names the format of bytes, and judges pictures that are not JPEGs: by their structure, and by whether they decode."""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image, ImageFile, UnidentifiedImageError

from storeds.jpeg.containers import check_bmp, check_codestream, check_gif, check_isobmff, check_webp
from storeds.jpeg.markers import MAX_PIXELS, read_header
from storeds.jpeg.png import check_png
from storeds.jpeg.tiff import check_tiff
from storeds.records.fields import Verdict

__all__ = ["PictureHeader", "check_other", "examine_other", "read_picture_header", "sniff"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"%PDF", "PDF"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"8BPS", "PSD"),
    (b"\x93NUMPY", "NPY"),
    (b"qoif", "QOI"),
)
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}
_TEXT = (
    ((b"<!doctype html", b"<html", b"<head", b"<body"), "HTML"),
    ((b"<?xml", b"<svg", b"<error"), "XML"),
    ((b"{", b"["), "JSON"),
)


def sniff(blob: bytes) -> str:
    """Return the name of the format of `blob`, or ``empty``, ``zeros``, ``text`` or ``unknown``."""
    if not blob:
        return "empty"
    head = blob[:512]
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "MP4")
    if not head.strip(b"\x00"):
        return "zeros"
    return _sniff_text(head)


def _sniff_text(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for openings, name in _TEXT:
        if start.startswith(openings):
            return name
    return "text" if _is_text(head) else "unknown"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(head) - error.start > 3:  # otherwise the head may end within a character
            return False
        text = head[: error.start].decode("utf-8")
    return bool(text) and all(character.isprintable() or character.isspace() for character in text)


class PictureHeader(NamedTuple):
    """What the header of a picture says.

    Attributes
    ----------
    height, width : int
        Pixels as stored, before any EXIF orientation.
    mode : str
        Pillow's mode, for example ``L`` or ``RGB``.
    format : str
        Pillow's name of the format, for example ``JPEG`` or ``PNG``.
    """

    height: int
    width: int
    mode: str
    format: str


_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


def read_picture_header(blob: bytes) -> PictureHeader | None:
    """Return the header of a picture of any format that Pillow reads, or None if it is not readable. Decodes no pixels."""
    jpeg = read_header(blob)
    if jpeg is not None and jpeg.components in _JPEG_MODES:
        return PictureHeader(jpeg.height, jpeg.width, _JPEG_MODES[jpeg.components], "JPEG")
    try:
        with Image.open(io.BytesIO(blob)) as image:
            return PictureHeader(image.height, image.width, image.mode, image.format or "")
    except Exception:  # damaged bytes make decoders raise errors of any type
        return None


def check_other(blob: bytes) -> Verdict | None:
    """Judge a picture that is not a JPEG by its structure alone, without decoding it.

    Supports PNG (with the checksum of every chunk), WebP, GIF, TIFF, BMP, AVIF, HEIC and JPEG 2000.

    Returns
    -------
    Verdict or None
        None for all other bytes: only a decoder can tell whether they are a picture. Otherwise one of

        - ``intact``, ``trailing_data``: every part is there. Decode it. Data inside a part may still be invalid; then
          the decoder raises, and `storeds.jpeg.examine` gives the kind.
        - ``missing_eoi``, with `recovered` 1.0: only the end of a PNG or GIF is missing. It decodes as it is.
        - ``truncated_file``, ``truncated_header``, ``corrupt_data``: damage without a repair. `recovered` is the share
          of the rows of a PNG, and 0.0 for other formats. Pillow raises for such files, unless
          ``PIL.ImageFile.LOAD_TRUNCATED_IMAGES`` is set.

    Notes
    -----
    Raises for no bytes, takes time in proportion to their number, and is thread-safe. While
    ``PIL.ImageFile.LOAD_TRUNCATED_IMAGES`` is set, Pillow does not report missing rows of a PNG. Then this function
    counts the rows, which takes about as long as a decode.
    """
    return _check(blob, inflate=ImageFile.LOAD_TRUNCATED_IMAGES)


def examine_other(blob: bytes) -> Verdict:
    """Judge a picture that is not a JPEG by its structure and by whether it decodes.

    ``not_jpeg`` means that Pillow cannot open it, or that Pillow cannot decode it and `check_other` does not support
    the format: HTML, zeros, empty bytes. While ``PIL.ImageFile.LOAD_TRUNCATED_IMAGES`` is set, a decode proves nothing.
    Then the structure alone decides, and other formats (ICO, TGA, …) are ``not_jpeg`` too.

    Raises for no bytes. Thread-safe. Takes about as long as one decode, or two for a PNG.
    """
    found = _check(blob, inflate=True)
    if found is not None and not found.is_whole and found.kind != "missing_eoi":
        return found
    kind, problem = _decode(blob)
    if kind == "intact" and found is not None:
        return found
    if kind == "intact" and ImageFile.LOAD_TRUNCATED_IMAGES:
        kind, problem = "not_jpeg", "while PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, decoding it proves nothing"
    elif kind == "corrupt_data" and (found is None or not found.is_whole):
        kind = "not_jpeg" if found is None else "truncated_file"
    if kind == "intact":
        return Verdict("intact")
    what = found.reason if found is not None and found.reason else f"it is not a JPEG but {sniff(blob)}"
    return Verdict(kind, 0.0, reason=f"{what}; {problem}")


def _check(blob: bytes, *, inflate: bool) -> Verdict | None:
    match sniff(blob):
        case "PNG":
            return check_png(blob, inflate=inflate)
        case "WebP":
            return check_webp(blob)
        case "GIF":
            return check_gif(blob)
        case "TIFF":
            return check_tiff(blob)
        case "BMP":
            return check_bmp(blob)
        case "AVIF" | "HEIC" | "HEIF":
            return check_isobmff(blob)
        case "JPEG 2000":
            return check_codestream(blob) if blob.startswith(b"\xff\x4f") else check_isobmff(blob)
    return None


def _decode(blob: bytes) -> tuple[str, str]:
    """Decode with Pillow; return the kind of the result and why. A picture too large to decode counts as ``intact``."""
    try:
        image = Image.open(io.BytesIO(blob))
    except UnidentifiedImageError:  # its message shows a memory address
        return "not_jpeg", "Pillow cannot open it"
    except (Warning, Image.DecompressionBombError):  # a process may turn warnings into errors
        return "intact", ""
    except Exception as error:  # damaged bytes make decoders raise errors of any type
        return "not_jpeg", f"Pillow cannot open it: {type(error).__name__}: {error}"
    try:
        with image:
            if image.width * image.height <= MAX_PIXELS:
                image.load()
    except Warning:
        return "intact", ""
    except Exception as error:
        return "corrupt_data", f"it does not decode: {type(error).__name__}: {error}"
    return "intact", ""
