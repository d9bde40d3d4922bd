"""Shuffle without a seed as one rank: ``torchrun … _seedless_ranks.py URL FOLDER`` writes every batch to a file.

Ranks seed torch differently, as many programs do, and rank 0 looks at a batch of its own first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import storeds
from _jittered import jittered_dataset


def make_loaders(url: str) -> list[Any]:
    """Return loaders and streams; the generator of one is in the same state on each rank."""
    dataset = jittered_dataset(url, None)
    orders: list[dict[str, Any]] = [
        {"shuffle": True},
        {"samples_per_epoch": 12},
        {"shuffle": True, "generator": torch.Generator().manual_seed(4)},
    ]
    loaders = [storeds.StoreLoader(dataset, batch_size=3, **order) for order in orders]
    mixture = storeds.StoreMixture({"all": storeds.StoreDataset(url, reader="array")})
    streams = [storeds.StoreIterable(url, reader="array", shuffle=True), storeds.StoreIterable(mixture)]
    return [*loaders, *streams]


def numbers(samples: Any) -> list[int]:
    return [int(x) for (x,) in samples]


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    url, folder = sys.argv[1], Path(sys.argv[2])
    runs = []
    for _ in range(2):
        torch.manual_seed(100 + rank)
        if rank == 0:
            next(iter(make_loaders(url)[0]))
        *loaders, first, second = make_loaders(url)
        passes = [[[int(x) for (batch,) in loader for x in batch] for _ in range(3)] for loader in loaders]
        for stream in (first, second):
            streamed = []
            for epoch in range(3):
                stream.set_epoch(epoch)
                streamed.append(numbers(stream))
            passes.append(streamed)
        runs.append(passes)
    (folder / f"{rank}.json").write_text(json.dumps(runs))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
