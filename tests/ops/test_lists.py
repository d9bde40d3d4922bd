"""CSV and JSONL lists as sources of `pack`: which columns mean what, the records, and what each bad line is reported as."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import storeds
from _verdicts import declared, unjudged
from mask_files import class_ids, encode_mask, mask, write
from photographs import jpeg
from shares import examples
from storeds.cli import app
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops import Packed
from storeds.ops.packing.sources import open_source
from storeds.protocols import Field

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
IMAGE, MASK, KEY = Field("image", role="image"), Field("image", role="mask"), Field("str")
PLAIN, LABEL, TEXT, TEXTS = Field("image"), Field("int"), Field("str", role="text"), Field("json", role="text")
LABELS = Field("array", "<i8", (None,), "labels")
ALLOW = "pass allow_outside=True (--option allow_outside=true) to read it anyway"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with six photographs, and a mask of each."""
    return write(tmp_path / "data", {f"{n}.jpg": n for n in range(6)} | {f"m/{n}.png": n for n in range(6)})


def written(root: Path, text: str | bytes, name: str = "a.csv") -> Path:
    (root / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return root / name


def table(columns: str, *rows: Sequence[Any]) -> str:
    """Return a CSV file."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([columns.split(","), *rows])
    return buffer.getvalue()


def lines(*rows: Mapping[str, Any]) -> str:
    """Return a JSONL file."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def records(url: str) -> list[dict[str, Any]]:
    """Return the records of a store, with arrays as lists."""
    with storeds.open_backend(url) as backend:
        found = unjudged(backend.get_many(range(len(backend))))
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in each.items()}
        for each in found
    ]


def packed(file: Path, **options: Any) -> tuple[Packed, list[dict[str, Any]], list[str]]:
    """Pack the good items of a list; return the result, the records, and the bad items."""
    url, bad = f"memory://{secrets.token_hex(8)}", list[str]()
    meta = storeds.pack(file, url, on_bad="skip", on_problem=lambda item: bad.append(str(item)), **options)
    return meta, records(url), bad


