"""The base of foreign LMDB layouts: opening a store, reading records by key, checking counts.

A store is read through `storeds.layouts.lmdb.environment.LmdbReader`; `storeds.layouts.lmdb.entries` finds its records.
"""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import lmdb
import numpy as np
import xxhash

from storeds._utils.locations import StoreURL, file_path, file_system, file_system_advice
from storeds.backends.base import HandleBackend, bounded, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.lmdb.backend import LmdbBackend
from storeds.backends.lmdb.files import lmdb_errors
from storeds.backends.readings import Reading, ambiguous
from storeds.errors import ConfigError, FormatError, RecordError
from storeds.layouts.codecs import evenly
from storeds.layouts.lmdb.entries import (
    check_databases,
    conversion_script,
    describe_database,
    entries_of,
    record_keys,
    unread_entries,
)
from storeds.layouts.lmdb.environment import (
    EnvironmentOpener,
    ForeignHandle,
    ForeignOptions,
    LmdbReader,
    key_text,
)
from storeds.layouts.lmdb.keys import IndexedKeys, Keys, iterate
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import RecordCodec
from storeds.records.columns import TEXT, column_from_records, index_path
from storeds.records.fields import Count, canonical_json, fields_to_json

__all__ = ["ForeignLmdb", "LayoutInfo"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class LayoutInfo:
    """What a layout learns about a store while it opens it.

    Attributes
    ----------
    keys : Keys
        The key of each record.
    fields : mapping of str to Field
    attrs : mapping of str to JSON
    how : Any
        What else the layout needs for reading; small and picklable.
    unread : tuple of str
        Short descriptions of entries that are in no record, besides those that describe the database.
    """

    keys: Keys
    fields: Mapping[str, Field]
    attrs: Mapping[str, JSON] = field(default_factory=dict)
    how: Any = None
    unread: tuple[str, ...] = ()


class ForeignLmdb(HandleBackend[ForeignHandle, EnvironmentOpener]):
    """Base of the LMDB layouts: a subclass guesses whether it fits, inspects a store, and reads a record.

    Parameters
    ----------
    url : str or StoreURL
        ``lmdb://path`` of an environment: a folder with ``data.mdb``, or one file.
    opened : OpenStore, optional
        The store that `storeds.open_backend` is opening; all candidates share its environment.
    **options
        See the layout's ``Options``.

    Notes
    -----
    Nothing may write into the store while it is open. The store has no checksums: `Meta.id` depends on the layout, the size
    and modification time of the file, the number of records and the fields.
    """

    pool: ClassVar[HandlePool[Any]] = LmdbBackend.pool
    shares_open_store: ClassVar[bool] = True
    Options: ClassVar[type[ForeignOptions]] = ForeignOptions
    layout: ClassVar[str]
    _info: LayoutInfo

    def __init__(self, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> None:
        super().__init__(self._opener_of(url, options), opened)

    @classmethod
    def _opener_of(cls, url: str | StoreURL, options: Mapping[str, Any]) -> EnvironmentOpener:
        path, in_url = file_path(url)
        return EnvironmentOpener(path, parse_options(cls.Options, in_url, options, url))

    @classmethod
    def guess_can_open(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> str | None:
        """Return in one sentence why the store at `url` looks like this layout, or None.

        Raises
        ------
        StoredsError
            This layout cannot open it with these options; the message says why.
        """
        opener = cls._opener_of(url, options)
        with OpenStore.borrow(opened) as store:
            return cls._with_reader(opener, store, cls._guess_certain)

    @classmethod
    def _guess_certain(cls, reader: LmdbReader) -> str | None:
        """Return the result of `_guess`; raises AmbiguousError where it is uncertain which entries are records."""
        reason = cls._guess(reader)
        if reason is not None:
            cls._check_doubt(reader)
        return reason

    @classmethod
    def _check_doubt(cls, reader: LmdbReader) -> None:
        """Raise AmbiguousError where an entry may be a record or not, with both readings."""
        doubtful = [key_text(key) for key in entries_of(reader).doubtful]
        if not doubtful:
            return
        names, settings = ",".join(doubtful), reader.opener.settings
        readings = [
            Reading(f"exclude={text!r}", why, functools.partial(cls._reopened, reader.opener.path, settings, given))
            for text, why, given in (
                ("", f"{names} is a record like the others", ()),
                (names, f"{names} is not a number, unlike the other keys", tuple(entries_of(reader).doubtful)),
            )
        ]
        raise ambiguous(reader.url, readings)

    @classmethod
    def _reopened(cls, path: str, settings: ForeignOptions, exclude: tuple[bytes, ...]) -> Self:
        backend = cls.__new__(cls)
        HandleBackend.__init__(backend, EnvironmentOpener(path, settings.model_copy(update={"exclude": exclude})))
        return backend

    @classmethod
    def conversion_script(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> str:
        """Return the shortest program that converts the store at `url`, for users who know what its values hold.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        with OpenStore.borrow(opened) as store:
            return cls._with_reader(cls._opener_of(url, options), store, conversion_script)

    @classmethod
    def describe(cls, url: str | StoreURL, *, opened: OpenStore | None = None, **options: Any) -> str:
        """Return in half a sentence what the store at `url` holds, for the error that no layout fits.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        with OpenStore.borrow(opened) as store:
            return cls._with_reader(cls._opener_of(url, options), store, describe_database)

    @classmethod
    def _with_reader(cls, opener: EnvironmentOpener, store: OpenStore, do: Callable[[LmdbReader], _T]) -> _T:
        """Call `do` with a reader of the environment, which stays open until `store` is closed."""
        ref = store.share("environment", lambda: cls.pool.ref(store, opener), lambda ref: ref.close())
        ref.opened = store
        with (
            lmdb_errors(opener.url),
            ref.lease() as handle,
            cls._open_reader(handle, opener, check=True, store=store) as reader,
        ):
            return do(reader)

    @classmethod
    @abstractmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        """Return what `guess_can_open` returns, after reading a few entries."""

    @abstractmethod
    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        """Return keys, fields and attributes of a store that is being opened."""

    @abstractmethod
    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        """Return at least `fields` of the record under `key`; raises ValueError, lmdb.Error.

        Values may be views into the pages of the transaction.
        """

    def _find_keys(self, reader: LmdbReader) -> Iterable[bytes]:
        """Return the keys of all records in order, for a layout with `IndexedKeys`."""
        return record_keys(reader)

    @property
    def _settings(self) -> Any:
        """The options, of type `Options`."""
        return self._opener.settings

    # Opening.

    def _is_stale(self, handle: ForeignHandle) -> bool:
        if not isinstance(handle, ForeignHandle) or handle.is_native():
            raise FormatError(f"{self._opener.url} is a native store; open it without layout=")
        return handle.build != handle.build_now()

    def _probe(self, handle: ForeignHandle) -> Meta:
        with (
            lmdb_errors(self._opener.url),
            self._open_reader(handle, self._opener, check=True, store=self._ref.opened) as reader,
        ):
            self._check_doubt(reader)
            info = self._inspect(reader)
            entries = entries_of(reader)
            unread = bounded([*unread_entries(reader), *info.unread])
            info = self._info = replace(info, attrs={**entries.attrs, **info.attrs}, unread=tuple(unread))
            check_databases(reader, info.keys.count, unread)
        return Meta(self._id(handle, info), handle.build, Count(info.keys.count), self.layout, info.fields, info.attrs)

    def unread(self) -> list[str]:
        # docstring inherited
        return list(self._info.unread)

    def _id(self, handle: ForeignHandle, info: LayoutInfo) -> str:
        _, size, modified = handle.build.split("-")
        facts: list[JSON] = [self.layout, self._settings.database, size, modified, info.keys.count]
        return xxhash.xxh3_128_hexdigest(canonical_json([*facts, fields_to_json(info.fields)]).encode())

    def _index_keys(self, reader: LmdbReader, *more: JSON) -> IndexedKeys:
        others: JSON = [*sorted(key.hex() for key in entries_of(reader).keys)]
        path = index_path(
            "lmdb-keys", self.layout, self._opener.path, reader.build, self._settings.database, others, *more
        )
        return IndexedKeys(path, lambda: self._find_keys(reader))

    def _sample_keys(self, reader: LmdbReader, keys: Keys, at_most: int) -> Iterator[tuple[int, bytes]]:
        """Return some positions, evenly distributed, and their keys."""
        positions = evenly(keys.count, at_most)
        return zip(positions, keys.many(positions, lambda: self._find_keys(reader)), strict=True)

    def _check_count(self, reader: LmdbReader, expected: int, why: str) -> None:
        """Raise FormatError unless the database has as many entries as it should."""
        if reader.entries != expected and not self._settings.partial:
            raise FormatError(
                f"{reader.url} does not match its own count: {why}, so {expected} entries are expected, and it has "
                f"{reader.entries}; copy it again, or open it with partial=True, which reads the entries that it lists"
            )

    # Reading.

    @classmethod
    @contextmanager
    def _open_reader(
        cls, handle: ForeignHandle, opener: EnvironmentOpener, *, check: bool = False, store: OpenStore | None = None
    ) -> Iterator[LmdbReader]:
        """Begin a transaction; readers of one `store` share what they find out."""
        if not isinstance(handle, ForeignHandle):
            raise FormatError(f"{opener.url} is a native store; open it without layout=")
        settings = opener.settings
        if check and settings.database is None:
            handle.check_main_database()
        database = handle.database(settings.database or None)
        name = ("findings", handle.build, settings.database, settings.exclude)
        memo: dict[str, Any] = {} if store is None else store.share(name, dict, dict.clear)
        with handle.env.begin(db=database, buffers=True) as txn:
            yield LmdbReader(txn, database, handle.build, opener, handle, memo)

    def _build_of(self, handle: ForeignHandle) -> str:
        return handle.build if isinstance(handle, ForeignHandle) else handle.meta.build

    @contextmanager
    def _reading(self) -> Iterator[LmdbReader]:
        with self._lease() as handle, self._open_reader(handle, self._opener) as reader:
            yield reader

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        codec = (
            self._codec
            if len(fields) == len(self.meta.fields)
            else RecordCodec({name: field for name, field in self.meta.fields.items() if name in fields})
        )
        with self._reading() as reader:
            asked = [*zip(positions, self._info.keys.many(positions, lambda: self._find_keys(reader)), strict=True)]
            out = self._read_until_error(reader, asked, codec)
        while len(out) < len(asked):
            with self._reading() as reader:
                out += self._read_until_error(reader, asked[len(out) :], codec)
        return out

    def _read_until_error(
        self, reader: LmdbReader, asked: Sequence[tuple[int, bytes]], codec: RecordCodec
    ) -> list[Record | RecordError]:
        """Return records up to the first error of LMDB, and that error; after it, the transaction cannot be used."""
        names = tuple(codec.fields)
        out: list[Record | RecordError] = []
        for position, key in asked:
            try:
                values = self._values(reader, key, names)
                out.append(codec.revive_stored(codec.canonical({name: values[name] for name in names})))
            except (ValueError, lmdb.Error) as error:
                out.append(self._fault(position, error, {"key": key_text(key)}))
                if isinstance(error, lmdb.Error):
                    break
        return out

    def _fetch(self, reader: LmdbReader, key: bytes) -> memoryview:
        """Return the value under a record's key; it is valid until the transaction ends."""
        value = reader.get(key)
        if value is None:
            raise ValueError(f"its key {key_text(key)!r} is missing from the database")
        return value

    def _column(self, name: str, field: Field) -> Array:
        return self.keys() if name == self._key_field else column_from_records(self, name)

    def keys(self) -> Array:
        """Return the key of every record as text."""
        with self._reading() as reader:
            return np.array(list(self._key_texts(reader)), dtype=TEXT)

    def _key_texts(self, reader: LmdbReader) -> Iterator[str]:
        return map(self._key_text, iterate(self._info.keys, lambda: self._find_keys(reader)))

    def _key_text(self, key: bytes) -> str:
        return key_text(key)

    def positions(self, keys: Sequence[str], /) -> Array:
        """Return the positions of the records with these keys, in the order of `keys`, as int64.

        Raises
        ------
        ConfigError
            There is no such key.
        """
        places = dict.fromkeys(keys, -1)
        with self._reading() as reader:
            for position, key in enumerate(self._key_texts(reader)):
                if places.get(key) == -1:
                    places[key] = position
        for key, position in places.items():
            if position < 0:
                raise ConfigError(f"{self.url} has no record with the key {key!r}")
        return np.array([places[key] for key in keys], np.int64)

    # Information about the store.

    def stored_bytes(self) -> int:
        # docstring inherited
        return os.path.getsize(self._opener.data_path)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        how: dict[str, JSON] = {"readonly": True, "lock": False, "file_system": file_system(self._opener.path)}
        readahead = "by size of values" if self._settings.readahead is None else self._settings.readahead
        return {**how, "readahead": readahead, "database": self._settings.database}

    def advice(self) -> list[str]:
        # docstring inherited
        return file_system_advice(self._opener.path)
