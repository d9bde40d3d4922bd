"""Three hundred broken items of ten kinds: each is listed with its name and a reason, and nothing else is lost."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import storeds
from _packing import records_of
from _source_files import jsonl, tar
from mask_files import write
from photographs import jpeg
from storeds.ops.packing.rows import Bad

COUNT, GOOD = 30, 45


def without_scan() -> bytes:
    return jpeg(2)[: jpeg(2).index(b"\xff\xda")]


def name_not_utf8(path: Path) -> None:
    (path.parent / os.fsdecode(path.stem.encode() + b"\xff.jpg")).write_bytes(jpeg(1))


BREAK: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "is empty (0 bytes)"),
    "text": (lambda path: path.write_text("<html>404</html>"), "cannot be read as an image"),
    "header": (lambda path: path.write_bytes(jpeg(1)[:100]), "cannot be read as an image"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "cannot be read as an image"),
    "scanless": (lambda path: path.write_bytes(without_scan()), "cannot be read as an image"),
    "dangling": (lambda path: path.symlink_to("nowhere.jpg"), "cannot be read: No such file or directory"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot be "),
    "outside": (lambda path: path.symlink_to("/etc/hostname"), "is a link to /etc/hostname, outside"),
    "fifo": (os.mkfifo, "is not a regular file"),
    "bytes": (name_not_utf8, "its name is not valid UTF-8"),
}
KEPT = {"empty", "text", "header", "zeros", "scanless"}  # the others have no bytes


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = write(tmp_path / "tree", {f"c{n % 3}/good{n:02}.jpg": n % 12 for n in range(GOOD)})
    for name, (damage, _) in BREAK.items():
        for number in range(COUNT):
            damage(root / f"c{number % 3}/{name}{number:02}.jpg")
    return root


def test_of_a_folder(tree: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(tree, f"lmdb://{tmp_path}/store", on_bad="skip", on_problem=problems.append)
    assert (packed.count, packed.left_out) == (GOOD, COUNT * len(BREAK))
    found = Counter[str]()
    for problem in problems:
        name = next(name for name in BREAK if Path(problem.name).name.startswith(name))
        assert problem.reason.startswith(BREAK[name][1])
        found[name] += 1
    assert found == dict.fromkeys(BREAK, COUNT)
    assert records_of(tmp_path / "store", "key") == [
        {"key": f"c{label}/good{number:02}.jpg"} for label in range(3) for number in range(label, GOOD, 3)
    ]
    with pytest.raises(storeds.errors.RecordError, match="300 of 345 items cannot be packed") as raised:
        storeds.pack(tree, f"lmdb://{tmp_path}/none")
    assert len(str(raised.value).splitlines()) == 1 + COUNT * len(BREAK)
    assert not (tmp_path / "none").exists()


def test_keep_says_what_it_kept(tree: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(tree, f"lmdb://{tmp_path}/store", on_bad="keep", on_problem=problems.append)
    kept = {kind for kind in BREAK for problem in problems if problem.kept and f"/{kind}" in problem.name}
    assert kept == KEPT
    assert packed.count == GOOD + len(kept) * COUNT
    assert packed.left_out == (len(BREAK) - len(kept)) * COUNT


def as_csv(tree: Path, paths: list[str]) -> tuple[Path, dict[str, Any]]:
    text = "path,label\n" + "".join(f"{path},{path[1]}\n" for path in paths)
    (tree / "list.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    return tree / "list.csv", {}


def as_jsonl(tree: Path, paths: list[str]) -> tuple[Path, dict[str, Any]]:
    (tree / "list.jsonl").write_text(jsonl(*({"path": path, "label": int(path[1])} for path in paths)))
    return tree / "list.jsonl", {}


def as_coco(tree: Path, paths: list[str]) -> tuple[Path, dict[str, Any]]:
    images = [{"id": at, "file_name": path} for at, path in enumerate(paths)]
    top = {"images": images, "annotations": [], "categories": []}
    (tree / "coco.json").write_text(json.dumps(top))
    return tree / "coco.json", {"root": str(tree)}


@pytest.mark.parametrize("write", [as_csv, as_jsonl, as_coco])
def test_of_lists_of_the_same_files(
    tree: Path, tmp_path: Path, write: Callable[[Path, list[str]], tuple[Path, dict[str, Any]]]
) -> None:
    paths = sorted(os.path.relpath(path, tree) for path in tree.glob("*/*"))
    readable = [path for path in paths if path.isprintable() or write is as_jsonl]
    source, options = write(tree, readable)
    problems: list[Bad] = []
    packed = storeds.pack(source, f"lmdb://{tmp_path}/store", on_bad="skip", on_problem=problems.append, **options)
    assert packed.count == GOOD
    assert len({problem.name for problem in problems}) == len(problems) == len(readable) - GOOD
    assert all(problem.reason for problem in problems)


def test_of_tar_members(tree: Path, tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for path in sorted(tree.glob("*/*")):
        if path.name.startswith(("good", *KEPT)):
            name = f"{path.parent.name}/{path.stem}"
            members |= {f"{name}.jpg": path.read_bytes(), f"{name}.cls": path.parent.name[1].encode()}
    write(tmp_path, {"shard.tar": tar(members)})
    problems: list[Bad] = []
    target = f"lmdb://{tmp_path}/store"
    packed = storeds.pack(tmp_path / "shard.tar", target, on_bad="skip", on_problem=problems.append)
    assert packed.count == GOOD
    assert len({problem.name for problem in problems}) == len(problems) == COUNT * len(KEPT)
