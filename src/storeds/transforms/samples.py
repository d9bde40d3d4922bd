"""Applies transforms to whole samples: images, masks, boxes and keypoints move together.

`JointTransform` takes the `Sample` of a reader and returns the elements. It applies

- built-in transforms by their `Operation` to every element,
- an albumentations transform in one call with all elements,
- any other callable, such as a transform of torchvision v2, to the dict of elements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Field, SampleContext, Transform
from storeds.records.roles import BOX_FORMATS
from storeds.records.samples import Sample
from storeds.transforms.albumentations import Albumentations, JointAlbumentations, wrap_albumentations
from storeds.transforms.alignment import moving_parts
from storeds.transforms.binding import BoundTransform, Compose, Views, add_time, name_of_transform
from storeds.transforms.building import build_transform
from storeds.transforms.coordinates import Coordinates, from_corners, to_corners
from storeds.transforms.elements import Elements, check_exact, is_of_torchvision, tv_tensors, unwrapped, wrapped
from storeds.transforms.images import FilterBoxes, Normalize, Spatial, ToTensor
from storeds.transforms.operations import Operation, Orient, extent, in_order
from storeds.transforms.tail import Tail, split

__all__ = ["JointTransform"]

_SIGNED = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


class JointTransform:
    """Apply transforms to all elements of a sample.

    Parameters
    ----------
    transforms : callable, config or None
        As for `build_transform`: a transform, or a list of them. None only rotates and wraps elements.
    box_format : str, optional
        Format of the boxes that it returns: ``xyxy``, ``xywh`` or ``cxcywh``. Default: the format of their field.

    Attributes
    ----------
    tail : callable or None
        The end of `transforms` that a batch can do for each image.

    Raises
    ------
    ConfigError
        A transform cannot be applied to samples, or `box_format` is unknown.

    Notes
    -----
    Thread-safe. Picklable if the transforms are.
    """

    tail: Tail | None

    def __init__(self, transforms: Any, *, box_format: str | None = None) -> None:
        if box_format is not None and box_format not in BOX_FORMATS:
            raise ConfigError(f"box_format must be {', '.join(BOX_FORMATS)} or None, not {box_format!r}")
        self.transforms: Transform | None = build_transform(transforms, "transforms")
        self.box_format = box_format
        transforms = _flattened(self.transforms)
        self._names = [name_of_transform(each) for each in transforms]
        self._steps, self.tail = split([_step_of(each) for each in transforms])
        self._prepared: tuple[Elements, list[Any]] | None = None
        tv_tensors()  # the import takes seconds, which workers started by fork then save

    def __call__(
        self, sample: Sample, context: SampleContext, *, whole: bool = True, seconds: dict[str, float] | None = None
    ) -> dict[str, Any]:
        """Return element → value, tv_tensors if torchvision is installed.

        Parameters
        ----------
        sample : Sample
        context : SampleContext
        whole : bool
            Without it, `tail` is left to do for uint8 tensors of images.
        seconds : dict, optional
            Where to add what each transform takes, by its name.

        Raises
        ------
        RecordError
            A mask, or with transforms an image, has another size than the first image.
        """
        prepared = self._prepared
        if prepared is None or prepared[0].fields is not sample.fields:
            prepared = self._prepared = self._prepare(sample.fields)
        elements, steps = prepared
        state = _State(sample, elements)
        differing = state.differing(elements.images if steps else ())
        if differing:
            raise RecordError(
                f"{differing}, so they cannot be transformed together; images and masks of one sample must have one size"
            )
        crop, now = sample.window, time.perf_counter()
        for step, name in zip(steps, self._names, strict=False):
            if isinstance(step, FilterBoxes):
                state.filter(step)
            elif isinstance(step, JointAlbumentations):
                state.call_albumentations(step, context.generator)
            elif isinstance(step, BoundTransform):
                state.call(step, context.generator)
            elif isinstance(step, (Normalize, ToTensor)):
                state.each_image(step)
            elif crop is None:
                state.apply(step.operation(*state.size, context.generator))
            else:  # the reader has drawn what this crop, the first step, does
                state.apply(step.drawn(crop))
                crop = None
            if seconds is not None:
                now = add_time(seconds, name, now)
        state.store_coordinates(self.box_format)
        end = in_order if self.tail is None else self.tail if whole else self.tail.pixels
        state.each_image(end)
        return wrapped(state.values, elements, state.size, self.box_format)

    def _prepare(self, fields: Mapping[str, Field]) -> tuple[Elements, list[Any]]:
        """Return the elements by role, and the steps for samples with these elements."""
        elements = Elements(fields)
        return elements, [
            JointAlbumentations(step.transform, elements) if isinstance(step, Albumentations) else step
            for step in self._steps
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}

    def __repr__(self) -> str:
        return repr(self.transforms)


def _flattened(transform: Any) -> list[Any]:
    """Return the transforms to apply one after another."""
    if transform is None:
        return []
    kind = type(transform)
    if kind in (Compose, torch.nn.Sequential) or (is_of_torchvision(transform) and kind.__name__ == "Compose"):
        parts = transform if isinstance(transform, torch.nn.Sequential) else transform.transforms
        return [each for part in parts for each in _flattened(part)]
    if is_of_torchvision(transform) and kind.__name__ == "SanitizeBoundingBoxes":
        # torchvision's drops the rows of its labels alone. Before 0.20 it has no least area.
        return [FilterBoxes(min_size=transform.min_size, min_area=getattr(transform, "min_area", 0))]
    return [transform]


def _step_of(transform: Any) -> Any:
    """Return a transform as `JointTransform` applies it to samples.

    Built-in ones stay, albumentations becomes an `Albumentations`, and any other callable, for the dict of elements, a
    `BoundTransform`. Raises ConfigError for a transform that takes one image alone.
    """
    if isinstance(transform, Views):
        raise ConfigError("transforms: Views makes several images of one: pass it as transform=, for the image alone")
    if is_of_torchvision(transform) and not type(transform).__module__.startswith("torchvision.transforms.v2"):
        raise ConfigError(
            f"transforms: {transform!r} takes one image: use torchvision.transforms.v2.{type(transform).__name__}, which takes "
            "samples"
        )
    step = wrap_albumentations(transform)
    if isinstance(step, (Albumentations, FilterBoxes, Normalize, ToTensor)):  # a subclass too: these take no dict
        return step
    # A subclass that overrides `__call__` is a callable of its own.
    called_in = str(getattr(type(transform).__call__, "__module__", ""))
    is_built_in = isinstance(transform, Spatial) and called_in.startswith("storeds.")
    return transform if is_built_in else BoundTransform(transform)


class _State:
    """The elements of one sample while transforms change it.

    Boxes and keypoints are in `_coordinates` while operations move them, and in `values` otherwise.
    """

    def __init__(self, sample: Sample, elements: Elements) -> None:
        self.values = dict(sample.values)
        self.size = sample.size
        self._elements = elements
        self._coordinates: Coordinates | None = None
        self._visible: dict[str, Array] = {}
        if sample.orientation != 1:
            height, width = sample.size  # of the images, which the reader has rotated
            orient = Orient((width, height) if sample.orientation > 4 else (height, width), sample.orientation)
            self._loaded().turn(orient)
            for name in elements.masks:
                self.values[name] = orient.mask(self.values[name])
            self._move(Operation())

    def apply(self, operation: Operation) -> None:
        """Apply an operation to all elements. Even one that changes nothing drops the boxes outside the image."""
        self._move(operation)
        self.each_image(operation.image)

    def each_image(self, transform: Callable[[Any], Any]) -> None:
        """Apply a function to each image alone."""
        for name in self._elements.images:
            self.values[name] = transform(self.values[name])

    def filter(self, step: FilterBoxes) -> None:
        """Drop the boxes that `step` does not keep."""
        coordinates = self._settled()
        for name, boxes in coordinates.boxes.items():
            self._keep(name, step.kept(boxes, coordinates.visible[name]))

    def call_albumentations(self, transform: JointAlbumentations, generator: torch.Generator | None) -> None:
        """Apply a transform of albumentations to all elements in one call."""
        self._move(Operation())  # it refuses boxes that are empty or outside the image
        for name, kept in transform(self.values, self._settled(), generator).items():
            self._keep(name, kept)
        self._check_sizes_after(transform)
        self._move(Operation())

    def call(self, transform: BoundTransform, generator: torch.Generator | None) -> None:
        """Apply a callable that takes and returns a dict of all elements."""
        self.store_coordinates()
        elements, given = self._elements, dict(self.values)
        # torchvision knows keypoints of two columns, and masks that float32 holds exactly.
        is_limited = is_of_torchvision(transform.transform)
        for name in elements.masks if is_limited else ():
            mask = given[name] = given[name].to(_SIGNED.get(given[name].dtype, given[name].dtype))
            check_exact(name, mask)
        for name in elements.keypoints if is_limited else ():
            given[name] = given[name][..., :2]
        made = transform.draw(wrapped(given, elements, self.size, None), generator)
        if not isinstance(made, Mapping) or set(made) != set(given):
            what = f"the elements {', '.join(map(str, made))}" if isinstance(made, Mapping) else type(made).__qualname__
            raise ValueError(f"{transform!r} must return a dict with the elements {', '.join(given)}, not {what}")
        before, self.values = self.values, {name: unwrapped(made[name], name, elements) for name in given}
        for name in elements.keypoints if is_limited else ():
            self.values[name] = torch.cat([self.values[name], before[name][..., 2:]], dim=-1)
        self._check_sizes_after(transform)
        for name in elements.boxes:
            self._check_rows_after(transform, name)
        if moving_parts(transform.transform):
            self._move(Operation())

    def differing(self, images: Sequence[str]) -> str:
        """Return which of these images, or which mask, has another size than the sample, or an empty text."""
        for name in (*images, *self._elements.masks):
            value = self.values[name]
            if isinstance(value, (torch.Tensor, Image.Image)) and extent(value) != self.size:
                (height, width), expected = extent(value), self.size
                return f"{name!r} has {width} × {height} pixels and the sample {expected[1]} × {expected[0]}"
        return ""

    def store_coordinates(self, box_format: str | None = None) -> None:
        """Write boxes, in a format or in that of their field, and keypoints back into `values`, if they have changed."""
        is_moved = self._coordinates is not None
        changed = [name for name in self._elements.boxes if box_format not in (None, self._elements.format(name))]
        if not is_moved and not changed:
            return
        coordinates = self._settled()
        self._coordinates, self._visible = None, coordinates.visible
        for name in self._elements.boxes if is_moved else changed:
            boxes = from_corners(coordinates.boxes[name], box_format or self._elements.format(name))
            self.values[name] = torch.from_numpy(boxes)
        for name, points in coordinates.points.items() if is_moved else ():
            points[..., :2] -= 0.5
            if points.shape[-1] == 3:
                points[points[..., 2] <= 0] = 0
            self.values[name] = torch.from_numpy(points.astype(np.float32))

    def _check_sizes_after(self, transform: object) -> None:
        """Take over the size of what a transform returned; raise ValueError if images or masks differ in it."""
        for name in (*self._elements.images, *self._elements.masks):
            if isinstance(self.values[name], (torch.Tensor, Image.Image)):
                self.size = extent(self.values[name])
                break
        differing = self.differing(self._elements.images)
        if differing:
            raise ValueError(
                f"after {transform!r}, {differing}; it must return images and masks of one size: let it resize all of them"
            )

    def _check_rows_after(self, transform: object, name: str) -> None:
        """Raise ValueError if a callable returned boxes that are none, or other rows than boxes."""
        boxes = self.values[name]
        if boxes.shape[1:] != (4,) or not boxes.isfinite().all():
            raise ValueError(f"{transform!r} must return {name!r} as finite boxes of shape (n, 4), not {boxes!r}")
        for row in self._elements.rows[name]:
            if len(self.values[row]) != len(boxes):
                raise ValueError(
                    f"{transform!r} returned {len(boxes)} {name!r}, but {len(self.values[row])} rows of {row!r}, which belong to "
                    "them. To drop boxes, use FilterBoxes of storeds, which drops both"
                )

    def _loaded(self) -> Coordinates:
        """Return boxes and keypoints, perhaps before the last moves."""
        if self._coordinates is None:
            elements = self._elements
            boxes = {name: to_corners(self.values[name].numpy(), elements.format(name)) for name in elements.boxes}
            points = {name: self.values[name].numpy().astype(np.float64) for name in elements.keypoints}
            for each in points.values():
                each[..., :2] += 0.5  # keypoints count from the centre of the first pixel
            # A callable that changes the number of boxes does not say which fraction of them is left.
            known = {name: each for name, each in self._visible.items() if len(each) == len(boxes[name])}
            visible = {name: np.ones(len(each)) for name, each in boxes.items()} | known
            self._coordinates = Coordinates(boxes, points, visible)
        return self._coordinates

    def _settled(self) -> Coordinates:
        """Return boxes and keypoints as they are now. Drops the rows of boxes that are outside the image."""
        coordinates = self._loaded()
        for name, kept in coordinates.settle().items():
            self._drop_rows(name, kept)
        return coordinates

    def _move(self, operation: Operation) -> None:
        """Move everything but images."""
        self.size = operation.size(*self.size)
        self._loaded().move(operation, self.size)
        for name in self._elements.masks:
            self.values[name] = operation.mask(self.values[name])

    def _keep(self, name: str, kept: Array) -> None:
        """Drop the other boxes, and the rows that describe them."""
        if not kept.all():
            self._loaded().keep(name, kept)
            self._drop_rows(name, kept)

    def _drop_rows(self, name: str, kept: Array) -> None:
        """Drop the rows that describe dropped boxes."""
        points = self._loaded().points
        for row in self._elements.rows[name]:
            if row in points:
                points[row] = points[row][kept]
            else:
                self.values[row] = _taken(self.values[row], kept, row, name)


def _taken(value: Any, kept: Array, name: str, boxes: str) -> Any:
    """Return the rows to keep."""
    if len(value) != len(kept):
        raise ValueError(f"{name!r} has {len(value)} rows, but {boxes!r} has {len(kept)} boxes")
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(value.numpy()[kept])
    if isinstance(value, np.ndarray):
        return value[kept]
    return [item for item, is_kept in zip(value, kept, strict=True) if is_kept]
