"""Every source of `pack` in one table: files on the disk, and the records, notes and bad items that `pack` makes of them."""

from __future__ import annotations

import datetime
import io
import json
import os
import tempfile
from collections.abc import Mapping
from csv import QUOTE_ALL, QUOTE_MINIMAL, field_size_limit
from csv import writer as csv_writer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _packing import Source, stored_records, storeds_command, storeds_json
from _source_cases import (
    FLAGS,
    FLOAT,
    FOLDER,
    FOLDERS,
    IMAGE,
    INT,
    JSON,
    LABELS,
    MASK,
    MASKS,
    OF_MASKS,
    PHOTOS,
    PLAIN,
    STR,
    TARS,
    TEXT,
    TEXTS,
    SourceCase,
)
from _source_files import NAMES, jsonl, table, tar, thing, voc, yolo
from _verdicts import declared
from mask_files import mask, write
from photographs import jpeg
from shares import examples
from storeds import errors
from storeds.formats import Bad, open_source
from storeds.protocols import Field


def csv(text: str, fields: dict[str, Field], records: dict[str, list[Any]], **more: Any) -> SourceCase:
    """Return the case of a CSV file beside four photographs and their masks."""
    files = {**PHOTOS, **MASKS, "a.csv": text, **more.pop("files", {})}
    return SourceCase(files, fields, records, **{"source": "a.csv", **more})


def json_lines(*rows: Mapping[str, Any], fields: dict[str, Field], **more: Any) -> SourceCase:
    return csv("", fields, more.pop("records"), source="a.jsonl", files={"a.jsonl": jsonl(*rows)}, **more)


LISTS = {
    "labels, keys and other columns": csv(
        'Split Name,path,label,count,score,code,exact\ntrain,0.jpg,dog,1,1.5,007,9007199254740993\n"a, b",1.jpg,cat ,-2,2,1,1\n'
        ",2.jpg,dog,3,.5,x,2\n",
        {**FOLDER, "split_name": STR, "count": INT, "score": FLOAT, "code": STR, "exact": INT},
        {
            **{"label": [1, 0, 1], "key": ["0.jpg", "1.jpg", "2.jpg"], "split_name": ["train", "a, b", ""]},
            **{"count": [1, -2, 3], "score": [1.5, 2.0, 0.5], "code": ["007", "1", "x"], "exact": [9007199254740993, 1, 2]},
        },
        attrs={"classes": ["cat", "dog"]},
    ),
    "kinds of JSON": json_lines(
        {"path": "0.jpg", "i": 1, "f": 1, "b": True, "s": "x", "o": {"k": [1]}, "m": 1, "n": None, "big": 2**70},
        {"path": "1.jpg", "i": -(2**60), "f": 0.5, "b": False, "s": "1", "o": [], "m": "1", "late": 1},
        options={"label": False},
        fields={
            **{"image": PLAIN, "key": STR, "i": INT, "f": FLOAT, "b": Field("bool"), "s": STR},
            **dict.fromkeys(("o", "m", "n", "big", "late"), JSON),
        },
        records={
            **{"i": [1, -(2**60)], "f": [1.0, 0.5], "b": [True, False], "s": ["x", "1"], "o": [{"k": [1]}, []]},
            **{"m": [1, "1"], "n": [None, None], "big": [2**70, None], "late": [None, 1]},
        },
        notes=("column 'late' is stored as json, not int, because 1 of its 2 cells are empty",),
    ),
    "several images, a mask, captions, several labels": json_lines(
        *(
            {"path": f"{n}.jpg", "depth": f"{n}.jpg", "mask": f"m/{n}.png", "captions": [f"no {n}"], "labels": ["b", "a"][n:]}
            for n in range(2)
        ),
        options={"image_columns": ["path", "depth"], "caption_columns": ["captions"]},
        fields={"path": IMAGE, "depth": IMAGE, "mask": MASK, "labels": LABELS, "key": STR, "captions": TEXTS},
        records={
            **{"depth": [jpeg(0), jpeg(1)], "mask": [mask(0), mask(1)], "captions": [["no 0"], ["no 1"]]},
            "labels": [[1, 0], [0]],
        },
        attrs={"classes": ["a", "b"]},
    ),
    "class names of masks; more paths are text": json_lines(
        *({"image": f"{n}.jpg", "mask_path": f"m/{n}.png", "small": f"{n}.jpg"} for n in range(2)),
        options={"classes": list("abcd"), "ignore_index": 255},
        fields={"image": IMAGE, "mask": MASK, "key": STR, "small": STR},
        records={"mask": [mask(0), mask(1)]},
        notes=("column 'small' contains paths of images, which are stored as text; image_columns= (--option image_columns=image,small)",),
        attrs={"classes": list("abcd"), "ignore_index": 255},
    ),
    "captions, and masks as text": csv(
        'image,Caption,mask\n0.jpg,"A cat, asleep",m/0.png\n1.jpg,,m/1.png\n',
        {"image": IMAGE, "key": STR, "caption": TEXT, "mask": STR},
        {"caption": ["A cat, asleep", ""], "mask": ["m/0.png", "m/1.png"]},
        options={"mask_columns": []},
        notes=("column 'mask' contains paths of images",),
    ),
    "one image in two rows": csv(
        "name| caption\n0.jpg| a\n1.jpg| b\n./0.jpg| c\n",
        {"image": IMAGE, "key": STR, "caption": TEXT},
        {"key": ["0.jpg", "1.jpg"], "caption": ["a", "b"]},
        options={"delimiter": "|", "skipinitialspace": True, "caption_columns": "caption", "path_column": "name"},
        bad=("a.csv line 4 (./0.jpg): the path is already listed at a.csv line 2",),
    ),
    "several labels in a cell": csv(
        "image,tags\n0.jpg,dog;cat\n1.jpg, cat \n2.jpg,\n3.jpg,emu;\n",
        {"image": IMAGE, "labels": LABELS, "key": STR},
        {"labels": [[1, 2], [2], []]},
        options={"label_column": "tags", "label_separator": ";", "classes": ["x", "dog", "cat"]},
        bad=("a.csv line 5 (3.jpg): unknown label 'emu'; the classes are x, dog, cat",),
        attrs={"classes": ["x", "dog", "cat"]},
    ),
    "bad lines of CSV": csv(
        'path,label,x\n1.jpg,a,1\n2.jpg, ,1\n,a,1\n./1.jpg,b,1\n../out.jpg,a,1\n/etc/passwd,a,1\n3.jpg,a\n3\0.jpg,a,1\n"3.jpg"x,a,1\n'
        f"gone.jpg,a,1\n{'n' * 300},a,1\nbroken.jpg,a,1\n3.jpg,emu,1\na\\b.jpg,a,1\n\"open,a,1",
        {**FOLDER, "x": INT},
        {"key": ["1.jpg"], "label": [0], "x": [1]},
        options={"classes": ["a", "b", "emus"]},
        files={"broken.jpg": "not an image"},
        bad=(
            "a.csv line 3 (2.jpg): no label is given in 'label'",
            "a.csv line 4: no path is given",
            "a.csv line 5 (./1.jpg): the path is already listed at a.csv line 2",
            "a.csv line 6 (../out.jpg): the path leads out of ",
            "a.csv line 7 (/etc/passwd): the path is absolute, but paths are relative to ",
            "a.csv line 8: has 2 columns instead of 3",
            "a.csv line 9 (3\\x00.jpg): its path contains a NUL character",
            "a.csv line 10: is not CSV: ',' expected after",
            "a.csv line 11 (gone.jpg): cannot be read: No such file or directory",
            f"a.csv line 12 ({'n' * 300}): cannot be read: File name too long",
            "a.csv line 13 (broken.jpg): cannot be read as an image (12 bytes beginning 6e 6f 74 20)",
            "a.csv line 14 (3.jpg): unknown label 'emu'; did you mean 'emus'?",
            "a.csv line 15 (a\\b.jpg): cannot be read: No such file or directory; folders are separated by /",
            "a.csv line 16: is not CSV: unexpected end of data; is a quote opened and not closed?",
        ),
        attrs={"classes": ["a", "b", "emus"]},
    ),
    "bad lines of JSONL": csv(
        "",
        {**FOLDER, "x": JSON},
        {"key": ["1.jpg"]},
        source="a.jsonl",
        files={
            "a.jsonl": '{"path": "1.jpg", "label": 1, "x": 1}\n{"path": "2.jpg",,}\n["3.jpg"]\n{"path": "4.jpg", "x": 1}\n{"label": 1}\n'
            '{"path": 7, "label": 1}\n{"path": "8.jpg", "label": true}\n{"path": "9\\ud800.jpg", "label": 1}\n'
            f'{{"path": "2.jpg", "label": 1, "x": [NaN]}}\n{{"path": "14.jpg", "x": {"[" * 100_000}'
        },
        bad=(
            "a.jsonl line 2: is not JSON that can be stored: Expecting property name",
            "a.jsonl line 3: is a JSON list; expected an object with a path",
            "a.jsonl line 4 (4.jpg): no label is given in 'label'",
            "a.jsonl line 5: no path is given",
            "a.jsonl line 6: its path is a int, not text",
            "a.jsonl line 7 (8.jpg): 'label' has [True]; a label is a class name or a whole number",
            "a.jsonl line 8: contains half of a surrogate pair",
            "a.jsonl line 9 (2.jpg): its x cannot be stored: JSON has no nan",
            "a.jsonl line 10: is not JSON that can be stored: maximum recursion depth",
        ),
    ),
}  # fmt: skip


