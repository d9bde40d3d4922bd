"""Reads native HDF5 stores: a group ``records`` of flat datasets, readable by any HDF5 tool."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import h5py
import msgspec
import numpy as np
import xxhash
from msgspec import structs

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.engine import Engine
from storeds.backends.file_stores import FileLocation, describe_file, engine_at
from storeds.backends.handles import POOL
from storeds.backends.hdf5.columns import Column, datasets_of, fixed_values, steps
from storeds.backends.hdf5.headers import check_attribute
from storeds.backends.hdf5.rows import LibraryRows, gather, open_rows
from storeds.backends.hdf5.rows import Rows as DatasetRows
from storeds.backends.hdf5.stamp import check_hdf5_file, has_stamp, library_errors, open_hdf5_file
from storeds.backends.raw import BackendOptions, Fault, Opener, RawStore, Rows, Stacked
from storeds.errors import FormatError, UnavailableError
from storeds.protocols import Array, Description, Field, Meta
from storeds.records.codec import FAULT_DIGEST, FAULT_SEAL, SEAL, encode
from storeds.records.columns import SCALARS
from storeds.records.meta import WRITTEN_BY
from storeds.records.verifier import native_meta

if TYPE_CHECKING:
    from storeds.backends.hdf5.sink import Hdf5Sink

__all__ = ["HDF5", "Hdf5Opener", "Hdf5Options"]

POOL.wait_before_forks()
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


class Hdf5Store(RawStore):
    """A native store in an open file. It is its own handle.

    libhdf5 reads only the header. Records are read at their file offsets, by several threads at once and without libhdf5's global
    lock, unless another tool has chunked or filtered the datasets.

    Parameters
    ----------
    opener : Hdf5Opener
    file : h5py.File
        Stays open if a dataset needs libhdf5.
    descriptor : int
        Of the same file.
    """

    reads_fields: ClassVar[bool] = True
    has_flat_columns: ClassVar[bool] = True

    def __init__(self, opener: Hdf5Opener, file: h5py.File, descriptor: int) -> None:
        self.opener, self.descriptor = opener, descriptor
        url, found = opener.url, list[DatasetRows]()
        check_attribute(file, "meta")
        self.meta, self.verifier = native_meta(file.attrs["meta"], url)
        n = self.meta.count

        def rows(name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> DatasetRows:
            found.append(open_rows(file, f"records/{name}", dtype, shape, descriptor, url))
            return found[-1]

        self._columns: Mapping[str, Column] = {
            name: Column(field, *(rows(each, *kind) for each, kind in datasets_of(name, field, n).items()))
            for name, field in self.meta.fields.items()
        }
        self._seal_rows = rows(SEAL, _SEAL, (n,))
        self.file = file if any(isinstance(each, LibraryRows) for each in found) else None
        self._row = _row(self.meta)

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        at = np.array(positions, np.int64)
        try:
            if self._row is not None:
                names = tuple(self._columns) if fields is None else fields
                stacked = self.stacked(at, names, whole=fields is None)
                if stacked is None:
                    return self._read_each(positions)
                columns = [_values(stacked.arrays[name], self.meta.fields[name]) for name in names]
                return Rows(_records(names, columns, len(at)), stacked.digests, stacked.seals)
            if fields is not None:
                return Rows(_records(fields, [self._columns[name].read(at) for name in fields], len(at)))
            columns = [column.read(at) for column in self._columns.values()]
            records = _records(tuple(self._columns), columns, len(at))
            return Rows(records, _digests(records), self._seals(at))
        except ValueError:  # a value is unreadable
            return self._read_each(positions)

    def _read_each(self, positions: list[int]) -> Rows:
        """Read each record by itself, to find those that are unreadable."""
        records, digests, seals = list[Any](), list[bytes](), list[bytes]()
        for position in positions:
            at, record = np.array([position]), dict[str, Any]()
            fault, seal = "", FAULT_SEAL
            for name, column in self._columns.items():
                try:
                    (record[name],) = column.read(at)
                except ValueError as error:
                    fault = fault or str(error)
            try:
                seal = self._seals(at)
            except ValueError as error:
                fault = fault or str(error)
            key = record.get("key")
            records.append(Fault(fault, key if isinstance(key, str) else None) if fault else record)
            digests.append(FAULT_DIGEST if fault else _digests([record]))
            seals.append(FAULT_SEAL if fault else seal)
        return Rows(records, b"".join(digests), b"".join(seals))

    def stacked(self, positions: Array, fields: Sequence[str], *, whole: bool) -> Stacked | None:
        # docstring inherited
        declared = self.meta.fields
        if whole and self._row is None:
            return None
        try:
            raw = {name: gather(self._columns[name].rows, positions) for name in (declared if whole else fields)}
            digests = seals = b""
            if whole:
                columns = [fixed_values(each, declared[name]) for name, each in raw.items()]
                digests, seals = _digests(map(self._row, *columns)), self._seals(positions)
        except ValueError:  # a value is unreadable
            return None
        return Stacked({name: _typed(raw[name], declared[name]) for name in fields}, digests, seals)

    def arrays(self, positions: list[int], fields: tuple[str, ...]) -> Rows | None:
        # docstring inherited
        at = np.array(positions, np.int64)
        columns: list[list[Any]] = []
        try:
            for name in fields:
                column = self._columns[name]
                values = column.stored(at) if column.field.kind == "array" else column.read(at)
                if values is None:
                    return None
                columns.append(values)
        except ValueError:  # a value is unreadable
            return None
        return Rows(_records(fields, columns, len(at)))

    def _seals(self, positions: Array) -> bytes:
        """Return the seals of records, 8 big-endian bytes each, end to end; raises ValueError if one is unreadable."""
        return gather(self._seal_rows, positions).view(_SEAL).astype(">u8").tobytes()

    def column(self, name: str) -> Sequence[Iterable[bytes]]:
        # docstring inherited
        return [steps(rows) for _, rows in self._columns[name].parts(name)]

    def describe(self) -> Description:
        # docstring inherited
        advice, reads = [], "at file offsets"
        if self.file is not None:
            reads = "through libhdf5"
            advice = [
                "datasets are chunked or filtered, so libhdf5's lock serialises reads: storeds convert makes them flat"
            ]
        return describe_file(
            self.opener.path, self.opener.url, {"reads": reads, **structs.asdict(self.opener.settings)}, advice
        )


class Hdf5Opener(FileLocation[Hdf5Options], Opener[Hdf5Store]):
    """Opens one file for reading."""

    engine = "hdf5"

    def open(self) -> Hdf5Store:
        try:
            return self._open()
        except UnavailableError:  # another process may have replaced the file between two steps
            return self._open()

    def _open(self) -> Hdf5Store:
        with ExitStack() as opened:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            check_hdf5_file(descriptor, self.url)
            file = opened.enter_context(
                open_hdf5_file(self.path, self.url, self.settings.locking, self.settings.cache_bytes)
            )
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                raise UnavailableError(f"{self.url} was replaced while it was being opened; open it again")
            with library_errors(self.url):
                if not is_native(file):
                    raise FormatError(
                        f"{self.url} is an HDF5 file, but not a native store: its root lacks the attributes 'layout' and "
                        f"'meta'; {WRITTEN_BY}"
                    )
                store = Hdf5Store(self, file, descriptor)
            opened.pop_all()
            if store.file is None:
                file.close()
            return store

    def close(self, handle: Hdf5Store, /) -> None:
        if handle.file is not None:
            handle.file.close()
        os.close(handle.descriptor)

    def attach(self, handle: Hdf5Store, /) -> Hdf5Store:
        return handle


def is_native(file: h5py.File) -> bool:
    """Whether the root of a file has the attributes of a native store."""
    return "layout" in file.attrs and "meta" in file.attrs


def _row(meta: Meta) -> Any:
    if not all(field.is_fixed for field in meta.fields.values()):
        return None
    names = {f"f{number}": name for number, name in enumerate(meta.fields)}  # a name need not be an identifier
    return msgspec.defstruct("Row", list(names), rename=names)


def _digests(records: Iterable[Any]) -> bytes:
    """Return the checksums of unpacked records, 8 bytes each, end to end."""
    return b"".join(map(xxhash.xxh3_64_digest, map(encode, records)))


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


def _opener(url: str | StoreURL, **options: Any) -> Hdf5Opener:
    path, in_url = file_path(url)
    return Hdf5Opener(path, parse_options(Hdf5Options, in_url, options, url))


def _sink(url: str | StoreURL, **options: Any) -> Hdf5Sink:
    from storeds.backends.hdf5.sink import Hdf5Sink  # reading needs no writer

    return Hdf5Sink(_opener(url, **options).path)


def holds_foreign(url: StoreURL, options: Mapping[str, Any]) -> bool:
    """Return whether another tool's file is there: it has neither the stamp nor the attributes of a native one.

    Raises UnavailableError and FormatError.
    """
    path, _ = file_path(url)
    opener = _opener(path)
    if not os.path.isfile(path) or engine_at(path, opener.url)[1] != opener.engine:
        return False
    if has_stamp(path, opener.url):
        return False
    locking = {**url.options, **options}.get("locking", "auto")
    with open_hdf5_file(path, opener.url, str(locking), 0) as file, library_errors(opener.url):
        return not is_native(file)


HDF5 = Engine(_opener, _sink, holds_foreign)
"""The engine of ``hdf5://``."""
