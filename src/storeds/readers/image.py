"""Reads an image, its label and other fields from one record: verdict, repair, decoding."""

from __future__ import annotations

import functools
import inspect
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import xxhash
from PIL import ImageMode

from storeds._utils.arguments import check_share
from storeds.errors import ConfigError, DecodeError, StoredsError, suggest
from storeds.jpeg import MAX_PIXELS, Verdict, check_other, examine, sniff, triage
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.markers import SOI, Header, parse, read_header
from storeds.protocols import (
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
from storeds.readers.base import RecordReader
from storeds.readers.decoders import (
    UNCHANGED,
    check_jpeg,
    check_pixels,
    decode_fast,
    decode_pil,
    decode_reason,
    decode_tensor,
    decode_windows,
    divisor,
    orientation_of,
    oriented_size,
)
from storeds.records.fields import is_mask, verdict_field
from storeds.registry import DECODERS

__all__ = ["ImageReader", "PictureReader", "label_of"]


_BUILT_IN = (decode_pil, decode_tensor, decode_fast)  # with strict=True they raise for warnings of libjpeg
_WINDOWED = (decode_tensor, decode_fast)  # can decode only the part of a picture that a window needs
_LOOKS_WHOLE = "the verdict in its store says so, although its bytes look whole now"
_LABELS = ("label", "labels", "target", "targets")


_MAX_BITS = 21  # 32 MiB


class CheckedPictures:
    """The pictures that decoded without a warning, so that later epochs may skip rows that no crop needs.

    A set of 64-bit hashes of the bytes, so that a changed picture is checked again.

    Parameters
    ----------
    count : int
        Number of pictures. The set forgets some of very many.

    Notes
    -----
    Forked workers share it. A pickled copy starts empty. Thread-safe, since each slot is one aligned word. Unused slots
    take no memory.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        pairs = 1 << min(count.bit_length() + 1, _MAX_BITS)
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


class _Part(NamedTuple):
    """What to decode of a picture: the crops, drawn for its size after the rotation of its EXIF orientation."""

    header: Header
    orientation: int
    crops: Sequence[CropRequest]


@dataclass(frozen=True)
class PictureReader(RecordReader):
    """Base of readers that decode images. `ImageReader` describes the parameters."""

    internal: ClassVar[tuple[str, ...]] = (*RecordReader.internal, "strided", "cropper")

    decode: str | Decoder = "pil"
    mode: str | Mapping[str, str] = "RGB"
    repair: bool = True
    min_recovered: float = 0.5
    orient: bool = False
    max_pixels: int = MAX_PIXELS
    strided: bool = False
    cropper: Cropper | None = None
    _modes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    _verdicts: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    _function: Decoder = field(init=False, repr=False, compare=False)
    _decoder: Decoder = field(init=False, repr=False, compare=False)
    _strict: Callable[..., Any] | None = field(init=False, repr=False, compare=False)
    _checked: CheckedPictures | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        function: Decoder = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
        decoder = self._with_options(function)
        strict = functools.partial(decoder, strict=True) if function in _BUILT_IN else None  # type: ignore[call-arg]
        checked = CheckedPictures(self.count) if self.cropper is not None and function in _WINDOWED else None
        parts = {"_function": function, "_decoder": decoder, "_strict": strict, "_checked": checked}
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def _check(self) -> None:
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            _check_mode(mode)
        if not isinstance(self.repair, bool):
            raise ConfigError(f"repair must be True or False, got {self.repair!r}")
        check_share("min_recovered", self.min_recovered)
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int) or self.max_pixels < 1:
            raise ConfigError(f"max_pixels must be a positive number of pixels, got {self.max_pixels!r}")

    def _with_options(self, decoder: Decoder) -> Decoder:
        """Return the decoder with the options that it accepts. With `orient` it must accept that option."""
        accepted = _parameters(decoder)
        if self.orient and "orient" not in accepted and self.decode != "bytes":
            raise ConfigError(f"decoder {self.decode!r} does not support orient; pil, tensor and fast do")
        options = {"orient": self.orient, "max_pixels": self.max_pixels, "strided": self.strided}
        options = {name: value for name, value in options.items() if name in accepted}
        return functools.partial(decoder, **options) if options else decoder

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        bound = super().bind(backend)
        known = () if self.decode == "bytes" else backend.meta.verdicts
        verdicts = {name: verdict_field(name) for name in bound._images() if name in known}
        return replace(bound, _modes=bound._modes_by_element(), _verdicts=verdicts)

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return (*super().stored, *self._verdicts.values())

    def _modes_by_element(self) -> dict[str, str]:
        """Return the mode of each image of a sample. Further images, such as masks, keep the values of their files."""
        images = self._images()
        if isinstance(self.mode, str):
            return {name: self.mode if name == self.data else UNCHANGED for name in images}
        for name in self.mode:
            if name not in images:
                raise ConfigError(
                    f"mode names {name!r}, which is not an image of a sample; {suggest(name, images, 'images')}"
                )
        return {name: "RGB" if name == self.data else UNCHANGED for name in images} | dict(self.mode)

    def _images(self) -> list[str]:
        return [name for name, declared in zip(self.fields, self.kinds, strict=False) if declared.kind == "image"]

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        images = [name for name, declared in fields.items() if declared.kind == "image"]
        if not images:
            kinds = ", ".join(f"{name} ({declared.kind})" for name, declared in fields.items())
            raise ConfigError(
                f"{type(self).__name__} needs a field of kind image; the store has {kinds}; "
                f"reader 'array' reads any field{_video_hint(fields)}"
            )
        return ("image" if "image" in images else images[0], *label_of(fields))

    @property
    def data(self) -> str | None:
        # docstring inherited
        images = self._images()
        if "image" in images:
            return "image"
        return next((name for name in images if not is_mask(name)), images[0] if images else None)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        images = {name: self._image(name, records[0], context) for name in self._images()}
        return super().build([{**records[0], **images}], context) if images else super().build(records, context)

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        return value

    def _image(self, name: str, record: Record, context: SampleContext) -> Any:
        """Decode the image in field `name` of a record, or the part of it that a crop needs."""
        value, mode = record[name], self._modes[name]
        if self.decode == "bytes":
            return self._decoder(value, mode)
        header = read_header(value)
        if header is not None:
            check_pixels(header.width, header.height, self.max_pixels)
        verdict = self._stored_verdict(name, record) or self._before_decoding(value)
        # A third-party decoder may support formats that `examine` does not know.
        if verdict is not None and not verdict.is_whole and (verdict.kind != "not_jpeg" or self._strict is not None):
            return self._repaired(value, mode, verdict, context)
        part = self._drawn(value, header, verdict, context)
        image = self._judged(value, mode, header, verdict, part, context)
        return image if part is None or isinstance(image, Cropped) else _cropped(image, part.crops)

    def _stored_verdict(self, name: str, record: Record) -> Verdict | None:
        """Return the stored verdict on the image in field `name`, or None if there is none."""
        stored = self._verdicts.get(name)
        try:
            return Verdict.from_text(record[stored]) if stored is not None else None
        except ValueError as error:
            raise _refused(f"{error}; storeds verify lists such records", "record") from None

    def _judged(
        self,
        value: bytes,
        mode: str,
        header: Header | None,
        verdict: Verdict | None,
        part: _Part | None,
        context: SampleContext,
    ) -> Any:
        """Decode a picture that no verdict calls damaged; repair it if its decoder finds damage."""
        if self._strict is not None:
            try:
                return self._whole(value, mode, header, verdict, part)
            except (StoredsError, MemoryError):
                raise
            except Exception:  # including warnings of libjpeg, which may be about the header only
                verdict = examine(value)
                if not verdict.is_whole and verdict.kind != "not_jpeg":
                    return self._repaired(value, mode, verdict, context)
        return self._decoded(value, value, mode, verdict)

    def _before_decoding(self, value: bytes) -> Verdict | None:
        """Return the verdict on a picture without a stored one, or None if decoding will find the damage."""
        if not value.startswith(SOI):
            return check_other(value)
        return None if self._strict is not None else examine(value)

    def _drawn(
        self, value: bytes, header: Header | None, verdict: Verdict | None, context: SampleContext
    ) -> _Part | None:
        """Draw the crops that the transform begins with, if a part of the picture may be enough for them."""
        if self._checked is None or self.cropper is None or header is None or not header.in_one_scan:
            return None
        if verdict is None and self._function is not decode_fast and value not in self._checked:
            return None
        orientation = orientation_of(value, header) if self.orient else 1
        if orientation is None:
            return None
        height, width = oriented_size(header, orientation)
        # Drawn once, also for pictures of which all must be decoded: a transform would draw other windows.
        crops = self.cropper.crops(height, width, context.generator)
        return _Part(header, orientation, crops) if crops else None

    def _whole(
        self, value: bytes, mode: str, header: Header | None, verdict: Verdict | None, part: _Part | None
    ) -> Any:
        """Decode the image, or the part that the crops need; raise an error of any type if it may be damaged."""
        assert self._strict is not None
        if self._is_known(value, verdict, part):
            images = None
            if part is not None:
                images = decode_windows(
                    self._function, value, mode, part.header, part.crops, orientation=part.orientation
                )
            return self._strict(value, mode, examined=True) if images is None else Cropped(images)
        image = self._strict(value, mode)
        # libjpeg does not notice a missing scan. With a single scan, it notices all damage.
        in_one_scan = header is not None and header.in_one_scan
        if not in_one_scan and triage(value).is_damaged:
            raise ValueError("its structure is damaged")
        if self._checked is not None and in_one_scan:
            self._checked.add(value)
        return image

    def _is_known(self, value: bytes, verdict: Verdict | None, part: _Part | None) -> bool:
        """Return whether a picture is known to be whole; raise ValueError if a check here finds damage."""
        if verdict is not None or part is None or self._checked is None:
            return verdict is not None
        if value in self._checked:
            return True
        if all(divisor(window, size) == 1 for window, size in part.crops):
            return False
        # Decoding at a fraction of the size gives different pixels. They must not depend on what was read before.
        check_jpeg(value)
        self._checked.add(value)
        return True

    def _repaired(self, value: bytes, mode: str, verdict: Verdict, context: SampleContext) -> Any:
        """Repair and decode a damaged picture, and note it; raise DecodeError if the options do not allow it."""
        reason = verdict.reason or _visible_damage(value, verdict.kind) or _LOOKS_WHOLE
        if not self.repair:
            raise _refused(f"the image is damaged, and repair is off: {reason}", verdict.kind)
        if verdict.recovered == 0.0 and verdict.exact:
            raise _refused(f"the image cannot be decoded ({_beginning(value)}): {reason}", verdict.kind)
        if verdict.recovered < self.min_recovered:
            raise _refused(
                f"the image is damaged: {verdict.share} of it is there, "
                f"less than min_recovered={self.min_recovered}; {reason}",
                verdict.kind,
            )
        image = self._decoded(value, repair_jpeg(value), mode, verdict)
        context.notes.append(
            Note(verdict.kind, f"a damaged picture was repaired; {verdict.share} of it is there: {reason}")
        )
        return image

    def _decoded(self, value: bytes, blob: bytes, mode: str, verdict: Verdict | None) -> Any:
        """Decode `blob`, which is `value` or a repaired copy of it."""
        try:
            return self._decoder(blob, mode)
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # damaged bytes make decoders raise errors of any type
            kind = DecodeError.kind if verdict is None or verdict.is_whole else verdict.kind
            what = f"{_beginning(value)}, {sniff(value)}" if kind == "not_jpeg" and value else _beginning(value)
            raise _refused(f"the image cannot be decoded ({what}): {decode_reason(error)}", kind) from error


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


def _beginning(value: bytes) -> str:
    return f"{len(value)} bytes beginning {value[:4].hex(' ')}" if value else "it is empty"


def _visible_damage(value: bytes, kind: str) -> str:
    """Return the damage that the structure of a picture shows, or an empty text; `kind` is its stored verdict."""
    if value.startswith(SOI):
        structure = parse(value)
        if structure.ending == "cut" and kind == "missing_eoi":
            return f"there is no end marker at byte {structure.end}"
        pixels = "" if structure.scans else ", before any pixel"
        return f"it is cut {structure.reason}{pixels}" if structure.ending == "cut" else structure.reason
    found = check_other(value)
    if found is None:
        return f"it is not a JPEG but {sniff(value)}"
    return "" if found.is_whole else found.reason


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


def _parameters(decoder: Decoder) -> list[str]:
    try:
        return list(inspect.signature(decoder).parameters)
    except ValueError:  # a built-in function has no signature
        return []


def _refused(reason: str, kind: str) -> DecodeError:
    error = DecodeError(reason)
    error.kind = kind
    return error


@dataclass(frozen=True)
class ImageReader(PictureReader):
    """One record → ``{"image": …, "label": …}``.

    Parameters
    ----------
    fields : sequence of str, optional
        Elements of a sample. Default: the image and, if there is one, the label: the field ``label``, or the only int
        field whose name ends in label, labels, target or targets.
    decode : str or Decoder
        ``"bytes"`` (unchanged and unchecked), ``"pil"``, ``"tensor"`` (uint8, channels x height x width), ``"fast"``
        (nearly the same as tensor, but faster) or a registered name.
    mode : str
        Pillow mode to which images are converted, or ``"unchanged"``. See `storeds.readers.decode_pil`.
    repair : bool
        Repair a damaged JPEG before decoding it. The store never changes. If False, damage raises DecodeError. A
        picture is damaged if the verdict in its store says so or, without a verdict, if its decoder warns.
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
