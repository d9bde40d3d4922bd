"""Roles in stores: every engine keeps them, and writers refuse values that do not fit them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

import storeds
from make_store import make_store
from plain_formats import WRITE, declared, stored_row
from storeds import errors, ops
from storeds.records.roles import ROLE_KEYS

MakeUrl = Callable[[str], str]

BOXES = {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xyxy"}
LABELS = {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"}
FIELDS: dict[str, Any] = {
    "image": {"kind": "image", "role": "image"},
    "boxes": BOXES,
    "labels": {**LABELS, "of": "boxes"},
    "points": {"kind": "array", "dtype": "float32", "shape": [None, 2, 3], "role": "keypoints", "of": "boxes"},
    "areas": {"kind": "array", "dtype": "float64", "shape": [None], "of": "boxes"},
    "relative": {"kind": "json", "role": "boxes", "format": "cxcywh", "relative": True},
    "mask": {"kind": "image", "role": "mask"},
    "caption": {"kind": "str", "role": "text"},
    "scene": {"kind": "int", "role": "label"},
    "key": "str",
}


def picture(mode: str = "RGB", size: tuple[int, int] = (64, 48), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, form)
    return file.getvalue()


PHOTO, MASK = picture(form="JPEG"), picture("L")


def record(at: int = 0, **values: Any) -> dict[str, Any]:
    count = at % 3
    return {
        "image": PHOTO,
        "boxes": np.array([[0, 0, 10, 10 + row] for row in range(count)], np.float32).reshape(-1, 4),
        "labels": np.arange(count),
        "points": np.zeros((count, 2, 3), np.float32),
        "areas": np.full(count, 2.5),
        "relative": [[0.5, 0.5, 0.1, 0.2]] * at,
        "mask": MASK,
        "caption": "a picture",
        "scene": at % 2,
        "key": f"key {at}",
        **values,
    }


TYPED = {name: FIELDS[name] for name in ("image", "boxes", "labels", "areas", "mask")}


def record_of(at: int, **values: Any) -> dict[str, Any]:
    return {name: record(at, **values)[name] for name in TYPED}


def write(url: str, fields: Mapping[str, Any] = FIELDS, count: int = 5) -> storeds.Meta:
    with storeds.open_writer(url, fields) as writer:
        writer.append({name: record(at)[name] for name in fields} for at in range(count))
        return writer.publish({"classes": ["cat", "dog"]})


def test_a_copy_gets_keeps_and_loses_roles(make_engine_url: MakeUrl) -> None:
    plain = {
        name: {key: spec[key] for key in ("kind", "dtype", "shape") if key in spec} for name, spec in TYPED.items()
    }
    source, target, same = (make_engine_url(engine) for engine in ("lmdb", "hdf5", "memory"))
    old, new = write(source, plain), write(same, TYPED)
    roles = {name: {key: spec[key] for key in ROLE_KEYS if key in spec} for name, spec in TYPED.items()}
    copy = ops.convert(source, target, roles=roles)
    assert copy.id == new.id != old.id
    assert copy.fields == new.fields
    assert ops.convert(target, make_engine_url("lmdb")).fields == new.fields
    without = {name: {"role": None, "format": None, "of": None} for name in TYPED}
    assert ops.convert(target, make_engine_url("lmdb"), roles=without).id == old.id
    ops.repair(target, repaired := make_engine_url("lmdb"))
    assert storeds.info(repaired).id == new.id


@pytest.mark.parametrize(
    ("role", "good", "bad", "shape"),
    [
        ("boxes", [(2, 4), (0, 4), (1, 4)], (1, 5), (None, 4)),
        ("keypoints", [(2, 5, 3), (0, 5, 3), (1, 17, 3)], (1, 5, 2), (None, None, 3)),
    ],
)
def test_a_copy_counts_the_columns_of_rows(tmp_path: Path, role: str, good: list[Any], bad: Any, shape: Any) -> None:
    for name, shapes in (("good", good), ("bad", [*good[:2], bad])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for number, each in enumerate(shapes):
                file[f"{number}/rows"], file[f"{number}/id"] = np.full(each, number, "<f4"), 1
    options: Any = {"layout": "per_sample", "roles": {"rows": role}}
    copy = ops.convert(f"{tmp_path}/good.h5", f"{tmp_path}/good.lmdb", **options)
    assert (copy.fields["rows"].role, copy.fields["rows"].shape) == (role, shape)
    with storeds.open_backend(f"{tmp_path}/good.lmdb") as backend:
        for number, found in enumerate(backend.get_many([0, 1, 2])):
            assert not isinstance(found, errors.RecordError)
            assert np.array_equal(found["rows"], np.full(good[number], number))
    with pytest.raises(errors.RecordError, match="record 2"):
        ops.convert(f"{tmp_path}/bad.h5", f"{tmp_path}/bad.lmdb", **options)


@pytest.mark.parametrize(
    ("roles", "error", "fault"),
    [
        ({"box": "boxes"}, errors.ConfigError, "no field 'box'; did you mean 'boxes'"),
        ({"mask": "keypoints"}, errors.ConfigError, "field 'mask': role 'keypoints' needs"),
        ({"boxes": {"role": "boxes", "relative": True}}, errors.RecordError, "record 1 .*outside the image"),
    ],
    ids=str,
)
def test_a_copy_refuses_roles_that_do_not_fit(
    make_engine_url: MakeUrl, roles: dict[str, Any], error: type[Exception], fault: str
) -> None:
    source, target = make_engine_url("lmdb"), make_engine_url("hdf5")
    make_store(TYPED, [record_of(0), record_of(1, boxes=np.full((1, 4), 9, np.float32))], source)
    with pytest.raises(error, match=fault):
        ops.convert(source, target, roles=roles)
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(target)


ONE = np.array([[0, 0, 4, 4], [4, 4, 8, 8]], np.float32)


def changed(row: int, *numbers: float) -> Any:
    boxes = ONE.copy()
    boxes[row] = numbers
    return boxes


@pytest.mark.parametrize(
    ("values", "row", "fault"),
    [
        ({"boxes": changed(1, 5, 5, 3, 9)}, 1, "[5, 5, 3, 9] has a negative width"),
        ({"boxes": changed(0, 64, 0, 70, 9)}, 0, "outside the image of 64 × 48 pixels"),
        ({"labels": np.arange(1)}, None, "field 'labels' has 1 rows, and field 'boxes' has 2 boxes"),
        ({"points": np.full((2, 2, 3), np.nan, np.float32)}, 0, "is not finite"),
        ({"relative": [[0.5, 0.5, 0.1, 0.1], [0.5, 0.5, -0.1, 0.1]]}, 1, "has a negative width"),
        ({"relative": [[0.5, 0.5, 0.1, "wide"]]}, None, "rows of 4 numbers"),
        ({"mask": picture("RGB")}, None, "one channel"),
        ({"mask": picture("L", (64, 47))}, None, "64 × 47 pixels (width × height), the image 64 × 48"),
    ],
    ids=str,
)
def test_a_bad_value_is_refused_and_named(values: dict[str, Any], row: int | None, fault: str) -> None:
    two = {"boxes": ONE, **{name: record(2)[name] for name in ("labels", "points", "areas")}}
    with pytest.raises(errors.RecordError) as caught:
        make_store(FIELDS, [record(0), record(1), record(2, **{**two, **values})], "memory://bad", overwrite=True)
    message = str(caught.value)
    assert message.startswith("record 2 (key 'key 2') of memory://bad: field ")
    assert repr(next(iter(values))) in message
    assert fault in message
    assert row is None or f", row {row}:" in message
    assert (caught.value.position, caught.value.key) == (2, "key 2")


@pytest.mark.parametrize(
    "values",
    [
        {"boxes": changed(0, -5, -5, 4, 4)},  # partly outside
        {"boxes": changed(0, 5, 5, 5, 5)},  # empty
        {"points": np.full((2, 2, 3), 1000, np.float32)},
        {"mask": picture("P")},
        {"mask": picture("I;16")},
        {"mask": b"no picture"},
        {"image": b"no picture", "mask": picture("L", (9, 9))},
    ],
    ids=str,
)
def test_values_on_the_edge_are_accepted(values: dict[str, Any]) -> None:
    two = {"boxes": ONE, **{name: record(2)[name] for name in ("labels", "points", "areas")}}
    make_store(FIELDS, [record(2, **{**two, **values})])


def test_arrays_of_pixels_give_the_size_of_the_image() -> None:
    image = {"kind": "array", "dtype": "uint8", "shape": [None, None, 3], "role": "image"}
    mask = {"kind": "array", "dtype": "uint8", "shape": [None, None], "role": "mask"}
    good = {"x": np.zeros((9, 7, 3), np.uint8), "y": np.zeros((9, 7), np.uint8)}
    with pytest.raises(errors.RecordError, match=r"record 1 .*'y': the mask has 9 × 7 pixels .*, the image 7 × 9"):
        make_store({"x": image, "y": mask}, [good, {**good, "y": np.zeros((7, 9), np.uint8)}])


def test_a_mask_that_is_a_jpeg_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    make_store(FIELDS, [record(mask=picture("L", form="JPEG"))] * 2)
    (message,) = caplog.messages
    assert re.search("'mask'.*PNG", message)


LABEL = {"kind": "int", "role": "label"}
NAMES = {"kind": "str", "role": "label"}
LISTS = {"kind": "json", "role": "labels"}
CATS = ["cat", "dog"]


@pytest.mark.parametrize(
    ("fields", "values", "classes", "fault"),
    [
        ({"label": LABEL}, [[0], [2], [1]], CATS, (1, "class id 2, which has no name.*the ids 0 to 1")),
        ({"label": LABEL}, [[0]], [], (0, "is empty")),
        ({"label": LABEL}, [[9]], None, None),
        ({"label": LABEL, "colour": LABEL}, [[0, 9]], CATS, None),
        ({"label": LABEL, "colour": LABEL}, [[0, 9]], {"colour": CATS}, (0, "'colour' has class id 9")),
        ({"label": LABELS}, [[np.array([1, 0])], [np.array([], int)], [np.array([0, 7])]], CATS, (2, "class id 7")),
        ({"label": NAMES}, [["cat"], ["dgo"], ["dog"]], CATS, (1, "class 'dgo', which .*did you mean 'dog'")),
        ({"label": LISTS}, [[["cat"]], [[1]], [["cow", "cat"]]], CATS, (2, "class 'cow'")),
    ],
)
def test_a_class_without_a_name_is_refused_when_publishing(
    tmp_path: Path, fields: dict[str, Any], values: Any, classes: Any, fault: Any
) -> None:
    url, rows = f"hdf5://{tmp_path}/x.h5", [dict(zip(fields, each, strict=True)) for each in values]
    writer = storeds.open_writer(url, fields, commit_every=1)
    writer.append(rows)
    writer.suspend()
    # Another writer, which has seen no value itself, goes on.
    with storeds.open_writer(url, fields, resume=True) as writer:
        attrs = {} if classes is None else {"classes": classes}
        if fault is not None:
            with pytest.raises(errors.RecordError, match=f"record {fault[0]} of .*{fault[1]}") as refused:
                writer.publish(attrs)
            assert refused.value.position == fault[0]
            attrs = {}
        assert writer.publish(attrs).count == len(rows)


def test_verify_finds_values_that_another_program_stored(make_engine_url: MakeUrl) -> None:
    url = make_engine_url("lmdb")
    fields = {name: FIELDS[name] for name in ("image", "boxes", "labels", "mask", "key")}
    two = {"boxes": ONE, "labels": np.array([0, 1])}
    records = [
        record(0),
        record(1, **{**two, "boxes": changed(1, 9, 0, 5, 4)}),
        record(2, mask=picture("L", (9, 9))),
        record(3, mask=picture("RGB")),
        record(4, labels=np.array([2])),
        record(5, mask=picture("L", form="JPEG")),
        record(6, **{**two, "boxes": ONE[:1]}),
    ]
    WRITE["lmdb"](url, [stored_row(each, fields) for each in records], declared(fields))
    report = ops.verify(url, workers=1)
    found = {(each.position, each.key, each.kind): each.message for each in report.findings}
    assert list(found) == [(at, f"key {at}", "value") for at in (1, 2, 3, 4, 6)]
    for at, text in ((1, "row 1: [9, 0, 5, 4]"), (2, "9 × 9"), (3, "RGB"), (4, "class id 2"), (6, "2 rows")):
        assert text in found[at, f"key {at}", "value"]
    assert [(each.position, each.kind) for each in report.notes] == [(5, "lossy_mask")]
    # Readers trust what a native store declares, and check roles that are passed to them.
    assert storeds.StoreDataset(url, fields=["image", "boxes"])[1][1].tolist() == records[1]["boxes"].tolist()
    with pytest.raises(errors.RecordError, match="record 1 .*'boxes', row 1: .* has a negative width"):
        storeds.StoreDataset(url, fields=["image", "boxes"], roles={"boxes": "boxes"})[1]
