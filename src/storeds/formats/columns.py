"""What the columns of lists and tables are for: paths of images and masks, labels, captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError, suggest
from storeds.layouts.files.walk import IMAGE_SUFFIXES, names_of
from storeds.values.names import field_name, field_names

__all__ = [
    "LABEL_COLUMNS",
    "LESS_CERTAIN",
    "PATH_COLUMNS",
    "choose_columns",
    "find_label",
    "name_columns",
]


def name_columns(columns: Sequence[str], taken: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the field name for each column, and a sentence about each whose name another field has."""
    names = dict(zip(columns, field_names(columns, {*taken}), strict=True))
    notes = [
        f"column {column!r} is stored as {name!r}, because {field_name(column)!r} is another field"
        for column, name in names.items()
        if name != field_name(column)
    ]
    return names, notes


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
        As for `~storeds.formats.lists.rows_of_list`.

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
