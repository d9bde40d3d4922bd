"""Formats text for people: terminal-safe names, counts with plurals, sizes with units."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from functools import partial
from html import escape
from typing import Any

__all__ = ["byte_size", "counted", "html_table", "name_of", "printable", "some"]

_UNITS = ("kB", "MB", "GB", "TB", "PB")


def printable(text: str, keep: str = "") -> str:
    r"""Return `text` with control characters and lone surrogates escaped, as in ``\x1b``.

    Parameters
    ----------
    text : str
        Any text: file names and record keys may contain terminal escape sequences.
    keep : str
        Control characters to keep, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep or _is_blank(c) else ascii(c)[1:-1] for c in text)


def _is_blank(character: str) -> bool:
    return unicodedata.category(character) == "Zs"  # a no-break space, which str.isprintable leaves out


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 record``, ``1,234 records``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def byte_size(count: int) -> str:
    """Return a number of bytes with a unit, and the exact number: ``1.2 MB (1,234,567 bytes)``."""
    exact = counted(count, "byte")
    if count < 1000:
        return exact
    value, unit = count / 1000, 0
    while value >= 999.95 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]} ({exact})"


def some(names: Iterable[str], most: int = 4) -> str:
    """Return the first `most` names, made printable, with ``…`` if there are more."""
    listed = list(names)
    return ", ".join(map(printable, listed[:most])) + (", …" if len(listed) > most else "")


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of another callable."""
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def html_table(rows: Mapping[str, object]) -> str:
    """Return a small table for notebooks, in which every name and value is text of at most 2,000 characters."""
    cells = [[escape(printable(str(each)[:2000], "\n")) for each in row] for row in rows.items()]
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"
