"""The HDF5 engine: native stores are a group ``records`` of flat datasets, readable by any HDF5 tool."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import h5py
import numpy as np
import xxhash
from pydantic import Field as Option

from storeds._utils.locations import CutShortError, StoreURL, file_path, file_system, file_system_advice, staging_folder
from storeds.backends.base import BackendOptions, FileOpener, HandleBackend, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.hdf5.columns import (
    BlockError,
    Blocks,
    Column,
    RecordDigests,
    Table,
    check_alone,
    column_datasets,
    read_raw,
    read_values,
    typed,
)
from storeds.backends.hdf5.rows import FileMap, LibraryRows, Rows, gather, gather_any, open_rows
from storeds.errors import FormatError, RecordError, StoredsError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import SEAL, Places
from storeds.records.columns import SCALARS, stack_records, stackable, text_column
from storeds.records.fields import WRITTEN_BY, meta_from_row

if TYPE_CHECKING:
    from storeds.protocols import Writer

__all__ = ["Hdf5Backend", "Hdf5Options", "check_hdf5_file", "open_hdf5_file", "stamp_hdf5_file"]

_BYTE, _OFFSET, _SEAL = np.dtype("u1"), np.dtype("<i8"), np.dtype("<u8")


class Hdf5Options(BackendOptions):
    """Options of ``hdf5://`` stores.

    Attributes
    ----------
    locking : str
        HDF5 file locking while the header is read: ``auto`` (HDF5's default and ``HDF5_USE_FILE_LOCKING``), ``true``,
        ``false`` (for network file systems without locks) or ``best-effort``.
    cache_bytes : int
        Size of the chunk cache of each chunked dataset, in bytes.
    """

    locking: Literal["auto", "true", "false", "best-effort"] = "auto"
    cache_bytes: int = Option(default=1 << 20, ge=0)


@dataclass(frozen=True)
class Hdf5Handle:
    """An open file: its descriptor, the location of all datasets, and the libhdf5 file if a dataset needs it."""

    descriptor: int
    mapped: FileMap
    file: h5py.File | None
    meta: Meta
    columns: Mapping[str, Column]
    seals: Rows
    places: Places
    digests: RecordDigests


class Hdf5Opener(FileOpener[Hdf5Options]):
    """Opens one file for reading."""

    engine = "hdf5"

    def open(self, opened: OpenStore | None = None) -> Hdf5Handle:
        with OpenStore.borrow(opened) as store:
            descriptor = store.descriptor(self.path)
            check_hdf5_file(descriptor, self.url)
            file = store.share("h5py", self._open_file, h5py.File.close)
            try:
                handle = self._find_columns(file, descriptor)
            except StoredsError:
                raise
            except Exception as error:  # libhdf5 raises almost anything for a damaged file
                raise FormatError(f"{self.url} is damaged: {type(error).__name__}: {error}; copy it again") from error
            store.take(self.path)
            if handle.file is not None:
                store.take("h5py")
            return handle

    def _open_file(self) -> h5py.File:
        return open_hdf5_file(self.path, self.url, self.settings.locking, self.settings.cache_bytes)

    def _find_columns(self, file: h5py.File, descriptor: int) -> Hdf5Handle:
        if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
            raise FormatError(f"{self.url} was replaced while it was being opened; open it again")
        if "layout" not in file.attrs:
            raise FormatError(
                f"{self.url} is an HDF5 file, but not a native store: it has no root attribute 'layout'; {WRITTEN_BY}"
            )
        meta, body = meta_from_row(file.attrs, ("blocks", "salt"), self.url)
        n, mapped, stored = meta.count, FileMap(descriptor), meta.fields

        def rows(name: str, dtype: np.dtype[Any], *shape: int | None) -> Rows:
            return open_rows(file, f"records/{name}", dtype, shape, descriptor, mapped, self.url)

        columns = {name: _find_column(name, field, n, rows) for name, field in stored.items()}
        table = open_rows(file, "blocks", _SEAL, (None,), descriptor, mapped, self.url)
        columns = _with_blocks(columns, table, body["blocks"], self.url)
        seals = rows(SEAL, _SEAL, n)
        everything = [
            seals,
            table,
            *(r for c in columns.values() for r in (c.rows, c.offsets, c.shapes) if r is not None),
        ]
        needs_library = any(isinstance(part, LibraryRows) for part in everything)
        kept = file if needs_library else None
        places = Places.of(body["salt"], n, self.url)
        return Hdf5Handle(descriptor, mapped, kept, meta, columns, seals, places, RecordDigests(stored))

    def close(self, handle: Hdf5Handle, /) -> None:
        handle.mapped.close()
        if handle.file is not None:
            handle.file.close()
        os.close(handle.descriptor)

    def abandon_after_fork(self, handle: Hdf5Handle, /) -> None:
        # h5py holds libhdf5's lock during a fork, so no read is interrupted. The parent's file stays open.
        self.close(handle)


def _find_column(name: str, field: Field, n: int, rows: Callable[..., Rows]) -> Column:
    if field.is_scalar:
        return Column(field, rows(name, SCALARS[field.kind], n))
    if field.is_fixed:
        return Column(field, rows(name, np.dtype(field.dtype), n, *(field.shape or ())))
    offsets = rows(f"{name}/offsets", _OFFSET, n + 1)
    shapes = rows(f"{name}/shapes", _OFFSET, n, len(field.shape or ())) if field.kind == "array" else None
    return Column(field, rows(f"{name}/data", _BYTE, None), offsets, shapes)


def _with_blocks(columns: Mapping[str, Column], rows: Rows, checksum: str, url: str) -> dict[str, Column]:
    """Return the columns, each with its part of the checksum table in `rows`."""
    found, table, start = dict(columns), Table(rows, checksum), 0
    for name, dataset in column_datasets({name: column.field for name, column in columns.items()}):
        column, offsets = found[name], dataset.endswith("/offsets")
        part = column.offsets if offsets and column.offsets is not None else column.rows
        blocks = Blocks(part, table, start)
        found[name] = replace(column, offset_blocks=blocks) if offsets else replace(column, blocks=blocks)
        start += blocks.count
    if start != rows.count:
        raise FormatError(f"{url}: dataset blocks has {rows.count} checksums, expected {start}; copy it again")
    return found


class Hdf5Backend(HandleBackend[Hdf5Handle, Hdf5Opener]):
    """Reads a native HDF5 store.

    Parameters
    ----------
    url : str
        ``hdf5://relative/path``, ``hdf5:///absolute/path`` or a path, with ``?locking=false`` and the like.
    **options
        See `Hdf5Options`; the URL may hold them instead.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    FormatError
        The file is not a complete native HDF5 store.
    ConfigError
        An option is unknown.

    Notes
    -----
    libhdf5 reads only the header. Records are read at their file offsets, by several threads at once and without
    libhdf5's global lock, unless another tool has chunked or filtered the datasets.
    """

    Options: ClassVar[type[Hdf5Options]] = Hdf5Options
    shares_open_store = True
    pool: ClassVar[HandlePool[Hdf5Handle]] = HandlePool(limit=128, quiesce=True)

    def __init__(self, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> None:
        path, in_url = file_path(url)
        super().__init__(Hdf5Opener(path, parse_options(Hdf5Options, in_url, options, url)), opened)

    @staticmethod
    def open_writer(url: str | StoreURL, fields: Mapping[str, Any], **options: Any) -> Writer:
        """Return a `Writer` of a native store; see `storeds.open_writer`."""
        from storeds.backends.hdf5.writer import Hdf5Writer

        return Hdf5Writer(url, fields, **options)

    def stored_bytes(self) -> int:
        # docstring inherited
        return os.path.getsize(self._opener.path)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._lease() as handle:
            reads = "at file offsets" if handle.file is None else "through libhdf5"
        how: dict[str, JSON] = {"reads": reads, "file_system": file_system(self._opener.path)}
        return {**how, **self._opener.settings.model_dump()}

    def advice(self) -> list[str]:
        # docstring inherited
        with self._lease() as handle:
            slow = handle.file is not None
        chunked = [
            "datasets are chunked or filtered, so libhdf5's lock serialises reads: storeds convert makes them flat"
        ]
        return [*(chunked if slow else []), *file_system_advice(self._opener.path)]

    def leftovers(self) -> str | None:
        # docstring inherited
        folder = staging_folder(self._opener.path)
        return str(folder) if folder.exists() and self.writer() is None else None

    def writer(self) -> str | None:
        # docstring inherited
        from storeds.backends.staging import active_writer

        return active_writer(self._opener.path)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        whole = self._codec.needs_whole(fields)
        wanted = np.array(positions, np.int64)
        with self._lease() as handle:
            names, columns = fields, None if whole else _read_alone(handle, wanted, fields)
            if columns is None:  # a block is damaged: read whole records, whose seals show which are good
                whole, names = True, tuple(self.meta.fields)
                columns = [read_values(handle.columns[name], wanted) for name in names]
            seals = gather(handle.seals, wanted)[0].view(_SEAL)[:, 0] if whole else None
            digests, places = handle.digests, handle.places
        rows = zip(*columns, strict=True) if columns else ((),) * len(positions)
        records = [dict(zip(names, row)) for row in rows]  # noqa: B905  # strict=True would check every row again
        try:
            if seals is not None and b"".join(digests.of_records(records)) == places.digests(seals, wanted):
                return [*map(self._codec.revive_stored, records)] if self._codec.has_json else [*records]
        except (TypeError, ValueError, AttributeError):  # a value is unreadable or invalid
            pass
        each = [None] * len(positions) if seals is None else seals.tolist()
        return [
            self._checked(position, record, seal, digests, places)
            for position, record, seal in zip(positions, records, each, strict=True)
        ]

    def _checked(
        self, position: int, record: Record, seal: int | None, digests: RecordDigests, places: Places
    ) -> Record | RecordError:
        """Return a record, verified if `seal` is given; there is none if only some fields were read."""
        for value in record.values():
            if isinstance(value, ValueError):
                return self._fault(position, value, record)
        fault = None if seal is None else places.fault(seal, digests.of_records([record])[0], position)
        if fault is not None:
            return self._fault(position, fault, record)
        try:
            return self._codec.revive_stored(record)
        except ValueError as error:
            return self._fault(position, error, record)

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        names = stackable(self, fields)
        asked = self._check_positions(positions)
        arrays = self._gather_arrays(asked, names) if len(asked) else None
        # Read the records one by one to report which one is bad.
        return stack_records(self, asked, names) if arrays is None else arrays  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def _gather_arrays(self, positions: Array, names: tuple[str, ...]) -> dict[str, Array] | None:
        """Return the arrays, or None if a record is bad, or must be read completely and has variable-size fields."""
        whole, declared = self._codec.needs_whole(names), self.meta.fields
        if whole and not all(field.is_fixed for field in declared.values()):
            return None
        with self._lease() as handle:
            try:
                for name in () if whole else names:
                    check_alone(handle.columns[name], positions)
            except BlockError:
                return None
            raw = {name: read_raw(handle.columns[name], positions) for name in (declared if whole else names)}
            seals = gather_any(handle.seals, positions) if whole else None
            digests, places = handle.digests.of_columns, handle.places
        found = {name: data for name, data in raw.items() if data is not None}
        if len(found) < len(raw) or (whole and seals is None):
            return None
        columns = {name: typed(data, declared[name]) for name, data in found.items()}
        if seals is not None:
            expected = places.digests(seals.view(_SEAL)[:, 0], positions)
            if b"".join(digests(columns, found)) != expected:
                return None
        return {name: columns[name] for name in names}

    def _column(self, name: str, field: Field) -> Array:
        n = self.meta.count
        with self._lease() as handle:
            column = handle.columns[name]
            if column.offsets is None:
                dtype = np.dtype(field.dtype) if field.kind == "array" else SCALARS[field.kind]
                flat = np.frombuffer(bytearray(self._whole(name, column.rows, column.blocks)), dtype)
                return flat.reshape((n, *(size or 0 for size in field.shape or ())))
            offsets = np.frombuffer(self._whole(name, column.offsets, column.offset_blocks), _OFFSET)
            text = self._whole(name, column.rows, column.blocks)
        try:
            if offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(text):
                raise ValueError
            return text_column(text, offsets.tolist())
        except ValueError:  # another tool wrote the file without checksums
            raise FormatError(f"{self.url}: the offsets of field {name!r} are damaged; copy it again") from None

    def _whole(self, name: str, rows: Rows, blocks: Blocks | None) -> bytes:
        (data,) = rows.read([(0, rows.count)])
        if len(data) != rows.count * rows.size:
            raise FormatError(f"{self.url} was cut short: column {name!r} has only {len(data)} bytes; copy it again")
        try:
            if blocks is not None:
                blocks.check_all(data)
        except BlockError as error:
            raise FormatError(
                f"{self.url}: column {name!r} does not match its checksums ({error}); copy the file again, or run storeds "
                "verify to learn which records are damaged"
            ) from None
        return data


def _read_alone(handle: Hdf5Handle, positions: Array, fields: tuple[str, ...]) -> list[list[Any]] | None:
    """Return columns of values without reading whole records; None if a block is damaged."""
    try:
        return [read_values(handle.columns[name], positions, alone=True) for name in fields]
    except BlockError:
        return None


_MAGIC = b"storeds\x02"
_RANGE = struct.Struct("<QQ")
_FOOT = struct.Struct("<8sQ8s")
_METADATA = 1 << 24  # bytes; a store's header takes tens of kilobytes
_CUT = re.compile(r"truncated file: eof = (\d+).*stored_eof = (\d+)")
_MOST = 1 << 16  # ranges; a field has at most three


def check_hdf5_file(descriptor: int, url: str) -> None:
    """Raise FormatError unless the stamp of an open HDF5 file holds; a file without one passes.

    Call it before libhdf5 sees the file, because libhdf5 may crash or hang on damaged metadata: a single flipped bit in
    a B-tree or a heap is enough (HDF5 2.0.0).
    """
    size = os.fstat(descriptor).st_size
    foot = os.pread(descriptor, _FOOT.size, max(0, size - _FOOT.size))
    if len(foot) != _FOOT.size:
        return
    digest, count, magic = _FOOT.unpack(foot)
    if magic != _MAGIC:
        return
    table_at = size - _FOOT.size - min(count, _MOST) * _RANGE.size
    table = os.pread(descriptor, size - _FOOT.size - table_at, table_at) if table_at >= 0 else b""
    if _digest(descriptor, table) != digest:
        raise FormatError(f"{url}: its metadata do not match their checksum; copy it again")


def open_hdf5_file(path: str, url: str, locking: str, cache_bytes: int) -> h5py.File:
    """Open a file with libhdf5; raises FormatError, with a plain message for a truncated file."""
    how = {"auto": None, "true": True, "false": False}.get(locking, locking)
    try:
        return h5py.File(path, "r", locking=how, rdcc_nbytes=cache_bytes)
    except Exception as error:  # a damaged header makes libhdf5 raise almost anything
        cut = _CUT.search(str(error))
        if cut is None:
            raise FormatError(f"{url} cannot be opened by HDF5: {error}") from error
        there, due = int(cut[1]), int(cut[2])
        raise CutShortError(
            f"{url} is cut short: {there:,} of its {due:,} bytes are there ({100 * there // due} %); the copy or download was "
            "interrupted, or its writer never closed it: copy or download it again"
        ) from error


def stamp_hdf5_file(path: str, raw: Iterable[tuple[int, int]]) -> None:
    r"""Append the stamp to the HDF5 file at `path`, whose datasets keep their values in the byte ranges `raw`.

    The stamp lies behind the end that the HDF5 superblock knows of. It lists which byte ranges are metadata (all but the
    raw data of datasets, which record and column checksums cover), with a checksum over them. HDF5 tools ignore it, and a
    tool that opens the file for writing cuts it off, so its changes are not reported as damage.

    Its numbers are little-endian uint64: start and stop of each range; xxh3-64 over these and the bytes of the ranges; the
    number of ranges; ``storeds\x02``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        ranges = _complement(raw, size)
        if len(ranges) > _MOST:
            return
        table = b"".join(_RANGE.pack(*span) for span in ranges)
        os.pwrite(descriptor, table + _FOOT.pack(_digest(descriptor, table), len(ranges), _MAGIC), size)
    finally:
        os.close(descriptor)


def _complement(raw: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    gaps, end = [], 0
    for start, stop in [*sorted(raw), (size, size)]:
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    return gaps


def _digest(descriptor: int, table: bytes) -> bytes:
    hasher = xxhash.xxh3_64(table)
    for start, stop in _RANGE.iter_unpack(table):
        # A damaged table may name any range, and must not be trusted.
        size = min(stop, os.fstat(descriptor).st_size) - start
        if size > 0:
            hasher.update(os.pread(descriptor, min(size, _METADATA), start))
    return hasher.digest()
