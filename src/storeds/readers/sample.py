"""Reads whole samples, for transforms of all elements: images, masks, boxes, keypoints, labels and texts of one record."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image

from storeds.errors import ConfigError, DecodeError, RecordError, StoredsError, suggest
from storeds.pictures.decode import Picture, PictureDecoder, draw_crops
from storeds.pictures.decoders import UNCHANGED, bad_picture, orientation_of
from storeds.protocols import Array, Backend, CropRequest, Decoder, Field, Record, SampleContext
from storeds.readers.annotations import (
    Classes,
    class_ids,
    class_number,
    coordinates_tensor,
    labels_tensor,
    mask_tensor,
    plain_rows,
)
from storeds.readers.base import channels_first, repeated
from storeds.readers.elements import JsonPath, split_path, value_at, with_given_role
from storeds.readers.image import ImageReader, check_one_guess, label_of
from storeds.records.annotations import check_mask, check_row_counts, check_values
from storeds.records.classes import stored_classes
from storeds.records.meta import NATIVE
from storeds.records.roles import BOX_FORMATS, boxes_of, check_rows, given_roles
from storeds.records.samples import Sample
from storeds.records.shapes import ChannelAxis, is_mask

if TYPE_CHECKING:
    import torch

__all__ = ["SampleReader"]

_ORDER = ("image", "mask", "boxes", "labels", "keypoints", "label", "text")
_LABELS = ("label", "labels")

Size = tuple[int, int]


@dataclass(frozen=True)
class SampleReader(ImageReader):
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
    orient : bool
        Rotate images according to their EXIF orientation, and with them masks, boxes and keypoints.
    box_format : str, optional
        Format of the boxes of samples: ``xyxy``, ``xywh`` or ``cxcywh``. Default: as stored.
    channels, repair, min_recovered, max_pixels, strided
        As for `ImageReader`. A mask that lacks pixels is never repaired.
    """

    decode: str | Decoder | Mapping[str, str | Decoder] = "tensor"
    roles: Mapping[str, Any] | None = None
    box_format: str | None = None
    _given: Mapping[str, Mapping[str, Any]] = field(init=False, repr=False, compare=False)
    _declared: Mapping[str, Field] = field(default_factory=dict, repr=False, compare=False)
    _paths: Mapping[str, JsonPath] = field(default_factory=dict, repr=False, compare=False)
    _classes: Mapping[str, Classes] = field(default_factory=dict, repr=False, compare=False)
    _trusted: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The elements that the writer of the store has checked."""

    def _check(self) -> None:
        super()._check()
        if self.box_format is not None and self.box_format not in BOX_FORMATS:
            raise ConfigError(
                f"unknown box_format {self.box_format!r}; {suggest(self.box_format, BOX_FORMATS, 'formats')}"
            )
        object.__setattr__(self, "_given", given_roles(self.roles, "classes"))

    # --- Binding ---

    def _with_images(self, backend: Backend) -> Self:
        for name in self._given:
            if name not in self.fields:
                raise ConfigError(
                    f"roles names {name!r}, which is no element of a sample; {suggest(name, self.fields, 'elements')}"
                )
        split = {name: split_path(source, backend.meta.fields) for name, source in self.elements()}
        paths = {name: path for name, path in split.items() if path is not None}
        declared = self._with_roles(dict(zip(self.fields, self.kinds, strict=True)))
        stored = [name for name, path in paths.items() if not path.steps and name not in self._given]
        bound = replace(
            self,
            _declared=declared,
            _paths=paths,
            _classes=self._known_classes(declared, backend),
            _trusted=frozenset(stored if backend.meta.layout == NATIVE else ()),
            _copies=repeated((name, path.field) for name, path in paths.items()),
        )
        return super(SampleReader, bound)._with_images(backend)

    def _with_pictures(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        if any(each.get("role") == "image" for each in self._given.values()):
            return dict(fields)
        return super()._with_pictures(fields)

    def _declaration(self, source: str, declared: Mapping[str, Field]) -> Field | None:
        path = split_path(source, declared)
        if path is None or not path.steps:
            return super()._declaration(source, declared)
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
        for name, source in self.elements():
            each = declared[name]
            if each.of is not None:
                each = dataclasses.replace(each, of=elements.get(each.of, each.of))
            each = with_given_role(name, each, self._given.get(name, {}))
            if each.role is None and each.kind == "image":
                each = dataclasses.replace(each, role="mask" if is_mask(name) or is_mask(source) else "image")
            if each.kind == "image" and self._decode_of(name) == "bytes":
                each = dataclasses.replace(each, role=None)
            with_roles[name] = each
        check_rows({name: each for name, each in with_roles.items() if each.role == "boxes" or name in self._given})
        return with_roles

    def _known_classes(self, declared: Mapping[str, Field], backend: Backend) -> dict[str, Classes]:
        """Return the classes of each label of which they are known; raises ConfigError."""
        attrs = backend.meta.attrs
        several = sum(each.role in _LABELS for each in backend.meta.fields.values()) > 1
        known: dict[str, Classes] = {}
        for name, each in declared.items():
            classes = self._given.get(name, {}).get("classes")
            if classes is not None and each.role not in _LABELS:
                raise ConfigError(
                    f"roles: {name!r} has classes, which are for the roles label and labels; leave them out"
                )
            # One list of classes may be that of another field of numbers.
            is_doubtful = several and not isinstance(attrs.get("classes"), Mapping)
            if not classes and not (is_doubtful and self._field(name).kind in ("int", "array")):
                classes = stored_classes(attrs, self.stored_as(name))
            if classes and each.role in _LABELS:
                known[name] = Classes.of(classes)
        return known

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
        images = (name for name, each in self._declared.items() if each.role == "image")
        return next(images, None) if self._declared else super().data

    @property
    def target(self) -> str | None:
        # docstring inherited
        roles = {each.role: name for name, each in reversed([*self._declared.items()])}
        spatial = (name for name, each in self._declared.items() if each.role in ("image", "boxes", "keypoints"))
        return roles.get("label") or roles.get("labels") or self._target_without(self.data, *spatial)

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target, in the order of their class numbers; None if `roles` and the store name none for it."""
        known = self._classes.get(self.target or "")
        return None if known is None else list(known.names)

    def column(self, view: Backend, name: str, /) -> Array:
        # docstring inherited
        if self._paths[name].steps or self._field(name).kind == "json":
            raise ConfigError(f"element {name!r} has no column: it is part of a field of kind json")
        column = super().column(view, name)
        classes = self._classes.get(name)
        if classes is None or column.ndim != 1:
            return column
        return np.array([class_number(name, value, classes) for value in column.tolist()], np.int64)

    def _images(self) -> list[str]:
        return [name for name, declared in zip(self.fields, self.kinds, strict=False) if declared.kind == "image"]

    def _array(self, name: str) -> Field:
        return self._declared[name]

    def _array_images(self) -> list[str]:
        # They become tensors of any dtype and number of channels, without a decoder.
        return [name for name, each in self._declared.items() if each.role == "image" and each.kind == "array"]

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        roles: dict[str, Any] = {
            name: self._given.get(name, {}).get("role", each.role) for name, each in fields.items()
        }
        pictures = [name for name, each in self._with_pictures(fields).items() if each != fields[name]]
        if not any(roles.values()):
            if not pictures and all(each.kind != "image" for each in fields.values()):
                kinds = ", ".join(f"{name} ({each.kind})" for name, each in fields.items())
                raise ConfigError(
                    f"no field of the store has a role, and none is of kind image: it has {kinds}. Say what they mean, for "
                    f"example roles={{{next(iter(fields))!r}: 'image'}}; reader 'array' reads any field"
                )
            return super()._choose(fields)
        if "image" not in roles.values():
            found = [n for n, each in fields.items() if each.kind == "image" and roles[n] is None and not is_mask(n)]
            found += [name for name in pictures if roles[name] is None]
            check_one_guess(found if pictures else (), label_of(fields))
            roles |= dict.fromkeys(["image"] if "image" in found else found[:1], "image")
        return tuple(name for role in _ORDER for name, each in roles.items() if each == role)

    def _decoder(self, name: str) -> PictureDecoder:
        if not self._is_mask(name):
            return super()._decoder(name)
        decode = self.decode.get(name, "pil") if isinstance(self.decode, Mapping) else "pil"
        # Class ids are read from the file as it is. What a repair fills is grey, and would be a class id.
        is_built_in = decode in ("pil", "tensor", "fast")
        decode, mode = ("pil", UNCHANGED) if is_built_in else (decode, self._mode_of(name))
        return PictureDecoder(decode, mode, self.repair, 1.0, False, self.max_pixels)

    def _is_mask(self, name: str) -> bool:
        return name in self._declared and self._declared[name].role == "mask"

    def _mode_of(self, name: str) -> str:
        if isinstance(self.mode, Mapping) and name in self.mode:
            return self.mode[name]
        if self._is_mask(name):
            return UNCHANGED
        if self._field(name).role == "image":
            return self.mode if isinstance(self.mode, str) else "RGB"
        return super()._mode_of(name)

    def without_effect(self) -> dict[str, str]:
        # docstring inherited
        has_boxes = any(each.role == "boxes" for each in self._declared.values())
        return super().without_effect() | ({} if has_boxes else {"box_format": "boxes"})

    # --- Building ---

    def build(self, records: Sequence[Record], context: SampleContext, /) -> Sample:
        # docstring inherited
        record = records[0]
        values, size, orientation, window = self._decoded(record, context)
        turned = orientation > 4
        # Masks, boxes and keypoints are those of the picture as stored, before it is rotated.
        stored = size if size is None or not turned else (size[1], size[0])
        try:
            for name in filter(self._is_mask, self.fields):
                values[name] = mask = self._mask(name, record, stored, context)
                stored = stored or (mask.shape[-2], mask.shape[-1])
            for name, source in zip(self.fields, self.sources, strict=True):
                if name not in values:
                    is_computed = source in self.computed
                    values[name] = context.index if is_computed else self._other(name, record, stored)
            fields = self._with_instances(values)
            check_row_counts(values, fields)
        except StoredsError:
            raise
        except ValueError as error:
            raise RecordError(str(error)) from None
        size = stored if stored is None or not turned else (stored[1], stored[0])
        values = {name: values[name] for name in self.fields}
        return Sample(values, fields, size or (0, 0), orientation, window)

    def _with_instances(self, values: Mapping[str, Any]) -> Mapping[str, Field]:
        """Return the declarations, where keypoints of kind json name the boxes whose rows they describe."""
        fields = self._declared
        for name, each in self._declared.items():
            if each.role == "keypoints" and each.kind == "json" and each.of is None:
                boxes = boxes_of(name, self._declared, values[name])
                fields = fields if boxes is None else {**fields, name: dataclasses.replace(each, of=boxes)}
        return fields

    def _decoded(
        self, record: Record, context: SampleContext
    ) -> tuple[dict[str, Any], Size | None, int, CropRequest | None]:
        """Return the images of a sample, the size and the orientation of the first one, and the crop that was drawn."""
        pictures: dict[str, Picture] = {}
        values: dict[str, Any] = {}
        for name in self._decoders:
            if not self._is_mask(name):
                with _named(name):
                    pictures[name] = self._inspect(name, record)
        crops = () if self._layouts else draw_crops(self.cropper, pictures.values(), context)
        for name, picture in pictures.items():
            with _named(name):
                values[name] = self._picture(name, picture, crops, context)
        for name, layout in self._layouts.items():
            values[name] = _image_tensor(self._at(name, record), layout)
        first = next(iter(values), "")
        if first not in pictures:
            return values, _size_of(values.get(first)), 1, None
        picture, orientation = pictures[first], 1
        if self.orient:
            orientation = picture.orientation if picture.header is not None else orientation_of(picture.blob) or 1
        return values, picture.size or _size_of(values[first]), orientation, crops[0] if crops else None

    def _mask(self, name: str, record: Record, size: Size | None, context: SampleContext) -> torch.Tensor:
        if name not in self._decoders:
            return mask_tensor(name, self._at(name, record), self._declared[name], size)
        with _named(name):
            picture = self._inspect(name, record)
            decoded = self._picture(name, picture, (), context)
        ids = class_ids(name, decoded, picture.blob, self._mode_of(name))
        check_mask(name, (ids.shape[0], ids.shape[1]), size)
        return ids

    def _other(self, name: str, record: Record, size: Size | None) -> Any:
        """Return an element that is no image and no mask."""
        declared, value = self._declared[name], self._at(name, record)
        match declared.role:
            case "boxes" | "keypoints":
                if name not in self._trusted:
                    value = plain_rows(name, value, declared.role)
                    check_values({name: value}, {name: declared}, size)
                return coordinates_tensor(name, value, declared, size)
            case "labels":
                return labels_tensor(name, value, self._classes.get(name))
            case "label" if name in self._classes:
                return class_number(name, value, self._classes[name])
        if isinstance(value, np.ndarray):
            import torch

            return torch.from_numpy(value)
        return value

    def _at(self, name: str, record: Record) -> Any:
        """Return the stored value of an element, which may be a part of a JSON value."""
        field, steps = self._paths[name]
        value = value_at(record[field], steps, self.stored_as(name)) if steps else record[field]
        return copy.deepcopy(value) if name in self._copies else value


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Make errors about a picture name the element."""
    try:
        yield
    except DecodeError as error:
        raise bad_picture(f"field {name!r}: {error}", error.kind) from error.__cause__


def _size_of(image: Any) -> Size | None:
    """Return (height, width) of an image; None if it is of an unknown type."""
    if isinstance(image, Image.Image):
        return image.height, image.width
    shape = tuple(getattr(image, "shape", ()))
    if isinstance(image, np.ndarray):
        return (shape[0], shape[1]) if len(shape) > 1 else None
    return (shape[-2], shape[-1]) if len(shape) > 1 else None


def _image_tensor(value: Array, layout: ChannelAxis) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(channels_first(value, layout)))
