"""A DataLoader that can be stopped and resumed, and the way of its batches to a device."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from storeds.batching.buffer_pool import BufferPool, use_buffer_pool
from storeds.batching.collate import collate, makes_batches
from storeds.datasets.map_dataset import StoreDataset
from storeds.errors import ConfigError
from storeds.loaders.sampler import EpochSampler
from storeds.loaders.worker_deaths import explaining_deaths
from storeds.transforms.deferred import defer_in_this_process, deferring

__all__ = ["StoreLoader", "map_tensors", "to_device"]


class StoreLoader(DataLoader[Any]):
    """A `torch.utils.data.DataLoader` over an `EpochSampler`, which knows where the training loop is.

    `storeds.build_loader` makes one. Each new pass is the next epoch: another order, other random transforms.

    Parameters
    ----------
    dataset : Dataset
        Map-style.
    sampler : EpochSampler, optional
        By default one over all of `dataset`, with `shuffle` and `seed`.
    shuffle : bool
        Without a `sampler`: a new order each epoch.
    seed : int, optional
        Without a `sampler`: of the order. By default the dataset's; if that has none, one that the sampler draws from
        torch's default generator at the first pass.
    **arguments
        As for `torch.utils.data.DataLoader`; by default batches are made by `storeds.collate`.

    Raises
    ------
    ConfigError
        Another sampler is given, as by a framework that shares out what is shared out already; or arguments contradict
        each other.

    Notes
    -----
    *Epochs*: a pass begins with its first batch; ``iter()`` alone changes nothing. The first pass is epoch 0, and each
    later one the epoch after the pass that began last, also if that was broken off: ``next(iter(loader))`` twice is two
    passes. `set_epoch`, here or of the dataset, chooses the epoch of the next pass, and counting goes on from there.
    Epochs are counted by the loader: make it once, not in each epoch.
    """

    sampler: EpochSampler

    def __init__(
        self,
        dataset: Any,
        *,
        sampler: EpochSampler | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        **arguments: Any,
    ) -> None:
        name = type(self).__name__
        if isinstance(dataset, IterableDataset):
            raise ConfigError(f"{name} is for datasets with indices; a stream goes into torch.utils.data.DataLoader")
        if arguments.get("batch_sampler") is not None:
            raise ConfigError(f"{name} makes batches of what its sampler gives: pass batch_size, not batch_sampler")
        if sampler is not None and shuffle:
            raise ConfigError(f"{name}: shuffle belongs to the sampler that it makes itself; give one of the two")
        if sampler is None:
            sampler = EpochSampler(dataset, shuffle=shuffle, seed=seed)
        if not isinstance(sampler, EpochSampler):
            raise ConfigError(
                f"{name} needs an EpochSampler, which shares an epoch out between ranks, and was given {sampler!r}; other "
                "samplers are for torch.utils.data.DataLoader, which takes the same dataset; with Lightning pass "
                "use_distributed_sampler=False to the Trainer"
            )
        arguments.setdefault("collate_fn", collate if arguments.get("batch_size", 1) is not None else None)
        self._defers = defers(dataset, arguments.get("collate_fn"))
        self._reused = BufferPool(limit=2)  # without workers: one batch in use, and the next
        if arguments.get("num_workers") and self._defers:
            arguments["worker_init_fn"] = _Begin(arguments.get("worker_init_fn"))
        super().__init__(dataset, sampler=sampler, **arguments)

    def __iter__(self) -> Any:
        # Begun at the first batch, because Lightning calls iter() first and set_epoch() then.
        batches = super().__iter__()
        with explaining_deaths(self.dataset):
            yield from batches if self.num_workers else self._made_here(batches)

    def _made_here(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches that this thread makes when they are asked for."""
        end = object()
        while True:
            with deferring() if self._defers else contextlib.nullcontext(), use_buffer_pool(self._reused):
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of that epoch, for the order and the random transforms; the ones after it count on."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: batches it got count, those only prefetched do not."""
        return {**self.sampler.state_dict(), "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there with the next pass, whatever the number of ranks or workers; after that comes the next epoch.

        Where the state has no batch left of its epoch, the next pass is the next epoch.

        Raises
        ------
        ConfigError
            The state is of another store, seed, order or batch size; the message says which differs.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(
                f"the state of a loader is a mapping, as state_dict() returns it, not {type(state).__name__}"
            )
        state = dict(state)
        if "batch_size" not in state:
            raise ConfigError(
                f"not a state that a loader's state_dict() returned: it has {sorted(map(str, state)) or 'nothing'}"
            )
        batch_size = state.pop("batch_size")
        if batch_size != self.batch_size:
            raise ConfigError(
                f"the state belongs to another loader: batch_size is {batch_size} there and {self.batch_size} here"
            )
        self.sampler.load_state_dict(state)
        if self.drop_last and self.sampler._remaining < (self.batch_size or 1):
            self.sampler._end_epoch()


def defers(dataset: Any, collate_fn: Any) -> bool:
    """Whether nobody but `storeds.collate` sees the samples that `dataset` makes, so that it may finish them."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is StoreDataset and makes_batches(collate_fn)


@dataclass(frozen=True)
class _Begin:
    """What a worker does first: whatever its samples become is made in the batch."""

    own: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        defer_in_this_process()
        if self.own is not None:
            self.own(worker)


class to_device:  # noqa: N801  # used as a function; an object, because loaders have a length
    """Yield the batches of a loader with their tensors on `device`.

    Parameters
    ----------
    loader : iterable
        Of batches: tensors in any nesting of tuples, lists and mappings. Anything else is passed on as it is.
    device : str or torch.device
        On CUDA, each batch is copied from pinned memory on a stream of its own while the one before is used; make the
        loader with ``pin_memory=True``. On the CPU, batches pass as they are.

    Notes
    -----
    Usable as often as the loader, whose ``len`` it has. For one thread. On CUDA it reads a batch ahead, which the loader
    counts as consumed: take the state from here.
    """

    def __init__(self, loader: Any, device: str | torch.device) -> None:
        self.loader, self.device = loader, torch.device(device)
        self._states: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.device.type == "cuda":
            return self._ahead()
        if self.device.type == "cpu":
            return iter(self.loader)
        return (map_tensors(batch, lambda tensor: tensor.to(self.device)) for batch in self.loader)

    def state_dict(self) -> Any:
        """Return the loader's state at the batch that was given out last."""
        return self._states[0] if self._states else self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load the loader's state."""
        self._states.clear()
        self.loader.load_state_dict(state)

    def _counted(self) -> Iterator[Any]:
        """Yield the loader's batches, keeping its state at the last two."""
        self._states.clear()
        has_state = hasattr(self.loader, "state_dict")
        for batch in self.loader:
            if has_state:
                self._states.append(self.loader.state_dict())
                if len(self._states) > 2:
                    self._states.popleft()
            yield batch

    def _ahead(self) -> Iterator[Any]:
        """Yield batches, each copied while the one before is used."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        waiting: deque[tuple[Any, Any, torch.cuda.Event]] = deque()
        for batch in self._counted():
            with torch.cuda.stream(side):
                copy = map_tensors(batch, self._copy)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(side)
            # The pinned batch is kept until its copy is used: freed earlier, its memory might be written again.
            waiting.append((copy, batch, done))
            if len(waiting) > 1:
                yield self._ready(*waiting.popleft())
        self._states.clear()  # nothing is ahead any more
        while waiting:
            yield self._ready(*waiting.popleft())

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor if tensor.is_pinned() or tensor.device.type != "cpu" else tensor.pin_memory()
        return source.to(self.device, non_blocking=True)

    def _ready(self, copy: Any, _: Any, done: torch.cuda.Event) -> Any:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(done)

        def use(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)
            return tensor

        return map_tensors(copy, use)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with `function` applied to each tensor in it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(item, function) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, function) for item in value)
    return value
