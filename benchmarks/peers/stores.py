"""storeds itself: an engine, a decoder and a way of delivering batches, each by name."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers._job import MEAN, SIZE, STD, Epoch, Job
from storeds import build_dataset, build_loader, load_config, open_backend, pack
from storeds.errors import StoreNotFoundError

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


def epochs(job: Job) -> Epoch:
    loader = job.options["loader"]
    config = load_config(
        {
            "dataset": {
                "url": url(job),
                "fields": ["image", "index"],
                "transform": _CROP if job.options["output"] == "uint8" else _CROP + _FLOAT,
                "seed": 0,
                "decode": job.options["decode"],
            },
            "loader": {
                "batch_size": job.batch,
                "num_workers": job.workers,
                "persistent_workers": loader != "ThreadLoader",
                "shuffle": True,
                "start_method": "thread" if loader == "ThreadLoader" else None,
            },
        }
    )
    if loader != "DataLoader":
        batches: DataLoader[Any] = build_loader(config)
    else:  # torch's own, with its own sampler and collate function
        batches = DataLoader(
            build_dataset(config), job.batch, shuffle=True, num_workers=job.workers, persistent_workers=True
        )
    return lambda: batches