def values_of(found: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [record[name] for record in found]


# What columns hold


class Case(NamedTuple):
    """A list, the fields of its store, and the values of some of them."""

    text: str
    options: dict[str, Any]
    fields: dict[str, Field]
    values: dict[str, list[Any]]
    classes: list[str] | None = None


CAPTIONS = [(f"{n}.jpg", f"caption {at}, of “{n}”\n\u2028 Ü") for n in range(4) for at in range(5)]
BOXES = [[[1.25, 2, 30, 40], [0.1, 0, 9, 8]], [], [[3, 4, 20, 30]]]
CASES = {
    "labels, keys and other columns": Case(
        table(
            "Split Name,path,label,count,score,code,exact",
            ("train", "0.jpg", "dog", 1, 1.5, "007", 9007199254740993),
            ("a, b", "1.jpg", "cat ", -2, 2, "1", 1),
            ("", "2.jpg", "dog", 3, ".5", "x", 2),
        ),
        {},
        {
            **{"image": PLAIN, "label": LABEL, "key": KEY, "split_name": KEY},
            **{"count": LABEL, "score": Field("float"), "code": KEY, "exact": LABEL},
        },
        {
            "label": [1, 0, 1],
            "key": ["0.jpg", "1.jpg", "2.jpg"],
            "split_name": ["train", "a, b", ""],
            "count": [1, -2, 3],
            "score": [1.5, 2.0, 0.5],
            "code": ["007", "1", "x"],
            "exact": [9007199254740993, 1, 2],
        },
        ["cat", "dog"],
    ),
    "only paths": Case(table("path", ["0.jpg"], ["1.jpg"]), {}, {"image": PLAIN, "key": KEY}, {}),
    "kinds of JSON": Case(
        lines(
            {"path": "0.jpg", "i": 1, "f": 1, "b": True, "s": "x", "o": {"k": [1]}, "m": 1, "n": None, "big": 2**70},
            {"path": "1.jpg", "i": -(2**60), "f": 0.5, "b": False, "s": "1", "o": [], "m": "1", "late": 1},
        ),
        {"label": False},
        {
            **{"image": PLAIN, "key": KEY, "i": LABEL, "f": Field("float"), "b": Field("bool"), "s": KEY},
            **dict.fromkeys(("o", "m", "n", "big", "late"), Field("json")),
        },
        {
            **{"i": [1, -(2**60)], "f": [1.0, 0.5], "b": [True, False], "s": ["x", "1"], "o": [{"k": [1]}, []]},
            **{"m": [1, "1"], "n": [None, None], "big": [2**70, None], "late": [None, 1]},
        },
    ),
    "several images": Case(
        table("left,Right,distance", ("0.jpg", "1.jpg", 0.5), ("0.jpg", "2.jpg", 1), ("3.jpg", "3.jpg", 2)),
        {"image_columns": ["left", "Right"]},
        {"left": IMAGE, "right": IMAGE, "key": KEY, "distance": Field("float")},
        {"left": [jpeg(0), jpeg(0), jpeg(3)], "right": [jpeg(1), jpeg(2), jpeg(3)], "key": ["0.jpg", "0.jpg", "3.jpg"]},
    ),
    "several images are detected": Case(
        table("anchor,positive,label", ("0.jpg", "1.jpg", "same"), ("2.jpg", "3.jpg", "other")),
        {},
        {"anchor": IMAGE, "positive": IMAGE, "label": Field("int", role="label"), "key": KEY},
        {"positive": [jpeg(1), jpeg(3)], "label": [1, 0]},
        ["other", "same"],
    ),
    "a mask": Case(
        lines(*({"image": f"{n}.jpg", "mask_path": f"m/{n}.png", "height": 64} for n in range(3))),
        {"classes": list("abcd"), "ignore_index": 255},
        {"image": IMAGE, "mask": MASK, "key": KEY, "height": LABEL},
        {"mask": [mask(n) for n in range(3)]},
        list("abcd"),
    ),
    "several masks": Case(
        table("path,mask,parts", ("0.jpg", "m/0.png", "m/1.png")),
        {"mask_columns": ["mask", "parts"]},
        {"image": IMAGE, "mask": MASK, "parts": MASK, "key": KEY},
        {"mask": [mask(0)], "parts": [mask(1)]},
    ),
    "a mask and a label": Case(
        table("path,mask,parts", ("0.jpg", "m/0.png", "m/1.png")),
        {"mask_columns": "parts", "label_column": "mask"},
        {"image": IMAGE, "mask": MASK, "label": Field("int", role="label"), "key": KEY},
        {"mask": [mask(1)], "label": [0]},
        ["m/0.png"],
    ),
    "masks as text": Case(
        table("path,mask", ("0.jpg", "m/0.png")),
        {"mask_columns": [], "label": False},
        {"image": PLAIN, "key": KEY, "mask": KEY},
        {"mask": ["m/0.png"]},
    ),
    "captions": Case(
        table("image,Caption,year", ("0.jpg", "A cat, asleep", 2001), ("1.jpg", "", 2002)),
        {},
        {"image": IMAGE, "key": KEY, "caption": TEXT, "year": LABEL},
        {"caption": ["A cat, asleep", ""], "year": [2001, 2002]},
    ),
    "lists of captions": Case(
        lines(*({"path": f"{n}.jpg", "label": n, "say": texts} for n, texts in enumerate([["a", "b"], [], ["c"]]))),
        {"caption_columns": ["say"]},
        {"image": IMAGE, "label": Field("int", role="label"), "key": KEY, "say": TEXTS},
        {"say": [["a", "b"], [], ["c"]], "label": [0, 1, 2]},
    ),
    "captions of Flickr8k": Case(
        table("image,caption", *CAPTIONS),
        {"caption_columns": "caption"},
        {"image": IMAGE, "key": KEY, "caption": TEXTS},
        {
            "key": [f"{n}.jpg" for n in range(4)],
            "caption": [[text for name, text in CAPTIONS if name == f"{n}.jpg"] for n in range(4)],
        },
    ),
    "captions of Flickr30k": Case(
        "\n".join(
            ["image_name| comment_number| comment", *(f"{n}.jpg| {at}| Two, {at} ." for n in (0, 1) for at in (0, 1))]
        ),
        {"delimiter": "|", "skipinitialspace": True, "caption_columns": "comment, comment_number"},
        {"image": IMAGE, "key": KEY, "comment_number": TEXTS, "comment": TEXTS},
        {"comment": [["Two, 0 .", "Two, 1 ."]] * 2, "comment_number": [["0", "1"]] * 2},
    ),
    "lists and texts of captions": Case(
        lines(
            *({"image": "0.jpg", "labels": ["x"], "say": each} for each in ("a", ["b", "c"], [], "d")),
            {"image": "1.jpg", "labels": [], "say": "f"},
        ),
        {"caption_columns": ["say"]},
        {"image": IMAGE, "labels": LABELS, "key": KEY, "say": TEXTS},
        {"say": [["a", "b", "c", "d"], ["f"]], "labels": [[0], []]},
        ["x"],
    ),
    "captions of pairs": Case(
        table("left,right,say", ("0.jpg", "1.jpg", "a"), ("0.jpg", "2.jpg", "b"), ("0.jpg", "./1.jpg", "c")),
        {"image_columns": ["left", "right"], "caption_columns": ["say"]},
        {"left": IMAGE, "right": IMAGE, "key": KEY, "say": TEXTS},
        {"right": [jpeg(1), jpeg(2)], "say": [["a", "c"], ["b"]]},
    ),
    **{
        f"boxes {form}": Case(
            lines(
                *({"image": f"{n}.jpg", "bbox": BOXES[n], "labels": [["cat", "cat"], [], ["dog"]][n]} for n in range(3))
            ),
            {"box_format": form},
            {
                **{"image": IMAGE, "labels": LABELS, "key": KEY},
                "boxes": Field("array", "<f8", (None, 4), "boxes", form),
            },
            {"boxes": BOXES, "labels": [[0, 0], [], [1]]},
            ["cat", "dog"],
        )
        for form in ("xyxy", "xywh", "cxcywh")
    },
    "one relative box a row": Case(
        lines({"image": "0.jpg", "box": [0.1, 0.2, 0.3, 0.4], "label": "cat"}),
        {"box_column": "box", "box_format": "cxcywh", "box_relative": True},
        {
            **{"image": IMAGE, "label": Field("int", role="label"), "key": KEY},
            "boxes": Field("array", "<f8", (None, 4), "boxes", "cxcywh", True),
        },
        {"boxes": [[[0.1, 0.2, 0.3, 0.4]]]},
        ["cat"],
    ),
    "boxes in CSV": Case(
        table("image,boxes", ("0.jpg", "[[1, 2, 3, 4], [5, 6, 7, 8]]"), ("1.jpg", "[]")),
        {"box_format": "xyxy"},
        {"image": IMAGE, "key": KEY, "boxes": Field("array", "<f8", (None, 4), "boxes", "xyxy")},
        {"boxes": [[[1, 2, 3, 4], [5, 6, 7, 8]], []]},
    ),
    "several labels in a cell": Case(
        table("image,tags", ("0.jpg", "dog;cat"), ("1.jpg", " cat "), ("2.jpg", ""), ("3.jpg", "emu;")),
        {"label_column": "tags", "label_separator": ";"},
        {"image": IMAGE, "labels": LABELS, "key": KEY},
        {"labels": [[1, 0], [0], [], [2]]},
        ["cat", "dog", "emu"],
    ),
    "several labels of given classes": Case(
        table("image,tags", ("0.jpg", "dog;cat"), ("3.jpg", "emu;")),
        {"label_column": "tags", "label_separator": ";", "classes": ["emu", "dog", "cat"]},
        {"image": IMAGE, "labels": LABELS, "key": KEY},
        {"labels": [[1, 2], [0]]},
        ["emu", "dog", "cat"],
    ),
    "several labels as integers": Case(
        table("image,label", ("0.jpg", "3|1"), ("1.jpg", "")),
        {"label_separator": "|"},
        {"image": IMAGE, "labels": LABELS, "key": KEY},
        {"labels": [[3, 1], []]},
    ),
    "everything": Case(
        lines(
            *(
                {
                    **{"path": f"{n}.jpg", "depth": f"{n}.jpg", "mask": f"m/{n}.png", "captions": [f"number {n}"]},
                    **{"boxes": [[0, 0, n, n]], "labels": ["a"], "score": n / 7},
                }
                for n in range(6)
            )
        ),
        {"image_columns": ["path", "depth"], "caption_columns": ["captions"], "box_format": "xyxy"},
        {
            **{"path": IMAGE, "depth": IMAGE, "mask": MASK, "labels": LABELS, "key": KEY, "captions": TEXTS},
            **{"boxes": Field("array", "<f8", (None, 4), "boxes", "xyxy"), "score": Field("float")},
        },
        {"depth": [jpeg(n) for n in range(6)], "score": [n / 7 for n in range(6)]},
        ["a"],
    ),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", CASES)
def test_what_columns_hold(name: str, root: Path, make_engine_url: MakeUrl) -> None:
    case = CASES[name]
    file = written(root, case.text, "a.jsonl" if case.text.startswith("{") else "a.csv")
    ids = set()
    for engine, workers in zip(ENGINES, (0, 2, 1), strict=True):
        url = make_engine_url(engine)
        meta = storeds.pack(file, url, workers=workers, **case.options)
        assert list(declared(meta).items()) == list(case.fields.items())
        assert meta.attrs.get("classes") == case.classes
        assert meta.attrs["source"] == {"kind": file.suffix[1:], "file": file.name}
        assert set(meta.columns.values()) | {"key"} == set(case.fields)
        found = records(url)
        assert {field: values_of(found, field) for field in case.values} == case.values
        if "image" in case.fields:
            assert all(each["image"] == (root / each["key"]).read_bytes() for each in found)
        ids.add(meta.id)
    assert len(ids) == 1


@pytest.mark.parametrize(
    "cells", [["1", "1_0"], ["1", " 2"], ["1", ""], ["1", "٣"], ["0x1", "1"], ["1", "01"], ["9" * 19, "1.5"]]
)
def test_a_column_is_numeric_only_if_no_character_is_lost(cells: list[str], root: Path) -> None:
    file = written(root, table("path,x", *((f"{n}.jpg", cell) for n, cell in enumerate(cells))))
    assert values_of(packed(file, label=False)[1], "x") == cells


@pytest.mark.parametrize(
    ("text", "options", "labels", "classes"),
    [
        ("3,1,-2", {}, [3, 1, -2], None),
        ("3.0,1.0,2.0", {}, [3, 1, 2], None),
        ("b,a ,b", {}, [1, 0, 1], ["a", "b"]),
        ("b,a,b", {"classes": ["b", "a", "x"]}, [0, 1, 0], ["b", "a", "x"]),
        ("1,0,1", {"classes": ["x", "y"]}, [1, 0, 1], ["x", "y"]),
        ("10,9,a", {"label_type": "names"}, [0, 1, 2], ["10", "9", "a"]),
        ("10,9,a", {"classes": ["a", "9", "10"]}, [2, 1, 0], ["a", "9", "10"]),
        ("7,8,7", {"classes": ["7", "8"]}, [0, 1, 0], ["7", "8"]),
        ("1,0,1", {"classes": ["0", "1"], "label_type": "int"}, [1, 0, 1], ["0", "1"]),
    ],
)
def test_labels_are_integers_or_names(
    text: str, options: dict[str, Any], labels: list[int], classes: list[str] | None, root: Path
) -> None:
    file = written(root, table("path,label", *((f"{n}.jpg", label) for n, label in enumerate(text.split(",")))))
    meta, found, _ = packed(file, **options)
    assert (values_of(found, "label"), meta.attrs.get("classes")) == (labels, classes)


# How files are written


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("path;label\n0.jpg;a\n1.jpg;b\n", {"delimiter": ";"}),
        ("path\tlabel\n0.jpg\ta\n1.jpg\tb\n", {"delimiter": "\\t"}),
        ("label, path\na, 0.jpg\nb, 1.jpg\n", {"skipinitialspace": True}),
        ("0.jpg,a\n1.jpg,b\n", {"columns": ["path", "label"]}),
        ("0.jpg,a\n1.jpg,b\n", {"columns": "path, label"}),
        ("\r\npath,label\r\n\r\n0.jpg,a\r\n\r\n1.jpg,b\r\n\r\n", {}),
        ("path,label\r0.jpg,a\r1.jpg,b", {}),
        ("\ufeffpath,label\n0.jpg,a\n1.jpg,b\n", {}),
        ("path,label\n0.jpg,à\n1.jpg,é\n".encode("utf-16"), {"encoding": "utf-16"}),
        ("path,label\n0.jpg,à\n1.jpg,é\n".encode("cp1252"), {"encoding": "cp1252"}),
        ("IMG,Class\n0.jpg,a\n1.jpg,b\n", {}),
        ("x,where,what\n,0.jpg,a\n,1.jpg,b\n", {"path_column": "where", "label_column": "what"}),
        ("path,label,note\n0.jpg,a,\"it's, here\"\n1.jpg,b,it's there\n", {}),
    ],
)
def test_dialects(text: str | bytes, options: dict[str, Any], root: Path) -> None:
    _, found, bad = packed(written(root, text), **options)
    assert (values_of(found, "key"), values_of(found, "label")) == (["0.jpg", "1.jpg"], [0, 1])
    assert bad == []


