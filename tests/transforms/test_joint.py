"""Test transforms on whole samples: images, masks, boxes and keypoints that move together."""

from __future__ import annotations

import torch

from storeds.protocols import Field, SampleContext
from storeds.records.roles import Sample
from storeds.transforms import JointTransform, RandomHorizontalFlip

FIELDS = {
    "image": Field("image", role="image"),
    "boxes": Field("array", "<f4", (None, 4), role="boxes", format="xywh"),
    "labels": Field("array", "<i8", (None,), role="labels"),
}


def test_a_flip_moves_an_image_and_its_boxes() -> None:
    image = torch.arange(3 * 4 * 6, dtype=torch.uint8).reshape(3, 4, 6)
    boxes = torch.tensor([[1.0, 1.0, 2.0, 2.0]])
    sample = Sample({"image": image, "boxes": boxes, "labels": torch.tensor([7])}, FIELDS, (4, 6))
    made = JointTransform(RandomHorizontalFlip(p=1))(sample, SampleContext(0, 0, 1))
    assert torch.equal(torch.Tensor(made["image"]), image.flip(-1))
    assert made["boxes"].tolist() == [[3.0, 1.0, 2.0, 2.0]]
    assert made["labels"].tolist() == [7]
