"""One row of the table of foreign stores, the same for every engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import storeds

__all__ = ["LayoutCase", "Refusal", "Truth", "lines_of"]

Truth = list[dict[str, Any]]
"""The records of a store, in order."""

Refusal = tuple[Any, Mapping[str, Any], type[Exception] | tuple[type[Exception], ...], str]
"""How to write a store, the arguments that do not open it, the class of the error, and words of its message."""


@dataclass(frozen=True)
class LayoutCase:
    """How to write a store of another tool, and how to read it.

    Attributes
    ----------
    write : callable
        Writes it to a path, or into a database of MongoDB, and returns its records.
    layout : str
        The layout of the opened store.
    arguments : mapping
        Of `storeds.open_backend`.
    is_certain : bool
        Whether it opens without a layout or a pattern.
    file, url : str
        The name to write to, and the name or pattern to open if that differs.
    """

    write: Callable[..., Truth]
    layout: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_certain: bool = True
    file: str = "store"
    url: str = ""


_LINE = re.compile(r"^  (storeds\.open_backend\(.*?\))  # ([\d,]+) records? of ", re.MULTILINE)


def lines_of(error: BaseException, least: int = 1) -> list[dict[str, Any]]:
    """Run each line to paste of an error, check the number of records that it promises, and return its arguments."""
    lines = _LINE.findall(str(error))
    assert len(lines) >= least, error
    for line, count in lines:
        with eval(line, {"storeds": storeds}) as store:
            assert len(store) == int(count.replace(",", ""))
    return [eval(line.replace("storeds.open_backend(", "(lambda path, **given: given)(")) for line, _ in lines]
