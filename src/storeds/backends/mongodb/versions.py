"""Versioned stores in MongoDB: members are collections, versions and columns are documents of two more.

The store ``train`` has the collections ``train.members.<name>``, native stores; ``train.versions``, with a document for each
version whose ``_id`` is its number; and ``train.columns``, in which the parts of a column have the ``_id`` ``<name>/<number>``.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pymongo.errors import DuplicateKeyError

from storeds._utils.text import some
from storeds._utils.urls import StoreURL
from storeds.backends.handles import POOL, HandleRef
from storeds.backends.mongodb.client import ClientFactory, ClientOpener, parse_location
from storeds.backends.mongodb.documents import BUILD, META, TIME
from storeds.backends.mongodb.retry import on_primary
from storeds.backends.versions.columns import column_name, decode_column, encode_column
from storeds.backends.versions.place import Leftover, VersionPlace
from storeds.errors import ConfigError, UnavailableError
from storeds.protocols import Array
from storeds.redaction import redact

__all__ = ["VersionCollections", "version_collections"]

T = TypeVar("T")

_TEXT, _TOKEN, _DATA, _SIZE = "_version", "_token", "_data", "_size"
_PART = 4 << 20  # bytes of a part of a column
_QUERY_COLUMNS = 32  # whose first parts one query reads: at most 128 MiB
_MOST_TEXT = 15 << 20  # bytes: below MongoDB's 16 MiB for a document
# Names that storeds gives to members, their unfinished writes, and parts of columns.
_MEMBER = re.compile(r"([0-9a-f]{16}(-\d+-of-\d+)?|version-\d{8})(\.partial\.[0-9a-f]{12})?")
_COLUMN_PART = re.compile(r"([0-9a-f]{32})/\d{6}")


def version_collections(url: StoreURL, options: Mapping[str, Any]) -> VersionCollections | None:
    """Return where the versioned store is that a URL ``mongodb://hosts/db/store/`` names; None for one without the last slash."""
    _, *segments = url.path.partition("?")[0].rpartition("@")[2].split("/")
    is_versioned = len(segments) == 3 and all(segments[:2]) and not segments[2]
    return VersionCollections(url.text, options.get("client_factory")) if is_versioned else None


