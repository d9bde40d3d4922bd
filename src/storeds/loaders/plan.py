"""The plan of an epoch: which samples come, how often, in which batches, and in what order.

A plan is a pure function of seed, epoch and place. So ranks take every n-th place, a position is a number, and nothing has
to be gathered from workers. `planning.make_plan` chooses one of these:

- `Shuffled`: each sample once.
- `ByMember`: each sample once, in the first epoch one part of the store after the other.
- `Quotas`: classes, or the sources of a mixture, come by exact shares; each goes through its own samples, pass after pass.
- `Weighted`: each sample comes in proportion to its weight.
- `Grouped` and `Bucketed`: whole batches, of samples that belong together or are of like size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from storeds._utils.permutation import EpochOrder, Order, PartOrder, Uints, permute, round_keys
from storeds._utils.text import some
from storeds.errors import ConfigError
from storeds.protocols import Array

__all__ = ["Bucketed", "ByMember", "Grouped", "Plan", "Quotas", "Shuffled", "Strata", "Weighted"]


class Plan(ABC):
    """Says what comes at each place of each epoch.

    Attributes
    ----------
    key : str
        A digest of what two runs must agree on, for a position to mean the same in both. Empty if the sampler's other
        settings say all.
    is_batched : bool
        Whether a place holds a batch, which no rank divides, and not a sample.
    is_random : bool
        Whether the order depends on the seed.
    """

    key = ""
    is_batched = False
    is_random = True

    @abstractmethod
    def order(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch, which all ranks share."""

    @abstractmethod
    def describe(self, epoch: int = 0) -> str:
        """Return one line about an epoch, for people."""

    def begin(self, order: Order) -> None:
        """Note that a pass over an order begins."""
        return

    def replacements(self, index: int) -> Array | None:
        """Return the ascending indices of samples that may come in the place of one; None if each may."""
        return None


@dataclass(frozen=True)
class Shuffled(Plan):
    """Each sample once: in order, shuffled, or shuffled in blocks; see `EpochOrder`."""

    count: int
    shuffle: bool = True
    block_size: int | None = None
    window: int | None = None

    @property
    def is_random(self) -> bool:  # type: ignore[override]  # a read-only attribute
        return self.shuffle

    def order(self, seed: int, epoch: int) -> EpochOrder:
        return EpochOrder(self.count, seed, epoch, self.shuffle, self.block_size, self.window)

    def describe(self, epoch: int = 0) -> str:
        blocks = f" in blocks of {self.block_size:,}" if self.block_size else ""
        return f"{self.count:,} samples, each once, {'shuffled' + blocks if self.shuffle else 'in order'}"


class ByMember(Plan):
    """Each sample once, shuffled; the first epoch member by member, so that it begins before all members are there.

    Parameters
    ----------
    numbers : array, shape (n,)
        The member of each sample.
    window : int
        How many members are mixed.
    expect : callable
        Gets the members in the order in which the first epoch needs them, when it begins.
    """

    def __init__(self, numbers: Array, window: int, expect: Callable[[Array], object]) -> None:
        self._strata, self._members = Strata.of(numbers, None)
        self._count, self._window, self._expect = len(numbers), window, expect
        self.key = _digest("member", self._strata.sizes, self._strata.members)

    def order(self, seed: int, epoch: int) -> Order:
        if epoch:
            return EpochOrder(self._count, seed, epoch)
        return _MemberOrder(self._strata, seed, self._window)

    def begin(self, order: Order) -> None:
        if isinstance(order, _MemberOrder):
            self._expect(self._members[order.parts])

    def describe(self, epoch: int = 0) -> str:
        parts = "shuffled" if epoch else f"{len(self._members):,} members in a random order, {self._window} mixed"
        return f"{self._count:,} samples, each once, {parts}"


class _MemberOrder(PartOrder):
    def __init__(self, strata: Strata, seed: int, window: int) -> None:
        super().__init__(strata.sizes, seed, 0, window)
        self._samples = strata.members

    def at(self, places: Uints) -> list[int]:
        at = super().at(places)
        return at if self._samples is None else self._samples[at].tolist()


# --- By class or source ---


