"""Reads the fields of one record as they are, arrays as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.protocols import Field, SampleContext
from storeds.readers.base import RecordReader

__all__ = ["ArrayReader"]


@dataclass(frozen=True)
class ArrayReader(RecordReader):
    """One record → its values; arrays become `torch.Tensor` of the same dtype and shape, sharing no memory.

    Parameters
    ----------
    fields : sequence of str, optional
        All fields of the store by default.
    """

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        return tuple(fields)

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        import torch

        return torch.from_numpy(value)
