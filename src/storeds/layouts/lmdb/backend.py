"""LMDB environments that other tools wrote: opens them, finds what they are, and reads records."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import lmdb
import numpy as np
import xxhash

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.base import FileBackend, NativeStoreError, bounded
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.lmdb.backend import LmdbBackend
from storeds.backends.lmdb.files import lmdb_errors
from storeds.errors import ConfigError, FormatError, RecordError
from storeds.layouts.codecs import CODECS, CodecError, inspect, is_pickle
from storeds.layouts.explain import Preset, Reading, undecided
from storeds.layouts.infer import evenly, holds_nan, infer
from storeds.layouts.lmdb.entries import Entries, beginning_of, entries_of, unread_entries
from storeds.layouts.lmdb.environment import EnvironmentOpener, ForeignHandle, ForeignOptions, LmdbReader, key_text
from storeds.layouts.lmdb.presets import (
    PRESETS,
    candidates,
    check_counts,
    counted_plan,
    key_listing,
    listed_keys_of,
    preset_pattern,
    recognise_names,
    recognise_values,
)
from storeds.layouts.lmdb.records import (
    Keys,
    NumberedKeys,
    Plan,
    Records,
    Value,
    key_index,
    matcher,
    unmatched,
    value_at,
)
from storeds.layouts.names import Names
from storeds.layouts.pattern import EVERYTHING, KEY, NameFields, Pattern, Template, check_names, parse_pattern
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.cache import index_path
from storeds.records.canonical_json import canonical_json
from storeds.records.codec import RecordCodec
from storeds.records.columns import TEXT, column_from_records
from storeds.records.fields import fields_to_json, parse_fields
from storeds.records.meta import WRITTEN_BY, Count

__all__ = ["ForeignLmdb"]

_LOG = logging.getLogger("storeds")
_VERSION = 3  # of the index of keys
_RECOGNISED, _SAMPLED = 16, 32  # records that are inspected
_SHOWN = 11
_KEYED = ("keyed", "caffe", "columns")
"""The layouts with the field ``key``."""


class ForeignLmdb(FileBackend[ForeignHandle, EnvironmentOpener]):
    """An LMDB environment that another tool wrote, read by a record pattern.

    Parameters
    ----------
    url : str
        ``lmdb://path`` of an environment: a folder with ``data.mdb``, or one file.
    layout : str, optional
        The name of a preset.
    opened : OpenStore, optional
        The store that `storeds.open_backend` is opening.
    **options
        See `ForeignOptions`.

    Raises
    ------
    ConfigError, FormatError
        Nothing in the environment says for certain what it is; the message shows what it holds, and lines to paste.

    Notes
    -----
    Nothing may write into the store while it is open. The store has no checksums: `Meta.id` depends on the layout, the size
    and modification time of the file, the number of records and the fields.
    """

    pool: ClassVar[HandlePool[Any]] = LmdbBackend.pool
    Options: ClassVar[type[ForeignOptions]] = ForeignOptions
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    _plan: Plan
    _records: Records | None = None  # not pickled
    _unread: list[str] | None = None  # not pickled: it may be long

    def __init__(
        self, url: str | StoreURL, *, layout: str | None = None, opened: OpenStore | None = None, **options: Any
    ) -> None:
        path, in_url = file_path(url)
        self._layout = layout
        super().__init__(EnvironmentOpener(path, parse_options(self.Options, in_url, options, url)), opened)

    # Opening.

    def _is_stale(self, handle: ForeignHandle) -> bool:
        if not isinstance(handle, ForeignHandle) or handle.is_native():
            raise NativeStoreError(
                f"{self._opener.url} is a native store; open it without layout=, columns= and other foreign options"
            )
        return handle.build != handle.build_now()

    def _probe(self, handle: ForeignHandle) -> Meta:
        with lmdb_errors(self._opener.url), _reading(handle, self._opener) as reader:
            settings = reader.settings
            if settings.database is None:
                handle.check_main_database()
            plan, entries, keys = self._decided(reader)
            left = _left(reader, plan, keys)
            try:
                plan, more = _with_values(reader, plan, keys)
            except (ConfigError, ValueError) as error:
                kind = ConfigError if isinstance(error, ConfigError) else FormatError
                raise kind(f"{reader.url}: {error}") from None
            self._plan, self._records = plan, Records(plan, keys)
            self._unread = bounded([*unread_entries(reader, entries), *left, *more])
        attrs = {**entries.attrs, **({"classes": [*plan.names.classes]} if plan.names.classes else {})}
        _, size, modified = handle.build.split("-")
        facts: list[JSON] = [plan.layout, settings.database, size, modified, keys.count]
        id_ = xxhash.xxh3_128_hexdigest(canonical_json([*facts, fields_to_json(plan.fields)]).encode())
        return Meta(id_, handle.build, Count(keys.count), plan.layout, parse_fields(plan.fields), attrs)

    def _decided(self, reader: LmdbReader) -> tuple[Plan, Entries, Keys]:
        """Return how the records are found: by the pattern of the user, by the named preset, or as what is certain."""
        columns, layout = reader.settings.columns, self._layout
        if columns is not None:
            return self._plan_of(reader, "columns", columns)
        if layout is None:
            found = recognise_names(reader)
            if found is None:
                plan, _, keys = self._plan_of(reader, "", parse_pattern({EVERYTHING: "{}"}))
                sampled = _sampled(keys, _RECOGNISED)
                found = recognise_values(reader, plan, sampled)
                if found is None:
                    raise self._undecided(reader, sampled)
            layout, self.recognised = found
            _LOG.info("%s is opened with layout %r: %s", reader.url, *found)
        return self._plan_of(reader, layout, preset_pattern(reader, layout))

    def _plan_of(self, reader: LmdbReader, layout: str, pattern: Pattern) -> tuple[Plan, Entries, Keys]:
        for field, place in pattern.places:
            if place.deep or place.inner or place.file or place.rows:
                raise ConfigError(
                    f"{reader.url}: columns[{field!r}] is {place.text!r}: keys of LMDB have no [], no ** and no files"
                )
        leading = pattern.leading.path
        is_bare = leading.texts == ("", "")
        entries = entries_of(reader, None if is_bare else matcher(leading))
        plan = Plan(
            layout,
            pattern,
            frozenset(entries.keys),
            key=KEY if KEY in pattern.names and layout in _KEYED else "",
            codec=PRESETS[layout].codec if layout in PRESETS else "",
            listed=key_listing(reader, entries) if is_bare and layout != "columns" else "",
        )
        plan = counted_plan(reader, plan, entries)
        if plan.numbers is None:
            state = [reader.handle.build, reader.settings.database, *sorted(key.hex() for key in plan.others)]
            places: JSON = str(leading) if plan.is_all else dict(pattern.to_json())
            index = index_path("lmdb-keys", _VERSION, reader.opener.path, plan.listed, places, *state)
            plan = replace(plan, index=index)
        keys = self._keys_of(plan)
        if layout in PRESETS:
            check_counts(reader, plan, entries, keys.count)
        return plan, entries, keys

    def _keys_of(self, plan: Plan) -> Keys:
        """Return the keys of all records; the first time, this finds them."""
        if plan.index is None:
            return plan.numbers or NumberedKeys(0)
        return Names(plan.index, functools.partial(_scan, self._opener, plan))

    def _undecided(self, reader: LmdbReader, keys: Sequence[bytes]) -> Exception:
        values = [value for key in keys if (value := reader.get(key)) is not None]
        given = reader.settings.changed()

        def opened(arguments: Mapping[str, Any]) -> ForeignLmdb:
            return ForeignLmdb(self._opener.path, **{**given, **arguments})

        why = "" if reader.entries else f"it is empty; {WRITTEN_BY}"
        try:
            for value in values:
                if is_pickle(value):
                    CODECS["pickle"](value)
        except CodecError as error:
            why = f"storeds cannot read its pickles: {error}"
        readings = [
            Reading({**given, **each}, functools.partial(opened, each)) for each in candidates(reader, keys) if values
        ]
        shown = reader.keys(_SHOWN)
        held = (f"{key_text(key)!r} ({beginning_of(reader.get(key) or b'')})" for key in shown)
        return undecided(reader.url, self._opener.path, held, readings, why)

    def unread(self) -> list[str]:
        # docstring inherited
        if self._unread is None:
            with self._lease() as handle:
                self._probe(handle)
        return list(self._unread or ())

    # Reading.

    def _build_of(self, handle: ForeignHandle) -> str:
        return handle.build if isinstance(handle, ForeignHandle) else handle.meta.build

    @contextmanager
    def _leased(self) -> Iterator[tuple[LmdbReader, Records]]:
        with self._lease() as handle, _reading(handle, self._opener) as reader:
            if self._records is None:  # after unpickling
                self._records = Records(self._plan, self._keys_of(self._plan))
            yield reader, self._records

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        codec = (
            self._codec
            if len(fields) == len(self.meta.fields)
            else RecordCodec({name: field for name, field in self.meta.fields.items() if name in fields})
        )
        out: list[Record | RecordError] = []
        while len(out) < len(positions):
            with self._leased() as (reader, records):
                out += self._read_until_error(reader, records, positions[len(out) :], codec)
        return out

    def _read_until_error(
        self, reader: LmdbReader, records: Records, positions: list[int], codec: RecordCodec
    ) -> list[Record | RecordError]:
        """Return records up to the first error of LMDB, and that error; after it, the transaction cannot be used."""
        names = tuple(codec.fields)
        jsons = [name for name, field in codec.fields.items() if field.kind == "json"]
        out: list[Record | RecordError] = []
        for position, key in zip(positions, records.keys.many(positions), strict=True):
            try:
                values = records.read(reader, key, names)
                loose = {name: values[name] for name in jsons if holds_nan(values[name])}
                stored = codec.canonical({name: values[name] for name in names} | dict.fromkeys(loose))
                out.append(codec.to_user_values(stored) | loose)
            except (ValueError, lmdb.Error) as error:
                out.append(self._fault(position, error, {"key": key_text(key)}))
                if isinstance(error, lmdb.Error):
                    break
        return out

    def _column(self, name: str, field: Field) -> Array:
        return self.keys() if name == self._plan.key else column_from_records(self, name)

    def keys(self) -> Array:
        """Return the key of every record as text."""
        with self._leased() as (_, records):
            return np.array([*map(records.key_text, records.keys)], dtype=TEXT)

    def positions(self, keys: Sequence[str], /) -> Array:
        """Return the positions of the records with these keys, in the order of `keys`, as int64.

        Raises
        ------
        ConfigError
            There is no such key.
        """
        wanted, places = set(keys), dict[str, int]()
        with self._leased() as (_, records):
            for at, text in enumerate(map(records.key_text, records.keys)):
                if text in wanted:
                    places.setdefault(text, at)
        for key in keys:
            if key not in places:
                raise ConfigError(f"{self.url} has no record with the key {key!r}")
        return np.array([places[key] for key in keys], np.int64)

    # Information about the store.

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        how: dict[str, JSON] = {"readonly": True, "lock": False, **super().handle_settings()}
        settings = self._opener.settings
        readahead = "by size of values" if settings.readahead is None else settings.readahead
        where: JSON = dict(self._plan.pattern.to_json())
        return {**how, "readahead": readahead, "database": settings.database, "columns": where}

    # Pickling.

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_records": None, "_unread": None}


@contextmanager
def _reading(handle: ForeignHandle, opener: EnvironmentOpener) -> Iterator[LmdbReader]:
    """Begin a transaction on the database that holds the records."""
    if not isinstance(handle, ForeignHandle):
        raise NativeStoreError(f"{opener.url} is a native store; open it without layout=")
    database = handle.database(opener.settings.database)
    with handle.env.begin(db=database, buffers=True) as txn:
        yield LmdbReader(txn, database, opener, handle)


def _scan(opener: EnvironmentOpener, plan: Plan) -> Array:
    """Return the array of the index of keys; other readers may share the environment."""
    owner = OpenStore()
    ref = ForeignLmdb.pool.ref(owner, opener)
    with owner, lmdb_errors(opener.url), ref.lease() as handle, _reading(handle, opener) as reader:
        found = key_index(reader, plan, functools.partial(listed_keys_of, reader, plan) if plan.listed else None)
    ref.close()
    return found


def _sampled(keys: Keys, most: int) -> list[bytes]:
    """Return the keys of some records, evenly distributed."""
    return keys.many(evenly(keys.count, most))


def _left(reader: LmdbReader, plan: Plan, keys: Keys) -> list[str]:
    """Return the entries that no record holds."""
    if plan.is_all:
        return []
    if isinstance(keys, Names):
        return [*keys.facts["unread"]]
    due = len(plan.others) + keys.count * len(plan.pattern.places)
    return unmatched(reader, plan) if reader.entries > due else []


def _with_values(reader: LmdbReader, plan: Plan, keys: Keys) -> tuple[Plan, list[str]]:
    """Return the plan with the fields of the records, by some of them, and what they do not read.

    Raises
    ------
    ValueError, ConfigError
        The records do not agree; an option does not fit.
    """
    if isinstance(keys, Names) and keys.facts is not None:
        kinds = {name: Field(kind) for name, kind in keys.facts["kinds"].items()}
        plan = replace(plan, names=NameFields(kinds, keys.facts["classes"]))
    declared, records = dict(plan.pattern.kinds), Records(plan, keys)
    if not keys.count and plan.layout == "columns":
        shown = ", ".join(repr(key_text(key)) for key in reader.keys(3))
        raise ValueError(f"no key matches the place {plan.pattern.leading.text!r}; it holds keys such as {shown}")
    values, left = list[Value](), list[str]()
    for name, place in plan.pattern.places:
        entries = [records.entry(place.path, key) for key in _sampled(keys, _SAMPLED)]
        samples = [value for key in entries if (value := reader.get(key)) is not None]
        if name == EVERYTHING:
            found, more = _everything(plan, place.path, samples)
            values.append(found)
            left += more
        elif not samples and entries and name not in declared:
            raise ValueError(f"it has no entry {key_text(entries[0])!r}, which columns names for {name!r}")
        else:
            try:
                values.append(value_at(name, declared.get(name), place, samples))
            except ValueError as error:
                raise ValueError(f"the values of {name!r} differ: {error}") from None
    return replace(plan, values=tuple(values)), left


def _everything(plan: Plan, place: Template, samples: Sequence[memoryview]) -> tuple[Value, list[str]]:
    """Return how values are read by their parts, and what is not read."""
    if not samples:
        raise ValueError("it has no record from which to infer the fields")
    codec, contents = _contents(plan.codec, samples)
    found = infer(contents, lists=codec == "json", taken=dict(plan.pattern.places))
    check_names({*plan.pattern.names} - ({KEY} if not plan.key else set()), [name for name, _, _ in found.fields])
    return Value(place, codec, found.fields, found.form), [*found.left]


def _contents(codec: str, samples: Sequence[memoryview]) -> tuple[str, list[Any]]:
    """Return the codec, or without one the first that decodes a value, and the content of the values; raises ValueError."""
    failed = ""
    for name in [codec] if codec else ["pickle", "npz", "json", "msgpack", "datum"]:
        contents = []
        for sample in samples:
            try:
                contents.append(inspect(name, sample))
            except CodecError as error:
                failed = failed or str(error)
        if contents:
            return name, contents
    raise ValueError(f"no record can be read; the first: {failed}")
