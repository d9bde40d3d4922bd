"""A sampler that shuffles without a list, shares an epoch between ranks, and resumes in the middle of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized, ValuesView
from typing import Any

import xxhash
from torch.utils.data import Dataset, Sampler

from storeds._utils.permutation import MAX_COUNT, Order
from storeds._utils.validation import integer, ranks
from storeds.datasets.epoch import MOST, SharedEpoch
from storeds.datasets.seeds import agreed_seed, draw_seed, world_size
from storeds.errors import ConfigError
from storeds.loaders.consumption import Pass

__all__ = ["EpochSampler"]

_VERSION = 1
_WINDOW = 8
# What two runs must agree on for a position in the one's order to mean the same in the other's.
_AGREED = ("count", "store", "seed", "shuffle", "block_size", "window", "drop_last")


class EpochSampler(Sampler[int]):
    """Every index once an epoch, in an order that is computed as it goes and can be taken up anywhere.

    Each new pass is the next epoch, without anybody calling anything.

    Parameters
    ----------
    data : Sized or int
        The dataset, or how many samples it has (at most 2**62). The state names the store of a `StoreDataset`.
    shuffle : bool
        A new order each epoch, a function of (count, seed, epoch) and nothing else: the same on every machine.
    seed : int, optional
        Of the order; the same on all ranks. By default the dataset's; if that has none, one drawn from torch's default
        generator when the first pass begins, so that runs differ, and a run repeats after ``torch.manual_seed``.
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
        An argument is malformed or contradicts another. From the first pass without a seed: the ranks cannot agree on one.

    Notes
    -----
    *Ranks*: the epoch's order is one for all; from position p on, rank r of w takes p + r, p + r + w, …. Without a seed,
    all take rank 0's, from the store of torch.distributed's process group: one draw there serves all samplers of the run.

    *Epochs*: a pass begins with its first index; ``iter()`` alone changes nothing. The first pass is epoch 0, and each
    later one the epoch after the pass that began last, also if that was broken off: ``next(iter(loader))`` twice is two
    passes. An epoch that was set, here or by ``dataset.set_epoch``, is that of the next pass, and counting goes on from
    there. So a loop that calls ``set_epoch(epoch)`` before each pass gets exactly these epochs. The dataset's epoch follows
    the passes; where several samplers read one dataset, each counts for itself, and each sample is made for the pass that
    asked for it. ``len()`` is what this rank yields in a whole epoch, for schedules and progress bars, though the pass
    after loading yields less.

    *Consumption*: `position` counts what the training loop was given, over all ranks, which take equal steps, so the
    state of any rank is that of all. What workers only prefetched is not counted (pytorch#36650): the DataLoader that
    draws from the sampler is found on the stack and asked, whatever stands between (a BatchSampler, batches of any
    length). When in doubt a batch is given again rather than lost: one that raised (from workers, one more for each that
    the loop went past), and with ``in_order=False`` those that overtook another. But what a batch sampler of your own
    reads ahead of its batches counts as consumed. This needs private names of DataLoader; should they vanish, and
    without a DataLoader, what was yielded counts.

    *StatefulDataLoader* saves and loads the iterator, whose state is what had been yielded when a batch was dispatched;
    it needs nothing else. It loads when the loop begins: an epoch that `set_epoch` gave before then prevails.

    *Lightning and Accelerate* share out again what a rank's sampler yields, and samples are lost. Turn that off by
    ``Trainer(use_distributed_sampler=False)``, and by not giving the loader to ``Accelerator.prepare``.

    *Processes and threads*: for the main process, where DataLoader draws indices. A pickle or copy begins where this
    sampler's next pass would. Other threads may take the state.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        block_size: int | None = None,
        window: int | None = None,
    ) -> None:
        self.count, self.store, self._where = _count(data), _store_id(data), _where_digest(data)
        self._followers = epoch_takers(data)
        self.seed = _seed_of(self._followers) if seed is None else integer("seed", seed)
        self._draws = self.seed is None
        self.shuffle, self.drop_last = _flag("shuffle", shuffle), _flag("drop_last", drop_last)
        self.block_size, self.window = _blocks(block_size, window, shuffle)
        self.num_replicas, self.rank = ranks(num_replicas, rank)
        self._shares = self.num_replicas > 1 if num_replicas is not None else None
        self._epoch, self._start = 0, 0
        self._begun = False
        self._asked: int | None = None
        self._overruled: int | None = None  # what was asked for before a state was loaded
        self._asked_in: Pass | None = None
        self._pass: Pass | None = None
        self._listen()
        for requested in [each.requested for each in self._cells() if each.requested is not None]:
            self._ask(requested)

    @property
    def epoch(self) -> int:
        """The epoch of the pass that is under way (or was broken off), else of the next one."""
        under_way = self._pass is not None and not self._pass.finished and not self._is_asked
        return self._epoch if under_way else self._next()[0]

    @property
    def position(self) -> int:
        """How many samples of the epoch's order the training loops of all ranks were given; at the end, the count."""
        return self._start if self._pass is None else self._pass.position(self._pass.consumed)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of `epoch`: from its beginning or, for the epoch of a loaded state, from the loaded position.

        Sets the epoch of the dataset too, if it has such a method, also under a Subset or a ConcatDataset. A pass of that
        epoch that has begun, but given no sample yet, counts as the next pass.
        """
        self._ask(integer("epoch", epoch, 0, MOST))
        self._enter(self._epoch, None)

    def _ask(self, epoch: int) -> None:
        self._asked, self._overruled = epoch, None
        current = self._pass if epoch == self._epoch else None
        self._asked_in = current if current is not None and not current.consumed else None
        if epoch != self._epoch:
            self._epoch, self._start, self._pass, self._begun = epoch, 0, None, False

    def _cells(self) -> list[SharedEpoch]:
        """Return the epochs of the datasets that are storeds' own."""
        found = (getattr(each, "_epoch", None) for each in self._followers)
        return [each for each in found if isinstance(each, SharedEpoch)]

    def _listen(self) -> None:
        """Hear of the epochs that are set on the datasets."""
        for each in self._cells():
            each.listen(self)

    def _enter(self, epoch: int, workers: int | None) -> None:
        """Have samples made of this epoch: all, or by these workers."""
        for dataset in self._followers:
            cell = getattr(dataset, "_epoch", None)
            if not isinstance(cell, SharedEpoch):
                dataset.set_epoch(epoch)
            elif workers is not None or cell.number != epoch or not cell.is_set:
                cell.enter(epoch, workers)

    def __len__(self) -> int:
        return self._steps(0)

    def _next(self) -> tuple[int, int]:
        """Return the epoch of the next pass, and the position that it begins at."""
        if self._is_asked and self._pass is not None:
            return self._epoch, 0 if self._pass.finished else self._pass.start
        over = self._start > 0 and not self._steps(self._start)
        if not self._is_asked and (self._begun or over):
            return self._epoch + 1, 0
        return self._epoch, self._start

    @property
    def _is_asked(self) -> bool:
        """Whether an epoch was set for the next pass, and not of one that had just begun and went on."""
        return self._asked is not None and not (self._asked_in is not None and self._asked_in.consumed)

    def _steps(self, start: int) -> int:
        rest = self.count - start
        return rest // self.num_replicas if self.drop_last else -(-rest // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        return _PassIterator(self)

    def _begin(self, place: tuple[int, int] | None) -> tuple[Pass, Iterator[int]]:
        """Begin the next pass, or one at an epoch and a position; return it and its indices."""
        epoch, start = self._next() if place is None else place
        if self.shuffle and self.seed is None:
            self.seed = self._drawn_seed()
        order = Order(self.count, self.seed or 0, epoch, self.shuffle, self.block_size, self.window)
        steps = self._steps(start)
        self._epoch, self._start, self._begun = epoch, start, True
        self._pass = Pass(epoch, start, steps, self.num_replicas, self.count, self._enter)
        # StatefulDataLoader begins the rest of an epoch that was over, and lets it go, before it begins a pass.
        self._asked, self._asked_in = (None, None) if place is None else (self._asked, self._pass)
        self._overruled = None
        return self._pass, order.walk(start + self.rank, self.num_replicas, steps)

    @property
    def _remaining(self) -> int:
        """How many samples this rank has left in the epoch, as far as the training loop got."""
        return self._steps(self.position)

    def _end_epoch(self) -> None:
        """Let the next pass be the next epoch, whatever is left of this one."""
        self._start, self._pass = self.count, None

    def _drawn_seed(self) -> int:
        shares = world_size() > 1 if self._shares is None else self._shares
        return agreed_seed(f"{self.count}/{self.store}/{self._where}") if shares else draw_seed()

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is, as a small dict that JSON takes."""
        position = self.position
        # A pass that came to its end is over, also where a loader dropped its last samples.
        over = self._pass is not None and self._pass.finished
        return self._state(self._epoch, self.count if over else position)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        agreed = {name: getattr(self, name) for name in _AGREED}
        where = {} if self._where is None else {"where": self._where}
        return {"version": _VERSION, **agreed, **where, "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken, with any number of replicas, and with its seed if none was given here.

        The next pass is the rest of that epoch or, if it was over, the whole of the next one. Only ``set_epoch`` with
        an epoch that was over makes a pass of its rest, which is nothing.

        Raises
        ------
        ConfigError
            The state is another version's, malformed, or of a sampler with other data or arguments than this one; of
            the store, only if both are known.
        """
        epoch, start = self._check(state)
        self._overruled = self._overruled if self._asked is None else self._asked
        self._epoch, self._start = epoch, start
        if self._draws:
            self.seed = state["seed"]
        self._pass, self._begun, self._asked, self._asked_in = None, False, None, None
        self._enter(self._epoch, None)

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
            if saved != own and not (name == "store" and None in (saved, own)) and not (name == "seed" and self._draws)
        ]
        if differing:
            raise ConfigError(f"the state belongs to another sampler: {'; '.join(differing)}")
        # Without where= all records are taken, and their count says enough.
        if None not in (state.get("where"), self._where) and state["where"] != self._where:
            raise ConfigError("the state belongs to another sampler: its dataset took other records, by another where=")
        if state["seed"] is not None:
            integer("seed", state["seed"])
        return integer("epoch", state["epoch"], 0, MOST), integer("position", state["position"], 0, self.count)

    def __getstate__(self) -> dict[str, Any]:
        epoch, start = self._next()
        return {
            **self.__dict__,
            **{"_epoch": epoch, "_start": start, "_begun": False},
            **{"_asked": epoch if self._is_asked else None, "_asked_in": None, "_pass": None},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._listen()

    def __repr__(self) -> str:
        blocks = f", block_size={self.block_size}, window={self.window}" if self.block_size else ""
        return (
            f"EpochSampler({self.count}, shuffle={self.shuffle}, seed={self.seed}, rank={self.rank} of "
            f"{self.num_replicas}, drop_last={self.drop_last}{blocks}, position={self.position} of epoch {self._epoch})"
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
            self._pass, self._indices = self._sampler._begin(self._place())
        return self._pass.draw(self._indices)

    def _place(self) -> tuple[int, int] | None:
        """Return where the pass begins if a state says so, unless another epoch was set since it was loaded."""
        other = self._loaded is not None and self._sampler._asked not in (None, self._loaded[0])
        return None if other else self._loaded

    def state_dict(self) -> dict[str, Any]:
        if self._pass is None:
            return self._sampler._state(*(self._place() or self._sampler._next()))
        return self._sampler._state(self._pass.epoch, self._pass.position(self._pass.yielded))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        sampler = self._sampler
        # StatefulDataLoader loads only when the loop begins, which is after the loop's set_epoch.
        sampler.load_state_dict(state)
        asked = sampler._overruled
        if asked is not None:
            sampler.set_epoch(asked)
        # For this iterator alone: the loader makes another for the next epoch without a word to the sampler.
        self._pass, self._loaded = None, (sampler._epoch, sampler._start)
        sampler._start, sampler._begun = 0, asked is None


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


def epoch_takers(data: Any) -> list[Any]:
    """Return the datasets that take an epoch: this one, or those that it is made of.

    Those are found under the names that torch's own wrappers use, and in the attributes of others.
    """
    return list({id(each): each for each in _search(data, 4)}.values())


def _search(data: Any, depth: int) -> Iterator[Any]:
    if callable(getattr(data, "set_epoch", None)):
        yield data
    elif isinstance(data, Dataset) and depth:
        for value in vars(data).values():
            several = value.values() if isinstance(value, Mapping) else value
            for each in several if isinstance(several, (list, tuple, ValuesView)) else [value]:
                if isinstance(each, Dataset):
                    yield from _search(each, depth - 1)


def _seed_of(datasets: Sequence[Any]) -> int | None:
    """Return the seed of the datasets' samples, if it is one."""
    seeds = {getattr(each, "seed", None) for each in datasets}
    seed = seeds.pop() if len(seeds) == 1 else None
    return seed if isinstance(seed, int) else None


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
