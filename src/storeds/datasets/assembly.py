"""Builds the parts of a dataset from its settings: the backend, the reader, and the transforms of elements."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import msgspec

from storeds._utils.arguments import from_omegaconf
from storeds.backends.join import Join, JoinedView
from storeds.backends.opening import open_backend
from storeds.datasets.settings import DatasetSettings
from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend, Field, Reader, ReaderSpec, Transform
from storeds.readers.paths import split_path
from storeds.readers.reader import built_in
from storeds.records.cache import load_json, stats_path
from storeds.records.shapes import with_pictures
from storeds.registry import READERS
from storeds.transforms import BoundTransform, JointTransform, build_transform
from storeds.transforms.alignment import check_roles, check_spatial, takes_images
from storeds.transforms.arguments import is_list
from storeds.transforms.binding import Compose, first_crop, takes_strided
from storeds.transforms.tail import Tail

__all__ = [
    "Transforms",
    "bind_joint",
    "bind_transforms",
    "build_transforms",
    "declared_elements",
    "fit_reader",
    "make_reader",
    "open_source",
    "reader_name",
    "transforms_by_element",
    "with_stats",
]


Transforms: TypeAlias = Transform | dict[str, Transform] | None
"""For the sample's data, or for each element that the user named."""


def open_source(source: Any, layout: str | None, options: Mapping[str, Any] | None, join: Any = None) -> Backend:
    """Return `source` if it is an open backend, otherwise open the store that it names; with the columns of a table to `join`."""
    opened = _open_source(source, layout, options)
    return opened if join is None else JoinedView(opened, Join.validated(join, "join"))


def _open_source(source: Any, layout: str | None, options: Mapping[str, Any] | None) -> Backend:
    for name in options or {}:
        if name in DatasetSettings.renamed:
            raise ConfigError(f"{name}: its name is {DatasetSettings.renamed[name]!r} now")
        if not isinstance(name, str) or name in ("url", "layout"):
            raise ConfigError(
                f"options: {name!r} is not an option of a store; pass url and layout as arguments of their own"
            )
    if isinstance(source, (str, os.PathLike, list, tuple)):
        return open_backend(source, layout=layout, **(options or {}))
    if not isinstance(source, Backend):
        raise ConfigError(
            f"url must be a URL, a path, a list of them, a Backend or a DatasetSettings, not {type(source).__name__}"
        )
    if layout is not None or options:
        raise ConfigError("layout and options are for opening a store, and this one is open already: leave them out")
    return source


def make_reader(
    reader: Any,
    fields: Any,
    settings: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    declared: Mapping[str, Field],
    *,
    joint: bool,
) -> ReaderSpec[Any]:
    """Return a description of the reader of a dataset.

    Parameters
    ----------
    reader : str or ReaderSpec
        ``"image"`` becomes ``"sample"`` where samples have several parts that belong together, and ``"array"`` where the store
        has arrays and no pictures.
    fields : sequence of str, mapping of str to str, or None
    settings : mapping
        Arguments of the dataset for its reader, of which only some readers take `decode`, `mode`, `repair`, ….
    options : mapping, optional
        ``reader_options``.
    declared : mapping of str to Field
        The fields of the store.
    joint : bool
        Whether there are transforms for whole samples.

    Raises
    ------
    ConfigError
        A setting has no effect on this reader, is unknown, or is given twice.
    """
    if reader == "image" and (joint or settings["roles"] is not None or _has_parts(fields, declared)):
        reader = "sample"
    elif reader == "image" and _has_only_numbers(declared):
        reader = "array"
    defaults = DatasetSettings.defaults()
    # The number 1 is not as True, which readers refuse.
    changed = {
        name: value
        for name, value in settings.items()
        if (type(value), value) != (type(defaults[name]), defaults[name])
    }
    if fields is not None:
        changed["fields"] = fields
    own = options or {}
    if not isinstance(reader, (str, type)) and hasattr(reader, "bind"):
        surplus = [*changed, *["reader_options"] * bool(own)]
        if surplus:
            raise ConfigError(
                f"{', '.join(surplus)} are for making a reader, and this one is made already: pass them to {type(reader).__name__}"
            )
        return cast("ReaderSpec[Any]", reader)
    if isinstance(fields, str):
        raise ConfigError(f"fields is a sequence of names, not the text {fields!r}")
    target = READERS.get(reader) if isinstance(reader, str) else reader
    shown = reader if isinstance(reader, str) else getattr(reader, "__name__", reader)
    _check_options(shown, inspect.signature(target).parameters, own, changed)
    if fields is not None and not isinstance(fields, Mapping):
        changed["fields"] = tuple(fields)
    return cast("ReaderSpec[Any]", target(**{**changed, **own}))


