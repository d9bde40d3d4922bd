"""Test which transforms move pixels, and where the channels of arrays are.

Imports private modules, because datasets only report the result of these checks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from storeds.errors import ConfigError
from storeds.protocols import Field
from storeds.records import is_mask, is_spatial, layout_of
from storeds.transforms import CenterCrop, Compose, Normalize, RandomHorizontalFlip, Resize, ToTensor
from storeds.transforms.images import Moves, check_spatial, moves

albumentations = pytest.importorskip("albumentations")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

IMAGE = Field("image")


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Compose([ToTensor(), Normalize([0.5], [0.5])]), Moves.NOT),
        (Compose([Resize(8), CenterCrop(8)]), Moves.ALIKE),
        (Compose([Resize(8), RandomHorizontalFlip()]), Moves.DRAWN),
        (Compose([Resize(8), lambda image: image]), Moves.UNKNOWN),
        (v1.Compose([v1.ColorJitter(), v1.ToTensor()]), Moves.NOT),
        (v1.RandomApply([v1.Resize(8)]), Moves.DRAWN),
        (v1.RandomApply([v1.GaussianBlur(3)]), Moves.NOT),
        (v2.Compose([v2.ToImage(), v2.Resize(8), v2.ToDtype(torch.float32, scale=True)]), Moves.ALIKE),
        (v2.RandomChoice([v2.Resize(8), v2.Resize(9)]), Moves.DRAWN),
        (v2.RandomPerspective(), Moves.DRAWN),
        (v2.AutoAugment(), Moves.DRAWN),
        (v2.Lambda(lambda image: image), Moves.UNKNOWN),
        (torch.nn.Sequential(v1.CenterCrop(8), v1.Normalize([0.5], [0.5])), Moves.ALIKE),
        (albumentations.Compose([albumentations.ColorJitter(), albumentations.ToTensorV2()]), Moves.NOT),
        (albumentations.Compose([albumentations.Resize(8, 8)]), Moves.ALIKE),
        (albumentations.Compose([albumentations.Resize(8, 8)], p=0.5), Moves.DRAWN),
        (albumentations.OneOf([albumentations.HorizontalFlip()]), Moves.DRAWN),
        (torch.nn.Flatten(), Moves.UNKNOWN),
        (abs, Moves.UNKNOWN),
    ],
)
def test_transforms_are_known_by_their_classes(transform: Any, expected: Moves) -> None:
    assert moves(transform) is expected


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((64, 48), "none"),
        ((64, 48, 3), "last"),
        ((3, 64, 48), "first"),
        ((None, None, 4), "last"),
        ((1, None, None), "first"),
        ((8, 64, 48, 1), "last"),
        ((3, 64, 3), None),
        ((64, 64, 64), None),
        ((None, None, None), None),
        ((7,), None),
        ((), None),
    ],
)
def test_shapes_tell_where_channels_lie(shape: tuple[int | None, ...], layout: str | None) -> None:
    assert layout_of(shape) == layout


@pytest.mark.parametrize(
    ("name", "field", "spatial"),
    [
        ("other", IMAGE, True),
        ("depth", Field("array", "<f4", (64, 64)), True),
        ("depth", Field("array", "<f4", (32, 32, 1)), True),
        ("tokens", Field("array", "<f4", (77, 768)), False),  # another aspect ratio than the image
        ("pose", Field("array", "<f4", (4, 4)), False),
        ("boxes", Field("array", "<f4", (None, 4)), True),
        ("bboxes", Field("json"), True),
        ("n_boxes", Field("int"), False),
        ("mask_rle", Field("bytes"), True),
        ("caption", Field("str"), False),
    ],
)
def test_elements_that_lie_in_an_image_are_known_by_kind_shape_or_name(name: str, field: Field, spatial: bool) -> None:
    assert is_spatial(name, field, Field("array", "|u1", (64, 64, 3))) is spatial


def test_masks_are_known_by_their_names() -> None:
    assert all(map(is_mask, ("mask", "seg_map", "instance_masks", "labels", "mask2")))
    assert not any(map(is_mask, ("image", "masked_image", "depth", "legend")))


def test_a_function_given_as_target_transform_is_meant_for_the_mask_alone() -> None:
    fields = {"image": IMAGE, "mask": IMAGE}
    check_spatial(fields, "image", {"image": ToTensor(), "mask": abs}, named=False)
    check_spatial(fields, "image", {"image": abs, "mask": abs}, named=False)
    with pytest.raises(ConfigError, match="moves the pixels of 'mask', but 'image' would stay"):
        check_spatial(fields, "image", {"mask": CenterCrop(8)}, named=False)
    with pytest.raises(ConfigError, match="'image' and 'mask' would each be cropped"):
        check_spatial(fields, "image", {"image": abs, "mask": RandomHorizontalFlip()}, named=True)
