"""Gives the classes of several stores one numbering: by name, in the order of first appearance."""

from __future__ import annotations

import itertools
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


def join_classes(stores: Sequence[Backend]) -> tuple[JSON, dict[int, ClassNumbers]]:
    """Return the class names of all stores together, and what renumbers the classes of each store.

    Labels are numbered by name. Other numbers, such as the class ids of masks, stay, so their names may only continue each
    other: ``["road", "car"]`` and ``["road", "car", "sky"]``.

    Returns
    -------
    JSON, dict
        None and an empty mapping if all stores that name classes name the same.

    Raises
    ------
    ConfigError
        Names differ, and a store has none, or they differ for numbers that stay; or a field cannot hold the numbers of all
        classes.
    """
    texts = [_text(store) for store in stores]
    named = [store for text, store in dict(zip(texts, stores, strict=True)).items() if text is not None]
    if len(named) < 2:
        return None, {}
    classes: list[Any] = [store.meta.attrs["classes"] for store in named]
    if None in texts:
        if _continue_each_other(classes):
            return None, {}
        raise _refusal(named[1], stores[texts.index(None)], "pack the store without names again, with its classes")
    fields = stores[0].meta.fields
    numbers: dict[str, dict[str, int]] = {name: {} for name in _label_fields(fields, classes)}
    others = [_without(each, numbers) for each in classes]
    if not _continue_each_other(others):
        raise _refusal(
            named[0],
            named[1],
            "storeds numbers labels by name, but not masks, and no field that has neither the role label nor labels: declare "
            "the role, or pack both with the same classes",
        )
    tables: dict[str | None, ClassNumbers] = {}
    for store, text in zip(stores, texts, strict=True):
        if text not in tables:
            found = {name: _table(store, name, of_field) for name, of_field in numbers.items()}
            tables[text] = ClassNumbers({name: table for name, table in found.items() if fields[name].kind != "str"})
    for name, of_field in numbers.items():
        dtype = fields[name].dtype
        if dtype is not None and len(of_field) - 1 > np.iinfo(dtype).max:
            raise ConfigError(f"field {name!r} of {dtype} cannot hold the numbers of {len(of_field):,} classes")
    by_store = {number: tables[text] for number, text in enumerate(texts)} if numbers else {}
    return _together(classes, others, numbers), by_store


def _label_fields(fields: Mapping[str, Field], classes: Sequence[Any]) -> list[str]:
    """Return the fields of class numbers, or class names, that all `classes` name."""
    found = list(class_fields(fields))
    if fields.get("label") == Field("int"):  # of folders of images, which have no roles
        found.append("label")
    # Of several fields, a list is for those called label and labels.
    listed = found if len(found) < 2 else [name for name in found if name in ("label", "labels")]
    for each in classes:
        own = listed if isinstance(each, list) else each if isinstance(each, Mapping) else ()
        found = [name for name in found if name in own and (own is listed or isinstance(each[name], list))]
    return found


def _without(classes: Any, numbered: Mapping[str, Any]) -> Any:
    """Return the names in `classes` that are for other numbers than those of labels."""
    if isinstance(classes, Mapping):
        return {name: names for name, names in classes.items() if name not in numbered}
    return {} if numbered else classes


def _continue_each_other(classes: Sequence[Any]) -> bool:
    """Return whether each number has one name in all `classes` that name it."""
    if not all(isinstance(each, Mapping) for each in classes):
        return _begin(classes, _longest(classes))
    names = classes[0].keys()
    by_field = {name: [each.get(name) for each in classes] for name in names}
    return all(each.keys() == names for each in classes) and all(
        _begin(each, _longest(each)) for each in by_field.values()
    )


def _begin(every: Sequence[Any], longest: Any) -> bool:
    """Return whether each is `longest`, or a list that is its beginning."""
    ends = [len(each) if isinstance(each, list) and isinstance(longest, list) else None for each in every]
    wanted = [longest if end is None else longest[:end] for end in ends]
    return [json.dumps(each, sort_keys=True) for each in every] == [json.dumps(each, sort_keys=True) for each in wanted]


def _longest(every: Sequence[Any]) -> Any:
    return max(every, key=lambda each: len(each) if isinstance(each, list) else 0)


def _together(classes: Sequence[Any], others: Sequence[Any], numbers: Mapping[str, Mapping[str, int]]) -> JSON:
    """Return the names of all classes, as a list if all stores have one."""
    if not numbers and isinstance(classes[0], list):
        found: JSON = _longest(classes)
        return found
    joined: dict[str, JSON] = {}
    for name in dict.fromkeys(itertools.chain(*(each for each in classes if isinstance(each, Mapping)), numbers)):
        joined[name] = [*numbers[name]] if name in numbers else _longest([each[name] for each in others])
    return joined if any(isinstance(each, Mapping) for each in classes) else joined[next(iter(numbers))]


def _table(store: Backend, name: str, numbers: dict[str, int]) -> Array:
    """Return the number of each class of a store, adding those that are new."""
    own = stored_classes(store.meta.attrs, name) or []
    return np.array([numbers.setdefault(each, len(numbers)) for each in own], np.int64)


def check_same_classes(one: Backend, other: Backend) -> None:
    """Raise ConfigError if both stores name their classes, and a number has another name."""
    both = [store.meta.attrs["classes"] for store in (one, other) if "classes" in store.meta.attrs]
    if not _continue_each_other(both or [[]]):
        raise _refusal(
            one,
            other,
            "open stores with labels in one call, as a list, which numbers classes by name, or pack both with the same classes",
        )


def _refusal(one: Backend, other: Backend, advice: str) -> ConfigError:
    shown = [text if len(text) <= 100 else f"{text[:100]}…" for text in (_text(one) or "none", _text(other) or "none")]
    return ConfigError(
        f"{one.url} and {other.url} have different class names, so one label would mean different things: {shown[0]} and "
        f"{shown[1]}; {advice}"
    )


def _text(store: Backend) -> str | None:
    # Compare as text: in Python, 1, 1.0 and True are equal.
    attrs = store.meta.attrs
    return json.dumps(attrs["classes"], sort_keys=True) if "classes" in attrs else None
