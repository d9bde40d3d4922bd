"""What decoding the window of a random crop costs, with restart markers and without. Needs ``jpegtran``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks._common import Result, Run, entry, figure, ratio
from benchmarks.packing import in_turn, timed, write_tree
from benchmarks.photos import jpegs
from storeds import pack
from storeds.pictures import JpegCutter, RestartMarker, read_header
from storeds.protocols import CropRequest
from storeds.readers import decode_tensor, decode_windows
from storeds.transforms import RandomResizedCrop

_SIZE, _GROUPS = 224, 10

Windows = list[tuple[int, CropRequest]]


def decode(blob: bytes, request: CropRequest) -> Any:
    """Decode a window as the reader does, or the whole picture where the window needs nearly all of it."""
    images = decode_windows(decode_tensor, blob, "RGB", _header(blob), [request])
    return decode_tensor(blob, "RGB", strided=True) if images is None else images


def cut(blob: bytes, request: CropRequest) -> Any:
    """Put the small JPEG together, without decoding it."""
    top, left, rows, columns = request.window
    return JpegCutter(blob, _header(blob)).part(top, left, top + rows, left + columns)


def _header(blob: bytes) -> Any:
    header = read_header(blob)
    assert header is not None
    return header


def microseconds(blobs: Sequence[bytes], chosen: Windows, step: Any) -> list[float]:
    times = []
    for number, request in chosen:
        start = time.perf_counter_ns()
        step(blobs[number], request)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def check_same(blobs: Sequence[bytes], marked: Sequence[bytes], chosen: Windows) -> None:
    """Raise unless markers change no pixel of the whole pictures."""
    for number, _ in chosen[: len(blobs)]:
        if not decode_tensor(blobs[number], "RGB").equal(decode_tensor(marked[number], "RGB")):
            raise AssertionError(f"markers change the pixels of photograph {number}")


@entry(
    "crops",
    "Decoding the windows of random crops out of photographs of 500 to 2,000 pixels, with restart markers or not",
)
def crops(run: Run) -> Iterator[Result]:
    marker, crop, generator = RestartMarker.find(), RandomResizedCrop(_SIZE), torch.Generator().manual_seed(0)
    for long, full, least, growth in ((500, 100, 0.95, 1.03), (1000, 40, 0.85, 1.03), (2000, 10, 0.75, 1.02)):
        blobs = jpegs(run.count(full, 4), long)
        marked = [marker.mark(blob, None).blob for blob in blobs]
        chosen: Windows = []
        for at in range(max(4 * len(blobs), _GROUPS)):
            header = _header(blobs[at % len(blobs)])
            chosen += [(at % len(blobs), each) for each in crop.crops(header.height, header.width, generator)]
        chosen = chosen[: len(chosen) // _GROUPS * _GROUPS]
        check_same(blobs, marked, chosen)
        passes: dict[str, list[list[float]]] = {"without": [], "with": [], "cut": []}
        for number in range(run.rounds):
            ways = [("without", blobs, decode), ("with", marked, decode), ("cut", marked, cut)]
            for name, source, step in ways if number % 2 else ways[::-1]:
                passes[name].append(microseconds(source, chosen, step))
        # Of each window the fastest pass, so that other work on the machine hardly matters; the spread is over groups.
        best = {name: np.min(times, axis=0).reshape(_GROUPS, -1).mean(axis=1) for name, times in passes.items()}
        yield figure(
            f"{long} px: time with markers ÷ without", "ratio", (best["with"] / best["without"]).tolist(), most=least
        )
        yield figure(f"{long} px: without markers", "µs a window", best["without"].tolist())
        yield figure(f"{long} px: with markers", "µs a window", best["with"].tolist())
        yield figure(f"{long} px: putting the small JPEG together", "µs a window", best["cut"].tolist())
        size = sum(map(len, marked)) / sum(map(len, blobs))
        yield figure(f"{long} px: size with markers ÷ without", "ratio", [size], most=growth)
        yield packing_cost(run, len(blobs), long)


def packing_cost(run: Run, count: int, long: int) -> Result:
    """Return the time of a pack that adds markers, divided by that of one that does not."""
    with run.subfolder() as folder:
        write_tree(folder / "photos", count, long)
        target = folder / "photos.lmdb"

        def spent(fast_crops: bool) -> float:
            return timed(lambda: pack(folder / "photos", f"lmdb://{target}", fast_crops=fast_crops), target)

        times = in_turn(run, {"with": lambda: spent(True), "without": lambda: spent(False)})
        return ratio(f"{long} px: packing with markers ÷ without", times["with"], times["without"])
