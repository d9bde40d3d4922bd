"""The options with which images are decoded, as the user gives them: the same for every reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from PIL import ImageMode

from storeds._utils.arguments import check_share
from storeds.errors import ConfigError, suggest
from storeds.pictures.decode import PictureDecoder
from storeds.pictures.decoders import UNCHANGED
from storeds.protocols import Decoder
from storeds.readers.channels import check_channels
from storeds.readers.elements import Choice, Element, MaskElement, PictureElement, PixelsElement, TensorElement
from storeds.records.shapes import Channels

__all__ = ["Decode", "Modes", "PictureOptions", "Positions"]

Decode: TypeAlias = str | Decoder | Mapping[str, str | Decoder]
Modes: TypeAlias = str | Mapping[str, str]
Positions: TypeAlias = Channels | Mapping[str, Channels] | None


_OPTIONS = ("mode", "channels", "repair", "min_recovered", "orient", "max_pixels")


@dataclass(frozen=True)
class PictureOptions:
    """What the user says about images. `storeds.readers.image` describes the parameters.

    Parameters
    ----------
    default : str
        The decoder of images that `decode` does not name.
    given : frozenset of str
        The options of the reader that are not at their default, also those that are not about images.
    """

    default: str
    given: frozenset[str]
    decode: Decode
    mode: Modes
    channels: Positions
    repair: bool
    min_recovered: float
    orient: bool
    max_pixels: int

    def __post_init__(self) -> None:
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
                self.decoder(decode, "RGB")

    @classmethod
    def of(cls, function: Any, arguments: Mapping[str, Any], default: str) -> Self:
        """Return the options among the arguments of the function of a reader, `default` being its decoder."""
        defaults: Mapping[str, Any] = function.__kwdefaults__
        given = frozenset(name for name, value in defaults.items() if arguments[name] != value)
        decode = default if arguments["decode"] is None else arguments["decode"]
        return cls(default, given, decode, **{name: arguments[name] for name in _OPTIONS})

    def decoder(self, decode: str | Decoder, mode: str) -> PictureDecoder:
        """Return a decoder with these options; raises ConfigError if it is unknown or does not take them."""
        return PictureDecoder(decode, mode, self.repair, self.min_recovered, self.orient, self.max_pixels)

    def decode_of(self, name: str) -> str | Decoder:
        """Return the decoder of an image."""
        return self.decode.get(name, self.default) if isinstance(self.decode, Mapping) else self.decode

    def mode_of(self, name: str, *, is_data: bool) -> str:
        """Return the mode of an image. Images other than the data, such as masks, keep the values of their files."""
        modes = self.mode if isinstance(self.mode, Mapping) else {}
        default = self.mode if isinstance(self.mode, str) else "RGB"
        return modes.get(name, default if is_data else UNCHANGED)

    def channels_of(self, name: str) -> Channels | None:
        """Return what the user says about the channels of an image."""
        return self.channels.get(name) if isinstance(self.channels, Mapping) else self.channels

    def check(
        self,
        chosen: Sequence[Choice],
        images: Sequence[str],
        elements: Sequence[Element],
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Raise ConfigError if an option names an element that is no image, or changes nothing in the samples.

        Parameters
        ----------
        chosen : sequence of Choice
            The elements of samples.
        images : sequence of str
            Those that hold images, and masks in files.
        elements : sequence of Element
            How the values of these are made.
        more : mapping of str to str, optional
            Options of one reader that change nothing, each with what it is for.
        """
        pixels = [each.name for each in elements if isinstance(each, PixelsElement)]
        arrays = [*pixels, *(each.name for each in elements if isinstance(each, TensorElement) and each.axis)]
        masks = [each.name for each in elements if isinstance(each, MaskElement) and each.inner]
        in_files = any(isinstance(each, PictureElement) for each in elements)
        _check_names("decode", self.decode, images, "image")
        _check_names("mode", self.mode, images, "image")
        _check_names("channels", self.channels, arrays, "array image")
        unused: dict[str, str] = dict(more or {})
        if not in_files:
            unused |= dict.fromkeys(("repair", "min_recovered", "orient"), "images in files that are decoded")
        elif not self.repair:
            unused["min_recovered"] = "images that are repaired, which repair=False does not"
        if not (in_files or masks):
            unused["max_pixels"] = "images in files that are decoded"
        if not (in_files or pixels) and isinstance(self.mode, str):
            unused["mode"] = "images that are decoded"
        if not set(images) - set(masks) and not isinstance(self.decode, Mapping):
            unused["decode"] = "images that are decoded"
        self.refuse(unused if arrays else {**unused, "channels": "images of kind array"}, chosen)

    def refuse(self, unused: Mapping[str, str], chosen: Sequence[Choice]) -> None:
        """Raise ConfigError for an option that the user gives and that is in `unused`, which says what it is for."""
        for name, what in unused.items():
            if name in self.given:
                raise ConfigError(
                    f"{name} is for {what}, and none of the elements {', '.join(each.name for each in chosen)} is one: it "
                    "would have no effect; leave it out"
                )


def _check_names(option: str, given: Any, images: Sequence[str], what: str) -> None:
    for name in given if isinstance(given, Mapping) else ():
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
