"""The process of one entrant: prepares its store and checks an epoch, then times an epoch for every line that it reads.

It runs in the Python that has the library. The first line on its standard input is the job; every answer is one line of
JSON, on what was standard output: libraries print there, so that goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers._job import MEAN, SIZE, STD, Epoch, Job, Peer

_LEAST_CORRELATION = 0.7  # of a crop's mean with its photo's: a crop may be 8 % of the photo
_MOST_DIFFERENCE = 0.05  # of the mean of all crops and of all photos


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    output, module = request.pop("output"), request.pop("module")
    job = Job(**{**request, "photos": Path(request["photos"]), "work": Path(request["work"])})
    means = np.load(job.photos.parent / "means.npy")
    try:
        peer: Peer = importlib.import_module(f"benchmarks.peers.{module}")
        job.work.mkdir(parents=True)
        peer.prepare(job)
        epoch = peer.epochs(job)
        check(epoch, output, means)
        size = sum(path.stat().st_size for path in job.work.rglob("*") if path.is_file())
        print(json.dumps({"bytes_written": size}), file=answers, flush=True)
        for _ in sys.stdin:
            print(json.dumps({"seconds": timed(epoch, output, len(means))}), file=answers, flush=True)
    except Exception as error:  # whatever a library raises is reported, and the other peers run
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


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


def check(epoch: Epoch, output: str, means: Any) -> None:
    """Run one epoch and raise unless every photo came once, under its number, shuffled, cropped and normalised."""
    seen, found = [], []
    for images, numbers in epoch():
        check_shape(images, len(numbers), output)
        seen.append(np.array(numbers))
        found.append(channel_means(images, output))
    numbers, crops = np.concatenate(seen), np.concatenate(found)
    check_numbers(numbers, len(means))
    if np.array_equal(numbers, np.sort(numbers)):
        raise AssertionError("the photos came in order")
    for channel in range(3):
        ours, theirs = crops[:, channel], means[numbers, channel]
        correlation, difference = float(np.corrcoef(ours, theirs)[0, 1]), float(abs(ours.mean() - theirs.mean()))
        if correlation < _LEAST_CORRELATION or difference > _MOST_DIFFERENCE:
            raise AssertionError(
                f"channel {channel} is not that of the photos: correlation {correlation:.3f}, means {difference:.3f} apart"
            )


def check_shape(images: Any, count: int, output: str) -> None:
    if tuple(images.shape) != (count, 3, SIZE, SIZE) or str(images.dtype) != f"torch.{output}":
        raise AssertionError(f"a batch for {count} numbers is not one of {output} images")


def check_numbers(numbers: Any, count: int) -> None:
    if not np.array_equal(np.sort(numbers), np.arange(count)):
        raise AssertionError(
            f"{len(np.unique(numbers))} different photos came in {len(numbers)}, not {count} once each"
        )


def channel_means(images: Any, output: str) -> Any:
    means = images.double().mean((2, 3)).numpy()
    return means * STD + MEAN if output == "float32" else means / 255


if __name__ == "__main__":
    main()
