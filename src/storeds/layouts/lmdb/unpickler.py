"""Reads pickles of plain data, NumPy arrays and tensors, and runs nothing that they name.

The standard machine imports what a pickle names and calls it, and allocates what a pickle claims. This one knows plain data
by itself and a few names, each by its exact module and name, for which it builds the value with code of its own; at
the first other name it stops. No object of a pickle's choosing is ever made, so nothing is there to be walked around.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from storeds.layouts.lmdb.pickled_arrays import (
    CALLS,
    KNOWN,
    MAX_DEPTH,
    Name,
    PendingArray,
    PickledDtype,
    PickleError,
    check_depth,
)
from storeds.layouts.lmdb.pickled_tensors import (
    LOAD_STORAGE,
    OBJECTS,
    TORCH_CALLS,
    TORCH_NAMES,
    PendingObject,
    Storage,
    check_header,
    persistent_storage,
    storage_of,
)

__all__ = ["MAX_DEPTH", "PickleError", "unpickle"]

VIEW_FROM = 4096
_HALF_BUILT = (Name, PendingArray, PickledDtype, PendingObject, Storage)
_NAMES = KNOWN | TORCH_NAMES
_CALLS: dict[Name, Callable[..., Any]] = {**CALLS, **TORCH_CALLS}
_INTEGER = re.compile(rb"-?[0-9]{1,4000}L?")
_DOUBLE = struct.Struct(">d")


def unpickle(data: bytes | memoryview, *, views: bool = False) -> Any:
    """Return the plain value that `data` pickles.

    Parameters
    ----------
    data : bytes or memoryview
        A pickle of protocol 0 to 5, and nothing after it. Text of Python 2 comes as bytes.
    views : bool
        Return byte strings of 4 KiB and more as views into `data`, and let arrays lie in it too.

    Raises
    ------
    PickleError
        It is damaged, or names anything but plain data and NumPy arrays of numbers or text; the message says what.
    """
    machine = _Machine(memoryview(data), views)
    try:
        return machine.run()
    except PickleError:
        raise
    except (IndexError, KeyError, struct.error):
        raise PickleError("the pickle is damaged or cut short") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise PickleError(f"the pickle is damaged: {error}") from None


class _Machine:
    """The stack, the memo and the marks of one pickle being read."""

    def __init__(self, data: memoryview, views: bool) -> None:
        self.data, self.views, self.at = data, views, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.made = 0

    def run(self) -> Any:
        value = self.next()
        if self.at != len(self.data):
            raise PickleError("the pickle is damaged: more is there than one value")
        return value

    def next(self) -> Any:
        """Read the pickle that begins here; several may lie end to end."""
        data, table = self.data, self.TABLE
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                break
            act = table.get(code)
            if act is None:
                raise PickleError(f"refused: the pickle uses operation {_shown(code)}, which plain data does not need")
            act(self)
        if len(self.stack) != 1 or self.marks:
            raise PickleError("the pickle is damaged: more is there than one value")
        value = self.stack.pop()
        if isinstance(value, _HALF_BUILT):
            raise PickleError("refused: the pickle is of a class or of a half-built object")
        if self.made > MAX_DEPTH:
            check_depth(value)
        return value

    # Reading what follows an operation.

    def take(self, size: int) -> memoryview:
        start = self.at
        self.at = start + size
        if size < 0 or self.at > len(self.data):
            raise PickleError(f"the pickle is cut short: {size} bytes are due, {len(self.data) - start} are there")
        return self.data[start : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        end = self.at
        while self.data[end] != 0x0A:
            end += 1
        found = bytes(self.data[self.at : end])
        self.at = end + 1
        return found

    def blob(self, size: int) -> None:
        found = self.take(size)
        self.stack.append(found if self.views and size >= VIEW_FROM else bytes(found))

    def text(self, size: int) -> None:
        self.stack.append(str(self.take(size), "utf-8", "surrogatepass"))

    # Operations.

    def pop_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            raise PickleError(f"refused: it nests deeper than {MAX_DEPTH} levels")
        self.marks.append(len(self.stack))

    def protocol(self) -> None:
        if self.number(1) > 5:
            raise PickleError("refused: its pickle protocol is newer than 5")

    def push_container(self, value: Any) -> None:
        self.made += 1
        self.stack.append(value)

    def append(self) -> None:
        item = self.stack.pop()
        self.top(list).append(item)

    def appends(self) -> None:
        items = self.pop_mark()
        self.top(list).extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.top(dict).update(_pairs([key, value]))

    def set_items(self) -> None:
        items = self.pop_mark()
        self.top(dict).update(_pairs(items))

    def top(self, kind: type[Any]) -> Any:
        # A container may be filled only where it was made, before anything refers to it.
        if type(self.stack[-1]) is not kind:
            raise PickleError("the pickle is damaged: it fills what is no container")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise PickleError("the pickle is damaged: its stack is empty")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.push_container(items)

    def put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def get(self, number: int) -> None:
        found = self.memo[number]
        if isinstance(found, (list, dict, tuple)):
            # A few bytes that double a list forty times would not fit into any memory once it is copied.
            raise PickleError("refused: it uses one list, dict or tuple in several places; plain records do not")
        self.stack.append(found.value if isinstance(found, PendingArray) else found)

    def old_integer(self) -> None:
        line = self.line()
        if not _INTEGER.fullmatch(line):
            raise PickleError(f"the pickle is damaged: {line[:20]!r} is no integer")
        self.stack.append({b"00": False, b"01": True}.get(line, int(line.rstrip(b"L"))))

    def old_string(self) -> None:
        line = self.line()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise PickleError("the pickle is damaged: a string lacks its quotes")
        self.stack.append(codecs.escape_decode(line[1:-1])[0])  # as pickle itself does

    def find(self, module: str, name: str) -> None:
        known = _NAMES.get((module, name))
        if known is None:
            raise PickleError(f"refused: the pickle names {module}.{name}; only plain data and NumPy arrays are read")
        self.stack.append(known)

    def old_name(self) -> None:
        self.find(self.line().decode(), self.line().decode())

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("the pickle is damaged: a class without a name")
        self.find(module, name)

    def new_object(self) -> None:
        given, name = self.stack.pop(), self.stack[-1]
        if not isinstance(name, Name) or name not in OBJECTS or given != ():
            raise PickleError(f"refused: the pickle builds an object of {name}; only plain data are read")
        self.stack[-1] = PendingObject(name)

    def reduce(self) -> None:
        given, known = self.stack.pop(), self.stack[-1]
        if not isinstance(known, Name) or type(given) is not tuple:
            raise PickleError("the pickle is damaged: it calls what is no name")
        self.made += 1
        call = _load_storage if known == LOAD_STORAGE else _CALLS.get(known)
        if call is None:
            raise PickleError(f"refused: the pickle calls {known}")
        self.stack[-1] = call(*given)

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, (PendingArray, PickledDtype, PendingObject)):
            raise PickleError(f"refused: the pickle sets the state of a {type(target).__name__}")
        self.made += 1
        self.stack[-1] = target.set_state(state)

    def persistent(self) -> None:
        raise PickleError("refused: the pickle refers to an object outside of it")

    TABLE: ClassVar[dict[int, Callable[[_Machine], Any]]] = {}


class _StorageMachine(_Machine):
    """Reads the pickles at the beginning of a tensor's storage, which may name a storage's kind, and call nothing."""

    def reduce(self) -> None:
        raise PickleError("refused: a tensor's storage that calls something")

    def persistent(self) -> None:
        self.stack[-1] = persistent_storage(self.stack[-1])


def _load_storage(*given: Any) -> Storage:
    """Return what ``torch.save`` wrote of one storage: five pickles end to end, a count, and the numbers."""
    if len(given) != 1 or not isinstance(given[0], (bytes, memoryview)):
        raise PickleError("the pickle is damaged: a storage without its bytes")
    machine = _StorageMachine(memoryview(given[0]), True)
    check_header(machine.next(), machine.next(), machine.next())
    kind, count = machine.next()
    machine.next()  # the storage's own name
    return storage_of(kind, count, machine.data[machine.at :])


def _pairs(items: list[Any]) -> dict[Any, Any]:
    for key in items[::2]:
        if isinstance(key, tuple):
            check_depth(key)  # its hash takes C's stack at every level, which ends without an exception
    return dict(zip(items[::2], items[1::2], strict=True))


def _shown(code: int) -> str:
    return repr(chr(code)) if 32 <= code < 127 else hex(code)


def _signed(machine: _Machine, size: int) -> int:
    return int.from_bytes(machine.take(size), "little", signed=True)


def _push(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value(machine))


_Machine.TABLE = {
    0x80: _Machine.protocol,
    0x95: lambda m: m.take(8),  # FRAME: only tells how much may be read ahead
    ord("("): _Machine.mark,
    ord("0"): lambda m: m.stack.pop(),
    ord("1"): _Machine.pop_mark,
    ord("N"): _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    ord("I"): _Machine.old_integer,
    ord("L"): _Machine.old_integer,
    ord("J"): _push(lambda m: _signed(m, 4)),
    ord("K"): _push(lambda m: m.number(1)),
    ord("M"): _push(lambda m: m.number(2)),
    0x8A: _push(lambda m: _signed(m, m.number(1))),
    0x8B: _push(lambda m: _signed(m, m.number(4))),
    ord("F"): _push(lambda m: float(m.line())),
    ord("G"): _push(lambda m: _DOUBLE.unpack(m.take(8))[0]),
    ord("S"): _Machine.old_string,
    ord("T"): lambda m: m.blob(m.number(4)),
    ord("U"): lambda m: m.blob(m.number(1)),
    ord("B"): lambda m: m.blob(m.number(4)),
    ord("C"): lambda m: m.blob(m.number(1)),
    0x8E: lambda m: m.blob(m.number(8)),
    0x96: lambda m: m.blob(m.number(8)),  # a bytearray, which nobody is to change here
    ord("V"): _push(lambda m: str(m.line(), "raw-unicode-escape")),
    ord("X"): lambda m: m.text(m.number(4)),
    0x8C: lambda m: m.text(m.number(1)),
    0x8D: lambda m: m.text(m.number(8)),
    ord("]"): lambda m: m.push_container([]),
    ord("l"): lambda m: m.push_container(m.pop_mark()),
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord(")"): lambda m: m.push_container(()),
    ord("t"): lambda m: m.push_container(tuple(m.pop_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("}"): lambda m: m.push_container({}),
    ord("d"): lambda m: m.push_container(_pairs(m.pop_mark())),
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("p"): lambda m: m.put(int(m.line())),
    ord("q"): lambda m: m.put(m.number(1)),
    ord("r"): lambda m: m.put(m.number(4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("g"): lambda m: m.get(int(m.line())),
    ord("h"): lambda m: m.get(m.number(1)),
    ord("j"): lambda m: m.get(m.number(4)),
    ord("c"): _Machine.old_name,
    0x93: _Machine.stack_name,
    ord("R"): lambda m: m.reduce(),
    0x81: _Machine.new_object,
    ord("b"): _Machine.build,
    ord("Q"): lambda m: m.persistent(),
}
