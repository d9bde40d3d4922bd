"""What a record may hold, and its one canonical encoding: validation, msgpack, checksum, content id.

The checksum of a record is the xxh3-64 of the msgpack map of its fields in declared order; as every engine
uses it, a record copied between engines keeps it. `docs/format.md` specifies the encoding.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash

from storeds.errors import ConfigError
from storeds.protocols import JSON, KINDS, Array, Field, Record

__all__ = ["CHECKSUM", "ContentHash", "RecordCodec", "canonical_json", "checksum", "parse_fields"]

CHECKSUM = "_xxh3"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DTYPE_KINDS = "biufc"
_INT64 = range(-(2**63), 2**63)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def canonical_json(value: JSON) -> str:
    """Return the one text that stands for `value`: sorted keys, no spaces, no NaN. Raises ValueError."""
    _check_json(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _check_json(value: object) -> None:
    # json.dumps would turn tuples into lists and other keys into strings without a word.
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"JSON keys are str, not {type(key).__name__} ({key!r})")
            _check_text(key)
            _check_json(item)
    elif isinstance(value, list):
        for item in value:
            _check_json(item)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value!r}")
    elif value is not None and not isinstance(value, int):
        raise ValueError(f"JSON holds dict, list, str, int, float, bool and None, not {type(value).__name__}")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text with a lone surrogate at character {error.start} has no UTF-8 form") from None


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


def fields_to_json(fields: Mapping[str, Field]) -> JSON:
    """Return the declared fields as a list, which keeps their order in every JSON implementation."""
    rows: list[JSON] = []
    for name, field in fields.items():
        row: dict[str, JSON] = {"name": name, "kind": field.kind}
        if field.kind == "array":
            row["dtype"] = field.dtype
            row["shape"] = list(field.shape or ())
        rows.append(row)
    return rows


def fields_from_json(rows: Any) -> dict[str, Field]:
    """Return the fields that `fields_to_json` wrote; raises ConfigError for anything else."""
    return parse_fields({row["name"]: {key: row[key] for key in row if key != "name"} for row in rows})


def parse_fields(fields: Mapping[str, Any]) -> dict[str, Field]:
    """Validate a declaration such as ``{"image": "image", "x": {"kind": "array", "dtype": "float32", "shape": [3, None]}}``.

    Raises
    ------
    ConfigError
        A name or kind is not allowed, or there is no field at all.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise ConfigError(f"fields: expected a mapping of at least one name to its kind, got {fields!r}")
    return {name: _parse_field(name, spec) for name, spec in fields.items()}