def test_a_tsv_has_tabs_and_a_root_elsewhere(root: Path, tmp_path: Path) -> None:
    _, found, _ = packed(written(tmp_path, "path\tlabel\n0.jpg\ta, b\n", "a.tsv"), root=root)
    assert values_of(found, "image") == [jpeg(0)]


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@settings(max_examples=examples(100))
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5),
    delimiter=st.sampled_from(",;\t|:^é"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_files_of_the_csv_module_round_trip(
    rows: list[tuple[str, str]], delimiter: str, quoting: Any, end: str
) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerow(["path", "a", "b"])
    writer.writerows([[f"{number}.jpg", f"x{first}", f"x{second}"] for number, (first, second) in enumerate(rows)])
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {f"{number}.jpg": number for number in range(len(rows))})
        file = written(Path(folder), buffer.getvalue())
        _, found, bad = packed(file, label=False, check=False, delimiter=delimiter)
    assert bad == []
    assert [(record["a"], record["b"]) for record in found] == [(f"x{first}", f"x{second}") for first, second in rows]


# Bad lines


LONG = "n" * 300
# A line of CSV, and what is wrong with it; None is a good one.
CSV_LINES: list[tuple[str, str | None]] = [
    ("1.jpg,a,1", None),
    ("2.jpg,,1", "(2.jpg): no label is given in 'label'"),
    (",a,1", ": no path is given"),
    ("./1.jpg,b,1", "(./1.jpg): the path is already listed at a.csv line 2"),
    ("../out.jpg,a,1", "(../out.jpg): the path leads out of {root}; " + ALLOW),
    ("/etc/passwd,a,1", "(/etc/passwd): the path is absolute, but paths are relative to {root}; " + ALLOW),
    ("link.jpg,a,1", "(link.jpg): the path leads through a link to {out}, outside {root}; " + ALLOW),
    ("up/out.jpg,a,1", "(up/out.jpg): the path leads through a link to {out}, outside {root}; " + ALLOW),
    ("3.jpg,a", ": has 2 columns instead of 3"),
    ("3.jpg,a,1,2", ": has 4 columns instead of 3"),
    ("3\0.jpg,a,1", "(3\\x00.jpg): its path contains a NUL character"),
    ('"3.jpg"x,a,1', ": is not CSV: ',' expected after '\"'; is a quote opened and not closed?"),
    ("4.jpg, ,1", "(4.jpg): no label is given in 'label'"),
    ("gone.jpg,a,1", "(gone.jpg): cannot be read: No such file or directory"),
    ("folder.jpg,a,1", "(folder.jpg): is not a regular file"),
    ("pipe.jpg,a,1", "(pipe.jpg): is not a regular file"),
    (f"{LONG},a,1", f"({LONG}): cannot be read: File name too long"),
    ("broken.jpg,a,1", "(broken.jpg): cannot be read as an image (12 bytes beginning 6e 6f 74 20)"),
    ("5.jpg,emu,1", "(5.jpg): unknown label 'emu'; did you mean 'emus'? The classes are a, b, emus"),
    ("a\\b.jpg,a,1", "(a\\b.jpg): cannot be read: No such file or directory; folders are separated by /"),
    ('"open,a,1', ": is not CSV: unexpected end of data; is a quote opened and not closed?"),
]


