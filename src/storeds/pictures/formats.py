"""Names the format of bytes, and checks pictures that are not JPEGs: by one decode, and by what Pillow does not check."""

from __future__ import annotations

import codecs
import io
import itertools
import logging
import math
import re
import struct
import zlib
from typing import NamedTuple

from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError

from storeds.pictures.header import MAX_PIXELS, METADATA, SOI, parse, read_header

__all__ = [
    "PictureHeader",
    "decode_problem",
    "decode_reason",
    "format_of_picture",
    "open_picture",
    "read_picture_header",
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


def format_of_picture(blob: bytes) -> str:
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


_TEXTS = frozenset((b"tEXt", b"zTXt", b"iTXt", b"iCCP"))  # chunks of a PNG that Pillow inflates or counts
_METADATA = _TEXTS | {b"eXIf", b"gAMA", b"cHRM", b"sRGB", b"pHYs"}
_SOS = 0xDA  # marks the first scan of a JPEG
_HEADER_END = len(_PNG) + 25  # of a PNG: its signature and its chunk IHDR
_NO_DATA = b"\0\0\0\0IDAT\x35\xaf\x06\x1e"  # an empty chunk of pixels of a PNG
_RIFF = 16  # the bytes by which Pillow recognises a WebP
_MOST_TEXTS = 60  # each of at most 1 MiB: Pillow takes 64 MiB


def open_picture(blob: bytes, load_up_to: int = 0) -> ImageFile.ImageFile:
    """Open a picture as `PIL.Image.open` does, and load its pixels if it has at most `load_up_to`.

    The limit of the process, ``PIL.Image.MAX_IMAGE_PIXELS``, does not apply to pictures of at most `MAX_PIXELS` or
    `load_up_to` pixels: it would have to be set in every worker. Metadata of a PNG or JPEG that Pillow refuses,
    such as a text that inflates to more than 1 MiB, are left out: no pixel needs them.

    Raises
    ------
    PIL.Image.DecompressionBombError
        A larger picture of one of the few formats that apply it themselves, such as WebP.
    Exception
        Pillow's own errors, of any type, for damaged bytes.
    """
    try:
        return _opened(blob, load_up_to)
    except Exception:
        less = _with_less_metadata(blob) if blob.startswith((_PNG, SOI)) else blob
        if len(less) == len(blob):
            raise
    return _opened(less, load_up_to)


def _opened(blob: bytes, load_up_to: int) -> ImageFile.ImageFile:
    image = _identified(blob, load_up_to)
    if image.width * image.height <= load_up_to:
        tile = getattr(image, "_tile_size", None)  # of a TIFF, for which Pillow checks its limit where it allocates
        if tile is not None and math.prod(tile) <= load_up_to:
            image.im = Image.core.new(image.mode, tile)  # type: ignore[attr-defined]
        image.load()
    return image


class _ShortFirstRead(io.BytesIO):
    """A file whose first bytes, all that Pillow reads of a WebP before it applies its limit, do not tell the size."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(_RIFF if self.tell() == 0 else size)


def _webp_pixels(blob: bytes) -> int:
    """Return how many pixels the header of a WebP claims; 0 if that is unknown."""
    chunk, head = blob[12:16], blob[:30].ljust(30, b"\0")
    if chunk == b"VP8X":
        return (int.from_bytes(head[24:27], "little") + 1) * (int.from_bytes(head[27:30], "little") + 1)
    if chunk == b"VP8 ":
        return (int.from_bytes(head[26:28], "little") & 0x3FFF) * (int.from_bytes(head[28:30], "little") & 0x3FFF)
    bits = int.from_bytes(head[21:25], "little") if chunk == b"VP8L" else -1
    return ((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1) if bits >= 0 else 0


def _identified(blob: bytes, load_up_to: int = 0) -> ImageFile.ImageFile:
    """Return the picture that the first format of Pillow reads."""
    is_ours = blob[8:12] == b"WEBP" and 0 < _webp_pixels(blob) <= max(load_up_to, MAX_PIXELS)
    opened = _ShortFirstRead if is_ours else io.BytesIO
    for register in (Image.preinit, Image.init):
        register()
        for name in [*Image.ID]:
            factory, accepts = Image.OPEN[name]
            try:
                accepted = accepts is None or accepts(blob[:16])
                if accepted and not isinstance(accepted, str):  # a text says that Pillow lacks support for it
                    return factory(opened(blob), "")
            except (SyntaxError, IndexError, TypeError, struct.error):  # another format, as for Pillow
                continue
    raise UnidentifiedImageError("cannot identify image file")


def _with_less_metadata(blob: bytes) -> bytes:
    """Return a PNG or a JPEG without those of its metadata that Pillow refuses."""
    start, header, pieces = _metadata(blob)
    kept, at, texts = list[bytes](), 0, 0
    for first, last in pieces:
        piece = blob[first:last]
        kept.append(blob[at:first])
        at = last
        if piece[4:8] in _TEXTS:
            texts += 1
            if texts > _MOST_TEXTS or len(piece) > PngImagePlugin.MAX_TEXT_CHUNK:
                continue
        if _takes(header[:start] + piece + header[start:]):
            kept.append(piece)
    return b"".join([*kept, blob[at:]])


def _metadata(blob: bytes) -> tuple[int, bytes, list[tuple[int, int]]]:
    """Return where metadata may begin in a PNG or a JPEG, its header without any, and where its metadata are."""
    if blob.startswith(SOI):
        segments = itertools.takewhile(lambda segment: segment[0] != _SOS, parse(blob).segments)
        spans = [(at, stop, marker in METADATA) for marker, at, stop in segments]
        end = spans[-1][1] if spans else len(SOI)
        rest = b"".join(blob[at:stop] for at, stop, is_metadata in spans if not is_metadata)
        return len(SOI), SOI + rest + blob[end : end + 64], [span[:2] for span in spans if span[2]]
    at, found = _HEADER_END, list[tuple[int, int]]()
    while at < len(blob):
        end = min(at + 12 + int.from_bytes(blob[at : at + 4], "big"), len(blob))
        found += [(at, end)] if blob[at + 4 : at + 8] in _METADATA else []
        at = end
    return _HEADER_END, blob[:_HEADER_END] + _NO_DATA, found


def _takes(blob: bytes) -> bool:
    """Return whether Pillow takes a picture with its metadata. It stops inflating at its limit."""
    try:
        _identified(blob)
    except Exception:  # of any type
        return False
    return True


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
        with open_picture(blob) as image:
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
    try:
        open_picture(blob, MAX_PIXELS).close()
    except Image.DecompressionBombError:
        pass
    except Exception as error:  # damaged bytes make decoders raise errors of any type
        opens = read_picture_header(blob) is not None
        what = "it does not decode" if opens else "Pillow cannot open it"
        return what if isinstance(error, UnidentifiedImageError) else f"{what}: {decode_reason(error)}", opens
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
