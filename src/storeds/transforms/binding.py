"""Composes transforms, and calls any with the randomness of one sample."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from storeds._utils.text import name_of, some
from storeds.errors import ConfigError
from storeds.protocols import Cropped, Cropper, CropRequest, SampleContext, Transform
from storeds.transforms.albumentations import wrap_albumentations
from storeds.transforms.arguments import is_list
from storeds.transforms.images import (
    CenterCrop,
    Crop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToTensor,
)
from storeds.transforms.operations import crop, in_order, size_of
from storeds.transforms.tail import Tail, split

__all__ = [
    "TAKES_STRIDED",
    "BoundTransform",
    "Compose",
    "Views",
    "add_time",
    "check_picklable",
    "first_crop",
    "name_of_transform",
    "takes_strided",
]

# Global generators belong to the process, so only one foreign transform at a time may use them. Re-entrant, because a
# foreign transform may call a Compose with other foreign transforms.
_lock = threading.RLock()


def _renew_lock() -> None:
    # A thread that held the lock during a fork does not exist in the child, so nothing would release it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, repr=False)
class BoundTransform:
    """A transform that gets its randomness from the generator of a sample.

    How it gets it is decided once, on binding:

    - A transform with a parameter ``generator`` receives the sample's generator. Built-in transforms that draw have it.
    - The generators of an albumentations transform are seeded from the sample's generator.
    - Any other transform is *foreign*: it may draw from the global generators of torch (CPU), NumPy (legacy) and
      `random`. With a seed, these are seeded from the sample's generator before the call, and restored after it, also
      when the transform raises, which takes 0.1 ms. Without a seed, a foreign transform is just called.

    Parameters
    ----------
    transform : callable
        Takes one value. The bound transform is picklable if it is.

    Attributes
    ----------
    tail : callable or None
        The end of the transform, which a batch can do.

    Notes
    -----
    *Threads*: foreign transforms with a seed run one at a time in a process. Another thread that draws from a global
    generator during the call changes their numbers.
    *Not covered*: generators that a foreign transform owns (`numpy.random.default_rng`), and those of accelerators.
    """

    transform: Transform
    tail: Tail | None = field(init=False, compare=False)
    _head: Compose | None = field(init=False, compare=False)
    name: str = field(init=False, compare=False)
    _how: Literal["generator", "plain", "foreign"] = field(init=False, compare=False)
    _takes_strided: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", name_of_transform(self.transform))
        transform = wrap_albumentations(self.transform)
        head, tail = split(flattened(transform))
        object.__setattr__(self, "transform", transform)
        object.__setattr__(self, "tail", tail)
        object.__setattr__(self, "_head", None if tail is None else Compose(head))
        object.__setattr__(self, "_how", _how_to_call(transform))
        object.__setattr__(self, "_takes_strided", takes_strided(transform))

    def __call__(
        self, value: Any, context: SampleContext, *, whole: bool = True, seconds: dict[str, float] | None = None
    ) -> Any:
        """Return the transformed value, contiguous if only built-in transforms made it. Exceptions of the transform pass through.

        Parameters
        ----------
        value : Any
        context : SampleContext
        whole : bool
            Without it, `tail` is left to do for a uint8 tensor.
        seconds : dict, optional
            Where to add what each transform takes, by its name.
        """
        tail = None if whole else self.tail
        composed: Any = self.transform if tail is None else self._head
        steps, now = composed._bound if type(composed) is Compose else (self,), time.perf_counter()
        for step in steps:
            value = step.draw(value, context.generator)
            if seconds is not None:
                now = add_time(seconds, step.name, now)
        if tail is not None:
            return tail.pixels(value)
        return in_order(value) if self._takes_strided else value

    def draw(self, value: Any, generator: torch.Generator | None) -> Any:
        """Return the transformed value, with randomness from `generator`, or from the global generators if None."""
        if self._how == "generator":
            return self.transform(value, generator=generator)
        if generator is None or self._how == "plain":
            return self.transform(value)
        with _seeded(generator):
            return self.transform(value)

    def __repr__(self) -> str:
        return repr(self.transform)


@dataclass(frozen=True)
class Compose:
    """Apply transforms one after another.

    Parameters
    ----------
    transforms : sequence of callable
        Each gets its randomness from the generator that `Compose` is called with, as `BoundTransform` describes.

    Raises
    ------
    ConfigError
        One of them is not callable.
    """

    transforms: Sequence[Transform]
    _bound: tuple[BoundTransform, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _callables("Compose", self.transforms))
        object.__setattr__(self, "_bound", tuple(map(BoundTransform, _with_scaling_joined(flattened(self)))))

    def __call__(self, value: Any, generator: torch.Generator | None = None) -> Any:
        """Return the result of the last transform."""
        for transform in self._bound:
            value = transform.draw(value, generator)
        return value

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


def add_time(seconds: dict[str, float], name: str, since: float) -> float:
    """Add the time since `since`, a value of `time.perf_counter`, to that of a transform; return the present time."""
    now = time.perf_counter()
    seconds[name] = seconds.get(name, 0.0) + now - since
    return now


def name_of_transform(transform: Any) -> str:
    """Return the name of a function or class, and of the transforms in a composition of another library."""
    if type(transform) is Tail:
        return "Normalize"
    parts = getattr(transform, "transforms", None)
    return f"{name_of(transform)}{f' of {some(map(name_of, parts))}' if isinstance(parts, (list, tuple)) else ''}"


def _callables(owner: str, transforms: Any) -> tuple[Transform, ...]:
    """Return a list of callables as a tuple, so that equal compositions compare equal."""
    if not is_list(transforms):
        raise ConfigError(f"{owner}: transforms must be a list, not {transforms!r}")
    for index, transform in enumerate(transforms):
        if not callable(transform):
            raise ConfigError(f"{owner}: transforms[{index}] is not callable: it is {transform!r}")
    return tuple(transforms)


def _with_scaling_joined(transforms: Sequence[Transform]) -> list[Transform]:
    """Return transforms with one in the place of a `ToTensor` and the `Normalize` after it, which saves a copy."""
    joined: list[Transform] = []
    for transform in transforms:
        # Exact types: a subclass may compute something else.
        if type(transform) is Normalize and joined and type(joined[-1]) is ToTensor:
            joined[-1] = Tail(transform)
        else:
            joined.append(transform)
    return joined


def flattened(transform: Transform) -> list[Transform]:
    """Return the transforms of nested compositions, in order."""
    if type(transform) is not Compose:
        return [transform]
    return [each for part in transform.transforms for each in flattened(part)]


@dataclass(frozen=True)
class Views:
    """Make several views of each image, for contrastive and multi-crop training.

    If every view begins with a crop, a reader decodes only the windows, and those of all views at once.

    Parameters
    ----------
    transforms : sequence of callable or sequence
        One transform, or list of transforms, for each view.

    Raises
    ------
    ConfigError
        One of them is not callable, or there are none.

    Notes
    -----
    If every view begins with a crop, the windows of all views are drawn first. The other numbers follow, view by view.
    Otherwise all views receive the same image, so a transform that changes its argument changes the other views.
    A transform after `Views` receives the tuple, so put ``ToTensor`` and ``Normalize`` into each view.
    """

    transforms: Sequence[Any]
    _bound: tuple[BoundTransform, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_list(self.transforms) or not self.transforms:
            raise ConfigError(
                f"Views: transforms must be a list with a transform for each view, not {self.transforms!r}"
            )
        views = [Compose(each) if is_list(each) else each for each in self.transforms]
        object.__setattr__(self, "transforms", _callables("Views", views))
        object.__setattr__(self, "_bound", tuple(map(BoundTransform, self.transforms)))

    @property
    def begins_with_crops(self) -> bool:
        """Whether every view begins with a built-in crop."""
        return all(type(_first(each)) in _CROPS for each in self.transforms)

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> tuple[Any, ...]:
        """Return a tuple with the result of each view."""
        if not self.begins_with_crops:
            return tuple(view.draw(image, generator) for view in self._bound)
        if not isinstance(image, Cropped):
            requests = self.crops(*size_of(image, "Views"), generator)
            if not requests:  # the image is too small for one of the crops, which raises an error
                return tuple(view.draw(image, generator) for view in self._bound)
            image = Cropped(tuple(crop(image, request.window) for request in requests))
        return tuple(
            view.draw(Cropped((part,)), generator) for view, part in zip(self._bound, image.images, strict=True)
        )

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[CropRequest, ...]:
        """Draw the first crop of each view; return none if the image is too small for one of them."""
        drawn = [_first(each).crops(height, width, generator) for each in self.transforms]
        return tuple(request for requests in drawn for request in requests) if all(drawn) else ()


def _first(transform: Any) -> Any:
    """Return the transform with which a composition begins, or the transform itself."""
    return transform.transforms[0] if type(transform) is Compose and transform.transforms else transform


def _how_to_call(transform: Transform) -> Literal["generator", "plain", "foreign"]:
    if isinstance(transform, functools.partial) and "generator" in transform.keywords:
        return "foreign"  # the user has chosen the generator
    # A Module's __call__ takes (*args, **kwargs) and passes them to forward.
    function = transform.forward if isinstance(transform, torch.nn.Module) else transform
    try:
        _, *parameters = inspect.signature(function).parameters.values()  # the first takes the value, whatever its name
    except (TypeError, ValueError):
        return "foreign"  # written in C, without a signature
    if any(
        each.name == "generator" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in parameters
    ):
        return "generator"
    return "plain" if type(transform).__module__.startswith("storeds.") else "foreign"


@contextmanager
def _seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed the global generators from that of a sample. One block at a time in a process."""
    # New seeds for each call, so that two foreign transforms of one sample draw different numbers.
    seeds = torch.empty(3, dtype=torch.int64, device="cpu").random_(generator=generator).tolist()
    # Not torch.manual_seed, which also seeds every accelerator and cannot be undone.
    torch_global = torch.default_generator
    with _lock:
        # legacy=False is the only form of the state that every bit generator of NumPy supports.
        states = torch_global.get_state(), np.random.get_state(legacy=False), random.getstate()
        try:
            torch_global.manual_seed(seeds[0])
            np.random.seed(seeds[1] & 0xFFFFFFFF)
            random.seed(seeds[2])
            yield
        finally:
            torch_global.set_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])


_CROPS = (CenterCrop, Crop, RandomCrop, RandomResizedCrop)
"""Built-in transforms that cut windows out of an image. They are `storeds.protocols.Cropper`."""
TAKES_STRIDED = (*_CROPS, Normalize, RandomHorizontalFlip, RandomVerticalFlip, Resize, ToTensor)
"""Built-in transforms that handle tensors with the channels last in memory as well as any other."""


def first_crop(transform: Transform | None) -> Cropper | None:
    """Return the crop, or the views that all begin with a crop, with which a transform begins, if any."""
    first: Any = _first(transform)
    if type(first) is Views:
        return first if first.begins_with_crops else None
    return first if type(first) in _CROPS else None


def takes_strided(transform: Transform | None) -> bool:
    """Return whether a transform handles tensors with the channels last in memory as well as any other."""
    if type(transform) is Compose:
        return bool(transform.transforms) and all(map(takes_strided, transform.transforms))
    return type(transform) in TAKES_STRIDED


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
