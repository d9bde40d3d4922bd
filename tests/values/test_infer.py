"""Kinds of values that nobody declared, the same for every engine, and values that do not fit their kind."""

from __future__ import annotations

import base64
import datetime
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from _foreign_lmdb import encoded
from storeds.protocols import Field
from storeds.values.coerce import coerce
from storeds.values.infer import field_of
from storeds.values.names import field_names

JPEG = encoded(0)
TEXT = base64.b64encode(JPEG).decode()
DAY = datetime.datetime(2026, 1, 2)

AGREE: list[tuple[list[Any], Field]] = [
    ([True, False], Field("bool")),
    ([1, 2.5], Field("float")),
    ([np.int64(3), 4], Field("int")),
    ([JPEG, JPEG, b"\0"], Field("image")),
    ([JPEG, b"\0"], Field("bytes")),
    ([TEXT, TEXT], Field("image")),
    ([TEXT, "words"], Field("str")),
    (["a", DAY], Field("str")),
    ([DAY, UUID(int=1)], Field("str")),
    ([np.frombuffer(JPEG, "u1")], Field("image")),
    ([np.zeros((2, 3)), np.zeros((4, 3))], Field("array", "<f8", (None, 3))),
    ([[1, 2], [3, 4]], Field("array", "<i8", (2,))),
    ([[[1, 2]], [[1.5, 2]], []], Field("array", "<f8", (None, 2))),
    ([[], []], Field("json")),
    ([["a"], []], Field("json")),
    ([{"a": 1}, None, [1]], Field("json")),
    ([[np.ones(3, "f2")] * 2, (np.ones(3, "f2"),)], Field("array", "<f2", (None, 3))),
    ([[np.int16(1), np.int16(2)]], Field("array", "<i2", (2,))),
    ([np.array(1.5)], Field("array", "<f8", ())),
    ([(1, 2), [3, 4]], Field("array", "<i8", (2,))),
    ([[[1, 2]], [[1, 2, 3, 4]]], Field("json")),
    ([[1, True]], Field("json")),
    ([[True], [1]], Field("json")),
    ([[1], [[1]]], Field("json")),
    ([1, True], Field("json")),
    ([2**53 + 1, 0.5], Field("json")),
    ([2**63], Field("json")),
    ([-(2**63)], Field("int")),
    ([[1], None], Field("json")),
    ([JPEG, None], Field("image")),
    ([np.ones(2), None], Field("array", "<f8", (2,))),
    ([None], Field("json")),
]


@pytest.mark.parametrize(("values", "expected"), AGREE)
def test_values_that_agree(values: list[Any], expected: Field) -> None:
    assert field_of(values) == expected


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1, np.zeros(2)], "some records hold array and others int"),
        (["a", b"b"], "some records hold bytes and others str"),
        ([1, {1}], "no field can hold a set"),
        ([np.zeros(2), np.zeros(2, "f4")], "differ in dtype"),
        ([[np.ones(1), np.ones(2)]], "no field can hold a list of arrays of several shapes or types"),
        ([[np.ones(1), np.ones(1, "f4")]], "no field can hold a list of arrays"),
        ([[{"box": np.ones(4)}]], "no field can hold a list of arrays"),
        ([[1, np.ones(1)]], "no field can hold a list of arrays"),
        ([np.array([None])], "no field can hold an array of object"),
        ([object()], "no field can hold a object"),
    ],
)
def test_values_that_do_not_agree(values: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        field_of(values)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        (Field("array", "<f8", (1,)), [2**53 + 1], "cannot hold its integers exactly"),
        (Field("array", "<i4", (1,)), [2**40], "cannot hold its integers exactly"),
        (Field("array", "<i8", (2,)), [1.5, 2], "no numbers of type <i8"),
        (Field("array", "<i8", (2,)), [1], "has the shape"),
        (Field("array", "<i8", (2,)), ["a", "b"], "no numbers"),
        (Field("json"), {"a": [np.ones(1)]}, "holds an array, unlike the others"),
        (Field("array", "<f4", (None, 2)), [np.ones(2, "f4"), np.ones(3, "f4")], "no numbers of type <f4"),
        (Field("image"), "words", "not an image in base64"),
    ],
)
def test_values_unlike_their_kind(field: Field, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        coerce(field, value)


@pytest.mark.parametrize(
    ("labels", "taken", "names"),
    [
        (["T", "t"], [], ["t_2", "t"]),
        (["T", "t", "t_2", "t 2"], [], ["t_3", "t", "t_2", "t_2_2"]),
        (["Ä", "é", "3d", "f3d"], [], ["field", "field_2", "f3d_2", "f3d"]),
        (["a" * 95, "A" * 95], [], ["a" * 90, "a" * 90 + "_2"]),
        (["x", "x"], ["x"], ["x_2", "x_3"]),
    ],
)
def test_names_are_distinct_and_an_exact_one_wins(labels: list[str], taken: list[str], names: list[str]) -> None:
    assert field_names(labels, taken) == names
