"""Opens HDF5 files that other tools wrote, and finds what they are; reads their records and columns."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import xxhash
from msgspec import structs

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.engine import Engine
from storeds.backends.file_stores import FileLocation, describe_file
from storeds.backends.hdf5.reading import is_native
from storeds.backends.hdf5.stamp import library_errors
from storeds.backends.raw import Fault, Opener, RawStore, Rows, Stacked
from storeds.errors import ConfigError, FormatError, StoredsError
from storeds.layouts.explain import Reading, undecided
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.presets import candidates, entries, preset_pattern, recognise
from storeds.layouts.hdf5.records import Contents, contents_of
from storeds.layouts.hdf5.scan import LeftOutError
from storeds.layouts.pattern import Pattern
from storeds.layouts.presets import presets_of
from storeds.protocols import JSON, Array, Description, Meta
from storeds.records.canonical_json import canonical_json
from storeds.records.fields import fields_to_json

__all__ = ["FOREIGN_HDF5"]

_MOST_COLUMNS = 64  # of a line to paste
_LOG = logging.getLogger("storeds")


class ForeignHdf5Store(RawStore):
    """The open files of a store, and its fields. It is its own handle."""

    def __init__(
        self, opener: ForeignHdf5Opener, files: Hdf5Files, layout: str, contents: Contents, why: str | None
    ) -> None:
        self.opener, self.files, self.why = opener, files, why
        self.seen = files.seen()
        self._contents = contents
        self.meta = _meta(self.seen, layout, contents)

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        names = tuple(self.meta.fields) if fields is None else fields
        columns = {name: self._contents.columns[name].read(positions) for name in names}
        return Rows([_record({name: values[at] for name, values in columns.items()}) for at in range(len(positions))])

    def stacked(self, positions: Array, fields: Sequence[str], *, whole: bool) -> Stacked | None:
        # docstring inherited
        found = {name: self._contents.columns[name].stacked(positions) for name in fields}
        arrays = {name: array for name, array in found.items() if array is not None}
        return Stacked(arrays) if len(arrays) == len(found) else None

    def values(self, name: str) -> Array:
        # docstring inherited
        try:
            return self._contents.columns[name].column()
        except ValueError as error:
            if isinstance(error, StoredsError):
                raise
            raise FormatError(f"{self.opener.url}: column {name!r} cannot be read: {error}") from None

    def unread(self) -> Iterable[str]:
        # docstring inherited
        return self._contents.unread()

    def describe(self) -> Description:
        # docstring inherited
        settings = self.opener.settings
        columns: JSON = None if settings.columns is None else dict(settings.columns.to_json())
        how = {**structs.asdict(settings), "columns": columns, "where": dict(self._contents.where)}
        return describe_file(self.opener.path, self.opener.url, how, [], recognised=self.why)


def _record(record: dict[str, Any]) -> dict[str, Any] | Fault:
    """Return a record, or the fault of the first value that is an error."""
    for name, value in record.items():
        if isinstance(value, ValueError):
            key = record.get("key")
            return Fault(f"field {name!r}: {value}", key if isinstance(key, str) else None)
    return record


def _meta(seen: Sequence[Any], layout: str, found: Contents) -> Meta:
    fields = {name: values.field for name, values in found.columns.items()}
    content: dict[str, JSON] = {
        "layout": layout,
        "fields": fields_to_json(fields),
        "attrs": dict(found.attrs),
        "count": found.count,
        "where": dict(found.where),
    }
    # Without checksums, the size and the modification time identify a file's content.
    id_ = _digest({**content, "files": [file[3:] for file in seen]})
    build = _digest({**content, "files": [file[1:] for file in seen]})
    return Meta(id_, build, found.count, layout, fields, found.attrs)


def _digest(content: Mapping[str, JSON]) -> str:
    return xxhash.xxh3_128_hexdigest(canonical_json(dict(content)).encode())


@dataclass(frozen=True)
class ForeignHdf5Opener(FileLocation[ForeignOptions], Opener[ForeignHdf5Store]):
    """Opens a foreign store: with the named layout, by the pattern of its settings, or as what it certainly is."""

    engine = "hdf5"
    layout: str | None = None

    def key(self) -> Hashable:
        # One file may be several stores, with other columns or another group.
        return "foreign", self.layout, super().key(), self.settings

    def open(self) -> ForeignHdf5Store:
        files = Hdf5Files(self.path, self.url, self.settings)
        with ExitStack() as opened, library_errors(self.url):
            opened.callback(files.close)
            self._check_foreign(files)
            layout, pattern, why = self._pattern(files)
            store = ForeignHdf5Store(self, files, layout, self._contents(files, pattern), why)
            opened.pop_all()
        files.listed.clear()
        return store

    def _check_foreign(self, files: Hdf5Files) -> None:
        if is_native(files.file(files.path)):
            raise ConfigError(
                f"{self.url} is a native store; open it without layout=, columns= and other foreign options"
            )

    def _pattern(self, files: Hdf5Files) -> tuple[str, Pattern, str | None]:
        """Return the name of the layout, the pattern, and why it is certain if the user named neither."""
        if self.settings.columns is not None:
            return self.layout or "columns", self.settings.columns, None
        if self.layout is not None:
            return self.layout, preset_pattern(files, self.layout), None
        found = recognise(files)
        if found is None:
            raise undecided(self.url, self.path, entries(files), map(self._reading, candidates(files)))
        _LOG.info("%s is opened with layout %r: %s", self.url, found[0], found[2])
        return found

    def _contents(self, files: Hdf5Files, pattern: Pattern) -> Contents:
        try:
            return contents_of(files, pattern)
        except LeftOutError as error:
            readings = [self._reading({"columns": error.columns})] if len(error.columns) <= _MOST_COLUMNS else []
            raise undecided(self.url, self.path, entries(files), readings, error.why) from None

    def _reading(self, given: Mapping[str, Any]) -> Reading:
        """Return another way to read the store, with the options of this one."""
        arguments = {**self.settings.changed(), **given}
        return Reading(arguments, partial(FOREIGN_HDF5, self.path, **arguments))

    def close(self, handle: ForeignHdf5Store, /) -> None:
        handle.files.close()

    def is_current(self, handle: ForeignHdf5Store, /) -> bool:
        # docstring inherited; other tools change their files in place
        return not handle.files.changed(handle.seen)

    def attach(self, handle: ForeignHdf5Store, /) -> ForeignHdf5Store:
        return handle


def _opener(url: str | StoreURL, *, layout: str | None = None, **options: Any) -> ForeignHdf5Opener:
    path, in_url = file_path(url)
    return ForeignHdf5Opener(path, parse_options(ForeignOptions, in_url, options, url), layout)


FOREIGN_HDF5 = Engine(_opener, presets=presets_of("hdf5"))
"""Opens HDF5 files of other tools; the options are `ForeignOptions`."""