def test_bad_lines_of_csv(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"1.jpg": 1, "../out.jpg": 3, "broken.jpg": "not an image"})
    (root / "link.jpg").symlink_to("../out.jpg")
    (root / "up").symlink_to("..")
    (root / "folder.jpg").mkdir()
    os.mkfifo(root / "pipe.jpg")
    file = written(root, "\n".join(["path,label,x", *(line for line, _ in CSV_LINES)]))
    _, found, bad = packed(file, classes=["a", "b", "emus"])
    wanted = [(n, why.format(root=root, out=f"{tmp_path}/out.jpg")) for n, (_, why) in enumerate(CSV_LINES, 2) if why]
    for text, (number, why) in zip(bad, wanted, strict=True):
        assert text.startswith(f"a.csv line {number}{why if why[0] == ':' else f' {why}'}")
    assert values_of(found, "key") == ["1.jpg"]
    allowed = written(root, f"path\n../out.jpg\nlink.jpg\n{tmp_path}/out.jpg\n")
    assert values_of(packed(allowed, allow_outside=True)[1], "image") == [jpeg(3)] * 3


# A line of JSONL, and what is wrong with it.
JSON_LINES = [
    ('{"path": "1.jpg", "label": 1, "x": 1}', None),
    ('{"path": "2.jpg", "label": 1,,}', ": is not JSON that can be stored: Expecting property name"),
    ('["3.jpg", 1]', ": is a JSON list; expected an object with a path"),
    ('{"path": "4.jpg", "x": 1}', " (4.jpg): no label is given in 'label'"),
    ('{"label": 1, "x": 1}', ": no path is given"),
    ('{"path": 7, "label": 1, "x": 1}', ": its path is a int, not text"),
    ('{"path": "8.jpg", "label": true, "x": 1}', " (8.jpg): 'label' has [True]; a label is a class name or a whole"),
    ('{"path": "9\\u0000.jpg", "label": 1, "x": 1}', " (9\\x00.jpg): its path contains a NUL character"),
    ('{"path": "10\\ud800.jpg", "label": 1, "x": 1}', ": contains half of a surrogate pair"),
    ('{"path": "2.jpg", "label": 1, "x": [NaN]}', " (2.jpg): its x cannot be stored: JSON has no nan"),
    ('{"path": "1.jpg", "label": 1, "x": 1}', " (1.jpg): the path is already listed at a.jsonl line 1"),
    ('{"path": "14.jpg", "x": ' + "[" * 100_000, ": is not JSON that can be stored: maximum recursion depth exceeded"),
    (
        '{"path": "15.jpg", "x": ' + "9" * 5000 + "}",
        ": is not JSON that can be stored: Exceeds the limit (4300 digits)",
    ),
]