def _check_options(shown: str, accepted: Iterable[str], own: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that a reader does not take, or that is given twice; `own` are ``reader_options``."""
    known = [name for name in accepted if name != "fields"]
    for name in own:
        if name == "fields":
            raise ConfigError("fields is an argument of StoreDataset, or a key of [dataset], not one of reader_options")
        if name not in known:
            raise ConfigError(f"reader {shown!r} has no option {name!r}; {suggest(name, known, 'options')}")
        if name in changed and changed[name] != own[name]:
            raise ConfigError(f"{name} is given twice with different values, to the dataset and in reader_options")
    for name in changed:
        if name not in accepted:
            raise ConfigError(f"reader {shown!r} takes no {name}: it would have no effect; leave it out")


def _has_parts(fields: Any, declared: Mapping[str, Field]) -> bool:
    """Return whether samples have a mask, boxes or keypoints, or values inside of JSON."""
    asked = declared if fields is None else fields.values() if isinstance(fields, Mapping) else fields
    paths = [split_path(name, declared) for name in asked if isinstance(name, str)]
    roles = {declared[name].role for name in asked if name in declared}
    return any(path is not None and path.steps for path in paths) or not roles.isdisjoint(
        ("mask", "boxes", "keypoints")
    )


def _has_only_numbers(declared: Mapping[str, Field]) -> bool:
    """Return whether a store has arrays, and nothing that may be a picture."""
    fields = declared.values()
    is_number = [each.role is None and (each.is_scalar or each.kind in ("array", "str")) for each in fields]
    return all(is_number) and any(each.kind == "array" for each in fields) and with_pictures(declared) == dict(declared)


def with_stats(spec: Any, reader: Reader[Any], backend: Backend) -> Any:
    """Return a description of transforms with numbers for each ``{"name": "Normalize", "from": "stats"}`` in it.

    They describe the whole store, whatever `where` selects, so that all of its splits get the same. ``of`` in the
    description names another store.

    Parameters
    ----------
    spec : any
        As for `build_transforms`.
    reader : Reader
        Bound.
    backend : Backend
        The store of the dataset.

    Raises
    ------
    ConfigError
        `storeds.ops.stats` has not measured the store in the mode of the reader.
    """

    def resolved(part: Any, element: str) -> Any:
        if is_list(part) and not callable(part):
            return [resolved(each, element) for each in part]
        if not isinstance(part, Mapping):
            return part
        if "name" not in part:
            return {name: resolved(each, str(name)) for name, each in part.items()}
        if part["name"] == "Normalize" and "from" in part:
            return _measured(part, element, reader, backend)
        return {name: resolved(value, element) if name == "transforms" else value for name, value in part.items()}

    return resolved(from_omegaconf(spec), reader.data or "image")


class _Moments(msgspec.Struct):
    """What the statistics of a store say of its pixels: a number for each channel."""

    mean: list[float]
    std: list[float]


def _measured(part: Mapping[str, Any], element: str, reader: Reader[Any], backend: Backend) -> dict[str, Any]:
    """Return a ``Normalize`` from stats with its numbers for one element."""
    if part["from"] != "stats" or "mean" in part or "std" in part:
        raise ConfigError(f"transform: Normalize takes mean and std, or from = 'stats' instead, not {dict(part)!r}")
    own = built_in(reader)
    found_element = None if own is None else own.element(element)
    field = element if found_element is None else found_element.source
    mode = "RGB" if own is None else own.mode_of(element)
    url, meta = backend.url, backend.meta
    if "of" in part:
        with open_backend(part["of"]) as other:
            url, meta = other.url, other.meta
    found = load_json(stats_path(meta, field, mode), _Moments)
    if found is None or {len(found.mean), len(found.std)} != {len(mode)}:
        raise ConfigError(
            f"transform: Normalize from stats: the mean and deviation of {url} are not known here yet; run: "
            f"storeds stats {shlex.quote(url)} --field {shlex.quote(field)} --mode {mode}"
        )
    rest = {name: value for name, value in part.items() if name not in ("from", "of")}
    return {**rest, "mean": found.mean, "std": found.std}


def build_transforms(spec: Any) -> Transforms:
    """Return the transform that `spec` describes, or a mapping of elements to theirs, which has no key ``name``."""
    if spec is None:
        return None
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
    """Return element → transform, the data first; raises ConfigError where a transform does not fit the elements."""
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
    if not given:
        return {}
    stored = declared_elements(reader, fields)
    check_spatial(stored, reader.data, {name: each for name, each in given.items() if name in stored}, named)
    return given


def declared_elements(reader: Reader[Any], fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the elements of a bound reader that come from the store, each with its declaration; `fields` are stored."""
    own = built_in(reader)
    return own.declared() if own is not None else {name: fields[name] for name in reader.fields if name in fields}


def fit_reader(reader: Reader[Any], transforms: Mapping[str, Transform], joint: Transform | None) -> Reader[Any]:
    """Return a bound reader that fits the transforms, and skips work that these do not need.

    Parameters
    ----------
    reader : Reader
        Bound.
    transforms : mapping of str to callable
        Element → its transform.
    joint : callable or None
        The transforms of whole samples.

    Raises
    ------
    ConfigError
        The reader cannot read what the transforms take.
    """
    own = built_in(reader)
    is_joint = own is not None and own.joint is not None
    if own is not None and is_joint:
        check_roles(joint, own.declared())
    elif joint is not None:
        raise ConfigError(
            f"transforms is for whole samples, which reader 'sample' reads, not {reader_name(reader)}; pass transform= for the "
            "sample's data alone, or for reader 'patch' roles, such as {'labels': 'mask'}"
        )
    if own is None:
        return reader
    first = joint if is_joint else transforms.get(reader.data or "")
    images = [name for name, each in transforms.items() if takes_images(each)]
    return own.fit(images, strided=takes_strided(first), cropper=first_crop(first))


def reader_name(reader: Reader[Any]) -> str:
    """Return the name by which messages call a reader."""
    own = built_in(reader)
    return type(reader).__name__ if own is None else own.kind


def bind_joint(reader: Reader[Any], joint: Transform | None) -> JointTransform | None:
    """Return what makes the elements of whole samples, where the reader builds these."""
    own = built_in(reader)
    return None if own is None or own.joint is None else JointTransform(joint, box_format=own.joint.box_format)


def bind_transforms(
    reader: Reader[Any], transforms: Mapping[str, Transform], joint: JointTransform | None
) -> tuple[list[tuple[str, BoundTransform]], dict[str, Tail]]:
    """Return element → transform, called with each sample's randomness; and element → what these and `joint` leave to do."""
    own = built_in(reader)
    tails: dict[str, Tail] = {}
    if joint is not None and joint.tail is not None and own is not None and own.joint is not None:
        tails = {name: joint.tail for name, field in own.joint.declared.items() if field.role == "image"}
    # A transform of one image takes the floats.
    bound = {
        name: BoundTransform(Compose([tails[name], each]) if name in tails else each)
        for name, each in transforms.items()
    }
    tails |= {name: each.tail for name, each in bound.items() if each.tail is not None}
    return list(bound.items()), {name: tail for name, tail in tails.items() if name not in bound or bound[name].tail}
