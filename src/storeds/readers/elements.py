"""The elements of samples: each has a name, the place of its stored value, its declaration, and how to make its value."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from storeds.errors import ConfigError, DecodeError, RecordError
from storeds.pictures.decode import Picture, PictureDecoder
from storeds.pictures.decoders import UNCHANGED, bad_picture
from storeds.pictures.verdict import Verdict
from storeds.protocols import Array, Backend, CropRequest, Field, Record, SampleContext
from storeds.readers.annotations import (
    Classes,
    class_ids,
    class_number,
    coordinates_tensor,
    labels_tensor,
    mask_tensor,
    plain_rows,
)
from storeds.readers.channels import channels_first, channels_of
from storeds.readers.paths import JsonPath, flattened, value_at
from storeds.records.annotations import Size, check_mask, check_values
from storeds.records.columns import read_column
from storeds.records.shapes import ChannelAxis, Channels, holds_pixels
from storeds.records.verdict_fields import verdict_fields

if TYPE_CHECKING:
    import torch

__all__ = [
    "ArrayElement",
    "ClassElement",
    "CoordinatesElement",
    "Element",
    "Facts",
    "IndexElement",
    "MaskElement",
    "PictureElement",
    "PixelsElement",
    "PlainElement",
    "TensorElement",
    "stacked",
]


E = TypeVar("E", bound="Element")


@dataclass(slots=True)
class Facts:
    """What the elements of one sample share while it is built.

    Attributes
    ----------
    context : SampleContext
    looked : mapping of str to Picture
        Element → its picture, where crops were drawn before decoding.
    crops : sequence of CropRequest
        The crops that were drawn.
    first : (Picture or None, image), or None
        The first image of the sample. It has a `Picture` if it was decoded from a file.
    size : (int, int), or None
        Height and width of the images as stored, before any rotation; None if unknown.
    """

    context: SampleContext
    looked: Mapping[str, Picture] = field(default_factory=dict)
    crops: Sequence[CropRequest] = ()
    first: tuple[Picture | None, Any] | None = None
    size: Size | None = None


@dataclass(frozen=True, kw_only=True)
class Element(ABC):
    """One element of every sample of a bound reader. Picklable and thread-safe.

    Parameters
    ----------
    name : str
        Its name in the sample.
    source : str
        The field, or the path into one, as the user names it.
    declared : Field
        Its declaration.
    path : JsonPath or None
        The stored field and the steps into its value; None if it is computed.
    is_copy : bool
        Whether an earlier element comes from the same field. A change of one leaves the other as it is.
    inner : Element or None
        What makes one row or one part of its value, such as the image of each frame.
    """

    name: str
    source: str
    declared: Field
    path: JsonPath | None
    is_copy: bool = False
    inner: Element | None = None

    def as_kind(self, kind: type[E], **more: Any) -> E:
        """Return this element as one of another class, with other attributes or more of them."""
        return kind(**{**vars(self), **more})

    @property
    def needs(self) -> tuple[str, ...]:
        """The stored fields that `value` uses."""
        if self.inner is not None:
            return self.inner.needs
        return () if self.path is None else (self.path.field,)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of readers that change the value; the others are refused if no element has them."""
        if self.inner is not None:
            return self.inner.options
        is_pixels = self.declared.role == "image" and holds_pixels(self.declared)
        return ("decode",) if is_pixels or self.declared.kind == "image" else ()  # images that stay as stored

    @abstractmethod
    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        """Return the value of the element of the sample that `rows` make.

        Raises `RecordError`, such as `DecodeError`, or ValueError if the stored value is bad.
        """

    def column(self, view: Backend) -> Array:
        """Return the values of all records as one column; raises ConfigError if they have none."""
        if self.path is None or self.path.steps:
            what = "computed" if self.path is None else "part of a field of kind json"
            raise ConfigError(f"element {self.name!r} has no column: it is {what}")
        return read_column(view, self.path.field)

    def batch(self, arrays: Mapping[str, Array]) -> Array:
        """Return the values of a batch, given as one array for each stored field."""
        assert self.path is not None
        values = arrays[self.path.field]
        return copy.deepcopy(values) if self.is_copy else values

    def _stored(self, record: Record) -> Any:
        """Return the stored value, which may be a part of a JSON value."""
        assert self.path is not None
        value, steps = record[self.path.field], self.path.steps
        if steps:
            value = value_at(value, steps, self.source)
            if self.declared.role in ("boxes", "labels"):  # one row for each, wherever it lies
                value = flattened(value, steps.count(None) - 1)
        if value is None and (self.declared.role == "label" or self.source == "label"):
            raise RecordError(f"field {self.source!r} is null, and a sample needs a label")
        return copy.deepcopy(value) if self.is_copy else value


class IndexElement(Element):
    """The index of the sample."""

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        return facts.context.index


class PlainElement(Element):
    """The stored value of the first record."""

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        return self._stored(rows[0])


@dataclass(frozen=True, kw_only=True)
class TensorElement(Element):
    """An array as a tensor of the same dtype, which shares no memory with the store.

    Parameters
    ----------
    axis : str or None
        Where the channels of an image are stored; they come first in the tensor. None leaves the shape as it is.
    is_view : bool
        Whether the channels of an image stay where they are in memory, which saves a copy.
    """

    axis: ChannelAxis | None = None
    is_view: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return () if self.axis is None else ("channels",)

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        import torch

        value = self._stored(rows[0])
        if self.axis is None:
            return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        tensor = torch.from_numpy(channels_first(value, self.axis))
        image = tensor if self.is_view else tensor.contiguous()
        if facts.first is None:
            facts.first = (None, image)
        return image

    def batch(self, arrays: Mapping[str, Array]) -> Array:
        # docstring inherited
        return channels_first(super().batch(arrays), self.axis)


