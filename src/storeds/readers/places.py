"""`Places`: the boxes of records that samples are made of, at random places or on a grid."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from storeds.errors import RecordError
from storeds.protocols import Array, Backend, Box, Record, SampleContext
from storeds.readers.rows import Read, Rows
from storeds.records.index import Index
from storeds.records.parts import read_parts

if TYPE_CHECKING:
    import torch

__all__ = ["EXTENT", "POSITION", "Cut", "GridPlaces", "Places", "RandomPlaces", "shapes_of"]

POSITION, EXTENT = "position", "extent"
"""What a sample says of its place: where it begins along each spatial axis, and how much of its size is not padding."""

_KEPT = 10_000  # voxels of the foreground of a record
_AT_ONCE = 1024  # records whose shapes are asked for at once


@dataclass(frozen=True)
class Cut:
    """What is cut out of a record.

    Parameters
    ----------
    size : tuple of int
        Of a patch, along each spatial axis.
    axes : mapping of str to tuple of int
        Stored field → its spatial axes.
    is_padded : bool
        Whether a record may be smaller than a patch.
    """

    size: tuple[int, ...]
    axes: Mapping[str, tuple[int, ...]]
    is_padded: bool

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the spatial shape of a record; raises ValueError if its arrays differ or are too small."""
        found: dict[str, tuple[int, ...]] = {}
        for name, axes in self.axes.items():
            if name not in shapes or len(shapes[name]) <= max(axes):
                shown = f"shape {shapes[name]}" if name in shapes else "no shape"
                raise ValueError(f"field {name!r} has {shown}, and patches are cut along its axes {list(axes)}")
            found[name] = tuple(shapes[name][axis] for axis in axes)
        (first, spatial), *others = found.items()
        for name, other in others:
            if other != spatial:
                raise ValueError(
                    f"fields {first!r} and {name!r} differ in shape along the spatial axes: {spatial} and {other}; if one of "
                    f"them is not cut, name those that are: axes={{{first!r}: {list(self.axes[first])}}}"
                )
        if not self.is_padded and any(low < wanted for low, wanted in zip(spatial, self.size, strict=True)):
            raise ValueError(
                f"field {first!r} has spatial shape {spatial}, smaller than a patch of {self.size}; pad=0 fills what is missing"
            )
        return spatial

    def boxes(self, shapes: Mapping[str, tuple[int, ...]], starts: Sequence[int]) -> dict[str, Box]:
        """Return the box of each field of the patch that begins there."""
        found: dict[str, Box] = {}
        for name, axes in self.axes.items():
            box = [slice(0, size) for size in shapes[name]]
            for axis, start, size in zip(axes, starts, self.size, strict=True):
                box[axis] = slice(start, min(start + size, shapes[name][axis]))
            found[name] = (*box,)
        return found


@dataclass(frozen=True)
class Places(Rows):
    """Several places of each record.

    Parameters
    ----------
    cut : Cut
    """

    cut: Cut

    @abstractmethod
    def record_of(self, samples: Array) -> tuple[Array, Array]:
        """Return the record of each sample, and the number of its place there."""

    @abstractmethod
    def start(self, place: int, spatial: Sequence[int], drawn: Any, voxels: Array | None) -> list[int]:
        """Return where a patch begins, in a record of that shape."""

    def draw(self, context: SampleContext) -> Any:
        """Return the random numbers of a sample, if it needs some."""
        return None

    def voxels(self, view: Backend, record: int, place: int) -> Array | None:
        """Return the foreground of a record, as indices into its spatial shape, if the place lies there."""
        return None

    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        # docstring inherited
        found: list[int] = self.record_of(np.array([index]))[0].tolist()
        return found

    def pick(self, column: Array) -> Array:
        # docstring inherited
        return column[self.record_of(np.arange(len(self)))[0]]

    def read(
        self,
        view: Backend,
        contexts: Sequence[SampleContext],
        stored: Sequence[str],
        known: Mapping[int, RecordError],
    ) -> list[Read]:
        """Return the patch of each sample, with its place. The parts of a batch are read in one call."""
        records, places = (each.tolist() for each in self.record_of(np.array([each.index for each in contexts])))
        drawn = [self.draw(context) for context in contexts]
        errors: dict[int, RecordError] = {}
        voxels: list[Array | None] = []
        for at, (record, place) in enumerate(zip(records, places, strict=True)):
            try:
                voxels.append(self.voxels(view, record, place))
            except RecordError as error:
                errors[at] = error
                voxels.append(None)
        notes: list[Record] = [{} for _ in contexts]

        def choose(at: int, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Box]:
            spatial = self.cut.extents(shapes)
            starts = self.start(places[at], spatial, drawn[at], voxels[at])
            ends = zip(starts, self.cut.size, spatial, strict=True)
            notes[at] = {
                POSITION: np.array(starts, np.int64),
                EXTENT: np.array([min(size, high - start) for start, size, high in ends], np.int64),
            }
            return self.cut.boxes(shapes, starts)

        found = read_parts(view, records, choose, stored)
        parts = [errors.get(at) or part for at, part in enumerate(found)]
        return [
            ((record,), [part if isinstance(part, RecordError) else {**part, **note}])
            for record, part, note in zip(records, parts, notes, strict=True)
        ]


