"""Tables as sources of `pack`: Parquet and Arrow files, what 🤗 datasets saves, and what is said of everything wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from _packing import Source, stored_records, storeds_command
from _source_files import table
from mask_files import write
from photographs import jpeg
from storeds.errors import ConfigError, FormatError, MissingDependencyError
from storeds.formats import open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")


def test_a_table_is_read_from_any_row_and_what_arrow_alone_has_is_converted(tmp_path: Path) -> None:
    columns = {"score": pa.array([1.5, None, 2, 3], pa.float32()), "kind": pa.array(list("xyxy")).dictionary_encode()}
    write(tmp_path, {"a.parquet": table(label=[1, 0, 1, 2], nothing=pa.nulls(4), **columns)})
    source = Source(tmp_path / "a.parquet")
    assert source.kinds == {"image": "image", "label": "int", "score": "float", "kind": "str"}
    assert source.rows.columns["nothing"] is None
    assert np.isnan(source.column("score")[1])
    assert source.column("kind") == ["x", "y", "x", "y"]
    assert [row.values for row in source.rows.strata()] == [{"label": label} for label in (1, 0, 1, 2)]  # type: ignore[misc, union-attr]
    for start in range(5):
        assert [row.name for row in source.rows.items(start)] == [f"row {n}" for n in range(start, 4)]


SPLIT = {"label": [1, 0, 1, 2], "split": ["train", "val", "", "train"]}


@pytest.mark.parametrize("name", ["a.parquet", "train.parquet", "d/train-00000-of-00001.parquet", "saved"])
def test_a_column_called_split_is_kept(name: str, tmp_path: Path) -> None:
    if name == "saved":
        datasets.Dataset.from_dict({"image": [jpeg(n) for n in range(4)], **SPLIT}).save_to_disk(tmp_path / "d")
    else:
        write(tmp_path, {name: table(**SPLIT)})
    path = tmp_path / ("d" if name[0] in "ds" else name)
    assert Source(path).column("split") == SPLIT["split"]


def test_a_column_called_split_beside_splits_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path, dict.fromkeys(("train.parquet", "test.parquet"), table(**SPLIT)))
    for label, columns in (("label", "image,label,split"), ("split", "image,split")):
        with pytest.raises(ConfigError, match="has splits and a column 'split'; leave the column out with columns="):
            open_source(root, label_column=label, columns=columns)
    write(root, {"more.arrow": b"x", "README.md": "x"})
    source = Source(root, columns="image,label")
    assert source.column("split") == ["train"] * 4 + ["test"] * 4
    left_out = "left out 2 files of other kinds: 1 *.arrow, such as more.arrow, 1 *.md, such as README.md"
    assert left_out in source.rows.notes


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
    source = Source(tmp_path / "a.parquet")
    assert source.bad == [
        "row 0: its label -1 is not one of the 2 classes; --no-label packs without labels",
        "row 1: its image is missing (null)",
        "row 2: its image is not in the table but at '/elsewhere/x.jpg'; pass allow_outside=True (--option "
        "allow_outside=true) to read it there",
    ]
    outside = Source(tmp_path / "a.parquet", allow_outside=True)
    assert outside.bad[2] == "row 2: image cannot be read: No such file or directory"


def labelled_pictures(count: int) -> Any:
    label, box = datasets.ClassLabel(names=["cat", "dog"]), datasets.List(datasets.Value("float32"))
    features = datasets.Features({"img": datasets.Image(), "label": label, "box": box})
    rows = [{"img": {"bytes": jpeg(n), "path": None}, "label": n % 2, "box": [1.0, n]} for n in range(count)]
    return datasets.Dataset.from_list(rows, features=features)


def test_a_folder_that_save_to_disk_wrote_is_packed(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({"train": labelled_pictures(6), "test": labelled_pictures(2)})
    splits.save_to_disk(str(tmp_path / "saved"))
    for name, part in splits.items():
        (tmp_path / "hub/data").mkdir(parents=True, exist_ok=True)
        part.to_parquet(tmp_path / f"hub/data/{name}-00000-of-00001.parquet")
    shown = storeds_command("pack", tmp_path / "saved", f"lmdb://{tmp_path}/a.lmdb")
    assert "img → image, label → label, box → box" in shown
    records = stored_records(tmp_path / "a.lmdb")
    assert [record["image"] for record in records] == [jpeg(n) for n in (*range(6), 0, 1)]
    assert [record["label"] for record in records] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [record["split"] for record in records] == ["train"] * 6 + ["test"] * 2
    assert storeds.StoreDataset(tmp_path / "a.lmdb").classes == ["cat", "dog"]
    wanted = storeds.info(f"{tmp_path}/a.lmdb").id
    assert storeds.pack(tmp_path / "hub", f"hdf5://{tmp_path}/b.h5").id == wanted
    assert storeds.pack(splits, f"hdf5://{tmp_path}/c.h5").id == wanted
    assert storeds.pack(tmp_path / "saved/test", f"hdf5://{tmp_path}/d.h5").count == 2


ONE = table(label=[0])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {f"{name}/train-00000-of-00001.parquet": ONE for name in ("large", "small")},
            "several datasets, each with a split 'train': large, small; pass one",
        ),
        ({"train.parquet": ONE, "other.parquet": ONE}, r"other.parquet names no split, and others name train"),
        (
            {"train.parquet": ONE, "test.parquet": table(label=["x"])},
            "test.parquet has other columns than .*train.parquet; pack them separately",
        ),
    ],
    ids=["configs", "a file without a split", "other columns"],
)
def test_folders_of_several_datasets_raise(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(write(tmp_path, files))


def test_an_incomplete_saved_folder_raises(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    features = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict({"image": [jpeg(0)], "label": [3]}, features=features).save_to_disk(str(saved))
    assert Source(saved).column("image") == [jpeg(0)]
    (arrow,) = saved.glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:200])
    with pytest.raises(FormatError, match="cannot be read as a table"):
        Source(saved)
    arrow.unlink()
    with pytest.raises(FormatError, match=r"data-00000-of-00001.arrow cannot be read as a table: .*No such file"):
        Source(saved)
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "x"}]}))
    with pytest.raises(ConfigError, match="old version of 🤗 datasets; load it with datasets.load_from_disk and save"):
        Source(saved)


def test_a_dataset_object_gives_its_files_in_any_format() -> None:
    dataset = labelled_pictures(4).rename_column("label", "fine").remove_columns("box").add_column("n", range(4))
    shuffled = dataset.shuffle(seed=1)
    source = Source(shuffled.with_transform(lambda batch: {"n": batch["n"]}))
    order = source.column("n")
    assert sorted(order) == [0, 1, 2, 3]
    assert source.column("image") == [jpeg(n) for n in order]
    assert source.column("label") == [n % 2 for n in order]
    assert "its transform is not applied" in source.rows.notes[0]
    assert list(Source(dataset, columns=["img"]).kinds) == ["image"]
    samples = Source(dataset, fields=["img", "n"])  # row by row, and yet with the files of the images
    assert samples.records == [{"img": jpeg(n), "n": n} for n in range(4)]
    assert samples.rows.attrs["classes"] == ["cat", "dog"]
    with pytest.raises(ConfigError, match="columns: not supported for samples of a Dataset; only fields= is"):
        Source(dataset, fields=["img"], columns=["img"])


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.parquet": table(label=[0])})
    for module in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'storeds\[hf\]'"):
        Source(tmp_path / "a.parquet")


def test_sound_is_refused_unless_other_columns_are_chosen(tmp_path: Path) -> None:
    sounds = labelled_pictures(3).add_column("sound", [b""] * 3).cast_column("sound", datasets.Audio())
    sounds.to_parquet(tmp_path / "sound.parquet")
    refused = storeds_command("pack", tmp_path / "sound.parquet", f"{tmp_path}/a.lmdb", code=2)
    assert "column 'sound' contains Audio values" in refused
    assert "--option columns=" in refused
    storeds_command("pack", tmp_path / "sound.parquet", f"{tmp_path}/a.lmdb", "--option", "columns=img,label")
