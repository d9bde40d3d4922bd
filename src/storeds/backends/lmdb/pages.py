"""Reads and checks the pages of LMDB files, because LMDB itself crashes on damaged ones.

`LmdbPages` reads without a memory map and checks every page, so damage is a ValueError. It is several times slower, so
storeds uses it for damaged files (``?read=safe``), and for the top pages of the trees when a store is opened.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["NO_PAGE", "DamagedPageError", "Header", "LmdbPages", "Tree"]

NO_PAGE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Header:
    """The newer meta page: page size, root of the main database, last page, id of the last transaction."""

    page_size: int
    root: int
    last: int
    transaction: int


_HEADER = struct.Struct("<QHHHH")  # page number, unused, flags, lower and upper end of the free space
_HEADER_SIZE = _HEADER.size
_NODE = struct.Struct("<HHHH")  # low and high half of a size or page number, flags, size of the key
_NODE_SIZE = _NODE.size
_NUMBER = struct.Struct("<Q")
_TREE = struct.Struct("<IHHQQQQQ")  # as LMDB's MDB_db: unused, flags, depth, pages of three sorts, entries, root
_BRANCH, _LEAF, _OVERFLOW, _DIRTY = 1, 2, 4, 0x10
_BIG, _SUBTREE, _DUPLICATES = 1, 2, 4
_DEPTH = 32  # LMDB's own limit
_KEPT = 256  # branch pages in memory

Page = tuple[bytes, int, list[int]]  # bytes, flags, places of its nodes


class DamagedPageError(ValueError):
    """A page is damaged."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One named database."""

    root: int
    entries: int


