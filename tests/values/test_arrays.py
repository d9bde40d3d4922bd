"""Arrays in LMDB values and in documents of MongoDB: whatever holds them, they stay arrays of their type, with NaN."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from bson import Binary

import storeds
from _foreign_lmdb import Runs, put
from conftest import with_path
from storeds.protocols import Array

DTYPES = ["|u1", "<i2", "<i8", "<u8", "<f2", "<f4", "<f8", "|b1", "<c8", ">f4", ">i4"]
COUNT = 20
NO_KIND = {"kind": None}


def sample(dtype: str, number: int, rows: int = 3) -> Array:
    values = np.arange(number, number + 2 * rows).reshape(rows, 2).astype(dtype)
    if np.dtype(dtype).kind in "fc":
        values[0, 0] = np.nan
    return values


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def packed(array: Array) -> dict[str, Any]:
    """As msgpack-numpy does."""
    return {"nd": True, "type": array.dtype.str, "kind": "", "shape": array.shape, "data": array.tobytes()}


WRITERS: dict[str, Callable[[Array], bytes]] = {
    "pickle": pickle.dumps,
    "pickle of protocol 2": lambda array: pickle.dumps(array, 2),
    "npy": npy,
    "bare bytes": lambda array: array.astype(array.dtype.newbyteorder("<")).tobytes(),
}
"""How one value holds one array."""
NESTED: dict[str, Callable[[Array], Any]] = {
    "in a mapping": lambda array: {"a": {"x": array, "n": 1}, "m": 2},
    "in a list": lambda array: {"a": {"x": [*array], "n": 1}, "m": 2},
}
"""Values of which one part is the array."""


def opened(engine: str, blobs: list[bytes], request: pytest.FixtureRequest, columns: Any) -> Any:
    """Return a store of these values."""
    if engine == "lmdb":
        folder = request.getfixturevalue("tmp_path") / "s"
        put(folder, [(b"%06d" % n, blob) for n, blob in enumerate(blobs)])
        place: Any = "{}" if columns == NO_KIND else {"path": "{}", **(columns or {})}
        return storeds.open_backend(folder, columns=columns and {"x": place})
    request.getfixturevalue("database").arrays.insert_many({"x": blob} for blob in blobs)
    url = with_path(request.getfixturevalue("mongodb_database"), "arrays")
    return storeds.open_backend(url, layout="query", columns=columns and {"x": {"path": "x", **columns}})


def check(store: Any, name: str, arrays: list[Array]) -> None:
    with store:
        found = store.get_many(range(len(store)), [name])
        expected = [array.astype(array.dtype.newbyteorder("<")) for array in arrays]
        assert store.meta.fields[name].dtype == expected[0].dtype.str
        assert len(found) == len(expected)
        for record, array in zip(found, expected, strict=True):
            assert record[name].dtype == array.dtype
            assert record[name].flags.writeable
            np.testing.assert_array_equal(record[name], array)
        assert list(store.unread()) == []


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))


FORMS = [(form, True) for form in WRITERS] + [(form, False) for form in WRITERS if form != "bare bytes"]
EACH = [(*FORMS[at % len(FORMS)], dtype) for at, dtype in enumerate(DTYPES)]


@pytest.mark.parametrize("engine", ["lmdb", "mongodb"])
@pytest.mark.parametrize(("form", "is_declared", "dtype"), EACH)
def test_an_array_in_one_value(
    form: str, is_declared: bool, dtype: str, engine: str, request: pytest.FixtureRequest
) -> None:
    arrays = [sample(dtype, n, rows=n % 3 + 1) for n in range(COUNT)]
    columns: Any = {"kind": "array", "dtype": dtype, "shape": [None, 2]} if is_declared else None
    if form == "npy" and not is_declared and engine == "lmdb":  # such a store needs a pattern
        columns, is_declared = NO_KIND, True
    store = opened(engine, [WRITERS[form](array) for array in arrays], request, columns)
    if engine == "lmdb" and not is_declared:
        check(store, next(iter(store.meta.fields)), arrays)
    else:
        check(store, "x", arrays)


@pytest.mark.parametrize(
    ("engine", "dump", "form", "dtype"),
    [
        ("lmdb", pickle.dumps, "in a mapping", "<f2"),
        ("mongodb", pickle.dumps, "in a list", ">f4"),
        ("lmdb", partial(msgspec.msgpack.encode, enc_hook=packed), "in a mapping", ">i4"),
        ("lmdb", partial(msgspec.msgpack.encode, enc_hook=packed), "in a list", "<c8"),
    ],
    ids=["pickle-lmdb", "pickle-mongodb", "msgpack-mapping", "msgpack-list"],
)
def test_an_array_inside_a_value(
    engine: str, dump: Callable[[Any], bytes], form: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    arrays = [sample(dtype, n) for n in range(COUNT)]
    store = opened(engine, [dump(NESTED[form](array)) for array in arrays], request, None)
    check(store, "a_x" if engine == "lmdb" else "x_a_x", arrays)


@pytest.mark.parametrize(
    ("subtype", "array"),
    [
        (b"\x27\x00", np.array([1.5, np.nan, -2], "<f4")),
        (b"\x03\x00", np.array([1, -2, 127], "i1")),
        (b"\x10\x03", np.array([1, 0, 1, 1, 0], bool)),
    ],
    ids=["float32", "int8", "packed bits"],
)
def test_vectors_of_bson(subtype: bytes, array: Array, database: Any, mongodb_database: str) -> None:
    data = np.packbits(array).tobytes() if array.dtype == bool else array.tobytes()
    vector = Binary(subtype + data, 9)
    database.vectors.insert_many({"x": vector, "y": {"deep": vector}} for _ in range(COUNT))
    url = with_path(mongodb_database, "vectors")
    for name, columns in (("x", None), ("y_deep", None), ("y", {"y": "y.deep"})):
        check(storeds.open_backend(url, layout="query", columns=columns), name, [array] * COUNT)


def test_an_embedding_opens_as_vectors_that_mongodb_writes(database: Any, mongodb_database: str) -> None:
    from bson.binary import BinaryVectorDtype

    rows = [[float(n), 0.5] for n in range(COUNT)]
    database.atlas.insert_many({"e": Binary.from_vector(row, BinaryVectorDtype.FLOAT32)} for row in rows)
    store: Any
    with storeds.open_backend(with_path(mongodb_database, "atlas")) as store:
        assert [record["e"].tolist() for record in store.get_many(range(COUNT))] == rows


BARE = {"kind": "array", "dtype": "float32", "shape": [4]}
WRONG: list[tuple[str, str, bytes, str]] = [
    ("lmdb", "bare bytes", bytes(12), r"its 12 bytes are no array of float32 with shape \[4\]"),
    ("mongodb", "bare bytes", b"", "its 0 bytes are no array"),
    ("lmdb", "npy", npy(np.zeros(4, "f4"))[:-1], "npy"),
    ("mongodb", "npy", npy(np.zeros(5, "f4")), r"shape \(5,\)"),
    ("lmdb", "pickle", pickle.dumps(np.zeros(4, "f8")), "float32|float64"),
    ("mongodb", "pickle", pickle.dumps(Runs(print, "x")), "refused: the pickle names builtins.print"),
]


@pytest.mark.parametrize(("engine", "form", "value", "why"), WRONG)
def test_a_wrong_value_is_a_bad_record(
    form: str, value: bytes, why: str, engine: str, request: pytest.FixtureRequest
) -> None:
    blobs = [WRITERS[form](np.full(4, n, "f4")) for n in range(COUNT)]
    with opened(engine, blobs, request, BARE) as store:
        assert store.get_many([3])[0]["x"].tolist() == [3] * 4
    if engine == "lmdb":
        path = request.getfixturevalue("tmp_path") / "t"
        blobs[7] = value
        put(path, [(b"%06d" % n, blob) for n, blob in enumerate(blobs)])
        store = storeds.open_backend(path, columns={"x": {"path": "{}", **BARE}})
    else:
        database = request.getfixturevalue("database")
        id = [document["_id"] for document in database.arrays.find().sort("_id", 1)][7]
        store = opened(engine, [blobs[0]], request, BARE)
        database.arrays.update_one({"_id": id}, {"$set": {"x": value}})
    with store, pytest.raises(storeds.errors.RecordError, match=why) as raised:
        raise store.get_many([7])[0]
    assert "key '000007'" in str(raised.value) or "_id ObjectId(" in str(raised.value)
