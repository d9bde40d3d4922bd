"""Labels whose role says that their classes are the distinct values of the store."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import storeds
from photographs import jpeg
from storeds.errors import ConfigError

LABELS: dict[str, tuple[Any, list[Any], list[str], list[Any]]] = {
    "texts": ("str", ["dog", "cat", "dog", "emu"], ["cat", "dog", "emu"], [1, 0, 1, 2]),
    "numbers with gaps": ("int", [90, 1, 90, 7], ["1", "7", "90"], [2, 0, 2, 1]),
    "texts in lists": ("json", [["dog"], [], ["cat", "dog"], ["emu"]], ["cat", "dog", "emu"], [[1], [], [0, 1], [2]]),
    "numbers in arrays": (
        {"kind": "array", "dtype": "int64", "shape": [None]},
        [np.array(each) for each in ([90], [1, 7], [7], [90])],
        ["1", "7", "90"],
        [[2], [0, 1], [1], [2]],
    ),
    "in objects": (
        "json",
        [[{"c": "dog"}], [{"c": "cat"}], [{"c": "dog"}, {"c": "cat"}], [{"c": "emu"}]],
        ["cat", "dog", "emu"],
        [[1], [0], [1, 0], [2]],
    ),
}


def written(path: Path, kind: Any, labels: list[Any]) -> str:
    url = f"lmdb://{path}/a.lmdb"
    with storeds.open_writer(url, {"image": "image", "y": kind, "split": "str"}) as writer:
        writer.append(
            [{"image": jpeg(n), "y": label, "split": "val" if n == 3 else "train"} for n, label in enumerate(labels)]
        )
        writer.publish()
    return url


@pytest.mark.parametrize("name", LABELS)
def test_distinct_values_are_classes(name: str, tmp_path: Path) -> None:
    kind, labels, classes, numbers = LABELS[name]
    url = written(tmp_path, kind, labels)
    fields = {"image": "image", "y": "y[].c" if name == "in objects" else "y"}
    roles = {"y": {"role": "label" if kind in ("str", "int") else "labels", "classes": "distinct"}}
    dataset = storeds.StoreDataset(url, fields=fields, roles=roles)
    assert list(dataset.classes or ()) == classes
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert [label if isinstance(label, int) else label.tolist() for _, label in each[:]] == numbers
    for split, wanted in (("train", numbers[:3]), ("val", numbers[3:])):  # each part numbers them alike
        part = storeds.StoreDataset(url, fields=fields, roles=roles, where={"split": split})
        assert list(part.classes or ()) == classes
        assert [label if isinstance(label, int) else label.tolist() for _, label in part[:]] == wanted


def test_a_bad_record_has_no_class(tmp_path: Path) -> None:
    url = written(tmp_path, "json", [["dog"], ["cat"], ["dog"], ["emu"]])
    with lmdb.open(f"{tmp_path}/a.lmdb", subdir=False, max_dbs=4) as env, env.begin(write=True) as transaction:
        cursor = transaction.cursor(env.open_db(b"records", transaction, create=False))
        assert cursor.first()
        assert cursor.next()
        cursor.put(cursor.key(), cursor.value()[:-1] + b"?")
    roles = {"y": {"role": "labels", "classes": "distinct"}}
    dataset = storeds.StoreDataset(url, fields=["image", "y"], roles=roles, on_error="skip")
    assert list(dataset.classes or ()) == ["dog", "emu"]


@pytest.mark.parametrize(
    ("kind", "labels", "role", "why"),
    [
        (
            "json",
            [["a"], [1], [], []],
            "labels",
            "the classes of 'y' cannot be found: classes are texts or whole numbers",
        ),
        ("json", [[1.5], [1], [], []], "labels", "the values are of type float, int; list them"),
        ("json", [[], [], [], []], "labels", "'y' has no value in lmdb"),
        ("int", [1, 2, 3, 4], "text", "role 'text' needs kind str"),
    ],
)
def test_what_are_no_classes(kind: str, labels: list[Any], role: str, why: str, tmp_path: Path) -> None:
    url = written(tmp_path, kind, labels)
    with pytest.raises(ConfigError, match=why):
        storeds.StoreDataset(url, fields=["image", "y"], roles={"y": {"role": role, "classes": "distinct"}})


def test_a_field_that_is_not_there(tmp_path: Path) -> None:
    url = written(tmp_path, "str", ["a"] * 4)
    with pytest.raises(ConfigError, match="roles: the classes of 'z' are distinct values, and lmdb.* has no field 'z'"):
        storeds.StoreDataset(url, roles={"z": {"role": "label", "classes": "distinct"}})
