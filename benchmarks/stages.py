"""Where the processor time of one float32 image goes, from its record to the training loop.

Run as ``python -m benchmarks.stages``. Two workers of a `StoreLoader` crop photographs to 224 pixels, flip and normalise
them. Each stage that touches pixels or bytes is also measured alone, on the same photographs and windows. The rest is
Python, messages between processes, and memory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch

import storeds
from benchmarks._common import Result, Spread, parser, report
from benchmarks.photos import listed, make_photos
from storeds import StoreDataset, StoreLoader
from storeds.jpeg import JpegCutter, read_header
from storeds.protocols import Cropped
from storeds.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

_BATCH, _SIZE, _REST = 64, 224, 120.0
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write_store(photos: Sequence[Path], url: str, interval: str) -> None:
    """Write the photographs, with restart markers if there is an interval."""
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        for number, path in enumerate(photos):
            blob = path.read_bytes()
            if interval:
                command = ["jpegtran", "-copy", "all", "-optimize", "-restart", interval]
                blob = subprocess.run(command, input=blob, capture_output=True, check=True).stdout
            writer.append([{"image": blob, "label": number}])


def nanoseconds_of(pid: int) -> int:
    """Return the processor time that the threads of a process have used."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


def of_loader(url: str, transform: Any) -> Callable[[], float]:
    """Return a function that reads an epoch, and returns microseconds of processor time for each image."""
    dataset = StoreDataset(url, transform=transform, decode="tensor", seed=0)
    loader = StoreLoader(
        dataset, batch_size=_BATCH, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )

    def epoch() -> float:
        batches, before = iter(loader), 0
        next(batches)
        pids: list[int] = []
        count = 0
        for number, (images, _) in enumerate(batches):
            if number == 0:
                pids = [os.getpid(), *(int(each) for each in _children())]
                before = sum(map(nanoseconds_of, pids))
                count = 0
            else:
                count += len(images)
        return (sum(map(nanoseconds_of, pids)) - before) / 1e3 / count

    return epoch


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


class Stopwatch:
    """Adds the time since the last call to a stage, in microseconds."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._last = time.perf_counter_ns()

    def start(self) -> None:
        self._last = time.perf_counter_ns()

    def stop(self, stage: str) -> None:
        now = time.perf_counter_ns()
        self.times[stage] = self.times.get(stage, 0.0) + (now - self._last) / 1e3
        self._last = now


def of_stages(url: str) -> dict[str, float]:
    """Return microseconds for each image, by stage. Each image goes through all stages in turn, as in a worker."""
    crop, flip = RandomResizedCrop(_SIZE), RandomHorizontalFlip()
    scaled = Compose([ToTensor(), Normalize(_MEAN, _STD)])
    out, count, watch = torch.empty(_BATCH, 3, _SIZE, _SIZE), 0, Stopwatch()
    with storeds.open_backend(url) as backend:
        indices = np.random.default_rng(0).permutation(len(backend)).tolist()
        for first in range(0, len(indices) - _BATCH + 1, _BATCH):
            watch.start()
            records = backend.get_many(indices[first : first + _BATCH])
            watch.stop("read the records")
            images = []
            for at, record in enumerate(records):
                generator = torch.Generator().manual_seed(first + at)
                watch.start()
                blob = record["image"]  # type: ignore[index]  # no record of this store is damaged
                header = read_header(blob)
                assert header is not None
                top, left, rows, columns = crop.window(header.height, header.width, generator)
                watch.stop("read the header, draw the window")
                part = JpegCutter(blob, header).part(top, left, top + rows, left + columns)
                watch.stop("cut the JPEG")
                blob, part_top, part_left = (blob, 0, 0) if part is None else (part.blob, part.top, part.left)
                pixels = np.empty(
                    (header.height, header.width, 3) if part is None else (part.height, part.width, 3), np.uint8
                )
                with contextlib.suppress(ValueError):  # the expected warning about the rest of the data
                    simplejpeg.decode_jpeg(blob, buffer=pixels, strict=True)
                watch.stop("decode")
                top, left = top - part_top, left - part_left
                image = torch.from_numpy(pixels).permute(2, 0, 1)[:, top : top + rows, left : left + columns]
                image = crop(Cropped((image,)))
                watch.stop("resize")
                images.append(flip(image, generator))
                watch.stop("flip")
            watch.start()
            for at, image in enumerate(images):
                deferred = scaled.but_last(image, None)
                deferred.scale_into(image, out[at])
            watch.stop("scale into the batch")
            count += len(images)
    return {stage: spent / count for stage, spent in watch.times.items()}


def main() -> int:
    options = parser(__doc__ or "", "stages.json")
    options.add_argument("--photos", type=int, default=2000)
    options.add_argument("--interval", default="2B", help="restart interval for jpegtran; empty for none")
    given = options.parse_args()
    torch.set_num_threads(1)
    steps = [
        {"name": "RandomResizedCrop", "size": _SIZE},
        "RandomHorizontalFlip",
        "ToTensor",
        {"name": "Normalize", "mean": _MEAN, "std": _STD},
    ]
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        known = make_photos(Path(folder), given.photos)
        url = f"{folder}/photos.lmdb"
        write_store(listed(Path(folder) / "photos"), url, given.interval)
        epoch = of_loader(url, steps)
        epoch()
        rounds = [(of_stages(url), epoch()) for _ in range(given.rounds)]
    results = [Result(name, "µs", Spread.of([stages[name] for stages, _ in rounds]), "", True) for name in rounds[0][0]]
    totals, rests = [total for _, total in rounds], [total - sum(stages.values()) for stages, total in rounds]
    results.append(Result("all of StoreLoader, 2 workers", "µs", Spread.of(totals), "", True))
    rest = Spread.of(rests)
    results.append(Result("the rest", "µs", rest, f"≤ {_REST:g}", rest.median <= _REST))
    setup = {**known, "rounds": given.rounds, "interval": given.interval, "batch": _BATCH, "transform": steps}
    met = report("Processor time of one float32 image, by stage", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
