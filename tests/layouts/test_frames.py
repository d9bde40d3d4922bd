"""Frames that pandas wrote into HDF5: their columns, as pandas reads them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

import storeds
from storeds import StoreDataset, open_backend
from storeds.errors import FormatError, StoredsError

COUNT = 5
FRAME = pd.DataFrame(
    {
        "a": np.arange(COUNT) - 2,
        "Text": ["x", "yé", "", "long text", "z"],
        "f": np.linspace(0, 1, COUNT),
        "ok": [True, False, False, True, True],
        "g": np.linspace(2, 3, COUNT),
        "small": np.arange(COUNT, dtype="i1"),
        "other": ["k", "l", "m", "n", "o"],
    }
)
OBJECTS = FRAME.astype({"Text": object, "other": object})  # in one block
WRITTEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "fixed": (FRAME, {"format": "fixed"}),
    "fixed, texts in one block": (OBJECTS, {"format": "fixed"}),
    "table": (FRAME, {"format": "table"}),
    "table with columns to query": (FRAME, {"format": "table", "data_columns": ["a", "other"]}),
    "fixed by text": (FRAME.set_index("Text"), {"format": "fixed"}),
    "table by text": (FRAME.set_index("Text"), {"format": "table"}),
    "one row": (FRAME[:1], {"format": "fixed"}),
    "as many rows as columns": (FRAME[["a", "Text", "f", "ok", "other"]], {"format": "fixed"}),
    "in groups": (FRAME, {"format": "fixed", "key": "part/one"}),
}


def write(path: Path, frame: Any, how: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickled texts
        frame.to_hdf(path, **{"key": "frame", **how})
    return path


def expected(frame: Any) -> list[dict[str, Any]]:
    rows = frame.reset_index(names="frame_index").rename(columns=str.lower).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_frame_opens_as_its_columns(tmp_path: Path, name: str) -> None:
    frame, how = WRITTEN[name]
    path = write(tmp_path / "frame.h5", frame, how)
    with open_backend(path) as store:
        assert store.get_many(range(len(frame))) == expected(frame)
        kinds = {name: field.kind for name, field in store.meta.fields.items()}
        assert (kinds["ok"], kinds["small"]) == ("bool", "int") if "small" in kinds else kinds["ok"] == "bool"
        assert not store.unread()  # type: ignore[attr-defined]
        assert "a frame of pandas" in store.describe().recognised  # type: ignore[attr-defined]
    storeds.convert(str(path), f"lmdb://{tmp_path}/packed")
    with open_backend(f"lmdb://{tmp_path}/packed") as store:
        assert store.get_many(range(len(frame))) == expected(frame)


MISSING = {"fixed": None, "table": "nan"}  # as pandas writes it


@pytest.mark.parametrize("name", MISSING)
def test_a_series_and_missing_texts(tmp_path: Path, name: str) -> None:
    texts = pd.Series(["x", None, "z"], name="text")
    write(tmp_path / "series.h5", texts, {"format": name})
    with open_backend(tmp_path / "series.h5") as store:
        found: Any = store.get_many(range(3))
    assert [each["values" if name == "fixed" else "text"] for each in found] == ["x", MISSING[name], "z"]


def test_columns_are_named_by_place_and_samples_come_through_workers(tmp_path: Path) -> None:
    path = write(tmp_path / "frame.h5", FRAME, {"format": "table"})
    columns = {"x": "frame/table/f[]", "label": "frame/table/a[]"}
    dataset = StoreDataset(path, columns=columns, reader="array", fields=["x", "label"])
    batches = list(storeds.StoreLoader(dataset, batch_size=2, num_workers=2))
    assert np.concatenate([x for x, _ in batches]).tolist() == FRAME["f"].tolist()
    with pytest.raises(FormatError, match="has no 'q'; its columns are frame_index, values_block_0, a, "):
        open_backend(path, columns={"x": "frame/table/q[]"})


def test_a_block_is_an_array_where_its_place_is_named_or_it_is_wide(tmp_path: Path) -> None:
    narrow = FRAME[["f", "g"]]
    wide = pd.DataFrame(np.random.default_rng(0).random((COUNT, 207)), columns=[f"s{at}" for at in range(207)])
    for how, block in (("fixed", "block0_values"), ("table", "table/values_block_0")):
        for frame, columns in ((narrow, {"x": f"frame/{block}[]"}), (wide, None)):
            path = write(tmp_path / f"{how}{frame.shape[1]}.h5", frame, {"format": how})
            with open_backend(path, columns=columns) as store:
                found: Any = store.get_many(range(COUNT))
            name = "x" if columns else block.removeprefix("table/")
            assert np.array_equal([each[name] for each in found], frame.to_numpy())
        place = f"frame/{block.replace('/values_block_0', '')}/s30[]"
        dataset = StoreDataset(path, columns={"x": place}, reader="array", fields=["x"])
        assert dataset.column("x").tolist() == wide["s30"].tolist()


def test_categories_are_numbers_and_their_names_are_reported(tmp_path: Path) -> None:
    frame = FRAME.assign(kind=pd.Categorical(["u", "v", "u", "u", "v"]))
    with open_backend(write(tmp_path / "frame.h5", frame, {"format": "table"})) as store:
        found: Any = store.get_many(range(COUNT))
        assert [each["kind"] for each in found] == [0, 1, 0, 0, 1]
        (unread,) = store.unread()  # type: ignore[attr-defined]
    assert "meta/" in unread


@pytest.mark.parametrize("how", ["link", "external"])
def test_no_name_of_a_column_comes_from_another_file(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "in/frame.h5", FRAME[["a", "Text"]], {"format": "fixed"})
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["names"] = np.array([b"secret"])
    (tmp_path / "names").write_bytes(b"secret".ljust(64))
    with h5py.File(path, "r+") as file:
        del file["frame/block0_items"]
        if how == "link":
            file["frame/block0_items"] = h5py.ExternalLink("../other.h5", "/names")
        else:
            file["frame"].create_dataset("block0_items", (1,), "S6", external=[(str(tmp_path / "names"), 0, 64)])
    with open_backend(path, columns={"x": "frame/block0_values[]"}) as store:
        assert store.get_many([0]) == [{"x": -2}]
    with pytest.raises(FormatError, match="is not a table, so it has no 'secret'"):
        open_backend(path, columns={"x": "frame/block0_values/secret[]"})


@pytest.mark.parametrize("damage", ["pickle", "names", "length"])
def test_a_damaged_frame_is_an_error_that_names_what_it_is(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "frame.h5", OBJECTS, {"format": "fixed"})
    with h5py.File(path, "r+") as file:
        group = file["frame"]
        block = next(name for name in group if group[name].dtype.hasobject)
        if damage == "pickle":
            group[block][0] = np.frombuffer(b"cos\nsystem\n(S'touch harmed'\ntR.", "u1")
        elif damage == "names":
            group.pop(block.replace("values", "items"))
        else:
            axis = group.pop("axis1")[:2]
            group["axis1"] = axis
    columns = {"x": f"frame/{block}/Text[]"} if damage == "length" else None
    with pytest.raises(StoredsError, match=block):
        open_backend(path, columns=columns)
    assert not Path("harmed").exists()
