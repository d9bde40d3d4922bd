"""Lists the rows of a folder or of tar shards once, and keeps the list in the cache folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from storeds._utils.urls import file_url
from storeds.backends.unread import bounded
from storeds.errors import FormatError
from storeds.layouts.files.masks import MaskFile
from storeds.layouts.files.rows import Bad, File, FileStatus, Part, Row, Rows
from storeds.layouts.files.tars import parse_members
from storeds.layouts.names import Names, pack_names
from storeds.layouts.presets import PRESETS
from storeds.protocols import JSON, Array, Field, Record
from storeds.records.cache import index_path, load_json, save_index, save_json
from storeds.records.canonical_json import canonical_json
from storeds.records.codec import RecordCodec
from storeds.records.fields import fields_from_json, fields_to_json
from storeds.registry import import_object

__all__ = ["Listed", "Place", "find", "find_again", "find_first"]

_VERSION = 1
_SETTLED = 2_000_000_000  # nanoseconds after which a change of a folder surely changes its time


@dataclass(frozen=True)
class Place:
    """What is listed, and how.

    Parameters
    ----------
    path : str
        Absolute: a folder, a tar file, or a pattern of tar files.
    kind : str
        One of `PRESETS`.
    options : mapping
        Arguments of its function; JSON.
    """

    path: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL of the store."""
        return file_url("files", self.path)

    def index(self, state: str) -> Path:
        """Return the file of the cache folder that holds the rows."""
        return index_path("files", _VERSION, self.path, self.kind, dict(self.options), state)


class Listed:
    """The rows of a place, in a file of the cache folder.

    Parameters
    ----------
    place : Place
    names : Names
        A row each: its values in order of the fields, as msgpack. A file is a list of its path, relative to the folder and left
        out if it is the key; a part of a file is a list of the number of the file, its offset and its size.
    """

    def __init__(self, place: Place, names: Names) -> None:
        facts: dict[str, Any] = names.facts
        self.place, self._names = place, names
        self.count = names.count
        self.state: str = facts["state"]
        """Changes with the rows, and not when a file changes that no row needs."""
        self.watched: list[list[Any]] = facts["watched"]
        """Path, time, size and number of each folder and file that was listed, before that."""
        self.fields: Mapping[str, Field] = fields_from_json(facts["fields"])
        self.attrs: dict[str, JSON] = facts["attrs"]
        self.notes: list[str] = facts["notes"]
        self.left_out: list[str] = facts["left_out"]
        """Sentences about files that are no rows, by their kinds."""
        self.faults: list[str] = facts["faults"]
        """What should be rows, and cannot be read."""
        self._shards = [(path, FileStatus(size, modified)) for path, size, modified in facts["shards"]]
        self.shard_names: list[str] = facts["shard_names"]

    @property
    def is_current(self) -> bool:
        """Whether everything that was listed has its time and size."""
        return all(_stamp(self.place.path, each[0]) == each for each in self.watched)

    @property
    def build(self) -> str:
        """Changes with the rows, and with any folder or file that was listed."""
        return xxhash.xxh3_128_hexdigest(canonical_json([self.state, self.watched]).encode())

    def rows(self, positions: Sequence[int]) -> Iterator[list[Any]]:
        """Yield the values of the rows at `positions`, which ascend, in order of the fields."""
        return map(msgspec.msgpack.decode, self._names.many(positions))

    def values(self, row: Sequence[Any], wanted: Mapping[str, Field]) -> Record:
        """Return the values of the fields in `wanted` of one of `rows`, with references to files."""
        values = dict(zip(self.fields, row, strict=True))
        return {name: self._value(name, values[name], values) for name in wanted}

    def _value(self, name: str, value: Any, values: Record) -> Any:
        if not isinstance(value, list):
            return value
        if len(value) > 1:
            number, offset, size = value
            path, status = self._shards[number]
            return Part(path, offset, size, status)
        path = value[0] if value else values["key"]
        file = File(os.path.join(self.place.path, path))
        if self.fields[name].role != "mask":
            return file
        classes: Any = self.attrs.get("classes")
        ignored: Any = self.attrs.get("ignore_index")
        return MaskFile(file, path, None if classes is None else len(classes), ignored)

    @staticmethod
    def finish(record: Record, codec: RecordCodec) -> Record:
        """Return a record whose files were read, with its texts and its JSON parsed; raises `BadItem` and ValueError."""
        if record.keys().isdisjoint(("txt", "json")):
            return record
        return codec.to_user_values(codec.canonical(parse_members(record)))

    @property
    def shard_bytes(self) -> int | None:
        """The size of the tar files; None for a folder, whose files have no known sizes."""
        return sum(status.st_size for _, status in self._shards) if self._shards else None

    def shard_of(self, row: Sequence[Any]) -> str:
        """Return the name of the tar file that has a row, or nothing."""
        parts = (value for value in row if isinstance(value, list) and len(value) > 1)
        return next((self.shard_names[value[0]] for value in parts), "")


