"""A random corpus of pictures in many encodings and formats, whole and damaged, with the facts about each damage.

`random_corpus` depends only on its seed. Nothing here uses `storeds`.
"""

from __future__ import annotations

import functools
import io
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

import jpeg_oracle
from jpeg_encodings import (
    exif_with_thumbnail,
    extended,
    sampled,
    save,
    separate_scans,
    stored,
    with_fill_bytes,
    with_jfif,
    with_segment,
    with_unknown_adobe_transform,
    without,
    ycck,
)
from jpeg_truth import EOI, anatomy, mcus_there
from photographs import jpeg, photograph

__all__ = ["OTHERS", "Sample", "pixels_of", "random_corpus", "same_pixels"]

_MARKER_IN_DATA = bytes(range(0xFF))


@dataclass(frozen=True)
class Sample:
    """One blob: `whole` with `damage`, or whole if `damage` is empty.

    `cut` is the number of bytes of `whole` that are left, if the blob is only cut, or cut and ended.
    """

    encoding: str
    damage: str
    blob: bytes
    whole: bytes
    cut: int | None = None

    @property
    def is_jpeg(self) -> bool:
        return self.encoding in JPEG

    @functools.cached_property
    def is_visible(self) -> bool:
        """Whether some decoder sees the damage: libjpeg reports it, Pillow gives other pixels of a cut file, a checksum fails.

        Other damage leaves a valid picture, which nobody can tell from a strange photograph.
        """
        if not self.damage or self.blob == self.whole:
            return False
        if not self.is_jpeg:
            # Each byte of a PNG has a checksum. A cut file of another format may lack nothing but what follows its pixels.
            is_cut = self.damage == "cut" and not same_pixels(self.blob, self.whole)
            return self.encoding.startswith("PNG") or is_cut or not _decodes(self.blob)
        about = anatomy(self.whole)
        # This `djpeg` cannot read lossless files.
        if about.process != "lossless" and jpeg_oracle.examine(self.blob).is_damaged:
            return True
        # libjpeg does not notice missing scans, and arithmetic codes that end early cannot be detected.
        return self.cut is not None and not about.arithmetic and not same_pixels(self.blob, self.whole)

    @functools.cached_property
    def mcus(self) -> tuple[int, int]:
        """Number of MCUs that are left of a cut JPEG with one scan, and their number in the whole file."""
        assert self.cut is not None
        columns, rows = anatomy(self.whole).mcus
        return mcus_there(self.whole, self.cut), columns * rows


def _decodes(blob: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(blob)) as image:
            image.load()
    except Exception:  # damaged bytes make Pillow raise errors of any type
        return False
    return True