@dataclass(frozen=True)
class Strata:
    """Disjoint parts of the samples: classes, or the sources of a mixture.

    Attributes
    ----------
    names : sequence of str
    sizes : array, shape (n,), uint64
        Their numbers of samples, all above 0.
    members : array or None
        The indices of the samples, stratum after stratum. None if the indices themselves are in that order.
    """

    names: Sequence[str]
    sizes: Uints
    members: Array | None

    @classmethod
    def of(cls, values: Array, names: Sequence[str] | None) -> tuple[Strata, Array]:
        """Return the strata of equal values, and these values; `names` has the class names of integers."""
        found, codes, sizes = np.unique(values, return_inverse=True, return_counts=True)
        members = np.argsort(codes, kind="stable").astype(np.uint32 if len(values) < 2**32 else np.int64)
        return cls(_named(found, names), sizes.astype(np.uint64), members), found

    def around(self, index: int) -> Array | None:
        """Return the samples of the stratum of a sample; None for sources, and where there is one stratum."""
        if self.members is None:
            return None
        ends = np.cumsum(self.sizes.astype(np.int64))
        at = int(np.searchsorted(ends, np.flatnonzero(self.members == index)[0], "right"))
        around: Array = self.members[ends[at] - int(self.sizes[at]) : ends[at]]
        return around


class Quotas(Plan):
    """Takes an exact number of samples from each stratum.

    A stratum goes through all of its samples, pass after pass and each time in another order, across epochs. So after any
    epoch its samples have come equally often, within one.

    Parameters
    ----------
    strata : Strata
    shares : mapping of int to array
        The shares of the strata, from that epoch on; numbers of at least 0. There are shares from epoch 0.
    count : int
        The samples of an epoch. Quotas are the shares of it, rounded by largest remainder.
    what : str
        What the strata are, for messages.
    batch_size : int, optional
        Make batches, each of which has the shares too, within one sample.
    drop_last : bool
        Leave out a short last batch.
    """

    def __init__(
        self,
        strata: Strata,
        shares: Mapping[int, Array],
        count: int,
        what: str,
        batch_size: int | None = None,
        *,
        drop_last: bool = False,
    ) -> None:
        self.strata, self.count, self.what, self.batch_size = strata, count, what, batch_size
        self.drop_last = drop_last
        self.is_batched = batch_size is not None
        if count * (batch_size or 1) >= 2**62:  # products of both have 64 bits
            raise ConfigError(
                f"an epoch of {count:,} samples in batches of {batch_size:,} is too long to keep exact shares: reduce one of them"
            )
        self._since = sorted(shares)
        self.quotas_by_epoch = [_divided(count, shares[epoch]) for epoch in self._since]
        numbers = [strata.sizes, *self.quotas_by_epoch, np.array([*self._since, batch_size or 0])]
        self.key = _digest("quotas", *numbers, *([] if strata.members is None else [strata.members]))

    def quotas(self, epoch: int) -> Array:
        """Return how many samples of each stratum an epoch has."""
        return self.quotas_by_epoch[bisect_right(self._since, epoch) - 1]

    def used(self, epoch: int) -> Uints:
        """Return how many samples each stratum has given before an epoch."""
        used = np.zeros(len(self.strata.sizes), np.uint64)
        for quota, since, until in zip(self.quotas_by_epoch, self._since, [*self._since[1:], epoch], strict=True):
            used += quota.astype(np.uint64) * np.uint64(max(min(until, epoch) - since, 0))
        return used

    def order(self, seed: int, epoch: int) -> Order:
        return _QuotaOrder(self, seed, epoch)

    def replacements(self, index: int) -> Array | None:
        return self.strata.around(index)

    def describe(self, epoch: int = 0) -> str:
        parts = [
            f"{name} {quota:,} ({quota / max(self.count, 1):.1%})"
            for name, quota in zip(self.strata.names, self.quotas(epoch).tolist(), strict=True)
        ]
        batches = "" if self.batch_size is None else f", and each batch of {self.batch_size} has these shares"
        return f"{self.count:,} samples by {self.what}: {some(parts, 20)}{batches}"


