"""LitData: chunks of 64 MB that `optimize` wrote."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from benchmarks.peers._job import Epoch, Job
from benchmarks.peers._torchvision import ToImage
from benchmarks.photos import listed

import litdata  # isort: skip  # after the module that makes torchvision importable


def record(path: str, numbers: dict[str, int]) -> dict[str, Any]:
    return {"image": Path(path).read_bytes(), "number": numbers[path]}


def prepare(job: Job) -> None:
    numbers = {str(path): number for number, path in enumerate(listed(job.photos))}
    litdata.optimize(
        fn=functools.partial(record, numbers=numbers),
        inputs=list(numbers),
        output_dir=str(job.work / "chunks"),
        chunk_bytes="64MB",
        num_workers=1,
    )


class Photos(litdata.StreamingDataset):  # type: ignore[misc]  # litdata has no types
    """Decodes and transforms what the library reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), shuffle=True, drop_last=False)
        self._to_image = ToImage()

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        item = super().__getitem__(index)
        return self._to_image(item["image"]), item["number"]


def epochs(job: Job) -> Epoch:
    batches = litdata.StreamingDataLoader(
        Photos(job.work / "chunks"),
        batch_size=job.batch,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )
    return lambda: batches
