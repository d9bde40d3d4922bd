"""One pass through an epoch of a `StoreIterable`: shards, interleaving, the shuffle buffer, and reading ahead."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from storeds._utils.permutation import MAX_COUNT, permute, round_keys
from storeds._utils.prefetch import ReadAhead
from storeds.batching.skipped import Skipped
from storeds.datasets.epoch import use_epoch
from storeds.datasets.map_dataset import StoreDataset
from storeds.protocols import Array

__all__ = [
    "Addresses",
    "IndexRange",
    "Interleave",
    "Place",
    "Remainder",
    "Samples",
    "Shard",
    "ShuffleBuffer",
    "StreamPass",
    "rank_bounds",
    "shard_ranges",
]

Remainder: TypeAlias = Literal["keep", "drop", "pad"]


class IndexRange(NamedTuple):
    """Consecutive samples of one source: indices ``start`` to ``stop - 1``."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """Which part of an epoch it is: that of one of `workers` workers of one of `replicas` ranks."""

    rank: int = 0
    replicas: int = 1
    worker: int = 0
    workers: int = 1


def rank_bounds(total: int, shard: Shard, remainder: Remainder) -> tuple[int, int]:
    """Return where a rank's samples begin and end in the row of all samples; beyond `total`, the row repeats."""
    if remainder == "drop":
        total -= total % shard.replicas
    elif remainder == "pad":
        total += -total % shard.replicas
    return _part(0, total, shard.rank, shard.replicas)


def shard_ranges(
    counts: Sequence[int], shard: Shard, remainder: Remainder, seed: int | None, epoch: int
) -> list[IndexRange]:
    """Return the index ranges that a worker reads in an epoch.

    Parameters
    ----------
    counts : sequence of int
        The number of samples of each source.
    shard, remainder
        The row is cut into equal parts for the ranks, and a rank's part into equal parts for its workers. Where it does
        not divide evenly, parts differ by one.
    seed, epoch
        A seed shuffles the sources. Where there are several shards, the row also begins at another place in each
        epoch. Otherwise one large source would give a rank the same samples in every epoch.
    """
    total = sum(counts)
    if not total:
        return []
    order: list[int] = list(range(len(counts)))
    turn = 0
    if seed is not None:
        keys = round_keys("storeds.sources", 1, seed, epoch)
        order = permute(np.arange(len(counts), dtype=np.uint64), len(counts), keys).tolist()
        if shard.replicas * shard.workers > 1:
            turn = int(keys[0]) % total
    first, last = _part(*rank_bounds(total, shard, remainder), shard.worker, shard.workers)
    return _cut(
        [IndexRange(source, 0, counts[source]) for source in order if counts[source]], first + turn, last + turn
    )


def _part(first: int, last: int, at: int, parts: int) -> tuple[int, int]:
    """Return the bounds of one of equal parts of a range."""
    return first + (last - first) * at // parts, first + (last - first) * (at + 1) // parts


def _cut(row: Sequence[IndexRange], first: int, last: int) -> list[IndexRange]:
    """Return the ranges between two places of a row that repeats without end."""
    ranges: list[IndexRange] = []
    place = 0
    for piece in itertools.cycle(row):
        if place >= last:
            return ranges
        length = piece.stop - piece.start
        low, high = max(first - place, 0), min(last - place, length)
        if low < high:
            ranges.append(IndexRange(piece.source, piece.start + low, piece.start + high))
        place += length
    return ranges


class _Turn(NamedTuple):
    """Consecutive elements of one sequence."""

    sequence: int
    offset: int
    length: int


class Interleave:
    """Maps a position in the interleaved order to a sequence and an offset in it.

    Parameters
    ----------
    lengths : sequence of int
        The length of each sequence.
    cycle_length : int
        How many sequences are open at once.
    block_length : int
        How many consecutive elements of a sequence come in its turn.

    Notes
    -----
    The order is that of ``tf.data.Dataset.interleave``: a sequence that has less than a block left ends its turn early,
    and the next waiting sequence takes its place in the next round.

    Between two ends of sequences, rounds of turns repeat. Only one round of each such stretch is kept, so the memory
    depends on the number of sequences, not of elements.
    """

    def __init__(self, lengths: Sequence[int], cycle_length: int, block_length: int) -> None:
        self._block = block_length
        self._stretches: list[list[_Turn]] = []
        self._places: list[list[int]] = []  # of each turn, within a round of its stretch
        self._starts: list[int] = []  # of each stretch
        self._count = 0
        for turns, rounds in _stretches(lengths, min(cycle_length, len(lengths)), block_length):
            self._append(turns, rounds)

    def _append(self, turns: list[_Turn], rounds: int) -> None:
        places = [0]
        for turn in turns:
            places.append(places[-1] + turn.length)
        self._stretches.append(turns)
        self._starts.append(self._count)
        self._count += places[-1] * rounds
        self._places.append(places)

    def __len__(self) -> int:
        return self._count

    def locate(self, position: int) -> tuple[int, int]:
        """Return the sequence and the offset in it of the element at a position in ``[0, len)``."""
        at = bisect_right(self._starts, position) - 1
        places = self._places[at]
        rounds, place = divmod(position - self._starts[at], places[-1])
        number = bisect_right(places, place) - 1
        turn = self._stretches[at][number]
        return turn.sequence, turn.offset + rounds * self._block + place - places[number]


