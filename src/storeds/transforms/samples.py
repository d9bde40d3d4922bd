"""Applies transforms to whole samples: images, masks, boxes and keypoints move together.

`JointTransform` takes the `Sample` of a reader and returns the elements. It applies

- built-in transforms by their `Operation` to every element,
- albumentations transforms in one call with all elements,
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
from storeds.transforms.albumentations import AlbumentationsParts, JointAlbumentations
from storeds.transforms.alignment import Moves, moves
from storeds.transforms.binding import BoundTransform, Compose
from storeds.transforms.boxes import FilterBoxes
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
from storeds.transforms.functional import in_order, size_of
from storeds.transforms.images import Normalize, ToTensor
from storeds.transforms.operations import Operation, Orient, Size
from storeds.transforms.steps import check_step, flattened, grouped, warn_of_unused

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
        steps = flattened(self.transforms)
        for step in steps:
            check_step(step)
            warn_of_unused(step)
        last = len(steps)
        while last and type(steps[last - 1]) in (ToTensor, Normalize):
            last -= 1
        self._steps = grouped(steps[:last])
        self._end = BoundTransform(Compose(steps[last:]), finish, may_wait)
        self._measures = any(isinstance(step, FilterBoxes) and step.min_visibility > 0 for step in steps)
        # The type of a function cannot be pickled.
        self._movers = frozenset(
            type(step) for step in steps if hasattr(step, "operation") and moves(step) != Moves.NOT
        )
        self._prepared: tuple[Elements, tuple[Any, ...]] | None = None
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
        work = _Work(sample, elements, measures=self._measures)
        work.check_sizes(elements.images if steps else ())
        crop = sample.window
        for step in steps:
            if isinstance(step, FilterBoxes):
                work.filter(step)
            elif isinstance(step, JointAlbumentations):
                work.call_albumentations(step, context.generator)
            elif isinstance(step, BoundTransform):
                work.call(step, context.generator)
            else:
                drawn = step.operation(*work.size, context.generator) if crop is None else step.drawn(crop)
                crop = None
                work.apply(drawn)
                if not drawn.moves and type(step) in self._movers:
                    work.clip()  # whether a sample has an empty box must not depend on what was drawn
        values = work.packed(self.box_format)
        for name in elements.images:
            values[name] = in_order(self._end(values[name], context))
        return wrapped(values, elements, work.size, self.box_format)

    def _prepare(self, fields: Mapping[str, Field]) -> tuple[Elements, tuple[Any, ...]]:
        """Return the elements by role, and the steps for samples with these elements."""
        elements = Elements(fields)
        images, masks = len(elements.images), len(elements.masks)
        return elements, tuple(
            JointAlbumentations(step, images, masks) if isinstance(step, list) else step for step in self._steps
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}

    def __repr__(self) -> str:
        return repr(self.transforms)


class _Work:
    """A sample while transforms change it."""

    def __init__(self, sample: Sample, elements: Elements, *, measures: bool) -> None:
        self.values = dict(sample.values)
        self.size = sample.size
        self._elements = elements
        self._coordinates: Coordinates | None = None
        self._visible: dict[str, Array] | None = {} if measures else None
        if sample.orientation != 1:
            height, width = sample.size
            self.size = (width, height) if sample.orientation > 4 else (height, width)
            self._move(Orient(self.size, sample.orientation))

    def apply(self, operation: Operation) -> None:
        """Apply an operation to all elements."""
        if operation.moves:
            self._move(operation)
        for name in self._elements.images:
            self.values[name] = operation.image(self.values[name])

    def clip(self) -> None:
        """Clip boxes to the image and drop empty ones, as a move does."""
        self._move(Operation())

    def filter(self, step: FilterBoxes) -> None:
        """Drop the boxes that `step` does not keep."""
        coordinates = self._settled()
        for name, boxes in coordinates.boxes.items():
            visible = np.ones(len(boxes)) if coordinates.visible is None else coordinates.visible[name]
            kept = step.kept(boxes, visible)
            if not kept.all():
                coordinates.keep(name, kept)
                self._drop(name, kept)

    def call(self, transform: BoundTransform, generator: torch.Generator | None) -> None:
        """Apply a callable that takes and returns a dict of all elements."""
        values = self.packed(None)
        known = is_of_torchvision(transform.transform)
        given = wrapped(for_torchvision(values, self._elements) if known else values, self._elements, self.size, None)
        names = list(given)  # the callable may change the dict
        made = transform.draw(given, generator)
        if not isinstance(made, Mapping) or set(made) != set(names):
            what = f"the elements {', '.join(map(str, made))}" if isinstance(made, Mapping) else type(made).__qualname__
            raise ValueError(f"{transform!r} must return a dict with the elements {', '.join(names)}, not {what}")
        _check_types(made, self._elements, transform)
        plain = {name: unwrapped(made[name], name, self._elements) for name in names}
        if known:
            plain = from_torchvision(values, plain, self._elements)
        self._absorb(plain, made, transform)

    def call_albumentations(self, transform: JointAlbumentations, generator: torch.Generator | None) -> None:
        """Apply albumentations transforms to all elements in one call."""
        self._move(Operation())  # it refuses boxes that are empty or outside the image
        coordinates, elements = self._settled(), self._elements
        points = [each[..., :2].reshape(-1, 2) for each in coordinates.points.values()]
        boxes = list(coordinates.boxes.values())
        given = AlbumentationsParts(
            [self.values[name] for name in elements.images],
            [self.values[name] for name in elements.masks],
            np.concatenate([np.zeros((0, 4)), *boxes]),
            np.arange(sum(map(len, boxes))),
            np.concatenate([np.zeros((0, 2)), *points]) - 0.5,
        )
        made = transform(given, generator)
        self.values |= zip((*elements.images, *elements.masks), (*made.images, *made.masks), strict=True)
        self.size = _size_after(self.values, elements, self.size)
        self._take_points(coordinates, made)
        self._take_boxes(coordinates, made)
        self.check_sizes(self._elements.images, transform)
        self._move(Operation())

    def _take_points(self, coordinates: Coordinates, made: AlbumentationsParts) -> None:
        """Take over the keypoints that albumentations returned; raise ValueError if it lost one without a visibility."""
        at = 0
        for name, each in coordinates.points.items():
            count = each[..., 0].size
            each[..., :2] = made.points[at : at + count].reshape(*each.shape[:-1], 2) + 0.5
            at += count
            is_lost = np.isnan(each[..., 0])
            if is_lost.any() and each.shape[-1] == 2:
                raise ValueError(
                    f"albumentations lost {is_lost.sum()} of {count} {name!r}: store a visibility with them, which becomes 0 then, "
                    "or pass keypoint_remapping_method='direct' to its distortions"
                )
            each[is_lost] = 0

    def _take_boxes(self, coordinates: Coordinates, made: AlbumentationsParts) -> None:
        """Take over the boxes that albumentations returned, and drop the rows of others."""
        at = 0
        for name, each in list(coordinates.boxes.items()):
            mine = (made.rows >= at) & (made.rows < at + len(each))
            kept = np.zeros(len(each), bool)
            kept[made.rows[mine] - at] = True
            coordinates.keep(name, kept)
            self._drop(name, kept)
            coordinates.boxes[name] = made.boxes[mine][np.argsort(made.rows[mine])]
            at += len(each)

    def packed(self, box_format: str | None) -> dict[str, Any]:
        """Return the elements as a `Sample` holds them, with boxes in a format, by default that of their field."""
        is_moved = self._coordinates is not None
        if not is_moved and box_format is None:
            return self.values
        coordinates, self._coordinates = self._settled(), None
        self._visible = coordinates.visible
        for name, boxes in coordinates.boxes.items():
            stored = self._elements.fields[name].format or "xyxy"
            if is_moved or box_format not in (None, stored):
                self.values[name] = torch.from_numpy(from_corners(boxes, box_format or stored))
        for name, points in coordinates.points.items() if is_moved else ():
            points[..., :2] -= 0.5
            if points.shape[-1] == 3:
                points[points[..., 2] <= 0] = 0
            self.values[name] = torch.from_numpy(points.astype(np.float32))
        return self.values

    def _settled(self) -> Coordinates:
        """Return boxes and keypoints as they are now. Drops the rows of boxes that are outside the image."""
        if self._coordinates is None:
            self._coordinates = self._unpacked()
        for name, kept in self._coordinates.settle().items():
            self._drop(name, kept)
        return self._coordinates

    def _unpacked(self) -> Coordinates:
        boxes = {
            name: to_corners(self.values[name].numpy(), self._elements.fields[name].format or "xyxy")
            for name in self._elements.boxes
        }
        points = {name: self.values[name].numpy().astype(np.float64) for name in self._elements.keypoints}
        for each in points.values():
            each[..., :2] += 0.5  # keypoints count from the centre of the first pixel
        if self._visible is None:
            return Coordinates(boxes, points, None)
        # A callable that changes the number of boxes does not say which fraction of them is left.
        known = {name: each for name, each in self._visible.items() if len(each) == len(boxes[name])}
        return Coordinates(boxes, points, {name: np.ones(len(each)) for name, each in boxes.items()} | known)

    def _move(self, operation: Operation) -> None:
        """Move everything but images."""
        if self._coordinates is None:
            self._coordinates = self._unpacked()
        if operation.turns:
            self._settled()
        self.size = operation.size(*self.size)
        self._coordinates.move(operation, self.size)
        for name in self._elements.masks:
            self.values[name] = operation.mask(self.values[name])

    def _drop(self, name: str, kept: Array) -> None:
        """Drop the rows that describe dropped boxes."""
        points = {} if self._coordinates is None else self._coordinates.points
        for row in self._elements.rows[name]:
            if row in points:
                points[row] = points[row][kept]
            else:
                self.values[row] = taken(self.values[row], kept, row, name)

    def check_sizes(self, images: Sequence[str], transform: object | None = None) -> None:
        """Raise an error if one of these images, or a mask, has another size than the sample.

        It is a ValueError that names the transform which returned them, or a RecordError without one.
        """
        for name in images:
            image = self.values[name]
            if isinstance(image, (torch.Tensor, Image.Image)) and size_of(image, name) != self.size:
                raise _other_size(name, size_of(image, name), self.size, transform)
        for name in self._elements.masks:
            height, width = self.values[name].shape[-2:]
            if (height, width) != self.size:
                raise _other_size(name, (height, width), self.size, transform)

    def _absorb(self, plain: dict[str, Any], made: Mapping[str, Any], transform: BoundTransform) -> None:
        """Take over the elements that a callable returned."""
        elements = self._elements
        self.size = _size_after(made, elements, self.size)
        for name in elements.boxes:
            count, left = len(self.values[name]), len(plain[name])
            for row in elements.rows[name] if left != count else ():
                if len(plain[row]) == left:
                    continue
                if left > count:
                    raise ValueError(
                        f"{transform!r} added {left - count} {name!r}, but not the rows of {row!r} that belong to them"
                    )
                raise ValueError(
                    f"{transform!r} dropped {count - left} of {count} {name!r}, but not the rows of {row!r} that belong "
                    "to them. Use FilterBoxes of storeds instead, which drops both"
                )
        self.values = {name: plain[name] for name in self.values}
        self.check_sizes(elements.images, transform)
        if moves(transform.transform) != Moves.NOT:
            self._move(Operation())


def _check_types(made: Mapping[str, Any], elements: Elements, transform: BoundTransform) -> None:
    """Raise TypeError or ValueError if a callable returned something else than boxes, keypoints or masks."""
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
    for name in elements.images:
        if isinstance(made[name], (torch.Tensor, Image.Image)):
            return size_of(made[name], name)
    for name in elements.masks:
        return tuple(made[name].shape[-2:])
    canvases = (getattr(made[name], "canvas_size", None) for name in (*elements.boxes, *elements.keypoints))
    return next((tuple(canvas) for canvas in canvases if canvas is not None), size)


def _other_size(name: str, size: Size, expected: Size, transform: object | None) -> Exception:
    sizes = f"{name!r} has {size[1]} × {size[0]} pixels and the sample {expected[1]} × {expected[0]}"
    if transform is not None:
        return ValueError(
            f"after {transform!r}, {sizes}; it must return images and masks of one size: let it resize all of them"
        )
    return RecordError(
        f"{sizes}, so they cannot be transformed together; images and masks of one sample must have one size"
    )
