"""Divides transforms of whole samples into steps, and checks that these fit the elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from storeds.errors import ConfigError, MissingDependencyError
from storeds.protocols import Field, Transform
from storeds.records.fields import holds_integers, is_spatial
from storeds.transforms.albumentations import wrap_albumentations
from storeds.transforms.alignment import Moves, leaves_of, moves
from storeds.transforms.binding import BoundTransform, Compose, Views
from storeds.transforms.elements import is_of_torchvision, tv_tensors
from storeds.transforms.images import FilterBoxes, Normalize, Spatial, ToTensor

__all__ = ["check_roles", "flattened", "step_of"]


def flattened(transform: Any) -> list[Any]:
    """Return the transforms to apply one after another."""
    if transform is None:
        return []
    kind = type(transform)
    if kind in (Compose, torch.nn.Sequential) or (is_of_torchvision(transform) and kind.__name__ == "Compose"):
        parts = transform if isinstance(transform, torch.nn.Sequential) else transform.transforms
        return [each for part in parts for each in flattened(part)]
    if is_of_torchvision(transform) and kind.__name__ == "SanitizeBoundingBoxes":
        # torchvision's drops the rows of its labels alone. Before 0.20 it has no least area.
        return [FilterBoxes(min_size=transform.min_size, min_area=getattr(transform, "min_area", 0))]
    return [transform]


def step_of(transform: Any) -> Any:
    """Return a transform as `JointTransform` applies it to samples.

    Built-in ones stay, albumentations becomes an `Albumentations`, and any other callable, for the dict of elements, a
    `BoundTransform`. Raises ConfigError for a transform that takes one image alone.
    """
    if isinstance(transform, Views):
        raise ConfigError("transforms: Views makes several images of one: pass it as transform=, for the image alone")
    if is_of_torchvision(transform) and not type(transform).__module__.startswith("torchvision.transforms.v2"):
        raise ConfigError(
            f"transforms: {transform!r} takes one image: use torchvision.transforms.v2.{type(transform).__name__}, which takes "
            "samples"
        )
    wrapped = wrap_albumentations(transform)
    if wrapped is not transform:
        return wrapped
    if isinstance(transform, (FilterBoxes, Normalize, ToTensor)):  # a subclass too: these take no dict
        return transform
    # A subclass that overrides `__call__` is a callable of its own.
    called_in = str(getattr(type(transform).__call__, "__module__", ""))
    is_built_in = isinstance(transform, Spatial) and called_in.startswith("storeds.")
    return transform if is_built_in else BoundTransform(transform)


def check_roles(transforms: Transform | None, fields: Mapping[str, Field]) -> None:
    """Raise ConfigError if transforms would move pixels, but not all elements that belong to them.

    Raises MissingDependencyError if torchvision's transforms would leave keypoints where they are.

    Parameters
    ----------
    transforms : callable or None
        What `JointTransform` applies.
    fields : mapping of str to Field
        Element → its declaration.
    """
    steps = flattened(transforms)
    roles = [field.role for field in fields.values()]
    changing = next((step for step in steps if moves(step) != Moves.NOT), None)
    if changing is not None and not {"image", "mask"} & {*roles} and {"boxes", "keypoints"} & {*roles}:
        raise ConfigError(
            f"transforms: {changing!r} needs the size of the image, and samples have no image and no mask: add one to fields"
        )
    for part in filter(is_of_torchvision, (leaf for step in steps for leaf in leaves_of(step))):
        if type(part).__name__ == "RandomIoUCrop" and roles.count("boxes") > 1:
            raise ConfigError(
                f"transforms: {part!r} takes one element of boxes, and would drop those of others by the first: use "
                "RandomResizedCrop of storeds, or read one of these elements (fields=[…])"
            )
        if "keypoints" in roles and moves(part) != Moves.NOT and not hasattr(tv_tensors(), "KeyPoints"):
            raise MissingDependencyError(
                f"transforms: {part!r} would not move keypoints: this torchvision does not know them; install 0.23 or later"
            )
    moving = next((step for step in steps if moves(step) in (Moves.ALIKE, Moves.DRAWN)), None)
    image = next((field for field in fields.values() if field.role == "image"), None)
    for name, field in fields.items() if moving is not None else ():
        if field.role is None and is_spatial(name, field, image):
            is_boxes = field.kind == "json" or (field.shape or ())[-1:] == (4,)
            likely = "boxes" if is_boxes else "mask" if holds_integers(field) else "image"
            decoded = ", and decode it, which decode='bytes' does not" if field.kind == "image" else ""
            raise ConfigError(
                f"transforms: {moving!r} moves pixels, but {name!r} has no role, so it would stay as stored and no longer "
                f"match. Say what it is, for example roles={{{name!r}: {likely!r}}}{decoded}, or read the other elements alone "
                "(fields=[…])"
            )
