"""`sample`: reads whole samples, for transforms of all elements: images, masks, boxes, keypoints, labels and texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from storeds.errors import ConfigError, RecordError, StoredsError, suggest
from storeds.pictures.decode import PictureDecoder
from storeds.pictures.decoders import UNCHANGED, orientation_of
from storeds.pictures.header import MAX_PIXELS
from storeds.protocols import Backend, Field, Record
from storeds.readers.annotations import Classes
from storeds.readers.channels import channels_of
from storeds.readers.choice import Fields, choose, label_of, target_of
from storeds.readers.elements import (
    ClassElement,
    CoordinatesElement,
    Element,
    Facts,
    MaskElement,
    PictureElement,
    TensorElement,
)
from storeds.readers.images import check_one_guess, default_image
from storeds.readers.options import Decode, Modes, PictureOptions, Positions
from storeds.readers.paths import with_given_role
from storeds.readers.reader import ElementReader
from storeds.readers.rows import OneRow
from storeds.records.annotations import Size, check_row_counts
from storeds.records.classes import stored_classes
from storeds.records.meta import NATIVE
from storeds.records.roles import BOX_FORMATS, boxes_of, check_rows, given_roles
from storeds.records.samples import Sample
from storeds.records.shapes import is_mask, with_pictures
from storeds.records.verdict_fields import pictures

__all__ = ["Joint", "sample"]

_ORDER = ("image", "mask", "boxes", "labels", "keypoints", "label", "text")
_LABELS = ("label", "labels")


def sample(
    fields: Fields = (),
    *,
    roles: Mapping[str, Any] | None = None,
    decode: Decode | None = None,
    mode: Modes = "RGB",
    channels: Positions = None,
    repair: bool = True,
    min_recovered: float = 0.5,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    box_format: str | None = None,
) -> SampleSpec:
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
        texts or numbers, in the order of their class numbers; by default the store's ``attrs["classes"]``. In
        `StoreDataset`, ``"distinct"`` takes those that occur in the store, sorted.
    decode : str, Decoder or mapping of str to these, optional
        As for `image`, by default ``"tensor"``; a mapping gives one for each of several elements. Masks are always decoded to class ids. A
        decoder of your own for a mask returns them as integers of shape (height, width).
    mode : str or mapping of str to str
        As for `image`. It applies to all images with a declared role. That of a mask applies to masks in colour
        only: masks of one channel keep their class ids.
    orient : bool
        Rotate images according to their EXIF orientation, and with them masks, boxes and keypoints.
    box_format : str, optional
        Format of the boxes of samples: ``xyxy``, ``xywh`` or ``cxcywh``. Default: as stored.
    channels, repair, min_recovered, max_pixels
        As for `image`. A mask that lacks pixels is never repaired.
    """
    more = () if box_format is None else ("box_format",)
    options = PictureOptions(decode, mode, channels, repair, min_recovered, orient, max_pixels, more=more)
    if box_format is not None and box_format not in BOX_FORMATS:
        raise ConfigError(f"unknown box_format {box_format!r}; {suggest(box_format, BOX_FORMATS, 'formats')}")
    return SampleSpec(fields, given_roles(roles, "classes"), options, box_format)