def test_bad_lines_of_jsonl(root: Path) -> None:
    file = written(root, "\n".join(line for line, _ in JSON_LINES), "a.jsonl")
    _, found, bad = packed(file, label_type="int")
    wanted = [(number, why) for number, (_, why) in enumerate(JSON_LINES, 1) if why]
    for text, (number, why) in zip(bad, wanted, strict=True):
        assert text.startswith(f"a.jsonl line {number}{why}")
    assert values_of(found, "key") == ["1.jpg"]


def test_bad_images_and_masks(root: Path) -> None:
    ids = class_ids(5)
    ids[0] = 7
    write(root, {"small.png": mask(0, size=(9, 9)), "rgb.png": encode_mask(np.zeros((64, 96, 3), np.uint8))})
    write(root, {"seven.png": encode_mask(ids), "jpeg.png": jpeg(0)})
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
        ("4.jpg", "1.jpg", "jpeg.png"),
    ]
    expected = [
        "3 (0.jpg): column 'right': no path is given",
        "4 (0.jpg): its right none.jpg cannot be read: No such file",
        "5 (0.jpg): column 'right': the path leads out of",
        "6 (0.jpg): the path is already listed at a.csv line 2",
        "7 (1.jpg): field 'mask': the mask has 9 × 9 pixels",
        "8 (2.jpg): field 'mask': a mask has one channel",
        "9 (5.jpg): its mask seven.png contains class ids without a name: 7;",
        "10 (3.jpg): its mask m/none.png cannot be read: No such file",
        "11 (none.jpg): cannot be read: No such file",
        "12 (4.jpg): field 'mask': a mask has one channel",
    ]
    file = written(root, table("left,right,mask", *rows))
    _, found, bad = packed(file, image_columns=["left", "right"], classes=list("abcd"))
    assert [text.startswith(f"a.csv line {start}") for text, start in zip(bad, expected, strict=True)] == [True] * 10, (
        bad
    )
    assert values_of(found, "left") == [jpeg(0)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"boxes": [[30, 2, 1, 40]], "labels": [0]}, "has a negative width"),
        ({"boxes": [[1, 2, 3]], "labels": [0]}, "shape (n, 4)"),
        ({"boxes": [[1, 2, 3, 4], [1]], "labels": [0]}, "boxes are rows of 4 numbers"),
        ({"boxes": "[", "labels": [0]}, "its boxes is not JSON"),
        ({"boxes": None, "labels": []}, "no boxes are given in 'boxes'; write [] for an image without boxes"),
        ({"boxes": {"x": 1}, "labels": [0]}, "boxes are rows of 4 numbers"),
        ({"boxes": [[1, 2, 30, 40]], "labels": [0, 1]}, "field 'labels' has 2 rows, and field 'boxes' has 1 boxes"),
        ({"boxes": [[200, 2, 300, 40]], "labels": [0]}, "lies outside the image of 96 × 64 pixels"),
        ({"boxes": [[1, 2, 30, float("nan")]], "labels": [0]}, "is not finite"),
        ({"boxes": [[1, 2, 30, 40]], "labels": [2]}, "label '2' is none of the 2 class ids given"),
        ({"boxes": [[1, 2, 30, 40]], "labels": [-1]}, "label '-1' is none of the 2 class ids given"),
        (
            {"boxes": [[1, 2, 30, 40]], "labels": [True]},
            "'labels' has [True]; a label is a class name or a whole number",
        ),
        ({"boxes": [[1, 2, 30, 40]], "labels": 1}, "'labels' has 1; a label is a class name"),
        ({"boxes": [], "labels": [], "say": 5}, "a caption is text, or a list of texts"),
    ],
)
def test_bad_boxes_labels_and_captions(row: dict[str, Any], reason: str, root: Path) -> None:
    good = {"image": "0.jpg", "boxes": [[1, 2, 30, 40]], "labels": [0], "say": "a"}
    file = written(root, lines(good, {**good, "image": "1.jpg", **row}), "a.jsonl")
    meta, _, (bad,) = packed(file, box_format="xyxy", classes=["cat", "dog"], caption_columns="say")
    assert bad.startswith("a.jsonl line 2 (1.jpg): ")
    assert reason in bad
    assert meta.count == 1


