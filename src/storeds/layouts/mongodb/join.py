"""Finds the labels of a bucket's files in another collection, by what refers to a file there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.mongodb.base import batches, listed
from storeds.layouts.mongodb.connection import Connection
from storeds.layouts.mongodb.packing import key_of
from storeds.layouts.mongodb.values import paths_of, pick, projection_of

__all__ = ["LabelJoin"]

_SAMPLE = 16
_ANY = 0  # ids of any type, as BSON


class LabelJoin:
    """Labels in ``collection.field``, each in a document that has a file's name or id somewhere.

    Parameters
    ----------
    connection : Connection
    where : str
        ``"annotations.label"``: a collection, a dot, and the label's dotted path.
    on : str or None
        The path that has the name or the id of the file; found out by default.
    bucket : sequence of str
        The bucket's own collections.
    """

    def __init__(self, connection: Connection, where: str, on: str | None, bucket: Sequence[str]) -> None:
        self._connection, self._where = connection, where
        self._url = connection.location.url
        names = [name for name in connection.names() if name not in bucket]
        fitting = [name for name in names if where.startswith(f"{name}.")]
        if not fitting:
            raise ConfigError(
                f"{self._url}: labels={where!r} names no collection and a field in it, as 'annotations.label' does; "
                f"{suggest(where.partition('.')[0], names, 'collections')}"
            )
        self.collection = max(fitting, key=len)
        self._path = where[len(self.collection) + 1 :]
        self._on = on

    def find(self, ids: Sequence[Any], names: Sequence[str]) -> dict[int, Any]:
        """Return file's place → label, for those files that have one.

        Raises
        ------
        ConfigError
            Nothing in the other collection refers to the files, or several fields do.
        FormatError
            A file has several labels.
        """
        by_name, by_id = (
            {name: at for at, name in enumerate(names)},
            {key_of(_ANY, id): at for at, id in enumerate(ids)},
        )

        def place_of(value: Any) -> int | None:
            if isinstance(value, str) and value in by_name:
                return by_name[value]
            return None if value is None or isinstance(value, (list, Mapping)) else by_id.get(key_of(_ANY, value))

        on = self._on or self._referring(place_of)
        found: dict[int, Any] = {}
        values: list[Any] = [*names, *ids] if self._on else list(names if self._refers_by_name else ids)
        for batch in _batches(values):
            for document in self._connection.find(
                self.collection, {on: {"$in": batch}}, projection_of((on, self._path))
            ):
                at, label = place_of(pick(document, on)), pick(document, self._path)
                if at is None or label is None:
                    continue
                if found.setdefault(at, label) != label:
                    raise FormatError(
                        f"{self._url}: several documents of {self.collection!r} have a label for the file {names[at]!r}: "
                        f"{found[at]!r} and {label!r}; keep one of them, or name another field with labels="
                    )
        if not found:
            self._refuse_path()
        return found

    def _referring(self, place_of: Callable[[Any], int | None]) -> str:
        """Return the field whose value is a file's name or id in every document of a sample."""
        sample = list(self._connection.find(self.collection, {}, limit=_SAMPLE))
        paths = list(dict.fromkeys(path for document in sample for path in paths_of(document)))
        fitting = [path for path in paths if all(place_of(pick(document, path)) is not None for document in sample)]
        if len(fitting) != 1:
            several = f"several of its fields do, choose one: {', '.join(f'labels_on={path!r}' for path in fitting)}"
            none = f"none of its fields {listed(paths)} has the name or the id of a file in all of {len(sample)} documents; labels_on= names it"
            raise ConfigError(
                f"{self._url}: labels={self._where!r}: it is unclear which field of {self.collection!r} refers to the files: {several if fitting else none}"
            )
        (path,) = fitting
        self._refers_by_name = all(isinstance(pick(document, path), str) for document in sample)
        return path

    def _refuse_path(self) -> None:
        """Raise ConfigError if no document has something at the label's path."""
        if next(self._connection.find(self.collection, {self._path: {"$exists": True}}, limit=1), None) is None:
            one = next(self._connection.find(self.collection, {}, limit=1), {})
            there = suggest(self._path, paths_of(one), "fields of a document there")
            raise ConfigError(f"{self._url}: no document of {self.collection!r} has the field {self._path!r}; {there}")


def _batches(values: Sequence[Any]) -> list[list[Any]]:
    """Cut values into lists that one command can hold."""
    keys = {key_of(_ANY, value): value for value in values}
    return [[keys[key] for key in batch] for batch in batches(keys)]
