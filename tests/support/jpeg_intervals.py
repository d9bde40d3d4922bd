"""Damages JPEGs with restart markers, and compares pixels of a repaired picture by restart interval.

Nothing here uses `storeds`: Pillow decodes, and a parser that trusts its file finds the intervals.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jpeg_truth import Anatomy, anatomy, decode

__all__ = ["DAMAGES", "SHIFTS", "Marked", "equal_units"]

_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_EOI = b"\xff\xd9"


@dataclass(frozen=True)
class Marked:
    """A whole JPEG, the MCUs between restart markers, and the number of the scan to damage."""

    blob: bytes
    interval: int
    scan: int = 0

    @property
    def about(self) -> Anatomy:
        return anatomy(self.blob)

    @property
    def start(self) -> int:
        return self.about.scans[self.scan].start

    @property
    def stop(self) -> int:
        return self.about.scans[self.scan].stop

    @property
    def units(self) -> int:
        columns, rows = self.about.mcus
        return columns * rows

    @property
    def count(self) -> int:
        """Number of intervals."""
        return -(-self.units // self.interval)

    @property
    def markers(self) -> list[int]:
        """Positions of the restart markers."""
        return [match.start() for match in _RESTART.finditer(self.blob, self.start, self.stop)]


def equal_units(whole: Marked, repaired: bytes) -> np.ndarray:
    """Return for each MCU whether it decodes as in the whole picture.

    Upsampling of chroma reads neighbouring MCUs, so the two outermost pixels of each MCU do not count there.
    """
    expected, got = (_planes(blob) for blob in (whole.blob, repaired))
    wrong = expected != got
    about = whole.about
    if wrong.shape[2] == 3:
        for axis, length in enumerate(about.mcu[::-1]):
            edge = (np.arange(wrong.shape[axis]) + 2) % length < 4
            wrong[(edge, slice(None), slice(1, None)) if axis == 0 else (slice(None), edge, slice(1, None))] = False
    (columns, rows), (width, height) = about.mcus, about.mcu
    padded = np.zeros((rows * height, columns * width), bool)
    padded[: wrong.shape[0], : wrong.shape[1]] = wrong.any(axis=2)
    return ~padded.reshape(rows, height, columns, width).any(axis=(1, 3)).ravel()


def _planes(blob: bytes) -> np.ndarray:
    pixels = decode(blob, "YCbCr")
    return pixels.reshape(*pixels.shape[:2], -1)


def _inside(whole: Marked, chance: random.Random, size: int = 0) -> int:
    return chance.randrange(whole.start, whole.stop - size)


def _flipped(blob: bytes, at: int, bit: int) -> bytes:
    return blob[:at] + bytes((blob[at] ^ 1 << bit,)) + blob[at + 1 :]


def _replaced(blob: bytes, at: int, new: bytes) -> bytes:
    return blob[:at] + new + blob[at + len(new) :]


def _bit_flipped(whole: Marked, chance: random.Random) -> bytes:
    return _flipped(whole.blob, _inside(whole, chance), chance.randrange(8))


def _marker_flipped(whole: Marked, chance: random.Random) -> bytes:
    return _flipped(whole.blob, chance.choice(whole.markers) + chance.randrange(2), chance.randrange(8))


def _marker_zeroed(whole: Marked, chance: random.Random) -> bytes:
    return _replaced(whole.blob, chance.choice(whole.markers), b"\0\0")


def _marker_removed(whole: Marked, chance: random.Random) -> bytes:
    at = chance.choice(whole.markers)
    return whole.blob[:at] + whole.blob[at + 2 :]


def _marker_made(whole: Marked, chance: random.Random) -> bytes:
    made = chance.choice([0xD9, 0xD8, 0xC4, 0xDA, 0xDB, *range(0xD0, 0xD8), *range(1, 0xFF)])
    return _replaced(whole.blob, _inside(whole, chance, 2), bytes((0xFF, made)))


def _marker_renumbered(whole: Marked, chance: random.Random) -> bytes:
    at = chance.choice(whole.markers)
    others = [number for number in range(0xD0, 0xD8) if number != whole.blob[at + 1]]
    return _replaced(whole.blob, at + 1, bytes((chance.choice(others),)))


def _size(whole: Marked, chance: random.Random) -> int:
    """Return a number of bytes, from one to a third of the data."""
    return int(((whole.stop - whole.start) / 3) ** chance.random())


def _bytes_lost(whole: Marked, chance: random.Random) -> bytes:
    size = _size(whole, chance)
    at = _inside(whole, chance, size)
    return whole.blob[:at] + whole.blob[at + size :]


def _zeroed(whole: Marked, chance: random.Random) -> bytes:
    size = max(_size(whole, chance), 30)
    return _replaced(whole.blob, _inside(whole, chance, size), bytes(size))


def _overwritten(whole: Marked, chance: random.Random) -> bytes:
    size = max(_size(whole, chance), 30)
    return _replaced(whole.blob, _inside(whole, chance, size), chance.randbytes(size))


def _intervals_lost(whole: Marked, chance: random.Random) -> bytes:
    """Lose whole intervals, but not a multiple of 8: nothing shows where those were."""
    markers = whole.markers
    first = chance.randrange(len(markers) - 1)
    lost = min(chance.randrange(1, 20), len(markers) - 1 - first)
    return whole.blob[: markers[first]] + whole.blob[markers[first + lost - (lost % 8 == 0)] :]


def _cut(whole: Marked, chance: random.Random) -> bytes:
    return whole.blob[: _inside(whole, chance)]


def _cut_and_ended(whole: Marked, chance: random.Random) -> bytes:
    return whole.blob[: _inside(whole, chance)] + _EOI


def _last_interval_cut(whole: Marked, chance: random.Random) -> bytes:
    return whole.blob[: chance.randrange(whole.markers[-1] + 2, whole.stop)] + _EOI


DAMAGES: dict[str, Callable[[Marked, random.Random], bytes]] = {
    "a flipped bit": _bit_flipped,
    "a flipped bit in a marker": _marker_flipped,
    "a marker overwritten by zeros": _marker_zeroed,
    "a marker removed": _marker_removed,
    "a marker made": _marker_made,
    "a marker with a wrong number": _marker_renumbered,
    "bytes lost": _bytes_lost,
    "bytes overwritten by zeros": _zeroed,
    "bytes overwritten by noise": _overwritten,
    "intervals lost": _intervals_lost,
    "cut": _cut,
    "cut, and an end marker appended": _cut_and_ended,
    "the last interval cut": _last_interval_cut,
}

SHIFTS = frozenset(("a marker made", "bytes lost", "bytes overwritten by noise", "intervals lost"))
"""Damages after which decoders put the rest of a picture at a wrong place, or lose it."""
