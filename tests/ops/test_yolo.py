"""Data sets of YOLO: what `pack` reads is what the text says, and everything wrong with a file is reported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _rows import Source
from photographs import jpeg
from shares import examples
from storeds.errors import ConfigError, RecordError

ENGINES = ("lmdb", "hdf5", "mongodb")
NAMES = ["cat", "traffic light", "Ärger"]


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def data_set(root: Path, labels: Mapping[str, str | None], *, extra: str = "", names: str | None = None) -> Path:
    """Write a data set with one image for each label file (``train/1``), and its data.yaml; None writes no label file."""
    for number, (name, text) in enumerate(labels.items()):
        write(root / "images" / f"{name}.jpg", jpeg(number))
        if text is not None:
            write(root / "labels" / f"{name}.txt", text)
    splits = sorted({name.partition("/")[0] for name in labels})
    given = names if names is not None else "\n".join(["names:", *(f"  {n}: {name}" for n, name in enumerate(NAMES))])
    return write(root / "data.yaml", "\n".join([*(f"{split}: images/{split}" for split in splits), given, extra, ""]))


def oracle(text: str) -> tuple[list[int], list[list[float]]]:
    """Return the classes and the further numbers of each line, read with plain Python."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    return [int(row[0]) for row in rows], [[float(value) for value in row[1:]] for row in rows]


def read(path: Path, **options: Any) -> tuple[list[Any], list[str]]:
    """Return the records of a source, and what is wrong with its other items."""
    source = Source(path, kind="yolo", **options)
    return source.records, source.bad


def problems(root: Path, **options: Any) -> str:
    """Return the message that lists what is wrong with a data set."""
    with pytest.raises(RecordError) as caught:
        storeds.pack(root, f"lmdb://{root}.lmdb", **options)
    return str(caught.value)


BOXES = {
    "train/a": "0 0.5 0.50 0.25 0.125\n2 0.1234567890123 0.3 0.1 0.2\n",
    "train/b": "",
    "train/c": None,
    "val/a": "1 1 1 1e-3 .5\r\n\r\n\t0  0.25 0.25 0.5 0.5",
}


def test_files_that_do_not_belong_together_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "set"
    data_set(root, dict.fromkeys(("train/a", "train/b", "train/c", "train/d", "train/e"), "0 0.5 0.5 0.2 0.2"))
    write(root / "images/train/a.png", jpeg(9))
    write(root / "labels/train/classes.txt", "cat")
    write(root / "labels/train/z.txt", "")
    (root / "labels/train/b.txt").rename(root / "labels/train/b.TXT")
    for name, target in (("c", tmp_path / "outside.txt"), ("d", "nowhere.txt")):
        (root / f"labels/train/{name}.txt").unlink()
        (root / f"labels/train/{name}.txt").symlink_to(target)
    write(tmp_path / "outside.txt", "0 0.5 0.5 0.2 0.2")
    os.utime(root / "labels/train/e.txt", (0, 0))  # as archives may give every file
    records, bad = read(root)
    assert [(record["key"], len(record["boxes"])) for record in records] == [
        ("images/train/a.jpg", 1),
        ("images/train/a.png", 1),  # both have labels/train/a.txt
        ("images/train/b.jpg", 0),
        ("images/train/e.jpg", 1),
    ]
    for line, says in zip(
        sorted(bad),
        (
            "images/train/c.jpg: its label file labels/train/c.txt: the path leads through a link to ",
            "images/train/d.jpg: its label file cannot be read: No such file or directory",
            "labels/train/b.TXT: no image has this label file",
            "labels/train/c.txt: is a link to ",
            "labels/train/z.txt: no image has this label file",
        ),
        strict=True,
    ):
        assert line.startswith(says)


# Where images are


@pytest.mark.parametrize("path", [".", "../datasets/set", "moved/away", None])
def test_the_root_is_found(path: str | None, tmp_path: Path) -> None:
    root = tmp_path / "datasets/set"
    data_set(root, {"train/a": ""}, extra="" if path is None else f"path: {path}")
    assert len(read(root / "data.yaml")[0]) == 1
    elsewhere = write(tmp_path / "yamls/set.yaml", "path: datasets\ntrain: images/train\nnames: [a]\n")
    assert len(read(elsewhere, root=root)[0]) == 1
    with pytest.raises(ConfigError, match=r"path is datasets, and no images are there \(tried .*pass root= \(--option"):
        read(elsewhere)


def test_labels_may_lie_beside_images(tmp_path: Path) -> None:
    write(tmp_path / "a.jpg", jpeg())
    write(tmp_path / "a.txt", "0 0.5 0.5 0.1 0.1")
    write(tmp_path / "data.yaml", "train: .\nnames: [cat]\n")
    (record,), _ = read(tmp_path)
    assert (record["key"], len(record["boxes"])) == ("a.jpg", 1)


@pytest.mark.parametrize("changed", ["labels/train/a.txt", "images/train/a.jpg", "data.yaml"])
def test_a_changed_file_is_not_resumed(changed: str, tmp_path: Path) -> None:
    root, url = tmp_path / "set", f"lmdb://{tmp_path}/a.lmdb"
    data_set(root, BOXES)

    def interrupt(state: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storeds.pack(root, url, commit_every=1, progress=interrupt)
    before = (root / changed).read_bytes()
    times = os.stat(root / changed)
    write(root / changed, before.replace(b"cat", b"dogs") if changed == "data.yaml" else before + b"\n")
    with pytest.raises(ConfigError, match=r"plan\.source\.(xxh3|fields) was"):
        storeds.pack(root, url, commit_every=1, resume=True)
    write(root / changed, before)
    os.utime(root / changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert storeds.pack(root, url, commit_every=1, resume=True).id == storeds.pack(root, f"hdf5://{tmp_path}/b.h5").id


# Random label files

digits = st.integers(0, 17).flatmap(lambda places: st.floats(0, 1).map(lambda value: f"{value:.{places}f}"))
numbers = st.one_of(digits, st.floats(0, 1).map(repr), st.floats(0, 1).map(lambda value: f"{value:e}"))
row_of_box = st.tuples(st.integers(0, 2).map(str), numbers, numbers, numbers, numbers)
row_of_polygon = st.builds(
    lambda label, points: (label, *(value for point in points for value in point)),
    st.integers(0, 2).map(str),
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


@settings(max_examples=examples(200))
@given(text=label_files())
def test_random_label_files_read_as_plain_python_reads_them(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("set")
    (record,), _ = read(data_set(root, {"train/a": text}))
    labels, rows = oracle(text)
    assert record["labels"].tolist() == labels
    if rows and len(rows[0]) > 4:
        assert record["masks"] == [[row] for row in rows]
    else:
        assert record["boxes"].tolist() == rows
