"""Three hundred broken items of ten kinds: each is listed with its name and a reason, and nothing else is lost."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import storeds
from photographs import jpeg
from storeds.ops.packing.rows import Bad

COUNT, GOOD = 30, 45


def _empty(path: Path) -> None:
    path.touch()


def _text(path: Path) -> None:
    path.write_text("<html>404</html>")


def _header(path: Path) -> None:
    path.write_bytes(jpeg(1)[:100])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(5000))


def _without_scan(path: Path) -> None:
    data = jpeg(2)
    path.write_bytes(data[: data.index(b"\xff\xda")])


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere.jpg")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _outside(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _not_utf8(path: Path) -> None:
    (path.parent / os.fsdecode(path.stem.encode() + b"\xff.jpg")).write_bytes(jpeg(1))


BREAK: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (_empty, "is empty (0 bytes)"),
    "text": (_text, "cannot be read as an image"),
    "header": (_header, "cannot be read as an image"),
    "zeros": (_zeros, "cannot be read as an image"),
    "scanless": (_without_scan, "cannot be read as an image"),
    "dangling": (_dangling, "cannot be read: No such file or directory"),
    "loop": (_loop, "cannot be "),
    "outside": (_outside, "is a link to /etc/hostname, outside"),
    "fifo": (_fifo, "is not a regular file"),
    "bytes": (_not_utf8, "its name is not valid UTF-8"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for number in range(GOOD):
        path = root / f"c{number % 3}/good{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number % 12))
    for name, (damage, _) in BREAK.items():
        for number in range(COUNT):
            damage(root / f"c{number % 3}/{name}{number:02}.jpg")
    return root


def names_and_reasons(problems: list[Bad], packed: storeds.ops.Packed) -> dict[str, list[str]]:
    """Return the reasons by kind of damage."""
    found: dict[str, list[str]] = {name: [] for name in BREAK}
    for problem in problems:
        kind = next(kind for kind in BREAK if kind in Path(problem.name.split(" ", 3)[-1].strip("()")).name)
        found[kind].append(problem.reason)
    assert packed.count == GOOD
    assert packed.left_out == len(problems) == COUNT * len(BREAK)
    return found


def test_of_a_folder(tree: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(tree, f"lmdb://{tmp_path}/store", on_bad="skip", on_problem=problems.append)
    for name, reasons in names_and_reasons(problems, packed).items():
        assert len(reasons) == COUNT, name
        assert all(reason.startswith(BREAK[name][1]) for reason in reasons), reasons[0]
    with storeds.open_backend(f"lmdb://{tmp_path}/store") as backend:
        records: list[Any] = list(backend.get_many(range(GOOD), ["key"]))
        assert [record["key"] for record in records] == [
            f"c{label}/good{number:02}.jpg" for label in range(3) for number in range(label, GOOD, 3)
        ]
    with pytest.raises(storeds.errors.RecordError, match="300 of 345 items cannot be packed") as raised:
        storeds.pack(tree, f"lmdb://{tmp_path}/none")
    assert len(str(raised.value).splitlines()) == 1 + COUNT * len(BREAK)
    assert not (tmp_path / "none").exists()


def test_keep_says_what_it_kept(tree: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(tree, f"lmdb://{tmp_path}/store", on_bad="keep", on_problem=problems.append)
    kept = {kind for kind in BREAK for problem in problems if problem.kept and f"/{kind}" in problem.name}
    assert kept == {"empty", "text", "header", "zeros", "scanless"}  # the others have no bytes
    assert packed.count == GOOD + len(kept) * COUNT
    assert packed.left_out == (len(BREAK) - len(kept)) * COUNT


def as_csv(tree: Path, paths: list[str]) -> tuple[Path, dict[str, Any]]:
    text = "path,label\n" + "".join(f"{path},{path[1]}\n" for path in paths)
    (tree / "list.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    return tree / "list.csv", {}


def as_jsonl(tree: Path, paths: list[str]) -> tuple[Path, dict[str, Any]]:
    rows = (json.dumps({"path": path, "label": int(path[1])}) for path in paths)
    (tree / "list.jsonl").write_text("\n".join(rows))
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
    kinds = ("empty", "text", "header", "zeros", "scanless")
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for path in sorted(tree.glob("*/*")):
            if path.name.startswith(("good", *kinds)):
                label = tmp_path / "label"
                label.write_text(path.parent.name[1])
                shard.add(path, f"{path.parent.name}/{path.stem}.jpg")
                shard.add(label, f"{path.parent.name}/{path.stem}.cls")
    problems: list[Bad] = []
    target = f"lmdb://{tmp_path}/store"
    packed = storeds.pack(tmp_path / "shard.tar", target, on_bad="skip", on_problem=problems.append)
    assert packed.count == GOOD
    assert len({problem.name for problem in problems}) == len(problems) == COUNT * len(kinds)
