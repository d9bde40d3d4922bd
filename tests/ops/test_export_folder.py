"""`export` to folders, and `pack` of what it wrote: an equal store, and files that other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from make_store import make_store
from mask_files import mask, write
from photographs import jpeg
from storeds.errors import FormatError, RecordError
from storeds.ops.packing.sources import open_source


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


@pytest.mark.parametrize("form", ["L", "P"])
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


def test_a_store_of_everything_loses_nothing(tmp_path: Path) -> None:
    url, out = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out"
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
    again = storeds.pack(out, f"hdf5://{tmp_path}/b.h5")
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


@pytest.mark.parametrize(
    ("classes", "folders"),
    [
        (["a/b", ".hidden", "ok"], ["a_b", "_.hidden", "ok"]),
        (["cat", "cat", "dog"], ["images"] * 3),
        (["a/b", "a_b", "c"], ["images"] * 3),
    ],
)
def test_classes_that_are_no_names_of_folders(classes: list[str], folders: list[str], tmp_path: Path) -> None:
    records = [{"image": jpeg(number), "label": number} for number in range(3)]
    url = make_store({"image": "image", "label": "int"}, records, attrs={"classes": classes})
    storeds.export(url, tmp_path / "out", format="folder")
    names = [f"{folder}/{number:08}.jpg" for number, folder in enumerate(folders)]
    assert [row["file_name"] for row in rows(tmp_path / "out")] == names
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
        ({"file_name": "images/9.jpg"}, "(images/9.jpg): its file images/9.jpg cannot be read: No such"),
        ({"file_name": "../x.jpg"}, ": ../x.jpg: the path leads out of"),
        ({"file_name": "images/0.jpg"}, ": images/0.jpg: is already listed in line 1"),
        ({"file_name": 3}, ": its path is a int, not text"),
        ({"key": None}, "(images/1.jpg): its key cannot be stored as str"),
        ({"mask_file_name": "images/1.jpg"}, ": field 'mask': "),
        ("[]", ": is a list; expected an object"),
        ("{", ": is not JSON"),
    ],
)
def test_bad_rows_are_reported(folder: Path, change: Any, expected: str) -> None:
    lines = (folder / "metadata.jsonl").read_text().splitlines()
    lines[1] = change if isinstance(change, str) else json.dumps({**json.loads(lines[1]), **change})
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    with pytest.raises(RecordError) as error:
        storeds.pack(folder, f"lmdb://{folder.parent}/b.lmdb")
    assert "metadata.jsonl line 2" in str(error.value)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not as storeds export writes it"),
        ('{"version": 2}', "has version 2, and this storeds reads 1"),
        (
            '{"version": 1, "fields": [{"name": "image", "kind": "image"}], "attrs": {}, "files": {}}',
            "do not fit together",
        ),
    ],
)
def test_a_damaged_description(folder: Path, content: str, message: str) -> None:
    (folder / "storeds.json").write_text(content)
    with pytest.raises(FormatError, match=message):
        open_source(folder)


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