def test_bad_labels_of_several(root: Path) -> None:
    file = written(root, table("image,label", ("0.jpg", "a;a"), ("1.jpg", "x;b"), ("2.jpg", "a;b")))
    meta, _, bad = packed(file, label_separator=";", classes=["a", "b"])
    assert bad == [
        "a.csv line 2 (0.jpg): a label is listed twice in 'label'",
        "a.csv line 3 (1.jpg): unknown label 'x'; the classes are a, b",
    ]
    assert meta.count == 1


def test_lines_that_differ_in_more_than_captions(root: Path) -> None:
    rows = [
        ("0.jpg", "cat", "m/0.png", 1, "a"),
        ("./0.jpg", "cat", "m/0.png", 1, "b"),
        ("0.jpg", "dog", "m/0.png", 1, "c"),
        ("1.jpg", "dog", "m/1.png", 1, "d"),
        ("1.jpg", "cat", "m/0.png", 2, "e"),
        ("1.jpg", "dog", "m/1.png", 1, "f"),
    ]
    file = written(root, table("image,label,mask,year,caption", *rows))
    meta, found, bad = packed(file, caption_columns=["caption"])
    end = "only rows that differ in captions are joined"
    assert bad == [
        f"a.csv line 4 (0.jpg): the path is already listed at a.csv line 2, with another 'label'; {end}",
        f"a.csv line 6 (1.jpg): the path is already listed at a.csv line 5, with another 'label' and 'mask' and 'year'; {end}",
    ]
    assert [(each["label"], each["year"], each["caption"]) for each in found] == [
        (0, 1, ["a", "b"]),
        (1, 1, ["d", "f"]),
    ]
    assert "joined the captions of 2 rows to those of earlier rows with the same path" in meta.notes
    *_, bad = packed(written(root, table("image,caption", *CAPTIONS[:2])))
    assert bad == [
        "a.csv line 4 (0.jpg): the path is already listed at a.csv line 2; caption_columns= (--option "
        "caption_columns=caption) joins the captions of one image"
    ]


