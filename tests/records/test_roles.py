"""Roles without a store: the declaration and its stored form, rows that belong together, and the check of values."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeds.errors import ConfigError
from storeds.protocols import Field
from storeds.records.annotations import LARGEST, check_boxes
from storeds.records.fields import fields_from_json, fields_to_json, parse_fields
from storeds.records.roles import boxes_of


def array(dtype: str, *shape: int | None, **role: Any) -> dict[str, Any]:
    return {"kind": "array", "dtype": dtype, "shape": list(shape), **role}


SOUND = [
    {"kind": "image", "role": "image"},
    array("uint8", None, None, 3, role="image"),
    {"kind": "image", "role": "mask"},
    array("bool", None, None, None, role="mask"),
    {"kind": "json", "role": "mask", "format": "coco"},
    {"kind": "json", "role": "mask", "format": "coco", "relative": True},
    *(array("<f4", None, 4, role="boxes", format=each) for each in ("xyxy", "xywh", "cxcywh")),
    array(">f8", 2, 4, role="boxes", format="cxcywh", relative=True),
    {"kind": "json", "role": "boxes", "format": "xywh"},
    array("float16", None, 17, 3, role="keypoints"),
    array("int32", 5, 2, role="keypoints", relative=True),
    {"kind": "json", "role": "keypoints"},
    *({"kind": kind, "role": "label"} for kind in ("int", "str", "bool", "float")),
    array("uint16", None, role="labels"),
    {"kind": "json", "role": "labels"},
    {"kind": "str", "role": "text"},
    {"kind": "json", "role": "text"},
    array("int64", None),
    {"kind": "bytes"},
]
ROWS = ("array", "json")


@st.composite
def declarations(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a declaration of up to six fields; some of them describe the rows of a field of boxes."""
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), min_size=1, max_size=6, unique=True))
    fields: dict[str, dict[str, Any]] = {name: dict(draw(st.sampled_from(SOUND))) for name in names}
    boxes = [name for name, spec in fields.items() if spec.get("role") == "boxes"]
    for spec in fields.values():
        if boxes and spec["kind"] in ROWS and spec.get("role") != "boxes" and draw(st.booleans()):
            spec["of"] = draw(st.sampled_from(boxes))
    return fields


@given(declarations())
def test_a_declaration_and_its_stored_form_are_equal(fields: dict[str, Any]) -> None:
    rows: Any = fields_to_json(parse_fields(fields))
    expected = [
        {"name": name, **spec, **({"dtype": np.dtype(spec["dtype"]).newbyteorder("<").str} if "dtype" in spec else {})}
        for name, spec in fields.items()
    ]
    assert json.dumps(rows, sort_keys=True) == json.dumps(expected, sort_keys=True)  # neither null nor false
    assert fields_from_json(json.loads(json.dumps(rows))) == parse_fields(fields)
    assert parse_fields(parse_fields(fields)) == parse_fields(fields)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"kind": "image", "role": "picture"}, "unknown role 'picture'"),
        ({"kind": "image", "role": "boxes"}, "role 'boxes' needs kind array, json, not image"),
        (array("f4", None, 5, role="boxes"), r"shape \(n, 4\)"),
        (array("c8", None, 4, role="boxes"), "numbers"),
        (array("f4", None, 4, role="keypoints"), "2 or 3"),
        (array("f4", None, None, role="mask"), "integers"),
        (array("f4", None, role="labels"), "integers"),
        (array("i4", None, 1, role="labels"), r"shape \(n,\)"),
        (array("f4", None, 4, role="boxes", format="yxyx"), "unknown format 'yxyx'"),
        (array("f4", None, 2, role="keypoints", format="xyxy"), "format is for boxes"),
        ({"kind": "image", "role": "mask", "relative": True}, "relative is for"),
        (array("f4", None, 4, role="boxes", relative=1), "relative is True or False"),
        ({"kind": "json", "of": "nothing"}, "of names 'nothing'"),
        ({"kind": "image", "of": "b"}, "which have rows"),
        ({"kind": "json", "role": "boxes", "of": "b"}, "of names 'b'"),
        ({"kind": "json", "roles": "boxes"}, "role, format, relative, of"),
    ],
    ids=str,
)
def test_a_role_that_does_not_fit_is_refused(spec: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"field 'x'.*{fault}"):
        parse_fields({"x": spec, "b": array("f4", None, 4, role="boxes"), "other": "json"})


def test_rows_belong_to_the_named_boxes_or_to_the_only_ones() -> None:
    boxes = array("f4", None, 4, role="boxes")
    parts = {
        "labels": array("i8", None, role="labels"),
        "points": array("f4", None, 5, 2, role="keypoints"),
        "instances": array("u1", None, None, None, role="mask"),
        "polygons": {"kind": "json", "role": "mask"},
        "semantic": array("u1", None, None, role="mask"),
        "picture": {"kind": "image", "role": "mask"},
        "areas": array("f4", None),
        "label": {"kind": "int", "role": "label"},
    }
    one, two = parse_fields({"a": boxes, **parts}), parse_fields({"a": boxes, "b": boxes, **parts})
    assert [name for name in one if boxes_of(name, one) == "a"] == ["labels", "points", "instances", "polygons"]
    assert not any(boxes_of(name, two) for name in two)
    named = parse_fields({"a": boxes, "b": boxes, "areas": array("f4", None, of="b")})
    assert boxes_of("areas", named) == "b"
    assert boxes_of("areas", {"areas": named["areas"]}) is None  # of a sample without the boxes


COORDINATES = st.sampled_from(
    [-9.0, -1.0, 0.0, 1.0, 2.5, 8.0, 10.0, 16.0, 1e300, -1e300, 1e28, -1e28, math.nan, math.inf]
)
SIZE = (10, 16)


def is_good(box: list[float], how: str, height: int, width: int) -> bool:
    """Whether a box is good, computed with fractions, one axis after the other."""
    if not all(abs(number) <= 1e38 for number in box):  # not NaN
        return False
    for first, second, end in ((box[0], box[2], width), (box[1], box[3], height)):
        start, stop = Fraction(first), Fraction(second)
        if how != "xyxy":
            start, stop = (start, start + stop) if how == "xywh" else (start - stop / 2, start + stop / 2)
        inside = start <= stop and not (start < 0 and stop <= 0) and not (start >= end and stop > end)
        if not inside:
            return False
    return True


@given(
    st.lists(st.lists(COORDINATES, min_size=4, max_size=4), max_size=4),
    st.sampled_from(["xyxy", "xywh", "cxcywh"]),
    st.booleans(),
    st.booleans(),
)
def test_a_bad_box_is_named(rows: list[list[float]], how: str, relative: bool, as_array: bool) -> None:
    field = Field("array", "<f8", (None, 4), role="boxes", format=how, relative=relative)
    size = (1, 1) if relative else SIZE
    bad = [row for row, box in enumerate(rows) if not is_good(box, how, *size)]
    value: Any = np.array(rows, np.float64).reshape(-1, 4) if as_array else rows
    if bad:
        with pytest.raises(ValueError, match="field 'b', row ") as caught:
            check_boxes("b", value, field, SIZE)
        row = int(str(caught.value).split("row ")[1].split(":")[0])
        assert row in bad
    else:
        assert np.array_equal(check_boxes("b", value, field, SIZE), np.array(rows).reshape(-1, 4))


def test_a_box_that_begins_far_outside_is_compared_exactly() -> None:
    field = Field("array", "<f8", (None, 4), role="boxes", format="xyxy")
    assert len(check_boxes("b", [[-LARGEST, 0, 2.5, 1]], field, SIZE)) == 1
