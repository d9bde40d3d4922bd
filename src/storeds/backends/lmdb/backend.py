"""The LMDB engine: native stores are one file with the databases ``records``, ``columns`` and ``meta``."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import lmdb
import numpy as np

from storeds._utils.prefetch import ADVISED, blocks_read, will_need
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.base import FileBackend, FileOpener
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.lmdb.files import check_length, lmdb_errors, open_environment
from storeds.backends.lmdb.format import COLUMNS, COUNT_BITS, META, PAGES, RECORDS, LmdbOptions, position_key
from storeds.errors import FormatError, RecordError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import Seals, check_column
from storeds.records.columns import SCALARS, column_from_records, text_column, text_offsets
from storeds.records.meta import WRITTEN_BY, meta_from_text

if TYPE_CHECKING:
    from storeds.backends.lmdb.sink import LmdbSink

__all__ = ["LmdbBackend"]

# Begin of a value with pages of its own: number of the first page, flags, how many pages.
_OVERFLOW = struct.Struct("<Q2xHI")
_IS_OVERFLOW = 4  # a flag


@dataclass(slots=True)
class LmdbHandle:
    """An open environment, its databases, and the meta of the store.

    Attributes
    ----------
    pages : array or None
        Where each record lies, see `PAGES`: a view of the map.
    is_cold : bool
        Whether the last batch was read from the disk.
    """

    env: Any
    records: Any
    columns: Any
    meta: Meta
    seals: Seals
    checksums: Mapping[str, str]
    page_size: int
    pages: Array | None
    is_cold: bool = True

    def prefetch(self, positions: list[int]) -> None:
        """Have the pages of all these records loaded at once: LMDB would wait for one after the other.

        A place has no checksum, so that it decides about the first `ADVISED` bytes alone. The rest is loaded where the
        first page of the value says the same.
        """
        if self.pages is None or not positions:
            return
        # py-lmdb does not tell its descriptor; to keep another one would double the open files of a pool.
        with contextlib.suppress(OSError), open(self.env.path(), "rb", buffering=0) as file:
            places = self.pages[positions]
            firsts, counts = places >> COUNT_BITS, places & (1 << COUNT_BITS) - 1
            starts, sizes = firsts * self.page_size, counts * self.page_size
            will_need(file.fileno(), starts, starts + np.minimum(sizes, ADVISED))
            large = [
                at
                for at in np.flatnonzero(sizes > ADVISED).tolist()
                if _begins_value(os.pread(file.fileno(), _OVERFLOW.size, starts[at]), firsts[at], counts[at])
            ]
            will_need(file.fileno(), starts[large] + ADVISED, starts[large] + sizes[large])

    def close(self) -> None:
        """Close the environment."""
        self.pages = None
        self.env.close()


def _begins_value(page: bytes, first: int, count: int) -> bool:
    """Return whether a page says that it is page `first`, and the first of a value of `count` pages."""
    if len(page) < _OVERFLOW.size:  # the place is outside of the file
        return False
    number, flags, pages = _OVERFLOW.unpack(page)
    return bool((number, pages) == (first, count) and flags & _IS_OVERFLOW)


class LmdbOpener(FileOpener[LmdbOptions]):
    """Opens one file read-only and without a lock file."""

    engine = "lmdb"

    def open(self, opened: OpenStore | None = None) -> LmdbHandle:
        with OpenStore.borrow(opened) as store, lmdb_errors(self.url):
            check_length(store.descriptor(self.path), self.url)
            env = open_environment(self.path, readahead=bool(self.settings.readahead), databases=3)
            try:
                return self._open_store(env)
            except BaseException:
                env.close()
                raise

    def _open_store(self, env: lmdb.Environment) -> LmdbHandle:
        records, columns, metas = (env.open_db(name, create=False) for name in (RECORDS, COLUMNS, META))
        with env.begin(buffers=True) as txn:
            text, entries = txn.get(META, db=metas), txn.stat(records)["entries"]
            kept = txn.get(PAGES, db=columns) or b""
            pages = np.frombuffer(kept[: len(kept) // 8 * 8], "<i8")
        if text is None:
            raise FormatError(f"{self.url}: no meta in it, so its writer never published it; {WRITTEN_BY}")
        meta, body = meta_from_text(bytes(text), self.url)
        if entries != meta.count:
            raise FormatError(f"{self.url}: {entries} records are there, its meta says {meta.count}; copy it again")
        seals = Seals.of(body.get("salt"), meta.count, self.url)
        page_size = env.stat()["psize"]
        known = pages if len(pages) == meta.count else None  # another writer may have left them out
        return LmdbHandle(env, records, columns, meta, seals, body.get("columns", {}), page_size, known)

    def close(self, handle: LmdbHandle, /) -> None:
        handle.close()

    def abandon_after_fork(self, handle: LmdbHandle, /) -> None:
        # Without a lock file, nothing is shared with the parent. If it stayed open, LMDB would not open the inode again here.
        handle.close()


class LmdbBackend(FileBackend[LmdbHandle, LmdbOpener]):
    """Reads a native LMDB store.

    Parameters
    ----------
    url : str
        ``lmdb://relative/path``, ``lmdb:///absolute/path`` or a path, with ``?readahead=true`` and the like.
    **options
        See `LmdbOptions`; they may stand in the URL instead.

    Raises
    ------
    StoreNotFoundError, FormatError, ConfigError
        Nothing exists there; it is not a complete native LMDB store; an option is unknown.

    Notes
    -----
    A published store never changes, so it is opened without a lock file (``lock=False``): never let another
    tool write into it. All backends of one file in a process share one environment. Damage of its inner pages can end the
    process with SIGBUS or SIGSEGV; `storeds.verify` reads in child processes.
    """

    Options: ClassVar[type[LmdbOptions]] = LmdbOptions
    pool: ClassVar[HandlePool[LmdbHandle]] = HandlePool(limit=128, quiesce=True)

    def __init__(self, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> None:
        path, in_url = file_path(url)
        super().__init__(LmdbOpener(path, parse_options(LmdbOptions, in_url, options, url)), opened)

    @staticmethod
    def sink(url: str | StoreURL, **options: Any) -> LmdbSink:
        """Return the sink of a native store."""
        from storeds.backends.lmdb.sink import LmdbSink

        return LmdbSink(url, **options)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        how: dict[str, JSON] = {"readonly": True, "lock": False, "readahead": bool(self._opener.settings.readahead)}
        return {**super().handle_settings(), **how}

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        with self._lease() as handle:
            blocks = blocks_read()
            if handle.is_cold:
                handle.prefetch(positions)
            try:
                with handle.env.begin(db=handle.records, buffers=True) as txn:
                    get: Callable[[bytes], Any] = txn.get
                    sealed = list(map(get, [position.to_bytes(8, "big") for position in positions]))
                    return [*self._codec.verify_and_decode(sealed, positions, handle.seals)]
            except (ValueError, lmdb.Error):
                return [self._read_one(handle, position) for position in positions]
            finally:
                handle.is_cold = blocks_read() != blocks

    def _read_one(self, handle: LmdbHandle, position: int) -> Record | RecordError:
        try:
            # A separate transaction: after an error of LMDB, a transaction returns nothing else.
            with handle.env.begin(db=handle.records, buffers=True) as txn:
                return self._unsealed(position, txn.get(position_key(position)), handle.seals)
        except lmdb.Error as error:
            return self._fault(position, error)

    def _column(self, name: str, field: Field) -> Array:
        if field.kind == "array":
            return column_from_records(self, name)
        with self._lease() as handle:
            if field.kind == "str":
                bounds = self._column_bytes(handle, text_offsets(name), 8 * (self.meta.count + 1))
                offsets = np.frombuffer(bounds, "<i8").tolist()
                return text_column(self._column_bytes(handle, name, offsets[-1]), offsets)
            dtype = SCALARS[field.kind]
            return np.frombuffer(bytearray(self._column_bytes(handle, name, dtype.itemsize * self.meta.count)), dtype)

    def _column_bytes(self, handle: LmdbHandle, name: str, size: int) -> bytes:
        with lmdb_errors(self.url), handle.env.begin(db=handle.columns, buffers=True) as txn:
            found = txn.get(name.encode())
            if found is None:
                raise FormatError(f"{self.url}: column {name!r} is missing; copy it again")
            if len(found) != size:
                raise FormatError(
                    f"{self.url}: column {name!r} has {len(found)} bytes, and its records have {size}; copy it again"
                )
            data = bytes(found)
        check_column(name, data, handle.checksums.get(name), self.url)
        return data
