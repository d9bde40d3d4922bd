"""Reads each element of a list in a document as a record of its own: crops of a picture, for example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storeds.layouts._mongodb_values import pick

__all__ = ["element_of", "elements", "lists_of_documents", "size_of"]

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