@dataclass(frozen=True)
class SampleSpec:
    """The options of `sample`."""

    fields: Fields
    roles: Mapping[str, Mapping[str, Any]]
    options: PictureOptions
    box_format: str | None

    def bind(self, view: Backend, /) -> ElementReader:
        """Return the reader of a store; raises ConfigError if it does not fit."""
        stored = self._with_pictures(view.meta.fields)
        chosen = choose(view, self.fields, lambda: self._default(view), stored, paths=True)
        names = [each.name for each in chosen]
        for name in self.roles:
            if name not in names:
                either = dict.fromkeys([*names, *stored])
                raise ConfigError(
                    f"roles names {name!r}, which is no element of a sample; {suggest(name, either, 'elements and fields')}"
                )
        declared = self._with_roles(chosen)
        roles = {each.role: name for name, each in reversed([*declared.items()])}
        data = roles.get("image")
        spatial = [name for name, each in declared.items() if each.role in ("image", "boxes", "keypoints")]
        target = roles.get("label") or roles.get("labels") or target_of(chosen, (data, *spatial))
        known = self._known_classes(chosen, declared, view)
        elements = tuple(self._element(each, declared, known.get(each.name), data, view) for each in chosen)
        self.options.check(elements)
        in_files = [at for at, each in enumerate(elements) if isinstance(each, PictureElement)]
        in_arrays = [
            at for at, each in enumerate(elements) if isinstance(each, TensorElement) and each.axis is not None
        ]
        rest = {*range(len(elements))}.difference(in_files, in_arrays)
        others = sorted(rest, key=lambda at: (not isinstance(elements[at], MaskElement), at))
        classes = known[target].names if target in known else None
        places = (*in_files, *in_arrays), tuple(others)
        joint = Joint(declared, self.options.orient, self.box_format, classes, *places)
        return ElementReader("sample", OneRow(len(view)), elements, data, target, joint, may_fit=True)

    def _with_pictures(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        """Return the fields of a store, in which arrays of pixels have the role image if nothing says what the image is."""
        is_given = any(each.get("role") == "image" for each in self.roles.values())
        return dict(fields) if is_given else with_pictures(fields)

    def _default(self, view: Backend) -> tuple[str, ...]:
        fields = view.meta.fields
        roles: dict[str, Any] = {name: self.roles.get(name, {}).get("role", each.role) for name, each in fields.items()}
        guessed = [name for name, each in self._with_pictures(fields).items() if each != fields[name]]
        if not any(roles.values()):
            if not guessed and all(each.kind != "image" for each in fields.values()):
                kinds = ", ".join(f"{name} ({each.kind})" for name, each in fields.items())
                raise ConfigError(
                    f"no field of the store has a role, and none is of kind image: it has {kinds}. Say what they mean, for "
                    f"example roles={{{next(iter(fields))!r}: 'image'}}; reader 'array' reads any field"
                )
            return default_image("sample", view, self.options)
        if "image" not in roles.values():
            found = [n for n, each in fields.items() if each.kind == "image" and roles[n] is None and not is_mask(n)]
            found += [name for name in guessed if roles[name] is None]
            check_one_guess(found if guessed else (), label_of(fields))
            roles |= dict.fromkeys(["image"] if "image" in found else found[:1], "image")
        return tuple(name for role in _ORDER for name, each in roles.items() if each == role)

    def _with_roles(self, chosen: Sequence[Element]) -> dict[str, Field]:
        """Return element → declaration, with the roles that the user gave, and those that kind and name tell."""
        elements = {each.source: each.name for each in reversed(chosen) if each.path}
        with_roles: dict[str, Field] = {}
        for each in chosen:
            if each.path is None:
                continue
            name, found = each.name, each.declared
            if found.of is not None:
                found = dataclasses.replace(found, of=elements.get(found.of, found.of))
            found = with_given_role(name, found, self.roles.get(name, {}))
            if found.role is None and found.kind == "image":
                found = dataclasses.replace(found, role="mask" if is_mask(name) or is_mask(each.source) else "image")
            if found.kind == "image" and self.options.decode_of(name) == "bytes":
                found = dataclasses.replace(found, role=None)
            with_roles[name] = found
        check_rows({name: each for name, each in with_roles.items() if each.role == "boxes" or name in self.roles})
        return with_roles

    def _known_classes(
        self, chosen: Sequence[Element], declared: Mapping[str, Field], view: Backend
    ) -> dict[str, Classes]:
        """Return the classes of each label of which they are known; raises ConfigError."""
        attrs = view.meta.attrs
        several = sum(each.role in _LABELS for each in view.meta.fields.values()) > 1
        # One list of classes may be that of another field of numbers.
        is_doubtful = several and not isinstance(attrs.get("classes"), Mapping)
        known: dict[str, Classes] = {}
        for choice in chosen:
            each = declared.get(choice.name)
            if each is None:
                continue
            classes = self.roles.get(choice.name, {}).get("classes")
            if classes is not None and each.role not in _LABELS:
                raise ConfigError(
                    f"roles: {choice.name!r} has classes, which are for the roles label and labels; leave them out"
                )
            if not classes and not (is_doubtful and choice.declared.kind in ("int", "array")):
                classes = stored_classes(attrs, choice.source)
            if classes and each.role in _LABELS:
                known[choice.name] = Classes.of(classes)
        return known

    def _element(
        self, each: Element, declared: Mapping[str, Field], classes: Classes | None, data: str | None, view: Backend
    ) -> Element:
        """Return an element with the decoder that its role asks for."""
        if each.path is None:
            return each
        name, field = each.name, declared[each.name]
        found = dataclasses.replace(each, declared=field)
        if each.declared.kind == "image" and self.options.decode_of(name) != "bytes":
            is_judged = each.source in pictures(view.meta.fields)
            decoder = self._decoder(each, is_mask=field.role == "mask", is_data=name == data)
            picture = found.as_kind(PictureElement, decoder=decoder, is_judged=is_judged, is_named=True)
            if field.role != "mask":
                return picture
            return found.as_kind(MaskElement, inner=picture, mode=self.options.mode_of(name, is_data=False))
        if field.role == "image" and field.kind == "array":  # of any dtype and number of channels, without a decoder
            return found.as_kind(TensorElement, axis=channels_of(name, field, self.options.channels_of(name)))
        if field.role in ("boxes", "keypoints"):
            is_trusted = view.meta.layout == NATIVE and not each.path.steps and name not in self.roles
            return found.as_kind(CoordinatesElement, is_trusted=is_trusted)
        if field.role == "labels" or (field.role == "label" and classes is not None):
            return found.as_kind(ClassElement, classes=classes)
        if field.role == "mask":
            return found.as_kind(MaskElement)
        return found.as_kind(TensorElement) if field.kind == "array" else found

    def _decoder(self, choice: Element, *, is_mask: bool, is_data: bool) -> PictureDecoder:
        options, name = self.options, choice.name
        if not is_mask:
            mode = options.mode_of(name, is_data=is_data or choice.declared.role == "image")
            return options.decoder(options.decode_of(name), mode)
        decode = options.decode.get(name, "pil") if isinstance(options.decode, Mapping) else "pil"
        mode = options.mode_of(name, is_data=False)
        if decode in ("pil", "tensor", "fast"):
            decode, mode = "pil", UNCHANGED  # class ids are read from the file as it is
        # What a repair fills is grey, and would be a class id.
        return PictureDecoder(decode, mode, options.repair, 1.0, orient=False, max_pixels=options.max_pixels)


@dataclass(frozen=True)
class Joint:
    """Makes a `Sample` of the elements of a record.

    Parameters
    ----------
    declared : mapping of str to Field
        Element → its declaration, with its role.
    orient : bool
        Whether images are rotated by their EXIF orientation.
    box_format : str or None
        Format of the boxes of samples, after the transforms; as stored by default.
    classes : tuple of str or None
        The classes of the target, in the order of their class numbers, if they are known.
    images, others : tuple of int
        The places of the elements that are images, and of the rest, of which masks come first.
    """

    declared: Mapping[str, Field]
    orient: bool
    box_format: str | None
    classes: tuple[str, ...] | None
    images: tuple[int, ...]
    others: tuple[int, ...]

    def produced(self) -> dict[str, Field]:
        """Return element → declaration of its value after the transforms, of which coordinates are pixels."""
        formats = {name: self.box_format or each.format for name, each in self.declared.items() if each.role == "boxes"}
        return {
            name: dataclasses.replace(each, relative=False, format=formats.get(name, each.format))
            for name, each in self.declared.items()
        }

    def build(self, elements: Sequence[Element], records: Sequence[Record], facts: Facts) -> Sample:
        """Return the sample of a record: first its images, whose size the others need, then masks, then the rest.

        Raises
        ------
        RecordError
            A value is bad.
        """
        values: dict[str, Any] = {elements[at].name: elements[at].value(records, facts) for at in self.images}
        size, orientation = self._first_image(facts)
        # Masks, boxes and keypoints are those of the picture as stored, before it is rotated.
        facts.size = size if size is None or orientation <= 4 else (size[1], size[0])
        try:
            for at in self.others:
                element = elements[at]
                values[element.name] = value = element.value(records, facts)
                if facts.size is None and isinstance(element, MaskElement):
                    facts.size = (value.shape[-2], value.shape[-1])
            fields = self._with_instances(values)
            check_row_counts(values, fields)
        except StoredsError:
            raise
        except ValueError as error:
            raise RecordError(str(error)) from None
        values = {element.name: values[element.name] for element in elements}
        window = facts.crops[0] if facts.crops else None
        return Sample(values, fields, size or facts.size or (0, 0), orientation, window)

    def _first_image(self, facts: Facts) -> tuple[Size | None, int]:
        """Return height, width and EXIF orientation of the first image, after its rotation."""
        if facts.first is None:
            return None, 1
        picture, image = facts.first
        if picture is None:
            return _size_of(image), 1
        orientation = 1
        if self.orient:
            orientation = picture.orientation if picture.header is not None else orientation_of(picture.blob) or 1
        return picture.size or _size_of(image), orientation

    def _with_instances(self, values: Mapping[str, Any]) -> Mapping[str, Field]:
        """Return the declarations, where keypoints of kind json name the boxes whose rows they describe."""
        fields = self.declared
        for name, each in self.declared.items():
            if each.role == "keypoints" and each.kind == "json" and each.of is None:
                boxes = boxes_of(name, self.declared, values[name])
                fields = fields if boxes is None else {**fields, name: dataclasses.replace(each, of=boxes)}
        return fields


def _size_of(image: Any) -> Size | None:
    """Return (height, width) of an image; None if it is of an unknown type."""
    if isinstance(image, Image.Image):
        return image.height, image.width
    shape = tuple(getattr(image, "shape", ()))
    if isinstance(image, np.ndarray):
        return (shape[0], shape[1]) if len(shape) > 1 else None
    return (shape[-2], shape[-1]) if len(shape) > 1 else None
