"""Data sets of YOLO: what `pack` reads is what the text says, and everything wrong with a file is reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _rows import Source
from photographs import jpeg
from shares import examples
from storeds.errors import ConfigError, MissingDependencyError, RecordError, StoreNotFoundError
from storeds.ops.packing.sources import open_source

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


def test_notes_count_what_is_left_out_or_has_no_labels(tmp_path: Path) -> None:
    line = "0 0.5 0.5 0.2 0.2\n"
    data_set(
        tmp_path / "set", {**BOXES, "train/d": f"{line}1 0.5 0.5 0.2 0.2\n0 0.5 0.50 0.2 2e-1\n", "train/e": line * 3}
    )
    (tmp_path / "set/data.yaml").write_text(
        (tmp_path / "set/data.yaml").read_text() + "test: [images/val, images/train]\n"
    )
    url = f"lmdb://{tmp_path}/s.lmdb"
    packed = storeds.pack(tmp_path / "set", url)
    assert (packed.count, packed.left_out) == (6, 0)
    assert list(packed.notes) == [
        "1 image has no label file, and so no objects",
        "1 image is in val and in test, and packed once, in val",
        "5 images are in train and in test, and packed once, in train",
        "3 repeated lines are left out of label files, such as labels/train/d.txt",
    ]
    with storeds.open_backend(url) as backend:
        found: list[Any] = list(backend.get_many(range(3, 5)))
    assert [record["labels"].tolist() for record in found] == [[0, 1], [0]]


def test_polygons_become_masks_with_their_boxes(tmp_path: Path) -> None:
    text = "0 0.1 0.2 0.5 0.25 0.3 0.75\n1 0 0 1 0 1 1 0 1\n"
    file = data_set(tmp_path, {"train/a": text, "train/b": ""})
    masks = open_source(file).fields["masks"]
    assert (masks.kind, masks.role, masks.format, masks.relative) == ("json", "mask", "coco", True)
    (record, empty), _ = read(file)
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
    file = data_set(tmp_path, {"train/a": text, "train/b": ""}, extra=extra)
    rows = open_source(file)
    (record, empty), _ = read(file)
    assert record["keypoints"].tolist() == [[[float(value) for value in point] for point in points]]
    assert empty["keypoints"].shape == (0, 3, values)
    assert rows.fields["keypoints"].relative
    assert rows.attrs["flip_idx"] == [1, 0, 2]


BOX, POLYGON, POSE = "0 0.5 0.5 0.2 0.2", "0 0.1 0.1 0.2 0.1 0.2 0.2", "0 0.5 0.5 0.2 0.2 0.1 0.2 2 0.3 0.4 1"
PIXELS = "0 320 240 20 30"

# The first line of the data set, a wrong line, and what is said about it.
WRONG: list[tuple[str, Any, str]] = [
    (BOX, "0 0.5 0.5 0.2", "a line has 4 values; the first line of the data set is a box, of 5: class, x, y"),
    (BOX, "0 0.5 0.5 0.2 0.2 0.9", "a line has 6 values; the first line of the data set is a box"),
    (BOX, POLYGON, "a line has 7 values; the first line of the data set is a box"),
    (POLYGON, BOX, "a line has 5 values; the first line of the data set is a polygon"),
    (POLYGON, "0 0.1 0.1 0.2 0.1 0.2 1.2", "a coordinate is 1.2, outside 0 to 1"),
    (BOX, "0 0.5 x 0.2 0.2", "a value is not a number: could not convert string to float: 'x'"),
    (BOX, "0 0.5 nan 0.2 0.2", "a coordinate is nan, outside 0 to 1"),
    (BOX, "3 0.5 0.5 0.2 0.2", "class 3 has no name: there are 3 classes, and the first is 0"),
    (BOX, "-1 0.5 0.5 0.2 0.2", "class -1 has no name"),
    (BOX, "0.5 0.5 0.5 0.2 0.2", "class 0.5 has no name"),
    (BOX, "0 0.5 1.01 0.2 0.2", "a coordinate is 1.01, outside 0 to 1"),
    (BOX, "0 0.5 0.5 -0.2 0.2", "a coordinate is -0.2, outside 0 to 1"),
    (BOX, PIXELS, "a coordinate is 320, outside 0 to 1, so these are perhaps pixels"),
    (BOX, b"0 0.5 \xff", "its label file is not text: byte 25 is not UTF-8"),
    (
        POSE,
        "0 0.5 0.5 0.2 0.2 0.1 0.2 2",
        "a line has 8 values; kpt_shape asks for a box of 5, and 3 for each of 2 keypoints",
    ),
    (POSE, "0 0.5 0.5 0.2 0.2 0.1 0.2 2 0.3 0.4 3", "a visibility of 3 is none of 0, 1 and 2"),
    (POSE, "0 0.5 0.5 0.2 0.2 0.1 0.2 2 1.3 0.4 1", "a coordinate is 1.3, outside 0 to 1"),
]


@pytest.mark.parametrize("first", [BOX, POLYGON, POSE])
def test_a_faulty_line_is_reported_with_file_and_line(first: str, tmp_path: Path) -> None:
    wrong = [(text, says) for kind, text, says in WRONG if kind == first]
    extra = "kpt_shape: [2, 3]" if first == POSE else ""
    names = [f"train/b{number:02}" for number in range(len(wrong))]
    data_set(tmp_path / "set", {"train/a": first, **dict.fromkeys(names, "")}, extra=extra)
    for name, (text, _) in zip(names, wrong, strict=True):
        bad = text if isinstance(text, bytes) else text.encode()
        write(tmp_path / "set/labels" / f"{name}.txt", first.replace("0.1", "0.15").encode() + b"\n\n" + bad + b"\n")
    lines = problems(tmp_path / "set").splitlines()[1:]
    assert len(lines) == len(wrong)
    for line, name, (text, says) in zip(lines, names, wrong, strict=True):
        assert f"images/{name}.jpg: {says}" in line
        assert line.endswith(f"(labels/{name}.txt)" if isinstance(text, bytes) else f"(labels/{name}.txt line 3)")
    packed = storeds.pack(tmp_path / "set", f"lmdb://{tmp_path}/skip.lmdb", on_bad="skip")
    assert (packed.count, packed.left_out) == (1, len(wrong))


def test_files_that_do_not_belong_together_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "set"
    data_set(root, dict.fromkeys(("train/a", "train/b", "train/c", "train/d", "train/e"), BOX))
    write(root / "images/train/a.png", jpeg(9))
    write(root / "labels/train/classes.txt", "cat")
    write(root / "labels/train/z.txt", "")
    (root / "labels/train/b.txt").rename(root / "labels/train/b.TXT")
    for name, target in (("c", tmp_path / "outside.txt"), ("d", "nowhere.txt")):
        (root / f"labels/train/{name}.txt").unlink()
        (root / f"labels/train/{name}.txt").symlink_to(target)
    write(tmp_path / "outside.txt", BOX)
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


def test_splits_may_be_lists_of_images(tmp_path: Path) -> None:
    data_set(tmp_path, BOXES)
    write(
        tmp_path / "train.txt",
        "\ufeffimages/train/a.jpg\n./images/train/b.jpg\n\n.\\images\\train\\c.jpg\r\nnotes.md\n",
    )
    write(tmp_path / "lists/val.txt", f"{tmp_path}/images/val/a.jpg\n../images/val/b.jpg\n")
    write(tmp_path / "data.yaml", "train: train.txt\nval: [lists/val.txt, images/train]\nnames: [a, b, c]\n")
    records, bad = read(tmp_path)
    assert [(record["key"], record["split"]) for record in records] == [
        ("images/train/a.jpg", "train"),
        ("images/train/b.jpg", "train"),
        ("images/val/a.jpg", "val"),
        ("images/train/c.jpg", "val"),
    ]
    assert [line.split(";")[0] for line in sorted(bad)] == [
        ".\\images\\train\\c.jpg: cannot be read: No such file or directory",
        "lists/val.txt line 2 (../images/val/b.jpg): the path leads out of " + str(tmp_path),
        "train.txt line 5 (notes.md): ends in none of .jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp",
    ]


@pytest.mark.parametrize("path", [".", "../datasets/set", "moved/away", None])
def test_the_root_is_found(path: str | None, tmp_path: Path) -> None:
    root = tmp_path / "datasets/set"
    data_set(root, {"train/a": ""}, extra="" if path is None else f"path: {path}")
    assert len(read(root / "data.yaml")[0]) == 1
    elsewhere = write(tmp_path / "yamls/set.yaml", "path: datasets\ntrain: images/train\nnames: [a]\n")
    assert len(read(elsewhere, root=root)[0]) == 1
    with pytest.raises(ConfigError, match=r"path is datasets, and no images are there \(tried .*pass root= \(--option"):
        read(elsewhere)


# data.yaml, and the folder and the split of the images. Roboflow's paths lead out of the folder; supervision names none.
@pytest.mark.parametrize(
    ("yaml", "folder", "split"),
    [
        ("train: images/train\nval: images/val\nnames: [cat, dog]", "images/{}", "val"),
        ("train: ../train/images\nval: ../valid/images\nnc: 2\nnames: [cat, dog]", "{}/images", "val"),
        ("train: images/train\nvalidation: images/val\nnames: {0: cat, 1: dog}", "images/{}", "val"),
        (
            "train: images/train\nvalid: images/val\ntest: images/none\nnames: {'1': dog, '0': cat}",
            "images/{}",
            "valid",
        ),
        ("nc: 2\nnames: [cat, dog]", "images/{}", "val"),
        (None, "images/{}", "val"),
    ],
)
def test_splits_of_data_sets_as_programs_write_them(yaml: str | None, folder: str, split: str, tmp_path: Path) -> None:
    second = "valid" if folder == "{}/images" else "val"
    for part in ("train", second):
        write(tmp_path / folder.format(part) / "a.jpg", jpeg())
        write(tmp_path / folder.format(part).replace("images", "labels") / "a.txt", "1 0.5 0.5 0.1 0.1")
    write(*((tmp_path / "classes.txt", "cat\ndog\n\n") if yaml is None else (tmp_path / "data.yaml", yaml)))
    rows = open_source(tmp_path)
    assert rows.attrs["classes"] == ["cat", "dog"]
    assert any("validation is read as val" in note for note in rows.notes) == (
        yaml is not None and "validation" in yaml
    )
    assert any("does not exist, and is left out" in note for note in rows.notes) == (
        yaml is not None and "test" in yaml
    )
    found, _ = read(tmp_path)
    assert [(each["key"], each["split"], len(each["boxes"])) for each in found] == [
        (f"{folder.format('train')}/a.jpg", "train", 1),
        (f"{folder.format(second)}/a.jpg", split, 1),
    ]


def test_labels_may_lie_beside_images(tmp_path: Path) -> None:
    write(tmp_path / "a.jpg", jpeg())
    write(tmp_path / "a.txt", "0 0.5 0.5 0.1 0.1")
    write(tmp_path / "data.yaml", "train: .\nnames: [cat]\n")
    (record,), _ = read(tmp_path)
    assert (record["key"], len(record["boxes"])) == ("a.jpg", 1)


def test_class_names_may_be_given(tmp_path: Path) -> None:
    data_set(tmp_path, BOXES)
    given = ["x", "y", "z"]
    assert open_source(tmp_path, classes=given).attrs["classes"] == given
    assert open_source(tmp_path, classes=write(tmp_path / "own.txt", "x\ny\nz\n")).attrs["classes"] == given


def test_missing_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        read(tmp_path / "none.yaml")
    with pytest.raises(StoreNotFoundError, match="is not a folder"):
        read(tmp_path, root=tmp_path / "none")


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        (
            "names: [a]",
            "names no images: expected a data.yaml with train, val or test, the folders of the images, and names",
        ),
        ("", "names no images"),
        (
            "train: pictures/train",
            r"gives no class names; name them in data.yaml, in classes.txt .* \(--classes cat,dog\)",
        ),
        ("train: pictures/train\nnames: 5", r"is not as Ultralytics reads it: .*at `\$.names`"),
        ("train: pictures/train\nnames: /etc/hostname", r"got a text - at `\$.names`"),
        ("train: pictures/none\nnames: [a]", "nothing exists at .*pictures/none"),
        ("train: pictures/empty\nnames: [a]", "train has no images in pictures/empty"),
        ("train: pictures/train\nnames: {0: a, 2: b}", "the keys of names are 0, 2; expected 0 to 1"),
        ("train: pictures/train\nnames: [a, no]", r"got true or false - at `\$.names\[1\]`; quote names such as 'no'"),
        ('train: pictures/train\nnames: "\\ud800"', "is not as Ultralytics reads it: .* surrogates not allowed"),
        ("train: pictures/train\nnames: [a, a]", "'a' is listed twice"),
        ("train: pictures/train\nnames: [a]\nnc: 2", "nc is 2, but names has 1"),
        (
            "train: pictures/train\nnames: [a]\nkpt_shape: 17",
            r"got an integer - at `\$.kpt_shape`",
        ),
        (f"train: pictures/train\nnames: [a]\nkpt_shape: [{10**19}, 3]", r"at `\$.kpt_shape\[0\]`"),
        ("train: ../other\nnames: [a]", r"leads out of .*pass allow_outside=True"),
        ("train: 7\nnames: [a]", r"got an integer - at `\$.train`"),
        (
            "train: pictures/train\nnames: [a]",
            "none of the 1 image has a label file; expected, for example, pictures/train/a",
        ),
        ("train: pictures/train\nnames: [cat, dog", r"data\.yaml: line 3"),
    ],
)
@pytest.mark.parametrize("name", ["data.yaml", "."])
def test_a_faulty_data_yaml_is_refused(yaml: str, says: str, name: str, tmp_path: Path) -> None:
    write(tmp_path / "other/a.jpg", jpeg())
    write(tmp_path / "set/pictures/train/a.jpg", jpeg())
    (tmp_path / "set/pictures/empty").mkdir()
    write(tmp_path / "set/data.yaml", f"\n{yaml}\n" if yaml else "{}")
    with pytest.raises(ConfigError, match=says):
        open_source(tmp_path / "set" / name, kind="yolo")


def test_only_a_data_yaml_needs_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "storeds.config.yaml_text", None)
    write(tmp_path / "cat/a.jpg", jpeg())
    write(tmp_path / "conda.yaml", "name: x")
    assert open_source(tmp_path).attrs["classes"] == ["cat"]
    data_set(tmp_path / "set", BOXES)
    with pytest.raises(MissingDependencyError, match=r"pip install 'storeds\[yaml\]'"):
        open_source(tmp_path / "set")


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
