"""Scaling that waits until the batch is made: 8-bit images become floats in the batch's own memory, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Unscaled", "defer_in_this_process", "deferring", "is_deferring"]


@dataclass(frozen=True)
class Unscaled:
    """A uint8 image, and what makes floats of it in memory that it is given.

    Parameters
    ----------
    image : torch.Tensor
        uint8, shape (channels, height, width).
    scale_into : callable
        ``scale_into(image, out)`` fills `out`, float32 of the same shape.
    """

    image: torch.Tensor
    scale_into: Callable[[torch.Tensor, torch.Tensor], Any]

    def scaled(self) -> torch.Tensor:
        """Return the floats, in memory of their own."""
        out = torch.empty(self.image.shape, dtype=torch.float32)
        self.scale_into(self.image, out)
        return out


class _Here(threading.local):
    deferring = False


_here = _Here()
_everywhere = False


@contextmanager
def deferring() -> Iterator[None]:
    """Have transforms in this thread leave scaling to `storeds.collate`, which must be what makes the batch."""
    _here.deferring = True
    try:
        yield
    finally:
        _here.deferring = False


def defer_in_this_process() -> None:
    """Do the same for a worker process, which does nothing else."""
    global _everywhere
    _everywhere = True


def is_deferring() -> bool:
    """Whether the samples that are being made go to `storeds.collate` and nowhere else."""
    return _here.deferring or _everywhere
