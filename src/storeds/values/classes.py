"""Numbers classes: names get numbers in the order of their text, whole numbers stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from storeds._utils.text import counted
from storeds.errors import ConfigError, suggest
from storeds.values.text import is_int, is_number

__all__ = ["distinct_classes", "number_labels"]


def distinct_classes(values: Iterable[Any]) -> list[Any]:
    """Return the texts or whole numbers that occur, sorted: the number of a class is its place.

    Raises
    ------
    ValueError
        Some are texts and others numbers, or one is neither.
    """
    found = set(values)
    for kind in (str, int):
        if all(isinstance(value, kind) and not isinstance(value, bool) for value in found):
            return sorted(found)
    kinds = sorted({type(value).__name__ for value in found})
    raise ValueError(f"classes are texts or whole numbers, and the values are of type {', '.join(kinds)}")


def number_labels(
    where: str, labels: Sequence[str], lines: Sequence[int], classes: list[str] | None
) -> tuple[list[int | ValueError], list[str] | None]:
    """Return labels as class numbers, with a ValueError for each that is not valid, and the class names.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    labels : sequence of str
        Each label as text: all integers, also as 3.0, or class names.
    lines : sequence of int
        The line of each label.
    classes : list of str or None
        The class names in the order of their numbers. None sorts the names that occur.

    Raises
    ------
    ConfigError
        Without class names, some labels are numbers and others are not, or not integers.
    """
    index = {name: number for number, name in enumerate(classes or ())}
    texts = [text if text in index else text.strip() for text in labels]
    if not any(text in index for text in texts) and None not in (numbers := list(map(_as_int, texts))):
        valid = range(-(2**63), 2**63) if classes is None else range(len(classes))
        reason = f"is none of the {counted(len(valid) if classes else 0, 'class id')} given"
        return [
            number if number is not None and number in valid else ValueError(f"label {text!r} {reason}")
            for text, number in zip(texts, numbers, strict=True)
        ], classes
    if classes is None:
        kinds: dict[str, str] = {}  # integer, number or name → the first such label
        for text, line in zip(texts, lines, strict=True):
            kind = "integer" if _as_int(text) is not None else "number" if is_number(text) else "name"
            kinds.setdefault(kind, f"{text!r} at {where} line {line}")
        if kinds.keys() != {"name"}:  # a guess could renumber all classes because of one stray cell among integers
            found = ", ".join(f"{kind}s such as {example}" for kind, example in sorted(kinds.items()))
            raise ConfigError(
                f"{where}: labels are {found}; pass classes=[…] (--classes) to list the class names, or label=False "
                "(--no-label) to keep them as another field"
            )
        classes = distinct_classes(texts)
        index = {name: number for number, name in enumerate(classes)}
    return [
        index[text] if text in index else ValueError(f"unknown label {text!r}; {suggest(text, classes, 'classes')}")
        for text in texts
    ], classes


def _as_int(text: str) -> int | None:
    """Return a label as an integer, or None. A table with missing cells writes integers as ``3.0``."""
    text = text.removesuffix(".0")
    return int(text) if is_int(text) else None
