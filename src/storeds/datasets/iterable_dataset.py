"""`StoreIterable`, the iterable-style dataset: many stores as one stream, interleaved, shuffled, sharded, resumable."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, TypeAlias, get_args

import xxhash
from torch.utils.data import IterableDataset, get_worker_info

from storeds._utils.arguments import integer, ranks
from storeds._utils.locations import glob_of
from storeds.backends.concatenated import ConcatenatedBackend, check_same_classes
from storeds.backends.opening import open_backend
from storeds.datasets.assembly import declared_elements
from storeds.datasets.counters import SampleCounters, SampleReport
from storeds.datasets.epoch import MAX_EPOCH, SharedEpoch, SharedPasses, agreed_seed, draw_seed
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.source import Source
from storeds.datasets.stream import (
    Addresses,
    Place,
    Remainder,
    Samples,
    Shard,
    StreamPass,
    rank_bounds,
    shard_ranges,
)
from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend, Field

__all__ = ["SourceLike", "StoreIterable", "check_alike", "listed", "seed_of", "single"]


SourceLike: TypeAlias = "str | os.PathLike[str] | Backend | Source | StoreDataset"


def listed(sources: SourceLike | Iterable[SourceLike]) -> list[SourceLike]:
    """Return one source, or several, as a list; raises ConfigError."""
    if isinstance(sources, (str, os.PathLike, Source, StoreDataset, Backend)):
        return [sources]
    if isinstance(sources, AbstractSet):
        raise ConfigError("sources have an order, and a set has none: pass a list")
    if isinstance(sources, Mapping):
        raise ConfigError("a mapping is not a source: pass Source.parse(mapping), or its URLs as a list")
    if not isinstance(sources, Iterable):
        raise ConfigError(f"sources are URLs, paths, backends, Sources or StoreDatasets, not {type(sources).__name__}")
    return list(sources)


def single(
    sources: Sequence[SourceLike], arguments: Mapping[str, Any]
) -> Iterator[tuple[SourceLike, Mapping[str, Any]]]:
    """Yield each source with the arguments of its dataset; a pattern yields the matching files, which are open already."""
    own = {name: value for name, value in arguments.items() if name in Source.__struct_fields__}
    more = {name: value for name, value in arguments.items() if name not in own}
    opening = {"layout": own.get("layout"), **(Source.store_options(own.get("options"), more) or {})}
    others = {name: value for name, value in own.items() if name not in ("layout", "options")}
    for source in sources:
        if not isinstance(source, (str, os.PathLike)) or glob_of(os.fspath(source)) is None:
            yield source, arguments
            continue
        whole = open_backend(source, **opening)
        # A file of exactly that name may have appeared since.
        members = whole.members() if isinstance(whole, ConcatenatedBackend) else [whole]
        yield from ((member, others) for member in members)


def seed_of(seed: int | None, number: int) -> int | None:
    """Return the seed of a source's samples."""
    if seed is None or number == 0:
        return seed
    return xxhash.xxh3_64_intdigest(f"{seed}/source/{number}".encode()) >> 1  # fits into an int64


def check_alike(first: StoreDataset, other: StoreDataset) -> None:
    """Raise ConfigError unless the samples of both can be in one batch, and their labels mean the same."""
    for what, one, two in zip(("fields", "kinds", "as_dict"), _description(first), _description(other), strict=True):
        if one != two:
            raise ConfigError(
                f"the samples of one stream must be alike: {what} are {one} in {first.url}, {two} in {other.url}"
            )
    if first.reader.target is not None:
        check_same_classes(first.backend, other.backend)


def _description(dataset: StoreDataset) -> tuple[Any, ...]:
    reader = dataset.reader
    declared = declared_elements(reader, dataset.backend.meta.fields)
    given = getattr(reader, "box_format", None)
    kinds = [_kind(declared[name], given) if name in declared else name for name in reader.fields]
    return reader.fields, kinds, dataset.as_dict


def _kind(declared: Field, box_format: str | None) -> tuple[Any, ...]:
    """Return what the values of an element are; boxes have the format that the reader gives them."""
    if declared.role is None:
        return declared.kind, declared.dtype
    format = (box_format or declared.format) if declared.role == "boxes" else None
    return (declared.kind, declared.dtype, declared.role, *([format] if format is not None else []))


