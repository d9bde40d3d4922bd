"""Photographs as JPEG files in many encodings.

Pillow and simplejpeg write most of them, and functions here change their bytes. The files in ``pictures`` come from
Debian's ``cjpeg`` (arithmetic coding) and from imagecodecs 2026.10.10 (lossless, JPEG-LS).
"""

from __future__ import annotations

import functools
import importlib.util
import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageCms

from jpeg_truth import EOI, anatomy
from photographs import jpeg, photograph

__all__ = [
    "BIG",
    "ENCODINGS",
    "RARE",
    "WARNED",
    "encode",
    "exif_with_thumbnail",
    "extended",
    "four_lines_of_luma",
    "sampled",
    "save",
    "separate_scans",
    "stored",
    "with_fill_bytes",
    "with_jfif",
    "with_segment",
    "with_unknown_adobe_transform",
    "without",
    "ycck",
]


_SKLEARN = importlib.util.find_spec("sklearn")


def _camera_file(name: str) -> bytes:
    """Return the JPEG file of a photograph from scikit-learn."""
    assert _SKLEARN is not None
    assert _SKLEARN.origin is not None
    return (Path(_SKLEARN.origin).parent / "datasets" / "images" / name).read_bytes()


def _of_china(box: tuple[int, int, int, int], **options: Any) -> bytes:
    with Image.open(io.BytesIO(_camera_file("china.jpg"))) as image:
        return save(image.crop(box), **options)


