"""Base of the foreign HDF5 layouts: opens stores, shares their handles, and reads records and columns."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import xxhash

from storeds._utils.locations import StoreURL, file_path, file_system, file_system_advice
from storeds.backends.base import FileOpener, HandleBackend, bounded, check_most_is_read, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.errors import FormatError, RecordError, StoredsError
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files, Unread
from storeds.layouts.hdf5.values import Values
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.columns import stack_records, stackable
from storeds.records.fields import Count, canonical_json, fields_to_json

__all__ = ["Contents", "ForeignHdf5", "ForeignOpener", "Hdf5Handle"]

T = TypeVar("T")


@dataclass(frozen=True)
class Contents:
    """The fields of a store.

    Attributes
    ----------
    columns : mapping of str to Values
        Field → its values, in order.
    count : int
    attrs : mapping of str to JSON
    where : JSON
        Where the fields lie, as a part of the store's id. `storeds info` shows it.
    """

    columns: Mapping[str, Values]
    count: int
    attrs: Mapping[str, JSON] = field(default_factory=dict)
    where: JSON = None


@dataclass(frozen=True)
class Hdf5Handle:
    """The open files of a store, and the fields."""

    files: Hdf5Files
    meta: Meta
    columns: Mapping[str, Values]
    identity: list[JSON]
    where: JSON


@dataclass(frozen=True)
class ForeignOpener(FileOpener[ForeignOptions]):
    """Opens a foreign store of one layout."""

    engine = "hdf5"
    layout: type[ForeignHdf5]

    def key(self, opened: OpenStore | None = None) -> Hashable:
        # One file may be several stores, with other columns or another group.
        return self.layout.layout, super().key(opened), self.settings

    def files(self, opened: OpenStore | None = None) -> Hdf5Files:
        """Return the store's files, which open when they are needed, or are those of `opened`."""
        return Hdf5Files(self.path, self.url, self.settings, opened)

    def open(self, opened: OpenStore | None = None) -> Hdf5Handle:
        files = self.files(opened)
        try:
            files.file(self.path)
            found = self.layout._find(files)
            handle = Hdf5Handle(files, self._meta(files, found), found.columns, files.identity(), found.where)
        except StoredsError:
            files.close()
            raise
        except Exception as error:  # a damaged file makes libhdf5 raise almost anything
            files.close()
            raise _damaged(self.url, error) from error
        files.keep()
        return handle

    def inspect(self, opened: OpenStore | None, function: Callable[[Hdf5Files], T]) -> T:
        """Return what `function` returns for the store's files, which are closed again unless `opened` holds them."""
        with self.files(opened) as files:
            try:
                return function(files)
            except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, StoredsError):
                    raise
                raise _damaged(self.url, error) from error

    def _meta(self, files: Hdf5Files, found: Contents) -> Meta:
        fields = {name: values.field for name, values in found.columns.items()}
        identity = files.identity()
        content: dict[str, JSON] = {
            "layout": self.layout.layout,
            "fields": fields_to_json(fields),
            "attrs": dict(found.attrs),
            "count": found.count,
            "where": found.where,
        }
        # Without checksums, the size and the modification time identify a file's content.
        versions: list[JSON] = [list(file[2:]) for file in identity if isinstance(file, list)]
        id_ = _digest({**content, "files": versions})
        build = _digest({**content, "files": identity})
        return Meta(id_, build, Count(found.count), self.layout.layout, fields, found.attrs)

    def close(self, handle: Hdf5Handle, /) -> None:
        handle.files.close()

    def abandon_after_fork(self, handle: Hdf5Handle, /) -> None:
        # h5py holds libhdf5's lock during a fork, so no read was running; closing the copy does not affect the parent.
        self.close(handle)


