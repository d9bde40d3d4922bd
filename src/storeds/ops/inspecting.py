"""Says what is in a store without reading a blob."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._utils.locations import StoreURL
from storeds.backends.base import StoreBackend
from storeds.backends.opening import open_backend, with_scheme
from storeds.errors import FormatError, RecordError
from storeds.ops.verdict_counts import VerdictCounts
from storeds.protocols import JSON, Backend
from storeds.records.columns import read_column
from storeds.records.fields import fields_to_json
from storeds.records.meta import NATIVE

__all__ = ["Info", "info"]


@dataclass(frozen=True)
class Info:
    """What a store says about itself.

    Attributes
    ----------
    url, backend, layout, id, build : str
    recognised : str or None
        For a foreign layout, what it was recognised by.
    count : int
        Records.
    fields : list
        Name and kind of each field, in order.
    attrs : dict
        Class names and the like.
    classes, splits : dict or None
        Of a native store: how many records have each label, by the name of its class where there is one; and how many
        belong to each split. None where there is no such field.
    pictures : dict or None
        Kind of `storeds.jpeg.Verdict`, or ``"not examined"`` → how many pictures; None without an image field.
    bytes : int or None
        What the store takes in its engine; None where that cannot be told.
    unread : list of str
        What of a foreign store no record holds, each with a reason; at most 200, and the last may be a count.
    leftovers : str or None
        Where an interrupted writer of this store left its work.
    writer : str or None
        Which process is writing the store again at the moment.
    handle : dict
        How the store is opened: options, file system, pool.
    advice : list of str
        What about its place or settings may hurt, and what to do.
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
    bytes: int | None
    unread: list[str]
    leftovers: str | None
    writer: str | None
    handle: dict[str, JSON]
    advice: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the info as JSON."""
        return dict(vars(self))


def info(url: str, *, layout: str | None = None, options: Mapping[str, Any] | None = None) -> Info:
    """Return what the store at `url` says about itself.

    Parameters
    ----------
    url, layout, options
        As for `open_backend`.

    Raises
    ------
    StoreNotFoundError, FormatError, UnavailableError, ConfigError
        From opening it.
    """
    with open_backend(url, layout=layout, **(options or {})) as backend:
        meta = backend.meta
        guess_can_open = getattr(type(backend), "guess_can_open", None)
        own = backend if isinstance(backend, StoreBackend) else None
        return Info(
            url=backend.url,
            backend=StoreURL.parse(backend.url).scheme or meta.layout,
            layout=meta.layout,
            recognised=guess_can_open(with_scheme(url).text, **(options or {})) if guess_can_open else None,
            id=meta.id,
            build=meta.build,
            count=meta.count,
            fields=fields_to_json(meta.fields),
            attrs=dict(meta.attrs),
            classes=_class_counts(backend),
            splits=_counts(backend, "split", ("str",)),
            pictures=_pictures(backend),
            bytes=own.stored_bytes() if own else None,
            unread=own.unread() if own else [],
            leftovers=own.leftovers() if own else None,
            writer=own.writer() if own else None,
            handle=own.handle_settings() if own else {},
            advice=own.advice() if own else [],
        )


def _pictures(backend: Backend) -> dict[str, int] | None:
    try:
        return VerdictCounts.of(backend).kinds or None
    except (RecordError, FormatError):  # a damaged column; `verify` says where
        return None


def _class_counts(backend: Backend) -> dict[str, int] | None:
    counts = _counts(backend, "label", ("int", "str", "bool"))
    classes = backend.meta.attrs.get("classes")
    if counts is None or not isinstance(classes, list) or backend.meta.fields["label"].kind != "int":
        return counts
    names = {str(label): str(name) for label, name in enumerate(classes)}
    if len(set(names.values())) < len(names):
        return counts
    # Classes without a record are shown too, and labels without a class under their number.
    return {name: counts.pop(label, 0) for label, name in names.items()} | counts


def _counts(backend: Backend, name: str, kinds: tuple[str, ...]) -> dict[str, int] | None:
    """Return how many records have each value of a field; None without the field, or where only records tell."""
    declared = backend.meta.fields.get(name)
    if backend.meta.layout != NATIVE or declared is None or declared.kind not in kinds:
        return None
    try:
        values, counts = np.unique(read_column(backend, name), return_counts=True)
    except RecordError:  # a damaged column; `verify` says where
        return None
    return {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
