"""Samples with boxes and masks in TensorFlow: ragged, padded, or one by one; with real TensorFlow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import storeds
from storeds import StoreDataset
from storeds.loaders import to_tf_dataset

COUNT, BATCH = 12, 4
FIELDS: dict[str, Any] = {
    "image": {"kind": "image", "role": "image"},
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xyxy"},
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    "keypoints": {"kind": "array", "dtype": "float32", "shape": [None, 5, 2], "role": "keypoints"},
}
RAGGED = ["boxes", "labels", "keypoints"]


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def record(at: int) -> dict[str, Any]:
    draw = np.random.default_rng(at)
    boxes = at % 4 if at % 11 else 2  # as many in the first and the last
    return {
        "image": png(draw.integers(0, 255, (20 + at % 3, 30, 3), np.uint8)),
        "mask": png(draw.integers(0, 9, (20 + at % 3, 30), np.uint8)),
        "boxes": np.tile(np.array([[1, 2, 9, 8]], "f4"), (boxes, 1)),
        "labels": draw.integers(0, 5, boxes),
        "keypoints": draw.uniform(1, 9, (boxes, 5, 2)).astype("f4"),
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"lmdb://{tmp_path_factory.mktemp('samples')}/a.lmdb"
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append(map(record, range(COUNT)))
    return url


def dataset(url: str, **options: Any) -> StoreDataset:
    return StoreDataset(url, as_dict=True, **{"fields": list(FIELDS), **options})


def expected(samples: StoreDataset, at: int) -> dict[str, Any]:
    arrays = {name: value.numpy() for name, value in samples[at].items()}
    return {**arrays, "image": np.moveaxis(arrays["image"], 0, -1)}


def test_single_samples_are_those_of_the_dataset(url: str) -> None:
    samples = dataset(url)
    made = to_tf_dataset(samples)
    assert made.element_spec["image"] == tf.TensorSpec((None, None, 3), tf.uint8)
    assert made.element_spec["mask"] == tf.TensorSpec((None, None), tf.uint8)
    assert made.element_spec["boxes"] == tf.TensorSpec((None, 4), tf.float32)
    assert made.element_spec["labels"] == tf.TensorSpec((None,), tf.int64)
    assert made.element_spec["keypoints"] == tf.TensorSpec((None, 5, 2), tf.float32)
    for at, sample in enumerate(made.as_numpy_iterator()):
        for name, value in expected(samples, at).items():
            assert sample[name].dtype == value.dtype
            assert np.array_equal(sample[name], value)
    padded = to_tf_dataset(dataset(url, fields=RAGGED)).padded_batch(COUNT)
    (batch,) = padded.as_numpy_iterator()
    assert batch["boxes"].shape == (COUNT, 3, 4)


def test_batches_are_ragged_where_asked(url: str) -> None:
    samples = dataset(url, transforms=[{"name": "Resize", "size": [16, 24]}])
    made = to_tf_dataset(samples, batch_size=BATCH, ragged=RAGGED, drop_last=True)
    assert made.element_spec["image"] == tf.TensorSpec((BATCH, 16, 24, 3), tf.uint8)
    assert made.element_spec["mask"] == tf.TensorSpec((BATCH, 16, 24), tf.uint8)
    for number, batch in enumerate(made):
        for row in range(BATCH):
            for name, value in expected(samples, number * BATCH + row).items():
                assert np.array_equal(batch[name][row].numpy(), value)
        assert batch["boxes"].to_tensor().shape[0] == BATCH


def test_batches_that_differ_in_boxes_say_what_to_do(url: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"element 'boxes'.*cannot be stacked: pass ragged=True"):
        list(to_tf_dataset(dataset(url, fields=RAGGED), batch_size=BATCH))


def test_what_a_transform_makes_of_labels_has_its_own_shape(url: str) -> None:
    counted = dataset(url, fields=["labels", "boxes"], target_transform=lambda labels: labels.bincount(minlength=5))
    made = to_tf_dataset(counted, batch_size=BATCH, ragged=["boxes"])
    assert made.element_spec["labels"] == tf.TensorSpec((None, 5), tf.int64)
    assert sum(batch["labels"].numpy().sum() for batch in made) == sum(len(record(at)["labels"]) for at in range(COUNT))
