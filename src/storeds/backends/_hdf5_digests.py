"""Computes the checksums of records whose values are at hand, without making the msgpack map that they are over."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from storeds.protocols import Array, Field, Record
from storeds.record import RecordCodec, checksum

__all__ = ["RecordDigests"]

_encode = msgspec.msgpack.Encoder().encode
_SHORT, _MIDDLE, _LONG = (struct.Struct(layout).pack for layout in (">BB", ">BH", ">BI"))
_LARGE = 24 << 10  # bytes; to copy a smaller value costs less than the calls that it takes to hash it where it lies


class RecordDigests:
    """The checksums of records of one declaration: those of the maps that `RecordCodec.pack` makes.

    A large value is hashed where it lies: packing would copy it, twice. What lies between such values is packed.

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
        """Return the checksums of records, of which every field is of fixed size.

        Parameters
        ----------
        columns : mapping
            The values of each field, shape (n, *shape).
        raw : mapping
            Their bytes as they are stored, shape (n, size).
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
        """Return the checksums of records, of each of which every one of `parts` has the next bytes."""
        hasher, header = xxhash.xxh3_64(), self._header
        reset, update, digest = hasher.reset, hasher.update, hasher.digest  # one hasher, used again for each
        digests = []
        for pieces in zip(*parts):  # noqa: B905  # what repeats has no length
            reset()
            update(header)
            for piece in pieces:
                update(piece)
            digests.append(digest())
        return digests


def _steps(fields: Mapping[str, Field]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Yield each field that is hashed where it lies, with its packed key, and runs of those that are packed, without."""
    for blob, names in itertools.groupby(fields, lambda name: fields[name].is_blob):
        if blob:
            yield from ((_encode(name), (name,)) for name in names)
        else:
            yield b"", tuple(names)


def _packed(values: Record) -> bytes:
    """Return keys and values as they stand in the middle of a map."""
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