@dataclass(frozen=True)
class RandomPlaces(Places):
    """Random places, of which each record has as many as any other.

    Parameters
    ----------
    records, per_record : int
        Number of records, and of places of each.
    foreground : str or None
        The field that is 0 in the background.
    quota : int
        How many places of each record, the first ones, lie on its foreground.
    """

    records: int
    per_record: int
    foreground: str | None = None
    quota: int = 0

    def __len__(self) -> int:
        return self.records * self.per_record

    def record_of(self, samples: Array) -> tuple[Array, Array]:
        # docstring inherited
        return samples // self.per_record, samples % self.per_record

    def draw(self, context: SampleContext) -> torch.Tensor:
        # docstring inherited; as many numbers whatever the shape, so that later draws do not depend on it
        import torch

        return torch.rand(len(self.cut.size) + 1, generator=context.generator, dtype=torch.float64, device="cpu")

    def start(self, place: int, spatial: Sequence[int], drawn: Any, voxels: Array | None) -> list[int]:
        # docstring inherited
        which, *rest = drawn.tolist()
        last = [max(high - size, 0) for high, size in zip(spatial, self.cut.size, strict=True)]
        if voxels is None or not len(voxels):
            return [min(int(part * (most + 1)), most) for part, most in zip(rest, last, strict=True)]
        centre = np.unravel_index(int(voxels[min(int(which * len(voxels)), len(voxels) - 1)]), spatial)
        centred = zip(centre, self.cut.size, last, strict=True)
        return [min(max(int(at) - size // 2, 0), most) for at, size, most in centred]

    def voxels(self, view: Backend, record: int, place: int) -> Array | None:
        # docstring inherited
        if self.foreground is None or place >= self.quota:
            return None
        stored, axes = self.foreground, self.cut.axes[self.foreground]
        key = (view.url, view.meta.build, "foreground", stored, list(axes), record)
        return Index(partial(_voxels, view, stored, axes, record), *key).positions


def _voxels(view: Backend, stored: str, axes: Sequence[int], record: int) -> Array:
    """Return the voxels of a record that are not background, at most 10,000 of them, as indices into its spatial shape."""
    (found,) = view.get_many([record], (stored,))
    if isinstance(found, RecordError):
        raise found
    is_foreground = np.moveaxis(found[stored] != 0, axes, range(-len(axes), 0))
    flat = np.flatnonzero(is_foreground.any(axis=tuple(range(is_foreground.ndim - len(axes)))))
    if len(flat) > _KEPT:
        flat = np.sort(np.random.default_rng(0).choice(flat, _KEPT, replace=False))
    return flat.astype(np.int64)


@dataclass(frozen=True)
class GridPlaces(Places):
    """Every place of a grid, in the order of records, of which the last one along each axis touches the end.

    Parameters
    ----------
    strides : tuple of int
        Distance between places, along each spatial axis.
    bounds : Index
        The first sample of each record, and the end of the last.
    """

    strides: tuple[int, ...]
    bounds: Index
    samples: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", int(self.bounds.positions[-1]))

    @classmethod
    def of(cls, view: Backend, cut: Cut, strides: tuple[int, ...]) -> GridPlaces:
        """Return the grid of all records; reads their shapes, which a native store has in its records."""
        axes = {name: list(axes) for name, axes in cut.axes.items()}
        key = (view.url, view.meta.build, "grid", list(cut.size), axes, cut.is_padded, list(strides))
        return cls(cut, strides, Index(partial(_bounds, view, cut, strides), *key))

    def __len__(self) -> int:
        return self.samples

    def record_of(self, samples: Array) -> tuple[Array, Array]:
        # docstring inherited
        bounds = self.bounds.positions
        records = np.searchsorted(bounds, samples, "right") - 1
        return records, samples - bounds[records]

    def start(self, place: int, spatial: Sequence[int], drawn: Any, voxels: Array | None) -> list[int]:
        # docstring inherited
        counts = _counts(self.cut.size, spatial, self.strides)
        each = zip(np.unravel_index(place, counts), self.strides, spatial, self.cut.size, strict=True)
        return [min(int(number) * stride, max(high - size, 0)) for number, stride, high, size in each]


def _counts(size: Sequence[int], spatial: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the number of places along each axis."""
    each = zip(size, spatial, strides, strict=True)
    return [-(-max(high - wanted, 0) // stride) + 1 for wanted, high, stride in each]


def _bounds(view: Backend, cut: Cut, strides: Sequence[int]) -> Array:
    """Return the first sample of each record, and the end of the last. A record that is bad has one sample, to report it."""
    counts = [0]
    for first in range(0, len(view), _AT_ONCE):
        for shapes in shapes_of(view, cut, range(first, min(first + _AT_ONCE, len(view)))):
            try:
                counts.append(math.prod(_counts(cut.size, cut.extents(shapes), strides)))
            except ValueError:
                counts.append(1)
    return np.cumsum(counts, dtype=np.int64)


def shapes_of(view: Backend, cut: Cut, records: Sequence[int]) -> list[dict[str, tuple[int, ...]]]:
    """Return the shapes of the fields that are cut in each record, none of one that is bad; reads no values if it can."""
    found: list[dict[str, tuple[int, ...]]] = [{} for _ in records]

    def note(at: int, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Box]:
        found[at] = dict(shapes)
        return {name: (slice(0, 0),) * len(shape) for name, shape in shapes.items()}

    read_parts(view, records, note, tuple(cut.axes))
    return found
