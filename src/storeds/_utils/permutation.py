"""Shuffles an epoch by a keyed permutation, computed position by position without storing the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import xxhash

__all__ = ["MAX_COUNT", "EpochOrder", "Order", "PartOrder", "Uints", "permute", "round_keys"]

Uints: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]

MAX_COUNT = 2**62
"""The largest range to permute: the sum of two positions still fits into 64 bits."""

_ROUNDS = 10
_CHUNK = 4096
# A small Feistel network favours some orders (measured), so up to this many elements are ordered by hash instead.
_RANKED = 64
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_POWERS = np.uint64(1) << np.arange(63, dtype=np.uint64)  # how many are at most n: the bits of n


def round_keys(*key: object) -> Uints:
    """Return the key of each round, derived from the text of `key`; the same on every machine."""
    text = "/".join(map(str, key))
    return np.array([xxhash.xxh3_64_intdigest(f"{text}/{at}".encode()) for at in range(_ROUNDS)], dtype=np.uint64)


def permute(
    values: Uints, count: int | Uints, keys: Uints, tweak: Uints | None = None, *, inverse: bool = False
) -> Uints:
    """Map `values`, all in ``[0, count)``, through a bijection of that range.

    Parameters
    ----------
    values : uint64 array
        Values of the range, in any order; each is mapped independently.
    count : int or uint64 array
        At most ``2**62``. An array has the range of each value, and values of one tweak have one range.
    keys : uint64 array
        From `round_keys`; selects the bijection.
    tweak : uint64 array, optional
        One per value; selects a different bijection for each value.
    inverse : bool
        Apply the inverse.

    Notes
    -----
    A Feistel network over the smallest power of two that is at least `count`, with splitmix64's finaliser as its round
    function. Results outside the range are mapped again until inside (cycle walking, Black and Rogaway 2002).
    """
    if not values.size:
        return values
    tweak = np.zeros_like(values) if tweak is None else _mix(tweak)
    if not isinstance(count, np.ndarray):
        return _permute(values, np.uint64(count), keys, tweak, inverse)
    out = np.empty_like(values)
    for at in np.flatnonzero(count <= _RANKED), np.flatnonzero(count > _RANKED):
        if at.size:
            out[at] = _permute(values[at], count[at], keys, tweak[at], inverse)
    return out


def _permute(values: Uints, count: Uints | np.uint64, keys: Uints, tweak: Uints, inverse: bool) -> Uints:
    """Map values of one range, or of ranges that are all ordered by hash or all not."""
    if np.max(count) <= _RANKED:
        return _rank(values, count, keys, tweak, inverse)
    bits = np.searchsorted(_POWERS, count - np.uint64(1), "right").astype(np.uint64)
    out = _feistel(values, bits, keys, tweak, inverse)
    while (outside := np.flatnonzero(out >= count)).size:
        part = bits[outside] if isinstance(bits, np.ndarray) else bits
        out[outside] = _feistel(out[outside], part, keys, tweak[outside], inverse)
    return out


def _mix(values: Uints) -> Uints:
    """Return the splitmix64 finaliser of each value."""
    values = (values ^ (values >> _SHIFTS[0])) * _MIX[0]
    values = (values ^ (values >> _SHIFTS[1])) * _MIX[1]
    return values ^ (values >> _SHIFTS[2])


def _rank(values: Uints, count: Uints | np.uint64, keys: Uints, tweak: Uints, inverse: bool) -> Uints:
    """Map each value to the rank of its hash within its range; the hash is a bijection, so there are no ties."""
    everything = np.arange(np.max(count), dtype=np.uint64)
    tweaks, first, rows = np.unique(tweak, return_index=True, return_inverse=True)
    hashes = _mix(_mix((everything ^ tweaks[:, None]) + keys[0]) + keys[1])
    if isinstance(count, np.ndarray):  # what is outside of a range comes last
        hashes[everything >= count[first, None]] = ~np.uint64(0)
    order = np.argsort(hashes, axis=1)
    ranked: Uints = (order if inverse else np.argsort(order, axis=1))[rows, values.astype(np.intp)].astype(np.uint64)
    return ranked


def _feistel(values: Uints, bits: Uints | np.uint64, keys: Uints, tweak: Uints, inverse: bool) -> Uints:
    """Apply a bijection of ``[0, 2**bits)`` to each value; the halves alternate, so they may differ in width."""
    one = np.uint64(1)
    low = bits >> one
    low_mask, high_mask = (one << low) - one, (one << (bits - low)) - one
    left, right = values >> low, values & low_mask
    for at in reversed(range(_ROUNDS)) if inverse else range(_ROUNDS):
        if at % 2:
            right = right ^ (_mix((left ^ tweak) + keys[at]) & low_mask)
        else:
            left = left ^ (_mix((right ^ tweak) + keys[at]) & high_mask)
    return (left << low) | right


class Order(ABC):
    """The order of one epoch: what comes at each place of `count`."""

    count: int
    _at_once = _CHUNK

    @abstractmethod
    def at(self, places: Uints) -> list[Any]:
        """Return what comes at places in ``[0, count)``: indices, or lists of them, which are batches."""

    def walk(self, first: int, stride: int, steps: int) -> Iterator[Any]:
        """Yield what comes at every `stride`-th place from `first`, wrapping around at the end."""
        for done in range(0, steps, self._at_once):
            step = np.arange(done, min(done + self._at_once, steps), dtype=np.uint64)
            yield from self.at((step * np.uint64(stride) + np.uint64(first)) % np.uint64(self.count))


@dataclass(frozen=True)
class EpochOrder(Order):
    """The order of one epoch: position in the epoch → index of a sample, a bijection of ``[0, count)``.

    Parameters
    ----------
    count, seed, epoch
        The number of samples, and what selects the shuffle.
    shuffle : bool
        If false, indices are in ascending order.
    block_size, window : int, optional
        Shuffle blocks of `block_size` consecutive indices, then the samples within each `window` shuffled blocks.
    """

    count: int
    seed: int
    epoch: int
    shuffle: bool = True
    block_size: int | None = None
    window: int | None = None
    _keys: Uints = field(init=False, repr=False, compare=False)
    _in_blocks: _Blocks | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", round_keys("storeds.order", 1, self.seed, self.epoch))
        if self.shuffle and self.count > 1 and self.block_size is not None:
            keys = round_keys("storeds.order.window", 1, self.seed, self.epoch)
            blocks = _Blocks(self.count, self.block_size, self.window or 1, self._keys, keys)
            object.__setattr__(self, "_in_blocks", blocks)

    def indices(self, positions: Uints) -> Uints:
        """Return the index at each of `positions`, which lie in ``[0, count)``."""
        if not self.shuffle or self.count < 2:
            return positions
        if self._in_blocks is not None:
            return self._in_blocks.indices(positions)
        return permute(positions, self.count, self._keys)

    def at(self, places: Uints) -> list[int]:
        """Return the index at each place."""
        return self.indices(places).tolist()


class PartOrder(Order):
    """The order of an epoch part by part: shuffles parts of any size, then the samples within windows of shuffled parts.

    The first window is one part, so that an epoch begins when that is there; the others have `window` parts.

    Parameters
    ----------
    sizes : array
        The number of samples of each part, which come one after the other.
    seed, epoch, window : int

    Attributes
    ----------
    parts : array
        The parts, as they come.
    """

    def __init__(self, sizes: Uints, seed: int, epoch: int, window: int) -> None:
        self.count, numbers = int(sizes.sum()), np.arange(len(sizes), dtype=np.uint64)
        self.parts = permute(numbers, len(sizes), round_keys("storeds.order", 1, seed, epoch))
        self._keys = round_keys("storeds.order.window", 1, seed, epoch)
        self._begins = np.cumsum(sizes) - sizes  # of each part, among the samples
        self._starts = np.append(np.uint64(0), np.cumsum(sizes[self.parts]))  # of each part, among the places
        self._windows = np.concatenate([self._starts[:1], self._starts[1:-1:window], self._starts[-1:]])

    def at(self, places: Uints) -> list[int]:
        """Return the index at each place."""
        window = np.searchsorted(self._windows, places, "right") - 1
        first = self._windows[window]
        lengths = self._windows[window + 1] - first
        within = first + permute(places - first, lengths, self._keys, window.astype(np.uint64))
        part = np.searchsorted(self._starts, within, "right") - 1
        indices: list[int] = (self._begins[self.parts[part]] + within - self._starts[part]).tolist()
        return indices


class _Blocks:
    """Shuffles blocks of consecutive indices into *slots*, then samples within windows of slots.

    Every block has `size` indices except the last, which has `missing` fewer and lies in slot `ragged`.
    """

    def __init__(self, count: int, size: int, window: int, block_keys: Uints, sample_keys: Uints) -> None:
        size = max(1, min(size, count))
        self.blocks = -(-count // size)
        window = max(1, min(window, self.blocks))
        self.count, self.size, self.window = count, np.uint64(size), np.uint64(window)
        self.block_keys, self.sample_keys = block_keys, sample_keys
        self.missing = np.uint64(self.blocks * size - count)
        last = np.array([self.blocks - 1], dtype=np.uint64)
        self.ragged = permute(last, self.blocks, block_keys, inverse=True)[0]

    def indices(self, positions: Uints) -> Uints:
        """Return the index at each position."""
        window = self._slot(positions) // self.window
        first = self._start(window * self.window)
        lengths = np.minimum(self._start((window + np.uint64(1)) * self.window), np.uint64(self.count)) - first
        places = positions - first
        for length in np.unique(lengths):  # equal except for the window with the short block and the last window
            same = np.flatnonzero(lengths == length)
            places[same] = permute(places[same], int(length), self.sample_keys, window[same])
        places += first
        slots = self._slot(places)
        return permute(slots, self.blocks, self.block_keys) * self.size + (places - self._start(slots))

    def _start(self, slots: Uints) -> Uints:
        """Return the number of samples before each slot."""
        behind = slots > self.ragged
        starts: Uints = slots * self.size - self.missing * behind
        return starts

    def _slot(self, places: Uints) -> Uints:
        """Return the slot that contains each place in the sequence of all samples."""
        behind = places >= (self.ragged + np.uint64(1)) * self.size - self.missing
        slots: Uints = (places + self.missing * behind) // self.size
        return slots
