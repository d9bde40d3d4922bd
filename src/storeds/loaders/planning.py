"""Chooses the plan of the epochs of a dataset by settings, and reads the fields that these name."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from torch.utils.data import Subset

from storeds._utils.arguments import RENAMED, check_int
from storeds.backends.view import View
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.mixture import StoreMixture
from storeds.datasets.tree import column_of, leaves, nodes
from storeds.errors import ConfigError, suggest
from storeds.loaders.plan import Bucketed, ByMember, Grouped, Plan, Quotas, Shuffled, Strata, Weighted
from storeds.protocols import Array
from storeds.readers.reader import built_in
from storeds.records.classes import stored_classes
from storeds.records.columns import check_one_value

__all__ = ["PLAN_SETTINGS", "PlanSettings", "Replacements", "instead_of", "make_plan", "replaces_samples"]

_BUCKETS = 8
_WINDOW = 8  # blocks
_MEMBER_BITS = 32
_MEMBERS = 2  # the same, where each must be copied first


@dataclass(frozen=True)
class PlanSettings:
    """Which samples an epoch has, in which batches; `EpochSampler` explains each.

    Attributes
    ----------
    has_sources : bool
        Whether the dataset is a mixture, which has shares of its own.
    """

    shuffle: bool = True
    block_size: int | Literal["member"] | None = None
    window: int | None = None
    balance: str | None = None
    weights: Any = None
    per_batch: bool = False
    samples_per_epoch: int | None = None
    replacement: bool = True
    group_by: str | None = None
    bucket_by: str | Sequence[str] | None = None
    num_buckets: int | None = None
    max_padded: int | None = None
    batch_size: int | None = None
    drop_last: bool = False
    has_sources: bool = False

    @classmethod
    def of(cls, data: Any, settings: Mapping[str, Any]) -> PlanSettings:
        """Return the settings for the epochs of a dataset; raises ConfigError for an unknown name."""
        names = [field.name for field in fields(cls) if field.name != "has_sources"]
        for name in settings:
            if name not in names:
                raise ConfigError(f"EpochSampler has no argument {name!r}; {instead_of(name, names)}")
        return cls(**settings, has_sources=isinstance(data, StoreMixture))

    def __post_init__(self) -> None:
        for name in ("block_size", "window", "samples_per_epoch", "num_buckets", "max_padded", "batch_size"):
            if getattr(self, name) not in (None, "member" if name == "block_size" else None):
                check_int(name, getattr(self, name), 1)
        if self.block_size is not None and self.window is None:
            object.__setattr__(self, "window", _MEMBERS if self.block_size == "member" else _WINDOW)
        if self.block_size is None and self.window is not None:
            raise ConfigError("window counts blocks, and there are none without block_size: pass block_size too")
        if self.block_size is not None and not self.shuffle:
            raise ConfigError("block_size has an effect on shuffling only, and shuffle is False: leave out one of them")
        ways = [
            name
            for name, is_set in {
                "sources": self.has_sources,
                "balance": self.by_class,
                "weights": self.weights is not None and not isinstance(self.weights, Mapping),
                "group_by": self.group_by is not None,
            }.items()
            if is_set
        ]
        if len(ways) > 1:
            raise ConfigError(f"{ways[0]} and {ways[1]} both say which samples come: leave out one of them")
        if self.block_size is not None and (ways or self.samples_per_epoch is not None):
            name = (*ways, "samples_per_epoch")[0]
            raise ConfigError(f"block_size is for epochs of each sample once, and {name} is set: leave out one of them")
        if self.group_by is not None and (self.samples_per_epoch is not None or not self.replacement):
            raise ConfigError("group_by has each sample once: leave out samples_per_epoch and replacement")
        self._check_batches()

    def _check_batches(self) -> None:
        if self.per_batch and not (self.has_sources or self.by_class):
            raise ConfigError("per_batch holds the shares of balance, or of sources, in each batch, and neither is set")
        makers = {"per_batch": self.per_batch, "group_by": self.group_by, "bucket_by": self.bucket_by}
        names = [name for name, value in makers.items() if value]
        if len(names) > 1:
            raise ConfigError(f"{names[0]} and {names[1]} both make the batches: leave out one of them")
        if names and self.batch_size is None:
            raise ConfigError(f"{names[0]} makes batches: pass batch_size too")
        if self.bucket_by is None and (self.num_buckets is not None or self.max_padded is not None):
            raise ConfigError("num_buckets and max_padded are for bucket_by, which is not set")

    @property
    def by_class(self) -> bool:
        """Whether the samples come by classes."""
        return self.balance is not None or isinstance(self.weights, Mapping)


def instead_of(name: str, known: Sequence[str]) -> str:
    """Return what to write instead of an unknown argument."""
    return f"its name is {RENAMED[name]!r} now" if name in RENAMED else suggest(name, known, "arguments")


_OF_LOADERS = ("shuffle", "batch_size", "drop_last", "has_sources")
PLAN_SETTINGS = tuple(field.name for field in fields(PlanSettings) if field.name not in _OF_LOADERS)
"""What a loader passes to its `EpochSampler` besides what it has itself."""


def make_plan(data: Any, count: int, settings: PlanSettings) -> Plan:
    """Return the plan of the epochs of a dataset, which has `count` samples.

    Raises
    ------
    ConfigError
        A field does not exist, weights are no weights, or samples do not fit into batches.
    """
    if not settings.has_sources and any(isinstance(part, StoreMixture) for part in nodes(data)):
        raise ConfigError(
            "a mixture inside of another dataset would lose its shares: select records in its sources, with where=, fold= or "
            "keys_file="
        )
    if not count:
        return Shuffled(0, settings.shuffle)
    if settings.group_by is not None:
        groups, _ = Strata.of(_values(data, settings.group_by, "group_by"), None)
        how = {"shuffle": settings.shuffle, "drop_last": settings.drop_last}
        return Grouped(groups, settings.group_by, settings.batch_size or count, **how)
    drawn = _drawn(data, count, settings)
    if not settings.replacement:
        _check_unrepeated(drawn)
    return drawn if settings.bucket_by is None else _bucketed(drawn, data, settings)


def _drawn(data: Any, count: int, settings: PlanSettings) -> Plan:
    """Return the plan that says which samples come, whatever their batches."""
    batches: dict[str, Any] = {"drop_last": settings.drop_last}
    if settings.per_batch:
        batches["batch_size"] = settings.batch_size
    if settings.has_sources:
        lengths = np.array([len(dataset) for dataset in data.datasets], np.uint64)
        samples = settings.samples_per_epoch or data.samples_per_epoch
        return Quotas(Strata(data.names, lengths, None), data.shares, samples, "source", **batches)
    samples = settings.samples_per_epoch or count
    if settings.by_class:
        strata, shares = _classes(data, settings.balance or "label", settings.weights)
        return Quotas(strata, {0: shares}, samples, settings.balance or "label", **batches)
    if settings.weights is not None:
        return Weighted(_weights(data, settings.weights, count), samples)
    if settings.samples_per_epoch is not None:
        everything = Strata(["all"], np.array([count], np.uint64), None)
        return Quotas(everything, {0: np.ones(1)}, samples, "part")
    if settings.block_size == "member":
        return _by_member(data, settings.window or _MEMBERS)
    return Shuffled(count, settings.shuffle, settings.block_size, settings.window)


def _by_member(data: Any, window: int) -> ByMember:
    stores = _Stores([])

    def read(leaf: Any) -> Array:
        if not isinstance(leaf, StoreDataset):
            raise ConfigError(f"block_size='member' is for stores with members, and this is a {type(leaf).__name__}")
        store, rows = leaf._view, getattr(leaf.reader, "rows", None)
        numbers = store.member_numbers() if isinstance(store, View) else np.zeros(len(store), np.int64)
        stores.backends.append(store)
        own: Array = (
            numbers if rows is None else rows.pick(numbers)
        )  # a sample of several records is where its first one is
        return own + ((len(stores.backends) - 1) << _MEMBER_BITS)

    return ByMember(column_of(data, read), window, stores.expect)


@dataclass(frozen=True)
class _Stores:
    """The stores of a dataset, whose members are numbered one store after the other."""

    backends: list[Any]

    def expect(self, order: Array) -> None:
        """Tell each store in which order its members are needed."""
        for number, backend in enumerate(self.backends):
            if isinstance(backend, View):
                backend.expect((order[order >> _MEMBER_BITS == number] & ((1 << _MEMBER_BITS) - 1)).tolist())


def _check_unrepeated(plan: Plan) -> None:
    """Raise ConfigError if a sample comes more than once in an epoch."""
    if isinstance(plan, Quotas):
        for quotas in plan.quotas_by_epoch:
            for name, quota, size in zip(plan.strata.names, quotas.tolist(), plan.strata.sizes.tolist(), strict=True):
                if quota > size:
                    raise ConfigError(
                        f"replacement=False: an epoch has {quota:,} samples of {plan.what} {name}, and there are {size:,}; reduce "
                        "samples_per_epoch, or let samples repeat"
                    )
    elif isinstance(plan, Weighted) and float(plan.weights.max()) * plan.count > plan.sums[-1]:
        raise ConfigError(
            "replacement=False: the sample with the largest weight would come more than once; reduce samples_per_epoch"
        )


def _classes(data: Any, field: str, weights: Mapping[Any, Any] | None) -> tuple[Strata, Array]:
    """Return the samples by class, and the share of each class."""
    strata, values = Strata.of(_values(data, field, "balance"), _class_names(data, field))
    if weights is None:
        return strata, np.ones(len(values))
    places = {str(value): at for at, value in enumerate(values.tolist())}
    places |= {name: at for at, name in enumerate(strata.names)}
    shares = np.zeros(len(values))
    for name, weight in weights.items():
        if str(name) not in places:
            raise ConfigError(
                f"weights: no sample has the {field} {name!r}; {suggest(str(name), strata.names, 'values')}"
            )
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
            raise ConfigError(f"weights: the weight of {name!r} is a number, got {weight!r}")
        shares[places[str(name)]] = weight
    return strata, _checked(shares)


def _weights(data: Any, weights: Any, count: int) -> Array:
    found = _values(data, weights, "weights") if isinstance(weights, str) else np.asarray(weights)
    if found.shape != (count,):
        raise ConfigError(
            f"weights has the shape {found.shape}, and there are {count:,} samples: pass one number for each"
        )
    if found.dtype.kind not in "iufb":
        raise ConfigError(f"weights are numbers, and these are {found.dtype}")
    return _checked(found)


def _checked(weights: Array) -> Array:
    """Return weights unchanged; raise ConfigError if they are no weights."""
    for start in range(0, len(weights), 1 << 20):  # without a second array of that size
        part = weights[start : start + (1 << 20)]
        bad = np.flatnonzero(~(np.isfinite(part) & (part >= 0)))
        if bad.size:
            raise ConfigError(
                f"weights are finite numbers of at least 0, and number {start + bad[0]} is {part[bad[0]]}"
            )
    if not weights.any():
        raise ConfigError("weights are all 0, so no sample would come")
    return weights


def _bucketed(drawn: Plan, data: Any, settings: PlanSettings) -> Plan:
    assert settings.bucket_by is not None
    names = [settings.bucket_by] if isinstance(settings.bucket_by, str) else list(settings.bucket_by)
    columns = [_values(data, name, "bucket_by") for name in names]
    if len(columns) not in (1, 2) or any(column.dtype.kind not in "iuf" for column in columns):
        raise ConfigError(
            f"bucket_by is a field of numbers, or two such as width and height, and got {settings.bucket_by!r}"
        )
    keys = columns[0] if len(columns) == 1 else columns[0] / np.maximum(columns[1], 1)
    number = settings.num_buckets or _BUCKETS
    values, codes = np.unique(keys, return_inverse=True)
    if len(values) > number:
        edges = np.unique(np.quantile(keys, np.linspace(0, 1, number + 1)[1:-1]))
        values, codes = np.unique(np.searchsorted(edges, keys, "right"), return_inverse=True)
    capacities = np.full(len(values), settings.batch_size)
    if settings.max_padded is not None:
        largest = np.zeros(len(values))
        np.maximum.at(largest, codes, np.prod([column.astype(np.float64) for column in columns], axis=0))
        if largest.max() > settings.max_padded:
            raise ConfigError(
                f"max_padded={settings.max_padded:,} has no room for the largest sample, whose size is {largest.max():,.0f}"
            )
        capacities = np.minimum(capacities, (settings.max_padded // np.maximum(largest, 1)).astype(np.int64))
    text = (
        f"batches of {int(capacities.min())} to {int(capacities.max())} samples, from {len(values)} buckets by "
        + " and ".join(names)
    )
    return Bucketed(drawn, codes, capacities, text, shuffle=settings.shuffle, drop_last=settings.drop_last)


def _values(data: Any, field: str, what: str) -> Array:
    """Return the one value of a field in each sample of a dataset, also below Subset and ConcatDataset; no picture is read."""

    def read(leaf: Any) -> Array:
        column = getattr(leaf, "column", None)
        if column is None:
            raise ConfigError(
                f"{what}={field!r} names a field of a StoreDataset, and this is a {type(leaf).__name__}; pass weights as an "
                "array with a number for each sample"
            )
        return check_one_value(column(field), what, field)

    return column_of(data, read)


class Replacements:
    """Says which samples may replace a bad one of a dataset, so that an epoch keeps its plan and its Subset.

    They are of the same StoreDataset. Pickles as large as the plan and the indices of the Subset.

    Parameters
    ----------
    data : Dataset
        What a loader draws from.
    plan : Plan, optional
        Of its epochs; None if another sampler draws.
    """

    def __init__(self, data: Any, plan: Plan | None) -> None:
        self._data, self._plan = data, plan
        self._located: tuple[list[Any], Array, Array] | None = None
        self._has_parts = any(isinstance(each, Subset) for each in nodes(data))

    def __call__(self, leaf: Any, index: int) -> Array | None:
        """Return the ascending indices of samples of a leaf; None if each may come. See `storeds.datasets.batch.Ask`."""
        if not self._has_parts and (self._plan is None or self._plan.replacements(0) is None):
            return None
        if self._located is None:
            self._located = _located(self._data)
        below, numbers, indices = self._located
        own = np.isin(numbers, [at for at, each in enumerate(below) if each is leaf])
        drawn = np.flatnonzero(own & (indices == index))
        allowed = self._plan.replacements(int(drawn[0])) if self._plan is not None and drawn.size else None
        places = np.flatnonzero(own) if allowed is None else allowed[own[allowed]]
        return np.unique(indices[places])


def _located(data: Any) -> tuple[list[Any], Array, Array]:
    """Return the leaves of a dataset, and for each sample the number of its leaf and its index there."""
    numbers = itertools.count()

    def places(leaf: Any) -> Array:
        return np.stack([np.full(len(leaf), next(numbers)), np.arange(len(leaf))], axis=1)

    return leaves(data), *column_of(data, places).T


def replaces_samples(data: Any) -> bool:
    """Return whether a dataset, or one inside of it, may replace bad samples."""
    policies = [each._counters.policy.on_error for each in leaves(data) if isinstance(each, StoreDataset)]
    return any(policy != "raise" for policy in policies)


def _class_names(data: Any, field: str) -> Sequence[str] | None:
    for each in leaves(data):
        reader = built_in(getattr(each, "reader", None))
        if (
            reader is not None
            and reader.joint is not None
            and reader.target == field
            and reader.joint.classes is not None
        ):
            return list(reader.joint.classes)  # of `roles`
        meta = getattr(getattr(each, "backend", None), "meta", None)
        if meta is not None:
            is_label = field == "label" or isinstance(meta.attrs.get("classes"), Mapping)
            return stored_classes(meta.attrs, field) if is_label else None
    return None
