"""MosaicML Streaming: MDS shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers._job import Epoch, Job
from benchmarks.peers._torchvision import ToImage
from benchmarks.photos import listed

import streaming  # isort: skip  # after the module that makes torchvision importable


def prepare(job: Job) -> None:
    with streaming.MDSWriter(out=str(job.work / "mds"), columns={"image": "bytes", "number": "int"}) as writer:
        for number, path in enumerate(listed(job.photos)):
            writer.write({"image": path.read_bytes(), "number": number})


class Photos(streaming.StreamingDataset):  # type: ignore[misc]  # streaming's imports have no types
    """Decodes and transforms what the library reads."""

    def __init__(self, folder: Path, batch: int) -> None:
        super().__init__(local=str(folder), shuffle=True, batch_size=batch, num_canonical_nodes=1)
        self._to_image = ToImage()

    def __getitem__(self, at: Any) -> tuple[Any, int]:
        item = super().__getitem__(at)
        return self._to_image(item["image"]), item["number"]


def epochs(job: Job) -> Epoch:
    batches = streaming.StreamingDataLoader(
        Photos(job.work / "mds", job.batch),
        batch_size=job.batch,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )
    return lambda: batches
