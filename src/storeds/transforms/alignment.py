"""Which transforms move pixels, and the checks that the elements of one sample stay aligned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from storeds.errors import ConfigError, MissingDependencyError
from storeds.protocols import Field, Transform
from storeds.records.shapes import holds_integers, is_mask, is_spatial
from storeds.transforms.elements import is_of_torchvision, tv_tensors

__all__ = ["check_roles", "check_spatial", "moving_parts", "takes_images"]


_LIBRARIES = ("storeds", "torchvision", "albumentations", "kornia")
# Classes of these libraries that leave each pixel in its place, with their subclasses.
_STAY = frozenset(("ToTensor", "Normalize", "ToNormalized", "FilterBoxes", "ImageOnlyTransform", "NoOp"))
_STAY |= {"ToTensorV2", "ToTensor3D", "IntensityAugmentationBase2D", "IntensityAugmentationBase3D"}
_MOVE_IN_TORCHVISION = ("_geometry", "_auto_augment")  # modules of torchvision.transforms.v2
_ALIKE = frozenset(("Resize", "CenterCrop", "Crop", "Pad", "SmallestMaxSize", "LongestMaxSize", "PadIfNeeded"))


def _parts(transform: Any) -> list[Any] | None:
    """Return the parts of a composition of a known library; None if the transform is not a composition."""
    is_sequential = isinstance(transform, torch.nn.Sequential)
    parts: Any = transform if is_sequential else getattr(transform, "transforms", None)
    is_list = isinstance(parts, (list, tuple, torch.nn.ModuleList, torch.nn.Sequential))
    # albumentations' ColorJitter keeps functions in this attribute.
    is_single = any(kind.__name__ == "BasicTransform" for kind in type(transform).__mro__)
    return list(parts) if is_list and not is_single and (is_sequential or _is_of_library(type(transform))) else None


def _leaves_of(transform: Any) -> list[Any]:
    """Return the transforms that a composition applies, or the transform itself."""
    parts = _parts(transform)
    return [transform] if parts is None else [leaf for part in parts for leaf in _leaves_of(part)]


def moving_parts(transform: Any) -> list[Any]:
    """Return the parts of a transform that may move pixels, judged by their classes. A user's function may."""
    return [part for part in _leaves_of(transform) if not _stays(type(part))]


def _stays(kind: type) -> bool:
    """Return whether transforms of a class are known to leave each pixel in its place."""
    if kind.__name__ == "Lambda":
        return False
    if kind.__module__.startswith("torchvision."):
        from torchvision.transforms import v2

        # All of version 1 are in one module, and have the names of version 2.
        return getattr(v2, kind.__name__, kind).__module__.rpartition(".")[2] not in _MOVE_IN_TORCHVISION
    return any(base.__name__ in _STAY and _is_of_library(base) for base in kind.__mro__)


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


def _is_known(part: Any) -> bool:
    """Return whether a part is no function of a user, so that it surely moves pixels if it may."""
    return _is_of_library(type(part)) and type(part).__name__ != "Lambda"


def _draws(transform: Any) -> bool:
    """Return whether a transform is known to draw, for each image, where pixels go."""
    name = type(transform).__name__
    # In albumentations p=1 means always; others of these have no p.
    if name in ("Compose", "Sequential") and getattr(transform, "p", 1) >= 1:
        return any(map(_draws, _parts(transform) or ()))
    is_alike = name in _ALIKE and getattr(transform, "p", 1) >= 1
    return not is_alike and any(map(_is_known, moving_parts(transform)))


def takes_images(transform: Any) -> bool:
    """Return whether a transform, or a part of it, works only on images with the channels first."""
    return any(_is_known(part) and type(part).__name__ != "ToDtype" for part in _leaves_of(transform))


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
    moving = {name: moving_parts(transforms[name]) for name in belonging if name in transforms}
    moving = {name: parts for name, parts in moving.items() if parts}
    for name, parts in moving.items():
        if fields[name].role == "mask" or (is_mask(name) and holds_integers(fields[name])):
            _check_mask_interpolation(name, parts)
    drawn = [name for name in moving if _draws(transforms[name])]
    if drawn and len(moving) > 1:
        raise ConfigError(
            f"{_listed(moving)} would each be cropped or flipped differently: "
            f"{transforms[drawn[0]]!r} draws new random numbers for each element. {_ADVICE}"
        )
    left = [name for name in belonging if name not in moving]
    # A function given as target_transform is meant for its element.
    moved = [name for name, parts in moving.items() if name == data or any(map(_is_known, parts))]
    if moved and left and not named:
        what = "moves" if any(map(_is_known, moving[moved[0]])) else "may move"
        raise ConfigError(
            f"transform {transforms[moved[0]]!r} {what} the pixels of {moved[0]!r}, but {_listed(left)} would stay as "
            f"stored, so they would no longer match. {_ADVICE} If they need not match, name the element: "
            f"transform={{{moved[0]!r}: …}}"
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


def _listed(names: list[str] | Mapping[str, Any]) -> str:
    return " and ".join(map(repr, names))


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
    roles = [field.role for field in fields.values()]
    if moving and not {"image", "mask"} & {*roles} and {"boxes", "keypoints"} & {*roles}:
        raise ConfigError(
            f"transforms: {moving[0]!r} needs the size of the image, and samples have no image and no mask: add one to fields"
        )
    if roles.count("boxes") > 1 and any(type(part).__name__ == "RandomIoUCrop" for part in moving):
        raise ConfigError(
            "transforms: RandomIoUCrop takes one element of boxes, and would drop those of others by the first: use "
            "RandomResizedCrop of storeds, or read one of these elements (fields=[…])"
        )
    if "keypoints" in roles and any(map(is_of_torchvision, moving)) and not hasattr(tv_tensors(), "KeyPoints"):
        raise MissingDependencyError(
            "transforms: those of torchvision would not move keypoints: this version does not know them; install 0.23 or later"
        )
    known = next(filter(_is_known, moving), None)
    image = next((field for field in fields.values() if field.role == "image"), None)
    for name, field in fields.items() if known is not None else ():
        if field.role is None and is_spatial(name, field, image):
            is_boxes = field.kind == "json" or (field.shape or ())[-1:] == (4,)
            likely = "boxes" if is_boxes else "mask" if holds_integers(field) else "image"
            decoded = ", and decode it, which decode='bytes' does not" if field.kind == "image" else ""
            raise ConfigError(
                f"transforms: {known!r} moves pixels, but {name!r} has no role, so it would stay as stored and no longer "
                f"match. Say what it is, for example roles={{{name!r}: {likely!r}}}{decoded}, or read the other elements alone "
                "(fields=[…])"
            )
