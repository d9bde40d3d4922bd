"""Refuses transforms that move the pixels of one element of a sample and leave another that belongs to them behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import torch

from storeds.errors import ConfigError
from storeds.protocols import Field, Transform
from storeds.records.fields import holds_integers, is_mask, is_spatial

__all__ = ["Moves", "check_spatial", "moves", "takes_images"]


class Moves(IntEnum):
    """Whether a transform moves pixels; the greater, the less is certain of two images that it is applied to."""

    NOT = 0
    ALIKE = 1
    """In the same way in each image of one size."""
    UNKNOWN = 2
    DRAWN = 3
    """To a place that it draws for each image."""


# Names of classes in storeds, torchvision, albumentations and kornia.
_STAY = re.compile(
    "ToTensor|Normalize|ToNormalized|Identity|NoOp|ToImage|ToPILImage|PILToTensor|ToPureTensor|ToDtype|ToTensorV2|RGB|JPEG"
    "|ConvertImageDtype|(Random)?Grayscale|ColorJitter|RandomChannelPermutation|RandomPhotometricDistort|LinearTransformation"
    "|Gaussian(Blur|Noise)|Random(Erasing|Invert|Posterize|Solarize|AdjustSharpness|Autocontrast|Equalize)"
)
_STAY_WITH_CHILDREN = frozenset(("ImageOnlyTransform", "IntensityAugmentationBase2D", "IntensityAugmentationBase3D"))
_ANY = re.compile("Lambda|Identity|NoOp|ToDtype|ToPureTensor|ConvertImageDtype|BoundTransform")
_ALIKE = frozenset(("Resize", "CenterCrop", "Pad", "SmallestMaxSize", "LongestMaxSize", "PadIfNeeded"))
_LIBRARIES = ("storeds", "torchvision", "albumentations", "kornia")


def moves(transform: Any) -> Moves:
    """Return what is known of a transform by its class; a function of the user's is `Moves.UNKNOWN`."""
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
    if _STAY.fullmatch(name):
        return Moves.NOT
    # Where "p" is 1 in albumentations, the transform takes place always; others have none.
    return Moves.ALIKE if name in _ALIKE and getattr(transform, "p", 1) >= 1 else Moves.DRAWN


def _is_of_library(transform: Any) -> bool:
    """Whether a transform is of a class of ours, of torchvision, albumentations or kornia, which take images."""
    return type(transform).__module__.partition(".")[0] in _LIBRARIES


def _parts(transform: Any) -> list[Any] | None:
    """Return what a composition of a known library, or of ours, consists of; None for what is none."""
    if isinstance(transform, torch.nn.Sequential):
        return list(transform)
    parts = getattr(transform, "transforms", None)
    if not _is_of_library(transform) or not isinstance(parts, (list, tuple, torch.nn.Module)):
        return None
    if "BasicTransform" in {kind.__name__ for kind in type(transform).__mro__}:
        return None  # of albumentations, whose ColorJitter has a list of functions by that name
    return list(parts) if isinstance(parts, (list, tuple, torch.nn.ModuleList)) else [parts]


def takes_images(transform: Any) -> bool:
    """Whether a transform, or a part of it, works only on images with their channels first."""
    return any(_is_of_library(part) and not _ANY.fullmatch(type(part).__name__) for part in _leaves(transform))


def _leaves(transform: Any) -> Iterator[Any]:
    """Yield the transforms that a composition applies, or the transform itself."""
    parts = _parts(transform)
    if parts is None:
        yield transform
    else:
        for part in parts:
            yield from _leaves(part)


def check_spatial(
    fields: Mapping[str, Field], data: str | None, transforms: Mapping[str, Transform], named: bool
) -> None:
    """Raise ConfigError where a transform would part elements of a sample that belong together.

    Parameters
    ----------
    fields : mapping of str to Field
        The elements of a sample that are stored, in order.
    data : str or None
        The element that a transform applies to by default.
    transforms : mapping of str to callable
        Element → its transform.
    named : bool
        Whether the user said which elements these are for: the others are meant to stay.
    """
    for name, transform in transforms.items():
        if is_mask(name) and holds_integers(fields[name]):
            _check_interpolation(name, transform)
    belonging = [name for name, field in fields.items() if is_spatial(name, field, fields.get(data or ""))]
    moving = {name: moves(transforms[name]) for name in belonging if name in transforms}
    left = [name for name in belonging if not moving.get(name)]
    drawn = [name for name, kind in moving.items() if kind == Moves.DRAWN]
    if drawn and len(belonging) - len(left) > 1:
        raise ConfigError(
            f"{_listed([name for name in moving if moving[name]])} would each be cropped or flipped in another way: "
            f"{transforms[drawn[0]]!r} draws new random numbers for each element. {_ADVICE}"
        )
    # The function of a target_transform is given for that element.
    parted = [name for name, kind in moving.items() if kind and (kind != Moves.UNKNOWN or name == data)]
    if parted and left and not named:
        what = "may move" if moving[parted[0]] == Moves.UNKNOWN else "moves"
        raise ConfigError(
            f"transform {transforms[parted[0]]!r} {what} the pixels of {parted[0]!r}, and {_listed(left)} would stay as "
            f"stored, so that they no longer fit each other. {_ADVICE} If they need not fit, name the element: "
            f"transform={{{parted[0]!r}: …}}"
        )


_ADVICE = (
    "Transforms of several elements together do not exist yet. Take one of these elements (fields=[…]), or transform whole "
    "samples in a function of your own, for example the collate_fn of the loader with as_dict=True."
)


def _check_interpolation(name: str, transform: Transform) -> None:
    for part in _leaves(transform):
        way = getattr(part, "interpolation", None)
        way = getattr(way, "value", way)  # torchvision's are an enumeration, albumentations' numbers of OpenCV
        if moves(part) and way is not None and way not in ("nearest", "nearest-exact", 0):
            raise ConfigError(
                f"{part!r} on {name!r} would mix the class numbers of a mask into others: use "
                "interpolation 'nearest'. If its values are not classes, use a function of your own"
            )


def _listed(names: list[str]) -> str:
    return " and ".join(map(repr, names))
