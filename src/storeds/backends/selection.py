"""A view of the records of a backend that ``where=`` selects."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from storeds._utils.text import counted
from storeds.backends.base import check_positions
from storeds.backends.subsets import Fold, listed_keys
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Backend, Meta, Record
from storeds.records.arrays import read_arrays
from storeds.records.cache import index_path, load_index, save_index
from storeds.records.columns import read_column
from storeds.records.meta import Count
from storeds.records.where import check_where, matching_positions

__all__ = ["Selection"]

_LOG = logging.getLogger("storeds")


class Selection:
    """Selected records of a backend, at positions ``0..len-1`` in their original order.

    Parameters
    ----------
    backend : Backend
        Closing the selection closes it too.
    where : mapping, optional
        Field → the value, or list of accepted values.
    fold : Fold, optional
        Of the records that `where` selects, those in some folds of the store.
    keys : str, optional
        Of these, those whose keys this file lists.

    Notes
    -----
    The positions are in a memory-mapped index file; a pickle contains only its path. `Meta` is that of the whole
    store, except ``count``.
    """

    def __init__(
        self,
        backend: Backend,
        where: Mapping[str, Any] | None = None,
        *,
        fold: Fold | None = None,
        keys: str | None = None,
    ) -> None:
        if where is not None and not where:
            raise ConfigError("where: an empty mapping selects nothing; leave it out to read every record")
        self.backend, self._fold, self._keys = backend, fold, keys
        self.where: dict[str, list[Any]] = {
            name: sorted(values, key=repr)
            for name, values in check_where(where or {}, backend.meta.fields, backend.url).items()
        }
        subsets = ([] if fold is None else [repr(fold)]) + ([] if keys is None else [_digest(keys)])
        self.subsets: str | None = " ".join(subsets) or None
        """What selects besides `where`, as a text that is equal for equal selections."""
        self._index = index_path(backend.url, backend.meta.build, repr(self.where), *subsets)  # JSON has no infinities
        self._positions: Array | None = None
        self.meta: Meta = replace(backend.meta, count=Count(len(self.positions)))
        if not self.meta.count and backend.meta.count:
            _LOG.warning("%s selects none of the %s of %s", self, counted(backend.meta.count, "record"), self.url)

    def __str__(self) -> str:
        parts = {"where": self.where or None, "fold": self._fold, "keys": self._keys}
        return ", ".join(f"{name}={value!r}" for name, value in parts.items() if value is not None)

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
                found = save_index(self._index, self._matching())
            self._positions = found
        return self._positions

    def _matching(self) -> Array:
        found = matching_positions(self.backend, self.where) if self.where else np.arange(len(self.backend))
        if self._fold is not None:
            found = found[self._fold.mask(self.backend)[found]]
        if self._keys is not None:
            found = found[listed_keys(self._keys, self.backend)[found]]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_positions": None}

    def __len__(self) -> int:
        return self.meta.count

    def __repr__(self) -> str:
        return f"Selection({self.backend!r}, {self}, count={self.meta.count})"

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        return self.backend.get_many(self._in_store(positions), fields)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        return read_arrays(self.backend, self._in_store(positions), fields)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def _in_store(self, positions: Sequence[int]) -> Array:
        found: Array = self.positions[check_positions(positions, len(self), f"the selection from {self.url}")]
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


def _digest(path: str) -> str:
    """Return a digest of a file's content; of one that does not exist, which raises an error when it is read, its path."""
    try:
        return xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
    except OSError:
        return path
