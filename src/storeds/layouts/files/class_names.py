"""Class names, given as a list or in a file: one a line, or JSON."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence

from storeds.errors import ConfigError
from storeds.layouts.files.walk import show
from storeds.values.text import is_int

__all__ = ["unique_classes"]


def unique_classes(classes: Sequence[str] | os.PathLike[str] | None) -> list[str] | None:
    """Return class names, from a file if `classes` is a path; raises ConfigError if they are not distinct names."""
    if classes is None:
        return None
    if isinstance(classes, (str, os.PathLike)):
        classes = _read(os.fspath(classes))
    names = list(classes)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"classes={classes!r} must be a list of class names")
    doubled = next((name for name, count in Counter(names).items() if count > 1), None)
    if doubled is not None or not names:
        raise ConfigError(f"classes: {f'{doubled!r} is listed twice' if names else 'the list is empty'}")
    return names


def _read(path: str) -> list[str]:
    """Return the class names in a file; the name of class id i is item i.

    Parameters
    ----------
    path : str
        A text file with one name a line; or JSON, a list of names or an object ``{"0": "road", …}``. If its ids begin
        with 1, the name of id 0 is ``other``.

    Raises
    ------
    ConfigError
        The file cannot be read, is none of these, or an id between others has no name.
    """
    where = show(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        is_json = path.lower().endswith(".json")
        found = json.loads(text) if is_json else [line.strip() for line in text.rstrip().splitlines()]
    except (OSError, RecursionError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the class names in {where} cannot be read: {reason}") from None
    if isinstance(found, Mapping) and all(is_int(number) for number in found):
        by_id = {int(number): name for number, name in found.items()}
        if by_id and min(by_id) == 1:
            by_id[0] = "other"
        found = [by_id.get(number, "") for number in range(len(by_id))]
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f'{where}: class names are a list, or an object {{"0": "road", …}}')
    if "" in found:
        raise ConfigError(f"{where}: class id {found.index('')} has no name; add it")
    return found
