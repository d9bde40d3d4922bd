"""`export` to folders, and `pack` of what it wrote: an equal store, and files that other programs read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from make_store import make_store
from mask_files import FORMS, mask, write
from photographs import jpeg
from storeds.errors import ConfigError, FormatError, RecordError, StoreNotFoundError
from storeds.ops.packing.sources import open_source

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")


def records(url: str) -> list[dict[str, Any]]:
    with storeds.open_backend(url) as backend:
        return [dict(record) for record in backend.get_many(range(len(backend)))]  # type: ignore[arg-type]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().split("\n") if line]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


def test_a_store_of_classes(tmp_path: Path) -> None:
    tree = write(tmp_path / "tree", {f"{name}/{n}.jpg": n for name in ("cat", "dog") for n in range(3)})
    url, out = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out"
    meta = storeds.pack(tree, url)
    done = storeds.export(url, out, format="folder")
    assert (done.count, done.files, dict(done.left_out), done.notes) == (6, 8, {}, ())
    pictures = {f"{name}/{n}.jpg" for name in ("cat", "dog") for n in range(3)}
    assert files_below(out) == pictures | {"metadata.jsonl", "storeds.json"}
    for name in pictures:
        assert (out / name).read_bytes() == (tree / name).read_bytes()
    assert done.bytes == sum(path.stat().st_size for path in out.rglob("*") if path.is_file() and path.name[0] != ".")
    assert rows(out)[4] == {"file_name": "dog/1.jpg", "label": 1, "key": "dog/1.jpg"}
    # The same folders are an ImageFolder, for this and for other programs.
    assert storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb", kind="imagefolder").id == meta.id


@pytest.mark.parametrize("form", FORMS)
def test_a_store_of_masks(tmp_path: Path, form: str) -> None:
    files = {f"masks/train/{n}.png": mask(n, form) for n in range(3)}
    tree = write(tmp_path / "tree", {**{f"images/train/{n}.jpg": n for n in range(3)}, **files})
    url, out = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out"
    meta = storeds.pack(tree, url, kind="masks", classes=list("abcd"))
    storeds.export(url, out, format="folder")
    pictures = {f"images/train/{n}.jpg" for n in range(3)} | set(files)
    assert files_below(out) == pictures | {"metadata.jsonl", "storeds.json", "classes.txt"}
    for name in pictures:
        assert (out / name).read_bytes() == (tree / name).read_bytes()
    assert rows(out)[0] == {
        "file_name": "images/train/0.jpg",
        "mask_file_name": "masks/train/0.png",
        "split": "train",
        "key": "train/0.jpg",
    }
    assert storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb").id == meta.id
    assert storeds.pack(out, f"lmdb://{tmp_path}/c.lmdb", kind="masks").id == meta.id


EVERYTHING: dict[str, Any] = {
    "label": {"kind": "int", "role": "label"},
    "left": {"kind": "image", "role": "image"},
    "right": "image",
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {
        "kind": "array",
        "dtype": "float64",
        "shape": [None, 4],
        "role": "boxes",
        "format": "cxcywh",
        "relative": True,
    },
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    "points": {"kind": "array", "dtype": "float32", "shape": [None, 17, 3], "role": "keypoints"},
    "area": {"kind": "array", "dtype": "float16", "shape": [None], "of": "boxes"},
    "crowd": {"kind": "array", "dtype": "bool", "shape": [None], "of": "boxes"},
    "instances": {"kind": "json", "role": "mask", "format": "coco"},
    "depth": {"kind": "array", "dtype": "float32", "shape": [None, None]},
    "phase": {"kind": "array", "dtype": "complex64", "shape": [2]},
    "file_name": "str",
    "images": "bytes",
    "score": "float",
    "flag": "bool",
    "note": "json",
    "key": "str",
}


def everything(number: int, key: str) -> dict[str, Any]:
    """Return a record with a value of every kind; `number` boxes."""
    rng = np.random.default_rng(number)
    size = rng.uniform(0.1, 0.5, (number, 2))
    return {
        "label": number - 1,
        "left": jpeg(number),
        "right": jpeg(number + 1),
        "mask": mask(number, "P"),
        "boxes": np.concatenate([rng.uniform(0.3, 0.6, (number, 2)), size], axis=1),
        "labels": np.arange(number),
        "points": rng.normal(20, 9, (number, 17, 3)).astype("f4"),
        "area": rng.normal(20, 9, number).astype("f2"),
        "crowd": np.arange(number) == 1,
        "instances": [[[0.1, 0, 9, 0, 9, 9.3]]] * number,
        "depth": np.full((number, 3), np.nan, "f4"),
        "phase": np.array([1j, number], "c8"),
        "file_name": f"“{number}”\n",
        "images": bytes([number, 0, 255]),
        "score": [float("nan"), -0.0, float("inf"), 1e-300][number],
        "flag": bool(number % 2),
        "note": {"é": [1, None, 2**60, 0.1]},
        "key": key,
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_of_everything_loses_nothing(tmp_path: Path, engine: str, make_engine_url: MakeUrl) -> None:
    url, out = make_engine_url(engine), tmp_path / "out"
    with storeds.open_writer(url, EVERYTHING) as writer:
        writer.append([everything(number, f"a/{number}.jpg") for number in range(4)])
        meta = writer.publish({"licence": "CC0", "nested": {"a": [1, 2.5, None]}})
    done = storeds.export(url, out, format="folder")
    assert not done.left_out
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        "left",
        "right",
        "masks",
        "depth",
        "phase",
        "images",
    }
    again = storeds.pack(out, make_engine_url(engine))
    assert (again.id, again.fields, again.attrs) == (meta.id, meta.fields, meta.attrs)
    assert storeds.verify(url).ok
    twice = out.with_name("twice")
    storeds.export(url, twice, format="folder")
    assert files_below(twice) == files_below(out)
    for name in files_below(out):
        assert (twice / name).read_bytes() == (out / name).read_bytes()


def test_keys_that_are_no_names_of_files(tmp_path: Path) -> None:
    keys = ["../../x.jpg", "/etc/passwd", "", "a", "a/b", "a", "é\x1b[31m.png", "x" * 300, ".", "c.jpg/d.jpg", "c.jpg"]
    fields = {"image": "image", "mask": {"kind": "image", "role": "mask"}, "key": "str"}
    url, out = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out"
    with storeds.open_writer(url, fields) as writer:
        writer.append([{"image": jpeg(n % 4), "mask": mask(n % 4), "key": key} for n, key in enumerate(keys)])
        meta = writer.publish()
    done = storeds.export(url, out, format="folder")
    assert done.files == 2 * len(keys) + 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lmdb", "out"]
    assert any("no usable name" in note for note in done.notes)
    found = rows(out)
    assert [row["key"] for row in found] == keys
    assert len({row["file_name"] for row in found}) == len(keys)
    for number, row in enumerate(found):
        assert (out / row["file_name"]).read_bytes() == jpeg(number % 4)
        assert (out / row["mask_file_name"]).read_bytes() == mask(number % 4)
    assert storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb").id == meta.id


def test_classes_that_are_no_names_of_folders(tmp_path: Path) -> None:
    classes = ["a/b", ".hidden", "ok"]
    url, out = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out"
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append([{"image": jpeg(label), "label": label} for label in (0, 1, 2, 2)])
        meta = writer.publish({"classes": classes})
    storeds.export(url, out, format="folder")
    assert [row["file_name"] for row in rows(out)] == [
        "a_b/00000000.jpg",
        "_.hidden/00000001.jpg",
        "ok/00000002.jpg",
        "ok/00000003.jpg",
    ]
    assert storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb").id == meta.id


@pytest.mark.parametrize("classes", [["cat", "cat"], ["a/b", "a_b"]])
def test_classes_that_give_one_folder(classes: list[str], tmp_path: Path) -> None:
    records = [{"image": jpeg(number), "label": number} for number in range(2)]
    url = make_store({"image": "image", "label": "int"}, records, attrs={"classes": classes})
    done = storeds.export(url, tmp_path / "out", format="folder")
    assert files_below(tmp_path / "out") >= {"images/00000000.jpg", "images/00000001.jpg"}
    (note,) = done.notes
    assert note.startswith("images are not in a folder for each class")
    assert storeds.pack(tmp_path / "out", f"lmdb://{tmp_path}/again.lmdb").id == storeds.info(url).id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The export of three photographs with masks."""
    tree = {f"images/{n}.jpg": n for n in range(3)} | {f"masks/{n}.png": n for n in range(3)}
    storeds.pack(write(tmp_path / "tree", tree), f"lmdb://{tmp_path}/a.lmdb", kind="masks")
    storeds.export(f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out", format="folder")
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"file_name": "images/9.jpg"},
            "metadata.jsonl line 2 (images/9.jpg): its file images/9.jpg cannot be read: No such",
        ),
        ({"file_name": "../x.jpg"}, "metadata.jsonl line 2: ../x.jpg: the path leads out of"),
        ({"file_name": "images/0.jpg"}, "metadata.jsonl line 2: images/0.jpg: is already listed in line 1"),
        ({"file_name": 3}, "metadata.jsonl line 2: its path is a int, not text"),
        ({"key": None}, "metadata.jsonl line 2 (images/1.jpg): its key cannot be stored as str"),
        (None, "metadata.jsonl line 2: lacks 'key'"),
        ("[]", "metadata.jsonl line 2: is a list; expected an object"),
        ("{", "metadata.jsonl line 2: is not JSON"),
        ("[" * 100_000, "metadata.jsonl line 2: is not JSON"),
    ],
)
def test_bad_rows_are_reported(folder: Path, change: Any, expected: str) -> None:
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    row = json.loads(lines[1])
    if change is None:
        del row["key"]
    lines[1] = change if isinstance(change, str) else json.dumps({**row, **(change or {})})
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(RecordError) as error:
        storeds.pack(folder, f"lmdb://{folder.parent}/b.lmdb")
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "labels"), [("int64", [1.5]), ("int64", ["1"]), ("int64", [True]), ("int64", [2**70]), ("bool", [1])]
)
def test_labels_of_another_type_are_reported(dtype: str, labels: Any, tmp_path: Path) -> None:
    boxes = {"kind": "array", "dtype": "float64", "shape": [None, 4], "role": "boxes"}
    fields = {
        "image": "image",
        "boxes": boxes,
        "labels": {"kind": "array", "dtype": dtype, "shape": [None], "of": "boxes"},
    }
    record = {"image": jpeg(0), "boxes": np.array([[0, 0, 9, 9.0]]), "labels": np.array([1], dtype)}
    storeds.export(make_store(fields, [record]), tmp_path / "out", format="folder")
    file = tmp_path / "out/metadata.jsonl"
    file.write_text(json.dumps({**json.loads(file.read_text()), "labels": labels}))
    with pytest.raises(RecordError, match=r"metadata.jsonl line 1 .*: its labels cannot be stored as array"):
        storeds.pack(tmp_path / "out", f"lmdb://{tmp_path}/b.lmdb")


