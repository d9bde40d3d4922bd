"""Decoding the windows of random crops, out of photographs with and without restart markers.

Run as ``python -m benchmarks.crops``. The windows are those of `RandomResizedCrop`. Without markers, decoding stops below
the window. With markers, it decodes only the restart intervals that the window touches. A ratio below 1 means that the
markers save time. The spread is over ten groups of windows. Needs ``jpegtran``.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks._common import Result, Spread, parser, report
from benchmarks.photos import listed, make_photos, pictures
from storeds.jpeg import JpegCutter, RestartMarker, read_header
from storeds.protocols import CropRequest
from storeds.readers import decode_tensor, decode_windows
from storeds.transforms import RandomResizedCrop

_SIZE, _GROUPS = 224, 10
_TARGETS = {500: 0.7, 2000: 0.5}
_SIZES = {500: 1.03, 2000: 1.02}


def small_photos(count: int) -> list[bytes]:
    """Return photographs of 500 pixels, about 40 KiB each."""
    with tempfile.TemporaryDirectory() as folder:
        make_photos(Path(folder), count)
        return [path.read_bytes() for path in listed(Path(folder) / "photos")]


def large_photos() -> list[bytes]:
    """Return photographs of 2,000 pixels."""
    blobs = []
    for picture in pictures().values():
        buffer = io.BytesIO()
        picture.convert("RGB").resize((2000, 1500), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=88)
        blobs.append(buffer.getvalue())
    return blobs


def windows(blobs: Sequence[bytes], count: int, seed: int) -> list[tuple[int, CropRequest]]:
    """Return random windows, each with the number of its photograph."""
    generator, crop = torch.Generator().manual_seed(seed), RandomResizedCrop(_SIZE)
    found = []
    for number in range(count):
        header = read_header(blobs[number % len(blobs)])
        assert header is not None
        (request,) = crop.crops(header.height, header.width, generator)
        found.append((number % len(blobs), request))
    return found


def decode(blob: bytes, request: CropRequest) -> Any:
    """Decode a window as the reader does, or the whole picture where the window needs nearly all of it."""
    header = read_header(blob)
    assert header is not None
    images = decode_windows(decode_tensor, blob, "RGB", header, [request])
    return decode_tensor(blob, "RGB", strided=True, strict=True) if images is None else images


def microseconds(blobs: Sequence[bytes], chosen: Sequence[tuple[int, CropRequest]], step: Any) -> np.ndarray[Any, Any]:
    """Return the time of each window."""
    times = []
    for number, request in chosen:
        start = time.perf_counter_ns()
        step(blobs[number], request)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return np.array(times)


def cut(blob: bytes, request: CropRequest) -> Any:
    """Put the small JPEG together, without decoding it."""
    header = read_header(blob)
    assert header is not None
    top, left, rows, columns = request.window
    return JpegCutter(blob, header).part(top, left, top + rows, left + columns)


def share_decoded(blobs: Sequence[bytes], chosen: Sequence[tuple[int, CropRequest]]) -> tuple[float, float]:
    """Return the mean share of the picture that the windows cover, and that is decoded for them."""
    covered, decoded = [], []
    for number, request in chosen:
        header = read_header(blobs[number])
        assert header is not None
        pixels, part = header.height * header.width, cut(blobs[number], request)
        covered.append(request.window[2] * request.window[3] / pixels)
        decoded.append(1.0 if part is None else part.height * part.width / pixels)
    return float(np.mean(covered)), float(np.mean(decoded))


def measured(edge: int, blobs: list[bytes], rounds: int, count: int) -> list[Result]:
    """Return the figures of photographs of one size."""
    marker = RestartMarker.find()
    marked = [marker.mark(blob, None).blob for blob in blobs]
    size = sum(map(len, marked)) / sum(map(len, blobs))
    chosen = windows(blobs, count, 0)
    passes: dict[str, list[Any]] = {"without": [], "with": [], "cut": []}
    for number in range(rounds):
        ways = [("without", blobs, decode), ("with", marked, decode), ("cut", marked, cut)]
        for name, source, step in ways if number % 2 else ways[::-1]:
            passes[name].append(microseconds(source, chosen, step))
    # Of each window the fastest pass, so that other work on the machine hardly matters.
    best = {name: np.min(times, axis=0).reshape(_GROUPS, -1).mean(axis=1) for name, times in passes.items()}
    covered, decoded = share_decoded(marked, chosen)
    ratio, target = Spread.of((best["with"] / best["without"]).tolist()), _TARGETS[edge]
    note = f"windows cover {covered:.2f} of the pictures, {decoded:.2f} is decoded"
    return [
        Result(f"{edge} px, with markers", "of the time without", ratio, f"≤ {target}", ratio.median <= target, note),
        Result(f"{edge} px, without markers", "µs a window", Spread.of(best["without"].tolist()), "", True),
        Result(f"{edge} px, with markers", "µs a window", Spread.of(best["with"].tolist()), "", True),
        Result(f"{edge} px, putting the small JPEG together", "µs a window", Spread.of(best["cut"].tolist()), "", True),
        Result(f"{edge} px, size", "of the original", Spread.of([size]), f"≤ {_SIZES[edge]}", size <= _SIZES[edge]),
    ]


def main() -> int:
    options = parser(__doc__ or "", "crops.json")
    options.add_argument("--photos", type=int, default=100, help="photographs of 500 pixels")
    options.add_argument("--windows", type=int, default=400, help="windows in a round, at each size")
    given = options.parse_args()
    results = measured(500, small_photos(given.photos), given.rounds, given.windows)
    results += measured(2000, large_photos(), given.rounds, given.windows // 4)
    setup = {"rounds": given.rounds, "photos": given.photos, "windows": given.windows, "crop": _SIZE}
    met = report("Decoding the windows of random crops", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