class VersionCollections(VersionPlace):
    """A versioned store in collections of a MongoDB database.

    The majority of nodes acknowledges every write, and every read is from the primary. Each step is repeated after transient
    failures, up to ``timeoutMS``.

    Parameters
    ----------
    url : str
        Of the store, with its secrets.
    factory : callable, optional
        Creates the client.
    """

    engine = "mongodb"

    def __init__(self, url: str, factory: ClientFactory | None = None) -> None:
        self._given = url, factory
        parsed = StoreURL.parse(url)
        path, mark, query = parsed.path.partition("?")
        self._base, self._query = f"{parsed.scheme}://{path.rstrip('/')}", mark + query
        location = parse_location(self._base + self._query)
        self._location = replace(location, url=redact(f"{self._base}/{self._query}"))
        self._ref: HandleRef[Any] = POOL.ref(self, ClientOpener(self._location, factory))

    def __reduce__(self) -> tuple[type[VersionCollections], tuple[str, ClientFactory | None]]:
        return VersionCollections, self._given

    @property
    def url(self) -> str:
        # docstring inherited
        return self._location.url

    def version_url(self, number: int) -> str:
        # docstring inherited
        return f"{self._base}/{self._query}{'&' if self._query else '?'}version={number}"

    def close(self) -> None:
        # docstring inherited
        self._ref.release()

    def _name(self, part: str) -> str:
        return f"{self._location.collection}.{part}"

    def _on(self, part: str, operation: Callable[[Any], T]) -> T:
        """Call `operation` with a collection of the store and return its result, repeated after transient failures."""
        return on_primary(self._ref, self._location, lambda database: operation(database[self._name(part)]))

    def _collections(self) -> list[str]:
        """Return the names of all collections of the database, sorted."""
        return on_primary(self._ref, self._location, lambda database: sorted(database.list_collection_names()))

    def _find(self, part: str, id: Any, *fields: str) -> Mapping[str, Any] | None:
        """Return these fields of a document, by default all, or None if it is not there."""
        projection = dict.fromkeys(fields, True) or None
        found: Mapping[str, Any] | None = self._on(part, lambda each: each.find_one({"_id": id}, projection))
        return found

    def _upsert(self, part: str, query: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Write and date a document; return False if another one has its ``_id``."""

        def update(collection: Any) -> bool:
            try:
                collection.update_one(query, {"$set": values, "$currentDate": {TIME: True}}, upsert=True)
            except DuplicateKeyError:
                return False
            return True

        return self._on(part, update)

    # --- Versions ---

    def numbers(self) -> list[int]:
        # docstring inherited
        found = self._on("versions", lambda versions: list(versions.find({"_id": {"$gte": 1}}, {"_id": True})))
        return sorted(int(each["_id"]) for each in found)

    def _read(self, number: int) -> str:
        text = self._version(number).get(_TEXT)
        return text if isinstance(text, str) else ""  # which matches no checksum

    def _version(self, number: int, *fields: str) -> Mapping[str, Any]:
        found = self._find("versions", number, *fields)
        if found is None:
            raise UnavailableError(f"{self.url}: version {number} was there and is gone now")
        return found

    def _found_instead(self) -> str:
        stores = [name.removesuffix(".versions") for name in self._collections() if name.endswith(".versions")]
        has = f"the versioned stores {some(stores, 8)}" if stores else "no versioned stores"
        return f"database {self._location.database!r} has {has}"

    def publish(self, number: int, text: str) -> bool:
        # docstring inherited
        if len(text.encode()) > _MOST_TEXT:
            raise ConfigError(f"{self.url} has too many members for one document: storeds compact makes one of them")
        # The token tells this version, of an earlier attempt whose reply was lost, from another one with its number: that does
        # not match, and cannot be inserted again.
        return self._upsert("versions", {"_id": number, _TOKEN: secrets.token_hex(8)}, {_TEXT: text})

    def published(self, number: int) -> float:
        # docstring inherited
        return _seconds(self._version(number, TIME).get(TIME))

    # --- Columns ---

    def put(self, column: Array) -> str:
        # docstring inherited
        data = encode_column(column)
        name = column_name(data)
        for number, start in enumerate(range(0, len(data), _PART)):
            # Another process may put the same bytes at the same moment.
            part = {_DATA: data[start : start + _PART], _SIZE: len(data)}
            self._upsert("columns", {"_id": _part_id(name, number)}, part)
        return name

    def get(self, name: str) -> Array:
        # docstring inherited
        return self._column(name, self._find("columns", _part_id(name, 0)))

    def get_each(self, names: Sequence[str]) -> Iterator[Array]:
        # docstring inherited
        for start in range(0, len(names), _QUERY_COLUMNS):
            batch = names[start : start + _QUERY_COLUMNS]
            query = {"_id": {"$in": [_part_id(name, 0) for name in batch]}}
            first = {part["_id"]: part for part in self._on("columns", partial(_found, query))}
            yield from (self._column(name, first.get(_part_id(name, 0))) for name in batch)

    def _column(self, name: str, part: Mapping[str, Any] | None) -> Array:
        """Return a column, whose first part is this."""
        if part is None:
            raise UnavailableError(f"{self.url}: the column {name} is gone")
        data = bytearray(part[_DATA])
        for number in range(1, -(-part[_SIZE] // _PART)):
            more = self._find("columns", _part_id(name, number))
            data += b"" if more is None else more[_DATA]
        return decode_column(bytes(data), name, f"{self.url}: column {name}")

    # --- Members ---

    def member_name(self, stem: str) -> str:
        # docstring inherited
        return stem

    def member_url(self, name: str) -> str:
        # docstring inherited
        return f"{self._base}.members.{name}{self._query}"

    def member_names(self) -> list[str]:
        # docstring inherited
        begin = self._name("members.")
        names = (name.removeprefix(begin) for name in self._collections() if name.startswith(begin))
        return [name for name in names if ".partial." not in name]

    def has_member(self, name: str) -> bool:
        # docstring inherited
        return self._find(f"members.{name}", META, BUILD) is not None

    def adopt(self, url: str | os.PathLike[str], *, move: bool) -> None:
        """Return None: collections are always copied. Raises ConfigError for `move`."""
        if move:
            raise ConfigError(
                f"{redact(os.fspath(url))} cannot be moved into {self.url}: merge it without --move, as a copy"
            )

    # --- Leftovers ---

    def leftovers(
        self, members: Collection[str], columns: Collection[str], numbers: Collection[int], former: Collection[str]
    ) -> Iterator[Leftover]:
        # docstring inherited
        for number in self.numbers():
            if number not in numbers and number < max(numbers, default=0):  # not what was published meanwhile
                text = self._read(number)
                yield Leftover("version", self._name(f"versions/{number}"), len(text), self.published(number))
        found = self._on("columns", lambda each: list(each.find({}, {_DATA: False}).sort("_id", 1)))
        ours = [(matched[1], part) for part in found if (matched := _COLUMN_PART.fullmatch(str(part["_id"])))]
        for name, parts in itertools.groupby(ours, lambda each: each[0]):
            _, last = [*parts][-1]
            if name not in columns:
                yield Leftover("column", self._name(f"columns/{name}"), last[_SIZE], _seconds(last[TIME]))
        begin = self._name("members.")
        for name in self._collections():
            member = name.removeprefix(begin)
            if name.startswith(begin) and member not in members and _MEMBER.fullmatch(member):
                yield self._member_left(member)

    def _member_left(self, member: str) -> Leftover:
        name = self._name(f"members.{member}")
        state = self._find(f"members.{member}", META, TIME)
        stats = on_primary(self._ref, self._location, lambda database: database.command("collStats", name))
        # A writer begins with this document: a collection without it has no writer.
        return Leftover("member", name, int(stats["size"]), 0.0 if state is None else _seconds(state.get(TIME)))

    def remove(self, leftover: Leftover) -> None:
        # docstring inherited
        _, _, id = leftover.path.rpartition("/")
        if leftover.kind == "version":
            self._on("versions", lambda versions: versions.delete_one({"_id": int(id)}))
        elif leftover.kind == "column":
            self._on("columns", lambda columns: columns.delete_many({"_id": {"$gte": f"{id}/", "$lt": f"{id}0"}}))
        else:
            on_primary(self._ref, self._location, lambda database: database.drop_collection(leftover.path))


def _found(query: Mapping[str, Any], collection: Any) -> list[dict[str, Any]]:
    return list(collection.find(query))


def _part_id(name: str, number: int) -> str:
    return f"{name}/{number:06}"


def _seconds(when: Any) -> float:
    """Return a date of MongoDB in seconds; infinity for anything else, so that what nobody dated stays."""
    return when.replace(tzinfo=datetime.UTC).timestamp() if isinstance(when, datetime.datetime) else math.inf
