"""Calls a transform with a sample's own randomness, whether or not it was written for that."""

from __future__ import annotations

import functools
import inspect
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from storeds.errors import ConfigError
from storeds.protocols import SampleContext, Transform
from storeds.transforms.albumentations import adopted
from storeds.transforms.checks import is_list, set_frozen
from storeds.transforms.deferred import ToNormalized

__all__ = ["BoundTransform", "Compose", "apply_transform"]

_How = Literal["keyword", "position", "plain", "foreign"]

# The global generators belong to the process: one foreign transform at a time has them. Re-entrant, because a foreign
# transform may call one of ours that holds foreign ones.
_lock = threading.RLock()


def _renew_lock() -> None:
    # A thread that held it during a fork does not exist in the child and would never let go.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, repr=False)
class BoundTransform:
    """A transform, and how it gets its randomness: decided once, when it is bound, and kept through pickling.

    A transform with a parameter named ``generator`` is given the sample's; one of storeds' own without it draws nothing.
    One of albumentations has its generators seeded from the sample's, see ``_albumentations.py``.
    Any other is *foreign*: it may draw from
    the global generators of torch (CPU), NumPy (legacy) and `random`, so under a seed these are set from the sample's
    generator around the call, and are back in their former states afterwards, also when the transform raises. That
    costs 0.1 ms a call. Without a seed, foreign transforms are just called.

    Parameters
    ----------
    transform : callable
        Takes one value. As picklable as this is.
    finish : callable, optional
        What is done to its result.
    may_wait : bool
        Whether the last step of a `Compose` may be left to the collating.

    Notes
    -----
    *Threads*: foreign transforms under a seed run one at a time in a process. A thread that draws from a global
    generator meanwhile, and has nothing to do with this class, disturbs them and gets their numbers.
    *Not covered*: generators that a foreign transform owns (`numpy.random.default_rng`), and those of accelerators. A
    `StoreDataset` warns of the former.
    """

    transform: Transform
    finish: Callable[[Any], Any] | None = None
    may_wait: bool = False
    _how: _How = field(init=False, compare=False)

    def __post_init__(self) -> None:
        transform = adopted(self.transform)
        set_frozen(self, transform=transform, _how=_how_to_call(transform))

    def __call__(self, value: Any, context: SampleContext) -> Any:
        """Return the transformed value; what the transform raises is not caught."""
        if self.may_wait and type(self.transform) is Compose:
            made = self.transform.but_last(value, context.generator)
        else:
            made = self.draw(value, context.generator)
        return made if self.finish is None else self.finish(made)

    def draw(self, value: Any, generator: torch.Generator | None) -> Any:
        """Return the transformed value, with randomness from `generator` or, for None, the global generators."""
        if self._how == "keyword":
            return self.transform(value, generator=generator)
        if self._how == "position":
            return self.transform(value, generator)
        if generator is None or self._how == "plain":
            return self.transform(value)
        with _global_generators_from(generator):
            return self.transform(value)

    def __repr__(self) -> str:
        return repr(self.transform)


@dataclass(frozen=True)
class Compose:
    """Applies transforms one after another.

    Parameters
    ----------
    transforms : sequence of callable
        Those with a parameter ``generator`` are given the one that `Compose` is called with. When it is called with
        one, the others find torch's, NumPy's and `random`'s global generators set from it, each differently; see
        `BoundTransform`.

    Raises
    ------
    ConfigError
        One of them is not callable.
    """

    transforms: Sequence[Transform]
    _bound: tuple[BoundTransform, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_list(self.transforms):
            raise ConfigError(f"Compose: transforms must be a list, not {self.transforms!r}")
        for index, transform in enumerate(self.transforms):
            if not callable(transform):
                raise ConfigError(f"Compose: transforms[{index}] is not callable: it is {transform!r}")
        set_frozen(
            self,
            transforms=tuple(self.transforms),
            _bound=tuple(BoundTransform(each) for each in _merged(self.transforms)),
        )

    def __call__(self, value: Any, generator: torch.Generator | None = None) -> Any:
        """Return what the last transform makes of it."""
        for transform in self._bound:
            value = transform.draw(value, generator)
        return value

    def but_last(self, value: Any, generator: torch.Generator | None) -> Any:
        """Return the same, or what becomes it in a batch if the last transform can wait for that."""
        if not self._bound:
            return value
        *others, last = self._bound
        for transform in others:
            value = transform.draw(value, generator)
        if isinstance(last.transform, ToNormalized):
            return last.transform.later(value)
        return last.draw(value, generator)

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


def _merged(transforms: Sequence[Transform]) -> list[Transform]:
    """Return the transforms to call: one that knows how to be done together with its follower replaces both."""
    merged: list[Transform] = []
    for transform in map(adopted, transforms):
        together = getattr(merged[-1], "followed_by", None) if merged else None
        both = together(transform) if together is not None else None
        if both is None:
            merged.append(transform)
        else:
            merged[-1] = both
    return merged


def apply_transform(transform: Transform | None, value: Any, context: SampleContext) -> Any:
    """Apply `transform` once, as a `BoundTransform` does; for many samples, bind it first. None changes nothing."""
    if transform is None:
        return value
    bound = transform if isinstance(transform, BoundTransform) else BoundTransform(transform)
    return bound(value, context)


def _how_to_call(transform: Transform) -> _How:
    # A Module's __call__ says (*args, **kwargs); its arguments are those of forward.
    function = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if isinstance(transform, functools.partial) and "generator" in transform.keywords:
        return "foreign"  # its user has chosen the generator
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "foreign"  # written in C, without a signature
    for position, parameter in enumerate(parameters):
        if position and parameter.name == "generator":  # the first parameter takes the value, whatever its name
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                return "keyword"
            if parameter.kind == parameter.POSITIONAL_ONLY and position == 1:
                return "position"
    return "plain" if type(transform).__module__.startswith("storeds.") else "foreign"


@contextmanager
def _global_generators_from(generator: torch.Generator) -> Iterator[None]:
    # Drawn anew for each call, so that two foreign transforms of one sample do not get the same numbers.
    seeds = torch.empty(3, dtype=torch.int64).random_(generator=generator).tolist()
    # Not torch.manual_seed, which also seeds every accelerator and could not be undone.
    torch_global = torch.default_generator
    with _lock:
        # legacy=False: the only form of NumPy's state that any bit generator has.
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