TABLES = {
    "Parquet": SourceCase(
        {
            "a.parquet": table(
                **{"label": ["dog", "cat", None], "count": [1, None, 3], "vector": [[1.0, 2.0]] * 3, "words": [["a"], [], None]},
                **{"score": [1.5, 2, 3], "nothing": [None] * 3, "day": [datetime.date(2020, 1, n + 1) for n in range(3)]},
            )
        },
        {
            **{"image": PLAIN, "label": INT, "count": JSON, "vector": Field("array", "<f8", (None,)), "words": JSON},
            **{"score": FLOAT, "day": STR},
        },
        {
            **{"image": [jpeg(0), jpeg(1)], "label": [1, 0], "count": [1, None], "vector": [[1, 2]] * 2, "words": [["a"], []]},
            **{"score": [1.5, 2], "day": ["2020-01-01", "2020-01-02"]},
        },
        source="a.parquet",
        bad=("row 2: its label None is not one of the 2 classes; --no-label packs without labels",),
        attrs={"classes": ["cat", "dog"]},
    ),
    "Parquet in splits": SourceCase(
        {f"data/{split}-00000-of-00001.parquet": table(label=[n, 1]) for n, split in enumerate(("test", "train"))},
        {"image": PLAIN, "label": INT, "split": STR},
        {"image": [jpeg(0), jpeg(1)] * 2, "label": [1, 1, 0, 1], "split": ["train"] * 2 + ["test"] * 2},
    ),
}  # fmt: skip
BOXES = Field("array", "<f8", (None, 4), "boxes", "cxcywh", relative=True)
OF_YOLO = {"image": IMAGE, "boxes": BOXES, "labels": LABELS, "key": STR}
YOLO_SPLITS = {"image": IMAGE, "boxes": BOXES, "labels": LABELS, "split": STR, "key": STR}
YOLO = {
    "boxes": SourceCase(
        yolo(
            {"train/a": "0 0.5 0.50 0.25 0.125\n1 0.12345678 .3 1e-1 0.2\n0 0.5 .5 0.25 0.125", "train/b": None, "val/a": "1 1 1 1e-3 .5\r\n\r\n"},
            "train: images/train\nvalidation: images/val\ntest: images/none",
        ),
        YOLO_SPLITS,
        {
            **{"key": ["images/train/a.jpg", "images/train/b.jpg", "images/val/a.jpg"], "split": ["train", "train", "val"]},
            **{"labels": [[0, 1], [], [1]], "boxes": [[[0.5, 0.5, 0.25, 0.125], [0.12345678, 0.3, 0.1, 0.2]], [], [[1, 1, 0.001, 0.5]]]},
        },
        notes=(
            "validation is read as val, as Ultralytics reads it",
            "test is images/none, which does not exist, and is left out",
            "1 image has no label file, and so no objects",
            "1 repeated line is left out of label files, such as labels/train/a.txt",
        ),
    ),
    "polygons": SourceCase(
        yolo({"train/a": "0 0 0 1 0 1 1 0 1\n", "train/b": "0 0.5 0.5 0.2 0.2"}),
        {"image": IMAGE, "boxes": BOXES, "labels": LABELS, "masks": Field("json", role="mask", format="coco", relative=True), "key": STR},
        {"masks": [[[[0, 0, 1, 0, 1, 1, 0, 1]]]], "boxes": [[[0.5, 0.5, 1, 1]]], "labels": [[0]]},
        bad=("images/train/b.jpg: a line has 5 values; the first line of the data set is a polygon, of a class and three or more points",),
    ),
    "poses": SourceCase(
        yolo({"train/a": "0 0.5 0.5 0.2 0.2 0.1 0.2 2 0 0 0", "train/b": "0 0.5 0.5 0.2 0.2 0.1"}, "train: images/train\nkpt_shape: [2, 3]\nflip_idx: [1, 0]"),
        {"image": IMAGE, "boxes": BOXES, "labels": LABELS, "keypoints": Field("array", "<f8", (None, 2, 3), "keypoints", relative=True), "key": STR},
        {"keypoints": [[[[0.1, 0.2, 2], [0, 0, 0]]]]},
        bad=("images/train/b.jpg: a line has 6 values; kpt_shape asks for a box of 5, and 3 for each of 2 keypoints (labels/train/b.txt",),
        attrs={"flip_idx": [1, 0]},
    ),
    "everything wrong": SourceCase(
        yolo(
            {
                "train/0": "0 0.5 0.5 0.2 0.2", "train/1": "0 0.5 0.5 0.2", "train/2": "0 0.5 x 0.2 0.2", "train/3": "0 0.5 nan 0.2 0.2",
                "train/4": "2 0.5 0.5 0.2 0.2", "train/5": "0.5 0.5 0.5 0.2 0.2", "train/6": "\n0 0.5 1.01 0.2 0.2", "train/7": "0 320 240 20 30",
            },
            "",
            **{"labels/train/9.txt": "", "labels/train/classes.txt": "cat", "images/train/8.jpg": 1, "labels/train/8.txt": b"0 \xff"},
        ),
        OF_YOLO,
        {"key": ["images/train/0.jpg"]},
        bad=(
            "images/train/1.jpg: a line has 4 values; the first line of the data set is a box, of 5: class, x, y",
            "images/train/2.jpg: a value is not a number: could not convert string to float: 'x'",
            "images/train/3.jpg: a coordinate is nan, outside 0 to 1",
            "images/train/4.jpg: class 2 has no name: there are 2 classes, and the first is 0",
            "images/train/5.jpg: class 0.5 has no name",
            "images/train/6.jpg: a coordinate is 1.01, outside 0 to 1 (labels/train/6.txt line 2)",
            "images/train/7.jpg: a coordinate is 320, outside 0 to 1, so these are perhaps pixels",
            "images/train/8.jpg: its label file is not text: byte 2 is not UTF-8 (labels/train/8.txt)",
            "labels/train/9.txt: no image has this label file",
        ),
    ),
    "lists of images": SourceCase(
        yolo(
            dict.fromkeys(("train/a", "train/b", "val/a"), "0 0.5 0.5 0.2 0.2"), "train: train.txt\nval: [lists/val.txt, images/train]",
            **{"train.txt": "\ufeffimages/train/a.jpg\n\nnotes.md\n", "lists/val.txt": "images/val/a.jpg\n../images/val/b.jpg\n"},
        ),
        YOLO_SPLITS,
        {"key": ["images/train/a.jpg", "images/val/a.jpg", "images/train/b.jpg"], "split": ["train", "val", "val"]},
        bad=("train.txt line 3 (notes.md): ends in none of .jpg", "lists/val.txt line 2 (../images/val/b.jpg): the path leads out of "),
        notes=("1 image is in train and in val, and packed once, in train",),
    ),
    # As Roboflow writes it, with paths that lead out of the folder, and as supervision writes it, without splits.
    "Roboflow": SourceCase(
        {
            **{f"{part}/images/a.jpg": 0 for part in ("train", "valid")}, **{f"{part}/labels/a.txt": "1 0.5 0.5 0.1 0.1" for part in ("train", "valid")},
            "data.yaml": f"train: ../train/images\nval: ../valid/images\nnc: 2\n{NAMES}",
        },
        YOLO_SPLITS,
        {"key": ["train/images/a.jpg", "valid/images/a.jpg"], "split": ["train", "val"], "labels": [[1], [1]]},
    ),
    "supervision": SourceCase(
        {**yolo({"train/a": "1 0.5 0.5 0.1 0.1", "val/a": ""}), "data.yaml": f"nc: 2\n{NAMES}"},
        YOLO_SPLITS,
        {"split": ["train", "val"], "labels": [[1], []]},
    ),
    "folders and classes.txt": SourceCase(
        {**yolo({"a": "1 0.5 0.5 0.1 0.1"}), "data.yaml": "{}", "classes.txt": "cat\ndog\n\n"},
        OF_YOLO,
        {"labels": [[1]]},
    ),
}  # fmt: skip


