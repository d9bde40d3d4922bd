"""Plain files through torchvision's ImageFolder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers._job import Epoch, Job
from benchmarks.peers._torchvision import ToImage, loader

from torchvision.datasets import ImageFolder  # isort: skip  # after the module that makes it importable


class Numbered(ImageFolder):  # type: ignore[misc]  # torchvision has no types
    """Gives a photo's number as its label."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return super().__getitem__(index)[0], index


def prepare(job: Job) -> None:
    """There is nothing to write."""


def epochs(job: Job) -> Epoch:
    to_image = ToImage()
    dataset = Numbered(str(job.photos), loader=lambda path: to_image(Path(path).read_bytes()))
    batches = loader(dataset, job.batch, job.workers, shuffle=True)
    return lambda: batches
