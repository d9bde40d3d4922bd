"""Where the verdicts on pictures lie among a store's fields, and the columns that are derived from them.

A native store keeps the verdict on field ``image`` in the reserved field ``_verdict_image`` of each record. ``where=`` and
``column`` also know its two parts by names of their own: ``finding`` and ``recovered``, or ``left_finding`` and
``left_recovered`` in a store of several image fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from storeds._data import Array, Field, Meta, Record
from storeds._verdict import Verdict
from storeds.errors import ConfigError

__all__ = [
    "Derived",
    "derived_fields",
    "readable_fields",
    "split_fields",
    "stored_fields",
    "verdict_field",
    "wrong_verdict",
]

_PREFIX = "_verdict_"
_TEXT = Field("str")


@dataclass(frozen=True, slots=True)
class Derived:
    """A column that is computed from verdicts.

    Parameters
    ----------
    source : str
        The reserved field that holds the verdicts.
    part : str
        ``finding``: the kind, an empty text where nobody examined the picture. ``recovered``: the share that is there, NaN
        where nobody examined it.
    """

    source: str
    part: Literal["finding", "recovered"]

    @property
    def field(self) -> Field:
        """What a value of it is."""
        return Field("str") if self.part == "finding" else Field("float")

    def of(self, text: str) -> str | float:
        """Return the value for one verdict; raises ValueError for what is none."""
        verdict = Verdict.from_text(text)
        if self.part == "finding":
            return "" if verdict is None else verdict.kind
        return float("nan") if verdict is None else verdict.recovered

    def column(self, texts: Array) -> Array:
        """Return the values for the verdicts of all records."""
        values: dict[str, Any] = {text: self.of(text) for text in set(texts.tolist())}
        found = [values[text] for text in texts.tolist()]
        return np.array(found, np.dtypes.StringDType() if self.part == "finding" else np.float64)


def verdict_field(image: str) -> str:
    """Return the name of the reserved field that holds the verdicts on an image field."""
    return _PREFIX + image


def stored_fields(meta: Meta) -> dict[str, Field]:
    """Return what each record of a store has: the declared fields, then the verdicts."""
    return {**meta.fields, **{verdict_field(image): _TEXT for image in meta.verdicts}}


def split_fields(rows: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the declared fields among the rows of a stored declaration, and the image fields that have verdicts.

    Raises ConfigError for a verdict on what is no image field.
    """
    declared = [row for row in rows if not row["name"].startswith("_")]
    images = {row["name"] for row in declared if row["kind"] == "image"}
    verdicts = []
    for row in rows:
        if row["name"].startswith("_"):
            image = row["name"].removeprefix(_PREFIX)
            if image not in images or row["kind"] != "str":
                raise ConfigError(f"field {row['name']!r} is reserved, and this storeds does not know it")
            verdicts.append(image)
    return declared, tuple(verdicts)


def derived_fields(meta: Meta) -> dict[str, Derived]:
    """Return name → derived column; a declared field of the same name takes its place."""
    alone = sum(field.kind == "image" for field in meta.fields.values()) == 1
    parts: tuple[Literal["finding", "recovered"], ...] = ("finding", "recovered")
    found = {
        part if alone else f"{image}_{part}": Derived(verdict_field(image), part)
        for image in meta.verdicts
        for part in parts
    }
    return {name: derived for name, derived in found.items() if name not in meta.fields}


def wrong_verdict(record: Record, meta: Meta) -> str | None:
    """Return what is wrong with a verdict in a record that was read with `stored_fields`, None for nothing."""
    try:
        for image in meta.verdicts:
            Verdict.from_text(record[verdict_field(image)])
    except ValueError as error:
        return str(error)
    return None


def readable_fields(meta: Meta) -> Mapping[str, Field]:
    """Return every field that can be asked for by name: declared, stored beside them, or derived."""
    if not meta.verdicts:
        return meta.fields
    return {**stored_fields(meta), **{name: derived.field for name, derived in derived_fields(meta).items()}}
