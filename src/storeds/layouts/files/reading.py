"""Reads the records of a folder or of tar shards, by the list that was made when it was opened."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from storeds._utils.file_systems import file_system_advice, file_system_of
from storeds.backends.raw import Fault, Rows
from storeds.errors import UnavailableError
from storeds.layouts.files.listing import Listed
from storeds.layouts.files.rows import BadItem, File, OpenFiles, Part, Reference
from storeds.layouts.tree import Found, TreeLocation, TreeStore
from storeds.protocols import Array, Description, Record
from storeds.records.codec import RecordCodec
from storeds.records.columns import TEXT

__all__ = ["FilesStore"]

_COLUMNS: dict[str, Any] = {"str": TEXT, "int": np.int64}
_UNREACHABLE = frozenset((errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EMFILE, errno.ENFILE))


class FilesStore(TreeStore):
    """Files of a folder, or members of tar files, read by a list. A file that is replaced in place is read as it is."""

    def __init__(self, location: TreeLocation, handle: object, found: Found, listed: Listed) -> None:
        super().__init__(location, handle, found)
        self._listed, self._place = listed, listed.place

    @property
    def build(self) -> str:
        # docstring inherited
        return self.meta.build if self._listed.state == self.found.plan else self._listed.build

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        declared = self.meta.fields
        codec = RecordCodec({name: declared[name] for name in declared if fields is None or name in fields})
        with OpenFiles() as files:
            return Rows([self._record(row, codec, files) for row in self._listed.rows(positions)])

    def _record(self, row: list[Any], codec: RecordCodec, files: OpenFiles) -> Record | Fault:
        record = self._listed.values(row, codec.fields)
        try:
            for name, value in record.items():
                if isinstance(value, Reference):
                    record[name] = value.read_from(files) if isinstance(value, Part) else value.read()
            return self._listed.finish(record, codec)
        except BadItem as error:
            self._check_reachable(error, value)
            gone = isinstance(value, File) and not os.path.lexists(value.path)
            reason = f"{error}; it was there when the folder was listed" if gone else str(error)
            return Fault(reason, self._key_of(row))
        except ValueError as error:
            return Fault(str(error), self._key_of(row))

    def _check_reachable(self, error: BadItem, value: Any) -> None:
        """Raise UnavailableError if nothing of the store can be read, and not only this file."""
        cause, url = error.__context__, self._place.url
        if isinstance(cause, OSError) and cause.errno in _UNREACHABLE:
            raise UnavailableError(f"{url}: a file {error}") from error
        if isinstance(value, (File, Part)):
            top = os.path.dirname(value.path) if isinstance(value, Part) else self._place.path
            if not os.path.isdir(top):
                raise UnavailableError(
                    f"{url} was there when it was opened and is gone now: no folder at {top}"
                ) from error

    def _key_of(self, row: list[Any]) -> str:
        key: str = row[list(self.meta.fields).index("key")]
        return key

    def values(self, name: str) -> Array | None:
        # docstring inherited
        kind = self.meta.fields[name].kind
        at = list(self.meta.fields).index(name)
        found = [row[at] for row in self._listed.rows(range(self.meta.count))]
        is_listed = kind in _COLUMNS and not isinstance(found[0], list)
        return np.array(found, _COLUMNS[kind]) if is_listed else None

    def keys(self) -> Array | None:
        # docstring inherited
        return self.values("key")

    def unread(self) -> list[str]:
        # docstring inherited
        return [*self._listed.left_out, *self._listed.faults]

    def name(self, position: int) -> str:
        # docstring inherited
        (row,) = self._listed.rows([position])
        return self._listed.shard_of(row)

    def describe(self) -> Description:
        # docstring inherited
        place = self._place
        path = place.path if os.path.lexists(place.path) else os.path.dirname(place.path)
        settings = {"file_system": file_system_of(path)[0], "layout": place.kind, **place.options}
        return Description(
            self._listed.shard_bytes,
            settings,
            advice=file_system_advice(path),
            faults=self._listed.faults,
            recognised=self.found.why,
        )
