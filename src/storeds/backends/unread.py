"""Bounds the list of the parts of a store that no record holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["SHOWN", "bounded"]

_MOST = 200  # entries that `unread` lists
SHOWN = 6  # entries that messages show
_LONGEST_ENTRY = 160  # characters of an entry
_MORE = re.compile(r"and (\d+) more")


def bounded(entries: Iterable[str], most: int = _MOST) -> list[str]:
    """Return at most `most` entries, each shortened to one line; a last entry counts the omitted ones.

    Entries that count omitted ones themselves are added up.
    """
    out: list[str] = []
    more = 0
    for entry in entries:
        remainder = _MORE.fullmatch(entry)
        if remainder is not None:
            more += int(remainder[1])
        elif len(out) < most:
            out.append(entry if len(entry) <= _LONGEST_ENTRY else f"{entry[: _LONGEST_ENTRY - 1]}…")
        else:
            more += 1
    return [*out, f"and {more} more"] if more else out
