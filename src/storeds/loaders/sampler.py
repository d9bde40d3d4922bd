"""`EpochSampler`: the epochs of a `Position` for somebody else's loader; `OtherSampler`: somebody else's sampler for ours."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Literal

import torch
from torch.utils.data import BatchSampler, Sampler

from storeds._utils.arguments import check_int
from storeds.datasets.epoch import MAX_EPOCH
from storeds.datasets.tree import as_index
from storeds.errors import ConfigError
from storeds.loaders.plan import Plan
from storeds.loaders.planning import PlanSettings
from storeds.loaders.position import BatchRequest, DatasetEpochs, Pass, Position

__all__ = ["EpochBatches", "EpochSampler", "OtherSampler", "divides_again", "is_plain_batches"]


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
        Leave out what is left over: the end of the order that does not divide among the ranks and, where the plan makes
        the batches, each batch that is not full. Otherwise ranks repeat samples or batches from the order's beginning, so
        that all take equally many steps. A `StoreLoader` leaves out its own short batch with its own ``drop_last``.
    block_size : int or "member", optional
        For cold disks: shuffle blocks of this many consecutive indices, then the samples within every `window` adjacent
        blocks. The epoch reads each block once, within ``block_size * window`` samples. Needs no more memory. ``"member"``: the
        first epoch, which is epoch 0, does so with the members of a versioned store, or the stores of a pattern, as blocks, and
        they are staged in this order; later epochs are shuffled freely. Needs 8 bytes a sample.
    window : int, optional
        How many blocks are mixed; 8 by default, and 2 members, of which the very first comes alone.
    balance : str, optional
        A field, such as ``"label"``: all of its values come equally often. Each goes through all of its samples before it
        begins again, across epochs. This, `weights`, `samples_per_epoch` and mixtures shuffle, whatever `shuffle` says.
    weights : str, array or mapping, optional
        A field, or an array with one number for each sample: samples come in proportion to it. Or a mapping of the values
        of `balance` (by default of ``label``), or of class names, to their shares: ``{"cat": 3, "dog": 1}``.
    samples_per_epoch : int, optional
        By default as many as there are; of a mixture see `StoreMixture`.
    replacement : bool
        Whether a sample may come more than once in an epoch, where quotas or weights ask for it; an error otherwise.
    per_batch : bool
        Each batch has the shares of `balance` too, or those of a mixture, within one sample.
    group_by : str, optional
        A field; the samples of one value come in one batch, which may be smaller than `batch_size`.
    bucket_by : str or (str, str), optional
        A field of numbers, such as a length; batches have samples of like size. Of two fields, such as width and height,
        their ratio counts.
    num_buckets : int
        How many sizes there are; 8 by default.
    max_padded : int, optional
        Limits each batch of `bucket_by`: its samples times the largest size of its bucket (of two fields, their product).
    batch_size : int, optional
        For `per_batch`, `group_by` and `bucket_by`, which make the batches. The sampler then yields lists of indices: pass
        it as ``batch_sampler`` to a loader.

    Raises
    ------
    ConfigError
        An argument is malformed or contradicts another, a field does not exist, or a group is larger than a batch. From the
        first pass without a seed: the ranks cannot agree on one. From a pass: torch.distributed has not `num_replicas`
        processes, or gets others during the pass.

    Notes
    -----
    *Epochs, ranks and resuming* follow the rules of ``storeds.loaders.position.Position``. The dataset's epoch follows the
    passes. Without a seed, all ranks take rank 0's from the store of torch.distributed's process group: one draw serves all
    samplers of the run.

    *Length*: ``len()`` is the number of indices of this rank in a whole epoch. Where the plan makes the batches, their number
    may depend on the seed, so ``len()`` draws it too.

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
    shuffle: bool
    drop_last: bool
    block_size: int | Literal["member"] | None
    window: int | None
    plan: Plan
    """What an epoch has; its method ``describe`` says it in a line."""

    def __init__(
        self,
        data: Sized | int,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        **plan: Any,
    ) -> None:
        settings = PlanSettings.of(data, plan)
        self._position = Position(data, settings, seed=seed, generator=generator, num_replicas=num_replicas, rank=rank)
        self.count, self.plan = self._position.count, self._position.plan
        self.shuffle, self.drop_last = settings.shuffle, settings.drop_last
        self.block_size, self.window = settings.block_size, settings.window

    @property
    def seed(self) -> int | None:
        """The seed of the order; None as long as none is drawn."""
        return self._position.seed

    @property
    def num_replicas(self) -> int:
        """How many processes share the epoch."""
        return self._position.ranks()[0]

    @property
    def rank(self) -> int:
        """Which of the processes this is."""
        return self._position.ranks()[1]

    @property
    def epoch(self) -> int:
        """The epoch of the pass that is under way or was broken off, otherwise of the next one."""
        return self._position.epoch

    @property
    def position(self) -> int:
        """How many samples of the epoch's order all ranks consumed, or batches of a plan that makes them."""
        return self._position.place

    def set_epoch(self, epoch: int) -> None:
        """Start the next pass at `epoch`: at its beginning or, for the epoch of a loaded state, at the loaded position.

        Sets the epoch of the dataset too, also under a Subset or a ConcatDataset.
        """
        self._position.set_epoch(epoch)

    def __len__(self) -> int:
        return self._position.steps(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        return _PassIterator(self._position)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the position, as a small dict that JSON can hold."""
        return self._position.state_dict()

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
        self._position.load_state_dict(state)

    def __copy__(self) -> EpochSampler:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _position=copy.copy(self._position))
        return other

    def __repr__(self) -> str:
        blocks = f", block_size={self.block_size}, window={self.window}" if self.block_size else ""
        epoch = self._position.state_dict()["epoch"]
        return (
            f"EpochSampler({self.count}, shuffle={self.shuffle}, seed={self.seed}, rank={self.rank} of "
            f"{self.num_replicas}, drop_last={self.drop_last}{blocks}, position={self.position} of epoch {epoch}"
            f"{f', {self.plan.describe(epoch)}' if self.plan.key else ''})"
        )


class _PassIterator(Iterator[Any]):
    """Yields this rank's indices; its state counts the yielded ones, which is what StatefulDataLoader saves.

    A pass begins at the first index, not at ``iter()``, which DataLoader calls without drawing too.
    """

    def __init__(self, position: Position) -> None:
        self._position = position
        self._pass: Pass | None = None
        self._indices: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        if self._pass is None:
            self._pass, self._indices = self._position.begin()
        return self._pass.draw(self._indices)

    def state_dict(self) -> dict[str, Any]:
        position, begun = self._position, self._pass
        place = position.next() if begun is None else (begun.epoch, position.place_in_pass(begun))
        return position.state_at(*place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pass, self._indices = self._position.resume(state)


class OtherSampler:
    """Lets a loader of ours draw from a sampler of another class: it counts the passes, and has no place in them.

    Parameters
    ----------
    sampler : Sampler
        Of indices, or of lists of them.
    data : Any
        The dataset, whose epoch follows the passes.
    batches : Sampler, optional
        Of lists of indices; None for a loader of single samples.
    """

    plan: Plan | None = None

    def __init__(self, sampler: Any, data: Any, batches: Any) -> None:
        self.sampler, self._batches, self._datasets = sampler, batches, DatasetEpochs(data)
        self._turn, self._next = self._datasets.request
        # That of a DistributedSampler, as it was last: another one was set by the user.
        self._seen: int | None = getattr(sampler, "epoch", None)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for the random transforms and, if it takes one, for the sampler."""
        self._turn, self._next = self._datasets.request[0], check_int("epoch", epoch, 0, MAX_EPOCH)

    def requests(self, batch_size: int | None, drop_last: bool, seed: int | None = None) -> Iterator[BatchRequest]:
        """Yield the batches of the next pass, as those of a `Position`; PyTorch's BatchSampler has made them."""
        turn, requested = self._datasets.request
        own = getattr(self.sampler, "epoch", None)
        epoch = self._next if turn == self._turn else requested
        epoch = own if isinstance(own, int) and own != self._seen else epoch
        if callable(getattr(self.sampler, "set_epoch", None)):
            self.sampler.set_epoch(epoch)
        self._datasets.enter(epoch)
        self._seen, self._next, self._turn = epoch, epoch + 1, self._datasets.request[0]
        for number, drawn in enumerate(self.sampler if self._batches is None else self._batches):
            yield BatchRequest(0, number, epoch, as_index(drawn) if self._batches is None else list(drawn), seed)

    def fix_seed(self) -> None:
        """Do nothing: the sampler draws for itself."""

    def receive(self, progress: int, number: int, size: int) -> None:
        """Do nothing: there is no place."""


class EpochBatches(BatchSampler):
    """The batches of an `EpochSampler`, for frameworks that read a loader's ``batch_sampler``; the loader draws its own."""

    sampler: EpochSampler

    def __iter__(self) -> Iterator[list[int]]:
        if self.sampler.num_replicas > 1:
            raise ConfigError(
                "a framework divides the batches of a loader, whose EpochSampler has already divided them among the ranks: "
                "samples would be lost. With Accelerate, do not prepare the loader: loop over it"
            )
        return iter(self.sampler) if self.sampler.plan.is_batched else super().__iter__()

    def __len__(self) -> int:
        return len(self.sampler) if self.sampler.plan.is_batched else super().__len__()


def is_plain_batches(sampler: Any) -> bool:
    """Return whether a sampler only makes batches of another one's indices, as PyTorch's BatchSampler does."""
    return isinstance(sampler, BatchSampler) and type(sampler).__iter__ in (
        BatchSampler.__iter__,
        EpochBatches.__iter__,
    )


def divides_again(sampler: Any) -> bool:
    """Return whether a sampler may divide what an `EpochSampler` yields, as those do that frameworks put around one."""
    inner = sampler.sampler if is_plain_batches(sampler) else sampler
    return not isinstance(inner, EpochSampler) and _holds_epochs(inner, 4)


def _holds_epochs(value: Any, depth: int) -> bool:
    inner = vars(value).values() if depth and hasattr(value, "__dict__") else ()
    return isinstance(value, EpochSampler) or any(_holds_epochs(each, depth - 1) for each in inner)