Picture = Image.Image
JPEG: dict[str, Callable[[Picture], bytes]] = {
    "4:2:0": lambda p: save(p, quality=85),
    "4:2:2": lambda p: save(p, subsampling="4:2:2", quality=90),
    "4:4:4": lambda p: save(p, subsampling="4:4:4"),
    "4:4:0": lambda p: sampled(p, "440"),
    "4:1:1": lambda p: sampled(p, "411"),
    "grayscale": lambda p: save(p.convert("L")),
    "CMYK": lambda p: save(p.convert("CMYK")),
    "CMYK, subsampled": lambda p: save(p.convert("CMYK"), subsampling=2),
    "YCCK": lambda p: ycck(save(p.convert("CMYK"))),
    "progressive": lambda p: save(p, progressive=True),
    "progressive 4:4:4": lambda p: save(p, progressive=True, subsampling="4:4:4", quality=90),
    "progressive grayscale": lambda p: save(p.convert("L"), progressive=True),
    "progressive, restart markers": lambda p: save(p, progressive=True, restart_marker_blocks=5),
    "optimised": lambda p: save(p, optimize=True),
    "quality 10": lambda p: save(p, quality=10),
    "quality 98": lambda p: save(p, quality=98),
    "restart after each MCU": lambda p: save(p, restart_marker_blocks=1),
    "restart every 3 MCUs": lambda p: save(p, restart_marker_blocks=3),
    "restart every row": lambda p: save(p, restart_marker_rows=1),
    "EXIF thumbnail": lambda p: save(p, exif=exif_with_thumbnail(save(p.resize((32, 24))))),
    "comment with markers": lambda p: save(
        p, comment=b"so it ends: \xff\xd9 and \xff\xd8 begins \xff\xda again \xff\xd9"
    ),
    "APP5 with a whole JPEG": lambda p: with_segment(save(p), 0xE5, save(p.resize((40, 30)))),
    "two pictures (MPO)": lambda p: save(p, "MPO", save_all=True, append_images=[p.rotate(180)]),
    "a scan each": lambda p: separate_scans(p, 2),
    "a scan each, restart markers": lambda p: separate_scans(p, 2, restart_marker_blocks=3),
    "fill bytes": lambda p: with_fill_bytes(save(p)),
    "extended sequential": lambda p: extended(save(p)),
    "JFIF 2.01": lambda p: with_jfif(save(p), 2, 1),
    "unknown Adobe transform": lambda p: with_unknown_adobe_transform(save(p)),
    "Motion-JPEG, no DHT": lambda p: without(save(p), 0xC4),
    "tiny": lambda p: save(p.crop((0, 0, 1 + p.width % 17, 1 + p.height % 9))),
    "tiny, progressive": lambda p: save(p.crop((0, 0, 1 + p.width % 17, 1 + p.height % 9)), progressive=True),
    "arithmetic": lambda _: stored("arithmetic"),
    "arithmetic, restart markers": lambda _: stored("arithmetic-restarts"),
    "arithmetic, progressive": lambda _: stored("arithmetic-progressive"),
    "lossless": lambda _: stored("lossless"),
}
_RARE = {"arithmetic", "arithmetic, restart markers", "arithmetic, progressive", "lossless"}


def _gray16(picture: Picture) -> Picture:
    return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)


def _frames(picture: Picture, format: str) -> bytes:
    return save(picture, format, save_all=True, append_images=[picture.rotate(90), picture.rotate(180)], duration=100)


OTHERS: dict[str, Callable[[Picture], bytes]] = {
    "PNG": lambda p: save(p, "PNG"),
    "PNG, 16 bit": lambda p: save(_gray16(p), "PNG"),
    "PNG, palette": lambda p: save(p.quantize(32), "PNG"),
    "PNG, interlaced": lambda p: interlaced(p),
    "PNG, RGBA": lambda p: save(p.convert("RGBA"), "PNG"),
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
    "BMP": lambda p: save(p, "BMP"),
    "AVIF": lambda p: save(p, "AVIF", speed=10),
    "JPEG 2000": lambda p: save(p, "JPEG2000"),
}


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def interlaced(picture: Picture) -> bytes:
    """Return a PNG interlaced by Adam7, which Pillow does not write."""
    pixels = np.asarray(picture.convert("RGB"))
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = (row for y, x, dy, dx in passes for row in pixels[y::dy, x::dx] if row.size)
    header = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 1)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


SampleResult = tuple[bytes, int | None]  # the blob, and how many bytes of the whole are left


def _cut(whole: bytes, chance: random.Random) -> SampleResult:
    at = _place(whole, chance)
    return whole[:at], at


def _place(whole: bytes, chance: random.Random) -> int:
    """Return where to cut: mostly in the scans, else anywhere, often near the end."""
    about = anatomy(whole)
    kind = chance.random()
    if kind < 0.7:
        scan = chance.choice(about.scans)
        return chance.randrange(scan.start, scan.stop + 1)
    return chance.randrange(max(2, about.end - 40), about.end) if kind < 0.85 else chance.randrange(2, about.end)


def _ended(whole: bytes, chance: random.Random, between: bytes = b"") -> SampleResult:
    at = _place(whole, chance)
    kept = whole[:at]
    inside = any(scan.start <= at < scan.stop for scan in anatomy(whole).scans)
    return (kept.rstrip(b"\xff") if inside else kept) + between + EOI, at


def _ended_often(whole: bytes, chance: random.Random) -> SampleResult:
    return _ended(whole, chance, EOI * chance.choice((1, 10, 1000)))


def _ended_after_a_restart(whole: bytes, chance: random.Random) -> SampleResult:
    blob, _ = _ended(whole, chance, b"\xff" + bytes((0xD0 + chance.randrange(8),)))
    return blob, None


