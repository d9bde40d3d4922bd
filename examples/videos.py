"""Pack videos, then train a network that recognises the video of a random clip of eight frames.

Run as ``python examples/videos.py VIDEOS WORK``: VIDEOS has one folder of videos per class; stores go to WORK.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import storeds

EPOCHS = 25


def config(url: str, sampling: str, clips: int) -> storeds.Config:
    """Return a config whose samples are `clips` clips of each video, 8 frames at every other frame."""
    crop = {"name": "RandomResizedCrop", "size": 48, "scale": [0.5, 1.0]}
    dataset = {
        "url": url,
        "reader": "video",
        "reader_options": {"frames": 8, "stride": 2, "clips": clips, "sampling": sampling},
        "decode": "tensor",
        "transform": [crop],
        "seed": 7,
    }
    # Videos differ in size; the crop gives all clips of a batch one size.
    return storeds.load_config({"dataset": dataset, "loader": {"batch_size": 3, "shuffle": True}})


def network(classes: int) -> nn.Module:
    """Return a small network over (batch, channels, frames, height, width)."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 16)):
        layers += [nn.Conv3d(inputs, outputs, 3, stride=(1, 2, 2), padding=1), nn.GroupNorm(2, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d((1, 2, 2)), nn.Flatten(), nn.Linear(64, classes))


def scores(model: nn.Module, clips: torch.Tensor) -> torch.Tensor:
    """Return class scores, the mean over the clips of each sample; `clips` is (batch, clips, frames, channels, …)."""
    flat = clips.flatten(0, 1).transpose(1, 2).float() / 127.5 - 1
    mean: torch.Tensor = model(flat).unflatten(0, clips.shape[:2]).mean(1)
    return mean


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("videos", type=Path)
    options.add_argument("work", type=Path)
    given = options.parse_args()
    url = f"hdf5://{given.work.absolute()}/videos.h5"
    meta = storeds.pack(given.videos, url, fps=15, max_side=96, overwrite=True)
    loader = storeds.build_loader(config(url, "random", 4))
    classes = loader.dataset.classes
    print(f"{meta.count} frames of {len(loader.dataset)} videos: {', '.join(classes)}")
    model = network(len(classes))
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(EPOCHS):
        for clips, labels in loader:  # other clips in each pass
            loss = nn.functional.cross_entropy(scores(model, clips), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = 0
    with torch.no_grad():
        for clips, labels in storeds.build_loader(config(url, "spaced", 4)):
            right += int((scores(model, clips).argmax(1) == labels).sum())
    print(f"the right video for {right} of {len(loader.dataset)}")


if __name__ == "__main__":
    main()
