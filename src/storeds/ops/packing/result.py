"""What `pack` returns: the published store, how its source was understood, and what was left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storeds._utils.text import counted, some
from storeds.ops.packing.sources.base import Problem
from storeds.ops.verdict_counts import damaged
from storeds.protocols import Meta

__all__ = ["Packed", "reasons", "summary"]

_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed(Meta):
    """`Meta` of a packed store, and what `pack` has to say about it.

    Parameters
    ----------
    columns : mapping of str to str or None
        For a source with columns: each column, and the field that it became; None for one that was left out.
    notes : tuple of str
        What `pack` warned about, as sentences: hidden folders that it left out, images that it re-encoded.
    left_out : int
        Items that are not in the store because they are bad; hidden files are not among them.
    reasons : mapping of str to int
        Why items are bad, with how many: of all of them, with ``on_bad="keep"`` of those that were kept too.
    findings : mapping of str to int
        Kind of `storeds.jpeg.Verdict`, or ``"not examined"`` → how many pictures of the store, the most frequent first.
    """

    columns: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)

    @property
    def damaged(self) -> int:
        """How many pictures of the store are damaged."""
        return sum(damaged(self.findings).values())


def reasons(problems: Iterable[Problem]) -> dict[str, tuple[int, str]]:
    """Return why items are bad: reason → how many, and the names of the first; the most frequent reason first."""
    names: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for problem in problems:
        # What is in brackets or follows a colon differs from item to item, and so do quoted values and numbers.
        brief = re.split(r" \(|: ", problem.reason, maxsplit=1)[0]
        brief = re.sub(r"'[^']*'|\b\d+\b", "…", brief)
        counts[brief] += 1
        if len(names.setdefault(brief, [])) <= _EXAMPLES:
            names[brief].append(problem.name)
    return {brief: (count, some(names[brief], _EXAMPLES)) for brief, count in counts.most_common()}


def summary(found: Mapping[str, tuple[int, str]]) -> str:
    """Return the reasons in one line."""
    return "; ".join(f"{counted(count, 'item')}: {brief} ({names})" for brief, (count, names) in found.items())
