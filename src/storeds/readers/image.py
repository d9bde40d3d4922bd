"""Reads an image, its label and other fields from one record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from PIL import ImageMode

from storeds._utils.arguments import check_share
from storeds.errors import ConfigError, suggest
from storeds.pictures import MAX_PIXELS, Verdict
from storeds.pictures.decode import Picture, PictureDecoder, draw_crops
from storeds.pictures.decoders import UNCHANGED
from storeds.protocols import Backend, Cropper, CropRequest, Decoder, Field, Record, SampleContext
from storeds.readers.base import RecordReader, channels_first, channels_of, check_channels
from storeds.records.shapes import ChannelAxis, Channels, holds_pixels, is_mask, with_pictures
from storeds.records.verdict_fields import pictures, verdict_fields, without_verdicts

__all__ = ["ImageReader", "check_one_guess", "label_of"]

_LOG = logging.getLogger("storeds")
_LABELS = ("label", "labels", "target", "targets")


@dataclass(frozen=True)
class ImageReader(RecordReader):
    """One record → ``{"image": …, "label": …}``.

    Parameters
    ----------
    fields : sequence of str, optional
        Elements of a sample. Default: the image and, if there is one, the label: the field ``label``, or the only int
        field whose name ends in label, labels, target or targets. A store that declares no image may have one field of
        arrays in the shape of an image: uint8 with 1, 3 or 4 channels or without that dimension, or uint16 with a single
        channel, and with sides of at least 8 pixels.
    decode : str or Decoder
        ``"bytes"`` (unchanged and unchecked), ``"pil"``, ``"tensor"`` (uint8, channels x height x width), ``"fast"``
        (nearly the same as tensor, but faster) or a registered name.
    mode : str
        Pillow mode to which images are converted, or ``"unchanged"``. See `storeds.readers.decode_pil`.
    channels : str or mapping of str to str, optional
        Where the channels of images of kind array are, as for `ArrayReader`.
    repair : bool
        Repair a JPEG that ends early before decoding it. The store never changes. If False, damage raises DecodeError.
        A picture is damaged if the verdict in its store says so or, without a verdict, if its decoder warns.
    min_recovered : float
        A picture of which a smaller share (0 to 1) is there raises DecodeError.
    orient : bool
        Rotate images according to their EXIF orientation.
    max_pixels : int
        An image that claims more pixels raises DecodeError, before memory is allocated for it.
    strided : bool
        Keep the channels of a tensor last in memory, as the decoder writes them, which saves a copy. Shape and values
        are the same. A dataset with built-in transforms does this itself, and returns contiguous tensors.
    """

    internal: ClassVar[tuple[str, ...]] = (*RecordReader.internal, "strided", "cropper")

    decode: str | Decoder | Mapping[str, str | Decoder] = "pil"
    mode: str | Mapping[str, str] = "RGB"
    repair: bool = True
    min_recovered: float = 0.5
    orient: bool = False
    max_pixels: int = MAX_PIXELS
    strided: bool = False
    cropper: Cropper | None = None
    """The crop with which the transforms begin. Only a part of a picture is decoded, where that is enough."""
    channels: Channels | Mapping[str, Channels] | None = None
    _judged: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """The stored images that have a verdict."""
    _decoders: Mapping[str, PictureDecoder] = field(init=False, repr=False, compare=False)
    """The decoders of the images that are decoded."""
    _layouts: Mapping[str, ChannelAxis] = field(init=False, repr=False, compare=False)
    """Where the channels of images of kind array are."""

    def __post_init__(self) -> None:
        self._check()
        decoders = {name: self._decoder(name) for name in self._images() if self._decode_of(name) != "bytes"}
        object.__setattr__(self, "_decoders", decoders)
        arrays = {name: self._array(name) for name in self._array_images()}
        layouts = {name: channels_of(name, each, self._channels_of(name), self.fields) for name, each in arrays.items()}
        object.__setattr__(self, "_layouts", layouts)

    def _check(self) -> None:
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            _check_mode(mode)
        if not isinstance(self.repair, bool):
            raise ConfigError(f"repair must be True or False, got {self.repair!r}")
        check_share("min_recovered", self.min_recovered)
        check_channels(self.channels)
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int) or self.max_pixels < 1:
            raise ConfigError(f"max_pixels must be a positive number of pixels, got {self.max_pixels!r}")
        for decode in self.decode.values() if isinstance(self.decode, Mapping) else (self.decode,):
            if decode != "bytes":
                self._make_decoder(decode, "RGB")

    def _make_decoder(self, decode: str | Decoder, mode: str) -> PictureDecoder:
        options = (self.repair, self.min_recovered, self.orient, self.max_pixels, self.strided)
        return PictureDecoder(decode, mode, *options)

    def _decoder(self, name: str) -> PictureDecoder:
        """Return the decoder of image `name`."""
        return self._make_decoder(self._decode_of(name), self._mode_of(name))

    def _decode_of(self, name: str) -> str | Decoder:
        if isinstance(self.decode, Mapping):
            default: Any = type(self).decode
            return self.decode.get(name, default)
        return self.decode

    def _mode_of(self, name: str) -> str:
        """Return the mode of an image. Further images, such as masks, keep the values of their files."""
        modes = self.mode if isinstance(self.mode, Mapping) else {}
        default = self.mode if isinstance(self.mode, str) else "RGB"
        return modes.get(name, default if name == self.data else UNCHANGED)

    def _channels_of(self, name: str) -> Channels | None:
        """Return what the user says about the channels of an image."""
        return self.channels.get(name) if isinstance(self.channels, Mapping) else self.channels

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        return super().bind(backend)._with_images(backend)

    def _with_images(self, backend: Backend) -> Self:
        """Finish the binding of a reader whose elements are known."""
        for option in ("decode", "mode"):
            _check_names(option, getattr(self, option), self._images(), "image")
        _check_names("channels", self.channels, [*self._layouts], "array image")
        judged = frozenset(map(self.stored_as, self._decoders)) & pictures(backend.meta.fields).keys()
        return replace(self, _judged=judged)

    def _with_pictures(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        """Return the fields of a store, in which those that this reader takes for images have a role."""
        return with_pictures(fields)

    def _declaration(self, source: str, declared: Mapping[str, Field]) -> Field | None:
        return self._with_pictures(declared).get(source)

    def without_effect(self) -> dict[str, str]:
        # docstring inherited
        images = [name for name in self._images() if not self._is_mask(name)]
        decoded = [name for name in images if name in self._decoders]
        found: dict[str, str] = {}
        if all(name in self._layouts for name in decoded):
            found |= dict.fromkeys(("repair", "min_recovered", "orient"), "images in files that are decoded")
        elif not self.repair:
            found["min_recovered"] = "images that are repaired, which repair=False does not"
        if all(name in self._layouts for name in self._decoders):
            found["max_pixels"] = "images in files that are decoded"
        if not decoded and isinstance(self.mode, str):
            found["mode"] = "images that are decoded"
        if not images and not isinstance(self.decode, Mapping):
            found["decode"] = "images that are decoded"
        return found if self._layouts else {**found, "channels": "images of kind array"}

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return tuple(dict.fromkeys((*super().stored, *self._verdict_fields())))

    def _verdict_fields(self) -> list[str]:
        return [name for image in sorted(self._judged) for name in verdict_fields(image)]

    def _images(self) -> list[str]:
        return [name for name, each in zip(self.fields, self.kinds, strict=False) if self._is_image(name, each)]

    def _is_image(self, name: str, declared: Field) -> bool:
        """Whether a field holds files of images, or pixels that are declared as images."""
        pixels = declared.role == "image" and holds_pixels(declared, self._channels_of(name))
        return declared.kind == "image" or pixels

    def _is_mask(self, name: str) -> bool:
        """Whether an image holds class ids, which are read as they are."""
        return False

    def _array(self, name: str) -> Field:
        """Return the declaration of an image of kind array."""
        return self._field(name)

    def _array_images(self) -> list[str]:
        return [name for name in self._decoders if self._array(name).kind == "array"]

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        declared, fields = fields, self._with_pictures(fields)
        images = [name for name, each in fields.items() if self._is_image(name, each)]
        check_one_guess([name for name in images if fields[name] != declared[name]], label_of(fields))
        if not images:
            kinds = ", ".join(f"{name} ({declared.kind})" for name, declared in without_verdicts(fields).items())
            raise ConfigError(
                f"{type(self).__name__} needs a field of kind image; the store has {kinds}; "
                f"reader 'array' reads any field{_video_hint(fields)}"
            )
        pictures = [name for name in images if not is_mask(name)]
        chosen = "image" if "image" in images else (pictures or images)[0]
        if len(pictures) > 1:
            _LOG.warning(
                "the samples have the image %r alone, and each record has the images %s: for all of them, pass fields=%r",
                chosen,
                ", ".join(pictures),
                [*pictures, *label_of(fields)],
            )
        return (chosen, *label_of(fields))

    @property
    def data(self) -> str | None:
        # docstring inherited
        images = self._images()
        if "image" in images:
            return "image"
        sources = {name: self.stored_as(name) for name in images}
        named = [name for name in images if sources[name] == "image"]
        named += [name for name in images if not is_mask(name) and not is_mask(sources[name])]
        return next(iter((*named, *images)), None)

    def _element(self, name: str, source: str, field: Field, record: Record, context: SampleContext) -> Any:
        if name in self._decoders and name in self._layouts:
            return self._decoders[name].of_pixels(channels_first(record[source], self._layouts[name]))
        if name in self._decoders:
            picture = self._inspect(name, record)
            return self._picture(name, picture, draw_crops(self.cropper, [picture], context), context)
        return super()._element(name, source, field, record, context)

    def _inspect(self, name: str, record: Record) -> Picture:
        """Return image `name` of a record, before decoding."""
        source = self.stored_as(name)
        verdict = Verdict.of(record, source) if source in self._judged else None
        return self._decoders[name].look(record[source], verdict)

    def _picture(self, name: str, picture: Picture, crops: Sequence[CropRequest], context: SampleContext) -> Any:
        """Return a decoded picture, and note its repair."""
        image, repair = self._decoders[name].decode(picture, crops)
        if repair is not None:
            context.notes.append(repair)
        return image


def check_one_guess(images: Sequence[str], label: Sequence[str]) -> None:
    """Raise ConfigError if several arrays, none of which is declared an image, have the shape of one."""
    if len(images) > 1:
        raise ConfigError(
            f"the store declares no image, and the arrays {', '.join(images)} have the shape of one: pass the one to read, for "
            f"example fields={[images[0], *label]}, or several"
        )


def _check_names(option: str, given: Any, images: Sequence[str], what: str) -> None:
    names: Iterable[str] = given if isinstance(given, Mapping) else ()
    for name in names:
        if name not in images:
            raise ConfigError(
                f"{option} names {name!r}, which is not an {what} of a sample; {suggest(name, images, f'{what}s')}"
            )


def _check_mode(mode: Any) -> None:
    try:
        known = isinstance(mode, str) and (mode == UNCHANGED or bool(ImageMode.getmode(mode)))
    except KeyError:
        known = False
    if not known:
        raise ConfigError(f"mode {mode!r} is neither 'unchanged' nor a Pillow mode such as RGB, L or RGBA")


def _video_hint(fields: dict[str, Field]) -> str:
    """Return how to read the first field of kind bytes, in case it holds videos."""
    name = next((name for name, field in fields.items() if field.kind == "bytes"), None)
    if name is None:
        return ""
    by = "" if name == "video" else f" and reader_options={{'by': {name!r}}}"
    return f", and reader='video'{by} reads videos in {name!r}"


def label_of(fields: dict[str, Field]) -> tuple[str, ...]:
    """Return the field of the label: ``label``, or the only int field with a usual name of labels."""
    if "label" in fields:
        return ("label",)
    named = [name for name, field in fields.items() if field.kind == "int" and name.endswith(_LABELS)]
    return tuple(named) if len(named) == 1 else ()
