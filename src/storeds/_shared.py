"""A number that a dataset and its workers share."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any, Self

import torch

__all__ = ["SharedNumber"]


class SharedNumber:
    """An int64 cell that workers of every start method see change; any other copy has a cell of its own.

    Notes
    -----
    Anonymous memory, which a fork inherits and which takes no descriptor: a tensor in torch's shared memory takes one,
    and loses its sharing when it is pickled or copied. torch moves the cell there when a worker is spawned.
    """

    def __init__(self, value: int = 0) -> None:
        self._cell = torch.frombuffer(mmap.mmap(-1, 8), dtype=torch.int64)
        self.set(value)

    def get(self) -> int:
        """Return the number."""
        return int(self._cell)

    def set(self, value: int) -> None:
        """Change the number for every process that shares it."""
        self._cell.fill_(value)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # torch's reduction of tensors hands the memory itself on
            return self._over, (self._cell,)
        return type(self), (self.get(),)

    @classmethod
    def _over(cls, cell: torch.Tensor) -> Self:
        number = cls.__new__(cls)
        number._cell = cell
        return number

    def __repr__(self) -> str:
        return f"SharedNumber({self.get()})"
