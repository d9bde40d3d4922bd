"""`image`: reads an image, its label and other fields from one record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from storeds.errors import ConfigError, RecordError
from storeds.pictures.header import MAX_PIXELS
from storeds.protocols import Backend, Field
from storeds.readers.channels import channels_of
from storeds.readers.choice import Fields, choose, label_of, target_of
from storeds.readers.elements import Element, PictureElement, PixelsElement
from storeds.readers.options import Decode, Modes, PictureOptions, Positions
from storeds.readers.reader import ElementReader
from storeds.readers.rows import OneRow
from storeds.records.shapes import holds_pixels, is_mask, with_pictures
from storeds.records.verdict_fields import pictures, without_verdicts
from storeds.values.codecs import is_video

__all__ = ["bind_images", "check_one_guess", "data_of", "default_image", "image"]

_LOG = logging.getLogger("storeds")


def image(
    fields: Fields = (),
    *,
    decode: Decode | None = None,
    mode: Modes = "RGB",
    channels: Positions = None,
    repair: bool = True,
    min_recovered: float = 0.5,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> ImageSpec:
    """One record → ``{"image": …, "label": …}``.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample, in order: fields of the store, and ``"index"`` for the index of the sample, unless the
        store has a field of that name. A mapping of elements to fields renames them: ``{"pixel_values": "image"}``.
        Default: the image and, if there is one, the label: the field ``label``, or the only int
        field whose name ends in label, labels, target or targets. A store that declares no image may have one field of
        arrays in the shape of an image: uint8 with 1, 3 or 4 channels or without that dimension, or uint16 with a single
        channel, and with sides of at least 8 pixels.
    decode : str or Decoder, optional
        The default is ``"pil"``. ``"bytes"`` (unchanged and unchecked), ``"pil"``, ``"tensor"`` (uint8, channels x height x width), ``"fast"``
        (nearly the same as tensor, but faster) or a registered name.
    mode : str
        Pillow mode to which images are converted, or ``"unchanged"``. See `storeds.readers.decode_pil`.
    channels : str or mapping of str to str, optional
        Where the channels of images of kind array are, as for `array`.
    repair : bool
        Repair a JPEG that ends early before decoding it. The store never changes. If False, damage raises DecodeError.
        A picture is damaged if the verdict in its store says so or, without a verdict, if its decoder warns.
    min_recovered : float
        A picture of which a smaller share (0 to 1) is there raises DecodeError.
    orient : bool
        Rotate images according to their EXIF orientation.
    max_pixels : int
        An image that claims more pixels raises DecodeError, before memory is allocated for it.
    """
    options = PictureOptions(decode, mode, channels, repair, min_recovered, orient, max_pixels, default="pil")
    return ImageSpec(fields, options)


@dataclass(frozen=True)
class ImageSpec:
    """The options of `image`."""

    fields: Fields
    options: PictureOptions

    def bind(self, view: Backend, /) -> ElementReader:
        """Return the reader of a store; raises ConfigError if it does not fit."""
        declared = with_pictures(view.meta.fields)
        chosen = choose(view, self.fields, lambda: default_image("image", view, self.options), declared)
        data, images = bind_images(view, chosen, self.options)
        elements = tuple(images.get(each.name) or each for each in chosen)
        self.options.check(elements)
        rows, target = OneRow(len(view)), target_of(chosen, (data,))
        is_single = sum("decode" in each.options for each in elements) == 1
        return ElementReader("image", rows, elements, data, target, may_fit=is_single)


def bind_images(
    view: Backend, chosen: Sequence[Element], options: PictureOptions
) -> tuple[str | None, dict[str, PictureElement | PixelsElement]]:
    """Return the image that is the data, and those that are decoded; raises ConfigError where it is unknown how to read one."""
    names = [each.name for each in chosen if _is_image(each.name, each.declared, options)]
    data, judged = data_of(chosen, names), pictures(view.meta.fields)
    elements: dict[str, PictureElement | PixelsElement] = {}
    for each in chosen:
        if each.name not in names or options.decode_of(each.name) == "bytes":
            continue
        mode = options.mode_of(each.name, is_data=each.name == data)
        decoder = options.decoder(options.decode_of(each.name), mode)
        if each.declared.kind == "array":
            axis = channels_of(each.name, each.declared, options.channels_of(each.name))
            elements[each.name] = each.as_kind(PixelsElement, decoder=decoder, axis=axis)
        else:
            is_judged = each.source in judged
            elements[each.name] = each.as_kind(PictureElement, decoder=decoder, is_judged=is_judged)
    return data, elements


def data_of(chosen: Sequence[Element], images: Sequence[str]) -> str | None:
    """Return the image that is the data of a sample: ``image``, or the first one that is no mask by its name."""
    if "image" in images:
        return "image"
    sources = {each.name: each.source for each in chosen if each.name in images}
    named = [name for name in images if sources[name] == "image"]
    named += [name for name in images if not is_mask(name) and not is_mask(sources[name])]
    return next(iter((*named, *images)), None)


def default_image(reader: str, view: Backend, options: PictureOptions) -> tuple[str, ...]:
    """Return the image and the label of a store; raises ConfigError, which names the `reader`, if it has no image."""
    declared, fields = view.meta.fields, with_pictures(view.meta.fields)
    images = [name for name, each in fields.items() if _is_image(name, each, options)]
    check_one_guess([name for name in images if fields[name] != declared[name]], label_of(fields))
    if not images:
        kinds = ", ".join(f"{name} ({each.kind})" for name, each in without_verdicts(declared).items())
        raise ConfigError(
            f"reader {reader!r} needs a field of kind image; the store has {kinds}; reader 'array' reads any "
            f"field{_video_hint(view)}"
        )
    shown = [name for name in images if not is_mask(name)]
    chosen = "image" if "image" in images else (shown or images)[0]
    if len(shown) > 1:
        _LOG.warning(
            "the samples have the image %r alone, and each record has the images %s: for all of them, pass fields=%r",
            chosen,
            ", ".join(shown),
            [*shown, *label_of(fields)],
        )
    return (chosen, *label_of(fields))


def check_one_guess(images: Sequence[str], label: Sequence[str]) -> None:
    """Raise ConfigError if several arrays, none of which is declared an image, have the shape of one."""
    if len(images) > 1:
        raise ConfigError(
            f"the store declares no image, and the arrays {', '.join(images)} have the shape of one: pass the one to read, for "
            f"example fields={[images[0], *label]}, or several"
        )


def _is_image(name: str, declared: Field, options: PictureOptions) -> bool:
    """Whether a field holds files of images, or pixels that are declared as images."""
    pixels = declared.role == "image" and holds_pixels(declared, options.channels_of(name))
    return declared.kind == "image" or pixels


def _video_hint(view: Backend) -> str:
    """Return how to read the first field of kind bytes whose first value begins like a video."""
    names = [name for name, field in view.meta.fields.items() if field.kind == "bytes"]
    (first,) = view.get_many([0], names) if names and len(view) else ({},)
    found = {} if isinstance(first, RecordError) else first
    name = next((name for name in names if name in found and is_video(found[name])), None)
    if name is None:
        return ""
    by = "" if name == "video" else f" and reader_options={{'by': {name!r}}}"
    return f", and reader='video'{by} reads videos in {name!r}"