CAT, DOG = thing("cat", "1", "1", "96", "64"), thing("dog", "10", "20.5", "30", "40")
XML = {"a": voc(CAT), "b": voc(), "c": voc(DOG, CAT), "z": voc(CAT)}
DEVKIT = {
    **{f"JPEGImages/{name}.jpg": n for n, name in enumerate(XML)}, **{f"Annotations/{name}.xml": text for name, text in XML.items()},
    **{"ImageSets/Main/train.txt": "a\nb\n", "ImageSets/Main/val.txt": "c\n", "ImageSets/Main/trainval.txt": "a\nb\nc\n"},
    **{"ImageSets/Main/cat_train.txt": "a  1\nb -1\nc  0\nnone -1\n", "SegmentationClass/a.png": 0, "SegmentationClass/b.png": 1},
}  # fmt: skip
OF_VOC = {
    **{
        "image": IMAGE,
        "boxes": Field("array", "<f8", (None, 4), "boxes", "xyxy"),
        "labels": LABELS,
        "difficult": FLAGS,
    },
    **{"truncated": FLAGS, "objects": Field("json", of="boxes")},
}
# What is wrong with an annotation, and how the report goes on.
WRONG_XML = {
    "1": ("<annotation>", "its annotation is not XML"),
    "2": ("<annotations/>", "its annotation begins with <annotations> instead of <annotation>"),
    "3": (voc(thing("", "1", "1", "9", "9")), "its annotation is wrong: object 1 has no name"),
    "4": (voc(thing("cat", "1", "x", "9", "9")), "its annotation is wrong: object 1 (cat) has bndbox/ymin 'x'; expected a number"),
    "5": (voc(thing("cat", "nan", "1", "9", "9")), "its annotation is wrong: object 1 (cat) has a wrong bndbox: nan, 1, 9, 9"),
    "6": (voc(thing("cat", "0", "1", "8", "9")), "object 1 (cat) of its annotation begins at 0, and the first pixel is 1; if these files count from 0"),
    "7": (voc(thing("cat", "1", "1", "97", "9")), "object 1 (cat) of its annotation ends at 97, 9, beyond the 96 x 64 pixels"),
    "8": (voc(thing("cat", "1", "1", "9", "9", more="<difficult>maybe</difficult>")), "its annotation is wrong: object 1 (cat) has difficult 'maybe'"),
    "9": (voc(size="<width>64</width><height>96</height>"), "its annotation says that it has 64 x 96 pixels, and it has 96 x 64"),
    "cow": (voc(thing("cow", "1", "1", "9", "9")), "its annotation has classes that classes does not name: cow"),
    "deep": ("<annotation>" + "<a>" * 40 + "</a>" * 40 + "</annotation>", "its annotation is nested more than 20 deep"),
}  # fmt: skip
VOC = {
    "in its lists": SourceCase(
        {f"VOCdevkit/VOC2012/{name}": content for name, content in DEVKIT.items()},
        {**OF_VOC, "annotation": JSON, "split": STR, "key": STR},
        {
            **{"image": [jpeg(0), jpeg(1), jpeg(2)], "boxes": [[[0, 0, 96, 64]], [], [[9, 19.5, 30, 40], [0, 0, 96, 64]]]},
            **{"labels": [[0], [], [1, 0]], "truncated": [[True], [], [True, True]], "difficult": [[False], [], [False, False]]},
            **{"split": ["train", "train", "val"], "key": [f"JPEGImages/{name}.jpg" for name in "abc"]},
            **{"objects": [[{"pose": "Left"}], [], [{"pose": "Left"}] * 2], "annotation": [{"folder": "VOC"}] * 3},
        },
        notes=("1 image is in none of the lists Main/train, Main/val", "2 of 3 images have a mask in SegmentationClass, and no mask"),
        attrs={"classes": ["cat", "dog"]},
    ),
    "one list, whose images have masks": SourceCase(
        DEVKIT,
        {**OF_VOC, "mask": MASK, "annotation": JSON, "key": STR},
        {"mask": [mask(0), mask(1)], "key": ["JPEGImages/a.jpg", "JPEGImages/b.jpg"]},
        options={"image_set": "train", "classes": ["person", "cat"]},
        notes=("2 images are in none of the lists Main/train, or only with -1",),
    ),
    "a list about a class, counted from 0": SourceCase(
        DEVKIT,
        {**OF_VOC, "annotation": JSON, "key": STR},
        {"boxes": [[[1, 1, 96, 64]], [[10, 20.5, 30, 40], [1, 1, 96, 64]]], "key": ["JPEGImages/a.jpg", "JPEGImages/c.jpg"]},
        options={"image_set": "cat_train", "zero_based": True},
        notes=("2 images are in none of the lists", "1 of 2 images has a mask"),
    ),
    "everything wrong": SourceCase(
        {
            **{f"JPEGImages/{name}.jpg": 0 for name in ("0", "lonely", *WRONG_XML)}, "JPEGImages/0.png": 0, "Annotations/0.xml": voc(),
            **{"JPEGImages/good.jpg": 1, "Annotations/good.xml": f'<?xml version="1.0" encoding="gb2312"?>{voc(DOG)}'.encode(), "Annotations/gone.xml": voc()},
            **{f"Annotations/{name}.xml": text for name, (text, _) in WRONG_XML.items()},
        },
        {**OF_VOC, "annotation": JSON, "key": STR},
        {"key": ["JPEGImages/good.jpg"], "labels": [[1]]},
        options={"classes": ["cat", "dog"]},
        bad=(
            *(f"JPEGImages/{name}.jpg: {says}" for name, (_, says) in WRONG_XML.items()),
            "JPEGImages/0.jpg: several images have the same annotation: JPEGImages/0.jpg, JPEGImages/0.png",
            "JPEGImages/lonely.jpg: has no annotation (Annotations/lonely.xml)",
            "Annotations/gone.xml: the annotation has no image (JPEGImages/gone.*)",
        ),
        attrs={"classes": ["cat", "dog"]},
    ),
}  # fmt: skip
CASES = {
    f"{source}: {name}": case
    for source, cases in (
        *(("folder", FOLDERS), ("masks", OF_MASKS), ("list", LISTS), ("tar", TARS)),
        *(("table", TABLES), ("YOLO", YOLO), ("VOC", VOC)),
    )
    for name, case in cases.items()
}


