"""What the columns of lists and tables hold: one kind of value each, class names, labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from storeds._utils.text import counted
from storeds.errors import ConfigError, suggest
from storeds.ops.packing.rows import BadItem
from storeds.ops.packing.sources.paths import IMAGE_SUFFIXES, is_int, names_of
from storeds.protocols import Field
from storeds.records.fields import canonical_json
from storeds.records.roles import BOX_FORMATS

__all__ = [
    "LABEL_COLUMNS",
    "LESS_CERTAIN",
    "PATH_COLUMNS",
    "LabelStyle",
    "ListHeader",
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
BOX_COLUMNS = ("boxes", "bbox", "bboxes")

LABEL_COLUMNS = ("label", "class", "target")
# Used if none of LABEL_COLUMNS and exactly one of these exists.
LESS_CERTAIN = (
    *("labels", "classes", "targets", "category", "class_name", "class_id", "class_idx", "class_index"),
    *("label_name", "label_id", "label_idx", "category_name", "category_id"),
)


def find_label(
    where: str, named: Mapping[str, str], likely: Sequence[str], *, beside: str, others: Sequence[str]
) -> str | None:
    """Return the column that contains labels, or None.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    named : mapping of str to str
        The columns that may contain labels, by their names in lower case.
    likely : sequence of str
        Those of which the only one contains labels if none has a name of LABEL_COLUMNS.
    beside : str
        What is in the other columns, for messages.
    others : sequence of str
        The columns of which one must contain labels; none if labels are not needed.

    Raises
    ------
    ConfigError
        Several columns are likely, or none and labels are needed.
    """
    certain = [named[name] for name in LABEL_COLUMNS if name in named][:1]
    found = certain or likely
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


class ListHeader:
    """The columns of a list, and what each holds: ``image``, ``mask``, ``boxes``, ``text``, ``label`` or other values.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    names : list of str
        The columns.
    first : list of list
        The cells of the first lines.

    Attributes
    ----------
    purposes : dict
        Column → what it holds, if that is known. The paths in the first are the keys.
    """

    def __init__(self, where: str, names: list[str], first: Sequence[Sequence[Any]]) -> None:
        self.where, self.names = where, names
        self.purposes: dict[str, str] = {}
        self._usual = {name.strip().lower(): name for name in reversed(names)}
        self._cells = {name: [cells[at] for cells in first] for at, name in enumerate(names)}
        self._paths = [name for name, cells in self._cells.items() if _are_paths(cells)]

    @property
    def free(self) -> list[str]:
        """The columns whose purpose is not known."""
        return [name for name in self.names if name not in self.purposes]

    def of(self, purpose: str) -> list[str]:
        """Return the columns that hold something."""
        return [name for name, held in self.purposes.items() if held == purpose]

    def has_lists(self, name: str) -> bool:
        """Whether the first cell of a column that is not empty is a list."""
        return isinstance(next((cell for cell in self._cells[name] if cell is not None), None), list)

    def _take(self, purpose: str, option: str, columns: Any) -> None:
        for name in names_of(columns):
            if name not in self.names:
                raise ConfigError(f"{self.where}: {option} names {name!r}; {suggest(name, self.names, 'columns')}")
            if name in self.purposes:
                raise ConfigError(f"{self.where}: column {name!r} is given for two purposes")
            self.purposes[name] = purpose

    def _named(self, usual: Sequence[str]) -> list[str]:
        return [self._usual[name] for name in usual if name in self._usual and self._usual[name] in self.free]

    def find_images(self, path_column: str | None, image_columns: Any) -> None:
        """Find the columns of images. Several are detected only in a list without a usual column of paths."""
        if image_columns is not None and path_column is not None:
            raise ConfigError(f"{self.where}: leave out path_column; the path is in the first of image_columns")
        self._take("image", "path_column", None if path_column is None else [path_column])
        self._take("image", "image_columns", image_columns)
        if not self.purposes:
            likely = [name for name in self._paths if name not in self._named(MASK_COLUMNS)]
            self._take("image", "", self._named(PATH_COLUMNS)[:1] or (likely if len(likely) > 1 else []))
        if not self.purposes:
            raise ConfigError(
                f"{self.where}: none of its columns {', '.join(map(repr, self.names[:20]))} is one of "
                f"{', '.join(PATH_COLUMNS)}; name it with path_column= (--option path_column={self.names[0]}), or, for CSV without a "
                "header, pass columns=['path', …] (--option columns=path,label)"
            )

    def find_masks(self, mask_columns: Any) -> None:
        """Find the columns of masks."""
        likely = [name for name in self._named(MASK_COLUMNS) if name in self._paths]
        self._take("mask", "mask_columns", likely if mask_columns is None else mask_columns)

    def find_boxes(self, column: str | None, form: str | None, *, relative: bool) -> None:
        """Find the column of boxes, if their format is given."""
        if form is None:
            if column is not None or relative:
                raise ConfigError(
                    f"{self.where}: boxes need box_format= (--option box_format=xyxy): xyxy for left, top, right, bottom, xywh "
                    "for left, top, width, height, or cxcywh for the centre, width and height"
                )
            return
        if form not in BOX_FORMATS:
            raise ConfigError(f"{self.where}: box_format={form!r}; {suggest(form, BOX_FORMATS, 'formats')}")
        found = self._named(BOX_COLUMNS)[:1] if column is None else [column]
        if not found:
            raise ConfigError(
                f"{self.where}: no column is named {', '.join(BOX_COLUMNS)}; name the column of boxes with box_column= "
                "(--option box_column=NAME)"
            )
        self._take("boxes", "box_column", found)

    def find_labels(self, label_column: str | None, caption_columns: Any, *, label: bool) -> None:
        """Find the column of labels, and in a list of captions without labels the captions.

        Labels are needed unless other columns than the paths have a purpose, such as masks.
        """
        self._take("text", "caption_columns", caption_columns)
        if label_column is not None:
            if not label:
                raise ConfigError(f"{self.where}: label_column={label_column!r} and label=False contradict each other")
            self._take("label", "label_column", [label_column])
        elif label:
            if caption_columns is None and not self._named((*LABEL_COLUMNS, *LESS_CERTAIN)):
                self._take("text", "", self._named(CAPTION_COLUMNS))
            usual = {name.strip().lower(): name for name in reversed(self.free)}
            likely = [name for name in self.free if name.strip().lower() in LESS_CERTAIN]
            others = self.free if len(self.purposes) == 1 else []
            found = find_label(self.where, usual, likely, beside="paths", others=others)
            self._take("label", "", None if found is None else [found])

    def notes(self) -> Iterator[str]:
        """Yield warnings about columns that may hold more than what they are stored as."""
        for name in self.free:
            if name in self._paths:
                columns = ",".join((*self.of("image"), name))
                yield (
                    f"column {name!r} contains paths of images, which are stored as text; image_columns= (--option "
                    f"image_columns={columns}) packs these images too"
                )
        for name in self._named(BOX_COLUMNS):
            if self.has_lists(name):
                yield (
                    f"column {name!r} is stored as JSON; if it contains boxes, box_format= (--option box_format=xyxy) stores "
                    "them as such"
                )


def _are_paths(cells: Sequence[Any]) -> bool:
    """Whether cells are paths of images, by their suffixes; empty cells do not count."""
    given = [cell for cell in cells if cell not in (None, "")]
    return bool(given) and all(isinstance(cell, str) and cell.lower().endswith(IMAGE_SUFFIXES) for cell in given)


LabelStyle: TypeAlias = Literal["auto", "int", "names"]


def _as_int(text: str) -> int | None:
    """Return a label as an integer, or None. A table with missing cells writes integers as ``3.0``."""
    text = text.removesuffix(".0")
    return int(text) if is_int(text) else None


def number_labels(
    where: str, labels: Sequence[str], lines: Sequence[int], classes: list[str] | None, style: LabelStyle
) -> tuple[list[int | BadItem], list[str] | None]:
    """Return labels as class numbers, with a `BadItem` for each that is not valid, and the class names.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    labels : sequence of str
        Each label as text.
    lines : sequence of int
        The line of each label.
    classes : list of str or None
        The class names in the order of their numbers. None sorts the names that occur.
    style : str
        ``int``: labels are integers, also as 3.0. ``names``: they are class names, whatever they look like. ``auto``: all
        are integers, or none is a number.

    Raises
    ------
    ConfigError
        Without class names, ``auto`` is not certain.
    """
    index = {name: number for number, name in enumerate(classes or ())}
    texts = [text if text in index else text.strip() for text in labels]
    unknown: dict[str, str] = {}  # integer, number or name → the first such label
    for text, line in zip(texts, lines, strict=True):
        if text not in index:
            sort = "integer" if _as_int(text) is not None else "number" if _is_number(text) else "name"
            unknown.setdefault(sort, f"{text!r} at {where} line {line}")
    if style == "auto" and classes is None and unknown and unknown.keys() not in ({"integer"}, {"name"}):
        # A guess could renumber all classes because of one stray cell among integers.
        found = ", ".join(f"{sort}s such as {example}" for sort, example in sorted(unknown.items()))
        raise ConfigError(
            f"{where}: labels are {found}; pass label_type='names' (--option label_type=names) if all are class names, 'int' "
            "to accept integers only, classes=[…] (--classes) to list the class names, or label=False (--no-label) to keep "
            "them as another field"
        )
    are_integers = unknown.keys() == {"integer"} and not any(text in index for text in texts)
    if style == "int" or (style == "auto" and (are_integers or not texts)):
        numbers = [_as_int(text) for text in texts]
        valid = range(-(2**63), 2**63) if classes is None else range(len(classes))
        reason = "is not an integer" if classes is None else f"is none of the {counted(len(classes), 'class id')} given"
        return [
            BadItem(f"label {text!r} {reason}") if number is None or number not in valid else number
            for text, number in zip(texts, numbers, strict=True)
        ], classes
    if classes is None:
        classes = sorted(set(texts))
        index = {name: number for number, name in enumerate(classes)}
    return [
        index[text] if text in index else BadItem(f"unknown label {text!r}; {suggest(text, classes, 'classes')}")
        for text in texts
    ], classes
