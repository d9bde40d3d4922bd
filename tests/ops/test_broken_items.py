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
from _source_files import jsonl, table, tar
from mask_files import write
from photographs import jpeg
from storeds.formats import Bad
from storeds.ops import Progress

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
    seen: list[Progress] = []
    packed = storeds.pack(
        tree, f"lmdb://{tmp_path}/store", on_bad="skip", on_problem=problems.append, progress=seen.append
    )
    assert (seen[-1].done, seen[-1].total, seen[-1].bad) == (345, 345, 300)
    assert seen[-1].bytes == sum(path.stat().st_size for path in tree.glob("*/good*"))
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
    first, *lines = str(raised.value).splitlines()
    assert "so nothing was published" in first
    assert "--on-bad skip" in first
    assert [line.strip() for line in lines[:20]] == [str(problem) for problem in problems[:20]]
    assert lines[20].strip() == "… and 280 more"
    assert sum(int(line.split()[0]) for line in lines[21:]) == 300  # by reason
    assert len(lines) < 20 + len(BREAK) + 2
    assert not (tmp_path / "none").exists()


def test_keep_says_what_it_kept(tree: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(tree, f"lmdb://{tmp_path}/store", on_bad="keep", on_problem=problems.append)
    kept = {kind for kind in BREAK for problem in problems if problem.kept and f"/{kind}" in problem.name}
    assert kept == KEPT
    assert packed.count == GOOD + len(kept) * COUNT
    assert packed.left_out == (len(BREAK) - len(kept)) * COUNT


def as_csv(paths: list[str], tree: Path) -> dict[str, bytes | str]:
    return {"list.csv": "path,label\n" + "".join(f"{path},{path[1]}\n" for path in paths)}


def as_jsonl(paths: list[str], tree: Path) -> dict[str, bytes | str]:
    return {"list.jsonl": jsonl(*({"path": path, "label": int(path[1])} for path in paths))}


def as_coco(paths: list[str], tree: Path) -> dict[str, bytes | str]:
    images = [{"id": at, "file_name": path} for at, path in enumerate(paths)]
    return {"coco.json": json.dumps({"images": images, "annotations": [], "categories": []})}


def as_tar(paths: list[str], tree: Path) -> dict[str, bytes | str]:
    files = {path: (tree / path).read_bytes() for path in paths}
    labels = {f"{path.removesuffix('.jpg')}.cls": path[1].encode() for path in paths}
    return {"shard.tar": tar({**files, **labels})}


@pytest.mark.parametrize("form", [as_csv, as_jsonl, as_coco, as_tar])
def test_of_lists_and_shards_of_the_same_files(
    tree: Path, tmp_path: Path, form: Callable[[list[str], Path], dict[str, bytes | str]]
) -> None:
    paths = sorted(os.path.relpath(path, tree) for path in tree.glob("*/*"))
    if form is as_tar:
        paths = [path for path in paths if Path(path).name.startswith(("good", *KEPT))]
    elif form is not as_jsonl:
        paths = [path for path in paths if path.isprintable()]
    (source,) = (tree / name for name in form(paths, tree))
    write(tree, form(paths, tree))
    problems: list[Bad] = []
    packed = storeds.pack(source, f"lmdb://{tmp_path}/store", on_bad="skip", on_problem=problems.append)
    assert packed.count == GOOD
    assert len({problem.name for problem in problems}) == len(problems) == len(paths) - GOOD
    assert all(problem.reason for problem in problems)


def as_parquet(blobs: list[bytes], folder: Path) -> Path:
    (folder / "a.parquet").write_bytes(table(image=blobs, label=list(range(len(blobs)))))
    return folder / "a.parquet"


def as_samples(blobs: list[bytes], folder: Path) -> list[dict[str, Any]]:
    return [{"image": blob, "label": number} for number, blob in enumerate(blobs)]


def as_tuples(blobs: list[bytes], folder: Path) -> list[tuple[bytes, int]]:
    return [(blob, number) for number, blob in enumerate(blobs)]


@pytest.mark.parametrize("broken", [[0], [4], [9], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("blob", [b"<html>404</html>", b""], ids=["html", "empty"])
@pytest.mark.parametrize("form", [as_parquet, as_samples, as_tuples])
def test_a_broken_image_at_any_place_leaves_the_others_images(
    tmp_path: Path, form: Callable[[list[bytes], Path], Any], blob: bytes, broken: list[int]
) -> None:
    blobs = [blob if number in broken else jpeg(number) for number in range(10)]
    source, url = form(blobs, tmp_path), f"hdf5://{tmp_path}/a.h5"
    with pytest.raises(storeds.errors.RecordError, match=f"{len(broken)} of 10 items cannot be packed"):
        storeds.pack(source, url)
    packed = storeds.pack(source, url, on_bad="skip", resume=True)
    assert packed.fields["image"].kind == "image"
    kept = [number for number in range(10) if number not in broken]
    assert records_of(url, "image", "label") == [{"image": blobs[number], "label": number} for number in kept]


@pytest.mark.parametrize("form", [as_parquet, as_samples])
def test_bytes_among_which_few_are_images_stay_bytes(tmp_path: Path, form: Callable[[list[bytes], Path], Any]) -> None:
    blobs = [jpeg(number) if number in (0, 3) else bytes([number]) * 9 for number in range(1, 11)]
    packed = storeds.pack(form(blobs, tmp_path), f"lmdb://{tmp_path}/a.lmdb")
    assert (packed.fields["image"].kind, packed.count) == ("bytes", 10)
