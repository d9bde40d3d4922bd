"""`StoreMixture`: several datasets as one, whose samples a loader mixes by exact shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from torch.utils.data import ConcatDataset

from storeds.backends.class_numbers import check_same_classes
from storeds.datasets.assembly import declared_elements
from storeds.datasets.batch import Ask
from storeds.datasets.counters import SampleReport
from storeds.datasets.map_dataset import SHOW, StoreDataset
from storeds.datasets.reading import read_counted
from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Backend, Field, Meta, Reader, Record
from storeds.records.arrays import read_arrays
from storeds.records.columns import TEXT, read_column
from storeds.registry import import_object

__all__ = ["SOURCE", "StoreMixture", "Tagged"]

SOURCE = "source"
"""The field with the name of a sample's source."""


class _OfSources:
    """A setting of all sources: reading gives that of the first, assigning sets it in each."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, mixture: StoreMixture, owner: type | None = None) -> Any:
        return getattr(mixture._first, self._name)

    def __set__(self, mixture: StoreMixture, value: Any) -> None:
        for part in mixture.sources.values():
            setattr(part, self._name, value)


class StoreMixture(ConcatDataset[Any]):
    """Several datasets as one. A loader of storeds takes the samples of each by its share.

    The sources keep their own transforms and policies. Each goes through its own samples, pass after pass, also across
    epochs: after any epoch they have come equally often, within one.

    Parameters
    ----------
    sources : mapping of str to StoreDataset
        Name → dataset. They have the same elements, of one kind and role, and the same classes; a source may have
        only the first ones.
    weights : mapping, optional
        Name → weight; shares are in proportion. A mapping ``{0: 0.9, 10: 0.5}`` has the weight from each of these epochs
        on. By default the weights are the numbers of samples.
    temperature : float, optional
        Without `weights`: they are the numbers of samples to the power of 1 / temperature, so a larger one brings small
        sources forward.
    stop : str, optional
        How many samples an epoch has: ``"first"`` and ``"last"`` end it when the first or the last source has come once,
        by the shares of epoch 0. By default as many as there are, or what the loader's `samples_per_epoch` says.

    Attributes
    ----------
    names : list of str
    sources : dict
        Name → `StoreDataset`.
    shares : dict
        Epoch → array with the weight of each source from then on.
    samples_per_epoch : int

    Raises
    ------
    ConfigError
        The sources differ in their elements, a weight is no weight, or a name is unknown.
    """

    names: list[str]
    sources: dict[str, StoreDataset]
    shares: dict[int, Array]
    samples_per_epoch: int

    def __init__(
        self,
        sources: Mapping[str, StoreDataset],
        weights: Mapping[str, float | Mapping[int, float]] | None = None,
        *,
        temperature: float | None = None,
        stop: Literal["first", "last"] | None = None,
    ) -> None:
        if not sources:
            raise ConfigError("a mixture has at least one source")
        self.names, parts = list(sources), list(sources.values())
        self.sources, self._first = dict(sources), parts[0]
        for name, part in sources.items():
            if not len(part):
                raise ConfigError(f"source {name!r} has no samples: {part.url}")
            _check_alike(self.names[0], parts[0], name, part)
        super().__init__(parts)
        sizes = np.array([len(part) for part in parts], np.float64)
        if temperature is not None and (weights is not None or not temperature > 0):
            raise ConfigError("temperature is a number above 0, and takes the place of weights")
        self.shares = {0: sizes ** (1 / (temperature or 1))} if weights is None else _schedule(self.names, weights)
        self.samples_per_epoch = int(sizes.sum())
        if stop is not None:
            with np.errstate(divide="ignore"):
                epochs = sizes / (self.shares[0] / self.shares[0].sum())
            self.samples_per_epoch = int(
                epochs.min() if stop == "first" else np.ceil(epochs[np.isfinite(epochs)].max())
            )

    transforms: _OfSources = _OfSources()
    transform: _OfSources = _OfSources()
    target_transform: _OfSources = _OfSources()
    as_dict: _OfSources = _OfSources()
    seed: _OfSources = _OfSources()

    @property
    def url(self) -> str:
        """The URLs of all sources, with secrets removed."""
        return ", ".join(part.url for part in self.datasets)  # type: ignore[attr-defined]  # typed as any dataset

    @property
    def classes(self) -> list[str]:
        """The class names, of which a source may have only the first ones."""
        parts: list[StoreDataset] = self.datasets  # type: ignore[assignment]  # typed as any datasets
        return max(parts, key=lambda part: len(getattr(part, "classes", ()))).classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """The labels of all samples, source after source; no image is read."""
        return [label for part in self.sources.values() for label in part.targets]

    def column(self, field: str) -> Array:
        """Return an element, or another stored field, of every sample, source after source; no image is read."""
        return np.concatenate([part.column(field) for part in self.sources.values()])

    @property
    def reader(self) -> Reader[Any]:
        """The reader of the first source. All have the same elements."""
        return self._first.reader

    @property
    def epoch(self) -> int:
        """The epoch of the first source, as `StoreDataset.epoch`; `set_epoch` sets that of all."""
        return self._first.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all sources, see `StoreDataset.set_epoch`."""
        for part in self.sources.values():
            part.set_epoch(epoch)

    def report(self) -> SampleReport:
        """Return how many samples of all sources were requested, repaired and bad; `sources` have their own reports."""
        return SampleReport.joined([part.report() for part in self.sources.values()])

    def show(self, indices: Iterable[int] | None = None) -> Any:
        """Return samples to look at, see `StoreDataset.show`."""
        return import_object(SHOW)(self, None if indices is None else list(indices))

    def close(self) -> None:
        """Close the stores of all sources."""
        for part in self.sources.values():
            part.close()

    def __getitem__(self, index: Any) -> Any:
        """Return one sample; raises as `__getitems__` does."""
        (sample,) = self._samples([index], fill=False)
        return sample

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of `indices`, read in one storage call a source; raises as that of a `StoreDataset` does."""
        return self._samples(indices, fill=True)

    def _samples(self, indices: Iterable[Any], *, fill: bool) -> list[Any]:
        samples: list[Any] = read_counted(self, Ask(list(indices), fill=fill))
        return samples

    def __repr__(self) -> str:
        sources = ", ".join(f"{name!r}: {part!r}" for name, part in zip(self.names, self.datasets, strict=True))
        return f"StoreMixture({{{sources}}}, samples_per_epoch={self.samples_per_epoch})"


def _schedule(names: Sequence[str], weights: Mapping[str, float | Mapping[int, float]]) -> dict[int, Array]:
    """Return epoch → the weights of all sources from then on."""
    for name in weights:
        if name not in names:
            raise ConfigError(f"weights: there is no source {name!r}; {suggest(str(name), names, 'sources')}")
    for name in names:
        if name not in weights:
            raise ConfigError(f"weights: source {name!r} has none; give each source a weight, or none of them")
    tables = [_by_epoch(name, weights[name]) for name in names]
    epochs = sorted({epoch for table in tables for epoch in table})
    schedule = {
        epoch: np.array([table[max(since for since in table if since <= epoch)] for table in tables])
        for epoch in epochs
    }
    for epoch, shares in schedule.items():
        if not shares.any():
            raise ConfigError(f"the weights of all sources are 0 from epoch {epoch} on, so no sample would come")
    return schedule


def _by_epoch(name: str, weight: Any) -> dict[int, float]:
    table = weight if isinstance(weight, Mapping) else {0: weight}
    try:
        found = {int(epoch): float(value) for epoch, value in table.items()}
    except (TypeError, ValueError):
        raise ConfigError(f"source {name!r}: a weight is a number, or a table of epoch → number") from None
    if 0 not in found or min(found) < 0:
        raise ConfigError(f"source {name!r}: weights by epoch begin with epoch 0, and have {sorted(found)}")
    for value in found.values():
        if not 0 <= value < float("inf"):
            raise ConfigError(f"source {name!r}: a weight is a finite number of at least 0, got {value}")
    return found


def _check_alike(name: str, one: StoreDataset, other_name: str, other: StoreDataset) -> None:
    """Raise ConfigError where the samples of two sources have different elements, or their labels different classes."""
    if one.as_dict != other.as_dict:
        raise ConfigError(f"sources {name!r} and {other_name!r}: as_dict is set for one of them only")
    columns = [
        {element: _described(declared.get(element)) for element in each.reader.fields}
        for each in (one, other)
        for declared in [declared_elements(each.reader, each.backend.meta.fields)]
    ]
    if list(columns[0].items()) != list(columns[1].items()):
        shown = [", ".join(f"{element} ({what})" for element, what in column.items()) for column in columns]
        raise ConfigError(
            f"the samples of sources differ: {name!r} has {shown[0]}; {other_name!r} has {shown[1]}. Use fields={{element: "
            "stored field}}, in the same order for each source"
        )
    if one.reader.target is not None:
        check_same_classes(one.backend, other.backend)


def _described(field: Field | None) -> str:
    if field is None:
        return "computed"
    kind = f"{field.kind} {field.dtype}" if field.kind == "array" else field.kind
    return f"{kind}, {field.role}" if field.role else kind


class Tagged:
    """The records of a backend with one more field, of the same text in each.

    Parameters
    ----------
    backend : Backend
        Closing this one closes it too.
    name, value : str
        The field and its text.
    """

    def __init__(self, backend: Backend, name: str, value: str) -> None:
        if name in backend.meta.fields:
            raise ConfigError(f"{backend.url} has a field {name!r} already, so it cannot name the source")
        self.backend, self._name, self._value = backend, name, value
        self.meta: Meta = replace(backend.meta, fields={**backend.meta.fields, name: Field("str")})

    @property
    def url(self) -> str:
        """The store's URL."""
        return self.backend.url

    def __len__(self) -> int:
        return len(self.backend)

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        inner = None if fields is None else [name for name in fields if name != self._name]
        found = self.backend.get_many(positions, inner)
        if fields is not None and len(inner or ()) == len(fields):
            return found
        return [each if isinstance(each, RecordError) else {**each, self._name: self._value} for each in found]

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        return read_arrays(self.backend, positions, fields)

    def column(self, name: str, /) -> Array:
        # docstring inherited
        return np.full(len(self), self._value, TEXT) if name == self._name else read_column(self.backend, name)

    def close(self) -> None:
        # docstring inherited
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
