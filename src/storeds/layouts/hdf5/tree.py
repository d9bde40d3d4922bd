"""Opens HDF5 files that other tools wrote, and reads their records and columns."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from storeds._utils.file_systems import file_system_of
from storeds._utils.globs import fixed_folder, pattern_of
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path, file_url
from storeds.backends.engine import Engine
from storeds.backends.file_stores import describe_file
from storeds.backends.hdf5.reading import is_native
from storeds.backends.hdf5.stamp import library_errors
from storeds.backends.raw import Fault, Rows, Stacked
from storeds.errors import FormatError, StoredsError, UnavailableError
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.recognising import candidates, entries, preset_pattern, recognise
from storeds.layouts.hdf5.records import Contents, contents_of
from storeds.layouts.pattern import Pattern, parse_pattern
from storeds.layouts.presets import presets_of
from storeds.layouts.tree import FileTreeLocation, Found, Tree, TreeOpener, TreeStore, digest, meta_of
from storeds.protocols import JSON, Array, Description, Meta
from storeds.records.fields import fields_to_json

__all__ = ["FOREIGN_HDF5"]


@dataclass(frozen=True)
class Hdf5Location(FileTreeLocation[ForeignOptions]):
    """A file and the files to which its links lead, or files of a folder. The open files of one store are a handle.

    Parameters
    ----------
    glob : str
        Which files of the folder belong to the store; ``""`` for all that the pattern names.
    """

    engine = "hdf5"
    glob: str = ""

    @property
    def url(self) -> str:
        return file_url(self.engine, self.glob or self.path)

    @property
    def source(self) -> str:
        return self.glob or self.path

    def key(self) -> Hashable:
        # One file may be several stores, with other columns or another group.
        file = super().key() if os.path.isfile(self.path) else (self.path, self.glob)
        return "foreign", self.layout, file, self.settings

    def open(self) -> Hdf5Tree:
        return Hdf5Tree(self)

    def close(self, handle: Hdf5Tree, /) -> None:
        handle.files.close()

    def is_current(self, handle: Hdf5Tree, /) -> bool:
        # docstring inherited; other tools change their files in place
        return not handle.files.changed(handle.files.seen())

    @contextmanager
    def tree(self, handle: Hdf5Tree, /) -> Iterator[Hdf5Tree]:
        # docstring inherited
        with library_errors(self.url):
            yield handle

    def store(self, handle: Hdf5Tree, found: Found, /) -> Hdf5Store:
        # docstring inherited
        with library_errors(self.url):
            contents, build = handle.contents(found)
        return Hdf5Store(self, handle, found, contents, build)


class Hdf5Tree(Tree):
    """The open files of a store. It is the handle of the stores that are read in one way."""

    def __init__(self, location: Hdf5Location) -> None:
        self._location = location
        self.files = Hdf5Files(location.path, location.url, location.settings, location.glob)
        self._found: dict[tuple[str, Pattern], tuple[Contents, Meta]] = {}

    def is_native(self) -> bool:
        # docstring inherited
        return not self.files.is_folder and is_native(self.files.file(self.files.path))

    def recognise(self) -> tuple[str | None, str]:
        # docstring inherited
        return recognise(self.files)

    def entries(self) -> Iterator[str]:
        # docstring inherited
        return entries(self.files)

    def candidates(self) -> Iterator[dict[str, object]]:
        # docstring inherited
        return candidates(self.files)

    def pattern(self, layout: str) -> Pattern:
        # docstring inherited
        return preset_pattern(self.files, layout)

    def find(self, layout: str, pattern: Pattern | None) -> Found:
        # docstring inherited
        assert pattern is not None
        contents, meta = self._contents(layout, pattern)
        return Found(meta, pattern, self.files.own(), unread=tuple(contents.unread()))

    def _contents(self, layout: str, pattern: Pattern) -> tuple[Contents, Meta]:
        # Once for all stores of the handle: reading may open further files, which are no part of the identity.
        if (layout, pattern) not in self._found:
            contents = contents_of(self.files, pattern)
            self._found[layout, pattern] = contents, _meta(self.files.seen(), layout, contents)
        return self._found[layout, pattern]

    def contents(self, found: Found) -> tuple[Contents, str]:
        """Return the fields of a store that was found, and its build now."""
        assert found.pattern is not None
        if self.files.changed(found.plan):  # its contents may not fit the pattern any more
            raise UnavailableError(f"{self.files.url} was replaced while in use or changed; open it again")
        if not self._found:
            self._look_again(found.meta.layout)
        contents, meta = self._contents(found.meta.layout, found.pattern)
        self.files.forget()
        return contents, meta.build

    def _look_again(self, layout: str) -> None:
        """Open the files behind links that recognising the store opened in another process: they are a part of its build."""
        if self._location.columns is None and self._location.layout is None:
            self.recognise()
        if self._location.columns is None:
            self.pattern(layout)


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
    identity: JSON = {**content, "files": [file[3:] for file in seen]}
    build = digest({**content, "files": [file[1:] for file in seen]})
    return meta_of(layout, identity, build, found.count, fields, found.attrs)


class Hdf5Store(TreeStore):
    """The records of open files, by the columns that a pattern found."""

    def __init__(self, location: Hdf5Location, tree: Hdf5Tree, found: Found, contents: Contents, build: str) -> None:
        super().__init__(location, tree, found)
        self._location, self._tree, self._contents, self._build = location, tree, contents, build

    @property
    def build(self) -> str:
        # docstring inherited
        return self._build

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        names = tuple(self.meta.fields) if fields is None else fields
        columns = {name: self._contents.columns[name].read(positions) for name in names}
        return Rows([_record({name: values[at] for name, values in columns.items()}) for at in range(len(positions))])

    def arrays(self, positions: list[int], fields: tuple[str, ...]) -> Rows:
        # docstring inherited
        columns = {name: self._contents.columns[name].arrays(positions) for name in fields}
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
            raise FormatError(f"{self._location.url}: column {name!r} cannot be read: {error}") from None

    def describe(self) -> Description:
        # docstring inherited
        settings = self._location.settings
        columns: JSON = None if settings.columns is None else dict(settings.columns.to_json())
        how = {**structs.asdict(settings), "columns": columns, "where": dict(self._contents.where)}
        path, url = self._location.path, self._location.url
        if self._tree.files.is_folder:
            sizes = [size for *_, size, _ in self._tree.files.seen()]
            return Description(sum(sizes), {"file_system": file_system_of(path)[0], "files": len(sizes), **how})
        return describe_file(path, url, how, [], recognised=self.found.why)


def _record(record: dict[str, Any]) -> dict[str, Any] | Fault:
    """Return a record, or the fault of the first value that is an error."""
    for name, value in record.items():
        if isinstance(value, ValueError):
            key = record.get("key")
            return Fault(f"field {name!r}: {value}", key if isinstance(key, str) else None)
    return record


def _opener(url: str | StoreURL, *, layout: str | None = None, **options: Any) -> TreeOpener:
    path, in_url = file_path(url)
    settings, glob = parse_options(ForeignOptions, in_url, options, url), ""
    if settings.columns is not None and settings.columns.names_files and (found := pattern_of(StoreURL.parse(url))):
        path, glob = fixed_folder(found), found
    return TreeOpener(Hdf5Location(path, settings, layout, glob))


def _is_folder_of_files(url: StoreURL, columns: Any) -> bool:
    """Whether the places of a pattern lie in files of the folder, or among the files, that a URL names."""
    pattern = parse_pattern(columns)
    is_folder = os.path.isdir(url.file) and any(place.file for _, place in pattern.places)
    return is_folder or (pattern.names_files and pattern_of(url) is not None)


FOREIGN_HDF5 = Engine(_opener, presets=presets_of("hdf5"), is_folder_of_files=_is_folder_of_files)
"""Opens HDF5 files of other tools; the options are `ForeignOptions`."""