@dataclass(frozen=True, kw_only=True)
class ArrayElement(TensorElement):
    """An array whose channels come first where transforms take it for an image.

    Parameters
    ----------
    channels : str or None
        Where the user says that its channels are.
    """

    channels: Channels | None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the value in a sample."""
        shape = tuple(self.declared.shape or ())
        if self.axis == "last":
            return (*shape[:-3], shape[-1], *shape[-3:-1])
        return (*shape[:-2], 1, *shape[-2:]) if self.axis == "none" else shape

    def as_image(self) -> Self:
        """Return this element with its channels first; raises ConfigError if it holds no images or that is ambiguous."""
        return replace(self, axis=channels_of(self.name, self.declared, self.channels))


# --- Images ---


@dataclass(frozen=True, kw_only=True)
class PictureElement(Element):
    """An image in a file, which is decoded.

    Parameters
    ----------
    decoder : PictureDecoder
    is_judged : bool
        Whether the store has a verdict on each picture.
    is_named : bool
        Whether errors name the element.
    """

    decoder: PictureDecoder
    is_judged: bool
    is_named: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        # docstring inherited
        (stored,) = super().needs
        return (stored, *verdict_fields(stored)) if self.is_judged else (stored,)

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return ("decode", "mode", "repair", "orient", "max_pixels", *["min_recovered"] * self.decoder.repair)

    def look(self, record: Record) -> Picture:
        """Return the picture of a record, before decoding; raises DecodeError if it is too large."""
        assert self.path is not None
        stored = self.path.field
        verdict = Verdict.of(record, stored) if self.is_judged else None
        try:
            return self.decoder.look(record[stored], verdict)
        except DecodeError as error:
            raise self._named(error) from error.__cause__

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        picture = facts.looked[self.name] if facts.looked else self.look(rows[0])
        try:
            image, repair = self.decoder.decode(picture, facts.crops)
        except DecodeError as error:
            raise self._named(error) from error.__cause__
        if repair is not None:
            facts.context.notes.append(repair)
        if facts.first is None:
            facts.first = (picture, image)
        return image

    def _named(self, error: DecodeError) -> DecodeError:
        return bad_picture(f"field {self.name!r}: {error}", error.kind) if self.is_named else error


@dataclass(frozen=True, kw_only=True)
class PixelsElement(Element):
    """An image that is stored as an array, as the decoder returns a file of its pixels.

    Parameters
    ----------
    decoder : PictureDecoder
    axis : str
        Where the channels are stored.
    """

    decoder: PictureDecoder
    axis: ChannelAxis

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return ("decode", "mode", "channels")

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        return self.decoder.of_pixels(channels_first(self._stored(rows[0]), self.axis))


def stacked(images: Sequence[Any], name_of: Callable[[int], str]) -> Any:
    """Return tensors as one, and other images as they are; raises DecodeError, which names the first of another shape."""
    import torch

    if not all(isinstance(image, torch.Tensor) for image in images):
        return images
    for at, image in enumerate(images):
        if (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
            raise DecodeError(
                f"{name_of(at)} has shape {tuple(image.shape)} of {image.dtype}, but the first one has {tuple(images[0].shape)} "
                f"of {images[0].dtype}"
            )
    return torch.stack(list(images))


# --- What belongs to an image. Bad values raise ValueError ---


@dataclass(frozen=True, kw_only=True)
class MaskElement(Element):
    """The class ids of the pixels of an image, from a file, an array or polygons.

    Parameters
    ----------
    mode : str
        The mode to which a file in colour is converted, which `inner` decodes.
    """

    mode: str = UNCHANGED

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return () if self.inner is None else ("max_pixels",)

    def value(self, rows: Sequence[Record], facts: Facts) -> torch.Tensor:
        # docstring inherited
        stored = self._stored(rows[0])
        if self.inner is None:
            return mask_tensor(self.name, stored, self.declared, facts.size)
        decoded = self.inner.value(rows, Facts(facts.context))
        ids = class_ids(self.name, decoded, stored, self.mode)
        check_mask(self.name, (ids.shape[0], ids.shape[1]), facts.size)
        return ids


@dataclass(frozen=True, kw_only=True)
class CoordinatesElement(Element):
    """Boxes or keypoints in pixels of the image.

    Parameters
    ----------
    is_trusted : bool
        Whether the writer of the store has checked them.
    """

    is_trusted: bool

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return ("box_format",) if self.declared.role == "boxes" else ()

    def value(self, rows: Sequence[Record], facts: Facts) -> torch.Tensor:
        # docstring inherited
        value = self._stored(rows[0])
        if not self.is_trusted:
            value = plain_rows(self.name, value, self.declared.role or "")
            check_values({self.name: value}, {self.name: self.declared}, facts.size)
        return coordinates_tensor(self.name, value, self.declared, facts.size)


@dataclass(frozen=True, kw_only=True)
class ClassElement(Element):
    """The class number of a label, or those of several labels, int64 of shape (n,)."""

    classes: Classes | None

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        convert = labels_tensor if self.declared.role == "labels" else class_number
        return convert(self.name, self._stored(rows[0]), self.classes)

    def column(self, view: Backend) -> Array:
        # docstring inherited
        column = super().column(view)
        if column.ndim != 1:
            return column
        return np.array([class_number(self.name, value, self.classes) for value in column.tolist()], np.int64)
