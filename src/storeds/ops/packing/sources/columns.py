"""What the columns of lists and tables hold: one kind of value each, class names, labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storeds._utils.text import counted
from storeds.errors import ConfigError, suggest
from storeds.layouts.files.walk import IMAGE_SUFFIXES, is_int, names_of
from storeds.ops.packing.rows import BadItem
from storeds.protocols import Field
from storeds.records.canonical_json import canonical_json

__all__ = [
    "LABEL_COLUMNS",
    "LESS_CERTAIN",
    "PATH_COLUMNS",
    "choose_columns",
    "field_names",
    "find_label",
    "json_column",
    "number_labels",
    "text_column",
]


_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan", re.I)
_EXACT = 2**53  # float64 holds each integer up to this one


def _is_number(text: str) -> bool:
    """Whether `text` is a number that a float64 represents."""
    if text.lstrip("-").isdecimal():
        return is_int(text) and abs(int(text)) <= _EXACT
    return _FLOAT.fullmatch(text) is not None


def text_column(cells: Sequence[str]) -> tuple[Field, list[Any]]:
    """Return the field and the values of a CSV column: int if every cell is an int64, else float if every one is a number."""
    if all(map(is_int, cells)):
        return Field("int"), list(map(int, cells))
    if all(map(_is_number, cells)):
        return Field("float"), list(map(float, cells))
    return Field("str"), list(cells)


def json_column(values: Sequence[Any]) -> tuple[Field, list[Any]]:
    """Return the field and the values of a key of JSON objects: of the kind that all values have, else json.

    A value that cannot be stored is replaced by a `BadItem`.
    """
    types = set(map(type, values))
    numbers = [value for value in values if type(value) is int]
    if types <= {int} and all(-(2**63) <= value < 2**63 for value in numbers):
        return Field("int"), list(values)
    if types in ({int, float}, {float}) and all(abs(value) <= _EXACT for value in numbers):
        return Field("float"), list(map(float, values))
    if types in ({bool}, {str}):
        return Field("bool" if types == {bool} else "str"), list(values)
    return Field("json"), list(map(_as_json, values))


def _as_json(value: Any) -> Any:
    try:
        canonical_json(value)
    except ValueError as error:
        return BadItem(f"cannot be stored: {error}")
    return value


def field_names(columns: Iterable[str], taken: Iterable[str], where: str) -> dict[str, str]:
    """Return the field name for each column: in lower case, with ``_`` for every character that a name cannot contain.

    Raises
    ------
    ConfigError
        Two columns would become the same field.
    """
    owners = dict.fromkeys(taken, "")
    names: dict[str, str] = {}
    for number, column in enumerate(columns, 1):
        name = re.sub(r"[^a-z0-9]+", "_", column.lower()).lstrip("_")
        if not name or name[0].isdigit():
            name = f"column_{name or number}"
        if name in owners:
            other = f"column {owners[name]!r}" if owners[name] else "a field that pack adds"
            raise ConfigError(f"{where}: column {column!r} becomes field {name!r}, and so does {other}; rename one")
        owners[name], names[column] = column, name
    return names


PATH_COLUMNS = (
    *("path", "image", "file", "filename", "filepath", "file_name", "img"),
    *("file_path", "image_path", "img_path", "image_file", "image_name", "img_name"),
)
"""The names of a column of paths, in lower case, the most certain first."""
MASK_COLUMNS = ("mask", "mask_path", "mask_file", "mask_name", "mask_file_name")
CAPTION_COLUMNS = ("caption", "captions", "text", "description")

LABEL_COLUMNS = ("label", "class", "target")
# Used if none of LABEL_COLUMNS and exactly one of these exists.
LESS_CERTAIN = (
    *("labels", "classes", "targets", "category", "class_name", "class_id", "class_idx", "class_index"),
    *("label_name", "label_id", "label_idx", "category_name", "category_id"),
)


def find_label(
    where: str, named: Mapping[str, str], *, beside: str, others: Sequence[str], likely: Sequence[str] = ()
) -> str | None:
    """Return the column that contains labels, or None.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    named : mapping of str to str
        The columns that may contain labels, by their names in lower case.
    beside : str
        What is in the other columns, for messages.
    others : sequence of str
        The columns of which one must contain labels; none if labels are not needed.
    likely : sequence of str
        The columns that look like labels; by default, those with a name of LESS_CERTAIN. The only one contains labels if
        none has a name of LABEL_COLUMNS.

    Raises
    ------
    ConfigError
        Several columns are likely, or none and labels are needed.
    """
    certain = [named[name] for name in LABEL_COLUMNS if name in named][:1]
    found = certain or likely or [named[name] for name in LESS_CERTAIN if name in named]
    if len(found) > 1:
        raise ConfigError(
            f"{where}: columns {', '.join(map(repr, found))} all look like labels; choose with label_column= (--option "
            f"label_column={found[0]})"
        )
    if not found and others:
        raise ConfigError(
            f"{where}: no column looks like labels ({', '.join(LABEL_COLUMNS)}); beside the {beside} there "
            f"{'is' if len(others) == 1 else 'are'} {', '.join(map(repr, others[:20]))}; name the column of labels with "
            f"label_column= (--option label_column={others[0]}), or pass label=False (--no-label) to pack without labels"
        )
    return found[0] if found else None


def choose_columns(
    where: str,
    names: Sequence[str],
    first: Sequence[Sequence[Any]],
    *,
    image_columns: Any,
    mask_columns: Any,
    caption_columns: Any,
    label_column: str | None,
    label: bool,
) -> tuple[dict[str, str], list[str]]:
    """Return what the columns of a list hold, ``image``, ``mask``, ``text`` or ``label``, where that is known, and notes.

    Labels are needed unless other columns than the paths have a purpose, such as masks.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    names : sequence of str
        The columns.
    first : sequence of list
        The cells of the first lines.
    image_columns, mask_columns, caption_columns, label_column, label
        As for `~storeds.ops.packing.sources.lists.rows_of_list`.

    Returns
    -------
    dict, list of str
        The paths in the first column of the dict are the keys.
    """
    purposes: dict[str, str] = {}
    usual = {name.strip().lower(): name for name in reversed(names)}
    paths = [name for at, name in enumerate(names) if _are_paths([cells[at] for cells in first])]

    def take(purpose: str, option: str, columns: Any) -> None:
        for name in names_of(columns):
            if name not in names:
                raise ConfigError(f"{where}: {option} names {name!r}; {suggest(name, names, 'columns')}")
            if name in purposes:
                raise ConfigError(f"{where}: column {name!r} is given for two purposes")
            purposes[name] = purpose

    def named(likely: Sequence[str]) -> list[str]:
        return [usual[name] for name in likely if name in usual and usual[name] not in purposes]

    take("image", "image_columns", named(PATH_COLUMNS)[:1] if image_columns is None else image_columns)
    if not purposes:
        raise ConfigError(
            f"{where}: none of its columns {', '.join(map(repr, names[:20]))} is one of {', '.join(PATH_COLUMNS)}; name it "
            f"with path_column= (--option path_column={names[0]}), or, for CSV without a header, pass columns=['path', …] "
            "(--option columns=path,label)"
        )
    masks = [name for name in named(MASK_COLUMNS) if name in paths]
    take("mask", "mask_columns", masks if mask_columns is None else mask_columns)
    take("text", "caption_columns", caption_columns)
    if label_column is not None and not label:
        raise ConfigError(f"{where}: label_column={label_column!r} and label=False contradict each other")
    take("label", "label_column", label_column and [label_column])
    if label and label_column is None:
        if caption_columns is None and not named((*LABEL_COLUMNS, *LESS_CERTAIN)):
            take("text", "", named(CAPTION_COLUMNS))
        free = [name for name in names if name not in purposes]
        others = free if len(purposes) == 1 else []
        found = find_label(
            where, {name.strip().lower(): name for name in reversed(free)}, beside="paths", others=others
        )
        take("label", "", None if found is None else [found])
    images = [name for name, purpose in purposes.items() if purpose == "image"]
    notes = [
        f"column {name!r} contains paths of images, which are stored as text; image_columns= (--option "
        f"image_columns={','.join((*images, name))}) packs these images too"
        for name in paths
        if name not in purposes
    ]
    return purposes, notes


def _are_paths(cells: Sequence[Any]) -> bool:
    """Whether cells are paths of images, by their suffixes; empty cells do not count."""
    given = [cell for cell in cells if cell not in (None, "")]
    return bool(given) and all(isinstance(cell, str) and cell.lower().endswith(IMAGE_SUFFIXES) for cell in given)


def _as_int(text: str) -> int | None:
    """Return a label as an integer, or None. A table with missing cells writes integers as ``3.0``."""
    text = text.removesuffix(".0")
    return int(text) if is_int(text) else None


def number_labels(
    where: str, labels: Sequence[str], lines: Sequence[int], classes: list[str] | None
) -> tuple[list[int | BadItem], list[str] | None]:
    """Return labels as class numbers, with a `BadItem` for each that is not valid, and the class names.

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
            number if number is not None and number in valid else BadItem(f"label {text!r} {reason}")
            for text, number in zip(texts, numbers, strict=True)
        ], classes
    if classes is None:
        kinds: dict[str, str] = {}  # integer, number or name → the first such label
        for text, line in zip(texts, lines, strict=True):
            kind = "integer" if _as_int(text) is not None else "number" if _is_number(text) else "name"
            kinds.setdefault(kind, f"{text!r} at {where} line {line}")
        if kinds.keys() != {"name"}:  # a guess could renumber all classes because of one stray cell among integers
            found = ", ".join(f"{kind}s such as {example}" for kind, example in sorted(kinds.items()))
            raise ConfigError(
                f"{where}: labels are {found}; pass classes=[…] (--classes) to list the class names, or label=False "
                "(--no-label) to keep them as another field"
            )
        classes = sorted(set(texts))
        index = {name: number for number, name in enumerate(classes)}
    return [
        index[text] if text in index else BadItem(f"unknown label {text!r}; {suggest(text, classes, 'classes')}")
        for text in texts
    ], classes
