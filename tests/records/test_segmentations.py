"""Masks of instances from polygons and run-length encodings: equal to those of pycocotools, and checked by one rule."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as oracle
from pycocotools.coco import COCO

from make_store import make_store
from photographs import saved
from storeds import StoreDataset
from storeds.errors import MissingDependencyError, RecordError
from storeds.readers import rasterised
from storeds.records.segmentations import boxes_around

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


def truth(item: Any, height: int, width: int) -> Any:
    """Return the mask that pycocotools draws for one annotation."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
    coco.imgs = {1: {"height": height, "width": width}}
    return coco.annToMask({"image_id": 1, "segmentation": item})


@st.composite
def masks(draw: st.DrawFn) -> Any:
    height, width = draw(SIZES)
    seed = draw(st.integers(0, 2**32 - 1))
    threshold = draw(st.sampled_from([0.02, 0.5, 0.98, -1.0, 2.0]))
    return (np.random.default_rng(seed).random((height, width)) > threshold).astype(np.uint8)


@given(masks())
def test_run_lengths_give_the_mask_back(mask: Any) -> None:
    height, width = mask.shape
    compressed = oracle.encode(np.asfortranarray(mask))
    text = {"size": [height, width], "counts": compressed["counts"].decode()}
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges, len(flat)]).tolist()
    listed = {"size": [height, width], "counts": counts if not flat[0] else [0, *counts]}
    found = rasterised([text, listed], height, width)
    assert found.dtype == np.uint8
    assert found.shape == (2, height, width)
    np.testing.assert_array_equal(found[0], mask)
    np.testing.assert_array_equal(found[1], mask)


@given(SIZES, st.data())
def test_polygons_are_drawn_as_pycocotools_draws_them(size: tuple[int, int], data: st.DataObject) -> None:
    height, width = size
    number = st.floats(-20, 60, width=32)
    polygon = st.integers(3, 8).flatmap(lambda n: st.lists(number, min_size=2 * n, max_size=2 * n))
    items = data.draw(st.lists(st.lists(polygon, min_size=1, max_size=3), max_size=3))
    found = rasterised(items, height, width)
    assert found.shape == (len(items), height, width)
    for mask, item in zip(found, items, strict=True):
        np.testing.assert_array_equal(mask, truth(item, height, width))


def test_relative_polygons_are_fractions_of_width_and_height() -> None:
    polygon = [0.25, 0.5, 0.75, 0.5, 0.5, 1.0]
    pixels = [16.0, 16.0, 48.0, 16.0, 32.0, 32.0]
    np.testing.assert_array_equal(rasterised([[polygon]], 32, 64, relative=True), truth([pixels], 32, 64)[np.newaxis])


FORMS = "a mask is a list of polygons [[x1, y1, x2, y2, …], …], or a run-length encoding"
FAULTS: list[tuple[Any, str]] = [
    (None, f"{FORMS} {{'size': …, 'counts': …}}, not NoneType"),
    ([1, 2, 3, 4, 5, 6], "a polygon is a list, not int"),
    ([[1, 2, 3, 4]], "a polygon has an even number of coordinates, at least 6, not 4"),
    ([[1, 2, 3, 4, 5, "x"]], "the coordinates of a polygon are finite numbers, not [1, 2, 3, 4, 5, 'x']"),
    ([[1, 2, 3, 4, 5.5, 10**400]], "finite numbers"),
    ([[1, 2, 3, 4, 5, 1e12]], "a polygon reaches from 1 to 1e+12, which is far outside the image"),
    ({"counts": [24]}, "a run-length encoding has the keys size and counts, not counts"),
    ({"size": [4, 6.0], "counts": [24]}, "size is [height, width], two whole numbers, not [4, 6]"),
    ({"size": [6, 4], "counts": [24]}, "size is [height, width] of the image, [4, 6], not [6, 4]"),
    ({"size": [4, 6], "counts": [23]}, "counts add up to 23, and size [4, 6] has 24 pixels"),
    ({"size": [4, 6], "counts": [25, -1]}, "counts are a list of integers of 0 or more"),
    ({"size": [4, 6], "counts": "ooooooooooooooooooooo0"}, "its compressed counts are damaged"),
    ({"size": [4, 6], "counts": "№"}, "the text of COCO's encoding"),
]
TRIANGLE = [[0, 0, 4, 0, 4, 4]]
MASKS = {"kind": "json", "role": "mask"}


