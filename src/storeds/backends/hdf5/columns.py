"""Reads the stored values of one field of a native HDF5 store at many positions, and checks the checksums of its blocks."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash

from storeds.backends.hdf5.rows import Rows, gather, gather_any, read_spans
from storeds.protocols import Array, Field, Record
from storeds.records.codec import RecordCodec, checksum
from storeds.records.columns import SCALARS

__all__ = [
    "BLOCK",
    "BlockError",
    "Blocks",
    "Column",
    "RecordDigests",
    "Table",
    "block_count",
    "block_digests",
    "check_alone",
    "column_datasets",
    "read_raw",
    "read_values",
    "typed",
]


_CUT = ValueError("its bytes are cut short, or its offsets are damaged")


@dataclass(frozen=True)
class Column:
    """Where the values of one field lie: fixed-size rows, or ``rows`` of bytes divided by ``offsets``."""

    field: Field
    rows: Rows
    offsets: Rows | None = None
    shapes: Rows | None = None
    blocks: Blocks | None = None
    offset_blocks: Blocks | None = None


def read_values(column: Column, positions: Array, *, alone: bool = False) -> list[Any]:
    """Return stored values at ascending `positions`, with a ValueError in place of an unreadable one.

    With `alone`, the caller does not read whole records, so block checksums are verified: raises BlockError.
    """
    field = column.field
    if column.offsets is None:
        if alone:
            check_alone(column, positions)
        return _fixed(*gather(column.rows, positions), field)
    if alone and column.offset_blocks is not None and not column.offset_blocks.all_good:
        column.offset_blocks.check_rows(positions, positions + 2)
    bounds, whole = gather(column.offsets, positions, 2)
    starts, stops = bounds.view("<i8").T
    good = whole & (starts >= 0) & (starts <= stops) & (stops <= column.rows.count)
    if alone and column.blocks is not None and not column.blocks.all_good:
        column.blocks.check_rows(starts[good], stops[good])
    values = _between(column.rows, starts, stops, good)
    if field.kind in ("image", "bytes"):
        return values
    if field.kind in ("str", "json"):
        return _texts(values, field)
    shapes: Sequence[Any] = gather(column.shapes, positions)[0].view("<i8").tolist() if column.shapes else values
    return [_variable(value, field, shape) for value, shape in zip(values, shapes, strict=True)]


def check_alone(column: Column, positions: Array) -> None:
    """Raise BlockError unless the blocks of these fixed-size values match their checksums."""
    if column.blocks is not None and not column.blocks.all_good:
        column.blocks.check_rows(positions, positions + 1)


def read_raw(column: Column, positions: Array) -> Array | None:
    """Return the bytes of fixed-size values, shape (n, size), in any order; None if one is incomplete."""
    return gather_any(column.rows, positions)


def typed(raw: Array, field: Field) -> Array:
    """Return fixed-size values from their bytes, shape (n, *shape)."""
    dtype = np.dtype(field.dtype) if field.kind == "array" else SCALARS[field.kind]
    shape = len(raw), *(size or 0 for size in field.shape or ())
    if dtype.kind == "b":  # NumPy computes wrong results with bools other than 0 and 1
        raw = (raw != 0).view(np.uint8)
    values: Array = raw.reshape(-1).view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    return values


def _between(rows: Rows, starts: Array, stops: Array, good: Array) -> list[Any]:
    """Return the bytes between `starts` and `stops` of the `good` values."""
    if good.all() and (starts[1:] >= stops[:-1]).all():
        found: list[Any] = read_spans(rows, starts, stops)
        lengths = (stops - starts).tolist()
        if list(map(len, found)) == lengths:
            return found
        return [data if len(data) == length else _CUT for data, length in zip(found, lengths, strict=True)]
    # Reads must ascend, but the offsets of a damaged store may not.
    order = sorted((int(starts[at]), int(stops[at]), int(at)) for at in np.flatnonzero(good))
    values: list[Any] = [_CUT] * len(good)
    for (start, stop, at), data in zip(order, rows.read([(start, stop) for start, stop, _ in order]), strict=True):
        if len(data) == stop - start:
            values[at] = data
    return values


def _fixed(raw: Array, whole: Array, field: Field) -> list[Any]:
    if field.is_scalar:
        values: list[Any] = raw.view(SCALARS[field.kind])[:, 0].tolist()
    else:
        shape = (len(raw), *(size or 0 for size in field.shape or ()))
        values = [np.array(one) for one in raw.reshape(-1).view(np.dtype(field.dtype)).reshape(shape)]
    return values if whole.all() else [value if good else _CUT for value, good in zip(values, whole, strict=True)]


def _texts(values: list[Any], field: Field) -> list[Any]:
    try:
        return [value.decode() for value in values]
    except (UnicodeDecodeError, AttributeError):  # AttributeError: a value is a ValueError
        return [_variable(value, field, None) for value in values]


def _variable(value: Any, field: Field, shape: Any) -> Any:
    try:
        if isinstance(value, ValueError):
            return value
        if field.kind in ("str", "json"):
            return value.decode()
        return np.frombuffer(value, field.dtype).reshape(shape).copy()
    except ValueError as error:
        return ValueError(f"its bytes are not of kind {field.kind}: {error}")


_encode = msgspec.msgpack.Encoder().encode
_SHORT, _MIDDLE, _LONG = (struct.Struct(layout).pack for layout in (">BB", ">BH", ">BI"))
_LARGE = 24 << 10  # bytes; copying a smaller value is cheaper than the calls to hash it in place


class RecordDigests:
    """Computes record checksums equal to those of the maps that `RecordCodec.pack` returns.

    Large values are hashed in place, since packing would copy them twice. The values between them are packed.

    Parameters
    ----------
    fields : mapping of str to Field
        In declared order.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._codec = RecordCodec(fields)
        self._blobs = [name for name, field in fields.items() if field.is_blob]
        self._header = _encode(dict.fromkeys(fields))[: _header_size(len(fields))]
        self._steps = list(_steps(fields))

    def of_records(self, stored: Sequence[Record]) -> list[bytes]:
        """Return the checksums of stored records."""
        if sum([_size(record[name]) for name in self._blobs for record in stored]) < _LARGE * len(stored):
            pack = self._codec.pack
            return [checksum(pack(record)) for record in stored]
        parts: list[Iterable[Any]] = []
        for key, names in self._steps:
            if key:
                name = names[0]
                values = [record[name] for record in stored]
                parts += [[key + _blob_header(value) for value in values], values]
            else:
                parts.append([_packed({name: record[name] for name in names}) for record in stored])
        return self._of_parts(parts)

    def of_columns(self, columns: Mapping[str, Array], raw: Mapping[str, Array]) -> list[bytes]:
        """Return the checksums of records whose fields all have a fixed size.

        Parameters
        ----------
        columns : mapping
            The values of each field, shape (n, *shape).
        raw : mapping
            The stored bytes of each field, shape (n, size).
        """
        parts: list[Iterable[Any]] = []
        for key, names in self._steps:
            if key:
                name = names[0]
                dtype, shape, size = str(self._fields[name].dtype), columns[name].shape[1:], raw[name].shape[1]
                parts += [itertools.repeat(key + _array_header(dtype, shape, size)), raw[name]]
            else:
                rows = zip(*(columns[each].tolist() for each in names), strict=True)
                parts.append([_packed(dict(zip(names, row, strict=True))) for row in rows])
        return self._of_parts(parts)

    def _of_parts(self, parts: Iterable[Iterable[Any]]) -> list[bytes]:
        """Return the checksums of records; each of `parts` yields the next bytes of every record."""
        hasher, header = xxhash.xxh3_64(), self._header
        reset, update, digest = hasher.reset, hasher.update, hasher.digest  # reused for all records
        digests = []
        for pieces in zip(*parts):  # noqa: B905  # itertools.repeat is endless
            reset()
            update(header)
            for piece in pieces:
                update(piece)
            digests.append(digest())
        return digests


