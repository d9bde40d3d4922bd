"""The stores of ``tests/fixtures/827ee2f1``, which that commit wrote: each opens with its id, records and columns.

`git log` keeps the program that made them, ``tests/support/make_old_stores.py``; no newer source may write them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bson
import numpy as np
import pytest
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS

import storeds
from conftest import with_path
from plain_formats import checksum, stored_row
from storeds import Field
from storeds.protocols import SupportsBatchArrays, SupportsColumns

FOLDER = Path(__file__).parents[1] / "fixtures/827ee2f1"
TRUTH: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))

DTYPES = {"int": "<i8", "float": "<f8", "bool": "|b1"}


class Old(NamedTuple):
    """A store in one engine, and what is true of it."""

    engine: str
    url: str
    truth: dict[str, Any]

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: {key: row[key] for key in row if key != "name"} for row in self.truth["fields"]}

    @property
    def positions(self) -> list[int]:
        """Return every position, twice and in two orders."""
        return [*range(self.truth["count"])[::-1], *range(self.truth["count"])]


@pytest.fixture(params=[(name, engine) for name, store in TRUTH.items() for engine in store["builds"]], ids="-".join)
def old(request: pytest.FixtureRequest) -> Iterator[Old]:
    """Give each store in each engine. Reading changes no file."""
    name, engine = request.param
    if engine == "mongodb":
        documents = bson.decode_all((FOLDER / f"{name}.bson").read_bytes(), DEFAULT_RAW_BSON_OPTIONS)
        request.getfixturevalue("database")[name].insert_many(documents)
        yield Old(engine, with_path(request.getfixturevalue("mongodb_database"), name), TRUTH[name])
    else:
        path = FOLDER / f"{name}.{engine}"
        before = path.read_bytes()
        yield Old(engine, f"{engine}://{path}", TRUTH[name])
        assert path.read_bytes() == before


def is_fixed(spec: dict[str, Any]) -> bool:
    """Return whether every value of a field has the same size, so that a store reads it as an array."""
    return spec["kind"] in DTYPES or (spec["kind"] == "array" and None not in spec["shape"])


def field_of(spec: dict[str, Any]) -> Field:
    return Field(**{**spec, "shape": tuple(spec["shape"])} if "shape" in spec else spec)


def test_the_meta_is_equal(old: Old) -> None:
    with storeds.open_backend(old.url) as backend:
        meta = backend.meta
    assert (meta.id, meta.build) == (old.truth["id"], old.truth["builds"][old.engine])
    assert (meta.count, meta.layout, meta.fast_crops) == (old.truth["count"], "storeds/1", old.truth["fast_crops"])
    assert meta.attrs == old.truth["attrs"]
    assert list(meta.fields.items()) == [(name, field_of(spec)) for name, spec in old.fields.items()]


def test_records_are_equal_whole_and_field_by_field(old: Old) -> None:
    fields, positions = old.fields, old.positions
    with storeds.open_backend(old.url) as backend:
        whole: list[Any] = backend.get_many(positions)
        alone: dict[str, list[Any]] = {name: backend.get_many(positions, [name]) for name in fields}
    joined = [{name: alone[name][at][name] for name in fields} for at in range(len(positions))]
    expected = [old.truth["records"][position] for position in positions]
    for records in (whole, joined):
        assert [checksum(stored_row(record, fields)).hex() for record in records] == expected
        for name in (name for name, spec in fields.items() if spec["kind"] == "array"):
            assert {record[name].dtype.str for record in records} <= {fields[name]["dtype"]}


def test_columns_and_arrays_are_those_of_the_records(old: Old) -> None:
    dtypes = {name: DTYPES.get(spec["kind"]) or spec["dtype"] for name, spec in old.fields.items() if is_fixed(spec)}
    texts = [name for name, spec in old.fields.items() if spec["kind"] == "str"]
    with storeds.open_backend(old.url) as backend:
        assert isinstance(backend, SupportsColumns)
        records: list[Any] = backend.get_many(old.positions, [*dtypes, *texts])
        columns = {name: backend.column(name)[old.positions] for name in (*dtypes, *texts)}
        arrays = backend.get_arrays(old.positions, [*dtypes]) if isinstance(backend, SupportsBatchArrays) else {}
    for name in texts:
        assert columns[name].tolist() == [record[name] for record in records]
    for name, dtype in dtypes.items():
        expected = np.array([record[name] for record in records], dtype)
        expected = expected.reshape(len(records), *old.fields[name].get("shape", ()))
        for found in [columns[name], *([arrays[name]] if arrays else [])]:
            assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_verify_reports_what_it_reported_then(old: Old) -> None:
    report = storeds.verify(old.url, workers=0)
    assert (report.id, report.count) == (old.truth["id"], old.truth["count"])
    assert [[each.position, each.kind, each.recovered] for each in report.findings] == old.truth["findings"]
