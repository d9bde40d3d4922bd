"""Builds the arrays, scalars, tensors and graphs that a pickle names, without calling NumPy's, torch's or torch_geometric's code.

`CONSTRUCTORS` is the allow-list: each exact ``(module, name)`` pair maps to a function or class of this module. A pickle gets
these instead of the real objects.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from storeds.protocols import Array

__all__ = [
    "CONSTRUCTORS",
    "STORAGE_KINDS",
    "Constructor",
    "PendingArray",
    "PickleError",
    "PickledDtype",
    "PickledGraph",
    "Storage",
    "check_header",
    "rebuild_array",
    "storage_kind_and_count",
    "storage_of",
]

_DTYPE = re.compile(r"[<>|=]?([biufcSU][0-9]{1,9}|[?bBhHiIlLqQefdFD])")
_MAX_ITEM = 1 << 30
_LATIN_1 = ("latin1", b"latin1", "latin-1", b"latin-1")


class PickleError(ValueError):
    """A pickle is damaged, or holds something that storeds does not read."""


class Constructor:
    """A callable that stands for one name in a pickle; it has no attributes that a pickle could set."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any] | None) -> None:
        self.name, self.call = name, call

    def __call__(self, *given: Any) -> Any:
        if self.call is None:
            raise PickleError(f"refused: the pickle calls {self.name}")
        return self.call(*given)


# Arrays.


class PickledDtype:
    """A dtype while it is unpickled: the call gives its kind, the state its byte order."""

    __slots__ = ("dtype",)

    def __init__(self, spec: Any, align: Any = False, copy: Any = True) -> None:
        self.dtype = _dtype_of(_text(spec))

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) < 8 or any(part is not None for part in state[2:5]):
            raise PickleError("refused: a dtype with fields or parts; only numbers and text are read")
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise PickleError("the pickle is damaged: a dtype without a byte order")
        if order != "|":
            self.dtype = _in_order(self.dtype, order)


class PendingArray:
    """An array that a pickle declares first and fills by its state; `array` is None until then."""

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]  # as an array

    def __init__(self) -> None:
        self.array: Array | None = None

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5 or self.array is not None:
            raise PickleError("the pickle is damaged: the state of an array is not its five parts")
        _, shape, dtype, fortran, data = state
        self.array = _array(data, dtype, shape, "F" if fortran else "C")


@functools.lru_cache(64)
def _dtype_of(text: str) -> np.dtype[Any]:
    if text.lstrip("<>|=") in ("O", "O8", "O4"):
        raise PickleError("refused: an array of objects; only numbers and text are read")
    if not _DTYPE.fullmatch(text):
        raise PickleError(f"refused: an array of dtype {text[:40]!r}; only numbers and text are read")
    dtype: np.dtype[Any] = np.dtype(text)
    if dtype.itemsize > _MAX_ITEM:
        raise PickleError(f"refused: a dtype of {dtype.itemsize} bytes an item")
    return dtype


@functools.lru_cache(64)
def _in_order(dtype: np.dtype[Any], order: Any) -> np.dtype[Any]:
    return dtype.newbyteorder(order)


def _text(value: Any) -> str:
    if isinstance(value, bytes):  # Python 2 wrote it
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise PickleError("the pickle is damaged: a dtype or byte order is not text")
    return value


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if not isinstance(dtype, PickledDtype):
        raise PickleError("the pickle is damaged: an array without a dtype")
    if not isinstance(data, (bytes, bytearray)):
        raise PickleError(f"refused: an array whose content is a {type(data).__name__} instead of bytes")
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise PickleError("the pickle is damaged: an array without a shape")
    if order not in ("C", "F") or len(shape) > 32:
        raise PickleError("the pickle is damaged: an array in an unknown order, or with more than 32 dimensions")
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise PickleError(f"the pickle is damaged: {len(data)} bytes for an array of {dtype.dtype} {shape}")
    if not len(data):
        return np.empty(shape, dtype.dtype)
    content = data if type(data) is bytes else memoryview(data).toreadonly()
    return np.frombuffer(content, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> PendingArray:
    if kind is not _NDARRAY:
        raise PickleError("the pickle is damaged: it rebuilds something that is not an array")
    return PendingArray()


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (1,), "C")[0]


