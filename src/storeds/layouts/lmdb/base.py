"""What every foreign LMDB layout does alike: opening, reading records by key, counting, saying whether it fits."""

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

from storeds._utils.locations import file_path, file_system, file_system_advice
from storeds.backends.base import HandleBackend, parse_options
from storeds.backends.handles import HandlePool
from storeds.backends.lmdb.backend import LmdbBackend
from storeds.backends.readings import AmbiguousError, Reading, ambiguous, bounded
from storeds.errors import ConfigError, FormatError, RecordError
from storeds.layouts.lmdb.description import by_hand, check_databases, described, unread_entries
from storeds.layouts.lmdb.entries import entries_of, record_keys
from storeds.layouts.lmdb.environment import (
    EnvironmentOpener,
    ForeignHandle,
    ForeignOptions,
    Look,
    damage_is_format_error,
    key_text,
)
from storeds.layouts.lmdb.keys import IndexedKeys, Keys, iterate
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import RecordCodec, canonical_json
from storeds.records.columns import TEXT, column_from_records, index_path
from storeds.records.fields import fields_to_json
from storeds.records.meta import Count

__all__ = ["ForeignLmdb", "Survey"]

_Told = TypeVar("_Told")


@dataclass(frozen=True)
class Survey:
    """What a layout finds out about a store when it is opened.

    Attributes
    ----------
    keys : Keys
        The key of each record.
    fields : mapping of str to Field
    attrs : mapping of str to JSON
    how : Any
        What else the layout needs for reading; small and picklable.
    unread : tuple of str
        What no record holds, beside what describes the database; short.
    """

    keys: Keys
    fields: Mapping[str, Field]
    attrs: Mapping[str, JSON] = field(default_factory=dict)
    how: Any = None
    unread: tuple[str, ...] = ()