def _zeroed(whole: bytes, chance: random.Random) -> SampleResult:
    size = chance.choice((16, 100, 512, 4096, 4096))
    at = chance.randrange(2, len(whole))
    at = max(512, at & -512) if size >= 512 and len(whole) > 1024 else at
    return whole[:at] + bytes(min(size, len(whole) - at)) + whole[at + size :], None


def _zeros_to_the_end(whole: bytes, chance: random.Random) -> SampleResult:
    at = _place(whole, chance)
    return whole[:at] + bytes(len(whole) - at), None


def _flip(whole: bytes, chance: random.Random, times: int = 1) -> SampleResult:
    blob = bytearray(whole)
    for _ in range(times):
        blob[chance.randrange(2, len(blob))] ^= 1 << chance.randrange(8)
    return bytes(blob), None


def _flips(whole: bytes, chance: random.Random) -> SampleResult:
    return _flip(whole, chance, chance.randrange(2, 12))


def _spliced(whole: bytes, chance: random.Random) -> SampleResult:
    other = jpeg(chance.randrange(8), (80 + 8 * chance.randrange(10), 64), progressive=chance.random() < 0.3)
    blob = whole[: chance.randrange(100, max(101, len(whole)))] + other[chance.randrange(len(other)) :]
    return blob, None


def _hole(whole: bytes, chance: random.Random) -> SampleResult:
    size = chance.choice((1, 3, 50, 400))
    at = chance.randrange(2, len(whole))
    return whole[:at] + whole[at + size :], None


def _twice(whole: bytes, chance: random.Random) -> SampleResult:
    size = chance.choice((1, 3, 50, 400))
    at = chance.randrange(2, len(whole))
    return whole[: at + size] + whole[at:], None


def _surplus(whole: bytes, chance: random.Random) -> SampleResult:
    scan = chance.choice(anatomy(whole).scans)
    restarts = [at for at in range(scan.start, scan.stop - 1) if whole[at] == 0xFF and 0xD0 <= whole[at + 1] <= 0xD7]
    at = chance.choice([*restarts, scan.stop])
    surplus = bytes(chance.choices(_MARKER_IN_DATA, k=chance.choice((1, 4, 100))))
    return whole[:at] + surplus + whole[at:], None


def _without_tables(whole: bytes, chance: random.Random) -> SampleResult:
    return without(whole, chance.choice((0xDB, 0xC4))), None


def _with_other_tables(whole: bytes, chance: random.Random) -> SampleResult:
    marker = chance.choice((0xDB, 0xC4))
    other = anatomy(donor := save(photograph(chance.randrange(4)), optimize=True, quality=chance.randrange(20, 95)))
    tables = b"".join(donor[part.start : part.stop] for part in other.parts if part.marker == marker)
    rest = without(whole, marker)
    start = anatomy(rest).segments(before_data=True)[-1].start
    return rest[:start] + tables + rest[start:], None


def _followed(whole: bytes, chance: random.Random) -> bytes:
    tail = chance.choice((bytes(chance.choice((1, 512))), EOI, EOI * 1000, b"\n", chance.randbytes(20), jpeg(1)))
    return whole + tail


JPEG_DAMAGES: dict[str, tuple[int, Callable[[bytes, random.Random], SampleResult]]] = {
    "cut": (12, _cut),
    "cut, ended": (12, _ended),
    "cut, ended many times": (2, _ended_often),
    "cut, a restart marker and the end": (2, _ended_after_a_restart),
    "zeroed block": (9, _zeroed),
    "zeros to the end": (5, _zeros_to_the_end),
    "flip": (8, _flip),
    "flips": (6, _flips),
    "splice": (3, _spliced),
    "hole": (2, _hole),
    "twice": (2, _twice),
    "surplus": (3, _surplus),
    "tables missing": (2, _without_tables),
    "foreign tables": (2, _with_other_tables),
}


def _cut_file(whole: bytes, chance: random.Random) -> SampleResult:
    at = chance.choice((chance.randrange(len(whole)), len(whole) - chance.randrange(1, 12)))
    return whole[:at], at


