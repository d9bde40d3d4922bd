"""`export` to folders, and `pack` of what it wrote: an equal store, and files that other programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from _packing import Source, verdicts_of
from make_store import make_store
from mask_files import mask, write
from photographs import jpeg
from storeds.errors import FormatError, RecordError
from storeds.formats import open_source


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().split("\n") if line]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


CLASSES = {f"{name}/{n}.jpg": n for name in ("cat", "dog") for n in range(3)}
PHOTOS = {f"images/train/{n}.jpg": n for n in range(3)}
NAMES = {"file_name": "images/train/0.jpg", "mask_file_name": "masks/train/0.png"}


MASKED_TREE = {**PHOTOS, **{f"masks/train/{n}.png": mask(n, "P") for n in range(3)}}


@pytest.mark.parametrize(
    ("files", "options", "more", "row"),
    [
        (CLASSES, {"kind": "imagefolder"}, set(), {"file_name": "cat/0.jpg", "label": 0, "key": "cat/0.jpg"}),
        (
            MASKED_TREE,
            {"kind": "masks", "classes": list("abcd")},
            {"classes.txt"},
            {**NAMES, "split": "train", "key": "train/0.jpg"},
        ),
    ],
    ids=["classes", "masks with a palette"],
)
def test_the_files_of_a_data_set_come_back_where_they_were(
    files: dict[str, Any], options: dict[str, Any], more: set[str], row: dict[str, Any], tmp_path: Path
) -> None:
    tree, out = write(tmp_path / "tree", files), tmp_path / "out"
    meta = storeds.pack(tree, f"lmdb://{tmp_path}/a.lmdb", **options)
    done = storeds.export(f"lmdb://{tmp_path}/a.lmdb", out, format="folder")
    assert (done.count, done.files, done.notes) == (len(rows(out)), len(files_below(out)), ())
    assert files_below(out) == {*files, "metadata.jsonl", "storeds.json", *more}
    assert all((out / name).read_bytes() == (tree / name).read_bytes() for name in files)
    assert done.bytes == sum((out / name).stat().st_size for name in files_below(out))
    assert rows(out)[0] == row
    # Other programs read the same folders; so does pack, without metadata.jsonl.
    (out / "storeds.json").unlink()
    assert storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb", **options).id == meta.id


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


def test_keys_and_pictures_that_were_added_without_a_declaration_are_counted(folder: Path) -> None:
    first, *lines = (folder / "metadata.jsonl").read_text().splitlines()
    changed = [json.dumps({**json.loads(line), "score": 1}) for line in lines]
    text = "\n".join([first, *changed])
    write(folder, {"metadata.jsonl": text, "images/new.jpg": 0, "images/.hidden.jpg": 0})
    source = Source(folder)
    assert [note for note in (*source.rows.notes, *source.rows.late_notes()) if "hidden" not in note] == [
        "'score' is left out of 2 rows of metadata.jsonl, as storeds.json declares no such field",
        "left out 1 picture that no row names: images/new.jpg",
    ]


def test_huggingface_reads_the_folder(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert found["key"] == ["0.jpg", "1.jpg", "2.jpg"]
    assert found[1]["image"].size == (96, 64)


def test_a_picture_that_was_replaced_is_examined(tmp_path: Path) -> None:
    source, repaired, again = (f"lmdb://{tmp_path}/{name}.lmdb" for name in ("source", "repaired", "again"))
    write_damaged(source, {key: PICTURES[key] for key in ("whole", "half", "coarse")})
    storeds.repair(source, repaired)
    out = Path(storeds.export(repaired, tmp_path / "out", format="folder").path)
    (file,) = out.glob("**/half*.jpg")
    file.write_bytes(jpeg(2))
    storeds.pack(out, again)
    assert verdicts_of(again) == {**verdicts_of(repaired), "half": ("intact", "1.0")}
