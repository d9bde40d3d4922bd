"""The base of readers for which one record is one sample, and the simplest of them: `ArrayReader`, which decodes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, get_args

import numpy as np

from storeds.errors import ConfigError, suggest
from storeds.protocols import Array, Backend, Field, Record, SampleContext
from storeds.records.fields import Channels, Count, Layout, is_image_like, layout_of

__all__ = ["INDEX", "ArrayReader", "RecordReader"]

INDEX = "index"


@dataclass(frozen=True)
class RecordReader(ABC):
    """Base of readers that build sample *i* from record *i*. A subclass defines `_choose` and `_value`.

    Parameters
    ----------
    fields : sequence of str, optional
        Elements of a sample, in order: fields of the store, and ``"index"`` for the index of the sample, unless the
        store has a field of that name.
    """

    # Elements that the reader computes, unless the store has a field of that name.
    computes: ClassVar[tuple[str, ...]] = (INDEX,)
    # Set by `bind`; not options for users.
    internal: ClassVar[tuple[str, ...]] = ("count", "kinds")

    fields: tuple[str, ...] = ()
    count: int = 0
    kinds: tuple[Field, ...] = ()
    _computed: tuple[str, ...] | None = None

    @abstractmethod
    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        """Return the default elements; raise ConfigError if the reader cannot read this store."""

    @abstractmethod
    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        """Return element `name`, built from its stored value."""

    @property
    def computed(self) -> tuple[str, ...]:
        """The elements that the reader computes."""
        return self.computes if self._computed is None else self._computed

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return tuple(name for name in self.fields if name not in self.computed)

    @property
    def data(self) -> str | None:
        # docstring inherited
        return self.stored[0] if self.stored else None

    @property
    def target(self) -> str | None:
        # docstring inherited
        others = [name for name in self.fields if name not in (*self.computed, self.data, "key")]
        return "label" if "label" in others else others[0] if others else None

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        declared = dict(backend.meta.fields)
        computed = tuple(name for name in self.computes if name not in declared)
        fields = tuple(self.fields) or self._choose(declared)
        for name in fields:
            if name not in self.computes and name not in declared:
                known = [*declared, *computed]
                raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, known, 'fields')}")
        if len(set(fields)) != len(fields):
            raise ConfigError(f"fields {fields} name an element twice")
        kinds = tuple(declared.get(name, Field("int")) for name in fields)
        return replace(self, fields=fields, count=Count(len(backend)), kinds=kinds, _computed=computed)

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        return (index,)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        record = records[0]
        return {
            name: context.index if name in self.computed else self._value(name, field, record[name], context)
            for name, field in zip(self.fields, self.kinds, strict=True)
        }


@dataclass(frozen=True)
class ArrayReader(RecordReader):
    """One record → its values. Arrays become `torch.Tensor` of the same dtype and shape, sharing no memory.

    Parameters
    ----------
    fields : sequence of str, optional
        Elements of a sample. Default: all fields of the store.
    decode : str, optional
        ``"tensor"``: the array that is the sample's image, and those that `channels` names, get the shape
        (…, channels, height, width); (height, width) becomes (1, height, width). Default: arrays keep their shape. A
        dataset whose transforms take images does this for the arrays to which they apply.
    channels : str or mapping of str to str, optional
        Position of the channels of the image: ``"last"``, as in (height, width, channels), or ``"first"``. Needed if
        the shape is ambiguous. It is not if exactly one of the last and the third-last dimension is 1, 3 or 4. A
        mapping gives the position for each of several elements.
    """

    internal: ClassVar[tuple[str, ...]] = (*RecordReader.internal, "layouts", "views")

    decode: str | None = None
    channels: Channels | Mapping[str, Channels] | None = None
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Element → stored position of its channels, for elements whose channels move to the front."""
    views: bool = False
    """Return the sample's image as a view, without copying its pixels."""

    def __post_init__(self) -> None:
        if self.decode not in (None, "tensor"):
            raise ConfigError(
                f"decode={self.decode!r}: reader 'array' returns arrays as stored, or with decode='tensor' image arrays with "
                "their channels first"
            )
        given = self.channels.values() if isinstance(self.channels, Mapping) else (self.channels or "first",)
        for each in given:
            if each not in get_args(Channels):
                raise ConfigError(f"channels must be 'first' or 'last', not {each!r}")

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        bound = super().bind(backend)
        for name in bound._given_channels():
            if name not in bound.stored:
                raise ConfigError(f"channels names {name!r}; {suggest(name, bound.stored, 'elements of a sample')}")
            bound.layout(name)
        if self.decode is None:
            return bound
        return bound.with_channels_first({bound.data or "": None, **bound._given_channels()})

    @property
    def data(self) -> str | None:
        # docstring inherited
        arrays = [name for name in self.stored if self._field(name).kind in ("array", "image")]
        images = [name for name in arrays if is_image_like(self._field(name))]
        return next(iter((*images, *arrays, *self.stored)), None)

    def with_channels_first(self, names: Iterable[str], *, views: bool = False) -> Self:
        """Return a bound reader that gives these elements with their channels first; raise as `layout` does."""
        return replace(self, layouts={**self.layouts, **{name: self.layout(name) for name in names}}, views=views)

    def layout(self, name: str) -> Layout:
        """Return the position of the channels; raise ConfigError if the element holds no images or is ambiguous."""
        declared = self._field(name) if name in self.fields else Field("int")
        shape = declared.shape
        if declared.kind != "array" or shape is None or len(shape) < 2:
            what = f"arrays of shape {shape}" if shape is not None else f"values of kind {declared.kind}"
            raise ConfigError(
                f"element {name!r} holds {what}, which are not images: images have at least a height and a width. Name "
                f"another element, for example channels={{'image': 'last'}} or transform={{'image': …}}; a sample has "
                f"{', '.join(self.fields)}"
            )
        given = self._given_channels().get(name)
        if given is not None and len(shape) == 2:
            raise ConfigError(f"channels: element {name!r} has shape {shape}, a single channel; do not pass channels")
        found: Layout | None = given or layout_of(shape)
        if found is None:
            raise ConfigError(
                f"element {name!r} holds arrays of shape {shape}, which does not show where the channels are: pass "
                f"channels='last' if it is (…, height, width, channels), channels='first' if it is (…, channels, height, "
                f"width), or channels={{{name!r}: …}} for one of several elements"
            )
        return found

    def shape(self, name: str) -> tuple[int | None, ...]:
        """Return the shape of an element of the sample."""
        shape, layout = tuple(self._field(name).shape or ()), self.layouts.get(name)
        if layout == "last":
            return (*shape[:-3], shape[-1], *shape[-3:-1])
        return (*shape[:-2], 1, *shape[-2:]) if layout == "none" else shape

    def arranged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return batches of stored arrays of shape (n, …), with the channels of images first."""
        return {name: _channels_first(array, self.layouts.get(name)) for name, array in arrays.items()}

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        return tuple(fields)

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        import torch

        layout = self.layouts.get(name)
        if layout is None:
            return torch.from_numpy(value)
        tensor = torch.from_numpy(_channels_first(value, layout))
        return tensor if self.views and name == self.data else tensor.contiguous()

    def _field(self, name: str) -> Field:
        return self.kinds[self.fields.index(name)]

    def _given_channels(self) -> dict[str, Channels]:
        if self.channels is None:
            return {}
        return dict(self.channels) if isinstance(self.channels, Mapping) else {self.data or "": self.channels}


def _channels_first(array: Array, layout: Layout | None) -> Array:
    """Return a view with the last three dimensions channels, height and width."""
    if layout == "last":
        return np.moveaxis(array, -1, -3)
    return np.expand_dims(array, -3) if layout == "none" else array