_VERSION = 1


class StoreIterable(IterableDataset[Any]):
    """Samples of one or many stores as a stream, for `torch.utils.data.DataLoader` with any number of workers and ranks.

    Parameters
    ----------
    sources : str, path, Backend, Source or StoreDataset, or a sequence of these
        The stores to stream; each is opened as a `StoreDataset`, unless it is one. A pattern such as
        ``hdf5://data/*.h5`` makes one source of each matching file; a `Source` is one source.
    cycle_length : int
        How many sources are open at once.
    block_length : int
        How many consecutive samples of one source come before those of the next.
    shuffle_buffer : int
        Shuffle the stream in a buffer of this many samples. The buffer holds addresses, not samples.
    seed : int, optional
        Shuffles the sources in each epoch, and the stream, if there is a buffer. It is also the seed of the datasets
        opened here: the first source uses it unchanged, each other one a number derived from it, so that samples of the
        same index in different sources have different randomness. Without a seed, sources keep their order, unless
        there is a buffer: then the stream draws a seed for the order from torch's default generator when it is made, the
        same for all ranks. The randomness of samples then comes from that generator at the start of each pass.
    remainder : str
        What happens if the ranks cannot all have the same number of samples. ``"keep"``: some have one more.
        ``"drop"``: the last ``total % num_replicas`` samples are left out. ``"pad"``: as many as needed come twice.
    read_batch : int
        How many samples to read together, in one storage call for each of their sources.
    read_ahead : int
        How many read batches to prepare, each in a thread, beyond the one in use; 0 reads without threads.
    num_replicas, rank : int, optional
        How many processes share an epoch, and which of them this is. By default those of torch.distributed if it is
        initialised, otherwise 1 and 0.
    **dataset_arguments
        For each `StoreDataset` opened here: ``transform``, ``decode``, ``where`` and so on. With ``on_error="skip"`` a bad
        sample is left out of the stream. ``max_bad`` and ``max_bad_fraction`` count over all datasets opened here.

    Attributes
    ----------
    datasets : tuple of StoreDataset
        The sources. Sample i of source k is ``datasets[k][i]``.

    Raises
    ------
    ConfigError
        An argument is malformed, there is no source, or two have samples of different fields.
    StoreNotFoundError, FormatError, UnavailableError
        From opening a store. Reading raises `RecordError` and its children, and ends the iterator.

    Notes
    -----
    *Shards*: all samples form a row, source by source. The row is cut into equal parts for the ranks, in order, and
    each part into equal parts for the rank's workers. Each worker interleaves the sources in its part, as
    ``tf.data.Dataset.interleave`` does, and shuffles the result. Parts differ by one sample at most. With a seed and
    more than one part, the row begins at another place in each epoch. A worker without samples yields none.

    *Epochs*: a pass begins with its first sample; ``iter()`` alone changes nothing. The first pass is epoch 0. Each later
    pass is the epoch after the pass that began last, with persistent workers or not. `set_epoch` sets the epoch of the
    next pass, and counting continues from there. A stream does not know its loaders, so it counts their passes together.

    *Order*: a function of the stores, the arguments, the epoch, the rank and the worker, and nothing else.

    *State*: `state_dict` counts the samples that were yielded in the process that calls it. Without workers it is exact
    with any DataLoader. With workers, use torchdata's ``StatefulDataLoader``, which keeps one state for each.

    *Processes and threads*: works in the process that made it and in workers of every start method; processes never
    share a handle. An iterator belongs to one thread and owns its reading threads, which end with it. State and epoch
    belong to the iterator that was made last. Up to ``(read_ahead + 1) * read_batch`` samples are in memory.
    """

    datasets: tuple[StoreDataset, ...]
    read_batch: int
    read_ahead: int
    num_replicas: int
    rank: int

    def __init__(
        self,
        sources: SourceLike | Iterable[SourceLike],
        *,
        cycle_length: int = 4,
        block_length: int = 1,
        shuffle_buffer: int = 0,
        seed: int | None = None,
        remainder: Remainder = "keep",
        read_batch: int = 32,
        read_ahead: int = 2,
        num_replicas: int | None = None,
        rank: int | None = None,
        **dataset_arguments: Any,
    ) -> None:
        super().__init__()
        self.cycle_length: int = integer("cycle_length", cycle_length, 1)
        self.block_length: int = integer("block_length", block_length, 1)
        self.shuffle_buffer: int = integer("shuffle_buffer", shuffle_buffer, 0)
        self.seed: int | None = None if seed is None else integer("seed", seed)
        if remainder not in get_args(Remainder):
            raise ConfigError(f"unknown remainder {remainder!r}; {suggest(remainder, get_args(Remainder), 'values')}")
        self.remainder = remainder
        self.read_batch, self.read_ahead = integer("read_batch", read_batch, 1), integer("read_ahead", read_ahead, 0)
        self.num_replicas, self.rank = ranks(num_replicas, rank)
        # All datasets opened here share one of each: under spawn, each takes a descriptor.
        self._epoch, self._counters, self._passes = SharedEpoch(), SampleCounters(), SharedPasses()
        self.datasets = self._open(listed(sources), dataset_arguments)
        self._draws = seed is None and self.shuffle_buffer > 1
        if self._draws:
            self.seed = agreed_seed(f"stream/{self._fingerprint()}") if self.num_replicas > 1 else draw_seed()
        self._turn = 1  # of this process's passes
        self._place: Place | None = None
        self._loaded: Mapping[str, Any] | None = None

    def _open(self, sources: Sequence[SourceLike], arguments: Mapping[str, Any]) -> tuple[StoreDataset, ...]:
        if not sources:
            raise ConfigError("a stream needs at least one source, and there are none")
        if arguments and all(isinstance(source, StoreDataset) for source in sources):
            raise ConfigError(
                f"{', '.join(arguments)} are for making datasets, and these are made already: leave them out"
            )
        datasets: list[StoreDataset] = []
        opened: list[StoreDataset] = []
        for number, (source, own) in enumerate(single(sources, arguments)):
            if not isinstance(source, StoreDataset):
                source = StoreDataset(source, **{**own, "seed": seed_of(self.seed, number)})
                opened.append(source)
            datasets.append(source)
            check_alike(datasets[0], source)
        for dataset in opened:
            dataset._share_counts(self._epoch, self._counters, sum(map(len, opened)))
        return tuple(datasets)

    @property
    def epoch(self) -> int:
        """The epoch, which the order and the randomness of samples depend on."""
        return self._passes.number

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for persistent workers too; drops a loaded state of another epoch."""
        self._passes.set(integer("epoch", epoch, 0, MAX_EPOCH))
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples of this rank over all of its workers, skipped ones included."""
        first, last = rank_bounds(sum(map(len, self.datasets)), self._shard(), self.remainder)
        return last - first

    def _shard(self) -> Shard:
        worker = get_worker_info()
        if worker is None:
            return Shard(self.rank, self.num_replicas)
        return Shard(self.rank, self.num_replicas, worker.id, worker.num_workers)

    def __iter__(self) -> Iterator[Any]:
        if self._loaded is not None:
            self._check(self._loaded)  # another process, with another shard, may have loaded it
        else:
            self._place = None
        return Samples(self.datasets, self._begin, read_batch=self.read_batch, read_ahead=self.read_ahead)

    def _begin(self) -> StreamPass:
        place = self._resumed_place()
        if place is None:
            place = Place(self._passes.begin(self._turn))
        elif place.position < len(self._addresses(place.epoch)) or get_worker_info() is None:
            self._passes.begin(self._turn, place.epoch)
        self._turn += 1
        self._place, self._loaded = place, None
        for dataset in self.datasets:
            dataset._epoch.enter(place.epoch)
        # Threads read ahead, and would draw from a global generator in no fixed order.
        seed = draw_seed() if any(dataset.seed is None for dataset in self.datasets) else None
        return StreamPass(self._addresses(place.epoch).walk(place.position), place, seed)

    def _addresses(self, epoch: int) -> Addresses:
        shard = self._shard()
        own = shard_ranges(list(map(len, self.datasets)), shard, self.remainder, self.seed, epoch)
        key = self.seed, epoch, shard.rank, shard.worker
        return Addresses(own, self.cycle_length, self.block_length, self.shuffle_buffer, *key)

    def _resumed_place(self) -> Place | None:
        """Return the place of a loaded state where the next pass begins, if there is one."""
        if self._loaded is None:
            return None
        place = Place(self._loaded["epoch"], self._loaded["position"])
        if get_worker_info() is not None:
            return place  # the rest of this worker, which may be empty although others have samples left
        if self._passes.is_requested:
            return place if self._passes.number == place.epoch else None
        return place if place.position < len(self._addresses(place.epoch)) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the pass that began last, as a small dict that JSON can hold."""
        requested = self._passes.is_requested and get_worker_info() is None
        if self._loaded is not None and not (requested and self._passes.number != self._loaded["epoch"]):
            place = Place(self._loaded["epoch"], self._loaded["position"])
        elif self._loaded is None and self._place is not None and not requested:
            place = self._place
        else:
            place = Place(self._passes.peek(self._turn))
        return {"version": _VERSION, **self._agreed(), "epoch": place.epoch, "position": place.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume with the next pass where `state_dict` was called; the pass after it is the next epoch.

        If the state's epoch was over, the next pass is the next epoch, or a later one that has been set. In a worker,
        which may end before others, it is empty.

        Raises
        ------
        ConfigError
            The state has another version, is malformed, or is of other stores, arguments, ranks or workers.
        """
        self._check(state)
        if self._draws:
            self.seed = state["seed"]
        epoch, count = state["epoch"], len(self._addresses(state["epoch"]))
        over = integer("position", state["position"], 0, count) == count
        if not (over and self._passes.is_requested and self._passes.number >= epoch):
            self._passes.load(epoch)
            for dataset in self.datasets:
                dataset._epoch.enter(epoch)
        self._loaded = dict(state)

    def _agreed(self) -> dict[str, Any]:
        """Return the settings that two streams must share for a position to mean the same in both."""
        shard = self._shard()
        names = ("cycle_length", "block_length", "shuffle_buffer", "seed", "remainder", "num_replicas", "rank")
        arguments = {name: getattr(self, name) for name in names}
        return {"stores": self._fingerprint(), **arguments, "num_workers": shard.workers, "worker": shard.worker}

    def _fingerprint(self) -> str:
        """Return a checksum of the sources' contents and order, independent of their paths."""
        contents = [(dataset.backend.meta.id, len(dataset), dataset.where or {}) for dataset in self.datasets]
        return xxhash.xxh3_128_hexdigest(repr(contents).encode())

    def _check(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            found = state.get("version") if isinstance(state, Mapping) else state
            raise ConfigError(f"not a stream's state of version {_VERSION}: version is {found!r}")
        agreed = self._agreed()
        missing = [name for name in (*agreed, "epoch", "position") if name not in state]
        if missing:
            raise ConfigError(f"the stream's state lacks {', '.join(missing)}")
        if self._draws and isinstance(state["seed"], int):
            agreed["seed"] = state["seed"]
        differing = [f"{name} was {state[name]!r} and is {own!r}" for name, own in agreed.items() if state[name] != own]
        if differing:
            raise ConfigError(f"the state belongs to another stream: {'; '.join(differing)}")
        integer("epoch", state["epoch"], 0, MAX_EPOCH)

    def report(self) -> SampleReport:
        """Return how many samples were requested, repaired and bad so far, in this process and its workers.

        Raises
        ------
        ConfigError
            A source was passed as a `StoreDataset`, which has counters of its own.
        """
        if any(dataset._pipeline.counters is not self._counters for dataset in self.datasets):
            raise ConfigError(
                "sources passed as StoreDatasets have counters of their own: call report() on each of them"
            )
        return replace(self.datasets[0].report(), url=self._named())

    def close(self) -> None:
        """Close all stores; reading raises `ClosedError` from then on."""
        for dataset in self.datasets:
            dataset.close()

    def _named(self) -> str:
        others = len(self.datasets) - 1
        return self.datasets[0].url + (f" and {others} more" if others else "")

    def __repr__(self) -> str:
        return f"StoreIterable({self._named()!r}, count={sum(map(len, self.datasets))}, rank={self.rank} of {self.num_replicas})"