def save(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


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


def with_unknown_adobe_transform(whole: bytes) -> bytes:
    """Replace the JFIF header by an Adobe header with an undefined transform. libjpeg warns and assumes YCbCr."""
    return with_segment(without(whole, 0xE0), 0xEE, b"Adobe\0\x64\0\0\0\0\x05")


def ycck(whole: bytes) -> bytes:
    """Declare the four components of a CMYK file as YCCK, which changes the colours but damages nothing."""
    at = whole.index(b"Adobe") + 11
    return whole[:at] + b"\x02" + whole[at + 1 :]


def sampled(image: Image.Image, subsampling: str) -> bytes:
    """Return a file with a subsampling that Pillow does not write: ``440``, ``411`` or ``441``."""
    pixels = np.ascontiguousarray(image.convert("RGB"))
    return bytes(simplejpeg.encode_jpeg(pixels, 85, colorspace="RGB", colorsubsampling=subsampling))


def four_lines_of_luma(image: Image.Image) -> bytes:
    """Return a 4:4:1 file: a 4:1:1 file whose header arranges the blocks vertically."""
    whole = sampled(image, "411")
    at = next(part for part in anatomy(whole).parts if part.marker == 0xC0).start + 5
    taller = struct.pack(">HH", image.height * 4, image.width // 4)
    return whole[:at] + taller + whole[at + 4 : at + 6] + b"\x14" + whole[at + 7 :]


def stored(name: str) -> bytes:
    """Return one of the files in ``pictures``."""
    return (Path(__file__).parent / "pictures" / f"{name}.jpg").read_bytes()


def extended(whole: bytes) -> bytes:
    """Declare the frame as extended sequential, which includes baseline."""
    frame = next(part for part in anatomy(whole).parts if part.marker == 0xC0)
    return whole[: frame.at] + b"\xc1" + whole[frame.at + 1 :]


def separate_scans(image: Image.Image, factor: int, **options: Any) -> bytes:
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


def _flat(size: tuple[int, int], **options: Any) -> bytes:
    return save(Image.new("RGB", size, (200, 30, 60)), **options)


def _icc() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


_MARKERS = b"so it ends: \xff\xd9 and \xff\xd8 begins \xff\xda again \xff\xd9"
ENCODINGS: dict[str, Callable[[], bytes]] = {
    "4:2:0": lambda: jpeg(0, (240, 160)),
    "4:2:2": lambda: jpeg(1, (160, 120), subsampling="4:2:2"),
    "4:4:4": lambda: jpeg(2, (120, 88), subsampling="4:4:4"),
    "grayscale": lambda: save(photograph(2, (128, 96)).convert("L")),
    "CMYK": lambda: save(photograph(0, (96, 64)).convert("CMYK")),
    "CMYK, subsampled": lambda: save(photograph(2, (96, 64)).convert("CMYK"), subsampling=2),
    "CMYK, progressive": lambda: save(photograph(1, (64, 48)).convert("CMYK"), progressive=True),
    "progressive": lambda: jpeg(1, progressive=True),
    "progressive 4:4:4": lambda: jpeg(2, (64, 48), progressive=True, subsampling="4:4:4"),
    "progressive grayscale": lambda: save(photograph(0).convert("L"), progressive=True),
    "progressive, restart markers": lambda: jpeg(2, progressive=True, restart_marker_blocks=5),
    "optimised": lambda: jpeg(1, (160, 112), optimize=True),
    "quality 5": lambda: jpeg(2, (240, 160), quality=5),
    "quality 98": lambda: jpeg(0, (80, 64), quality=98),
    "quality 100, optimised, 4:4:4": lambda: jpeg(1, (64, 48), quality=100, optimize=True, subsampling="4:4:4"),
    "restart after each block": lambda: jpeg(0, restart_marker_blocks=1),
    "restart every 7 blocks": lambda: jpeg(1, (144, 96), restart_marker_blocks=7),
    "restart every row": lambda: jpeg(2, (160, 160), restart_marker_rows=1),
    "restart every 3 rows, grayscale": lambda: save(photograph(1).convert("L"), restart_marker_rows=3),
    "EXIF thumbnail": lambda: jpeg(2, exif=exif_with_thumbnail(jpeg(2, (32, 24)))),
    "ICC profile": lambda: jpeg(0, icc_profile=_icc()),
    "comment with markers": lambda: jpeg(1, comment=_MARKERS),
    "APP5 with a whole JPEG": lambda: with_segment(jpeg(3), 0xE5, jpeg(1, (40, 30))),
    "APP9 of full length": lambda: with_segment(jpeg(2), 0xE9, (b"\xff\xd9\xff\xda" * 16384)[:65533]),
    "two pictures (MPO)": lambda: save(photograph(0), "MPO", save_all=True, append_images=[photograph(1)]),
    "a scan each": lambda: separate_scans(photograph(1), 1),
    "a scan each, 4:2:0, optimised": lambda: separate_scans(photograph(2), 2, optimize=True),
    "a scan each, restart markers": lambda: separate_scans(photograph(0), 2, restart_marker_blocks=3),
    "fill bytes": lambda: with_fill_bytes(jpeg(0)),
    "extended sequential": lambda: extended(jpeg(2, (112, 80))),
    "4:4:0": lambda: sampled(photograph(1, (112, 80)), "440"),
    "4:1:1": lambda: sampled(photograph(2, (112, 80)), "411"),
    "4:4:1": lambda: four_lines_of_luma(photograph(2, (96, 40))),
    "YCCK": lambda: ycck(save(photograph(2, (64, 48)).convert("CMYK"))),
    "JFIF 2.02, fill bytes": lambda: with_fill_bytes(with_jfif(jpeg(1, (48, 40)), 2, 2)),
    "JFIF 3.1": lambda: with_jfif(jpeg(3, (56, 40), progressive=True), 3, 1),
    "unknown Adobe transform": lambda: with_unknown_adobe_transform(jpeg(1, (72, 72))),
    "flat": lambda: _flat((320, 240)),
    "flat, optimised": lambda: _flat((96, 64), optimize=True),
    "flat, progressive": lambda: _flat((96, 64), progressive=True),
    "china.jpg": lambda: _camera_file("china.jpg"),
    "flower.jpg": lambda: _camera_file("flower.jpg"),
    "china, progressive": lambda: _of_china((100, 50, 500, 350), progressive=True, quality=85),
    "china, restart markers": lambda: _of_china((200, 100, 600, 400), restart_marker_rows=2, subsampling="4:2:2"),
}
# Encodings whose codes cannot be followed with the tables of the file alone, or whose header makes libjpeg warn.
RARE: dict[str, Callable[[], bytes]] = {
    "JFIF 2.01": lambda: with_jfif(jpeg(2, (88, 56)), 2, 1),
    "Motion-JPEG, no DHT": lambda: without(jpeg(0, (96, 80)), 0xC4),
    "arithmetic": lambda: stored("arithmetic"),
    "arithmetic, restart markers": lambda: stored("arithmetic-restarts"),
    "arithmetic, progressive": lambda: stored("arithmetic-progressive"),
    "lossless": lambda: stored("lossless"),
    "lossless, grayscale": lambda: stored("lossless-grayscale"),
}
# Whole pictures of whose header libjpeg warns.
WARNED = {"JFIF 2.01", "JFIF 2.02, fill bytes", "JFIF 3.1", "unknown Adobe transform"}
BIG = {name for name in ENCODINGS if name.startswith(("china", "flower"))}
if _SKLEARN is None:  # without its photographs, the other encodings are tested
    ENCODINGS = {name: make for name, make in ENCODINGS.items() if name not in BIG}
_SIZES = ((1, 1), (1, 17), (17, 1), (7, 9), (9, 7), (8, 8), (15, 33), (16, 16), (17, 31), (31, 63), (65, 3), (101, 67))
for _at, _size in enumerate(_SIZES):
    _options: dict[str, Any] = ({}, {"progressive": True}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"})[_at % 4]
    ENCODINGS["{}x{}".format(*_size)] = functools.partial(jpeg, _at, _size, **_options)


@functools.cache
def encode(encoding: str) -> bytes:
    """Return the whole file of an encoding."""
    return (ENCODINGS | RARE)[encoding]()
