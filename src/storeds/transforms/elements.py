"""The elements of a sample by role, and how torchvision sees them: as tv_tensors."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

import torch

from storeds.protocols import Field
from storeds.records.roles import boxes_of
from storeds.transforms.coordinates import from_corners, to_corners
from storeds.transforms.operations import Size

__all__ = [
    "Elements",
    "check_exact",
    "is_of_torchvision",
    "tv_tensors",
    "unwrapped",
    "wrapped",
]

_EXACT = 2**24  # float32 holds every integer up to this one


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

    def format(self, boxes: str) -> str:
        """Return the format of an element of boxes."""
        return self.fields[boxes].format or "xyxy"


def is_of_torchvision(transform: Any) -> bool:
    """Return whether torchvision applies a transform to tv_tensors."""
    return type(transform).__module__.startswith("torchvision.")


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


def wrapped(values: Mapping[str, Any], elements: Elements, size: Size, box_format: str | None) -> dict[str, Any]:
    """Return the elements as tv_tensors, or as they are without torchvision."""
    tv = tv_tensors()
    wrapped = dict(values)  # on the CPU: tv_tensors would go to torch's default device
    if tv is None:
        return wrapped
    for name in elements.images:
        if isinstance(values[name], torch.Tensor):
            wrapped[name] = values[name].as_subclass(tv.Image)
    for name in elements.masks:
        wrapped[name] = values[name].as_subclass(tv.Mask)
    for name in elements.boxes:
        format = tv.BoundingBoxFormat[(box_format or elements.format(name)).upper()]
        wrapped[name] = tv.BoundingBoxes(values[name], format=format, canvas_size=size, device="cpu")
    for name in elements.keypoints:
        if values[name].shape[-1] == 2 and hasattr(tv, "KeyPoints"):
            wrapped[name] = tv.KeyPoints(values[name], canvas_size=size, device="cpu")
    return wrapped


def unwrapped(value: Any, name: str, elements: Elements) -> Any:
    """Return a plain tensor; boxes in the format of their field."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.as_subclass(torch.Tensor)
    if name in elements.boxes and hasattr(value, "format") and value.format.name.lower() != elements.format(name):
        corners = to_corners(plain.numpy(), value.format.name.lower())
        return torch.from_numpy(from_corners(corners, elements.format(name)))
    return plain


def check_exact(name: str, mask: torch.Tensor) -> torch.Tensor:
    """Return a mask; raise ValueError if it holds a class id that a library which computes in float32 would change."""
    ids = mask.numpy()
    most = max(abs(int(ids.min(initial=0))), abs(int(ids.max(initial=0))))
    if most > _EXACT:
        raise ValueError(
            f"torchvision and albumentations change class ids above {_EXACT}, and {name!r} has {most}: use built-in "
            "transforms"
        )
    return mask
