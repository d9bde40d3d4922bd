"""Folds of a store and files of keys: what they select, in every engine, and what two splits may not share."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from conftest import ENGINES
from make_store import make_store
from shares import examples
from storeds import StoreDataset
from storeds.errors import ConfigError, StoreNotFoundError

FIELDS = {"key": "str", "patient": "int", "label": "int"}


def rows(count: int, patients: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for at in range(count):
        patient = int(rng.integers(patients))
        found.append({"key": f"k{at}", "patient": patient, "label": patient % 3})
    return found


def keys(url: Any, **settings: Any) -> list[str]:
    return [key for (key,) in StoreDataset(url, reader="array", fields=["key"], **settings)[:]]


@given(st.integers(2, 6), st.integers(30, 200), st.booleans(), st.booleans(), st.integers(0, 99))
@settings(max_examples=examples(40))
def test_folds_divide_the_records_once(folds: int, count: int, grouped: bool, stratified: bool, seed: int) -> None:
    records = rows(count, patients=24, seed=seed)
    url = make_store(FIELDS, records)
    fold: dict[str, Any] = {"of": folds, "seed": seed}
    fold |= {"group_by": "patient"} if grouped else {}
    fold |= {"stratify_by": "label"} if stratified else {}
    parts = [keys(url, fold={**fold, "take": number}) for number in range(folds)]
    assert sorted(key for part in parts for key in part) == sorted(record["key"] for record in records)
    for number, part in enumerate(parts):
        assert sorted(keys(url, fold={**fold, "without": number})) == sorted({r["key"] for r in records} - set(part))
    by_key = {record["key"]: record for record in records}
    owners = [{by_key[key]["patient"] for key in part} for part in parts]
    if grouped:
        assert sum(map(len, owners)) == len(set().union(*owners))
    sizes = Counter(record["patient"] for record in records)
    most = max(sizes.values()) if grouped else 1
    lengths = [len(part) for part in parts]
    strata = range(3) if stratified else [None]
    for label in strata:
        shares = [sum(label is None or by_key[key]["label"] == label for key in part) for part in parts]
        assert max(shares) - min(shares) <= most
    assert max(lengths) - min(lengths) <= most * len(strata)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_divides_as_every_other(engine: str, make_engine_url: Callable[[str], str]) -> None:
    records = rows(60, 12)
    url = make_store(FIELDS, records, make_engine_url(engine))
    fold = {"of": 4, "take": [1, 3], "group_by": "patient", "stratify_by": "label"}
    expected = keys(make_store(FIELDS, records), fold=fold)
    assert keys(url, fold=fold) == expected
    both = [key for key in expected if int(key[1:]) % 2]
    assert keys(url, fold=fold, where={"key": [f"k{at}" for at in range(1, 60, 2)]}) == both


@pytest.mark.parametrize("text", ["{}\n{}", "\ufeff{}\n{}\n", "{}\r\n{}\r\n", "\n{}\n\n{}\n\n", "{}\n{}\n{}"])
def test_a_key_may_have_any_character_but_a_line_feed(text: str, tmp_path: Path) -> None:
    names = ["a.jpg", "b\u2028c.jpg", "d\x85e.jpg", "f\x0cg.jpg", "h\ri.jpg", " j "]
    url = make_store({"key": "str"}, ({"key": name} for name in names), f"lmdb://{tmp_path}/s.lmdb")
    for first, second in itertools.pairwise(names):
        (tmp_path / "keys.txt").write_bytes(text.format(first, second, first).encode())
        dataset = StoreDataset(url, reader="array", fields=["key"], keys_file=tmp_path / "keys.txt")
        assert dataset[:] == [(first,), (second,)]


def test_a_file_of_keys_selects_records(tmp_path: Path) -> None:
    url = make_store(FIELDS, rows(50, 9), f"lmdb://{tmp_path}/s.lmdb")
    file = tmp_path / "val.txt"
    file.write_text("k7\nk3\nk49\n")
    dataset = StoreDataset(url, reader="array", fields=["key"], keys_file=file)
    assert dataset[:] == [("k3",), ("k7",), ("k49",)]
    assert pickle.loads(pickle.dumps(dataset))[:] == dataset[:]
    assert len(pickle.dumps(dataset)) < 20_000
    file.write_text("k7\nnothing\n")
    with pytest.raises(ConfigError, match="lists 1 keys that .* has not: nothing"):
        StoreDataset(url, keys_file=str(file), reader="array")
    with pytest.raises(StoreNotFoundError, match="there is no file"):
        StoreDataset(url, keys_file=tmp_path / "missing.txt", reader="array")
    with pytest.raises(ConfigError, match="keys: its name is 'keys_file' now"):
        StoreDataset(url, keys=file, reader="array")
    with pytest.raises(ConfigError, match="its name is 'keys_file' now"):
        storeds.build_dataset({"dataset": {"url": url, "keys": str(file)}})


@pytest.mark.parametrize(
    ("fold", "says"),
    [
        ({"take": 0}, "of is needed"),
        ({"of": 5}, "set take or without"),
        ({"of": 5, "take": 0, "without": 1}, "set take or without"),
        ({"of": 5, "take": 5}, "the numbers are 0 to 4"),
        ({"of": 5, "take": 0, "groupby": "x"}, "unknown key 'groupby'; did you mean 'group_by'"),
        ({"of": 5, "take": 0, "group_by": "x"}, "no field 'x'"),
        ({"of": 5, "take": 0, "group_by": "patient"}, "5 folds need as many groups, and .* has 3 values of 'patient'"),
    ],
)
def test_wrong_folds_are_refused(fold: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StoreDataset(make_store(FIELDS, rows(40, 3)), reader="array", fold=fold)


def test_splits_of_a_config(tmp_path: Path) -> None:
    url = make_store(FIELDS, rows(60, 12), f"hdf5://{tmp_path}/s.h5")
    fold = {"of": 5, "group_by": "patient"}
    config: dict[str, Any] = {
        "dataset": {"url": url, "reader": "array", "fields": ["key"]},
        "splits": {
            "train": {"dataset": {"fold": {**fold, "without": 2}}},
            "val": {"dataset": {"fold": {**fold, "take": 2}}},
        },
    }
    train, val = (storeds.build_dataset(config, name) for name in ("train", "val"))
    assert len(train) + len(val) == 60
    config["splits"]["val"]["dataset"]["fold"]["take"] = 1
    with pytest.raises(ConfigError, match="splits 'val' and 'train' of the config share"):
        storeds.build_dataset(config, "val")