class ForeignHdf5(HandleBackend[Hdf5Handle, ForeignOpener]):
    """Base of the foreign HDF5 layouts: a subclass guesses whether it fits, and finds the fields."""

    Options: ClassVar[type[ForeignOptions]] = ForeignOptions
    layout: ClassVar[str]
    shares_open_store = True
    pool: ClassVar[HandlePool[Hdf5Handle]] = HandlePool(limit=128, quiesce=True)
    _unread: list[str] | None = None  # not pickled

    @classmethod
    @abstractmethod
    def _find(cls, files: Hdf5Files) -> Contents:
        """Return the fields of the open store."""

    @classmethod
    @abstractmethod
    def _guess(cls, files: Hdf5Files) -> str | None:
        """Return the evidence for this layout as a clause, or None if there is none."""

    @classmethod
    def _rules_out_others(cls, files: Hdf5Files) -> bool:
        """Whether the evidence for this layout excludes all others in this package."""
        return False

    @classmethod
    def _unread_in(cls, files: Hdf5Files) -> Unread:
        """Return the datasets of the open store that no field holds."""
        return Unread()

    @classmethod
    def _advice(cls, files: Hdf5Files, unread: Unread) -> str:
        """Return which arguments read the unread datasets, and which one leaves them out."""
        return "partial=True leaves out what is listed"

    def __init__(self, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> None:
        super().__init__(self._make_opener(url, options), opened)

    @classmethod
    def _make_opener(cls, url: str | StoreURL, options: Mapping[str, Any]) -> ForeignOpener:
        path, in_url = file_path(url)
        return ForeignOpener(path, parse_options(cls.Options, in_url, options, url), cls)

    @classmethod
    def guess_can_open(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> str | None:
        """Return why the file at `url` looks like this layout, as a clause, or None if it does not.

        Raises
        ------
        ConfigError, FormatError
            It looks like this layout, or an option selects it, but this layout cannot read it.
        """
        _, in_url = file_path(url)
        if not cls.Options.model_fields.keys() >= {*in_url, *options}:
            return None  # an option of another layout selects that one
        opener = cls._make_opener(url, options)
        return opener.inspect(opened, lambda files: cls._guess(files) if _may_be_foreign(files) else None)

    @classmethod
    def rules_out_others(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> bool:
        """Whether no other layout of this package can fit the file at `url`, after this one did."""
        opener = cls._make_opener(url, options)
        return opener.inspect(opened, cls._rules_out_others)

    @classmethod
    def describe(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> str:
        """Return what the file at `url` holds, as half a sentence, for the message that no layout fits.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        opener = cls._make_opener(url, options)
        return opener.inspect(opened, lambda files: files.listing(opener.settings.group))

    @classmethod
    def conversion_script(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> str:
        """Return a short program that converts the file at `url`, for a file that no layout reads.

        Raises
        ------
        StoredsError
            It cannot be opened, or no field can hold any of its datasets.
        """
        from storeds.layouts.hdf5.elements import conversion_script  # only for files that no layout reads

        opener = cls._make_opener(url, options)
        return opener.inspect(opened, lambda files: conversion_script(files, opener.settings.group))

    def _probe(self, handle: Hdf5Handle) -> Meta:
        # docstring inherited
        unread = self._unread_in(handle.files)
        if unread.entries and not self._opener.settings.partial:
            advice = self._advice(handle.files, unread)
            check_most_is_read(self._opener.url, unread.entries, unread.size, unread.total, "bytes", advice)
        self._unread = bounded(unread.entries)
        return handle.meta

    def unread(self) -> list[str]:
        # docstring inherited
        if self._unread is None:
            with self._lease() as handle:
                self._unread = bounded(self._unread_in(handle.files).entries)
        return list(self._unread)

    def _is_stale(self, handle: Hdf5Handle) -> bool:
        try:
            now = handle.files.identity()
        except OSError:
            return True
        return any(file not in now for file in handle.identity)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        with self._lease() as handle:
            columns = {name: handle.columns[name].read(positions) for name in fields}
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
            read = {name: handle.columns[name].stacked(asked) for name in names}
        found = {name: array for name, array in read.items() if array is not None}
        # Reading the records one by one reports which one is bad, and why.
        return found if len(found) == len(names) else stack_records(self, asked, names)  # type: ignore[arg-type]  # an array is a sequence

    def _column(self, name: str, field: Field) -> Array:
        with self._lease() as handle:
            try:
                return handle.columns[name].column()
            except ValueError as error:
                if isinstance(error, StoredsError):
                    raise
                raise FormatError(f"{self.url}: column {name!r} cannot be read: {error}") from None

    def stored_bytes(self) -> int:
        # docstring inherited
        return os.path.getsize(self._opener.path)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._lease() as handle:
            where = handle.where
        return {"file_system": file_system(self._opener.path), **self._opener.settings.model_dump(), "where": where}

    def advice(self) -> list[str]:
        # docstring inherited
        return file_system_advice(self._opener.path)


def _digest(content: Mapping[str, JSON]) -> str:
    return xxhash.xxh3_128_hexdigest(canonical_json(dict(content)).encode())


def _damaged(url: str, error: Exception) -> FormatError:
    return FormatError(f"{url} is damaged: {type(error).__name__}: {error}; copy it again")


def _may_be_foreign(files: Hdf5Files) -> bool:
    """Whether HDF5 opens the file and it is not a native store. Opening it as one reports what is wrong otherwise."""
    try:
        root = files.file(files.path).attrs
        return not ("layout" in root and "meta" in root)
    except (StoredsError, OSError, RuntimeError, ValueError, KeyError, TypeError):
        return False
