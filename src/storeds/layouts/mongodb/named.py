"""Documents found by name: a JSON index holds names and labels, a collection the images."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import xxhash
from pydantic import BeforeValidator

from storeds._utils.locations import redact
from storeds._utils.text import counted
from storeds.backends.base import BackendOptions
from storeds.backends.mongodb.client import ClientFactory
from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.layouts.mongodb.base import Connection, MongodbLayout, batches, listed
from storeds.layouts.mongodb.packing import Packed, pack_ids, pack_items
from storeds.layouts.mongodb.values import Column, infer, pick
from storeds.protocols import Array, Field, Record
from storeds.records.columns import column_of

__all__ = [
    "NamedLayout",
    "NamedOptions",
    "label_column",
    "label_field",
    "label_value",
    "pack_labels",
]


_NAMES, _LABELS = "path_list", "label_list"
_KINDS = ("json", "int", "float", "bool", "str")  # by their numbers in a packed list
_DTYPES = {"int": "<i8", "float": "<f8", "bool": "?"}


def _read_name_index(path: str) -> tuple[list[bytes], list[Any]]:
    """Return the names in UTF-8 in the JSON file at `path`, and their labels.

    Raises
    ------
    StoreNotFoundError
        There is no such file.
    ConfigError
        It is not a JSON object with equally long ``path_list`` and ``label_list``, or a name is not text.
    """
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no index at {path} (from {os.getcwd()})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"index {path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"index {path}: expected an object with {_NAMES} and {_LABELS}, found a {type(found).__name__}"
        )
    for key in (_NAMES, _LABELS):
        if not isinstance(found.get(key), list):
            has = ", ".join(map(repr, list(found)[:10])) or "nothing"
            raise ConfigError(
                f"index {path}: expected the lists {_NAMES} and {_LABELS}; {key} is not a list (the keys are {has})"
            )
    names, labels = found[_NAMES], found[_LABELS]
    if len(names) != len(labels):
        raise ConfigError(
            f"index {path}: {_NAMES} has {len(names)} names and {_LABELS} {len(labels)} labels; each name needs one label"
        )
    if not names:
        raise ConfigError(f"index {path}: {_NAMES} is empty")
    return [_encoded(name, at, path) for at, name in enumerate(names)], labels


def _encoded(name: Any, at: int, path: str) -> bytes:
    try:
        if isinstance(name, str):
            return name.encode()
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"index {path}: entry {at} of {_NAMES} is not text: {name!r}")


def pack_labels(labels: Sequence[Any], path: str) -> Packed:
    """Pack labels: numbers in binary, text as UTF-8, anything else as JSON."""
    kind = "json" if any(label is None for label in labels) else infer(labels)[0].kind
    if kind in _DTYPES:
        try:
            numbers = np.array(labels, dtype=_DTYPES[kind])
        except OverflowError:
            raise ConfigError(f"index {path}: a label is outside the int64 range") from None
        return Packed(_KINDS.index(kind), numbers.itemsize, numbers.view(np.uint8), np.empty(0, np.int64))
    try:
        packed = pack_items([(label if kind == "str" else json.dumps(label)).encode() for label in labels])
    except UnicodeEncodeError as error:
        raise ConfigError(f"index {path}: a label is not valid text: {error}") from None
    packed.kind = _KINDS.index(kind) if kind == "str" else 0
    return packed


def label_field(labels: Packed) -> Field:
    """Return the field of packed labels."""
    kind = _KINDS[labels.kind]
    if kind != "json":
        return Field(kind)  # type: ignore[arg-type]  # one of those above
    values = [json.loads(text) for text in labels]
    return Field("json") if None in values else infer(values)[0]


def label_value(labels: Packed, at: int, field: Field) -> Any:
    """Return one label."""
    item = labels[at]
    if field.kind in _DTYPES:
        return np.frombuffer(item, _DTYPES[field.kind])[0].item()
    if field.kind == "str":
        return item.decode()
    value = json.loads(item)
    return np.array(value, field.dtype) if field.kind == "array" else value


def label_column(labels: Packed, field: Field) -> Array:
    """Return all labels as one new array."""
    if field.kind in _DTYPES:
        return labels.data.view(_DTYPES[field.kind]).copy()
    return column_of(field, [label_value(labels, at, field) for at in range(len(labels))])


_LOG = logging.getLogger("storeds")


def _absolute(path: Any) -> Any:
    # Workers may have another working folder.
    return os.path.abspath(os.path.expanduser(path)) if isinstance(path, (str, os.PathLike)) else path


class NamedOptions(BackendOptions):
    """Options of layout ``named``.

    Attributes
    ----------
    index : str or path
        A JSON file of ``{"path_list": [name, …], "label_list": [label, …]}``.
    name_field, data_field : str
        Dotted paths of the name and the image in a document.
    missing : str
        For names without a document: ``error``, or ``skip`` to leave them out.
    duplicates : str
        For names with several documents: ``error``, or ``first`` to take the document with the lowest ``_id``.
    """

    index: Annotated[str, BeforeValidator(_absolute)]
    name_field: str = "img_name"
    data_field: str = "bson_img"
    missing: Literal["error", "skip"] = "error"
    duplicates: Literal["error", "first"] = "error"


class NamedLayout(MongodbLayout[NamedOptions]):
    """Reads the documents that a JSON index names, in the order of the index.

    Parameters
    ----------
    url : str
        The URL of the collection, as for a native store.
    client_factory : callable, optional
        As for a native store.
    **options
        `NamedOptions`.

    Raises
    ------
    ConfigError
        The index is malformed, or documents have no such fields.
    FormatError
        Names have no document, or several.
    StoreNotFoundError, UnavailableError
        No such collection or index; no server.

    Notes
    -----
    Fields: ``key`` (the name), ``image``, ``label``. Opening resolves names to ``_id``, about 100,000 per query.
    """

    Options: ClassVar[type[BackendOptions]] = NamedOptions
    layout = "named"

    @classmethod
    def guess_can_open(cls, url: str, *, client_factory: ClientFactory | None = None, **options: Any) -> str | None:
        # docstring inherited
        if "index" not in options:  # not a ConfigError, since no given option is wrong
            raise FormatError(f"{redact(url)}: option 'index' is needed")
        return super().guess_can_open(url, client_factory=client_factory, **options)

    @classmethod
    def _guess(cls, connection: Connection, settings: NamedOptions) -> str | None:
        first = next(connection.find(connection.location.collection, {}, limit=1), None)
        if first is None or not isinstance(pick(first, settings.data_field), bytes):
            return None
        if not isinstance(pick(first, settings.name_field), str):
            return None
        return f"its first document has a name in {settings.name_field!r} and bytes in {settings.data_field!r}, and an index is given"

    def _resolve(self) -> list[Packed]:
        listed_names, labels = _read_name_index(self._settings.index)
        found = self._look_up(listed_names)
        absent = [name.decode() for name in dict.fromkeys(listed_names) if name not in found]
        if absent:
            self._report_missing(absent, len(found))
        if len(found) + len(absent) < len(listed_names):
            self._report_repeated(listed_names)
        kept = [at for at, name in enumerate(listed_names) if name in found]
        names = [listed_names[at] for at in kept]
        packed = pack_labels([labels[at] for at in kept], self._settings.index)
        return [pack_ids(found[name] for name in names), pack_items(names), packed]

    def _look_up(self, names: Sequence[bytes]) -> dict[bytes, Any]:
        field, first = self._settings.name_field, self._settings.duplicates == "first"
        found: dict[bytes, Any] = {}
        doubled: dict[str, None] = {}
        for batch in batches(dict.fromkeys(names)):
            query = {field: {"$in": [name.decode() for name in batch]}}
            for document in self._find(query, [field], ordered=first):
                name = pick(document, field)
                if not isinstance(name, str):
                    continue  # a list of names that contains a requested one
                key = name.encode()
                if found.setdefault(key, document["_id"]) != document["_id"]:
                    doubled[name] = None
        if doubled:
            message = f"{self._location.url}: {len(doubled)} names have several documents: {listed(list(doubled))}"
            if not first:
                raise FormatError(f"{message}; duplicates='first' takes the document with the lowest _id")
            _LOG.warning("%s; the document with the lowest _id is taken", message)
        return found

    def _report_missing(self, absent: list[str], found: int) -> None:
        if not found:
            self._connection.check_field(self._collection, self._settings.name_field, "name_field")
        names = found + len(absent)
        message = f"{self._location.url}: {len(absent)} of the {names} names of {self._settings.index} have no document: {listed(absent)}"
        if not found:
            raise FormatError(message)
        if self._settings.missing == "error":
            raise FormatError(f"{message}; missing='skip' leaves them out")
        _LOG.warning("%s; they are left out", message)

    def _report_repeated(self, names: Sequence[bytes]) -> None:
        again = [name.decode() for name, times in Counter(names).items() if times > 1]
        _LOG.warning(
            "%s: %d names occur several times, and are read as often: %s",
            self._settings.index,
            len(again),
            listed(again),
        )

    def _describe(self, lists: Sequence[Packed]) -> tuple[dict[str, Column], dict[str, Field]]:
        path = self._settings.data_field
        sample = self._sample(lists[0], None)
        self._left += self._not_read(sample, len(lists[0]))
        if all(pick(document, path) is None for document in sample):
            self._connection.check_field(self._collection, path, "data_field")
        elif not any(isinstance(pick(document, path), bytes) for document in sample):
            kinds = ", ".join(sorted({type(pick(document, path)).__name__ for document in sample}))
            raise ConfigError(f"{self._location.url}: field {path!r} (data_field) holds {kinds} instead of bytes")
        image = Field("image")
        return {"image": Column(path, image)}, {"key": Field("str"), "image": image, "label": label_field(lists[2])}

    def _not_read(self, sample: Sequence[Mapping[str, Any]], read: int) -> Iterator[str]:
        """Yield the fields of documents that are in no record, and the number of documents that the index does not name."""
        own = {"_id", self._settings.name_field.partition(".")[0], self._settings.data_field.partition(".")[0]}
        for name in dict.fromkeys(name for document in sample for name in document):
            if name not in own:
                yield f"field {name!r}"
        others = self._connection.count(self._collection) - read
        if others > 0:
            yield f"{counted(others, 'document')} that the index does not name"

    def _build(self, table: Array) -> str:
        # `select` uses the index file alone, so the same content is the same build.
        hasher = xxhash.xxh3_128(repr(self._identity).encode())
        hasher.update(table.data)
        return hasher.hexdigest()

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str:
        return self._lists[1][position].decode()

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        record: Record = {}
        for name in fields:
            if name == "key":
                record[name] = self._name(position, document)
            elif name == "label":
                record[name] = label_value(self._lists[2], position, self.meta.fields[name])
            else:
                record[name] = self._columns[name].value(document)
        return record

    def _column(self, name: str, field: Field) -> Array:
        if name == "label":
            return label_column(self._lists[2], field)
        return column_of(field, [key.decode() for key in self._lists[1]])
