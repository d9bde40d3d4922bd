"""Applies albumentations 2 transforms to images, with randomness from the sample's generator."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from storeds.protocols import Array
from storeds.records.fields import layout_of

__all__ = ["Albumentations"]

_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F  # any odd number; selects one of PCG64's sequences


@dataclass(frozen=True, repr=False)
class Albumentations:
    """An albumentations transform as a callable that takes one image.

    albumentations transforms own generators and keep state of their last call. So concurrent calls in threads each use
    a copy; copies are kept for later calls.

    Parameters
    ----------
    transform : albumentations.BasicTransform or albumentations.BaseCompose
        The transform.
    steps : tuple of transforms
        The steps, if `followed_by` composed `transform`.
    """

    transform: Any
    steps: tuple[Any, ...] = ()
    _idle: list[tuple[Any, np.random.PCG64, random.Random]] = field(default_factory=list, init=False, compare=False)

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """Return the transformed image.

        Parameters
        ----------
        image : PIL.Image.Image, list of them, torch.Tensor or numpy.ndarray
            A tensor has shape (…, channels, height, width), an array (height, width[, channels]). All frames of a clip
            get the same transform.
        generator : torch.Generator, optional
            Seeds the transform's generators. Default: torch's global generator.

        Returns
        -------
        PIL.Image.Image, list of them, torch.Tensor or numpy.ndarray
            The type of `image`, or a tensor if the transform makes one (``ToTensorV2``) or if a Pillow image cannot
            hold the values.
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
                f"albumentations takes arrays of shape (height, width, channels), but this one has {image.shape}"
            )
        return self._apply("image", image, generator)

    def followed_by(self, other: object) -> Albumentations | None:
        """Return both transforms as one, which converts the image once; None if one is a user's Compose."""
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
            mine = self._idle.pop()  # atomic
        except IndexError:
            mine = self._copied()
        transform, bits, plain = mine
        seeds = torch.empty(3, dtype=torch.int64).random_(generator=generator).tolist()
        # Setting the states takes a third of the time of creating generators.
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": seeds[0] << 64 | seeds[1], "inc": _INCREMENT},
            "has_uint32": 0,
            "uinteger": 0,
        }
        plain.seed(seeds[2])
        made = transform(**{name: pixels})[name]
        self._idle.append(mine)  # not reached if the call fails
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
    pixels = np.array(image)  # a writable copy: ToTensorV2 makes a tensor of this memory
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


def _channels_first(made: Any, is_clip: bool) -> torch.Tensor:
    if isinstance(made, torch.Tensor):
        return made
    pixels = torch.from_numpy(np.ascontiguousarray(made))
    if pixels.ndim == 2 + is_clip:  # a transform may drop the dimension of a single channel
        return pixels.unsqueeze(-3)
    return pixels.movedim(-1, -3).contiguous()


def _pillow(made: Any, image: Image.Image) -> Any:
    """Return the result as an image of the same mode as `image`, if that can hold the values."""
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
