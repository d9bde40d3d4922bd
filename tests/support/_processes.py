"""Functions that the process tests run in other processes. Spawned processes can import this module.

As a script, ``python _processes.py START_METHOD URL…`` reads all stores through one loader, prints a digest of each of two
epochs, and leaves everything open when the interpreter exits.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import pytest
import xxhash
from torch.utils.data import ConcatDataset, DataLoader, Dataset, get_worker_info

from storeds import StoreDataset

__all__ = [
    "KilledReader",
    "Row",
    "digest",
    "end_workers",
    "loader",
    "open_rows",
    "refuse_squares",
    "row",
    "rows",
]

Row = tuple[int, str, int]
"""Index, hash of the image's bytes, and label of a sample."""


def row(sample: tuple[bytes, int, int]) -> Row:
    """Return the row of a sample with the fields image, label and index."""
    image, label, index = sample
    return index, xxhash.xxh3_128_hexdigest(image), label


def rows(samples: Iterable[tuple[bytes, int, int]]) -> tuple[int, list[Row]]:
    """Collate samples to the process that read them and their rows."""
    return os.getpid(), [row(sample) for sample in samples]


def open_rows(url: str, kind: type[StoreDataset] = StoreDataset, **arguments: Any) -> StoreDataset:
    """Open a store for samples that `row` takes."""
    return kind(url, fields=("image", "label", "index"), decode="bytes", **arguments)


def end_workers(raised: pytest.ExceptionInfo[BaseException]) -> None:
    """End the workers of a plain DataLoader whose error this is; left to the garbage collector, each takes 5 seconds."""
    traceback.clear_frames(raised.tb)


def loader(dataset: Dataset[Any], start_method: str, **arguments: Any) -> DataLoader[Any]:
    """Return a shuffling loader with two workers."""
    given = {"batch_size": 4, "shuffle": True, "num_workers": 2, "collate_fn": rows}
    return DataLoader(dataset, multiprocessing_context=start_method, **{**given, **arguments})


def refuse_squares(image: Any) -> Any:
    """Stand for a transform that fails on some samples."""
    if image.width == image.height:
        raise ValueError(f"cannot take {image.width} × {image.height}")
    return image


class KilledReader(StoreDataset):
    """A store whose last sample kills the worker process that reads it, and no other process.

    It dies in the middle of its work: one that is killed between two batches may hold a lock that torch's own shutdown
    then waits for, for ever.
    """

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        wanted = list(indices)
        samples = super().__getitems__(wanted)
        if len(self) - 1 in wanted and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return samples


def digest(found: Iterable[Row]) -> str:
    """Return one hash of rows, whatever their order."""
    return xxhash.xxh3_128_hexdigest(repr(sorted(found)).encode())


if __name__ == "__main__":
    datasets = [open_rows(url) for url in sys.argv[2:]]
    used = [dataset[0] for dataset in datasets]
    batches = loader(ConcatDataset[Any](datasets), sys.argv[1], batch_size=16, persistent_workers=True)
    for _ in range(2):
        sys.stdout.write(digest(each for _, batch in batches for each in batch) + "\n")
