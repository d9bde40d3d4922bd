"""Photographs in many JPEG encodings with many damages.

`DAMAGES` show in the structure of a file or not at all. With `HIDDEN` damages the structure may be whole, and only a decoder
finds them. Nothing here uses `storeds`.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jpeg_encodings import BIG, ENCODINGS, encode, without
from jpeg_truth import EOI, FRAMES, Part, anatomy
from photographs import jpeg

__all__ = ["DAMAGES", "HIDDEN", "Case", "cases", "groups"]

_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")


@dataclass(frozen=True)
class Case:
    """One damaged blob; `cut` is the number of bytes of `whole` that are left, or None if the blob is not only cut."""

    encoding: str
    damage: str
    place: str
    blob: bytes
    whole: bytes
    cut: int | None = None

    @property
    def name(self) -> str:
        return f"{self.encoding} / {self.damage} / {self.place}"


Damaged = tuple[str, bytes, int | None]  # where, the blob, how much is left


def _cuts(whole: bytes, places: Iterable[int]) -> Iterator[Damaged]:
    return ((f"cut at {cut}", whole[:cut], cut) for cut in sorted(set(places)) if cut < len(whole))


def _in_segment(part: Part) -> tuple[int, ...]:
    """Return positions before the marker, after FF, after the marker, in and after the length, in the payload, at its end."""
    return (part.start, part.at, part.at + 1, part.at + 2, part.at + 3, (part.at + 3 + part.stop) // 2, part.stop - 1)


def _in_scan(whole: bytes, scan: Part) -> Iterator[int]:
    length = scan.stop - scan.start
    yield from (scan.start + length * percent // 100 for percent in (0, 10, 25, 50, 75, 90))
    yield from (scan.start + 1, scan.stop - 1)
    # In the middle of, and right after, a stuffed FF and a restart marker.
    for pair in (b"\xff\x00", b"\xff\xd0", b"\xff\xd3"):
        found = whole.find(pair, scan.start, scan.stop)
        if found >= 0:
            yield from (found, found + 1, found + 2)


def _nothing(whole: bytes) -> Iterator[Damaged]:
    yield "whole", whole, None


def _cut_in_headers(whole: bytes) -> Iterator[Damaged]:
    places = [0, 1, 2]
    for part in anatomy(whole).segments(before_data=True):
        places += _in_segment(part)
        if part.is_comment:  # so that the file ends as a whole one does
            places += [
                at.end() for at in itertools.islice(re.finditer(EOI, whole[: part.stop]), 3) if at.start() > part.at
            ]
    return _cuts(whole, places)


def _cut_in_scans(whole: bytes) -> Iterator[Damaged]:
    return _cuts(whole, (n for scan in anatomy(whole).scans for n in _in_scan(whole, scan)))


def _cut_between_scans(whole: bytes) -> Iterator[Damaged]:
    return _cuts(whole, (n for part in anatomy(whole).segments(before_data=False) for n in _in_segment(part)))


def _cut_near_the_end(whole: bytes) -> Iterator[Damaged]:
    end = anatomy(whole).end
    return _cuts(whole, range(max(0, end - 64), end))


def _cut_second_picture(whole: bytes) -> Iterator[Damaged]:
    end = anatomy(whole).end
    return _cuts(whole, (end, end + 1, end + 2, end + 40, (end + len(whole)) // 2, len(whole) - 2, len(whole) - 1))


def _trailing(tails: Callable[[bytes], Iterable[bytes]]) -> Callable[[bytes], Iterator[Damaged]]:
    def damage(whole: bytes) -> Iterator[Damaged]:
        for number, tail in enumerate(tails(whole)):
            yield f"tail {number}: {tail[:6]!r}…", whole + tail, None

    return damage


def _zero_tail(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    places = {(part.at + 3 + part.stop) // 2 for part in about.segments(before_data=True)}
    places |= {scan.start + (scan.stop - scan.start) * n // 100 for scan in about.scans for n in (0, 10, 50, 90)}
    places |= {stop + 1 for stop, _ in about.gaps()} | {about.end - n for n in (1, 2, 3, 4, 8, 16, 40, 66, 200)}
    for at in sorted(place for place in places if place > 2):
        # Zeros of the file before the tail look like its beginning, and those in the tail like the file.
        is_clear = whole[at - 1] and any(whole[at : at + 64])
        yield f"zeros from {at}", whole[:at] + bytes(len(whole) - at), at if is_clear else None


def _hole_in_scan(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    for scan in about.scans:
        for length, percent in itertools.product((8, 64, 100, 400), (20, 50, 80)):
            at = scan.start + (scan.stop - scan.start) * percent // 100
            blob = whole[:at] + bytes(length) + whole[at + length :]
            if at + length > scan.stop or blob == whole:
                continue
            yield f"{length} zeros at {at}", blob, None


def _hole_in_headers(whole: bytes) -> Iterator[Damaged]:
    for part in anatomy(whole).segments(before_data=True):
        middle = (part.at + 3 + part.stop) // 2
        for at, stop in ((part.at + 3, part.stop), (middle, part.stop), (part.start, middle)):
            yield f"zeros {at} to {stop}", whole[:at] + bytes(stop - at) + whole[stop:], None


def _flip(whole: bytes, at: int, bit: int) -> Damaged:
    blob = bytearray(whole)
    blob[at] ^= 1 << bit
    return f"bit {bit} of byte {at}", bytes(blob), None


def _flips_in_headers(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    yield from (_flip(whole, at, chance.randrange(8)) for at in (0, 1))
    for part in anatomy(whole).segments(before_data=True):
        places = [part.at - 1, part.at, part.at + 1, part.at + 2]
        places += [chance.randrange(part.at + 3, part.stop) for _ in range(4)]
        yield from (_flip(whole, at, chance.randrange(8)) for at in places)


def _flips_between_scans(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    for part in anatomy(whole).segments(before_data=False):
        places = (part.at - 1, part.at, part.at + 1, part.at + 2, chance.randrange(part.at + 3, part.stop))
        yield from (_flip(whole, at, chance.randrange(8)) for at in places)


def _flips_in_scans(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    about = anatomy(whole)
    for scan in about.scans:
        places = [chance.randrange(scan.start, scan.stop) for _ in range(24 // len(about.scans) + 2)]
        # Most flips leave no trace; these do.
        at = whole.find(b"\xff", scan.start, scan.stop)
        places += [at, at + 1, at + 1] if at >= 0 else []
        yield from (_flip(whole, at, chance.randrange(8)) for at in places)


def _flips_in_the_end(whole: bytes) -> Iterator[Damaged]:
    at = anatomy(whole).end - 2
    places = itertools.product((at, at + 1), range(8))
    return (_flip(whole, n, bit) for n, bit in places)


def _many_flips(whole: bytes) -> Iterator[Damaged]:
    for seed in range(8):
        chance, blob = random.Random(seed), bytearray(whole)
        for _ in range(4 * (seed + 1)):
            blob[chance.randrange(2, len(blob))] ^= 1 << chance.randrange(8)
        yield f"seed {seed}", bytes(blob), None


def _scans_left_out(whole: bytes) -> Iterator[Damaged]:
    scans = anatomy(whole).scans
    for first, stop in itertools.combinations(range(1, len(scans) + 1), 2):
        if stop in (first + 1, len(scans)):
            kept = whole[: scans[first - 1].stop] + whole[scans[stop - 1].stop :]
            yield f"scans {first + 1} to {stop} of {len(scans)}", kept, None


def _huge_frame(whole: bytes) -> Iterator[Damaged]:
    frame = next(part for part in anatomy(whole).parts if part.marker in FRAMES)
    blob = whole[: frame.at + 4] + struct.pack(">HH", 65500, 65500) + whole[frame.at + 8 :]
    for stop in (len(blob), len(blob) - 2, anatomy(whole).scans[0].start + 9):
        yield f"{stop} bytes of it", blob[:stop], None


def _garbage(whole: bytes) -> Iterator[bytes]:
    return (random.Random(n).randbytes(n) for n in (1, 2, 3, 17, 64, 1000))


DAMAGES: dict[str, Callable[[bytes], Iterator[Damaged]]] = {
    "nothing": _nothing,
    "cut in the headers": _cut_in_headers,
    "cut in a scan": _cut_in_scans,
    "cut between scans": _cut_between_scans,
    "cut at each of the last 64 bytes": _cut_near_the_end,
    "cut in the second picture": _cut_second_picture,
    "trailing zeros": _trailing(lambda _: map(bytes, (1, 2, 63, 64, 512, 4096))),
    "trailing garbage": _trailing(_garbage),
    "trailing text": _trailing(lambda _: (b"\n", b"\r\n", b"<!-- cached -->", b"\0\0\0\0end of file\xff")),
    "trailing markers": _trailing(
        lambda _: (b"\xff", b"\xff" * 64, b"\xff\xd8", EOI, b"\xff\xda\0\x08\x01\x01\0\0\x3f\0")
    ),
    "trailing JPEG": _trailing(lambda whole: (jpeg(2), jpeg(1)[:-2], jpeg(1)[:400], whole, b"\0" + whole)),
    "zero-filled tail": _zero_tail,
    "zeroed hole in a scan": _hole_in_scan,
    "zeroed hole in the headers": _hole_in_headers,
    "bit flip in the headers": _flips_in_headers,
    "bit flip in a scan": _flips_in_scans,
    "bit flip between scans": _flips_between_scans,
    "bit flip in the end marker": _flips_in_the_end,
    "bit flips everywhere": _many_flips,
    "scans left out": _scans_left_out,
    "a huge frame": _huge_frame,
}


def _ended_early(whole: bytes) -> Iterator[Damaged]:
    """Cut the file and append an end marker, as simple repairs do."""
    about = anatomy(whole)
    last = about.scans[-1]
    for part in about.segments(before_data=True)[::2]:
        middle = (part.at + 3 + part.stop) // 2
        yield f"cut at {middle}", whole[:middle] + EOI, None
    places = {stop for stop, _ in about.gaps()} | set(range(max(last.start, last.stop - 12), last.stop))
    for scan in about.scans:
        places |= {scan.start + (scan.stop - scan.start) * percent // 100 for percent in (0, 5, 20, 50, 80, 95)}
    for at in sorted(places):
        yield f"cut at {at}", whole[:at].rstrip(b"\xff") + EOI, None


def _ended_early_with_restarts(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    scan = about.scans[0]
    due = [match.end() for match in _RESTART.finditer(whole, scan.start, scan.stop)]
    for percent in (10, 40, 70):
        at = scan.start + (scan.stop - scan.start) * percent // 100
        left = [whole[end - 2 : end] for end in due if end - 2 >= at]
        if left and whole[at - 1] != 0xFF:
            yield f"cut at {at}, the next one", whole[:at] + left[0] + EOI, None
            yield f"cut at {at}, all that are due", whole[:at] + b"".join(left) + EOI, None


def _zeroed_block(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    for size in (512, 4096, 4096, 1 << 16):
        at = chance.randrange(0, len(whole)) & -512
        if at + size < len(whole):
            yield f"{size} at {at}", whole[:at] + bytes(size) + whole[at + size :], None
    for at in {len(whole) // 3, len(whole) * 3 // 4}:
        yield f"to the end from {at}", whole[:at] + bytes(len(whole) - at), None


def _splices(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    for other in (jpeg(3, (88, 72)), jpeg(2, (160, 112), progressive=True)):
        percent = chance.randrange(20, 90)
        head, tail = whole[: len(whole) * percent // 100], other[len(other) * percent // 100 :]
        yield f"{len(head)} bytes, then the tail of another", head + tail, None
    for size in (1, 7, 64, 500):
        at = chance.randrange(2, max(3, len(whole) - size - 2))
        yield f"{size} bytes at {at} taken out", whole[:at] + whole[at + size :], None
        yield f"{size} bytes at {at} twice", whole[: at + size] + whole[at:], None


def _surplus(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    ends = [("the end", about.scans[-1].stop)]
    ends += [("a restart", match.start()) for match in _RESTART.finditer(whole, about.scans[0].start, about.end)][::5]
    for (name, at), surplus in itertools.product(ends[:4], (b"\x5a", b"\0\0\0", b"\x12\x34\x56\x78" * 16)):
        yield f"{len(surplus)} before {name} at {at}", whole[:at] + surplus + whole[at:], None


def _tables(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    if about.process == "lossless" or about.arithmetic:
        return
    if any(part.marker == 0xDB for part in about.parts):
        yield "no DQT", without(whole, 0xDB), None
        yield "another DQT", _with_tables(whole, jpeg(2, quality=20), 0xDB), None
    if any(part.marker == 0xC4 for part in about.parts):
        yield "no DHT", without(whole, 0xC4), None
        other = jpeg(2, (160, 112), optimize=True)
        yield "another DHT", _with_tables(whole, other, 0xC4), None


def _with_tables(whole: bytes, other: bytes, marker: int) -> bytes:
    """Replace the tables of the first scan with those of another file."""
    tables = b"".join(other[p.start : p.stop] for p in anatomy(other).parts if p.marker == marker)
    parts = anatomy(whole).parts
    first = next(part.start for part in parts if part.marker == marker)
    kept = [whole[p.start : p.stop] for p in parts if p.start > first and p.marker != marker]
    return whole[:first] + tables + b"".join(kept)


HIDDEN: dict[str, Callable[[bytes], Iterator[Damaged]]] = {
    "ended early": _ended_early,
    "ended early, restart markers made up": _ended_early_with_restarts,
    "zeroed block": _zeroed_block,
    "splice": _splices,
    "surplus bytes": _surplus,
    "tables": _tables,
    "end markers appended": _trailing(lambda _: (EOI, EOI * 2, EOI * 1000, bytes(100) + EOI)),
}


@functools.cache
def cases(encoding: str, damage: str) -> tuple[Case, ...]:
    """Return the cases of an encoding and a damage: none if it does not apply, and a sample of them for big files."""
    whole = encode(encoding)
    if (damage == "cut in the second picture") and anatomy(whole).end == len(whole):
        return ()
    all_cases = (DAMAGES | HIDDEN)[damage](whole)
    sample = itertools.islice(all_cases, 0, None, 5 if encoding in BIG else 1)
    return tuple(Case(encoding, damage, place, blob, whole, cut) for place, blob, cut in sample)


def groups(
    damages: Iterable[str] = tuple(DAMAGES), encodings: Iterable[str] = tuple(ENCODINGS)
) -> list[tuple[str, str]]:
    """Return all pairs of encoding and damage that have cases."""
    return [pair for pair in itertools.product(encodings, damages) if cases(*pair)]
