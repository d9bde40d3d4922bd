"""Why a loader is slow: the stage of its batches that limits it, and what to change."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storeds._utils.file_systems import file_system_advice
from storeds.loaders.stats import LoaderStats

if TYPE_CHECKING:
    from storeds.datasets.batch import Work
    from storeds.datasets.map_dataset import StoreDataset

__all__ = ["explain"]

_LITTLE = 0.1  # of its time: a training loop that waits less is itself the limit


def explain(stats: LoaderStats, stores: Sequence[StoreDataset], workers: int) -> str:
    """Return one sentence about what limits a loader, and its evidence."""
    work, loop = stats.totals.work, stats.waiting + stats.training
    if not stats.waits:
        return "nothing limits yet: the training loop received fewer than two batches of a pass"
    share = stats.waiting / loop if loop else 0.0
    if share < _LITTLE:
        batch, wait = (1000 * spent / stats.waits for spent in (stats.training, stats.waiting))
        return (
            f"the training loop limits: it takes {batch:.1f} ms a batch and waits {wait:.1f} ms for the next, {share:.0%} of "
            "its time; faster loading gains no more than that"
        )
    busy = sum(work.seconds.values())
    stage = max(work.seconds, key=lambda name: work.seconds[name])
    steps = work.steps.get(stage)
    part = f", most of it in {max(steps, key=lambda name: steps[name])}" if steps else ""
    evidence = [f"the training loop waits {share:.0%} of its time"]
    if stage == "outside":
        evidence.append("storeds cannot see into that: profile it")
    if stage == "read":
        evidence += _about_reading(work, stats.totals.samples, stores)
    evidence.append(_about_workers(workers))
    what = "time outside storeds" if stage == "outside" else stage
    return f"{what} limits: {work.seconds[stage] / busy:.0%} of the time of workers{part}; {'; '.join(evidence)}"


def _about_workers(workers: int) -> str:
    cores = len(os.sched_getaffinity(0))
    if not workers:
        return f"num_workers=0 makes batches in the training loop: use up to {cores} workers, one for each core"
    if workers < cores:
        return f"num_workers={workers} keeps at most {workers} of {cores} cores busy: raise it"
    return f"num_workers={workers} for {cores} cores: more workers add little"


# --- Reading ---


def _about_reading(work: Work, samples: int, stores: Sequence[StoreDataset]) -> Iterator[str]:
    seconds, size = work.seconds["read"], work.bytes / max(samples, 1)
    yield f"{size / 1024:,.0f} KiB a sample, {work.bytes / 1e6 / max(seconds, 1e-9):,.0f} MB/s for a worker"
    if work.cold_bytes > work.bytes / 2:
        yield (
            f"{work.cold_bytes / 1e6:,.0f} MB came from a disk, not from the page cache: shuffle in blocks (block_size=), "
            "or make records smaller (storeds pack --max-side)"
        )
    for path in (path for store in stores for path in _files(store.backend.url)):
        yield from file_system_advice(str(path))
        yield from _about_chunks(path)


def _files(url: str) -> list[Path]:
    path = Path(url.partition("://")[2])  # the URL of an open store has no options
    return [path] if url.startswith(("lmdb://", "hdf5://")) and path.exists() else []


def _about_chunks(path: Path) -> Iterator[str]:
    """Yield a remark about compressed chunks of an HDF5 file from which a sample decompresses more than it uses."""
    if path.suffix not in (".h5", ".hdf5"):
        return
    import h5py

    worst = (4.0, 0, 0)  # ratio, bytes of a row, bytes that it decompresses

    def visit(_: str, each: Any) -> None:
        nonlocal worst
        if isinstance(each, h5py.Dataset) and each.chunks and each.compression and each.shape[0]:
            row = math.prod(each.shape[1:]) * each.dtype.itemsize
            spanned = math.prod(
                -(-size // part) * part for size, part in zip(each.shape[1:], each.chunks[1:], strict=True)
            )
            unpacked = each.chunks[0] * spanned * each.dtype.itemsize
            if row:
                worst = max(worst, (unpacked / row, row, unpacked))

    with suppress(OSError), h5py.File(path, "r") as file:
        file.visititems(visit)
    if worst[1]:
        yield (
            f"each sample of {worst[1] / 1024:,.0f} KiB decompresses {worst[2] / 1e6:,.1f} MB of {path.name}: rechunk it with "
            "`storeds convert`"
        )