def one_image(masks: Any, kind: Any) -> str:
    """Return the URL of a store of one picture of 6 × 4 pixels and its masks."""
    return make_store({"image": "image", "masks": kind}, [{"image": saved(Image.new("RGB", (6, 4))), "masks": masks}])


@pytest.mark.parametrize(("mask", "fault"), FAULTS, ids=lambda value: str(value)[:60])
def test_writers_and_readers_refuse_the_same_masks(mask: Any, fault: str) -> None:
    with pytest.raises(ValueError, match="field 'mask', row 1: ") as drawn:
        rasterised([TRIANGLE, mask], 4, 6)
    assert fault in str(drawn.value)
    if "10000" not in str(mask):  # which JSON cannot hold in a store
        with pytest.raises(RecordError, match="record 0.*field 'masks', row 1: ") as written:
            one_image([TRIANGLE, mask], MASKS)
        assert fault in str(written.value)
    # A store of another tool holds masks as text, which is checked when it is read.
    url = one_image(json.dumps([TRIANGLE, mask]), "str")
    with pytest.raises(RecordError, match=f"record 0 of {url}: field 'masks', row 1: ") as read:
        StoreDataset(url, fields=["image", "masks"], roles={"masks": "mask"})[0]
    assert fault in str(read.value)


@pytest.mark.parametrize(
    "masks",
    [
        [],
        [TRIANGLE, [], {"size": [4, 6], "counts": [20, 4]}],
        [{"size": [4, 6], "counts": "d04"}],
        [[[-9, 0, 99, 0, 4, 4]]],
    ],
    ids=str,
)
def test_what_a_writer_accepts_can_be_read(masks: Any) -> None:
    assert np.array_equal(StoreDataset(one_image(masks, MASKS))[0][1], rasterised(masks, 4, 6))


@given(st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=20))
def test_no_compressed_counts_crash(counts: str) -> None:
    try:
        found = rasterised([{"size": [3, 5], "counts": counts}], 3, 5)
    except ValueError:
        return
    np.testing.assert_array_equal(found[0], oracle.decode({"size": [3, 5], "counts": counts.encode()}))


def test_without_pycocotools_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    assert rasterised([{"size": [2, 2], "counts": [1, 3]}], 2, 2).sum() == 3
    with pytest.raises(MissingDependencyError, match=r"pip install storeds\[coco\]"):
        rasterised([[[0, 0, 4, 0, 4, 4]]], 2, 2)


@given(SIZES, st.data())
def test_boxes_around_masks_are_those_of_the_drawn_masks(size: tuple[int, int], data: st.DataObject) -> None:
    height, width = size
    corner = st.tuples(st.integers(-5, 45), st.integers(-5, 45))
    polygons = [[float(each) for point in data.draw(st.lists(corner, min_size=3, max_size=6)) for each in point]]
    bits = np.array(data.draw(st.lists(st.integers(0, 1), min_size=height * width, max_size=height * width)), np.uint8)
    encoded = oracle.encode(np.asfortranarray(bits.reshape(height, width)))
    masks = [polygons, {"size": [height, width], "counts": encoded["counts"].decode()}, []]
    for mask, box in zip(masks, boxes_around(masks, height, width), strict=True):
        drawn = truth(mask, height, width) if mask else np.zeros(size)
        rows, columns = np.flatnonzero(drawn.any(1)), np.flatnonzero(drawn.any(0))
        across = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1] if len(rows) else None
        assert box == across


CLAIMS: dict[str, list[Any]] = {
    "one": [{"size": [100_000, 100_000], "counts": [10**9] * 10}],
    "many": [{"size": [20_000, 20_000], "counts": [400_000_000]}] * 1000,
    "polygons": [[[0, 0, 5, 0, 5, 5]]] * 5000,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_masks_of_more_than_four_gibibytes_are_refused_before_they_are_drawn(name: str) -> None:
    masks = CLAIMS[name]
    height, width = masks[0]["size"] if isinstance(masks[0], dict) else (4000, 4000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"masks of {height} x {width} pixels take more than 4,294,967,296 bytes"):
            rasterised(masks, height, width)
        assert len(boxes_around(masks, height, width)) == len(masks)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
