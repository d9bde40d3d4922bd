"""Gives the classes of several stores one numbering: by name, in the order of first appearance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.protocols import JSON, Array, Backend, Field, Record
from storeds.records.classes import class_fields, stored_classes

__all__ = ["ClassNumbers", "check_same_classes", "join_classes"]


@dataclass(frozen=True)
class ClassNumbers:
    """The numbers that the classes of one store have among those of several. Picklable.

    Numbers below 0 name no class, and stay. A number without a name is an error, as another store may name that number.

    Parameters
    ----------
    tables : mapping of str to ndarray
        Field of class numbers → the new number of each number.
    """

    tables: Mapping[str, Array]

    def values(self, name: str, values: Any) -> Any:
        """Return the values of a field with new class numbers; raises ValueError for a number without a name."""
        table = self.tables.get(name)
        if table is None:
            return values
        if isinstance(values, list):  # of kind json: numbers or names
            return [each if isinstance(each, str) else int(self.values(name, np.array(each))) for each in values]
        given = np.asarray(values)
        unnamed = given[given >= len(table)]
        if unnamed.size:
            raise ValueError(
                f"field {name!r} has class {unnamed.flat[0]}, which its store does not name, and another store may: add the name"
            )
        found = given.copy()
        is_class = given >= 0
        found[is_class] = table[given[is_class]]
        return found if isinstance(values, np.ndarray) else int(found)

    def record(self, record: Record) -> Record:
        """Return a record with new class numbers; raises ValueError as `values` does."""
        return {name: self.values(name, value) for name, value in record.items()}

    def where(self, where: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return a result of `check_where` with the numbers that the store has."""
        return {
            name: list(values) if name not in self.tables else self._own(name, values) for name, values in where.items()
        }

    def _own(self, name: str, values: Iterable[int]) -> list[int]:
        own = [np.flatnonzero(self.tables[name] == value).tolist() if value >= 0 else [value] for value in values]
        return [number for numbers in own for number in numbers]


def join_classes(members: Sequence[Backend]) -> tuple[JSON, dict[int, ClassNumbers]]:
    """Return the class names of all members together, and what renumbers each member that has others.

    Nothing is renumbered if all members that name classes name the same.

    Raises
    ------
    ConfigError
        Names differ, and a member has none, or they do not name a field whose numbers can change.
    """
    texts = [_text(member) for member in members]
    first, *others = dict.fromkeys(filter(None, texts)) or [None]
    if not others:
        return None if first is None else json.loads(first), {}
    unlike = members[texts.index(others[0])]
    if None in texts:
        raise _refusal(unlike, members[texts.index(None)])
    fields = members[0].meta.fields
    names = _class_fields(fields, [member.meta.attrs["classes"] for member in members])
    if not names:
        raise _refusal(members[texts.index(first)], unlike)
    numbers: dict[str, dict[str, int]] = {name: {} for name in names}
    tables: dict[str | None, ClassNumbers] = {}
    for member, text in zip(members, texts, strict=True):
        if text not in tables:
            found = {name: _table(member, name, numbers[name]) for name in names}
            tables[text] = ClassNumbers({name: table for name, table in found.items() if fields[name].kind != "str"})
    joined: JSON = {name: list[JSON](each) for name, each in numbers.items()}
    if isinstance(members[0].meta.attrs["classes"], list):
        joined = list[JSON](numbers[names[0]])
    for name, each in numbers.items():
        dtype = fields[name].dtype
        if dtype is not None and len(each) - 1 > np.iinfo(dtype).max:
            raise ConfigError(f"field {name!r} of {dtype} cannot hold the numbers of {len(each):,} classes")
    return joined, {number: tables[text] for number, text in enumerate(texts)}


def _class_fields(fields: Mapping[str, Field], classes: Sequence[JSON]) -> list[str]:
    """Return the fields of class numbers, or class names, that all `classes` name; none if another may depend on them."""
    found = list(class_fields(fields))
    if fields.get("label") == Field("int"):  # of folders of images, which have no roles
        found.append("label")
    if all(isinstance(each, list) for each in classes):  # several fields: a list is for those called label and labels
        return found if len(found) < 2 else [name for name in found if name in ("label", "labels")]
    named = [each for each in classes if isinstance(each, Mapping)]
    if len(named) < len(classes) or any(each.keys() != named[0].keys() for each in named):
        return []
    other = [name for name in named[0] if name not in found and any(each[name] != named[0][name] for each in named)]
    return [] if other else [name for name in found if name in named[0]]


def _table(member: Backend, name: str, numbers: dict[str, int]) -> Array:
    """Return the number of each class of a member, adding those that are new."""
    own = stored_classes(member.meta.attrs, name) or []
    return np.array([numbers.setdefault(each, len(numbers)) for each in own], np.int64)


def check_same_classes(one: Backend, other: Backend) -> None:
    """Raise ConfigError if both stores name their classes and the names differ."""
    names, others = _text(one), _text(other)
    if names is not None and others is not None and names != others:
        raise _refusal(one, other)


def _refusal(one: Backend, other: Backend) -> ConfigError:
    shown = [text if len(text) <= 100 else f"{text[:100]}…" for text in (_text(one) or "none", _text(other) or "none")]
    return ConfigError(
        f"{one.url} and {other.url} have different class names, so one label would mean different things: {shown[0]} and "
        f"{shown[1]}; open stores with labels in one call, as a list, which numbers classes by name, or pack both with the "
        "same classes"
    )


def _text(member: Backend) -> str | None:
    # Compare as text: in Python, 1, 1.0 and True are equal.
    attrs = member.meta.attrs
    return json.dumps(attrs["classes"], sort_keys=True) if "classes" in attrs else None
