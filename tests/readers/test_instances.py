"""Masks of instances from polygons and run-length encodings: equal to those of pycocotools, with clear errors."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as oracle
from pycocotools.coco import COCO

from storeds.errors import MissingDependencyError
from storeds.readers import rasterised

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


def test_no_instances_and_no_polygons_are_empty() -> None:
    assert rasterised([], 4, 6).shape == (0, 4, 6)
    assert not rasterised([[]], 4, 6).any()


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (None, "a mask is a list of polygons, or an object with size and counts, not NoneType"),
        ([[1, 2, 3, 4]], "a polygon has 3 points or more, and an even count of numbers, not 4"),
        ([[1, 2, 3, 4, 5, 6, 7]], "even count of numbers, not 7"),
        ([1, 2, 3, 4, 5, 6], "a polygon is a list of numbers"),
        ([[1, 2, 3, 4, 5, "x"]], "numbers only"),
        ([[1, 2, 3, 4, 5, None]], "numbers only"),
        ([[1, 2, 3, 4, 5, float("nan")]], "not finite"),
        ([[1, 2, 3, 4, 5, 1e12]], "far outside the image"),
        ({"counts": [24]}, '"size"'),
        ({"size": [4, 6]}, '"counts"'),
        ({"size": [6, 4], "counts": [24]}, "is 4 × 6 pixels, but the image is 6 × 4"),
        ({"size": [4, 6], "counts": [23]}, "sum to 23, not to the 24 pixels"),
        ({"size": [4, 6], "counts": [25, -1]}, "integers of 0 or more"),
        ({"size": [4, 6], "counts": "\n"}, "compressed counts are damaged"),
        ({"size": [4, 6], "counts": "ooooooooooooooooooooo0"}, "compressed counts are damaged"),
        ({"size": [4, 6], "counts": "o"}, "compressed counts are damaged"),
        ({"size": [4, 6], "counts": ""}, "sum to 0"),
    ],
)
def test_a_wrong_mask_is_an_error_that_names_the_instance(item: Any, why: str) -> None:
    with pytest.raises(ValueError, match="instance 1: ") as caught:
        rasterised([[[0, 0, 4, 0, 4, 4]], item], 4, 6)
    assert why in str(caught.value)


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
