"""Train a torchvision detector on any store; the config alone selects the data.

    python examples/detection.py --config detection.toml --steps 20

The samples need the elements ``image``, ``boxes`` and ``labels``. With ``collate = "detection"`` the loader gives the
``(images, targets)`` lists that all detectors of torchvision take.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torchvision.models.detection import FCOS
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

import storeds


def make_detector(classes: int, side: int) -> torch.nn.Module:
    """Return FCOS over a small ResNet with random weights. Its labels are 0 to ``classes - 1``."""
    backbone = resnet_fpn_backbone(
        backbone_name="resnet18",
        weights=None,
        norm_layer=torch.nn.BatchNorm2d,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    return FCOS(backbone, num_classes=classes, min_size=side, max_size=side)


def train(config_file: str, steps: int, overrides: Sequence[str] = ()) -> list[float]:
    """Train for some steps and return the loss of each."""
    config = storeds.load_config(config_file, overrides=overrides)
    loader = storeds.build_loader(config, "train")
    dataset = loader.dataset
    torch.manual_seed(dataset.seed or 0)
    images, _ = next(iter(loader))
    detector = make_detector(len(dataset.classes), max(images[0].shape[-2:]))
    optimizer = torch.optim.AdamW(detector.parameters(), lr=2e-4)
    losses = []
    for images, targets in itertools.islice(_endless(loader), steps):
        loss = sum(detector(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        boxes = sum(len(target["boxes"]) for target in targets)
        print(f"step {len(losses)}: loss {losses[-1]:.3f}, {len(images)} images, {boxes} boxes")
    return losses


def _endless(loader: Any) -> Any:
    while True:  # each pass over the loader is a new epoch
        yield from loader


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the config")
    given = parser.parse_args(arguments)
    losses = train(given.config, given.steps, given.set)
    tenth = max(len(losses) // 4, 1)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    print(f"loss: {first:.3f} in the first steps, {last:.3f} in the last")
    return 0


if __name__ == "__main__":
    sys.exit(main())
