"""How transforms move pixels, and the check that the images of one sample stay aligned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import torch

from storeds.errors import ConfigError
from storeds.protocols import Field, Transform
from storeds.records.fields import holds_integers, is_mask, is_spatial

__all__ = ["Moves", "check_spatial", "leaves_of", "moves", "takes_images"]


class Moves(IntEnum):
    """How a transform moves pixels. The greater the value, the less certain that two images stay aligned."""

    NOT = 0
    ALIKE = 1
    """Moves pixels alike in all images of one size."""
    UNKNOWN = 2
    DRAWN = 3
    """Draws for each image where pixels go."""


_LIBRARIES = ("storeds", "torchvision", "albumentations", "kornia")
_STAY = frozenset(("ToTensor", "Normalize", "ToNormalized", "FilterBoxes"))
_MOVE_IN_TORCHVISION = ("_geometry", "_auto_augment")  # modules of torchvision.transforms.v2
_STAY_WITH_CHILDREN = frozenset(("ImageOnlyTransform", "IntensityAugmentationBase2D", "IntensityAugmentationBase3D"))
_ALIKE = frozenset(("Resize", "CenterCrop", "Crop", "Pad", "SmallestMaxSize", "LongestMaxSize", "PadIfNeeded"))
_ANY = frozenset(("Lambda", "Identity", "NoOp", "ToDtype", "ToPureTensor", "ConvertImageDtype", "BoundTransform"))


def moves(transform: Any) -> Moves:
    """Return how a transform moves pixels, judged by its class. A user's function is `Moves.UNKNOWN`."""
    parts = _parts(transform)
    if parts is not None:
        most = max(map(moves, parts), default=Moves.NOT)
        in_turn = type(transform).__name__ in ("Compose", "Sequential") and getattr(transform, "p", 1) >= 1
        return most if in_turn or most != Moves.ALIKE else Moves.DRAWN
    name, bases = type(transform).__name__, {kind.__name__ for kind in type(transform).__mro__}
    if not _STAY_WITH_CHILDREN.isdisjoint(bases):
        return Moves.NOT
    if not _is_of_library(transform) or name == "Lambda":
        return Moves.UNKNOWN
    if not _class_moves(type(transform)):
        return Moves.NOT
    # In albumentations p=1 means always; other libraries have no p.
    return Moves.ALIKE if name in _ALIKE and getattr(transform, "p", 1) >= 1 else Moves.DRAWN


def _class_moves(kind: type) -> bool:
    """Return whether transforms of a class of a known library may move pixels."""
    if kind.__module__.startswith("torchvision."):
        from torchvision.transforms import v2

        # All of version 1 are in one module, and have the names of version 2.
        return getattr(v2, kind.__name__, kind).__module__.rpartition(".")[2] in _MOVE_IN_TORCHVISION
    if kind.__module__.startswith("albumentations."):
        return kind.__name__ != "NoOp" and any(base.__name__ == "DualTransform" for base in kind.__mro__)
    return kind.__name__ not in _STAY


def _is_of_library(transform: Any) -> bool:
    """Return whether the transform belongs to storeds, torchvision, albumentations or kornia, which take images."""
    return type(transform).__module__.partition(".")[0] in _LIBRARIES


def _parts(transform: Any) -> list[Any] | None:
    """Return the parts of a composition of a known library; None if the transform is not a composition."""
    if isinstance(transform, torch.nn.Sequential):
        return list(transform)
    parts = getattr(transform, "transforms", None)
    if not _is_of_library(transform) or not isinstance(parts, (list, tuple, torch.nn.Module)):
        return None
    if "BasicTransform" in {kind.__name__ for kind in type(transform).__mro__}:
        return None  # albumentations' ColorJitter keeps functions in this attribute
    return list(parts) if isinstance(parts, (list, tuple, torch.nn.ModuleList)) else [parts]


def takes_images(transform: Any) -> bool:
    """Return whether a transform, or a part of it, works only on images with the channels first."""
    return any(_is_of_library(part) and type(part).__name__ not in _ANY for part in leaves_of(transform))


def leaves_of(transform: Any) -> Iterator[Any]:
    """Yield the transforms that a composition applies, or the transform itself."""
    parts = _parts(transform)
    if parts is None:
        yield transform
    else:
        for part in parts:
            yield from leaves_of(part)


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
    for name, transform in transforms.items():
        if fields[name].role == "mask" or (is_mask(name) and holds_integers(fields[name])):
            _check_mask_interpolation(name, transform)
    belonging = [name for name, field in fields.items() if is_spatial(name, field, fields.get(data or ""))]
    moving = {name: moves(transforms[name]) for name in belonging if name in transforms}
    left = [name for name in belonging if not moving.get(name)]
    drawn = [name for name, kind in moving.items() if kind == Moves.DRAWN]
    if drawn and len(belonging) - len(left) > 1:
        raise ConfigError(
            f"{_listed([name for name in moving if moving[name]])} would each be cropped or flipped differently: "
            f"{transforms[drawn[0]]!r} draws new random numbers for each element. {_ADVICE}"
        )
    # A function given as target_transform is meant for its element.
    moved = [name for name, kind in moving.items() if kind and (kind != Moves.UNKNOWN or name == data)]
    if moved and left and not named:
        what = "may move" if moving[moved[0]] == Moves.UNKNOWN else "moves"
        raise ConfigError(
            f"transform {transforms[moved[0]]!r} {what} the pixels of {moved[0]!r}, but {_listed(left)} would stay as "
            f"stored, so they would no longer match. {_ADVICE} If they need not match, name the element: "
            f"transform={{{moved[0]!r}: …}}"
        )


_ADVICE = (
    "Pass it as transforms=, which moves images, masks, boxes and keypoints of a sample together. Or read only one of these "
    "elements (fields=[…])."
)


def _check_mask_interpolation(name: str, transform: Transform) -> None:
    for part in leaves_of(transform):
        mode = getattr(part, "interpolation", None)
        mode = getattr(mode, "value", mode)  # an enum in torchvision, an OpenCV number in albumentations
        if moves(part) and mode is not None and mode not in ("nearest", "nearest-exact", 0):
            raise ConfigError(
                f"{part!r} on {name!r} would mix class numbers of a mask into other numbers: use "
                "interpolation 'nearest'. If the values are not classes, use a function of your own"
            )


def _listed(names: list[str]) -> str:
    return " and ".join(map(repr, names))
