"""Tables as sources of `pack`: Parquet and Arrow files, what 🤗 datasets saves, and what is said of everything wrong."""

from __future__ import annotations

import builtins
import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from photographs import jpeg
from storeds.errors import ConfigError, FormatError, MissingDependencyError
from storeds.ops.packing.sources import BadItem, TableSource, open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")


def table(path: Path, rows: int = 4, **columns: Any) -> Path:
    """Write a Parquet file with an image column of plain bytes, as pandas and others do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": [jpeg(n) for n in range(rows)], **columns}), path, row_group_size=2)
    return path


def column(source: Any, name: str) -> list[Any]:
    return [source.read(index)[name] for index in range(len(source))]


def test_a_plain_parquet_file_is_read_by_its_types(tmp_path: Path) -> None:
    file = table(
        tmp_path / "a.parquet",
        label=["dog", "cat", "dog", "emu"],
        score=pa.array([1.5, None, 2, 3], pa.float32()),
        count=pa.array([1, None, 3, 4]),
        vector=pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float64(), 2)),
        words=[["a"], [], ["b", "c"], None],
        nothing=pa.nulls(4),
        kind=pa.array(["x", "y", "x", "y"]).dictionary_encode(),
    )
    source = open_source(file)
    assert isinstance(source, TableSource)
    assert {name: field.kind for name, field in source.fields.items()} == {
        "image": "image",
        "label": "int",
        "score": "float",
        "count": "json",
        "vector": "array",
        "words": "json",
        "kind": "str",
    }
    assert source.columns["nothing"] is None
    assert source.attrs["classes"] == ["cat", "dog", "emu"]
    assert column(source, "label") == [1, 0, 1, 2]
    assert column(source, "image") == [jpeg(n) for n in range(4)]
    assert np.isnan(column(source, "score")[1])
    assert column(source, "count") == [1, None, 3, 4]
    assert column(source, "vector")[0].tolist() == [1, 2]
    assert column(source, "kind") == ["x", "y", "x", "y"]
    assert [label for _, label in source.strata()] == [1, 0, 1, 2]
    again = pickle.loads(pickle.dumps(source))
    assert (str(again.read(3)), again.fingerprint) == (str(source.read(3)), source.fingerprint)


def test_feather_and_workers_give_the_same_store(tmp_path: Path) -> None:
    columns = {"image": [jpeg(n % 12) for n in range(300)], "label": [n % 3 for n in range(300)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=7)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_file(sink, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns), max_chunksize=50)
    options: dict[str, Any] = {"split": {"a": 0.5, "b": 0.5}}
    ids = {
        storeds.pack(tmp_path / name, f"lmdb://{tmp_path}/{name}{workers}.lmdb", workers=workers, **options).id
        for name in ("a.parquet", "b.arrow")
        for workers in (0, 2)
    }
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"klass": ["a"] * 4}, {}, r"beside the images there is 'klass'; .*--label-column.*--no-label"),
        (
            {"label_name": ["a"] * 4, "label_id": [0] * 4},
            {},
            "columns 'label_name', 'label_id' all look like labels|'label_id'",
        ),
        ({"label": [0.5] * 4}, {"label_column": "label"}, "column 'label' has float values; a label is"),
        ({"label": [0] * 4}, {"columns": ["picture"]}, "has no column 'picture', only 'image', 'label'"),
        ({"label": [0] * 4, "more": [{"x": b"1"}] * 4}, {}, "column 'more' contains bytes in a list or a group"),
        ({"label": [0] * 4, "Key A": [0] * 4, "key_a": [0] * 4}, {}, "becomes field 'key_a'"),
    ],
)
def test_ambiguous_tables_raise(columns: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(table(tmp_path / "a.parquet", **columns), **options)


def test_labels_are_optional_only_if_stated_or_without_other_columns(tmp_path: Path) -> None:
    file = table(tmp_path / "a.parquet", klass=["a"] * 4)
    assert list(open_source(file, label=False).fields) == ["image", "klass"]
    with pytest.raises(ConfigError, match="label_column='klass' and label=False contradict each other"):
        open_source(file, label=False, label_column="klass")
    assert list(open_source(file, label_column="klass").fields) == ["image", "label"]
    assert list(open_source(table(tmp_path / "b.parquet")).fields) == ["image"]


def test_without_labels_a_column_named_label_stays_a_field(tmp_path: Path) -> None:
    source = open_source(table(tmp_path / "a.parquet", label=["cat", "dog", "cat", "dog"]), label=False)
    assert (source.fields["label"].kind, "classes" in source.attrs) == ("str", False)
    assert column(source, "label") == ["cat", "dog", "cat", "dog"]
    assert [label for _, label in source.strata()] == ["cat", "dog", "cat", "dog"]  # type: ignore[attr-defined]


def test_rows_without_an_image_or_a_label_are_bad_items(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = [
        {"image": {"bytes": jpeg(0), "path": None}, "label": -1},
        {"image": None, "label": 1},
        {"image": {"bytes": None, "path": "/elsewhere/x.jpg"}, "label": 0},
    ]
    # to_parquet would embed the file that the last row names.
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema(
        {"image": image, "label": pa.int64()}, {"huggingface": json.dumps({"info": {"features": features.to_dict()}})}
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet")
    for index, message in enumerate(
        ("its label -1 is not one of the 2 classes", "image is missing", "--allow-outside")
    ):
        with pytest.raises(BadItem, match=message):
            source.read(index)
    with pytest.raises(BadItem, match="cannot be read: No such file"):
        open_source(tmp_path / "a.parquet", allow_outside=True).read(2)


def test_folders_of_several_datasets_raise(tmp_path: Path) -> None:
    for config in ("large", "small"):
        table(tmp_path / f"configs/{config}/train-00000-of-00001.parquet", label=[0] * 4)
    with pytest.raises(ConfigError, match="several datasets, each with a split 'train': large, small; pass one"):
        open_source(tmp_path / "configs")
    assert len(open_source(tmp_path / "configs/large")) == 4
    table(tmp_path / "mixed/train.parquet", label=[0] * 4)
    table(tmp_path / "mixed/other.parquet", label=[0] * 4)
    with pytest.raises(ConfigError, match=r"other.parquet names no split, and others name train"):
        open_source(tmp_path / "mixed")
    table(tmp_path / "unlike/train.parquet", label=[0] * 4)
    table(tmp_path / "unlike/test.parquet", label=["x"] * 4)
    with pytest.raises(ConfigError, match="its splits train, test have different columns"):
        open_source(tmp_path / "unlike")


def test_an_incomplete_saved_folder_raises(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict({"image": [jpeg(0)], "label": [3]}, features=features).save_to_disk(str(saved))
    assert column(open_source(saved), "image") == [jpeg(0)]
    (arrow,) = saved.glob("*.arrow")
    whole = arrow.read_bytes()
    arrow.write_bytes(whole[:200])
    with pytest.raises(FormatError, match="cannot be read as a table"):
        open_source(saved)
    arrow.unlink()
    with pytest.raises(FormatError, match="is incomplete: it lacks data-00000-of-00001.arrow; copy it again"):
        open_source(saved)
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "x"}]}))
    with pytest.raises(
        ConfigError, match="old version of 🤗 datasets; load it with datasets.load_from_disk and save it"
    ):
        open_source(saved)


def test_a_dataset_object_gives_its_files_in_any_format(tmp_path: Path) -> None:
    features = datasets.Features(
        {"img": datasets.Image(), "fine": datasets.ClassLabel(names=["a", "b"]), "n": datasets.Value("int32")}
    )
    rows = [{"img": {"bytes": jpeg(n), "path": None}, "fine": n % 2, "n": n} for n in range(4)]
    dataset = datasets.Dataset.from_list(rows, features=features)
    shuffled = dataset.shuffle(seed=1)
    source = open_source(shuffled.with_transform(lambda batch: {"n": batch["n"]}))
    order = column(source, "n")
    assert sorted(order) == [0, 1, 2, 3]
    assert column(source, "image") == [jpeg(n) for n in order]
    assert column(source, "label") == [n % 2 for n in order]
    assert "its transform is not applied" in source.notes[0]  # type: ignore[attr-defined]
    assert list(open_source(dataset, columns=["img"]).fields) == ["image"]
    with pytest.raises(ConfigError, match="only fields= selects columns then"):
        open_source(dataset, files=False, columns=["img"])


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = table(tmp_path / "a.parquet")
    original = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"pip install 'storeds\[hf\]'"):
        open_source(file)


def test_a_table_among_images_does_not_hide_them(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(jpeg(0))
    shutil.copy(table(tmp_path / "x.parquet"), tmp_path / "cat")
    (tmp_path / "x.parquet").unlink()
    assert list(open_source(tmp_path).fields) == ["image", "label", "key"]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": [jpeg(0)]}), buffer)
    (tmp_path / "noname").write_bytes(buffer.getvalue())
    assert isinstance(open_source(tmp_path / "noname"), TableSource)
