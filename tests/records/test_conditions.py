"""Conditions in text select what a comparison in Python, record by record, would; anything else is an error that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from _packing import storeds_json
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, errors
from storeds.config import build_dataset

FIELDS: dict[str, Any] = {
    **{"label": {"kind": "int", "role": "label"}, "width": "int", "weight": "float", "ok": "bool", "split": "str"},
    **{"class": "int", "key": "str", "x": {"kind": "array", "dtype": "uint8", "shape": [1]}},
}
CLASSES = ["cat", "dog", "eel"]
RECORDS: list[dict[str, Any]] = [
    {
        "label": n % 3,
        "width": n * 100,
        "weight": [0.5, float("nan"), -2.0][n % 3],
        "ok": n % 2 == 0,
        "split": ["train", "test", "it's", 'a "b"'][n % 4],
        "class": n % 2,
        "key": f"cam{n % 2}/{n}",
        "x": np.array([n], "u1"),
    }
    for n in range(12)
]
# A condition, and what it says in Python of a record `r`.
CONDITIONS = {
    "label == 2": "r['label'] == 2",
    'label == "dog"': "r['label'] == 1",
    'label in ("cat", "dog") and width >= 512': "r['label'] in (0, 1) and r['width'] >= 512",
    "label not in (0, 2)": "r['label'] not in (0, 2)",
    'split != "test"': "r['split'] != 'test'",
    'split == "it\'s" or split == \'a "b"\'': "r['split'] in (\"it's\", 'a \"b\"')",
    'key startswith "cam1/"': "r['key'].startswith('cam1/')",
    'not key startswith "cam1/" and not ok': "not r['key'].startswith('cam1/') and not r['ok']",
    "ok": "r['ok']",
    "ok == False": "not r['ok']",
    "weight > -2.5 and weight <= 0.5": "-2.5 < r['weight'] <= 0.5",
    "weight != 0.5": "r['weight'] != 0.5",
    "100 < width <= 500": "100 < r['width'] <= 500",
    "width < weight": "r['width'] < r['weight']",
    "class == 1 and (label == 0 or label == 1)": "r['class'] == 1 and r['label'] in (0, 1)",
    'split < "t"': "r['split'] < 't'",
    "width == 300.0": "r['width'] == 300",
    "width in (300, 10000000000000000000000)": "r['width'] == 300",
}
REFUSED = {
    "width ==": "it does not parse",
    "width = 3": "it does not parse",
    "": "it does not parse",
    "widht == 3": "there is no field 'widht'; did you mean 'width'",
    "x == 3": "'x' is of kind array; only int, float, bool and str compare",
    'label == "cow"': "'label' has no class 'cow'; the classes are cat, dog, eel",
    'width == "3"': "'width' is int, and '3' is not",
    "split == 3": "'split' is str, and 3 is not",
    "split == width": "'split' is str, and 'width' int",
    "width startswith 'a'": "startswith is for a field of kind str and a text",
    "width": "'width' is no comparison",
    "3": "'3' is no comparison",
    "3 == 3": "'3' is no field",
    "width in 3": "in takes a list in brackets",
    "width + 1 == 3": "only comparisons with values, and, or, not and brackets",
    "len(key) == 3": "only comparisons",
    '__import__("os").system("true")': "only comparisons",
    "key.__class__ == 3": "only comparisons",
    "(lambda: 1)() == width": "it does not parse",
    "9 ** 9 ** 9 == width": "only comparisons",
    "width == ok == label == [": "it does not parse",
}


@pytest.fixture(scope="module")
def url() -> str:
    return make_store(FIELDS, RECORDS, attrs={"classes": CLASSES})


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_selects_what_python_would(url: str, condition: str) -> None:
    expected = [r["key"] for r in RECORDS if eval(CONDITIONS[condition], {"r": r})]  # of the table above
    dataset = StoreDataset(url, reader="array", where=condition)
    assert dataset.column("key").tolist() == expected
    assert dataset.where == condition


@pytest.mark.parametrize("condition", REFUSED)
def test_what_is_no_condition_is_refused_where_the_dataset_is_made(url: str, condition: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        StoreDataset(url, reader="array", where=condition)
    assert REFUSED[condition] in str(caught.value)
    assert "write for example: label == 3" in str(caught.value)


def test_configs_and_commands_take_the_same_conditions(tmp_path: Path) -> None:
    records = [{**record, "image": jpeg(0)} for record in RECORDS]
    url = make_store({**FIELDS, "image": "image"}, records, tmp_path / "a.lmdb", attrs={"classes": CLASSES})
    table = {"url": url, "reader": "array", "where": "width > 200"}
    config = {"dataset": table, "splits": {"train": {}, "test": {"dataset": {"where": 'split == "test" and ok'}}}}
    assert build_dataset(config, "train").column("key").tolist() == ["cam0/4", "cam0/8"]
    assert len(build_dataset(config, "test")) == 0
    found = storeds_json("stats", url, "--where", 'label == "cat"', "--where", "width > 200")
    assert found["count"] == 3
    with pytest.raises(errors.ConfigError, match="share 1 record|share 2 records|share"):
        build_dataset({**config, "splits": {"train": {}, "some": {"dataset": {"where": "width < 9999"}}}}, "train")
    assert storeds.stats(url, where='label == "cat"').count == 4


@pytest.mark.parametrize("suffix", ["lmdb", "h5"])
def test_a_url_of_a_file_takes_a_condition(tmp_path: Path, suffix: str) -> None:
    path = make_store(FIELDS, RECORDS, tmp_path / f"a.{suffix}", attrs={"classes": CLASSES})
    with storeds.open_backend(f'{path}?where=label in ("cat", "dog") and width >= 512') as backend:
        found: Any = backend.get_many(range(len(backend)), ["key"])
    assert [row["key"] for row in found] == [r["key"] for r in RECORDS if r["label"] in (0, 1) and r["width"] >= 512]
    with pytest.raises(errors.ConfigError, match="there is no field 'widht'"):
        storeds.open_backend(f"{path}?where=widht == 3")
