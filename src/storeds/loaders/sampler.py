"""`EpochSampler`: shuffles without a list of indices, shards an epoch between ranks, and resumes within one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple

import torch
import xxhash
from torch.utils.data import Sampler

from storeds._utils.arguments import integer, ranks
from storeds._utils.permutation import MAX_COUNT, Order
from storeds.datasets.epoch import MAX_EPOCH, SharedEpoch, agreed_seed, draw_seed
from storeds.datasets.mixture import StoreMixture
from storeds.datasets.tree import as_index, inside
from storeds.errors import ConfigError
from storeds.loaders.plan import Plan
from storeds.loaders.planning import PlanSettings, make_plan

__all__ = ["BatchRequest", "EpochProgress", "EpochSampler", "OtherSampler", "epoch_takers", "holds_epoch_sampler"]

_VERSION = 1
_WINDOW = 8  # blocks
# Two runs must agree on these for a position to mean the same in both.
_AGREED = ("count", "store", "where", "seed", "shuffle", "block_size", "window", "drop_last")
_OPTIONAL = ("store", "where")  # compared where both know them: without where=, the count is enough


class BatchRequest(NamedTuple):
    """One batch that a loader asks for.

    Attributes
    ----------
    progress : int
        The `EpochProgress` that it belongs to, by number.
    number : int
        Its place among the batches of the pass, from 0.
    epoch : int
        The epoch of its samples.
    indices : list of int, or int
        The samples; an int for a single sample that is not batched.
    seed : int, optional
        For samples whose dataset has no seed.
    """

    progress: int
    number: int
    epoch: int
    indices: list[int] | int
    seed: int | None = None


class EpochProgress:
    """How far a pass through an epoch is: what was drawn and, if a loader of ours draws, what the training loop received.

    Counts this rank's samples or, where the plan makes the batches, its batches.
    """

    def __init__(self, number: int, epoch: int, start: int, steps: int, num_replicas: int) -> None:
        self.number, self.epoch, self.start, self.steps, self.num_replicas = number, epoch, start, steps, num_replicas
        self.drawn = 0
        self.batches: int | None = None
        """How many batches a loader of ours makes; None where another one draws the indices."""
        self._next, self._received = 0, 0  # the first batch that is missing, and the samples before it
        self._early: dict[int, int] = {}  # batches behind a missing one, and their sizes

    def draw(self, indices: Iterator[Any]) -> Any:
        index = next(indices)
        self.drawn += 1
        return index

    def receive(self, number: int, size: int) -> None:
        """Count a batch that the training loop receives; batches that overtook another count once that one came."""
        self._early[number] = size
        while self._next in self._early:
            self._received += self._early.pop(self._next)
            self._next += 1

    @property
    def consumed(self) -> int:
        """How many of this rank's samples the training loop received; without a loader of ours, how many were drawn."""
        return self.drawn if self.batches is None else self._received

    @property
    def finished(self) -> bool:
        # A loader with drop_last receives fewer samples than there are.
        return self.consumed == self.steps or (self.batches is not None and self._next >= self.batches)


