"""Reads one image, with its label and whatever else is asked for, from one record."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any

from PIL import ImageMode

from storeds.decode import UNCHANGED, check_pixels, decode_reason
from storeds.errors import ConfigError, DecodeError, StoredsError
from storeds.jpeg import Finding, triage
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.estimate import MAX_PIXELS
from storeds.protocols import Decoder, Field, Note, SampleContext
from storeds.readers.base import RecordReader
from storeds.registry import DECODERS

__all__ = ["ImageReader"]


_LABELS = ("label", "labels", "target", "targets")


@dataclass(frozen=True)
class ImageReader(RecordReader):
    """One record → ``{"image": …, "label": …}``.

    Parameters
    ----------
    fields : sequence of str, optional
        By default the image and, where there is one, the label: the field ``label``, or the one int whose name ends in
        label, labels, target or targets.
    decode : str or Decoder
        ``"bytes"`` (untouched, not even looked at), ``"pil"``, ``"tensor"`` (uint8, channels x height x width),
        ``"simplejpeg"`` (the same by another decoder) or a registered name.
    mode : str
        The Pillow mode that images are converted to, or ``"unchanged"``; `storeds.decode.decode_pil` has the rule.
    repair : bool
        Whether a damaged JPEG is mended before it is decoded; the store is never changed. If not, it is an error.
    min_recovered : float
        A mended picture of which a smaller share is there, 0 to 1, is an error all the same.
    orient : bool
        Whether images are turned as their EXIF orientation says.
    max_pixels : int
        An image that claims more pixels is an error, before anything is allocated for it.
    """

    decode: str | Decoder = "pil"
    mode: str = "RGB"
    repair: bool = True
    min_recovered: float = 0.5
    orient: bool = False
    max_pixels: int = MAX_PIXELS
    _decoder: Decoder | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        if self._decoder is None:
            object.__setattr__(self, "_decoder", self._make_decoder())

    def _check(self) -> None:
        if self.mode != UNCHANGED:
            try:
                ImageMode.getmode(self.mode)
            except KeyError:
                raise ConfigError(
                    f"mode {self.mode!r} is neither 'unchanged' nor a Pillow mode such as RGB, L or RGBA"
                ) from None
        if not isinstance(self.repair, bool):
            raise ConfigError(f"repair is True or False, got {self.repair!r}")
        if not _is_share(self.min_recovered):
            raise ConfigError(f"min_recovered is a share from 0 to 1, got {self.min_recovered!r}")
        if isinstance(self.max_pixels, bool) or not isinstance(self.max_pixels, int) or self.max_pixels < 1:
            raise ConfigError(f"max_pixels is a number of pixels, got {self.max_pixels!r}")

    def _make_decoder(self) -> Decoder:
        """Return the decoder with those options that it takes; it must take `orient` where that is asked for."""
        decoder: Decoder = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
        accepted = _parameters(decoder)
        if self.orient and "orient" not in accepted and self.decode != "bytes":
            raise ConfigError(f"decoder {self.decode!r} takes no orient; pil, tensor and simplejpeg do")
        options = {"orient": self.orient, "max_pixels": self.max_pixels}
        options = {name: value for name, value in options.items() if name in accepted}
        return functools.partial(decoder, **options) if options else decoder

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        images = [name for name, declared in fields.items() if declared.kind == "image"]
        if not images:
            kinds = ", ".join(f"{name} ({declared.kind})" for name, declared in fields.items())
            raise ConfigError(
                f"reader 'image' needs a field of kind image; the store has {kinds}; reader 'array' takes any"
            )
        image = "image" if "image" in images else images[0]
        return (image, *_label_of(fields))

    @property
    def data(self) -> str | None:
        # docstring inherited
        images = [name for name, declared in zip(self.fields, self.kinds, strict=False) if declared.kind == "image"]
        return images[0] if images else None

    def _value(self, field: Field, value: Any, context: SampleContext) -> Any:
        if field.kind != "image":
            return value
        assert self._decoder is not None
        if self.decode == "bytes":
            return self._decoder(value, self.mode)
        finding = triage(value, effort="quick")
        if finding.frame is not None:
            check_pixels(finding.frame.width, finding.frame.height, self.max_pixels)
        blob = self._mend(value, finding, context) if finding.is_damaged else value
        try:
            return self._decoder(blob, self.mode)
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            what = f"{len(value)} bytes beginning {value[:4].hex(' ')}" if value else "it is empty"
            if finding.kind == "not_jpeg" and value:
                what += f", {finding.format}"
            raise _refused(f"the image cannot be decoded ({what}): {decode_reason(error)}", finding) from error

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


def _label_of(fields: dict[str, Field]) -> tuple[str, ...]:
    """Return the label's field: ``label``, or the one whole number that is named as a label is elsewhere."""
    if "label" in fields:
        return ("label",)
    named = [name for name, field in fields.items() if field.kind == "int" and name.endswith(_LABELS)]
    return tuple(named) if len(named) == 1 else ()


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0


def _parameters(decoder: Decoder) -> list[str]:
    try:
        return list(inspect.signature(decoder).parameters)
    except ValueError:  # a builtin does not tell
        return []


def _refused(reason: str, finding: Finding) -> DecodeError:
    error = DecodeError(reason)
    error.kind = finding.kind if finding.is_damaged or finding.kind == "not_jpeg" else DecodeError.kind
    return error
