"""Reads an image, its label and other fields from one record.

`ImageReader` builds the sample. `PictureDecoder` decodes one picture: verdict, repair, and only the part that a crop needs.
"""

from __future__ import annotations

import io
import logging
import mmap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import xxhash
from PIL import Image, ImageMode

from storeds._utils.arguments import check_share
from storeds.errors import ConfigError, DecodeError, StoredsError, suggest
from storeds.jpeg import MAX_PIXELS, Verdict, examine
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.formats import decode_reason, structure_problem
from storeds.jpeg.header import SOI, Header, check_scans, read_header
from storeds.protocols import (
    Array,
    Backend,
    Cropped,
    Cropper,
    CropRequest,
    Decoder,
    Field,
    Note,
    Record,
    SampleContext,
    Window,
)
from storeds.readers.base import RecordReader, channels_first, channels_of, check_channels
from storeds.readers.decoders import (
    UNCHANGED,
    as_pil,
    bad_picture,
    check_pixels,
    convert,
    decode_fast,
    decode_pil,
    decode_tensor,
    decode_windows,
    divisor,
    has_colours,
    jpeg_pixels,
    orientation_of,
    oriented,
    oriented_size,
    to_tensor,
)
from storeds.records.shapes import ChannelAxis, Channels, holds_pixels, is_mask, with_pictures
from storeds.records.verdict_fields import pictures, verdict_fields, without_verdicts
from storeds.registry import DECODERS

__all__ = ["ImageReader", "Picture", "PictureDecoder", "check_one_guess", "draw_crops", "label_of"]

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
        return PictureDecoder(decode, mode, *options, count=0 if self.cropper is None else self.count)

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
            return self._decoders[name](picture, draw_crops(self.cropper, [picture], context), context)
        return super()._element(name, source, field, record, context)

    def _inspect(self, name: str, record: Record) -> Picture:
        """Return image `name` of a record, before decoding."""
        source = self.stored_as(name)
        verdict = Verdict.of(record, source) if source in self._judged else None
        return self._decoders[name].inspect(record[source], verdict)


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


# --- One picture ---

_BUILT_IN = (decode_pil, decode_tensor, decode_fast)
_WINDOWED = (decode_tensor, decode_fast)  # can decode only the part of a picture that a window needs
_MAX_BITS = 21  # 32 MiB


class CheckedPictures:
    """The pictures that decoded without a warning, so that later epochs may skip rows that no crop needs.

    A set of 64-bit hashes of the bytes, so that a changed picture is checked again. Of very many pictures it forgets
    some. Forked workers share it. A pickled copy starts empty. Thread-safe, since each slot is one aligned word.

    Parameters
    ----------
    count : int
        Number of pictures.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        pairs = 1 << min(count.bit_length() + 1, _MAX_BITS)
        # Unused slots of anonymous memory take no space.
        self._hashes = np.frombuffer(mmap.mmap(-1, 16 * pairs), np.uint64).reshape(pairs, 2)

    def __contains__(self, blob: bytes) -> bool:
        digest = xxhash.xxh3_64_intdigest(blob)
        first, second = self._hashes[digest & (len(self._hashes) - 1)]
        return bool(digest in (first, second))

    def add(self, blob: bytes) -> None:
        """Remember a picture, in place of another one if there is no free slot."""
        digest = xxhash.xxh3_64_intdigest(blob)
        pair = self._hashes[digest & (len(self._hashes) - 1)]
        pair[int(pair[0] != 0)] = digest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._count,)


class Picture(NamedTuple):
    """A picture before decoding.

    Attributes
    ----------
    blob : bytes
    header : Header, or None
        If it is a JPEG that simplejpeg decodes to the mode of the decoder.
    orientation : int
        The EXIF orientation, 1 to 8, by which that is rotated.
    is_known : bool
        Whether the store has a verdict that it is whole.
    damage : Verdict, or None
        What is known of its damage before decoding.
    may_crop : bool
        Whether a part of it may be enough for a crop.
    """

    blob: bytes
    header: Header | None
    orientation: int
    is_known: bool
    damage: Verdict | None
    may_crop: bool

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width after the rotation, if they are known before decoding."""
        return None if self.header is None else oriented_size(self.header, self.orientation)


