"""Which stored fields the elements of samples come from, and which of them are the data and the target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend, Field
from storeds.readers.elements import Element, IndexElement, PlainElement
from storeds.readers.paths import JsonPath, split_path

__all__ = [
    "INDEX",
    "Fields",
    "choose",
    "label_of",
    "target_of",
]

INDEX = "index"
_LABELS = ("label", "labels", "target", "targets")  # or at the end of a name
_OTHER_LABELS = ("y", "class", "class_id", "category", "category_id")

Fields: TypeAlias = Sequence[str] | Mapping[str, str]
"""The elements of a sample, in order: fields of the store and ``"index"``; or a mapping of elements to fields."""


def choose(
    view: Backend,
    fields: Fields,
    default: Callable[[], Sequence[str]],
    declared: Mapping[str, Field],
    *,
    paths: bool = False,
) -> list[Element]:
    """Return the elements of the samples of a store, in order: the index, and values as stored.

    Parameters
    ----------
    view : Backend
    fields : sequence or mapping
        What the user asks for; empty for `default`.
    default : callable
        Returns the elements that the reader chooses itself; raises ConfigError if it cannot read the store.
    declared : mapping of str to Field
        The fields of the store.
    paths : bool
        Whether a source may be a path to a value inside a field of kind json.

    Raises
    ------
    ConfigError
        An element is named twice, or the store has no such field.
    """
    asked = _asked(fields) or {name: name for name in default()}
    has_index = INDEX in declared
    chosen: list[Element] = []
    seen: set[str] = set()
    for name, source in asked.items():
        path = split_path(source, declared) if paths else JsonPath(source) if source in declared else None
        if path is None and (has_index or source != INDEX):
            known = [*declared, *([] if has_index else [INDEX])]
            raise ConfigError(f"{view.url} has no field {source!r}; {suggest(source, known, 'fields')}")
        if path is None:
            chosen.append(IndexElement(name=name, source=source, declared=Field("int"), path=None))
            continue
        field = declared[path.field]
        if path.steps and field.kind != "json":
            raise ConfigError(
                f"fields: {source!r} is a path into field {path.field!r}, which is of kind {field.kind}: only values of kind "
                "json have parts"
            )
        found = Field("json") if path.steps else field
        chosen.append(PlainElement(name=name, source=source, declared=found, path=path, is_copy=path.field in seen))
        seen.add(path.field)
    return chosen


def _asked(fields: Fields) -> dict[str, str]:
    """Return the elements that the user named, each with its field."""
    if isinstance(fields, Mapping):
        for name, source in fields.items():
            if not isinstance(name, str) or not isinstance(source, str):
                raise ConfigError(
                    f"fields maps elements to fields of the store, both names, not {name!r} to {source!r}"
                )
        return dict(fields)
    if len(set(fields)) != len(fields):
        raise ConfigError(f"fields {tuple(fields)} name an element twice")
    return {name: name for name in fields}


def label_of(fields: Mapping[str, Field]) -> tuple[str, ...]:
    """Return the field of the label: ``label``, the only number with that role, or the only int with a usual name of labels."""
    if "label" in fields:
        return ("label",)
    declared = [name for name, field in fields.items() if field.role == "label" and field.is_scalar]
    if len(declared) == 1:
        return tuple(declared)
    named = [name for name, field in fields.items() if field.kind == "int" and _is_label(name)]
    return tuple(named) if len(named) == 1 else ()


def _is_label(name: str) -> bool:
    return name.endswith(_LABELS) or name in _OTHER_LABELS


def target_of(chosen: Sequence[Element], others: Collection[str | None]) -> str | None:
    """Return the element of the label: the field ``label``, or the first element that is none of `others`; a key last."""
    found = {each.name: each.source for each in chosen if each.path and each.name not in others}
    if "label" in found:
        return "label"
    by_rank = sorted(found, key=lambda name: (found[name] == "key", found[name] != "label"))
    return next(iter(by_rank), None)
