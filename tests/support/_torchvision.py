"""Makes torchvision and fastai importable beside the CPU build of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

__all__ = ["enable_torchvision"]


def enable_torchvision() -> None:
    """Let this process import torchvision and fastai.

    The Makefile installs them into a folder of their own: Lightning and others import torchvision wherever they find
    it, and that fails here. Its compiled operators need the CUDA build of torch, but it insists that they are declared.
    """
    sys.path.append(str(Path(sys.prefix, "vision")))
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
