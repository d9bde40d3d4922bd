"""Class names from a file: one a line, JSON, or the table of ADE20K."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from typing import Any

from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import is_int, show

__all__ = ["CLASS_FILES", "find_class_file", "read_class_names"]

CLASS_FILES = ("classes.txt", "class_names.txt", "objectInfo150.txt", "classes.json", "id2label.json")
"""The names of the files in which `find_class_file` looks for class names, in this order."""


def find_class_file(folder: str) -> str | None:
    """Return the first of `CLASS_FILES` in a folder, or None.

    Raises
    ------
    ConfigError
        There are several.
    """
    found = [name for name in CLASS_FILES if os.path.isfile(os.path.join(folder, name))]
    if len(found) > 1:
        raise ConfigError(
            f"{show(folder)} contains several files of class names, {', '.join(found)}; choose one with classes= (--classes)"
        )
    return os.path.join(folder, found[0]) if found else None


def read_class_names(path: str) -> list[str]:
    """Return the class names in a file; the name of class id i is item i.

    Parameters
    ----------
    path : str
        A text file with one name a line; JSON, a list of names or an object ``{"0": "road", …}``; or a table like
        ADE20K's ``objectInfo150.txt``, with tabs and the columns ``Idx`` and ``Name``. Ids of a table begin with 1, and id
        0 becomes ``other``.

    Raises
    ------
    ConfigError
        The file cannot be read, is none of these, or an id between others has no name.
    """
    where = show(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the class names in {where} cannot be read: {reason}") from None
    if path.lower().endswith(".json"):
        return _from_json(text, where)
    lines = [line.strip() for line in text.splitlines()]
    header = lines[0].split("\t") if lines else []
    if "Idx" in header and "Name" in header:
        rows = csv.DictReader(text.splitlines(), delimiter="\t")
        return _by_id({(row["Idx"] or "").strip(): (row["Name"] or "").strip() for row in rows}, where)
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        raise ConfigError(f"{where} line {lines.index('') + 1} is empty; the name of class id i is in line i + 1")
    return lines


def _from_json(text: str, where: str) -> list[str]:
    try:
        found: Any = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"the class names in {where} are not JSON: {error}") from None
    if isinstance(found, list) and all(isinstance(name, str) for name in found):
        return found
    if isinstance(found, dict) and all(isinstance(name, str) for name in found.values()):
        return _by_id(found, where)
    raise ConfigError(f'{where}: class names are a list, or an object {{"0": "road", …}}')


def _by_id(names: Mapping[str, str], where: str) -> list[str]:
    wrong = next((number for number in names if not is_int(number) or int(number) < 0), None)
    if wrong is not None:
        raise ConfigError(f"{where}: {wrong!r} is not a class id; ids are whole numbers from 0")
    by_id = {int(number): name for number, name in names.items()}
    if by_id and min(by_id) == 1:
        by_id[0] = "other"
    missing = next((number for number in range(len(by_id)) if number not in by_id), None)
    if missing is not None:
        raise ConfigError(f"{where}: class id {missing} has no name, and higher ids have; add it")
    return [by_id[number] for number in range(len(by_id))]
