"""Keeps packed records in an LMDB file, in a map that grows with it, and publishes that file."""

from __future__ import annotations

import array
import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from storeds._utils.urls import file_url
from storeds.backends.lmdb.format import COLUMNS, COUNT_BITS, META, PAGES, RECORDS, position_key
from storeds.backends.staging import Staging, explain, replace_file, sync_path
from storeds.protocols import Array

__all__ = ["LmdbSink"]

_NOTE = b"note"  # beside the meta, until the store is published
_FIRST_MAP = 1 << 26  # bytes of addresses; the file is as long as what is in it
_PAGE = struct.Struct("<10xHH2x")  # flags, end of the list of nodes
# Low and high half of a size, flags, size of the key. In branches, the first three number a page.
_NODE = struct.Struct("<HHHH")
_BRANCH = _BIG = 1  # flags of a page, and of a node whose value has pages of its own
_TREE = struct.Struct("<40xQ")  # root page of a named database
_HEAP = (32 << 20) - (1 << 13)  # just below the largest block that glibc learns from


class LmdbSink:
    """The `storeds.backends.writer.Sink` of ``lmdb://``.

    Parameters
    ----------
    path : str
        Absolute.

    Notes
    -----
    The note lies in the file with the records, so that one transaction writes both. The published file holds none:
    `finish` moves it into a file of its own first, where the next writer finds it if publishing fails.
    """

    errors: tuple[type[Exception], ...] = (OSError, lmdb.Error)

    def __init__(self, path: str) -> None:
        self.url: str = file_url("lmdb", path)
        self._staging = Staging(path, self.url, "building.mdb")
        self._file = self._staging.built
        self._note_file = self._staging.folder / "note"
        self._env: Any = None

    def exists(self) -> bool:
        # docstring inherited
        return self._staging.exists()

    def begin(self) -> bytes | None:
        # docstring inherited
        self._staging.begin()
        if not self._file.exists():
            return None
        try:
            self._open()
        except lmdb.Error:  # the writer reports that this note is damaged, unless it starts again
            return b""
        return self._note() or (self._note_file.read_bytes() if self._note_file.exists() else None)

    def _note(self) -> bytes | None:
        with self._env.begin(db=self._metas) as txn:
            note: bytes | None = txn.get(_NOTE)
        return note

    def _open(self) -> None:
        if self._env is not None:
            return
        # LMDB frees a batch's pages at once, which glibc would give back to the kernel, to fault them in for the next
        # batch: a tenth of the time. Freeing one large block, never touched, teaches it to keep them (see mallopt(3)).
        bytes(_HEAP)
        if not self._file.exists():
            self._create()
        self._env = _open_environment(self._file)
        self._records, self._columns, self._metas = map(self._env.open_db, (RECORDS, COLUMNS, META))

    def _create(self) -> None:
        """Make an empty environment in one step: a death in the middle would leave a file that LMDB cannot open."""
        self._staging.drop()  # the note of a store that its writer published before it died
        fresh = self._file.with_suffix(".fresh")
        with contextlib.closing(_open_environment(fresh)) as env:
            for name in (RECORDS, COLUMNS, META):
                env.open_db(name)
        os.replace(fresh, self._file)
        sync_path(self._file.parent)

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        # docstring inherited
        self._open()
        items = [(position_key(position), value) for position, value in enumerate(packed, first)]

        def write(txn: lmdb.Transaction) -> None:
            is_next = txn.stat(self._records)["entries"] == first  # appending fills pages wholly
            with txn.cursor(self._records) as cursor:
                cursor.putmulti(items, append=is_next)
            txn.put(_NOTE, note, db=self._metas)

        self._write(write)

    def _write(self, body: Callable[[lmdb.Transaction], object]) -> None:
        """Call `body` in a write transaction, again with a larger map each time that the map is full."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    body(txn)
                return
            except lmdb.MapFullError:  # which drops the whole transaction (tensorpack#1562)
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def scan(self) -> Iterator[bytes]:
        # docstring inherited
        with self._env.begin(db=self._records) as txn:
            yield from txn.cursor().iternext(keys=False)

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        # docstring inherited
        self._open()
        note = self._note()
        if note is not None:
            replace_file(self._note_file, note)
        page_size = self._env.stat()["psize"]
        with self._env.begin() as txn, self._file.open("rb") as file:
            pages = _value_pages(file.fileno(), page_size, txn.get(RECORDS))

        def write(txn: lmdb.Transaction) -> None:
            for name, column in columns.items():
                txn.put(name.encode(), column.data, db=self._columns)
            txn.put(PAGES, pages.data, db=self._columns)
            txn.put(META, meta.encode(), db=self._metas)
            txn.delete(_NOTE, db=self._metas)

        self._write(write)
        # The end may be missing: pages that were freed before they were written.
        os.truncate(self._file, (self._env.info()["last_pgno"] + 1) * page_size)
        self._close()
        self._staging.publish(replace=replace)

    def drop(self) -> None:
        # docstring inherited
        self._close()
        self._staging.drop()

    def close(self) -> None:
        # docstring inherited
        self._close()
        self._staging.close()

    def explain(self, error: Exception) -> str:
        # docstring inherited
        return explain(error, self._staging.target.parent)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def _open_environment(file: Path) -> Any:
    size = max(_FIRST_MAP, 2 * file.stat().st_size if file.exists() else 0)
    return lmdb.open(str(file), subdir=False, lock=False, meminit=False, max_dbs=3, map_size=size)


def _value_pages(descriptor: int, page_size: int, tree: bytes) -> Array:
    """Return the pages of each value in an LMDB file, in order of the keys, as int64.

    Parameters
    ----------
    descriptor, page_size : int
        Of the file.
    tree : bytes
        What the main database holds under the name of the database.

    Returns
    -------
    array
        First page × 2**24 + number of pages. Small values share one.
    """
    found = array.array("q")

    def walk(number: int) -> None:
        page = os.pread(descriptor, page_size, number * page_size)
        flags, end = _PAGE.unpack_from(page)
        for at in struct.unpack_from(f"<{end // 2 - _PAGE.size // 2}H", page, _PAGE.size):
            low, high, kind, key_size = _NODE.unpack_from(page, at)
            if flags & _BRANCH:
                walk(low | high << 16 | kind << 32)
            elif kind & _BIG:
                first = int.from_bytes(page[at + _NODE.size + key_size :][:8], "little")
                size = _PAGE.size + (low | high << 16)
                found.append(first << COUNT_BITS | -(-size // page_size))
            else:
                found.append(number << COUNT_BITS | 1)

    (root,) = _TREE.unpack(tree)
    if root < 1 << 63:  # otherwise the database is empty
        walk(root)
    return np.frombuffer(found, "<i8")
