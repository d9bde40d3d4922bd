"""Which datasets are below Subset, ConcatDataset and mixtures, and which of them has a sample."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from storeds.protocols import Array

__all__ = [
    "Part",
    "as_index",
    "children",
    "column_of",
    "inside",
    "joins",
    "leaves",
    "nodes",
    "parts",
    "resolve_indices",
]

_NO_MASK = "a mask is not a list of indices; use where= or mask.nonzero()"
# Where the classes are defined that pass samples on unchanged. A subclass of them may make its own.
_PASSING_ON = ("torch.utils.data.dataset", "storeds.datasets.mixture")
_DEEPEST = 4  # attributes of attributes, in datasets of users


def children(dataset: Any) -> Sequence[Any]:
    """Return the datasets whose samples a Subset, a ConcatDataset or a mixture passes on unchanged; none of any other."""
    if not isinstance(dataset, (Subset, ConcatDataset)):
        return ()
    methods = [getattr(type(dataset), name, None) for name in ("__getitem__", "__getitems__")]
    if any(method is not None and method.__module__ not in _PASSING_ON for method in methods):
        return ()
    return [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets


def nodes(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all below it, in order; one that comes several times, as often."""
    yield dataset
    for each in children(dataset):
        yield from nodes(each)


def joins(dataset: Any) -> bool:
    """Return whether a dataset, which may be a Subset, joins others."""
    while isinstance(dataset, Subset) and children(dataset):
        dataset = dataset.dataset
    return bool(children(dataset))


def leaves(dataset: Any) -> list[Any]:
    """Return the datasets that make the samples of a dataset, in order; one that comes several times is there as often."""
    return [each for each in nodes(dataset) if not children(each)]


def inside(dataset: Any) -> list[Any]:
    """Return the leaves of a dataset that have ``set_epoch``; of a user's dataset, those that its attributes hold. Each once."""
    return list({id(each): each for each in _inside(dataset, _DEEPEST)}.values())


def _inside(dataset: Any, depth: int) -> Iterator[Any]:
    for leaf in leaves(dataset):
        if callable(getattr(leaf, "set_epoch", None)):
            yield leaf
        elif isinstance(leaf, Dataset) and depth:
            for value in vars(leaf).values():
                for part in value.values() if isinstance(value, Mapping) else [value]:
                    for each in part if isinstance(part, (list, tuple)) else [part]:
                        if isinstance(each, Dataset):
                            yield from _inside(each, depth - 1)


class Part(NamedTuple):
    """The samples of a batch that one leaf has.

    Attributes
    ----------
    dataset : Any
    places : sequence of int
        Theirs in the batch.
    indices : list of int
        Theirs in the dataset.
    """

    dataset: Any
    places: Sequence[int]
    indices: list[int]


def parts(dataset: Any, indices: list[int]) -> list[Part]:
    """Return which leaf has which samples of a batch; a leaf that comes several times may have several parts.

    Raises
    ------
    IndexError
        An index lies outside of a Subset, ConcatDataset or mixture, or of what it consists of.
    """
    below = children(dataset)
    if not below:
        return [Part(dataset, range(len(indices)), indices)]
    indices = resolve_indices(indices, len(dataset), f"this {type(dataset).__name__}")
    if isinstance(dataset, Subset):
        return parts(dataset.dataset, [dataset.indices[at] for at in indices])
    ends, places = dataset.cumulative_sizes, dict[int, list[int]]()
    for place, index in enumerate(indices):
        places.setdefault(bisect_right(ends, index), []).append(place)
    found = []
    for number, own in places.items():
        first = ends[number - 1] if number else 0
        inner = parts(below[number], [indices[place] - first for place in own])
        found += [part._replace(places=[own[place] for place in part.places]) for part in inner]
    return found


def column_of(dataset: Any, read: Callable[[Any], Array]) -> Array:
    """Return a value for each sample of a dataset; `read` returns those of a leaf, and is called in the order of `leaves`."""
    below = children(dataset)
    if not below:
        return read(dataset)
    if isinstance(dataset, Subset):
        whole = column_of(dataset.dataset, read)
        return whole[resolve_indices(dataset.indices, len(whole), "what a Subset is of")]
    return np.concatenate([column_of(each, read) for each in below])


def resolve_indices(indices: Iterable[Any], count: int, name: str) -> list[int]:
    """Return indices as ints from 0 to the last of `count` samples; negative ones count from the end.

    Raises
    ------
    IndexError
        An index is outside ``[-count, count)``; `name` says of what.
    TypeError
        An index is no integer, or the indices are a mask.
    """
    if type(indices) is list and set(map(type, indices)) == {int} and min(indices) >= 0 and max(indices) < count:
        return indices  # the usual case: indices of a sampler
    if getattr(indices, "dtype", None) in (torch.bool, np.dtype(bool)):
        raise TypeError(_NO_MASK)
    resolved = []
    for index in indices:
        at = as_index(index)
        if not -count <= at < count:
            raise IndexError(f"index {at} is outside [0, {count}) of {name}")
        resolved.append(at + count if at < 0 else at)
    return resolved


def as_index(index: Any) -> int:
    """Return an integer of any type as an int; raises TypeError for other values, bools among them."""
    if isinstance(index, bool) or getattr(index, "dtype", None) is torch.bool:  # Python takes bools for ints
        raise TypeError(_NO_MASK)
    if isinstance(index, (list, tuple)):
        raise TypeError(
            f"an index is a number, not {index!r:.60}: a sampler that makes batches goes into batch_sampler="
        )
    return operator.index(index)