@dataclass(frozen=True)
class PictureDecoder:
    """Decodes pictures with one set of options, which `storeds.readers.ImageReader` describes. Thread-safe.

    Parameters
    ----------
    decode, mode, repair, min_recovered, orient, max_pixels, strided
        As for `ImageReader`.
    count : int
        Number of pictures of which only crops are needed.
    """

    decode: str | Decoder
    mode: str
    repair: bool
    min_recovered: float
    orient: bool
    max_pixels: int
    strided: bool = False
    count: int = 0
    _function: Decoder = field(init=False, repr=False, compare=False)
    _checked: CheckedPictures | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        function: Any = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
        if self.orient and function not in _BUILT_IN:
            raise ConfigError(f"decoder {self.decode!r} does not support orient; pil, tensor and fast do")
        object.__setattr__(self, "_function", function)
        checked = CheckedPictures(self.count) if self.count and function in _WINDOWED else None
        object.__setattr__(self, "_checked", checked)

    def inspect(self, blob: bytes, stored: Verdict | None) -> Picture:
        """Return a picture with what is known of it before decoding; raises DecodeError if it is too large.

        Parameters
        ----------
        blob : bytes
        stored : Verdict or None
            The verdict in the store.
        """
        is_built_in, header, orientation = self._function in _BUILT_IN, read_header(blob), None
        if header is not None:
            check_pixels(header.width, header.height, self.max_pixels)
            orientation = orientation_of(blob, header) if self.orient else 1
            if orientation is None or not (is_built_in and has_colours(header, self.mode)):
                header = None
        verdict = stored
        # Pillow hides the warnings of libjpeg, and does not find all damage of other formats.
        if verdict is None and header is None and (blob.startswith(SOI) or structure_problem(blob)[0]):
            verdict = examine(blob)
        is_damaged = verdict is not None and not verdict.is_whole
        if verdict is not None and verdict.finding == "not_jpeg" and not is_built_in:
            is_damaged = False  # a decoder of the user may support formats that `examine` does not know
        is_known = stored is not None and not is_damaged
        may_crop = False
        if self._checked is not None and header is not None and header.in_one_scan and not is_damaged:
            # `_windows` checks pictures for `decode_fast`.
            may_crop = is_known or self._function is decode_fast or blob in self._checked
        return Picture(blob, header, orientation or 1, is_known, verdict if is_damaged else None, may_crop)

    def __call__(self, picture: Picture, crops: Sequence[CropRequest], context: SampleContext) -> Any:
        """Decode a picture; raises DecodeError. With `crops`, which `draw_crops` drew, return a `Cropped` with their windows.

        A picture that nobody knows to be damaged is decoded strictly. Damage that this finds is handled like damage that was
        known before: what is left is repaired and noted, or DecodeError is raised.
        """
        blob, damage = picture.blob, picture.damage
        if damage is None and self._function in _BUILT_IN:
            try:
                return self._strictly(picture, crops)
            except (StoredsError, MemoryError):
                raise
            except Exception:  # including warnings of libjpeg, which may be about the header only
                found = examine(blob)
                damage = None if found.is_whole else found
        note = None if damage is None else self._note_of(blob, damage)
        try:
            image = self._decode(blob if damage is None else repair_jpeg(blob))
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # damaged bytes make decoders raise errors of any type
            kind = DecodeError.kind if damage is None else damage.finding
            raise bad_picture(
                f"the image cannot be decoded ({_beginning(blob)}): {decode_reason(error)}", kind
            ) from error
        if note is not None:
            context.notes.append(note)
        return _cropped(image, crops) if crops else image

    def of_pixels(self, pixels: Array) -> Any:
        """Return pixels, channels × height × width, as this decoder returns a file of them; other decoders get a PNG.

        Parameters
        ----------
        pixels : array
            uint8, or uint16 of a single channel.

        Raises
        ------
        DecodeError
            The array does not have three dimensions, the first of 1, 3 or 4 channels, or has no pixels.
        """
        if pixels.ndim != 3 or len(pixels) not in (1, 3, 4) or not pixels.size:
            raise DecodeError(
                f"an array of shape {pixels.shape} is no image of 1, 3 or 4 channels with pixels; reader='array' reads it"
            )
        rows = np.ascontiguousarray(pixels.transpose(1, 2, 0))
        image = Image.fromarray(rows[..., 0] if rows.shape[2] == 1 else rows)
        image = convert(image, self.mode)
        if self._function is decode_pil:
            return image
        if self._function in _WINDOWED:
            return to_tensor(np.array(image), self.strided)
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=1)
        return self._function(file.getvalue(), self.mode)

    def _decode(self, blob: bytes) -> Any:
        """Decode the whole picture by a decoder that reports no warnings."""
        if self._function not in _BUILT_IN:
            return self._function(blob, self.mode)
        options: dict[str, Any] = {"strided": self.strided} if self._function in _WINDOWED else {}
        decode: Any = self._function
        return decode(blob, self.mode, orient=self.orient, max_pixels=self.max_pixels, **options)

    def _strictly(self, picture: Picture, crops: Sequence[CropRequest]) -> Any:
        """Decode the image, or the windows of the crops; raise an error of any type if it may be damaged."""
        blob, header, orientation, is_known = picture[:4]
        if header is None:
            image = self._decode(blob)
            return _cropped(image, crops) if crops else image
        windows = self._windows(picture, header, crops) if crops else None
        if windows is not None:
            return Cropped(windows)
        pixels = jpeg_pixels(blob, header, shortcuts=self._function is decode_fast)
        if not is_known:
            # libjpeg does not notice a missing scan. With a single scan, it notices all damage.
            if not header.in_one_scan:
                check_scans(blob)
            elif self._checked is not None:
                self._checked.add(blob)
        if self._function is decode_pil:
            return as_pil(pixels, blob, orient=self.orient)
        image = to_tensor(oriented(pixels, orientation), self.strided)
        return _cropped(image, crops) if crops else image

    def _windows(self, picture: Picture, header: Header, crops: Sequence[CropRequest]) -> tuple[Any, ...] | None:
        """Decode the windows of the crops of a picture that is known to be whole; None if all of it must be decoded."""
        blob = picture.blob
        if not picture.is_known and self._checked is not None and blob not in self._checked:
            if all(divisor(crop) == 1 for crop in crops):
                return None
            # Decoding at a fraction of the size gives different pixels. They must not depend on what was read before.
            if not examine(blob).is_whole:
                return None
            self._checked.add(blob)
        return decode_windows(self._function, blob, self.mode, header, crops, orientation=picture.orientation)

    def _note_of(self, blob: bytes, damage: Verdict) -> Note:
        """Return the note of a repair; raise DecodeError if the options do not allow to repair this damage."""
        reason = damage.reason or f"the store's verdict: {damage.finding}"
        if damage.recovered == 0.0:
            raise bad_picture(f"the image cannot be decoded ({_beginning(blob)}): {reason}", damage.finding)
        if not self.repair:
            what = f"and repair is off; {damage.share} of it is there: {reason}"
            raise bad_picture(f"the image is damaged, {what}", damage.finding)
        if not damage.recovered >= self.min_recovered:
            least = f"less than min_recovered={self.min_recovered}"
            raise bad_picture(f"the image is damaged: {damage.share} of it is there, {least}; {reason}", damage.finding)
        return Note(damage.finding, f"a damaged picture was repaired; {damage.share} of it is there: {reason}")


