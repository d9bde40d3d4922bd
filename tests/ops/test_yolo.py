"""Data sets of YOLO: what `pack` reads is what the text says, and everything wrong with a file is reported."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from photographs import jpeg
from shares import examples
from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.ops.packing.sources import YoloSource, open_source
from storeds.protocols import Record

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


def records(source: Any) -> list[Record]:
    return [source.read(index) for index in range(len(source))]


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


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_stores_the_numbers_of_the_text(
    engine: str, tmp_path: Path, make_engine_url: Callable[[str], str]
) -> None:
    file = data_set(tmp_path / "set", BOXES)
    url = make_engine_url(engine)
    packed = storeds.pack(file, url)
    assert packed.attrs["classes"] == NAMES
    assert packed.fields["boxes"].role == "boxes"
    assert packed.fields["boxes"].format == "cxcywh"
    assert packed.fields["boxes"].relative
    assert packed.fields["labels"].role == "labels"
    with storeds.open_backend(url) as backend:
        found: list[Any] = list(backend.get_many(range(len(backend))))
    assert [record["key"] for record in found] == [f"images/{name}.jpg" for name in BOXES]
    assert [record["split"] for record in found] == ["train", "train", "train", "val"]
    for number, (record, text) in enumerate(zip(found, BOXES.values(), strict=True)):
        labels, rows = oracle(text or "")
        assert record["image"] == jpeg(number)
        assert record["labels"].dtype == np.int64
        assert record["labels"].tolist() == labels
        assert record["boxes"].shape == (len(rows), 4)
        assert record["boxes"].tolist() == rows


def test_images_without_labels_are_counted(tmp_path: Path) -> None:
    packed = storeds.pack(data_set(tmp_path / "set", BOXES), f"lmdb://{tmp_path}/s.lmdb")
    assert "1 image has no label file (1 in train), and so no objects" in packed.notes


def test_equal_data_sets_have_equal_ids(tmp_path: Path) -> None:
    ids = {
        storeds.pack(data_set(tmp_path / name, BOXES), f"{engine}://{tmp_path}/{name}.{engine}").id
        for name, engine in (("a", "lmdb"), ("b", "hdf5"))
    }
    assert len(ids) == 1


def test_polygons_become_masks_with_their_boxes(tmp_path: Path) -> None:
    text = "0 0.1 0.2 0.5 0.25 0.3 0.75\n1 0 0 1 0 1 1 0 1\n"
    source = YoloSource(data_set(tmp_path, {"train/a": text, "train/b": ""}))
    masks = source.fields["masks"]
    assert (masks.kind, masks.role, masks.format, masks.relative) == ("json", "mask", "coco", True)
    record, empty = records(source)
    _, rows = oracle(text)
    assert record["masks"] == [[row] for row in rows]
    assert empty["masks"] == []
    for box, row in zip(record["boxes"].tolist(), rows, strict=True):
        left, right, top, bottom = min(row[::2]), max(row[::2]), min(row[1::2]), max(row[1::2])
        assert box == [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


@pytest.mark.parametrize("values", [2, 3])
def test_poses_become_keypoints(values: int, tmp_path: Path) -> None:
    points = [["0.1", "0.2", "2"][:values], ["0.25", "0.5", "1"][:values], ["0", "0", "0"][:values]]
    text = "0 0.5 0.5 0.2 0.2 " + " ".join(sum(points, []))
    extra = f"kpt_shape: [3, {values}]\nflip_idx: [1, 0, 2]"
    source = YoloSource(data_set(tmp_path, {"train/a": text, "train/b": ""}, extra=extra))
    record, empty = records(source)
    assert record["keypoints"].tolist() == [[[float(value) for value in point] for point in points]]
    assert empty["keypoints"].shape == (0, 3, values)
    assert source.fields["keypoints"].relative
    assert source.attrs["flip_idx"] == [1, 0, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0.5 0.5 0.2", "a line has 4 values; a box has 5"),
        ("0 0.5 0.5 0.2 0.2 0.9", "a line has 6 values, the last perhaps a confidence; a box has 5"),
        (
            "0 0.5 0.5 0.2 0.2 0.3 0.4",
            "a line has 7 values, which is a polygon, but the first line of the data set is a box",
        ),
        ("0 0.5 x 0.2 0.2", "'x' is not a number"),
        ("0 0.5 1_0 0.2 0.2", "'1_0' is not a number"),
        ("0 0.5 nan 0.2 0.2", "'nan' is not a finite number"),
        ("0 0.5 -inf 0.2 0.2", "'-inf' is not a finite number"),
        ("3 0.5 0.5 0.2 0.2", "class 3 has no name: there are 3 classes, and the first is 0"),
        ("-1 0.5 0.5 0.2 0.2", "class -1 is not a number from 0 on"),
        ("0.5 0.5 0.5 0.2 0.2", "class 0.5 is not a number from 0 on"),
        ("0 0.5 1.01 0.2 0.2", "a value of a box is 1.01, outside 0 to 1"),
        ("0 -0.01 0.5 0.2 0.2", "a value of a box is -0.01, outside 0 to 1"),
        ("0 320 240 20 30", "a value of a box is 320, outside 0 to 1, so these are perhaps pixels"),
        ("0 0.5 0.5 -0.2 0.2", "a box has a negative size of -0.2 x 0.2"),
        ("0 1.0005 0.5 0 0.2", "lies outside the image"),
    ],
)
def test_a_faulty_line_is_reported_with_file_and_line(text: str, says: str, tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": "0 0.5 0.5 0.2 0.2", "train/b": f"1 0.4 0.4 0.1 0.1\n\n{text}\n"})
    message = problems(tmp_path / "set")
    assert f"images/train/b.jpg: {says}" in message or says in message
    assert "labels/train/b.txt" in message
    assert "line 3" in message or "row 1" in message
    packed = storeds.pack(tmp_path / "set", f"lmdb://{tmp_path}/skip.lmdb", on_bad="skip")
    assert (packed.count, packed.left_out) == (1, 1)


def test_repeated_lines_are_reported(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": "0 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.2 0.2\n0 0.5 0.50 0.2 0.2\n"})
    assert "a line is there twice, and line 1 is the first (labels/train/a.txt line 3)" in problems(tmp_path / "set")


def test_a_box_among_polygons_is_reported(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": "0 0.1 0.1 0.2 0.1 0.2 0.2\n0 0.5 0.5 0.2 0.2\n"})
    assert "a line has 5 values, which is a box" in problems(tmp_path / "set")


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ("0.1 0.2 2", "a line has 8 values; kpt_shape asks for 11"),
        ("0.1 0.2 2 0.3 0.4 3", "a visibility of 3 is none of 0, 1 and 2"),
        ("0.1 0.2 2 1.3 0.4 1", "a keypoint's coordinate is 1.3, outside 0 to 1"),
    ],
)
def test_faulty_keypoints_are_reported(points: str, says: str, tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": f"0 0.5 0.5 0.2 0.2 {points}"}, extra="kpt_shape: [2, 3]")
    assert says in problems(tmp_path / "set")


def test_label_files_without_an_image_are_reported(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": ""})
    write(tmp_path / "set/labels/train/z.txt", "")
    write(tmp_path / "set/labels/train/classes.txt", "cat")
    message = problems(tmp_path / "set")
    assert "1 of 2 items" in message
    assert "labels/train/z.txt: the label file has no image (images/train/z.*)" in message


def test_images_with_one_label_file_are_reported(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": "", "train/b": ""})
    write(tmp_path / "set/images/train/a.png", b"")
    message = problems(tmp_path / "set")
    assert (
        "images/train/a.jpg: another image has the same label file: images/train/a.png (labels/train/a.txt)" in message
    )
    assert "images/train/a.png: another image has the same label file: images/train/a.jpg" in message


def test_a_label_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": ""})
    write(tmp_path / "set/labels/train/a.txt", b"0 0.5 \xff")
    assert "its label file is not text: byte 6 is not UTF-8 (labels/train/a.txt)" in problems(tmp_path / "set")


def test_an_image_of_two_splits_is_packed_once(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": ""}, extra="val: images/train")
    packed = storeds.pack(tmp_path / "set", f"lmdb://{tmp_path}/s.lmdb")
    assert packed.count == 1
    assert "split" not in packed.fields
    assert "1 image is in train and in val, and packed once, in train" in packed.notes


# Where images are


def test_splits_may_be_lists_of_images(tmp_path: Path) -> None:
    data_set(tmp_path, BOXES)
    write(tmp_path / "train.txt", "images/train/a.jpg\n./images/train/b.jpg\n")
    write(tmp_path / "lists/val.txt", f"{tmp_path}/images/val/a.jpg\n")
    write(tmp_path / "data.yaml", "train: train.txt\nval: [lists/val.txt, images/train]\nnames: [a, b, c]\n")
    source = YoloSource(tmp_path)
    assert [record["key"] for record in records(source)] == [
        "images/train/a.jpg",
        "images/train/b.jpg",
        "images/val/a.jpg",
        "images/train/c.jpg",
    ]
    assert [record["split"] for record in records(source)] == ["train", "train", "val", "val"]
    assert list(source.attrs["classes"]) == ["a", "b", "c"]  # type: ignore[arg-type]


def test_label_files_are_not_read_through_links_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "set"
    file = data_set(root, {"train/1": "1 0.5 0.5 1 1\n", "train/2": ""})
    write(root / "list.txt", "images/train/1.jpg\nimages/train/2.jpg\n")
    file.write_text(file.read_text().replace("train: images/train", "train: list.txt"))
    labels = root / "labels/train/1.txt"
    labels.rename(tmp_path / "outside.txt")
    labels.symlink_to(tmp_path / "outside.txt")
    assert "images/train/1.jpg: its label file labels/train/1.txt: the path leads through a link" in problems(root)
    assert len(YoloSource(file, allow_outside=True)) == 2


@pytest.mark.parametrize("path", [".", "../datasets/set", "moved/away", None])
def test_the_root_is_found(path: str | None, tmp_path: Path) -> None:
    root = tmp_path / "datasets/set"
    data_set(root, {"train/a": ""}, extra="" if path is None else f"path: {path}")
    assert len(YoloSource(root / "data.yaml")) == 1
    elsewhere = write(tmp_path / "yamls/set.yaml", "path: datasets\ntrain: images/train\nnames: [a]\n")
    assert len(YoloSource(elsewhere, root=root)) == 1
    with pytest.raises(ConfigError, match=r"path is datasets, and no images are there \(tried .*pass root="):
        YoloSource(elsewhere)


def test_folders_of_roboflow_are_found(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        write(tmp_path / split / "images/a.jpg", jpeg())
        write(tmp_path / split / "labels/a.txt", "0 0.5 0.5 0.1 0.1")
    write(tmp_path / "data.yaml", "train: ../train/images\nval: ../valid/images\nnc: 1\nnames: ['cat']\n")
    found = records(YoloSource(tmp_path))
    assert [(each["key"], each["split"], len(each["boxes"])) for each in found] == [
        ("train/images/a.jpg", "train", 1),
        ("valid/images/a.jpg", "val", 1),
    ]


def test_a_folder_without_data_yaml_has_classes_txt(tmp_path: Path) -> None:
    data_set(tmp_path, BOXES)
    os.remove(tmp_path / "data.yaml")
    with pytest.raises(ConfigError, match=r"gives no class names; name them in data.yaml, in classes.txt"):
        YoloSource(tmp_path)
    write(tmp_path / "labels/classes.txt", "\n".join(NAMES))
    assert YoloSource(tmp_path).attrs["classes"] == NAMES
    assert [record["split"] for record in records(YoloSource(tmp_path))] == ["train", "train", "train", "val"]
    assert YoloSource(tmp_path, classes=["x", "y", "z"]).attrs["classes"] == ["x", "y", "z"]
    assert storeds.pack(tmp_path, f"lmdb://{tmp_path}/s.lmdb").count == 4


def test_labels_may_lie_beside_images(tmp_path: Path) -> None:
    write(tmp_path / "a.jpg", jpeg())
    write(tmp_path / "a.txt", "0 0.5 0.5 0.1 0.1")
    write(tmp_path / "data.yaml", "train: .\nnames: [cat]\n")
    (record,) = records(YoloSource(tmp_path))
    assert (record["key"], len(record["boxes"])) == ("a.jpg", 1)


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("names: [a]", "names no images: expected train, val or test"),
        ("train: images/train", "no class names are in names"),
        ("train: images/none\nnames: [a]", "nothing exists at .*images/none"),
        ("train: images/train\nnames: {0: a, 2: b}", "the keys of names are 0, 2; expected 0 to 1"),
        ("train: images/train\nnames: [a, no]", "YAML reads the name of class 1 as False; put it in quotation marks"),
        ("train: images/train\nnames: [a, a]", "'a' is listed twice"),
        ("train: images/train\nnames: [a]\nnc: 2", "nc is 2, but names has 1"),
        (
            "train: images/train\nnames: [a]\nkpt_shape: 17",
            r"kpt_shape is \[number of keypoints from 1 to 100,000, 2 or 3\], not 17",
        ),
        (f"train: images/train\nnames: [a]\nkpt_shape: [{10**19}, 3]", r"from 1 to 100,000, 2 or 3\], not \[1000"),
        ("train: ../other\nnames: [a]", r"leads out of .*pass allow_outside=True"),
        ("train: 7\nnames: [a]", "train is the path of a folder or a list"),
    ],
)
def test_a_faulty_data_yaml_is_refused(yaml: str, says: str, tmp_path: Path) -> None:
    write(tmp_path / "other/a.jpg", jpeg())
    data_set(tmp_path / "set", {"train/a": ""})
    write(tmp_path / "set/data.yaml", yaml)
    with pytest.raises(ConfigError, match=says):
        YoloSource(tmp_path / "set/data.yaml")


def test_a_data_set_without_any_label_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has a label file; expected, for example, labels/train/a.txt for"):
        YoloSource(data_set(tmp_path, {"train/a": None, "train/b": None}))


def test_missing_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        YoloSource(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"is no data set of YOLO"):
        YoloSource(tmp_path)


def test_a_source_pickles_and_its_fingerprint_follows_the_files(tmp_path: Path) -> None:
    file = data_set(tmp_path, BOXES)
    source = YoloSource(file)
    copy = pickle.loads(pickle.dumps(source))
    assert [record["key"] for record in records(copy)] == [record["key"] for record in records(source)]
    assert YoloSource(file).fingerprint == source.fingerprint
    write(tmp_path / "labels/train/a.txt", "0 0.5 0.5 0.25 0.25")
    assert YoloSource(file).fingerprint != source.fingerprint


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
    (record,) = records(YoloSource(data_set(root, {"train/a": text})))
    labels, rows = oracle(text)
    assert record["labels"].tolist() == labels
    if rows and len(rows[0]) > 4:
        assert record["masks"] == [[row] for row in rows]
    else:
        assert record["boxes"].tolist() == rows


def test_label_files_of_time_zero_and_broken_links_are_not_missing(tmp_path: Path) -> None:
    root = tmp_path / "set"
    data_set(root, {"train/a": "1 0.5 0.5 1 1\n", "train/b": ""})
    os.utime(root / "labels/train/a.txt", (0, 0))
    assert records(YoloSource(root))[0]["boxes"].tolist() == [[0.5, 0.5, 1, 1]]
    (root / "labels/train/a.txt").unlink()
    (root / "labels/train/a.txt").symlink_to("nowhere.txt")
    assert "images/train/a.jpg: its label file cannot be read: No such file" in problems(root)


def test_paths_of_windows_are_explained(tmp_path: Path) -> None:
    root = tmp_path / "set"
    file = data_set(root, {"train/1": "1 0.5 0.5 1 1\n", "train/2": ""})
    write(root / "list.txt", "\ufeff.\\images\\train\\1.jpg\r\nimages/train/2.jpg\r\n")
    file.write_text(file.read_text().replace("train: images/train", "train: list.txt"))
    assert r".\images\train\1.jpg: cannot be read: No such file or directory; folders are separated by /" in problems(
        root
    )


def test_a_label_file_with_a_suffix_in_capitals_is_explained(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/1": "0 0.5 0.5 1 1\n", "train/2": ""})
    (tmp_path / "set/labels/train/1.txt").rename(tmp_path / "set/labels/train/1.TXT")
    assert "labels/train/1.TXT: label files end in .txt, and this one in .TXT; rename it" in problems(tmp_path / "set")


def test_a_data_yaml_that_is_not_yaml_is_not_ignored(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/1": "0 0.5 0.5 1 1\n"}, names="names: [cat, dog")
    write(tmp_path / "set/classes.txt", "dog\ncat\n")
    with pytest.raises(ConfigError, match=r"data\.yaml"):
        YoloSource(tmp_path / "set")


@pytest.mark.parametrize("kind", ["imagefolder", "flat"])
def test_labels_that_are_left_out_are_counted(kind: str, tmp_path: Path) -> None:
    for name in ("train/images/a.jpg", "valid/images/b.jpg"):
        write(tmp_path / name, jpeg())
    for name in (
        "train/labels/a.txt",
        "valid/labels/b.txt",
        "valid/images/b.xml",
        "train/.hidden.txt",
        "train/notes.md",
    ):
        write(tmp_path / name, "")
    packed = storeds.pack(tmp_path, "memory://left out", overwrite=True, kind=kind)
    said = "left out 3 files that may describe the images: 2 *.txt, such as train/labels/a.txt, 1 *.xml, such as valid/images/b.xml"
    assert [note.partition(";")[0] for note in packed.notes] == [said]


def test_a_yaml_file_is_one_of_yolo(tmp_path: Path) -> None:
    data_set(tmp_path / "set", {"train/a": ""})
    file = write(tmp_path / "set/data.yaml", "train: images/train\nnc: 3\n")
    with pytest.raises(ConfigError, match="no class names are in names"):
        open_source(file)
