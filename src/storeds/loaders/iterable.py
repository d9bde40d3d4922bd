"""`StoreIterable`, the iterable-style dataset: the order of an `EpochSampler` as a stream of samples."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from storeds._utils.arguments import integer
from storeds.batching.collate import Skipped
from storeds.datasets.batch import Ask
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.pipeline import MOST_IN_A_ROW
from storeds.datasets.reading import read_counted
from storeds.datasets.tree import inside
from storeds.errors import BadSamplesError, ConfigError, suggest
from storeds.loaders.planning import Replacements, replaces_samples
from storeds.loaders.sampler import EpochSampler

__all__ = ["Remainder", "StoreIterable"]

Remainder: TypeAlias = Literal["keep", "drop", "pad"]

_WARNED = -1


@dataclass
class _Place:
    """Where a pass is: it began at a position of the epoch's order, and this process, which has a `part`, `taken` samples since."""

    epoch: int
    start: int = 0
    taken: int = 0
    part: dict[str, int] | None = None


class StoreIterable(IterableDataset[Any]):
    """Samples of stores as a stream, for `torch.utils.data.DataLoader` with any number of workers and ranks.

    Parameters
    ----------
    dataset : StoreDataset, ConcatDataset or Subset of them; or what `StoreDataset` takes
        What to read. A list of URLs or a pattern joins many stores, and so does ``a + b`` for datasets.
    shuffle, block_size, window
        The order of each epoch, as for `EpochSampler`: indices in order, shuffled, or in shuffled blocks of `block_size`
        consecutive indices, of which `window` are mixed.
    seed : int, optional
        The seed of the order; by default the dataset's. For a dataset that is opened here, also the seed of its samples.
        To shuffle without a seed, the stream draws one from torch's default generator when it is made, the same for all
        ranks.
    remainder : str
        What happens if the ranks cannot all have the same number of samples. ``"keep"``: some have one more. ``"drop"``:
        the end of the order is left out. ``"pad"``: samples from the beginning of the order come twice.
    read_batch : int
        How many samples to read in one storage call. With the loader's ``batch_size``, batches are the same with any
        number of workers.
    num_replicas, rank : int, optional
        How many processes share an epoch, and which of them this is. By default those of torch.distributed if it is
        initialised, otherwise 1 and 0.
    **dataset_arguments
        For the `StoreDataset` that is opened here: ``transform``, ``decode``, ``where`` and so on.

    Attributes
    ----------
    dataset : Dataset
        What is read. Its ``report()`` counts bad samples, and its ``close()`` closes the stores.
    sampler : EpochSampler
        What computes the order.

    Raises
    ------
    ConfigError
        An argument is malformed or contradicts another.
    StoreNotFoundError, FormatError, UnavailableError
        From opening a store. Reading raises `RecordError` and its subclasses before the samples of that storage call,
        and ends the iterator.

    Notes
    -----
    *Shards*: all ranks share one order and take turns, as with `EpochSampler`. A rank's samples are dealt to its workers
    `read_batch` at a time. With ``on_error="skip"`` bad samples are left out. If these are all of 100 or more, the pass ends
    with `BadSamplesError`.

    *Epochs*: the epoch is that of the dataset. Call `set_epoch` before each pass: PyTorch's DataLoader does not report
    passes. Shuffled passes that repeat an order warn once. Run one pass over a dataset at a time.

    *State*: `state_dict` counts the samples that were yielded in the process that calls it. Without workers it is exact
    with any DataLoader. With workers, use torchdata's ``StatefulDataLoader``, which keeps one state for each.
    """

    dataset: Any
    sampler: EpochSampler

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        block_size: int | None = None,
        window: int | None = None,
        remainder: Remainder = "keep",
        read_batch: int = 32,
        num_replicas: int | None = None,
        rank: int | None = None,
        **dataset_arguments: Any,
    ) -> None:
        super().__init__()
        if not isinstance(dataset, Dataset):
            dataset = StoreDataset(dataset, seed=seed, **dataset_arguments)
        elif dataset_arguments:
            raise ConfigError(f"pass {', '.join(dataset_arguments)} when you make the dataset; this one exists already")
        self._takers = inside(dataset)
        if not self._takers:
            raise ConfigError(f"a stream reads StoreDatasets, also in a ConcatDataset or a Subset, not {dataset!r}")
        if remainder not in get_args(Remainder):
            raise ConfigError(f"unknown remainder {remainder!r}; {suggest(remainder, get_args(Remainder), 'values')}")
        self.dataset, self.remainder, self.read_batch = dataset, remainder, integer("read_batch", read_batch, 1)
        order: dict[str, Any] = {"shuffle": shuffle, "block_size": block_size, "window": window}
        self.sampler = EpochSampler(dataset, seed=seed, num_replicas=num_replicas, rank=rank, **order)
        self._position = self.sampler._position
        self._position.fix_seed()
        self._replacements = Replacements(dataset, self._position.plan) if replaces_samples(dataset) else None
        self._place = self._loaded = _Place(self.epoch)
        self._turn = 0  # of this process's passes
        # The epoch of the pass that began last, and which pass it is, or 0 for none; shared with workers.
        self._last = torch.frombuffer(mmap.mmap(-1, 16), dtype=torch.int64)

    @property
    def epoch(self) -> int:
        """The epoch, which the order and the randomness of samples depend on."""
        epoch: int = self._takers[0].epoch
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for persistent workers too.

        Passes of the epoch of a loaded state begin where the state was taken; passes of other epochs are whole.
        """
        self._position.fix_seed()
        self.sampler.set_epoch(epoch)
        self._last.zero_()

    def __len__(self) -> int:
        """Return the number of samples of this rank over all of its workers in a whole epoch, skipped ones included."""
        return self._steps(0)

    @property
    def _places(self) -> int:
        """The samples of an epoch, over all ranks."""
        return self._position.order(self.epoch).count

    def _steps(self, start: int) -> int:
        """Return the number of this rank's samples from a position of the order on."""
        rest, ranks = self._places - start, self.sampler.num_replicas
        extra = {"keep": ranks - 1 - self.sampler.rank, "drop": 0, "pad": ranks - 1}
        return (rest + extra[self.remainder]) // ranks

    def __iter__(self) -> Iterator[Any]:
        epoch, part = self.epoch, self._part()
        self._position.fix_seed()
        self._warn_of_repeats(epoch)
        begin = self._loaded if self._loaded.epoch == epoch else _Place(epoch)
        self._check_part(begin.part)
        place = self._place = _Place(epoch, begin.start, begin.taken, part)
        size, workers = self.read_batch, part["num_workers"]
        done = place.taken // size * size * workers  # the rank's samples in earlier rounds of storage calls
        first, steps = place.start + part["rank"], self._steps(place.start)
        indices = self._position.order(epoch).walk(
            first + done * part["num_replicas"], part["num_replicas"], max(steps - done, 0)
        )
        chunks = iter(lambda: list(islice(indices, size)), [])
        skip, is_empty = place.taken % size, True
        for chunk in islice(chunks, part["worker"], None, workers):
            for sample in read_counted(self.dataset, Ask(chunk[skip:], fill=False, allowed=self._replacements)):
                place.taken += 1
                if not isinstance(sample, Skipped):
                    is_empty = False
                    yield sample
            skip = 0
        if is_empty and place.taken - begin.taken >= MOST_IN_A_ROW:
            raise BadSamplesError(f"all {place.taken - begin.taken:,} samples of this pass were skipped; see report()")

    def _part(self) -> dict[str, int]:
        """Return which samples of an epoch this process yields."""
        worker = get_worker_info()
        of_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        of_ranks = {"rank": self.sampler.rank, "num_replicas": self.sampler.num_replicas}
        return {**of_ranks, "worker": of_workers[0], "num_workers": of_workers[1], "read_batch": self.read_batch}

    def _warn_of_repeats(self, epoch: int) -> None:
        """Warn once if this pass repeats the order of the one before, and `set_epoch` was not called in between."""
        worker = get_worker_info()
        if worker is not None and worker.id:  # the first worker of a loader speaks for all of them
            return
        self._turn += 1
        turn = self._turn + (0 if worker is None else worker.seed)
        last_epoch, last_turn = self._last.tolist()
        if last_epoch == _WARNED:
            return
        self._last[0], self._last[1] = epoch, turn
        if self.sampler.shuffle and last_epoch == epoch and last_turn not in (0, turn):
            self._last[0] = _WARNED
            warnings.warn(
                f"this pass repeats the order of epoch {epoch}: PyTorch's DataLoader does not tell a stream that a pass "
                "begins. Call set_epoch(epoch) on the stream before each pass",
                UserWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the pass that began last, as a small dict that JSON can hold."""
        epoch = self.epoch
        place = self._place if self._place.epoch == epoch else _Place(epoch)
        part = place.part or self._part()
        if part["num_workers"] > 1:
            return {**self._position.state_at(epoch, place.start), "taken": place.taken, "part": part}
        position = min(place.start + place.taken * part["num_replicas"], self._places)
        return {**self._position.state_at(epoch, position), "taken": 0, "part": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the epoch of a state; passes of that epoch begin where `state_dict` was called.

        A state of a stream without workers is valid with any number of ranks and workers, a state of a worker only in
        the same worker of the same number.

        Raises
        ------
        ConfigError
            The state is malformed, or is of other stores, another order or another worker.
        """
        if not isinstance(state, Mapping) or not {"taken", "part"} <= state.keys():
            raise ConfigError(f"not a state that a stream's state_dict() returned: {state!r}")
        epoch, start = self._position.place_in(state)
        self._check_part(state["part"])
        self._loaded = _Place(epoch, start, integer("taken", state["taken"], 0), state["part"])
        self._position.load_seed(state)
        self.set_epoch(epoch)
        self._place = self._loaded

    def _check_part(self, saved: Any) -> None:
        """Raise ConfigError if the part of a state is not that of this process."""
        if saved not in (None, self._part()):
            raise ConfigError(f"the state belongs to another worker: it is of {saved}, and this is {self._part()}")

    def __repr__(self) -> str:
        return f"StoreIterable({self.dataset!r}, {self.sampler!r})"
