"""The same rows through every door: each source of `pack` and each engine declares the same fields, with the same values."""

from __future__ import annotations

import base64
import csv
import json
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import msgspec
import numpy as np
import pytest

import storeds
from _foreign_lmdb import put
from conftest import with_path
from photographs import jpeg
from storeds.protocols import Field

Row = dict[str, Any]
INT, FLOAT, STR, BOOL, JSON = Field("int"), Field("float"), Field("str"), Field("bool"), Field("json")
NAN = math.nan


def array(dtype: str, *shape: int | None) -> Field:
    return Field("array", dtype, shape)


class Rows(NamedTuple):
    """Rows with any names, and the fields that they become.

    Parameters
    ----------
    rows : list of dict
    fields : mapping of str to Field
    values : mapping of str to list
        By the name of the field; those of the rows, in their order, if left out.
    without : str
        Doors that cannot hold such values.
    """

    rows: list[Row]
    fields: Mapping[str, Field]
    values: Mapping[str, list[Any]] = {}  # no case changes it
    without: str = ""


def column(*values: Any, field: Field, name: str = "x", stored: str = "x", **more: Any) -> Rows:
    return Rows([{name: value} for value in values], {stored: field}, **more)


TYPED = "csv hdf5"
"""Doors whose columns have one type each, without nested values."""
CASES: dict[str, Rows] = {
    "numbers": Rows(
        [{"label": n % 2, "score": n + 0.5, "n": n - 1} for n in range(3)], {"label": INT, "score": FLOAT, "n": INT}
    ),
    "whole numbers among real ones": column(1, 2.5, 3, field=FLOAT),
    "the smallest integer": column(-(2**63), 0, 1, field=INT),
    "booleans": column(True, False, True, field=BOOL),
    "texts": column("é", "日本", "x y", field=STR),
    "numbers as text": column("1", "02", "x", field=STR),
    "empty text": column("", "a", "b", field=STR),
    "names that are no field names": Rows(
        [{"Score (raw)": 0.5, "3d": n, "_id_": n, "class_": 1, "a__b": 2, "Ünit": 3, "A-B": 4} for n in range(3)],
        {
            **{"score_raw": FLOAT, "f3d": INT, "id": INT, "class_": INT, "a__b": INT, "nit": INT, "a_b": INT},
        },
    ),
    "names that collide": Rows(
        [{"T": 1, "t": 2.5, "T ": 3, "日本": 4}] * 3, {"t_2": INT, "t": FLOAT, "t_3": INT, "field": INT}
    ),
    "names without Latin letters": Rows([{"日本": 4, "中国": 5}] * 3, {"field": INT, "field_2": INT}, without="hdf5"),
    "lists of numbers": column([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], field=array("<i8", 4), without="csv"),
    "lists of several lengths": column([1.5], [2, 3], [4], field=array("<f8", None), without=TYPED),
    "boxes": column([[1, 2, 3, 4]], [[5, 6, 7, 8]] * 2, [[0, 0, 1, 1]], field=array("<i8", None, 4), without=TYPED),
    "no box in some": column(
        [[1.0, 2.0, 3.0, 4.0]], [], [[0.5] * 4] * 2, field=array("<f8", None, 4), without=TYPED, values={"x": [[[1, 2, 3, 4]], [], [[0.5] * 4] * 2]}
    ),
    "polygons": column([[1, 2, 3, 4]], [[1, 2]], [[1, 2, 3]], field=JSON, without=TYPED),
    "lists of texts": column(["a"], [], ["b", "c"], field=JSON, without=TYPED),
    "mappings": column({"a": 1, "b": [1]}, {"a": 2, "b": [2]}, {"a": 3, "b": [3]}, field=JSON, without=TYPED),
    "lists of mappings": column([{"a": 1}], [], [{"a": 2}] * 2, field=JSON, without=TYPED),
    "several kinds": column(1, "a", True, field=JSON, without=f"{TYPED} parquet"),
    "true among numbers": column([1, True], [1, 2], [2, 3], field=JSON, without=f"{TYPED} parquet"),
    "no integer in some": column(1, None, 3, field=JSON, without="hdf5"),
    "no integer in most": column(None, None, 3, field=JSON, without="hdf5"),
    "no real number in some": column(1.5, None, 3.0, field=FLOAT, values={"x": [1.5, NAN, 3.0]}, without="hdf5"),
    "no text in some": column("a", None, "c", field=JSON, without=TYPED),
    "no boolean in some": column(True, None, False, field=JSON, without="hdf5"),
    "no list in some": column([1, 2], None, [3, 4], field=JSON, without=f"{TYPED} parquet"),
    "a key that some lack": Rows(
        [{"x": 1, "y": 1}, {"x": 2}, {"x": 3, "y": 3}], {"x": INT, "y": JSON}, {"x": [1, 2, 3], "y": [1, None, 3]},
        without=f"{TYPED} parquet",
    ),
    "pictures in base64": Rows(
        [dict.fromkeys("xy", base64.b64encode(jpeg(n)).decode()) for n in range(3)],
        dict.fromkeys("xy", Field("image")), {name: [jpeg(n) for n in range(3)] for name in "xy"},
    ),
    "NaN": column(1.5, NAN, 2.5, field=FLOAT, values={"x": [1.5, NAN, 2.5]}),
}  # fmt: skip
ARRAYS: dict[str, Rows] = {
    "arrays": column(*np.ones((3, 2, 2), "f2"), field=array("<f2", 2, 2)),
    "arrays of several lengths": column(*(np.arange(n, dtype="i2") for n in (1, 2, 3)), field=array("<i2", None)),
    "arrays in a mapping": Rows(
        [{"obs": {"state": np.full(3, n, "f4"), "name": "x"}, "act": n} for n in range(3)],
        {"obs_state": array("<f4", 3), "obs_name": STR, "act": INT},
        {"obs_state": [[n] * 3 for n in range(3)], "obs_name": ["x"] * 3, "act": [0, 1, 2]},
    ),
    "equal arrays in a list": column(*[[np.full(2, n, "u1")] * 3 for n in range(3)], field=array("|u1", 3, 2)),
    "pictures in a mapping": Rows(
        [{"pic": {"data": jpeg(n), "n": n}} for n in range(3)],
        {"pic_data": Field("image"), "pic_n": INT},
        {"pic_data": [jpeg(n) for n in range(3)], "pic_n": [0, 1, 2]},
    ),
}
"""Values that only doors with arrays have."""


