"""The names that a pickle of NumPy data uses, and what is built for each; none of NumPy's own functions is called for it."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from storeds.protocols import Array

__all__ = ["CALLS", "KNOWN", "MAX_DEPTH", "Name", "PendingArray", "PickleError", "PickledDtype", "check_depth"]


_DTYPE = re.compile(r"[<>|=]?([biufcSU][0-9]{1,9}|[?bBhHiIlLqQefdFD])")
_MAX_ITEM = 1 << 30
_LATIN_1 = ("latin1", b"latin1", "latin-1", b"latin-1")


class PickleError(ValueError):
    """A pickle is damaged, or holds what is not read."""


class Name(str):
    """A class or function that a pickle names; only its name, never the thing."""

    __slots__ = ()


class PickledDtype:
    """A dtype as it is being unpickled: its kind comes first, its byte order later."""

    __slots__ = ("dtype",)

    def __init__(self, spec: Any, align: Any = False, copy: Any = True) -> None:
        self.dtype = _dtype_of(_text(spec))

    def set_state(self, state: Any) -> PickledDtype:
        """Take over the byte order."""
        if type(state) is not tuple or len(state) < 8 or any(part is not None for part in state[2:5]):
            raise PickleError("refused: a dtype with fields or parts; only numbers and text are read")
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise PickleError("the pickle is damaged: a dtype without a byte order")
        if order != "|":
            self.dtype = _in_order(self.dtype, order)
        return self


class PendingArray:
    """An array before its state has come."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Array | None = None

    def set_state(self, state: Any) -> Array:
        """Make the array from ``(version, shape, dtype, is Fortran order, bytes)``."""
        if type(state) is not tuple or len(state) != 5 or self.value is not None:
            raise PickleError("the pickle is damaged: an array without its five parts")
        _, shape, dtype, fortran, data = state
        self.value = _array(data, dtype, shape, "F" if fortran else "C")
        return self.value


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
    if isinstance(value, bytes):  # as Python 2 wrote it
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise PickleError("the pickle is damaged: a dtype or byte order that is no text")
    return value


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if not isinstance(dtype, PickledDtype):
        raise PickleError("the pickle is damaged: an array without a dtype")
    if not isinstance(data, (bytes, memoryview)):
        raise PickleError(f"refused: an array whose content is a {type(data).__name__}, not bytes")
    if type(shape) is not tuple or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise PickleError("the pickle is damaged: an array without a shape")
    if order not in ("C", "F") or len(shape) > 32:
        raise PickleError("the pickle is damaged: an array in no known order, or of too many dimensions")
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise PickleError(f"the pickle is damaged: {len(data)} bytes for an array of {dtype.dtype} {shape}")
    if not len(data):
        return np.empty(shape, dtype.dtype, order="C")
    return np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> PendingArray:
    if kind is not _NDARRAY:
        raise PickleError("the pickle is damaged: it rebuilds what is no array")
    return PendingArray()


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (1,), "C")[0]


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Array:
    if _text(order) != "K":
        return _array(data, dtype, shape, _text(order))
    # Neither of C's order nor of Fortran's: the array as it lay in memory, and the order of its axes.
    array = _array(data, dtype, shape, "C")
    if axes is None:
        return array
    if type(axes) is not tuple or not all(type(axis) is int for axis in axes):
        raise PickleError("the pickle is damaged: an array with permuted axes that are no numbers")
    if sorted(axes) != list(range(array.ndim)):
        raise PickleError(f"the pickle is damaged: an array of {array.ndim} dimensions with the axes {str(axes)[:40]}")
    return array.transpose(axes)


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in _LATIN_1:
        raise PickleError("refused: the pickle encodes text, and not as latin1, which is how bytes are written")
    return text.encode("latin-1")


def _no_bytes(*given: Any) -> bytes:
    if given:
        raise PickleError("refused: the pickle calls bytes with an argument")
    return b""


def _bytearray(*given: Any) -> bytes | memoryview:
    # As bytes: nobody is to change it here. With a number it would be a way to ask for any amount of memory.
    if not given:
        return b""
    data, *encoding = given
    if not encoding and isinstance(data, (bytes, memoryview)):
        return data
    if len(encoding) == 1 and isinstance(data, str) and encoding[0] in _LATIN_1:
        return data.encode("latin-1")
    raise PickleError("refused: the pickle calls bytearray with what is neither bytes nor text in latin-1")


def _never(*given: Any) -> Any:
    raise PickleError("refused: the pickle makes an array out of thin air")


_NDARRAY = Name("numpy.ndarray")
_RULES: tuple[tuple[tuple[tuple[str, str], ...], Name, Callable[..., Any]], ...] = (
    ((("numpy", "ndarray"),), _NDARRAY, _never),
    ((("numpy", "dtype"),), Name("numpy.dtype"), PickledDtype),
    (
        (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
        Name("numpy._core.multiarray._reconstruct"),
        _reconstruct,
    ),
    (
        (("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")),
        Name("numpy._core.multiarray.scalar"),
        _scalar,
    ),
    (
        (("numpy._core.numeric", "_frombuffer"), ("numpy.core.numeric", "_frombuffer")),
        Name("numpy._core.numeric._frombuffer"),
        _from_buffer,
    ),
    ((("_codecs", "encode"),), Name("_codecs.encode"), _encode),
    # Empty bytes before protocol 3.
    ((("__builtin__", "bytes"), ("builtins", "bytes")), Name("builtins.bytes"), _no_bytes),
    # Before protocol 5.
    ((("__builtin__", "bytearray"), ("builtins", "bytearray")), Name("builtins.bytearray"), _bytearray),
)
KNOWN = {pair: name for pairs, name, _ in _RULES for pair in pairs}
CALLS = {name: call for _, name, call in _RULES}


MAX_DEPTH = 100
_CONTAINERS = (list, tuple, dict)


def check_depth(value: Any) -> None:
    """Raise PickleError if lists, tuples and dicts nest too deep in `value`, which is a tree: level by level."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for holder in level for item in _items(holder) if isinstance(item, _CONTAINERS)]
        if not level:
            return
    raise PickleError(f"refused: it nests deeper than {MAX_DEPTH} levels")


def _items(holder: Any) -> Iterable[Any]:
    if isinstance(holder, dict):
        return itertools.chain(holder, holder.values())
    return holder if isinstance(holder, _CONTAINERS) else ()