def _stretches(lengths: Sequence[int], cycle_length: int, block: int) -> Iterator[tuple[list[_Turn], int]]:
    """Yield one round of turns, and how often it repeats; offsets grow by a block each time."""
    taken = [0] * len(lengths)
    cycle: list[int | None] = [None] * cycle_length
    opened = 0
    while opened < len(lengths) or any(each is not None for each in cycle):
        running = [each for each in cycle if each is not None]
        # Rounds are alike until a sequence ends, unless a waiting one is about to take a place.
        waits = opened < len(lengths) and len(running) < cycle_length
        alike = 0 if waits else min((lengths[each] - taken[each]) // block for each in running)
        if alike:
            yield [_Turn(each, taken[each], block) for each in running], alike
            for each in running:
                taken[each] += alike * block
            continue
        turns = []
        for place, current in enumerate(cycle):
            if current is None:
                if opened == len(lengths):
                    continue
                current = cycle[place] = opened
                opened += 1
            length = min(block, lengths[current] - taken[current])
            if length:
                turns.append(_Turn(current, taken[current], length))
                taken[current] += length
            if length < block:
                cycle[place] = None
        if turns:
            yield turns, 1


_CHUNK = 1024


class ShuffleBuffer:
    """Maps a position in the shuffled order to a position in the order that enters the buffer.

    Parameters
    ----------
    count : int
        The number of elements.
    size : int
        The number of slots; 0 and 1 shuffle nothing, `count` and more shuffle everything.
    key : object
        The order is a function of it.

    Notes
    -----
    The buffer fills; then a random element leaves it and the next one takes its slot, again and again. At the end, the
    remaining elements leave in random order. The slot that is emptied at a position depends on the key and that position
    only. So the content of a slot follows from when it was last emptied, and resuming at a position takes about
    ``size * log(size)`` draws instead of all draws before it.
    """

    def __init__(self, count: int, size: int, *key: object) -> None:
        self._count, self._size = count, max(1, min(size, count))
        self._refills = count - self._size
        self._draw_keys = round_keys("storeds.buffer", 1, *key)
        self._drain_keys = round_keys("storeds.buffer.drain", 1, *key)

    def walk(self, start: int) -> Iterator[int]:
        """Yield the elements that leave the buffer from position `start` on."""
        if self._size == 1:
            yield from range(start, self._count)
            return
        slots = self._slots(min(start, self._refills))
        for first in range(start, self._refills, _CHUNK):
            drawn = self._drawn(first, min(first + _CHUNK, self._refills))
            for entering, slot in enumerate(drawn.tolist(), first + self._size):
                yield int(slots[slot])
                slots[slot] = entering
        for first in range(max(start, self._refills), self._count, _CHUNK):
            places = np.arange(first, min(first + _CHUNK, self._count), dtype=np.uint64) - np.uint64(self._refills)
            yield from slots[permute(places, self._size, self._drain_keys)].tolist()

    def _drawn(self, first: int, last: int) -> Array:
        """Return the slots that are emptied at positions `first` to ``last - 1``."""
        positions = np.arange(first, last, dtype=np.uint64)
        return permute(positions, MAX_COUNT, self._draw_keys) % np.uint64(self._size)

    def _slots(self, position: int) -> Array:
        """Return the content of every slot before a position: the element that came in when it was last emptied, or the first."""
        emptied = np.full(self._size, -1, dtype=np.int64)
        last = position
        while last > 0 and (emptied < 0).any():
            first = max(0, last - max(self._size, _CHUNK))
            latest = np.full(self._size, -1, dtype=np.int64)
            latest[self._drawn(first, last)] = np.arange(first, last)  # NumPy keeps the last position of each slot
            np.copyto(emptied, latest, where=emptied < 0)
            last = first
        return np.where(emptied < 0, np.arange(self._size), emptied + self._size)


Address: TypeAlias = tuple[int, int]
"""A source, and the index of a sample in it."""


@dataclass
class Place:
    """How many addresses of an epoch a pass is past, those of skipped samples included."""

    epoch: int
    position: int = 0


class StreamPass(NamedTuple):
    """A pass that has begun: its remaining addresses, its place, and the seed of samples whose dataset has none."""

    addresses: Iterator[Address]
    place: Place
    seed: int | None


class Addresses:
    """The addresses of a worker's samples in their order: interleaved, then shuffled. Reads nothing.

    Parameters
    ----------
    pieces : sequence of IndexRange
        The samples of the worker.
    cycle_length, block_length
        As for `StoreIterable`.
    shuffle_buffer : int
        The number of addresses in the buffer.
    key : object
        The order is a function of it.
    """

    def __init__(
        self, pieces: Sequence[IndexRange], cycle_length: int, block_length: int, shuffle_buffer: int, *key: object
    ) -> None:
        self._pieces = pieces
        self._interleave = Interleave([stop - start for _, start, stop in pieces], cycle_length, block_length)
        self._buffer = ShuffleBuffer(len(self._interleave), shuffle_buffer, *key)

    def __len__(self) -> int:
        return len(self._interleave)

    def walk(self, start: int = 0) -> Iterator[Address]:
        """Yield the addresses from a position on."""
        for position in self._buffer.walk(start):
            at, offset = self._interleave.locate(position)
            yield self._pieces[at].source, self._pieces[at].start + offset


class Samples(Iterator[Any]):
    """Iterates over the samples at some addresses, without skipped ones.

    Parameters
    ----------
    datasets : sequence of StoreDataset
        The sources.
    begin : callable
        Begins the pass; called when the first sample is requested.
    read_batch, read_ahead
        As for `StoreIterable`.

    Notes
    -----
    An error is raised after the samples before it, and ends the iterator. The place stays before the bad sample.
    """

    def __init__(
        self,
        datasets: Sequence[StoreDataset],
        begin: Callable[[], StreamPass],
        *,
        read_batch: int,
        read_ahead: int,
    ) -> None:
        self._datasets, self._begin = tuple(datasets), begin
        self._read_batch, self._read_ahead = read_batch, read_ahead
        self._reads: ReadAhead[Any, Any] | None = None
        self._ready: deque[Any] = deque()

    def _reading(self) -> ReadAhead[Any, Any]:
        addresses, self._place, seed = self._begin()
        size = self._read_batch
        # Neither function may refer to this object: dropping it must end the threads at once.
        batches = iter(lambda: list(itertools.islice(addresses, size)), [])
        read = partial(_read_for, self._place.epoch, seed, self._datasets)
        return ReadAhead(read, batches, self._read_ahead)

    def __next__(self) -> Any:
        if self._reads is None:
            self._reads = self._reading()
        while True:
            if not self._ready:
                self._ready.extend(next(self._reads))
            sample = self._ready.popleft()
            if isinstance(sample, _Failure):
                self.close()
                raise sample.error
            self._place.position += 1
            if not isinstance(sample, Skipped):
                return sample

    def close(self) -> None:
        """End the iterator and its threads."""
        self._ready.clear()
        if self._reads is not None:
            self._reads.close()


class _Failure(NamedTuple):
    """Takes the place of a sample that could not be made, until its error is raised in turn."""

    error: Exception


def _read_for(
    epoch: int, seed: int | None, datasets: Sequence[StoreDataset], addresses: Sequence[Address]
) -> list[Any]:
    """Return what `_read` returns, in this epoch; the seed is for datasets that have none."""
    with use_epoch(epoch, seed):
        return _read(datasets, addresses)


def _read(datasets: Sequence[StoreDataset], addresses: Sequence[Address]) -> list[Any]:
    """Return the samples at some addresses, in their order, with one storage call for each source."""
    places: dict[int, list[int]] = {}
    for at, (source, _) in enumerate(addresses):
        places.setdefault(source, []).append(at)
    samples: list[Any] = [None] * len(addresses)
    for source, own in places.items():
        for at, sample in zip(own, _read_source(datasets[source], [addresses[at][1] for at in own]), strict=True):
            samples[at] = sample
    return samples


def _read_source(dataset: StoreDataset, indices: list[int]) -> list[Any]:
    """Return the samples of one source; from the first bad one on, its error in the place of each."""
    try:
        samples, bad = dataset._samples_until_error(indices)
    except Exception as error:  # raised in turn, in the thread that iterates
        return [_Failure(error)] * len(indices)
    return samples if bad is None else samples + [_Failure(bad)] * (len(indices) - len(samples))
