"""Finds out what a MongoDB collection or bucket of another tool is, and opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL
from storeds.backends.engine import Engine
from storeds.backends.mongodb.client import ClientFactory, ClientOpener, parse_location
from storeds.backends.raw import BackendOptions
from storeds.layouts.explain import shown_value
from storeds.layouts.mongodb.backend import MongodbLayout, listed
from storeds.layouts.mongodb.connection import Connection
from storeds.layouts.mongodb.gridfs import GridfsLayout
from storeds.layouts.mongodb.named import NamedLayout
from storeds.layouts.mongodb.query import QueryLayout, data_of
from storeds.layouts.pattern import Pattern
from storeds.layouts.presets import PRESETS, presets_of
from storeds.layouts.tree import Found, Tree, TreeLocation, TreeOpener
from storeds.registry import import_object

__all__ = ["FOREIGN_MONGODB", "MongodbLocation"]

_LAYOUTS: Mapping[str, type[MongodbLayout[Any]]] = {"gridfs": GridfsLayout, "named": NamedLayout, "query": QueryLayout}
_SAMPLED = 3  # documents


@dataclass(frozen=True)
class MongodbLocation(ClientOpener, TreeLocation):
    """A collection or a bucket, and what the user says of it.

    Parameters
    ----------
    options : mapping
        Of the layout, which reads ``columns`` as well.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str | None = None

    @property
    def source(self) -> str:
        return self.url

    def given(self) -> dict[str, Any]:
        # docstring inherited
        return dict(self.options)

    def again(self, layout: str | None, options: Mapping[str, Any]) -> MongodbLocation:
        # docstring inherited
        return replace(self, layout=layout, options=options)

    @contextmanager
    def tree(self, handle: Any, /) -> Iterator[MongodbTree]:
        # docstring inherited; each query converts errors
        yield MongodbTree(self, handle)

    def store(self, handle: Any, found: Found, /) -> MongodbLayout[Any]:
        # docstring inherited
        return _LAYOUTS[found.meta.layout](self, handle, found.plan.settings, found)


class MongodbTree(Tree):
    """A collection, or the collections of a bucket."""

    def __init__(self, location: MongodbLocation, client: Any) -> None:
        self._location, self._client = location, client
        self._connection = Connection(client, location.location)
        self._name = location.location.collection

    def recognise(self) -> tuple[str | None, str]:
        # docstring inherited
        connection, name, options = self._connection, self._name, self._location.options
        names = set(connection.names())
        if {f"{name}.files", f"{name}.chunks"} <= names:
            pair = f"there are the collections {name}.files and {name}.chunks"
            return (None, f"{pair}, and one called {name}") if name in names else ("gridfs", pair)
        connection.identity(name)  # raises StoreNotFoundError
        if "index" in options:
            return "named", "an index is given"
        shown = list(connection.find(name, {}, limit=_SAMPLED))
        if not shown:
            return None, "the collection is empty"
        if name.endswith((".files", ".chunks")):
            return None, f"it belongs to the GridFS bucket {name.rpartition('.')[0]!r}: open that"
        data = list(dict.fromkeys(field for document in shown for field in data_of(document)))
        if options.get("columns") or data:
            fields = listed(sorted(shown[0]))
            return "query", f"its documents have the fields {fields}, of which {listed(data)} hold data"
        return None, "no field of its documents holds an image or other bytes"

    def entries(self) -> Iterator[str]:
        # docstring inherited: the fields of the first document, each with its beginning
        for name, value in self._connection.one(self._name).items():
            yield f"{name} = {shown_value(value)}"

    def candidates(self) -> Iterator[dict[str, Any]]:
        # docstring inherited
        yield from ({"layout": layout} for layout in ("query", "gridfs"))

    def pattern(self, layout: str) -> Pattern | None:
        # docstring inherited; the options of a layout say more
        return None

    def find(self, layout: str, pattern: Pattern | None) -> Found:
        # docstring inherited
        kind: type[BackendOptions] = import_object(PRESETS[layout].options)
        settings = parse_options(kind, {}, self._location.options, self._location.url)
        return _LAYOUTS[layout](self._location, self._client, settings).find()


def _opener(
    url: str | StoreURL, *, layout: str | None = None, client_factory: ClientFactory | None = None, **options: Any
) -> TreeOpener:
    return TreeOpener(MongodbLocation(parse_location(url), client_factory, options, layout))


FOREIGN_MONGODB = Engine(_opener, presets=presets_of("mongodb"))
"""Opens collections and buckets of other tools; the options are those of the layout, and ``client_factory``."""
