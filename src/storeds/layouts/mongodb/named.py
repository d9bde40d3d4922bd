"""Documents found by name: a JSON index holds names and labels, a collection the images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import xxhash

from storeds._utils.text import counted
from storeds.backends.raw import BackendOptions
from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.layouts.mongodb.backend import IDS, LABELS, NAMES, MongodbLayout, batches, key_of, listed
from storeds.layouts.mongodb.documents import Column, label_column, pick
from storeds.layouts.names import pack_names
from storeds.protocols import Array, Field

__all__ = ["NamedLayout", "NamedOptions"]


class _NameIndex(msgspec.Struct):
    path_list: Annotated[list[str], msgspec.Meta(min_length=1)]
    label_list: list[Any]


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
        found = msgspec.json.decode(Path(path).read_bytes(), type=_NameIndex)
        names = [name.encode() for name in found.path_list]
    except FileNotFoundError:
        raise StoreNotFoundError(f"no index at {path} (from {os.getcwd()})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"index {path}: expected a JSON object with the lists path_list, of texts, and label_list: {error}"
        ) from None
    if len(names) != len(found.label_list):
        raise ConfigError(
            f"index {path}: path_list has {len(names)} names and label_list {len(found.label_list)} labels; each name needs one label"
        )
    return names, found.label_list


def _absolute(path: Any) -> Any:
    # Workers may have another working folder.
    return os.path.abspath(os.path.expanduser(path)) if isinstance(path, (str, os.PathLike)) else path


class NamedOptions(BackendOptions, frozen=True, kw_only=True):
    """Options of layout ``named``.

    Attributes
    ----------
    index : str or path
        A JSON file of ``{"path_list": [name, …], "label_list": [label, …]}``.
    name_field, data_field : str
        Dotted paths of the name and the image in a document.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"index": _absolute}

    index: str
    name_field: str = "img_name"
    data_field: str = "bson_img"


class NamedLayout(MongodbLayout[NamedOptions]):
    """Reads the documents that a JSON index names, in the order of the index.

    Its options are `NamedOptions`.

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

    layout = "named"
    _label: Field

    def _resolve(self) -> dict[str, Array]:
        # docstring inherited
        names, labels = _read_name_index(self._settings.index)
        found = self._look_up(names)
        self._label, packed = label_column(labels, names, f"index {self._settings.index}")
        ids = pack_names(key_of(found[name]) for name in names)
        return {IDS: ids, NAMES: pack_names(names), LABELS: pack_names(packed)}

    def _look_up(self, names: Sequence[bytes]) -> dict[bytes, Any]:
        """Return name → ``_id``; raises FormatError unless each name has one document."""
        field = self._settings.name_field
        found: dict[bytes, Any] = {}
        doubled: dict[str, None] = {}
        for batch in batches(dict.fromkeys(names)):
            for document in self._find({field: {"$in": [name.decode() for name in batch]}}, [field]):
                name = pick(document, field)
                # A list of names may contain a requested one.
                if isinstance(name, str) and found.setdefault(name.encode(), document["_id"]) != document["_id"]:
                    doubled[name] = None
        if not found:
            self._connection.check_field(self._collection, field, "name_field")
        absent = [name.decode() for name in dict.fromkeys(names) if name not in found]
        for wrong, what in ((absent, "have no document"), ([*doubled], "have several documents")):
            if wrong:
                count = len(found) + len(absent)
                raise FormatError(
                    f"{self._location.url}: {len(wrong)} of the {count} names of {self._settings.index} {what}: {listed(wrong)}; "
                    "correct the collection, or leave them out of the index"
                )
        return found

    def _describe(self) -> tuple[dict[str, Column], dict[str, Field]]:
        # docstring inherited
        path = self._settings.data_field
        sample = self._sample(None)
        self._left += self._not_read(sample, len(self._lists[IDS]))
        if all(pick(document, path) is None for document in sample):
            self._connection.check_field(self._collection, path, "data_field")
        elif not any(isinstance(pick(document, path), bytes) for document in sample):
            kinds = ", ".join(sorted({type(pick(document, path)).__name__ for document in sample}))
            raise ConfigError(f"{self._location.url}: field {path!r} (data_field) holds {kinds} instead of bytes")
        image = Field("image")
        return {"image": Column(path, image)}, {"key": Field("str"), "image": image, "label": self._label}

    def _not_read(self, sample: Sequence[Mapping[str, Any]], read: int) -> Iterator[str]:
        """Yield the fields of documents that are in no record, and the number of documents that the index does not name."""
        own = {"_id", self._settings.name_field.partition(".")[0], self._settings.data_field.partition(".")[0]}
        for name in dict.fromkeys(name for document in sample for name in document):
            if name not in own:
                yield f"field {name!r}"
        others = self._connection.count(self._collection) - read
        if others > 0:
            yield f"{counted(others, 'document')} that the index does not name"

    def _build(self) -> str:
        # `select` uses the index file alone, so the same content is the same build.
        return xxhash.xxh3_128_hexdigest(f"{self._identity!r} {self._content}".encode())
