"""Reads pickles of plain data, NumPy arrays, tensors and graphs, and never runs code that a pickle names.

Reading takes three steps:

1. `_Scan` follows the operations without building anything. It refuses unknown operations, lengths that lie, deep nesting and
   containers in several places, all of which the C unpickler would accept.
2. The C unpickler of the standard library builds the value. `find_class` gives it only what
   `storeds.layouts.lmdb.pickled_values.CONSTRUCTORS` lists, by exact module and name.
3. `_finished` replaces arrays and graphs that the pickle filled in after it had declared them.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from storeds.layouts.lmdb.pickled_values import (
    CONSTRUCTORS,
    STORAGE_KINDS,
    Constructor,
    PendingArray,
    PickledGraph,
    PickleError,
    Storage,
    check_header,
    storage_kind_and_count,
    storage_of,
)

__all__ = ["MAX_DEPTH", "PickleError", "unpickle"]

MAX_DEPTH: Final = 100
_INTEGER = re.compile(rb"-?[0-9]{1,4000}L?")
_PLAIN = frozenset({int, float, str, bytes, bool, type(None), np.ndarray})


def unpickle(data: bytes | memoryview) -> Any:
    """Return the plain value that `data` pickles.

    Parameters
    ----------
    data : bytes or memoryview
        One pickle of protocol 0 to 5, and nothing after it. Text of Python 2 and bytearrays are returned as bytes.

    Raises
    ------
    PickleError
        The pickle is damaged, or names anything but plain data, arrays of numbers or text, tensors and graphs.
    """
    view = memoryview(data)
    if _has_known_layout(view):
        return _finish(_build(view, _Unpickler))
    scan = _scanned(view, 0, _Unpickler)
    if scan.at != len(view):
        raise PickleError("the pickle is damaged: bytes follow its value")
    value = _build(view, _Unpickler)
    if not scan.builds:
        return value
    _remember_layout(view, scan)
    return _finish(value)


def _scanned(view: memoryview, start: int, unpickler: type[pickle.Unpickler]) -> _Scan:
    """Return the scan of the pickle that begins at `start`; raises PickleError."""
    scan = _Scan(view, start)
    try:
        scan.run()
    except (ValueError, IndexError, KeyError) as error:
        # The error about a refused name says more. The unpickler stops at byte 0, which is not an operation.
        accepted = bytes(view[start : scan.accepted]).ljust(len(view) - start, b"\0")
        _build(memoryview(accepted), unpickler, part=True)
        if isinstance(error, PickleError):
            raise
        raise PickleError("the pickle is damaged or cut short") from None
    return scan


def _build(view: memoryview, unpickler: type[pickle.Unpickler], *, part: bool = False) -> Any:
    """Return the value that the C unpickler builds; from `part` of a pickle nothing, except the error about a refused name."""
    try:
        return unpickler(_Source(view), fix_imports=False, encoding="bytes").load()
    except PickleError:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        if not part:
            raise PickleError(f"the pickle is damaged: {error}") from None


# Records of one store often differ only in their long values, so their common layout is scanned once:
# 8 instead of 30 microseconds for an array of 3 KB (benchmarks/foreign_lmdb.py).

_BLOB = 256  # bytes of a value that is not part of the layout
_LAYOUTS = 64
_LONGEST_LAYOUT = 4096
_known: dict[int, list[tuple[int, int, bytes]]] = {}
"""Length of a pickle → the parts of its layout: where each begins and ends, and its bytes."""


def _has_known_layout(view: memoryview) -> bool:
    parts = _known.get(len(view))
    return parts is not None and all(view[start:end] == part for start, end, part in parts)


def _remember_layout(view: memoryview, scan: _Scan) -> None:
    starts = [0, *(end for _, end in scan.blobs)]
    ends = [*(start for start, _ in scan.blobs), len(view)]
    if scan.blobs and sum(ends) - sum(starts) <= _LONGEST_LAYOUT:
        if len(_known) >= _LAYOUTS:
            _known.clear()
        _known[len(view)] = [(start, end, bytes(view[start:end])) for start, end in zip(starts, ends, strict=True)]


class _Source:
    """A file for the C unpickler; its first `peek` returns all bytes, so that the unpickler parses one buffer without a copy."""

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data: memoryview | bytes = data

    def peek(self, size: int) -> memoryview | bytes:
        data, self._data = self._data, b""
        return data

    def read(self, size: int = -1) -> bytes:
        return b""

    readline = read


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = CONSTRUCTORS.get((module, name))
        if found is None:
            raise PickleError(f"refused: the pickle names {module}.{name}; only plain data and NumPy arrays are read")
        return found

    def persistent_load(self, given: Any) -> Any:
        raise PickleError("refused: the pickle refers to an object outside of it")


class _StorageUnpickler(pickle.Unpickler):
    """Reads the pickles at the beginning of a tensor's storage; they name the kind of the storage and call nothing."""

    def find_class(self, module: str, name: str) -> Any:
        found = STORAGE_KINDS.get((module, name))
        if found is None:
            raise PickleError(f"refused: a tensor's storage names {module}.{name}")
        return found

    def persistent_load(self, given: Any) -> Any:
        return _StorageHead(storage_kind_and_count(given))


