"""Measures a shuffled epoch of a very large store: workers' memory, size of the state, time to the first batch.

Run as ``python -m benchmarks.shuffling``. The store is simulated: a backend that makes each small record when it is read,
so that nothing but the library grows with the number of records. Every record of an epoch goes through the workers, and
each must come out once.
"""

from __future__ import annotations

import gc
import json
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from benchmarks._common import Result, Spread, parser, report
from storeds import EpochSampler, StoreDataset, collate
from storeds.backends.base import StoreBackend
from storeds.errors import RecordError
from storeds.loaders.loader import StoreLoader
from storeds.protocols import Array, Field, Meta, Record

GROWTH_MIB, STATE_BYTES, FIRST_SECONDS = 20, 1024, 2.0
LOOK_EVERY = 50  # batches
_MIB = 2**20


class Numbers(StoreBackend):
    """A store whose record at each position is that position."""

    def __init__(self, count: int) -> None:
        super().__init__("numbers://", Meta("0" * 32, "0" * 32, count, "storeds/1", {"x": Field("int")}))

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        return [{"x": position} for position in positions]

    def _column(self, name: str, field: Field) -> Array:
        return np.arange(len(self))

    def close(self) -> None:
        pass


class Nothing(Dataset[int]):
    """As many samples, all of them 0: what a loader of so many workers takes at the least."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return 0

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        return [0] * len(indices)


class NoteMemory:
    """Called in each worker as it starts: notes its process id and its private memory where the main process reads."""

    def __init__(self, workers: int) -> None:
        self.found = torch.zeros(workers, 2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]  # torch declares no type

    def __call__(self, worker: int) -> None:
        # A forked worker's first full collection copies what it inherited, whatever it loads: some 40 MiB of imports.
        gc.collect()
        self.found[worker] = torch.tensor([os.getpid(), private_bytes(os.getpid())])


def private_bytes(pid: int) -> int:
    """Return how much memory a process has for itself alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def make_loader(count: int, workers: int, batch: int, start_method: str, **arguments: Any) -> StoreLoader:
    dataset = StoreDataset(Numbers(count), reader="array", seed=0)
    return StoreLoader(
        dataset,
        sampler=EpochSampler(dataset),
        batch_size=batch,
        num_workers=workers,
        multiprocessing_context=start_method,
        collate_fn=collate,
        **arguments,
    )


def measure_epoch(count: int, workers: int, batch: int, start_method: str) -> tuple[Result, Result]:
    """Take a whole epoch through the workers, and look at their memory all the way."""
    note = NoteMemory(workers)
    loader = make_loader(count, workers, batch, start_method, worker_init_fn=note)
    times = np.zeros(count, dtype=np.uint8)
    grown, state, start = 0, 0, time.perf_counter()
    for at, (numbers,) in enumerate(loader):
        np.add.at(times, numbers.numpy(), 1)
        if at % LOOK_EVERY == 0:
            started = [(pid, before) for pid, before in note.found.tolist() if before]
            grown = max([grown, *(private_bytes(pid) - before for pid, before in started)])
            state = max(state, len(json.dumps(loader.state_dict())))
    seconds = time.perf_counter() - start
    assert (times == 1).all()
    assert loader.state_dict()["position"] == count
    before = ", ".join(f"{before / _MIB:.0f}" for _, before in note.found.tolist())
    return (
        Result(
            f"{start_method}: worst growth of a worker's private memory",
            "MiB",
            Spread.of([grown / _MIB]),
            f"< {GROWTH_MIB}",
            grown < GROWTH_MIB * _MIB,
            f"an epoch of {seconds:.0f} s; the workers started with {before} MiB",
        ),
        Result(
            f"{start_method}: largest state in JSON",
            "bytes",
            Spread.of([state]),
            f"< {STATE_BYTES}",
            state < STATE_BYTES,
        ),
    )


def first_batch(loader: DataLoader[Any]) -> float:
    """Return the seconds from asking for a loader's batches to having the first."""
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    return time.perf_counter() - start


def measure_first(count: int, workers: int, batch: int, start_method: str, rounds: int) -> Result:
    nothing = Nothing(count)
    bare: DataLoader[Any] = DataLoader(
        nothing,
        sampler=SequentialSampler(nothing),
        batch_size=batch,
        num_workers=workers,
        multiprocessing_context=start_method,
    )
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(first_batch(bare))
        ours.append(first_batch(make_loader(count, workers, batch, start_method)))
    beyond = Spread.of([mine - other for mine, other in zip(ours, theirs, strict=True)])
    return Result(
        f"{start_method}: first batch, beyond starting the processes",
        "s",
        beyond,
        f"< {FIRST_SECONDS}",
        beyond.median < FIRST_SECONDS,
        f"{Spread.of(ours)} s against {Spread.of(theirs)} s of a loader of zeros",
    )


def main() -> int:
    options = parser(__doc__ or "", "shuffling.json")
    options.add_argument("--records", type=int, default=10_000_000)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--batch", type=int, default=4096)
    options.add_argument("--start-methods", nargs="+", default=["fork", "spawn"])
    given = options.parse_args()
    warnings.filterwarnings(
        "ignore", "This DataLoader will create"
    )  # more workers than cores: as many as are asked for
    size = (given.records, given.workers, given.batch)
    results: list[Result] = []
    for start_method in given.start_methods:
        results += [measure_first(*size, start_method, given.rounds), *measure_epoch(*size, start_method)]
    setup = {
        "records": given.records,
        "record": "one integer, made when it is read",
        "workers": given.workers,
        "batch_size": given.batch,
        "rounds": given.rounds,
        "memory": f"Private_Clean + Private_Dirty of each worker every {LOOK_EVERY} batches, less that at its start, after a gc.collect()",
    }
    met = report(f"A shuffled epoch of {given.records:,} records", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
