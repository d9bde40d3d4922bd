"""Train a small segmentation network on any store; the config alone selects the data.

    python examples/segmentation.py --config segmentation.toml --epochs 4

The samples are an image and a mask of class ids, transformed together.
"""

from __future__ import annotations

import argparse

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
        second = self.up_second(_joined(self.third(nn.functional.max_pool2d(second, 2)), second))
        return self.last(self.up_first(_joined(second, first)))


def _block(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _joined(small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
    return torch.cat([nn.functional.interpolate(small, size=large.shape[-2:], mode="nearest"), large], 1)


@torch.no_grad()
def mean_iou(network: nn.Module, loader: storeds.StoreLoader, classes: int) -> float:
    """Return the intersection over union of predicted and true pixels, averaged over the classes."""
    network.eval()
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for images, masks in loader:
        known = masks != IGNORED
        pairs = masks[known].long() * classes + network(images).argmax(1)[known]
        counts += torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    both, either = counts.diagonal(), counts.sum(0) + counts.sum(1) - counts.diagonal()
    return float((both / either)[either > 0].mean())


def train(config_file: str, epochs: int, overrides: list[str]) -> float:
    """Train on split ``train`` and return the mean intersection over union on split ``val``, between 0 and 1."""
    config = storeds.load_config(config_file, overrides=overrides)
    loaders = {split: storeds.build_loader(config, split) for split in ("train", "val")}
    torch.manual_seed(0)
    classes = len(loaders["train"].dataset.classes)
    network, score = Network(classes), 0.0
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the config")
    given = parser.parse_args()
    print(f"mean IoU {train(given.config, given.epochs, given.set):.3f}")


if __name__ == "__main__":
    main()