def plain(value: Any, field: Field) -> Any:
    """Return a value as msgpack holds it in a store, with arrays as lists."""
    if field.kind == "json":
        return json.loads(value)
    if field.kind == "array":
        dtype, shape, data = value
        return np.frombuffer(data, dtype).reshape(shape).tolist()
    return value


@pytest.mark.parametrize("name", CASES)
def test_a_source_gives_its_records_notes_and_bad_items_and_comes_back(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    root, target, bad = write(tmp_path / "set", case.files), f"lmdb://{tmp_path}/a.lmdb", list[str]()
    meta = storeds.pack(
        root / case.source, target, on_bad="skip", on_problem=lambda item: bad.append(str(item)), **case.options
    )
    assert list(declared(meta).items()) == list(case.fields.items())
    found = [
        {key: plain(value, meta.fields[key]) for key, value in row.items()}
        for row in stored_records(tmp_path / "a.lmdb")
    ]
    assert {key: [row[key] for row in found] for key in case.records} == case.records
    if "image" in case.fields and "image" not in case.records:
        assert all(row["image"] == (root / row["key"]).read_bytes() for row in found)
    for lines, starts in ((sorted(bad), sorted(case.bad)), (list(meta.notes), case.notes)):
        assert len(lines) == len(starts), lines
        assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines
    assert meta.left_out == len(case.bad)
    attrs = {"classes": ["cat", "dog"], **case.attrs} if name.startswith("YOLO") else case.attrs
    assert {key: meta.attrs.get(key) for key in attrs} == attrs
    again = storeds.pack(root / case.source, "memory://again", overwrite=True, on_bad="skip", workers=2, **case.options)
    assert storeds.convert("memory://again", f"hdf5://{tmp_path}/a.h5").id == again.id == meta.id
    assert not storeds.export(f"hdf5://{tmp_path}/a.h5", tmp_path / "out", format="folder").left_out
    last = storeds.pack(tmp_path / "out", "memory://again", overwrite=True)
    assert (last.id, last.fields, last.attrs) == (meta.id, meta.fields, meta.attrs)


# The text of a CSV file, options of `pack`, and columns of the store, or its classes.
SPOKEN: list[tuple[str | bytes, dict[str, Any], dict[str, list[Any]]]] = [
    ("path\tlabel\n0.jpg\ta\n1.jpg\tb\n", {"delimiter": "\\t"}, {"label": [0, 1]}),
    ("label, path\na, 0.jpg\nb, 1.jpg\n", {"skipinitialspace": True}, {"label": [0, 1]}),
    ("0.jpg,a\n1.jpg,b\n", {"columns": "path, label"}, {"label": [0, 1]}),
    ("\ufeff\r\npath,label\r\n\r\n0.jpg,a\r\n\r\n1.jpg,b\r\n\r\n", {}, {"label": [0, 1]}),
    ("path,label\r0.jpg,a\r1.jpg,b", {}, {"label": [0, 1]}),
    ("path,label\n0.jpg,à\n1.jpg,é\n".encode("cp1252"), {"encoding": "cp1252"}, {"classes": ["à", "é"]}),
    ("IMG,Class\n0.jpg,a\n1.jpg,b\n", {}, {"label": [0, 1]}),
    ("x,where,what\n,0.jpg,a\n,1.jpg,b\n", {"path_column": "where", "label_column": "what"}, {"label": [0, 1]}),
    # Labels are integers or names.
    ("path,label\n0.jpg,3\n1.jpg,-2\n", {}, {"label": [3, -2], "classes": []}),
    ("path,label\n0.jpg,3.0\n1.jpg,1.0\n", {}, {"label": [3, 1], "classes": []}),
    ("path,label\n0.jpg,1\n1.jpg,0\n", {"classes": ["x", "y"]}, {"label": [1, 0], "classes": ["x", "y"]}),
    ("path,label\n0.jpg,10\n1.jpg,9\n", {"classes": ["a", "9", "10"]}, {"label": [2, 1]}),
    ("path,label\n0.jpg,7\n1.jpg,8\n", {"classes": ["7", "8"]}, {"label": [0, 1]}),
    # A column is numeric only if no character is lost.
    *(
        (f"path,x\n0.jpg,{first}\n1.jpg,{second}\n", {"label": False}, {"x": [first, second]})
        for first, second in (("1", "1_0"), ("1", " 2"), ("1", "٣"), ("1", "01"), ("9" * 19, "1.5"))
    ),
    ("path,x\n0.jpg,1\n1.jpg,\n", {"label": False}, {"x": [1, None]}),
    ("path,x\n0.jpg,True\n1.jpg,false\n", {"label": False}, {"x": [True, False]}),
    ("path,x\n0.jpg,True\n1.jpg,yes\n", {"label": False}, {"x": ["True", "yes"]}),
]


@pytest.mark.parametrize(("text", "options", "expected"), SPOKEN)
def test_a_csv_file(text: str | bytes, options: dict[str, Any], expected: dict[str, list[Any]], tmp_path: Path) -> None:
    write(tmp_path, {**PHOTOS, "lists/a.csv": text})
    source = Source(tmp_path / "lists/a.csv", root=tmp_path, **options)
    found = {name: source.column(name) for name in source.kinds} | {"classes": source.rows.attrs.get("classes", [])}
    assert found["key"] == ["0.jpg", "1.jpg"]
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "\ufeffx\r\ny\n\n", ["x", "y"]),
        ("a.json", '["x", "y"]', ["x", "y"]),
        ("a.json", '{"1": "y", "0": "x"}', ["x", "y"]),
        ("a.json", '{"1": "x", "2": "y"}', ["other", "x", "y"]),
        ("a.json", '{"0": "x", "2": "y"}', "class id 1 has no name"),
        ("a.json", '{"sky": "0"}', "class names are a list, or an object"),
        ("a.json", "[" * 100_000, "cannot be read: maximum recursion"),
    ],
)
def test_class_names_from_a_file(name: str, text: str, expected: Any, tmp_path: Path) -> None:
    root = write(tmp_path, {**PHOTOS, "a.csv": "path,label\n0.jpg,1\n", name: text})
    if isinstance(expected, str):
        with pytest.raises(errors.ConfigError, match=expected):
            open_source(root / "a.csv", classes=root / name)
    else:
        assert open_source(root / "a.csv", classes=root / name).attrs["classes"] == expected


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@settings(max_examples=examples(60))
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4),
    delimiter=st.sampled_from(",;\t|:^é"),
    quoting=st.sampled_from([QUOTE_MINIMAL, QUOTE_ALL]),
)
def test_files_of_the_csv_module_round_trip(rows: list[tuple[str, str]], delimiter: str, quoting: Any) -> None:
    buffer = io.StringIO(newline="")
    cells = [[f"{number}.jpg", f"x{first}", f"x{second}"] for number, (first, second) in enumerate(rows)]
    csv_writer(buffer, delimiter=delimiter, quoting=quoting).writerows([["path", "a", "b"], *cells])
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder), {**PHOTOS, "a.csv": buffer.getvalue()}) / "a.csv"
        records = Source(file, label=False, delimiter=delimiter).records
    assert [[row["key"], row["a"], row["b"]] for row in records] == cells


