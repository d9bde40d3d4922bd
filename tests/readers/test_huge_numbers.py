"""A number that no float can hold makes one sample bad: it is skipped, and does not end the run."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from PIL import Image

import storeds
from storeds import StoreDataset, errors

HUGE = 10**400
MASK = {"role": "mask", "format": "coco"}
BOXES = {"role": "boxes", "format": "xyxy"}
CASES: dict[str, tuple[Any, Any, Any]] = {  # role, a good value and a bad one
    "polygon": (MASK, [[[1, 1, 5, 5, 3, 9]]], [[[1, 1, HUGE, 5, 3, 9]]]),
    "polygon whose numbers sum to little": (MASK, [[[1, 1, 5, 5, 3, 9]]], [[[1, 1, HUGE, 5, -HUGE, 9]]]),
    "polygon of floats": (MASK, [[[1, 1, 5, 5, 3, 9]]], [[[1, 1, 1e308, 1e308, 1e308, 9]]]),
    "infinities": (MASK, [[[1, 1, 5, 5, 3, 9]]], [[[1, 1, float("inf"), 5, float("-inf"), 9]]]),
    "size": (MASK, [{"size": [16, 16], "counts": [256]}], [{"size": [HUGE, 16], "counts": [256]}]),
    "counts": (MASK, [{"size": [16, 16], "counts": [256]}], [{"size": [16, 16], "counts": [HUGE]}]),
    "box": (BOXES, [[1, 1, 5, 5]], [[1, 1, HUGE, 5]]),
    "keypoint": ("keypoints", [[1, 1, 2]], [[1, HUGE, 2]]),
    "label": ("labels", [1], [HUGE]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_huge_number_makes_one_sample_bad(case: str) -> None:
    role, good, bad = CASES[case]
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "PNG")
    url = f"memory://huge-{case.replace(' ', '-')}"
    with storeds.open_writer(url, {"image": "image", "rows": "str"}, overwrite=True) as writer:
        writer.append({"image": buffer.getvalue(), "rows": json.dumps(value)} for value in (good, bad, good))
    dataset = StoreDataset(url, reader="sample", fields=["image", "rows"], roles={"rows": role}, on_error="skip")
    assert [isinstance(sample, storeds.Skipped) for sample in dataset[:]] == [False, True, False]
    with pytest.raises(errors.RecordError, match="record 1 of .*'rows'"):
        StoreDataset(url, reader="sample", fields=["image", "rows"], roles={"rows": role})[1]
