"""Records: what each kind takes, refuses and gives back, and the one encoding that all engines checksum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from storeds.errors import ConfigError
from storeds.records.canonical_json import canonical_json
from storeds.records.codec import RecordCodec, Rows, Seals, checksum
from storeds.records.fields import parse_fields


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


TEXT = st.text(st.characters(codec="utf-8"))
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
EVERY: dict[str, Any] = {
    "image": "image",
    "raw": "bytes",
    "name": "str",
    "label": "int",
    "weight": "float",
    "good": "bool",
    "grid": {"kind": "array", "dtype": "float32", "shape": [2, None]},
    "note": "json",
}


def codec(spec: Any) -> RecordCodec:
    return RecordCodec(parse_fields({"f": spec}))


def array(dtype: str, *shape: int | None) -> dict[str, Any]:
    return {"kind": "array", "dtype": dtype, "shape": list(shape)}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    columns = draw(st.integers(0, 3))
    bits = draw(st.lists(st.integers(0, 2**32 - 1), min_size=2 * columns, max_size=2 * columns))
    return {
        "image": draw(st.binary(max_size=300)),
        "raw": draw(st.binary(max_size=5)),
        "name": draw(TEXT),
        "label": draw(st.integers(-(2**63), 2**63 - 1)),
        "weight": draw(st.floats()),
        "good": draw(st.booleans()),
        "grid": np.array(bits, "<u4").view("<f4").reshape(2, columns),
        "note": draw(JSONS),
    }


SEALS = Seals(0x0123456789ABCDEF, 1000)


def sealed(packed: bytes, position: int = 0) -> bytes:
    return packed + SEALS.seal(checksum(packed), position)


def opened(codec: RecordCodec, *stored: bytes) -> list[dict[str, Any]]:
    maps, digests, seals = Rows.of_sealed(memoryview(each) for each in stored)
    for at, found in enumerate(maps):
        digest, seal = digests[8 * at : 8 * at + 8], seals[8 * at : 8 * at + 8]
        fault = found if isinstance(found, str) else SEALS.fault(int.from_bytes(seal, "big"), digest, at)
        if fault is not None:
            raise ValueError(fault)
    assert SEALS.match(digests, seals, range(len(maps)))
    return [codec.to_user_values(found) for found in maps]


# What is refused. The kit of every engine tests what comes back, see storeds.testing


@pytest.mark.parametrize(
    ("spec", "value", "says"),
    [
        ("image", Image.new("L", (2, 2)), "expected bytes, the content of an image file; encode pixels"),
        ("str", "ab\ud800", "lone surrogate at character 2"),
        ("int", 10**5000, "int64"),
        ("int", torch.tensor(3.0), "expected int"),
        (array("<f4", 2, None), np.zeros(2, "<f4"), "expected shape (2, None)"),
        ("json", {"\udfff": 1}, "lone surrogate"),
        ("json", nested(100_000), "nested deeper than 100"),
        ("json", LOOP, "nested deeper than 100"),
        ("json", [Rude()], "not Rude"),
        ("json", 10**5000, "digits"),
        ("int", "x" * 10**7, "expected int"),
        ("str", {"a": Rude()}, "expected str"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_names_field_kind_and_value(spec: Any, value: Any, says: str) -> None:
    kind = spec if isinstance(spec, str) else "array"
    with pytest.raises(ValueError) as caught:
        codec(spec).canonical({"f": value})
    message = str(caught.value)
    assert message.startswith(f"field 'f' ({kind}) refuses ")
    assert f"({type(value).__name__})" in message
    assert says in message
    assert len(message) < 300


# The encoding and its checksum


@given(records())
def test_the_checksum_is_xxh3_of_the_plain_msgpack_map(record: dict[str, Any]) -> None:
    made = RecordCodec(parse_fields(EVERY))
    grid = record["grid"]
    plain = {
        **record,
        "grid": ["<f4", list(grid.shape), grid.tobytes()],
        "note": json.dumps(record["note"], sort_keys=True, ensure_ascii=False, separators=(",", ":")),
    }
    expected = msgspec.msgpack.encode(plain)
    packed = made.pack(made.canonical(record))
    digest = xxhash.xxh3_64_intdigest(expected).to_bytes(8, "big")
    assert packed == expected
    assert checksum(packed) == digest
    assert sealed(packed, 3) == packed + (int.from_bytes(digest, "big") ^ SEALS.salt ^ 3).to_bytes(8, "big")
    for back in (made.unpack(packed), *opened(made, sealed(packed), sealed(packed, 1))):
        assert list(back) == list(EVERY)
        assert made.pack(made.canonical(back)) == packed
        assert back["grid"].flags.writeable
        assert back["grid"].flags.owndata


def test_every_flipped_bit_and_every_cut_of_a_sealed_record_is_noticed() -> None:
    made = RecordCodec(parse_fields(EVERY))
    values = (b"\xff\xd8\xff\xd9", b"", "ä", -5, 0.5, True, np.ones((2, 1), "<f4"), {"a": [1]})
    packed = made.pack(made.canonical(dict(zip(EVERY, values, strict=True))))
    for damaged in _damaged(sealed(packed)):
        with pytest.raises(ValueError, match="checksum does not match|not the msgpack map|its seal is damaged"):
            opened(made, damaged)


def _damaged(sealed: bytes) -> Iterator[bytes]:
    for at in range(len(sealed)):
        yield sealed[:at]
        for bit in range(8):
            yield sealed[:at] + bytes((sealed[at] ^ 1 << bit,)) + sealed[at + 1 :]


@pytest.mark.parametrize(
    ("spec", "value", "says"),
    [
        (array("<f4", 2), ["|O", [1], b"12345678"], "dtype"),
        (array("<f4", 2), ["<f4", [9], b"12345678"], "array does not unpack"),
        (array("<f4", 2), 3, "array does not unpack"),
        ("json", "[" * 99_999, "JSON does not parse"),
        ("json", 3, "JSON does not parse"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_checksums_of_invalid_values_raise_value_error(spec: Any, value: Any, says: str) -> None:
    packed = msgspec.msgpack.encode({"f": value})
    with pytest.raises(ValueError, match=says):
        opened(codec(spec), sealed(packed))


# Canonical JSON


@given(JSONS)
def test_canonical_json_gives_the_value_back(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text
    if isinstance(value, dict):
        assert canonical_json(dict(reversed(value.items()))) == text


# Declarations


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        *((spec, "unknown kind") for spec in ("", None, {"kind": ["x"]})),
        ({"kind": "array", "dtype": "f4"}, "needs its dtype and shape"),
        ({"kind": "int", "dtype": "f4"}, "only an array has a dtype"),
        ({"kind": "int", "size": 3}, "expected kind, dtype and shape"),
        (array("object", 2), "cannot be stored"),
        (array("f4,i4", 2), "cannot be stored"),
        (array("float33", 2), "is not a NumPy dtype"),
        ({"kind": "array", "dtype": "f4", "shape": 3}, "must be a list of sizes or None"),
        ({"kind": "array", "dtype": "f4", "shape": [True]}, "must be a list of sizes or None"),
    ],
    ids=str,
)
def test_bad_declarations_are_refused(spec: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_fields({"f": spec})
    assert str(caught.value).startswith("field 'f': ")
    assert says in str(caught.value)
