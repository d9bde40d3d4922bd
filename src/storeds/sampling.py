"""A sampler that shuffles without a list, shares an epoch between ranks, and resumes in the middle of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import xxhash
from torch.utils.data import Sampler

from storeds._delivery import Pass
from storeds._permutation import MAX_COUNT, Order
from storeds._ranks import integer, ranks
from storeds.errors import ConfigError

__all__ = ["EpochSampler"]

_VERSION = 1
_WINDOW = 8
_MOST = 2**63 - 1
# What two runs must agree on for a position in the one's order to mean the same in the other's.
_AGREED = ("count", "store", "seed", "shuffle", "block_size", "window", "drop_last")


class EpochSampler(Sampler[int]):
    """Every index once an epoch, in an order that is computed as it goes and can be taken up anywhere.

    Parameters
    ----------
    data : Sized or int
        The dataset, or how many samples it has (at most 2**62). The state names the store of a `StoreDataset`.
    shuffle : bool
        A new order each epoch, a function of (count, seed, epoch) and nothing else: the same on every machine.
    seed : int
        The same on all ranks.
    num_replicas, rank : int, optional
        How many processes share the epoch, and which of them this is: torch.distributed's where it is initialised,
        else 1 and 0.
    drop_last : bool
        What makes all ranks take equally many steps: leave out the end of the order that does not go round, or (False)
        repeat samples from the order's beginning, as often as it takes.
    block_size : int, optional
        For cold disks: shuffle blocks of so many consecutive indices, then the samples of every `window` blocks that
        came to stand in a row. A block is read once, within ``block_size * window`` samples. Takes no more memory.
    window : int, optional
        Over how many blocks samples are mixed; 8 by default.

    Raises
    ------
    ConfigError
        An argument is malformed or contradicts another.

    Notes
    -----
    *Ranks*: the epoch's order is one for all; from position p on, rank r of w takes p + r, p + r + w, ….

    *Epochs*: iterating never changes the epoch; `set_epoch` does, here and in the dataset. Every pass begins where the
    epoch does, which is at 0 or, until a pass has come to its end, at the position that was loaded. ``len()`` is what
    this rank yields in a whole epoch, for schedules and progress bars, though the pass after loading yields less.

    *Consumption*: `position` counts what the training loop was given, over all ranks, which take equal steps, so the
    state of any rank is that of all. What workers only prefetched is not counted (pytorch#36650): the DataLoader that
    draws from the sampler is found on the stack and asked, whatever stands between (a BatchSampler, batches of any
    length). When in doubt a batch is given again rather than lost: one that raised (from workers, one more for each that
    the loop went past), and with ``in_order=False`` those that overtook another. But what a batch sampler of your own
    reads ahead of its batches counts as consumed. This needs private names of DataLoader; should they vanish, and
    without a DataLoader, what was yielded counts.

    *StatefulDataLoader* saves and loads the iterator, whose state is what had been yielded when a batch was dispatched;
    it needs nothing else. It loads when the loop begins: an epoch that `set_epoch` gave before then prevails.

    *Lightning and Accelerate* share out again what a rank's sampler yields, and samples are lost, unless told not to: by
    ``Trainer(use_distributed_sampler=False)``, and by not giving the loader to ``Accelerator.prepare``.

    *Processes and threads*: for the main process, where DataLoader draws indices; one pass at a time. A pickle or copy
    begins where this sampler's next pass would. Other threads may take the state.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        block_size: int | None = None,
        window: int | None = None,
    ) -> None:
        self.count, self.store, self._where = _count(data), _store_id(data), _where_digest(data)
        self.seed = integer("seed", seed)
        self.shuffle, self.drop_last = _flag("shuffle", shuffle), _flag("drop_last", drop_last)
        self.block_size, self.window = _blocks(block_size, window, shuffle)
        self.num_replicas, self.rank = ranks(num_replicas, rank)
        self._followers = _with_epoch(data)
        self._epoch, self._start = 0, 0
        self._asked: int | None = None
        self._pass: Pass | None = None

    @property
    def epoch(self) -> int:
        """The epoch whose order the next pass takes."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many samples of the epoch's order the training loops of all ranks were given; at the end, the count."""
        return self._start if self._pass is None else self._pass.position(self._pass.consumed)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`, unless it is the present one, whose position is kept.

        The dataset is told too, where it has such a method, be it under a Subset or a ConcatDataset.
        """
        self._asked = integer("epoch", epoch, 0, _MOST)
        self._go_to(self._asked)

    def _go_to(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._start, self._pass = epoch, 0, None
        for dataset in self._followers:
            dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return self._steps(0)

    def _next_start(self) -> int:
        return 0 if self._pass is not None and self._pass.finished else self._start

    def _steps(self, start: int) -> int:
        rest = self.count - start
        return rest // self.num_replicas if self.drop_last else -(-rest // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        return _PassIterator(self)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is, as a small dict that JSON takes."""
        return self._state(self._epoch, self.position)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        agreed = {name: getattr(self, name) for name in _AGREED}
        where = {} if self._where is None else {"where": self._where}
        return {"version": _VERSION, **agreed, **where, "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken, with any number of replicas.

        The next pass is the rest of that epoch, which is nothing when the epoch was over; the one after, a whole epoch.

        Raises
        ------
        ConfigError
            The state is another version's, malformed, or of a sampler with other data or arguments than this one; of
            the store, only if both are known.
        """
        epoch, position = self._check(state)
        self._go_to(epoch)
        self._start, self._pass = position, None

    def _check(self, state: Mapping[str, Any]) -> tuple[int, int]:
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            found = state.get("version") if isinstance(state, Mapping) else state
            raise ConfigError(f"not a sampler's state of version {_VERSION}: version is {found!r}")
        missing = [name for name in (*_AGREED, "epoch", "position") if name not in state]
        if missing:
            raise ConfigError(f"the sampler's state lacks {', '.join(missing)}")
        pairs = [(name, state[name], getattr(self, name)) for name in _AGREED]
        differing = [
            f"{name} was {saved!r} and is {own!r}"
            for name, saved, own in pairs
            if saved != own and not (name == "store" and None in (saved, own))
        ]
        if differing:
            raise ConfigError(f"the state belongs to another sampler: {'; '.join(differing)}")
        # Without where= all records are taken, and their count says enough.
        if None not in (state.get("where"), self._where) and state["where"] != self._where:
            raise ConfigError("the state belongs to another sampler: its dataset took other records, by another where=")
        return integer("epoch", state["epoch"], 0, _MOST), integer("position", state["position"], 0, self.count)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_start": self._next_start(), "_pass": None}

    def __repr__(self) -> str:
        blocks = f", block_size={self.block_size}, window={self.window}" if self.block_size else ""
        return (
            f"EpochSampler({self.count}, shuffle={self.shuffle}, seed={self.seed}, rank={self.rank} of "
            f"{self.num_replicas}, drop_last={self.drop_last}{blocks}, epoch={self.epoch}, position={self.position})"
        )


class _PassIterator(Iterator[int]):
    """Yields this rank's indices; its state is what it yielded, which is what StatefulDataLoader asks for.

    A pass begins at the first index, not at ``iter()``, which DataLoader calls more often than it means to.
    """

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._loaded: tuple[int, int] | None = None
        self._pass: Pass | None = None
        self._indices: Iterator[int] = iter(())

    def __next__(self) -> int:
        if self._pass is None:
            self._pass = self._begin(self._sampler)
        return self._pass.draw(self._indices)

    def _begin(self, sampler: EpochSampler) -> Pass:
        start = self._start
        steps = sampler._steps(start)
        order = Order(sampler.count, sampler.seed, sampler.epoch, sampler.shuffle, sampler.block_size, sampler.window)
        self._indices = order.walk(start + sampler.rank, sampler.num_replicas, steps)
        sampler._start = start if self._loaded is None else 0
        sampler._pass = Pass(sampler.epoch, start, steps, sampler.num_replicas, sampler.count)
        return sampler._pass

    @property
    def _start(self) -> int:
        if self._loaded is None or self._loaded[0] != self._sampler.epoch:
            return self._sampler._next_start()
        return self._loaded[1]

    def state_dict(self) -> dict[str, Any]:
        if self._pass is None:
            return self._sampler._state(self._sampler.epoch, self._start)
        return self._sampler._state(self._pass.epoch, self._pass.position(self._pass.yielded))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        sampler = self._sampler
        sampler.load_state_dict(state)
        # For this iterator alone: the loader makes another for the next epoch without a word to the sampler.
        self._pass, self._loaded = None, (sampler._epoch, sampler._start)
        sampler._start = 0
        # StatefulDataLoader loads only when the loop begins, which is after the loop's set_epoch.
        if sampler._asked is not None:
            sampler._go_to(sampler._asked)


def _count(data: Any) -> int:
    if hasattr(data, "__index__"):
        return integer("data", data, 0, MAX_COUNT)
    try:
        return integer("the length of data", len(data), 0, MAX_COUNT)
    except TypeError:
        raise ConfigError(f"data must have a length or be a number, and this has none: {data!r}") from None


def _store_id(data: Any) -> str | None:
    identity = getattr(getattr(getattr(data, "backend", None), "meta", None), "id", None)
    return identity if isinstance(identity, str) else None


def _where_digest(data: Any) -> str | None:
    where = getattr(data, "where", None)
    return xxhash.xxh3_64_hexdigest(repr(sorted(where.items())).encode()) if isinstance(where, Mapping) else None


def _with_epoch(data: Any) -> list[Any]:
    """Return the datasets that take an epoch: this one, or those that a Subset or a ConcatDataset holds."""
    if callable(getattr(data, "set_epoch", None)):
        return [data]
    several = getattr(data, "datasets", ())
    inner = [*(several.values() if isinstance(several, Mapping) else several), getattr(data, "dataset", None)]
    return [found for each in inner if each is not None for found in _with_epoch(each)]


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    return value


def _blocks(block_size: int | None, window: int | None, shuffle: bool) -> tuple[int | None, int | None]:
    if block_size is None:
        if window is not None:
            raise ConfigError("window counts blocks, and there are none without block_size")
        return None, None
    if not shuffle:
        raise ConfigError("block_size is about shuffling, and shuffle is False")
    return integer("block_size", block_size, 1), integer("window", _WINDOW if window is None else window, 1)
