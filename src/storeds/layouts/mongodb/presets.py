"""What a foreign MongoDB collection certainly is, and the ways to read one that is not certain."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from storeds._utils.urls import StoreURL
from storeds.backends.engine import Engine
from storeds.backends.mongodb.client import ClientFactory, parse_location
from storeds.layouts.explain import Reading, shown_value, undecided
from storeds.layouts.mongodb.backend import LayoutOpener, MongodbLayout, layout_engine, listed
from storeds.layouts.mongodb.connection import Connection
from storeds.layouts.mongodb.gridfs import GridfsLayout
from storeds.layouts.mongodb.named import NamedLayout
from storeds.layouts.mongodb.query import QueryLayout, data_of
from storeds.protocols import Backend

__all__ = ["FOREIGN_MONGODB", "GRIDFS", "NAMED", "QUERY"]

_LOG = logging.getLogger("storeds")
_SAMPLED = 3  # documents


_LAYOUTS: Mapping[str, type[MongodbLayout[Any]]] = {"gridfs": GridfsLayout, "named": NamedLayout, "query": QueryLayout}


def _opener(
    url: str | StoreURL, *, layout: str | None = None, client_factory: ClientFactory | None = None, **options: Any
) -> LayoutOpener:
    """Return what opens a collection or a bucket that another tool wrote, as what it certainly is.

    A collection whose documents hold data is read by `QueryLayout`, or by `NamedLayout` with the option ``index``; two
    collections of GridFS by `GridfsLayout`.

    Raises
    ------
    StoreNotFoundError
        There is no such collection and no such bucket.
    ConfigError, FormatError
        Nothing says for certain what it is; the message shows what it holds, and lines to paste.
    """
    if layout is not None:
        return LayoutOpener(_LAYOUTS[layout](url, client_factory=client_factory, **options))
    connection = Connection(parse_location(url), client_factory)
    try:
        target, why = _recognise(connection, options)
        if target is None:
            readings = [
                Reading({"layout": one.layout, **options}, partial(_store, one, url, client_factory, options))
                for one in (QueryLayout, GridfsLayout)
            ]
            raise undecided(connection.location.url, str(StoreURL.parse(url)), _entries(connection), readings, why)
    finally:
        connection.ref.close()
    opened = target(url, client_factory=client_factory, **options)
    opened.why = why
    _LOG.info("%s is opened with layout %r: %s", opened.url, target.layout, why)
    return LayoutOpener(opened)


def _store(
    layout: type[MongodbLayout[Any]], url: str | StoreURL, factory: ClientFactory | None, options: Mapping[str, Any]
) -> Backend:
    return layout_engine(layout)(url, client_factory=factory, **options)


def _recognise(connection: Connection, options: Mapping[str, Any]) -> tuple[type[MongodbLayout[Any]] | None, str]:
    """Return the layout of a collection or bucket and why, or None and why not."""
    name, names = connection.location.collection, set(connection.names())
    if {f"{name}.files", f"{name}.chunks"} <= names:
        pair = f"there are the collections {name}.files and {name}.chunks"
        return (None, f"{pair}, and one called {name}") if name in names else (GridfsLayout, pair)
    connection.identity(name)  # raises StoreNotFoundError
    if "index" in options:
        return NamedLayout, "an index is given"
    shown = list(connection.find(name, {}, limit=_SAMPLED))
    if not shown:
        return None, "the collection is empty"
    if name.endswith((".files", ".chunks")):
        return None, f"it belongs to the GridFS bucket {name.rpartition('.')[0]!r}: open that"
    data = list(dict.fromkeys(field for document in shown for field in data_of(document)))
    if options.get("columns") or data:
        return (
            QueryLayout,
            f"its documents have the fields {listed(sorted(shown[0]))}, of which {listed(data)} hold data",
        )
    return None, "no field of its documents holds an image or other bytes"


def _entries(connection: Connection) -> Iterator[str]:
    """Yield the fields of the first document, each with its beginning."""
    document = connection.one(connection.location.collection)
    yield from (f"{name} = {shown_value(value)}" for name, value in document.items())


FOREIGN_MONGODB = Engine(_opener, presets=_LAYOUTS)
"""Opens collections and buckets of other tools."""
GRIDFS, NAMED, QUERY = layout_engine(GridfsLayout), layout_engine(NamedLayout), layout_engine(QueryLayout)
"""Each opens what its layout reads."""