def test_an_unclosed_quote_does_not_exhaust_memory(root: Path) -> None:
    text = "".join(f"{number}.jpg,a\n" for number in range(20_000))
    *_, bad = packed(written(root, f'path,label\n0.jpg,a\n"{text}'))
    assert (
        bad[0] == "a.csv line 3: is not CSV: field larger than field limit (131072); is a quote opened and not closed?"
    )


def test_hidden_files_are_left_out_by_default(root: Path) -> None:
    write(root, {"a/.ipynb_checkpoints/1.jpg": 1, "__MACOSX/a/._1.jpg": 2})
    file = written(root, "path,label\n0.jpg,x\na/.ipynb_checkpoints/1.jpg,y\n__MACOSX/a/._1.jpg,z\n")
    meta, found, _ = packed(file)
    assert (values_of(found, "key"), meta.attrs["classes"]) == (["0.jpg"], ["x"])
    assert meta.notes[0].startswith("left out 2 hidden files (__MACOSX/a/._1.jpg, a/.ipynb_checkpoints/1.jpg); ")
    assert packed(file, include_hidden=True)[0].count == 3


# Lists that are refused


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "a.csv has no columns; expected a line of their names"),
        ("path,label\n", {}, "a.csv lists no image"),
        ("[1]\n{", {"kind": "jsonl"}, "a.csv has no columns"),
        (
            "a,b\n1.jpg,2\n",
            {},
            r"none of its columns 'a', 'b' is one of path, image, .*\(--option path_column=a\), or, for",
        ),
        ("path;label\n", {}, r"a.csv has one column, 'path;label'; pass delimiter=';' \(--option 'delimiter=;'\)"),
        ("path,label\n", {"path_column": "pth"}, "path_column names 'pth'; did you mean 'path'"),
        ("path,label\n", {"label_column": "path"}, "column 'path' is given for two purposes"),
        ("path,label\n", {"label_column": "label", "label": False}, "label=False contradict"),
        (
            "path,note\n",
            {},
            r"no column looks like labels .*\(--option label_column=note\), or pass label=False \(--no-label\)",
        ),
        (
            "path,labels,class_id\n",
            {},
            r"columns 'labels', 'class_id' all look like labels; .*--option label_column=labels",
        ),
        ("path,x,x\n", {}, "there are two columns 'x'; rename one"),
        ("path,A b,a_b\n", {"label": False}, "column 'a_b' becomes field 'a_b', and so does column 'A b'; rename one"),
        ("path,Key\n", {"label": False}, "becomes field 'key', and so does a field that pack adds; rename one"),
        (
            "path,label\né.jpg,a\n".encode("latin-1"),
            {},
            r"a.csv line 2: 'utf-8' codec can't decode byte 0xe9 .*encoding='cp1252' \(--option encoding=cp1252\)",
        ),
        ("path\n", {"encoding": "klingon"}, "encoding='klingon' is not a text encoding that Python knows"),
        ("path\n", {"delimiter": ",,"}, "a.csv: its header cannot be read: .*delimiter.* must be a 1-character string"),
        ('"path,label\n1.jpg,a\n', {}, "a.csv: its header cannot be read: unexpected end of data"),
        ("path\n", {"kind": "jsonl", "delimiter": ";"}, "delimiter and skipinitialspace are for CSV"),
        ("path\n", {"root": "nowhere"}, "root='nowhere' is not a folder"),
        ("path\n", {"label_type": "float"}, "label_type='float'; the choices are auto, int, names"),
        ("path\n", {"colums": ["a"]}, "a source of kind csv has no option 'colums'; did you mean 'columns'"),
        ("path,label\n", {"classes": ["a", "a"]}, "classes: 'a' is listed twice"),
        ("path,label\n0.jpg,1.5\n", {}, r"labels are numbers such as '1\.5' at a.csv line 2; pass label_type='names'"),
        (
            "path,label\n1.jpg,0\n2.jpg,1\npath,label\n",
            {},
            r"a.csv: labels are integers such as '0' at a.csv line 2, names such as 'label' at a.csv line 4; pass "
            r"label_type='names' \(--option label_type=names\) if all are class names, 'int' to accept integers only, "
            r"classes=\[…\] \(--classes\) to list the class names, or label=False \(--no-label\) to keep them as another field",
        ),
    ],
)
def test_lists_that_are_refused(text: str | bytes, options: dict[str, Any], message: str, root: Path) -> None:
    with pytest.raises((ConfigError, StoreNotFoundError), match=message):
        open_source(written(root, text), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_columns": ["left", "rigth"]}, "image_columns names 'rigth'; did you mean 'right'"),
        ({"image_columns": "left,left"}, "column 'left' is given for two purposes"),
        ({"path_column": "right"}, "leave out path_column; the path is in the first of image_columns"),
        ({"mask_columns": ["masks"]}, "mask_columns names 'masks'"),
        ({"caption_columns": ["left"]}, "column 'left' is given for two purposes"),
        ({"box_column": "right"}, r"boxes need box_format= \(--option box_format=xyxy\): xyxy for left, top"),
        ({"box_relative": True}, "boxes need box_format="),
        ({"box_format": "xxyy"}, "box_format='xxyy'; did you mean 'xyxy'"),
        ({"box_format": "xyxy"}, "no column is named boxes, bbox, bboxes"),
        ({"label_separator": ""}, "label_separator='' needs a column of labels, and text between two"),
        ({"label_separator": ";", "label": False}, "label_separator=';' needs a column of labels"),
    ],
)
def test_options_that_do_not_fit(root: Path, options: dict[str, Any], message: str) -> None:
    file = written(root, table("left,right,cat,label", ("0.jpg", "1.jpg", 1, "a")))
    with pytest.raises(ConfigError, match=message):
        open_source(file, **{"image_columns": ["left", "right"], **options})


