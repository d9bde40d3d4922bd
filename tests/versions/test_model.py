"""A versioned store does what a plain list of records would: every version, in every engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import storeds
from conftest import with_path
from make_store import make_store
from shares import FULL, SEED
from storeds import errors, ops

FIELDS: dict[str, Any] = {
    "blob": "bytes",
    "label": {"kind": "int", "role": "label"},
    "weight": "float",
    "key": "str",
    "x": {"kind": "array", "dtype": "uint8", "shape": [2]},
}
NAMES = ["ant", "bee", "cow", "dog", "eel", "fox"]
Records = list[dict[str, Any]]


class Model:
    """The records of a versioned store as a list, and the names of the classes; what an edit does, without storeds."""

    def __init__(self, engine: str, make_engine_url: Callable[[str], str], rng: random.Random) -> None:
        self.url, self.engine, self.rng = with_path(make_engine_url(engine), ""), engine, rng
        self.make_engine_url = make_engine_url
        self.records: Records = []
        self.classes: list[str] = []
        self.fields = dict(FIELDS)
        self.made = 0
        self.history: list[tuple[Records, list[str], dict[str, Any]]] = []

    def source(self, classes: list[str]) -> Records:
        """Return some new records, whose labels are of these classes."""
        rows = []
        for _ in range(self.rng.randint(1, 6)):
            self.made += 1
            row: dict[str, Any] = {
                "blob": self.rng.randbytes(self.rng.choice([0, 5, 5000])),
                "label": self.rng.randrange(len(classes)),
                "weight": self.rng.random(),
                "key": f"k/{self.made}",
                "x": [self.made % 256, 7],
            }
            rows.append({name: row.get(name, self.made) for name in self.fields})
        return rows

    def store(self, rows: Records, classes: list[str], url: str | None = None) -> str:
        import numpy as np

        given = [{**row, "x": np.array(row["x"], "u1")} for row in rows]
        return make_store(self.fields, given, url, attrs={"classes": classes})

    def add(self, rows: Records, classes: list[str]) -> None:
        self.classes = [*self.classes, *(name for name in classes if name not in self.classes)]
        for row in rows:
            label = self.classes.index(classes[row["label"]])
            self.records.append({**row, "label": label})

    def append(self) -> None:
        classes = self.rng.sample(NAMES, self.rng.randint(1, 4))
        rows = self.source(classes)
        storeds.append(self.url, self.store(rows, classes), message="more")
        self.add(rows, classes)

    def merge(self) -> None:
        rows = self.source(self.classes or NAMES[:2])
        classes = self.classes or NAMES[:2]
        extra = self.store(rows, classes, self.make_engine_url(self.engine))
        ops.merge(self.url, extra, move=self.engine != "mongodb" and self.rng.random() < 0.5)
        self.add(rows, classes)

    def edit(self) -> None:
        chosen = [row["key"] for row in self.records if self.rng.random() < 0.3]
        to_set: dict[str, Any] = {
            key: {"label": self.rng.choice(self.classes), "weight": self.rng.random()}
            for key in chosen
            if self.rng.random() < 0.5
        }
        to_drop = [key for key in chosen if self.rng.random() < 0.2]
        below = self.rng.choice([None, 0.05])
        condition = None if below is None else f"weight < {below} and label != {self.rng.randrange(3)}"
        after: Records = []
        for row in self.records:
            new = to_set.get(row["key"], {})
            changed = {**row, **new, "label": self.classes.index(new["label"]) if new else row["label"]}
            is_dropped = row["key"] in to_drop or (
                condition is not None and changed["weight"] < 0.05 and changed["label"] != int(condition[-1])
            )
            if not is_dropped:
                after.append(changed)
        try:
            ops.edit(self.url, set=to_set or None, drop=to_drop, drop_where=condition, message="fix")
        except errors.ConfigError as error:
            assert "nothing to change" in str(error)
            assert after == self.records
            return
        self.records = after

    def widen(self) -> None:
        name = f"extra_{len(self.fields)}"
        if len(self.fields) >= 7 or not self.records:
            return self.append()
        values = {row["key"]: {name: at * 3} for at, row in enumerate(self.records)}
        ops.edit(self.url, set=values)
        self.fields[name] = "int"
        self.records = [{**row, name: values[row["key"]][name]} for row in self.records]
        return None

    def compact(self) -> None:
        ops.compact(self.url)

    def rollback(self) -> None:
        number = self.rng.randrange(len(self.history)) + 1
        ops.rollback(self.url, number)
        records, self.classes, fields = self.history[number - 1]
        self.records, self.fields = [*records], dict(fields)

    def check(self, number: int, expected: tuple[Records, list[str], dict[str, Any]]) -> None:
        """Compare a version with a list of records, and its id with that of a store of them."""
        records, classes, fields = expected
        with storeds.open_backend(f"{self.url}{'&' if '?' in self.url else '?'}version={number}") as backend:
            positions = [*range(len(records))]
            self.rng.shuffle(positions)
            found: Any = backend.get_many(positions)
            assert [{**row, "x": row["x"].tolist()} for row in found] == [records[at] for at in positions]
            assert [*backend.meta.fields] == [*fields]
            columns: Any = backend
            assert columns.column("label").tolist() == [row["label"] for row in records]
            assert backend.get_many([0], ["weight"]) == [{"weight": records[0]["weight"]}] if records else True
            self.fields, now = fields, self.fields
            whole = storeds.open_backend(self.store(records, classes))
            self.fields = now
            assert (backend.meta.id, backend.meta.count) == (whole.meta.id, whole.meta.count)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_any_sequence_of_changes_gives_the_records_and_the_id_of_a_list(
    engine: str, make_engine_url: Callable[[str], str]
) -> None:
    rng = random.Random(SEED)
    model = Model(engine, make_engine_url, rng)
    ways = [model.append, model.merge, model.edit, model.edit, model.edit, model.widen, model.compact, model.rollback]
    for _ in range(200 if FULL else 40):
        before = len(ops.log(model.url)) if model.history else 0
        way = rng.choice(ways) if model.history else model.append
        way()
        if len(ops.log(model.url)) == before:
            continue
        model.history.append(([*model.records], model.classes, dict(model.fields)))
        number = len(model.history)
        for each in {number, rng.randint(1, number)}:  # the new version, and an old one, which never changes
            model.check(each, model.history[each - 1])
    assert storeds.verify(model.url, workers=0).ok
    assert ops.clean(model.url, older_than=0, yes=True).done
    (last,) = ops.log(model.url)
    model.check(last.number, model.history[-1])
