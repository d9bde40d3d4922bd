"""Reads native LMDB stores: one file with the databases ``records``, ``columns`` and ``meta``."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np

from storeds._utils.prefetch import ADVISED, blocks_read, will_need
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.blocks import StoredBytes
from storeds.backends.engine import Engine
from storeds.backends.file_stores import FileLocation, describe_file, engine_at
from storeds.backends.handles import POOL
from storeds.backends.lmdb.files import Environment, lmdb_errors, open_environment
from storeds.backends.lmdb.format import COLUMNS, COUNT_BITS, META, PAGES, RECORDS, LmdbOptions, position_key
from storeds.backends.raw import Fault, Opener, RawStore, Rows, Stacked
from storeds.errors import FormatError
from storeds.protocols import Array, Description
from storeds.records.codec import FAULT_DIGEST, FAULT_SEAL
from storeds.records.columns import SCALARS, text_offsets
from storeds.records.meta import WRITTEN_BY
from storeds.records.tables import FixedRecords
from storeds.records.verifier import native_meta

if TYPE_CHECKING:
    from storeds.backends.lmdb.sink import LmdbSink

__all__ = ["LMDB", "LmdbOpener", "is_native"]

# Begin of a value with pages of its own: number of the first page, flags, how many pages.
_OVERFLOW = struct.Struct("<Q2xHI")
_IS_OVERFLOW = 4  # a flag


POOL.wait_before_forks()
_NATIVE = {RECORDS, COLUMNS, META}
_DATABASE = 48  # bytes of the value that stands for a named database


class LmdbStore(RawStore):
    """A native store in an open environment.

    Damage of its inner pages can end the process with SIGBUS or SIGSEGV; `storeds.verify` reads in child processes.
    """

    def __init__(self, environment: Environment, opener: LmdbOpener) -> None:
        self._environment, self._env, self._opener = environment, environment.env, opener
        with lmdb_errors(opener.url):
            self._records, self._columns, metas = map(environment.database, (RECORDS, COLUMNS, META))
            with self._env.begin(buffers=True) as txn:
                text, self._entries = txn.get(META, db=metas), txn.stat(self._records)["entries"]
                places = txn.get(PAGES, db=self._columns) or b""
        if text is None:
            raise FormatError(f"{opener.url}: no meta in it, so its writer never published it; {WRITTEN_BY}")
        self.meta, self.verifier = native_meta(bytes(text), opener.url)
        if len(places) == 8 * self.meta.count:  # another writer may have left them out
            environment.pages = np.frombuffer(places, "<i8")
        self._fixed = FixedRecords.of(self.meta.fields)
        self._page_size = self._env.stat()["psize"]
        self._is_cold = True  # whether the last batch was read from the disk

    def check(self) -> None:
        # docstring inherited
        if self._entries != self.meta.count:
            raise FormatError(
                f"{self._opener.url}: {self._entries} records are there, its meta says {self.meta.count}; copy it again"
            )

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        blocks = self._announced(positions)
        try:
            with self._env.begin(db=self._records, buffers=True) as txn:
                return Rows.of_sealed(_values(txn, positions))
        except lmdb.Error:
            return self._read_each(positions)
        finally:
            self._is_cold = blocks_read() != blocks

    def stacked(self, positions: Array, fields: Sequence[str], *, whole: bool) -> Stacked | None:
        # docstring inherited
        if self._fixed is None:
            return None
        asked: list[int] = positions.tolist()
        blocks = self._announced(asked)
        try:
            with self._env.begin(db=self._records, buffers=True) as txn:
                return self._fixed.unpack(_values(txn, asked), fields)
        except lmdb.Error:  # records that are read one by one show which is bad
            return None
        finally:
            self._is_cold = blocks_read() != blocks

    def arrays(self, positions: list[int], fields: tuple[str, ...]) -> Rows | None:
        # docstring inherited
        pages, mapped = self._environment.pages, self._environment.map()
        if pages is None or mapped is None:
            return None
        places = pages[positions]
        starts = (places >> COUNT_BITS) * self._page_size + _OVERFLOW.size
        sizes = (places & (1 << COUNT_BITS) - 1) * self._page_size - _OVERFLOW.size
        return Rows([StoredBytes(mapped, *each) for each in zip(starts.tolist(), sizes.tolist(), strict=True)])

    def _announced(self, positions: list[int]) -> int:
        """Have records loaded from the disk if the last ones came from there; return the blocks that were read until now."""
        blocks = blocks_read()
        if self._is_cold:
            self._prefetch(positions)
        return blocks

    def _read_each(self, positions: list[int]) -> Rows:
        """Read each record in a transaction of its own: after an error of LMDB, a transaction returns nothing else."""
        found = []
        for position in positions:
            try:
                with self._env.begin(db=self._records, buffers=True) as txn:
                    found.append(Rows.of_sealed([txn.get(position_key(position))]))
            except lmdb.Error as error:
                found.append(Rows([Fault(str(error))], FAULT_DIGEST, FAULT_SEAL))
        records, digests, seals = zip(*found, strict=True)
        return Rows([record for (record,) in records], b"".join(digests), b"".join(seals))

    def _prefetch(self, positions: list[int]) -> None:
        """Have the pages of all these records loaded at once: LMDB would wait for one after the other.

        A place has no checksum, so that it decides about the first `ADVISED` bytes alone. The rest is loaded where the
        first page of the value says the same.
        """
        pages = self._environment.pages
        if pages is None:
            return
        # py-lmdb does not tell its descriptor; to keep another one would double the open files of a process.
        with contextlib.suppress(OSError), open(self._env.path(), "rb", buffering=0) as file:
            places = pages[positions]
            firsts, counts = places >> COUNT_BITS, places & (1 << COUNT_BITS) - 1
            starts, sizes = firsts * self._page_size, counts * self._page_size
            will_need(file.fileno(), starts, starts + np.minimum(sizes, ADVISED))
            large = [
                at
                for at in np.flatnonzero(sizes > ADVISED).tolist()
                if _begins_value(os.pread(file.fileno(), _OVERFLOW.size, starts[at]), firsts[at], counts[at])
            ]
            will_need(file.fileno(), starts[large] + ADVISED, starts[large] + sizes[large])

    def column(self, name: str) -> Sequence[Sequence[bytes]]:
        # docstring inherited
        count = self.meta.count
        if self.meta.fields[name].kind != "str":
            return [[self._bytes_of(name, SCALARS[self.meta.fields[name].kind].itemsize * count)]]
        bounds = self._bytes_of(text_offsets(name), 8 * (count + 1))
        return [[self._bytes_of(name, int.from_bytes(bounds[-8:], "little"))], [bounds]]

    def _bytes_of(self, name: str, size: int) -> bytes:
        with lmdb_errors(self._opener.url), self._env.begin(db=self._columns, buffers=True) as txn:
            found = txn.get(name.encode())
            if found is None:
                raise FormatError(f"{self._opener.url}: column {name!r} is missing; copy it again")
            if len(found) != size:
                raise FormatError(
                    f"{self._opener.url}: column {name!r} has {len(found)} bytes, and its records have {size}; copy it again"
                )
            return bytes(found)

    def describe(self) -> Description:
        # docstring inherited
        opener = self._opener
        how = {"readonly": True, "lock": False, "readahead": bool(opener.settings.readahead)}
        return describe_file(opener.path, opener.url, how, [])


def _values(txn: Any, positions: list[int]) -> list[Any]:
    """Return packed records, None for one that is missing; all are found before the first is used, which is faster."""
    get: Callable[[bytes], Any] = txn.get
    return list(map(get, [position.to_bytes(8, "big") for position in positions]))


def _begins_value(page: bytes, first: int, count: int) -> bool:
    """Return whether a page says that it is page `first`, and the first of a value of `count` pages."""
    if len(page) < _OVERFLOW.size:  # the place is outside of the file
        return False
    number, flags, pages = _OVERFLOW.unpack(page)
    return bool((number, pages) == (first, count) and flags & _IS_OVERFLOW)


class LmdbOpener(FileLocation[LmdbOptions], Opener[Environment]):
    """Opens one file read-only and without a lock file: never let another tool write into it."""

    engine = "lmdb"

    def open(self) -> Environment:
        return open_environment(self.path, self.url, readahead=bool(self.settings.readahead))

    def close(self, handle: Environment, /) -> None:
        handle.close()

    def attach(self, handle: Environment, /) -> LmdbStore:
        return LmdbStore(handle, self)


def _opener(url: str | StoreURL, **options: Any) -> LmdbOpener:
    path, in_url = file_path(url)
    return LmdbOpener(path, parse_options(LmdbOptions, in_url, options, url))


def _sink(url: str | StoreURL, **options: Any) -> LmdbSink:
    from storeds.backends.lmdb.sink import LmdbSink  # reading needs no writer

    return LmdbSink(_opener(url, **options).path)


def holds_foreign(url: StoreURL, options: Mapping[str, Any]) -> bool:
    """Return whether another tool's environment is there. Raises UnavailableError and FormatError."""
    path, _ = file_path(url)
    if os.path.isdir(path):
        return True
    opener = _opener(path)
    if not os.path.isfile(path) or engine_at(path, opener.url)[1] != opener.engine:
        return False
    with POOL.leased(opener) as environment:
        return not is_native(environment, opener.url)


def is_native(environment: Environment, url: str) -> bool:
    """Whether the main database of an environment names those of a native store, or some of them and nothing else."""
    with lmdb_errors(url), environment.env.begin() as txn:
        held = {name for name in _NATIVE if len(txn.get(name, b"")) == _DATABASE}
        return held == _NATIVE or (bool(held) and held == set(environment.first_keys(len(_NATIVE) + 1)))


LMDB = Engine(_opener, _sink, holds_foreign)
"""The engine of ``lmdb://``."""
