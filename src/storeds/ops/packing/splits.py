"""Assigns items to splits: class by class, so that all are divided in the same way, or by key alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, repeat
from typing import Any, TypeAlias, get_args

import numpy as np
import xxhash

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, suggest
from storeds.ops import SplitBy
from storeds.ops.packing.listing import Listing
from storeds.protocols import JSON, Array, Field, Record

__all__ = ["Split", "choose_split", "divides_by_label", "make_split"]

Shares: TypeAlias = tuple[tuple[str, float], ...]
_LABEL_KINDS = ("int", "str", "bool")
_UNKNOWN = -1  # the label of an item whose label cannot be read


@dataclass(frozen=True)
class Split:
    """The split of each item. Picklable.

    Parameters
    ----------
    shares : tuple of (str, float)
        Names and shares.
    chosen : ndarray or None
        The number of the split of each item. None if the key alone decides.
    notes : tuple of str
        Warnings for the user.
    """

    shares: Shares
    chosen: Array | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def of(self, index: int, record: Record) -> str:
        """Return the split of item `index`."""
        if self.chosen is not None:
            return self.shares[int(self.chosen[index])][0]
        return choose_split(str(record.get("key", index)), self.shares)


def choose_split(key: str, shares: Shares) -> str:
    """Return the split of a key. It is the same in every run, whatever else is packed."""
    at, total = _hash(key) / 2**64, 0.0
    for name, share in shares:
        total += share
        if at < total:
            return name
    return shares[-1][0]


def divides_by_label(fields: Mapping[str, Field], by: str | None) -> bool:
    """Return whether records are divided by label; raises ConfigError if that is not possible, or `by` is unknown."""
    if by is not None and by not in get_args(SplitBy):
        raise ConfigError(f"split_by={by!r}; {suggest(by, get_args(SplitBy), 'choices')}")
    has_label = "label" in fields and fields["label"].kind in _LABEL_KINDS
    if by == "label" and "label" in fields and not has_label:
        raise ConfigError(
            f"split_by='label': the field label is of kind {fields['label'].kind}, and classes are of kind "
            f"{' or '.join(sorted(_LABEL_KINDS))}; pass split_by='key' (--split-by key)"
        )
    if by == "label" and not has_label:
        raise ConfigError("split_by='label': records have no label; pass split_by='key' (--split-by key)")
    return has_label and by != "key"


def make_split(listing: Listing, shares: Shares, *, by_label: bool) -> Split:
    """Assign the items of a source to splits.

    Parameters
    ----------
    listing : Listing
        By label, one with ``strata``.
    shares : tuple of (str, float)
        Names and shares; the shares sum to 1.
    by_label : bool
        Divide class by class, not by key.

    Notes
    -----
    By label, records with equal keys (the frames of a video) stay together and count as one. The keys of a class are
    sorted by their xxh3-64. The first go to the first split, and so on, in numbers that follow the shares and are rounded
    by largest remainder. Classes too small to give every split a key are divided together, as one class. The result
    depends only on the set of keys and labels, not on their order or on the number of workers.
    """
    if not by_label:
        return Split(shares)
    labels = sorted({stratum[1] for stratum in listing.strata if stratum is not None and stratum[1] is not None})
    number = {label: at for at, label in enumerate(labels)} | {None: _UNKNOWN}
    # The hash of each key, and the lowest label of its records.
    hashes = [None if stratum is None else _hash(stratum[0]) for stratum in listing.strata]
    lowest: dict[int, int] = {}
    for key, stratum in zip(hashes, listing.strata, strict=True):
        if key is not None and stratum is not None:
            lowest[key] = min(number[stratum[1]], lowest.get(key, len(labels)))
    classes: dict[int, list[int]] = {}
    for key in sorted(lowest):
        classes.setdefault(lowest[key], []).append(key)
    exact = [Fraction(repr(share)) for _, share in shares]
    chosen: dict[int, int] = {}
    rare: list[Any] = []
    pooled: list[int] = []
    for label, keys in sorted(classes.items()):
        counts = _divide_count(len(keys), exact)
        if label == _UNKNOWN or any(share and not count for share, count in zip(exact, counts, strict=True)):
            rare += [] if label == _UNKNOWN else [labels[label]]
            pooled += keys
        else:
            chosen.update(zip(keys, chain(*map(repeat, range(len(exact)), counts)), strict=True))
    counts = _divide_count(len(pooled), exact)
    chosen.update(zip(sorted(pooled), chain(*map(repeat, range(len(exact)), counts)), strict=True))
    numbers = np.array([0 if key is None else chosen[key] for key in hashes], np.int32)
    return Split(shares, numbers, _rare_note(rare, listing.rows.attrs))


def _divide_count(count: int, shares: Sequence[Fraction]) -> list[int]:
    """Divide `count` by largest remainder; of equal remainders the first gets more."""
    quotas = [count * share / sum(shares) for share in shares]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - quotas[number])
    for number in by_remainder[: count - sum(counts)]:
        counts[number] += 1
    return counts


def _rare_note(labels: list[Any], attrs: Mapping[str, JSON]) -> tuple[str, ...]:
    if not labels:
        return ()
    classes, names = attrs.get("classes"), [str(label) for label in labels]
    if isinstance(classes, list) and all(isinstance(n, int) and 0 <= n < len(classes) for n in labels):
        names = [str(classes[number]) for number in labels]
    return (
        f"{counted(len(labels), 'class has', 'classes have')} too few records for every split ({some(names)}); their "
        "records were divided together",
    )


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())
