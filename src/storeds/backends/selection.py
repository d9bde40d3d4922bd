"""A view of the records of a backend that ``where=`` selects."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from storeds._utils.text import counted
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Backend, Meta, Record
from storeds.records.columns import (
    check_where,
    index_path,
    load_index,
    matching_positions,
    read_arrays,
    read_column,
    save_index,
)
from storeds.records.fields import Count

__all__ = ["Selection"]

_LOG = logging.getLogger("storeds")


class Selection:
    """Selected records of a backend, at positions ``0..len-1`` in their original order.

    Parameters
    ----------
    backend : Backend
        Closing the selection closes it too.
    where : mapping
        Field → the value, or list of accepted values.

    Notes
    -----
    The positions are in a memory-mapped index file; a pickle contains only its path. `Meta` is that of the whole
    store, except ``count``.
    """

    def __init__(self, backend: Backend, where: Mapping[str, Any]) -> None:
        if not where:
            raise ConfigError("where: an empty mapping selects nothing; leave it out to read every record")
        self.backend = backend
        self.where: dict[str, list[Any]] = {
            name: sorted(values, key=repr)
            for name, values in check_where(where, backend.meta.fields, backend.url).items()
        }
        self._index = index_path(backend.url, backend.meta.build, repr(self.where))  # JSON has no infinities
        self._positions: Array | None = None
        self.meta: Meta = replace(backend.meta, count=Count(len(self.positions)))
        if not self.meta.count and backend.meta.count:
            _LOG.warning(
                "where=%r selects none of the %s of %s", self.where, counted(backend.meta.count, "record"), self.url
            )

    @property
    def url(self) -> str:
        """The store's URL."""
        return self.backend.url

    @property
    def positions(self) -> Array:
        """The selected positions of the store, int64, ascending."""
        if self._positions is None:
            found = load_index(self._index)
            if found is None:
                found = save_index(self._index, matching_positions(self.backend, self.where))
            self._positions = found
        return self._positions

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_positions": None}

    def __len__(self) -> int:
        return self.meta.count

    def __repr__(self) -> str:
        return f"Selection({self.backend!r}, where={self.where!r}, count={self.meta.count})"

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        return self.backend.get_many(self._in_store(positions), fields)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        return read_arrays(self.backend, self._in_store(positions), fields)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def _in_store(self, positions: Sequence[int]) -> Array:
        asked = np.asarray(positions, dtype=np.int64)
        if asked.size and (asked.min() < 0 or asked.max() >= len(self)):
            raise IndexError(f"position outside [0, {len(self)}) of the selection from {self.url}")
        found: Array = self.positions[asked]
        return found

    def column(self, name: str, /) -> Array:
        # docstring inherited
        return read_column(self.backend, name)[self.positions]

    def close(self) -> None:
        # docstring inherited
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
