"""Encodes and checks records: canonical values, msgpack, checksum, content id, and seals.

The checksum of a record is the xxh3-64 of the msgpack map of its fields in declared order. Every engine uses it, so a
record keeps its checksum when it is copied between engines. `docs/format.md` specifies the encoding.

A *seal* binds a packed record to its position and its store. It is a 64-bit number: the checksum of the packed record XOR
the salt of the store XOR the position. So a record that was changed, moved within its store, or copied from another store
does not match. ``docs/decisions/0027`` compares alternatives.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import xxhash

from storeds.errors import FormatError
from storeds.protocols import JSON, Array, Field, Record
from storeds.records.canonical_json import canonical_json, check_text
from storeds.records.fields import fields_to_json
from storeds.records.verdict_fields import without_verdicts

__all__ = [
    "FAULT_DIGEST",
    "FAULT_SEAL",
    "SEAL",
    "UNDECODABLE",
    "ContentHash",
    "Fault",
    "RecordCodec",
    "Rows",
    "Seals",
    "canonical_value",
    "checksum",
    "column_checksum",
    "decode",
    "encode",
    "preview",
]

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_LARGEST = (
    2**32 - 1 - 8
)  # bytes of a packed record, with its seal: the most that msgpack takes in a value, and LMDB in all


def canonical_value(field: Field, value: Any) -> Any:
    """Return `value` in stored form: JSON as its text, arrays little-endian.

    Raises ValueError, TypeError or OverflowError for values that a store could not return unchanged.
    """
    return _CANONICAL[field.kind](field, value)


def preview(value: object) -> str:
    """Return a short representation of a value and its type, for messages."""
    if isinstance(value, np.ndarray):
        text = f"array of {value.dtype} {value.shape}"
    else:
        try:
            text = repr(value[:61]) if isinstance(value, (str, bytes, bytearray)) else _REPR.repr(value)
        except Exception:  # an integer of 5000 digits, or a faulty __repr__
            text = f"<{type(value).__name__}>"
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxother, _REPR.maxlong, _REPR.maxstring = 4, 70, 70, 70


def _canonical_bytes(field: Field, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):  # msgpack rejects np.bytes_ and bson.Binary
        return bytes(memoryview(value))
    if field.kind == "image":
        raise TypeError(
            "expected bytes, the content of an image file; encode pixels, for example with "
            "PIL.Image.fromarray(pixels).save(buffer, 'PNG')"
        )
    raise TypeError("expected bytes")


def _canonical_str(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected str")
    check_text(value)
    return str.__str__(value)  # not str(value): for an enumeration that returns the name of the member


def _as_python(value: Any) -> Any:
    """Return NumPy's scalars, and arrays and tensors without dimensions, as Python's numbers; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _canonical_int(field: Field, value: Any) -> int:
    number = value if type(value) is int else _as_python(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError("expected int")
    number = int(number)  # of a subclass, such as an enumeration
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise ValueError("outside the int64 range")
    return number


def _canonical_float(field: Field, value: Any) -> float:
    found = value if type(value) is float else _as_python(value)
    if isinstance(found, bool) or not isinstance(found, (float, int)):
        raise TypeError("expected float")
    number = float(found)
    if isinstance(found, int) and int(number) != found:
        raise ValueError("a binary64 cannot hold this integer exactly")
    return number


def _canonical_bool(field: Field, value: Any) -> bool:
    found = _as_python(value)
    if not isinstance(found, bool):
        raise TypeError("expected bool")
    return found


def _canonical_array(field: Field, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected a NumPy array of {np.dtype(field.dtype)}")
    # NumPy imports its module `ma` at the first use, which takes as long as reading a hundred records.
    if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        raise TypeError("an array cannot keep its mask")
    dtype, shape = np.dtype(field.dtype), field.shape or ()
    if value.dtype.newbyteorder("<") != dtype:
        raise TypeError(f"expected dtype {dtype}")
    fits = len(shape) == value.ndim and all(want in (None, got) for want, got in zip(shape, value.shape, strict=True))
    if not fits:
        raise ValueError(f"expected shape {shape}")
    # A copy, because the caller may reuse its buffer before the batch is written.
    return np.array(value, dtype=dtype, order="C")


def _canonical_json(field: Field, value: Any) -> str:
    return canonical_json(value)


_CANONICAL = {
    "image": _canonical_bytes,
    "bytes": _canonical_bytes,
    "str": _canonical_str,
    "int": _canonical_int,
    "float": _canonical_float,
    "bool": _canonical_bool,
    "array": _canonical_array,
    "json": _canonical_json,
}


encode = msgspec.msgpack.Encoder().encode
"""Returns the msgpack map of a record whose arrays are ``[dtype, shape, bytes]``, as unpacking gives them."""
decode = msgspec.msgpack.Decoder().decode
"""Returns a record as msgpack unpacks it: JSON is text, an array is ``[dtype, shape, bytes]``."""
_digest = xxhash.xxh3_64_digest


def checksum(packed: bytes) -> bytes:
    """Return the 8 big-endian bytes of xxh3-64 over a packed record."""
    return xxhash.xxh3_64_digest(packed)


class ContentHash:
    """Computes `Meta.id` incrementally."""

    def __init__(self) -> None:
        self._records = xxhash.xxh3_128()

    def update(self, checksums: bytes) -> None:
        """Add the concatenated 8-byte checksums of the next records."""
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
        self.fields: dict[str, Field] = dict(fields)
        self._arrays = [name for name, field in self.fields.items() if field.kind == "array"]
        self._json = [name for name, field in self.fields.items() if field.kind == "json"]
        self.has_packed_values = bool(self._arrays or self._json)
        """Whether `to_user_values` changes records."""

    def canonical(self, record: Mapping[str, Any]) -> Record:
        """Return `record` in stored form, fields in declared order; raises ValueError with the reason."""
        if not isinstance(record, Mapping):
            raise ValueError(f"a record is a mapping of field name to value, not {type(record).__name__}")
        if record.keys() != self.fields.keys():
            lacking = [repr(name) for name in self.fields if name not in record]
            extra = [repr(name) for name in record if name not in self.fields]
            faults = [
                f"{what} {', '.join(names)}"
                for what, names in (("it lacks", lacking), ("it has undeclared", extra))
                if names
            ]
            declared = ", ".join(without_verdicts(self.fields))
            raise ValueError(f"{' and '.join(faults)}; every record has exactly the fields {declared}")
        stored = {}
        for name, field in self.fields.items():
            try:
                stored[name] = canonical_value(field, record[name])
            except (ValueError, TypeError, OverflowError) as error:
                refused = preview(record[name])
                raise ValueError(f"field {name!r} ({field.kind}) refuses {refused}: {error}") from None
        return stored

    def pack(self, stored: Record) -> bytes:
        """Return the msgpack map of a stored record; raises ValueError with the reason if it is too large."""
        if self._arrays:
            stored = dict(stored)
            for name in self._arrays:
                array = stored[name]
                stored[name] = [array.dtype.str, array.shape, array.reshape(-1).view(np.uint8).data]
        try:
            packed = encode(stored)
        except msgspec.EncodeError:  # a value alone is too large
            packed = None
        if packed is None or len(packed) > _LARGEST:
            sizes = {name: _size_of(value) for name, value in stored.items()}
            name = max(sizes, key=lambda name: sizes[name])
            raise ValueError(
                f"field {name!r} ({self.fields[name].kind}) has {sizes[name]:,} bytes, and a record may have {_LARGEST:,}; divide "
                "it into several records"
            )
        return packed

    def stored(self, packed: memoryview | bytes) -> Record:
        """Return the stored record that `pack` packed: JSON is text; arrays are read-only and share its memory."""
        record: Record = decode(packed)
        for name in self._arrays:
            dtype, shape, data = record[name]
            record[name] = np.frombuffer(data, dtype).reshape(shape)
        return record

    def unpack(self, packed: bytes) -> Record:
        """Return the record that `pack` packed."""
        return self.to_user_values(decode(packed))

    def to_user_values(self, record: Record) -> Record:
        """Convert unpacked values to user values: arrays own writable memory, JSON is parsed.

        Values that are arrays already stay as they are. Raises ValueError for values that do not match their declaration.
        """
        for name in self._arrays:
            if name in record and not isinstance(record[name], np.ndarray):
                record[name] = _revive_array(self.fields[name], record[name])
        for name in self._json:
            if name in record:
                record[name] = _revive_json(record[name])
        return record

    def needs_whole(self, fields: Sequence[str]) -> bool:
        """Whether a request for `fields` reads and verifies the whole record.

        It does for a blob, and for all fields.
        """
        return len(set(fields)) == len(self.fields) or any(self.fields[name].is_blob for name in fields)


def _size_of(value: Any) -> int:
    """Return the number of bytes of a value in the form that is packed; 8 of a number."""
    if isinstance(value, list):
        value = value[2]
    if isinstance(value, str):
        value = value.encode()
    return len(value) if isinstance(value, (bytes, memoryview)) else 8


_PACKED, _SEAL = slice(-8), slice(-8, None)
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError)
"""What `decode` raises for bytes that are no packed record, and what taking it apart may raise."""


class Fault(NamedTuple):
    """Why a record cannot be read, and its key if that is readable."""

    reason: str
    key: str | None = None


FAULT_DIGEST, FAULT_SEAL = bytes(8), b"\xff" * 8
"""Stand for the checksum and the seal of a fault. They never match: a salt and a position are smaller."""


class Rows(NamedTuple):
    """The records of one request, in its order. Nothing is verified yet: see ``Seals.match``.

    Attributes
    ----------
    records : list of dict or Fault
        Of a native store, as msgpack unpacks them: JSON is text, an array is ``[dtype, shape, bytes]``. Of any other store,
        as users get them.
    digests, seals : bytes
        Of whole records of a native store: the checksum and the seal of each, 8 big-endian bytes, end to end; of a fault,
        bytes that never match. Otherwise empty.
    """

    records: list[Any]
    digests: bytes = b""
    seals: bytes = b""

    @classmethod
    def of_sealed(cls, sealed: Iterable[memoryview | bytes | None]) -> Rows:
        """Return the rows of packed records that end with their seals; None is one that is missing."""
        records: list[Any] = []
        digests: list[bytes] = []
        seals: list[memoryview | bytes] = []
        for each in sealed:
            try:
                packed = each[_PACKED]  # type: ignore[index]  # None raises the TypeError below
                # Decoding first is faster: it loads the bytes into the CPU cache for the checksum.
                records.append(decode(packed))
            except UNDECODABLE as error:
                missing = "it is missing from the store"
                records.append(Fault(missing if each is None else f"not the msgpack map of its fields ({error})"))
                digests.append(FAULT_DIGEST)
                seals.append(FAULT_SEAL)
            else:
                digests.append(_digest(packed))
                seals.append(each[_SEAL])  # type: ignore[index]
        return cls(records, b"".join(digests), b"".join(seals))


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


# --- Seals, and the checksums of columns ---

SEAL = "_seal"
"""The name of the seal where an engine stores it as a field."""

_SALTS = 1 << 62  # fits into an int64 without its sign: some engines have no other integers
_MISMATCH = "its checksum does not match its bytes, or it belongs to another store"


@dataclasses.dataclass(frozen=True, slots=True)
class Seals:
    """Seals and checks the records of one store.

    Attributes
    ----------
    salt : int
        Random, below 2**62.
    count : int
        Number of records; 0 while a writer does not know it yet.
    """

    salt: int = dataclasses.field(default_factory=lambda: secrets.randbelow(_SALTS))
    count: int = 0

    @classmethod
    def of(cls, text: Any, count: int, url: str) -> Self:
        """Return the seals of a store of `count` records with the salt of its meta; raises FormatError."""
        try:
            salt = int(text, 16)
        except (TypeError, ValueError):
            salt = -1
        if not 0 <= salt < _SALTS:
            raise FormatError(f"{url}: the store's meta has no valid salt ({text!r}); write the store again")
        return cls(salt, count)

    @property
    def text(self) -> str:
        """The salt as in the meta: 16 hexadecimal digits."""
        return f"{self.salt:016x}"

    def seal(self, digest: bytes, position: int) -> bytes:
        """Return the seal, 8 big-endian bytes, of a record with this checksum."""
        return (int.from_bytes(digest, "big") ^ self.salt ^ position).to_bytes(8, "big")

    def match(self, digests: bytes, seals: bytes, positions: Sequence[int] | Array) -> bool:
        """Whether records with these checksums have these seals, 8 big-endian bytes each, end to end, at these positions."""
        if len(positions) == 1:  # without the overhead of NumPy
            return int.from_bytes(digests, "big") ^ int.from_bytes(seals, "big") ^ int(positions[0]) == self.salt
        marks = np.asarray(positions, np.int64).view(np.uint64) ^ np.uint64(self.salt)
        return bool((np.frombuffer(digests, ">u8") ^ np.frombuffer(seals, ">u8") == marks).all())

    def fault(self, seal: Any, digest: bytes, position: int) -> str | None:
        """Return the fault of the record at `position` with this seal and checksum, or None if they match."""
        if type(seal) is not int:
            return "it has no seal"
        place = seal ^ int.from_bytes(digest, "big") ^ self.salt
        if place == position:
            return None
        if 0 <= place < self.count:
            return f"the record there belongs to position {place}, or its seal is damaged"
        return _MISMATCH


def column_checksum(data: bytes | memoryview | Array) -> str:
    """Return the checksum of a column that is read alone: xxh3-64 of its bytes, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data.data if isinstance(data, np.ndarray) else data)
