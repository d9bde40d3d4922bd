"""Counts the verdicts on the pictures of a store, and says them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from storeds._utils.text import counted
from storeds.pictures import Verdict
from storeds.protocols import Backend, Meta
from storeds.records.columns import read_column
from storeds.records.verdict_fields import pictures, verdict_fields

__all__ = ["NOT_EXAMINED", "VerdictCounts", "brief_counts", "damage_note", "damaged_kinds", "images_of", "listed"]

NOT_EXAMINED = "not examined"
"""The kind that stands for pictures without a verdict."""


@dataclass(frozen=True)
class VerdictCounts:
    """How many pictures of a store have which verdict.

    Attributes
    ----------
    kinds : dict
        Kind of verdict, or `NOT_EXAMINED` → number of pictures, the most frequent first.
    lost : dict
        Kind → number of pictures of which nothing is recovered.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend) -> VerdictCounts:
        """Count the verdicts on every image field of `backend`, from its columns alone.

        Raises
        ------
        RecordError
            A column is damaged.
        """
        kinds: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for image, declared in backend.meta.fields.items():
            if declared.kind != "image":
                continue
            if image not in pictures(backend.meta.fields):
                kinds[NOT_EXAMINED] += len(backend)
                continue
            columns = (read_column(backend, name).tolist() for name in verdict_fields(image))
            for (kind, recovered), count in Counter(zip(*columns, strict=True)).items():
                kinds[kind or NOT_EXAMINED] += count
                if kind and not recovered:
                    lost[kind] += count
        return cls({kind: n for kind, n in kinds.most_common() if n}, dict(lost.most_common()))


def damaged_kinds(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return those of `kinds` that are damage."""
    return {kind: n for kind, n in kinds.items() if kind != NOT_EXAMINED and not Verdict(kind, 0.0).is_whole}


def brief_counts(kinds: Mapping[str, int]) -> str:
    """Return the counts in one line: ``37 whole, 3 damaged (truncated_scan 2, corrupt_data 1)``."""
    found, unknown = damaged_kinds(kinds), kinds.get(NOT_EXAMINED, 0)
    broken = sum(found.values())
    whole = sum(kinds.values()) - broken - unknown
    parts = [f"{whole:,} whole"] if whole or not unknown else []
    if broken:
        parts.append(f"{broken:,} damaged ({listed(found)})")
    if unknown:
        parts.append(f"{unknown:,} {NOT_EXAMINED}")
    return ", ".join(parts)


def listed(kinds: Mapping[str, int]) -> str:
    """Return kinds with their counts: ``truncated_scan 2, corrupt_data 1``."""
    return ", ".join(f"{kind} {n:,}" for kind, n in kinds.items())


def damage_note(kinds: Mapping[str, int], meta: Meta) -> str | None:
    """Return a sentence on the damaged pictures of a store and what to do about them, or None without any."""
    found = damaged_kinds(kinds)
    if not found:
        return None
    where = {finding: "intact" for finding, _ in pictures(meta.fields).values()}
    selects = f"where={where} reads only whole ones, " if where else ""
    return (
        f"{sum(found.values()):,} of {counted(sum(kinds.values()), 'picture')} are damaged ({listed(found)}) and stored "
        f"unchanged; readers apply min_recovered=, {selects}storeds verify lists the damaged ones, and storeds repair "
        "writes a copy in which every program can read what is left of them"
    )


def images_of(backend: Backend) -> tuple[str, ...]:
    """Return the names of the image fields."""
    return tuple(name for name, field in backend.meta.fields.items() if field.kind == "image")