def find(path: str, options: Mapping[str, Any], layout: str | None) -> Listed | None:
    """Return the rows at a path that the cache folder holds, if nothing changed; `layout` is the one that the user names."""
    last = load_json(_latest(path, options, layout), dict[str, str])
    return None if last is None else _kept(Place(path, last["kind"], options), last["state"])


def find_first(place: Place, layout: str | None) -> Listed:
    """List the rows of a place, for `find` to return them later; raises StoreNotFoundError, ConfigError and FormatError."""
    begun = time.time_ns()
    listed = _listed_now(place)
    if all(modified + _SETTLED < begun for _, modified, _, _ in listed.watched):
        save_json(_latest(place.path, place.options, layout), {"kind": place.kind, "state": listed.state})
    return listed


def _latest(path: str, options: Mapping[str, Any], layout: str | None) -> Path:
    """Return the file of the cache folder that tells which list was the last one."""
    return index_path("files", _VERSION, path, layout, dict(options)).with_suffix(".json")


def find_again(place: Place, state: str) -> Listed:
    """Return the rows of a place that was in `state` when the user opened it; they may be in another one now."""
    return _kept(place, state) or _listed_now(place)


def _kept(place: Place, state: str) -> Listed | None:
    """Return the rows in the cache folder; None if they are not there, or not current."""
    path = place.index(state)
    listed = Listed(place, Names(path, lambda: _list(place)[1])) if path.exists() else None
    return listed if listed is not None and listed.is_current else None


def _listed_now(place: Place) -> Listed:
    """List a place, and write the list to the cache folder, perhaps over one of the same rows."""
    state, packed = _list(place)
    path = place.index(state)
    save_index(path, packed)
    return Listed(place, Names(path, lambda: packed))


def _list(place: Place) -> tuple[str, Array]:
    """Return the state of a place, and the array of a `Names` file with its rows."""
    rows: Rows = import_object(PRESETS[place.kind].options)(place.path, **place.options)
    shards: dict[str, int] = {}
    found, bad, statuses = list[bytes](), list[Bad](), list[JSON]()
    for item in rows.items(0):
        if isinstance(item, Bad):
            bad.append(item)
            continue
        values = [_stored(item.values[name], item, place.path + os.sep, shards, statuses) for name in rows.fields]
        found.append(msgspec.msgpack.encode(values))
    if not found:
        raise FormatError(f"{place.url}: nothing in it can be read: {'; '.join(map(str, bad[:4]))}")
    fields, attrs = fields_to_json(rows.fields), dict(rows.attrs)
    state = xxhash.xxh3_128(canonical_json([place.kind, fields, attrs, statuses]).encode())
    for each in found:
        state.update(each)
    common = os.path.commonpath(map(os.path.dirname, shards)) if shards else ""
    facts: dict[str, JSON] = {
        "state": state.hexdigest(),
        "watched": [_stamp_of(path, status) for path, status in rows.watched().items()],
        "fields": fields,
        "attrs": attrs,
        "notes": [*rows.notes],
        "left_out": [*rows.late_notes()],
        "faults": bounded(map(str, bad)),
        "shards": statuses,
        "shard_names": [os.path.relpath(path, common) for path in shards],
    }
    return state.hexdigest(), pack_names(found, (), facts)


def _stored(value: Any, row: Row, root: str, shards: dict[str, int], statuses: list[JSON]) -> Any:
    """Return a value of a row as `Listed` keeps it."""
    if isinstance(value, Part):
        if value.path not in shards:
            shards[value.path] = len(shards)
            statuses.append([value.path, *value.state[2:]])
        return [shards[value.path], value.offset, value.size]
    if isinstance(value, File):
        path = value.path.removeprefix(root)
        return [] if path == row.values["key"] else [path]
    return value


def _stamp(root: str, path: str) -> list[Any] | None:
    try:
        return _stamp_of(path, os.stat(os.path.join(root, path)))
    except OSError:
        return None


def _stamp_of(path: str, status: os.stat_result) -> list[Any]:
    return [path, status.st_mtime_ns, status.st_size, status.st_ino]
