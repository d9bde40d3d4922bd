"""Reads the samples of a batch from any dataset: those of each store below it in one storage call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from storeds.batching.collate import Skipped
from storeds.datasets.batch import Ask, Counted, Made
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.tree import Part, children, leaves, parts

__all__ = ["count", "is_of_storeds", "read", "read_counted"]


def is_of_storeds(dataset: Any) -> bool:
    """Return whether a dataset makes its samples as a `StoreDataset` does: a subclass may make others."""
    return isinstance(dataset, StoreDataset) and all(
        getattr(type(dataset), name) is getattr(StoreDataset, name) for name in ("__getitem__", "__getitems__")
    )


def read(dataset: Any, ask: Ask) -> Made:
    """Return the samples of a dataset, read from each of its leaves at once.

    If all are skipped, as asked of several leaves, they are read again, and replacements make up the batch. Nothing is counted
    here.
    """
    made = Made()
    try:
        found = parts(dataset, ask.indices)
        is_one = not children(dataset) or len(leaves(dataset)) == 1
        if is_one:
            return _of_leaf(found[0], ask) if found else made
        made = _joined(found, ask._replace(fill=False, as_columns=False))
        if ask.fill and made.samples and all(isinstance(sample, Skipped) for sample in made.samples):
            made = _joined(found, ask._replace(as_columns=False))
    except Exception as error:
        made.error = error
    return made


def read_counted(dataset: Any, ask: Ask) -> Any:
    """Return the samples of a dataset, counted in the reports of its stores; raises what reading raises."""
    made = read(dataset, ask)
    count(leaves(dataset), made.counted)
    return made.result()


def count(below: list[Any], counted: Sequence[Counted], turn: Any = None) -> None:
    """Count what happened to samples in the reports of the stores among some leaves; see `SampleCounters.add`."""
    for each in counted:
        if is_of_storeds(below[each.leaf]):
            below[each.leaf]._counters.add(each.epoch, each.seen, each.events, turn)


def _joined(found: list[Part], ask: Ask) -> Made:
    """Return the samples of several leaves in the order of the batch."""
    made, samples = Made(), dict[int, Any]()
    for part in found:
        own = _of_leaf(part, ask, is_part=True)
        made.counted += own.counted
        made.work.add(own.work)
        if own.error is not None:
            made.error = own.error
            return made
        samples |= zip(part.places, own.samples, strict=True)
    made.samples = [samples[place] for place in range(len(samples))]
    return made


def _of_leaf(part: Part, ask: Ask, *, is_part: bool = False) -> Made:
    allowed = None if ask.allowed is None else partial(ask.allowed, part.leaf)
    ask = ask._replace(indices=part.indices, allowed=allowed)
    if is_of_storeds(part.dataset):
        made: Made = part.dataset.read(ask)
        made.counted = [each._replace(leaf=part.leaf) for each in made.counted]
        return made
    made, began = Made(), time.perf_counter()
    many = None if is_part else getattr(part.dataset, "__getitems__", None)
    try:
        made.samples = many(ask.indices) if many else [part.dataset[index] for index in ask.indices]
    except Exception as error:
        made.error = error
    made.work.add_time("outside", began, step=f"the dataset {type(part.dataset).__name__}")
    return made
