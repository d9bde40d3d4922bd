"""Name the ways to use a DataLoader, select those that are tested together, and define what their workers run.

A module of its own, with few imports, because every spawned worker imports it.
"""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import xxhash
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    StackDataset,
    Subset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)

import storeds

__all__ = [
    "INDICES",
    "WRAPPERS",
    "Case",
    "Counted",
    "all_cases",
    "jitter",
    "mark",
    "pairwise",
    "plain",
    "product_of_modes",
    "raise_awkwardly",
]

BATCH = 5


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _weighted(count: int) -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0 + at % 3 for at in range(count)], count, generator=seeded(7))


# Name → arguments of a DataLoader over so many samples: which index comes when.
INDICES: dict[str, Callable[[int], dict[str, Any]]] = {
    "ordered": lambda _: {"batch_size": BATCH},
    "shuffle": lambda _: {"batch_size": BATCH, "shuffle": True, "generator": seeded(3)},
    "drop_last": lambda _: {"batch_size": BATCH, "drop_last": True},
    "weighted": lambda count: {"batch_size": BATCH, "sampler": _weighted(count)},
    "epoch": lambda count: {"batch_size": BATCH, "sampler": storeds.EpochSampler(count, seed=4)},
    "batch_sampler": lambda count: {"batch_sampler": BatchSampler(SequentialSampler(range(count)), BATCH, True)},
    "bulk": lambda count: {"batch_size": None, "sampler": BatchSampler(_weighted(count), BATCH, False)},
    "single": lambda _: {"batch_size": None},
}

_ROWS = [5, 3, 3, 20, 7, -1, 0, 23, 9, 14, 2, 2, 17, 11]
_OF_THESE = [12, 0, 4, 4, 1, 8, 10, 5, -1]

# Name → what is made of a dataset or, all the same, of the plain list of its samples.
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda data: data,
    "nested": lambda data: Subset(Subset(data, _ROWS), _OF_THESE),
    "split": lambda data: random_split(data, [0.3, 0.7], generator=seeded(2))[1],
    "joined": lambda data: ConcatDataset([Subset(data, _ROWS), data]),
    "stacked": lambda data: StackDataset(first=data, second=data),
}

COLLATES = ("pytorch's", "storeds'", "custom")

# Name → further arguments; only the first two mean anything without workers.
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "pinned": {"pin_memory": True},
    "tuned": {"prefetch_factor": 3, "timeout": 60},
    "persistent": {"persistent_workers": True},
    "unordered": {"in_order": False},
}

STARTS = ("in-process", "fork", "forkserver", "spawn")  # the cheap ones first
WORKERS = (0, 1, 2)
ENGINES = ("memory", "lmdb", "hdf5", "mongodb")


class Case(NamedTuple):
    """One way to use a DataLoader: a value of each table above."""

    start: str
    workers: int
    engine: str
    indices: str
    wrapper: str
    collate: str
    option: str

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def is_possible(self) -> bool:
        if (self.start == "in-process") != (self.workers == 0):
            return False
        if self.engine == "memory" and self.start not in ("in-process", "fork"):
            return False  # its stores are the process's own
        if self.workers == 0 and self.option not in ("bare", "pinned"):
            return False  # DataLoader refuses these, or they mean nothing
        if self.indices == "bulk" and self.wrapper in ("joined", "stacked"):
            return False  # these of PyTorch's take no list of indices, or give no list of samples
        return not (self.indices == "single" and self.collate == "storeds'")  # a sample is no batch

    @property
    def decode(self) -> str:
        return "pil" if self.collate == "custom" else "tensor"

    def arguments(self, count: int) -> dict[str, Any]:
        """Return the arguments of the DataLoader."""
        collate_fn = {"pytorch's": None, "storeds'": storeds.collate, "custom": plain}[self.collate]
        given = {**INDICES[self.indices](count), **OPTIONS[self.option], "collate_fn": collate_fn}
        if not self.workers:
            return given
        context = multiprocessing.get_context(self.start) if self.option == "tuned" else self.start
        return {**given, "num_workers": self.workers, "multiprocessing_context": context}

    def orders(self, count: int) -> list[list[Any]]:
        """Return for each epoch what the dataset is asked for: indices, or lists of them."""
        loader = DataLoader[int](range(count), **INDICES[self.indices](count))  # type: ignore[arg-type]
        iter(loader)  # draws the workers' seed, once: persistent workers keep theirs
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        return [list(sampler) for _ in range(2 if self.option == "persistent" else 1)]

    def expected(self, truth: Sequence[Any], asked: Any) -> Any:
        """Return what the loader gives for what was asked for, made from a plain list."""
        found = [truth[index] for index in asked] if isinstance(asked, list) else truth[asked]
        if self.collate == "custom":
            return plain(found)
        if self.collate == "pytorch's" and self.indices in ("bulk", "single"):
            return default_convert(found)  # type: ignore[no-untyped-call]
        return default_collate(found)

    def calls(self, asked: Any) -> list[int]:
        """Return the sizes of the storage calls for what was asked for: one call, where PyTorch allows it."""
        size = len(asked) if isinstance(asked, list) else 1
        if self.wrapper == "joined":
            return [1] * size  # PyTorch's ConcatDataset has no __getitems__: it asks for one sample after another
        return [size, size] if self.wrapper == "stacked" else [size]  # there, one for each of the two datasets


