"""The options with which images are decoded, as the user gives them: the same for every reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import ImageMode

from storeds._utils.arguments import check_int, check_share
from storeds.errors import ConfigError, suggest
from storeds.pictures.decode import PictureDecoder
from storeds.pictures.decoders import UNCHANGED
from storeds.pictures.header import MAX_PIXELS
from storeds.protocols import Decoder
from storeds.readers.channels import check_channels
from storeds.readers.elements import Element
from storeds.records.shapes import Channels

__all__ = ["Decode", "Modes", "PictureOptions", "Positions"]

Decode: TypeAlias = str | Decoder | Mapping[str, str | Decoder]
Modes: TypeAlias = str | Mapping[str, str]
Positions: TypeAlias = Channels | Mapping[str, Channels] | None


# Option → the elements that it is for.
_FOR = {
    **dict.fromkeys(("decode", "mode"), "images that are decoded"),
    **dict.fromkeys(("repair", "orient", "max_pixels"), "images in files that are decoded"),
    "min_recovered": "images in files that are repaired",
    "channels": "images of kind array",
    "box_format": "boxes",
    "per_frame": "fields of frames",
}


@dataclass(frozen=True)
class PictureOptions:
    """What the user says about images. `storeds.readers.image` describes the parameters.

    Parameters
    ----------
    default : str
        The decoder of images that `decode` does not name.
    more : tuple of str
        The other options of the reader that the user gives, and that need elements of some kind.
    """

    decode: Decode | None = None
    mode: Modes = "RGB"
    channels: Positions = None
    repair: bool = True
    min_recovered: float = 0.5
    orient: bool = False
    max_pixels: int = MAX_PIXELS
    default: str = "tensor"
    more: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            _check_mode(mode)
        if not isinstance(self.repair, bool):
            raise ConfigError(f"repair must be True or False, got {self.repair!r}")
        check_share("min_recovered", self.min_recovered)
        check_channels(self.channels)
        check_int("max_pixels", self.max_pixels, 1)
        for decode in self.decode.values() if isinstance(self.decode, Mapping) else (self.decode,):
            if decode not in (None, "bytes"):
                self.decoder(decode, "RGB")

    def decoder(self, decode: str | Decoder, mode: str) -> PictureDecoder:
        """Return a decoder with these options; raises ConfigError if it is unknown or does not take them."""
        return PictureDecoder(decode, mode, self.repair, self.min_recovered, self.orient, self.max_pixels)

    def decode_of(self, name: str) -> str | Decoder:
        """Return the decoder of an image."""
        if isinstance(self.decode, Mapping):
            return self.decode.get(name, self.default)
        return self.default if self.decode is None else self.decode

    def mode_of(self, name: str, *, is_data: bool) -> str:
        """Return the mode of an image. Images other than the data, such as masks, keep the values of their files."""
        modes = self.mode if isinstance(self.mode, Mapping) else {}
        default = self.mode if isinstance(self.mode, str) else "RGB"
        return modes.get(name, default if is_data else UNCHANGED)

    def channels_of(self, name: str) -> Channels | None:
        """Return what the user says about the channels of an image."""
        return self.channels.get(name) if isinstance(self.channels, Mapping) else self.channels

    def check(self, elements: Sequence[Element]) -> None:
        """Raise ConfigError if an option names an element that is no image, or changes nothing in the samples."""
        images = [each.name for each in elements if each.declared.kind == "image" or "decode" in each.options]
        arrays = [each.name for each in elements if "channels" in each.options]
        for option, known, what in (("decode", images, ""), ("mode", images, ""), ("channels", arrays, "array ")):
            named = getattr(self, option)
            for name in named if isinstance(named, Mapping) else ():
                if name not in known:
                    raise ConfigError(
                        f"{option} names {name!r}, which is not an {what}image of a sample; "
                        f"{suggest(name, known, f'{what}images')}"
                    )
        used = {option for each in elements for option in each.options}
        if arrays and self.decode == "tensor":  # which array images are, whatever decodes others
            used.add("decode")
        changed = [each.name for each in dataclasses.fields(self) if getattr(self, each.name) != each.default]
        for option in (*changed, *self.more):
            if option in _FOR and option not in used and not isinstance(getattr(self, option, None), Mapping):
                raise ConfigError(
                    f"{option} is for {_FOR[option]}, and none of the elements {', '.join(each.name for each in elements)} is "
                    "one: it would have no effect; leave it out"
                )


def _check_mode(mode: Any) -> None:
    try:
        known = isinstance(mode, str) and (mode == UNCHANGED or bool(ImageMode.getmode(mode)))
    except KeyError:
        known = False
    if not known:
        raise ConfigError(f"mode {mode!r} is neither 'unchanged' nor a Pillow mode such as RGB, L or RGBA")
