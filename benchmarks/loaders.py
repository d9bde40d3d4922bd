"""Compares an epoch of small arrays by every loader with a typical Dataset.

Run as ``python -m benchmarks.loaders``. The arrays lie in a contiguous HDF5 dataset that another tool could have written.
The Dataset of the other side opens the file in each worker when it first reads, and reads one item by h5py at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks._common import Result, Spread, compare, parser, report
from storeds import EpochSampler, StoreDataset, StoreLoader, ThreadLoader, collate

_SHAPES: dict[str, tuple[tuple[int, ...], str, int, int]] = {
    "rows of 128 float32": ((128,), "f4", 256, 60_000),
    "rows of 1,024 float32": ((1024,), "f4", 256, 30_000),
    "images of 64 × 64 × 3 bytes": ((64, 64, 3), "u1", 64, 10_000),
}


class Plain(Dataset[tuple[torch.Tensor, int]]):
    """The Dataset of many training scripts."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: Any = None
        with h5py.File(path) as file:
            self.count = len(file["data"])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            self.file = h5py.File(self.path)
        return torch.from_numpy(self.file["data"][index]), int(self.file["label"][index])


def loaders(path: str, batch: int, workers: int) -> dict[str, Any]:
    """Return a loader of each kind; all shuffle, and all but the threads keep their processes."""
    dataset: Any = StoreDataset(path, reader="array", fields=["data", "label"])
    kept: dict[str, Any] = {"num_workers": workers, "persistent_workers": True}
    sampler = EpochSampler(dataset, shuffle=True, seed=0)
    return {
        "h5py Dataset": DataLoader(Plain(path), batch, shuffle=True, **kept),
        "DataLoader": DataLoader(dataset, batch, shuffle=True, **kept),
        "StoreLoader": StoreLoader(dataset, batch_size=batch, sampler=sampler, collate_fn=collate, **kept),
        "ThreadLoader": ThreadLoader(dataset, batch_size=batch, shuffle=True, num_workers=workers),
    }


def epoch(loader: Any) -> Callable[[], int]:
    def run() -> int:
        return sum(int(labels.sum()) for _, labels in loader)

    return run


def check_same(ways: dict[str, Any], count: int) -> None:
    """Raise unless every loader gives every array once, with its label."""
    for name, loader in ways.items():
        labels = []
        for data, numbers in loader:
            if not bool((data.flatten(1)[:, 0] == numbers % 251).all()):
                raise AssertionError(f"{name} gives arrays that are not those of their labels")
            labels += numbers.tolist()
        if sorted(labels) != list(range(count)):
            raise AssertionError(f"{name} gives other labels")


def measure(what: str, work: Path, given: Any) -> Iterator[Result]:
    shape, dtype, batch, count = _SHAPES[what]
    path = work / f"{len(shape)}-{shape[0]}.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.broadcast_to((np.arange(count) % 251).reshape(-1, *[1] * len(shape)), (count, *shape)).astype(
            dtype
        )
        file["label"] = np.arange(count)
    ways = loaders(str(path), batch, given.workers)
    check_same(ways, count)

    def against(name: str, other: str, target: float | None) -> Result:
        ratio, mine, theirs = compare(epoch(ways[name]), epoch(ways[other]), rounds=given.rounds, seconds=0.0)
        rates = f"{_micro(mine, count)} against {_micro(theirs, count)} µs each"
        wanted = "" if target is None else f"≥ {target:g}"
        met = target is None or ratio.median >= target
        return Result(f"{what}, batches of {batch}: {name} ÷ {other}", "ratio", ratio, wanted, met, rates)

    for name in ("DataLoader", "StoreLoader", "ThreadLoader"):
        yield against(name, "h5py Dataset", 1.0)
    yield against("ThreadLoader", "StoreLoader", None)


def _micro(seconds: Spread, count: int) -> str:
    return f"{seconds.median / count * 1e6:.2f}"


def main() -> int:
    options = parser(__doc__ or "", "loaders.json")
    options.add_argument("--workers", type=int, default=2)
    given = options.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        for what in _SHAPES:
            results.extend(measure(what, Path(folder), given))
    setup = {
        "workers": given.workers,
        "order": "shuffled",
        "rounds": given.rounds,
        "page_cache": "warm: everything was written just before",
    }
    met = report("Batches of small arrays, by loader", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
