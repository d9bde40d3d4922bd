"""Fields of sequences that follow each other: rows of a dataset for each, a value of each, their names and numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from storeds.errors import StoredsError, UnavailableError
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.values import Values, values_of
from storeds.protocols import Array, Field
from storeds.records.columns import SCALARS, column_of

__all__ = ["RowNumbers", "SequenceNames", "SequenceRows", "SequenceValues"]


_OPEN = 4  # datasets of a field


class _Sequences(Values):
    """A field of sequences; `bounds` are the positions of their first records, and the count."""

    def __init__(self, bounds: Array, field: Field) -> None:
        self.field, self.count, self._bounds = field, int(bounds[-1]), bounds

    def _locate(self, positions: Sequence[int]) -> tuple[Array, Array]:
        """Return the numbers of the sequences of records, and of the records in them."""
        wanted = np.asarray(positions, np.int64)
        sequences: Array = np.searchsorted(self._bounds, wanted, "right") - 1
        return sequences, wanted - self._bounds[sequences]


class SequenceRows(_Sequences):
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
        super().__init__(bounds, field)
        self._url, self._paths = files.url, paths
        # The datasets used last keep their decompressed chunks. It does not refer to `self`, so they go with it.
        self._open = functools.lru_cache(_OPEN)(functools.partial(_rows_of, files, column, field))

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, rows = self._locate(positions)
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


class SequenceValues(_Sequences):
    """A value that all records of a sequence share."""

    def __init__(self, bounds: Array, field: Field, values: Sequence[Any]) -> None:
        super().__init__(bounds, field)
        self._values = values

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._values[sequence] for sequence in self._locate(positions)[0].tolist()]

    def column(self) -> Array:
        # docstring inherited
        return np.repeat(column_of(self.field, self._values), np.diff(self._bounds))


class SequenceNames(_Sequences):
    """A value computed from the name of each sequence.

    Parameters
    ----------
    bounds : array of int64
    field : Field
    names : Names or list of bytes
        Of each sequence.
    value : callable
        Takes a name and the number of a row.
    """

    def __init__(self, bounds: Array, field: Field, names: Any, value: Callable[[str, int], Any]) -> None:
        super().__init__(bounds, field)
        self._names, self._value = names, value

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, rows = self._locate(positions)
        unique, inverse = np.unique(sequences, return_inverse=True)
        found = [name.decode("utf-8", "surrogateescape") for name in self._names.many(unique.tolist())]
        return [self._value(found[at], row) for at, row in zip(inverse.tolist(), rows.tolist(), strict=True)]


class RowNumbers(_Sequences):
    """The number of each record in its sequence, from 0."""

    def __init__(self, bounds: Array) -> None:
        super().__init__(bounds, Field("int"))

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return list(self._locate(positions)[1].tolist())

    def column(self) -> Array:
        # docstring inherited
        numbers: Array = np.arange(self.count, dtype=SCALARS["int"])
        numbers -= np.repeat(self._bounds[:-1], np.diff(self._bounds))
        return numbers
