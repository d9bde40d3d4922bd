"""Makes the parts of a `StoreDataset` from its arguments, and refuses arguments that do not belong together."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from storeds._spatial import check_spatial, takes_images
from storeds._suggest import suggest
from storeds.errors import ConfigError
from storeds.protocols import Backend, Field, Reader, Transform
from storeds.readers.array import ArrayReader
from storeds.readers.image import ImageReader
from storeds.registry import READERS
from storeds.stores import open_backend
from storeds.transforms import build_transform, first_crop, takes_strided

__all__ = [
    "Transforms",
    "build_transforms",
    "changed_arguments",
    "check_seed",
    "make_reader",
    "one_of",
    "open_source",
    "spare_a_copy",
    "transforms_by_element",
    "with_images",
]

Transforms: TypeAlias = Transform | dict[str, Transform] | None
"""For the sample's data, or for each of the elements that the user named."""

_DEFAULTS = {
    "decode": None,
    "channels": None,
    "mode": "RGB",
    "repair": True,
    "min_recovered": 0.5,
}  # of a dataset, which hands them on to its reader


def changed_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the `given` arguments of `function` that differ from its defaults."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if not _is_same(value, parameters[name].default)}


def _is_same(value: Any, default: Any) -> bool:
    # Whatever else is given is not compared: an array has no single truth.
    return value is default or (type(value) in (str, float) and bool(value == default))


def check_seed(seed: Any) -> int | None:
    """Return the seed; raises ConfigError for what is neither an int nor None."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed must be an int or None, got {seed!r}")
    return seed


def one_of(source: Any, url: Any) -> Any:
    """Return whichever of the two names of the store is given; raises ConfigError for both and for none."""
    if (source is None) == (url is None):
        given = "neither is" if source is None else "both are"
        raise ConfigError(f"a dataset has one store: give it as the first argument or as url=, of which {given} given")
    return url if source is None else source


def open_source(source: Any, layout: str | None, options: Mapping[str, Any] | None) -> Backend:
    """Return the backend that `source` names, or is."""
    for name in options or {}:
        if not isinstance(name, str) or name in ("url", "layout"):
            raise ConfigError(f"options: {name!r} is no option of a store; url and layout are arguments beside options")
    if isinstance(source, (str, os.PathLike, list, tuple)):
        return open_backend(source, layout=layout, **(options or {}))
    if not isinstance(source, Backend):
        raise ConfigError(
            f"source must be a URL, a path, a list of them, a Backend or a Source, not {type(source).__name__}"
        )
    if layout is not None or options:
        raise ConfigError("layout and options belong to the opening of a store; this one is open already")
    return source


def make_reader(
    reader: Any,
    fields: Sequence[str] | None,
    image_options: Mapping[str, Any],
    reader_options: Mapping[str, Any] | None,
) -> Reader[Any]:
    """Return the reader for a name, a class or an instance; only an image reader takes decode, mode, repair, …."""
    own = dict(reader_options or {})
    if not isinstance(reader, (str, type)):
        given = ["fields"] if fields is not None else []
        given += ["reader_options"] if own else []
        given += [name for name, value in image_options.items() if value != _DEFAULTS[name]]
        if given:
            raise ConfigError(f"{', '.join(given)} belong to the making of a reader; this one is made already")
        return cast("Reader[Any]", reader)
    target = READERS.get(reader) if isinstance(reader, str) else reader
    accepted = inspect.signature(target).parameters
    options = [name for name in accepted if name != "fields" and not _is_internal(name, target)]
    for name in own:
        if name == "fields":
            raise ConfigError("fields is an argument of StoreDataset, or a key of [dataset], not one of reader_options")
        if name not in options:
            raise ConfigError(f"reader {reader!r} has no option {name!r}; {suggest(name, options, 'options')}")
        if name in image_options and image_options[name] not in (_DEFAULTS[name], own[name]):
            raise ConfigError(f"{name} is given to the dataset and, another one, in reader_options; give it once")
    if isinstance(fields, str):
        raise ConfigError(f"fields is a sequence of names, not the text {fields!r}")
    for name, value in image_options.items():
        if name not in accepted and value != _DEFAULTS[name]:
            raise ConfigError(f"reader {reader!r} takes no {name}: it would be without effect; leave it out")
    kept = ("decode", "channels")  # which a reader may declare with another default than None
    named = {
        name: value
        for name, value in image_options.items()
        if name in accepted and (name not in kept or value is not None)
    }
    return cast("Reader[Any]", target(fields=tuple(fields or ()), **{**named, **own}))


def _is_internal(name: str, target: Any) -> bool:
    """Whether an argument of a reader is what its binding sets, and not what a plug-in declares for itself."""
    own = vars(target).get("__annotations__", {}) if isinstance(target, type) else {}
    return name.startswith("_") or (name in getattr(target, "internal", ()) and name not in own)


def build_transforms(spec: Any) -> Transforms:
    """Return what `transform` describes: one transform, or a mapping of elements to theirs, which has no key ``name``."""
    if not isinstance(spec, Mapping) or "name" in spec:
        return build_transform(spec)
    built = {name: build_transform(each, f"transform.{name}") for name, each in spec.items()}
    return {name: each for name, each in built.items() if each is not None}


def transforms_by_element(
    reader: Reader[Any],
    url: str,
    fields: Mapping[str, Field],
    transform: Transforms,
    target_transform: Transform | None,
) -> dict[str, Transform]:
    """Return element → transform, the data first; raises ConfigError for those that elements of a sample do not fit."""
    named = isinstance(transform, dict)
    given = dict(transform) if isinstance(transform, dict) else {}
    for name in given:
        if name not in reader.fields:
            raise ConfigError(f"transform names {name!r}; {suggest(name, reader.fields, 'elements of a sample')}")
    own = ((reader.data, None if isinstance(transform, dict) else transform), (reader.target, target_transform))
    for element, function in own:
        if function is not None and element is None:
            raise ConfigError(
                f"the samples of {url}, {reader.fields}, have no element that this transform applies to: {function!r}"
            )
        if function is not None and element is not None:
            if element in given:
                raise ConfigError(f"transform and target_transform both name {element!r}; give it one")
            given[element] = function
    stored = {name: fields[name] for name in reader.fields if name in fields}
    check_spatial(stored, reader.data, {name: each for name, each in given.items() if name in stored}, named)
    return given


def with_images(reader: Reader[Any], fields: Mapping[str, Field], transforms: Mapping[str, Transform]) -> Reader[Any]:
    """Return a bound reader whose arrays have their channels first where a transform takes images; raises ConfigError."""
    if not isinstance(reader, ArrayReader):
        return reader
    images = [name for name, each in transforms.items() if takes_images(each)]
    return reader.with_channels_first(name for name in images if name in fields and fields[name].kind == "array")


def spare_a_copy(reader: Reader[Any], transform: Transform | None) -> Reader[Any]:
    """Return a bound reader that does no more than such a transform needs, if nobody else sees its image.

    Pixels stay where the decoder put them; and those below the window of a crop may not be decoded at all.
    """
    if isinstance(reader, ArrayReader) and reader.data in reader.layouts:
        return replace(reader, views=takes_strided(transform))
    crop = first_crop(transform)  # which gives pixels in order, whatever comes after it
    if type(reader) is not ImageReader or reader.strided or not (crop or takes_strided(transform)):
        return reader
    if [name for name, field in zip(reader.fields, reader.kinds, strict=True) if field.kind == "image"][1:]:
        return reader
    return replace(reader, strided=True, cropper=None if reader.orient else crop)
