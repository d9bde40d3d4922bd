"""Applies transforms to whole samples: images, masks, boxes and keypoints move together.

`JointTransform` takes the `Sample` of a reader and returns the elements. It applies

- built-in transforms by their `Operation` to every element,
- an albumentations transform in one call with all elements,
- any other callable, such as a transform of torchvision v2, to the dict of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Field, SampleContext, Transform
from storeds.records.roles import BOX_FORMATS, Sample
from storeds.transforms.albumentations import Albumentations, JointAlbumentations
from storeds.transforms.alignment import Moves, moves
from storeds.transforms.binding import BoundTransform, Compose
from storeds.transforms.building import build_transform
from storeds.transforms.coordinates import Coordinates, from_corners, to_corners
from storeds.transforms.elements import (
    Elements,
    for_torchvision,
    from_torchvision,
    is_of_torchvision,
    taken,
    tv_tensors,
    unwrapped,
    wrapped,
)
from storeds.transforms.functional import extent, in_order
from storeds.transforms.images import FilterBoxes, Normalize, ToTensor
from storeds.transforms.operations import Operation, Orient, Size
from storeds.transforms.steps import flattened, step_of

__all__ = ["JointTransform"]


class JointTransform:
    """Apply transforms to all elements of a sample.

    Parameters
    ----------
    transforms : callable, config or None
        As for `build_transform`: a transform, or a list of them. None only rotates and wraps elements.
    box_format : str, optional
        Format of the boxes that it returns: ``xyxy``, ``xywh`` or ``cxcywh``. Default: the format of their field.
    finish : callable, optional
        Applied to each image at the end.
    may_wait : bool
        Whether collating may run ``ToTensor`` and ``Normalize`` at the end of `transforms`.

    Raises
    ------
    ConfigError
        A transform cannot be applied to samples, or `box_format` is unknown.

    Notes
    -----
    Thread-safe. Picklable if the transforms are.
    """

    def __init__(
        self,
        transforms: Any,
        *,
        box_format: str | None = None,
        finish: Callable[[Any], Any] | None = None,
        may_wait: bool = False,
    ) -> None:
        if box_format is not None and box_format not in BOX_FORMATS:
            raise ConfigError(f"box_format must be {', '.join(BOX_FORMATS)} or None, not {box_format!r}")
        self.transforms: Transform | None = build_transform(transforms, "transforms")
        self.box_format = box_format
        steps = [step_of(each) for each in flattened(self.transforms)]
        last = len(steps)
        while last and type(steps[last - 1]) in (ToTensor, Normalize):
            last -= 1
        self._steps = steps[:last]
        self._end = BoundTransform(Compose(steps[last:]), finish, may_wait)
        self._measures = any(isinstance(step, FilterBoxes) and step.min_visibility > 0 for step in steps)
        self._prepared: tuple[Elements, list[Any]] | None = None
        tv_tensors()  # the import takes seconds, which workers started by fork then save

    def __call__(self, sample: Sample, context: SampleContext) -> dict[str, Any]:
        """Return element → value, tv_tensors if torchvision is installed.

        Raises
        ------
        RecordError
            A mask, or with transforms an image, has another size than the first image.
        """
        prepared = self._prepared
        if prepared is None or prepared[0].fields is not sample.fields:
            prepared = self._prepared = self._prepare(sample.fields)
        elements, steps = prepared
        state = _State(sample, elements, measures=self._measures)
        state.check_sizes(elements.images if steps else ())
        crop = sample.window
        for step in steps:
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
        state.store_coordinates(self.box_format)
        state.each_image(lambda image: in_order(self._end(image, context)))
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


class _State:
    """A sample while transforms change it.

    Boxes and keypoints are in `_coordinates` while operations move them, and in `values` otherwise.
    """

    def __init__(self, sample: Sample, elements: Elements, *, measures: bool) -> None:
        self.values = dict(sample.values)
        self.size = sample.size
        self._elements = elements
        self._coordinates: Coordinates | None = None
        self._visible: dict[str, Array] | None = {} if measures else None
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
            visible = np.ones(len(boxes)) if coordinates.visible is None else coordinates.visible[name]
            self._keep(name, step.kept(boxes, visible))

    def call_albumentations(self, transform: JointAlbumentations, generator: torch.Generator | None) -> None:
        """Apply a transform of albumentations to all elements in one call."""
        self._move(Operation())  # it refuses boxes that are empty or outside the image
        for name, kept in transform(self.values, self._settled(), generator).items():
            self._keep(name, kept)
        self.size = _size_after(self.values, self._elements, self.size)
        self.check_sizes(self._elements.images, transform)
        self._move(Operation())

    def call(self, transform: BoundTransform, generator: torch.Generator | None) -> None:
        """Apply a callable that takes and returns a dict of all elements."""
        self.store_coordinates()
        elements, values = self._elements, self.values
        is_known = is_of_torchvision(transform.transform)
        given = wrapped(for_torchvision(values, elements) if is_known else values, elements, self.size, None)
        made = transform.draw(given, generator)
        _check_elements(made, values, elements, transform)
        plain = {name: unwrapped(made[name], name, elements) for name in values}
        self.values = from_torchvision(values, plain, elements) if is_known else plain
        self.size = _size_after(made, elements, self.size)
        self.check_sizes(elements.images, transform)
        for boxes in elements.boxes:
            left = len(self.values[boxes])
            for row in elements.rows[boxes]:
                if len(self.values[row]) != left:
                    raise ValueError(
                        f"{transform!r} returned {left} {boxes!r}, but {len(self.values[row])} rows of {row!r}, which belong to "
                        "them. To drop boxes, use FilterBoxes of storeds, which drops both"
                    )
        if moves(transform.transform) != Moves.NOT:
            self._move(Operation())

    def check_sizes(self, images: Sequence[str], transform: object | None = None) -> None:
        """Raise an error if one of these images, or a mask, has another size than the sample.

        It is a ValueError that names the transform which returned them, or a RecordError without one.
        """
        for name in (*images, *self._elements.masks):
            value = self.values[name]
            if not isinstance(value, (torch.Tensor, Image.Image)) or extent(value) == self.size:
                continue
            (height, width), expected = extent(value), self.size
            sizes = f"{name!r} has {width} × {height} pixels and the sample {expected[1]} × {expected[0]}"
            if transform is None:
                raise RecordError(
                    f"{sizes}, so they cannot be transformed together; images and masks of one sample must have one size"
                )
            raise ValueError(
                f"after {transform!r}, {sizes}; it must return images and masks of one size: let it resize all of them"
            )

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

    def _loaded(self) -> Coordinates:
        """Return boxes and keypoints, perhaps before the last moves."""
        if self._coordinates is None:
            elements = self._elements
            boxes = {name: to_corners(self.values[name].numpy(), elements.format(name)) for name in elements.boxes}
            points = {name: self.values[name].numpy().astype(np.float64) for name in elements.keypoints}
            for each in points.values():
                each[..., :2] += 0.5  # keypoints count from the centre of the first pixel
            visible = self._visible
            if visible is not None:
                # A callable that changes the number of boxes does not say which fraction of them is left.
                known = {name: each for name, each in visible.items() if len(each) == len(boxes[name])}
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
                self.values[row] = taken(self.values[row], kept, row, name)


def _check_elements(made: Any, values: Mapping[str, Any], elements: Elements, transform: BoundTransform) -> None:
    """Raise TypeError or ValueError if a callable returned something else than the elements that it was given."""
    if not isinstance(made, Mapping) or set(made) != set(values):
        what = f"the elements {', '.join(map(str, made))}" if isinstance(made, Mapping) else type(made).__qualname__
        raise ValueError(f"{transform!r} must return a dict with the elements {', '.join(values)}, not {what}")
    for name in (*elements.masks, *elements.boxes, *elements.keypoints):
        if not isinstance(made[name], torch.Tensor):
            raise TypeError(f"{transform!r} must return {name!r} as a tensor, not as {type(made[name]).__qualname__}")
    for name in elements.boxes:
        shape = tuple(made[name].shape)
        if len(shape) != 2 or shape[1] != 4:
            raise ValueError(f"{transform!r} must return {name!r} as boxes of shape (n, 4), not {shape}")
        if not made[name].as_subclass(torch.Tensor).isfinite().all():
            raise ValueError(f"{transform!r} returned {name!r} with a coordinate that is NaN or infinite")


def _size_after(made: Mapping[str, Any], elements: Elements, size: Size) -> Size:
    """Return (height, width) of the elements that a callable returned."""
    for name in (*elements.images, *elements.masks):
        if isinstance(made[name], (torch.Tensor, Image.Image)):
            return extent(made[name])
    canvases = (getattr(made[name], "canvas_size", None) for name in (*elements.boxes, *elements.keypoints))
    return next((tuple(canvas) for canvas in canvases if canvas is not None), size)
