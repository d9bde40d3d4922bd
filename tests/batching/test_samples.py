"""Batches of samples with many parts: boxes, masks, keypoints, and images of different sizes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
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


class Samples(Dataset[Any]):
    """Samples of sizes and numbers of boxes that differ, or not."""

    def __init__(self, count: int = 8, *, differ: bool = True, scale: int = 1) -> None:
        self.count, self.differ, self.scale = count, differ, scale

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> dict[str, Any]:
        if not self.differ:
            return sample(at, 2, 9 * self.scale, 11 * self.scale)
        return sample(at, (0, 3, 1, 7)[at % 4], (9 + at % 3) * self.scale, (11 - at % 4) * self.scale)


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

sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5)


@given(sizes, st.sampled_from([torch.uint8, torch.float32]), st.integers(0, 255))
def test_padded_images_and_their_mask_give_the_images_again(
    shapes: list[tuple[int, int]], dtype: torch.dtype, fill: int
) -> None:
    images = [torch.randint(256, (3, *shape)).to(dtype) for shape in shapes]
    masks = [torch.randint(9, shape, dtype=torch.int32) for shape in shapes]
    batch = collate(
        [{"image": image, "mask": mask} for image, mask in zip(images, masks, strict=True)],
        pad_images={"image": 0, "mask": fill},
    )
    height, width = (max(shape[at] for shape in shapes) for at in (0, 1))
    assert batch["image"].shape == (len(shapes), 3, height, width)
    assert torch.equal(batch["image_mask"], batch["mask_mask"])
    for image, mask, row, ids, pixels in zip(
        images, masks, batch["image"], batch["mask"], batch["image_mask"], strict=True
    ):
        tall, wide = mask.shape
        padding = (0, width - wide, 0, height - tall)
        assert torch.equal(row, torch.nn.functional.pad(image, padding))
        assert torch.equal(ids, torch.nn.functional.pad(mask, padding, value=fill))
        assert torch.equal(pixels, torch.nn.functional.pad(torch.ones(tall, wide, dtype=torch.bool), padding))


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


def expected(samples: list[dict[str, Any]], offset: int = 0) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return what `collate_detection` returns, by plain torch."""
    targets = [
        {
            "boxes": each["boxes"].float(),
            "labels": each["labels"].long() + offset,
            "masks": each["masks"].byte(),
            "keypoints": each["keypoints"].float(),
            "key": each["key"],
        }
        for each in samples
    ]
    return [each["image"].float() / 255 for each in samples], targets


def assert_same(batch: Any, wanted: Any) -> None:
    images, targets = batch
    assert all(torch.equal(*pair) for pair in zip(images, wanted[0], strict=True))
    for target, other in zip(targets, wanted[1], strict=True):
        assert list(target) == list(other)
        for name, value in target.items():
            if isinstance(value, torch.Tensor):
                assert type(value) is torch.Tensor
                assert value.dtype == other[name].dtype
                assert torch.equal(value, other[name])
            else:
                assert value == other[name]


@given(counts, st.integers(0, 3))
def test_detection_gives_lists_of_images_and_targets(numbers: list[int], offset: int) -> None:
    samples = [sample(at, number, 9 + at % 3) for at, number in enumerate(numbers)]
    assert_same(collate_detection([SKIPPED, *samples], label_offset=offset), expected(samples, offset))
    tuples = [tuple(each.values()) for each in samples]
    assert_same(collate_detection(tuples, fields=list(samples[0]), label_offset=offset), expected(samples, offset))


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


def test_keypoints_without_visibility_are_visible_and_labels_can_be_left_out() -> None:
    parts = {"image": torch.zeros(3, 4, 4), "boxes": torch.zeros(2, 4), "keypoints": torch.zeros(2, 5, 2)}
    _, (target,) = collate_detection([parts], labels=None, label_offset=1)
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


# --- In workers ---


def load(dataset: Any, collate_fn: Callable[..., Any], **arguments: Any) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, collate_fn=collate_fn, num_workers=2, **arguments)
    return list(loader)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("scale", [1, 40])
def test_workers_send_what_collating_here_gives(start_method: str, scale: int) -> None:
    dataset = Samples(16, scale=scale)
    batches = load(dataset, collate_detection, multiprocessing_context=start_method, persistent_workers=True)
    for at, batch in enumerate(batches):
        assert_same(batch, expected([dataset[index] for index in range(4 * at, 4 * at + 4)]))
    ragged: Any = {"boxes": "list", "labels": "mask", "masks": "list", "keypoints": "pad"}
    listed = functools.partial(collate, ragged=ragged, pad_images=["image"])
    batches = load(dataset, listed, multiprocessing_context=start_method)
    for at, batch in enumerate(batches):
        wanted = listed([dataset[index] for index in range(4 * at, 4 * at + 4)])
        assert batch.keys() == wanted.keys()
        for name, value in batch.items():
            pairs = zip(value, wanted[name], strict=True) if isinstance(value, list) else [(value, wanted[name])]
            assert all(one == two if isinstance(one, str) else torch.equal(one, two) for one, two in pairs)


def test_each_tensor_of_a_list_can_be_kept_and_written() -> None:
    dataset = Samples(32, scale=20)
    kept = [images[0].mul_(2) for images, _ in load(dataset, collate_detection)]
    for at, image in enumerate(kept):
        assert torch.equal(image, dataset[4 * at]["image"].float() / 255 * 2)


def changed(batch: Any) -> Any:
    """Return lists of which some tensors were changed, cut, or replaced after `collate_detection`."""
    images, targets = collate_detection(batch)
    images[0].transpose_(1, 2)
    images[1] = images[1][:, 1:]
    images[2] = images[2].clone()
    images[3].add_(1)
    kept = [target["labels"] for target in targets if len(target["labels"])]
    return images, [target["boxes"].requires_grad_() for target in targets], kept


@pytest.mark.parametrize("scale", [1, 40])
def test_what_was_made_of_a_list_is_sent_as_it_is_then(scale: int) -> None:
    dataset = Samples(32, scale=scale)
    for at, (images, boxes, labels) in enumerate(load(dataset, changed)):
        samples = [dataset[index] for index in range(4 * at, 4 * at + 4)]
        first, second, third, fourth = (each["image"].float() / 255 for each in samples)
        assert all(map(torch.equal, images, [first.transpose(1, 2), second[:, 1:], third, fourth + 1]))
        assert all(map(torch.equal, boxes, [each["boxes"] for each in samples]))
        assert all(map(torch.equal, labels, [each["labels"] for each in samples if len(each["labels"])]))


def test_many_batches_of_lists_take_few_descriptors() -> None:
    loader: DataLoader[Any] = DataLoader(
        Samples(1200, scale=8), 4, collate_fn=collate_detection, num_workers=2, multiprocessing_context="fork"
    )
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
