"""Batches of samples with many parts: boxes, masks, keypoints, and images of different sizes."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from storeds import collate, collate_detection, errors
from storeds.batching import Skipped

SKIPPED = Skipped(7, "lmdb://x", 7, "decode", "it is empty")


def sample(at: int, boxes: int, height: int = 9, width: int = 11) -> dict[str, Any]:
    """Return the parts of a detection sample, which follow from `at`."""
    draw = torch.Generator().manual_seed(at)
    corners = torch.rand(boxes, 4, generator=draw)
    return {
        "image": torch.randint(256, (3, height, width), generator=draw, dtype=torch.uint8),
        "boxes": torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] + 0.1], 1) * 5,
        "labels": torch.randint(9, (boxes,), generator=draw),
        "masks": torch.randint(2, (boxes, height, width), generator=draw, dtype=torch.uint8),
        "keypoints": torch.rand(boxes, 4, 3, generator=draw) * 5,
        "key": f"sample {at}",
    }


@pytest.fixture(scope="module", name="tv_tensors")
def tv_tensors_() -> Any:
    """Not imported above, because workers that import this module cannot import torchvision."""
    from torchvision import tv_tensors

    return tv_tensors


counts = st.lists(st.integers(0, 5), min_size=1, max_size=6)


# --- ragged ---


@given(counts, st.booleans())
def test_rows_are_padded_as_by_pad_sequence_and_the_mask_tells_which_are_there(
    numbers: list[int], as_tuple: bool
) -> None:
    boxes = [sample(at, number)["boxes"] for at, number in enumerate(numbers)]
    if as_tuple:
        values, mask = collate([(each, 1) for each in boxes], ragged={0: "mask"})[0]
    else:
        batch = collate([{"boxes": each, "more": each} for each in boxes], ragged={"boxes": "mask", "more": "pad"})
        assert batch.keys() == {"boxes", "boxes_mask", "more"}
        values, mask = batch["boxes"], batch["boxes_mask"]
        assert torch.equal(values, batch["more"])
    assert torch.equal(values, torch.nn.utils.rnn.pad_sequence(boxes, batch_first=True))
    assert mask.tolist() == [[at < number for at in range(max(numbers))] for number in numbers]


@given(counts)
def test_a_list_has_the_values_of_the_samples(numbers: list[int]) -> None:
    samples = [sample(at, number, 9 + at) for at, number in enumerate(numbers)]
    batch = collate(samples, ragged=dict.fromkeys(samples[0], "list"))
    for name in samples[0].keys() - {"key"}:
        assert isinstance(batch[name], list)
        assert all(torch.equal(got, each[name]) for got, each in zip(batch[name], samples, strict=True))
    assert batch["key"] == [each["key"] for each in samples]


@pytest.mark.parametrize("way", ["mask", "pad", "list"])
def test_the_structure_does_not_depend_on_the_data(way: Any) -> None:
    batches = ([sample(0, first), sample(1, second)] for first, second in ((2, 2), (0, 3), (0, 0)))
    made = [collate([{"boxes": each["boxes"]} for each in batch], ragged={"boxes": way}) for batch in batches]
    assert len({str(torch.utils._pytree.tree_structure(each)) for each in made}) == 1


@pytest.mark.parametrize("way", [None, "mask", "pad", "list"])
def test_tensors_of_torchvision_become_plain(tv_tensors: Any, way: Any) -> None:
    boxes = tv_tensors.BoundingBoxes(torch.rand(2, 4), format="XYWH", canvas_size=(9, 9))
    batch = collate([{"boxes": boxes}] * 2, ragged={} if way is None else {"boxes": way})
    assert all(type(each) is torch.Tensor for each in (batch["boxes"] if way == "list" else [batch["boxes"]]))


# --- Images of different sizes ---


def test_true_pads_each_image_and_mask_even_of_equal_sizes(tv_tensors: Any) -> None:
    for width in (5, 6):
        parts = [
            {
                "image": tv_tensors.Image(torch.zeros(3, 4, each)),
                "mask": tv_tensors.Mask(torch.zeros(4, each, dtype=torch.uint8)),
                "instances": tv_tensors.Mask(torch.ones(count, 4, each, dtype=torch.uint8)),
                "label": 1,
            }
            for each, count in ((5, 0), (width, 2))
        ]
        batch = collate(parts, pad_images=True)
        assert batch.keys() == {*parts[0], "image_mask", "mask_mask", "instances_mask"}
        assert batch["image_mask"].shape == batch["mask_mask"].shape == (2, 4, width)
        assert batch["instances"].shape == (2, 2, 4, width)
        assert batch["instances"][:, :, :, :5].sum((2, 3)).tolist() == [[0, 0], [20, 20]]
        assert batch["instances_mask"].tolist() == [[False, False], [True, True]]


def test_true_leaves_keypoints_beside_images_alone(tv_tensors: Any) -> None:
    """Two instances of 17 points with a visibility have the shape of an image with two channels."""
    parts = [{"image": tv_tensors.Image(torch.zeros(3, 4, size)), "points": torch.ones(2, 17, 3)} for size in (5, 6)]
    batch = collate(parts, pad_images=True)
    assert batch.keys() == {"image", "image_mask", "points"}
    assert batch["points"].shape == (2, 2, 17, 3)


# --- Detection ---


@given(st.lists(st.tuples(*[st.integers(0, 99)] * 4), max_size=5), st.sampled_from(["xyxy", "xywh", "cxcywh"]))
def test_boxes_become_corners(tv_tensors: Any, rows: list[tuple[int, int, int, int]], box_format: str) -> None:
    corners = torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    size, centre = corners[:, 2:] - corners[:, :2], (corners[:, 2:] + corners[:, :2]) / 2
    stored = {"xyxy": corners, "xywh": torch.cat([corners[:, :2], size], 1), "cxcywh": torch.cat([centre, size], 1)}
    parts = {"image": torch.zeros(3, 4, 4), "labels": torch.zeros(len(rows), dtype=torch.int64)}
    _, (target,) = collate_detection([{**parts, "boxes": stored[box_format]}], box_format=box_format)
    assert torch.equal(target["boxes"], corners)
    wrapped = tv_tensors.BoundingBoxes(stored[box_format], format=box_format.upper(), canvas_size=(4, 4))
    _, (target,) = collate_detection([{**parts, "boxes": wrapped}])
    assert torch.equal(target["boxes"], corners)
    assert type(target["boxes"]) is torch.Tensor


def test_masks_are_bytes_and_keypoints_without_visibility_are_visible_and_labels_can_be_left_out() -> None:
    parts: dict[str, Any] = {
        "image": torch.zeros(3, 4, 4),
        "boxes": torch.zeros(2, 4),
        "keypoints": torch.zeros(2, 5, 2),
    }
    images, (target,) = collate_detection(
        [SKIPPED, {**parts, "masks": torch.ones(2, 4, 4).bool()}], labels=None, label_offset=1
    )
    assert torch.equal(images[0], parts["image"])
    assert torch.equal(target["masks"], torch.ones(2, 4, 4, dtype=torch.uint8))
    assert target["keypoints"].shape == (2, 5, 3)
    assert target["keypoints"][..., 2].eq(1).all()
    assert target["labels"].tolist() == [1, 1]


class Pair(NamedTuple):
    image: torch.Tensor
    boxes: torch.Tensor
    area: np.ndarray[Any, Any]


def test_other_elements_keep_their_names() -> None:
    _, (target,) = collate_detection([Pair(torch.zeros(1, 2, 2), torch.zeros(3, 4), np.ones(3))], labels=None)
    assert torch.equal(target["area"], torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": torch.zeros(4, 4)}, r"'image' is torch.float32 of shape \(4, 4\)"),
        ({"image": torch.zeros(3, 4, 4, dtype=torch.int16)}, "'image' is torch.int16"),
        ({"boxes": torch.zeros(2, 5)}, r"'boxes' is xyxy of shape \(2, 5\)"),
        ({"boxes": "none"}, "'boxes' makes no tensor"),
        ({"labels": torch.zeros(3)}, "a row for each of 2 boxes"),
        ({"masks": torch.zeros(4, 4)}, "3 dimensions"),
    ],
)
def test_what_no_detector_takes_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words):
        collate_detection([{**sample(0, 2), **change}])


def test_detection_says_what_is_missing() -> None:
    with pytest.raises(
        errors.ConfigError,
        match=r"no element 'boxes', but 'image': .*StoreDataset\(…, fields=\[…\]\).*fields={'boxes': .*pass boxes=",
    ):
        collate_detection([{"image": torch.zeros(3, 2, 2)}])
    with pytest.raises(errors.ConfigError, match="pass fields="):
        collate_detection([(1, 2)])
    with pytest.raises(errors.ConfigError, match="did you mean 'xywh'"):
        collate_detection([(1, 2)], box_format="xyhw")
    with pytest.raises(errors.ConfigError, match="would replace the labels"):
        collate_detection([{**sample(0, 1), "classes": torch.ones(1)}], labels="classes")


class Many(Dataset[Any]):
    def __len__(self) -> int:
        return 1200

    def __getitem__(self, at: int) -> dict[str, Any]:
        return sample(at, (0, 3, 1, 7)[at % 4], 72, 88)


def test_many_batches_of_lists_take_few_descriptors() -> None:
    loader: Any = DataLoader(Many(), 4, collate_fn=collate_detection, num_workers=2, multiprocessing_context="fork")
    before = len(os.listdir("/proc/self/fd"))
    counts = [len(os.listdir("/proc/self/fd")) for images, targets in loader]  # of 300 batches with 20 tensors each
    assert max(counts) < before + 60


def test_keypoints_from_json_without_a_row_join_those_of_other_samples() -> None:
    points = [torch.ones(2, 17, 3), torch.zeros(0, 2)]
    batch = collate([{"keypoints": each} for each in points])
    assert batch["keypoints"].shape == (2, 2, 17, 3)
    assert batch["keypoints_mask"].tolist() == [[True, True], [False, False]]
    samples = [{**sample(at, len(each)), "keypoints": each} for at, each in enumerate(points)]
    _, targets = collate_detection(samples)
    assert [target["keypoints"].shape for target in targets] == [(2, 17, 3), (0, 0, 3)]
