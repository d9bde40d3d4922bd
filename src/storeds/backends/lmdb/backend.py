"""The LMDB engine: native stores are one file with the databases ``records``, ``columns`` and ``meta``."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import lmdb
import numpy as np
import xxhash

from storeds._utils.locations import (
    DamagedStoreError,
    StoreURL,
    file_path,
    file_system,
    file_system_advice,
    staging_folder,
)
from storeds.backends.base import BackendOptions, FileOpener, HandleBackend, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.lmdb.pages import NO_PAGE, DamagedPageError, Header, LmdbPages, Tree
from storeds.errors import FormatError, RecordError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import Places
from storeds.records.columns import SCALARS, column_from_records, text_column
from storeds.records.fields import WRITTEN_BY, meta_from_text

if TYPE_CHECKING:
    from storeds.protocols import Writer

__all__ = [
    "COLUMNS",
    "META",
    "RECORDS",
    "LmdbBackend",
    "LmdbOptions",
    "open_environment",
    "position_key",
    "read_header",
    "stamp_lmdb_file",
    "text_offsets_key",
]

RECORDS, COLUMNS, META = b"records", b"columns", b"meta"
_TOP = 16  # pages of each tree that are checked when a store is opened
_Get: TypeAlias = Callable[[bytes], bytes | memoryview | None]


class LmdbOptions(BackendOptions):
    """Options of ``lmdb://`` stores.

    Attributes
    ----------
    readahead : bool
        Let the kernel read ahead: faster for sequential passes, slower for random reads of a file larger than
        memory.
    read : str
        ``map``: LMDB maps the file, which is fast, but a damaged page can crash the process. ``safe``: storeds reads the
        file itself and checks every page, so all damage raises errors; several times slower.
    """

    readahead: bool = False
    read: Literal["map", "safe"] = "map"


def position_key(position: int) -> bytes:
    """Return the key of a record: its position as 8 big-endian bytes."""
    return position.to_bytes(8, "big")


def text_offsets_key(name: str) -> bytes:
    """Return the key of a text column's offsets; the key of its characters is the field's name."""
    return f"{name}.offsets".encode()


def open_environment(path: str, settings: LmdbOptions, *, databases: int) -> Any:
    """Open a published file read-only and without a lock file."""
    return lmdb.open(
        path,
        subdir=False,
        readonly=True,
        lock=False,
        meminit=False,
        readahead=settings.readahead,
        max_dbs=databases,
    )


@dataclass(frozen=True)
class LmdbHandle:
    """An open environment, its databases, and the meta of the store."""

    env: Any
    records: Any
    columns: Any
    meta: Meta
    places: Places
    column_checksums: Mapping[str, str]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


@dataclass(frozen=True)
class SafeHandle:
    """An open file that is read without LMDB; see `LmdbHandle`."""

    descriptor: int
    pages: LmdbPages
    records: Tree
    columns: Tree
    meta: Meta
    places: Places
    column_checksums: Mapping[str, str]

    def close(self) -> None:
        """Close the file; no other thread may be reading."""
        os.close(self.descriptor)


class LmdbOpener(FileOpener[LmdbOptions]):
    """Opens one file read-only and without a lock file."""

    engine = "lmdb"

    def key(self, opened: OpenStore | None = None) -> Hashable:
        # docstring inherited
        key = super().key(opened)
        return ("safe", key) if self.settings.read == "safe" else key  # no LMDB environment, so none to share

    def open(self, opened: OpenStore | None = None) -> LmdbHandle | SafeHandle:
        with OpenStore.borrow(opened) as store, _damage_is_format_error(self.url):
            descriptor = store.descriptor(self.path)
            if self.settings.read == "safe":
                handle = self._open_safely(descriptor)
                store.take(self.path)
                return handle
            read_header(descriptor, self.url)
            env = open_environment(self.path, self.settings, databases=3)
        try:
            with _damage_is_format_error(self.url):
                return self._read_meta(env)
        except BaseException:
            env.close()
            raise

    def _read_meta(self, env: lmdb.Environment) -> LmdbHandle:
        records, columns, metas = (env.open_db(name, create=False) for name in (RECORDS, COLUMNS, META))
        with env.begin(db=metas) as txn:
            text, entries = txn.get(META), txn.stat(records)["entries"]
        return LmdbHandle(env, records, columns, *self._parse_meta(text, entries))

    def _parse_meta(self, text: bytes | None, entries: int) -> tuple[Meta, Places, Mapping[str, str]]:
        if text is None:
            raise FormatError(f"{self.url}: no meta in it, so its writer never published it; {WRITTEN_BY}")
        meta, body = meta_from_text(text, self.url)
        if entries != meta.count:
            raise FormatError(f"{self.url}: {entries} records are there, its meta says {meta.count}; copy it again")
        return meta, Places.of(body.get("salt"), meta.count, self.url), body.get("columns", {})

    def _open_safely(self, descriptor: int) -> SafeHandle:
        pages = LmdbPages(descriptor, read_header(descriptor, self.url))
        records, columns, metas = self._trees(pages)
        text = pages.get(metas, META)
        return SafeHandle(descriptor, pages, records, columns, *self._parse_meta(text, records.entries))

    def _trees(self, pages: LmdbPages) -> list[Tree]:
        found = []
        for name in (RECORDS, COLUMNS, META):
            tree = pages.tree(name)
            if tree is None:
                raise FormatError(
                    f"{self.url} is an LMDB file, but not a native store: it has no database {name.decode()!r}; {WRITTEN_BY}"
                )
            found.append(tree)
        return found

    def check_top(self, opened: OpenStore) -> None:
        """Raise FormatError unless the top pages of the file's trees are valid; safe reads check every page anyway."""
        self.key(opened)  # raises if the file does not exist
        if self.settings.read == "safe":
            return
        with _damage_is_format_error(self.url):
            descriptor = opened.descriptor(self.path)
            pages = LmdbPages(descriptor, read_header(descriptor, self.url))
            try:
                for tree in self._trees(pages):
                    pages.check_top(tree, _TOP)
            except DamagedPageError as error:
                raise DamagedStoreError(_damage(self.url, error)) from error

    def close(self, handle: LmdbHandle | SafeHandle, /) -> None:
        handle.close()

    def abandon_after_fork(self, handle: LmdbHandle | SafeHandle, /) -> None:
        # Without a lock file, nothing is shared with the parent. If it stayed open, LMDB would not open the inode again here.
        handle.close()