def test_a_list_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ConfigError, match="pipe.csv is not a regular file"):
        open_source(tmp_path / "pipe.csv", kind="csv")
    with pytest.raises(StoreNotFoundError, match=r"no file at .*none.csv: .* holds pipe.csv"):
        open_source(tmp_path / "none.csv", kind="csv")


def test_notes_on_columns_that_may_hold_more(root: Path) -> None:
    file = written(root, lines({"path": "0.jpg", "small": "1.jpg", "bbox": [[1, 2, 3, 4]], "label": 0}), "a.jsonl")
    pictures, boxes = open_source(file).notes
    assert "--option image_columns=path,small" in pictures
    assert "--option box_format=xyxy" in boxes


def test_the_command_line(root: Path, tmp_path: Path) -> None:
    rows = [("0.jpg", "1.jpg", "x", "m/0.png", "a", "[0.1,0.2,0.3,0.4]"), ("2.jpg", "3.jpg", "y", "m/2.png", "", "[]")]
    file = written(root, table("left,right,say,seg,tags,box", *rows))
    options = ["image_columns=left, right", 'caption_columns=["say"]', "mask_columns=", "label_column=tags"]
    options += ["label_separator=|", "box_column=box", "box_format=xywh", "box_relative=true"]
    command = ["pack", str(file), f"{tmp_path}/a.lmdb", "--classes", "b,a,c"]
    run = CliRunner().invoke(app, [*command, *(text for option in options for text in ("--option", option))])
    assert run.exit_code == 0, run.stderr
    found = records(f"{tmp_path}/a.lmdb")
    assert values_of(found, "labels") == [[1], []]
    assert values_of(found, "boxes") == [[[0.1, 0.2, 0.3, 0.4]], []]
    assert (values_of(found, "seg"), values_of(found, "say")) == (["m/0.png", "m/2.png"], ["x", "y"])