class EpochSampler(Sampler[Any]):
    """Yields the indices of an epoch in an order that it computes on the fly and can resume anywhere.

    Each pass is the next epoch, without any call. By default an epoch has every index once; `plan` says what it has.

    Parameters
    ----------
    data : Sized or int
        The dataset, or its number of samples (at most 2**62). The state names the store of a `StoreDataset`.
    shuffle : bool
        Draw a new order each epoch. It depends on (count, seed, epoch) only, and is the same on every machine.
    seed : int, optional
        The seed of the order; the same on all ranks. By default the dataset's. If that has none, the sampler draws one
        from torch's default generator when the first pass begins: runs differ, and repeat after ``torch.manual_seed``.
    generator : torch.Generator, optional
        Where to draw the seed of the order instead; its state is the same on all ranks.
    num_replicas, rank : int, optional
        How many processes share the epoch, and which of them this is. By default those of torch.distributed if it is
        initialised when a pass begins, otherwise 1 and 0.
    drop_last : bool
        How all ranks take equally many steps: leave out the end of the order that does not divide among them, or
        (False) repeat samples from the order's beginning.
    block_size : int, optional
        For cold disks: shuffle blocks of this many consecutive indices, then the samples within every `window` adjacent
        blocks. The epoch reads each block once, within ``block_size * window`` samples. Needs no more memory.
    window : int, optional
        How many blocks are mixed; 8 by default.
    balance : str, optional
        A field, such as ``"label"``: all of its values come equally often. A value's samples each come once before any of
        them comes again, across epochs. This, `weights`, `samples_per_epoch` and mixtures shuffle, whatever `shuffle` says.
    weights : str, array or mapping, optional
        A field, or an array with one number for each sample: samples come in proportion to it. Or a mapping of the values
        of `balance` (by default of ``label``), or of class names, to their shares: ``{"cat": 3, "dog": 1}``.
    samples_per_epoch : int, optional
        By default as many as there are; of a mixture see `StoreMixture`.
    repeat : bool
        Whether a sample may come more than once in an epoch, where quotas or weights ask for it; an error otherwise.
    per_batch : bool
        Each batch has the shares of `balance` too, or those of a mixture, within one sample.
    group_by : str, optional
        A field; the samples of one value come in one batch, which may be smaller than `batch_size`.
    bucket_by : str or (str, str), optional
        A field of numbers, such as a length; batches have samples of like size. Of two fields, such as width and height,
        their ratio counts.
    buckets : int
        How many sizes there are; 8 by default.
    budget : int, optional
        Limits each batch of `bucket_by`: its samples times the largest size of its bucket (of two fields, their product).
    batch_size : int, optional
        For `per_batch`, `group_by` and `bucket_by`, which make the batches. The sampler then yields lists of indices: pass
        it as ``batch_sampler`` to a plain DataLoader. `drop_last` leaves out short batches too.

    Raises
    ------
    ConfigError
        An argument is malformed or contradicts another, a field does not exist, or a group is larger than a batch. From the
        first pass without a seed: the ranks cannot agree on one. From a pass: torch.distributed has not `num_replicas`
        processes, or gets others during the pass.

    Notes
    -----
    *Ranks*: all ranks share one order; from position p on, rank r of w takes p + r, p + r + w, …, which are whole batches
    where the plan makes them. Without a seed, all take rank 0's from the store of torch.distributed's process group: one draw serves all samplers of the run.

    *Epochs*: a pass begins with its first index; ``iter()`` alone changes nothing. The first pass is epoch 0. Each later
    pass is the epoch after the pass that began last, even if that was broken off: ``next(iter(loader))`` twice makes two
    passes. `set_epoch`, here or on the dataset, sets the epoch of the next pass, and counting continues from there. The
    dataset's epoch follows the passes. ``len()`` is the number of indices of this rank in a whole epoch. Where the plan
    makes the batches, their number may depend on the seed, so ``len()`` draws it too.

    *Position*: with `StoreLoader`, `position` counts the samples that the training loop received,
    over all ranks, so the state of any rank is valid for all. Batches that workers prefetched do not count.

    *Plain DataLoader*: the sampler counts the indices that it yielded. A DataLoader with workers draws several batches
    ahead of the training loop, so a state taken within a pass would skip these. To resume within an epoch, use
    `StoreLoader`, or torchdata's ``StatefulDataLoader``, which keeps the sampler's place in its own state. The samples'
    epoch is then that of the pass that began last over the dataset: run one pass over a dataset at a time.

    *StatefulDataLoader* loads its state when the loop begins; an epoch that `set_epoch` set before then applies.

    *Lightning and Accelerate* shard a rank's samples again, which a `StoreLoader` refuses. Turn that off with
    ``Trainer(use_distributed_sampler=False)``, and do not pass the loader to ``Accelerator.prepare``.

    *Processes and threads*: use it in the main process, where DataLoader draws indices. A pickle or copy begins where
    this sampler's next pass would. Other threads may take the state.
    """

    count: int
    store: str | None
    where: str | None
    seed: int | None
    shuffle: bool
    drop_last: bool
    block_size: int | None
    window: int | None
    plan: Plan
    """What an epoch has; its method ``describe`` says it in a line."""

    def __init__(
        self,
        data: Sized | int,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        block_size: int | None = None,
        window: int | None = None,
        balance: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        repeat: bool = True,
        per_batch: bool = False,
        group_by: str | None = None,
        bucket_by: str | Sequence[str] | None = None,
        buckets: int | None = None,
        budget: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.count, self.store, self.where = _count(data), _store_id(data), _where_digest(data)
        datasets = epoch_takers(data)
        cells = [getattr(each, "_epoch", None) for each in datasets]
        self._cells = [cell for cell in cells if isinstance(cell, SharedEpoch)]  # of datasets of storeds
        self._others = [each for each, cell in zip(datasets, cells, strict=True) if not isinstance(cell, SharedEpoch)]
        if generator is not None and seed is not None:
            raise ConfigError("seed and generator both set the order: leave out one of them")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ConfigError(f"generator must be a torch.Generator, got {generator!r}")
        self._generator = generator
        if seed is not None:
            self.seed = integer("seed", seed)
        else:
            self.seed = None if generator is not None else _seed_of(datasets)
        self._draws = self.seed is None
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        settings = PlanSettings(
            shuffle=self.shuffle,
            block_size=block_size,
            window=window if block_size is None or window is not None else _WINDOW,
            balance=balance,
            weights=weights,
            samples_per_epoch=samples_per_epoch,
            repeat=repeat,
            per_batch=per_batch,
            group_by=group_by,
            bucket_by=bucket_by,
            buckets=buckets,
            budget=budget,
            batch_size=batch_size,
            drop_last=self.drop_last,
            has_sources=isinstance(data, StoreMixture),
        )
        self.block_size, self.window = settings.block_size, settings.window
        self.plan = make_plan(data, self.count, settings)
        self._given_ranks = num_replicas, rank
        self._ranks = ranks(num_replicas, rank)
        self._is_own_seed = False  # drawn while there were no other ranks
        # The place of the pass that began last or, if none has begun since an epoch was set or loaded, of the next one.
        self._epoch, self._start = 0, 0
        self._pass: EpochProgress | None = None
        self._passes = 0
        self._order: tuple[tuple[int, int], Order] | None = None  # the last one, by seed and epoch
        # The next pass is one of `_epoch`, because that was set, as long as `_pass` has consumed fewer samples than this.
        self._requested_until: float = 0
        self._overridden: int | None = None  # the epoch that was set before a state was loaded
        for cell in self._cells:
            cell.listen(self)
            if cell.requested is not None:
                self._request_epoch(cell.requested)

    @property
    def num_replicas(self) -> int:
        """How many processes share the epoch."""
        return self._present_ranks()[0]

    @property
    def rank(self) -> int:
        """Which of the processes this is."""
        return self._present_ranks()[1]

    def _present_ranks(self) -> tuple[int, int]:
        """Return the number of processes and the rank, which torch.distributed knows only once it is initialised.

        Afterwards, and in workers, those that were known last count.
        """
        self._ranks = ranks(*self._given_ranks, self._ranks)
        return self._ranks

    @property
    def epoch(self) -> int:
        """The epoch of the pass that is under way or was broken off, otherwise of the next one."""
        under_way = self._pass is not None and not self._pass.finished and not self._is_requested
        return self._epoch if under_way else self._next()[0]

    @property
    def position(self) -> int:
        """How many samples of the epoch's order all ranks consumed, or batches of a plan that makes them."""
        return self._start if self._pass is None else self._position_after(self._pass, self._pass.consumed)

    def _position_after(self, progress: EpochProgress, consumed: int) -> int:
        """Return the position after so many places of each rank; at the end, padding and remainders are past."""
        at_end = consumed == progress.steps
        return self._places(progress.epoch) if at_end else progress.start + consumed * progress.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass at `epoch`: at its beginning or, for the epoch of a loaded state, at the loaded position.

        Sets the epoch of the dataset too, also under a Subset or a ConcatDataset. A pass of that epoch of which nothing
        was consumed yet counts as the next pass.
        """
        self._request_epoch(integer("epoch", epoch, 0, MAX_EPOCH))
        self._enter(self._epoch)

    def _request_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._start, self._pass = epoch, 0, None
        # A pass that has just begun is the one that is meant, once it goes on.
        has_begun = self._pass is not None and not self._pass.consumed
        self._requested_until, self._overridden = 1 if has_begun else math.inf, None

    def _enter(self, epoch: int) -> None:
        """Set the epoch of the datasets."""
        for cell in self._cells:
            cell.enter(epoch)
        for dataset in self._others:
            dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return self._steps(self.epoch, 0)

    def _next(self) -> tuple[int, int]:
        """Return the epoch and the first position of the next pass."""
        begun, start = self._pass, self._start
        if self._is_requested:
            return self._epoch, 0 if begun is not None and begun.finished else start
        is_over = start > 0 and not self._steps(self._epoch, start)
        return (self._epoch, start) if begun is None and not is_over else (self._epoch + 1, 0)

    @property
    def _is_requested(self) -> bool:
        """Whether an epoch was set for the next pass, and not for one that had just begun and went on."""
        return self._requested_until > (0 if self._pass is None else self._pass.consumed)

    def _places(self, epoch: int) -> int:
        """Return how many places an epoch has, over all ranks: samples, or batches of a plan that makes them."""
        if self.plan.is_batched:  # how many there are may depend on the order
            self.fix_seed()
        return self.order(epoch).count

    def _steps(self, epoch: int, start: int) -> int:
        rest = self._places(epoch) - start
        return rest // self.num_replicas if self.drop_last else -(-rest // self.num_replicas)

    def __iter__(self) -> Iterator[Any]:
        return _PassIterator(self)

    def _begin(self, epoch: int, start: int) -> tuple[EpochProgress, Iterator[Any]]:
        """Begin a pass at an epoch and a position; return its progress and its indices."""
        self.fix_seed()
        order, steps, (replicas, rank) = self.order(epoch), self._steps(epoch, start), self._present_ranks()
        self._passes += 1
        self._epoch, self._start, self._pass = epoch, start, EpochProgress(self._passes, epoch, start, steps, replicas)
        self._requested_until, self._overridden = 0, None
        self._enter(epoch)
        return self._pass, order.walk(start + rank, replicas, steps)

    def _resume(self, state: Mapping[str, Any]) -> tuple[EpochProgress, Iterator[Any]]:
        """Begin the pass that StatefulDataLoader goes on with.

        It loads when the loop begins, which is after the loop called set_epoch.
        """
        self.load_state_dict(state)
        requested, was_over = self._overridden, self._start == self._places(self._epoch)
        if requested is not None:
            self.set_epoch(requested)
        progress, indices = self._begin(self._epoch, self._start)
        if requested is not None:  # the loader draws ahead, and discards a pass that was over
            self._requested_until = math.inf if was_over else progress.steps
        return progress, indices

    def batch_requests(
        self, batch_size: int | None, drop_last: bool, seed: int | None = None
    ) -> Iterator[BatchRequest]:
        """Yield the batches of the next pass, which begins with the first one; `receive` counts them.

        With ``batch_size=None``, a request is for a single sample.
        """
        progress, indices = self._begin(*self._next())
        steps, size = progress.steps, 1 if self.plan.is_batched else batch_size or 1
        batches = progress.batches = steps // size if drop_last else -(-steps // size)
        for number in range(batches):
            if self.num_replicas != progress.num_replicas:
                raise ConfigError(
                    f"this pass began with {progress.num_replicas} processes of torch.distributed, and there are "
                    f"{self.num_replicas}: begin another pass"
                )
            drawn = [progress.draw(indices) for _ in range(min(size, steps - number * size))]
            if batch_size is None or self.plan.is_batched:
                (drawn,) = drawn
            yield BatchRequest(progress.number, number, progress.epoch, drawn, seed)

    def receive(self, progress: int, number: int, size: int) -> None:
        """Count a batch that the training loop receives, unless another pass has begun since."""
        if self._pass is not None and self._pass.number == progress:
            self._pass.receive(number, 1 if self.plan.is_batched else size)

    def skip_incomplete_batch(self, batch_size: int) -> None:
        """Start the next pass at the next epoch if less than a batch is left of this one."""
        if not self.plan.is_batched and self._steps(self._epoch, self.position) < batch_size:
            self._start, self._pass = self._places(self._epoch), None

    def order(self, epoch: int) -> Order:
        """Return the order of an epoch, which all ranks share."""
        key = self.seed or 0, epoch
        if self._order is None or self._order[0] != key:
            self._order = key, self.plan.order(*key)
        return self._order[1]

    def fix_seed(self) -> None:
        """Draw the seed of the order now, if it needs one and has none, or one that other ranks do not share."""
        if not self.plan.is_random:
            return
        is_alone = self.num_replicas == 1
        if self.seed is not None and (is_alone or not self._is_own_seed):
            return
        if is_alone or self._generator is not None:
            self.seed, self._is_own_seed = draw_seed(self._generator), self._generator is None
        else:
            self.seed, self._is_own_seed = agreed_seed(f"{self.count}/{self.store}/{self.where}"), False

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the position, as a small dict that JSON can hold."""
        position = self.position
        # A finished pass is over, even if a loader dropped its last samples.
        over = self._pass is not None and self._pass.finished
        return self.state_at(self._epoch, self._places(self._epoch) if over else position)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the state of a sampler that is at a position of an epoch."""
        agreed = {name: getattr(self, name) for name in _AGREED}
        plan = {"plan": self.plan.key} if self.plan.key else {}
        return {"version": _VERSION, **agreed, **plan, "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state_dict` was called, with any number of replicas, and with its seed if none was given here.

        The next pass is the rest of that epoch or, if it was over, the whole next epoch. After ``set_epoch`` with an
        epoch that was over, the next pass is its rest, which is empty.

        Raises
        ------
        ConfigError
            The state has another version, is malformed, or is of a sampler with other data or arguments. Stores are
            compared only if both are known.
        """
        epoch, start = self.place_in(state)
        self._overridden = self._epoch if self._requested_until else self._overridden
        self._epoch, self._start, self._pass, self._requested_until = epoch, start, None, 0
        self.load_seed(state)
        self._enter(epoch)

    def load_seed(self, state: Mapping[str, Any]) -> None:
        """Use the seed of a state, if none was given here."""
        if self._draws:
            self.seed, self._is_own_seed = state["seed"], False

    def place_in(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and the position in a state; raises ConfigError as `load_state_dict` does."""
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            found = state.get("version") if isinstance(state, Mapping) else state
            raise ConfigError(f"not a sampler's state of version {_VERSION}: version is {found!r}")
        missing = [name for name in (*_AGREED, "epoch", "position") if name not in state]
        if missing:
            raise ConfigError(f"the sampler's state lacks {', '.join(missing)}")
        differing = []
        for name in _AGREED:
            saved, own = state[name], getattr(self, name)
            unknown = (name in _OPTIONAL and None in (saved, own)) or (name == "seed" and self._draws)
            if saved != own and not unknown:  # digests of where= say nothing to a reader
                is_digest = name == "where"
                differing.append(
                    "another where=, fold or keys selected the records"
                    if is_digest
                    else f"{name} was {saved!r} and is {own!r}"
                )
        if state.get("plan", "") != self.plan.key:
            differing.append("another plan of its epochs: other weights, classes, sources, groups or buckets")
        if differing:
            raise ConfigError(f"the state belongs to another sampler: {'; '.join(differing)}")
        if state["seed"] is not None:
            integer("seed", state["seed"])
        epoch = integer("epoch", state["epoch"], 0, MAX_EPOCH)
        # The seed of a state is not in use yet, and the number of batches may depend on it.
        most = MAX_COUNT if self.plan.is_batched else self._places(epoch)
        return epoch, integer("position", state["position"], 0, most)

    def __getstate__(self) -> dict[str, Any]:
        (epoch, start), self._ranks = self._next(), self._present_ranks()
        until = math.inf if self._is_requested else 0
        changed = {"_epoch": epoch, "_start": start, "_pass": None, "_requested_until": until, "_order": None}
        return {**self.__dict__, **changed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for cell in self._cells:
            cell.listen(self)

    def __repr__(self) -> str:
        blocks = f", block_size={self.block_size}, window={self.window}" if self.block_size else ""
        return (
            f"EpochSampler({self.count}, shuffle={self.shuffle}, seed={self.seed}, rank={self.rank} of "
            f"{self.num_replicas}, drop_last={self.drop_last}{blocks}, position={self.position} of epoch {self._epoch}"
            f"{f', {self.plan.describe(self._epoch)}' if self.plan.key else ''})"
        )


class _PassIterator(Iterator[Any]):
    """Yields this rank's indices; its state counts the yielded ones, which is what StatefulDataLoader saves.

    A pass begins at the first index, not at ``iter()``, which DataLoader calls without drawing too.
    """

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._pass: EpochProgress | None = None
        self._indices: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        if self._pass is None:
            self._pass, self._indices = self._sampler._begin(*self._sampler._next())
        return self._pass.draw(self._indices)

    def state_dict(self) -> dict[str, Any]:
        sampler, begun = self._sampler, self._pass
        if begun is None:
            return sampler.state_at(*sampler._next())
        return sampler.state_at(begun.epoch, sampler._position_after(begun, begun.drawn))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pass, self._indices = self._sampler._resume(state)


class OtherSampler:
    """Lets a loader of ours draw from a sampler of another class: it counts the passes, and has no position.

    Parameters
    ----------
    sampler : Sampler
        Yields indices, or lists of them if `is_batched`.
    data : Any
        The dataset, whose epoch follows the passes.
    """

    plan: Plan | None = None

    def __init__(self, sampler: Any, data: Any, *, is_batched: bool) -> None:
        self.sampler, self._is_batched = sampler, is_batched
        self._next = 0
        # That of a DistributedSampler, as it was last: another one was set by the user.
        self._seen: int | None = getattr(sampler, "epoch", None)
        cells = [getattr(each, "_epoch", None) for each in epoch_takers(data)]
        self._cells = [cell for cell in cells if isinstance(cell, SharedEpoch)]
        for cell in self._cells:
            cell.listen(self)
            self._next = self._next if cell.requested is None else cell.requested

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for the random transforms and, if it takes one, for the sampler."""
        self._request_epoch(integer("epoch", epoch, 0, MAX_EPOCH))

    def _request_epoch(self, epoch: int) -> None:
        self._next = epoch

    def batch_requests(
        self, batch_size: int | None, drop_last: bool, seed: int | None = None
    ) -> Iterator[BatchRequest]:
        """Yield the batches of the next pass, as those of an `EpochSampler`."""
        own = getattr(self.sampler, "epoch", None)
        epoch = own if isinstance(own, int) and own != self._seen else self._next
        if callable(getattr(self.sampler, "set_epoch", None)):
            self.sampler.set_epoch(epoch)
        self._seen, self._next = epoch, epoch + 1
        for cell in self._cells:
            cell.enter(epoch)
        indices = iter(self.sampler)
        number = 0
        while True:
            if self._is_batched or batch_size is None:
                drawn = next(indices, None)
            else:
                drawn = list(islice(indices, batch_size))
                if drop_last and len(drawn) < batch_size:
                    return
            if drawn is None or (batch_size is not None and not drawn):
                return
            wanted = list(drawn) if self._is_batched or batch_size is not None else as_index(drawn)
            yield BatchRequest(0, number, epoch, wanted, seed)
            number += 1

    def fix_seed(self) -> None:
        """Do nothing: the sampler draws for itself."""

    def receive(self, progress: int, number: int, size: int) -> None:
        """Do nothing: there is no position."""


def holds_epoch_sampler(sampler: Any, depth: int = 3) -> bool:
    """Return whether a sampler draws from an `EpochSampler`, as those do that frameworks put around one."""
    if sampler is None or isinstance(sampler, EpochSampler) or not hasattr(sampler, "__dict__"):
        return False
    inner = vars(sampler).values()
    return any(isinstance(each, EpochSampler) or (depth and holds_epoch_sampler(each, depth - 1)) for each in inner)


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
    where, how = getattr(data, "where", None), getattr(getattr(data, "view", None), "how", None)
    subsets = getattr(how, "subsets", None)
    if not isinstance(where, Mapping) and subsets is None:
        return None
    selected = repr(sorted((where or {}).items())) + (subsets or "")
    return xxhash.xxh3_64_hexdigest(selected.encode())


def epoch_takers(data: Any) -> list[Any]:
    """Return the datasets that have ``set_epoch`` below this one, also those that attributes of a user's dataset hold."""
    return [each for each in inside(data) if callable(getattr(each, "set_epoch", None))]


def _seed_of(datasets: Sequence[Any]) -> int | None:
    """Return the seed that the datasets' samples have in common, or one that derives from all of their seeds."""
    seeds = [getattr(each, "seed", None) for each in datasets]
    if not seeds or not all(isinstance(seed, int) for seed in seeds):
        return None
    return seeds[0] if len(set(seeds)) == 1 else xxhash.xxh3_64_intdigest(repr(seeds).encode()) >> 1
