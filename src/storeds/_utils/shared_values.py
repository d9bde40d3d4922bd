"""Memory that a dataset and its workers share."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar

import numpy as np
import torch

__all__ = ["SharedTable"]


class SharedTable:
    """One zeroed value of a structured dtype that workers of every start method see change; any other copy has one of its own.

    Notes
    -----
    Anonymous memory, which a fork inherits and which takes no descriptor: a tensor in torch's shared memory takes one,
    and loses its sharing when it is pickled or copied. torch moves it there when a worker is spawned.
    """

    DTYPE: ClassVar[np.dtype[Any]]

    def __init__(self) -> None:
        self._cell = torch.frombuffer(mmap.mmap(-1, self.DTYPE.itemsize), dtype=torch.uint8)

    @property
    def table(self) -> Any:
        """The value, whose fields are arrays."""
        # A new view each time, because the memory moves when a worker is spawned.
        return self._cell.numpy().view(self.DTYPE)[0]

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # torch's reduction of tensors hands the memory itself on
            return _over, (type(self), self._cell)
        return self._copy()

    def _copy(self) -> tuple[Any, ...]:
        return type(self), ()


def _over(cls: type[SharedTable], cell: torch.Tensor) -> SharedTable:
    shared = cls.__new__(cls)
    shared._cell = cell
    return shared