class _QuotaOrder(Order):
    """A line of slots, stratum after stratum as long as their quotas, which is dealt to batches like cards.

    The batches take turns, so each has the shares within one sample. The slots of a short last batch are first taken from the
    line at equal distances. Batches come in shuffled order, and so do the slots of each. Where the plan makes no batches, a
    batch is a single sample.

    A slot is one use of its stratum in this epoch; a batch has consecutive uses of each stratum, so its samples differ.
    """

    def __init__(self, plan: Quotas, seed: int, epoch: int) -> None:
        self._strata, self._is_batched, self._size = plan.strata, plan.is_batched, plan.batch_size or 1
        self._whole, self._rest = divmod(plan.count, self._size)
        self.count = self._whole if plan.drop_last or not self._rest else self._whole + 1
        self._at_once = max(self._at_once // self._size, 1)
        self._keys = round_keys("storeds.plan", 1, seed, epoch)
        self._within = round_keys("storeds.plan.stratum", 1, seed)  # passes go on from epoch to epoch
        self._used, quotas = plan.used(epoch), plan.quotas(epoch)
        self._starts = np.cumsum(plan.strata.sizes) - plan.strata.sizes
        self._line = np.arange(len(quotas))
        if self._is_batched:  # other strata share a batch in each epoch
            self._line = permute(self._line.astype(np.uint64), len(quotas), self._keys).astype(np.intp)
        self._bounds = np.concatenate([[0], np.cumsum(quotas[self._line])])
        # How many slots before each bound go to the short batch, and how many are dealt to the whole ones.
        self._short = self._bounds * self._rest // max(plan.count, 1)
        self._dealt = self._bounds - self._short

    def at(self, places: Uints) -> list[Any]:
        batches = permute(places[places < self._whole], self._whole, self._keys).astype(np.int64)
        indices = self._whole_batches(batches)
        if not self._is_batched:
            return indices.ravel().tolist()
        rows = iter(indices.tolist())
        return [next(rows) if place < self._whole else self._short_batch() for place in places]

    def _whole_batches(self, batches: Array) -> Array:
        """Return a row of indices for each batch."""
        number = batches[:, None]
        turns = self._shuffled(np.repeat(batches, self._size), self._size).reshape(-1, self._size)
        dealt = turns * self._whole + number
        slots = dealt + dealt * self._rest // max(self._whole * self._size, 1)
        at = np.searchsorted(self._bounds[1:], slots, "right")
        first, end = self._dealt[at], self._dealt[at + 1]
        # The uses of a stratum: those of the batches that are dealt before this one, then its own.
        before = self._dealt_before(number, end) - self._dealt_before(number, first)
        return self._taken(at, before + turns + (number - first) // max(self._whole, 1))

    def _short_batch(self) -> list[int]:
        turns = self._shuffled(np.full(self._rest, self._whole), self._rest)
        slots = -(-(turns + 1) * self._bounds[-1] // self._rest) - 1
        at = np.searchsorted(self._bounds[1:], slots, "right")
        indices: list[int] = self._taken(at, np.diff(self._dealt)[at] + turns - self._short[at]).tolist()
        return indices

    def _shuffled(self, batches: Array, size: int) -> Array:
        """Return the numbers below `size` for each batch, in an order of its own; `batches` has each so often."""
        if size == 1:
            return np.zeros(len(batches), np.int64)
        turns = np.arange(len(batches), dtype=np.uint64) % np.uint64(size)
        return permute(turns, size, self._keys, batches.astype(np.uint64)).astype(np.int64)

    def _dealt_before(self, batch: Array, end: Array) -> Array:
        """Return how many of the first `end` slots that are dealt go to batches before this one."""
        rounds, rest = np.divmod(end, max(self._whole, 1))
        before: Array = rounds * batch + np.minimum(rest, batch)
        return before

    def _taken(self, at: Array, uses: Array) -> Array:
        """Return the samples that strata, by their places in the line, give at their n-th use of this epoch."""
        strata = self._line[at].ravel()
        sizes = self._strata.sizes[strata]
        passes, places = np.divmod(uses.ravel().astype(np.uint64) + self._used[strata], sizes)
        tweak = passes * np.uint64(len(self._strata.sizes)) + strata.astype(np.uint64)
        indices = self._starts[strata] + permute(places, sizes, self._within, tweak)
        taken: Array = (indices if self._strata.members is None else self._strata.members[indices]).reshape(at.shape)
        return taken


# --- By weight ---

_BLOCK = 16  # weights whose sum is kept
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it spread over [0, 1) evenly
_PART = 1 << 20


class Weighted(Plan):
    """Takes each sample in proportion to its weight: its share of an epoch, rounded up or down.

    Systematic sampling (Madow 1949): equal steps along the line of all weights, which begins elsewhere in each epoch.
    Memory is half a byte a sample beyond the weights, which stay as they are.

    Parameters
    ----------
    weights : array, shape (n,)
        Numbers of at least 0, not all 0.
    count : int
        The samples of an epoch.
    """

    def __init__(self, weights: Array, count: int) -> None:
        self.weights, self.count = weights, count
        self.sums = np.empty(-(-len(weights) // _BLOCK))
        for start in range(0, len(weights), _PART):  # a sum in float64 copies what it adds
            part = weights[start : start + _PART]
            blocks = np.arange(0, len(part), _BLOCK)
            np.add.reduceat(part, blocks, dtype=np.float64, out=self.sums[start // _BLOCK :][: len(blocks)])
        np.cumsum(self.sums, out=self.sums)
        self.key = _digest("weighted", weights, np.array([count]))

    def order(self, seed: int, epoch: int) -> Order:
        return _WeightedOrder(self, seed, epoch)

    def replacements(self, index: int) -> Array:
        return np.flatnonzero(self.weights > 0)

    def describe(self, epoch: int = 0) -> str:
        return (
            f"{self.count:,} samples by weight, of {len(self.weights):,}; the largest weight is "
            f"{float(self.weights.max()) * len(self.weights) / self.sums[-1]:.3g} times the mean"
        )


class _WeightedOrder(Order):
    def __init__(self, plan: Weighted, seed: int, epoch: int) -> None:
        self.count, self._plan = plan.count, plan
        self._keys = round_keys("storeds.plan", 1, seed, epoch)
        self._offset = float(round_keys("storeds.plan.offset", 1, seed)[0]) / 2**64 + epoch * _GOLDEN

    def at(self, places: Uints) -> list[Any]:
        weights, sums = self._plan.weights, self._plan.sums
        steps = permute(places, self.count, self._keys).astype(np.float64) + self._offset % 1.0
        points = steps * (sums[-1] / self.count)
        blocks = np.minimum(np.searchsorted(sums, points, "right"), len(sums) - 1)
        rest = points - np.where(blocks, sums[blocks - 1], 0.0)
        at = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        inside = np.where(at < len(weights), weights[np.minimum(at, len(weights) - 1)], 0.0)
        line = np.cumsum(inside, axis=1, dtype=np.float64)
        # Rounding may put a point behind the last weight of its block: then that weight is meant.
        column = np.minimum((line <= rest[:, None]).sum(axis=1), np.argmax(line, axis=1))
        indices: list[Any] = (blocks * _BLOCK + column).tolist()
        return indices


# --- Batches ---


class _Batches(Order):
    """Batches that were computed for the epoch: `flat` has their indices, `bounds` where each begins and ends.

    `turn` says which of them come, in which order.
    """

    def __init__(self, flat: Array, bounds: Array, turn: Array) -> None:
        self.count, self._flat, self._bounds, self._turn = len(turn), flat, bounds, turn

    def at(self, places: Uints) -> list[Any]:
        batches = self._turn[places.astype(np.intp)].tolist()
        return [self._flat[self._bounds[batch] : self._bounds[batch + 1]].tolist() for batch in batches]


class Grouped(Plan):
    """Keeps the samples of a group in one batch.

    Groups are shuffled, and a batch takes groups as long as it has room.

    Parameters
    ----------
    groups : Strata
    batch_size : int
        The largest batch.
    drop_last : bool
        Leave out short batches: those with room for which the next group is too large, and the last one.
    """

    is_batched = True

    def __init__(self, groups: Strata, what: str, batch_size: int, *, shuffle: bool, drop_last: bool) -> None:
        largest = int(np.argmax(groups.sizes))
        if groups.sizes[largest] > batch_size:
            raise ConfigError(
                f"group_by={what!r}: the group {groups.names[largest]} has {groups.sizes[largest]:,} samples, and a batch "
                f"has room for {batch_size:,}; raise batch_size"
            )
        self.groups, self.what, self.batch_size = groups, what, batch_size
        self.shuffle, self.drop_last = shuffle, drop_last
        self.is_random = shuffle
        assert groups.members is not None
        self.key = _digest("grouped", groups.members, groups.sizes, np.array([batch_size]))

    def order(self, seed: int, epoch: int) -> Order:
        sizes, count = self.groups.sizes.astype(np.int64), len(self.groups.sizes)
        turn = np.arange(count, dtype=np.uint64)
        if self.shuffle:
            turn = permute(turn, count, round_keys("storeds.plan", 1, seed, epoch))
        ends = np.cumsum(sizes[turn])
        firsts = (np.cumsum(sizes) - sizes)[turn] - (ends - sizes[turn])
        assert self.groups.members is not None
        flat = self.groups.members[np.repeat(firsts, sizes[turn]) + np.arange(int(ends[-1]))]
        bounds = [0]
        while bounds[-1] < ends[-1]:
            bounds.append(int(ends[np.searchsorted(ends, bounds[-1] + self.batch_size, "right") - 1]))
        batches = np.arange(len(bounds) - 1)
        if self.drop_last:
            batches = batches[np.diff(bounds) == self.batch_size]
        return _Batches(flat, np.array(bounds), batches)

    def replacements(self, index: int) -> Array | None:
        return self.groups.around(index)

    def describe(self, epoch: int = 0) -> str:
        sizes = self.groups.sizes
        rest = ", and drop_last leaves out batches that are not full" if self.drop_last else ""
        return (
            f"{int(sizes.sum()):,} samples in {len(sizes):,} groups by {self.what}, of {int(sizes.min())} to "
            f"{int(sizes.max())}; a group lies in one batch of at most {self.batch_size}{rest}"
        )


class Bucketed(Plan):
    """Makes batches of samples of like size, so that few values are padded.

    Parameters
    ----------
    drawn : Plan
        Which samples come, in which order.
    codes : array, shape (n,)
        The bucket of each sample.
    capacities : array
        The batch size of each bucket.
    """

    is_batched = True

    def __init__(
        self, drawn: Plan, codes: Array, capacities: Array, text: str, *, shuffle: bool, drop_last: bool
    ) -> None:
        self.drawn, self.codes, self.capacities, self.text = drawn, codes, capacities, text
        self.shuffle, self.drop_last = shuffle, drop_last
        self.is_random = shuffle or drawn.is_random
        self.key = _digest("bucketed", drawn.key, codes, capacities)

    def order(self, seed: int, epoch: int) -> Order:
        drawn = self.drawn.order(seed, epoch)
        samples = np.array(list(drawn.walk(0, 1, drawn.count)), dtype=np.int64)
        codes = self.codes[samples]
        by_bucket = np.argsort(codes, kind="stable")
        flat, codes = samples[by_bucket], codes[by_bucket]
        counts = np.bincount(codes, minlength=len(self.capacities))
        place = np.arange(len(flat)) - (np.cumsum(counts) - counts)[codes]
        starts = np.flatnonzero(place % self.capacities[codes] == 0)
        bounds = np.append(starts, len(flat))
        batches = np.arange(len(starts))
        if self.drop_last:
            batches = batches[np.diff(bounds) == self.capacities[codes[starts]]]
        if self.shuffle:
            places = np.arange(len(batches), dtype=np.uint64)
            turn = permute(places, len(batches), round_keys("storeds.plan.batches", 1, seed, epoch)).astype(np.intp)
        else:
            turn = np.argsort(by_bucket[starts[batches]], kind="stable")
        return _Batches(flat, bounds, batches[turn])

    def replacements(self, index: int) -> Array:
        alike, drawn = np.flatnonzero(self.codes == self.codes[index]), self.drawn.replacements(index)
        return alike if drawn is None else np.intersect1d(alike, drawn)

    def describe(self, epoch: int = 0) -> str:
        return f"{self.drawn.describe(epoch)}; {self.text}"


def _named(values: Array, names: Sequence[str] | None) -> list[str]:
    """Return the name of each value; class names where the values number them."""
    if names is not None and values.dtype.kind in "iu" and values.size and values[0] >= 0 and values[-1] < len(names):
        return [names[value] for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def _divided(count: int, shares: Array) -> Array:
    """Divide a count by largest remainder; of equal ones, the first."""
    exact = shares / shares.sum() * count
    parts = np.floor(exact).astype(np.int64)
    most = np.argsort(np.round(parts - exact, 6), kind="stable")[: count - int(parts.sum())]
    parts[most] += 1
    divided: Array = parts
    return divided


def _digest(kind: str, *parts: Any) -> str:
    digest = xxhash.xxh3_64(kind.encode())
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data.cast("B"))
    return digest.hexdigest()
