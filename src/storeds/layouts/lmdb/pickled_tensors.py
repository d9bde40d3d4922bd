"""Builds arrays and mappings for the tensors and graphs in a pickle, without torch and without torch_geometric.

A tensor is pickled as a call on a storage, and a storage as the bytes of another, small pickle. `storeds.layouts.lmdb.unpickler` reads
that one with the same machine; here are the names that both may use, and what is built for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from storeds.layouts.lmdb.pickled_arrays import Name, PickleError
from storeds.protocols import Array

__all__ = [
    "LOAD_STORAGE",
    "OBJECTS",
    "TORCH_CALLS",
    "TORCH_NAMES",
    "Graph",
    "PendingObject",
    "Storage",
    "check_header",
    "persistent_storage",
    "storage_of",
]

_BFLOAT16 = "bfloat16"  # NumPy lacks it; float32 holds every value of it exactly
_DTYPES = {
    "Double": "<f8",
    "Float": "<f4",
    "Half": "<f2",
    "BFloat16": _BFLOAT16,
    "Long": "<i8",
    "Int": "<i4",
    "Short": "<i2",
    "Char": "i1",
    "Byte": "u1",
    "Bool": "?",
    "ComplexFloat": "<c8",
    "ComplexDouble": "<c16",
}
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
LOAD_STORAGE = Name("torch.storage._load_from_bytes")
_REBUILD, _ORDERED = Name("torch._utils._rebuild_tensor_v2"), Name("collections.OrderedDict")
_DATA, _GLOBALS = Name("torch_geometric.data.data.Data"), Name("torch_geometric.data.storage.GlobalStorage")
_STORAGES = {("torch", f"{kind}Storage"): Name(f"torch.{kind}Storage") for kind in _DTYPES}
OBJECTS = frozenset((_DATA, _GLOBALS))
TORCH_NAMES = _STORAGES | {
    ("torch.storage", "_load_from_bytes"): LOAD_STORAGE,
    ("torch._utils", "_rebuild_tensor_v2"): _REBUILD,
    ("collections", "OrderedDict"): _ORDERED,
    ("torch_geometric.data.data", "Data"): _DATA,
    ("torch_geometric.data.storage", "GlobalStorage"): _GLOBALS,
    # Written beside a graph's mapping by later versions; nothing is built for them.
    ("torch_geometric.data.data", "DataEdgeAttr"): Name("torch_geometric.data.data.DataEdgeAttr"),
    ("torch_geometric.data.data", "DataTensorAttr"): Name("torch_geometric.data.data.DataTensorAttr"),
}


class Graph(dict[str, Any]):
    """The entries of a graph that was pickled as a ``Data`` of torch_geometric."""


class Storage:
    """The numbers of one or several tensors, end to end."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers


class PendingObject:
    """A graph, or the mapping inside one, before its state has come."""

    __slots__ = ("name",)

    def __init__(self, name: Name) -> None:
        self.name = name

    def set_state(self, state: Any) -> Graph:
        """Return the mapping that holds the entries: of version 1 the state itself, of version 2 one level further in."""
        if type(state) is not dict:
            raise PickleError("the pickle is damaged: a graph without a mapping")
        if self.name == _GLOBALS:
            inner = state.get("_mapping")
        else:
            inner = state.get("_store", state)
        if not isinstance(inner, dict):
            raise PickleError("the pickle is damaged: a graph without a mapping")
        entries = {name: value for name, value in inner.items() if value is not None}
        for name, value in entries.items():
            if not isinstance(name, str) or isinstance(value, (Name, PendingObject, Storage)):
                raise PickleError(f"refused: entry {str(name)[:40]!r} of a graph is no plain data and no tensor")
        return Graph(entries)


def check_header(magic: Any, protocol: Any, system: Any) -> None:
    """Raise PickleError unless these three values begin a storage as ``torch.save`` wrote it, little-endian."""
    if magic != _MAGIC or protocol != _PROTOCOL or not isinstance(system, dict):
        raise PickleError("refused: a tensor's storage in a form that only torch reads")
    if system.get("little_endian") is not True:
        raise PickleError("refused: a tensor's storage in big-endian order")


def persistent_storage(given: Any) -> tuple[str, int]:
    """Return the kind of a storage and how many numbers it has, from what its pickle names instead of an object."""
    known = type(given) is tuple and len(given) in (5, 6) and given[0] == "storage" and isinstance(given[1], Name)
    if not known or given[1] not in _STORAGES.values() or type(given[4]) is not int or given[4] < 0:
        raise PickleError("the pickle is damaged: a storage without kind and size")
    if len(given) == 6 and given[5] is not None:
        raise PickleError("refused: a storage that is a view of another")
    return given[1].removeprefix("torch.").removesuffix("Storage"), given[4]


def storage_of(kind: str, count: int, data: memoryview) -> Storage:
    """Return a storage of `count` numbers whose bytes follow their count in `data`, which holds nothing else."""
    spec = _DTYPES[kind]
    dtype = np.dtype("<u2" if spec == _BFLOAT16 else spec)
    if len(data) != 8 + count * dtype.itemsize or int.from_bytes(data[:8], "little") != count:
        raise PickleError(f"the pickle is damaged: a storage of {count} numbers in {len(data)} bytes")
    numbers: Array = np.frombuffer(data[8:], dtype)
    if spec == _BFLOAT16:
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    return Storage(numbers)


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Array:
    """Return the tensor as an array; `more` says whether it needs a gradient, which is nothing to an array."""
    if not isinstance(storage, Storage):
        raise PickleError("the pickle is damaged: a tensor without a storage")
    shape, steps = (_whole(part) for part in (size, stride))
    if type(offset) is not int or offset < 0 or len(shape) != len(steps) or len(shape) > 32:
        raise PickleError("the pickle is damaged: a tensor without a shape")
    count, numbers = math.prod(shape), storage.numbers
    if not count:
        return np.empty(shape, numbers.dtype)
    last = offset + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    if last >= len(numbers) or count > len(numbers):
        raise PickleError(f"refused: a tensor of {shape} lies outside its storage of {len(numbers)} numbers")
    width = numbers.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        numbers[offset:], shape, tuple(step * width for step in steps), writeable=False
    )


def _whole(numbers: Any) -> tuple[int, ...]:
    if type(numbers) is not tuple or not all(type(number) is int and 0 <= number < 2**40 for number in numbers):
        raise PickleError("the pickle is damaged: a tensor whose shape or strides are no numbers")
    return numbers


def _ordered_dict(*given: Any) -> dict[Any, Any]:
    if given:
        raise PickleError("refused: the pickle makes an OrderedDict of a list")
    return {}


TORCH_CALLS: dict[Name, Callable[..., Any]] = {_REBUILD: _rebuild_tensor, _ORDERED: _ordered_dict}
