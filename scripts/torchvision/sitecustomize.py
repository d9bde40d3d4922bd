"""Makes torchvision importable beside the CPU build of torch, for the documentation's examples.

Python imports this module when its folder is on PYTHONPATH. tests/support/_torchvision.py says where torchvision is, and why
two of its operators must be declared. They are declared only when a program imports torchvision.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


class _Finder:
    """Declares the operators before torchvision is imported; finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator in ("nms", "qnms"):
                torch.library.define(
                    f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )


sys.path.append(str(Path(sys.prefix, "vision")))
sys.meta_path.insert(0, _Finder())
