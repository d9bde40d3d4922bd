"""`join`: columns of a table beside the store are fields of its records."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make_store import make_store
from storeds import StoreDataset, StoreLoader, build_dataset, errors

COUNT = 20
ROWS = [(f"k{at:02}", at % 3, ["cat", "dog"][at % 2], at / 2, f"p{at // 4}") for at in range(COUNT)]
HEAD = ("key", "target", "kind", "age", "patient")


def table(path: Path, rows: list[Any], head: tuple[str, ...] = HEAD) -> str:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        columns = dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([head, *rows])
    return str(path)


@pytest.fixture(params=["lmdb", "hdf5"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    records = ({"x": np.full(2, at, "f4"), "label": 0, "key": f"k{at:02}"} for at in range(COUNT))
    fields = {"x": {"kind": "array", "dtype": "float32", "shape": [2]}, "label": "int", "key": "str"}
    return make_store(fields, records, f"{request.param}://{tmp_path}/s")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_a_record_gets_the_columns_of_its_row(url: str, tmp_path: Path, name: str) -> None:
    join = {
        "path": table(tmp_path / name, ROWS[::-1]),
        "fields": {"label": "target", "patient": "patient", "age": "age"},
    }
    arguments: Any = {"reader": "array", "as_dict": True, "fields": ["x", "label", "patient", "age"]}
    dataset: Any = StoreDataset(url, join=join, **arguments)
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        found = [(int(s["x"][0]), int(s["label"]), s["patient"], float(s["age"])) for s in each]
        assert found == [(at, at % 3, f"p{at // 4}", at / 2) for at in range(COUNT)]
    assert dataset.column("label").tolist() == [at % 3 for at in range(COUNT)]
    assert dataset.backend.meta.id != StoreDataset(url, **{**arguments, "fields": ["x", "label"]}).backend.meta.id


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_integers_meet_a_column_that_a_missing_value_made_one_of_floats(tmp_path: Path, name: str) -> None:
    url = make_store({"id": "int"}, ({"id": 10 * at} for at in range(3)), f"lmdb://{tmp_path}/s")
    path = table(tmp_path / name, [(10.0 * at, at) for at in range(3)], ("id", "target"))
    dataset: Any = StoreDataset(url, reader="array", fields=["target"], join={"path": path, "on": "id"})
    assert dataset.column("target").tolist() == [0, 1, 2]


def test_joined_fields_select_divide_and_weigh(url: str, tmp_path: Path) -> None:
    join = {"path": table(tmp_path / "t.csv", ROWS)}
    arguments: Any = {"reader": "array", "as_dict": True, "fields": ["x", "kind", "patient"], "join": join}
    dogs: Any = StoreDataset(url, where={"kind": "dog", "label": 0}, **arguments)
    assert [int(s["x"][0]) for s in dogs] == list(range(1, COUNT, 2))
    folds: list[Any] = [
        StoreDataset(url, fold={"of": 2, "take": take, "group_by": "patient"}, **arguments) for take in (0, 1)
    ]
    first, second = ({s["patient"] for s in fold} for fold in folds)
    assert first.isdisjoint(second)
    loader = StoreLoader(StoreDataset(url, **arguments), batch_size=4, num_workers=2, balance="kind", seed=1)
    assert sorted({kind for batch in loader for kind in batch["kind"]}) == ["cat", "dog"]


def test_a_config_joins(url: str, tmp_path: Path) -> None:
    table(tmp_path / "t.csv", [row[1:] + row[:1] for row in ROWS], (*HEAD[1:], "isic_id"))
    config = tmp_path / "c.toml"
    config.write_text(
        f'[dataset]\nurl = "{url}"\nreader = "array"\nfields = ["x", "label"]\n'
        f'join = {{ path = "{tmp_path}/t.csv", on = {{ key = "isic_id" }}, fields = {{ label = "target" }} }}\n'
    )
    built: Any = build_dataset(config)
    assert [int(label) for _, label in built] == [at % 3 for at in range(COUNT)]


def test_keys_on_one_side_are_an_error_or_dropped(url: str, tmp_path: Path) -> None:
    join = {"path": table(tmp_path / "t.csv", [*ROWS[:17], ("zz", 1, "cat", 2.0, "p")])}
    with pytest.raises(
        errors.ConfigError, match=r"3 records have no row \('k17', 'k18', 'k19'\) and 1 rows have no record \('zz'\)"
    ):
        StoreDataset(url, reader="array", join=join)
    dropped: Any = StoreDataset(url, reader="array", fields=["x", "target"], join={**join, "missing": "drop"})
    assert [(int(x[0]), int(target)) for x, target in dropped] == [(at, at % 3) for at in range(17)]


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (ROWS, {"on": "id"}, "has no column 'id'"),
        (ROWS, {"fields": {"label": "tagret"}}, "did you mean 'target'"),
        (ROWS, {"file": "x"}, "unknown key 'file'"),
        ([*ROWS, ROWS[3]], {}, "several rows of key 'k03'"),
        ([("k00", "", "cat", 0, "p0"), *ROWS[1:]], {}, "the row of key 'k00' has no value"),
        ([*ROWS, ("k20", 1)], {}, "row 21 of .* has 2 cells"),
    ],
)
def test_a_table_that_does_not_fit_is_an_error(
    url: str, tmp_path: Path, rows: list[Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        StoreDataset(url, reader="array", join={"path": table(tmp_path / "t.csv", rows), **more})


def test_a_relative_path_is_found_from_any_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "t.csv", ROWS)
    monkeypatch.chdir(tmp_path)
    dataset = StoreDataset(url, reader="array", fields=["target"], join={"path": Path("t.csv")})
    monkeypatch.chdir("/")
    revived = pickle.loads(pickle.dumps(dataset))
    assert revived.backend.get_many([5, 4], ["target"]) == [{"target": 2}, {"target": 1}]


def test_a_missing_or_changed_table_is_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(errors.StoreNotFoundError):
        StoreDataset(url, reader="array", join={"path": str(tmp_path / "no.csv")})
    path = table(tmp_path / "t.csv", ROWS)
    pickled = pickle.dumps(StoreDataset(url, reader="array", join={"path": path}))
    table(tmp_path / "t.csv", ROWS[::-1])
    with pytest.raises(errors.UnavailableError, match="was replaced while in use or changed"):
        pickle.loads(pickled)[0]
