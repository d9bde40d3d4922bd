"""HDF5 files that other tools wrote: opens them, finds what they are, and reads records and columns."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import xxhash
from msgspec import structs

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.base import FileBackend, FileOpener, NativeStoreError, bounded
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.hdf5.stamp import system_failure
from storeds.errors import FormatError, RecordError, StoredsError
from storeds.layouts.explain import Preset, Reading, undecided
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.presets import PRESETS, candidates, entries, preset_pattern, recognise
from storeds.layouts.hdf5.records import Contents, contents_of
from storeds.layouts.hdf5.scan import LeftOutError
from storeds.layouts.pattern import Pattern
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.arrays import stack_records, stackable
from storeds.records.canonical_json import canonical_json
from storeds.records.fields import fields_to_json
from storeds.records.meta import Count

__all__ = ["ForeignHdf5", "ForeignOpener", "Hdf5Handle"]

_MOST_COLUMNS = 64  # of a line to paste
_LOG = logging.getLogger("storeds")


@dataclass(frozen=True)
class Hdf5Handle:
    """The open files of a store, and its fields."""

    files: Hdf5Files
    meta: Meta
    contents: Contents
    seen: list[Any]
    why: str | None


@dataclass(frozen=True)
class ForeignOpener(FileOpener[ForeignOptions]):
    """Opens a foreign store: with the named layout, by the pattern of its settings, or as what it certainly is."""

    engine = "hdf5"
    layout: str | None = None

    def key(self, opened: OpenStore | None = None) -> Hashable:
        # One file may be several stores, with other columns or another group.
        return "foreign", self.layout, super().key(opened), self.settings

    def open(self, opened: OpenStore | None = None) -> Hdf5Handle:
        files = Hdf5Files(self.path, self.url, self.settings)
        try:
            self._check_foreign(files)
            layout, pattern, why = self._pattern(files)
            found = self._contents(files, pattern)
            handle = Hdf5Handle(files, self._meta(files, layout, found), found, files.seen(), why)
        except StoredsError:
            files.close()
            raise
        except Exception as error:  # a damaged file makes libhdf5 raise almost anything
            files.close()
            damaged = FormatError(f"{self.url} is damaged: {type(error).__name__}: {error}; copy it again")
            raise system_failure(error, self.url) or damaged from error
        files.listed.clear()
        return handle

    def _check_foreign(self, files: Hdf5Files) -> None:
        root = files.file(files.path).attrs
        if "layout" in root and "meta" in root:
            raise NativeStoreError(
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
        return Reading(arguments, partial(ForeignHdf5, self.path, **arguments))

    def _meta(self, files: Hdf5Files, layout: str, found: Contents) -> Meta:
        fields = {name: values.field for name, values in found.columns.items()}
        seen = files.seen()
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
        return Meta(id_, build, Count(found.count), layout, fields, found.attrs)

    def close(self, handle: Hdf5Handle, /) -> None:
        handle.files.close()

    def abandon_after_fork(self, handle: Hdf5Handle, /) -> None:
        # h5py holds libhdf5's lock during a fork, so no read was running; closing the copy does not affect the parent.
        self.close(handle)


class ForeignHdf5(FileBackend[Hdf5Handle, ForeignOpener]):
    """An HDF5 file that another tool wrote, read by a record pattern.

    Parameters
    ----------
    url : str
        Of one file; fields may lie in others of its folder.
    layout : str, optional
        The name of a preset.
    opened : OpenStore, optional
        The store that `storeds.open_backend` is opening.
    **options
        See `ForeignOptions`.

    Raises
    ------
    ConfigError, FormatError
        Nothing in the file says for certain what it is; the message shows what it holds, and lines to paste.
    """

    Options: ClassVar[type[ForeignOptions]] = ForeignOptions
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    pool: ClassVar[HandlePool[Hdf5Handle]] = HandlePool(limit=128, quiesce=True)
    _unread: list[str] | None = None

    def __init__(
        self, url: str | StoreURL, *, layout: str | None = None, opened: OpenStore | None = None, **options: Any
    ) -> None:
        path, in_url = file_path(url)
        super().__init__(ForeignOpener(path, parse_options(self.Options, in_url, options, url), layout), opened)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_unread": None}  # it may be long, and only the opening process reports it

    def _probe(self, handle: Hdf5Handle) -> Meta:
        # docstring inherited
        self.recognised: str | None = handle.why
        self._unread = bounded(handle.contents.unread())
        return handle.meta

    def unread(self) -> list[str]:
        # docstring inherited
        if self._unread is None:
            with self._lease() as handle:
                self._unread = bounded(handle.contents.unread())
        return list(self._unread)

    def _is_stale(self, handle: Hdf5Handle) -> bool:
        return handle.files.changed(handle.seen)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        with self._lease() as handle:
            columns = {name: handle.contents.columns[name].read(positions) for name in fields}
        out: list[Record | RecordError] = []
        for at, position in enumerate(positions):
            record = {name: values[at] for name, values in columns.items()}
            bad = next(((name, value) for name, value in record.items() if isinstance(value, ValueError)), None)
            out.append(record if bad is None else self._fault(position, f"field {bad[0]!r}: {bad[1]}", record))
        return out

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        names = stackable(self, fields)
        asked = self._check_positions(positions)
        with self._lease() as handle:
            read = {name: handle.contents.columns[name].stacked(asked) for name in names}
        found = {name: array for name, array in read.items() if array is not None}
        # Reading the records one by one reports which one is bad, and why.
        return found if len(found) == len(names) else stack_records(self, asked, names)  # type: ignore[arg-type]  # an array is a sequence

    def _column(self, name: str, field: Field) -> Array:
        with self._lease() as handle:
            try:
                return handle.contents.columns[name].column()
            except ValueError as error:
                if isinstance(error, StoredsError):
                    raise
                raise FormatError(f"{self.url}: column {name!r} cannot be read: {error}") from None

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._lease() as handle:
            where = dict(handle.contents.where)
        settings = self._opener.settings
        columns: JSON = None if settings.columns is None else dict(settings.columns.to_json())
        own = {**structs.asdict(settings), "columns": columns}
        return {**super().handle_settings(), **own, "where": where}


def _digest(content: Mapping[str, JSON]) -> str:
    return xxhash.xxh3_128_hexdigest(canonical_json(dict(content)).encode())
