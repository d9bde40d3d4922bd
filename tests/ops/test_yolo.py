"""Data sets of YOLO: where its files are, and random label files against plain Python; `test_sources` has the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _packing import Source, records_of
from _source_files import yolo
from mask_files import write
from shares import examples
from storeds.errors import ConfigError

LINE = "0 0.5 0.5 0.2 0.2"


def read(path: Path, **options: Any) -> list[Any]:
    """Return the records of a source without bad items."""
    source = Source(path, kind="yolo", **options)
    assert source.bad == []
    return source.records


def test_values_that_may_be_missing_are_counted(tmp_path: Path) -> None:
    lines = {"train/a": "0 0.5 0.5 0 0.2 0 0 0.3 0.4\n0 0 0 0 0 0 0 0 0\n", "train/b": ""}
    root = write(tmp_path / "set", yolo(lines, "train: images/train\nkpt_shape: [2, 2]"))
    assert storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb").notes == (
        "2 boxes have no width or no height, such as in labels/train/a.txt",
        "3 keypoints are 0 0, such as in labels/train/a.txt; without a visibility, nothing tells whether they are labelled",
    )


def test_files_that_do_not_belong_together_are_reported(tmp_path: Path) -> None:
    files = yolo({f"train/{name}": LINE for name in "abcde"})
    more: dict[str, Any] = {"images/train/a.png": 9, "labels/train/classes.txt": "cat", "labels/train/z.txt": ""}
    root = write(tmp_path / "set", {**files, **more, "../outside.txt": LINE})
    (root / "labels/train/b.txt").rename(root / "labels/train/b.TXT")
    for name, target in (("c", tmp_path / "outside.txt"), ("d", "nowhere.txt")):
        (root / f"labels/train/{name}.txt").unlink()
        (root / f"labels/train/{name}.txt").symlink_to(target)
    os.utime(root / "labels/train/e.txt", (0, 0))  # as archives may give every file
    source = Source(root, kind="yolo")
    assert [(record["key"], len(record["boxes"])) for record in source.records] == [
        ("images/train/a.jpg", 1),
        ("images/train/a.png", 1),  # both have labels/train/a.txt
        ("images/train/b.jpg", 0),
        ("images/train/e.jpg", 1),
    ]
    starts = (
        "images/train/c.jpg: its label file labels/train/c.txt: the path leads through a link to ",
        "images/train/d.jpg: its label file cannot be read: No such file or directory",
        "labels/train/b.TXT: no image has this label file",
        "labels/train/c.txt: is a link to ",
        "labels/train/z.txt: no image has this label file",
    )
    assert all(line.startswith(start) for line, start in zip(sorted(source.bad), starts, strict=True)), source.bad


@pytest.mark.parametrize("path", [".", "../datasets/set", "moved/away", None])
def test_the_root_is_found(path: str | None, tmp_path: Path) -> None:
    yaml = "train: images/train" if path is None else f"path: {path}\ntrain: images/train"
    root = write(tmp_path / "datasets/set", yolo({"train/a": ""}, yaml))
    assert len(read(root / "data.yaml")) == 1
    write(tmp_path, {"yamls/set.yaml": "path: datasets\ntrain: images/train\nnames: [a]\n"})
    elsewhere = tmp_path / "yamls/set.yaml"
    assert len(read(elsewhere, root=root)) == 1
    with pytest.raises(ConfigError, match=r"path is datasets, and no images are there \(tried .*pass root= \(--option"):
        read(elsewhere)


def test_labels_may_lie_beside_images(tmp_path: Path) -> None:
    write(tmp_path, {"a.jpg": 0, "a.txt": LINE, "data.yaml": "train: .\nnames: [cat]\n"})
    (record,) = read(tmp_path)
    assert (record["key"], len(record["boxes"])) == ("a.jpg", 1)


# Random label files

digits = st.integers(0, 17).flatmap(lambda places: st.floats(0, 1).map(lambda value: f"{value:.{places}f}"))
numbers = st.one_of(digits, st.floats(0, 1).map(repr), st.floats(0, 1).map(lambda value: f"{value:e}"))
row_of_box = st.tuples(st.integers(0, 1).map(str), numbers, numbers, numbers, numbers)
row_of_polygon = st.builds(
    lambda label, points: (label, *(value for point in points for value in point)),
    st.integers(0, 1).map(str),
    st.lists(st.tuples(numbers, numbers), min_size=3, max_size=9),
)
spaces = st.sampled_from([" ", "  ", "\t"])
ends = st.sampled_from(["\n", "\r\n", "\n\n", " \n"])


@st.composite
def label_files(draw: st.DrawFn) -> str:
    """Draw a label file without repeated objects."""
    rows = draw(st.lists(draw(st.sampled_from([row_of_box, row_of_polygon])), max_size=6))
    unique = {tuple(map(float, row)): row for row in rows}
    return "".join(draw(spaces).join(row) + draw(ends) for row in unique.values())


@settings(max_examples=examples(50))
@given(text=label_files())
def test_random_label_files_are_read_as_plain_python_reads_them_and_come_back(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = write(tmp_path_factory.mktemp("set"), yolo({"train/a": text}))
    storeds.pack(root, "memory://yolo", overwrite=True)
    storeds.export("memory://yolo", root / "out", format="yolo")
    (record,) = records_of("memory://yolo")
    rows = [list(map(float, line.split())) for line in text.splitlines() if line.strip()]
    assert record["labels"].tolist() == [row[0] for row in rows]
    if rows and len(rows[0]) > 5:
        assert record["masks"] == [[row[1:]] for row in rows]
    else:
        assert record["boxes"].tolist() == [row[1:] for row in rows]
    lines = (root / "out/labels/train/a.txt").read_text().splitlines()
    assert [list(map(float, line.split())) for line in lines] == rows
