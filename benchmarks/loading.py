"""Epochs of small arrays through loaders and workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks._common import Result, Run, entry, figure, ratio
from storeds import StoreDataset, StoreLoader, collate, convert

ROWS = 256  # of a batch


class Plain(Dataset[tuple[torch.Tensor, int]]):
    """The Dataset of a careful training script: opens the file once a worker, keeps its datasets, and reads an item.

    Scripts that look both datasets up by name for each item are several times slower.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self.data: Any = None
        self.labels: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.data is None:
            file = h5py.File(self.path)
            self.data, self.labels = file["data"], file["label"]
        return torch.from_numpy(self.data[index]), int(self.labels[index])


def check_epoch(name: str, loader: Any, count: int) -> None:
    """Raise unless a loader gives every array once, with its label."""
    labels: list[int] = []
    for data, numbers in loader:
        if not bool((data.flatten(1)[:, 0] == numbers % 251).all()):
            raise AssertionError(f"{name} gives arrays that are not those of their labels")
        labels += numbers.tolist()
    if sorted(labels) != list(range(count)):
        raise AssertionError(f"{name} gives other labels")


def epoch(loader: Any) -> Callable[[], int]:
    return lambda: sum(int(labels.sum()) for _, labels in loader)


def write_both(path: Path, native: str, shape: tuple[int, ...], dtype: str, count: int) -> None:
    """Write arrays that begin with their label modulo 251, as a contiguous HDF5 dataset and as a native store."""
    with h5py.File(path, "w") as file:
        numbers = (np.arange(count) % 251).reshape(-1, *[1] * len(shape))
        file["data"] = np.broadcast_to(numbers, (count, *shape)).astype(dtype)
        file["label"] = np.arange(count)
    convert(str(path), native)


def in_memory(path: Path) -> TensorDataset:
    with h5py.File(path) as file:
        return TensorDataset(torch.from_numpy(file["data"][:]), torch.from_numpy(file["label"][:]))


@entry(
    "loaders",
    "A shuffled epoch of small arrays of a contiguous HDF5 dataset, two workers: loaders, against an h5py Dataset",
)
def loaders(run: Run) -> Iterator[Result]:
    for shape, dtype, batch, full in (
        ((128,), "f4", 256, 60_000),
        ((1024,), "f4", 256, 30_000),
        ((64, 64, 3), "u1", 64, 10_000),
    ):
        count, path = run.count(full, 500), run.folder / f"{len(shape)}-{shape[0]}.h5"
        native = f"lmdb://{path}.lmdb"
        write_both(path, native, shape, dtype, count)
        dataset: Any = StoreDataset(path, reader="array", fields=["data", "label"])
        stored: Any = StoreDataset(native, reader="array", fields=["data", "label"])
        kept: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
        threads: dict[str, Any] = {"batch_size": batch, "shuffle": True, "num_workers": 2, "start_method": "thread"}
        ways: dict[str, Any] = {
            "h5py Dataset": DataLoader(Plain(path, count), batch, shuffle=True, **kept),
            "TensorDataset in memory": DataLoader(in_memory(path), batch, shuffle=True, **kept),
            "DataLoader": DataLoader(dataset, batch, shuffle=True, collate_fn=collate, **kept),
            "StoreLoader": StoreLoader(dataset, batch_size=batch, shuffle=True, **kept),
            "threads": StoreLoader(dataset, **threads),
            "StoreLoader, native LMDB": StoreLoader(stored, batch_size=batch, shuffle=True, **kept),
            "threads, native LMDB": StoreLoader(stored, **threads),
        }
        for name, loader in ways.items():
            check_epoch(name, loader, count)
        pairs = [
            ("DataLoader", "h5py Dataset", 1.0),
            ("StoreLoader", "h5py Dataset", 2.5),
            ("StoreLoader, native LMDB", "h5py Dataset", 2.0),
            ("StoreLoader", "TensorDataset in memory", None),
            ("threads", "StoreLoader", None),
            ("threads, native LMDB", "StoreLoader, native LMDB", None),
        ]
        for name, other, least in pairs:
            title = f"{' × '.join(map(str, shape))} {dtype}, batches of {batch}: {name} ÷ {other}"
            yield run.compare(title, epoch(ways[name]), epoch(ways[other]), least=least, count=count, seconds=0)


