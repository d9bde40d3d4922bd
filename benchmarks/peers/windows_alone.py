"""Decoding alone: the windows of one epoch, out of JPEGs with restart markers that lie in memory, on so many threads.

Before the clock runs, a dataset of storeds draws the windows that seed 0 gives in the first epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from benchmarks.peers import stores
from benchmarks.peers._job import SIZE, Epoch, Job
from storeds import StoreDataset
from storeds.jpeg.header import Header, read_header
from storeds.protocols import CropRequest
from storeds.readers.decoders import decode_tensor, decode_windows
from storeds.transforms import RandomResizedCrop

PACKAGES = stores.PACKAGES
SETTINGS = "decode_windows of RandomResizedCrop(224), exact, not resized, a pool of threads; no checksums, no batches"
prepare = stores.prepare


class Drawn(NamedTuple):
    """A JPEG and the windows to decode."""

    blob: bytes
    header: Header
    crops: tuple[CropRequest, ...]


class Draw:
    """A transform that draws the windows of a JPEG as RandomResizedCrop does, and decodes nothing."""

    def __call__(self, blob: bytes, generator: Any) -> Drawn:
        header = read_header(blob)
        assert header is not None
        return Drawn(blob, header, tuple(RandomResizedCrop(SIZE).crops(header.height, header.width, generator)))


_KEPT = 8  # every so many rows and columns, for the checks


def decoded(drawn: Drawn) -> Any:
    """Return the pixels of the first window, of shape (height, width, channels)."""
    images = decode_windows(decode_tensor, drawn.blob, "RGB", drawn.header, drawn.crops)
    if images is None:
        top, left, height, width = drawn.crops[0].window
        whole = decode_tensor(drawn.blob, "RGB", strided=True)
        return whole[:, top : top + height, left : left + width].permute(1, 2, 0).numpy()
    return images[0].permute(1, 2, 0).numpy()


def epochs(job: Job) -> Epoch:
    dataset = StoreDataset(
        stores.url(job), fields=["image", "index"], decode="bytes", transform={"image": Draw()}, seed=0
    )
    samples = [dataset[at] for at in range(len(dataset))]
    dataset.close()
    parts = [samples[at : at + job.batch] for at in range(0, len(samples), job.batch)]
    pool = ThreadPoolExecutor(job.options["threads"])

    def batch(part: list[Any]) -> tuple[list[Any], list[int]]:
        # The memory of a window is free for the next one, as in a loader, which resizes each at once.
        return [decoded(drawn)[::_KEPT, ::_KEPT].copy() for drawn, _ in part], [int(number) for _, number in part]

    def epoch() -> Iterable[tuple[Any, Any]]:
        return pool.map(batch, parts)

    return epoch
