"""Train a small segmentation network on any store; the config alone selects the data.

    python examples/segmentation.py --config segmentation.toml --epochs 4

The samples are an image and a mask of class ids, transformed together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import nn

import storeds

IGNORED = 255  # the class id of pixels without a class


class Network(nn.Module):
    """A U-Net of two levels. Input (batch, 3, height, width), output (batch, classes, height, width)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second, self.third = _block(3, 32), _block(32, 64), _block(64, 128)
        self.up_second, self.up_first = _block(128 + 64, 64), _block(64 + 32, 32)
        self.last = nn.Conv2d(32, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.first(images)
        second = self.second(nn.functional.max_pool2d(first, 2))
        third = self.third(nn.functional.max_pool2d(second, 2))
        second = self.up_second(torch.cat([_enlarged(third, second), second], 1))
        return self.last(self.up_first(torch.cat([_enlarged(second, first), first], 1)))


def _block(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _enlarged(small: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(small, size=like.shape[-2:], mode="nearest")


@torch.no_grad()
def mean_iou(network: nn.Module, loader: storeds.StoreLoader, classes: int) -> float:
    """Return the intersection over union of predicted and true pixels, averaged over the classes."""
    network.eval()
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for images, masks in loader:
        known = masks != IGNORED
        pairs = masks[known].long() * classes + network(images).argmax(1)[known]
        counts += torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    both = counts.diagonal()
    either = counts.sum(0) + counts.sum(1) - both
    return float((both[either > 0] / either[either > 0]).mean())


def train(config_file: str, epochs: int, overrides: Sequence[str] = ()) -> float:
    """Train on split ``train`` and return the mean intersection over union on split ``val``, between 0 and 1."""
    config = storeds.load_config(config_file, overrides=overrides)
    loaders = {split: storeds.build_loader(config, split) for split in ("train", "val")}
    dataset = loaders["train"].dataset
    classes = len(dataset.classes)
    torch.manual_seed(dataset.seed or 0)
    network = Network(classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    score = 0.0
    for epoch in range(epochs):
        network.train()
        losses = []
        for images, masks in loaders["train"]:
            loss = nn.functional.cross_entropy(network(images), masks.long(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        score = mean_iou(network, loaders["val"], classes)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, mean IoU {score:.3f}")
    return score


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the config")
    given = parser.parse_args(arguments)
    print(f"mean IoU {train(given.config, given.epochs, given.set):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
