"""Keeps thousands of backends in little room: each as a small pickle, with what many have in common kept once."""

from __future__ import annotations

import io
import json
import pickle
import types
import zlib
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from storeds.backends.base import BackendOptions
from storeds.errors import ConfigError
from storeds.protocols import Array, Backend

__all__ = ["PackedBackends", "Packer"]


class PackedBackends:
    """Backends by number, made anew at every `revive`; that opens nothing, as unpickling a backend never does.

    Parameters
    ----------
    pickles : bytes
        One behind the other.
    ends : array of int64
        Where each ends.
    common : sequence
        What they refer to by number: fields, attrs, options, classes.
    """

    def __init__(self, pickles: bytes, ends: Array, common: Sequence[Any]) -> None:
        self._pickles, self._ends, self._common = pickles, ends, common

    def __len__(self) -> int:
        return len(self._ends)

    def revive(self, number: int) -> Backend:
        """Return a new backend that reads what number `number` read."""
        start = int(self._ends[number - 1]) if number else 0
        backend: Backend = _Unpickler(self._pickles[start : int(self._ends[number])], self._common).load()
        return backend

    def __reduce__(self) -> tuple[Any, ...]:
        # Paths of one folder and pickles of one class are nearly equal, so they shrink to what differs.
        packed = zlib.compress(self._pickles, 1), zlib.compress(self._ends.tobytes(), 1)
        return type(self)._restore, (*packed, self._common)

    @classmethod
    def _restore(cls, pickles: bytes, ends: bytes, common: Sequence[Any]) -> Self:
        return cls(zlib.decompress(pickles), np.frombuffer(zlib.decompress(ends), np.int64), common)


class Packer:
    """Builds `PackedBackends`."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._ends: list[int] = []
        self._common: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def add(self, backend: Backend) -> None:
        """Add one; raises ConfigError if it does not pickle, for example because a lambda is among its options."""
        pickler = _Pickler(self._file, self, backend)
        try:
            pickler.dump(backend)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{backend.url} cannot be one of many stores, because it does not pickle: {error}"
            ) from error
        self._ends.append(self._file.tell())

    def number(self, key: Hashable, value: Any) -> int:
        """Return the number of `value`, or of an earlier one with an equal `key`."""
        if key not in self._numbers:
            self._numbers[key] = len(self._common)
            self._common.append(value)
        return self._numbers[key]

    def finish(self) -> PackedBackends:
        """Return what was added."""
        return PackedBackends(self._file.getvalue(), np.array(self._ends, np.int64), self._common)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, packer: Packer, backend: Backend) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number = packer.number
        self._meta = backend.meta

    def persistent_id(self, item: Any) -> int | None:
        if item is self._meta.fields:
            return self._number(("fields", *item.items()), item)
        if item is self._meta.attrs:
            return self._number(("attrs", json.dumps(item, sort_keys=True)), item)
        if isinstance(item, (type, types.FunctionType, types.MethodType, BackendOptions)):
            try:
                return self._number(item, item)
            except TypeError:  # options that do not hash
                return None
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, common: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._common = common

    def persistent_load(self, number: int) -> Any:
        return self._common[number]
