"""Train a small network on any store; the config alone selects the data.

    python examples/train.py --config config.toml --epochs 4 --set loader.batch_size=16

The config names the store (``[dataset] url = "lmdb://data/{split}.lmdb"``), the transforms and the loader; putting
``hdf5://…`` or ``mongodb://…`` there trains on the same samples from another engine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn

import storeds


def make_network(channels: int, classes: int) -> nn.Module:
    """Return a small convolutional network for images of any size."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    return nn.Sequential(
        *block(channels, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 128),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 128, classes),
    )


def train(config_file: str, epochs: int, overrides: Sequence[str] = ()) -> float:
    """Train on split ``train`` and return the accuracy on split ``val``, between 0 and 1."""
    config = storeds.load_config(config_file, overrides=overrides)
    loaders = {split: storeds.build_loader(config, split) for split in ("train", "val")}
    dataset = loaders["train"].dataset
    torch.manual_seed(dataset.seed or 0)
    network = make_network(dataset[0][0].shape[0], len(dataset.classes))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    steps = epochs * len(loaders["train"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    accuracy = 0.0
    for epoch in range(epochs):
        start, seen = time.perf_counter(), 0
        network.train()
        for images, labels in loaders["train"]:
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            seen += len(labels)
        accuracy = evaluate(network, loaders["val"])
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.2%}, {rate:,.0f} samples/s", flush=True)
    return accuracy


@torch.no_grad()
def evaluate(network: nn.Module, loader: torch.utils.data.DataLoader) -> float:
    """Return the fraction of samples that `network` classifies correctly."""
    network.eval()
    right = sum((network(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def main() -> int:
    """Read the command line and train; exit with 0 if the accuracy was reached."""
    parser = argparse.ArgumentParser(description="Train a small network on the store that a config names.")
    parser.add_argument("--config", required=True, help="a TOML, YAML or JSON config")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the config")
    parser.add_argument("--min-accuracy", type=float, default=0.0, help="exit with 1 below this")
    arguments = parser.parse_args()
    accuracy = train(arguments.config, arguments.epochs, arguments.set)
    return 0 if accuracy >= arguments.min_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