class ForeignLmdb(HandleBackend[ForeignHandle, EnvironmentOpener]):
    """Base of the layouts: a subclass says what it sees (`_looks`), what there is (`_survey`), and reads a record.

    Parameters
    ----------
    url : str
        ``lmdb://path`` of an environment: a folder with ``data.mdb``, or one file.
    **options
        See the layout's ``Options``.

    Notes
    -----
    Nothing may write into the store meanwhile. There are no checksums in it: `Meta.id` is made of the layout, the file's
    size and modification time, the number of records and the fields.
    """

    pool: ClassVar[HandlePool[Any]] = LmdbBackend.pool
    Options: ClassVar[type[ForeignOptions]] = ForeignOptions
    layout: ClassVar[str]
    _survey_found: Survey

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(self._opener_of(url, options))

    @classmethod
    def _opener_of(cls, url: str, options: Mapping[str, Any]) -> EnvironmentOpener:
        path, in_url = file_path(url)
        return EnvironmentOpener(path, parse_options(cls.Options, in_url, options, url))

    @classmethod
    def guess_can_open(cls, url: str, **options: Any) -> str | None:
        """Return what makes the store at `url` look like one of this layout, in one sentence, or None.

        Raises
        ------
        StoredsError
            It cannot be opened with this layout and these options; the message says why.
        """
        opener = cls._opener_of(url, options)
        try:
            return cls._glance(opener, cls._settled)
        except AmbiguousError:
            raise
        except ConfigError as error:  # it may be open already, the other way round
            other = opener.settings.model_copy(update={"readahead": not opener.settings.readahead})
            try:
                return cls._glance(EnvironmentOpener(opener.path, other), cls._settled)
            except ConfigError:
                raise error from None

    @classmethod
    def _settled(cls, look: Look) -> str | None:
        """Return what `_looks` does, unless it is uncertain which entries are records."""
        seen = cls._looks(look)
        if seen is not None:
            cls._check_doubt(look)
        return seen

    @classmethod
    def _check_doubt(cls, look: Look) -> None:
        """Raise AmbiguousError where an entry may be a record or not, with both readings."""
        doubtful = [key_text(key) for key in entries_of(look).doubtful]
        if not doubtful:
            return
        names, settings = ",".join(doubtful), look.opener.settings
        readings = [
            Reading(f"exclude={text!r}", why, functools.partial(cls._reopened, look.opener.path, settings, given))
            for text, why, given in (
                ("", f"{names} is a record like the others", ()),
                (names, f"{names} is no number, as the other keys are", tuple(entries_of(look).doubtful)),
            )
        ]
        raise ambiguous(look.url, readings)

    @classmethod
    def _reopened(cls, path: str, settings: ForeignOptions, exclude: tuple[bytes, ...]) -> Self:
        backend = cls.__new__(cls)
        HandleBackend.__init__(backend, EnvironmentOpener(path, settings.model_copy(update={"exclude": exclude})))
        return backend

    @classmethod
    def by_hand(cls, url: str, **options: Any) -> str:
        """Return the shortest program that would convert the store at `url`, for a user who knows what its values hold.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        return cls._glance(cls._opener_of(url, options), by_hand)

    @classmethod
    def glimpse(cls, url: str, **options: Any) -> str:
        """Return what lies in the store at `url`, in half a sentence, for who has to find out why no layout fits.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        return cls._glance(cls._opener_of(url, options), described)

    @classmethod
    def _glance(cls, opener: EnvironmentOpener, told: Callable[[Look], _Told]) -> _Told:
        ref = cls.pool.ref(opener, opener)
        try:
            with (
                damage_is_format_error(opener.url),
                ref.lease() as handle,
                cls._look(handle, opener, check=True) as look,
            ):
                return told(look)
        finally:
            ref.close()

    @classmethod
    @abstractmethod
    def _looks(cls, look: Look) -> str | None:
        """Return what was seen, as `guess_can_open` does, after a few gets."""

    @abstractmethod
    def _survey(self, look: Look) -> Survey:
        """Find out about a store that is being opened."""

    @abstractmethod
    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        """Return at least `fields` of the record under `key`; values may lie in the transaction. Raises ValueError, lmdb.Error."""

    def _find_keys(self, look: Look) -> Iterable[bytes]:
        """Return the keys of all records in order, for a layout with `IndexedKeys`."""
        return record_keys(look)

    # Opening.

    def _is_stale(self, handle: ForeignHandle) -> bool:
        if not isinstance(handle, ForeignHandle) or handle.is_native():
            raise FormatError(f"{self._opener.url} is a native store; open it without layout=")
        return handle.build != handle.build_now()

    def _probe(self, handle: ForeignHandle) -> Meta:
        with damage_is_format_error(self._opener.url), self._look(handle, self._opener, check=True) as look:
            self._check_doubt(look)
            found = self._survey(look)
            entries = entries_of(look)
            unread = bounded([*unread_entries(look), *found.unread])
            found = self._survey_found = replace(found, attrs={**entries.attrs, **found.attrs}, unread=tuple(unread))
            check_databases(look, found.keys.count, unread)
        return Meta(
            self._id(handle, found), handle.build, Count(found.keys.count), self.layout, found.fields, found.attrs
        )

    def unread(self) -> list[str]:
        # docstring inherited
        return list(self._survey_found.unread)

    def _id(self, handle: ForeignHandle, found: Survey) -> str:
        _, size, modified = handle.build.split("-")
        facts: list[JSON] = [self.layout, self._opener.settings.database, size, modified, found.keys.count]
        return xxhash.xxh3_128_hexdigest(canonical_json([*facts, fields_to_json(found.fields)]).encode())

    def _index_keys(self, look: Look, *more: JSON) -> IndexedKeys:
        others: JSON = [*sorted(key.hex() for key in entries_of(look).keys)]
        path = index_path(
            "lmdb-keys", self.layout, self._opener.path, look.build, self._opener.settings.database, others, *more
        )
        return IndexedKeys(path, lambda: self._find_keys(look))

    def _spread_keys(self, look: Look, keys: Keys, at_most: int) -> Iterator[tuple[int, bytes]]:
        """Return some positions, spread evenly, and their keys."""
        shown = min(at_most, keys.count)
        positions = [n * (keys.count - 1) // max(1, shown - 1) for n in range(shown)]
        return zip(positions, keys.many(positions, lambda: self._find_keys(look)), strict=True)

    def _check_count(self, look: Look, expected: int, why: str) -> None:
        """Raise FormatError unless the database has as many entries as it should."""
        if look.entries != expected and not self._opener.settings.partial:
            raise FormatError(
                f"{look.url} is not whole: {why}, so {expected} entries are due, and {look.entries} are there; copy it again, or "
                "open it with partial=True, which reads what it lists"
            )

    # Reading.

    @classmethod
    @contextmanager
    def _look(cls, handle: ForeignHandle, opener: EnvironmentOpener, *, check: bool = False) -> Iterator[Look]:
        if not isinstance(handle, ForeignHandle):
            raise FormatError(f"{opener.url} is a native store; open it without layout=")
        if check and opener.settings.database is None:
            handle.check_main_database()
        database = handle.database(opener.settings.database or None)
        with handle.env.begin(db=database, buffers=True) as txn:
            yield Look(txn, database, handle.build, opener, handle)

    def _build_of(self, handle: ForeignHandle) -> str:
        return handle.build if isinstance(handle, ForeignHandle) else handle.meta.build

    @contextmanager
    def _reading(self) -> Iterator[Look]:
        with self._lease() as handle, self._look(handle, self._opener) as look:
            yield look

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        codec = self._codec if len(fields) == len(self.meta.fields) else _codec_of(self.meta.fields, fields)
        with self._reading() as look:
            asked = [
                *zip(positions, self._survey_found.keys.many(positions, lambda: self._find_keys(look)), strict=True)
            ]
            out = self._read_until_error(look, asked, codec)
        while len(out) < len(asked):
            with self._reading() as look:
                out += self._read_until_error(look, asked[len(out) :], codec)
        return out

    def _read_until_error(
        self, look: Look, asked: Sequence[tuple[int, bytes]], codec: RecordCodec
    ) -> list[Record | RecordError]:
        """Return records as far as LMDB raises no error, after which a transaction gives nothing else, and that error."""
        names = tuple(codec.fields)
        out: list[Record | RecordError] = []
        for position, key in asked:
            try:
                values = self._values(look, key, names)
                out.append(codec.revive_stored(codec.canonical({name: values[name] for name in names})))
            except (ValueError, lmdb.Error) as error:
                out.append(self._fault(position, error, {"key": key_text(key)}))
                if isinstance(error, lmdb.Error):
                    break
        return out

    def _fetch(self, look: Look, key: bytes) -> memoryview:
        """Return the value under a record's key, valid as long as the transaction."""
        value = look.get(key)
        if value is None:
            raise ValueError(f"its key {key_text(key)!r} is missing from the database")
        return value

    def _column(self, name: str, field: Field) -> Array:
        return self.keys() if name == self._key_field else column_from_records(self, name)

    def keys(self) -> Array:
        """Return the key of every record as text."""
        with self._reading() as look:
            return np.array(list(self._key_texts(look)), dtype=TEXT)

    def _key_texts(self, look: Look) -> Iterator[str]:
        return map(self._key_text, iterate(self._survey_found.keys, lambda: self._find_keys(look)))

    def _key_text(self, key: bytes) -> str:
        return key_text(key)

    def positions(self, keys: Sequence[str], /) -> Array:
        """Return the positions, int64, of the records with these keys, in the order asked for.

        Raises
        ------
        ConfigError
            There is no such key.
        """
        places = dict.fromkeys(keys, -1)
        with self._reading() as look:
            for position, key in enumerate(self._key_texts(look)):
                if places.get(key) == -1:
                    places[key] = position
        for key, position in places.items():
            if position < 0:
                raise ConfigError(f"{self.url} has no record with the key {key!r}")
        return np.array([places[key] for key in keys], np.int64)

    # What an engine says about itself.

    def stored_bytes(self) -> int:
        # docstring inherited
        return os.path.getsize(self._opener.data_path)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        how: dict[str, JSON] = {"readonly": True, "lock": False, "file_system": file_system(self._opener.path)}
        return {**how, "readahead": self._opener.settings.readahead, "database": self._opener.settings.database}

    def advice(self) -> list[str]:
        # docstring inherited
        return file_system_advice(self._opener.path)

    # Pickling.

    def _recipe(self) -> tuple[Any, ...]:
        return self._opener, self.meta, self._survey_found

    @classmethod
    def _restore(cls, *recipe: Any) -> Self:
        opener, meta, survey = recipe
        backend = super()._restore(opener, meta)
        backend._survey_found = survey
        return backend


def _codec_of(fields: Mapping[str, Field], wanted: tuple[str, ...]) -> RecordCodec:
    return RecordCodec({name: fields[name] for name in fields if name in wanted})