class LmdbBackend(HandleBackend[LmdbHandle | SafeHandle, LmdbOpener]):
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
    tool write into it. All backends of one file in a process share one environment.
    """

    Options: ClassVar[type[LmdbOptions]] = LmdbOptions
    shares_open_store = True
    pool: ClassVar[HandlePool[LmdbHandle | SafeHandle]] = HandlePool(limit=128, quiesce=True)

    def __init__(self, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> None:
        path, in_url = file_path(url)
        opener = LmdbOpener(path, parse_options(LmdbOptions, in_url, options, url))
        with OpenStore.borrow(opened) as store:
            opener.check_top(store)  # once, and before LMDB maps the file; a worker need not repeat it
            super().__init__(opener, store)

    @staticmethod
    def open_writer(url: str | StoreURL, fields: Mapping[str, Any], **options: Any) -> Writer:
        """Return a `Writer` of a native store; see `storeds.open_writer`."""
        from storeds.backends.lmdb.writer import LmdbWriter

        return LmdbWriter(url, fields, **options)

    def stored_bytes(self) -> int:
        # docstring inherited
        return os.path.getsize(self._opener.path)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        how: dict[str, JSON] = {"readonly": True, "lock": False, "file_system": file_system(self._opener.path)}
        return {**how, **self._opener.settings.model_dump()}

    def advice(self) -> list[str]:
        # docstring inherited
        return file_system_advice(self._opener.path)

    def leftovers(self) -> str | None:
        # docstring inherited
        folder = staging_folder(self._opener.path)
        return str(folder) if folder.exists() and self.writer() is None else None

    def writer(self) -> str | None:
        # docstring inherited
        from storeds.backends.staging import active_writer

        return active_writer(self._opener.path)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        with self._lease() as handle:
            if isinstance(handle, SafeHandle):
                return [self._read_safely(handle, position) for position in positions]
            try:
                with handle.env.begin(db=handle.records, buffers=True) as txn:
                    get: Callable[[bytes], Any] = txn.get
                    sealed = list(map(get, [position.to_bytes(8, "big") for position in positions]))
                    return [*self._codec.open_all(sealed, positions, handle.places)]
            except (ValueError, lmdb.Error):
                return [self._read_one(handle, position) for position in positions]

    def _read_one(self, handle: LmdbHandle, position: int) -> Record | RecordError:
        try:
            # A separate transaction: after an error of LMDB, a transaction returns nothing else.
            with handle.env.begin(db=handle.records, buffers=True) as txn:
                return self._unsealed(position, txn.get(position_key(position)), handle.places)
        except lmdb.Error as error:
            return self._fault(position, error)

    def _read_safely(self, handle: SafeHandle, position: int) -> Record | RecordError:
        try:
            return self._unsealed(position, handle.pages.get(handle.records, position_key(position)), handle.places)
        except DamagedPageError as error:
            return self._fault(position, error)

    def _column(self, name: str, field: Field) -> Array:
        if field.kind == "array":
            return column_from_records(self, name)
        with self._lease() as handle, self._columns(handle) as get:
            data = self._column_value(handle, get, name.encode())
            if field.kind != "str":
                return self._check_length(name, np.frombuffer(data, SCALARS[field.kind]).copy())
            offsets = self._check_length(
                name, np.frombuffer(self._column_value(handle, get, text_offsets_key(name)), "<i8")[1:]
            )
            return text_column(bytes(data), [0, *offsets.tolist()])

    @contextmanager
    def _columns(self, handle: LmdbHandle | SafeHandle) -> Iterator[_Get]:
        """Yield a function that returns the value of a key of database ``columns``."""
        with _damage_is_format_error(self.url):
            if isinstance(handle, SafeHandle):
                yield partial(handle.pages.get, handle.columns)
            else:
                with handle.env.begin(db=handle.columns, buffers=True) as txn:
                    yield txn.get

    def _column_value(self, handle: LmdbHandle | SafeHandle, get: _Get, key: bytes) -> memoryview:
        value = get(key)
        if value is None:
            raise FormatError(f"{self.url}: column {key.decode()!r} is missing; copy it again")
        if xxhash.xxh3_64_hexdigest(value) != handle.column_checksums.get(key.decode()):
            raise FormatError(f"{self.url}: column {key.decode()!r} does not match its checksum; copy it again")
        return memoryview(value)

    def _check_length(self, name: str, column: Array) -> Array:
        if len(column) != self.meta.count:
            raise FormatError(f"{self.url}: column {name!r} has {len(column)} values for {self.meta.count} records")
        return column


@contextmanager
def _damage_is_format_error(url: str) -> Iterator[None]:
    try:
        yield
    except lmdb.NotFoundError as error:
        raise FormatError(f"{url} is an LMDB file, but not a native store: {error}; {WRITTEN_BY}") from error
    except lmdb.Error as error:
        raise FormatError(f"{url} cannot be read by LMDB: {error}; copy it again") from error
    except DamagedPageError as error:
        raise FormatError(_damage(url, error)) from error


def _damage(url: str, error: DamagedPageError) -> str:
    return f"{url} is damaged: {error}; copy it again, or run `storeds verify {url}` to list the lost records"


_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META_AT = 16  # a page header comes first
_META = struct.Struct("<IIQQ")  # magic, version, address, map size
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow pages, entries, root
_TAIL = struct.Struct("<QQ")  # last page, transaction id
_STAMP = struct.Struct("<8sQ8s")  # magic, transaction id, xxh3-64
_STAMP_MAGIC = b"storeds\x01"
_HEAD = _META_AT + _META.size + 2 * _DB.size + _TAIL.size


def read_header(descriptor: int, url: str) -> Header:
    """Return the header of an open LMDB file; raises FormatError if the file is shorter, or its stamp does not match.

    Call it before LMDB maps the file: a truncated file kills its reader with SIGBUS at the first access to a missing page,
    and a flipped byte in a meta page can abort it. A stamp of another transaction is ignored: a tool has written since.
    """
    size = os.fstat(descriptor).st_size
    page_size, pages = _meta_pages(descriptor, size, url)
    metas = [_parse(page, number, url) for number, page in enumerate(pages)]
    root, last, transaction = max(metas, key=lambda meta: meta[2])
    if (last + 1) * page_size > size:
        raise FormatError(
            f"{url} is cut short: its header says {(last + 1) * page_size} bytes, the file has {size}; copy it again"
        )
    if root != NO_PAGE and not 1 < root <= last:
        raise FormatError(f"{url}: the header points outside the file; copy it again")
    magic, stamped, digest = _STAMP.unpack(pages[0][-_STAMP.size :])
    applies = magic == _STAMP_MAGIC and stamped == transaction
    if applies and digest != _digest(descriptor, page_size, pages, root):
        raise FormatError(f"{url}: the header does not match its checksum; copy it again")
    return Header(page_size, root, last, transaction)


def stamp_lmdb_file(path: str) -> None:
    """Write the stamp into the unused end of the first page of the LMDB file at `path`, which must not be open anywhere.

    It holds the id of the last transaction, and a checksum over both meta pages and the root page of the main database.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        page_size, pages = _meta_pages(descriptor, os.fstat(descriptor).st_size, path)
        if any(pages[0][-_STAMP.size :]):
            raise FormatError(f"{path}: this LMDB uses the end of its first page, where the stamp belongs")
        metas = [_parse(page, number, path) for number, page in enumerate(pages)]
        root, _, transaction = max(metas, key=lambda meta: meta[2])
        digest = _digest(descriptor, page_size, pages, root)
        os.pwrite(descriptor, _STAMP.pack(_STAMP_MAGIC, transaction, digest), page_size - _STAMP.size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _meta_pages(descriptor: int, size: int, url: str) -> tuple[int, list[bytes]]:
    head = os.pread(descriptor, _HEAD, 0)
    page_size = _DB.unpack_from(head, _META_AT + _META.size)[0] if len(head) == _HEAD else 0
    if page_size not in (1 << bits for bits in range(9, 17)) or size < 2 * page_size:
        raise FormatError(f"{url} is cut short or damaged: {size} bytes do not hold an LMDB header; copy it again")
    return page_size, [os.pread(descriptor, page_size, number * page_size) for number in (0, 1)]


def _parse(page: bytes, number: int, url: str) -> tuple[int, int, int]:
    magic, version, _, _ = _META.unpack_from(page, _META_AT)
    if magic != _MAGIC or version != _VERSION:
        raise FormatError(
            f"{url}: LMDB meta page {number} is damaged, or of a newer LMDB (version {version}); copy it again"
        )
    root = _DB.unpack_from(page, _META_AT + _META.size + _DB.size)[7]
    last, transaction = _TAIL.unpack_from(page, _META_AT + _META.size + 2 * _DB.size)
    return root, last, transaction


def _digest(descriptor: int, page_size: int, pages: list[bytes], root: int) -> bytes:
    main = b"" if root == NO_PAGE else os.pread(descriptor, page_size, root * page_size)
    return xxhash.xxh3_64_digest(pages[0][: -_STAMP.size] + pages[1] + main)
