"""The HDF5 engine: native stores are a group ``records`` of flat datasets, readable by any HDF5 tool."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import h5py
import msgspec
import numpy as np
import xxhash
from msgspec import structs

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.base import BackendOptions, FileBackend, FileOpener
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.hdf5.columns import OFFSET, Column, datasets_of, fixed_values, steps
from storeds.backends.hdf5.headers import check_attribute
from storeds.backends.hdf5.rows import LibraryRows, Rows, gather, open_rows
from storeds.backends.hdf5.stamp import check_hdf5_file, open_hdf5_file, system_failure
from storeds.errors import FormatError, RecordError, StoredsError, UnavailableError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.arrays import stack_records, stackable
from storeds.records.codec import SEAL, Seals, check_column, checksum, encode
from storeds.records.columns import SCALARS, column_from_records, text_column
from storeds.records.meta import WRITTEN_BY, meta_from_text

if TYPE_CHECKING:
    from storeds.backends.hdf5.sink import Hdf5Sink

__all__ = ["Hdf5Backend", "Hdf5Options"]

_SEAL = np.dtype("<u8")


class Hdf5Options(BackendOptions, frozen=True):
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
    cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1 << 20


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
    row: Any
    """Makes what `encode` packs like a record, in less time than a dict takes; None unless all fields have fixed size."""
    intact: dict[str, bool] = field(default_factory=dict)
    """Field → whether its whole column matched its checksum, once that was computed."""


class Hdf5Opener(FileOpener[Hdf5Options]):
    """Opens one file for reading."""

    engine = "hdf5"

    def open(self, opened: OpenStore | None = None) -> Hdf5Handle:
        try:
            return self._open(opened)
        except UnavailableError:  # another process may have replaced the file between two steps
            return self._open(None)

    def _open(self, opened: OpenStore | None) -> Hdf5Handle:
        with OpenStore.borrow(opened) as store:
            descriptor = store.descriptor(self.path)
            check_hdf5_file(descriptor, self.url)
            file = store.share("h5py", self._open_file, h5py.File.close)
            if not _is_at(descriptor, self.path):
                raise UnavailableError(f"{self.url} was replaced while it was being opened; open it again")
            try:
                handle = self._find_columns(file, descriptor)
            except StoredsError:
                raise
            except Exception as error:  # libhdf5 raises almost anything for a damaged file
                damaged = FormatError(f"{self.url} is damaged: {type(error).__name__}: {error}; copy it again")
                raise system_failure(error, self.url) or damaged from error
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
        check_attribute(file, "meta")
        meta, body = meta_from_text(file.attrs["meta"], self.url)
        n, found = meta.count, list[Rows]()

        def rows(name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Rows:
            found.append(open_rows(file, f"records/{name}", dtype, shape, descriptor, self.url))
            return found[-1]

        columns = {
            name: Column(field, *(rows(each, *kind) for each, kind in datasets_of(name, field, n).items()))
            for name, field in meta.fields.items()
        }
        seal_rows, seals = rows(SEAL, _SEAL, (n,)), Seals.of(body.get("salt"), n, self.url)
        kept = file if any(isinstance(each, LibraryRows) for each in found) else None
        return Hdf5Handle(descriptor, kept, meta, columns, body.get("columns", {}), seal_rows, seals, _row(meta))

    def close(self, handle: Hdf5Handle, /) -> None:
        if handle.file is not None:
            handle.file.close()
        os.close(handle.descriptor)

    def abandon_after_fork(self, handle: Hdf5Handle, /) -> None:
        # h5py holds libhdf5's lock during a fork, so no read is interrupted. The parent's file stays open.
        self.close(handle)


def _row(meta: Meta) -> Any:
    if not all(field.is_fixed for field in meta.fields.values()):
        return None
    names = {f"f{number}": name for number, name in enumerate(meta.fields)}  # a name need not be an identifier
    return msgspec.defstruct("Row", list(names), rename=names)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


class Hdf5Backend(FileBackend[Hdf5Handle, Hdf5Opener]):
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

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._lease() as handle:
            reads = "at file offsets" if handle.file is None else "through libhdf5"
        how: dict[str, JSON] = {"reads": reads, **super().handle_settings()}
        return {**how, **structs.asdict(self._opener.settings)}

    def advice(self) -> list[str]:
        # docstring inherited
        found = super().advice()
        with self._lease() as handle:
            if handle.file is not None:
                found.append(
                    "datasets are chunked or filtered, so libhdf5's lock serialises reads: storeds convert makes them flat"
                )
        return found

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        at = np.array(positions, np.int64)
        with self._lease() as handle:
            try:
                if handle.row is not None:
                    arrays = self._stacked(handle, at, fields)
                    return [
                        *_records(fields, [_values(arrays[name], self.meta.fields[name]) for name in fields], len(at))
                    ]
                if not self._codec.needs_whole(fields) and self._are_intact(handle, fields):
                    return [*_records(fields, [handle.columns[name].read(at) for name in fields], len(at))]
                columns = [column.read(at) for column in handle.columns.values()]
                records = _records(tuple(handle.columns), columns, len(at))
                if _match(handle, records, at):
                    return list(map(self._codec.to_user_values, records))
            except ValueError:  # a value is unreadable or does not match its seal
                pass
            return [self._read_one(handle, position) for position in positions]

    def _read_one(self, handle: Hdf5Handle, position: int) -> Record | RecordError:
        """Return one record, or its error, which names the key if that is readable."""
        at, record = np.array([position]), dict[str, Any]()
        fault: object = None
        for name, column in handle.columns.items():
            try:
                (record[name],) = column.read(at)
            except ValueError as error:
                fault = fault or error
        try:
            if fault is None:
                seal = int(gather(handle.seal_rows, at).view(_SEAL)[0, 0])
                fault = handle.seals.fault(seal, checksum(encode(record)), position)
            return self._codec.to_user_values(record) if fault is None else self._fault(position, fault, record)
        except ValueError as error:
            return self._fault(position, error, record)

    def _are_intact(self, handle: Hdf5Handle, fields: Sequence[str]) -> bool:
        """Whether these fields can be read without their records, since their columns match their checksums."""
        for name in fields:
            if name not in handle.intact:
                handle.intact[name] = name in handle.checksums and _is_intact(handle, name)
            if not handle.intact[name]:
                return False
        return True

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        names = stackable(self, fields)
        asked = self._check_positions(positions)
        with self._lease() as handle, suppress(ValueError):
            if len(asked) and (handle.row is not None or self._can_stand_alone(handle, names)):
                return self._stacked(handle, asked, names)
        # Read the records one by one to report which one is bad.
        return stack_records(self, asked, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def _can_stand_alone(self, handle: Hdf5Handle, names: Sequence[str]) -> bool:
        return all(self.meta.fields[name].is_scalar for name in names) and self._are_intact(handle, names)

    def _stacked(self, handle: Hdf5Handle, positions: Array, names: Sequence[str]) -> dict[str, Array]:
        """Return fields of fixed size as arrays; raises ValueError if a record is bad."""
        declared = self.meta.fields
        is_alone = self._can_stand_alone(handle, names)
        raw = {name: gather(handle.columns[name].rows, positions) for name in (names if is_alone else declared)}
        if not is_alone:
            columns = [fixed_values(each, declared[name]) for name, each in raw.items()]
            if not _match(handle, list(map(handle.row, *columns)), positions):
                raise ValueError("a record does not match its seal")
        return {name: _typed(raw[name], declared[name]) for name in names}

    def _column(self, name: str, field: Field) -> Array:
        if field.kind == "array":
            return column_from_records(self, name)
        with self._lease() as handle:
            found = []
            for part, rows in handle.columns[name].parts(name):
                found.append(b"".join(steps(rows)))
                check_column(part, found[-1], handle.checksums.get(part), self.url)
        if field.kind == "str":
            return text_column(found[0], np.frombuffer(found[1], OFFSET).tolist())
        return np.frombuffer(bytearray(found[0]), SCALARS[field.kind])


def _is_intact(handle: Hdf5Handle, name: str) -> bool:
    """Whether each dataset of a column matches its checksum."""
    for part, rows in handle.columns[name].parts(name):
        hasher = xxhash.xxh3_64()
        for data in steps(rows):
            hasher.update(data)
        if hasher.hexdigest() != handle.checksums.get(part):
            return False
    return True


def _match(handle: Hdf5Handle, records: Sequence[Record], positions: Array) -> bool:
    """Whether all records, unpacked, have the seals of these positions; raises ValueError if a seal is unreadable."""
    seals = gather(handle.seal_rows, positions).view(_SEAL).astype(">u8")
    digests = b"".join(map(xxhash.xxh3_64_digest, map(encode, records)))
    return handle.seals.match(digests, seals.tobytes(), positions)


def _typed(raw: Array, field: Field) -> Array:
    """Return fixed-size values from their bytes, shape (n, *shape)."""
    dtype = np.dtype(field.dtype) if field.kind == "array" else SCALARS[field.kind]
    values: Array = raw.reshape(-1).view(dtype).reshape(len(raw), *(size or 0 for size in field.shape or ()))
    return values.astype(dtype.newbyteorder("="), copy=False)


def _values(column: Array, field: Field) -> list[Any]:
    """Return the values of an array of fixed-size values; arrays own their memory."""
    return list(map(np.array, column)) if field.kind == "array" else column.tolist()


def _records(names: Sequence[str], columns: Sequence[list[Any]], count: int) -> list[Any]:
    rows = zip(*columns, strict=True) if columns else ((),) * count
    return [dict(zip(names, row)) for row in rows]  # noqa: B905  # strict=True would check every row again