# Doors. Each returns what to open, and how.

Opened = tuple[str, dict[str, Any]]


def with_paths(rows: list[Row], folder: Path) -> list[Row]:
    for n in range(len(rows)):
        (folder / f"{n}.jpg").write_bytes(jpeg(n))
    return [{"path": f"{n}.jpg", **row} for n, row in enumerate(rows)]


def packed(source: Any, **options: Any) -> Opened:
    storeds.pack(source, "memory://door", overwrite=True, **options)
    return "memory://door", {}


def through_csv(rows: list[Row], folder: Path) -> Opened:
    rows = with_paths(rows, folder)
    with open(folder / "a.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return packed(folder / "a.csv", label=False)


def through_jsonl(rows: list[Row], folder: Path) -> Opened:
    lines = [json.dumps(row) for row in with_paths(rows, folder)]
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return packed(folder / "a.jsonl", label=False)


def through_objects(rows: list[Row], folder: Path) -> Opened:
    return packed(rows)


def through_parquet(rows: list[Row], folder: Path) -> Opened:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")
    return packed(folder / "a.parquet", label=False)


def through_lmdb(dump: Callable[[Row], bytes], layout: str, rows: list[Row], folder: Path) -> Opened:
    entries = [(f"{n:06}".encode(), dump(row)) for n, row in enumerate(rows)]
    return str(put(folder / "s", entries)), {"layout": layout}


def through_json(rows: list[Row], folder: Path) -> Opened:
    return through_lmdb(lambda row: json.dumps(row).encode(), "json", rows, folder)


def through_pickle(rows: list[Row], folder: Path) -> Opened:
    return through_lmdb(pickle.dumps, "pickled", rows, folder)


def numpy_hook(value: Any) -> Any:
    """As msgpack-numpy packs arrays."""
    return {"nd": True, "type": value.dtype.str, "kind": "", "shape": value.shape, "data": value.tobytes()}


def through_msgpack(rows: list[Row], folder: Path) -> Opened:
    return through_lmdb(lambda row: msgspec.msgpack.encode(row, enc_hook=numpy_hook), "msgpack", rows, folder)


def through_hdf5(rows: list[Row], folder: Path) -> Opened:
    with h5py.File(folder / "a.h5", "w") as file:
        for name in rows[0]:
            file[name] = [row[name] for row in rows]
    return str(folder / "a.h5"), {"layout": "parallel"}


DOORS = {
    **{"csv": through_csv, "jsonl": through_jsonl, "objects": through_objects, "parquet": through_parquet},
    **{"json": through_json, "pickle": through_pickle, "msgpack": through_msgpack, "hdf5": through_hdf5},
}
WITH_ARRAYS = ("objects", "pickle", "msgpack")


def same(found: Field, expected: Field) -> bool:
    """Whether a field is the expected one; where a door knows only the types of a column, lengths of lists are open."""
    if (found.kind, found.dtype) != (expected.kind, expected.dtype):
        return False
    shapes = found.shape or (), expected.shape or ()
    return len(shapes[0]) == len(shapes[1]) and all(a in (None, b) for a, b in zip(*shapes, strict=True))


def plain(value: Any) -> Any:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def check(case: Rows, opened: Opened) -> None:
    source, options = opened
    backend: Any
    with storeds.open_backend(source, **options) as backend:
        own = [
            name
            for name in backend.meta.fields
            if name not in ("key", "image") and not name.endswith(("_finding", "_recovered"))
        ]
        fields = {name: backend.meta.fields[name] for name in own}
        assert fields.keys() == case.fields.keys()
        assert all(same(fields[name], field) for name, field in case.fields.items()), fields
        assert list(backend.unread()) == []
        records = backend.get_many(range(len(backend)), own)
    in_order = zip(case.fields, zip(*(row.values() for row in case.rows), strict=False), strict=False)
    expected = case.values or {name: list(values) for name, values in in_order}
    assert {name: [plain(record[name]) for record in records] for name in expected} == {
        name: [plain(value) for value in values] for name, values in expected.items()
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_same_through_every_door(name: str, door: str, tmp_path: Path) -> None:
    if door not in CASES[name].without.split():
        check(CASES[name], DOORS[door](CASES[name].rows, tmp_path))


@pytest.mark.parametrize("door", WITH_ARRAYS)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_stay_arrays_through_every_door(name: str, door: str, tmp_path: Path) -> None:
    check(ARRAYS[name], DOORS[door](ARRAYS[name].rows, tmp_path))


@pytest.mark.parametrize("name", [*CASES, *ARRAYS])
def test_documents_are_the_same_as_rows(name: str, database: Any, mongodb_database: str) -> None:
    """Documents hold each array as a pickle."""
    case = CASES.get(name) or ARRAYS[name]
    dump: Any = pickle.dumps if name in ARRAYS else lambda value: value
    database.rows.insert_many({key: dump(value) for key, value in row.items()} for row in case.rows)
    check(case, (with_path(mongodb_database, "rows"), {"layout": "query"}))