def test_an_array_that_an_older_export_wrote_as_a_file(tmp_path: Path) -> None:
    fields = {name: EVERYTHING[name] for name in ("left", "boxes", "crowd")}
    url, out = make_store(fields, [{name: everything(2, "a")[name] for name in fields}]), tmp_path / "out"
    storeds.export(url, out, format="folder")
    (row,), description = rows(out), json.loads((out / "storeds.json").read_text())
    np.save(out / "0.npy", np.array(row.pop("crowd")))
    (out / "metadata.jsonl").write_text(json.dumps({**row, "crowd_file_name": "0.npy"}))
    description["files"]["crowd"] = "crowd_file_name"
    (out / "storeds.json").write_text(json.dumps(description))
    assert storeds.pack(out, f"lmdb://{tmp_path}/a.lmdb").id == storeds.info(url).id


def test_bad_masks_are_reported(folder: Path) -> None:
    (folder / "masks/1.png").write_bytes(mask(1, size=(9, 9)))
    with pytest.raises(RecordError, match=r"line 2 \(images/1.jpg\): field 'mask': the mask has 9 × 9 pixels"):
        storeds.pack(folder, f"lmdb://{folder.parent}/b.lmdb")


def test_files_that_an_editor_of_windows_saved(folder: Path, tmp_path: Path) -> None:
    before = storeds.pack(folder, f"lmdb://{tmp_path}/before.lmdb")
    for name in ("metadata.jsonl", "storeds.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert storeds.pack(folder, f"lmdb://{tmp_path}/after.lmdb").id == before.id


def test_rows_can_be_removed(folder: Path) -> None:
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    (folder / "metadata.jsonl").write_text("\n".join(lines[1:]))
    url = f"lmdb://{folder.parent}/b.lmdb"
    storeds.pack(folder, url)
    assert [record["key"] for record in records(url)] == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not as storeds export writes it"),
        ('{"version": 2}', "has version 2, and this storeds reads 1"),
        ('{"version": 1, "fields": [], "attrs": {}, "files": {}}', "is not as storeds export writes it"),
        (
            '{"version": 1, "fields": [{"name": "image", "kind": "image"}], "attrs": {}, "files": {}}',
            "field 'image' and files do not fit together",
        ),
    ],
)
def test_a_damaged_description(folder: Path, content: str, message: str) -> None:
    (folder / "storeds.json").write_text(content)
    with pytest.raises(FormatError, match=message):
        open_source(folder)


