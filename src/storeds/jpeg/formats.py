"""Names the format of bytes, and checks pictures that are not JPEGs: by one decode, and by what Pillow does not check."""

from __future__ import annotations

import codecs
import io
import logging
import re
import zlib
from typing import NamedTuple

from PIL import Image, ImageFile, UnidentifiedImageError

from storeds.jpeg.header import MAX_PIXELS, read_header

__all__ = [
    "PictureHeader",
    "decode_problem",
    "decode_reason",
    "read_picture_header",
    "sniff",
    "structure_problem",
    "warn_of_truncated_images",
]

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_2000 = (b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")
_MAGIC = {
    "PNG": (_PNG,),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+"),
    "JPEG 2000": _JPEG_2000,
    "JPEG XL": (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n"),
    "PDF": (b"%PDF",),
    "ZIP": (b"PK\x03\x04",),
    "gzip": (b"\x1f\x8b",),
    "ICO": (b"\x00\x00\x01\x00",),
    "PSD": (b"8BPS",),
    "NPY": (b"\x93NUMPY",),
    "QOI": (b"qoif",),
}
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}
_TEXT = {
    "HTML": (b"<!doctype html", b"<html", b"<head", b"<body"),
    "XML": (b"<?xml", b"<svg", b"<error"),
    "JSON": (b"{", b"["),
}


def sniff(blob: bytes) -> str:
    """Return the name of the format of `blob`, or ``empty``, ``zeros``, ``text`` or ``unknown``."""
    if not blob:
        return "empty"
    head = blob[:512]
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "MP4")
    if not head.strip(b"\x00"):
        return "zeros"
    for beginning, formats in ((head, _MAGIC), (head.removeprefix(b"\xef\xbb\xbf").lstrip().lower(), _TEXT)):
        for name, openings in formats.items():
            if beginning.startswith(openings):
                return name
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except UnicodeDecodeError:
        return "unknown"
    return "text" if text and all(each.isprintable() or each.isspace() for each in text) else "unknown"


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


def structure_problem(blob: bytes) -> tuple[str, bool]:
    """Check what Pillow does not: the checksums of the chunks of a PNG, and the end of a JPEG 2000.

    Return what is wrong, and whether only the end chunk of a PNG is missing, so that all pixels are there. The text is
    empty if nothing is wrong, and for any other format. Takes about a tenth of the time of a decode.
    """
    if blob.startswith(_JPEG_2000) and blob.find(b"\xff\xd9", blob.rfind(b"\xff\x93")) < 0:
        return f"it is cut at byte {len(blob)}, before its end marker", False
    if not blob.startswith(_PNG):
        return "", False
    view, at, has_data = memoryview(blob), len(_PNG), False
    while at + 8 <= len(blob):
        name, end = blob[at + 4 : at + 8], at + 12 + int.from_bytes(blob[at : at + 4], "big")
        if end > len(blob):
            return f"it is cut in chunk {name!r}, which begins at byte {at}", has_data and name == b"IEND"
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            return f"the checksum of chunk {name!r}, bytes {at} to {end}, does not match", False
        if name == b"IEND":
            return "", False
        has_data, at = has_data or name == b"IDAT", end
    return f"it is cut at byte {len(blob)}, before the end chunk", has_data


_ADDRESS = re.compile(r" ?<_io\.BytesIO object at 0x[0-9a-f]+>")


def decode_reason(error: Exception) -> str:
    """Return why a decoder failed, without the memory address in Pillow's message: equal bytes give an equal text."""
    return f"{type(error).__name__}: {_ADDRESS.sub('', str(error))}"


def decode_problem(blob: bytes) -> tuple[str, bool]:
    """Decode a picture with Pillow; return what is wrong, or an empty text, and whether Pillow opens it.

    A picture of more than `MAX_PIXELS` is opened only.
    """
    warn_of_truncated_images()
    opened = False
    try:
        with Image.open(io.BytesIO(blob)) as image:
            opened = True
            if image.width * image.height <= MAX_PIXELS:
                image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pass
    except Exception as error:  # damaged bytes make decoders raise errors of any type
        what = "it does not decode" if opened else "Pillow cannot open it"
        return what if isinstance(error, UnidentifiedImageError) else f"{what}: {decode_reason(error)}", opened
    return "", True


_LOG = logging.getLogger("storeds")
_warned = False


def warn_of_truncated_images() -> None:
    """Log a warning, once a process, where ``PIL.ImageFile.LOAD_TRUNCATED_IMAGES`` is set."""
    global _warned
    if ImageFile.LOAD_TRUNCATED_IMAGES and not _warned:
        _warned = True
        _LOG.warning(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set in this process: Pillow decodes cut PNG, WebP and other files without "
            "an error, so storeds cannot report them as damaged; JPEGs are still checked (this is logged once)"
        )
