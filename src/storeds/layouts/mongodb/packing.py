"""Packs ids, names and labels of millions of documents in one int64 array, which an index file can hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import bson
import numpy as np
from bson import Int64, ObjectId

from storeds.protocols import Array

__all__ = ["IdPacker", "Packed", "id_of", "key_of", "pack_ids", "pack_items", "pack_table", "unpack_table"]

_ITEMS, _INTS, _OBJECT_IDS = 0, 1, 2
_WIDTHS = (0, 8, 12)
_HEADER = 4  # words per list: kind, width of an item, number of items, bytes of data


class Packed:
    """A list of byte strings, end to end.

    Parameters
    ----------
    kind : int
        The kind of ids: integers, ObjectIds, or else BSON.
    width : int
        The length of each item; 0 if lengths differ.
    data : array of uint8
    ends : array of int64
        Where each item ends; empty if all have the same length.
    """

    def __init__(self, kind: int, width: int, data: Array, ends: Array) -> None:
        self.kind, self.width, self.data, self.ends = kind, width, data, ends

    def __len__(self) -> int:
        return len(self.data) // self.width if self.width else len(self.ends)

    def __getitem__(self, at: int) -> bytes:
        if self.width:
            return self.data[at * self.width : (at + 1) * self.width].tobytes()
        return self.data[int(self.ends[at - 1]) if at else 0 : int(self.ends[at])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[at] for at in range(len(self)))


class IdPacker:
    """Packs ids one by one: all as integers, all as ObjectIds, or each as BSON."""

    def __init__(self) -> None:
        self._kind: int | None = None
        self._data = bytearray()
        self._ends = array("q")

    def add(self, id: Any) -> None:
        """Add an id."""
        kind = _kind_of(id)
        if self._kind is None:
            self._kind = kind
        elif self._kind not in (kind, _ITEMS):
            self._generalise()
        self._add(id)

    def _add(self, id: Any) -> None:
        self._data += key_of(self._kind or _ITEMS, id)
        if self._kind == _ITEMS:
            self._ends.append(len(self._data))

    def _generalise(self) -> None:
        earlier = self.finish()
        self._kind, self._data = _ITEMS, bytearray()
        for key in earlier:
            self._add(id_of(earlier.kind, key))

    def finish(self) -> Packed:
        """Return the packed ids."""
        kind = self._kind or _ITEMS
        return Packed(kind, _WIDTHS[kind], np.frombuffer(self._data, np.uint8), np.array(self._ends, np.int64))


def _kind_of(id: Any) -> int:
    if isinstance(id, int) and not isinstance(id, bool):
        return _INTS
    return _OBJECT_IDS if isinstance(id, ObjectId) else _ITEMS


def key_of(kind: int, id: Any) -> bytes:
    """Return the bytes of `id` in a list of this kind; empty if the list cannot hold it."""
    if kind != _ITEMS and _kind_of(id) != kind:
        return b""
    if kind == _INTS:
        return int(id).to_bytes(8, "little", signed=True)
    if kind == _OBJECT_IDS:
        return bytes(id.binary)
    # MongoDB stores integers in two sizes and compares them by value, so they get one form.
    return bson.encode({"": Int64(id) if _kind_of(id) == _INTS else id})


def id_of(kind: int, key: bytes) -> Any:
    """Return the id of a key."""
    if kind == _INTS:
        return int.from_bytes(key, "little", signed=True)
    return ObjectId(key) if kind == _OBJECT_IDS else bson.decode(key)[""]


def pack_ids(ids: Iterable[Any]) -> Packed:
    """Pack ids."""
    packer = IdPacker()
    for id in ids:
        packer.add(id)
    return packer.finish()


def pack_items(items: Sequence[bytes]) -> Packed:
    """Pack byte strings."""
    ends = np.cumsum([len(item) for item in items], dtype=np.int64)
    return Packed(_ITEMS, 0, np.frombuffer(b"".join(items), np.uint8), ends)


def pack_table(lists: Sequence[Packed]) -> Array:
    """Pack several lists in one int64 array."""
    heads = [[packed.kind, packed.width, len(packed), len(packed.data)] for packed in lists]
    words: list[Array] = [np.array([len(lists)], "<i8"), np.array(heads, "<i8").reshape(-1)]
    for packed in lists:
        padding = np.zeros(-len(packed.data) % 8, np.uint8)
        words += [packed.ends.astype("<i8"), np.concatenate([packed.data, padding]).view("<i8")]
    return np.concatenate(words)


def unpack_table(table: Array) -> list[Packed]:
    """Return the lists of a table as views; raises ValueError for any other array."""
    count = int(table[0]) if len(table) else 0
    at = 1 + _HEADER * count
    if not 0 < count < 8 or len(table) < at:
        raise ValueError("not a table of packed lists")
    lists = []
    for kind, width, length, size in table[1:at].reshape(count, _HEADER).tolist():
        ends = table[at : at + (0 if width else length)]
        at += len(ends)
        lists.append(Packed(kind, width, table[at : at + (size + 7) // 8].view(np.uint8)[:size], ends))
        at += (size + 7) // 8
    if at != len(table):
        raise ValueError("a table of packed lists that was cut short")
    return lists
