"""Fits a ``collate_fn`` of ours to the samples of a dataset: names and roles become the places of elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from storeds.batching.collate import Ragged, collate
from storeds.batching.detection import collate_detection
from storeds.errors import ConfigError, suggest
from storeds.protocols import ROLES, Field
from storeds.records.roles import boxes_of
from storeds.transforms.tail import Tail

__all__ = ["does_tails", "fit_collate", "is_collate"]


def is_collate(collate_fn: Any) -> bool:
    """Return whether a ``collate_fn`` is `collate` or `collate_detection`, with or without settings."""
    return _function(collate_fn) in (collate, collate_detection)


def _function(collate_fn: Any) -> Any:
    return collate_fn.func if isinstance(collate_fn, functools.partial) else collate_fn


def does_tails(collate_fn: Any) -> bool:
    """Return whether a ``collate_fn`` does the tails with which `fit_collate` was called."""
    return is_collate(collate_fn) and "tails" in getattr(collate_fn, "keywords", ())


def fit_collate(
    collate_fn: Callable[..., Any],
    fields: Mapping[str, Field],
    *,
    as_dict: bool,
    changed: Collection[str] = (),
    tails: Mapping[str, Tail] = MappingProxyType({}),
) -> Callable[..., Any]:
    """Return a function of ours for samples of these elements, and any other ``collate_fn`` unchanged.

    In its settings a name or a role becomes the name of an element in a dict, and its place in a tuple. For `collate`,
    the declarations decide about the structure of batches, whatever these hold: elements that are declared to vary in
    their first dimension alone get a mask, and JSON is listed, unless `ragged` or `pad` names them.

    Parameters
    ----------
    collate_fn : callable
        `collate`, `collate_detection`, a `functools.partial` of one, or any other function.
    fields : mapping of str to Field
        The elements of a sample, in order.
    as_dict : bool
        Whether samples are dicts.
    changed : collection of str
        Elements that have a transform of their own, so that their declaration says nothing about their length.
    tails : mapping of str to Tail
        Element → what is left to do for it.

    Raises
    ------
    ConfigError
        A setting names no element.
    """
    if not is_collate(collate_fn):
        return collate_fn
    settings = dict(collate_fn.keywords) if isinstance(collate_fn, functools.partial) else {}
    settings.pop("tails", None)  # the function may have been fitted before
    if _function(collate_fn) is collate_detection:
        settings = _for_detection(settings, fields, as_dict=as_dict)
        if tails.keys() == {settings.get("images", "image")}:
            settings["tails"] = dict(tails)
        return functools.partial(collate_detection, **settings)
    settings.pop("declared", None)
    places = functools.partial(_places, fields=fields, as_dict=as_dict)
    if settings.get("pad_images") is True:
        images = [name for name, field in fields.items() if field.role in ("image", "mask")]
        settings["pad_images"] = images or [name for name, field in fields.items() if field.kind == "image"] or True
    for argument in {"pad", "ragged", "pad_images"} & settings.keys():
        given = settings[argument]
        if isinstance(given, Collection) and not isinstance(given, str):
            values = given if isinstance(given, Mapping) else dict.fromkeys(given, 0)
            settings[argument] = {place: each for name, each in values.items() for place in places(argument, name)}
    ways: dict[str, Ragged] = {name: "mask" for name in fields if _varies(name, fields)}
    ways |= {name: "list" for name in fields if fields[name].kind == "json" and name not in ways}
    declared = {place: way for name, way in ways.items() if name not in changed for place in places("declared", name)}
    if declared:
        settings["declared"] = declared
    if tails:
        settings["tails"] = {place: tail for name, tail in tails.items() for place in places("tails", name)}
    return functools.partial(collate, **settings) if settings else collate


def _varies(name: str, fields: Mapping[str, Field]) -> bool:
    """Return whether an element is declared as rows, of which samples may have different numbers."""
    field = fields[name]
    if field.role in ("boxes", "keypoints", "labels") or boxes_of(name, fields) is not None:
        return field.shape is None or field.shape[:1] == (None,)
    if field.kind != "array" or field.role in ("image", "mask") or field.shape is None:
        return False
    return field.shape[:1] == (None,) and None not in field.shape[1:]


def _places(argument: str, name: str | int, *, fields: Mapping[str, Field], as_dict: bool) -> list[str | int]:
    """Return the elements of samples that a name or a role means."""
    if isinstance(name, int):
        return [name]
    names = [name] if name in fields else [each for each, field in fields.items() if field.role == name]
    if not names and not as_dict:
        roles = (role for role in ROLES if any(field.role == role for field in fields.values()))
        known = dict.fromkeys((*fields, *roles))
        raise ConfigError(f"{argument}: there is no element {name!r}; {suggest(name, known, 'elements and roles')}")
    order: Sequence[str] = list(fields)
    # A transform may add elements to a dict: collate checks those names.
    return list(names or [name]) if as_dict else [order.index(each) for each in names]


_DETECTION = {
    "image": ("images", "image"),
    "boxes": ("boxes", "boxes"),
    "labels": ("labels", "labels"),
    "mask": ("masks", "masks"),
    "keypoints": ("keypoints", "keypoints"),
}
"""Role → the argument of `collate_detection` that names its element, and the usual name."""


def _for_detection(settings: dict[str, Any], fields: Mapping[str, Field], *, as_dict: bool) -> dict[str, Any]:
    """Return the settings of `collate_detection`, with elements found by their role where no element has the usual name."""
    for role, (argument, usual) in _DETECTION.items():
        found = [name for name, field in fields.items() if field.role == role]
        if role in ("mask", "labels", "keypoints"):
            found = [name for name in found if boxes_of(name, fields) == settings.get("boxes", "boxes")]
        if argument not in settings and usual not in fields and len(found) == 1:
            settings[argument] = found[0]
    name = settings.get("boxes", "boxes")
    boxes = fields.get(name)
    if boxes is not None and boxes.relative:
        raise ConfigError(
            f"collate_detection takes boxes in pixels, and those of {name!r} are fractions: read samples with reader='sample', "
            "which converts them"
        )
    if boxes is not None and boxes.format is not None:
        settings.setdefault("box_format", boxes.format)
    if not as_dict:
        settings.setdefault("fields", tuple(fields))
    return settings
