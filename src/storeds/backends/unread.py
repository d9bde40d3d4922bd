"""Reports what a foreign layout leaves unread: in the log when a store is opened, and as an error where it is most of it.

`StoreBackend.unread` names what is left; `storeds.ops.info` lists it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from storeds.errors import ConfigError

__all__ = ["bounded", "check_most_is_read", "log_unread"]

_LOG = logging.getLogger("storeds")
_MOST = 200  # entries that `unread` lists
_SHOWN = 6
_LONGEST = 160  # characters of an entry
_MORE = re.compile(r"and (\d+) more")


def bounded(entries: Iterable[str], most: int = _MOST) -> list[str]:
    """Return at most so many entries, each cut to one short line; the last one counts those that are missing.

    The entries may be such lists themselves: their counts are added up.
    """
    out: list[str] = []
    more = 0
    for entry in entries:
        counted = _MORE.fullmatch(entry)
        if counted is not None:
            more += int(counted[1])
        elif len(out) < most:
            out.append(entry if len(entry) <= _LONGEST else f"{entry[: _LONGEST - 1]}…")
        else:
            more += 1
    return [*out, f"and {more} more"] if more else out


def log_unread(url: str, unread: Sequence[str]) -> None:
    """Log one warning that names the first things that are left unread; nothing where all is read."""
    if unread:
        _LOG.warning("%s: not read: %s; `storeds info` lists all", url, "; ".join(bounded(unread, _SHOWN)))


def check_most_is_read(url: str, unread: Sequence[str], left: int, total: int, unit: str, advice: str) -> None:
    """Raise ConfigError where a layout would leave most of a store unread.

    Parameters
    ----------
    url : str
        Redacted.
    unread : sequence of str
        As `StoreBackend.unread` returns it.
    left, total : int
        How much is left unread, and how much there is.
    unit : str
        What they count: ``"bytes"``, ``"entries"``, ``"fields"``.
    advice : str
        The exact argument that reads what is left, and the one that leaves it out.

    Raises
    ------
    ConfigError
        More than half is left.
    """
    if 2 * left > total:
        raise ConfigError(
            f"{url}: most of it would not be read, {left:,} of {total:,} {unit}: {'; '.join(bounded(unread, _SHOWN))}; "
            f"{advice}"
        )
