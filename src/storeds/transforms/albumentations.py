"""Applies transforms of albumentations 2 to the images of samples, with randomness from the sample's generator."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from storeds.errors import ConfigError
from storeds.protocols import Array
from storeds.records.fields import layout_of

__all__ = ["Albumentations", "adopted", "is_albumentations"]

_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F  # any odd number: it selects one of PCG64's sequences


def is_albumentations(value: Any) -> bool:
    """Whether a value is a transform or composition of that library."""
    return any(kind.__module__.startswith("albumentations.") for kind in type(value).__mro__)


def adopted(transform: Any) -> Any:
    """Return an `Albumentations` for a transform or composition of that library; any other transform as it is."""
    if not is_albumentations(transform):
        return transform
    if not hasattr(transform, "set_random_state"):
        raise ConfigError(
            f"{transform!r} is of albumentations 1, which cannot be seeded for each sample; install 2.0 or later"
        )
    return Albumentations(transform)


@dataclass(frozen=True, repr=False)
class Albumentations:
    """A transform of albumentations, which takes arrays by name, has its own generators, and remembers its last call.

    Calls that overlap in threads have a copy each; copies are kept for later calls.

    Parameters
    ----------
    transform : albumentations.BasicTransform or albumentations.BaseCompose
    steps : tuple of them
        Those that `transform` was composed of here.
    """

    transform: Any
    steps: tuple[Any, ...] = ()
    _idle: list[tuple[Any, np.random.PCG64, random.Random]] = field(default_factory=list, init=False, compare=False)

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """Return the transformed image.

        Parameters
        ----------
        image : PIL.Image.Image, list of them, torch.Tensor or numpy.ndarray
            A tensor has shape (…, channels, height, width), an array (height, width[, channels]). Frames of a clip are
            transformed alike.
        generator : torch.Generator, optional
            Seeds the transform's generators; torch's global one by default.

        Returns
        -------
        PIL.Image.Image, list of them, torch.Tensor or numpy.ndarray
            Of the sort that was given, but for a tensor that the transform makes (``ToTensorV2``), and for values that a
            Pillow image cannot hold, which become a tensor.
        """
        if isinstance(image, torch.Tensor):
            return self._tensor(image, generator)
        if isinstance(image, Image.Image):
            return _pillow(self._apply("image", _pixels(image), generator), image)
        if isinstance(image, list) and image and all(isinstance(frame, Image.Image) for frame in image):
            made = self._apply("images", np.stack([_pixels(frame) for frame in image]), generator)
            return made if isinstance(made, torch.Tensor) else [_pillow(frame, image[0]) for frame in made]
        if not isinstance(image, np.ndarray):
            raise TypeError(
                f"albumentations takes a Pillow image, a tensor or an array, not {type(image).__qualname__}"
            )
        if layout_of(image.shape) == "first":
            raise ValueError(
                f"albumentations takes arrays of (height, width, channels), and this one has {image.shape}"
            )
        return self._apply("image", image, generator)

    def followed_by(self, other: object) -> Albumentations | None:
        """Return both transforms as one, so that the image is converted once; a user's Compose stays by itself."""
        own, others = self._single(), other._single() if isinstance(other, Albumentations) else ()
        if not own or not others:
            return None
        import albumentations

        return Albumentations(albumentations.Compose([*own, *others]), (*own, *others))

    def _single(self) -> tuple[Any, ...]:
        is_compose = "Compose" in {kind.__name__ for kind in type(self.transform).__mro__}
        return self.steps if is_compose else (self.transform,)

    def _tensor(self, image: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        if image.ndim < 3:
            raise ValueError(
                f"albumentations: a tensor image has shape (channels, height, width), not {tuple(image.shape)}"
            )
        frames = image.shape[:-3]
        pixels = image.movedim(-3, -1)
        if frames:
            made = self._apply("images", pixels.flatten(0, len(frames) - 1).contiguous().numpy(), generator)
        else:
            made = self._apply("image", pixels.contiguous().numpy(), generator)
        made = _channels_first(made, len(frames) > 0)
        return made.reshape(*frames, *made.shape[1:]) if len(frames) > 1 else made

    def _apply(self, name: str, pixels: Array, generator: torch.Generator | None) -> Any:
        try:
            mine = self._idle.pop()  # at once, whatever other threads do
        except IndexError:
            mine = self._copied()
        transform, bits, plain = mine
        seeds = torch.empty(3, dtype=torch.int64).random_(generator=generator).tolist()
        # Setting states takes a third of the time that new generators do.
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": seeds[0] << 64 | seeds[1], "inc": _INCREMENT},
            "has_uint32": 0,
            "uinteger": 0,
        }
        plain.seed(seeds[2])
        made = transform(**{name: pixels})[name]
        self._idle.append(mine)  # not one whose call has failed
        return made

    def _copied(self) -> tuple[Any, np.random.PCG64, random.Random]:
        transform, bits = copy.deepcopy(self.transform), np.random.PCG64(0)
        plain = random.Random(0)  # noqa: S311  # nothing secret is drawn
        transform.set_random_state(np.random.Generator(bits), plain)
        return transform, bits, plain

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}

    def __repr__(self) -> str:
        return repr(self.transform)


def _pixels(image: Image.Image) -> Array:
    pixels = np.array(image)  # a copy: ToTensorV2 makes a tensor of this memory, which may be written to
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


def _channels_first(made: Any, is_clip: bool) -> torch.Tensor:
    if isinstance(made, torch.Tensor):
        return made
    pixels = torch.from_numpy(np.ascontiguousarray(made))
    if pixels.ndim == 2 + is_clip:  # a single channel may lose its dimension
        return pixels.unsqueeze(-3)
    return pixels.movedim(-1, -3).contiguous()


def _pillow(made: Any, image: Image.Image) -> Any:
    """Return what was made of an image in the image's own mode, where that holds the values."""
    if isinstance(made, torch.Tensor):
        return made
    given = _pixels(image)
    if made.dtype != given.dtype or (made.shape[2:] or (1,)) not in ((1,), (3,), (4,)):
        return _channels_first(made, is_clip=False)
    if image.mode == "1" or image.mode.startswith("I;16") or (made.shape[2:] or (1,)) != (given.shape[2:] or (1,)):
        return Image.fromarray(made.squeeze(-1) if made.shape[2:] == (1,) else made)
    pixels = Image.frombytes(image.mode, (made.shape[1], made.shape[0]), np.ascontiguousarray(made).tobytes())
    if image.mode == "P":
        pixels.putpalette(image.getpalette() or [])
    return pixels
