"""Reads pickles of plain data and NumPy arrays, and never runs code that a pickle names.

Three steps read a pickle:

1. `_checked` finds its operations. It refuses unknown ones, and sizes that lie: the C unpickler would allocate a memo of
   any size that six bytes ask for.
2. The C unpickler of the standard library builds the value. `find_class` gives it only what `_CONSTRUCTORS` lists, by exact
   module and name: functions and classes of this module, which check what they are given.
3. `_Copier` copies the value. It counts each visit of a shared object, so a few bytes cannot grow into gigabytes.
"""

from __future__ import annotations

import functools
import math
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np

from storeds.protocols import Array

__all__ = ["MAX_DEPTH", "CodecError", "unpickle"]

MAX_DEPTH: Final = 100
_SPARE_NODES = 100_000
_KEY_PARTS = 100
_SHARED = 64  # places in which a value may use an array; the reader of a record copies each


class CodecError(ValueError):
    """A value is damaged, or holds something that storeds does not read."""


def unpickle(data: bytes | memoryview) -> Any:
    """Return the plain value that `data` pickles.

    Parameters
    ----------
    data : bytes or memoryview
        One pickle of protocol 0 to 5, and nothing after it. Text of Python 2 and bytearrays are returned as bytes.

    Raises
    ------
    CodecError
        The pickle is damaged, or names anything but plain data and arrays of numbers or text.
    """
    view = memoryview(data)
    data, end, why = _checked(view)
    try:
        value = _Unpickler(data, len(view)).load()
    except CodecError:
        raise
    except Exception as error:  # damage can make the C unpickler and NumPy raise any exception
        raise CodecError(why or f"the pickle is damaged: {error}") from None
    if end != len(view):
        raise CodecError("the pickle is damaged: bytes follow its value")
    try:
        # Without sharing, a value has fewer parts than its pickle has bytes.
        return _Copier(len(view) + _SPARE_NODES).copy(value, MAX_DEPTH)
    except RecursionError:  # where the caller has used most of the stack
        raise CodecError("refused: it nests too deep") from None


# One operation with its arguments. A string of less than 40 bytes, such as a name, has a branch for its length.
_SIZED = b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(40))
_OPERATION = (
    rb"[]N\x88\x89)lt\x85-\x87aesub01R\x81\x93\x94Q]++|[UC\x8c\x8a](?:"
    + _SIZED
    + rb")|\((?!d)|[Kqh].|M..|[Jj].{4}|G.{8}"
    rb"|\x80[\0-\x05]|\x95.{8}|r..\0\0|p[0-9]{1,5}\n|[IFSVLg][^\n]*+\n|c[^\n]*+\n[^\n]*+\n"
)
_OPERATIONS = re.compile(b"(?:" + _OPERATION + b")*+", re.DOTALL)
_FAR_PUT = re.compile(rb"r(.{4})|p([0-9]{1,18})\n", re.DOTALL)
_STOP, _EMPTY_DICT, _MARK = b".}("
_WIDTHS = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"TXB\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""Operations with a long value, and how many bytes state its length."""
_NEW_MAPPING = b"cstoreds\nmapping\n)R"


def _checked(view: memoryview) -> tuple[memoryview | bytes, int, str | None]:
    """Return the pickle, where it ends, and why it is refused or None.

    In place of the operation to refuse and what follows are zeros, where the unpickler stops unless it refuses a name before.
    In place of dicts it builds `_Mapping`: hashing a tuple as a key may take forever, or overflow the stack. The lengths of
    frames then are too small, which the C unpickler ignores.
    """
    parts: list[memoryview | bytes] = []
    at = done = 0
    rewritten = False
    while found := _OPERATIONS.match(view, at):  # which may be empty
        at = found.end()
        code = view[at] if at < len(view) else None
        if code in _WIDTHS and (end := _end_of_value(view, at, _WIDTHS[code])) <= len(view):
            at = end
        elif code == _STOP:
            break
        elif code in (_EMPTY_DICT, _MARK):  # protocol 0 writes a mark and DICT
            parts += view[done:at], _NEW_MAPPING
            at = done = at + (1 if code == _EMPTY_DICT else 2)
            rewritten = True
        elif (place := _FAR_PUT.match(view, at)) and _place(place) < len(view):
            at = place.end()
        else:
            accepted = b"".join((*parts, view[done:at]))
            return accepted.ljust(len(view), b"\0"), at, _why_refused(view, at, code)
    if rewritten:
        return b"".join((*parts, view[done : at + 1])), at + 1, None
    return view[: at + 1], at + 1, None


