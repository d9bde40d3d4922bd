"""`StoreIterable`, the iterable-style dataset: the order of an `EpochSampler` as a stream of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from storeds._utils.arguments import check_int
from storeds.batching.collate import Skipped
from storeds.datasets.batch import Ask
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.pipeline import MOST_IN_A_ROW
from storeds.datasets.reading import read_counted
from storeds.datasets.tree import inside
from storeds.errors import BadSamplesError, ConfigError
from storeds.loaders.planning import Replacements, replaces_samples
from storeds.loaders.sampler import EpochSampler

__all__ = ["StoreIterable"]


@dataclass
class _Place:
    """Where a pass is: `taken` samples of this process behind a position of the epoch's order."""

    epoch: int
    start: int = 0
    taken: int = 0


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
    drop_last : bool
        How all ranks have equally many samples: leave out the end of the order that does not divide among them, or (False)
        repeat samples from the order's beginning.
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
    passes, so one without it repeats the order. Run one pass over a dataset at a time.

    *State*: `state_dict` counts the samples that were yielded in the process that calls it. Without workers it is exact
    with any DataLoader. With workers, use torchdata's ``StatefulDataLoader``, which keeps one state for each.
    """

    dataset: Any
    sampler: EpochSampler
    read_batch: int

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        block_size: int | None = None,
        window: int | None = None,
        drop_last: bool = False,
        read_batch: int = 32,
        num_replicas: int | None = None,
        rank: int | None = None,
        **dataset_arguments: Any,
    ) -> None:
        super().__init__()
        if "remainder" in dataset_arguments:
            raise ConfigError("remainder is now drop_last: True for 'drop', False for 'pad', and there is no 'keep'")
        if not isinstance(dataset, Dataset):
            dataset = StoreDataset(dataset, seed=seed, **dataset_arguments)
        elif dataset_arguments:
            raise ConfigError(f"pass {', '.join(dataset_arguments)} when you make the dataset; this one exists already")
        self._takers = inside(dataset)
        if not self._takers:
            raise ConfigError(f"a stream reads StoreDatasets, also in a ConcatDataset or a Subset, not {dataset!r}")
        self.dataset, self.read_batch = dataset, check_int("read_batch", read_batch, 1)
        order: dict[str, Any] = {"shuffle": shuffle, "block_size": block_size, "window": window, "drop_last": drop_last}
        self.sampler = EpochSampler(dataset, seed=seed, num_replicas=num_replicas, rank=rank, **order)
        self._position = self.sampler._position
        self._position.fix_seed()
        self._replacements = Replacements(dataset, self._position.plan) if replaces_samples(dataset) else None
        self._begin = self._place = _Place(self.epoch)  # where passes of that epoch begin, and where the last one is

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
        self._position.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples of this rank over all of its workers in a whole epoch, skipped ones included."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self._position.fix_seed()
        begin, part = self._present(self._begin), self._part()
        place = self._place = _Place(begin.epoch, begin.start, begin.taken)
        size, workers, ranks = self.read_batch, part["num_workers"], part["num_replicas"]
        order, steps = self._position.order(place.epoch), self._position.steps(place.epoch, place.start)
        skip, is_empty = place.taken % size, True
        for at in range((place.taken // size * workers + part["worker"]) * size, steps, size * workers):
            first, count = place.start + (at + skip) * ranks + part["rank"], min(size, steps - at) - skip
            ask = Ask(list(order.walk(first, ranks, count)), fill=False, allowed=self._replacements)
            for sample in read_counted(self.dataset, ask):
                place.taken += 1
                if not isinstance(sample, Skipped):
                    is_empty = False
                    yield sample
            skip = 0
        if is_empty and place.taken - begin.taken >= MOST_IN_A_ROW:
            raise BadSamplesError(f"all {place.taken - begin.taken:,} samples of this pass were skipped; see report()")

    def _present(self, place: _Place) -> _Place:
        """Return a place if it is in the present epoch, otherwise the beginning of that."""
        return place if place.epoch == self.epoch else _Place(self.epoch)

    def _part(self) -> dict[str, int]:
        """Return which samples of an epoch this process yields."""
        worker, sampler = get_worker_info(), self.sampler
        of_workers = (
            {"worker": worker.id, "num_workers": worker.num_workers} if worker else {"worker": 0, "num_workers": 1}
        )
        return {"rank": sampler.rank, "num_replicas": sampler.num_replicas, **of_workers, "read_batch": self.read_batch}

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the pass that began last, as a small dict that JSON can hold."""
        place, part = self._present(self._place), self._part()
        if part["num_workers"] > 1:
            return {**self._position.state_at(place.epoch, place.start), "taken": place.taken, "part": part}
        position = min(place.start + place.taken * part["num_replicas"], self._position.order(place.epoch).count)
        return {**self._position.state_at(place.epoch, position), "taken": 0, "part": None}

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
        place = _Place(*self._position.place_in(state), check_int("taken", state["taken"], 0))
        if state["part"] not in (None, self._part()):
            raise ConfigError(
                f"the state belongs to another worker: it is of {state['part']}, and this is {self._part()}"
            )
        self._position.load_seed(state)
        self.set_epoch(place.epoch)
        self._begin = self._place = place

    def __repr__(self) -> str:
        return f"StoreIterable({self.dataset!r}, {self.sampler!r})"
