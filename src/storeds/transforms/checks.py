"""Checks the transforms of a dataset: whether they separate elements, own random generators, and can be pickled."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import pickle
import random
import re
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from storeds.errors import ConfigError
from storeds.protocols import Field, Transform
from storeds.records.fields import holds_integers, is_mask, is_spatial
from storeds.transforms.albumentations import Albumentations
from storeds.transforms.binding import Compose, is_albumentations, is_of_storeds, wrap_albumentations
from storeds.transforms.images import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor

__all__ = [
    "Moves",
    "check_picklable",
    "check_spatial",
    "first_crop",
    "moves",
    "takes_images",
    "takes_strided",
    "warn_of_own_generators",
]


def first_crop(transform: Transform | None) -> RandomResizedCrop | None:
    """Return the crop that a transform begins with, if any."""
    first = transform.transforms[0] if type(transform) is Compose and transform.transforms else transform
    return first if type(first) is RandomResizedCrop else None


def takes_strided(transform: Transform | None) -> bool:
    """Return whether a transform handles tensors with the channels last in memory as well as any other."""
    if type(transform) is Compose:
        return bool(transform.transforms) and all(map(takes_strided, transform.transforms))
    return type(transform) in (CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor)


def check_picklable(name: str, transform: object) -> None:
    """Raise ConfigError for a transform that cannot be sent to workers started by spawn or forkserver."""
    parts = getattr(transform, "transforms", None) or [transform]
    for part in parts:
        try:
            pickle.dumps(part)
        except Exception as error:  # a third-party __reduce__ may raise anything
            raise ConfigError(
                f"{name} {part!r} cannot be sent to a worker process: {error}; define it at the top level of a module (no "
                "lambda, no class or function inside a function), or use start method fork, or num_workers=0"
            ) from error


class Moves(IntEnum):
    """How a transform moves pixels. The greater the value, the less certain that two images stay aligned."""

    NOT = 0
    ALIKE = 1
    """Moves pixels alike in all images of one size."""
    UNKNOWN = 2
    DRAWN = 3
    """Draws for each image where pixels go."""


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
    if _STAY.fullmatch(name):
        return Moves.NOT
    # In albumentations p=1 means always; other libraries have no p.
    return Moves.ALIKE if name in _ALIKE and getattr(transform, "p", 1) >= 1 else Moves.DRAWN


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
        if is_mask(name) and holds_integers(fields[name]):
            _check_interpolation(name, transform)
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
    "Joint transforms of several elements are not supported yet. Read only one of these elements (fields=[…]), or transform "
    "whole samples in a function of your own, for example the collate_fn of the loader with as_dict=True."
)


def _check_interpolation(name: str, transform: Transform) -> None:
    for part in _leaves(transform):
        mode = getattr(part, "interpolation", None)
        mode = getattr(mode, "value", mode)  # an enum in torchvision, an OpenCV number in albumentations
        if moves(part) and mode is not None and mode not in ("nearest", "nearest-exact", 0):
            raise ConfigError(
                f"{part!r} on {name!r} would mix class numbers of a mask into other numbers: use "
                "interpolation 'nearest'. If the values are not classes, use a function of your own"
            )


def _listed(names: list[str]) -> str:
    return " and ".join(map(repr, names))


_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, torch.Generator)
_DEPTH = 6
_ITEMS = 100
_MAX_VALUES = 5000
_WITHOUT_GENERATORS = frozenset(
    ("torch", "torchvision", "numpy", "PIL", "cv2", "scipy", "kornia", "skimage", *sys.stdlib_module_names)
) - {"__main__"}


def warn_of_own_generators(element: str, transform: Any) -> None:
    """Warn if a transform owns random generators, so that samples depend on more than (seed, epoch, index).

    Inspects attributes, closures and the globals of functions, without calling the transform.
    """
    found = list(dict.fromkeys(_find(transform, "", _DEPTH, set(), is_seeded=True)))
    if not found:
        return
    warnings.warn(
        f"transform {transform!r} of {element!r} draws random numbers of its own, from {', '.join(found[:3])}: neither seed "
        "nor torch.manual_seed controls them, and forked worker processes draw the same numbers. Add a parameter "
        "'generator' after the image: it receives the torch.Generator of the sample",
        stacklevel=4,
    )


def _find(value: Any, path: str, depth: int, seen: set[int], *, is_seeded: bool) -> Iterator[str]:
    """Yield the name of each generator that can be reached from `value`, which is named `path`.

    If `is_seeded`, storeds calls the value or passes it the sample's generator, so it seeds albumentations transforms.
    """
    if id(value) in seen or depth < 0 or len(seen) > _MAX_VALUES:
        return
    seen.add(id(value))
    if isinstance(value, _GENERATORS):
        if not any(value is each for each in (random._inst, np.random.mtrand._rand, torch.default_generator)):
            yield f"{path} ({type(value).__module__.partition('.')[0]}'s {type(value).__name__})"
        return
    if is_albumentations(value) and not is_seeded:
        yield f"{path} (albumentations' {type(value).__name__}: storeds seeds it only if it is passed as transform= itself)"
        return
    wrapped = wrap_albumentations(value)
    if isinstance(wrapped, Albumentations):
        if getattr(wrapped.transform, "seed", None) is not None:
            yield f"{type(wrapped.transform).__name__}(seed=…), which is not used: give the dataset the seed"
        return
    is_seeded = (is_seeded and (isinstance(value, (list, tuple, dict)) or is_of_storeds(value))) or _takes_generator(
        value
    )
    for name, part in _members(value):
        inner = f"{path}.{name}".lstrip(".") if name else path
        yield from _find(part, inner, depth - 1, seen, is_seeded=is_seeded)
    if isinstance(value, types.FunctionType) and _makes_generators(value.__code__):
        yield f"default_rng() in {value.__qualname__}"


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the parts of a value."""
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from (("", item) for item, _ in zip(value, range(_ITEMS), strict=False))
    elif isinstance(value, dict):
        yield from ((str(key), item) for (key, item), _ in zip(value.items(), range(_ITEMS), strict=False))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _members_of_function(value)
    elif not isinstance(value, (type, types.ModuleType, torch.Tensor, np.ndarray)):
        yield from (("self." + name, item) for name, item in getattr(value, "__dict__", {}).items())
        if not _is_without_generators(type(value)):
            methods = inspect.getmembers_static(type(value), lambda each: isinstance(each, types.FunctionType))
            yield from (
                ("", method) for _, method in methods if "generator" not in inspect.signature(method).parameters
            )


def _members_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_without_generators(function):
        return
    with_cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    yield from ((name, cell.cell_contents) for name, cell in with_cells if _is_filled(cell))
    yield from (
        (name, function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__
    )
    yield "", function.__defaults__ or ()


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_without_generators(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _WITHOUT_GENERATORS


def _takes_generator(value: Any) -> bool:
    try:
        return callable(value) and "generator" in inspect.signature(value).parameters
    except (TypeError, ValueError):
        return False


def _makes_generators(code: types.CodeType) -> bool:
    """Return whether a function calls ``default_rng()`` without a seed."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "PUSH_NULL", "NOP")]
    return any(
        step.argval == "default_rng" and after.opname == "CALL" and after.arg == 0
        for step, after in itertools.pairwise(steps)
    )
