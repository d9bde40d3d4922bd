"""Memory that a dataset and its workers share: a number, or a table."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar

import numpy as np
import torch

from storeds.protocols import Array

__all__ = ["SharedNumber", "SharedTable"]


class _Shared:
    """Zeroed bytes that workers of every start method see change.

    Notes
    -----
    Anonymous memory, which a fork inherits and which takes no descriptor: a tensor in torch's shared memory takes one,
    and loses its sharing when it is pickled or copied. torch moves it there when a worker is spawned.
    """

    def __init__(self, size: int) -> None:
        self._cell = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)

    def _view(self, dtype: Any) -> Array:
        # Anew each time, because the memory moves when a worker is spawned.
        return self._cell.numpy().view(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # torch's reduction of tensors hands the memory itself on
            return _over, (type(self), self._cell)
        return self._copy()

    def _copy(self) -> tuple[Any, ...]:
        raise NotImplementedError


def _over(cls: type[_Shared], cell: torch.Tensor) -> _Shared:
    shared = cls.__new__(cls)
    shared._cell = cell
    return shared


class SharedNumber(_Shared):
    """An int64 cell that workers of every start method see change; any other copy has a cell of its own."""

    def __init__(self, value: int = 0) -> None:
        super().__init__(8)
        self.set(value)

    def get(self) -> int:
        """Return the number."""
        return int(self._view(np.int64)[0])

    def set(self, value: int) -> None:
        """Change the number for every process that shares it."""
        self._view(np.int64)[0] = value

    def _copy(self) -> tuple[Any, ...]:
        return type(self), (self.get(),)

    def __repr__(self) -> str:
        return f"SharedNumber({self.get()})"


class SharedTable(_Shared):
    """One zeroed value of a structured dtype, shared likewise; any other copy has one of its own."""

    DTYPE: ClassVar[np.dtype[Any]]

    def __init__(self) -> None:
        super().__init__(self.DTYPE.itemsize)

    @property
    def table(self) -> Any:
        """The value, whose fields are arrays."""
        return self._view(self.DTYPE)[0]

    def _copy(self) -> tuple[Any, ...]:
        return type(self), ()
