"""Lists of tensors from a worker: `storeds.collate_detection` against lists that PyTorch sends tensor by tensor.

Run as ``python -m benchmarks.lists``. A sample is an image, 10 boxes and their labels; images differ in size, so that no
batch of them stacks. Samples are made in memory: collating and sending take nearly all the time.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks._common import Result, compare, parser, report
from storeds import collate_detection

_BOXES = 10


class Samples(Dataset[Any]):
    """Images of nearly one size, with boxes and labels."""

    def __init__(self, count: int, height: int, width: int) -> None:
        self.count, self.height, self.width = count, height, width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        height, width = self.height + index % 7, self.width - index % 5
        return {
            "image": torch.full((3, height, width), index % 255, dtype=torch.uint8),
            "boxes": torch.tensor([[0.0, 0, 10, 10]]).repeat(_BOXES, 1),
            "labels": torch.full((_BOXES,), index),
        }


def plain(batch: list[dict[str, torch.Tensor]]) -> Any:
    """Return the same batch as `collate_detection`, in tensors of their own."""
    images = [sample["image"].float().div_(255) for sample in batch]
    return images, [{"boxes": sample["boxes"], "labels": sample["labels"]} for sample in batch]


class Epoch:
    """Reads an epoch with one worker, which stays; counts the descriptors that batches take."""

    def __init__(self, samples: Samples, batch_size: int, collate_fn: Any) -> None:
        self.loader: DataLoader[Any] = DataLoader(
            samples, batch_size, num_workers=1, collate_fn=collate_fn, persistent_workers=True
        )
        self.descriptors = 0

    def __call__(self) -> None:
        seen = 0
        for images, targets in self.loader:
            for image, target in zip(images, targets, strict=True):
                if round(float(image[0, 0, 0] * 255)) != seen % 255 or target["labels"][-1] != seen:
                    raise AssertionError(f"sample {seen} is another one")
                seen += 1
            self.descriptors = max(self.descriptors, len(os.listdir("/proc/self/fd")))


def main() -> int:
    options = parser(__doc__ or "", "lists.json")
    options.add_argument("--batches", type=int, default=100, help="batches of an epoch")
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--seconds", type=float, default=1.0, help="least time of each measurement")
    given = options.parse_args()
    results: list[Result] = []
    for height, width in ((64, 64), (480, 640)):
        samples = Samples(given.batches * given.batch_size, height, width)
        ours, theirs = (Epoch(samples, given.batch_size, each) for each in (collate_detection, plain))
        ratio, mine, bare = compare(ours, theirs, rounds=given.rounds, seconds=given.seconds)
        rates = f"{given.batches / mine.median:.0f} against {given.batches / bare.median:.0f} batches a second"
        held = f"{ours.descriptors} against {theirs.descriptors} open files"
        name = f"{given.batch_size} images of about {height} × {width} and their targets ÷ tensor by tensor"
        results.append(Result(name, "ratio", ratio, "≥ 2", ratio.median >= 2, f"{rates}; {held}"))
    setup = {"boxes": _BOXES, "batch_size": given.batch_size, "workers": 1, "rounds": given.rounds}
    met = report("Lists of tensors from a worker", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