def _end_of_value(view: memoryview, at: int, width: int) -> int:
    start = at + 1 + width
    return start + int.from_bytes(view[at + 1 : start], "little")


def _place(put: re.Match[bytes]) -> int:
    """Return the place in the memo that an operation names; the C unpickler allocates a memo up to it."""
    return int(put[2]) if put[2] else int.from_bytes(put[1], "little")


def _why_refused(view: memoryview, at: int, code: int | None) -> str:
    if code is None or code in _WIDTHS:
        return "the pickle is damaged or cut short"
    if place := _FAR_PUT.match(view, at):
        return f"the pickle is damaged: {len(view)} bytes refer to value {_place(place)}"
    shown = repr(chr(code)) if 32 <= code < 127 else hex(code)
    return f"refused: the pickle is damaged, or uses operation {shown}, which plain data does not need"


class _Source:
    """A file for the C unpickler; its first `peek` returns all bytes, so that the unpickler parses one buffer without a copy."""

    __slots__ = ("_data",)

    def __init__(self, data: memoryview | bytes) -> None:
        self._data = data

    def peek(self, size: int) -> memoryview | bytes:
        data, self._data = self._data, b""
        return data

    def read(self, size: int = -1) -> bytes:
        return b""

    readline = read


def _constructor(module: str, name: str) -> Any:
    found = _CONSTRUCTORS.get((module, name))
    if found is None:
        raise CodecError(f"refused: the pickle names {module}.{name}; only plain data and NumPy arrays are read")
    return found


class _Budget:
    """Counts what constructors copy: few bytes may call one for the same long text again and again."""

    def __init__(self, size: int) -> None:
        self._left = size + _SPARE_NODES

    def call(self, constructor: Any, *given: Any) -> Any:
        """Return what a constructor returns; raises CodecError."""
        made = constructor(*given)
        self._left -= made.itemsize if isinstance(made, np.generic) else len(made)
        if self._left < 0:
            raise CodecError("refused: it copies one text or number in so many places that it does not fit into memory")
        return made


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: memoryview | bytes, size: int) -> None:
        super().__init__(_Source(data), fix_imports=False, encoding="bytes")
        self._budget = _Budget(size)

    def find_class(self, module: str, name: str) -> Any:
        found = _constructor(module, name)
        # The budget and not `self`, which would refer to itself then and stay in memory.
        return _Constructor(str(found), functools.partial(self._budget.call, found)) if name in _COPYING else found

    def persistent_load(self, given: Any) -> Any:
        raise CodecError("refused: the pickle refers to an object outside of it")


