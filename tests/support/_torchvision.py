"""Makes torchvision and fastai importable beside the CPU build of torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["enable_detectors", "enable_torchvision"]


def enable_torchvision() -> None:
    """Let this process import torchvision and fastai.

    The Makefile installs them into a folder of their own: Lightning and others import torchvision wherever they find
    it, and that fails here. Its compiled operators need the CUDA build of torch, but it insists that they are declared.
    """
    sys.path.append(str(Path(sys.prefix, "vision")))
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def enable_detectors() -> None:
    """Let torchvision's two-stage detectors, such as Faster R-CNN, train here; call `enable_torchvision` before.

    They need the compiled operator ``nms``, for which this registers one in Python. For ``roi_align`` torchvision has one,
    which it compiles at the first call; this leaves out compiling, which takes half a minute. RetinaNet, FCOS and SSD
    train without this function, but evaluating them needs it.
    """
    import torchvision.ops.boxes

    if not hasattr(torchvision.ops.boxes, "_storeds_nms"):
        torch.library.impl("torchvision::nms", "CPU")(_nms)
        torchvision.ops.boxes._assert_has_ops = lambda: None
        torchvision.ops.boxes._storeds_nms = _nms
        roi_align: Any = sys.modules["torchvision.ops.roi_align"]  # the attribute of torchvision.ops is the function
        roi_align._roi_align = roi_align._roi_align.__wrapped__


def _nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices of the boxes that remain, best first, as ``torchvision.ops.nms`` does."""
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlaps = box_iou(boxes[order], boxes[order]) > iou_threshold
    remains = torch.ones(len(order), dtype=torch.bool)
    for at in range(len(order)):
        if remains[at]:
            remains[at + 1 :] &= ~overlaps[at, at + 1 :]
    return order[remains]