def rebuild_array(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Array:
    """Return the array that protocol 5 pickles as a call; `axes` permutes it where its order is neither C nor Fortran."""
    if _text(order) != "K":
        return _array(data, dtype, shape, _text(order))
    array = _array(data, dtype, shape, "C")
    if axes is None:
        return array
    if type(axes) is not tuple or not all(type(axis) is int for axis in axes):
        raise PickleError("the pickle is damaged: the axes of an array are not numbers")
    if sorted(axes) != list(range(array.ndim)):
        raise PickleError(f"the pickle is damaged: an array of {array.ndim} dimensions with the axes {str(axes)[:40]}")
    return array.transpose(axes)


# Bytes: protocols before 3 write bytes as a call, protocols before 5 bytearrays.


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in _LATIN_1:
        raise PickleError("refused: the pickle encodes text in another encoding than latin-1")
    return text.encode("latin-1")


def _empty_bytes(*given: Any) -> bytes:
    if given:
        raise PickleError("refused: the pickle calls bytes with an argument")
    return b""


def _bytearray(*given: Any) -> bytes:
    # The real bytearray(number) would allocate as much memory as the pickle asks for.
    if not given:
        return b""
    data, *encoding = given
    if not encoding and isinstance(data, (bytes, bytearray)):
        return bytes(data)
    if len(encoding) == 1 and isinstance(data, str) and encoding[0] in _LATIN_1:
        return data.encode("latin-1")
    raise PickleError("refused: the pickle calls bytearray with something else than bytes or text in latin-1")


# Tensors: a tensor is a call on a storage, and a storage the bytes of five small pickles, a count and the numbers.

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


class Storage:
    """The numbers of one or several tensors, end to end."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers


def check_header(magic: Any, protocol: Any, system: Any) -> None:
    """Raise PickleError unless these three values begin a little-endian storage in the format of ``torch.save``."""
    if magic != _MAGIC or protocol != _PROTOCOL or not isinstance(system, dict):
        raise PickleError("refused: a tensor's storage in a form that only torch reads")
    if system.get("little_endian") is not True:
        raise PickleError("refused: a tensor's storage in big-endian order")


def storage_kind_and_count(given: Any) -> tuple[Constructor, int]:
    """Return the kind of a storage and its number of items, from the persistent id in its pickle."""
    known = type(given) is tuple and len(given) in (5, 6) and given[0] == "storage"
    if not known or given[1] not in STORAGE_KINDS.values() or type(given[4]) is not int or given[4] < 0:
        raise PickleError("the pickle is damaged: a storage without kind and size")
    if len(given) == 6 and given[5] is not None:
        raise PickleError("refused: a storage that is a view of another")
    return given[1], given[4]


def storage_of(kind: Constructor, count: int, data: memoryview) -> Storage:
    """Return a storage of `count` numbers; `data` holds their count in 8 bytes and the numbers, and nothing else."""
    spec = _DTYPES[kind.name]
    dtype = np.dtype("<u2" if spec == _BFLOAT16 else spec)
    if len(data) != 8 + count * dtype.itemsize or int.from_bytes(data[:8], "little") != count:
        raise PickleError(f"the pickle is damaged: a storage of {count} numbers in {len(data)} bytes")
    numbers: Array = np.frombuffer(data[8:], dtype)
    if spec == _BFLOAT16:
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    return Storage(numbers)


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Array:
    """Return the tensor as an array; `more`, such as whether it needs a gradient, does not matter to an array."""
    if not isinstance(storage, Storage):
        raise PickleError("the pickle is damaged: a tensor without a storage")
    shape, steps = (_sizes(part) for part in (size, stride))
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


def _sizes(numbers: Any) -> tuple[int, ...]:
    if type(numbers) is not tuple or not all(type(number) is int and 0 <= number < 2**40 for number in numbers):
        raise PickleError("the pickle is damaged: the shape or strides of a tensor are not numbers")
    return numbers


def _ordered_dict(*given: Any) -> dict[Any, Any]:
    if given:
        raise PickleError("refused: the pickle builds an OrderedDict from a list")
    return {}


class PickledGraph:
    """A graph, pickled as torch_geometric's ``Data``, or the storage inside one; `entries` is None before its state is set."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[str, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        # Version 1 of Data has the entries as its state; version 2 has them in the state of a GlobalStorage.
        inner = state.get("_mapping", state.get("_store", state)) if type(state) is dict else None
        found = inner.entries if type(inner) is PickledGraph else inner
        if type(found) is not dict or not all(type(name) is str for name in found):
            raise PickleError("the pickle is damaged: a graph without a mapping")
        self.entries = {name: value for name, value in found.items() if value is not None}


_NDARRAY = Constructor("numpy.ndarray", None)
STORAGE_KINDS = {("torch", f"{kind}Storage"): Constructor(kind, None) for kind in _DTYPES}


def _allowed() -> dict[tuple[str, str], Any]:
    """Return the allow-list, but for the loader of storages, which unpickles."""
    numpy_calls: dict[tuple[str, str], Callable[..., Any]] = {
        ("multiarray", "_reconstruct"): _reconstruct,
        ("multiarray", "scalar"): _scalar,
        ("numeric", "_frombuffer"): rebuild_array,
    }
    found: dict[tuple[str, str], Any] = {("numpy", "ndarray"): _NDARRAY}
    calls: dict[tuple[str, str], Callable[..., Any] | None] = {
        ("numpy", "dtype"): PickledDtype,
        ("_codecs", "encode"): _encode,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("collections", "OrderedDict"): _ordered_dict,
        # Later versions of torch_geometric write these beside a graph's mapping; nothing is built for them.
        ("torch_geometric.data.data", "DataEdgeAttr"): None,
        ("torch_geometric.data.data", "DataTensorAttr"): None,
    }
    for core in ("numpy.core", "numpy._core"):
        calls |= {(f"{core}.{module}", name): call for (module, name), call in numpy_calls.items()}
    for module in ("__builtin__", "builtins"):
        calls |= {(module, "bytes"): _empty_bytes, (module, "bytearray"): _bytearray}
    found |= {pair: Constructor(".".join(pair), call) for pair, call in calls.items()}
    found["torch_geometric.data.data", "Data"] = found["torch_geometric.data.storage", "GlobalStorage"] = PickledGraph
    return found


CONSTRUCTORS = _allowed()
