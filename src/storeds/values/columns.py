"""Names the fields of columns, and finds the column of labels: once for lists, tables and whatever else has columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storeds.errors import ConfigError
from storeds.values.names import field_name, field_names

__all__ = ["LABEL_COLUMNS", "check_label_column", "find_label", "is_likely_label", "name_columns"]

LABEL_COLUMNS = ("label", "class", "target")
"""The names of a column of labels, in lower case, the most certain first."""
# Used if none of LABEL_COLUMNS and exactly one of these exists.
_LESS_CERTAIN = (
    *("labels", "classes", "targets", "category", "class_name", "class_id", "class_idx", "class_index"),
    *("label_name", "label_id", "label_idx", "category_name", "category_id"),
)


def name_columns(columns: Sequence[str], taken: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the field name for each column, and a sentence about each whose name another field has."""
    names = dict(zip(columns, field_names(columns, {*taken}), strict=True))
    notes = [
        f"column {column!r} is stored as {name!r}, because {field_name(column)!r} is another field"
        for column, name in names.items()
        if name != field_name(column)
    ]
    return names, notes


def is_likely_label(column: str) -> bool:
    """Whether a column has a name that columns of labels have."""
    return column.strip().lower() in (*LABEL_COLUMNS, *_LESS_CERTAIN)


def check_label_column(where: str, label_column: str | None, label: bool) -> None:
    """Raise ConfigError if a column of labels is named, and labels are not wanted."""
    if label_column is not None and not label:
        raise ConfigError(
            f"{where}: label_column={label_column!r} and label=False contradict each other; leave one out"
        )


def find_label(
    where: str, columns: Sequence[str], *, beside: str, needed: Sequence[str], declared: Sequence[str] = ()
) -> str | None:
    """Return the column that contains labels, or None.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    columns : sequence of str
        The columns that may contain labels.
    beside : str
        What is in the other columns, for messages.
    needed : sequence of str
        The columns of which one must contain labels; none if labels are not needed.
    declared : sequence of str
        The columns that the file itself calls classes. Without a name of `LABEL_COLUMNS`, these count, and not other names.

    Raises
    ------
    ConfigError
        Several columns are likely, or none and labels are needed.
    """
    named = {column.strip().lower(): column for column in reversed(columns)}
    certain = [named[name] for name in LABEL_COLUMNS if name in named][:1]
    found = certain or declared or [named[name] for name in _LESS_CERTAIN if name in named]
    if len(found) > 1:
        raise ConfigError(
            f"{where}: columns {', '.join(map(repr, found))} all look like labels; choose with label_column= (--option "
            f"label_column={found[0]})"
        )
    if not found and needed:
        raise ConfigError(
            f"{where}: no column looks like labels ({', '.join(LABEL_COLUMNS)}); beside the {beside} there "
            f"{'is' if len(needed) == 1 else 'are'} {', '.join(map(repr, needed[:20]))}; name the column of labels with "
            f"label_column= (--option label_column={needed[0]}), or pass label=False (--no-label) to pack without labels"
        )
    return found[0] if found else None
