"""Reads whole samples, for transforms of all elements: images, masks, boxes, keypoints, labels and texts of one record."""

from __future__ import annotations

import copy
import dataclasses
import logging
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image

from storeds.errors import ConfigError, DecodeError, RecordError, StoredsError, suggest
from storeds.jpeg.markers import SOI
from storeds.protocols import Array, Backend, CropRequest, Decoder, Field, Record, SampleContext
from storeds.readers.annotations import (
    Classes,
    boxes_tensor,
    class_ids,
    class_number,
    holds_class_ids,
    is_inverted,
    keypoints_tensor,
    labels_tensor,
    mask_tensor,
)
from storeds.readers.base import channels_first, channels_of, check_channels
from storeds.readers.decoders import UNCHANGED, any_orientation, oriented_size
from storeds.readers.given_roles import check_given_roles, given_classes, given_keys, in_kind_of_role
from storeds.readers.image import PictureReader
from storeds.readers.json_paths import JsonPath, split_path, value_at
from storeds.readers.pictures import Part, Picture, PictureDecoder
from storeds.records.fields import Channels, Layout, is_mask
from storeds.records.roles import (
    BOX_FORMATS,
    Sample,
    boxes_of,
    check_mask,
    check_mask_mode,
    check_row_counts,
    check_rows,
    parse_role,
    stored_classes,
)

if TYPE_CHECKING:
    import torch

__all__ = ["SampleReader"]

_LOG = logging.getLogger("storeds")
_ORDER = ("image", "mask", "boxes", "labels", "keypoints", "label", "text")
_PLAIN_DECODERS = ("pil", "tensor", "fast", "simplejpeg")

Size = tuple[int, int]


class _Once:
    """Says True once. Forked workers share it; a pickled copy begins again."""

    def __init__(self) -> None:
        self._said = mmap.mmap(-1, 1)

    def __call__(self) -> bool:
        is_first, self._said[0] = not self._said[0], 1
        return is_first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


