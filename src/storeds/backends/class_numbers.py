"""Gives the classes of several stores one numbering: by name, in the order of first appearance."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.protocols import JSON, Array, Backend, Field, Record
from storeds.records.classes import class_fields

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
    unlike = [store for text, store in dict(zip(texts, stores, strict=True)).items() if text is not None]
    if len(unlike) < 2:
        return None, {}
    fields, named, has_unnamed = stores[0].meta.fields, [_by_field(store) for store in unlike], None in texts
    numbered = [name for name in _label_fields(fields) if all(isinstance(each.get(name), list) for each in named)]
    try:
        joined = _together(named, () if has_unnamed else numbered)
    except ValueError:
        if has_unnamed:
            raise _refusal(unlike[1], stores[texts.index(None)], "pack the second again, with its classes") from None
        raise _refusal(unlike[0], unlike[1], _ROLES) from None
    if has_unnamed:
        return None, {}
    numbers = {name: {each: number for number, each in enumerate(joined[name])} for name in numbered}
    for name, of_name in numbers.items():
        dtype = fields[name].dtype
        if dtype is not None and len(of_name) - 1 > np.iinfo(dtype).max:
            raise ConfigError(f"field {name!r} of {dtype} cannot hold the numbers of {len(of_name):,} classes")
    tables: dict[str | None, ClassNumbers] = {}
    for store, of_store in zip(unlike, named, strict=True):
        own = {name: [of_name[str(each)] for each in of_store[name]] for name, of_name in numbers.items()}
        by_number = {name: np.array(of_name, np.int64) for name, of_name in own.items() if fields[name].kind != "str"}
        tables[_text(store)] = ClassNumbers(by_number)
    are_lists = all(isinstance(store.meta.attrs["classes"], list) for store in unlike)
    by_store = {number: tables[text] for number, text in enumerate(texts)} if numbered else {}
    return next(iter(joined.values())) if are_lists else joined, by_store


def check_same_classes(one: Backend, other: Backend) -> None:
    """Raise ConfigError if both stores name their classes, and a number has several names."""
    if _text(one) is not None and _text(other) is not None:
        try:
            _together([_by_field(one), _by_field(other)], ())
        except ValueError:
            raise _refusal(one, other, _IN_ONE_CALL) from None


def _label_fields(fields: Mapping[str, Field]) -> list[str]:
    """Return the fields of class numbers, or class names."""
    found = list(class_fields(fields))
    return [*found, "label"] if fields.get("label") == Field("int") else found  # of folders of images, without roles


def _by_field(store: Backend) -> dict[str, Any]:
    """Return field → the names of its classes; the field is "" for a list that is for no field of labels."""
    classes, labels = store.meta.attrs["classes"], _label_fields(store.meta.fields)
    if isinstance(classes, Mapping):
        return dict(classes)
    # Of several fields, a list is for those called label and labels.
    own = labels if len(labels) < 2 else [name for name in labels if name in ("label", "labels")]
    return dict.fromkeys(own or [""], classes)


def _together(named: Sequence[Mapping[str, Any]], numbered: Collection[str]) -> dict[str, Any]:
    """Return field → all names, for the results of `_by_field` of several stores.

    Raises ValueError if a number has several names, or is named in some stores only, unless it is `numbered` by name.
    """
    joined: dict[str, Any] = {}
    for field in dict.fromkeys(itertools.chain(*named)):
        every: list[Any] = [each.get(field) for each in named]
        longest = max(every, key=lambda names: len(names) if isinstance(names, list) else -1)
        beginnings = [longest[: len(names)] if isinstance(names, list) else longest for names in every]
        if field in numbered:
            joined[field] = list(dict.fromkeys(map(str, itertools.chain(*every))))
        elif list(map(_json, every)) == list(map(_json, beginnings)):
            joined[field] = longest
        else:
            raise ValueError(f"the names of {field!r} disagree")
    return joined


_ROLES = (
    "storeds numbers labels by name, but no masks, and no field without the role label or labels: declare the role, or pack "
    "both with the same classes"
)
_IN_ONE_CALL = (
    "open stores with labels in one call, as a list, which numbers classes by name, or pack both with the same classes"
)


def _refusal(one: Backend, other: Backend, advice: str) -> ConfigError:
    shown = [text if len(text) <= 100 else f"{text[:100]}…" for text in (_text(one) or "none", _text(other) or "none")]
    return ConfigError(
        f"{one.url} and {other.url} have different class names, so one label would mean different things: {shown[0]} and "
        f"{shown[1]}; {advice}"
    )


def _text(store: Backend) -> str | None:
    attrs = store.meta.attrs
    return _json(attrs["classes"]) if "classes" in attrs else None


def _json(value: JSON) -> str:
    return json.dumps(value, sort_keys=True)  # to compare: in Python, 1, 1.0 and True are equal