def _parse_field(name: object, spec: object) -> Field:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "; a leading underscore is reserved" if str(name).startswith("_") else ""
        raise ConfigError(f"field name {name!r} must match [a-z][a-z0-9_]*{hint}")
    if isinstance(spec, str):
        spec = Field(spec)  # type: ignore[arg-type]  # the kind is checked below
    elif isinstance(spec, Mapping):
        unknown = set(spec) - {"kind", "dtype", "shape"}
        if unknown or "kind" not in spec:
            raise ConfigError(f"field {name!r}: expected kind, dtype and shape, got {dict(spec)!r}")
        shape = spec.get("shape")
        spec = Field(spec["kind"], spec.get("dtype"), None if shape is None else tuple(shape))
    if not isinstance(spec, Field) or spec.kind not in KINDS:
        kind = spec.kind if isinstance(spec, Field) else spec
        raise ConfigError(f"field {name!r}: unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    if spec.kind == "array":
        return _parse_array_field(name, spec)
    if spec.dtype is not None or spec.shape is not None:
        raise ConfigError(f"field {name!r}: only an array has a dtype and a shape, {spec.kind} has not")
    return spec


def _parse_array_field(name: str, spec: Field) -> Field:
    if spec.dtype is None or spec.shape is None:
        raise ConfigError(
            f"field {name!r}: an array needs its dtype and shape, for example dtype='float32', shape=(3, None)"
        )
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError as error:
        raise ConfigError(f"field {name!r}: {spec.dtype!r} is no NumPy dtype ({error})") from None
    if dtype.kind not in _DTYPE_KINDS or dtype.itemsize > 16 or dtype.char in "gG":
        raise ConfigError(
            f"field {name!r}: dtype {dtype} cannot be kept; booleans, integers, floats up to 64 bit and complex can"
        )
    for size in spec.shape:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
            raise ConfigError(f"field {name!r}: shape {spec.shape!r} must hold sizes or None")
    return Field("array", dtype.newbyteorder("<").str, spec.shape)


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
        self._special = bool(self._arrays or self._json)

    def canonical(self, record: Mapping[str, Any]) -> Record:
        """Return `record` in stored form, fields in declared order; raises ValueError with the reason."""
        if not isinstance(record, Mapping):
            raise ValueError(f"a record is a mapping of field name to value, not {type(record).__name__}")
        if record.keys() != self.fields.keys():
            missing = [name for name in self.fields if name not in record]
            extra = [name for name in record if name not in self.fields]
            raise ValueError(_mismatch(missing, extra, list(self.fields)))
        return {name: self._canonical_value(name, field, record[name]) for name, field in self.fields.items()}

    def _canonical_value(self, name: str, field: Field, value: Any) -> Any:
        try:
            return _CANONICAL[field.kind](field, value)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"field {name!r} ({field.kind}) refuses {_preview(value)}: {error}") from None

    def pack(self, stored: Record) -> bytes:
        """Return the msgpack map of a stored record."""
        if self._arrays:
            stored = dict(stored)
            for name in self._arrays:
                array = stored[name]
                stored[name] = [array.dtype.str, array.shape, array.reshape(-1).view(np.uint8).data]
        return _encode(stored)

    def seal(self, packed: bytes, digest: bytes) -> bytes:
        """Return the map of `packed` with ``_xxh3`` as its last entry."""
        count = len(self.fields)
        return b"".join((_header(count + 1), memoryview(packed)[len(_header(count)) :], _CHECKSUM_KEY, digest))

    def open_sealed(self, sealed: memoryview | bytes) -> Record:
        """Return the record in a sealed map after checking it; raises ValueError."""
        view = memoryview(sealed)
        count = len(self.fields)
        header, tail = _header(count + 1), len(_CHECKSUM_KEY) + 8
        digest = bytes(view[-8:])
        if view[: len(header)] == header and view[-tail:-8] == _CHECKSUM_KEY:
            hasher = xxhash.xxh3_64(_header(count))
            hasher.update(view[len(header) : -tail])
            if hasher.digest() == digest:
                record: Record = _decode(view)
                del record[CHECKSUM]
                return self.revive(record)
        return self._open_unusual(view)

    def _open_unusual(self, view: memoryview) -> Record:
        # Another writer may have packed the same record with longer headers; only the values decide.
        try:
            record = _decode(view)
            digest = record.pop(CHECKSUM)
            matches = checksum(_encode({name: record[name] for name in self.fields})) == digest
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not the msgpack map of its fields ({error})") from None
        if not matches:
            raise ValueError("its checksum does not match its bytes")
        return self.revive(record)

    def unpack(self, packed: bytes) -> Record:
        """Return the record that `pack` packed."""
        record: Record = _decode(packed)
        return self.revive(record)

    def revive(self, record: Record) -> Record:
        """Turn unpacked values into what the user gave: arrays own writable memory, JSON is parsed."""
        if self._special:
            for name in self._arrays:
                if name in record:
                    dtype, shape, data = record[name]
                    record[name] = np.frombuffer(data, dtype).reshape(shape).copy()
            for name in self._json:
                if name in record:
                    record[name] = json.loads(record[name])
        return record

    def revive_stored(self, stored: Record) -> Record:
        """Turn a stored record, whose arrays are arrays already, into what the user gave."""
        for name in self._json:
            if name in stored:
                stored[name] = json.loads(stored[name])
        return stored

    def needs_whole(self, fields: Sequence[str]) -> bool:
        """Whether a request for `fields` is answered from the whole, verified record: when it asks for a blob."""
        return any(self.fields[name].is_blob for name in fields)


_CHECKSUM_KEY = _encode(CHECKSUM) + b"\xc4\x08"


def _header(count: int) -> bytes:
    if count < 16:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2, "big")


def _mismatch(missing: list[str], extra: list[str], declared: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"it lacks {', '.join(map(repr, missing))}")
    if extra:
        parts.append(f"it has undeclared {', '.join(map(repr, extra))}")
    return f"{' and '.join(parts)}; every record has exactly the fields {', '.join(declared)}"


def _preview(value: object) -> str:
    text = repr(value) if not isinstance(value, np.ndarray) else f"array of {value.dtype} {value.shape}"
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"


def _canonical_bytes(field: Field, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError("expected bytes")


def _canonical_str(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected str")
    _check_text(value)
    return str(value)


def _canonical_int(field: Field, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError("expected int")
    if value not in _INT64:
        raise ValueError("outside the int64 range")
    return int(value)


def _canonical_float(field: Field, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (float, int, np.floating, np.integer)):
        raise TypeError("expected float")
    number = float(value)
    if isinstance(value, (int, np.integer)) and int(number) != int(value):
        raise ValueError("a binary64 cannot hold this integer exactly")
    return number


def _canonical_bool(field: Field, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError("expected bool")
    return bool(value)


def _canonical_array(field: Field, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected a NumPy array of {np.dtype(field.dtype)}")
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