def test_cells_of_any_length(tmp_path: Path) -> None:
    before, text = field_size_limit(), "1 " * 1_500_000
    file = write(tmp_path, {**PHOTOS, "a.csv": f'path,label,rle\n0.jpg,0,"{text}"\n1.jpg,1,1 2\n'}) / "a.csv"
    assert Source(file).column("rle") == [text, "1 2"]
    assert field_size_limit() == before


# Files, what is packed below them, options, and the error.
PAIR = {"images/0.jpg": 0, "masks/0.png": 0}
ROWS = "path,label\n0.jpg,a\n"
BOTH = {"a/1.jpg": 0, "x.jpg": 1}
OF_MONGODB = jsonl({"image": {"$binary": {"base64": "AAAA", "subType": "00"}}, "label": "cat"})
REFUSED: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    ({"a.jsonl": OF_MONGODB}, "a.jsonl", {}, "a binary value of a MongoDB export, and no path: load the file with"),
    ({"a.csv": ROWS}, "none", {}, "nothing exists at .*none: .* holds a.csv"),
    (BOTH, ".", {}, r"contains 1 image \(x.jpg\) and 1 folder \(a\); pass kind='imagefolder' .* kind='flat'"),
    (BOTH, ".", {"kind": "imgfolder"}, "unknown format 'imgfolder'; did you mean 'imagefolder'"),
    (BOTH, ".", {"kind": "flat", "delimiter": ";"}, "a source of kind flat has no option 'delimiter'; the options are"),
    ({}, ".", {}, r"has no sub-folders and no images \(.jpg .*\), nothing"),
    ({"a.csv": "", "b.txt": ""}, ".", {}, "no images .*, only a.csv, b.txt; pass one of these files"),
    ({"b.txt": "hello"}, "b.txt", {}, "b.txt ends in none of .csv, .* and it is not a store, a tar file .*; pass kind="),
    ({}, "a\0b", {}, "expected a path, and no path holds a NUL"),
    ({}, "a\0b", {"kind": "coco"}, "is no path: it has a NUL character"),
    ({}, "none", {"kind": "imagefolder"}, "no folder at .*none: No such file"),
    ({"a.jpg": 0}, "a.jpg", {"kind": "flat"}, "a.jpg is a file; expected a folder"),
    ({"a.jpg": 0}, ".", {"kind": "imagefolder"}, "has no sub-folders; expected one per class"),
    ({"a.txt": ""}, ".", {"kind": "flat"}, r"contains no images \(.jpg .jpeg"),
    ({"a/1.jpg": 0, "b/.keep": ""}, ".", {}, "no images in b; remove .* or pass allow_empty=True"),
    ({"images/0.jpg": 0, "annotations/0.png": 0}, ".", {}, "--kind masks.*--kind imagefolder"),
    ({"images/0.jpg": 0, "labels/0.gif": 0}, ".", {}, "--kind masks"),
    ({**PAIR, "more/0.jpg": 0}, ".", {}, "--kind masks"),
    ({"train/images/0.jpg": 0, "train/mask/0.png": 0}, ".", {}, "--kind masks"),
    ({"a.txt": "a"}, ".", {"kind": "masks"}, "contains no folder of images"),
    (PAIR, ".", {"kind": "masks", "image_folder": "images", "mask_folder": "none"}, "contains no folder none"),
    (PAIR, ".", {"kind": "masks", "image_folder": "images", "mask_folder": "../m"}, "must be below the source"),
    (PAIR, ".", {"kind": "masks", "mask_folder": "masks"}, "name both with image_folder= and mask_folder="),
    (PAIR, ".", {"kind": "masks", "ignore_index": "x"}, "ignore_index='x'"),
    (PAIR, ".", {"kind": "masks", "max_side": 32}, "scale and turn images, but not mask"),
    (PAIR, ".", {"kind": "masks", "mask_suffix": "_m"}, "no image in images has a mask in masks"),
    ({**PAIR, "labels/0.png": 0}, ".", {"kind": "masks"}, "images in masks, labels; say which .*=images .*=masks"),
    ({**PAIR, "classes.txt": "sky\n\nroad"}, ".", {"kind": "masks"}, "class id 1 has no name"),
    ({**PAIR, "classes.txt": "a\na"}, ".", {"kind": "masks"}, "'a' is listed twice"),
    ({**PAIR, "classes.txt": ""}, ".", {"kind": "masks"}, "the list is empty"),
    ({**PAIR, "classes.txt": b"\xff\xfe\xfa"}, ".", {"kind": "masks"}, "cannot be read"),
    ({"a.csv": ""}, "a.csv", {}, "a.csv has no columns; expected a line of their names"),
    ({"a.csv": "path,label\n"}, "a.csv", {}, "a.csv lists no image"),
    ({"a.csv": "a,b\n1.jpg,2\n"}, "a.csv", {}, r"none of its columns 'a', 'b' is one of path, .*path_column=a"),
    ({"a.csv": "path;label\n"}, "a.csv", {}, r"has one column, 'path;label'; pass delimiter=';' \(--option"),
    ({"a.csv": ROWS}, "a.csv", {"image_columns": "pth"}, "image_columns names 'pth'; did you mean 'path'"),
    ({"a.csv": ROWS}, "a.csv", {"label_column": "path"}, "column 'path' is given for two purposes"),
    ({"a.csv": ROWS}, "a.csv", {"label_column": "label", "label": False}, "label=False contradict"),
    ({"a.csv": ROWS}, "a.csv", {"path_column": "path", "image_columns": "path"}, "leave out path_column"),
    ({"a.csv": ROWS}, "a.csv", {"label_separator": ""}, "needs a column of labels, and text between two"),

    ({"a.csv": ROWS}, "a.csv", {"classes": "none.txt"}, "the class names in none.txt cannot be read: No such file"),
    ({"a.csv": ROWS}, "a.csv", {"colums": ["a"]}, "kind csv has no option 'colums'; did you mean 'columns'"),
    ({"a.csv": ROWS}, "a.csv", {"root": "nowhere"}, "root='nowhere' is not a folder"),
    ({"a.csv": ROWS}, "a.csv", {"encoding": "klingon"}, "is not a text encoding that Python knows"),
    ({"a.csv": ROWS}, "a.csv", {"delimiter": ",,"}, "its header cannot be read: .*delimiter"),
    ({"a.csv": ROWS}, "a.csv", {"kind": "jsonl", "delimiter": ";"}, "delimiter and skipinitialspace are for CSV"),
    ({"a.csv": "path,note\n"}, "a.csv", {}, r"no column looks like labels .*label_column=note\), or .*--no-label"),
    ({"a.csv": "path,labels,class_id\n"}, "a.csv", {}, "columns 'labels', 'class_id' all look like labels"),
    ({"a.csv": "path,x,x\n"}, "a.csv", {}, "there are two columns 'x'; rename one"),
    ({"a.csv": "path,label\né.jpg,a\n".encode("latin-1")}, "a.csv", {}, "a.csv line 2: 'utf-8' .*encoding='cp1252'"),
    ({"a.csv": "path,label\n0.jpg,1.5\n"}, "a.csv", {}, r"labels are numbers such as '1\.5' at a.csv line 2"),
    ({"a.csv": "path,label\n0.jpg,0\n1.jpg,x\n"}, "a.csv", {}, "integers such as '0' .*, names such as 'x' .*--classes"),
    ({"a.tar": tar({})}, "a.tar", {}, "a.tar: no members form a sample, such as 0001.jpg"),

    ({"a.tar": tar({})}, "{1..3}.tar", {}, "3 of 3 tar files are missing"),
    ({"a.tar": tar({})}, "x*.tar", {}, r"no file matches .*x\*.tar: .* holds a.tar"),
    ({"a.tar": tar({})}, "{3..1}.tar", {}, r"the range {3..1} is empty"),
    ({"a.tar": tar({"1.jpg": b"", "1.idx": b"4"})}, "a.tar", {}, "no .cls with a label, only images and .idx; .*label_col"),

    ({"a.parquet": table(klass=["a"])}, "a.parquet", {}, r"beside the images there is 'klass'; .*--no-label"),
    ({"a.parquet": table(label=[0.5])}, "a.parquet", {"label_column": "label"}, "has float values; a label is"),
    ({"a.parquet": table(label=[0])}, "a.parquet", {"columns": ["x"]}, "has no column 'x', only 'image', 'label'"),
    ({"a.parquet": table(label=[0])}, "a.parquet", {"columns": "image", "label_column": "label"}, "columns= leaves it out"),
    ({"a.parquet": table(label=[0], more=[{"x": b"1"}])}, "a.parquet", {}, "contains bytes or images in a list or"),
    ({"data.yaml": NAMES}, ".", {}, "names no images: expected a data.yaml with train, val or test"),
    ({"data.yaml": "train: images"}, ".", {}, r"gives no class names; .*\(--classes cat,dog\)"),
    ({"data.yaml": "train: images\nnames: 5"}, "data.yaml", {}, r"is not as Ultralytics reads it: .*at `\$.names`"),
    ({"data.yaml": "train: images\nnames: [a, no]"}, ".", {}, "quote names such as 'no'"),
    ({"data.yaml": "train: images\nnames: {0: a, 2: b}"}, ".", {}, "the keys of names are 0, 2; expected 0 to 1"),
    ({"data.yaml": f"train: images\nnc: 3\n{NAMES}"}, ".", {}, "nc is 3, but names has 2"),
    ({"data.yaml": f"train: none\n{NAMES}"}, ".", {}, "nothing exists at .*none"),
    ({"data.yaml": f"train: /etc\n{NAMES}"}, ".", {}, "leads out of .*pass allow_outside=True"),
    ({"data.yaml": f"path: far\ntrain: images\n{NAMES}"}, ".", {}, "path is far, and no images are there .*root="),
    (yolo({"train/a": None}), ".", {}, "none of the 1 image has a label file; expected, for example, labels/train/a"),
    ({"data.yaml": "names: [cat"}, ".", {}, r"data\.yaml: line"),

    (DEVKIT, ".", {"image_set": "tran"}, "no list ImageSets/Main/tran.txt .*Main/train"),
    (DEVKIT, ".", {"image_set": ["train", "trainval"]}, "lists Main/train and Main/trainval share images, such as a"),
    ({**DEVKIT, "ImageSets/Main/cow_train.txt": "a -1\n"}, ".", {"image_set": "cow_train"}, "no image is in the lists"),
    ({f"{name}/JPEGImages/x.jpg": 0 for name in "ab"} | {f"{name}/Annotations/x.xml": "" for name in "ab"}, ".", {}, "several data sets: .*pass one"),
    ({"a/b.txt": ""}, "a", {"kind": "voc"}, "is no data set of Pascal VOC"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "source", "options", "message"), REFUSED, ids=[each[-1][:40] for each in REFUSED])
