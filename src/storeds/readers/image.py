"""Reads one image, with its label and whatever else is asked for, from one record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from PIL import ImageMode

from storeds.decode import decode_reason
from storeds.errors import ConfigError, DecodeError
from storeds.jpeg import repair as repair_jpeg
from storeds.protocols import Decoder, Field, SampleContext
from storeds.readers.base import RecordReader
from storeds.registry import DECODERS

__all__ = ["ImageReader"]


@dataclass(frozen=True)
class ImageReader(RecordReader):
    """One record → ``{"image": …, "label": …}``.

    Parameters
    ----------
    fields : sequence of str, optional
        By default the image and, where there is one, the label.
    decode : str or Decoder
        ``"bytes"`` (untouched), ``"pil"``, ``"tensor"`` (uint8, channels × height × width) or a registered name.
    mode : str
        The Pillow mode that images are converted to.
    repair : bool
        Whether a JPEG without an end marker gets one before it is decoded; the store is never changed.
    """

    decode: str | Decoder = "pil"
    mode: str = "RGB"
    repair: bool = True
    _decoder: Decoder | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            ImageMode.getmode(self.mode)
        except KeyError:
            raise ConfigError(f"mode {self.mode!r} is no Pillow mode such as RGB, L or RGBA") from None
        if self._decoder is None:
            decoder = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
            object.__setattr__(self, "_decoder", decoder)

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        images = [name for name, declared in fields.items() if declared.kind == "image"]
        if not images:
            kinds = ", ".join(f"{name} ({declared.kind})" for name, declared in fields.items())
            raise ConfigError(
                f"reader 'image' needs a field of kind image; the store has {kinds}; reader 'array' takes any"
            )
        image = "image" if "image" in images else images[0]
        return (image, "label") if "label" in fields else (image,)

    @property
    def data(self) -> str | None:
        # docstring inherited
        images = [name for name, declared in zip(self.fields, self.kinds, strict=False) if declared.kind == "image"]
        return images[0] if images else None

    def _value(self, field: Field, value: Any, context: SampleContext) -> Any:
        if field.kind != "image":
            return value
        assert self._decoder is not None
        if self.repair and self.decode != "bytes":
            whole = repair_jpeg(value)
            if whole is not value:
                context.notes.append("a JPEG without an end marker got one")
                value = whole
        try:
            return self._decoder(value, self.mode)
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            what = f"{len(value)} bytes beginning {value[:4].hex(' ')}" if value else "it is empty"
            raise DecodeError(f"the image cannot be decoded ({what}): {decode_reason(error)}") from error
