"""Counts what is shown of a store beside its records: classes, splits, damage, and the spread of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from storeds.ops.showing.records import Collector, Shown
from storeds.ops.verdicts import damaged_kinds
from storeds.protocols import Array
from storeds.records.verdict_fields import pictures

__all__ = ["counts_of", "histograms_of"]

_MOST_COUNTS, _MOST_HISTOGRAMS = 200, 8
_FEW = 24  # different integers; they are counted one by one
_BINS = 16


def counts_of(collector: Collector, records: Sequence[Shown]) -> dict[str, dict[str, int]]:
    """Return ``classes``, ``splits``, ``damage`` and the name of each field of few integers → value → number of records.

    They are of all records where the engine stores the fields as columns, otherwise of the shown ones.
    """
    counts: dict[str, dict[str, int]] = {}
    for what, name, attribute in (("classes", collector.label, "label"), ("splits", "split", "split")):
        if name in collector.columns:
            counts[what] = _by_name(collector, name, collector.columns[name])
        else:
            counts[what] = dict(Counter(filter(None, (getattr(each, attribute) for each in records))))
    for finding, _ in pictures(collector.view.meta.fields).values():
        if finding in collector.columns:
            kinds = Counter(collector.columns[finding].tolist())
            found = damaged_kinds({kind: count for kind, count in kinds.most_common() if kind})
            if found:
                counts[finding.removesuffix("_finding") + ", damaged"] = found
    for name, column in _numbers(collector).items():
        if column.dtype.kind == "i" and 1 < len(np.unique(column)) <= _FEW:
            counts[name] = _by_name(collector, name, column)
    return {what: found for what, found in counts.items() if found}


def _by_name(collector: Collector, name: str, column: Array) -> dict[str, int]:
    found = Counter(column.tolist()).most_common(_MOST_COUNTS)
    return {collector.name_of(name, value): count for value, count in found}


def histograms_of(collector: Collector, records: Sequence[Shown]) -> dict[str, dict[str, int]]:
    """Return the name of each number → range of values → number of records; nothing for a number that is always the same."""
    sizes = np.array([each.panels[0].size for each in records if each.panels], np.float64).reshape(-1, 2)
    sizes = sizes[sizes.all(axis=1)]
    numbers: dict[str, Array] = {"height of the shown": sizes[:, 0], "width of the shown": sizes[:, 1]}
    numbers |= {
        name: each
        for name, each in _numbers(collector).items()
        if each.dtype.kind == "f" or len(np.unique(each)) > _FEW
    }
    drawn = {name: _histogram(each[np.isfinite(each)]) for name, each in numbers.items()}
    return dict([(name, each) for name, each in drawn.items() if each][:_MOST_HISTOGRAMS])


def _numbers(collector: Collector) -> Mapping[str, Array]:
    """Return the columns of numbers, but for the label and the verdicts on pictures."""
    other = {collector.label, *(share for _, share in pictures(collector.view.meta.fields).values())}
    return {name: each for name, each in collector.columns.items() if each.dtype.kind in "if" and name not in other}


def _histogram(numbers: Array) -> dict[str, int]:
    if len(np.unique(numbers)) < 2:
        return {}
    found, edges = np.histogram(numbers.astype(np.float64), _BINS)
    return {f"{low:.4g} to {high:.4g}": n for low, high, n in zip(edges, edges[1:], found.tolist(), strict=False)}
