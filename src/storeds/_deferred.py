"""Scaling that waits until the batch is made: 8-bit images become floats in the batch's own memory, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Unscaled", "asked_to_defer", "defer_in_this_process", "deferring"]


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
    busy = False


_here = _Here()
_everywhere = False


@contextmanager
def deferring() -> Iterator[None]:
    """Have the dataset that is asked for samples in this thread leave scaling to `storeds.collate`, which makes the batch."""
    _here.deferring = True
    try:
        yield
    finally:
        _here.deferring = False


def defer_in_this_process() -> None:
    """Do the same for a worker process, which does nothing else."""
    global _everywhere
    _everywhere = True


@contextmanager
def asked_to_defer() -> Iterator[bool]:
    """Say whether the samples that are made in the body go to `storeds.collate` and nowhere else.

    What a transform asks of another dataset meanwhile does not.
    """
    wanted, before = not _here.busy and (_here.deferring or _everywhere), _here.busy
    _here.busy = True
    try:
        yield wanted
    finally:
        _here.busy = before
