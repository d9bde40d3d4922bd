"""Photographs in many JPEG encodings with many damages, each with the kinds that `triage` may give it.

`TABLE` defines the kinds; the code below it decides the row of a damaged blob. `DAMAGES` show in the structure of a file or
not at all. With `HIDDEN` damages the structure may be whole, and only a decoder finds them. Nothing here uses `storeds`.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jpeg_encodings import BIG, ENCODINGS, encode, save, without
from jpeg_truth import EOI, FRAMES, Anatomy, Part, anatomy, foreign_markers
from photographs import jpeg, photograph

__all__ = ["DAMAGES", "HIDDEN", "NOT_JPEG", "TABLE", "Case", "cases", "groups", "row_of_cut"]

_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")
NOT_JPEG = "not a JPEG"  # instead of an encoding
_STRUCTURE = {"corrupt_data", "truncated_header", "truncated_scan"}

# Damage → kinds. There are several where the bytes alone do not decide: a flipped bit may or may not leave a trace in the
# structure, and a decoder out of step may run out of data or meet an invalid code.
TABLE: dict[str, set[str]] = {
    "none": {"intact"},
    "bytes after the end": {"trailing_data"},
    "bytes after a second picture that is declared": {"intact", "trailing_data"},
    "cut: nothing is left": {"not_jpeg"},
    "cut: one byte is left": {"not_jpeg", "truncated_header"},
    "cut before the first scan's data": {"truncated_header"},
    "cut in a scan's data": {"truncated_scan"},
    "cut between FF and 00 that end the last scan": {"truncated_scan", "missing_eoi"},
    "cut between two scans": {"truncated_scan"},
    "cut in the end marker": {"missing_eoi"},
    "cut in a second picture that is declared": {"intact", "trailing_data"},
    "zeros to the end, but few, from inside a segment": {"corrupt_data"},
    "zeros over the last byte of data and the end marker": {"truncated_scan", "missing_eoi"},
    "scans left out": {"truncated_scan"},
    "hole in APPn or COM": {"intact"},
    "hole in a table's payload": {"intact", *_STRUCTURE},
    "hole over a marker or length": {"corrupt_data", "truncated_header"},
    "hole in a scan, restart markers lost": {"corrupt_data", "truncated_scan"},
    "hole in a scan, no marker lost": {"intact", "corrupt_data", "truncated_scan"},
    "flip in the start marker": {"not_jpeg"},
    "flip in APPn or COM": {"intact"},
    "flip in an MPF index": {"intact", "trailing_data"},
    "flip in a marker's FF": {"corrupt_data", "truncated_header"},
    "flip in a marker's code": {"intact", *_STRUCTURE},
    "flip in a length": _STRUCTURE,
    "flip in a length that then ends before another FF": {"intact", *_STRUCTURE},
    "flip in a table": {"intact", *_STRUCTURE},
    "flip between scans": {"intact", *_STRUCTURE},
    "flip in a scan, markers as before": {"intact", "corrupt_data"},
    "flip in a scan, a marker more or less": {"corrupt_data", "truncated_scan"},
    "flip in a scan makes an end marker": {"corrupt_data", "truncated_scan", "trailing_data"},
    "flip in the end marker": {"missing_eoi", "corrupt_data"},
    "flips everywhere": {"intact", *_STRUCTURE, "missing_eoi", "trailing_data"},
    "a frame of 65,500 × 65,500": {"intact", *_STRUCTURE},
    # For the following rows a decoder decides, not the structure.
    "cut in the headers, an end marker appended": {"truncated_header"},
    "cut in a scan's data, an end marker appended": {"truncated_scan"},
    # The rest may look like the end of a scan that lost data before.
    "cut in a scan's last bytes, an end marker appended": {"intact", "truncated_scan", "corrupt_data"},
    "cut between scans, an end marker appended": {"truncated_scan"},
    "cut in a scan's data, restart markers and an end marker appended": {"truncated_scan", "corrupt_data"},
    "zeroed block": {*_STRUCTURE, "intact", "missing_eoi"},
    "zeroed block to the end": {"truncated_header", "truncated_scan", "missing_eoi", "trailing_data"},
    "splice": {*_STRUCTURE, "intact", "trailing_data", "missing_eoi"},
    "surplus bytes before a marker": {"intact", "corrupt_data"},  # libjpeg may have read one, and then ignores it
    "a table is missing": {"corrupt_data", "truncated_header"},
    "Huffman tables are missing": {"intact", *_STRUCTURE},
    "Huffman tables of another file": {"intact", "corrupt_data", "truncated_scan"},
    "quantisation tables of another file": {"intact"},
    "another format": {"not_jpeg"},
}


# Further kinds for encodings whose codes cannot be followed, so that the share of the picture is unknown.
_UNFOLLOWED = {"intact", "corrupt_data", "missing_eoi", "truncated_scan"}


@dataclass(frozen=True)
class Case:
    """One damaged blob; `cut` is the unchanged part of `whole`, or None if that does not determine the picture."""

    encoding: str
    damage: str
    place: str
    blob: bytes
    whole: bytes
    admitted: frozenset[str]
    cut: int | None = None
    format: str | None = None

    @property
    def name(self) -> str:
        return f"{self.encoding} / {self.damage} / {self.place}"


Damaged = tuple[str, bytes, set[str], int | None]  # where, the blob, the classes admitted, how much is unchanged


def row_of_cut(about: Anatomy, whole: bytes, cut: int) -> str:
    last = about.scans[-1]
    if cut < 2:
        return ("cut: nothing is left", "cut: one byte is left")[cut]
    if cut < about.scans[0].start:
        return "cut before the first scan's data"
    if cut == last.stop - 1 and whole[cut - 1] == 0xFF:
        return "cut between FF and 00 that end the last scan"
    if cut < last.stop:
        in_data = any(scan.start <= cut < scan.stop for scan in about.scans)
        return "cut in a scan's data" if in_data else "cut between two scans"
    return "cut in the end marker" if cut < about.end else "cut in a second picture that is declared"


def _cut(whole: bytes, cut: int) -> Damaged:
    return f"cut at {cut}", whole[:cut], TABLE[row_of_cut(anatomy(whole), whole, cut)], cut


def _cuts(whole: bytes, places: Iterable[int]) -> Iterator[Damaged]:
    return (_cut(whole, cut) for cut in sorted(set(places)) if cut < len(whole))


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
    yield "whole", whole, TABLE["none"], None


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
        several = anatomy(whole).end < len(whole)
        row = f"bytes after {'a second picture that is declared' if several else 'the end'}"
        for number, tail in enumerate(tails(whole)):
            yield f"tail {number}: {tail[:6]!r}…", whole + tail, TABLE[row], None

    return damage


def _zero_tail(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    places = {(part.at + 3 + part.stop) // 2 for part in about.segments(before_data=True)}
    places |= {scan.start + (scan.stop - scan.start) * n // 100 for scan in about.scans for n in (0, 10, 50, 90)}
    places |= {stop + 1 for stop, _ in about.gaps()} | {about.end - n for n in (1, 2, 3, 4, 8, 16, 40, 66, 200)}
    for at in sorted(place for place in places if place > 2):
        blob = whole[:at] + bytes(len(whole) - at)
        # Zeros of the file before the tail look like its beginning, and those in the tail like the file.
        same = next((n for n in range(at, len(whole)) if whole[n]), len(whole))
        rows = {row_of_cut(about, whole, n) for n in (len(whole[:at].rstrip(b"\0")), at, same)}
        if len(blob) - at < 16 and not any(scan.start <= at <= scan.stop for scan in about.scans):
            rows.add("zeros to the end, but few, from inside a segment")
        if at == about.scans[-1].stop - 1:  # which may be data as they are
            rows.add("zeros over the last byte of data and the end marker")
        admitted = set[str]().union(*(TABLE[row] for row in rows))
        yield f"zeros from {at}", blob, admitted, at if len(rows) == 1 and same - at < 64 else None


def _hole_in_scan(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    for scan in about.scans:
        for length, percent in itertools.product((8, 64, 100, 400), (20, 50, 80)):
            at = scan.start + (scan.stop - scan.start) * percent // 100
            blob = whole[:at] + bytes(length) + whole[at + length :]
            if at + length > scan.stop or blob == whole:
                continue
            if foreign_markers(blob[scan.start : scan.stop]) != foreign_markers(whole[scan.start : scan.stop]):
                row = "hole in a scan, restart markers lost"
            else:
                row = "hole in a scan, no marker lost"
            yield f"{length} zeros at {at}", blob, TABLE[row], None


def _hole_in_headers(whole: bytes) -> Iterator[Damaged]:
    for part in anatomy(whole).segments(before_data=True):
        inside = "hole in APPn or COM" if part.is_comment else "hole in a table's payload"
        if whole[part.at + 3 :].startswith(b"MPF\0"):
            inside = "flip in an MPF index"
        across = "hole over a marker or length"
        middle = (part.at + 3 + part.stop) // 2
        for row, at, stop in (
            (inside, part.at + 3, part.stop),
            (inside, middle, part.stop),
            (across, part.start, middle),
        ):
            yield f"zeros {at} to {stop}", whole[:at] + bytes(stop - at) + whole[stop:], TABLE[row], None


def _flip(whole: bytes, at: int, bit: int, row: str) -> Damaged:
    blob = bytearray(whole)
    blob[at] ^= 1 << bit
    return f"bit {bit} of byte {at}", bytes(blob), TABLE[row], None


def _flips_in_headers(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    yield from (_flip(whole, at, chance.randrange(8), "flip in the start marker") for at in (0, 1))
    for part in anatomy(whole).segments(before_data=True):
        payload = "flip in APPn or COM" if part.is_comment else "flip in a table"
        if whole[part.at + 3 :].startswith(b"MPF\0"):
            payload = "flip in an MPF index"
        places = [(part.at - 1, "flip in a marker's FF"), (part.at, "flip in a marker's code")]
        places += [(chance.randrange(part.at + 3, part.stop), payload) for _ in range(4)]
        yield from (_flip(whole, at, chance.randrange(8), row) for at, row in places)
        yield from (_flip_in_length(whole, part, at, chance.randrange(8)) for at in (part.at + 1, part.at + 2))


def _flip_in_length(whole: bytes, part: Part, at: int, bit: int) -> Damaged:
    length = (part.stop - part.at - 1) ^ (1 << (bit + 8 * (part.at + 2 - at)))
    beyond = part.at + 1 + length
    # Fill bytes, or values of 255 in a table, then read as the beginning of the next marker.
    marker = length >= 2 and whole[beyond : beyond + 1] == b"\xff"
    return _flip(whole, at, bit, "flip in a length that then ends before another FF" if marker else "flip in a length")


def _flips_between_scans(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    for part in anatomy(whole).segments(before_data=False):
        places = (part.at - 1, part.at, part.at + 1, part.at + 2, chance.randrange(part.at + 3, part.stop))
        yield from (_flip(whole, at, chance.randrange(8), "flip between scans") for at in places)


def _flips_in_scans(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    about = anatomy(whole)
    for scan in about.scans:
        places = [chance.randrange(scan.start, scan.stop) for _ in range(24 // len(about.scans) + 2)]
        # Most flips leave no trace; these do.
        at = whole.find(b"\xff", scan.start, scan.stop)
        places += [at, at + 1, at + 1] if at >= 0 else []
        for at in places:
            bit = chance.randrange(8)
            yield _flip(whole, at, bit, _row_of_flip(whole, scan, at, bit))


def _row_of_flip(whole: bytes, scan: Part, at: int, bit: int) -> str:
    data = bytearray(whole[scan.start : scan.stop] + EOI)
    before = foreign_markers(bytes(data))
    data[at - scan.start] ^= 1 << bit
    after = foreign_markers(bytes(data))
    if before == after:
        return "flip in a scan, markers as before"
    new = next((a for a, b in zip(after, before, strict=False) if a != b), b"")
    return f"flip in a scan{' makes an end marker' if new == EOI[1:] else ', a marker more or less'}"


def _flips_in_the_end(whole: bytes) -> Iterator[Damaged]:
    at = anatomy(whole).end - 2
    places = itertools.product((at, at + 1), range(8))
    return (_flip(whole, n, bit, "flip in the end marker") for n, bit in places)


def _many_flips(whole: bytes) -> Iterator[Damaged]:
    for seed in range(8):
        chance, blob = random.Random(seed), bytearray(whole)
        for _ in range(4 * (seed + 1)):
            blob[chance.randrange(2, len(blob))] ^= 1 << chance.randrange(8)
        yield f"seed {seed}", bytes(blob), TABLE["flips everywhere"], None


def _scans_left_out(whole: bytes) -> Iterator[Damaged]:
    scans = anatomy(whole).scans
    for first, stop in itertools.combinations(range(1, len(scans) + 1), 2):
        if stop in (first + 1, len(scans)):
            kept = whole[: scans[first - 1].stop] + whole[scans[stop - 1].stop :]
            yield f"scans {first + 1} to {stop} of {len(scans)}", kept, TABLE["scans left out"], None


def _huge_frame(whole: bytes) -> Iterator[Damaged]:
    frame = next(part for part in anatomy(whole).parts if part.marker in FRAMES)
    blob = whole[: frame.at + 4] + struct.pack(">HH", 65500, 65500) + whole[frame.at + 8 :]
    for stop in (len(blob), len(blob) - 2, anatomy(whole).scans[0].start + 9):
        yield f"{stop} bytes of it", blob[:stop], TABLE["a frame of 65,500 × 65,500"], None


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
        place, middle = TABLE["cut in the headers, an end marker appended"], (part.at + 3 + part.stop) // 2
        yield f"cut at {middle}", whole[:middle] + EOI, place, None
    for scan in about.scans:
        length = scan.stop - scan.start
        for at in sorted({scan.start + length * percent // 100 for percent in (0, 5, 20, 50, 80, 95)}):
            near = length < 4 or at > scan.stop - 4
            row = f"cut in a scan's {'last bytes' if near else 'data'}, an end marker appended"
            # Between two scans the marker follows data that may be whole.
            yield f"cut at {at}", whole[:at].rstrip(b"\xff") + EOI, TABLE[row], at
    for at in range(max(last.start, last.stop - 12), last.stop):
        kept = whole[:at].rstrip(b"\xff") + EOI
        yield f"cut at {at}", kept, TABLE["cut in a scan's last bytes, an end marker appended"], None
    for stop, _ in about.gaps():
        yield f"cut at {stop}", whole[:stop] + EOI, TABLE["cut between scans, an end marker appended"], None


def _ended_early_with_restarts(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    row = TABLE["cut in a scan's data, restart markers and an end marker appended"]
    scan = about.scans[0]
    due = [match.end() for match in _RESTART.finditer(whole, scan.start, scan.stop)]
    for percent in (10, 40, 70):
        at = scan.start + (scan.stop - scan.start) * percent // 100
        left = [whole[end - 2 : end] for end in due if end - 2 >= at]
        if left and whole[at - 1] != 0xFF:
            yield f"cut at {at}, the next one", whole[:at] + left[0] + EOI, row, None
            yield f"cut at {at}, all that are due", whole[:at] + b"".join(left) + EOI, row, None


def _zeroed_block(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    for size in (512, 4096, 4096, 1 << 16):
        at = chance.randrange(0, len(whole)) & -512
        if at + size < len(whole):
            row = "zeroed block" if at else "another format"
            yield f"{size} at {at}", whole[:at] + bytes(size) + whole[at + size :], TABLE[row], None
    for at in {len(whole) // 3, len(whole) * 3 // 4}:
        # Bytes that were zeros before, or are the first of a marker, may count for either side.
        yield f"to the end from {at}", whole[:at] + bytes(len(whole) - at), TABLE["zeroed block to the end"], None


def _splices(whole: bytes) -> Iterator[Damaged]:
    chance = random.Random(len(whole))
    row = TABLE["splice"]
    for other in (jpeg(3, (88, 72)), jpeg(2, (160, 112), progressive=True)):
        percent = chance.randrange(20, 90)
        head, tail = whole[: len(whole) * percent // 100], other[len(other) * percent // 100 :]
        yield f"{len(head)} bytes, then the tail of another", head + tail, row, None
    for size in (1, 7, 64, 500):
        at = chance.randrange(2, max(3, len(whole) - size - 2))
        yield f"{size} bytes at {at} taken out", whole[:at] + whole[at + size :], row, None
        yield f"{size} bytes at {at} twice", whole[: at + size] + whole[at:], row, None


def _surplus(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    ends = [("the end", about.scans[-1].stop)]
    ends += [("a restart", match.start()) for match in _RESTART.finditer(whole, about.scans[0].start, about.end)][::5]
    row = TABLE["surplus bytes before a marker"]
    for (name, at), surplus in itertools.product(ends[:4], (b"\x5a", b"\0\0\0", b"\x12\x34\x56\x78" * 16)):
        yield f"{len(surplus)} before {name} at {at}", whole[:at] + surplus + whole[at:], row, None


def _tables(whole: bytes) -> Iterator[Damaged]:
    about = anatomy(whole)
    if about.process == "lossless" or about.arithmetic:
        return
    if any(part.marker == 0xDB for part in about.parts):
        yield "no DQT", without(whole, 0xDB), TABLE["a table is missing"], None
        yield (
            "another DQT",
            _with_tables(whole, jpeg(2, quality=20), 0xDB),
            TABLE["quantisation tables of another file"],
            None,
        )
    if any(part.marker == 0xC4 for part in about.parts):
        yield "no DHT", without(whole, 0xC4), TABLE["Huffman tables are missing"], None
        other = jpeg(2, (160, 112), optimize=True)
        yield "another DHT", _with_tables(whole, other, 0xC4), TABLE["Huffman tables of another file"], None


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


def _other_formats() -> Iterator[tuple[str, str, bytes]]:
    for format in ("PNG", "WebP", "GIF", "BMP", "TIFF"):
        blob = save(photograph(1, (40, 30)), format)
        yield from ((format, f"first {stop} bytes", blob[:stop]) for stop in (len(blob), len(blob) // 2, 64, 16))
        yield format, "an end marker appended", blob + EOI
    text = {
        "HTML": (b"<!DOCTYPE html><html><body>404", b"<html>", b"\n  <HTML lang=en>", b"\xef\xbb\xbf<!doctype html>"),
        "JSON": (b'{"error": "not found"}', b'[{"a": 1}]', b' \n{"a": [1, 2]}'),
        "text": (b"Not Found", b"the image is gone\n", "Bild fehlt: Größe\r\n".encode()),
        "empty": (b"",),
        "zeros": (b"\0", bytes(2), bytes(4096), bytes(70000)),
    }
    yield from ((format, repr(blob[:20]), blob) for format, blobs in text.items() for blob in blobs)
    yield from (("", f"random {n}", b"\x80" + random.Random(n).randbytes(n)) for n in (1, 2, 3, 50, 3000, 3001, 3002))
    for lead in (b"\0", b"\n", b"\xff", b"\xd8", b"HTTP/1.1 200 OK\r\n\r\n"):
        yield "", f"a JPEG after {lead!r}", lead + jpeg(0)
    yield "", "a JPEG without its first two bytes", jpeg(0)[2:]


@functools.cache
def cases(encoding: str, damage: str) -> tuple[Case, ...]:
    """Return the cases of an encoding and a damage: none if it does not apply, and a sample of them for big files."""
    if encoding == NOT_JPEG:
        admitted = frozenset(TABLE["another format"])
        found = _other_formats()
        return tuple(Case(encoding, damage, f"{f} {p}", b, b, admitted, format=f or None) for f, p, b in found)
    whole = encode(encoding)
    if (damage == "cut in the second picture") and anatomy(whole).end == len(whole):
        return ()
    all_cases = (DAMAGES | HIDDEN)[damage](whole)
    sample = itertools.islice(all_cases, 0, None, 5 if encoding in BIG else 1)
    followed = anatomy(whole).huffman
    return tuple(
        Case(encoding, damage, p, b, whole, frozenset(a if followed else a | _UNFOLLOWED), cut)
        for p, b, a, cut in sample
    )


def groups(
    damages: Iterable[str] = tuple(DAMAGES), encodings: Iterable[str] = tuple(ENCODINGS)
) -> list[tuple[str, str]]:
    """Return all pairs of encoding and damage that have cases."""
    pairs = [*itertools.product(encodings, damages), (NOT_JPEG, "another format")]
    return [pair for pair in pairs if cases(*pair)]
