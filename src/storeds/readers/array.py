"""Reads the fields of one record as they are, arrays as tensors; arrays that are images with their channels first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, get_args

import numpy as np

from storeds.errors import ConfigError, suggest
from storeds.protocols import Array, Backend, Field, SampleContext
from storeds.readers.base import RecordReader
from storeds.records.fields import Channels, Layout, is_image_like, layout_of

__all__ = ["ArrayReader"]


@dataclass(frozen=True)
class ArrayReader(RecordReader):
    """One record → its values; arrays become `torch.Tensor` of the same dtype and shape, sharing no memory.

    Parameters
    ----------
    fields : sequence of str, optional
        All fields of the store by default.
    decode : str, optional
        ``"tensor"``: the array that is the sample's image, and those that `channels` names, come with the shape
        (channels, height, width), frames before it; (height, width) becomes (1, height, width). By default arrays keep
        their shape. A dataset whose transforms take images does this for the arrays that they apply to.
    channels : str or mapping of str to str, optional
        Where the channels of the image lie: ``"last"``, as in (height, width, channels), or ``"first"``. Needed where
        shapes do not tell: they do if either the last dimension is 1, 3 or 4 or the third from the end, and not both.
        A mapping says it for each of several elements.
    """

    internal: ClassVar[tuple[str, ...]] = (*RecordReader.internal, "layouts", "views")

    decode: str | None = None
    channels: Channels | Mapping[str, Channels] | None = None
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Element → how it is stored, for those whose channels are put first."""
    views: bool = False
    """Leave the pixels of the sample's image where they are in memory."""

    def __post_init__(self) -> None:
        if self.decode not in (None, "tensor"):
            raise ConfigError(
                f"decode={self.decode!r}: reader 'array' gives arrays as stored, or images with their channels first: "
                "decode='tensor'"
            )
        given = self.channels.values() if isinstance(self.channels, Mapping) else (self.channels or "first",)
        for each in given:
            if each not in get_args(Channels):
                raise ConfigError(f"channels is 'first' or 'last', not {each!r}")

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        bound = super().bind(backend)
        for name in bound._said():
            if name not in bound.stored:
                raise ConfigError(f"channels names {name!r}; {suggest(name, bound.stored, 'elements of a sample')}")
            bound.layout(name)
        if self.decode is None:
            return bound
        return bound.with_channels_first({bound.data or "": None, **bound._said()})

    @property
    def data(self) -> str | None:
        # docstring inherited
        arrays = [name for name in self.stored if self._field(name).kind in ("array", "image")]
        images = [name for name in arrays if is_image_like(self._field(name))]
        return next(iter((*images, *arrays, *self.stored)), None)

    def with_channels_first(self, names: Iterable[str], *, views: bool = False) -> Self:
        """Return a bound reader that gives these elements with their channels first; raises as `layout` does."""
        return replace(self, layouts={**self.layouts, **{name: self.layout(name) for name in names}}, views=views)

    def layout(self, name: str) -> Layout:
        """Return how the images of an element lie; raises ConfigError where it holds none or nothing tells how."""
        declared = self._field(name) if name in self.fields else Field("int")
        shape = declared.shape
        if declared.kind != "array" or shape is None or len(shape) < 2:
            what = f"arrays of shape {shape}" if shape is not None else f"values of kind {declared.kind}"
            raise ConfigError(
                f"element {name!r} holds {what}, which are no images: they have at least a height and a width. Name another "
                f"element, for example channels={{'image': 'last'}} or transform={{'image': …}}; a sample has "
                f"{', '.join(self.fields)}"
            )
        said = self._said().get(name)
        if said is not None and len(shape) == 2:
            raise ConfigError(f"channels: element {name!r} has the shape {shape}, a single channel; leave channels out")
        found: Layout | None = said or layout_of(shape)
        if found is None:
            raise ConfigError(
                f"element {name!r} holds arrays of shape {shape}, which do not show where the channels are: pass "
                f"channels='last' if it is (…, height, width, channels), channels='first' if (…, channels, height, width), "
                f"or channels={{{name!r}: …}} beside others"
            )
        return found

    def shape(self, name: str) -> tuple[int | None, ...]:
        """Return the shape of an array element in samples."""
        shape, layout = tuple(self._field(name).shape or ()), self.layouts.get(name)
        if layout == "last":
            return (*shape[:-3], shape[-1], *shape[-3:-1])
        return (*shape[:-2], 1, *shape[-2:]) if layout == "none" else shape

    def arranged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return batches of stored arrays, shape (n, …), with the channels of images first."""
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

    def _said(self) -> dict[str, Channels]:
        if self.channels is None:
            return {}
        return dict(self.channels) if isinstance(self.channels, Mapping) else {self.data or "": self.channels}


def _channels_first(array: Array, layout: Layout | None) -> Array:
    """Return a view whose last three dimensions are channels, height and width."""
    if layout == "last":
        return np.moveaxis(array, -1, -3)
    return np.expand_dims(array, -3) if layout == "none" else array
