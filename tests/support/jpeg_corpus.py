"""A random corpus of pictures in many encodings and formats, whole and damaged, with the facts about each damage.

`random_corpus` depends only on its seed. Nothing here uses `storeds`.
"""

from __future__ import annotations

import functools
import io
import itertools
import random
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from jpeg_encodings import ENCODINGS, OTHERS, RARE, stored, without
from jpeg_truth import EOI, FRAMES, Part, all_by_djpeg, anatomy, by_djpeg, mcus_there
from photographs import by_pillow, jpeg, photograph

__all__ = ["Sample", "random_corpus"]

_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")


@dataclass(frozen=True)
class Sample:
    """One blob: `whole` with `damage`, or whole if `damage` is empty.

    `cut` is the number of bytes of `whole` that are left, if the blob is only cut, cut and filled with zeros, or cut and
    ended.
    """

    encoding: str
    damage: str
    whole: bytes
    place: str
    blob: bytes
    cut: int | None = None

    @property
    def name(self) -> str:
        return f"{self.encoding} / {self.damage or 'whole'} / {self.place}"

    @property
    def is_jpeg(self) -> bool:
        return self.encoding in ENCODINGS or self.encoding in RARE

    @functools.cached_property
    def is_visible(self) -> bool:
        """Whether some decoder sees the damage: libjpeg reports it, Pillow gives other pixels of a cut file, a checksum fails.

        Other damage leaves a valid picture, which nobody can tell from a strange photograph.
        """
        if not self.damage or self.blob == self.whole:
            return False
        if not self.is_jpeg:
            # Each byte of a PNG has a checksum. A cut file of another format may lack nothing but what follows its pixels.
            is_cut = self.cut is not None and not self._has_same_pixels()
            return self.encoding.startswith("PNG") or is_cut or not _decodes(self.blob)
        about = anatomy(self.whole)
        # This `djpeg` cannot read lossless files.
        if about.process != "lossless" and by_djpeg(self.blob).is_damaged:
            return True
        # libjpeg does not notice missing scans, and arithmetic codes that end early cannot be detected.
        return self.cut is not None and not about.arithmetic and not self._has_same_pixels()

    def _has_same_pixels(self) -> bool:
        return _decodes(self.blob) and np.array_equal(by_pillow(self.blob), by_pillow(self.whole))

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


Damaged = tuple[str, bytes, int | None]  # where, the blob, how much is left
Damage = Callable[[bytes, random.Random], Iterator[Damaged]]