def _steps(fields: Mapping[str, Field]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Yield the packed key and name of each field hashed in place, and runs of packed fields with an empty key."""
    for blob, names in itertools.groupby(fields, lambda name: fields[name].is_blob):
        if blob:
            yield from ((_encode(name), (name,)) for name in names)
        else:
            yield b"", tuple(names)


def _packed(values: Record) -> bytes:
    """Return packed keys and values without the map header."""
    return _encode(values)[_header_size(len(values)) :]


def _header_size(count: int) -> int:
    return 1 if count < 16 else 3


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else int(value.nbytes)


def _blob_header(value: Any) -> bytes:
    return (
        _bytes_header(len(value))
        if isinstance(value, bytes)
        else _array_header(value.dtype.str, value.shape, value.nbytes)
    )


def _array_header(dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    return b"".join((b"\x93", _encode(dtype), _encode(shape), _bytes_header(size)))


def _bytes_header(size: int) -> bytes:
    if size < 1 << 8:
        return _SHORT(0xC4, size)
    return _MIDDLE(0xC5, size) if size < 1 << 16 else _LONG(0xC6, size)


BLOCK = 1 << 16
_AT_ONCE = 16  # blocks; a column of fewer is checked whole


class BlockError(ValueError):
    """A block of a column, or the table of checksums, does not match its checksum."""


def column_datasets(fields: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """Yield field and dataset of each column that has checksums (fixed-size values and texts), in table order."""
    for name, field in fields.items():
        if field.is_fixed:
            yield name, name
        elif field.kind in ("str", "json"):
            yield name, f"{name}/data"
            yield name, f"{name}/offsets"


def block_count(size: int) -> int:
    """Return how many blocks a dataset of `size` bytes has."""
    return -(-size // BLOCK)


def block_digests(parts: Iterable[bytes]) -> list[int]:
    """Return the xxh3-64 of each block of a dataset; every part but the last must be a multiple of the block size."""
    return [
        xxhash.xxh3_64_intdigest(memoryview(part)[at : at + BLOCK])
        for part in parts
        for at in range(0, len(part), BLOCK)
    ]


class Table:
    """The checksums of all blocks of a file, read on first use.

    Parameters
    ----------
    rows : Rows
        The checksums, 8 bytes each.
    checksum : str
        The xxh3-64 of all of them, in hexadecimal.
    """

    def __init__(self, rows: Rows, checksum: str) -> None:
        self._rows, self._checksum = rows, checksum

    def part(self, start: int, stop: int) -> Array:
        """Return checksums `start` to `stop`; raises BlockError if the table is damaged."""
        (data,) = self._rows.read([(0, self._rows.count)])
        if xxhash.xxh3_64_hexdigest(data) != self._checksum:
            raise BlockError("the checksums of its columns are damaged")
        return np.frombuffer(data, "<u8")[start:stop].copy()


class Blocks:
    """Verifies the blocks of one column, and remembers the good ones. Thread-safe, since all threads find the same.

    Parameters
    ----------
    rows : Rows
        The column.
    table : Table
    start : int
        The index of its first checksum in the table.

    Attributes
    ----------
    count : int
        The number of blocks.
    all_good : bool
        Whether all blocks have been verified, so that nothing is left to check.
    """

    def __init__(self, rows: Rows, table: Table, start: int) -> None:
        self._rows, self._table, self._start = rows, table, start
        self.count = block_count(rows.count * rows.size)
        self._digests: Array | None = None
        self._good = np.zeros(self.count, bool)
        self.all_good = not self.count

    def check_rows(self, starts: Array, stops: Array) -> None:
        """Raise BlockError unless the blocks that hold these row ranges match their checksums."""
        if self.all_good:
            return
        filled = stops > starts
        first = starts[filled] * self._rows.size // BLOCK
        last = (stops[filled] * self._rows.size - 1) // BLOCK
        if self.count <= _AT_ONCE:
            needed = np.ones(self.count, bool)
        else:
            needed = np.zeros(self.count, bool)
            needed[first] = needed[last] = True
            for low, high in zip(first[last > first + 1], last[last > first + 1], strict=True):
                needed[low:high] = True
        for number in np.flatnonzero(needed & ~self._good).tolist():
            self._check(number, self._read(number))
        self.all_good = bool(self._good.all())

    def check_all(self, data: bytes) -> None:
        """Raise BlockError unless `data`, all bytes of the column, matches the checksums."""
        for number in range(self.count):
            self._check(number, memoryview(data)[number * BLOCK : (number + 1) * BLOCK])
        self.all_good = True

    def _read(self, number: int) -> bytes | memoryview:
        size, total = self._rows.size, self._rows.size * self._rows.count
        begin, end = number * BLOCK, min((number + 1) * BLOCK, total)
        first = begin // size
        (data,) = self._rows.read([(first, -(-end // size))])
        return memoryview(data)[begin - first * size : end - first * size]

    def _check(self, number: int, data: bytes | memoryview) -> None:
        if self._digests is None:
            self._digests = self._table.part(self._start, self._start + self.count)
        if xxhash.xxh3_64_intdigest(data) != int(self._digests[number]):
            raise BlockError(f"block {number} of {self.count} does not match its checksum")
        self._good[number] = True
