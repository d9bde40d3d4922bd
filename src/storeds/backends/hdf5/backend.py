"""The HDF5 engine: native stores are a group ``records`` of flat datasets, readable by any HDF5 tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import h5py
import msgspec
import numpy as np
from pydantic import Field as Option

from storeds._utils.locations import StoreURL, file_path, file_system, file_system_advice, staging_folder
from storeds.backends.base import BackendOptions, FileOpener, HandleBackend, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.hdf5.columns import Column, checksum_of, digests_of, fixed_values, read_values
from storeds.backends.hdf5.rows import JoinedRows, LibraryRows, Rows, gather, open_rows
from storeds.backends.hdf5.stamp import check_hdf5_file, open_hdf5_file
from storeds.errors import FormatError, RecordError, StoredsError, UnavailableError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import checksum, encode
from storeds.records.columns import SCALARS, column_from_records, stack_records, stackable, text_column
from storeds.records.fields import WRITTEN_BY, meta_from_text
from storeds.records.seals import SEAL, Seals, check_column

if TYPE_CHECKING:
    from storeds.backends.hdf5.sink import Hdf5Sink

__all__ = ["Hdf5Backend", "Hdf5Options"]

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
    file: h5py.File | None
    meta: Meta
    columns: Mapping[str, Column]
    checksums: Mapping[str, JSON]
    seal_rows: Rows
    seals: Seals
    blobs: Sequence[str]
    """Fields of images and bytes."""
    row: Any
    """Makes from values what `encode` packs like a record, in less time than a dict takes; None unless all have fixed size."""
    intact: set[str] = field(default_factory=set)
    """Fields whose whole column matched its checksum."""


class Hdf5Opener(FileOpener[Hdf5Options]):
    """Opens one file for reading."""

    engine = "hdf5"

    def open(self, opened: OpenStore | None = None) -> Hdf5Handle:
        with OpenStore.borrow(opened) as store:
            handle = self._open(store)
        if handle is None:  # another process replaced the file between two steps
            with OpenStore() as store:
                handle = self._open(store)
        if handle is None:
            raise UnavailableError(f"{self.url} was replaced twice while it was being opened; open it again")
        return handle

    def _open(self, store: OpenStore) -> Hdf5Handle | None:
        descriptor = store.descriptor(self.path)
        check_hdf5_file(descriptor, self.url)
        file = store.share("h5py", self._open_file, h5py.File.close)
        if not _is_at(descriptor, self.path):
            return None
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
        if "layout" not in file.attrs or "meta" not in file.attrs:
            raise FormatError(
                f"{self.url} is an HDF5 file, but not a native store: its root lacks the attributes 'layout' and 'meta'; "
                f"{WRITTEN_BY}"
            )
        meta, body = meta_from_text(file.attrs["meta"], self.url)
        n, found = meta.count, list[JoinedRows]()

        def rows(name: str, dtype: np.dtype[Any], *shape: int | None) -> Rows:
            found.append(open_rows(file, f"records/{name}", dtype, shape, descriptor, self.url))
            return found[-1]

        columns = {name: _find_column(name, field, n, rows) for name, field in meta.fields.items()}
        seal_rows, seals = rows(SEAL, _SEAL, n), Seals.of(body.get("salt"), n, self.url)
        kept = file if any(isinstance(each, LibraryRows) for each in found) else None
        checksums = dict(body.get("columns", {}))
        blobs = [name for name, field in meta.fields.items() if field.kind in ("image", "bytes")]
        return Hdf5Handle(descriptor, kept, meta, columns, checksums, seal_rows, seals, blobs, _row(meta.fields))

    def close(self, handle: Hdf5Handle, /) -> None:
        if handle.file is not None:
            handle.file.close()
        os.close(handle.descriptor)

    def abandon_after_fork(self, handle: Hdf5Handle, /) -> None:
        # h5py holds libhdf5's lock during a fork, so no read is interrupted. The parent's file stays open.
        self.close(handle)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _row(fields: Mapping[str, Field]) -> Any:
    if not all(field.is_fixed for field in fields.values()):
        return None
    names = {f"f{number}": name for number, name in enumerate(fields)}  # a name need not be an identifier
    return msgspec.defstruct("Row", list(names), rename=names)


def _find_column(name: str, field: Field, n: int, rows: Callable[..., Rows]) -> Column:
    if field.is_scalar:
        return Column(field, rows(name, SCALARS[field.kind], n))
    if field.is_fixed:
        return Column(field, rows(name, np.dtype(field.dtype), n, *(field.shape or ())))
    offsets = rows(f"{name}/offsets", _OFFSET, n + 1)
    shapes = rows(f"{name}/shapes", _OFFSET, n, len(field.shape or ())) if field.kind == "array" else None
    return Column(field, rows(f"{name}/data", _BYTE, None), offsets, shapes)


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
    def sink(url: str | StoreURL, **options: Any) -> Hdf5Sink:
        """Return the sink of a native store."""
        from storeds.backends.hdf5.sink import Hdf5Sink

        path, in_url = file_path(url)
        parse_options(Hdf5Options, in_url, options, url)
        return Hdf5Sink(path)

    def _is_stale(self, handle: Hdf5Handle) -> bool:
        return not _is_at(handle.descriptor, self._opener.path)

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
        at = np.array(positions, np.int64)
        with self._lease() as handle:
            if not self._codec.needs_whole(fields) and self._are_intact(handle, fields):
                columns = [read_values(handle.columns[name], at) for name in fields]
                if not any(ValueError in set(map(type, column)) for column in columns):
                    return _records(fields, columns, len(at))
            return self._read_whole(handle, at)

    def _are_intact(self, handle: Hdf5Handle, fields: Sequence[str]) -> bool:
        """Whether these fields can be read without their records, since their columns match their checksums."""
        for name in fields:
            if name not in handle.intact:
                expected = handle.checksums
                if any(expected.get(part) != checksum_of(rows) for part, rows in handle.columns[name].parts(name)):
                    return False
                handle.intact.add(name)
        return True

    def _read_whole(self, handle: Hdf5Handle, positions: Array) -> list[Record | RecordError]:
        """Return complete records, each of which matches its seal, or its error."""
        columns = [read_values(column, positions) for column in handle.columns.values()]
        records = _records(tuple(handle.columns), columns, len(positions))
        seals = gather(handle.seal_rows, positions)[0].view(_SEAL)[:, 0]
        if _match(handle, records, seals, positions):
            is_plain = all(field.kind not in ("array", "json") for field in self.meta.fields.values())
            return records if is_plain else [*map(self._codec.revive, records)]
        each = zip(records, seals.tolist(), positions.tolist(), strict=True)
        return [self._checked(handle.seals, record, seal, position) for record, seal, position in each]

    def _checked(self, seals: Seals, record: Record, seal: int, position: int) -> Record | RecordError:
        try:
            for value in record.values():
                if isinstance(value, ValueError):
                    raise value
            fault = seals.fault(seal, checksum(encode(record)), position)
            return self._codec.revive(record) if fault is None else self._fault(position, fault, record)
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
        declared = self.meta.fields
        alone = all(declared[name].is_scalar for name in names)
        if not alone and not all(field.is_fixed for field in declared.values()):
            return None
        with self._lease() as handle:
            if alone and not self._are_intact(handle, names):
                return None
            found = {name: gather(handle.columns[name].rows, positions) for name in (names if alone else declared)}
            seals = None if alone else gather(handle.seal_rows, positions)[0].view(_SEAL)[:, 0]
        if not all(whole.all() for _, whole in found.values()):
            return None
        if seals is not None:
            columns = [fixed_values(raw, declared[name]) for name, (raw, _) in found.items()]
            if not _match(handle, list(map(handle.row, *columns)), seals, positions):
                return None
        return {name: _typed(found[name][0], declared[name]) for name in names}

    def _column(self, name: str, field: Field) -> Array:
        if field.kind == "array":
            return column_from_records(self, name)
        with self._lease() as handle:
            parts = {part: self._whole(part, rows) for part, rows in handle.columns[name].parts(name)}
            for part, data in parts.items():
                check_column(part, data, handle.checksums.get(part), self.url)
        data, *offsets = parts.values()
        if offsets:
            return text_column(data, np.frombuffer(offsets[0], _OFFSET).tolist())
        return np.frombuffer(bytearray(data), SCALARS[field.kind])

    def _whole(self, name: str, rows: Rows) -> bytes:
        (data,) = rows.read([(0, rows.count)])
        if len(data) != rows.count * rows.size:
            raise FormatError(f"{self.url}: column {name!r} has only {len(data)} readable bytes; copy it again")
        return data


def _match(handle: Hdf5Handle, records: Sequence[Record], seals: Array, positions: Array) -> bool:
    """Whether all records, as `read_values` returns them, have these seals at these positions."""
    try:
        digests = digests_of(records, handle.blobs)
    except (TypeError, ValueError):  # a value is unreadable
        return False
    return handle.seals.match(b"".join(digests), seals.astype(">u8").tobytes(), positions)


def _typed(raw: Array, field: Field) -> Array:
    """Return fixed-size values from their bytes, shape (n, *shape)."""
    dtype = np.dtype(field.dtype) if field.kind == "array" else SCALARS[field.kind]
    values: Array = raw.reshape(-1).view(dtype).reshape(len(raw), *(size or 0 for size in field.shape or ()))
    return values.astype(dtype.newbyteorder("="), copy=False)


def _records(names: Sequence[str], columns: Sequence[list[Any]], count: int) -> list[Any]:
    rows = zip(*columns, strict=True) if columns else ((),) * count
    return [dict(zip(names, row)) for row in rows]  # noqa: B905  # strict=True would check every row again
