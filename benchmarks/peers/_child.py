"""The process of one entrant: prepares its store, then runs a checked epoch for every line that it reads.

Started by the runner, in the Python that has the library. The first line on its standard input is the job; every answer
is one line of JSON, on what was standard output: libraries print there, so that goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers._job import MEAN, SIZE, STD, Epoch, Job, Peer

_LEAST_CORRELATION = 0.7  # of a crop's mean with its photo's: a crop may be 8 % of the photo
_MOST_DIFFERENCE = 0.05  # of the mean of all crops and of all photos

Means = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**request: Any) -> None:
        print(json.dumps(request), file=answers, flush=True)

    request = json.loads(sys.stdin.readline())
    output, module = request.pop("output"), request.pop("module")
    job = Job(**{**request, "photos": Path(request["photos"]), "work": Path(request["work"])})
    means = np.load(job.photos.parent / "means.npy")
    try:
        peer: Peer = importlib.import_module(f"benchmarks.peers.{module}")
    except (ImportError, OSError) as error:
        traceback.print_exc()
        answer(missing=f"{type(error).__name__}: {error}")
        return 0
    try:
        prepare(peer, job)
        epoch = peer.epochs(job)
        check(epoch, output, means)
        answer(settings=peer.SETTINGS, versions=versions(peer.PACKAGES), **decoder(job), **written(job.work))
        for _ in sys.stdin:
            answer(seconds=timed(epoch, output, len(means)))
    except Exception as error:  # whatever a library raises is reported, and the other peers run
        traceback.print_exc()
        answer(error=f"{type(error).__name__}: {error}")
    return 0


def prepare(peer: Peer, job: Job) -> None:
    done = job.work / "prepared"
    if not done.exists():
        job.work.mkdir(parents=True, exist_ok=True)
        peer.prepare(job)
        done.touch()


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in ("torch", "numpy", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def decoder(job: Job) -> dict[str, str]:
    """Return the decoder, if the entrant uses torchvision."""
    shared = sys.modules.get("benchmarks.peers._torchvision")
    return {"decoder": shared.decoder_name(job.decoder)} if shared else {}


def written(work: Path) -> dict[str, int]:
    """Return the size of the entrant's own files, if it has any."""
    size = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    return {"bytes_written": size} if size else {}


def timed(epoch: Epoch, output: str, count: int) -> float:
    """Run one epoch and return its seconds, from the request for the first batch to the arrival of the last."""
    seen = []
    start = time.perf_counter()
    for images, numbers in epoch():
        check_shape(images, len(numbers), output)
        seen.append(np.array(numbers))  # a copy, because FFCV uses its memory again
    seconds = time.perf_counter() - start
    check_numbers(np.concatenate(seen), count)
    return seconds


def check(epoch: Epoch, output: str, means: Means) -> None:
    """Run one epoch and raise unless every photo came once, under its number, shuffled, cropped and normalised."""
    seen, found = [], []
    for images, numbers in epoch():
        check_shape(images, len(numbers), output)
        seen.append(np.array(numbers))
        found.append(_MEANS[output](images))
    numbers, crops = np.concatenate(seen), np.concatenate(found)
    check_numbers(numbers, len(means))
    if output != "decoded" and np.array_equal(numbers, np.sort(numbers)):
        raise AssertionError("the photos came in order")
    for channel in range(3):
        ours, theirs = crops[:, channel], means[numbers, channel]
        correlation, difference = float(np.corrcoef(ours, theirs)[0, 1]), float(abs(ours.mean() - theirs.mean()))
        if correlation < _LEAST_CORRELATION or difference > _MOST_DIFFERENCE:
            raise AssertionError(
                f"channel {channel} is not that of the photos: correlation {correlation:.3f}, means {difference:.3f} apart"
            )


def check_shape(images: Any, count: int, output: str) -> None:
    if output == "decoded":
        if len(images) != count or any(image.dtype != np.uint8 or image.ndim != 3 for image in images):
            raise AssertionError(
                f"{len(images)} images for {count} numbers, or not all uint8 (height, width, channels)"
            )
    elif tuple(images.shape) != (count, 3, SIZE, SIZE) or str(images.dtype) != f"torch.{output}":
        raise AssertionError(f"a batch of {tuple(images.shape)} {images.dtype} for {count} numbers, not {output}")


def check_numbers(numbers: Means, count: int) -> None:
    if not np.array_equal(np.sort(numbers), np.arange(count)):
        raise AssertionError(
            f"{len(numbers)} photos came, {len(np.unique(numbers))} different ones, not {count} once each"
        )


_MEANS: dict[str, Callable[[Any], Means]] = {
    "float32": lambda images: images.double().mean((2, 3)).numpy() * STD + MEAN,
    "uint8": lambda images: images.double().mean((2, 3)).numpy() / 255,
    "decoded": lambda images: np.array([image.mean((0, 1)) / 255 for image in images]),
}


if __name__ == "__main__":
    raise SystemExit(main())
