"""`Overlay`: records of a backend with columns of their own, which stand beside the stored fields or in place of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from storeds.backends.view import View
from storeds.errors import RecordError
from storeds.protocols import Array, Backend, ChooseBoxes, Field, Record
from storeds.records.arrays import read_arrays, stackable
from storeds.records.columns import check_has_column
from storeds.records.index import Index
from storeds.records.where import check_where, positions_by_columns

__all__ = ["Overlay", "OwnColumns"]


class OwnColumns(Protocol):
    """Columns of the records of an `Overlay`, in their order. Picklable; what it finds lazily is found in each process."""

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def columns(self) -> Mapping[str, Array]: ...


class Overlay(View):
    """Some records of a backend, with columns of their own as fields.

    Parameters
    ----------
    backend : Backend
    own : OwnColumns
    index : Index
        The positions of the records.
    how : optional
        As for `View`.
    """

    def __init__(self, backend: Backend, own: OwnColumns, index: Index, how: Any = None) -> None:
        super().__init__([backend], index, how)
        self.own = own
        self.meta = replace(self.meta, fields={**self.meta.fields, **own.fields})

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        names = [*self.meta.fields] if fields is None else self._check_fields(fields)
        return self._with_own(super().get_many(positions, self._stored(names)), positions, names)

    def get_parts(
        self, positions: Sequence[int], choose: ChooseBoxes, /, fields: Sequence[str] | None = None
    ) -> list[Record | RecordError]:
        # docstring inherited
        names = [*self.meta.fields] if fields is None else self._check_fields(fields)
        return self._with_own(super().get_parts(positions, choose, self._stored(names)), positions, names)

    def _stored(self, names: Sequence[str]) -> list[str]:
        """Return what to read for these fields: also stored values that others replace, since records then keep their order."""
        has_stored = any(name not in self.own.fields for name in names)
        return [name for name in names if name in self.stores[0].meta.fields] if has_stored else []

    def _with_own(
        self, found: list[Record | RecordError], positions: Sequence[int], names: Sequence[str]
    ) -> list[Record | RecordError]:
        """Return records with the values of the columns among their fields, in the order of `names`."""
        at = np.asarray(positions, np.int64)
        own = {name: self.own.columns[name][at].tolist() for name in names if name in self.own.fields}
        is_ordered = [*dict.fromkeys((*self._stored(names), *own))] == [*names]
        for number, record in enumerate(found):
            if not isinstance(record, RecordError):
                for name, values in own.items():
                    record[name] = values[number]
                if not is_ordered:
                    found[number] = {name: record[name] for name in names}
        return found

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        # docstring inherited
        names, at = stackable(self, fields), self._checked(positions)
        found = dict[str, Array]()
        stored = [name for name in names if name not in self.own.fields]
        if stored:
            found = read_arrays(self.stores[0], self._in_stores(at), stored)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
        return {name: self.own.columns[name][at] if name in self.own.fields else found[name] for name in names}

    def column(self, name: str, /) -> Array:
        # docstring inherited
        if name not in self.own.fields:
            return super().column(name)
        check_has_column(self.url, name, self.meta.fields[name])
        return self.own.columns[name].copy()

    def select(self, where: Mapping[str, Any], /) -> Array:
        # docstring inherited
        checked = check_where(where, self.meta.fields, self.url)
        stored = {name: wanted for name, wanted in checked.items() if name not in self.own.fields}
        own = {name: wanted for name, wanted in checked.items() if name in self.own.fields}
        found = positions_by_columns(self, own)
        return np.intersect1d(found, super().select(stored), assume_unique=True) if stored else found
