"""Data sets of YOLO, out and in: numbers come back, and what has no place is listed; `test_sources` has the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _packing import Source, records_of
from _source_files import sides_of, turned_picture, yolo
from make_store import make_store
from mask_files import mask, write
from photographs import jpeg
from shares import examples
from storeds.errors import ConfigError

WIDTH, HEIGHT = 96, 64
IMAGE = {"kind": "image", "role": "image"}
BOXES = {"kind": "array", "dtype": "float64", "shape": [None, 4], "role": "boxes"}
LABELS = {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"}
MASKS = {"kind": "json", "role": "mask", "format": "coco"}


def store(url: str | None, fields: Mapping[str, Any], records: Iterable[Mapping[str, Any]], **attrs: Any) -> str:
    """Write a store of photographs with these further values."""
    records = ({"image": jpeg(number), **record} for number, record in enumerate(records))
    return make_store({"image": IMAGE, **fields}, records, url, attrs={"classes": ["cat", "dog"], **attrs})


def read(folder: Path) -> dict[str, list[list[float]]]:
    """Return the rows of each image of an exported data set, found as Ultralytics finds them."""
    data, lines, rows = yaml.safe_load((folder / "data.yaml").read_text()), lines_of(folder), {}
    for part in {data[split] for split in ("train", "val", "test", "other") if split in data}:
        for path in sorted(path for path in (folder / part).rglob("*") if path.is_file()):
            before, _, after = str(path).rpartition("/images/")
            labels = Path(f"{before}/labels/{after}").with_suffix(".txt")
            rows[str(path.relative_to(folder / "images"))] = lines[str(labels.relative_to(folder / "labels"))]
    return rows


def lines_of(folder: Path) -> dict[str, list[list[float]]]:
    """Return the numbers of every label file."""
    labels = folder / "labels"
    return {
        str(path.relative_to(labels)): [list(map(float, line.split())) for line in path.read_text().splitlines()]
        for path in sorted(labels.rglob("*.txt"))
    }


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("1 0.5 0.5 0.2 0.2 0.1 0.2 2 0.3 0.4 1 0 0 0", "kpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n"),
        ("1 0.5 0.5 0.2 0.2 0.1 0.2 0.3 0.4", "kpt_shape: [2, 2]\n"),
    ],
)
def test_yolo_comes_back(line: str, more: str, tmp_path: Path) -> None:
    text = f"{line}\n0{line[1:]}\n"
    files = yolo({"train/a": text, "train/b": "", "val/a": text})
    data = f"train: images/train\nval: images/val\nnames: [cat, 'no']\n{more}"
    url, out = f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out"
    packed = storeds.pack(write(tmp_path / "set", {**files, "data.yaml": data}), url)
    done = storeds.export(url, out, format="yolo")
    assert (done.left_out, done.notes) == ({}, ())
    assert lines_of(out) == lines_of(tmp_path / "set")
    splits = {split: f"images/{split}" for split in ("train", "val")}
    exported = yaml.safe_load((out / "data.yaml").read_text())
    assert exported == {**splits, "names": {0: "cat", 1: "no"}, **(yaml.safe_load(more) or {})}
    for name in ("train/a", "train/b", "val/a"):
        assert (out / f"images/{name}.jpg").read_bytes() == (tmp_path / f"set/images/{name}.jpg").read_bytes()
    again = storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb")
    assert (again.fields, again.attrs["classes"]) == (packed.fields, ["cat", "no"])


@pytest.mark.parametrize("format", ["xyxy", "xywh", "cxcywh"])
def test_boxes_in_pixels_come_back_to_within_rounding(format: str, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    corners = np.sort(chance.uniform(0, 1, (500, 2, 2)), axis=1).reshape(-1, 4) * ([WIDTH, HEIGHT] * 2)
    low, high = corners[:, :2], corners[:, 2:]
    first = {"xyxy": low, "xywh": low, "cxcywh": (low + high) / 2}[format]
    boxes = np.concatenate([first, high if format == "xyxy" else high - low], 1)
    fields = {"boxes": {**BOXES, "format": format}, "labels": LABELS, "key": "str"}
    record: dict[str, Any] = {"boxes": boxes, "labels": np.arange(500) % 2, "key": "a.jpg"}
    url = store(f"lmdb://{tmp_path}/s.lmdb", fields, [record])
    assert storeds.export(url, tmp_path / "out", format="yolo").notes == ()
    (rows,) = read(tmp_path / "out").values()
    found = np.array(rows)
    assert found[:, 0].tolist() == record["labels"].tolist()
    centre, side = found[:, 1:3] * [WIDTH, HEIGHT], found[:, 3:] * [WIDTH, HEIGHT]
    assert np.abs(np.concatenate([centre - side / 2, centre + side / 2], 1) - corners).max() < 1e-12


def test_boxes_over_the_edge_are_cut(tmp_path: Path) -> None:
    record = {"boxes": np.array([[-96, 0, 48, 32], [0, 0, 97, 64.0]]), "labels": np.array([0, 0])}
    url = store(f"lmdb://{tmp_path}/s.lmdb", {"boxes": BOXES, "labels": LABELS}, [record])
    done = storeds.export(url, tmp_path / "out", format="yolo")
    (rows,) = read(tmp_path / "out").values()
    assert rows[0] == [0, 0.25, 0.25, 0.5, 0.5]
    assert "boxes reached over the edge of the picture, and were cut" in " ".join(done.notes)


def test_splits_become_folders(tmp_path: Path) -> None:
    fields = {"boxes": BOXES, "labels": LABELS, "split": "str", "key": "str"}
    empty = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, np.int64)}
    keys = [("val", "images/val/a.jpg"), ("train", "train/images/a.jpg"), ("train", "x/images/b.jpg"), ("odd", "c")]
    url = store(f"lmdb://{tmp_path}/s.lmdb", fields, [{**empty, "split": split, "key": key} for split, key in keys])
    done = storeds.export(url, tmp_path / "out", format="yolo")
    assert set(read(tmp_path / "out")) == {"val/a.jpg", "train/a.jpg", "train/x/images_/b.jpg"}
    assert list(yaml.safe_load((tmp_path / "out/data.yaml").read_text())) == ["train", "val", "odd", "names"]
    assert "data.yaml names the splits odd, and programs read train, val" in " ".join(done.notes)
    assert (tmp_path / "out/images/odd/c.jpg").exists()


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    fields = {
        "boxes": {**BOXES, "format": "xywh"},
        "labels": LABELS,
        "masks": MASKS,
        "iscrowd": {"kind": "array", "dtype": "int64", "shape": [None], "of": "boxes"},
        "weather": "str",
        "scene": {"kind": "image", "role": "mask"},
    }
    square = [10.0, 10.0, 20.0, 10.0, 20.0, 20.0, 10.0, 20.0]
    run = {"size": [HEIGHT, WIDTH], "counts": [0, 10, HEIGHT * WIDTH - 10]}
    boxes = [[10, 10, 10, 10], [10, 10, 40, 40], [0, 0, 1, 10], [1, 1, 5, 5], [60, 60, 1, 1]]
    two = [square, [value + 30 for value in square]]
    record = {
        "boxes": np.array(boxes, np.float64),
        "labels": np.array([0, 1, 0, 1, 0]),
        "masks": [[square], two, run, run, [[90.0, 10.0, 99.0, 10.0, 99.0, 20.0]]],
        "iscrowd": np.array([0, 0, 0, 1, 0]),
        "weather": "rain",
        "scene": mask(0),
    }
    url = store(f"lmdb://{tmp_path}/s.lmdb", fields, [record])
    done = storeds.export(url, tmp_path / "out", format="yolo")
    assert done.left_out == dict.fromkeys(("weather", "scene"), "YOLO has no place for it")
    notes = " ".join(done.notes)
    for says in (
        "1 crowd regions are left out",
        "1 objects of several polygons became one polygon each",
        "1 objects without polygons, such as run-length encodings, became the corners of their boxes",
        "1 polygons reached over the edge",
        "1 boxes are not those around their polygons",
    ):
        assert says in notes
    (rows,) = read(tmp_path / "out").values()
    assert [row[0] for row in rows] == [0, 1, 0, 0]
    rings = [np.reshape(row[1:], (-1, 2)) * [WIDTH, HEIGHT] for row in rows]
    assert np.allclose(rings[0], np.reshape(square, (-1, 2)))
    assert area(rings[1]) == pytest.approx(200)
    assert np.allclose(rings[2], [[0, 0], [1, 0], [1, 10], [0, 10]])
    assert np.max(rows[3][1:]) == 1


@pytest.mark.parametrize("relative", [False, True])
def test_masks_without_boxes_become_the_boxes_around_them(relative: bool, tmp_path: Path) -> None:
    drawn = np.zeros((5, HEIGHT, WIDTH), np.uint8)
    drawn[0, 10:20, 5:25] = drawn[1, :, 7] = drawn[2, 60:, 90:] = drawn[2, 0, 0] = 1
    drawn[3] = 1
    runs = [run_lengths_of(each) for each in drawn]  # the last has no pixel
    fields = {"masks": {**MASKS, "relative": relative}}
    url = store(f"lmdb://{tmp_path}/s.lmdb", fields, [{"masks": [*runs, [], [[0.0] * 6]]}], classes=None)
    done = storeds.export(url, tmp_path / "out", format="yolo")
    (rows,) = read(tmp_path / "out").values()
    boxes = [(points.min(0), points.max(0)) for points in (np.reshape(row[1:], (-1, 2)) for row in rows)]
    found = [[*(low * [WIDTH, HEIGHT]).round(6), *(high * [WIDTH, HEIGHT]).round(6)] for low, high in boxes]
    assert found == [list(sides_of(each)) for each in drawn[:4]]
    assert "3 objects with neither a box nor a mask are left out" in done.notes


def run_lengths_of(pixels: Any) -> dict[str, Any]:
    """Return the run-length encoding of a mask, by counting pixels one by one."""
    counts, last = [0], 0
    for pixel in pixels.T.ravel().tolist():
        if pixel != last:
            counts, last = [*counts, 0], pixel
        counts[-1] += 1
    return {"size": list(pixels.shape), "counts": counts}


def area(ring: Any) -> float:
    """Return the area of a polygon by the shoelace formula."""
    x, y = ring[:, 0], ring[:, 1]
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def test_keypoints_in_pixels(tmp_path: Path) -> None:
    points = {"kind": "array", "dtype": "float32", "shape": [None, 2, 3], "role": "keypoints"}
    fields = {"boxes": BOXES, "labels": LABELS, "keypoints": points, "masks": MASKS}
    record = {
        "boxes": np.array([[0, 0, 96, 64.0]]),
        "labels": np.array([0]),
        "keypoints": np.array([[[24, 16, 2], [200, 16, 1]]], np.float32),
        "masks": [[]],
    }
    url = store(f"lmdb://{tmp_path}/s.lmdb", fields, [record], flip_idx=[1, 0])
    done = storeds.export(url, tmp_path / "out", format="yolo")
    (rows,) = read(tmp_path / "out").values()
    assert rows == [[0, 0.5, 0.5, 1, 1, 0.25, 0.25, 2, 0, 0, 0]]
    assert done.left_out == {"masks": "YOLO has no place for it"}
    assert "1 keypoints lay outside the picture" in " ".join(done.notes)
    data = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert (data["kpt_shape"], data["flip_idx"]) == ([2, 3], [1, 0])


@pytest.mark.parametrize("orientation", [2, 6, 7])
def test_turned_pictures_come_back(orientation: int, tmp_path: Path) -> None:
    """Label files refer to the picture as displayed, the store to its pixels as stored."""
    picture, shown, _ = turned_picture(orientation)
    (left, top, right, bottom), (height, width) = sides_of(shown), shown.shape
    box = [(left + right) / 2 / width, (top + bottom) / 2 / height, (right - left) / width, (bottom - top) / height]
    corner = [left / width, top / height]  # the first white pixel of the picture as displayed
    data = "train: images\nnames: [cat]\nkpt_shape: [1, 2]\n"
    line = " ".join(map(str, [0, *box, *corner]))
    write(tmp_path / "set", {"images/a.jpg": picture, "labels/a.txt": line, "data.yaml": data})
    url = f"lmdb://{tmp_path}/s.lmdb"
    storeds.pack(tmp_path / "set", url)
    (record,) = records_of(url)
    assert np.allclose(record["boxes"] * [60, 40, 60, 40], [[35, 7, 30, 4]])
    x, y = (record["keypoints"][0, 0] * [60, 40]).round(6)
    assert (x in (20, 49), y in (5, 8)) == (True, True)  # the corner's pixel, wherever it is stored
    storeds.export(url, tmp_path / "out", format="yolo")
    assert np.allclose(lines_of(tmp_path / "out")["a.txt"], [[0, *box, *corner]], rtol=0, atol=1e-14)


def test_labels_without_names_and_text_labels(tmp_path: Path) -> None:
    fields = {"boxes": BOXES, "labels": {"kind": "json", "role": "labels"}}
    one = np.array([[0, 0, 9, 9.0]])
    records = [{"boxes": one, "labels": ["bird"]}, {"boxes": one, "labels": ["cat"]}]
    for classes, names, numbers in ((None, ["bird", "cat"], [0, 1]), (["cat", "dog", "bird"],) * 2 + ([2, 0],)):
        url = store(None, fields, records, classes=classes)
        storeds.export(url, tmp_path / "out", format="yolo", overwrite=True)
        assert yaml.safe_load((tmp_path / "out/data.yaml").read_text())["names"] == dict(enumerate(names))
        assert [rows[0][0] for rows in read(tmp_path / "out").values()] == numbers


# What pack reads

LINE = "0 0.5 0.5 0.2 0.2"


def records_in(path: Path, **options: Any) -> list[Any]:
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
    assert len(records_in(root / "data.yaml")) == 1
    write(tmp_path, {"yamls/set.yaml": "path: datasets\ntrain: images/train\nnames: [a]\n"})
    elsewhere = tmp_path / "yamls/set.yaml"
    assert len(records_in(elsewhere, root=root)) == 1
    with pytest.raises(ConfigError, match=r"path is datasets, and no images are there \(tried .*pass root= \(--option"):
        records_in(elsewhere)


def test_labels_may_lie_beside_images(tmp_path: Path) -> None:
    write(tmp_path, {"a.jpg": 0, "a.txt": LINE, "data.yaml": "train: .\nnames: [cat]\n"})
    (record,) = records_in(tmp_path)
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
def test_random_label_files_are_read_and_come_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
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
