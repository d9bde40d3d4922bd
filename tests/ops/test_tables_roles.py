"""Lists with more than one image and one label a row: further images, masks, captions, boxes, several labels."""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import storeds
from _verdicts import declared, unjudged
from mask_files import FORMS, class_ids, encode_mask, mask, pixels_of, write
from photographs import jpeg
from storeds.cli import app
from storeds.errors import ConfigError, RecordError
from storeds.ops.packing.sources import ManifestSource
from storeds.protocols import Field

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
IMAGE, MASK, KEY = Field("image", role="image"), Field("image", role="mask"), Field("str")
LABELS = Field("array", "<i8", (None,), "labels")


def records(url: str) -> list[dict[str, Any]]:
    with storeds.open_backend(url) as backend:
        return unjudged(backend.get_many(range(len(backend))))


def column(url: str, name: str) -> list[Any]:
    """Return a field of every record, arrays as lists."""
    values = [record[name] for record in records(url)]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with six photographs, and a mask of each."""
    return write(tmp_path / "data", {f"{n}.jpg": n for n in range(6)} | {f"m/{n}.png": n for n in range(6)})


@pytest.mark.parametrize("engine", ENGINES)
def test_several_images_a_row(root: Path, engine: str, make_engine_url: MakeUrl) -> None:
    rows = [("0.jpg", "1.jpg", 0.5), ("0.jpg", "2.jpg", 1.5), ("3.jpg", "3.jpg", 2)]
    file, url = write_csv(root / "pairs.csv", ["left", "Right", "distance"], rows), make_engine_url(engine)
    meta = storeds.pack(file, url, image_columns=["left", "Right"])
    assert declared(meta) == {"left": IMAGE, "right": IMAGE, "key": KEY, "distance": Field("float")}
    assert meta.columns == {"left": "left", "Right": "right", "distance": "distance"}
    assert column(url, "left") == [jpeg(0), jpeg(0), jpeg(3)]
    assert column(url, "right") == [jpeg(1), jpeg(2), jpeg(3)]
    assert column(url, "key") == ["0.jpg", "0.jpg", "3.jpg"]
    assert storeds.verify(url).ok


def test_several_images_are_detected_in_a_list_without_a_usual_name(root: Path, tmp_path: Path) -> None:
    rows = [("0.jpg", "1.jpg", "same"), ("2.jpg", "3.jpg", "other")]
    file = write_csv(root / "pairs.csv", ["anchor", "positive", "label"], rows)
    meta = storeds.pack(file, f"lmdb://{tmp_path}/a.lmdb")
    assert list(declared(meta)) == ["anchor", "positive", "label", "key"]
    assert meta.fields["label"].role == "label"
    assert meta.attrs["classes"] == ["other", "same"]
    with pytest.raises(ConfigError, match="none of its columns 'anchor', 'label' is one of path"):
        ManifestSource(write_csv(root / "one.csv", ["anchor", "label"], [("0.jpg", "a")]))


def test_a_list_with_a_usual_column_of_paths_stays_as_it_was(root: Path) -> None:
    rows = [("0.jpg", "1.jpg", "a", "a cat"), ("2.jpg", "3.jpg", "b", "a dog")]
    source = ManifestSource(write_csv(root / "a.csv", ["path", "thumbnail", "label", "caption"], rows))
    text = Field("str")
    assert source.fields == {
        "image": Field("image"),
        "label": Field("int"),
        "key": text,
        "thumbnail": text,
        "caption": text,
    }
    assert source.notes == (
        "column 'thumbnail' contains paths of images, which are stored as text; image_columns= (--image-columns "
        "path,thumbnail) packs these images too",
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_masks_beside_images(tmp_path: Path, form: str, engine: str, make_engine_url: MakeUrl) -> None:
    files = {f"{n}.png": mask(n, form) for n in range(3)}
    root = write(tmp_path / "data", {**{f"{n}.jpg": n for n in range(3)}, **files})
    rows = [{"image": f"{n}.jpg", "mask_path": f"{n}.png", "height": 64} for n in range(3)]
    url = make_engine_url(engine)
    meta = storeds.pack(write_jsonl(root / "a.jsonl", rows), url, classes=list("abcd"), ignore_index=255)
    assert declared(meta) == {"image": IMAGE, "mask": MASK, "key": KEY, "height": Field("int")}
    source = {"kind": "jsonl", "file": "a.jsonl"}
    assert meta.attrs == {"classes": list("abcd"), "ignore_index": 255, "source": source}
    for number, record in enumerate(records(url)):
        assert record["mask"] == files[f"{number}.png"]
        ids = class_ids(number)
        np.testing.assert_array_equal(pixels_of(record["mask"]), ids > 0 if form == "1" else ids)


def test_which_columns_are_masks(root: Path) -> None:
    rows = [("0.jpg", "m/0.png", "m/1.png")]
    file = write_csv(root / "a.csv", ["path", "mask", "parts"], rows)
    assert list(ManifestSource(file).fields) == ["image", "mask", "key", "parts"]
    assert ManifestSource(file).fields["parts"].kind == "str"
    both = ManifestSource(file, mask_columns=["mask", "parts"])
    assert both.fields == {"image": IMAGE, "mask": MASK, "parts": MASK, "key": KEY}
    assert both.read(0) == {"image": jpeg(0), "mask": mask(0), "parts": mask(1), "key": "0.jpg"}
    assert pickle.loads(pickle.dumps(both)).read(0) == both.read(0)
    one = ManifestSource(file, mask_columns=["parts"], label_column="mask")
    assert one.fields["mask"] == MASK
    assert one.attrs["classes"] == ["m/0.png"]
    none = ManifestSource(file, mask_columns=[], label=False)
    assert none.fields["mask"] == Field("str")
    # Run-length encodings are not paths.
    assert (
        ManifestSource(write_csv(root / "b.csv", ["path", "mask"], [("0.jpg", "1 3 7 2")]), label=False).fields["mask"]
        == KEY
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_images_with_captions(root: Path, engine: str, make_engine_url: MakeUrl) -> None:
    file = write_csv(
        root / "a.csv", ["image", "Caption", "year"], [("0.jpg", "A cat, asleep", 2001), ("1.jpg", "", 2002)]
    )
    url = make_engine_url(engine)
    meta = storeds.pack(file, url)
    assert declared(meta) == {"image": IMAGE, "key": KEY, "caption": Field("str", role="text"), "year": Field("int")}
    assert column(url, "caption") == ["A cat, asleep", ""]
    captions = [["A cat", "Une sieste"], [], ["b"]]
    rows = [{"path": f"{n}.jpg", "label": n, "captions": texts} for n, texts in enumerate(captions)]
    meta = storeds.pack(write_jsonl(root / "b.jsonl", rows), url, overwrite=True, caption_columns=["captions"])
    assert meta.fields["captions"] == Field("json", role="text")
    assert meta.fields["label"] == Field("int", role="label")
    assert column(url, "captions") == captions


def test_captions_without_labels_are_no_error_only_if_nothing_looks_like_labels(root: Path) -> None:
    file = write_csv(root / "a.csv", ["image", "text", "note"], [("0.jpg", "a cat", "x")])
    assert ManifestSource(file).fields["text"].role == "text"
    assert ManifestSource(file, label=False).fields["text"].role is None
    with pytest.raises(ConfigError, match="no column looks like labels"):
        ManifestSource(write_csv(root / "b.csv", ["image", "note"], [("0.jpg", "x")]))


@pytest.mark.share(4)
@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("engine", ENGINES)
def test_boxes(root: Path, form: str, engine: str, make_engine_url: MakeUrl) -> None:
    boxes = [[[1.25, 2, 30, 40], [0.1, 0, 9, 8]], [], [[3, 4, 20, 30]]]
    labels = [["cat", "cat"], [], ["dog"]]
    rows = [{"image": f"{n}.jpg", "bbox": boxes[n], "labels": labels[n], "area": [1.5]} for n in range(3)]
    url = make_engine_url(engine)
    meta = storeds.pack(write_jsonl(root / "a.jsonl", rows), url, box_format=form)
    assert meta.fields["boxes"] == Field("array", "<f8", (None, 4), "boxes", form)
    assert meta.fields["labels"] == LABELS
    assert meta.attrs["classes"] == ["cat", "dog"]
    assert column(url, "boxes") == boxes
    assert column(url, "labels") == [[0, 0], [], [1]]
    assert storeds.verify(url).ok


def test_one_box_a_row_and_boxes_in_csv(root: Path, tmp_path: Path) -> None:
    rows = [{"image": "0.jpg", "box": [0.1, 0.2, 0.3, 0.4], "label": "cat"}]
    source = ManifestSource(
        write_jsonl(root / "a.jsonl", rows), box_column="box", box_format="cxcywh", box_relative=True
    )
    assert source.fields["boxes"] == Field("array", "<f8", (None, 4), "boxes", "cxcywh", True)
    assert source.read(0)["boxes"].tolist() == [[0.1, 0.2, 0.3, 0.4]]
    assert source.read(0)["label"] == 0
    file = write_csv(root / "a.csv", ["image", "boxes"], [("0.jpg", "[[1, 2, 3, 4], [5, 6, 7, 8]]"), ("1.jpg", "[]")])
    source = ManifestSource(file, box_format="xyxy")
    assert [source.read(at)["boxes"].tolist() for at in (0, 1)] == [[[1, 2, 3, 4], [5, 6, 7, 8]], []]


def test_boxes_without_a_format_stay_json_with_a_note(root: Path) -> None:
    rows = [{"image": "0.jpg", "bbox": [[1, 2, 3, 4]], "label": 0}]
    source = ManifestSource(write_jsonl(root / "a.jsonl", rows))
    assert source.fields["bbox"] == Field("json")
    assert source.notes == (
        "column 'bbox' is stored as JSON; if it contains boxes, box_format= (--box-format) stores them as such",
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_several_labels_in_one_cell(root: Path, engine: str, make_engine_url: MakeUrl) -> None:
    rows = [("0.jpg", "dog;cat"), ("1.jpg", " cat "), ("2.jpg", ""), ("3.jpg", "emu;")]
    file, url = write_csv(root / "a.csv", ["image", "tags"], rows), make_engine_url(engine)
    meta = storeds.pack(file, url, label_column="tags", label_separator=";")
    assert declared(meta) == {"image": IMAGE, "labels": LABELS, "key": KEY}
    assert meta.attrs["classes"] == ["cat", "dog", "emu"]
    assert column(url, "labels") == [[1, 0], [0], [], [2]]
    meta = storeds.pack(
        file, url, label_column="tags", label_separator=";", classes=["emu", "dog", "cat"], overwrite=True
    )
    assert column(url, "labels") == [[1, 2], [2], [], [0]]


def test_several_labels_as_integers_and_lists(root: Path) -> None:
    source = ManifestSource(
        write_csv(root / "a.csv", ["image", "label"], [("0.jpg", "3|1"), ("1.jpg", "")]), label_separator="|"
    )
    assert source.read(0)["labels"].tolist() == [3, 1]
    assert "classes" not in source.attrs
    rows: list[dict[str, Any]] = [
        {"image": "0.jpg", "label": None},
        {"image": "1.jpg", "label": ["b", "a"]},
        {"image": "2.jpg", "label": []},
    ]
    source = ManifestSource(write_jsonl(root / "a.jsonl", rows[1:]))
    assert [source.read(at)["labels"].tolist() for at in (0, 1)] == [[1, 0], []]
    assert [problem.reason for problem in ManifestSource(write_jsonl(root / "b.jsonl", rows)).problems] == [
        "its labels in 'label' are a NoneType; expected a list"
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_hot_labels(root: Path, engine: str, make_engine_url: MakeUrl) -> None:
    rows = [("0.jpg", 1, 0, "1.0", "x"), ("1.jpg", 0, 0, 0, "y"), ("2.jpg", "True", "false", 1, "z")]
    file, url = write_csv(root / "a.csv", ["image", "cat", "dog", "emu", "note"], rows), make_engine_url(engine)
    meta = storeds.pack(file, url, label_columns=["emu", "dog", "cat"])
    assert declared(meta) == {"image": IMAGE, "labels": LABELS, "key": KEY, "note": Field("str")}
    assert meta.columns == {"image": "image", "cat": "labels", "dog": "labels", "emu": "labels", "note": "note"}
    assert meta.attrs["classes"] == ["emu", "dog", "cat"]
    assert column(url, "labels") == [[0, 2], [], [0, 2]]


def problems(file: Path, **options: Any) -> list[str]:
    """Return the lines of the error of a pack."""
    with pytest.raises(RecordError) as error:
        storeds.pack(file, f"lmdb://{file.parent}/bad.lmdb", **options)
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def test_bad_rows_of_images_and_masks(root: Path) -> None:
    write(root, {"small.png": mask(0, size=(9, 9)), "rgb.png": encode_mask(np.zeros((64, 96, 3), np.uint8))})
    ids = class_ids(5)
    ids[0] = 7
    write(root, {"seven.png": encode_mask(ids)})
    rows = [
        ("0.jpg", "1.jpg", "m/0.png"),
        ("0.jpg", "", "m/0.png"),
        ("0.jpg", "none.jpg", "m/0.png"),
        ("0.jpg", "../x.jpg", "m/0.png"),
        ("0.jpg", "1.jpg", "m/0.png"),
        ("1.jpg", "1.jpg", "small.png"),
        ("2.jpg", "1.jpg", "rgb.png"),
        ("5.jpg", "1.jpg", "seven.png"),
        ("3.jpg", "1.jpg", "m/none.png"),
        ("none.jpg", "1.jpg", "m/0.png"),
    ]
    file = write_csv(root / "a.csv", ["left", "right", "mask"], rows)
    found = problems(file, image_columns=["left", "right"], classes=list("abcd"))
    expected = {
        3: "no path is given in 'right'",
        5: "its right ../x.jpg: the path leads out of",
        6: "the path is already listed at a.csv line 2",
        4: "its right none.jpg cannot be read: No such file",
        7: "its mask small.png cannot be used: field 'mask': the mask has 9 × 9 pixels",
        8: "its mask rgb.png cannot be used: field 'mask': a mask has one channel",
        9: "its mask seven.png contains class ids without a name: 7;",
        10: "its mask m/none.png cannot be read: No such file",
        11: "cannot be read: No such file",
    }
    assert len(found) == len(expected)
    for (line, reason), text in zip(expected.items(), found, strict=True):
        assert text.startswith(f"a.csv line {line} ("), text
        assert f": {reason}" in text
    packed = storeds.pack(
        file, f"lmdb://{root}/a.lmdb", image_columns=["left", "right"], classes=list("abcd"), on_bad="skip"
    )
    assert (packed.count, packed.left_out) == (1, 9)


def test_bad_boxes_and_labels(root: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"boxes": [[1, 2, 30, 40]], "labels": [0]},
        {"boxes": [[30, 2, 1, 40]], "labels": [0]},
        {"boxes": [[1, 2, 3]], "labels": [0]},
        {"boxes": "[", "labels": [0]},
        {"boxes": None, "labels": []},
        {"boxes": [[1, 2, 30, 40]], "labels": [0, 1]},
        {"boxes": [[200, 2, 300, 40]], "labels": [0]},
        {"boxes": [[1, 2, 30, float("nan")]], "labels": [0]},
        {"boxes": [[1, 2, 30, 40]], "labels": [2]},
        {"boxes": [[1, 2, 30, 40]], "labels": [True]},
        {"boxes": [[1, 2, 30, 40]], "labels": 1},
    ]
    write(root, {f"b{n}.jpg": n for n in range(len(rows))})
    file = write_jsonl(root / "a.jsonl", [{"image": f"b{n}.jpg", **row} for n, row in enumerate(rows)])
    found = problems(file, box_format="xyxy", classes=["cat", "dog"])
    expected = {
        2: "has a negative width",
        3: "shape (n, 4)",
        4: "its boxes is not JSON",
        5: "no boxes are given in 'boxes'; write [] for an image without boxes",
        8: "is not finite",
        10: "one of its labels in 'labels' is True; expected class names or whole numbers",
        11: "its labels in 'labels' are a int; expected a list",
        9: "label 2 is outside the 2 classes given",
        6: "field 'labels' has 2 rows, and field 'boxes' has 1 boxes",
        7: "lies outside the image of 96 × 64 pixels",
    }
    assert len(found) == len(expected), found
    for (line, reason), text in zip(expected.items(), found, strict=True):
        assert text.startswith(f"a.jsonl line {line} ("), text
        assert reason in text, text


def test_bad_labels_of_several(root: Path) -> None:
    rows = [("0.jpg", "a;a", 2), ("1.jpg", "x;b", ""), ("2.jpg", "a;b", 1)]
    file = write_csv(root / "a.csv", ["image", "label", "cat"], rows)
    assert problems(file, label_separator=";", classes=["a", "b"]) == [
        "a.csv line 2 (0.jpg): label 'a' is listed twice in 'label'",
        "a.csv line 3 (1.jpg): unknown label 'x'; the classes are a, b",
    ]
    assert problems(file, label_columns=["cat"]) == [
        "a.csv line 2 (0.jpg): its cat is '2'; expected 0 or 1",
        "a.csv line 3 (1.jpg): its cat is ''; expected 0 or 1",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_columns": ["left", "rigth"]}, "image_columns names 'rigth'; did you mean 'right'"),
        ({"image_columns": "left"}, "image_columns='left' must be a list of columns"),
        ({"image_columns": ["left", "left"]}, "column 'left' is given for two purposes"),
        ({"image_columns": ["left"], "path_column": "right"}, "path_column='right' is not the first of image_columns"),
        ({"mask_columns": ["masks"]}, "mask_columns names 'masks'"),
        ({"caption_columns": ["left"]}, "column 'left' is given for two purposes"),
        ({"box_column": "right"}, r"boxes need box_format= \(--box-format\): xyxy for left, top"),
        ({"box_relative": True}, "boxes need box_format="),
        ({"box_format": "xxyy"}, "box_format='xxyy'; did you mean 'xyxy'"),
        ({"box_format": "xyxy"}, "no column is named boxes, bbox, bboxes"),
        ({"label_columns": []}, "label_columns is empty"),
        ({"label_columns": ["cat"], "label_column": "cat"}, "label_column and label_columns contradict"),
        ({"label_columns": ["cat"], "classes": ["a"]}, "the names of label_columns are the classes"),
        ({"label_separator": ""}, "label_separator='' is empty"),
        ({"label_separator": ";", "label": False}, "label_separator=';' needs labels"),
    ],
)
def test_options_that_do_not_fit(root: Path, options: dict[str, Any], message: str) -> None:
    file = write_csv(root / "a.csv", ["left", "right", "cat", "label"], [("0.jpg", "1.jpg", 1, "a")])
    given = {"image_columns": ["left", "right"], **options}
    if options.get("label_separator") == "":
        given["label_column"] = "label"
    with pytest.raises(ConfigError, match=message):
        ManifestSource(file, **given)


def test_a_list_of_everything_has_one_id(root: Path, tmp_path: Path) -> None:
    rows = [
        {
            "path": f"{n}.jpg",
            "depth": f"{n}.jpg",
            "mask": f"m/{n}.png",
            "captions": [f"number {n}"],
            "boxes": [[0, 0, n, n]],
            "labels": ["a"],
            "score": n / 7,
        }
        for n in range(6)
    ]
    file = write_jsonl(root / "a.jsonl", rows)
    options: dict[str, Any] = {
        "image_columns": ["path", "depth"],
        "caption_columns": ["captions"],
        "box_format": "xyxy",
        "on_bad": "raise",
    }
    ids = {
        storeds.pack(file, f"{engine}://{tmp_path}/{workers}.{engine}", workers=workers, **options).id
        for engine in ("lmdb", "hdf5")
        for workers in (0, 2)
    }
    assert len(ids) == 1
    source = ManifestSource(file, **{name: value for name, value in options.items() if name != "on_bad"})
    names = ["path", "depth", "mask", "labels", "key", "captions", "boxes", "score"]
    assert list(source.fields) == names
    assert source.size(0) == len(jpeg(0)) * 2 + len(mask(0))


def test_the_command_line(root: Path, tmp_path: Path) -> None:
    rows = [("0.jpg", "1.jpg", "x", "m/0.png", "a|b", "[1,2,3,4]"), ("2.jpg", "3.jpg", "y", "m/2.png", "b", "[]")]
    file = write_csv(root / "a.csv", ["left", "right", "say", "seg", "tags", "box"], rows)
    command = ["pack", str(file), f"{tmp_path}/a.lmdb", "--image-columns", "left, right", "--caption-columns", "say"]
    command += ["--mask-columns", "seg", "--label-column", "tags", "--label-separator", "|"]
    command += ["--box-column", "box", "--box-format", "xywh", "--classes", "b,a,c"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 3, run.stderr
    assert "field 'labels' has 2 rows, and field 'boxes' has 1 boxes" in run.stderr
    run = CliRunner().invoke(app, [*command, "--on-bad", "skip", "--box-relative"])
    assert run.exit_code == 0, run.stderr
    hot = write_csv(root / "b.csv", ["image", "cat", "dog"], [("0.jpg", 1, 0)])
    run = CliRunner().invoke(app, ["pack", str(hot), f"{tmp_path}/b.lmdb", "--label-columns", "cat,dog"])
    assert run.exit_code == 0, run.stderr
    assert column(f"{tmp_path}/b.lmdb", "labels") == [[0]]
    file = write_csv(root / "c.csv", ["image", "mask"], [("0.jpg", "m/0.png")])
    run = CliRunner().invoke(app, ["pack", str(file), f"{tmp_path}/c.lmdb", "--mask-columns", "", "--no-label"])
    assert run.exit_code == 0, run.stderr
    assert column(f"{tmp_path}/c.lmdb", "mask") == ["m/0.png"]
