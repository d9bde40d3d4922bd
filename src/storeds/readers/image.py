"""Reads one image, with its label and whatever else is asked for, from one record."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from PIL import ImageMode

from storeds._utils.roi import Cropper, Window, Windowed, divisor
from storeds._utils.validation import check_share
from storeds.errors import ConfigError, DecodeError, StoredsError, suggest
from storeds.jpeg import MAX_PIXELS, Verdict, check_other, examine, sniff, triage
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.markers import SOI, Header, parse, read_header
from storeds.protocols import Backend, Decoder, Field, Note, Record, SampleContext
from storeds.readers.base import RecordReader
from storeds.readers.checked import CheckedPictures
from storeds.readers.decoders import (
    UNCHANGED,
    check_pixels,
    decode_fast,
    decode_pil,
    decode_reason,
    decode_tensor,
    decode_window,
)
from storeds.readers.simplejpeg import check_jpeg
from storeds.records.fields import is_mask, verdict_field
from storeds.registry import DECODERS

__all__ = ["ImageReader", "PictureReader", "label_of"]


_BUILT_IN = (decode_pil, decode_tensor, decode_fast)  # which raise where libjpeg warns, if they are asked to
_WINDOWED = (decode_tensor, decode_fast)  # which decode no more of a picture than a window needs
_LOOKS_WHOLE = "its store's verdict says so, though its bytes look whole now"
_LABELS = ("label", "labels", "target", "targets")


@dataclass(frozen=True)
class PictureReader(RecordReader):
    """Base of readers of pictures; `storeds.readers.image.ImageReader` says what each parameter means."""

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
            raise ConfigError(f"repair is True or False, got {self.repair!r}")
        check_share("min_recovered", self.min_recovered)
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int) or self.max_pixels < 1:
            raise ConfigError(f"max_pixels is a number of pixels, got {self.max_pixels!r}")

    def _with_options(self, decoder: Decoder) -> Decoder:
        """Return the decoder with those options that it takes; it must take `orient` where that is asked for."""
        accepted = _parameters(decoder)
        if self.orient and "orient" not in accepted and self.decode != "bytes":
            raise ConfigError(f"decoder {self.decode!r} takes no orient; pil, tensor and fast do")
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
        """Return the mode of each image of a sample: what is no image of colours keeps the values of its file."""
        images = self._images()
        if isinstance(self.mode, str):
            return {name: self.mode if name == self.data else UNCHANGED for name in images}
        for name in self.mode:
            if name not in images:
                raise ConfigError(
                    f"mode names {name!r}, which is no image of a sample; {suggest(name, images, 'images')}"
                )
        return {name: "RGB" if name == self.data else UNCHANGED for name in images} | dict(self.mode)

    def _images(self) -> list[str]:
        return [name for name, declared in zip(self.fields, self.kinds, strict=False) if declared.kind == "image"]

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        images = [name for name, declared in fields.items() if declared.kind == "image"]
        if not images:
            kinds = ", ".join(f"{name} ({declared.kind})" for name, declared in fields.items())
            raise ConfigError(
                f"{type(self).__name__} needs a field of kind image; the store has {kinds}; reader 'array' takes any{_films(fields)}"
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
        """Return the image in field `name` of a record, decoded, or as much of it as a crop needs."""
        value, mode = record[name], self._modes[name]
        if self.decode == "bytes":
            return self._decoder(value, mode)
        header = read_header(value)
        if header is not None:
            check_pixels(header.width, header.height, self.max_pixels)
        verdict = self._stored_verdict(name, record) or self._before_decoding(value)
        # A decoder of somebody else's may know formats that examining does not.
        if verdict is not None and not verdict.is_whole and (verdict.kind != "not_jpeg" or self._strict is not None):
            return self._repaired(value, mode, verdict, context)
        window = self._window(value, header, verdict, context)
        image = self._judged(value, mode, header, verdict, window, context)
        return image if window is None or isinstance(image, Windowed) else Windowed(image, window)

    def _stored_verdict(self, name: str, record: Record) -> Verdict | None:
        """Return the verdict that the store keeps on the image in field `name`; None where nobody examined it."""
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
        window: Window | None,
        context: SampleContext,
    ) -> Any:
        """Return the image of a picture that no verdict calls damaged, or what there is of it if its decoder does."""
        if self._strict is not None:
            try:
                return self._whole(value, mode, header, verdict, window)
            except (StoredsError, MemoryError):
                raise
            except Exception:  # a warning of libjpeg's too, which may be about no more than a header
                verdict = examine(value)
                if not verdict.is_whole and verdict.kind != "not_jpeg":
                    return self._repaired(value, mode, verdict, context)
        return self._decoded(value, value, mode, verdict)

    def _before_decoding(self, value: bytes) -> Verdict | None:
        """Return the verdict on a picture that nobody examined, as far as decoding does not tell; else None."""
        if not value.startswith(SOI):
            return check_other(value)
        return None if self._strict is not None else examine(value)

    def _window(
        self, value: bytes, header: Header | None, verdict: Verdict | None, context: SampleContext
    ) -> Window | None:
        """Draw the window of the crop that comes next, its own first draw, where less of the picture may be decoded for it."""
        if self._checked is None or self.cropper is None or header is None or not header.in_one_scan:
            return None
        if verdict is None and self._function is not decode_fast and value not in self._checked:
            return None
        return self.cropper.window(header.height, header.width, context.generator)

    def _whole(
        self, value: bytes, mode: str, header: Header | None, verdict: Verdict | None, window: Window | None
    ) -> Any:
        """Return the image, or as much of it as the window needs; raises ValueError and others where it may be damaged."""
        assert self._strict is not None
        if self._is_known(value, verdict, window):
            part = None
            if window is not None and header is not None and self.cropper is not None:
                part = decode_window(self._function, value, mode, header, window, self.cropper.edges)
            return self._strict(value, mode, examined=True) if part is None else part
        image = self._strict(value, mode)
        # libjpeg does not notice a scan that is missing; where there is but one, it notices everything.
        in_one_scan = header is not None and header.in_one_scan
        if not in_one_scan and triage(value).is_damaged:
            raise ValueError("its structure is damaged")
        if self._checked is not None and in_one_scan:
            self._checked.add(value)
        return image

    def _is_known(self, value: bytes, verdict: Verdict | None, window: Window | None) -> bool:
        """Return whether a picture is known to be whole; raises ValueError for one that is checked here and is not."""
        if verdict is not None or window is None or self._checked is None or self.cropper is None:
            return verdict is not None
        if value in self._checked:
            return True
        if divisor(window, self.cropper.edges) == 1:
            return False
        # Decoding at a fraction of the size gives other pixels. They must not depend on what was read before.
        check_jpeg(value)
        self._checked.add(value)
        return True

    def _repaired(self, value: bytes, mode: str, verdict: Verdict, context: SampleContext) -> Any:
        """Return what there is of a damaged picture, with a note; raises DecodeError where the options refuse it."""
        reason = verdict.reason or _visible_damage(value, verdict.kind) or _LOOKS_WHOLE
        if not self.repair:
            raise _refused(f"the image is damaged, and repair is off: {reason}", verdict.kind)
        if verdict.recovered == 0.0 and verdict.exact:
            raise _refused(f"the image cannot be decoded ({_beginning(value)}): {reason}", verdict.kind)
        if verdict.recovered < self.min_recovered:
            raise _refused(
                f"the image is damaged: {verdict.share} of it is there, less than min_recovered={self.min_recovered}; {reason}",
                verdict.kind,
            )
        image = self._decoded(value, repair_jpeg(value), mode, verdict)
        context.notes.append(
            Note(verdict.kind, f"a damaged picture was repaired, of which {verdict.share} is there: {reason}")
        )
        return image

    def _decoded(self, value: bytes, blob: bytes, mode: str, verdict: Verdict | None) -> Any:
        """Return what the decoder makes of `blob`, which is `value` or a repaired copy of it."""
        try:
            return self._decoder(blob, mode)
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            kind = DecodeError.kind if verdict is None or verdict.is_whole else verdict.kind
            what = f"{_beginning(value)}, {sniff(value)}" if kind == "not_jpeg" and value else _beginning(value)
            raise _refused(f"the image cannot be decoded ({what}): {decode_reason(error)}", kind) from error


def _beginning(value: bytes) -> str:
    return f"{len(value)} bytes beginning {value[:4].hex(' ')}" if value else "it is empty"


def _visible_damage(value: bytes, kind: str) -> str:
    """Return what the structure of a picture, stored as damaged in this way, shows to be wrong at a glance, or nothing."""
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


def _films(fields: dict[str, Field]) -> str:
    """Return how the first field of bytes would be read if it holds films."""
    name = next((name for name, field in fields.items() if field.kind == "bytes"), None)
    if name is None:
        return ""
    by = "" if name == "video" else f" and reader_options={{'by': {name!r}}}"
    return f", and reader='video'{by} films in {name!r}"


def label_of(fields: dict[str, Field]) -> tuple[str, ...]:
    """Return the label's field: ``label``, or the one whole number that is named as a label is elsewhere."""
    if "label" in fields:
        return ("label",)
    named = [name for name, field in fields.items() if field.kind == "int" and name.endswith(_LABELS)]
    return tuple(named) if len(named) == 1 else ()


