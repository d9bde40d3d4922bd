"""Assigns items to splits: class by class, so that all are divided in the same way, or by key alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import xxhash

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, suggest
from storeds.ops.packing.rows import Listing
from storeds.protocols import JSON, Array, Field, Record

__all__ = ["Split", "SplitBy", "choose_split", "divides_by_label", "make_split"]

SplitBy: TypeAlias = Literal["label", "key"]
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
        The number of the split of each item, uint8. None if the key alone decides.
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

    Raises
    ------
    ConfigError
        There are too many shares.

    Notes
    -----
    By label, records with equal keys (the frames of a video) stay together and count as one. The keys of a class are
    sorted by their xxh3-64. The first go to the first split, and so on, in numbers that follow the shares and are rounded
    by largest remainder. Classes too small to give every split a key are divided together, as one class. The result
    depends only on the set of keys and labels, not on their order or on the number of workers.
    """
    if not by_label:
        return Split(shares)
    if len(shares) > 255:
        raise ConfigError(f"split has {len(shares)} parts; dividing by label supports at most 255")
    hashes, labels, names = _strata(listing)
    good = [index for index, stratum in enumerate(listing.strata) if stratum is not None]
    chosen = np.zeros(listing.count, np.uint8)
    chosen[good], rare = _divide(hashes, labels, [Fraction(repr(share)) for _, share in shares])
    return Split(shares, chosen, _rare_note([names[number] for number in rare], listing.rows.attrs))


def _strata(listing: Listing) -> tuple[Array, Array, list[Any]]:
    """Return the hash of each good item's key, the number of its label, and the labels by number."""
    good = [stratum for stratum in listing.strata if stratum is not None]
    numbers: dict[Any, int] = {}
    hashes = np.array([_hash(key) for key, _ in good], np.uint64)
    labels = np.array(
        [_UNKNOWN if label is None else numbers.setdefault(label, len(numbers)) for _, label in good], np.int64
    )
    # Numbers follow the order of the labels, so that the order of items does not matter.
    names = sorted(numbers)
    ranks = np.empty(len(names) + 1, np.int64)
    ranks[-1] = _UNKNOWN
    ranks[[numbers[name] for name in names]] = np.arange(len(names))
    return hashes, ranks[labels], names


def _divide(hashes: Array, labels: Array, shares: Sequence[Fraction]) -> tuple[Array, list[int]]:
    """Return the number of each item's split, and the labels that are missing in some split."""
    # Each distinct key is a unit, with the lowest label of its records.
    order = np.lexsort((labels, hashes))
    first = np.ones(len(order), bool)
    first[1:] = hashes[order][1:] != hashes[order][:-1]
    unit_of = np.empty(len(order), np.int64)
    unit_of[order] = np.cumsum(first) - 1
    strata = labels[order][first]  # units stay sorted by hash within a class
    chosen = np.zeros(len(strata), np.uint8)
    sorted_units = np.argsort(strata, kind="stable")
    values, starts = np.unique(strata[sorted_units], return_index=True)
    rare, pooled = [], [np.empty(0, np.int64)]
    for value, units in zip(values.tolist(), np.split(sorted_units, starts[1:]), strict=True):
        counts = _divide_count(len(units), shares)
        if value == _UNKNOWN or any(share and not count for share, count in zip(shares, counts, strict=True)):
            rare += [] if value == _UNKNOWN else [value]
            pooled.append(units)
        else:
            chosen[units] = np.repeat(np.arange(len(shares)), counts)
    pool = np.sort(np.concatenate(pooled))
    chosen[pool] = np.repeat(np.arange(len(shares)), _divide_count(len(pool), shares))
    return chosen[unit_of], rare


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
