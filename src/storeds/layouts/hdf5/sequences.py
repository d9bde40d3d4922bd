"""Fields of sequences of records that follow each other: rows of a dataset for each sequence, and computed values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from storeds.errors import StoredsError, UnavailableError
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.values import Values, values_of
from storeds.protocols import Array, Field

__all__ = ["Computed", "SequenceRows"]

_OPEN = 4  # datasets of a field


def locate(bounds: Array, positions: Sequence[int]) -> tuple[Array, Array]:
    """Return the numbers of the sequences of records, and of the records in them.

    `bounds` are the positions of the first records of the sequences, and the number of records.
    """
    wanted = np.asarray(positions, np.int64)
    sequences: Array = np.searchsorted(bounds, wanted, "right") - 1
    return sequences, wanted - bounds[sequences]


class Computed(Values):
    """Values that follow from a record's sequence and its number there, such as a name, or a dataset for each record.

    Parameters
    ----------
    bounds : array of int64
    field : Field
    values : callable
        Takes the numbers of the sequences of records, which ascend, and of the records in them; returns the values.
    """

    def __init__(self, bounds: Array, field: Field, values: Callable[[list[int], list[int]], list[Any]]) -> None:
        self.field, self.count, self._bounds, self._values = field, int(bounds[-1]), bounds, values

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, rows = locate(self._bounds, positions)
        return self._values(sequences.tolist(), rows.tolist())


class SequenceRows(Values):
    """Rows of one dataset for each sequence.

    Parameters
    ----------
    files : Hdf5Files
    paths : callable
        Returns the paths of the datasets of sequences.
    bounds : array of int64
    field : Field
    column : str
        The column of the datasets, which are tables.
    """

    def __init__(
        self,
        files: Hdf5Files,
        paths: Callable[[Sequence[int]], list[str]],
        bounds: Array,
        field: Field,
        column: str = "",
    ) -> None:
        self.field, self.count, self._bounds = field, int(bounds[-1]), bounds
        self._url, self._paths = files.url, paths
        # The datasets used last keep their decompressed chunks. It does not refer to `self`, so they go with it.
        self._open = functools.lru_cache(_OPEN)(functools.partial(_rows_of, files, column, field))

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, rows = locate(self._bounds, positions)
        out: list[Any] = []
        unique = np.unique(sequences).tolist()
        for sequence, path in zip(unique, self._paths(unique), strict=True):
            out += self._read(path, rows[sequences == sequence].tolist())
        return out

    def _read(self, path: str, rows: list[int]) -> list[Any]:
        try:
            return self._open(path).read(rows)
        except UnavailableError:
            raise
        except (StoredsError, OSError, RuntimeError, KeyError, TypeError) as error:
            reason = str(error).removeprefix(f"{self._url}: ")
            return [ValueError(f"dataset {path} cannot be read: {reason}")] * len(rows)


def _rows_of(files: Hdf5Files, column: str, field: Field, path: str) -> Values:
    return values_of(files, files.dataset(path), column, field)[column]
