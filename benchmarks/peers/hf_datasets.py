"""Hugging Face datasets: memory-mapped Arrow, whole batches read at once."""

from __future__ import annotations

from typing import Any

import datasets
from benchmarks.peers._job import Epoch, Job
from benchmarks.peers._torchvision import ToImage, loader
from benchmarks.photos import listed


def prepare(job: Job) -> None:
    paths = listed(job.photos)
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in paths],
        "number": list(range(len(paths))),
    }
    features = datasets.Features({"image": datasets.Image(decode=False), "number": datasets.Value("int64")})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(job.work / "arrow"))


class Transform:
    """Turns the columns of a batch into samples."""

    def __init__(self) -> None:
        self._to_image = ToImage()

    def __call__(self, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**columns, "image": [self._to_image(image["bytes"]) for image in columns["image"]]}


def epochs(job: Job) -> Epoch:
    dataset = datasets.load_from_disk(str(job.work / "arrow"))
    dataset.set_transform(Transform())
    batches = loader(dataset, job.batch, job.workers, shuffle=True)
    return lambda: ((batch["image"], batch["number"]) for batch in batches)