class Mapped(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of a memory map of NumPy, a batch at once: the fastest that a script can be, as it checks nothing."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.labels = path, torch.arange(count)
        self.data: Any = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.data is None:
            self.data = np.load(self.path, mmap_mode="r")
        at = np.sort(indices)
        return torch.from_numpy(self.data[at]), self.labels[at]

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


class InOneProcess:
    """Shuffled batches of `read(indices)`, without a loader."""

    def __init__(self, read: Callable[[Any], Any], count: int, batch: int) -> None:
        self.read, self.count, self.batch = read, count, batch

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(0).permutation(self.count)
        for start in range(0, self.count, self.batch):
            yield self.read(order[start : start + self.batch])


def unchanged(batch: Any) -> Any:
    return batch


def row_loaders(path: Path, count: int, workers: int) -> dict[str, Any]:
    """Return what gives shuffled batches of the rows in a file of h5py, and in the stores and the memory map beside it."""
    kept: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    mapped = Mapped(path.with_suffix(".npy"), count)
    ways: dict[str, Any] = {} if workers else {"memory map, a loop": InOneProcess(mapped.__getitems__, count, ROWS)}
    ways["memory map, DataLoader"] = DataLoader(mapped, ROWS, shuffle=True, collate_fn=unchanged, **kept)
    ways["TensorDataset, DataLoader"] = DataLoader(in_memory(path), ROWS, shuffle=True, **kept)
    stores = {
        "HDF5 of h5py": str(path),
        "native HDF5": f"hdf5://{path}.native.h5",
        "native LMDB": f"lmdb://{path}.lmdb",
    }
    for name, url in stores.items():
        dataset: Any = StoreDataset(url, reader="array", fields=["data", "label"])
        ways[f"{name}, StoreLoader"] = StoreLoader(dataset, batch_size=ROWS, shuffle=True, **kept)
    return ways


@entry(
    "rows",
    f"A shuffled epoch of rows of fixed size, batches of {ROWS}: stores beside memory maps and tensors in memory",
)
def rows(run: Run) -> Iterator[Result]:
    for shape, dtype, full in (((256,), "f4", 100_000), ((64, 64, 3), "u1", 20_000)):
        count, path = run.count(full, 600), run.folder / f"rows-{len(shape)}.h5"
        write_both(path, f"lmdb://{path}.lmdb", shape, dtype, count)
        convert(str(path), f"hdf5://{path}.native.h5")
        with h5py.File(path) as file:
            np.save(path.with_suffix(".npy"), file["data"][:])
        for workers in (0, 2):
            ways = row_loaders(path, count, workers)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for name, loader in ways.items():
                check_epoch(name, loader, count)
            for name, loader in list(ways.items()) * run.rounds:
                began = time.perf_counter()
                epoch(loader)()
                times[name].append((time.perf_counter() - began) / count * 1e6)
            title = f"{' × '.join(map(str, shape))} {dtype}, {workers} workers"
            for name, each in times.items():
                yield figure(f"{title}: {name}", "µs a row", each)
            # PyTorch's workers copy a batch twice on its way, so that there reading is not what limits them.
            pairs = ("TensorDataset, DataLoader", 1.2 if workers else 0.6), ("memory map, DataLoader", workers and 1.2)
            for name, (other, least) in itertools.product(
                ("native HDF5, StoreLoader", "native LMDB, StoreLoader"), pairs
            ):
                yield ratio(f"{title}: {name} ÷ {other}", times[other], times[name], least=least or None)


@entry(
    "blocks",
    "A shuffled epoch of a chunked, gzip'd HDF5 dataset in blocks of one chunk, against one that shuffles all rows",
)
def blocks(run: Run) -> Iterator[Result]:
    count, chunk, path = run.count(8192, 256), 64, run.folder / "chunked.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = rng.integers(0, 32, (count, 64, 64, 3), np.uint8)
        data[:, 0, 0, 0] = np.arange(count) % 251
        file.create_dataset("data", data=data, chunks=(chunk, 64, 64, 3), compression="gzip", compression_opts=1)
        file["label"] = np.arange(count)
    dataset: Any = StoreDataset(path, reader="array", fields=["data", "label"])
    kept: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    ways = {size: StoreLoader(dataset, block_size=size, **kept) for size in (1, chunk)}
    for size, loader in ways.items():
        check_epoch(f"block_size={size}", loader, count)
    title = f"block_size={chunk} ÷ block_size=1"
    yield run.compare(title, epoch(ways[chunk]), epoch(ways[1]), least=5.0, count=count, seconds=0)
