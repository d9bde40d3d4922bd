"""Applies albumentations 2 transforms to images and whole samples, with randomness from the sample's generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from storeds.errors import ConfigError
from storeds.protocols import Array
from storeds.transforms.coordinates import Coordinates
from storeds.transforms.elements import Elements, check_exact
from storeds.transforms.operations import extent

__all__ = ["Albumentations", "JointAlbumentations", "wrap_albumentations"]


def wrap_albumentations(transform: Any) -> Any:
    """Wrap a transform or composition of albumentations; return any other transform unchanged."""
    if not any(kind.__module__.startswith("albumentations.") for kind in type(transform).__mro__):
        return transform
    if not hasattr(transform, "set_random_state"):
        raise ConfigError(
            f"{transform!r} is of albumentations 1, which cannot be seeded for each sample; install 2.0 or later"
        )
    return Albumentations(transform)


@dataclass(frozen=True, repr=False)
class Albumentations:
    """An albumentations transform as a callable that takes one image.

    albumentations transforms own generators and keep state of their last call. So concurrent calls in threads each use
    a copy; copies are kept for later calls.

    Parameters
    ----------
    transform : albumentations.BasicTransform or albumentations.BaseCompose
        The transform.
    """

    transform: Any
    _idle: list[Any] = field(default_factory=list, init=False, compare=False)

    def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
        """Return the transformed image.

        Parameters
        ----------
        image : PIL.Image.Image or torch.Tensor
            A tensor has shape (…, channels, height, width). All frames of a clip get the same transform.
        generator : torch.Generator, optional
            Seeds the transform's generators. Default: torch's global generator.

        Returns
        -------
        PIL.Image.Image or torch.Tensor
            The type of `image`, or a tensor if the transform makes one (``ToTensorV2``) or changes the dtype or the
            number of channels.
        """
        pixels = _to_array(image)
        frames = pixels.shape[:-3]
        if not frames:
            return _like(self.call({"image": pixels}, generator)["image"], pixels, image)
        pixels = pixels.reshape(-1, *pixels.shape[-3:])
        made = _like(self.call({"images": pixels}, generator)["images"], pixels, image)
        return made.reshape(*frames, *made.shape[1:])

    def call(self, targets: dict[str, Any], generator: torch.Generator | None) -> dict[str, Any]:
        """Return the transformed targets of albumentations, such as ``image``, with randomness from `generator`."""
        try:
            transform = self._idle.pop()  # atomic
        except IndexError:
            transform = copy.deepcopy(self.transform)
        seeds = torch.empty(2, dtype=torch.int64, device="cpu").random_(generator=generator).tolist()
        # An eighth of the time of set_random_seed.
        plain = random.Random(seeds[1])  # noqa: S311  # nothing secret is drawn
        transform.set_random_state(np.random.Generator(np.random.PCG64(seeds[0])), plain)
        made: dict[str, Any] = transform(**targets)
        self._idle.append(transform)  # not reached if the call fails
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}

    def __repr__(self) -> str:
        return repr(self.transform)


class JointAlbumentations:
    """An albumentations transform as a callable that takes all elements of a sample in one call.

    Parameters
    ----------
    transform : albumentations.BasicTransform or albumentations.BaseCompose
        A ``Compose`` keeps the limits of its ``bbox_params``.
    elements : Elements
        What the samples hold.
    """

    def __init__(self, transform: Any, elements: Elements) -> None:
        import albumentations

        composed = transform if type(transform) is albumentations.Compose else None
        steps = [transform] if composed is None else list(composed.transforms)
        processor = None if composed is None else composed.processors.get("bboxes")
        limits = {} if processor is None else {name: getattr(processor.params, name) for name in _LIMITS}
        # albumentations warns of parameters for coordinates that no transform takes, such as one of colours.
        keys = {key for step in steps for key in (*step.available_keys, *getattr(step, "targets_as_params", ()))}
        self._takes_boxes = "bboxes" in keys or processor is not None
        self._takes_points = "keypoints" in keys
        more = {f"image_{number}": "image" for number in range(1, len(elements.images))}
        for name in elements.masks:
            more |= {f"mask_{name}": "mask", f"masks_{name}": "masks"}
        boxes = albumentations.BboxParams("pascal_voc", label_fields=["rows"], **limits)
        points = albumentations.KeypointParams("xy", remove_invisible=False, label_fields=["points"])
        self._elements = elements
        self._transform = Albumentations(
            albumentations.Compose(
                steps,
                bbox_params=boxes if self._takes_boxes else None,
                keypoint_params=points if self._takes_points else None,
                additional_targets=more,
                p=1.0 if composed is None else composed.p,
            )
        )

    def __call__(
        self, values: dict[str, Any], coordinates: Coordinates, generator: torch.Generator | None
    ) -> Mapping[str, Array]:
        """Transform images and masks in `values`, and boxes and keypoints in `coordinates`.

        Returns
        -------
        mapping of str to numpy.ndarray
            Element of boxes → which of the boxes are left, bool (n,).

        Raises
        ------
        TypeError, ValueError
            The transform does not take these values, or loses keypoints without a visibility.
        """
        images = {f"image_{at}" if at else "image": name for at, name in enumerate(self._elements.images)}
        targets: dict[str, Any] = {target: _to_array(values[name]) for target, name in images.items()}
        masks: dict[str, str] = {}
        for name in self._elements.masks:
            target = "mask" if values[name].ndim == 2 else "masks"
            # Some transforms, such as MaskDropout, look for a target of exactly this name.
            masks[target if target not in masks else f"{target}_{name}"] = name
        targets |= {target: _exact(name, values[name]) for target, name in masks.items() if values[name].numel()}
        boxes = np.concatenate([np.zeros((0, 4)), *coordinates.boxes.values()])
        points = np.concatenate(
            [np.zeros((0, 2)), *(each[..., :2].reshape(-1, 2) for each in coordinates.points.values())]
        )
        # Coordinates are passed although empty: albumentations requires what its parameters name.
        if self._takes_boxes:
            targets |= {"bboxes": boxes.astype(np.float32), "rows": np.arange(len(boxes))}
        if self._takes_points:
            targets |= {"keypoints": (points - 0.5).astype(np.float32), "points": np.arange(len(points))}
        made = self._transform.call(targets, generator)
        for target, name in images.items():
            values[name] = _like(made[target], targets[target], values[name])
        size = extent(values[self._elements.images[0]])
        for target, name in masks.items():
            mask = values[name]
            pixels = torch.as_tensor(np.ascontiguousarray(made[target])) if mask.numel() else mask.new_zeros(0)
            values[name] = pixels.reshape(*mask.shape[:-2], *size).to(mask.dtype)
        if self._takes_points:
            points = np.full_like(points, np.nan)
            points[np.asarray(made["points"], int)] = np.asarray(made["keypoints"], float).reshape(-1, 2) + 0.5
            _take_points(coordinates, points)
        if not self._takes_boxes:
            return {}
        rows = np.asarray(made["rows"], int)
        if len(set(rows.tolist())) < len(rows):
            raise ValueError(
                "albumentations cut a box into several: leave out the transform that does, such as RandomGridShuffle, or the "
                "boxes"
            )
        boxes = np.full_like(boxes, np.nan)
        boxes[rows] = np.asarray(made["bboxes"], float).reshape(-1, 4)
        kept = {}
        for name, each in coordinates.boxes.items():
            coordinates.boxes[name], boxes = boxes[: len(each)], boxes[len(each) :]
            kept[name] = ~np.isnan(coordinates.boxes[name][:, 0])
        return kept

    def __repr__(self) -> str:
        return repr(self._transform)


_LIMITS = ("min_area", "min_visibility", "min_width", "min_height", "max_accept_ratio")


def _take_points(coordinates: Coordinates, points: Array) -> None:
    """Take over keypoints, of which lost ones are NaN; raise ValueError if one of those has no visibility."""
    for name, each in coordinates.points.items():
        count = each[..., 0].size
        moved, points = points[:count], points[count:]
        each[..., :2] = moved.reshape(*each.shape[:-1], 2)
        is_lost = np.isnan(each[..., 0])
        if is_lost.any() and each.shape[-1] == 2:
            raise ValueError(
                f"albumentations lost {is_lost.sum()} of {count} {name!r}: store a visibility with them, which becomes 0 then, "
                "or pass keypoint_remapping_method='direct' to its distortions"
            )
        each[is_lost] = 0


def _to_array(image: Any) -> Array:
    """Return a Pillow image, or a tensor (…, channels, height, width), as an array with the channels last."""
    if isinstance(image, Image.Image):
        pixels = np.array(image)  # a writable copy: ToTensorV2 makes a tensor of this memory
        return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    if not isinstance(image, torch.Tensor) or image.ndim < 3:
        what = f"shape {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__qualname__
        raise TypeError(f"albumentations takes Pillow images, or tensors (channels, height, width), not {what}")
    array: Array = image.movedim(-3, -1).contiguous().numpy()
    return array


def _like(made: Any, given: Array, image: Any) -> Any:
    """Return what became of `given`, the array of an image, as an image of its type, or as a tensor if that is impossible."""
    if isinstance(made, torch.Tensor):
        return made
    if isinstance(image, Image.Image) and (made.dtype, made.shape[2:]) == (given.dtype, given.shape[2:]):
        pixels = Image.frombytes(image.mode, (made.shape[1], made.shape[0]), np.ascontiguousarray(made).tobytes())
        if image.mode == "P":
            pixels.putpalette(image.getpalette() or [])
        return pixels
    if made.ndim == 2 or made.ndim < given.ndim:  # a transform may drop the dimension of a single channel
        made = made[..., None]
    return torch.from_numpy(np.ascontiguousarray(made)).movedim(-1, -3).contiguous()


def _exact(name: str, mask: torch.Tensor) -> Array:
    """Return a mask of a dtype that all transforms take and that holds its class ids."""
    pixels: Array = mask.numpy()
    if pixels.dtype == np.uint8:
        return pixels
    is_small = pixels.min() >= 0 and pixels.max() <= 255
    return pixels.astype(np.uint8) if is_small else check_exact(name, mask).numpy().astype(np.float32)
