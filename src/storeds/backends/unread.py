"""Reports the parts of a store that no record holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from storeds.errors import ConfigError

__all__ = ["SHOWN", "bounded", "check_most_is_read"]

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


def check_most_is_read(url: str, unread: Sequence[str], left: int, total: int, unit: str, advice: str) -> None:
    """Raise ConfigError if a layout would not read most of a store.

    Parameters
    ----------
    url : str
        Redacted.
    unread : sequence of str
        As `bounded` returns it.
    left, total : int
        The unread amount, and the total.
    unit : str
        Their unit: ``"bytes"``, ``"entries"``, ``"fields"``.
    advice : str
        The exact argument that reads the rest, and the one that ignores it.

    Raises
    ------
    ConfigError
        More than half is unread.
    """
    if 2 * left > total:
        raise ConfigError(
            f"{url}: most of it would not be read, {left:,} of {total:,} {unit}: {'; '.join(bounded(unread, SHOWN))}; "
            f"{advice}"
        )
