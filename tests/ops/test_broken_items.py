"""Broken items of ten kinds: each is listed with its name and a reason, and nothing else is lost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import storeds
from _packing import records_of
from _source_files import table
from mask_files import write
from photographs import jpeg
from storeds.formats import Bad
from storeds.ops import Progress

COUNT, GOOD = 3, 9


SCANLESS = jpeg(2)[: jpeg(2).index(b"\xff\xda")]
BREAK: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "is empty (0 bytes)"),
    "text": (lambda path: path.write_text("<html>404</html>"), "cannot be read as an image"),
    "header": (lambda path: path.write_bytes(jpeg(1)[:100]), "cannot be read as an image"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "cannot be read as an image"),
    "scanless": (lambda path: path.write_bytes(SCANLESS), "cannot be read as an image"),
    "dangling": (lambda path: path.symlink_to("nowhere.jpg"), "cannot be read: No such file or directory"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot be "),
    "outside": (lambda path: path.symlink_to("/etc/hostname"), "is a link to /etc/hostname, outside"),
    "fifo": (os.mkfifo, "is not a regular file"),
    "bytes": (lambda path: Path(os.fsdecode(bytes(path) + b"\xff.jpg")).touch(), "its name is not valid UTF-8"),
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
    problems, seen = list[Bad](), list[Progress]()
    url, every = f"lmdb://{tmp_path}/store", COUNT * len(BREAK)
    packed = storeds.pack(tree, url, on_bad="skip", on_problem=problems.append, progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].bad) == (every + GOOD, every + GOOD, every)
    assert seen[-1].bytes == sum(path.stat().st_size for path in tree.glob("*/good*"))
    assert (packed.count, packed.left_out) == (GOOD, every)
    found = Counter[str]()
    for problem in problems:
        name = next(name for name in BREAK if Path(problem.name).name.startswith(name))
        assert problem.reason.startswith(BREAK[name][1])
        found[name] += 1
    assert found == dict.fromkeys(BREAK, COUNT)
    keys = [f"c{label}/good{number:02}.jpg" for label in range(3) for number in range(label, GOOD, 3)]
    assert records_of(url, "key") == [{"key": key} for key in keys]
    with pytest.raises(storeds.errors.RecordError, match=f"{every} of {every + GOOD} items cannot be packed") as raised:
        storeds.pack(tree, f"lmdb://{tmp_path}/none")
    first, *lines = (line.strip() for line in str(raised.value).splitlines())
    assert "so nothing was published" in first
    assert "--on-bad skip" in first
    assert lines[:20] == [str(problem) for problem in problems[:20]]
    assert lines[20] == f"… and {every - 20} more"
    assert sum(int(line.split()[0]) for line in lines[21:]) == every  # by reason
    assert len(lines) < 20 + len(BREAK) + 2
    assert not (tmp_path / "none").exists()


def test_keep_says_what_it_kept(tree: Path, tmp_path: Path) -> None:
    problems: list[Bad] = []
    packed = storeds.pack(tree, f"lmdb://{tmp_path}/store", on_bad="keep", on_problem=problems.append)
    assert {kind for kind in BREAK for each in problems if each.kept and f"/{kind}" in each.name} == KEPT
    assert (packed.count, packed.left_out) == (GOOD + len(KEPT) * COUNT, (len(BREAK) - len(KEPT)) * COUNT)


def as_parquet(blobs: list[bytes], folder: Path) -> Path:
    (folder / "a.parquet").write_bytes(table(image=blobs, label=list(range(len(blobs)))))
    return folder / "a.parquet"


def as_samples(blobs: list[bytes], folder: Path) -> list[dict[str, Any]]:
    return [{"image": blob, "label": number} for number, blob in enumerate(blobs)]


@pytest.mark.parametrize("broken", [[0], [9], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("form", [as_parquet, as_samples, lambda blobs, _: [*zip(blobs, range(10), strict=True)]])
def test_a_broken_image_at_any_place_leaves_the_others_images(
    tmp_path: Path, form: Callable[[list[bytes], Path], Any], broken: list[int]
) -> None:
    blobs = [b"<html>"[: 6 * (number % 2)] if number in broken else jpeg(number) for number in range(10)]
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