@dataclass(frozen=True)
class SampleReader(PictureReader):
    """One record → a ``Sample`` with the role of each element, for transforms of whole samples.

    `StoreDataset` applies ``transforms`` to the sample, and makes ``tv_tensors`` of images, masks, boxes and keypoints if
    torchvision is installed.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample, each with its field. A field of kind json may have a path to a value inside:
        ``{"boxes": "objects[].bbox", "width": "annotation.size.width"}``. Default: the images, then the fields with the
        roles mask, boxes, labels, keypoints, label and text. Without any role: the image and the label.
    roles : mapping, optional
        Element → its role, or a mapping with ``role``, ``format``, ``relative``, ``of`` and ``classes``, over what the
        store declares: ``{"boxes": {"role": "boxes", "format": "xywh"}}``. ``classes`` lists the classes of a label,
        texts or numbers, in the order of their class numbers; by default the store's ``attrs["classes"]``.
    decode : str, Decoder or mapping of str to these
        As for `ImageReader`; a mapping gives one for each of several elements. Masks are always decoded to class ids. A
        decoder of your own for a mask returns them as integers of shape (height, width).
    mode : str or mapping of str to str
        As for `ImageReader`. It applies to all images with a declared role. That of a mask applies to masks in colour
        only: masks of one channel keep their class ids.
    channels : str or mapping of str to str, optional
        Where the channels of images of kind array are, as for `ArrayReader`.
    orient : bool
        Rotate images according to their EXIF orientation, and with them masks, boxes and keypoints.
    box_format : str, optional
        Format of the boxes of samples: ``xyxy``, ``xywh`` or ``cxcywh``. Default: as stored.
    repair, min_recovered, max_pixels, strided
        As for `ImageReader`. A mask that lacks pixels is never repaired.
    """

    decode: str | Decoder | Mapping[str, str | Decoder] = "tensor"
    roles: Mapping[str, Any] | None = None
    channels: Channels | Mapping[str, Channels] | None = None
    box_format: str | None = None
    _declared: Mapping[str, Field] = field(default_factory=dict, repr=False, compare=False)
    _paths: Mapping[str, JsonPath] = field(default_factory=dict, repr=False, compare=False)
    _layouts: Mapping[str, Layout] = field(default_factory=dict, repr=False, compare=False)
    _classes: Mapping[str, Classes] = field(default_factory=dict, repr=False, compare=False)
    _points: tuple[str, ...] = field(default=(), repr=False, compare=False)  # keypoints of kind json without ``of``
    _linked: dict[tuple[str, ...], Mapping[str, Field]] = field(default_factory=dict, repr=False, compare=False)
    _is_new: _Once = field(default_factory=_Once, repr=False, compare=False)
    _is_inverted: _Once = field(default_factory=_Once, repr=False, compare=False)

    def _check(self) -> None:
        super()._check()
        if self.box_format is not None and self.box_format not in BOX_FORMATS:
            raise ConfigError(
                f"unknown box_format {self.box_format!r}; {suggest(self.box_format, BOX_FORMATS, 'formats')}"
            )
        check_channels(self.channels)
        check_given_roles(self.roles)

    # --- Binding ---

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        bound = super().bind(backend)
        for option, given in (("roles", self.roles), ("channels", self.channels)):
            for name in given if isinstance(given, Mapping) else ():
                if name not in bound.fields:
                    raise ConfigError(
                        f"{option} names {name!r}, which is no element of a sample; "
                        f"{suggest(name, bound.fields, 'elements')}"
                    )
        declared = bound._with_roles(super(SampleReader, bound).declared())
        paths = {name: split_path(source, backend.meta.fields) for name, source in bound.elements()}
        layouts = bound._array_layouts(declared)
        names = [name for name, each in declared.items() if each.role in ("label", "labels")]
        for name, spec in (self.roles or {}).items():
            if isinstance(spec, Mapping) and "classes" in spec and name not in names:
                raise ConfigError(
                    f"roles: {name!r} has classes, which are for the roles label and labels; leave them out"
                )
        several = sum(each.role in ("label", "labels") for each in backend.meta.fields.values()) > 1
        classes = {name: bound._known_classes(name, backend, several) for name in names}
        found = {name: path for name, path in paths.items() if path is not None}
        bound = replace(
            bound,
            _declared=declared,
            _paths=found,
            _layouts=layouts,
            _points=tuple(
                name
                for name, each in declared.items()
                if each.role == "keypoints" and each.kind == "json" and each.of is None
            ),
            _linked={},
            _repeats=len({path.field for path in found.values()}) < len(found),
            _classes={name: each for name, each in classes.items() if each is not None},
        )
        bound._check_coco_masks(backend.url)
        return replace(bound, _modes=bound._modes_by_element())

    def _declaration(self, source: str, declared: Mapping[str, Field]) -> Field | None:
        path = split_path(source, declared)
        if path is None or not path.steps:
            return declared.get(source)
        if declared[path.field].kind != "json":
            raise ConfigError(
                f"fields: {source!r} is a path into field {path.field!r}, which is of kind {declared[path.field].kind}: only "
                "values of kind json have parts"
            )
        return Field("json")

    def _with_roles(self, declared: dict[str, Field]) -> dict[str, Field]:
        """Return element → declaration, with the roles that the user gave, and those that kind and name tell."""
        elements = {source: name for name, source in reversed(self.elements())}
        with_roles: dict[str, Field] = {}
        for name, each in declared.items():
            given = given_keys(self.roles, name)
            if each.of is not None and "of" not in given:
                each = dataclasses.replace(each, of=elements.get(each.of, each.of))
            if given:
                each = parse_role(name, in_kind_of_role(dataclasses.replace(each, **given)))
            elif each.role is None and each.kind == "image":
                masked = is_mask(name) or is_mask(self.stored_as(name))
                each = dataclasses.replace(each, role="mask" if masked else "image")
            if each.kind == "image" and self._decode_of(name) == "bytes":
                each = dataclasses.replace(each, role=None)
            with_roles[name] = each
        check_rows(
            {name: each for name, each in with_roles.items() if each.role == "boxes" or given_keys(self.roles, name)}
        )
        return with_roles

    def _array_layouts(self, declared: Mapping[str, Field]) -> dict[str, Layout]:
        """Return the position of the channels of each image of kind array; raises ConfigError."""
        images = [name for name, each in declared.items() if each.role == "image" and each.kind == "array"]
        given = self.channels if isinstance(self.channels, Mapping) else dict.fromkeys(images, self.channels)
        for name in given:
            if name not in images:
                raise ConfigError(f"channels names {name!r}; {suggest(name, images, 'images of kind array')}")
        return {name: channels_of(name, declared[name], given.get(name), self.fields) for name in images}

    def _known_classes(self, name: str, backend: Backend, several: bool) -> Classes | None:
        """Return the classes of a label, or None if they are not known."""
        given = given_classes(self.roles, name)
        if given is not None:
            return Classes.of(given)
        stored = stored_classes(backend.meta.attrs, self.stored_as(name))
        by_field = isinstance(backend.meta.attrs.get("classes"), Mapping)
        is_number = self.kinds[self.fields.index(name)].kind in ("int", "array")
        if not stored or (several and is_number and not by_field):
            return None  # not known to be the classes of this field
        return Classes.of(stored)

    def _check_coco_masks(self, url: str) -> None:
        masks = [name for name, each in self._declared.items() if each.role == "mask" and each.kind == "json"]
        sized = [each for each in self._declared.values() if each.role in ("image", "mask") and each.kind != "json"]
        if masks and not sized:
            raise ConfigError(
                f"element {masks[0]!r} of {url} holds polygons, and no image says their size: add the image to fields"
            )

    def declared(self) -> dict[str, Field]:
        # docstring inherited
        return dict(self._declared)

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        roots = (path.field for path in self._paths.values())
        return tuple(dict.fromkeys((*roots, *self._verdict_fields())))

    @property
    def data(self) -> str | None:
        # docstring inherited
        images = [name for name, each in self._declared.items() if each.role == "image"]
        return next(iter(images), None) if self._declared else super().data

    @property
    def target(self) -> str | None:
        # docstring inherited
        roles = {each.role: name for name, each in reversed([*self._declared.items()])}
        return roles.get("label") or roles.get("labels") or self._target_without(*self._not_labels())

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target, in the order of their class numbers; None if `roles` and the store name none for it."""
        known = self._classes.get(self.target or "")
        return None if known is None else list(known.names)

    def _not_labels(self) -> Iterator[str | None]:
        yield self.data
        yield from (name for name, each in self._declared.items() if each.role in ("image", "boxes", "keypoints"))

    def column(self, view: Backend, name: str, /) -> Array:
        # docstring inherited
        if self._paths[name].steps or self.kinds[self.fields.index(name)].kind == "json":
            raise ConfigError(f"element {name!r} has no column: it is part of a field of kind json")
        column = super().column(view, name)
        classes = self._classes.get(name)
        if classes is None or column.ndim != 1:
            return column
        return np.array([class_number(name, value, classes) for value in column.tolist()], np.int64)

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        roles: dict[str, str | None] = {name: each.role for name, each in fields.items()}
        roles |= {
            name: given_keys(self.roles, name).get("role", roles.get(name))
            for name in self.roles or {}
            if name in fields
        }
        if not any(roles.values()):
            if all(each.kind != "image" for each in fields.values()):
                kinds = ", ".join(f"{name} ({each.kind})" for name, each in fields.items())
                raise ConfigError(
                    f"no field of the store has a role, and none is of kind image: it has {kinds}. Say what they mean, for "
                    f"example roles={{{next(iter(fields))!r}: 'image'}}; reader 'array' reads any field"
                )
            return super()._choose(fields)
        if "image" not in roles.values():
            found = [n for n, each in fields.items() if each.kind == "image" and roles[n] is None and not is_mask(n)]
            roles |= dict.fromkeys(["image"] if "image" in found else found[:1], "image")
        return tuple(name for role in _ORDER for name, each in roles.items() if each == role)

    def _picture_decoder(self, name: str) -> PictureDecoder:
        if not self._is_mask(name) or self._decode_of(name) == "bytes":
            return super()._picture_decoder(name)
        decode = self._decode_of(name) if isinstance(self.decode, Mapping) and name in self.decode else "pil"
        plain = decode in _PLAIN_DECODERS
        # What a repair fills is grey, and would be a class id.
        return PictureDecoder("pil" if plain else decode, self.repair, 1.0, False, self.max_pixels)

    def _is_mask(self, name: str) -> bool:
        return name in self._declared and self._declared[name].role == "mask"

    def _modes_by_element(self) -> dict[str, str]:
        modes = super()._modes_by_element()
        for name, mode in modes.items():
            declared = self._declared.get(name, Field("image"))
            if isinstance(self.mode, Mapping) and name in self.mode:
                if self._is_mask(name) and mode != UNCHANGED:
                    self._check_mask_mode(name, mode)
            elif declared.role == "mask":
                modes[name] = UNCHANGED
            elif declared.role == "image" and self.kinds[self.fields.index(name)].role == "image":
                modes[name] = self.mode if isinstance(self.mode, str) else "RGB"
        return modes

    def _check_mask_mode(self, name: str, mode: str) -> None:
        try:
            check_mask_mode(name, mode)
        except ValueError as error:
            raise ConfigError(f"mode: {error}") from None

    # --- Building ---

    def build(self, records: Sequence[Record], context: SampleContext, /) -> Sample:
        # docstring inherited
        record = records[0]
        values, size, orientation, window = self._decoded(record, context)
        turned = orientation > 4
        # Masks, boxes and keypoints are those of the picture as stored, before it is rotated.
        stored = size if size is None or not turned else (size[1], size[0])
        for name in (name for name in self.fields if self._is_mask(name)):
            with _named(name):
                values[name] = mask = self._mask(name, record, stored, context)
            stored = stored or (mask.shape[-2], mask.shape[-1])
        for name, source in zip(self.fields, self.sources, strict=True):
            if name not in values:
                with _named(name):
                    is_computed = source in self.computed
                    values[name] = context.index if is_computed else self._other(name, record, stored)
        fields = self._with_instances(values)
        with _named(None):
            check_row_counts(values, fields)
        size = stored if stored is None or not turned else (stored[1], stored[0])
        values = {name: values[name] for name in self.fields}
        return Sample(values, fields, size or (0, 0), orientation, window)

    def _with_instances(self, values: Mapping[str, Any]) -> Mapping[str, Field]:
        """Return the declarations, where keypoints of kind json name the boxes whose rows they describe."""
        boxes = {name: boxes_of(name, self._declared, values[name]) for name in self._points}
        found = tuple(name for name in self._points if boxes[name] is not None)
        if not found:
            return self._declared
        if found not in self._linked:  # kept, because transforms prepare for each of them
            linked = {name: dataclasses.replace(self._declared[name], of=boxes[name]) for name in found}
            self._linked[found] = {**self._declared, **linked}
        return self._linked[found]

    def _decoded(
        self, record: Record, context: SampleContext
    ) -> tuple[dict[str, Any], Size | None, int, CropRequest | None]:
        """Return the images of a sample, the size and the orientation of the first one, and the crop that was drawn."""
        pictures: dict[str, Picture] = {}
        values: dict[str, Any] = {}
        for name in self._pictures:
            if self._declared[name].role == "image":
                with _named(name):
                    value, verdict = record[self.stored_as(name)], self._verdict(name, record)
                    pictures[name] = self._pictures[name].inspect(value, verdict)
        parts = self._drawn(pictures, context)
        size, orientation = None, 1
        for name, picture in pictures.items():
            with _named(name):
                values[name] = self._pictures[name].decode_part(picture, self._modes[name], parts.get(name), context)
                if size is None:
                    part = parts.get(name)
                    size = _size_of(values[name]) if part is None else oriented_size(part.header, part.orientation)
                    if self.orient:
                        orientation = (
                            any_orientation(picture.value, picture.header) if part is None else part.orientation
                        )
        for name, layout in self._layouts.items():
            image = _image_tensor(record[self.stored_as(name)], layout)
            values[name] = image.clone() if self._repeats else image
            size = size or _size_of(values[name])
        window = next((part.crops[0] for part in parts.values()), None)
        return values, size, orientation, window

    def _drawn(self, pictures: Mapping[str, Picture], context: SampleContext) -> dict[str, Part]:
        """Draw the crop with which the transforms begin, if a part of each picture may be enough; otherwise nothing."""
        if self.cropper is None or self._layouts:
            return {}
        parts: dict[str, Part] = {}
        for name, picture in pictures.items():
            part = self._pictures[name].part(picture)
            if part is None:
                return {}
            parts[name] = part
        if len({oriented_size(part.header, part.orientation) for part in parts.values()}) != 1:
            return {}
        first = next(iter(parts.values()))
        crops = self.cropper.crops(*oriented_size(first.header, first.orientation), context.generator)
        if not crops:
            return {}
        return {name: part._replace(crops=crops) for name, part in parts.items()}

    def _mask(self, name: str, record: Record, size: Size | None, context: SampleContext) -> torch.Tensor:
        if name not in self._pictures:
            return mask_tensor(name, self._at(name, record), self._declared[name], size)
        value = record[self.stored_as(name)]
        if value.startswith(SOI) and self._is_new():
            _LOG.warning(
                "mask %r is a JPEG: lossy compression changes class ids, most of all at edges; store masks as PNG (this is "
                "logged once)",
                name,
            )
        if is_inverted(value) and self._is_inverted():
            _LOG.warning(
                "mask %r is a TIFF in which 0 is white: Pillow inverts it, so that 0 in the file is read as the highest number of "
                "its bits, such as 255. If these numbers are class ids, write it with PhotometricInterpretation 1 (this is logged "
                "once)",
                name,
            )
        decoder, mode = self._pictures[name], self._modes[name]
        if mode != UNCHANGED and decoder.decode == "pil" and holds_class_ids(value):
            mode = UNCHANGED  # the mode is for masks in colour, and would change the ids of this one
        ids = class_ids(name, decoder(value, mode, self._verdict(name, record), context), value)
        check_mask(name, (ids.shape[0], ids.shape[1]), size)
        return ids

    def _other(self, name: str, record: Record, size: Size | None) -> Any:
        """Return an element that is no image and no mask."""
        declared = self._declared[name]
        value = self._at(name, record)
        if declared.role == "boxes":
            return boxes_tensor(name, value, declared, size)
        if declared.role == "keypoints":
            return keypoints_tensor(name, value, declared, size)
        if declared.role == "labels":
            return labels_tensor(name, value, self._classes.get(name))
        if declared.role == "label":
            return class_number(name, value, self._classes[name]) if name in self._classes else value
        if isinstance(value, np.ndarray):
            import torch

            return torch.from_numpy(value)
        return value

    def _at(self, name: str, record: Record) -> Any:
        """Return the stored value of an element, which may be a part of a JSON value."""
        field, steps = self._paths[name]
        value = value_at(record[field], steps, self.stored_as(name)) if steps else record[field]
        return copy.deepcopy(value) if self._repeats else value


@contextmanager
def _named(name: str | None) -> Iterator[None]:
    """Raise errors about a value as RecordError, and make errors about a picture name the element."""
    try:
        yield
    except DecodeError as error:
        placed = DecodeError(f"field {name!r}: {error}")
        placed.kind = error.kind
        raise placed from error.__cause__
    except StoredsError:
        raise
    except ValueError as error:
        raise RecordError(str(error)) from None


def _size_of(image: Any) -> Size | None:
    """Return (height, width) of an image; None if it is of an unknown type."""
    if isinstance(image, Image.Image):
        return image.height, image.width
    shape = tuple(getattr(image, "shape", ()))
    if isinstance(image, np.ndarray):
        return (shape[0], shape[1]) if len(shape) > 1 else None
    return (shape[-2], shape[-1]) if len(shape) > 1 else None


def _image_tensor(value: Array, layout: Layout) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(channels_first(value, layout)))
