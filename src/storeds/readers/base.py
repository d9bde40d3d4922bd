"""The base of readers for which one record is one sample, and the simplest of them: `ArrayReader`, which decodes nothing."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, get_args

import numpy as np

from storeds.errors import ConfigError, suggest
from storeds.protocols import Array, Backend, Field, Record, SampleContext
from storeds.records.columns import read_column
from storeds.records.meta import Count
from storeds.records.shapes import ChannelAxis, Channels, is_image_like, layout_of
from storeds.records.verdict_fields import without_verdicts

__all__ = ["INDEX", "ArrayReader", "RecordReader", "channels_first", "channels_of", "check_channels", "repeated"]

INDEX = "index"


@dataclass(frozen=True)
class RecordReader(ABC):
    """Base of readers that build sample *i* from record *i*. A subclass defines `_choose`, and `_value` if it changes values.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample, in order: fields of the store, and ``"index"`` for the index of the sample, unless the
        store has a field of that name. A mapping of elements to fields renames them: ``{"pixel_values": "image"}``.
    """

    # Set by `bind`; not options for users.
    internal: ClassVar[tuple[str, ...]] = ("count", "kinds", "sources", "computed")

    fields: tuple[str, ...] = ()
    count: int = 0
    kinds: tuple[Field, ...] = ()
    """The declaration of each element."""
    sources: tuple[str, ...] = ()
    """The stored field, or computed value, of each element."""
    computed: tuple[str, ...] = (INDEX,)
    """What the reader computes, because the store has no field of that name."""
    _copies: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Elements from a field of which an earlier element comes too: a change of one leaves the other as it is."""

    @abstractmethod
    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        """Return the default elements; raise ConfigError if the reader cannot read this store."""

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        """Return element `name`, built from its stored value."""
        return value

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return tuple(dict.fromkeys(source for _, source in self.elements()))

    @property
    def data(self) -> str | None:
        # docstring inherited
        return next((name for name, _ in self.elements()), None)

    @property
    def target(self) -> str | None:
        # docstring inherited
        return self._target_without(self.data)

    def declared(self) -> dict[str, Field]:
        """Return element → declaration, for the elements that come from the store."""
        return {name: self._field(name) for name, _ in self.elements()}

    def stored_as(self, name: str) -> str:
        """Return the stored field of an element; other names are fields themselves."""
        return self.sources[self.fields.index(name)] if self.sources and name in self.fields else name

    def column(self, view: Backend, name: str, /) -> Array:
        """Return an element, or another stored field, of all samples, as `storeds.records.columns.read_column` does."""
        return read_column(view, self.stored_as(name))

    def without_effect(self) -> dict[str, str]:
        """Return the options that change nothing in samples of this bound reader, each with what it is for.

        A dataset refuses them. A subclass that uses an option otherwise overrides this.
        """
        return {}

    def elements(self) -> list[tuple[str, str]]:
        """Return the elements that come from the store, each with its field."""
        pairs = zip(self.fields, self.sources or self.fields, strict=True)
        return [(name, source) for name, source in pairs if source not in self.computed]

    def _field(self, name: str) -> Field:
        """Return the declaration of an element."""
        return self.kinds[self.fields.index(name)]

    def _target_without(self, *others: str | None) -> str | None:
        """Return the element of the label: the field ``label``, or the first element that is none of `others`."""
        found = {name: source for name, source in self.elements() if name not in others and source != "key"}
        if "label" in found:
            return "label"
        return next((name for name, source in found.items() if source == "label"), next(iter(found), None))

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        declared = dict(backend.meta.fields)
        computed = {} if INDEX in declared else {INDEX: Field("int")}
        chosen = self._asked() or {name: name for name in self._choose(declared)}
        kinds: list[Field] = []
        for source in chosen.values():
            kind = self._declaration(source, declared) or computed.get(source)
            if kind is None:
                known = [*declared, *computed]
                raise ConfigError(f"{backend.url} has no field {source!r}; {suggest(source, known, 'fields')}")
            kinds.append(kind)
        return replace(
            self,
            fields=tuple(chosen),
            sources=tuple(chosen.values()),
            count=Count(len(backend)),
            kinds=tuple(kinds),
            computed=tuple(computed),
            _copies=repeated(chosen.items()),
        )

    def _declaration(self, source: str, declared: Mapping[str, Field]) -> Field | None:
        """Return the declaration of a stored field, or None if the store has none of that name."""
        return declared.get(source)

    def _asked(self) -> dict[str, str]:
        """Return the elements that the user named, each with its field."""
        given: Any = self.fields
        if isinstance(given, Mapping):
            for name, source in given.items():
                if not isinstance(name, str) or not isinstance(source, str):
                    raise ConfigError(
                        f"fields maps elements to fields of the store, both names, not {name!r} to {source!r}"
                    )
            return dict(given)
        if len(set(given)) != len(given):
            raise ConfigError(f"fields {tuple(given)} name an element twice")
        return dict(zip(given, self.sources or given, strict=True))

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        return (index,)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> Any:
        # docstring inherited
        record, sources = records[0], self.sources or self.fields
        sample = {
            name: self._element(name, source, field, record, context)
            for name, source, field in zip(self.fields, sources, self.kinds, strict=True)
        }
        for name in self._copies:
            sample[name] = copy.deepcopy(sample[name])
        return sample

    def _element(self, name: str, source: str, field: Field, record: Record, context: SampleContext) -> Any:
        """Return element `name`, which comes from field `source` of a record."""
        return context.index if source in self.computed else self._value(name, field, record[source], context)


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
    layouts: Mapping[str, ChannelAxis] = field(default_factory=dict)
    """Element → stored position of its channels, for elements whose channels move to the front."""
    views: bool = False
    """Return the sample's image as a view, without copying its pixels."""

    def __post_init__(self) -> None:
        if self.decode not in (None, "tensor"):
            raise ConfigError(
                f"decode={self.decode!r}: reader 'array' returns arrays as stored, or with decode='tensor' image arrays with "
                "their channels first"
            )
        check_channels(self.channels)

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        bound = super().bind(backend)
        names = [name for name, _ in bound.elements()]
        for name in bound._given_channels():
            if name not in names:
                raise ConfigError(f"channels names {name!r}; {suggest(name, names, 'elements of a sample')}")
            bound.layout(name)
        if self.decode is None:
            return bound
        return bound.with_channels_first({bound.data or "": None, **bound._given_channels()})

    @property
    def data(self) -> str | None:
        # docstring inherited
        names = [name for name, _ in self.elements()]
        arrays = [name for name in names if self._field(name).kind in ("array", "image")]
        images = [name for name in arrays if is_image_like(self._field(name))]
        return next(iter((*images, *arrays, *names)), None)

    def with_channels_first(self, names: Iterable[str]) -> Self:
        """Return a bound reader that gives these elements with their channels first; raise as `layout` does."""
        return replace(self, layouts={**self.layouts, **{name: self.layout(name) for name in names}}, views=False)

    def layout(self, name: str) -> ChannelAxis:
        """Return the position of the channels; raise ConfigError if the element holds no images or is ambiguous."""
        declared = self._field(name) if name in self.fields else Field("int")
        return channels_of(name, declared, self._given_channels().get(name), self.fields)

    def shape(self, name: str) -> tuple[int | None, ...]:
        """Return the shape of an element of the sample."""
        shape, layout = tuple(self._field(name).shape or ()), self.layouts.get(name)
        if layout == "last":
            return (*shape[:-3], shape[-1], *shape[-3:-1])
        return (*shape[:-2], 1, *shape[-2:]) if layout == "none" else shape

    def arranged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return element → batch of shape (n, …), with the channels of images first; `arrays` is by stored field."""
        batches = {name: channels_first(arrays[source], self.layouts.get(name)) for name, source in self.elements()}
        return batches | {name: copy.deepcopy(batches[name]) for name in self._copies & batches.keys()}

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        return tuple(without_verdicts(fields))

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        import torch

        layout = self.layouts.get(name)
        if layout is None:
            return torch.from_numpy(value)
        tensor = torch.from_numpy(channels_first(value, layout))
        return tensor if self.views and name == self.data else tensor.contiguous()

    def _given_channels(self) -> dict[str, Channels]:
        if self.channels is None:
            return {}
        return dict(self.channels) if isinstance(self.channels, Mapping) else {self.data or "": self.channels}


def check_channels(channels: Channels | Mapping[str, Channels] | None) -> None:
    """Raise ConfigError for a position of channels that is not ``first`` or ``last``."""
    for each in channels.values() if isinstance(channels, Mapping) else (channels or "first",):
        if each not in get_args(Channels):
            raise ConfigError(f"channels must be 'first' or 'last', not {each!r}")


def channels_of(name: str, declared: Field, given: Channels | None, elements: Sequence[str]) -> ChannelAxis:
    """Return where the channels of an element are; raise ConfigError if it holds no images, or if that is ambiguous.

    Parameters
    ----------
    name : str
    declared : Field
    given : str or None
        What the user says.
    elements : sequence of str
        All elements, for messages.
    """
    shape = declared.shape
    if declared.kind != "array" or shape is None or len(shape) < 2:
        what = f"arrays of shape {shape}" if shape is not None else f"values of kind {declared.kind}"
        raise ConfigError(
            f"element {name!r} holds {what}, which are not images: images have at least a height and a width. Leave "
            "out decode and channels, or name another element, for example channels={'image': 'last'} or "
            f"transform={{'image': …}}; a sample has {', '.join(elements)}"
        )
    if given is not None and len(shape) == 2:
        raise ConfigError(f"channels: element {name!r} has shape {shape}, a single channel; do not pass channels")
    found: ChannelAxis | None = given or layout_of(shape)
    if found is None:
        raise ConfigError(
            f"element {name!r} holds arrays of shape {shape}, which does not show where the channels are: pass "
            f"channels='last' if it is (…, height, width, channels), channels='first' if it is (…, channels, height, "
            f"width), or channels={{{name!r}: …}} for one of several elements"
        )
    return found


def repeated(elements: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the elements from a field of which an earlier element comes too."""
    first: dict[str, str] = {}
    return frozenset(name for name, source in elements if first.setdefault(source, name) != name)


def channels_first(array: Array, layout: ChannelAxis | None) -> Array:
    """Return a view with the last three dimensions channels, height and width."""
    if layout == "last":
        return np.moveaxis(array, -1, -3)
    return np.expand_dims(array, -3) if layout == "none" else array
