"""Who reads what: the row of all samples of an epoch, and the share of it that one worker of one rank has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from storeds._utils.permutation import permute, round_keys

__all__ = ["Piece", "Remainder", "Share", "pieces", "rank_bounds"]

Remainder: TypeAlias = Literal["keep", "drop", "pad"]


class Piece(NamedTuple):
    """Consecutive samples of one source: those of index ``start`` to ``stop - 1``."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True)
class Share:
    """Whose share it is: that of one worker, which is one of `workers`, of one rank of `replicas`."""

    rank: int = 0
    replicas: int = 1
    worker: int = 0
    workers: int = 1


def rank_bounds(total: int, share: Share, remainder: Remainder) -> tuple[int, int]:
    """Return where in the row the rank's samples begin and end; beyond `total`, the row begins again."""
    if remainder == "drop":
        total -= total % share.replicas
    elif remainder == "pad":
        total += -total % share.replicas
    return _part(0, total, share.rank, share.replicas)


def pieces(counts: Sequence[int], share: Share, remainder: Remainder, seed: int | None, epoch: int) -> list[Piece]:
    """Return what a worker reads in an epoch.

    Parameters
    ----------
    counts : sequence of int
        How many samples each source has.
    share, remainder
        The row is cut into equal parts for the ranks, and a rank's part into equal parts for its workers; parts of what
        does not divide evenly differ by one.
    seed, epoch
        A seed shuffles the sources. Where there are several shares, it also lets the row begin at another place in each
        epoch, without which one large source would give a rank the same samples in all of them.
    """
    total = sum(counts)
    if not total:
        return []
    order: list[int] = list(range(len(counts)))
    turn = 0
    if seed is not None:
        keys = round_keys("storeds.sources", 1, seed, epoch)
        order = permute(np.arange(len(counts), dtype=np.uint64), len(counts), keys).tolist()
        if share.replicas * share.workers > 1:
            turn = int(keys[0]) % total
    first, last = _part(*rank_bounds(total, share, remainder), share.worker, share.workers)
    return _cut([Piece(source, 0, counts[source]) for source in order if counts[source]], first + turn, last + turn)


def _part(first: int, last: int, at: int, parts: int) -> tuple[int, int]:
    """Return the bounds of one of equal parts of a range."""
    return first + (last - first) * at // parts, first + (last - first) * (at + 1) // parts


def _cut(row: Sequence[Piece], first: int, last: int) -> list[Piece]:
    """Return what lies between two places of a row that is repeated without end."""
    found: list[Piece] = []
    place = 0
    for piece in itertools.cycle(row):
        if place >= last:
            return found
        length = piece.stop - piece.start
        low, high = max(first - place, 0), min(last - place, length)
        if low < high:
            found.append(Piece(piece.source, piece.start + low, piece.start + high))
        place += length
    return found
