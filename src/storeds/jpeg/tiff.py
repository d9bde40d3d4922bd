"""Judges a TIFF by its directories, and by whether the strips and tiles that they list lie inside the file."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from storeds.records.fields import Verdict

__all__ = ["check_tiff"]

# Size in bytes of each type of value, and the `struct` format of the unsigned integers.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_FORMATS = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _SUB = 256, 257, 258, 259, 330
_STRIPS, _STRIP_BYTES, _SAMPLES, _TILES, _TILE_BYTES, _JPEG, _JPEG_BYTES = 273, 279, 277, 324, 325, 513, 514
_PAIRS = ((_STRIPS, _STRIP_BYTES), (_TILES, _TILE_BYTES), (_JPEG, _JPEG_BYTES))
_WANTED = {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _SUB, _SAMPLES, *(tag for pair in _PAIRS for tag in pair)}


class _OutsideError(Exception):
    """The file refers to data after its end."""


class _Form(NamedTuple):
    """Formats of the numbers in a file, and the size of a directory entry in bytes."""

    order: str
    number: str  # the number of entries of a directory
    offset: str  # offsets, and counts of values
    entry: int

    @property
    def count_size(self) -> int:
        return struct.calcsize(self.number)

    @property
    def offset_size(self) -> int:
        return struct.calcsize(self.offset)


class _Reader:
    """Reads numbers from a file, and limits their total size: directories may overlap."""

    def __init__(self, blob: bytes, form: _Form) -> None:
        self.blob, self.form = blob, form
        self._left = 2 * len(blob)

    def numbers(self, at: int, count: int, number: str) -> Sequence[int]:
        size = count * struct.calcsize(number)
        if at + size > len(self.blob):
            raise _OutsideError(f"byte {at + size}")
        self._left -= size
        if self._left < 0:
            raise ValueError("its directories overlap")
        return struct.unpack_from(f"{self.form.order}{count}{number}", self.blob, at)

    def directory(self, at: int) -> tuple[dict[int, Sequence[int]], int]:
        """Return the needed entries of the directory at `at`, and the position of the next one, or 0."""
        form = self.form
        (count,) = self.numbers(at, 1, form.number)
        at += form.count_size
        end = at + count * form.entry
        (following,) = self.numbers(end, 1, form.offset)
        self._left -= end - at
        if self._left < 0:
            raise ValueError("its directories overlap")
        entries = {}
        for place in range(at, end, form.entry):
            tag, kind = struct.unpack_from(f"{form.order}HH", self.blob, place)
            if kind in _SIZES:
                values = self._values(place + 4, kind, wanted=tag in _WANTED)
                if values:
                    entries[tag] = values
        return entries, following

    def _values(self, at: int, kind: int, *, wanted: bool) -> Sequence[int]:
        """Return the values of an entry, or none unless `wanted`; raise _OutsideError if they lie outside the file."""
        count, place = struct.unpack_from(f"{self.form.order}2{self.form.offset}", self.blob, at)
        size = count * _SIZES[kind]
        if size <= self.form.offset_size:
            place = at + self.form.offset_size
        elif place + size > len(self.blob):
            raise _OutsideError(f"byte {place + size}")
        return self.numbers(place, count, _FORMATS[kind]) if wanted and kind in _FORMATS else ()


def check_tiff(blob: bytes) -> Verdict:
    """Judge a file with the signature of a TIFF or BigTIFF."""
    order = "<" if blob[:2] == b"II" else ">"
    big = blob[2:4] in (b"+\x00", b"\x00+")
    form = _Form(order, "Q", "Q", 20) if big else _Form(order, "H", "I", 12)
    reader = _Reader(blob, form)
    try:
        (first,) = reader.numbers(8 if big else 4, 1, form.offset)
        pictures = _walk(reader, first)
    except _OutsideError as error:
        kind, reason = "truncated_file", f"it is cut at byte {len(blob)}, and refers to data up to {error}"
        return Verdict(kind, 0.0, exact=False, reason=reason)
    except ValueError as error:
        return Verdict("corrupt_data", 0.0, exact=False, reason=str(error))
    if not pictures:
        return Verdict("corrupt_data", 0.0, reason="its directories list no picture")
    return Verdict("intact")


def _walk(reader: _Reader, first: int) -> int:
    """Return the number of pictures in the directories from `first` on; raise if their data lie outside the file."""
    pictures = 0
    due: list[tuple[int, bool]] = [(first, False)]
    seen: dict[int, bool] = {}
    while due:
        at, is_sub = due.pop()
        if at == 0 or (at in seen and (is_sub or seen[at])):  # several pictures may list the same subdirectory
            continue
        if at in seen:
            raise ValueError(f"its directory at byte {at} refers back to itself")
        seen[at] = is_sub
        entries, following = reader.directory(at)
        due += [(following, is_sub), *((place, True) for place in entries.get(_SUB, ()))]
        for offsets, counts in _PAIRS:
            if offsets in entries:
                pictures += 1
                _check_data(reader.blob, entries, entries[offsets], entries.get(counts, ()))
    return pictures


def _check_data(blob: bytes, entries: dict[int, Sequence[int]], offsets: Sequence[int], counts: Sequence[int]) -> None:
    """Raise _OutsideError for strips or tiles outside the file."""
    if len(counts) == len(offsets):
        end = max((offset + count for offset, count in zip(offsets, counts, strict=True) if count), default=0)
        end = max(end, max(offsets, default=0))
    else:
        end = max(offsets, default=0) + (_raw_size(entries) if len(offsets) == 1 else 0)
    if end <= len(blob):
        return
    # Some writers store too large a count. The size of uncompressed data is known.
    if len(offsets) == 1 and _is_raw(entries) and offsets[0] + _raw_size(entries) <= len(blob):
        return
    raise _OutsideError(f"byte {end}")


def _is_raw(entries: dict[int, Sequence[int]]) -> bool:
    return tuple(entries.get(_COMPRESSION, (1,))) == (1,) and _STRIPS in entries


def _raw_size(entries: dict[int, Sequence[int]]) -> int:
    """Return the number of bytes of an uncompressed picture; 0 if it is compressed."""
    if not _is_raw(entries):
        return 0
    width, height = (max(entries.get(tag, (0,)), default=0) for tag in (_WIDTH, _HEIGHT))
    samples = max(entries.get(_SAMPLES, (1,)), default=1)
    bits = entries.get(_BITS, (1,))
    pixel = sum(bits) if len(bits) > 1 else samples * sum(bits)
    return height * ((width * pixel + 7) // 8)