def _parameters(decoder: Decoder) -> list[str]:
    try:
        return list(inspect.signature(decoder).parameters)
    except ValueError:  # a builtin does not tell
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
        By default the image and, where there is one, the label: the field ``label``, or the one int whose name ends in
        label, labels, target or targets.
    decode : str or Decoder
        ``"bytes"`` (untouched, not even looked at), ``"pil"``, ``"tensor"`` (uint8, channels x height x width),
        ``"fast"`` (nearly the same, sooner) or a registered name.
    mode : str
        The Pillow mode that images are converted to, or ``"unchanged"``; `storeds.readers.decoders.decode_pil` has the rule.
    repair : bool
        Whether a damaged JPEG is mended before it is decoded; the store is never changed. If not, it is an error. A
        picture is damaged if the verdict in its store says so or, without one, if its decoder warns of it.
    min_recovered : float
        A mended picture of which a smaller share is there, 0 to 1, is an error all the same.
    orient : bool
        Whether images are turned as their EXIF orientation says.
    max_pixels : int
        An image that claims more pixels is an error, before anything is allocated for it.
    strided : bool
        Leave a tensor's pixels in memory as the decoder does, channels last, which saves a copy. Shape and values are the
        same. A dataset whose transforms are storeds' own does so by itself, and gives them in order again behind them.
    """
