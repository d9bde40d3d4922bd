"""Shared parts of the conformance kit for backends: values, comparisons, and the base class with its fixtures."""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from storeds.backends import memory
from storeds.backends.opening import open_backend, open_writer
from storeds.backends.writer import StoreWriter
from storeds.protocols import JSON, Array, Backend, Meta, Record

__all__ = [
    "DTYPES",
    "EDGES",
    "FIELDS",
    "SMALL",
    "Kit",
    "MakeUrl",
    "Written",
    "array_of",
    "assert_same",
    "fingerprint",
    "frozen",
    "kept",
    "make_records",
    "reference_id",
    "small_records",
]


DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")

FIELDS: dict[str, Any] = {
    "image": "image",
    "image_finding": "str",
    "image_recovered": "float",
    "raw": "bytes",
    "text": "str",
    "number": "int",
    "real": "float",
    "flag": "bool",
    "doc": "json",
    "point": {"kind": "array", "dtype": "float32", "shape": []},
    "box": {"kind": "array", "dtype": "float64", "shape": [2, 3]},
    "mask": {"kind": "array", "dtype": "bool", "shape": [5]},
    "hollow": {"kind": "array", "dtype": "int16", "shape": [0, 4]},
    "half": {"kind": "array", "dtype": "float16", "shape": [None]},
    "wave": {"kind": "array", "dtype": "complex64", "shape": [2]},
    "pixels": {"kind": "array", "dtype": "uint8", "shape": [None, None, 3]},
    "swapped": {"kind": "array", "dtype": ">i8", "shape": [3]},
    "series": {"kind": "array", "dtype": ">f8", "shape": [None, 2]},
}
"""Eighteen fields, which exceed msgpack's short map header. The verdict on the image is given, so that writers keep it."""

SMALL: dict[str, Any] = {"blob": "bytes", "label": "int", "text": "str"}
"""Fields for tests that do not depend on values."""

_VERDICT: Record = {"image_finding": "truncated_scan", "image_recovered": 0.62}
_NAN_WITH_PAYLOAD = struct.unpack("<d", b"\x2a\0\0\0\0\0\xf8\xff")[0]
_MEBIBYTE = hashlib.shake_128(b"storeds").digest(1 << 20)

EDGES: dict[str, list[Any]] = {
    "image": [b"", b"\xff\xd8\xff\xd9", b"\0", b"\x89PNG\r\n\x1a\n\0\0"],
    "bytes": [b"", b"\0", b"\0\xff\0", bytes(range(256)), b"trailing\0\0", _MEBIBYTE],
    "str": ["", "plain", "\0", "in\0side", "trailing\0", "naïve 😀 \u200b\uffff\U0010ffff", "x" * 400, "$a.b", " "],
    "int": [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 2**31, -(2**31) - 1, 255],
    "float": [0.0, -0.0, math.nan, _NAN_WITH_PAYLOAD, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1, 3.0],
    "bool": [True, False],
    "json": [
        None,
        True,
        0,
        -0.0,
        1.0,
        2**70,
        1e-300,
        "",
        "\0 😀",
        [],
        {},
        {"b": [1, {"a": None, "": [[]]}], "a.b": 1.5, "$set": {"_id": "x", "_gridfs": "y"}},
    ],
}


