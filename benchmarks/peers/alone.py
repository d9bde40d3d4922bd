"""Decoding alone, by threads, out of memory: whole photos, or the windows of the first epoch of *fast crops*."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import simplejpeg

from benchmarks.peers import stores
from benchmarks.peers._job import SIZE, Epoch, Job
from benchmarks.photos import listed
from storeds import StoreDataset
from storeds.jpeg.header import read_header
from storeds.readers.decoders import decode_tensor, decode_windows
from storeds.transforms import RandomResizedCrop


def prepare(job: Job) -> None:
    """Pack the photos with restart markers, if windows of these are decoded."""
    if stores.is_fast(job):
        stores.prepare(job)


class Draw:
    """A transform that draws the windows of a JPEG as RandomResizedCrop does, and decodes nothing."""

    def __call__(self, blob: bytes, generator: Any) -> Any:
        header = read_header(blob)
        assert header is not None
        return blob, header, tuple(RandomResizedCrop(SIZE).crops(header.height, header.width, generator))


def decode_window(drawn: Any) -> Any:
    """Return some of the pixels of the first window, for the checks, in an array (height, width, channels)."""
    blob, header, crops = drawn
    images = decode_windows(decode_tensor, blob, "RGB", header, crops)
    if images is None:
        top, left, height, width = crops[0].window
        image = decode_tensor(blob, "RGB", strided=True)[:, top : top + height, left : left + width]
    else:
        image = images[0]
    # The memory of a window is free for the next one, as in a loader, which resizes each at once.
    return image.permute(1, 2, 0).numpy()[::8, ::8].copy()


def epochs(job: Job) -> Epoch:
    samples: list[Any] = [path.read_bytes() for path in listed(job.photos)]
    numbers, decode = list(range(len(samples))), simplejpeg.decode_jpeg
    if stores.is_fast(job):
        fields = ["image", "index"]
        dataset = StoreDataset(stores.url(job), fields=fields, decode="bytes", transform={"image": Draw()}, seed=0)
        samples, decode = [dataset[at][0] for at in numbers], decode_window
        dataset.close()
    pool = ThreadPoolExecutor(job.options["threads"])
    parts = [numbers[at : at + job.batch] for at in range(0, len(numbers), job.batch)]

    def epoch() -> Iterable[tuple[Any, Any]]:
        return pool.map(lambda part: ([decode(samples[number]) for number in part], part), parts)

    return epoch
