"""Train as several ranks: log every batch, save checkpoints, and die at a given step.

As a script, ``python _distributed.py RUNS.json`` forks the ranks of one `Run` after another, so that they share the import of
torch, and prints their exit codes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
import xxhash

import storeds

__all__ = ["Job", "Run", "Step", "pairs", "read_log", "read_state", "runs_to_json"]

Pair = tuple[int, str]
"""A sample's index, and the hash of its image, augmented as it is."""


@dataclass(frozen=True)
class Job:
    """What the ranks do: train with `config` until `epochs` are over, from a checkpoint on if there is one.

    Rank 1 dies at step `dies_at`: before that step is taken by all, or after it kept its checkpoint of it.
    """

    name: str
    config: dict[str, Any]
    epochs: int = 1
    resume: str | None = None
    dies_at: int | None = None
    dies_before_it: bool = True


class Step(NamedTuple):
    """What one rank was given in one step."""

    epoch: int
    step: int
    given: list[Pair]


@dataclass(frozen=True)
class Run:
    """Jobs that `world` ranks do one after another; their files are in `folder`."""

    world: int
    folder: str
    jobs: list[Job]


def runs_to_json(runs: list[Run]) -> str:
    return json.dumps([asdict(each) for each in runs])


def pairs(batch: list[torch.Tensor]) -> list[Pair]:
    """Return what identifies each sample of a batch of images, labels and indices."""
    images, _, indices = batch
    return [
        (int(index), xxhash.xxh3_64_hexdigest(image.numpy().tobytes()))
        for image, index in zip(images, indices, strict=True)
    ]


def read_log(folder: Path, name: str, rank: int) -> list[Step]:
    lines = (folder / f"{name}-{rank}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [Step(epoch, step, [(index, digest) for index, digest in given]) for epoch, step, given in found]


def read_state(folder: Path, name: str, rank: int) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / f"{name}-{rank}.state").read_text())
    return state


def run(job: Job, folder: Path) -> None:
    rank = torch.distributed.get_rank()
    loader = storeds.build_loader(storeds.load_config(job.config))
    if job.resume is not None:
        loader.load_state_dict(json.loads(Path(job.resume).read_text())["loader"])
    step = 0
    with (folder / f"{job.name}-{rank}.log").open("w") as log:
        for epoch in range(loader.sampler.epoch, job.epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                step += 1
                log.write(json.dumps(Step(epoch, step, pairs(batch))) + "\n")
                log.flush()
                dies = rank == 1 and step == job.dies_at
                if dies and job.dies_before_it:
                    os.kill(os.getpid(), signal.SIGKILL)
                take_together(step)
                keep(folder / f"{job.name}-{rank}.state", {"loader": loader.state_dict(), "step": step})
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
    take_together(-1)


def take_together(step: int) -> None:
    """Stand for the optimizer's step: waits for all ranks, and fails unless they take the same one."""
    total = torch.tensor([float(step)])
    torch.distributed.all_reduce(total)
    if total.item() != step * torch.distributed.get_world_size():
        raise RuntimeError(f"at step {step} here, another rank is elsewhere")


def keep(file: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text(json.dumps(state))
    fresh.replace(file)


def run_rank(rank: int, world: int, folder: Path, jobs: list[Job]) -> None:
    meeting = f"file://{folder}/{jobs[0].name}.ranks"
    torch.distributed.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    for job in jobs:
        run(job, folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    for given in json.loads(Path(sys.argv[1]).read_text()):
        folder, jobs = Path(given["folder"]), [Job(**job) for job in given["jobs"]]
        start, world = multiprocessing.get_context("fork").Process, given["world"]
        ranks = [start(target=run_rank, args=(rank, world, folder, jobs)) for rank in range(world)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        print(json.dumps([each.exitcode for each in ranks]))