def array_of(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Return an array of arbitrary bit patterns, including NaNs; in Fortran order for odd seeds."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    data = hashlib.shake_128(f"{dtype}{shape}{seed}".encode()).digest(size)
    flat = np.frombuffer(data, "u1") & 1 if kind.kind == "b" else np.frombuffer(data, "u1")
    return np.array(flat.view(kind).reshape(shape), order="F" if seed % 2 else "C")


def make_records(count: int, fields: Mapping[str, Any] = FIELDS) -> list[Record]:
    """Return `count` records of `fields` that go through the edge cases of each kind."""
    return [
        {name: _value(name, spec, at, order) for order, (name, spec) in enumerate(fields.items())}
        for at in range(count)
    ]


def small_records(count: int, start: int = 0) -> list[Record]:
    """Return `count` records of `SMALL`, one for each number from `start` on."""
    return [{"blob": b"%d" % at * (at % 5), "label": at, "text": f"№ {at}"} for at in range(start, start + count)]


def _value(name: str, spec: Any, at: int, order: int) -> Any:
    if name in _VERDICT:
        return _VERDICT[name]
    if isinstance(spec, str):
        return EDGES[spec][at % len(EDGES[spec])]
    # Variable dimensions differ between records, and are sometimes zero.
    shape = tuple((at + axis) % 4 if size is None else size for axis, size in enumerate(spec["shape"]))
    return array_of(spec["dtype"], shape, at + order)


def kept(value: Any) -> Any:
    """Return a value as a store returns it: arrays little-endian and in C order, other values unchanged."""
    if isinstance(value, np.ndarray):
        return np.array(value, dtype=value.dtype.newbyteorder("<"), order="C")
    if isinstance(value, dict):
        return {name: kept(item) for name, item in value.items()}
    return [kept(item) for item in value] if isinstance(value, list) else value


def frozen(value: Any) -> Any:
    """Return a form that compares equal exactly if types and bits are equal; raise an error contained in `value`."""
    if isinstance(value, Exception):
        raise value
    if type(value) is float:
        return "float", struct.pack("<d", value)
    if isinstance(value, np.ndarray):
        order = "C" if value.flags.c_contiguous else "not C"
        return "array", value.dtype.str, value.shape, order, value.tobytes()
    if isinstance(value, dict):
        return "dict", sorted((name, frozen(item)) for name, item in value.items())
    if isinstance(value, list):
        return "list", [frozen(item) for item in value]
    return type(value).__name__, value


def fingerprint(records: Iterable[Any]) -> str:
    """Return a hash of records that is the same in every process."""
    return hashlib.sha256(repr(frozen(list(records))).encode("utf-8", "surrogatepass")).hexdigest()


MakeUrl = Callable[[], str]


@dataclass(frozen=True)
class Written:
    """A published store and the list of records that it must equal."""

    url: str
    records: list[Record]
    meta: Meta


class Kit:
    """Base of the parts of the kit. `BackendTests` lists what a subclass defines."""

    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def make_url(self) -> MakeUrl:
        """Return a function that returns the URL of a new, empty target. A subclass overrides this fixture."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture make_url; see storeds.testing.BackendTests")

    @pytest.fixture
    def written(self, make_url: MakeUrl) -> Written:
        """Return a published store with every kind of field."""
        url, records = make_url(), make_records(24)
        return Written(url, kept(records), self.write(url, FIELDS, records))

    def open(self, url: str) -> Backend:
        """Open a store with the subclass's options."""
        return open_backend(url, **self.options)

    def writer(self, url: str, fields: Mapping[str, Any], **how: Any) -> StoreWriter:
        """Open a writer with the subclass's options."""
        return open_writer(url, fields, **how, **self.options)

    def write(
        self,
        url: str,
        fields: Mapping[str, Any],
        records: Iterable[Record],
        *,
        attrs: Mapping[str, JSON] | None = None,
        **how: Any,
    ) -> Meta:
        """Write and publish a whole store."""
        writer = self.writer(url, fields, **how)
        writer.append(records)
        return writer.publish(attrs)


def assert_same(got: object, expected: object) -> None:
    """Fail unless both values have equal types and bits."""
    assert frozen(got) == frozen(expected)


def reference_id(fields: Mapping[str, Any], records: Iterable[Record], attrs: Mapping[str, JSON] | None = None) -> str:
    """Return the `Meta.id` that the reference engine gives this content."""
    name = f"kit-{secrets.token_hex(8)}"
    writer = open_writer(f"memory://{name}", fields)
    writer.append(records)
    meta = writer.publish(attrs)
    del memory._STORES[name]
    return meta.id
