"""Reads the values of one field of a native HDF5 store at many positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from storeds.backends.hdf5.rows import Rows, gather, read_ranges
from storeds.protocols import Array, Field, Record
from storeds.records.codec import checksum, encode
from storeds.records.columns import SCALARS, text_offsets

__all__ = ["Column", "checksum_of", "digests_of", "fixed_values", "read_values"]

_STEP = 1 << 20  # bytes
_LARGE = 1 << 16  # bytes; larger values have the longest of msgpack's headers

_UNREADABLE = ValueError("its bytes cannot be read: a bad sector, a file cut short, or damaged offsets")


@dataclass(frozen=True)
class Column:
    """Where the values of one field lie: fixed-size rows, or ``rows`` of bytes divided by ``offsets``."""

    field: Field
    rows: Rows
    offsets: Rows | None = None
    shapes: Rows | None = None

    def parts(self, name: str) -> Iterator[tuple[str, Rows]]:
        """Yield what has a checksum in the meta, by its name there."""
        yield name, self.rows
        if self.offsets is not None:
            yield text_offsets(name), self.offsets


def checksum_of(rows: Rows) -> str:
    """Return the same as `storeds.records.seals.column_checksum` of all bytes; reads them step by step."""
    hasher, step = xxhash.xxh3_64(), max(1, _STEP // max(rows.size, 1))
    for start in range(0, rows.count, step):
        (data,) = rows.read([(start, min(start + step, rows.count))])
        hasher.update(data)
    return hasher.hexdigest()


def read_values(column: Column, positions: Array) -> list[Any]:
    """Return the values at `positions` as msgpack unpacks them, with a ValueError in place of an unreadable one.

    JSON is text, and an array is ``[dtype, shape, bytes]``.
    """
    field = column.field
    if column.offsets is None:
        raw, whole = gather(column.rows, positions)
        values = fixed_values(raw, field)
        return values if whole.all() else [v if good else _UNREADABLE for v, good in zip(values, whole, strict=True)]
    found = _between(column.rows, *gather(column.offsets, positions, 2))
    if field.kind in ("str", "json"):
        return list(map(_text, found))
    if column.shapes is None:
        return found
    shapes = gather(column.shapes, positions)[0].view("<i8").tolist()
    return [
        data if data is _UNREADABLE else [field.dtype, shape, data] for data, shape in zip(found, shapes, strict=True)
    ]


def fixed_values(raw: Array, field: Field) -> list[Any]:
    """Return values of fixed size, given as rows of bytes, as `read_values` does."""
    if field.is_scalar:
        numbers: list[Any] = raw.view(SCALARS[field.kind])[:, 0].tolist()
        return numbers
    data, size, dtype, shape = raw.reshape(-1).data, raw.shape[1], field.dtype, list(field.shape or ())
    return [[dtype, shape, data[at * size : (at + 1) * size]] for at in range(len(raw))]


def digests_of(records: Sequence[Any], blobs: Sequence[str]) -> list[bytes]:
    """Return the checksums of records as `read_values` returns them; fields `blobs` are images and bytes.

    Raises TypeError if a value is unreadable.
    """
    if sum([len(record[name]) for name in blobs for record in records]) < _LARGE * len(records):
        return list(map(checksum, map(encode, records)))
    return list(map(_digest_in_place, records))


def _digest_in_place(record: Record) -> bytes:
    """Return the checksum of a record without copying its large values: at 380 KiB, that takes a tenth of a read."""
    parts = [encode(dict.fromkeys(record))[: 1 if len(record) < 16 else 3]]  # the header of the map
    for name, value in record.items():
        if type(value) is bytes and len(value) >= _LARGE:
            parts += [encode(name) + b"\xc6" + len(value).to_bytes(4, "big"), value]
        else:
            parts += [encode(name), encode(value)]
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _between(rows: Rows, bounds: Array, whole: Array) -> list[Any]:
    """Return the bytes between pairs of offsets."""
    starts, stops = bounds.view("<i8").T
    good = whole & (starts >= 0) & (starts <= stops) & (stops <= rows.count)
    if not good.all():
        starts, stops = starts * good, stops * good
    found = read_ranges(rows, starts, stops)
    lengths = (stops - starts).tolist()
    if good.all() and list(map(len, found)) == lengths:
        return found
    each = zip(found, lengths, good.tolist(), strict=True)
    return [data if is_good and len(data) == length else _UNREADABLE for data, length, is_good in each]


def _text(data: Any) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return ValueError(f"its bytes are not UTF-8: {error}")
    except AttributeError:
        return data  # unreadable
