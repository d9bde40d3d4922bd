"""Reads the samples of a batch from any dataset: those of each store below it in one storage call."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from storeds.batching.collate import Skipped
from storeds.datasets.batch import Ask, Counted, Made
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.tree import Part, joins, parts

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
    try:
        found = parts(dataset, ask.indices)
    except Exception as error:
        return Made(error=error)
    if not joins(dataset):
        return _of_leaf(found[0], ask)
    ask = ask._replace(as_columns=False)
    made = _joined(found, ask._replace(fill=False))
    if ask.fill and made.samples and all(isinstance(sample, Skipped) for sample in made.samples):
        tried, made = made, _joined(found, ask)
        made.work.add(tried.work)
    return made


def read_counted(dataset: Any, ask: Ask) -> Any:
    """Return the samples of a dataset, counted in the reports of its stores; raises what reading raises."""
    made = read(dataset, ask)
    count(made.counted)
    return made.result()


def count(counted: Iterable[Counted], turn: Any = None) -> None:
    """Count what happened to samples in the reports of their stores; see `SampleCounters.add`."""
    for each in counted:
        each.leaf._counters.add(each.epoch, each.seen, each.events, turn)


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
    ask = ask._replace(indices=part.indices)
    if is_of_storeds(part.dataset):
        found: Made = part.dataset.read(ask)
        return found
    made, began = Made(), time.perf_counter()
    many = None if is_part else getattr(part.dataset, "__getitems__", None)
    try:
        made.samples = many(ask.indices) if many else [part.dataset[index] for index in ask.indices]
    except Exception as error:
        made.error = error
    made.work.add_time("outside", began, step=f"the dataset {type(part.dataset).__name__}")
    return made
