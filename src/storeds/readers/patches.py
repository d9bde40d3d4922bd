"""`patch`: cuts samples out of large arrays. `stitch` joins predictions for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storeds._utils.arguments import check_int, check_share
from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend, Field, Record
from storeds.readers.choice import Fields, choose, target_of
from storeds.readers.elements import Element, Facts, TensorElement
from storeds.readers.paths import with_given_role
from storeds.readers.places import EXTENT, POSITION, Cut, GridPlaces, Places, RandomPlaces, shapes_of
from storeds.readers.reader import ElementReader
from storeds.readers.samples import Joint
from storeds.records.roles import given_roles
from storeds.records.shapes import is_mask
from storeds.records.verdict_fields import without_verdicts

if TYPE_CHECKING:
    import torch

__all__ = ["patch", "stitch"]

_MOST_AXES = 4


def patch(
    fields: Fields = (),
    *,
    size: Sequence[int] | None = None,
    per_record: int | None = None,
    grid: int | Sequence[int] | None = None,
    axes: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    pad: float | Mapping[str, float] | None = None,
    foreground: Mapping[str, Any] | None = None,
    roles: Mapping[str, Any] | None = None,
) -> PatchSpec:
    """Part of a record → that part of each of its large arrays, at the same place, and its position.

    Reads only the part, from LMDB and HDF5 stores, once a first part of a record has read and verified all of it, and from HDF5
    files of other tools. Other stores, and small records, are read whole, and the rest is freed.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample. Default: all fields. Arrays are cut; other values come along as they are.
    size : sequence of int
        The sides of a patch, along 1 to 4 spatial axes.
    per_record : int
        Random places of each record and epoch. The place depends on (seed, epoch, index) alone.
    grid : int or sequence of int
        Every place once, instead of random ones: the distance between places, for each axis or for all. The last place of an
        axis touches the end of the array.
    axes : sequence of int, or mapping of str to sequence of int, optional
        The spatial axes. Default: the first ones. Other axes, such as channels, come first in the sample. Arrays of fewer
        dimensions come along whole. A mapping names the elements that are cut, each with its axes.
    pad : number, or mapping of str to number, optional
        Fills the end of a patch of a record that is smaller, for all elements or for each. Then a sample also has ``extent``:
        how much of each axis is not filled. By default such a record is an error.
    foreground : mapping, optional
        ``{"field": "labels", "share": 0.33}``: that share of the random places of each record, rounded up, has its centre at
        an element of ``labels`` that is not 0, or next to it where the patch would leave the array. The array is read whole
        once a record; of 10,000 of its elements the places are kept in the cache folder.
    roles : mapping, optional
        Element → ``image`` or ``mask``, for ``transforms`` of whole samples. See `sample`.

    Notes
    -----
    A sample has ``position``, its last element: int64, where it begins along each spatial axis. `storeds.stitch` takes it.
    """
    if size is None or isinstance(size, (str, int)) or not 1 <= len(size) <= _MOST_AXES:
        raise ConfigError(
            f"reader 'patch' needs size, the sides of a patch along 1 to {_MOST_AXES} axes, not {size!r}: "
            "reader_options={'size': [96, 96, 96], 'per_record': 24}"
        )
    sides = tuple(check_int("size", side, 1) for side in size)
    if (per_record is None) == (grid is None):
        raise ConfigError(
            "reader 'patch' takes per_record, a number of random places, or grid, the distance between places"
        )
    if per_record is not None:
        check_int("per_record", per_record, 1)
    strides = tuple(grid) if isinstance(grid, Sequence) else (1 if grid is None else grid,) * len(sides)
    if len(strides) != len(sides):
        raise ConfigError(f"grid={grid!r} has {len(strides)} distances, and size {len(sides)} sides")
    for stride, side in zip(strides, sides, strict=True):
        check_int("grid", stride, 1, side)  # with more, elements between patches would be left out
    if foreground is not None:
        _check_foreground(foreground, per_record)
    given = given_roles(roles)
    for name, keys in given.items():
        if keys.get("role") not in ("image", "mask"):
            raise ConfigError(f"roles: {name!r} is an image or a mask of patches, not {keys.get('role')!r}")
    return PatchSpec(fields, sides, per_record, strides, axes, pad, foreground, given)


def _check_foreground(foreground: Any, per_record: int | None) -> None:
    if not isinstance(foreground, Mapping) or {*foreground} != {"field", "share"}:
        raise ConfigError(f"foreground is {{'field': 'labels', 'share': 0.33}}, not {foreground!r}")
    check_share("share", foreground["share"])
    if per_record is None:
        raise ConfigError("foreground is for random places, and grid takes every place; leave one of them out")


@dataclass(frozen=True)
class PatchSpec:
    """The options of `patch`."""

    fields: Fields
    size: tuple[int, ...]
    per_record: int | None
    strides: tuple[int, ...]
    axes: Sequence[int] | Mapping[str, Sequence[int]] | None
    pad: float | Mapping[str, float] | None
    foreground: Mapping[str, Any] | None
    roles: Mapping[str, Mapping[str, Any]]

    def bind(self, view: Backend, /) -> ElementReader:
        """Return the reader of a store; raises ConfigError if it does not fit."""
        declared = view.meta.fields
        chosen = choose(view, self.fields, lambda: tuple(without_verdicts(dict(declared))), declared)
        names = [each.name for each in chosen]
        if {POSITION, EXTENT}.intersection(names):
            raise ConfigError(
                f"{POSITION!r} and {EXTENT!r} are elements of each patch; give the fields of that name others: "
                "fields={'place': 'position', …}"
            )
        axes = self._axes(view, chosen)
        for option in ("pad", "roles"):
            named = getattr(self, option)
            for name in named if isinstance(named, Mapping) else ():
                if name not in axes:
                    raise ConfigError(
                        f"{option} names {name!r}, which is not cut; {suggest(name, axes, 'elements that are')}"
                    )
        cut = Cut(
            self.size, {each.source: axes[each.name] for each in chosen if each.name in axes}, self.pad is not None
        )
        shapes = {each.source: each.declared.shape or () for each in chosen if each.name in axes}
        if any(None in _without(shapes[name], cut.axes[name]) for name in shapes) and len(view):
            shapes |= shapes_of(view, cut, range(1))[0]  # a batch has one number of channels
        elements: list[Element] = []
        for each in chosen:
            if each.name in axes:
                plain = _without_coordinates(each, ("image", "mask"))
                elements.append(self._element(plain, axes[each.name], shapes[each.source]))
            else:
                plain = _without_coordinates(each, ("label", "text"))
                elements.append(plain.as_kind(TensorElement) if each.declared.kind == "array" and each.path else plain)
        for name in (EXTENT, POSITION) if cut.is_padded else (POSITION,):
            field = Field("array", "<i8", (len(self.size),))
            elements.append(_PlaceElement(name=name, source=name, declared=field, path=None))
        masks = [each.name for each in elements if each.declared.role == "mask" or is_mask(each.name)]
        data, joint = next((name for name in axes if name not in masks), next(iter(axes))), self._joint(elements)
        return ElementReader("patch", self._places(view, cut), (*elements,), data, target_of(chosen, (*axes,)), joint)

    def _axes(self, view: Backend, chosen: Sequence[Element]) -> dict[str, tuple[int, ...]]:
        """Return the spatial axes of each element that is cut."""
        arrays = {each.name: each for each in chosen if each.declared.kind == "array" and each.path is not None}
        given = self.axes if isinstance(self.axes, Mapping) else None
        usual: tuple[int, ...] = tuple(range(len(self.size)))
        if self.axes is not None and not isinstance(self.axes, Mapping):
            usual = tuple(self.axes)
        for name in given or ():
            if name not in arrays:
                raise ConfigError(f"axes names {name!r}; {suggest(name, arrays, 'elements that are arrays')}")
        found: dict[str, tuple[int, ...]] = {
            name: tuple((given or {}).get(name, usual)) for name in (arrays if given is None else given)
        }
        for name, axes in found.items():
            if len({*axes}) != len(self.size) or len(axes) != len(self.size) or min(axes) < 0:
                raise ConfigError(f"axes of {name!r} are {len(self.size)} different numbers from 0, not {list(axes)}")
        cut = {name: axes for name, axes in found.items() if len(arrays[name].declared.shape or ()) > max(axes)}
        shown = {name: list(each.declared.shape or ()) for name, each in arrays.items()}
        if not cut or (given is not None and len(cut) < len(given)):
            kinds = ", ".join(f"{name} ({each.kind})" for name, each in view.meta.fields.items())
            raise ConfigError(
                f"reader 'patch' cuts arrays along {len(self.size)} axes, and the shapes of those in {view.url} are "
                f"{shown or f'none: it has {kinds}'}; change size or axes"
            )
        for name in cut:
            if arrays[name].is_copy:
                raise ConfigError(f"fields: {arrays[name].source!r} is cut for another element already")
        return cut

    def _element(self, each: Element, axes: tuple[int, ...], shape: Sequence[int | None]) -> PatchElement:
        declared = dataclasses.replace(each.declared, shape=(*_without(shape, axes), *self.size))
        declared = with_given_role(each.name, declared, self.roles.get(each.name, {}))
        fill = self.pad.get(each.name, 0) if isinstance(self.pad, Mapping) else self.pad
        found = dataclasses.replace(each, declared=declared)
        return found.as_kind(PatchElement, axes=axes, size=self.size, fill=fill)

    def _joint(self, elements: Sequence[Element]) -> Joint | None:
        """Return what makes samples for transforms of all elements, where an element says that it is an image or a mask."""
        declared = {each.name: each.declared for each in elements if each.path is not None}
        if len(self.size) < 2 or not {"image", "mask"}.intersection(each.role for each in declared.values()):
            return None
        images = tuple(at for at, each in enumerate(elements) if each.declared.role == "image")
        others = (at for at in range(len(elements)) if at not in images)
        order = sorted(others, key=lambda at: elements[at].declared.role != "mask")
        return Joint(declared, False, None, None, images, tuple(order))

    def _places(self, view: Backend, cut: Cut) -> Places:
        if self.per_record is None:
            return GridPlaces.of(view, cut, self.strides)
        if self.foreground is None:
            return RandomPlaces(cut, len(view), self.per_record)
        stored, share = self.foreground["field"], float(self.foreground["share"])
        if stored not in cut.axes:
            raise ConfigError(
                f"foreground names {stored!r}, which is not cut; {suggest(stored, cut.axes, 'fields that are')}"
            )
        count = math.ceil(round(share * self.per_record, 9))
        return RandomPlaces(cut, len(view), self.per_record, stored, count)


def _without(shape: Sequence[int | None], axes: Sequence[int]) -> list[int | None]:
    """Return the sides of an array along its other axes."""
    return [side for axis, side in enumerate(shape) if axis not in axes]


def _without_coordinates(each: Element, kept: Sequence[str]) -> Element:
    """Return an element without its role, unless that is one of `kept`: coordinates of a record are not those of a patch."""
    if each.declared.role is None or each.declared.role in kept:
        return each
    return dataclasses.replace(each, declared=Field(each.declared.kind, each.declared.dtype, each.declared.shape))


class _PlaceElement(Element):
    """What a sample says of its place."""

    def value(self, rows: Sequence[Record], facts: Facts) -> torch.Tensor:
        # docstring inherited
        import torch

        return torch.from_numpy(rows[0][self.source])


@dataclass(frozen=True, kw_only=True)
class PatchElement(Element):
    """A part of an array, as a tensor of the same dtype whose last axes are the spatial ones.

    Parameters
    ----------
    axes : tuple of int
        The spatial axes, as stored.
    size : tuple of int
    fill : number or None
        Of what lies outside of the array.
    """

    axes: tuple[int, ...]
    size: tuple[int, ...]
    fill: float | None

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return ()

    def value(self, rows: Sequence[Record], facts: Facts) -> torch.Tensor:
        # docstring inherited
        import torch

        array = np.moveaxis(self._stored(rows[0]), self.axes, range(-len(self.axes), 0))
        if self.fill is not None and array.shape[-len(self.size) :] != self.size:
            whole = np.full((*array.shape[: -len(self.size)], *self.size), self.fill, array.dtype)
            there: tuple[Any, ...] = tuple(slice(0, side) for side in array.shape[-len(self.size) :])
            whole[(..., *there)] = array
            array = whole
        tensor: torch.Tensor = torch.from_numpy(np.ascontiguousarray(array))
        if facts.first is None:  # images come first, and masks of a sample without images
            facts.first = (None, tensor)
        return tensor


def stitch(predictions: Any, positions: Any, shape: Sequence[int]) -> torch.Tensor:
    """Join predictions for patches to one for the whole record: their mean where they overlap.

    Parameters
    ----------
    predictions : torch.Tensor or array, or sequence of them
        Shape ``(patches, …, *size)``: channels and such come before the spatial axes. What reaches beyond `shape`, the padding of
        a small record, is left out.
    positions : torch.Tensor or array, or sequence of them or of numbers
        The element ``position`` of each patch, shape (patches, spatial axes).
    shape : sequence of int
        The spatial shape of the record.

    Returns
    -------
    torch.Tensor
        Shape ``(…, *shape)``, on the device of the predictions: of their dtype, or float32 if that is no floating one.

    Raises
    ------
    ConfigError
        Some place has no prediction, a patch begins outside, or there are not as many patches as positions.
    """
    import torch

    patches, shape = [torch.as_tensor(each) for each in predictions], tuple(map(int, shape))
    places = [[int(at) for at in each] for each in positions]
    if not patches or len(patches) != len(places):
        raise ConfigError(f"stitch needs a position for each prediction, and got {len(patches)} for {len(places)}")
    first, axes = patches[0], len(shape)
    kind = first.dtype if first.is_floating_point() else torch.float32
    total = torch.zeros((*first.shape[: first.ndim - axes], *shape), dtype=kind, device=first.device)
    count = torch.zeros(shape, dtype=torch.int32, device=first.device)
    for each, place in zip(patches, places, strict=True):
        if (
            len(place) != axes
            or each.ndim < axes
            or not all(0 <= at < high for at, high in zip(place, shape, strict=True))
        ):
            raise ConfigError(
                f"a patch at {place}, of shape {tuple(each.shape)}, is not in a record of spatial shape {shape}"
            )
        sides = each.shape[each.ndim - axes :]
        box: tuple[Any, ...] = tuple(
            slice(at, min(at + side, high)) for at, side, high in zip(place, sides, shape, strict=True)
        )
        there: tuple[Any, ...] = tuple(slice(0, one.stop - one.start) for one in box)
        total[(..., *box)] += each[(..., *there)]
        count[box] += 1
    if not bool(count.all()):
        at = torch.nonzero(count == 0)[0].tolist()
        raise ConfigError(
            f"no patch covers {at}, and {int((count == 0).sum()):,} of {count.numel():,} places in all: pass the predictions of "
            "every place of a grid"
        )
    return total / count