class _Copier:
    """Copies a value into one without objects of this module.

    Parameters
    ----------
    nodes : int
        How many parts the copy may have. A list in several places counts in each, so that few bytes do not become gigabytes.
    """

    def __init__(self, nodes: int) -> None:
        self._left = nodes

    def copy(self, value: Any, depth: int) -> Any:
        """Return a copy of `value`, which may nest `depth` levels; raises CodecError."""
        kind = type(value)
        if kind in _PLAIN or isinstance(value, np.generic):
            return value
        if kind is _PendingArray and isinstance(value.array, list):
            return self.copy(value.array, depth)
        if kind is _PendingArray and value.array is not None:
            self._count(value.array.nbytes // _SHARED)
            return value.array
        if kind is bytearray:
            self._count(len(value))
            return bytes(value)
        if kind not in (list, tuple, _Mapping, dict):
            raise CodecError("refused: the pickle holds a class or a half-built object")
        if not depth:
            raise CodecError(f"refused: it nests deeper than {MAX_DEPTH} levels")
        self._count(len(value))
        if kind in (list, tuple):
            return kind([item if type(item) in _PLAIN else self.copy(item, depth - 1) for item in value])
        return {self.copy(key, depth - 1): self.copy(item, depth - 1) for key, item in value.items()}

    def _count(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise CodecError("refused: it uses one value in so many places that it does not fit into memory")


class _Constructor:
    """Stands for one name in a pickle, which can call it at most; it cannot set its state."""

    __slots__ = ("_call", "_name")

    def __init__(self, name: str, call: Callable[..., Any] | None = None) -> None:
        self._name, self._call = name, call or self._refuse

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)

    def _refuse(self, *given: Any) -> NoReturn:
        raise CodecError(f"refused: the pickle calls {self}")

    def __setstate__(self, state: Any) -> NoReturn:
        raise CodecError(f"refused: the pickle sets the state of {self}")

    def __str__(self) -> str:
        return self._name


class _Mapping(dict[Any, Any]):
    """A mapping while it is unpickled."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        # Hashing follows each place of a shared tuple, and does not limit its depth.
        super().__setitem__(_Copier(_KEY_PARTS).copy(key, MAX_DEPTH) if type(key) is tuple else key, value)


def _mapping(*given: Any) -> _Mapping:
    if given:
        raise CodecError("refused: the pickle builds an OrderedDict from a list")
    return _Mapping()


_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})

# Arrays.

_DTYPE = re.compile(r"[<>|=]?([biufcSU][0-9]{1,9}|[?bBhHiIlLqQefdFD])")
_MAX_ITEM = 1 << 30
_INTS = frozenset({int})
_LATIN_1 = ("latin1", b"latin1", "latin-1", b"latin-1")


class _Dtype:
    """A dtype while it is unpickled: the call gives its kind, the state its byte order."""

    __slots__ = ("dtype",)

    def __init__(self, spec: Any, align: Any = False, copy: Any = True) -> None:
        self.dtype = _dtype_of(_text(spec))

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) < 8 or state[2:5] != (None, None, None):
            raise CodecError("refused: a dtype with fields or parts; only numbers and text are read")
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise CodecError("the pickle is damaged: a dtype without a byte order")
        if order != "|":
            self.dtype = _in_order(self.dtype, order)


class _PendingArray:
    """An array while it is unpickled; None until the pickle sets the state of an array that it declared first."""

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]  # as an array

    def __init__(self, array: Array | list[Any] | None = None) -> None:
        self.array = array

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 5 or self.array is not None:
            raise CodecError("the pickle is damaged: the state of an array is not its five parts")
        _, shape, dtype, fortran, data = state
        is_of_objects = isinstance(dtype, _Dtype) and dtype.dtype.hasobject
        self.array = _listed(data, shape) if is_of_objects else _array(data, dtype, shape, "F" if fortran else "C")


@functools.lru_cache(64)
def _dtype_of(text: str) -> np.dtype[Any]:
    if text.lstrip("<>|=") in ("O", "O8", "O4"):
        return np.dtype(object)
    if not _DTYPE.fullmatch(text):
        raise CodecError(f"refused: an array of dtype {text[:40]!r}; only numbers and text are read")
    dtype: np.dtype[Any] = np.dtype(text)
    if not 0 < dtype.itemsize <= _MAX_ITEM:
        raise CodecError(f"refused: a dtype of {dtype.itemsize} bytes an item")
    return dtype


@functools.lru_cache(64)
def _in_order(dtype: np.dtype[Any], order: Any) -> np.dtype[Any]:
    return dtype.newbyteorder(order)


def _text(value: Any) -> str:
    if isinstance(value, bytes):  # Python 2 wrote it
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise CodecError("the pickle is damaged: a dtype or byte order is not text")
    return value


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if not isinstance(dtype, _Dtype):
        raise CodecError("the pickle is damaged: an array without a dtype")
    if dtype.dtype.hasobject:
        raise CodecError("refused: an array of objects; only numbers and text are read")
    if not isinstance(data, (bytes, bytearray)):
        raise CodecError(f"refused: an array whose content is a {type(data).__name__} instead of bytes")
    if type(shape) is not tuple or len(shape) > 32 or not _INTS.issuperset(map(type, shape)):
        raise CodecError("the pickle is damaged: an array without a shape")
    if order not in ("C", "F") or max(shape, default=0) > sys.maxsize:
        raise CodecError("the pickle is damaged: an array in an unknown order, or of an impossible size")
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise CodecError(f"the pickle is damaged: {len(data)} bytes for an array of {dtype.dtype} {shape}")
    if 0 in shape:
        return np.empty(shape, dtype.dtype)
    if type(data) is bytes:
        return np.ndarray(shape, dtype.dtype, data, order="F" if order == "F" else "C")
    # This keeps the buffer, so that the pickle cannot extend the bytearray, which may move it.
    numbers: Array = np.frombuffer(memoryview(data).toreadonly(), dtype.dtype)
    return numbers.reshape(shape, order="F" if order == "F" else "C")


def _listed(data: Any, shape: Any) -> list[Any]:
    """Return an array of objects, such as texts of several lengths, as a list, or a list of rows. Its items are plain data too."""
    if type(shape) is not tuple or not _INTS.issuperset(map(type, shape)) or not 0 < len(shape) <= 2:
        raise CodecError("refused: an array of objects that has not one or two dimensions")
    if type(data) is not list or math.prod(shape) != len(data) or min(shape) < 0:
        raise CodecError("the pickle is damaged: an array of objects of another size")
    if len(shape) == 1 or not data:  # an empty one may have any number of rows
        return data
    rows, wide = shape
    return [data[at * wide : (at + 1) * wide] for at in range(rows)]  # in this order even if the array is in Fortran's


def _reconstruct(kind: Any, shape: Any, code: Any) -> _PendingArray:
    if kind is not _NDARRAY:
        raise CodecError("the pickle is damaged: it rebuilds something that is not an array")
    return _PendingArray()


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (1,), "C")[0]


def _rebuild_array(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> _PendingArray:
    """Return the array that protocol 5 pickles as a call; `axes` permutes it where its order is neither C nor Fortran."""
    if _text(order) != "K":
        return _PendingArray(_array(data, dtype, shape, _text(order)))
    array = _array(data, dtype, shape, "C")
    if axes is None:
        return _PendingArray(array)
    if type(axes) is not tuple or not all(type(axis) is int for axis in axes):
        raise CodecError("the pickle is damaged: the axes of an array are not numbers")
    if sorted(axes) != list(range(array.ndim)):
        raise CodecError(f"the pickle is damaged: an array of {array.ndim} dimensions with the axes {str(axes)[:40]}")
    return _PendingArray(array.transpose(axes))


# Bytes: protocols before 3 write them as a call.


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in _LATIN_1:
        raise CodecError("refused: the pickle encodes text in another encoding than latin-1")
    return text.encode("latin-1")


def _empty_bytes(*given: Any) -> bytes:
    if given:
        raise CodecError("refused: the pickle calls bytes with an argument")
    return b""


_NDARRAY = _Constructor("numpy.ndarray")
_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("storeds", "mapping"): _mapping,  # `_checked` writes it
    ("collections", "OrderedDict"): _mapping,
    ("_codecs", "encode"): _encode,
    **{(module, "bytes"): _empty_bytes for module in ("__builtin__", "builtins")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _rebuild_array for core in ("core", "_core")},
}
_COPYING = ("encode", "scalar")
"""Those that return a copy of what they are given."""
_CONSTRUCTORS: dict[tuple[str, str], Any] = {
    **{pair: _Constructor(".".join(pair), call) for pair, call in _CALLS.items()},
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
}
"""The allow-list: what a pickle gets for a name."""
