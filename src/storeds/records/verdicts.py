"""The verdict on a picture: what examining it once found, as a store keeps it beside the picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from storeds.errors import ConfigError
from storeds.protocols import Array, Field, Meta, Record

__all__ = [
    "UNCHECKED",
    "Derived",
    "Verdict",
    "derived_fields",
    "readable_fields",
    "split_fields",
    "stored_fields",
    "verdict_field",
    "wrong_verdict",
]


UNCHECKED = ""
"""What stands for no verdict: nobody examined the picture."""

_WHOLE = ("intact", "trailing_data")
_AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Verdict:
    """What examining one picture found.

    Parameters
    ----------
    kind : str
        ``intact``, ``trailing_data`` (a whole picture, then other bytes), or the kind of damage, see
        `storeds.jpeg.Finding`.
    recovered : float
        The share of the picture that is there and decodes, 0 to 1.
    exact : bool
        Whether `recovered` is that share; else it is a lower bound.
    reason : str
        One sentence about what is wrong and where; no part of what is stored or compared.
    """

    kind: str
    recovered: float = 1.0
    exact: bool = True
    reason: str = field(default="", compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether the picture has no damage."""
        return self.kind in _WHOLE

    @property
    def share(self) -> str:
        """`recovered` for people: ``62 %`` or ``at least 40 %``."""
        # Rounded down, so that only a whole picture is 100 %.
        return f"{'' if self.exact else 'at least '}{math.floor(1000 * self.recovered) / 10:g} %"

    def to_text(self) -> str:
        """Return the verdict as a store keeps it: ``intact``, ``truncated_scan 0.62``, ``truncated_scan >=0.4``."""
        if self.recovered == 1.0 and self.exact:
            return self.kind
        return f"{self.kind} {'' if self.exact else _AT_LEAST}{self.recovered!r}"

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Return the verdict that `to_text` wrote, None for an empty text; raises ValueError for another text."""
        if text == "intact":  # nearly always
            return cls("intact")
        if text == UNCHECKED:
            return None
        kind, _, share = text.partition(" ")
        try:
            recovered = float(share.removeprefix(_AT_LEAST)) if share else 1.0
        except ValueError:
            recovered = math.nan
        if not kind.isidentifier() or not 0.0 <= recovered <= 1.0:
            raise ValueError(f"{text!r} is no verdict on a picture")
        return cls(kind, recovered, not share.startswith(_AT_LEAST))


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
