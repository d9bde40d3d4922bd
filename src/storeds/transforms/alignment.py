"""Which transforms move pixels, and the checks that the elements of one sample stay aligned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from storeds.errors import ConfigError, MissingDependencyError
from storeds.protocols import Field, Transform
from storeds.records.shapes import holds_integers, is_mask, is_spatial
from storeds.transforms.binding import Compose, Views
from storeds.transforms.elements import is_of_torchvision, tv_tensors

__all__ = ["check_roles", "check_spatial", "moving_parts", "takes_images"]

_LIBRARIES = ("storeds", "torchvision", "albumentations", "kornia")
_MOVE_IN_TORCHVISION = ("_geometry", "_auto_augment")  # modules of torchvision.transforms.v2


def _parts(transform: Any) -> list[Any]:
    """Return the transforms that a composition applies, or the transform itself."""
    parts: Any = transform if isinstance(transform, torch.nn.Sequential) else getattr(transform, "transforms", None)
    is_composition = parts is transform or type(transform) in (Compose, Views) or is_of_torchvision(transform)
    if not is_composition or not isinstance(parts, Iterable):
        return [transform]
    return [leaf for part in parts for leaf in _parts(part)]


def _moves(part: Any) -> bool | None:
    """Return whether a transform moves pixels, as its attribute `moves_pixels` says or its module; None if it may."""
    if hasattr(part, "moves_pixels"):
        return bool(part.moves_pixels)
    if not is_of_torchvision(part) or hasattr(part, "lambd"):  # which applies a function
        return None
    from torchvision.transforms import v2

    # All of version 1 are in one module, and have the names of version 2.
    twin = getattr(v2, type(part).__name__, type(part))
    return twin.__module__.rpartition(".")[2] in _MOVE_IN_TORCHVISION


def moving_parts(transform: Any) -> list[Any]:
    """Return the parts of a transform that may move pixels."""
    return [part for part in _parts(transform) if _moves(part) is not False]


def takes_images(transform: Any) -> bool:
    """Return whether a transform, or a part of it, works only on images with the channels first."""
    return any(_is_of_library(part) and type(part).__name__ != "ToDtype" for part in _parts(transform))


def _is_of_library(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] in _LIBRARIES


def check_spatial(
    fields: Mapping[str, Field], data: str | None, transforms: Mapping[str, Transform], named: bool
) -> None:
    """Raise ConfigError if a transform moves pixels of one element, but not of others that belong to it.

    Parameters
    ----------
    fields : mapping of str to Field
        Stored elements of a sample, in order.
    data : str or None
        Element to which a transform applies by default.
    transforms : mapping of str to callable
        Element → its transform.
    named : bool
        Whether the user named the elements. Then the others are meant to stay unchanged.
    """
    belonging = [name for name, field in fields.items() if is_spatial(name, field, fields.get(data or ""))]
    moving = {name: parts for name in belonging if name in transforms and (parts := moving_parts(transforms[name]))}
    for name, parts in moving.items():
        if fields[name].role == "mask" or (is_mask(name) and holds_integers(fields[name])):
            _check_mask_interpolation(name, parts)
    drawn = [name for name, parts in moving.items() if any(getattr(part, "is_random", False) for part in parts)]
    if drawn and len(moving) > 1:
        raise ConfigError(
            f"{' and '.join(map(repr, moving))} would each be cropped or flipped differently: "
            f"{transforms[drawn[0]]!r} draws new random numbers for each element. {_ADVICE}"
        )
    left = [name for name in belonging if name not in moving]
    # A function given as target_transform is meant for its element.
    moved = [name for name, parts in moving.items() if name == data or any(map(_moves, parts))]
    if moved and left and not named:
        what = "moves" if any(map(_moves, moving[moved[0]])) else "may move"
        raise ConfigError(
            f"transform {transforms[moved[0]]!r} {what} the pixels of {moved[0]!r}, but {' and '.join(map(repr, left))} "
            f"would stay as stored, so they would no longer match. {_ADVICE} If they need not match, name the element: "
            f"transform={{{moved[0]!r}: …}}. A class of your own that leaves pixels in their places says moves_pixels = False"
        )


_ADVICE = (
    "Pass it as transforms=, which moves images, masks, boxes and keypoints of a sample together. Or read only one of these "
    "elements (fields=[…])."
)


def _check_mask_interpolation(name: str, parts: list[Any]) -> None:
    for part in parts:
        mode = getattr(part, "interpolation", None)
        mode = getattr(mode, "value", mode)  # an enum in torchvision, an OpenCV number in albumentations
        if mode not in (None, "nearest", "nearest-exact", 0):
            raise ConfigError(
                f"{part!r} on {name!r} would mix class numbers of a mask into other numbers: use "
                "interpolation 'nearest'. If the values are not classes, use a function of your own"
            )


def check_roles(transforms: Transform | None, fields: Mapping[str, Field]) -> None:
    """Raise ConfigError if transforms of whole samples would not move all elements that have image coordinates.

    Raises MissingDependencyError if torchvision's transforms would leave keypoints where they are.

    Parameters
    ----------
    transforms : callable or None
        What `JointTransform` applies.
    fields : mapping of str to Field
        Element → its declaration.
    """
    moving = [] if transforms is None else moving_parts(transforms)
    roles = {field.role for field in fields.values()}
    if moving and not {"image", "mask"} & roles and {"boxes", "keypoints"} & roles:
        raise ConfigError(
            f"transforms: {moving[0]!r} needs the size of the image, and samples have no image and no mask: add one to fields"
        )
    if "keypoints" in roles and any(map(is_of_torchvision, moving)) and not hasattr(tv_tensors(), "KeyPoints"):
        raise MissingDependencyError(
            "transforms: those of torchvision would not move keypoints: this version does not know them; install 0.23 or later"
        )
    by_role = next(filter(_is_of_library, moving), None)  # a function takes the elements by name
    image = next((field for field in fields.values() if field.role == "image"), None)
    for name, field in fields.items() if by_role is not None else ():
        if field.role is None and is_spatial(name, field, image):
            is_boxes = field.kind == "json" or (field.shape or ())[-1:] == (4,)
            likely = "boxes" if is_boxes else "mask" if holds_integers(field) else "image"
            decoded = ", and decode it, which decode='bytes' does not" if field.kind == "image" else ""
            raise ConfigError(
                f"transforms: {by_role!r} may move pixels, but {name!r} has no role, so it would stay as stored and no longer "
                f"match. Say what it is, for example roles={{{name!r}: {likely!r}}}{decoded}, or read the other elements alone "
                "(fields=[…])"
            )
