"""What `StoreWriter` does alike for every engine, with the one in memory: which records it takes, the id, and attrs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import storeds
from storeds.errors import ConfigError, RecordError
from storeds.testing import FIELDS, assert_same, kept, make_records, reference_id

SMALL = {"blob": "bytes", "label": "int", "text": "str"}
FIRST, *REST = [{"blob": b"%d" % at, "label": at, "text": f"№ {at}"} for at in range(4)]
REFUSED: dict[str, list[Any]] = {
    "raw": [None, [1, 2]],
    "text": [b"bytes", "lone \ud800 surrogate"],
    "number": [True, 1.0, 2**63, np.uint64(2**64 - 1)],
    "real": [True, "1.0", 2**53 + 1],
    "flag": [1, "true"],
    "doc": [math.nan, (1, 2), {"a": {1: "key"}}, np.int64(1)],
    "box": [np.zeros((2, 3), "f4"), np.zeros((3, 2), "f8"), np.zeros((2, 3), object), [[0.0] * 3] * 2],
    "pixels": [np.zeros((2, 2, 4), "u1"), np.zeros((2, 2), "u1")],
}


@pytest.fixture
def url(make_engine_url: Callable[[str], str]) -> str:
    return make_engine_url("memory")


def written(url: str, fields: Any, records: list[Any], attrs: Any = None, **how: Any) -> storeds.Meta:
    with storeds.open_writer(url, fields, overwrite=True, **how) as writer:
        writer.append(records)
        return writer.publish(attrs)


def records_of(url: str) -> list[Any]:
    with storeds.open_backend(url) as backend:
        return list(backend.get_many(range(len(backend))))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_value_is_named_and_loses_nothing(url: str, name: str) -> None:
    good = [{name: record[name]} for record in make_records(2)]
    with storeds.open_writer(url, {name: FIELDS[name]}) as writer:
        writer.append(good[:1])
        for value in REFUSED[name]:
            with pytest.raises(RecordError, match=rf"record 1 of .*'{name}'") as caught:
                writer.append([{name: value}])
            assert (caught.value.position, caught.value.url) == (1, writer.url)
        assert writer.append(good[1:]) == 1
    assert_same(records_of(url), kept(good))


def test_every_record_has_every_field_and_no_other(url: str) -> None:
    with storeds.open_writer(url, SMALL) as writer:
        for bad in ({**FIRST, "extra": 1}, {"blob": b"", "label": 1}, {}, [1, 2, 3], "label"):
            with pytest.raises(RecordError, match="record 0 of"):
                writer.append([bad])  # type: ignore[list-item]  # the wrong type is the point
        assert writer.count == 0


def test_numpys_values_and_buffers_become_plain_and_may_be_used_again(url: str) -> None:
    box, raw = np.zeros((2, 3)), bytearray(b"ab")
    given = {"raw": raw, "box": box, "text": np.str_("t"), "number": np.uint8(7)}
    given |= {"real": np.float32(0.5), "flag": np.bool_(1)}
    with storeds.open_writer(url, {name: FIELDS[name] for name in given}) as writer:
        writer.append([given, {**given, "real": 3, "raw": memoryview(b"c")}])
        box[:], raw[:] = 9, b"other"
    plain = {"raw": b"ab", "box": np.zeros((2, 3)), "text": "t", "number": 7, "real": 0.5, "flag": True}
    assert_same(records_of(url), [plain, {**plain, "real": 3.0, "raw": b"c"}])


def test_the_id_depends_on_the_content_and_the_build_on_the_publication(url: str) -> None:
    records = make_records(7)
    metas = [written(url, FIELDS, records, {"a": 1}, commit_every=every) for every in (1, 3, 1000)]
    assert {meta.id for meta in metas} == {reference_id(FIELDS, records, {"a": 1})}
    assert len({meta.build for meta in metas}) == 3
    renamed = {"blob": "bytes", "label": "int", "txt": "str"}
    others: list[tuple[Any, list[Any], Any]] = [
        (SMALL, [FIRST, *REST], {"classes": ["a"]}),
        (SMALL, [FIRST, *REST], {"classes": ["b"]}),
        (SMALL, [FIRST, *REST], None),
        (SMALL, [{**FIRST, "blob": b"2"}, *REST], None),
        (SMALL, [*REST, FIRST], None),
        (SMALL, REST, None),
        (dict(reversed(SMALL.items())), [FIRST, *REST], None),
        ({**SMALL, "blob": "image"}, [FIRST, *REST], None),
        (renamed, [dict(zip(renamed, record.values(), strict=True)) for record in (FIRST, *REST)], None),
    ]
    assert len({written(url, *each).id for each in others}) == len(others)


def test_attrs_other_than_json_lose_nothing(url: str) -> None:
    with pytest.raises(ConfigError, match="attrs"), storeds.open_writer(url, SMALL) as writer:
        writer.append([FIRST, *REST])
        writer.publish({"classes": ("cat", "dog")})
    again = storeds.open_writer(url, SMALL, resume=True)
    for attrs in ({"a": math.nan}, {1: 2}, {"a": np.int64(1)}):
        with pytest.raises(ConfigError, match="attrs"):
            again.publish(attrs)  # type: ignore[arg-type]  # the wrong type is the point
    assert again.publish({"a": 1}).count == 4


def test_an_invalid_declaration_leaves_nothing(url: str) -> None:
    array = {"kind": "array", "dtype": "object", "shape": []}
    for fields in ({}, {"_x": "int"}, {"Label": "int"}, {"a": array}):
        with pytest.raises(ConfigError, match="field"):
            storeds.open_writer(url, fields)
    for every in (0, True, 1.5):
        with pytest.raises(ConfigError, match="commit_every"):
            storeds.open_writer(url, SMALL, commit_every=every)  # type: ignore[arg-type]  # the wrong type is the point
    assert written(url, SMALL, []).count == 0


@pytest.mark.parametrize(
    ("name", "value", "refused_by"),
    [
        ("raw", bytes(900), "msgpack"),
        ("text", "ä" * 450, "the record's limit"),
        ("doc", {"a": "x" * 900}, "msgpack"),
        ("pixels", np.zeros((10, 30, 3), "u1"), "the record's limit"),
    ],
    ids=["bytes", "text", "json", "pixels"],
)
def test_a_record_that_is_too_large_is_named_with_its_field(
    url: str, name: str, value: Any, refused_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(stored: Any) -> bytes:
        packed = msgspec.msgpack.encode(stored)
        if len(packed) > 800:
            raise msgspec.EncodeError("Can't encode bytes longer than 2**32 - 1")
        return packed

    if refused_by == "msgpack":
        monkeypatch.setattr("storeds.records.codec.encode", encode)
    else:
        monkeypatch.setattr("storeds.records.codec._LARGEST", 800)
    fields = {"key": "str", "other": "bytes", name: FIELDS.get(name, name)}
    small = {"key": "small", "other": bytes(100), name: value[:1] if name != "doc" else {}}
    with storeds.open_writer(url, fields, check=False) as writer:
        writer.append([small])
        with pytest.raises(RecordError, match=rf"record 1 \(key 'large'\) of .*'{name}' .* has 9\d\d bytes"):
            writer.append([{**small, "key": "large", name: value}])
        writer.append([small])
    assert len(records_of(url)) == 2