class _StorageHead(tuple[Constructor, int]):
    """The kind and the count of a storage."""

    __slots__ = ()


def _load_storage(*given: Any) -> Storage:
    """Return a storage in the format of ``torch.save``: five pickles end to end, a count, and the numbers."""
    if len(given) != 1 or not isinstance(given[0], (bytes, bytearray)):
        raise PickleError("the pickle is damaged: a storage without its bytes")
    view, at, found = memoryview(given[0]), 0, []
    for _ in range(5):  # magic number, protocol, system, persistent id, names of the storages
        end = _scanned(view, at, _StorageUnpickler).at
        found.append(_build(view[at:end], _StorageUnpickler))
        at = end
    check_header(*found[:3])
    if type(found[3]) is not _StorageHead:
        raise PickleError("the pickle is damaged: a storage without kind and size")
    return storage_of(*found[3], view[at:])


CONSTRUCTORS["torch.storage", "_load_from_bytes"] = Constructor("torch.storage._load_from_bytes", _load_storage)


def _finish(value: Any) -> Any:
    try:
        return _finished(value, set())
    except RecursionError:  # the scan does not follow the nesting of graphs
        raise _nests() from None


def _finished(value: Any, seen: set[int]) -> Any:
    """Return a copy of `value` with finished arrays and graphs; `seen` holds the ids of visited containers."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, np.generic) or kind is _StorageHead or value == ():
        return value
    if kind is PendingArray and value.array is not None:
        return value.array
    if kind is bytearray:
        return bytes(value)
    if kind is PickledGraph and value.entries is not None:
        value, kind = value.entries, dict
    if kind not in (list, tuple, dict):
        raise PickleError("refused: the pickle holds a class or a half-built object")
    if id(value) in seen:
        raise _shared()
    seen.add(id(value))
    if kind is dict:
        return {_finished(key, seen): _finished(item, seen) for key, item in value.items()}
    return kind([item if type(item) in _PLAIN else _finished(item, seen) for item in value])


def _shared() -> PickleError:
    # A few bytes can double a list forty times, and a copy of it would not fit into memory.
    return PickleError("refused: it uses one list, dict or tuple in several places; plain records do not")


# Items on the stack of a scan: flags in the low bits, the nesting depth of a container above them. 0 is a plain value.
_LIST, _DICT, _TUPLE, _NAME, _OBJECT, _FLAGS = 1, 2, 4, 8, 16, 5
_TOO_DEEP = (MAX_DEPTH + 1) << _FLAGS


class _Scan:
    """Follows the operations of a pickle, with the nesting of each value instead of the value.

    Attributes
    ----------
    at : int
        Where the pickle ends, after `run`.
    accepted : int
        The operation that was last looked at; those before it are accepted.
    builds : bool
        Whether the pickle names something or holds a bytearray, so that its value needs `_finished`.
    blobs : list of tuple of int
        Where long bytes and texts begin and end; the scan does not depend on what is in them.
    """

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at, self.accepted = data, at, at
        self.blobs: list[tuple[int, int]] = []
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.memo: dict[int, int] = {}
        self.builds = False

    def run(self) -> None:
        """Go through the pickle up to its end; raises PickleError, IndexError or KeyError where it is refused or damaged."""
        data, stack, memo, at = self.data, self.stack, self.memo, self.at
        while True:
            code = data[at]
            if size := _SIZES[code]:
                at += size
                stack.append(_PUSHED[code])
            elif code == 0x94:  # MEMOIZE
                at += 1
                memo[len(memo)] = stack[-1]
            elif code in _SHORT:
                at += 2 + data[at + 1]
                stack.append(0)
            elif code == 0x71:  # BINPUT
                memo[data[at + 1]] = stack[-1]
                at += 2
            elif 0x85 <= code <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
                items = stack[0x84 - code :]
                del stack[0x84 - code :]
                self.contain(_TUPLE, items)
                at += 1
            elif code == 0x2E:  # STOP
                break
            else:
                self.accepted, self.at = at, at + 1
                _OPERATIONS[code](self)
                at = self.at
        self.at = at + 1
        if len(stack) != 1 or self.marks:
            raise PickleError("the pickle is damaged: there is more than one value on its stack")

    def take(self, size: int) -> memoryview:
        start = self.at
        self.at = start + size
        if self.at > len(self.data):
            raise PickleError(f"the pickle is cut short: {size} bytes are due, {len(self.data) - start} are there")
        return self.data[start : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        start, step = self.at, 256
        while (end := bytes(self.data[start : start + step]).find(b"\n")) < 0:
            if start + step >= len(self.data):
                raise PickleError("the pickle is cut short: a line does not end")
            step *= 16
        self.at = start + end + 1
        return bytes(self.data[start : start + end])

    # Operations.

    def unknown(self) -> None:
        code = self.data[self.at - 1]
        shown = repr(chr(code)) if 32 <= code < 127 else hex(code)
        raise PickleError(f"refused: the pickle uses operation {shown}, which plain data does not need")

    def protocol(self) -> None:
        if self.number(1) > 5:
            raise PickleError("refused: its pickle protocol is newer than 5")

    def frame(self) -> None:
        size = self.number(8)
        if size > len(self.data) - self.at:
            raise PickleError(f"the pickle is cut short: a frame of {size} bytes, {len(self.data) - self.at} are there")

    def blob(self, width: int) -> None:
        size = self.number(width)
        self.take(size)
        if size >= _BLOB:
            self.blobs.append((self.at - size, self.at))
        self.stack.append(0)

    def byte_array(self) -> None:
        self.builds = True
        self.blob(8)

    def text_line(self) -> None:
        self.line()
        self.stack.append(0)

    def integer_line(self) -> None:
        line = self.line()
        if not _INTEGER.fullmatch(line):
            raise PickleError(f"the pickle is damaged: {line[:20]!r} is not an integer")
        self.stack.append(0)

    def mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            raise _nests()
        self.marks.append(len(self.stack))

    def pop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def pop_mark(self) -> list[int]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def contain(self, kind: int, items: list[int]) -> None:
        """Push a container of `items`, which nests one level deeper than the deepest of them."""
        nesting = (max(items, default=0) >> _FLAGS) + 1 << _FLAGS
        if nesting >= _TOO_DEEP:
            raise _nests()
        self.stack.append(nesting | kind)

    def fill(self, kind: int, items: list[int]) -> None:
        """Put `items` into the container on top of the stack."""
        top = self.stack[-1]
        if not top & kind:
            raise PickleError("the pickle is damaged: it fills a value that is not a container")
        nesting = (max(items, default=0) >> _FLAGS) + 1 << _FLAGS
        if nesting >= _TOO_DEEP:
            raise _nests()
        self.stack[-1] = max(top, nesting | top & (1 << _FLAGS) - 1)

    def put(self, index: int) -> None:
        if index >= len(self.data):  # the C unpickler would allocate a memo of this size
            raise PickleError(f"the pickle is damaged: {len(self.data)} bytes refer to value {index}")
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        found = self.memo[index]
        if found >> _FLAGS:
            raise _shared()
        self.stack.append(found)

    def name(self) -> None:
        self.builds = True
        self.stack.append(_NAME)

    def name_lines(self) -> None:
        self.line(), self.line()
        self.name()

    def name_on_stack(self) -> None:
        del self.stack[-2:]
        self.name()

    def call(self) -> None:
        given, named = self.stack.pop(), self.stack[-1]
        if named != _NAME or not given & _TUPLE:
            raise PickleError("the pickle is damaged: it calls a value that is not a name")
        self.stack[-1] = _OBJECT

    def build(self) -> None:
        self.stack.pop()
        if not self.stack[-1] & _OBJECT:
            raise PickleError("refused: the pickle sets the state of a value that is not an array, a dtype or a graph")

    def persistent(self) -> None:
        self.stack[-1] = 0


def _nests() -> PickleError:
    return PickleError(f"refused: it nests deeper than {MAX_DEPTH} levels")


_SHORT = frozenset(b"UC\x8c\x8a")  # SHORT_BINSTRING, SHORT_BINBYTES, SHORT_BINUNICODE, LONG1
# Operations of a fixed size that push one value: their sizes, and what they push.
_SIZES, _PUSHED = [0] * 256, [0] * 256
for _codes, _size in ((b"N\x88\x89]})", 1), (b"K", 2), (b"M", 3), (b"J", 5), (b"G", 9)):
    for _code in _codes:
        _SIZES[_code] = _size
for _code, _kind in zip(b"]})", (_LIST, _DICT, _TUPLE), strict=True):
    _PUSHED[_code] = 1 << _FLAGS | _kind

_OPERATIONS: list[Callable[[_Scan], Any]] = [_Scan.unknown] * 256
for _name, _act in {
    "\x80": _Scan.protocol,
    "\x95": _Scan.frame,
    "IL": _Scan.integer_line,
    "FSV": _Scan.text_line,
    "TXB\x8b": lambda scan: scan.blob(4),  # BINSTRING, BINUNICODE, BINBYTES, LONG4
    "\x8d\x8e": lambda scan: scan.blob(8),  # BINUNICODE8, BINBYTES8
    "\x96": _Scan.byte_array,
    "(": _Scan.mark,
    "0": _Scan.pop,
    "1": _Scan.pop_mark,
    "l": lambda scan: scan.contain(_LIST, scan.pop_mark()),
    "d": lambda scan: scan.contain(_DICT, scan.pop_mark()),
    "t": lambda scan: scan.contain(_TUPLE, scan.pop_mark()),
    "a": lambda scan: scan.fill(_LIST, [scan.stack.pop()]),
    "e": lambda scan: scan.fill(_LIST, scan.pop_mark()),
    "s": lambda scan: scan.fill(_DICT | _OBJECT, [scan.stack.pop(), scan.stack.pop()]),
    "u": lambda scan: scan.fill(_DICT | _OBJECT, scan.pop_mark()),
    "p": lambda scan: scan.put(int(scan.line())),
    "r": lambda scan: scan.put(scan.number(4)),
    "g": lambda scan: scan.get(int(scan.line())),
    "h": lambda scan: scan.get(scan.number(1)),
    "j": lambda scan: scan.get(scan.number(4)),
    "c": _Scan.name_lines,
    "\x93": _Scan.name_on_stack,
    "R\x81": _Scan.call,  # REDUCE, NEWOBJ
    "b": _Scan.build,
    "Q": _Scan.persistent,
}.items():
    for _char in _name:
        _OPERATIONS[ord(_char)] = _act