def _zeroed_file(whole: bytes, chance: random.Random) -> SampleResult:
    at = chance.randrange(len(whole) // 4, len(whole))
    return whole[:at] + bytes(len(whole) - at), None


def _flip_in_file(whole: bytes, chance: random.Random) -> SampleResult:
    blob = bytearray(whole)
    blob[chance.randrange(8, len(blob))] ^= 1 << chance.randrange(8)
    return bytes(blob), None


def _wrong_checksum(whole: bytes, chance: random.Random) -> SampleResult:
    at = chance.choice([end - 1 - chance.randrange(4) for _, _, end in _png_chunks(whole)])
    return whole[:at] + bytes((whole[at] ^ 1 << chance.randrange(8),)) + whole[at + 1 :], None


def _without_a_chunk(whole: bytes, chance: random.Random) -> SampleResult:
    kind = chance.choice((b"IDAT", b"IEND"))
    kept = [whole[:8], *(whole[start:end] for name, start, end in _png_chunks(whole) if name != kind)]
    return b"".join(kept), None


def _png_chunks(whole: bytes) -> list[tuple[bytes, int, int]]:
    found, at = [], 8
    while at < len(whole):
        end = at + 12 + int.from_bytes(whole[at : at + 4])
        found.append((whole[at + 4 : at + 8], at, end))
        at = end
    return found


def _picture(chance: random.Random) -> Picture:
    edge = chance.choice((40, 100, 160, 230))
    return photograph(chance.randrange(400), (chance.randrange(24, edge + 1), chance.randrange(24, min(edge, 190) + 1)))


def _jpeg_sample(chance: random.Random) -> Sample:
    encoding = chance.choice([name for name in JPEG if name not in _RARE] if chance.random() < 0.95 else sorted(_RARE))
    whole = JPEG[encoding](_picture(chance))
    kind = chance.random()
    if kind < 0.26:
        return Sample(encoding, "", whole, whole)
    if kind < 0.29:
        return Sample(encoding, "", _followed(whole, chance), whole)
    weights = [weight for weight, _ in JPEG_DAMAGES.values()]
    (damage,) = chance.choices(list(JPEG_DAMAGES), weights)
    blob, cut = JPEG_DAMAGES[damage][1](whole, chance)
    return Sample(encoding, damage, blob, whole, cut)


def _other_sample(chance: random.Random) -> Sample:
    encoding = chance.choice(list(OTHERS))
    whole = OTHERS[encoding](_picture(chance))
    damages: dict[str, Callable[[bytes, random.Random], SampleResult]] = {"cut": _cut_file, "flip": _flip_in_file}
    damages["zeros to the end"] = _zeroed_file
    if encoding.startswith("PNG"):
        damages |= {"wrong checksum": _wrong_checksum, "a chunk is missing": _without_a_chunk}
    damage = chance.choice(["", "", "cut", *damages])
    blob, cut = damages[damage](whole, chance) if damage else (whole, None)
    return Sample(encoding, damage, blob, whole, cut)


def _no_picture(chance: random.Random) -> Sample:
    blob = chance.choice(
        (b"", bytes(100), b"<!DOCTYPE html><html><body>404", b"Not Found", b"\x80" + chance.randbytes(50))
    )
    if chance.random() < 0.3:
        blob = stored("jpeg-ls")
    return Sample("none", "no picture", blob, jpeg(0))


def random_corpus(seed: int, count: int = 4000) -> list[Sample]:
    """Return the first `count` samples of a seed, about a quarter of them whole."""
    chance = random.Random(seed)
    makers: Sequence[Callable[[random.Random], Sample]] = (_jpeg_sample, _other_sample, _no_picture)
    samples = [chance.choices(makers, (84, 14, 2))[0](chance) for _ in range(count)]
    jpeg_oracle.examine_all(sample.blob for sample in samples if sample.is_jpeg and sample.damage)
    return samples


def pixels_of(blob: bytes) -> Any:
    """Decode to RGB pixels with Pillow."""
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert("RGB"))


def same_pixels(blob: bytes, whole: bytes) -> bool:
    """Return whether Pillow decodes both to the same pixels."""
    return _decodes(blob) and np.array_equal(pixels_of(blob), pixels_of(whole))