def test_what_no_source_can_pack_is_refused(
    files: dict[str, Any], source: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    root = write(tmp_path / "set", files)
    root.mkdir(exist_ok=True)
    with pytest.raises(errors.StoredsError, match=message):
        storeds.pack(root / source, f"lmdb://{tmp_path}/a.lmdb", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_paths_of_a_list_stay_below_its_folder_and_name_regular_files(tmp_path: Path) -> None:
    text = "path\nlink.jpg\nup/out.jpg\nfolder.jpg\npipe.jpg\n"
    root = write(tmp_path / "set", {"../out.jpg": 3, "folder.jpg/x": "", "a.csv": text})
    (root / "link.jpg").symlink_to("../out.jpg")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "pipe.jpg")
    outside = [f"the path leads through a link to {tmp_path}/out.jpg, outside"] * 2
    for allowed, reasons in ((False, outside), (True, [])):
        bad: list[Bad] = []
        given: dict[str, Any] = {"on_bad": "skip", "overwrite": True, "on_problem": bad.append}
        packed = storeds.pack(root / "a.csv", f"lmdb://{tmp_path}/a.lmdb", allow_outside=allowed, **given)
        assert (packed.count, len(bad)) == (2 - len(reasons), 2 + len(reasons))
        starts = (*reasons, "is not a regular file", "is not a regular file")
        assert all(item.reason.startswith(start) for item, start in zip(bad, starts, strict=True))


def test_the_command_takes_options_of_a_source_and_prints_problems(tmp_path: Path) -> None:
    text = "left,right,say,tags\n0.jpg,1.jpg,x,a\n2.jpg,3.jpg,y,\nnone.jpg,3.jpg,y,\n"
    root = write(tmp_path / "set", {**PHOTOS, "names.txt": "b\na\nc\n", "a.csv": text})
    options = ["image_columns=left, right", 'caption_columns=["say"]', "label_column=tags", "label_separator=|"]
    command = ["pack", root / "a.csv", tmp_path / "a.lmdb", "--classes", root / "names.txt", "--on-bad", "skip"]
    command += [text for option in options for text in ("--option", option)]
    assert "tags → labels" in storeds_command(*command)
    shown = storeds_json(*command, "--overwrite", "--shares", "train=0.5,val=0.5")
    ((name, reason),) = [(each["name"], each["reason"]) for each in shown["problems"]]
    assert (shown["count"], "none.jpg" in name + reason) == (2, True)
    rows = stored_records(tmp_path / "a.lmdb")
    assert [plain(row["labels"], LABELS) for row in rows] == [[1], []]
    assert {row["split"] for row in rows} <= {"train", "val"}
    assert storeds.info(f"{tmp_path}/a.lmdb").attrs["classes"] == ["b", "a", "c"]
    assert "must have the form" in storeds_command(*command, "--shares", "train", code=2)
    assert "'stop' is not one of" in storeds_command(*command, "--on-bad", "stop", code=2)
