"""MongoDB collections that other tools wrote: ids that are found once and kept packed, batches read by ``_id``."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import bson
import numpy as np
import xxhash
from bson import Int64

from storeds._utils.text import counted
from storeds.backends.mongodb.retry import with_retries
from storeds.backends.raw import BackendOptions, Fault, Rows
from storeds.backends.unread import bounded
from storeds.errors import RecordError, UnavailableError
from storeds.layouts.mongodb.connection import Connection
from storeds.layouts.mongodb.documents import Column, label_of, projection_of
from storeds.layouts.names import Names
from storeds.layouts.tree import Found, TreeStore, meta_of
from storeds.protocols import JSON, Array, Description, Field, Record
from storeds.records.cache import index_path
from storeds.records.columns import column_of
from storeds.records.fields import fields_to_json
from storeds.values.infer import evenly

if TYPE_CHECKING:
    from storeds.layouts.mongodb.tree import MongodbLocation

__all__ = ["IDS", "LABELS", "NAMES", "MongodbLayout", "batches", "id_of", "key_of", "listed"]

# A command may have 48 MB and a document of it, an `$in` included, 16 MiB.
_BATCH_BYTES = 8 << 20
_SAMPLE = 16  # documents from which fields are inferred
_SHOWN = 10
IDS, NAMES, LABELS = "ids", "names", "labels"
"""The names of the lists that layouts keep."""
_FIELDS = {"key": NAMES, "label": LABELS}
"""Fields whose values are kept in a list."""

Opts = TypeVar("Opts", bound=BackendOptions)


@dataclass(frozen=True)
class Plan:
    """How the records of a collection are read.

    Attributes
    ----------
    settings : BackendOptions
    identity : object
        The UUID of the collection; None for a view.
    content : str
        A hash of all lists, for the names of their files.
    kept : dict of str to str
        The fields whose values are kept in a list, and the list.
    columns : dict of str to Column
        The other fields, in documents.
    """

    settings: Any
    identity: Any
    content: str
    kept: Mapping[str, str]
    columns: Mapping[str, Column]


class MongodbLayout(TreeStore, Generic[Opts]):
    """A collection that another tool wrote, read by ``_id``.

    A subclass finds the documents (`_resolve`), the places of fields in them (`_describe`), and converts a document to a
    record (`_values`).

    Parameters
    ----------
    location : MongodbLocation
    client : pymongo.MongoClient
    settings : BackendOptions
    found : Found, optional
        What `find` returned, to read the records.

    Notes
    -----
    The lists that `_resolve` returns are kept in index files of the cache folder, whose names depend on the content, so they
    are never stale. If the folder is not writable, a worker resolves the documents again, and raises an error if the result
    differs.
    """

    layout: ClassVar[str]

    def __init__(self, location: MongodbLocation, client: Any, settings: Opts, found: Found | None = None) -> None:
        self._location, self._settings = location.location, settings
        self._connection = Connection(client, location.location)
        self._lists: dict[str, Names] = {}
        self._left: list[str] = []
        if found is not None:
            super().__init__(location, client, found)
            plan: Plan = found.plan
            self._identity, self._content = plan.identity, plan.content
            self._kept, self._columns = plan.kept, plan.columns
            self._lists |= found.kept or {}

    def find(self) -> Found:
        """Return the records of the collection."""
        self._identity = self._connection.identity(self._collection)
        arrays = self._resolve()
        self._content = _content_of(arrays)
        for name, array in arrays.items():
            self._lists[name] = Names(self._path(name), partial(np.asarray, array))
        self._kept = {name: place for name, place in _FIELDS.items() if place in arrays}
        self._columns, fields = self._describe()
        identity: JSON = [self.layout, fields_to_json(fields), self._content]
        meta = meta_of(self.layout, identity, self._build(), len(self._lists[IDS]), fields, {})
        plan = Plan(self._settings, self._identity, self._content, self._kept, self._columns)
        unread = bounded([*self._left, *self._other_collections()])
        return Found(meta, plan=plan, unread=tuple(unread), kept=self._lists)

    # Defined by subclasses.

    @abstractmethod
    def _resolve(self) -> dict[str, Array]:
        """Return ``ids``, the ids of all records in order, and other lists of `_FIELDS`, as `pack_names` packs them."""

    @abstractmethod
    def _describe(self) -> tuple[dict[str, Column], dict[str, Field]]:
        """Return the columns of documents, and all fields in order."""

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        """Return the values of fields that are in no list; raises ValueError with the reason."""
        return {name: self._columns[name].value(document) for name in fields}

    @property
    def _collection(self) -> str:
        """The collection whose documents have the ``_id``."""
        return self._location.collection

    def _build(self) -> str:
        # No server can cheaply report changes to documents, so cached results about values are valid for one opening.
        return secrets.token_hex(16)

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str | None:
        """Return the name of the record for messages."""
        return self._at(NAMES, position).decode() if "key" in self._kept else None

    def name(self, position: int) -> str:
        # docstring inherited
        return f"_id {id_of(self._at(IDS, position))!r}"

    def _own_collections(self) -> set[str]:
        """Return the names of all collections that the layout reads."""
        return {self._location.collection}

    def _other_collections(self) -> Iterator[str]:
        """Yield collections that are not read although their names begin with the name of this one."""
        own, collection = self._own_collections(), self._location.collection
        for name in self._connection.names():
            if name not in own and f"{name}.".startswith(f"{collection}."):
                yield f"collection {name!r}: {counted(self._connection.count(name), 'document')}"

    # Reading.

    def _path(self, name: str) -> Path:
        return index_path("mongodb", self._location.url, self.layout, self._content, name)

    def _list(self, name: str) -> Names:
        """Return one of the lists that `_resolve` found."""
        if name not in self._lists:  # after unpickling
            self._lists[name] = Names(self._path(name), lambda: self._resolved_again(name))
        return self._lists[name]

    def _resolved_again(self, name: str) -> Array:
        arrays = self._resolve()
        if _content_of(arrays) != self._content:
            raise UnavailableError(
                f"{self._location.url} has changed since it was opened: it has other documents; open it again"
            )
        return arrays[name]

    def _at(self, name: str, position: int) -> bytes:
        (found,) = self._list(name).many([position])
        return found

    def _find(
        self, query: Mapping[str, Any], paths: Iterable[str], *, ordered: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield documents of the opened collection."""
        return self._connection.find(self._collection, query, projection_of(paths), ordered=ordered)

    def _one(self, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a document of the opened collection that a query finds, or else an empty one."""
        return self._connection.one(self._collection, query)

    def _documents(self, keys: Iterable[bytes], paths: Iterable[str] | None) -> dict[bytes, dict[str, Any]]:
        """Return key → document, by one query, or several if a command would be too large."""
        projection = None if paths is None else projection_of(paths)
        found: dict[bytes, dict[str, Any]] = {}
        for batch in batches(dict.fromkeys(keys)):
            query = {"_id": {"$in": [id_of(key) for key in batch]}}
            documents = self._connection.read(self._collection, self._identity, query, projection)
            found.update((key_of(document["_id"]), document) for document in documents)
        return found

    def _sampled_keys(self) -> list[bytes]:
        ids = self._lists[IDS]
        return ids.many(evenly(len(ids), _SAMPLE))

    def _sample(self, paths: Iterable[str] | None) -> list[dict[str, Any]]:
        """Return some documents from across the store."""
        return list(self._documents(self._sampled_keys(), paths).values())

    def _fetch(self, keys: Sequence[bytes], fields: Sequence[str]) -> dict[bytes, dict[str, Any]]:
        """Return key → document with the values for `fields`."""
        return self._documents(keys, [self._columns[name].path for name in fields if name in self._columns])

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        names = tuple(self.meta.fields) if fields is None else fields
        keys = self._list(IDS).many(positions)
        documents = with_retries(self._location, lambda: self._fetch(keys, names))
        pairs = zip(positions, keys, strict=True)
        return Rows([self._record(position, documents.get(key), names) for position, key in pairs])

    def _record(self, position: int, document: Mapping[str, Any] | None, fields: Sequence[str]) -> Record | Fault:
        try:
            if document is None:
                raise ValueError("its document is gone from the collection")
            found = self._values(position, document, [name for name in fields if name not in self._kept])
            for name in self._kept.keys() & {*fields}:
                found[name] = self._unpacked(name, self._at(self._kept[name], position))
            return {name: found[name] for name in fields}
        except ValueError as error:
            return Fault(str(error), self._name(position, document))

    def _unpacked(self, name: str, packed: bytes) -> Any:
        return packed.decode() if name == "key" else label_of(self.meta.fields[name], packed)

    def values(self, name: str) -> Array:
        # docstring inherited
        field = self.meta.fields[name]
        if name in self._kept:
            return column_of(field, [self._unpacked(name, packed) for packed in self._list(self._kept[name])])
        # Short queries leave no cursor open between them.
        step = 256 if field.is_blob else 50_000
        values: list[Any] = []
        for start in range(0, self.meta.count, step):
            positions = list(range(start, min(start + step, self.meta.count)))
            for position, record in zip(positions, self.read(positions, (name,)).records, strict=True):
                if isinstance(record, Fault):
                    raise RecordError.at(
                        self._location.url, position, f"{record.reason} ({self.name(position)})", key=record.key
                    )
                values.append(record[name])
        return column_of(field, values)

    def describe(self) -> Description:
        # docstring inherited
        return Description(recognised=self.found.why)


def _content_of(arrays: Mapping[str, Array]) -> str:
    hasher = xxhash.xxh3_128()
    for name, array in arrays.items():
        hasher.update(f"{name} {len(array)}".encode())
        hasher.update(array.data)
    return hasher.hexdigest()


def key_of(id: Any) -> bytes:
    """Return the bytes of an id; MongoDB stores integers in two sizes and compares them by value, so they get one form."""
    is_number = isinstance(id, int) and not isinstance(id, bool)
    return bson.encode({"": Int64(id) if is_number else id})


def id_of(key: bytes) -> Any:
    """Return the id of a key."""
    return bson.decode(key)[""]


def batches(items: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split byte strings into batches that fit into one command."""
    batch: list[bytes] = []
    size = 0
    for item in items:
        size += len(item) + 16  # BSON numbers the items of an array in text
        if size > _BATCH_BYTES and batch:
            yield batch
            batch, size = [], len(item) + 16
        batch.append(item)
    if batch:
        yield batch


def listed(names: Sequence[str]) -> str:
    """Return the first ten names, and the number of further ones."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
