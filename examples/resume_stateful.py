"""Stop in the middle of an epoch and resume exactly there, with torchdata's StatefulDataLoader.

    python examples/resume_stateful.py FOLDER

Trains once without a stop, and once stopped and taken up by new objects from a checkpoint in FOLDER. An `EpochSampler`
is all that it takes; both runs must end with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import digits
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import storeds

EPOCHS = 2


def make_loader(url: str) -> StatefulDataLoader:
    """Return a loader whose state records which samples the training loop received."""
    dataset = storeds.build_dataset(digits.config(url))
    sampler = storeds.EpochSampler(dataset, seed=7)
    return StatefulDataLoader(dataset, sampler=sampler, batch_size=32, num_workers=2, collate_fn=storeds.collate)


def train(url: str, checkpoint: Path, stop: int | None = None) -> str:
    """Train from `checkpoint` if it exists, and write it after `stop` steps; return the weights' digest."""
    network, loader = digits.network(), make_loader(url)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    first, step = 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first, step = saved["epoch"], saved["step"]
        print(f"go on after step {step}, in epoch {first}", flush=True)
    for epoch in range(first, EPOCHS):
        for images, labels in loader:  # first the rest of the epoch that was loaded, then whole ones
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
            step += 1
            if step == stop:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "loader": loader.state_dict(), "epoch": epoch, "step": step}, checkpoint)
                return digits.digest(network)
    print(f"{step} steps, weights {digits.digest(network)}", flush=True)
    return digits.digest(network)


def main() -> int:
    """Train both ways; exit with 0 if the weights are equal."""
    parser = argparse.ArgumentParser(description="Stop in the middle of an epoch and resume exactly there.")
    parser.add_argument("folder", type=Path, help="where the store and the checkpoint go")
    parser.add_argument("--stop", type=int, default=70, help="after so many steps; an epoch has 57")
    given = parser.parse_args()
    checkpoint = given.folder / "checkpoint.pt"
    checkpoint.unlink(missing_ok=True)
    url = digits.pack(given.folder)
    whole = train(url, checkpoint)
    train(url, checkpoint, given.stop)
    resumed = train(url, checkpoint)
    print("the same weights" if resumed == whole else "OTHER WEIGHTS")
    return 0 if resumed == whole else 1


if __name__ == "__main__":
    sys.exit(main())
