"""Finds random generators that a transform owns, which storeds cannot seed, by inspection of its attributes and functions."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import random
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from storeds.transforms.albumentations import Albumentations
from storeds.transforms.binding import is_albumentations, is_of_storeds, wrap_albumentations

__all__ = ["warn_of_own_generators"]

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
