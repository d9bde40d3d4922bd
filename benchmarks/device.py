"""Training steps on a GPU while the next batch is copied there, against copying each batch before its step.

Run as ``python -m benchmarks.device`` on a machine with CUDA. A step is a chain of matrix products that takes about as
long on the GPU as copying a batch does. The loader gives uint8 photographs in pinned memory, made by two workers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import storeds
from benchmarks._common import Result, Spread, compare, parser, report
from storeds import StoreDataset, StoreLoader, to_device

_SIDE, _BATCH = 224, 128


def make_store(work: Path, count: int) -> str:
    """Write `count` random images, stored as arrays so that decoding does not hide the copies."""
    url = f"lmdb://{work}/images.lmdb"
    rng = np.random.default_rng(0)
    fields = {"image": {"kind": "array", "dtype": "uint8", "shape": [3, _SIDE, _SIDE]}, "label": "int"}
    with storeds.open_writer(url, fields) as writer:
        writer.append({"image": rng.integers(0, 256, (3, _SIDE, _SIDE), np.uint8), "label": at} for at in range(count))
    return url


def milliseconds(function: Callable[[], Any]) -> float:
    """Return how long `function` keeps the GPU busy: the shortest of ten runs, after one that is not measured."""
    times = []
    for _ in range(11):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(min(times[1:]))


def make_step(batch: torch.Tensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], float, float]:
    """Return a training step about as long as the copy of `batch`, and the milliseconds of step and copy."""
    weights = torch.randn(2048, 2048, device="cuda")
    copy = milliseconds(lambda: batch.to("cuda", non_blocking=True))
    product = milliseconds(lambda: weights @ weights)
    products = max(1, round(copy / product))

    def step(images: torch.Tensor) -> torch.Tensor:
        result = weights
        for _ in range(products):
            result = result @ weights
        return result.sum() + images.float().mean()

    return step, milliseconds(lambda: step(batch.to("cuda"))) - copy, copy


def epoch(batches: Iterable[Any], step: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        for images, _ in batches:
            step(images.to("cuda"))
        torch.cuda.synchronize()

    return run


def main() -> int:
    options = parser(__doc__ or "", "device.json")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--count", type=int, default=8_000)
    given = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.device needs a GPU: PyTorch sees no CUDA device")
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        dataset = StoreDataset(make_store(Path(folder), given.count), reader="array", fields=["image", "label"])
        kept: dict[str, Any] = {"num_workers": given.workers, "persistent_workers": given.workers > 0}
        loader = StoreLoader(dataset, batch_size=_BATCH, pin_memory=True, **kept)
        in_memory = [next(iter(loader))] * (given.count // _BATCH)
        step, step_time, copy_time = make_step(in_memory[0][0])
        results = []
        for name, batches in (("batches in memory", in_memory), ("StoreLoader", loader)):
            ratio, mine, theirs = compare(
                epoch(to_device(batches, "cuda"), step), epoch(batches, step), rounds=given.rounds, seconds=0.0
            )
            rates = f"{_rate(mine, given.count)} against {_rate(theirs, given.count)} images/s"
            results.append(Result(f"{name}: to_device ÷ .to()", "ratio", ratio, "≥ 1", ratio.median >= 1, rates))
    setup = {
        "gpu": torch.cuda.get_device_name(),
        "batch": f"{_BATCH} × 3 × {_SIDE} × {_SIDE} uint8",
        "copy_ms": round(copy_time, 3),
        "step_ms": round(step_time, 3),
        "workers": given.workers,
        "page_cache": "warm: everything was written just before",
    }
    met = report("Copies to the GPU beside training steps", results, setup, given.out)
    return 1 if given.check and not met else 0


def _rate(seconds: Spread, count: int) -> str:
    return f"{count / seconds.median:,.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
