"""FFCV: one file, a compiled pipeline on threads.

FFCV takes pixels, so its JPEGs are encoded again, at the photos' quality and to about their size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from benchmarks.peers._job import MEAN, SIZE, STD, Epoch, Job
from benchmarks.photos import listed


class Photos:
    """The photos, decoded, by number."""

    def __init__(self, job: Job) -> None:
        self._paths = listed(job.photos)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        with Image.open(self._paths[number]) as image:
            return np.array(image), number


def prepare(job: Job) -> None:
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=job.quality), "number": IntField()}
    # One worker: with more, writer processes are started by fork, each with the dataset.
    DatasetWriter(str(job.work / "photos.beton"), fields, num_workers=1).from_indexed_dataset(Photos(job))


def epochs(job: Job) -> Epoch:
    scale = np.float32(255)
    image = [
        RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
        RandomHorizontalFlip(),
        NormalizeImage(np.array(MEAN) * scale, np.array(STD) * scale, np.float32),
        ToTensor(),
        ToTorchImage(),
    ]
    batches = Loader(
        str(job.work / "photos.beton"),
        batch_size=job.batch,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "number": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return lambda: batches