class LmdbPages:
    """The pages of an LMDB file that does not change. Thread-safe.

    Parameters
    ----------
    descriptor : int
        Of the file, open for reading; its owner closes it.
    header : Header
    """

    def __init__(self, descriptor: int, header: Header) -> None:
        self._descriptor = descriptor
        self._size, self._last, self._main = header.page_size, header.last, header.root
        self._kept: dict[int, Page] = {}

    def tree(self, name: bytes) -> Tree | None:
        """Return the named database, or None if it does not exist; raises DamagedPageError."""
        found = self._find(self._main, name)
        if found is None:
            return None
        flags, value = found
        if not flags & _SUBTREE or flags & _DUPLICATES or len(value) != _TREE.size:
            raise DamagedPageError(f"database {name.decode()!r} has no valid entry")
        _, _, _, _, _, _, entries, root = _TREE.unpack(value)
        return Tree(root, entries)

    def get(self, tree: Tree, key: bytes) -> bytes | None:
        """Return the value of a key, or None; raises DamagedPageError."""
        found = self._find(tree.root, key)
        if found is None:
            return None
        flags, value = found
        if flags & (_SUBTREE | _DUPLICATES):
            raise DamagedPageError("a value is a tree")
        return value

    def check_top(self, tree: Tree, most: int) -> None:
        """Raise DamagedPageError if one of the top `most` pages of a tree is damaged."""
        waiting = deque([] if tree.root == NO_PAGE else [tree.root])
        seen: set[int] = set()
        while waiting and len(seen) < most:
            number = waiting.popleft()
            if number in seen:
                raise DamagedPageError(f"page {number} is twice in a tree")
            seen.add(number)
            page = self._page(number)
            try:
                waiting.extend(self._children(page))
            except DamagedPageError as error:
                raise DamagedPageError(f"page {number}: {error}") from None

    def _children(self, page: Page) -> Iterator[int]:
        """Check all nodes of a page, and yield the child pages of a branch page."""
        data, flags, places = page
        previous = b""
        for at, place in enumerate(places):
            low, high, kind, size = self._node(data, place)
            key = self._key(data, place, size)
            if at and key <= previous:
                raise DamagedPageError("its keys do not ascend")
            previous = key
            if flags == _BRANCH:
                child = low | high << 16 | kind << 32
                self._check_number(child)
                yield child
            elif kind & _BIG:
                self._overflow_at(data, place, size)
            elif place + _NODE_SIZE + size + (low | high << 16) > len(data):
                raise DamagedPageError("a value ends outside of its page")

    def _find(self, root: int, key: bytes) -> tuple[int, bytes] | None:
        """Return flags and value of a node of a tree."""
        if root == NO_PAGE:
            return None
        number = root
        for _ in range(_DEPTH):
            page = self._page(number)
            data, flags, places = page
            if flags == _LEAF:
                return self._value(page, key)
            low, high, kind, _ = self._node(data, places[self._search(page, key, first=1) - 1])
            number = low | high << 16 | kind << 32
        raise DamagedPageError("a tree is deeper than LMDB's limit")

    def _search(self, page: Page, key: bytes, *, first: int) -> int:
        """Return the number of nodes of a page with a key up to `key`; the `first` nodes have no key."""
        data, _, places = page
        low, high = first, len(places)
        while low < high:
            middle = (low + high) // 2
            place = places[middle]
            if self._key(data, place, self._node(data, place)[3]) <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def _value(self, page: Page, key: bytes) -> tuple[int, bytes] | None:
        data, _, places = page
        number = self._search(page, key, first=0)
        if not number:
            return None
        place = places[number - 1]
        low, high, flags, size = self._node(data, place)
        if self._key(data, place, size) != key:
            return None
        length = low | high << 16
        if flags & _BIG:
            return flags, self._overflow(self._overflow_at(data, place, size), length)
        begin = place + _NODE_SIZE + size
        if begin + length > len(data):
            raise DamagedPageError("a value ends outside of its page")
        return flags, data[begin : begin + length]

    def _node(self, data: bytes, place: int) -> tuple[int, int, int, int]:
        # Checked at each use: a damaged node loses only its own record.
        if not int.from_bytes(data[14:16], "little") <= place <= len(data) - _NODE_SIZE:
            raise DamagedPageError("a node lies outside of its page")
        node: tuple[int, int, int, int] = _NODE.unpack_from(data, place)
        return node

    def _key(self, data: bytes, place: int, size: int) -> bytes:
        begin = place + _NODE_SIZE
        if begin + size > len(data):
            raise DamagedPageError("a key ends outside of its page")
        return data[begin : begin + size]

    def _overflow_at(self, data: bytes, place: int, size: int) -> int:
        begin = place + _NODE_SIZE + size
        if begin + _NUMBER.size > len(data):
            raise DamagedPageError("a value ends outside of its page")
        number: int = _NUMBER.unpack_from(data, begin)[0]
        self._check_number(number)
        return number

    def _overflow(self, number: int, length: int) -> bytes:
        """Return a value that is stored in overflow pages."""
        if length > (self._last + 1 - number) * self._size - _HEADER_SIZE:
            raise DamagedPageError(f"a value of {length} bytes at page {number} ends outside of the file")
        data = self._read(number, _HEADER_SIZE + length)
        found, _, flags, _, _ = _HEADER.unpack_from(data)
        pages = int.from_bytes(data[12:16], "little")
        if found != number or flags & ~_DIRTY != _OVERFLOW or pages * self._size < len(data):
            raise DamagedPageError(f"page {number} does not begin a value of {length} bytes")
        return data[_HEADER_SIZE:]

    def _page(self, number: int) -> Page:
        """Return a branch or leaf page after checks of its header and of the places of its nodes."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        self._check_number(number)
        data = self._read(number, self._size)
        found, _, flags, lower, upper = _HEADER.unpack_from(data)
        flags &= ~_DIRTY
        if found != number or flags not in (_BRANCH, _LEAF):
            raise DamagedPageError(f"page {number} is damaged: it says that it is page {found} with flags {flags:#x}")
        count = (lower - _HEADER_SIZE) // 2
        if lower % 2 or not _HEADER_SIZE <= lower <= upper <= self._size or count < flags % 2 * 2:
            raise DamagedPageError(f"page {number} is damaged: its free space is from {lower} to {upper}")
        page = data, flags, list(struct.unpack_from(f"<{count}H", data, _HEADER_SIZE))
        if flags == _BRANCH and len(self._kept) < _KEPT:
            self._kept[number] = page
        return page

    def _check_number(self, number: int) -> None:
        if not 1 < number <= self._last:
            raise DamagedPageError(f"a page leads to page {number}, and the file has {self._last + 1}")

    def _read(self, number: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, number * self._size)
        if len(data) < size:
            raise DamagedPageError(f"page {number} lies behind the end of the file")
        return data
