"""GridFS buckets: files in ``<bucket>.files``, their bytes in ``<bucket>.chunks``, labels in another collection."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bson import Int64

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.mongodb.backend import IDS, LABELS, NAMES, batches, id_of, key_of, listed
from storeds.layouts.mongodb.documents import Column, label_column, paths_of, pick, projection_of, to_json
from storeds.layouts.mongodb.query import ColumnLayout, ColumnOptions, dotted
from storeds.layouts.names import pack_names
from storeds.protocols import Array, Field, Record
from storeds.values.codecs import is_video
from storeds.values.infer import field_of

__all__ = ["GridfsLayout", "GridfsOptions"]


_LOG = logging.getLogger("storeds")
_CHUNKS = "\0chunks"  # not a possible field name
_LABEL = "label"
_DATA = {"image", "data", "video"}
_OWN = ("key", "metadata", *_DATA)
_STANDARD = ("_id", "length", "chunkSize", "uploadDate", "md5", "filename", "contentType", "aliases", "metadata")
_OWN_PATHS = ("length", "md5", "metadata")


class GridfsOptions(ColumnOptions, frozen=True):
    """Options of layout ``gridfs``; ``query`` and ``columns`` refer to the documents in ``<bucket>.files``.

    Attributes
    ----------
    revisions : str
        Of several files with one name: the ``newest``, as GridFS itself does, or ``all``.
    labels : str, optional
        Where the labels are: a collection and a dotted path, as in ``"annotations.label"``.
    labels_on : str, optional
        The dotted path of a file's name or ``_id`` there; required with ``labels``.
    """

    revisions: Literal["newest", "all"] = "newest"
    labels: str | None = None
    labels_on: str | None = None


class GridfsLayout(ColumnLayout[GridfsOptions]):
    """Reads the files of a GridFS bucket, all chunks of a batch in one query.

    Its options are `GridfsOptions`.

    Raises
    ------
    ConfigError, FormatError
        No file has a column; the bucket has no chunks; files have no label, or several.
    StoreNotFoundError, UnavailableError
        No such bucket, or no file matches; no server.

    Notes
    -----
    Fields: ``key`` (the name of the file, or its id), ``image`` (or ``video`` if all files are videos, or ``data``),
    ``metadata``, ``label`` if the option ``labels`` is given, and the columns. Reading checks the length of each file, and
    its MD5 if an older driver stored one.
    """

    layout = "gridfs"
    _label: Field

    @property
    def _collection(self) -> str:
        return f"{self._location.collection}.files"

    @property
    def _chunks(self) -> str:
        return f"{self._location.collection}.chunks"

    def _resolve(self) -> dict[str, Array]:
        # docstring inherited
        ids: list[Any] = []
        names: list[str] = []
        dates: list[Any] = []
        for file in self._find(self._query, ("filename", "uploadDate"), ordered=True):
            name = file.get("filename")
            ids.append(file["_id"])
            names.append(name if isinstance(name, str) else str(file["_id"]))
            dates.append(file.get("uploadDate"))
        if not ids:
            raise self._nothing()
        kept = self._newest(names, dates) if self._settings.revisions == "newest" else [*range(len(ids))]
        ids, names = [ids[at] for at in kept], [names[at] for at in kept]
        lists = {IDS: pack_names(map(key_of, ids)), NAMES: pack_names(name.encode() for name in names)}
        if self._settings.labels is not None:
            labels = self._labels(ids, names, self._settings.labels)
            self._label, packed = label_column(labels, names, f"{self._location.url}: labels={self._settings.labels!r}")
            lists[LABELS] = pack_names(packed)
        return lists

    def _labels(self, ids: Sequence[Any], names: Sequence[str], where: str) -> list[Any]:
        """Return the label of each file, by documents of a collection that have its name or its id.

        Raises
        ------
        ConfigError
            No document of the collection has one of the fields.
        FormatError
            A file has no label, or several.
        """
        connection, on = self._connection, self._settings.labels_on
        collection, path = self._label_place(where)
        if on is None:
            raise ConfigError(
                f"{self._location.url}: labels={where!r} needs labels_on=, the field of {collection!r} with a file's name or "
                f"_id; a document there has the fields {listed(paths_of(connection.one(collection)))}"
            )
        places: dict[bytes, list[int]] = {}  # all revisions of a name
        for at, (name, id) in enumerate(zip(names, ids, strict=True)):
            for value in {key_of(name), key_of(id)}:
                places.setdefault(value, []).append(at)
        found: dict[int, Any] = {}
        for batch in batches(places):
            query = {on: {"$in": [id_of(key) for key in batch]}}
            for document in connection.find(collection, query, projection_of((on, path))):
                label, file = pick(document, path), pick(document, on)
                is_one = label is not None and not isinstance(file, (list, Mapping))
                for at in places.get(key_of(file), ()) if is_one else ():
                    if found.setdefault(at, label) != label:
                        raise FormatError(
                            f"{self._location.url}: several documents of {collection!r} have a label for the file "
                            f"{names[at]!r}: {found[at]!r} and {label!r}; keep one of them"
                        )
        if not found:
            connection.check_field(collection, path, "labels")
            connection.check_field(collection, on, "labels_on")
        absent = [name for at, name in enumerate(names) if at not in found]
        if absent:
            raise FormatError(
                f"{self._location.url}: {len(absent)} of {len(names)} files have no label in {where!r}: {listed(absent)}; "
                "add them, or select files that have one with query="
            )
        return [found[at] for at in range(len(names))]

    def _label_place(self, where: str) -> tuple[str, str]:
        """Return the collection that ``collection.field`` names, which may have dots, and the path in it."""
        names = self._connection.names()
        fitting = [name for name in names if where.startswith(f"{name}.")]
        if not fitting:
            raise ConfigError(
                f"{self._location.url}: labels={where!r} names no collection and a field in it, as 'annotations.label' does; "
                f"{suggest(where.partition('.')[0], names, 'collections')}"
            )
        collection = max(fitting, key=len)
        return collection, where[len(collection) + 1 :]

    def _own_collections(self) -> set[str]:
        return {self._collection, self._chunks}

    def _newest(self, names: Sequence[str], dates: Sequence[Any]) -> list[int]:
        newest: dict[str, int] = {}
        for at, name in enumerate(names):
            other = newest.get(name)
            if other is None or dates[other] is None or (dates[at] is not None and dates[at] >= dates[other]):
                newest[name] = at
        if len(newest) < len(names):
            _LOG.warning(
                "%s: %d names have older files, %d in all, which are left out; revisions='all' reads them",
                self._location.url,
                len({name for at, name in enumerate(names) if newest[name] != at}),
                len(names) - len(newest),
            )
        return sorted(newest.values())

    def _describe(self) -> tuple[dict[str, Column], dict[str, Field]]:
        # docstring inherited
        pattern = self._settings.columns
        paths = {} if pattern is None else {name: dotted(place) for name, place in pattern.places}
        for name in paths:
            if name in _OWN or (name == _LABEL and self._settings.labels is not None):
                raise ConfigError(
                    f"{self._location.url}: a column cannot be called {name!r}, which is a field of the layout"
                )
        columns = self._columns_at(paths, {} if pattern is None else dict(pattern.kinds))
        named = {*_STANDARD, *(path.partition(".")[0] for path in paths.values())}
        there = dict.fromkeys(name for file in self._sample(None) for name in file if name not in named)
        self._left += [f"field {name!r} of the files; columns= reads it" for name in there]
        heads = self._heads(self._sampled_keys())
        images = bool(heads) and field_of(heads).kind == "image"
        videos = bool(heads) and all(map(is_video, heads))
        data = {"image": Field("image")} if images else {"video" if videos else "data": Field("bytes")}
        own = {"key": Field("str"), **data, "metadata": Field("json")}
        label = {_LABEL: self._label} if self._settings.labels is not None else {}
        return columns, {**own, **label, **{name: column.field for name, column in columns.items()}}

    def _heads(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the first chunks of some files."""
        if self._chunks not in self._connection.names():
            raise FormatError(f"{self._location.url}: the database has {self._collection!r}, but not {self._chunks!r}")
        query = {"files_id": {"$in": [id_of(key) for key in keys]}, "n": 0}
        found = self._connection.find(self._chunks, query, {"data": True})
        return [bytes(chunk["data"]) for chunk in found if isinstance(chunk.get("data"), bytes)]

    def _fetch(self, keys: Sequence[bytes], fields: Sequence[str]) -> dict[bytes, dict[str, Any]]:
        columns = [self._columns[name].path for name in fields if name in self._columns]
        files = self._documents(keys, [*columns, *_OWN_PATHS])
        if not _DATA.intersection(fields):
            return files
        for each in files.values():
            each[_CHUNKS] = {}
        for batch in batches(files):
            query = {"files_id": {"$in": [id_of(key) for key in batch]}}
            for chunk in self._connection.find(self._chunks, query, projection_of(("files_id", "n", "data"))):
                file = files.get(key_of(chunk["files_id"]))  # a query for 1 finds 1.0 too
                if file is not None and type(number := chunk.get("n")) in (int, Int64):
                    file[_CHUNKS][number] = chunk.get("data")
        return files

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        record: Record = {}
        for name in fields:
            if name in self._columns:
                record[name] = self._columns[name].value(document)
            elif name == "metadata":
                metadata = document.get("metadata")
                record[name] = {} if metadata is None else to_json(metadata)
            else:
                record[name] = _assemble(document)
        return record


def _assemble(file: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file; raises ValueError if chunks are missing or the length or MD5 differs."""
    chunks: Mapping[Any, Any] = file[_CHUNKS]
    absent = next((n for n in range(len(chunks)) if not isinstance(chunks.get(n), bytes)), None)
    if absent is not None:
        raise ValueError(f"chunk {absent} of its file is missing from GridFS")
    data = b"".join(chunks[n] for n in range(len(chunks)))
    if len(data) != file.get("length"):
        raise ValueError(f"its file has {len(data)} bytes in {len(chunks)} chunks instead of {file.get('length')}")
    digest = file.get("md5")
    if isinstance(digest, str) and hashlib.md5(data, usedforsecurity=False).hexdigest() != digest:
        raise ValueError("the MD5 of its file differs from the one stored with it")
    return data
