"""Describes a store without reading blobs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._utils.tables import text_table
from storeds._utils.text import byte_size, counted, some
from storeds.backends.opening import open_backend
from storeds.backends.view import describe
from storeds.errors import FormatError, RecordError
from storeds.ops.verdicts import VerdictCounts, brief_counts, images_of
from storeds.protocols import JSON, Backend, Field
from storeds.records.columns import read_column
from storeds.records.fields import fields_from_json, fields_to_json
from storeds.records.meta import NATIVE
from storeds.records.roles import role_text

__all__ = ["Info", "brief_classes", "class_counts", "info"]

_MAX_TEXT = 400  # characters
_MAX_NAMED = 30  # classes


@dataclass(frozen=True)
class Info:
    """The description of a store.

    Attributes
    ----------
    url, backend, layout, id, build : str
    recognised : str or None
        For a foreign layout, how it was detected.
    count : int
        Number of records.
    fields : list
        Name and kind of each field, in order.
    attrs : dict
        Class names and the like.
    classes, splits : dict or None
        Of a native store: records per label, by class name if there are names, and records per split. None without
        such a field.
    pictures : dict or None
        Kind of `storeds.pictures.Verdict`, or ``"not examined"`` → number of pictures; None without an image field.
    fast_crops : int or None
        Number of pictures of which readers can decode a crop alone; None if the store does not say, or has no pictures.
    bytes : int or None
        The size of the store in its engine; None if unknown.
    unread : list of str
        Parts of a foreign store that no record contains, each with a reason; at most 200, and the last may be a count.
    leftovers : str or None
        Where an interrupted writer left its work.
    writer : str or None
        The process that is rewriting the store now.
    handle : dict
        How the store is opened: options, file system, handle pool.
    advice : list of str
        Problems with its location or settings, and what to do.
    """

    url: str
    backend: str
    layout: str
    recognised: str | None
    id: str
    build: str
    count: int
    fields: JSON
    attrs: dict[str, JSON]
    classes: dict[str, int] | None
    splits: dict[str, int] | None
    pictures: dict[str, int] | None
    fast_crops: int | None
    bytes: int | None
    unread: list[str]
    leftovers: str | None
    writer: str | None
    handle: dict[str, JSON]
    advice: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the info as JSON."""
        return dict(vars(self))

    def __str__(self) -> str:
        rows = {
            **vars(self),
            "attrs": json.dumps(self.attrs, ensure_ascii=False),
            "classes": None if self.classes is None else brief_classes(self.classes),
            "splits": None if self.splits is None else brief_classes(self.splits),
            "pictures": None if self.pictures is None else brief_counts(self.pictures),
            "fast_crops": None if self.fast_crops is None else self._fast_crops(self.fast_crops),
            "bytes": None if self.bytes is None else byte_size(self.bytes),
            "handle": ", ".join(f"{name}={value}" for name, value in self.handle.items()),
            "advice": "; ".join(self.advice) or "none",
        }
        lists = {"fields": self._field_lines(), "unread": self.unread}
        short = [(name, _cut(value)) for name, value in rows.items() if name not in lists and value is not None]
        # Only the first line of a list has a heading.
        long = [("" if n else name, line) for name, lines in lists.items() for n, line in enumerate(lines)]
        return text_table({"what": "left", "value": "left"}, [*short, *long], head=False)

    def _fast_crops(self, ready: int) -> str:
        return f"{ready:,} of {counted(sum((self.pictures or {}).values()), 'picture')} ready"

    def _field_lines(self) -> list[str]:
        declared = fields_from_json(self.fields)
        kinds = {name: _kind(field) for name, field in declared.items()}
        widths = max(map(len, kinds), default=0), max(map(len, kinds.values()), default=0)
        return [
            f"{name:{widths[0]}}  {kinds[name]:{widths[1]}}  {role_text(field)}" for name, field in declared.items()
        ]


def _cut(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) < _MAX_TEXT else f"{text[:_MAX_TEXT]} …"


def _kind(field: Field) -> str:
    if field.kind != "array":
        return field.kind
    return f"array {field.dtype} [{', '.join('*' if size is None else str(size) for size in field.shape or ())}]"


def brief_classes(counts: dict[str, int]) -> str:
    """Return the names of classes or splits with the number of their records."""
    named = [f"{name} {count:,}" for name, count in counts.items()]
    return f"{len(named):,}: " + some(named, _MAX_NAMED)


def info(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Info:
    """Describe the store at `url` without reading blobs.

    Parameters
    ----------
    url, layout, options
        As for `open_backend`.

    Raises
    ------
    StoreNotFoundError, FormatError, UnavailableError, ConfigError
        It cannot be opened.
    """
    with open_backend(url, layout=layout, **(options or {})) as backend:
        meta = backend.meta
        scheme, separator, _ = backend.url.partition("://")
        own = describe(backend)
        has_columns = meta.layout == NATIVE or scheme == "files"
        return Info(
            url=backend.url,
            backend=scheme if separator else meta.layout,
            layout=meta.layout,
            recognised=own.recognised,
            id=meta.id,
            build=meta.build,
            count=meta.count,
            fields=fields_to_json(meta.fields),
            attrs=dict(meta.attrs),
            classes=class_counts(backend) if has_columns else None,
            splits=_counts(backend, "split", ("str",)) if has_columns else None,
            pictures=_pictures(backend),
            fast_crops=meta.fast_crops if images_of(backend) else None,
            bytes=own.bytes,
            unread=list(own.unread),
            leftovers=own.leftovers,
            writer=own.writer,
            handle=dict(own.settings),
            advice=list(own.advice),
        )


def _pictures(backend: Backend) -> dict[str, int] | None:
    try:
        return VerdictCounts.of(backend).kinds or None
    except (RecordError, FormatError):  # a damaged column, which `verify` reports
        return None


def class_counts(backend: Backend) -> dict[str, int] | None:
    """Return how many records have each value of the field ``label``, by class name if the store has names."""
    counts = _counts(backend, "label", ("int", "str", "bool"))
    classes = backend.meta.attrs.get("classes")
    if counts is None or not isinstance(classes, list) or backend.meta.fields["label"].kind != "int":
        return counts
    names = {str(label): str(name) for label, name in enumerate(classes)}
    if len(set(names.values())) < len(names):
        return counts
    # This includes classes without records, and labels without a class by their numbers.
    return {name: counts.pop(label, 0) for label, name in names.items()} | counts


def _counts(backend: Backend, name: str, kinds: tuple[str, ...]) -> dict[str, int] | None:
    """Return how many records have each value of a field; None without such a field, or if it cannot be read."""
    declared = backend.meta.fields.get(name)
    if declared is None or declared.kind not in kinds:
        return None
    try:
        values, counts = np.unique(read_column(backend, name), return_counts=True)
    except RecordError:  # a damaged column, which `verify` reports
        return None
    return {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
