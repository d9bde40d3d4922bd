"""The order of samples of several sequences read in turn: tf.data's interleave, computed at any position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Interleave"]


class _Turn(NamedTuple):
    """What one sequence gives when it is its turn."""

    sequence: int
    offset: int
    length: int


class Interleave:
    """Position in the interleaved order → which sequence, and where in it.

    Parameters
    ----------
    lengths : sequence of int
        How long each sequence is.
    cycle_length : int
        How many are open at once.
    block_length : int
        How many consecutive elements each gives when it is its turn.

    Notes
    -----
    As ``tf.data.Dataset.interleave`` has it: a sequence that has less than a block left ends its turn early, and the next
    one that waits takes its place when the turn comes round.

    Turns between two ends of sequences repeat, so what is held is one round of each such stretch: as much as there are
    sequences, not elements.
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
    """Yield one round of turns, and how often it comes with offsets that grow by a block each time."""
    taken = [0] * len(lengths)
    cycle: list[int | None] = [None] * cycle_length
    opened = 0
    while opened < len(lengths) or any(each is not None for each in cycle):
        running = [each for each in cycle if each is not None]
        # Alike until one comes to its end, unless one that waits is about to take a place.
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
