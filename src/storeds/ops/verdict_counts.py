"""How many pictures of a store have which verdict, from its columns alone, and what to do about damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from storeds._utils.text import counted
from storeds.errors import FormatError
from storeds.jpeg import Verdict
from storeds.protocols import Backend, Meta
from storeds.records.columns import read_column
from storeds.records.fields import derived_fields, verdict_field

__all__ = ["NOT_EXAMINED", "VerdictCounts", "brief", "damage_note", "damaged", "is_lost"]

NOT_EXAMINED = "not examined"
"""Stands for the kind of pictures without a verdict."""


@dataclass(frozen=True)
class VerdictCounts:
    """How many pictures of a store have which verdict.

    Attributes
    ----------
    kinds : dict
        Kind of verdict, or `NOT_EXAMINED` → pictures, the most frequent first.
    lost : dict
        Kind → those of which nothing decodes, see `is_lost`.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend) -> VerdictCounts:
        """Count the verdicts on every image field of `backend`.

        Raises
        ------
        RecordError
            A column is damaged.
        FormatError
            A text in it is no verdict.
        """
        kinds: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for image, declared in backend.meta.fields.items():
            if declared.kind != "image":
                continue
            if image not in backend.meta.verdicts:
                kinds[NOT_EXAMINED] += len(backend)
                continue
            texts, counts = np.unique(read_column(backend, verdict_field(image)), return_counts=True)
            for text, count in zip(texts.tolist(), counts.tolist(), strict=True):
                try:
                    verdict = Verdict.from_text(text)
                except ValueError as error:
                    raise FormatError(f"{backend.url}: {error}; storeds verify lists such records") from None
                kind = NOT_EXAMINED if verdict is None else verdict.kind
                kinds[kind] += count
                if verdict is not None and is_lost(verdict):
                    lost[kind] += count
        return cls({kind: n for kind, n in kinds.most_common() if n}, dict(lost.most_common()))


def is_lost(verdict: Verdict) -> bool:
    """Return whether nothing of a picture decodes, repaired or not; a cut PNG has a share of its rows, but no decoder."""
    return not verdict.recovered or verdict.kind == "truncated_file"


def damaged(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return those of `kinds` that are damage."""
    return {kind: n for kind, n in kinds.items() if kind != NOT_EXAMINED and not Verdict(kind).is_whole}


def brief(kinds: Mapping[str, int]) -> str:
    """Return the counts in one line: ``37 whole, 3 damaged (truncated_scan 2, corrupt_data 1)``."""
    found, unknown = damaged(kinds), kinds.get(NOT_EXAMINED, 0)
    broken = sum(found.values())
    whole = sum(kinds.values()) - broken - unknown
    parts = [f"{whole:,} whole"] if whole or not unknown else []
    if broken:
        parts.append(f"{broken:,} damaged ({_named(found)})")
    if unknown:
        parts.append(f"{unknown:,} {NOT_EXAMINED}")
    return ", ".join(parts)


def _named(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {n:,}" for kind, n in kinds.items())


def damage_note(kinds: Mapping[str, int], meta: Meta) -> str | None:
    """Return one sentence about the damaged pictures of a store and what to do about them; None if there are none."""
    found = damaged(kinds)
    if not found:
        return None
    where = {name: "intact" for name, derived in derived_fields(meta).items() if derived.part == "finding"}
    selects = f"where={where} reads the whole ones only, " if where else ""
    return (
        f"{sum(found.values()):,} of {counted(sum(kinds.values()), 'picture')} are damaged ({_named(found)}) and stored as they "
        f"are; readers go by min_recovered=, {selects}storeds verify lists the damaged ones, and storeds repair writes a copy in which every program can read what is left of them"
    )
