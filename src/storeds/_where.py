"""Finds the records whose fields have given values, in the engine where it can, else by their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storeds._columns import TEXT, read_column
from storeds.protocols import Array, Backend, SupportsWhere

__all__ = ["matching_positions"]


def matching_positions(backend: Backend, where: Mapping[str, Sequence[Any]]) -> Array:
    """Return the int64 positions, ascending, of records each of whose fields in `where` has one of its values."""
    if isinstance(backend, SupportsWhere):
        return backend.select(where)
    mask = np.ones(len(backend), dtype=bool)
    for name, values in where.items():
        column = read_column(backend, name)
        mask &= np.logical_or.reduce([_equals(column, value) for value in values], axis=0) if values else False
    return np.flatnonzero(mask).astype(np.int64)


def _equals(column: Array, value: Any) -> Any:
    try:
        # NumPy makes of a Python text one that has lost the NULs at its end.
        return column == (np.array(value, TEXT) if isinstance(value, str) else value)
    except (UnicodeEncodeError, OverflowError):  # a lone surrogate, 10**400: nothing that a store holds
        return np.zeros(len(column), dtype=bool)
