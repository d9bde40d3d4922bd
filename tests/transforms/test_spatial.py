"""Test which transforms move pixels, and where the channels of arrays are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset
from storeds.errors import ConfigError
from storeds.protocols import Field
from storeds.records.shapes import is_mask, is_spatial, layout_of
from storeds.transforms import CenterCrop, Compose, Normalize, RandomHorizontalFlip, Resize, ToTensor

albumentations = pytest.importorskip("albumentations")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

IMAGE = Field("image")
PAIR = ("image", "mask", "other")


@pytest.fixture(scope="module")
def pair() -> str:
    """URL of a store with an image, its mask and another image."""
    return make_store(dict.fromkeys(PAIR, "image"), [{name: jpeg(n) for n, name in enumerate(PAIR)}])


class Declared:
    """A transform of somebody's own."""

    moves_pixels = False

    def __call__(self, image: Any) -> Any:
        return image


def moves(pair: str, transform: Any) -> str:
    """Return how a dataset judges that a transform moves pixels: not, as named, as drawn, or unknown."""
    refusal = refused(pair, "other", transform=transform)
    if not refusal:
        return "not"
    if "may move" in refusal:
        return "unknown"
    both = refused(pair, "other", transform={"image": transform, "other": transform})
    return "drawn" if "would each be cropped or flipped differently" in both else "alike"


def refused(pair: str, second: str, **transforms: Any) -> str:
    """Return the message with which a dataset of the image and a second one refuses transforms, or an empty text."""
    try:
        StoreDataset(pair, fields=["image", second], **transforms).close()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Compose([ToTensor(), Normalize([0.5], [0.5])]), "not"),
        (Compose([]), "not"),
        (Compose([Resize(8), CenterCrop(8)]), "alike"),
        (Compose([Resize(8), RandomHorizontalFlip()]), "drawn"),
        (Compose([ToTensor(), lambda image: image]), "unknown"),
        (v1.Compose([v1.ColorJitter(), v1.ToTensor()]), "not"),
        (v1.RandomApply([v1.GaussianBlur(3)]), "not"),
        (v1.RandomApply([v1.Resize(8)]), "alike"),
        (v2.Compose([v2.ToImage(), v2.Resize(8), v2.ToDtype(torch.float32, scale=True)]), "alike"),
        (v2.RandomChoice([v2.Resize(8), v2.Resize(9)]), "alike"),
        (v2.RandomPerspective(), "alike"),
        (v2.AutoAugment(), "alike"),
        (v2.Lambda(lambda image: image), "unknown"),
        (torch.nn.Sequential(v1.CenterCrop(8), v1.Normalize([0.5], [0.5])), "alike"),
        (albumentations.Compose([albumentations.ColorJitter()]), "unknown"),
        (abs, "unknown"),
        (Compose([Resize(8), Declared()]), "alike"),
        (Declared(), "not"),
    ],
)
def test_transforms_are_known_by_what_they_declare(pair: str, transform: Any, expected: str) -> None:
    assert moves(pair, transform) == expected


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((64, 48), "none"),
        ((64, 48, 3), "last"),
        ((1, None, None), "first"),
        ((8, 64, 48, 1), "last"),
        ((3, 64, 3), None),
        ((None, None, None), None),
        ((7,), None),
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


def test_a_function_given_as_target_transform_is_meant_for_the_mask_alone(pair: str) -> None:
    assert refused(pair, "mask", transform=ToTensor(), target_transform=abs) == ""
    assert refused(pair, "mask", transform=abs, target_transform=abs) == ""
    moved = refused(pair, "mask", target_transform=CenterCrop(8))
    assert "moves the pixels of 'mask', but 'image' would stay" in moved
    assert "'image' and 'mask' would each be cropped" in refused(
        pair, "mask", transform={"image": abs, "mask": RandomHorizontalFlip()}
    )
