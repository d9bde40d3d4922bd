"""Decodes the pictures in records: triage and repair before the decoder, the same for an image and for a frame."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from PIL import ImageMode

from storeds._checks import check_share
from storeds._elements import is_mask
from storeds._suggest import suggest
from storeds._window import Cropper, Window, Windowed
from storeds.decode import UNCHANGED, check_pixels, decode_reason, decode_window
from storeds.errors import ConfigError, DecodeError, StoredsError
from storeds.jpeg import Finding, triage
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.estimate import MAX_PIXELS
from storeds.protocols import Backend, Decoder, Field, Note, SampleContext
from storeds.readers.base import RecordReader
from storeds.registry import DECODERS

__all__ = ["PictureReader", "label_of"]

_BUILT_IN = ("pil", "tensor", "simplejpeg", "fast")  # whose images are of the size that the frame header says
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
    _decoder: Decoder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "_decoder", self._make_decoder())

    def _check(self) -> None:
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            _check_mode(mode)
        if not isinstance(self.repair, bool):
            raise ConfigError(f"repair is True or False, got {self.repair!r}")
        check_share("min_recovered", self.min_recovered)
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int) or self.max_pixels < 1:
            raise ConfigError(f"max_pixels is a number of pixels, got {self.max_pixels!r}")

    def _make_decoder(self) -> Decoder:
        """Return the decoder with those options that it takes; it must take `orient` where that is asked for."""
        decoder: Decoder = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
        accepted = _parameters(decoder)
        if self.orient and "orient" not in accepted and self.decode != "bytes":
            raise ConfigError(f"decoder {self.decode!r} takes no orient; pil, tensor and simplejpeg do")
        options = {"orient": self.orient, "max_pixels": self.max_pixels, "strided": self.strided}
        options = {name: value for name, value in options.items() if name in accepted}
        return functools.partial(decoder, **options) if options else decoder

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        bound = super().bind(backend)
        return replace(bound, _modes=bound._modes_by_element())

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

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        if field.kind != "image":
            return value
        mode = self._modes[name]
        if self.decode == "bytes":
            return self._decoder(value, mode)
        finding = triage(value, effort="quick")
        if finding.frame is not None:
            check_pixels(finding.frame.width, finding.frame.height, self.max_pixels)
        blob = self._mend(value, finding, context) if finding.is_damaged else value
        window = self._window(finding, context)
        try:
            return self._decoder(blob, mode) if window is None else self._windowed(blob, mode, finding, window)
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            what = f"{len(value)} bytes beginning {value[:4].hex(' ')}" if value else "it is empty"
            if finding.kind == "not_jpeg" and value:
                what += f", {finding.format}"
            raise _refused(f"the image cannot be decoded ({what}): {decode_reason(error)}", finding) from error

    def _window(self, finding: Finding, context: SampleContext) -> Window | None:
        """Draw the window of the crop that comes next, its own first draw, where the frame header tells the size."""
        known = isinstance(self.decode, str) and self.decode in _BUILT_IN
        if self.cropper is None or finding.frame is None or finding.kind != "intact" or not known:
            return None
        return self.cropper.window(finding.frame.height, finding.frame.width, context.generator)

    def _windowed(self, blob: bytes, mode: str, finding: Finding, window: Window) -> Windowed:
        """Return the image, or as much of it as the window needs."""
        assert self.cropper is not None
        part = decode_window(str(self.decode), blob, mode, finding, window, self.cropper.edges)
        return Windowed(self._decoder(blob, mode), window) if part is None else part

    def _mend(self, blob: bytes, finding: Finding, context: SampleContext) -> bytes:
        """Return `blob` so that it decodes, with a note of what was wrong; raises DecodeError if too little is there."""
        if not self.repair:
            raise _refused(f"the image is damaged, and repair is off: {finding.reason}", finding)
        if finding.kind == "truncated_header":
            raise _refused(f"the image cannot be decoded: {finding.reason}", finding)
        if (finding.recovered or 0.0) < self.min_recovered:
            raise _refused(
                f"the image is damaged: {finding.share} of it is there, less than min_recovered={self.min_recovered}; {finding.reason}",
                finding,
            )
        context.notes.append(
            Note(finding.kind, f"a damaged JPEG was mended, of which {finding.share} is there: {finding.reason}")
        )
        return repair_jpeg(blob, finding)


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


def _refused(reason: str, finding: Finding) -> DecodeError:
    error = DecodeError(reason)
    error.kind = finding.kind if finding.is_damaged or finding.kind == "not_jpeg" else DecodeError.kind
    return error
