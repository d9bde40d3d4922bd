"""Make batches of a custom type, pin them for the GPU, and set up workers with a function."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import ChainDataset, ConcatDataset, DataLoader, Subset, get_worker_info

import storeds

COUNT = 30


@dataclass
class Batch:
    """Rows and their targets; PyTorch pins it by calling `pin_memory`."""

    rows: torch.Tensor
    targets: torch.Tensor

    def pin_memory(self) -> Batch:
        return Batch(self.rows.pin_memory(), self.targets.pin_memory())


def make_batch(samples: list[Any]) -> Batch:
    rows, targets = storeds.collate(samples)
    return Batch(rows, targets)


class Jitter:
    """Adds noise from the sample's own generator, so that no two workers draw the same."""

    def __call__(self, row: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        return row + torch.rand(row.shape, generator=generator)


def set_up(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == worker and isinstance(info.dataset, Subset)
    torch.set_num_threads(1)


def main(folder: str) -> None:
    url = f"hdf5://{folder}/rows.h5"
    with storeds.open_writer(url, {"x": {"kind": "array", "dtype": "float32", "shape": [4]}, "y": "int"}) as writer:
        writer.append({"x": np.full(4, n, "float32"), "y": n} for n in range(COUNT))

    def noisy() -> storeds.StoreDataset:
        return storeds.StoreDataset(url, reader="array", transform=Jitter(), seed=3)

    found = {}
    for workers in (0, 1, 2):
        loader = DataLoader(
            Subset(noisy(), range(0, COUNT, 2)),
            batch_size=4,
            num_workers=workers,
            collate_fn=make_batch,
            worker_init_fn=set_up if workers else None,
            prefetch_factor=3 if workers else None,
            pin_memory=torch.cuda.is_available(),
        )
        batches = list(loader)
        assert all(isinstance(batch, Batch) for batch in batches)
        assert torch.cat([batch.targets for batch in batches]).tolist() == list(range(0, COUNT, 2))
        found[workers] = torch.cat([batch.rows for batch in batches])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])

    both = ConcatDataset([noisy(), noisy()])
    assert len(both) == 2 * COUNT and int(both[COUNT + 3][1]) == 3

    # Streams are chained in a row; each worker has its part of both.
    streams = [storeds.StoreIterable(url, reader="array", fields=["y"]) for _ in range(2)]
    chained = DataLoader(ChainDataset(streams), batch_size=4, num_workers=2)
    assert sorted(y for (batch,) in chained for y in batch.tolist()) == sorted(2 * list(range(COUNT)))
    print("the same batches with 0, 1 and 2 workers")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