def draw_crops(cropper: Cropper | None, pictures: Collection[Picture], context: SampleContext) -> Sequence[CropRequest]:
    """Draw the crops with which the transforms begin, if a part of each picture may be enough; otherwise nothing.

    They are for the size of the pictures after the rotation of their EXIF orientation. They are drawn once, also for
    pictures of which all turns out to be needed: a transform would draw other windows.
    """
    if cropper is None or not all(picture.may_crop for picture in pictures):
        return ()
    size, *others = {picture.size for picture in pictures} or {None}
    return () if others or size is None else cropper.crops(*size, context.generator)


def _cropped(image: Any, crops: Sequence[CropRequest]) -> Cropped:
    """Cut the windows of crops out of a whole image, a tensor."""
    return Cropped(tuple(_cut(image, window) for window, _ in crops))


def _cut(image: Any, window: Window) -> Any:
    """Cut a window out of a tensor. Outside the image it is zero."""
    top, left, height, width = window
    first_row, first_column = max(top, 0), max(left, 0)
    inside = image[:, first_row : max(top + height, 0), first_column : max(left + width, 0)]
    if inside.shape[1:] == (height, width):
        return inside
    padded = image.new_zeros((len(image), height, width))
    row, column = first_row - top, first_column - left
    padded[:, row : row + inside.shape[1], column : column + inside.shape[2]] = inside
    return padded


def _beginning(blob: bytes) -> str:
    return f"{len(blob)} bytes beginning {blob[:4].hex(' ')}" if blob else "it is empty"