def all_cases() -> list[Case]:
    """Return every possible case, the cheap ones first."""
    tables = (STARTS, WORKERS, ENGINES, INDICES, WRAPPERS, COLLATES, OPTIONS)
    return [case for values in itertools.product(*tables) if (case := Case(*values)).is_possible]


def product_of_modes(cases: Sequence[Case]) -> list[Case]:
    """Return modes × workers × start methods × engines: a mode is one of the other values, the rest being the first."""
    plainest = [next(iter(table)) for table in (INDICES, WRAPPERS, COLLATES, OPTIONS)]
    return [case for case in cases if sum(map(operator.ne, case[3:], plainest)) <= 1]


def pairwise(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return which rows to take so that every two values that stand together in some row do so in one that is taken."""
    bits: dict[Any, int] = {}
    masks = []
    for row in rows:
        pairs = itertools.combinations(enumerate(row), 2)
        masks.append(sum(1 << bits.setdefault(pair, len(bits)) for pair in pairs))
    missing, taken = (1 << len(bits)) - 1, []
    while missing:
        covered = [(mask & missing).bit_count() for mask in masks]
        taken.append(covered.index(max(covered)))
        missing &= ~masks[taken[-1]]
    return sorted(taken)


class Counted:
    """A backend that notes the size of each storage call where this process and its workers see it."""

    def __init__(self, backend: storeds.Backend) -> None:
        self.backend = backend
        # A row for each process, which nobody else writes to: how many calls, and their sizes.
        self._calls = torch.zeros((1 + max(WORKERS), 512), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def url(self) -> str:
        return self.backend.url

    @property
    def meta(self) -> storeds.Meta:
        return self.backend.meta

    def __len__(self) -> int:
        return len(self.backend)

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Any]:
        worker = get_worker_info()
        row = self._calls[0 if worker is None else 1 + worker.id]
        row[0] += 1
        row[row[0]] = len(positions)
        return self.backend.get_many(positions, fields)

    def take_calls(self) -> list[int]:
        """Return the sizes of all calls since this was last called, sorted."""
        sizes = [size for row in self._calls.tolist() for size in row[1 : 1 + row[0]]]
        self._calls.zero_()
        return sorted(sizes)

    def close(self) -> None:
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plain(value: Any) -> Any:
    """Return a batch, or a collated one, with pixels replaced by their hash, so that ``==`` compares it."""
    if isinstance(value, Image.Image):
        return value.mode, value.size, xxhash.xxh3_64_hexdigest(value.tobytes())
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), xxhash.xxh3_64_hexdigest(value.numpy().tobytes())
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


def mark(began: torch.Tensor, worker: int) -> None:
    """Stand for a worker_init_fn: note that this worker called it."""
    began[worker] += 1


def jitter(image: torch.Tensor) -> torch.Tensor:
    """Stand for a foreign transform: draws from all three global generators."""
    return image * torch.rand(()) + float(np.random.rand()) + random.random()


class TwoArgumentsError(Exception):
    """Cannot be made from one string, as PyTorch wants to."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(code, place)


def raise_awkwardly(number: int) -> Iterator[Any]:
    """Stand for a target_transform: raises, for each label, another exception that others trip over."""
    errors = (ZeroDivisionError("no such colour"), StopIteration(3), KeyError("size"), TwoArgumentsError(7, "lens"))
    raise errors[number % 4]
