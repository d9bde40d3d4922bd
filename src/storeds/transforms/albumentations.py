"""Applies albumentations 2 transforms to images and whole samples, with randomness from the sample's generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from storeds.protocols import Array
from storeds.records.fields import layout_of

__all__ = ["Albumentations", "AlbumentationsParts", "JointAlbumentations"]

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
            return _pillow(self.call({"image": _pixels(image)}, generator)["image"], image)
        if isinstance(image, list) and image and all(isinstance(frame, Image.Image) for frame in image):
            frames = np.stack([_pixels(frame) for frame in image])
            made = self.call({"images": frames}, generator)["images"]
            return made if isinstance(made, torch.Tensor) else [_pillow(frame, image[0]) for frame in made]
        if not isinstance(image, np.ndarray):
            raise TypeError(
                f"albumentations takes a Pillow image, a tensor or an array, not {type(image).__qualname__}"
            )
        if layout_of(image.shape) == "first":
            raise ValueError(
                f"albumentations takes arrays of shape (height, width, channels), but this one has {image.shape}"
            )
        return self.call({"image": image}, generator)["image"]

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
            made = self.call({"images": pixels.flatten(0, len(frames) - 1).contiguous().numpy()}, generator)["images"]
        else:
            made = self.call({"image": pixels.contiguous().numpy()}, generator)["image"]
        made = _channels_first(made, len(frames) > 0)
        return made.reshape(*frames, *made.shape[1:]) if len(frames) > 1 else made

    def call(self, targets: dict[str, Any], generator: torch.Generator | None) -> dict[str, Any]:
        """Return the transformed targets of albumentations, such as ``image``, with randomness from `generator`."""
        try:
            mine = self._idle.pop()  # atomic
        except IndexError:
            mine = self._copied()
        transform, bits, plain = mine
        seeds = torch.empty(3, dtype=torch.int64, device="cpu").random_(generator=generator).tolist()
        # Setting the states takes a third of the time of creating generators.
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": seeds[0] << 64 | seeds[1], "inc": _INCREMENT},
            "has_uint32": 0,
            "uinteger": 0,
        }
        plain.seed(seeds[2])
        made: dict[str, Any] = transform(**targets)
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


class AlbumentationsParts(NamedTuple):
    """The parts of a sample, as a `JointAlbumentations` takes and returns them.

    Attributes
    ----------
    images : list
        Pillow images, or tensors of shape (channels, height, width).
    masks : list of torch.Tensor
        Integers of shape (height, width) or (n, height, width).
    boxes : numpy.ndarray
        (n, 4): left, top, right, bottom in pixels.
    rows : numpy.ndarray
        (n,): the number of each box. Boxes that are dropped are missing.
    points : numpy.ndarray
        (m, 2): x and y in pixels, where (0, 0) is the centre of the first pixel. Those that are lost become NaN.
    """

    images: list[Any]
    masks: list[torch.Tensor]
    boxes: Array
    rows: Array
    points: Array


class JointAlbumentations:
    """Albumentations transforms as a callable that takes the parts of a sample, all in one call.

    Parameters
    ----------
    transforms : sequence of transforms
        Applied one after another. A single ``Compose`` keeps the limits of its ``bbox_params``.
    images, masks : int
        How many images and masks a sample has.
    """

    def __init__(self, transforms: Sequence[Any], images: int, masks: int) -> None:
        import albumentations

        only = transforms[0] if len(transforms) == 1 and type(transforms[0]) is albumentations.Compose else None
        processor = None if only is None else only.processors.get("bboxes")
        limits = {} if processor is None else {name: getattr(processor.params, name, None) for name in _LIMITS}
        more = {f"image_{number}": "image" for number in range(1, images)}
        for number in range(masks):
            more |= {f"mask_{number}": "mask", f"masks_{number}": "masks"}
        steps = list(transforms if only is None else only.transforms)
        # albumentations warns of parameters for coordinates that no transform takes, such as one of colours.
        keys = {key for step in steps for key in (*step.available_keys, *getattr(step, "targets_as_params", ()))}
        self._takes_boxes = "bboxes" in keys or processor is not None
        self._takes_points = "keypoints" in keys
        boxes = albumentations.BboxParams("pascal_voc", label_fields=["rows"], **limits)
        points = albumentations.KeypointParams("xy", remove_invisible=False, label_fields=["points"])
        composed = albumentations.Compose(
            steps,
            bbox_params=boxes if self._takes_boxes else None,
            keypoint_params=points if self._takes_points else None,
            additional_targets=more,
            p=1.0 if only is None else only.p,
        )
        self._transform = Albumentations(composed)

    def __call__(self, parts: AlbumentationsParts, generator: torch.Generator | None) -> AlbumentationsParts:
        """Return the transformed parts; raise TypeError or ValueError for values that albumentations cannot take."""
        images = [_first_to_last(image) for image in parts.images]
        if not images:
            raise ValueError("albumentations transforms need an image in each sample, and this one has none")
        targets = {f"image_{number}" if number else "image": image for number, image in enumerate(images)}
        given: dict[str, torch.Tensor] = {}
        for number, mask in enumerate(parts.masks):
            name = "mask" if mask.ndim == 2 else "masks"
            # Some transforms, such as MaskDropout, look for a target of exactly this name.
            given[name if name not in given else f"{name}_{number}"] = mask
        targets |= {name: _exact(mask) for name, mask in given.items() if mask.numel()}
        # Coordinates are passed although empty: albumentations requires what its parameters name.
        if self._takes_boxes:
            targets |= {"bboxes": parts.boxes.astype(np.float32), "rows": np.arange(len(parts.boxes))}
        if self._takes_points:
            targets |= {"keypoints": parts.points.astype(np.float32), "points": np.arange(len(parts.points))}
        try:
            made = self._transform.call(targets, generator)
        except Exception as error:  # OpenCV has errors of its own
            count = f"{len(images)} images, {len(given)} masks, {len(parts.boxes)} boxes, {len(parts.points)} keypoints"
            raise ValueError(
                f"albumentations cannot transform {count} of {images[0].shape[1]} × {images[0].shape[0]} pixels "
                f"({type(error).__name__}: {str(error).strip()}). Some of its transforms do not take all of these, as "
                "Morphological fails on boxes, or need other data: leave out the transform, or elements"
            ) from error
        outputs = [
            _as_given(made[f"image_{number}" if number else "image"], image)
            for number, image in enumerate(parts.images)
        ]
        size = outputs[0].shape[-2:] if isinstance(outputs[0], torch.Tensor) else outputs[0].size[::-1]
        masks = [_mask(made.get(name), mask, size) for name, mask in given.items()]
        rows, boxes, points = parts.rows, parts.boxes, parts.points
        if self._takes_boxes:
            rows = rows[np.asarray(made["rows"], np.int64)]
            boxes = np.asarray(made["bboxes"], np.float64).reshape(-1, 4)
        if len(set(rows.tolist())) < len(rows):
            raise ValueError(
                "albumentations cut a box into several: leave out the transform that does, such as RandomGridShuffle, or the "
                "boxes"
            )
        if self._takes_points:
            points = np.full((len(parts.points), 2), np.nan)
            points[np.asarray(made["points"], np.int64)] = np.asarray(made["keypoints"], np.float64).reshape(-1, 2)
        return AlbumentationsParts(outputs, masks, boxes, rows, points)

    def __repr__(self) -> str:
        return repr(self._transform)


_LIMITS = ("min_area", "min_visibility", "min_width", "min_height", "max_accept_ratio")
_EXACT = 2**24  # float32 holds every integer up to this one


def _first_to_last(image: Any) -> Array:
    """Return an image as an array of shape (height, width[, channels])."""
    if isinstance(image, Image.Image):
        return _pixels(image)
    if not isinstance(image, torch.Tensor) or image.ndim != 3:
        what = tuple(image.shape) if isinstance(image, torch.Tensor) else type(image).__qualname__
        raise TypeError(
            f"albumentations takes samples of Pillow images or tensors (channels, height, width), not {what}"
        )
    array: Array = image.movedim(0, -1).contiguous().numpy()
    return array


def _as_given(made: Any, image: Any) -> Any:
    """Return a transformed image of the type of the given one."""
    return _pillow(made, image) if isinstance(image, Image.Image) else _channels_first(made, is_clip=False)


def _exact(mask: torch.Tensor) -> Array:
    """Return a mask of a dtype that all transforms take and that holds its class ids."""
    pixels = mask.numpy()
    if pixels.dtype == np.uint8:
        return pixels
    low, high = int(pixels.min()), int(pixels.max())
    if low >= 0 and high <= 255:
        return pixels.astype(np.uint8)
    if max(-low, high) > _EXACT:
        raise ValueError(
            f"albumentations takes masks of class ids up to {_EXACT}, but one has {max(low, high, key=abs)}"
        )
    return pixels.astype(np.float32)


def _mask(made: Any, mask: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Return a transformed mask of the dtype and number of dimensions of the given one."""
    if made is None:  # without a row
        return mask.new_zeros((*mask.shape[:-2], *size))
    pixels = made if isinstance(made, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(made))
    return pixels.reshape(*mask.shape[:-2], *size).to(mask.dtype)


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
