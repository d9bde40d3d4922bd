"""Pictures as files in many encodings and formats.

Pillow and simplejpeg write most of them, and functions here change their bytes. The files in ``pictures`` come from
Debian's ``cjpeg`` (arithmetic coding) and from imagecodecs 2026.10.10 (lossless, JPEG-LS).
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import skimage
from PIL import Image, ImageCms

from jpeg_truth import EOI, anatomy
from photographs import photograph, saved

__all__ = [
    "ENCODINGS",
    "OTHERS",
    "RARE",
    "chunk",
    "encode",
    "exif_with_thumbnail",
    "sampled",
    "save",
    "stored",
    "with_fill_bytes",
    "with_jfif",
    "with_segment",
    "without",
]

Picture = Image.Image


def save(image: Picture, format: str = "JPEG", **options: Any) -> bytes:
    return saved(image, format, **options)


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2) + payload


def with_segment(whole: bytes, marker: int, payload: bytes) -> bytes:
    return whole[:2] + _segment(marker, payload) + whole[2:]


def exif_with_thumbnail(inner: bytes) -> bytes:
    entries = ((0x0103, 3, 6), (0x0201, 4, 56), (0x0202, 4, len(inner)))
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"Exif\0\0II*\0" + struct.pack("<IHIH", 8, 0, 14, 3) + directory + struct.pack("<I", 0) + inner


def with_fill_bytes(whole: bytes) -> bytes:
    """Insert two fill bytes FF before each marker, as the standard allows."""
    parts = anatomy(whole).parts
    return b"".join((b"\xff\xff" if p.kind in ("segment", "EOI") else b"") + whole[p.start : p.stop] for p in parts)


def without(whole: bytes, *markers: int) -> bytes:
    """Remove the segments with these markers."""
    parts = anatomy(whole).parts
    return b"".join(whole[p.start : p.stop] for p in parts if p.kind != "segment" or p.marker not in markers)


def with_jfif(whole: bytes, major: int, minor: int) -> bytes:
    """Declare another version of JFIF. libjpeg warns of versions other than 1, but reads them."""
    at = whole.index(b"JFIF\0") + 5
    return whole[:at] + bytes((major, minor)) + whole[at + 2 :]


def _with_unknown_adobe_transform(whole: bytes) -> bytes:
    """Replace the JFIF header by an Adobe header with an undefined transform. libjpeg warns and assumes YCbCr."""
    return with_segment(without(whole, 0xE0), 0xEE, b"Adobe\0\x64\0\0\0\0\x05")


def _ycck(whole: bytes) -> bytes:
    """Declare the four components of a CMYK file as YCCK, which changes the colours but damages nothing."""
    at = whole.index(b"Adobe") + 11
    return whole[:at] + b"\x02" + whole[at + 1 :]


def sampled(image: Picture, subsampling: str) -> bytes:
    """Return a file with a subsampling that Pillow may not write, such as ``440``, ``411``."""
    pixels = np.ascontiguousarray(image.convert("RGB"))
    return bytes(simplejpeg.encode_jpeg(pixels, 85, colorspace="RGB", colorsubsampling=subsampling))


def _four_lines_of_luma(image: Picture) -> bytes:
    """Return a 4:4:1 file: a 4:1:1 file whose header arranges the blocks vertically."""
    image = image.resize((4 * (image.width // 4), image.height))
    whole = sampled(image, "411")
    at = next(part for part in anatomy(whole).parts if part.marker == 0xC0).start + 5
    taller = struct.pack(">HH", image.height * 4, image.width // 4)
    return whole[:at] + taller + whole[at + 4 : at + 6] + b"\x14" + whole[at + 7 :]


def stored(name: str) -> bytes:
    """Return one of the files in ``pictures``."""
    return (Path(__file__).parent / "pictures" / f"{name}.jpg").read_bytes()


def _extended(whole: bytes) -> bytes:
    """Declare the frame as extended sequential, which includes baseline."""
    frame = next(part for part in anatomy(whole).parts if part.marker == 0xC0)
    return whole[: frame.at] + b"\xc1" + whole[frame.at + 1 :]


def _separate_scans(image: Picture, factor: int, **options: Any) -> bytes:
    """Return a sequential file with one scan per component, built from grayscale files of the planes."""
    luma, *chroma = image.convert("YCbCr").split()
    small = (-(-image.width // factor), -(-image.height // factor))
    files = [save(plane, **options) for plane in (luma, *(plane.resize(small) for plane in chroma))]
    frame = struct.pack(">BHHB", 8, image.height, image.width, 3)
    frame += bytes((1, factor * 17, 0, 2, 17, 0, 3, 17, 0))
    blob = files[0][:2]
    for number, file in enumerate(files, 1):
        for part in anatomy(file).parts:
            if part.marker == 0xC0:
                blob += _segment(0xC0, frame) if number == 1 else b""
            elif part.marker == 0xDA:
                blob += _segment(0xDA, bytes((1, number, 0, 0, 63, 0)))
            elif part.kind == "data" or part.marker in (0xC4, 0xDD) or (part.kind == "segment" and number == 1):
                blob += file[part.start : part.stop]
    return blob + EOI


def _corner(size: tuple[int, int], image: Picture, **options: Any) -> bytes:
    return save(image.crop((0, 0, *size)), **options)


def _icc() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


_MARKERS = b"so it ends: \xff\xd9 and \xff\xd8 begins \xff\xda again \xff\xd9"
Encoder = Callable[[Picture], bytes]
ENCODINGS: dict[str, Encoder] = {
    "4:2:0": lambda p: save(p),
    "4:2:2": lambda p: save(p, subsampling="4:2:2", quality=90),
    "4:4:4": lambda p: save(p, subsampling="4:4:4"),
    "4:4:0": lambda p: sampled(p, "440"),
    "4:1:1": lambda p: sampled(p, "411"),
    "4:4:1": _four_lines_of_luma,
    "grayscale": lambda p: save(p.convert("L")),
    "CMYK": lambda p: save(p.convert("CMYK")),
    "CMYK, subsampled": lambda p: save(p.convert("CMYK"), subsampling=2),
    "CMYK, progressive": lambda p: save(p.convert("CMYK"), progressive=True),
    "YCCK": lambda p: _ycck(save(p.convert("CMYK"))),
    "progressive": lambda p: save(p, progressive=True),
    "progressive 4:4:4": lambda p: save(p, progressive=True, subsampling="4:4:4", quality=90),
    "progressive grayscale": lambda p: save(p.convert("L"), progressive=True),
    "progressive, restart markers": lambda p: save(p, progressive=True, restart_marker_blocks=5),
    "optimised": lambda p: save(p, optimize=True),
    "quality 5": lambda p: save(p, quality=5),
    "quality 98": lambda p: save(p, quality=98),
    "quality 100, optimised, 4:4:4": lambda p: save(p, quality=100, optimize=True, subsampling="4:4:4"),
    "restart after each block": lambda p: save(p, restart_marker_blocks=1),
    "restart every 7 blocks": lambda p: save(p, restart_marker_blocks=7),
    "restart every row": lambda p: save(p, restart_marker_rows=1),
    "restart every 3 rows, grayscale": lambda p: save(p.convert("L"), restart_marker_rows=3),
    "EXIF thumbnail": lambda p: save(p, exif=exif_with_thumbnail(save(p.resize((32, 24))))),
    "ICC profile": lambda p: save(p, icc_profile=_icc()),
    "comment with markers": lambda p: save(p, comment=_MARKERS),
    "APP5 with a whole JPEG": lambda p: with_segment(save(p), 0xE5, save(p.resize((40, 30)))),
    "APP9 of full length": lambda p: with_segment(save(p), 0xE9, (b"\xff\xd9\xff\xda" * 16384)[:65533]),
    "two pictures (MPO)": lambda p: save(p, "MPO", save_all=True, append_images=[p.rotate(180)]),
    "a scan each": lambda p: _separate_scans(p, 1),
    "a scan each, 4:2:0, optimised": lambda p: _separate_scans(p, 2, optimize=True),
    "a scan each, restart markers": lambda p: _separate_scans(p, 2, restart_marker_blocks=3),
    "fill bytes": lambda p: with_fill_bytes(save(p)),
    "extended sequential": lambda p: _extended(save(p)),
    "JFIF 2.02, fill bytes": lambda p: with_fill_bytes(with_jfif(save(p), 2, 2)),
    "JFIF 3.1": lambda p: with_jfif(save(p, progressive=True), 3, 1),
    "unknown Adobe transform": lambda p: _with_unknown_adobe_transform(save(p)),
    "flat": lambda p: save(Image.new("RGB", p.size, (200, 30, 60))),
    "flat, progressive": lambda p: save(Image.new("RGB", p.size, (200, 30, 60)), progressive=True, optimize=True),
}
_TINY = ((1, 1), (1, 17), (17, 1), (7, 9), (8, 8), (15, 33), (16, 16), (31, 63), (65, 3))
for _at, (_width, _height) in enumerate(_TINY):
    _options: dict[str, Any] = ({}, {"progressive": True}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"})[_at % 4]
    ENCODINGS[f"{_width}x{_height}"] = functools.partial(_corner, (_width, _height), **_options)
# Encodings whose codes cannot be followed with the tables of the file alone, or whose pictures are always the same.
RARE: dict[str, Encoder] = {
    "Motion-JPEG, no DHT": lambda p: without(save(p), 0xC4),
    "of a camera": lambda _: (Path(skimage.__file__).parent / "data" / "rocket.jpg").read_bytes(),
    "arithmetic": lambda _: stored("arithmetic"),
    "arithmetic, restart markers": lambda _: stored("arithmetic-restarts"),
    "arithmetic, progressive": lambda _: stored("arithmetic-progressive"),
    "lossless": lambda _: stored("lossless"),
    "lossless, grayscale": lambda _: stored("lossless-grayscale"),
}


@functools.cache
def encode(encoding: str) -> bytes:
    """Return a photograph in an encoding of `ENCODINGS`, `RARE` or `OTHERS`. Sizes differ."""
    encoders = ENCODINGS | RARE | OTHERS
    number = list(encoders).index(encoding)
    return encoders[encoding](photograph(number, ((96, 64), (240, 160), (120, 88), (64, 48), (72, 104))[number % 5]))


# --- Other formats ---


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _interlaced(picture: Picture) -> bytes:
    """Return a PNG interlaced by Adam7, which Pillow does not write."""
    pixels = np.asarray(picture.convert("RGB"))
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = (row for y, x, dy, dx in passes for row in pixels[y::dy, x::dx] if row.size)
    header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 1)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _sixteen_bits(picture: Picture) -> Picture:
    return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)


def _frames(picture: Picture, format: str) -> bytes:
    return save(picture, format, save_all=True, append_images=[picture.rotate(90), picture.rotate(180)], duration=100)


OTHERS: dict[str, Encoder] = {
    "PNG": lambda p: save(p, "PNG"),
    "PNG, 16 bit": lambda p: save(_sixteen_bits(p), "PNG"),
    "PNG, palette": lambda p: save(p.quantize(32), "PNG"),
    "PNG, interlaced": _interlaced,
    "PNG, RGBA": lambda p: save(p.convert("RGBA"), "PNG"),
    "PNG, animated": lambda p: _frames(p, "PNG"),
    "WebP": lambda p: save(p, "WebP"),
    "WebP, lossless": lambda p: save(p, "WebP", lossless=True),
    "WebP, animated": lambda p: _frames(p, "WebP"),
    "GIF": lambda p: save(p, "GIF"),
    "GIF, animated": lambda p: _frames(p, "GIF"),
    "TIFF": lambda p: save(p, "TIFF"),
    "TIFF, LZW": lambda p: save(p, "TIFF", compression="tiff_lzw"),
    "TIFF, deflate": lambda p: save(p, "TIFF", compression="tiff_adobe_deflate"),
    "TIFF, PackBits": lambda p: save(p, "TIFF", compression="packbits"),
    "TIFF, JPEG": lambda p: save(p, "TIFF", compression="jpeg"),
    "TIFF, fax": lambda p: save(p.convert("1"), "TIFF", compression="group4"),
    "TIFF, big": lambda p: save(p, "TIFF", big_tiff=True),
    "BMP": lambda p: save(p, "BMP"),
    "AVIF": lambda p: save(p, "AVIF", speed=10),
    "JPEG 2000": lambda p: save(p, "JPEG2000"),
    "JPEG 2000, codestream": lambda p: save(p, "JPEG2000", no_jp2=True),
    "PPM": lambda p: save(p, "PPM"),
}
