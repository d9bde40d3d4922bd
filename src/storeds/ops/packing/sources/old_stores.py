"""The source for another store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storeds._utils.locations import StoreURL, file_path
from storeds.backends.opening import open_backend
from storeds.errors import ConfigError, RecordError
from storeds.ops.packing.sources.base import BadItem, Problem
from storeds.protocols import JSON, Backend, Field, Record

__all__ = ["StoreSource"]

_GUESS = 1 << 16
_BATCH = 1024


class StoreSource:
    """A store, with its fields and attrs.

    Parameters
    ----------
    store : str, path or Backend
        As for `open_backend`.
    **options
        Options of the backend.

    Raises
    ------
    StoreNotFoundError, FormatError, UnavailableError, ConfigError
        As `open_backend` raises them.
    """

    thread_safe = True
    problems: Sequence[Problem] = ()

    def __init__(self, store: str | os.PathLike[str] | Backend, **options: Any) -> None:
        if isinstance(store, (str, os.PathLike)):
            self._backend = open_backend(store, **options)
        elif options:
            raise ConfigError(f"{store.url} is already open; pass {', '.join(options)} when opening it")
        else:
            self._backend = store
        self.stores: Sequence[Backend] = (self._backend,)
        self.notes: Sequence[str] = ()
        self._size = _mean_size(self._backend)

    @property
    def fields(self) -> Mapping[str, Field]:
        # docstring inherited
        return self._backend.meta.fields

    @property
    def attrs(self) -> Mapping[str, JSON]:
        # docstring inherited
        return self._backend.meta.attrs

    @property
    def fingerprint(self) -> JSON:
        # docstring inherited
        where = getattr(self._backend, "where", None)
        selected: dict[str, JSON] = {} if where is None else {"where": repr(where)}
        return {"kind": "store", "count": len(self), "xxh3": self._backend.meta.id, **selected}

    def __len__(self) -> int:
        return len(self._backend)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return f"record {index} of {self._backend.url}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._size

    def strata(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the label of each item, without reading images."""
        fields = [name for name in ("key", "label") if name in self.fields]
        for start in range(0, len(self), _BATCH):
            positions = range(start, min(start + _BATCH, len(self)))
            for index, record in zip(positions, self._backend.get_many(positions, fields), strict=True):
                if isinstance(record, RecordError):
                    yield str(index), None
                else:
                    yield str(record.get("key", index)), record["label"]

    def read(self, index: int, /) -> Record:
        # docstring inherited
        record = self._backend.get_many([index])[0]
        if isinstance(record, RecordError):
            raise BadItem(record.reason or str(record))
        return record


def _mean_size(backend: Backend) -> int:
    if StoreURL.parse(backend.url).scheme not in ("lmdb", "hdf5") or not len(backend):
        return _GUESS
    try:
        return max(1, os.path.getsize(file_path(backend.url)[0]) // len(backend))
    except (OSError, ConfigError):  # a glob of several files
        return _GUESS
