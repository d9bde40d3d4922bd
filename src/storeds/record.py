"""The one canonical encoding of a record: msgpack, checksum, content id.

The checksum of a record is the xxh3-64 of the msgpack map of its fields in declared order; as every engine
uses it, a record copied between engines keeps it. `docs/format.md` specifies the encoding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash

from storeds._canonical import canonical_json, canonical_value, preview
from storeds._seals import Places
from storeds.fields import fields_to_json
from storeds.protocols import JSON, Array, Field, Record

__all__ = ["ContentHash", "RecordCodec", "canonical_json", "checksum"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_digest = xxhash.xxh3_64_digest


def checksum(packed: bytes) -> bytes:
    """Return the 8 big-endian bytes of xxh3-64 over a packed record."""
    return xxhash.xxh3_64_digest(packed)


class ContentHash:
    """Computes `Meta.id` while records stream by."""

    def __init__(self) -> None:
        self._records = xxhash.xxh3_128()

    def update(self, checksums: bytes) -> None:
        """Take the 8-byte checksums of the next records, concatenated in order."""
        self._records.update(checksums)

    def finish(self, fields: Mapping[str, Field], attrs: Mapping[str, JSON]) -> str:
        """Return 32 hexadecimal digits over fields, attrs and all checksums."""
        head = canonical_json({"attrs": dict(attrs), "fields": fields_to_json(fields)})
        return xxhash.xxh3_128_hexdigest(head.encode() + self._records.digest())


class RecordCodec:
    """Validates, packs and unpacks the records of one declaration.

    Parameters
    ----------
    fields : mapping of str to Field
        In declared order.

    Notes
    -----
    A *stored* record differs from a record in two kinds: ``json`` is canonical text, ``array`` is little-endian
    and C-contiguous. In msgpack an array is ``[dtype, shape, bytes]``.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self._arrays = [name for name, field in self.fields.items() if field.kind == "array"]
        self._json = [name for name, field in self.fields.items() if field.kind == "json"]
        self.has_json = bool(self._json)
        self._special = bool(self._arrays or self._json)

    def canonical(self, record: Mapping[str, Any]) -> Record:
        """Return `record` in stored form, fields in declared order; raises ValueError with the reason."""
        if not isinstance(record, Mapping):
            raise ValueError(f"a record is a mapping of field name to value, not {type(record).__name__}")
        if record.keys() != self.fields.keys():
            declared = [name for name in self.fields if not name.startswith("_")]
            missing = [name for name in declared if name not in record]
            extra = [name for name in record if name not in self.fields]
            raise ValueError(_mismatch(missing, extra, declared))
        return {name: self._canonical_value(name, field, record[name]) for name, field in self.fields.items()}

    def _canonical_value(self, name: str, field: Field, value: Any) -> Any:
        try:
            return canonical_value(field, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"field {name!r} ({field.kind}) refuses {preview(value)}: {error}") from None

    def pack(self, stored: Record) -> bytes:
        """Return the msgpack map of a stored record."""
        if self._arrays:
            stored = dict(stored)
            for name in self._arrays:
                array = stored[name]
                stored[name] = [array.dtype.str, array.shape, array.reshape(-1).view(np.uint8).data]
        return _encode(stored)

    def open_sealed(self, sealed: memoryview | bytes, position: int, places: Places) -> Record:
        """Return the record of a packed map with its seal behind it, after checking both; raises ValueError."""
        return self.open_all([memoryview(sealed)], [position], places)[0]

    def open_all(self, sealed: Sequence[memoryview], positions: Sequence[int], places: Places) -> list[Record]:
        """Return the records of packed maps with their seals behind them, after checking all; raises ValueError.

        Parameters
        ----------
        sealed : sequence of memoryview
        positions : sequence of int
            Where they lie.
        places : Places
            Of the store.
        """
        records: list[Record] = []
        digests: list[bytes] = []
        seals: list[memoryview] = []
        try:
            for each in sealed:
                packed = each[_PACKED]
                # Decoding first is faster: it fetches the bytes from memory, and the checksum then finds them in the cache.
                records.append(_decode(packed))
                digests.append(_digest(packed))
                seals.append(each[_SEAL])
            hold = places.hold(digests, seals, positions)
        except _UNDECODABLE:
            hold = False
        if not hold:
            records = [self._open_unusual(each, at, places) for each, at in zip(sealed, positions, strict=True)]
        if self._special:
            for record in records:
                self.revive(record)
        return records

    def _open_unusual(self, sealed: memoryview, position: int, places: Places) -> Record:
        # Another writer may have packed the same record with longer headers; only the values decide.
        try:
            found = _decode(sealed[_PACKED])
            record = {name: found[name] for name in self.fields}
            fault = places.fault(int.from_bytes(sealed[_SEAL], "big"), checksum(_encode(record)), position)
        except _UNDECODABLE as error:
            raise ValueError(f"not the msgpack map of its fields ({error})") from None
        if fault is not None:
            raise ValueError(fault)
        return record

    def unpack(self, packed: bytes) -> Record:
        """Return the record that `pack` packed."""
        record: Record = _decode(packed)
        return self.revive(record)

    def revive(self, record: Record) -> Record:
        """Turn unpacked values into what the user gave: arrays own writable memory, JSON is parsed.

        Raises ValueError for what another writer packed otherwise than it declared.
        """
        if self._special:
            for name in self._arrays:
                if name in record:
                    record[name] = _revive_array(self.fields[name], record[name])
            self.revive_stored(record)
        return record

    def revive_stored(self, stored: Record) -> Record:
        """Turn a stored record, whose arrays are arrays already, into what the user gave."""
        for name in self._json:
            if name in stored:
                stored[name] = _revive_json(stored[name])
        return stored

    def needs_whole(self, fields: Sequence[str]) -> bool:
        """Whether a request for `fields` is answered from the whole, verified record.

        It is when it asks for a blob, or for everything anyway.
        """
        return len(set(fields)) == len(self.fields) or any(self.fields[name].is_blob for name in fields)


_PACKED, _SEAL = slice(-8), slice(-8, None)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError, RecursionError)


def _mismatch(missing: list[str], extra: list[str], declared: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"it lacks {', '.join(map(repr, missing))}")
    if extra:
        parts.append(f"it has undeclared {', '.join(map(repr, extra))}")
    return f"{' and '.join(parts)}; every record has exactly the fields {', '.join(declared)}"


def _revive_array(field: Field, packed: Any) -> Array:
    try:
        dtype, shape, data = packed
        if dtype != field.dtype:
            raise ValueError(f"dtype {dtype!r} instead of {field.dtype!r}")
        return np.frombuffer(data, dtype).reshape(shape).copy()
    except (ValueError, TypeError) as error:
        raise ValueError(f"an array does not unpack: {error}") from None


def _revive_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"its JSON does not parse: {error}") from None
