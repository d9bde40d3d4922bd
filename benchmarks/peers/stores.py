"""storeds itself: an engine, a decoder and a way of delivering batches, each by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from benchmarks.peers._job import MEAN, SIZE, STD, Epoch, Job
from storeds import build_dataset, build_loader, load_config, open_backend, pack
from storeds.errors import StoreNotFoundError
from storeds.loaders.loader import StoreLoader

_CROP: list[dict[str, Any]] = [{"name": "RandomResizedCrop", "size": SIZE}, {"name": "RandomHorizontalFlip"}]
_FLOAT: list[dict[str, Any]] = [{"name": "ToTensor"}, {"name": "Normalize", "mean": MEAN, "std": STD, "inplace": True}]


def url(job: Job) -> str:
    engine, name = job.options["engine"], "crops" if is_fast(job) else "photos"
    if engine == "mongodb":
        return f"{job.mongodb}/bench/{name}"
    return f"{engine}://{job.work.parent}/{name}.{engine}"


def is_fast(job: Job) -> bool:
    """Return whether the photos are packed with restart markers."""
    return bool(job.options.get("fast_crops"))


def prepare(job: Job) -> None:
    """Pack the photos, once for all ways of one engine, and once more with restart markers."""
    try:
        open_backend(url(job)).close()
    except StoreNotFoundError:
        packed = pack(job.photos, url(job), kind="imagefolder", fast_crops=is_fast(job))
        if is_fast(job) and packed.fast_crops != packed.count:
            raise AssertionError(
                f"only {packed.fast_crops} of {packed.count} photos are ready for fast crops: {packed.restarts}"
            ) from None


def config(job: Job) -> Any:
    """Return the config of a training that wants these batches."""
    return load_config(
        {
            "dataset": {
                "url": url(job),
                "fields": ["image", "index"],
                "transform": _CROP if job.options["output"] == "uint8" else _CROP + _FLOAT,
                "seed": 0,
                "decode": job.options["decode"],
            },
            "loader": {"batch_size": job.batch, "num_workers": job.workers, "shuffle": True},
        }
    )


def in_turn(loader: StoreLoader) -> Epoch:
    """Return a function that begins the next epoch, with another order and other crops."""
    numbers = itertools.count()

    def epoch() -> StoreLoader:
        loader.set_epoch(next(numbers))
        return loader

    return epoch


def by_store_loader(job: Job) -> Epoch:
    return in_turn(build_loader(config(job)))


def by_thread_loader(job: Job) -> Epoch:
    from storeds.loaders.threaded import ThreadLoader

    dataset = build_dataset(config(job))
    return in_turn(ThreadLoader(dataset, batch_size=job.batch, shuffle=True, num_workers=job.workers))


def by_data_loader(job: Job) -> Epoch:
    """Use the stock DataLoader, with its own sampler and collate function."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        build_dataset(config(job)),
        batch_size=job.batch,
        shuffle=True,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )
    return lambda: loader


LOADERS: dict[str, Callable[[Job], Epoch]] = {
    "DataLoader": by_data_loader,
    "StoreLoader": by_store_loader,
    "ThreadLoader": by_thread_loader,
}


def epochs(job: Job) -> Epoch:
    return LOADERS[job.options["loader"]](job)
