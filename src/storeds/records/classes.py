"""Finds the classes that records have among those that their store names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storeds.errors import suggest
from storeds.protocols import JSON, Field
from storeds.records.annotations import check_labels

__all__ = ["class_fields", "classes_in", "stored_classes", "unnamed_class"]


def stored_classes(attrs: Mapping[str, Any], name: str | None) -> list[str] | None:
    """Return the classes of label `name` in the order of their class numbers; None if the attributes of a store name none.

    ``attrs["classes"]`` is a list, or a mapping from fields to lists.
    """
    classes = attrs.get("classes")
    if isinstance(classes, Mapping):
        classes = classes.get(name)
    return [str(each) for each in classes] if isinstance(classes, list) else None


def class_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields whose values are classes: ids or names."""
    return {
        name: field
        for name, field in fields.items()
        if field.role == "labels" or (field.role == "label" and field.kind in ("int", "str"))
    }


def classes_in(field: Field, value: Any) -> list[int | str]:
    """Return the classes in one value of such a field."""
    if field.role == "label":
        return [value]
    return [*np.asarray(check_labels("", value)).tolist()]


def unnamed_class(found: Mapping[str, Mapping[int | str, int]], classes: JSON) -> tuple[int, str] | None:
    """Return the position and the fault of a record with a class that `classes` lacks, or None.

    Parameters
    ----------
    found : mapping
        Field of classes → each of its classes, with the position of the first record that has it.
    classes : JSON
        ``classes`` of the attributes: a list of names, or a mapping from a field to its names. Other values name none. With
        several fields of classes, a list is for those called ``label`` and ``labels``.
    """
    for name, positions in found.items():
        names = classes.get(name) if isinstance(classes, Mapping) else classes
        if not isinstance(names, (list, tuple)):
            continue
        if names is classes and len(found) > 1 and name not in ("label", "labels"):
            continue  # the list may name the classes of another field
        listed = {each for each in names if isinstance(each, str)}
        for value, position in positions.items():
            if value not in listed if isinstance(value, str) else not 0 <= value < len(names):
                return position, _unnamed_fault(name, value, names)
    return None


def _unnamed_fault(name: str, value: Any, names: Sequence[Any]) -> str:
    if isinstance(value, str):
        hint = suggest(value, [each for each in names if isinstance(each, str)], "classes")
        return (
            f"field {name!r} has class {value[:80]!r}, which attrs['classes'] does not name: {hint}; add the missing name, "
            "correct the label, or declare the field without a role"
        )
    given = f"names the ids 0 to {len(names) - 1}" if names else "is empty"
    return (
        f"field {name!r} has class id {value}, which has no name: attrs['classes'] {given}; add the missing names, correct "
        "the id, or declare the field without a role"
    )
