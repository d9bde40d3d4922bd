"""Finds out which fields the documents of a collection have, at which paths, and which of them cannot be columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storeds.errors import ConfigError
from storeds.layouts.mongodb.values import infer, paths_of, pick
from storeds.records.fields import parse_fields

__all__ = ["Places", "element_of", "elements", "holds_data", "lists_of_documents", "places_of", "size_of"]


_MOST = 64  # elements that fields are inferred from


def size_of(path: str) -> dict[str, Any]:
    """Return a projection that gives the length of the list at `path`, 0 where there is none, as ``n``."""
    return {"_id": 1, "n": {"$cond": [{"$isArray": f"${path}"}, {"$size": f"${path}"}, 0]}}


def element_of(document: Mapping[str, Any], path: str, number: int) -> dict[str, Any]:
    """Return the document with one element in the place of its list; raises ValueError if it has no such element."""
    found = pick(document, path)
    if not isinstance(found, list) or number >= len(found):
        there = f"{len(found)} elements" if isinstance(found, list) else "no list"
        raise ValueError(f"its document has {there} in {path!r} now, so no element {number}")
    return _with(document, path.split("."), found[number])


def _with(document: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    return {**document, name: _with(document[name], rest, value) if rest else value}


def elements(document: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield the document once for each of the first elements of its list."""
    found = pick(document, path)
    for number in range(min(len(found), _MOST) if isinstance(found, list) else 0):
        yield element_of(document, path, number)


def lists_of_documents(value: Any) -> bool:
    """Whether `value` is a list of documents, and of nothing else."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


@dataclass
class Places:
    """Where fields lie.

    Attributes
    ----------
    columns : mapping of str to str
        A field's name → its dotted path.
    left : mapping of str to str
        A path that is no column → why not.
    """

    columns: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def holds_data(value: Any) -> bool:
    """Whether bytes, or a picture as text, lie somewhere in `value`."""
    if isinstance(value, Mapping):
        return any(map(holds_data, value.values()))
    if lists_of_documents(value):
        return any(map(holds_data, value))
    return value is not None and infer([value])[0].is_blob


def places_of(documents: Sequence[Mapping[str, Any]], unwind: str | None, url: str) -> Places:
    """Return where the fields of documents lie: of documents inside that hold data, and of an element, each field by itself.

    Raises
    ------
    ConfigError
        A list of documents that hold data would be one field.
    """
    found = Places()
    for path in _paths(documents, unwind):
        values = [pick(document, path) for document in documents]
        if any(value is None for value in values):
            found.left[path] = "absent or null in some documents"
            continue
        lists = [value for value in values if isinstance(value, list)]
        if any(map(lists_of_documents, lists)) and any(map(holds_data, lists)):
            raise ConfigError(
                f"{url}: field {path!r} of its documents is a list of documents with images or other data, {sum(map(len, lists))} in "
                f"{len(lists)} of them: unwind={path!r} gives one record for each of them; columns= names other fields to read instead"
            )
        name = _name_of(path, unwind, found.columns)
        if name is None:
            found.left[path] = "no name that a field can have; columns= gives it one"
        else:
            found.columns[name] = path
    return found


def _paths(documents: Sequence[Mapping[str, Any]], unwind: str | None) -> Iterator[str]:
    """Yield the paths of the fields, those of any document."""
    for name in dict.fromkeys(name for document in documents for name in document if name != "_id"):
        values = [document.get(name) for document in documents]
        is_inside = unwind is not None and unwind.partition(".")[0] == name
        if is_inside or (all(isinstance(value, Mapping) for value in values) and any(map(holds_data, values))):
            yield from dict.fromkeys(
                path
                for value in values
                for path in paths_of({name: value})
                if path != name or not isinstance(value, Mapping)
            )
        else:
            yield name


def _name_of(path: str, unwind: str | None, taken: Mapping[str, str]) -> str | None:
    """Return the name of a column: of an element's field its own, of another the path, in the form that fields have."""
    if "." not in path:
        return path if _is_field_name(path) and path not in taken else None
    whole = re.sub(r"[^a-z0-9_]", "_", path.lower())
    short = path[len(unwind) + 1 :] if unwind and path.startswith(f"{unwind}.") else whole
    return next((name for name in (short, whole) if _is_field_name(name) and name not in taken), None)


def _is_field_name(name: str) -> bool:
    try:
        return bool(parse_fields({name: "json"})) and "." not in name
    except ConfigError:
        return False
