"""One pass through an epoch of a `StoreIterable`: addresses in their order, read in batches, samples out one by one."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from storeds._epoch import making_for
from storeds._interleave import Interleave
from storeds._readahead import ReadAhead
from storeds._shares import Piece
from storeds._shuffle_buffer import ShuffleBuffer
from storeds._skipped import Skipped
from storeds.dataset import StoreDataset

__all__ = ["Addresses", "Begun", "Place", "Samples"]

Address: TypeAlias = tuple[int, int]
"""A source, and the index of a sample in it."""


@dataclass
class Place:
    """How far a pass through an epoch has come: how many addresses it has done with, those of skipped samples too."""

    epoch: int
    position: int = 0


class Begun(NamedTuple):
    """A pass that has begun: the addresses from its place on, and the seed of samples whose dataset has none."""

    addresses: Iterator[Address]
    place: Place
    seed: int | None


class Addresses:
    """The addresses of a worker's samples in their order: interleaved, then shuffled; nothing is read for it.

    Parameters
    ----------
    pieces : sequence of Piece
        What the worker reads.
    cycle_length, block_length
        As for `StoreIterable`.
    shuffle_buffer : int
        How many addresses the buffer holds.
    key : object
        What shuffling is a function of.
    """

    def __init__(
        self, pieces: Sequence[Piece], cycle_length: int, block_length: int, shuffle_buffer: int, *key: object
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
    """The samples at some addresses, skipped ones left out.

    Parameters
    ----------
    datasets : sequence of StoreDataset
        The sources.
    begin : callable
        Begins the pass; called for its first sample.
    read_batch, read_ahead
        As for `StoreIterable`.

    Notes
    -----
    An error ends the iterator and comes behind the samples that stand before it. `place` stays before what it is about.
    """

    def __init__(
        self,
        datasets: Sequence[StoreDataset],
        begin: Callable[[], Begun],
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
        batches = iter(lambda: list(itertools.islice(addresses, self._read_batch)), [])
        # The function must not hold this object: threads that wait for work would keep it from being collected.
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
        """End the iterator, and its threads with it."""
        self._ready.clear()
        if self._reads is not None:
            self._reads.close()


class _Failure(NamedTuple):
    """Stands in the place of a sample that could not be made, until it is its turn to be raised."""

    error: Exception


def _read_for(
    epoch: int, seed: int | None, datasets: Sequence[StoreDataset], addresses: Sequence[Address]
) -> list[Any]:
    """Return what `_read` does, in this epoch; the seed is for datasets that have none."""
    with making_for(epoch, seed):
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
    """Return the samples of one source; from the first that cannot be had on, the error in the place of each."""
    try:
        samples, bad = dataset._until_bad(indices)
    except Exception as error:  # raised where it is its turn, in the thread that iterates
        return [_Failure(error)] * len(indices)
    return samples if bad is None else samples + [_Failure(bad)] * (len(indices) - len(samples))
