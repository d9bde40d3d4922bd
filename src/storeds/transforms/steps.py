"""Divides transforms of whole samples into steps, and checks that these fit the elements."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError, MissingDependencyError
from storeds.protocols import Field, Transform
from storeds.records.fields import holds_integers, is_spatial
from storeds.transforms.alignment import Moves, moves
from storeds.transforms.binding import BoundTransform, Compose, Views, is_albumentations, wrap_albumentations
from storeds.transforms.boxes import FilterBoxes
from storeds.transforms.elements import check_several_boxes, is_of_torchvision, tv_tensors
from storeds.transforms.images import Normalize, ToTensor

__all__ = ["check_roles", "check_step", "flattened", "grouped", "warn_of_unused"]


def check_roles(transforms: Transform | None, fields: Mapping[str, Field]) -> None:
    """Raise ConfigError if transforms move pixels, but not those of an element without a role.

    Raises MissingDependencyError if torchvision's transforms would leave keypoints where they are.

    Parameters
    ----------
    transforms : callable or None
        What `JointTransform` applies.
    fields : mapping of str to Field
        Element → its declaration.
    """
    steps = flattened(transforms)
    roles = {field.role for field in fields.values()}
    changing = next((step for step in steps if moves(step) != Moves.NOT), None)
    if changing is not None and roles.isdisjoint(("image", "mask")) and not roles.isdisjoint(("boxes", "keypoints")):
        raise ConfigError(
            f"transforms: {changing!r} needs the size of the image, and samples have no image and no mask: add one to fields"
        )
    check_several_boxes(steps, fields)
    moving = next((step for step in steps if moves(step) in (Moves.ALIKE, Moves.DRAWN)), None)
    if moving is None:
        return
    if "keypoints" in roles:
        _check_keypoints_move(steps)
    image = next((field for field in fields.values() if field.role == "image"), None)
    for name, field in fields.items():
        if field.role is None and is_spatial(name, field, image):
            is_boxes = field.kind == "json" or (field.shape or ())[-1:] == (4,)
            likely = "boxes" if is_boxes else "mask" if holds_integers(field) else "image"
            decoded = ", and decode it, which decode='bytes' does not" if field.kind == "image" else ""
            raise ConfigError(
                f"transforms: {moving!r} moves pixels, but {name!r} has no role, so it would stay as stored and no longer "
                f"match. Say what it is, for example roles={{{name!r}: {likely!r}}}{decoded}, or read the other elements alone "
                "(fields=[…])"
            )


def _check_keypoints_move(steps: Sequence[Any]) -> None:
    """Raise an error if a transform of torchvision would move pixels, but leave keypoints where they are."""
    mixed = next(filter(_is_container_of_torchvision, steps), None)
    if mixed is not None and moves(mixed) != Moves.NOT:
        raise ConfigError(
            f"transforms: {mixed!r} would not move keypoints, because it applies functions or transforms that are not of "
            "torchvision. Put these beside it, or into storeds.transforms.Compose"
        )
    knows = tv_tensors()
    moved = next((step for step in steps if is_of_torchvision(step) and moves(step)), None)
    if moved is not None and knows is not None and not hasattr(knows, "KeyPoints"):
        raise MissingDependencyError(
            f"transforms: {moved!r} would not move keypoints: this torchvision does not know them; install 0.23 or later"
        )


def flattened(transform: Any) -> list[Any]:
    """Return the transforms to apply one after another."""
    if transform is None:
        return []
    # In torchvision's own Compose, functions and transforms of others would see its form of keypoints and labels.
    is_mixed = _is_container_of_torchvision(transform) and type(transform).__name__ == "Compose"
    if type(transform) is not Compose and not is_mixed:
        return [transform]
    return [each for part in transform.transforms for each in flattened(part)]


def _is_container_of_torchvision(transform: Any) -> bool:
    """Return whether a transform of torchvision v2 applies functions or transforms that are not of torchvision."""
    return type(transform).__module__.startswith("torchvision.transforms.v2") and not is_of_torchvision(transform)


def grouped(steps: list[Any]) -> tuple[Any, ...]:
    """Return the steps: built-in transforms, lists of albumentations transforms, and others, bound to a generator."""
    grouped: list[Any] = []
    for step in steps:
        if not is_albumentations(step):
            grouped.append(step if _is_joint(step) else BoundTransform(step))
        elif grouped and isinstance(grouped[-1], list) and not _is_compose(step) and not _is_compose(grouped[-1][0]):
            grouped[-1].append(step)
        else:
            grouped.append([step])
    return tuple(grouped)


def _is_joint(step: Any) -> bool:
    """Return whether a transform is built in and does to samples what it does to images: no subclass changed `__call__`."""
    if isinstance(step, (FilterBoxes, Normalize, ToTensor)):  # these have no other code for samples
        return True
    return hasattr(step, "operation") and str(getattr(type(step).__call__, "__module__", "")).startswith("storeds.")


def _is_compose(transform: Any) -> bool:
    """Return whether this is a Compose of albumentations, whose limits hold for its own transforms."""
    return any(kind.__name__ == "Compose" for kind in type(transform).__mro__)


def check_step(step: Any) -> None:
    """Raise ConfigError for a transform that cannot take samples."""
    if isinstance(step, Views):
        raise ConfigError("transforms: Views makes several images of one: pass it as transform=, for the image alone")
    wrap_albumentations(step)  # refuses version 1
    module = type(step).__module__
    if module.startswith("torchvision.transforms.") and not module.startswith("torchvision.transforms.v2"):
        raise ConfigError(
            f"transforms: {step!r} takes one image: use torchvision.transforms.v2.{type(step).__name__}, which takes samples"
        )


def warn_of_unused(step: Any) -> None:
    """Warn of the settings of a Compose of albumentations that the roles of the elements replace."""
    if not is_albumentations(step) or not _is_compose(step):
        return
    unused = ["additional_targets"] if step.additional_targets else []
    unused += ["keypoint_params"] if "keypoints" in step.processors else []
    if unused:
        warnings.warn(
            f"transforms: {' and '.join(unused)} of a Compose of albumentations are not used: the roles say which elements are "
            "images, masks, boxes and keypoints, and lost keypoints with a visibility become (0, 0, 0). Leave them out",
            stacklevel=2,
        )
