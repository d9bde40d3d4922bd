"""The elements of a sample by role, and how torchvision sees them: as tv_tensors."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch

from storeds.errors import ConfigError
from storeds.protocols import Array, Field
from storeds.records.roles import boxes_of
from storeds.transforms.alignment import leaves_of
from storeds.transforms.coordinates import from_corners, to_corners
from storeds.transforms.operations import Size

__all__ = [
    "Elements",
    "check_several_boxes",
    "for_torchvision",
    "from_torchvision",
    "is_of_torchvision",
    "taken",
    "tv_tensors",
    "unwrapped",
    "wrapped",
]

_LABELS = "labels"
_OF_ONE_ELEMENT = ("RandomIoUCrop", "SanitizeBoundingBoxes")  # they look at one element of boxes, and drop rows of all
_EXACT = 2**24  # torchvision resizes masks as float32, which holds every integer up to this one


class Elements:
    """The elements of a sample by role."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields
        self.images, self.masks, self.boxes, self.keypoints = (
            tuple(name for name, field in fields.items() if field.role == role)
            for role in ("image", "mask", "boxes", "keypoints")
        )
        owners = {name: boxes_of(name, fields) for name in fields}
        self.rows = {boxes: tuple(name for name, owner in owners.items() if owner == boxes) for boxes in self.boxes}
        """Field of boxes → elements whose rows describe its boxes."""


@functools.cache
def tv_tensors() -> ModuleType | None:
    """Return torchvision.tv_tensors, or None without torchvision."""
    try:
        from torchvision import tv_tensors
    except ImportError:
        return None
    except Exception as error:  # of another version than torch
        warnings.warn(
            f"torchvision cannot be imported, so samples hold plain tensors instead of tv_tensors: {error}",
            stacklevel=2,
        )
        return None
    return cast(ModuleType, tv_tensors)


def wrapped(values: dict[str, Any], elements: Elements, size: Size, box_format: str | None) -> dict[str, Any]:
    """Return the elements as tv_tensors, or as they are without torchvision."""
    tv = tv_tensors()
    if tv is None:
        return dict(values)
    wrapped = dict(values)
    for name in elements.images:
        if isinstance(values[name], torch.Tensor):
            wrapped[name] = values[name].as_subclass(tv.Image)
    for name in elements.masks:
        wrapped[name] = values[name].as_subclass(tv.Mask)
    for name in elements.boxes:
        format = tv.BoundingBoxFormat[(box_format or elements.fields[name].format or "xyxy").upper()]
        wrapped[name] = tv.BoundingBoxes(values[name], format=format, canvas_size=size)
    for name in elements.keypoints:
        if values[name].shape[-1] == 2 and hasattr(tv, "KeyPoints"):
            wrapped[name] = tv.KeyPoints(values[name], canvas_size=size)
    return wrapped


def unwrapped(value: Any, name: str, elements: Elements) -> Any:
    """Return a plain tensor; boxes in the format of their field."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.as_subclass(torch.Tensor)
    if name in elements.boxes:
        stored = elements.fields[name].format or "xyxy"
        changed = getattr(getattr(value, "format", None), "name", stored).lower()
        if changed != stored:
            return torch.from_numpy(from_corners(to_corners(plain.numpy(), changed), stored))
    return plain


def is_of_torchvision(transform: Any) -> bool:
    """Return whether a transform and all its parts belong to torchvision."""
    return all(type(part).__module__.startswith("torchvision.") for part in (transform, *leaves_of(transform)))


def check_several_boxes(transforms: Iterable[Any], fields: Mapping[str, Field]) -> None:
    """Raise ConfigError if a transform of torchvision would drop boxes by those of another element."""
    boxes = [name for name, field in fields.items() if field.role == "boxes"]
    if len(boxes) < 2:
        return
    for part in (part for transform in transforms for part in leaves_of(transform)):
        if is_of_torchvision(part) and type(part).__name__ in _OF_ONE_ELEMENT:
            raise ConfigError(
                f"transforms: {part!r} takes one element of boxes, and would drop boxes of {', '.join(map(repr, boxes[1:]))} by "
                f"those of {boxes[0]!r}: use FilterBoxes or RandomResizedCrop of storeds, or read one of these elements (fields=[…])"
            )


def for_torchvision(values: Mapping[str, Any], elements: Elements) -> dict[str, Any]:
    """Return values for a transform of torchvision, which knows keypoints of two columns and one array of labels.

    Labels, and other rows of one dimension, become row numbers, which show what ``SanitizeBoundingBoxes`` drops.
    """
    given = dict(values)
    for name in elements.masks:
        given[name] = _signed(values[name])
        _check_exact(name, given[name])
    for name in elements.keypoints:
        given[name] = values[name][..., :2]
    for boxes in elements.boxes[:1]:
        numbers = torch.arange(len(values[boxes]), device="cpu")
        given[_LABELS] = numbers
        for name in elements.masks:
            if len(values[name]) == len(numbers) and values[name].ndim == 2:
                given[name] = given[name][None]  # otherwise its rows of pixels would be taken for those of boxes
        for name in elements.rows[boxes]:
            if name not in (*elements.keypoints, *elements.masks):
                given[name] = numbers.clone()
    return given


def from_torchvision(values: Mapping[str, Any], made: dict[str, Any], elements: Elements) -> dict[str, Any]:
    """Return the elements that a transform of torchvision returned, with the rows that it left."""
    for name in elements.keypoints:
        moved, before = made[name], values[name]
        if moved.shape[-1] != before.shape[-1]:
            made[name] = torch.cat([moved, before[..., 2:]], dim=-1) if moved.shape[:-1] == before.shape[:-1] else moved
    for name in elements.masks:
        made[name] = made[name].reshape(made[name].shape[-values[name].ndim :])
    for boxes in elements.boxes[:1]:
        count, left = len(values[boxes]), len(made[boxes])
        numbers = [made.pop(_LABELS)]
        if _LABELS in values:
            made[_LABELS] = values[_LABELS]
        rows = elements.rows[boxes]
        plain = [name for name in rows if name not in (*elements.keypoints, *elements.masks)]
        numbers += [made[name] for name in plain if name != _LABELS]
        kept = next((each for each in numbers if len(each) == left), None)
        if kept is None:
            continue
        is_kept = np.zeros(count, bool)
        is_kept[kept.numpy()] = True
        for name in rows:
            if name in plain:
                made[name] = values[name] if left == count else taken(values[name], is_kept, name, boxes)
            elif len(made[name]) == count != left:
                made[name] = taken(made[name], is_kept, name, boxes)
    return made


def _signed(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask of unsigned integers of 16 bits and more, which torch can hardly compute with, as signed ones."""
    wider = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
    return mask.to(wider[mask.dtype]) if mask.dtype in wider else mask


def _check_exact(name: str, mask: torch.Tensor) -> None:
    """Raise ValueError if torchvision would change class ids."""
    if mask.dtype in (torch.int32, torch.int64) and mask.numel() and int(mask.abs().max()) > _EXACT:
        raise ValueError(
            f"torchvision changes class ids above {_EXACT}, and {name!r} has {int(mask.max())}; use built-in transforms"
        )


def taken(value: Any, kept: Array, name: str, boxes: str) -> Any:
    """Return the rows to keep."""
    if len(value) != len(kept):
        raise ValueError(f"{name!r} has {len(value)} rows, but {boxes!r} has {len(kept)} boxes")
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(value.numpy()[kept])
    if isinstance(value, np.ndarray):
        return value[kept]
    return [item for item, is_kept in zip(value, kept, strict=True) if is_kept]
