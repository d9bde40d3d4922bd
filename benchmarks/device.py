"""Training steps on a GPU while the next batch is copied there. ``make test-gpu`` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from benchmarks._common import Result, Run, entry
from storeds import StoreDataset, StoreLoader, open_writer, to_device

_SIDE, _BATCH = 224, 128

Step = Callable[[torch.Tensor], torch.Tensor]


def milliseconds(function: Callable[[], Any]) -> float:
    """Return how long `function` keeps the GPU busy: the shortest of ten runs, after one that is not measured."""
    times = []
    for _ in range(11):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # untyped
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(min(times[1:]))


def make_step(batch: torch.Tensor) -> Step:
    """Return a training step, a chain of matrix products, that takes about as long as copying `batch`."""
    weights = torch.randn(2048, 2048, device="cuda")
    copy, product = milliseconds(lambda: batch.to("cuda", non_blocking=True)), milliseconds(lambda: weights @ weights)
    products = max(1, round(copy / product))

    def step(images: torch.Tensor) -> torch.Tensor:
        result = weights
        for _ in range(products):
            result = result @ weights
        return result.sum() + images.float().mean()

    return step


def epoch(batches: Iterable[Any], step: Step) -> Callable[[], None]:
    def run() -> None:
        for images, _ in batches:
            step(images.to("cuda"))
        torch.cuda.synchronize()

    return run


@entry(
    "device",
    "Training steps with `to_device`, which copies the next batch during the current step, against ``.to('cuda')``",
    needs="a GPU",
)
def device(run: Run) -> Iterator[Result]:
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks device needs a GPU: PyTorch sees no CUDA device")
    count, rng = run.count(8000, 4 * _BATCH), np.random.default_rng(0)
    url = f"lmdb://{run.folder}/images.lmdb"
    fields = {"image": {"kind": "array", "dtype": "uint8", "shape": [3, _SIDE, _SIDE]}, "label": "int"}
    with open_writer(url, fields) as writer:  # arrays, so that decoding does not hide the copies
        writer.append({"image": rng.integers(0, 256, (3, _SIDE, _SIDE), np.uint8), "label": at} for at in range(count))
    dataset = StoreDataset(url, reader="array", fields=["image", "label"])
    loader = StoreLoader(dataset, batch_size=_BATCH, pin_memory=True, num_workers=2, persistent_workers=True)
    in_memory = [next(iter(loader))] * (count // _BATCH)
    for (copied, _), (images, _) in zip(to_device(in_memory[:2], "cuda"), in_memory, strict=False):
        if not torch.equal(copied.cpu(), images):
            raise AssertionError("to_device gives other pixels")
    step = make_step(in_memory[0][0])
    for name, batches in (("batches in memory", in_memory), ("StoreLoader", loader)):
        ours, theirs = epoch(to_device(batches, "cuda"), step), epoch(batches, step)
        yield run.compare(f"{name}: to_device ÷ .to()", ours, theirs, least=1.0, count=count, seconds=0.0)