def test_what_is_no_export(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="storeds.json cannot be read: No such file"):
        open_source(tmp_path / "tree", kind="exported")
    (folder / "metadata.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(FormatError, match="metadata.jsonl cannot be read"):
        storeds.pack(folder, f"lmdb://{tmp_path}/store")
    with pytest.raises(ConfigError, match="has no option 'label'"):
        open_source(folder, label=True)


def test_huggingface_reads_the_folder(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert found["key"] == ["0.jpg", "1.jpg", "2.jpg"]
    assert found[1]["image"].size == (96, 64)


# Verdicts on pictures, which look whole when they were repaired


def shares(url: str) -> dict[str, tuple[str, float]]:
    """Return the kind of damage of each record, and the share of its picture that is left."""
    with storeds.open_backend(url) as backend:
        records = backend.get_many(range(len(backend)), ("key", "image_finding", "image_recovered"))
        return {record["key"]: (record["image_finding"], record["image_recovered"]) for record in records}  # type: ignore[index]


def test_a_picture_that_was_replaced_is_examined(tmp_path: Path) -> None:
    source, repaired, again = (f"lmdb://{tmp_path}/{name}.lmdb" for name in ("source", "repaired", "again"))
    write_damaged(source, {key: PICTURES[key] for key in ("whole", "half", "coarse")})
    storeds.repair(source, repaired)
    out = Path(storeds.export(repaired, tmp_path / "out", format="folder").path)
    (file,) = out.glob("**/half*.jpg")
    file.write_bytes(jpeg(2))
    storeds.pack(out, again)
    assert shares(again) == {**shares(repaired), "half": ("intact", 1.0)}


def test_a_row_with_half_a_verdict_is_a_bad_item(tmp_path: Path) -> None:
    source = f"lmdb://{tmp_path}/source.lmdb"
    write_damaged(source, {key: PICTURES[key] for key in ("whole", "half")})
    rows = Path(storeds.export(source, tmp_path / "out", format="folder").path) / "metadata.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    for line in lines:
        line.pop("image_recovered", None)
    rows.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(RecordError, match="(?s)1 of 2 items .*lacks 'image_recovered'") as error:
        storeds.pack(tmp_path / "out", f"lmdb://{tmp_path}/again.lmdb")
    assert "half" in str(error.value)
