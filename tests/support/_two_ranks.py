"""Load as one of two ranks: ``torchrun … _two_ranks.py URL FOLDER`` writes to a file what the loaders give.

Some are made before init_process_group. Later ones shuffle without a seed: ranks seed torch differently, as many programs
do, and rank 0 looks at a batch of its own first.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.utils.data import ConcatDataset, DataLoader

import storeds
from _jittered import jittered_dataset
from storeds.errors import ConfigError

FIELDS: dict[str, Any] = {"reader": "array", "fields": ["x"]}
COLLATE: dict[str, Any] = {"collate_fn": storeds.collate}


def make_loaders(url: str) -> dict[str, Any]:
    """Return name → a loader of batches, of which each epoch has every sample once."""

    def dataset(seed: int | None = None) -> storeds.StoreDataset:
        return storeds.StoreDataset(url, seed=seed, **FIELDS)

    def streamed(**workers: Any) -> DataLoader[Any]:
        stream = storeds.StoreIterable(dataset(), shuffle=True, read_batch=2)
        return DataLoader(stream, batch_size=3, collate_fn=storeds.collate, **workers)

    mixture = storeds.StoreMixture({"all": dataset()})
    config = {"dataset": {"url": url, **FIELDS}, "loader": {"batch_size": 3, "num_workers": 1, "balance": "x"}}
    return {
        "in order": storeds.StoreLoader(dataset(), batch_size=3),
        "seed": storeds.StoreLoader(dataset(3), batch_size=3, shuffle=True),
        "no seed": storeds.StoreLoader(dataset(), batch_size=3, shuffle=True),
        "begun": storeds.StoreLoader(dataset(), batch_size=3, shuffle=True),
        "pickled": pickle.loads(pickle.dumps(storeds.StoreLoader(dataset(), batch_size=3, shuffle=True))),
        "copied": copy.deepcopy(storeds.StoreLoader(dataset(), batch_size=3, shuffle=True)),
        "workers": storeds.StoreLoader(dataset(), batch_size=3, shuffle=True, num_workers=2),
        "threads": storeds.StoreLoader(dataset(), start_method="thread", batch_size=3, shuffle=True, num_workers=2),
        "joined": storeds.StoreLoader(ConcatDataset([dataset()]), batch_size=3, samples_per_epoch=12),
        "mixture": storeds.StoreLoader(mixture, batch_size=3),
        "config": storeds.build_loader(config),
        "sampler": DataLoader(dataset(), batch_size=3, sampler=storeds.EpochSampler(dataset()), **COLLATE),
        "buckets": storeds.StoreLoader(dataset(), batch_size=3, bucket_by="x", shuffle=True),
        "stream": streamed(),
        "spawned stream": streamed(num_workers=1, multiprocessing_context="spawn"),
    }


def one_pass(loader: Any, epoch: int) -> list[list[int]]:
    if isinstance(loader.dataset, storeds.StoreIterable):
        loader.dataset.set_epoch(epoch)
    return [x.tolist() for (x,) in loader]


def refusal(use: Callable[[], Any]) -> str:
    try:
        use()
    except ConfigError as error:
        return str(error)
    return ""


def make_seedless(url: str) -> list[Any]:
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


def seedless_run(url: str, rank: int) -> list[list[list[int]]]:
    """Return three epochs of each."""
    torch.manual_seed(100 + rank)
    if rank == 0:
        next(iter(make_seedless(url)[0]))
    runs = []
    for each in make_seedless(url):
        passes = []
        for epoch in range(3):
            if isinstance(each, storeds.StoreIterable):
                each.set_epoch(epoch)
                passes.append([int(x) for (x,) in each])
            else:
                passes.append([int(x) for (batch,) in each for x in batch])
        runs.append(passes)
    return runs


if __name__ == "__main__":
    url, folder = sys.argv[1], Path(sys.argv[2])
    loaders = make_loaders(url)
    dataset = storeds.StoreDataset(url, **FIELDS)
    three = storeds.EpochSampler(dataset, num_replicas=3, shuffle=False)
    interrupted = iter(storeds.StoreLoader(dataset, batch_size=3))
    unannounced = DataLoader(storeds.StoreIterable(dataset, shuffle=True), num_workers=1, batch_size=None)
    alone = storeds.StoreLoader(dataset, batch_size=3, sampler=storeds.EpochSampler(dataset, num_replicas=1, rank=0))
    next(interrupted)
    begun = loaders["begun"]
    next(iter(begun))  # its seed is this rank's own
    state = begun.state_dict()
    before = {name: len(loader) for name, loader in loaders.items()}

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    refused = {
        "num_replicas": refusal(lambda: list(three)),
        "interrupted": refusal(lambda: next(interrupted)),
        "unannounced": refusal(lambda: next(iter(unannounced))),
    }
    assert begun.state_dict() == state  # of a pass that this rank made alone
    found: dict[str, list[Any]] = {}
    for name, loader in loaders.items():
        length = len(loader)
        epochs = 1 if name == "spawned stream" else 2
        found[name] = [before[name], length, *(one_pass(loader, epoch) for epoch in range(epochs))]
    seedless = [seedless_run(url, rank) for _ in range(2)]
    given = {"loaders": found, "refused": refused, "alone": len(list(alone)), "seedless": seedless}
    (folder / f"{rank}.json").write_text(json.dumps(given))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # The loaders remember their part.
    assert len(list(loaders["in order"])) == len(found["in order"][2])
