"""Decides what the columns of a list are for: paths of images and masks, captions, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from storeds.errors import ConfigError, suggest
from storeds.layouts.files.walk import IMAGE_SUFFIXES, names_of
from storeds.values.columns import check_label_column, find_label, is_likely_label

__all__ = ["Purpose", "choose_purposes"]

Purpose: TypeAlias = Literal["image", "mask", "text", "label"]

_PATHS = (
    *("path", "image", "file", "filename", "filepath", "file_name", "img"),
    *("file_path", "image_path", "img_path", "image_file", "image_name", "img_name"),
)
"""The names of a column of paths, in lower case, the most certain first."""
_MASKS = ("mask", "mask_path", "mask_file", "mask_name", "mask_file_name")
_CAPTIONS = ("caption", "captions", "text", "description")


def choose_purposes(
    where: str,
    names: Sequence[str],
    first: Sequence[Sequence[Any]],
    *,
    image_columns: Any,
    mask_columns: Any,
    caption_columns: Any,
    label_column: str | None,
    label: bool,
) -> tuple[dict[str, Purpose], list[str]]:
    """Return the purpose of each column that has one, and notes. The first is that of the paths that are the keys.

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

    Raises
    ------
    ConfigError
        A column does not exist or is given twice; none contains paths; or labels are needed and not certain.
    """
    check_label_column(where, label_column, label)
    purposes: dict[str, Purpose] = {}
    by_name = {name.strip().lower(): name for name in reversed(names)}
    paths = [name for at, name in enumerate(names) if _are_paths([cells[at] for cells in first])]

    def assign(purpose: Purpose, columns: Any, option: str = "") -> None:
        for name in names_of(columns):
            if name not in names:
                raise ConfigError(f"{where}: {option} names {name!r}; {suggest(name, names, 'columns')}")
            if name in purposes:
                raise ConfigError(f"{where}: column {name!r} is given for two purposes")
            purposes[name] = purpose

    def free(likely: Sequence[str]) -> list[str]:
        return [by_name[name] for name in likely if name in by_name and by_name[name] not in purposes]

    assign("image", free(_PATHS)[:1] if image_columns is None else image_columns, "image_columns")
    if not purposes:
        raise ConfigError(
            f"{where}: none of its columns {', '.join(map(repr, names[:20]))} is one of {', '.join(_PATHS)}; name it "
            f"with path_column= (--option path_column={names[0]}), or, for CSV without a header, pass columns=['path', …] "
            "(--option columns=path,label)"
        )
    masks = [name for name in free(_MASKS) if name in paths]
    assign("mask", masks if mask_columns is None else mask_columns, "mask_columns")
    assign("text", caption_columns, "caption_columns")
    if label_column is not None:
        assign("label", [label_column], "label_column")
    elif label:
        rest = [name for name in names if name not in purposes]
        if caption_columns is None and not any(map(is_likely_label, rest)):
            assign("text", free(_CAPTIONS))
            rest = [name for name in rest if name not in purposes]
        needed = rest if len(purposes) == 1 else []
        found = find_label(where, rest, beside="paths", needed=needed)
        assign("label", [found] if found else [])
    images = ",".join(name for name, purpose in purposes.items() if purpose == "image")
    return purposes, [
        f"column {name!r} contains paths of images, which are stored as text; image_columns= (--option "
        f"image_columns={images},{name}) packs these images too"
        for name in paths
        if name not in purposes
    ]


def _are_paths(cells: Sequence[Any]) -> bool:
    """Whether cells are paths of images, by their suffixes; empty cells do not count."""
    given = [cell for cell in cells if cell not in (None, "")]
    return bool(given) and all(isinstance(cell, str) and cell.lower().endswith(IMAGE_SUFFIXES) for cell in given)