def _in_segment(part: Part) -> tuple[int, ...]:
    """Return positions before the marker, after FF, after the marker, in and after the length, in the payload, at its end."""
    return (part.start, part.at, part.at + 1, part.at + 2, part.at + 3, (part.at + 3 + part.stop) // 2, part.stop - 1)


def _in_scans(whole: bytes, chance: random.Random) -> Iterator[int]:
    """Yield positions in each scan: at its ends, anywhere, and within and after a stuffed FF and a restart marker."""
    for scan in anatomy(whole).scans:
        yield from (scan.start, scan.start + 1, scan.stop - 1)
        yield from (chance.randrange(scan.start, scan.stop) for _ in range(6))
        for pair in (b"\xff\x00", b"\xff\xd0", b"\xff\xd3"):
            found = whole.find(pair, scan.start, scan.stop)
            if found >= 0:
                yield from (found, found + 1, found + 2)


def _in_headers(whole: bytes) -> Iterator[int]:
    for part in anatomy(whole).segments(before_data=True):
        yield from _in_segment(part)
        if part.is_comment:  # so that the file ends as a whole one does
            yield from (at.end() for at in itertools.islice(re.finditer(EOI, whole[part.at : part.stop]), 3))


def _between_scans(whole: bytes) -> Iterator[int]:
    return (place for part in anatomy(whole).segments(before_data=False) for place in _in_segment(part))


def _cut(places: Callable[[bytes, random.Random], Iterable[int]]) -> Damage:
    def damage(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
        cuts = sorted(set(places(whole, chance)))
        return ((f"cut at {cut}", whole[:cut], cut) for cut in cuts if 0 <= cut < len(whole))

    return damage


def _near_the_end(whole: bytes, _: random.Random) -> Iterable[int]:
    """Return positions at the end of the picture, and in a second one that may follow it."""
    end = anatomy(whole).end
    return (*range(end - 64, end + 3), end + 40, (end + len(whole)) // 2, len(whole) - 2, len(whole) - 1)


def _followed(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    """Append bytes, which damages nothing."""
    tails = (
        *map(bytes, (1, 64, 4096)),
        b"\n",
        b"<!-- cached -->",
        b"\0\0\0\0end of file\xff",
        b"\xff" * 64,
        b"\xff\xd8",
    )
    tails += (EOI, EOI * 1000, bytes(100) + EOI, b"\xff\xda\0\x08\x01\x01\0\0\x3f\0", jpeg(2), jpeg(1)[:400], whole)
    tails += tuple(map(chance.randbytes, (1, 17, 1000)))
    for tail in tails:
        yield f"{len(tail)} bytes {tail[:6]!r}…", whole + tail, None


def _zero_tail(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    about = anatomy(whole)
    places = {(part.at + 3 + part.stop) // 2 for part in about.segments(before_data=True)} | {*_in_scans(whole, chance)}
    places |= {stop + 1 for stop, _ in about.gaps()} | {about.end - n for n in (1, 2, 3, 4, 8, 16, 40, 66, 200)}
    for at in sorted(place for place in places if place > 2):
        # Zeros of the file before the tail look like its beginning, and those in the tail like the file.
        is_clear = whole[at - 1] and any(whole[at : at + 64])
        yield f"zeros from {at}", whole[:at] + bytes(len(whole) - at), at if is_clear else None


def _holes(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    """Replace a part of the file by zeros: in scans, in each header segment, and blocks of a disk."""
    places = []
    for scan, size in itertools.product(anatomy(whole).scans, (8, 64, 400)):
        at = chance.randrange(scan.start, scan.stop)
        places.append((at, min(at + size, scan.stop)))
    for part in anatomy(whole).segments(before_data=True):
        middle = (part.at + 3 + part.stop) // 2
        places += [(part.at + 3, part.stop), (middle, part.stop), (part.start, middle)]
    for size in (512, 4096, 1 << 16):
        at = chance.randrange(len(whole)) & -512
        places.append((at, min(at + size, len(whole))))
    for at, stop in places:
        yield f"zeros {at} to {stop}", whole[:at] + bytes(stop - at) + whole[stop:], None


def _flips_in_headers(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    """Flip a bit of a marker, a length or a payload, before the first scan or after it."""
    places = [0, 1, *(at for at in (anatomy(whole).end - 2, anatomy(whole).end - 1) for _ in range(4))]
    for part in anatomy(whole).parts:
        if part.kind == "segment":
            places += [part.at - 1, part.at, part.at + 1, part.at + 2]
            places += [chance.randrange(part.at + 3, part.stop) for _ in range(4)]
    return (_flipped(whole, [at], chance) for at in places)


def _flips_in_scans(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    scans = anatomy(whole).scans
    for scan in scans:
        places = [chance.randrange(scan.start, scan.stop) for _ in range(24 // len(scans) + 2)]
        # Most flips leave no trace; these do.
        at = whole.find(b"\xff", scan.start, scan.stop)
        places += [at, at + 1, at + 1] if at >= 0 else []
        yield from (_flipped(whole, [at], chance) for at in places)


def _many_flips(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    for count in (2, 4, 8, 16, 32):
        yield _flipped(whole, chance.choices(range(2, len(whole)), k=count), chance)


def _flipped(whole: bytes, places: Iterable[int], chance: random.Random) -> Damaged:
    blob = bytearray(whole)
    for at in places:
        blob[at] ^= 1 << chance.randrange(8)
    return f"bits of bytes {places}", bytes(blob), None


def _scans_left_out(whole: bytes, _: random.Random) -> Iterator[Damaged]:
    scans = anatomy(whole).scans
    for first, stop in itertools.combinations(range(1, len(scans) + 1), 2):
        if stop in (first + 1, len(scans)):
            kept = whole[: scans[first - 1].stop] + whole[scans[stop - 1].stop :]
            yield f"scans {first + 1} to {stop} of {len(scans)}", kept, None


def _huge_frame(whole: bytes, _: random.Random) -> Iterator[Damaged]:
    frame = next(part for part in anatomy(whole).parts if part.marker in FRAMES)
    blob = whole[: frame.at + 4] + struct.pack(">HH", 65500, 65500) + whole[frame.at + 8 :]
    for stop in (len(blob), len(blob) - 2, anatomy(whole).scans[0].start + 9):
        yield f"{stop} bytes of it", blob[:stop], None


def _ended(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    """Cut the file and append end markers, as simple repairs do."""
    about = anatomy(whole)
    last = about.scans[-1]
    for part in about.segments(before_data=True)[::2]:
        middle = (part.at + 3 + part.stop) // 2
        yield f"cut at {middle}", whole[:middle] + EOI, middle
    places = {stop for stop, _ in about.gaps()} | set(range(max(last.start, last.stop - 12), last.stop))
    for at in sorted(places | {*_in_scans(whole, chance)}):
        yield f"cut at {at}", whole[:at].rstrip(b"\xff") + EOI * chance.choice((1, 1, 1000)), at


def _ended_with_restarts(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    scan = anatomy(whole).scans[0]
    due = [match.end() for match in _RESTART.finditer(whole, scan.start, scan.stop)]
    for at in sorted(chance.randrange(scan.start + 1, scan.stop) for _ in range(3)):
        left = [whole[end - 2 : end] for end in due if end - 2 >= at] or [b"\xff\xd0"]
        if whole[at - 1] != 0xFF:
            yield f"cut at {at}, the next one", whole[:at] + left[0] + EOI, None
            yield f"cut at {at}, all that are due", whole[:at] + b"".join(left) + EOI, None


def _splices(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    for other in (jpeg(3, (88, 72)), jpeg(2, (160, 112), progressive=True)):
        percent = chance.randrange(20, 90)
        head, tail = whole[: len(whole) * percent // 100], other[len(other) * percent // 100 :]
        yield f"{len(head)} bytes, then the tail of another", head + tail, None
    for size in (1, 3, 7, 64, 500):
        at = chance.randrange(2, max(3, len(whole) - size - 2))
        yield f"{size} bytes at {at} taken out", whole[:at] + whole[at + size :], None
        yield f"{size} bytes at {at} twice", whole[: at + size] + whole[at:], None


def _surplus(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    scan = chance.choice(anatomy(whole).scans)
    ends = [match.start() for match in _RESTART.finditer(whole, scan.start, scan.stop)]
    for at, surplus in itertools.product((*ends[::5][:3], scan.stop), (b"\x5a", b"\0\0\0", b"\x12\x34\x56\x78" * 16)):
        yield f"{len(surplus)} bytes before {at}", whole[:at] + surplus + whole[at:], None


def _tables(whole: bytes, chance: random.Random) -> Iterator[Damaged]:
    """Leave out the tables, or replace them with those of another file."""
    about = anatomy(whole)
    other = jpeg(2, (160, 112), optimize=True, quality=chance.randrange(20, 95))
    for marker in {0xDB, 0xC4} & {part.marker for part in about.parts}:
        rest = without(whole, marker)
        yield f"none of ff {marker:02x}", rest, None
        tables = b"".join(other[p.start : p.stop] for p in anatomy(other).parts if p.marker == marker)
        start = anatomy(rest).segments(before_data=True)[-1].start
        yield f"others of ff {marker:02x}", rest[:start] + tables + rest[start:], None


DAMAGES: dict[str, Damage] = {
    "cut in the headers": _cut(lambda whole, _: (0, 1, 2, *_in_headers(whole))),
    "cut in a scan": _cut(_in_scans),
    "cut between scans": _cut(lambda whole, _: _between_scans(whole)),
    "cut near the end": _cut(_near_the_end),
    "cut anywhere": _cut(lambda whole, chance: chance.choices(range(2, len(whole)), k=20)),
    "zero-filled tail": _zero_tail,
    "zeroed hole": _holes,
    "bit flip in a header": _flips_in_headers,
    "bit flip in a scan": _flips_in_scans,
    "bit flips everywhere": _many_flips,
    "scans left out": _scans_left_out,
    "a huge frame": _huge_frame,
    "ended early": _ended,
    "ended early, restart markers made up": _ended_with_restarts,
    "splice": _splices,
    "surplus bytes": _surplus,
    "tables": _tables,
    "": _followed,
}

_OFTEN = {
    "cut in a scan": 4,
    "ended early": 4,
    "bit flip in a scan": 2,
    "zero-filled tail": 2,
    "a huge frame": 0,
    "": 1,
}
_RARE_PERCENT = 5
_CRASHING = ("PNG, animated", "lossless, grayscale")  # Pillow 13, where LOAD_TRUNCATED_IMAGES is set


# --- The random corpus ---


def _cut_file(whole: bytes, chance: random.Random) -> Damaged:
    at = chance.choice((chance.randrange(len(whole)), len(whole) - chance.randrange(1, 12)))
    return f"cut at {at}", whole[:at], at


def _zeroed_file(whole: bytes, chance: random.Random) -> Damaged:
    at = chance.randrange(len(whole) // 4, len(whole))
    return f"zeros from {at}", whole[:at] + bytes(len(whole) - at), None


def _flip_in_file(whole: bytes, chance: random.Random) -> Damaged:
    at = chance.randrange(8, len(whole))
    return f"byte {at}", whole[:at] + bytes((whole[at] ^ 1 << chance.randrange(8),)) + whole[at + 1 :], None


def _without_a_chunk(whole: bytes, chance: random.Random) -> Damaged:
    kind, kept, at = chance.choice((b"IDAT", b"IEND")), [whole[:8]], 8
    while at < len(whole):
        end = at + 12 + int.from_bytes(whole[at : at + 4])
        kept += [whole[at:end]] if whole[at + 4 : at + 8] != kind else []
        at = end
    return kind.decode(), b"".join(kept), None


def _jpeg_sample(chance: random.Random) -> Sample:
    encoders = RARE if chance.randrange(100) < _RARE_PERCENT else ENCODINGS
    encoding = chance.choice([name for name in encoders if name not in _CRASHING])
    whole = encoders[encoding](_photograph(chance))
    if chance.random() < 0.26:
        return Sample(encoding, "", whole, "", whole)
    (damage,) = chance.choices(list(DAMAGES), [_OFTEN.get(name, 1) for name in DAMAGES])
    found = list(DAMAGES[damage](whole, chance))
    return Sample(encoding, damage, whole, *chance.choice(found)) if found else _jpeg_sample(chance)


def _other_sample(chance: random.Random) -> Sample:
    encoding = chance.choice([name for name in OTHERS if name not in _CRASHING])
    whole = OTHERS[encoding](_photograph(chance))
    damages: dict[str, Callable[[bytes, random.Random], Damaged]] = {"cut": _cut_file, "bit flip": _flip_in_file}
    damages["zeros to the end"] = _zeroed_file
    if encoding.startswith("PNG"):
        damages["a chunk is missing"] = _without_a_chunk
    damage = chance.choice(["", "", "cut", *damages])
    if not damage:
        return Sample(encoding, "", whole, "", whole)
    return Sample(encoding, damage, whole, *damages[damage](whole, chance))


def _photograph(chance: random.Random) -> Image.Image:
    edge = chance.choice((40, 100, 160, 230))
    return photograph(chance.randrange(400), (chance.randrange(24, edge + 1), chance.randrange(24, min(edge, 190) + 1)))


def _no_picture(chance: random.Random) -> Sample:
    blobs = (b"", bytes(100), b"<!DOCTYPE html><html><body>404", b"Not Found", b"\x80" + chance.randbytes(50))
    return Sample("none", "no picture", jpeg(0), "", chance.choice((*blobs, stored("jpeg-ls"))))


@functools.cache
def random_corpus(seed: int, count: int = 4000) -> list[Sample]:
    """Return the first `count` samples of a seed, about a quarter of them whole."""
    chance = random.Random(seed)
    makers: Sequence[Callable[[random.Random], Sample]] = (_jpeg_sample, _other_sample, _no_picture)
    samples = [chance.choices(makers, (84, 14, 2))[0](chance) for _ in range(count)]
    all_by_djpeg(sample.blob for sample in samples if sample.is_jpeg and sample.damage)
    return samples
