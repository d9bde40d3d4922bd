"""Finds out what an LMDB environment of another tool is, and opens it: by a pattern, as a preset, or as what is certain."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.engine import Engine
from storeds.backends.handles import POOL
from storeds.backends.lmdb.files import Environment, lmdb_errors
from storeds.backends.lmdb.reading import is_native
from storeds.backends.unread import bounded
from storeds.errors import ConfigError, FormatError
from storeds.layouts.explain import Reading, undecided
from storeds.layouts.lmdb.entries import Entries, beginning_of, entries_of, unread_entries
from storeds.layouts.lmdb.environment import (
    EnvironmentLocation,
    ForeignOptions,
    LmdbReader,
    check_main_database,
    key_text,
)
from storeds.layouts.lmdb.presets import (
    candidates,
    check_counts,
    counted_plan,
    key_listing,
    preset_pattern,
    recognise_names,
    recognise_values,
)
from storeds.layouts.lmdb.reading import ForeignLmdbOpener, keys_of, reading, sampled
from storeds.layouts.lmdb.records import Keys, Plan, Records, Value, matcher, unmatched, value_at
from storeds.layouts.names import Names
from storeds.layouts.pattern import EVERYTHING, KEY, NameFields, Pattern, Template, check_names, parse_pattern
from storeds.layouts.presets import PRESETS, presets_of
from storeds.protocols import JSON, Backend, Field, Meta
from storeds.records.cache import index_path
from storeds.records.canonical_json import canonical_json
from storeds.records.fields import fields_to_json, parse_fields
from storeds.records.meta import WRITTEN_BY
from storeds.values.codecs import CODECS, CodecError, inspect, is_pickle
from storeds.values.infer import infer

__all__ = ["FOREIGN_LMDB"]

_LOG = logging.getLogger("storeds")
_VERSION = 3  # of the index of keys
_RECOGNISED, _SAMPLED = 16, 32  # records that are inspected
_SHOWN = 11
_KEYED = ("keyed", "caffe", "columns")
"""The layouts with the field ``key``."""


@dataclass(frozen=True)
class _Finder:
    """Finds how the records of one environment are read.

    Parameters
    ----------
    location : EnvironmentLocation
    layout : str or None
        The name of a preset, if the user gives one.
    """

    location: EnvironmentLocation
    layout: str | None

    def opener(self) -> ForeignLmdbOpener:
        """Return what opens the environment with the plan that was found.

        Raises
        ------
        ConfigError, FormatError
            Nothing in the environment says for certain what it is; the message shows what it holds, and lines to paste.
        """
        location = self.location
        with POOL.leased(location) as environment:
            if is_native(environment, location.url):
                raise ConfigError(
                    f"{location.url} is a native store; open it without layout=, columns= and other foreign options"
                )
            if not location.is_current(environment):
                raise ConfigError(
                    f"{location.url} was changed while this process has it open; close every backend of it first"
                )
            with lmdb_errors(location.url):
                if location.settings.database is None:
                    check_main_database(environment, location.url)
                with reading(environment, location) as reader:
                    return self._found(environment, reader)

    def _found(self, environment: Environment, reader: LmdbReader) -> ForeignLmdbOpener:
        plan, entries, keys, why = self._decided(reader)
        left = _left(reader, plan, keys)
        try:
            plan, more = _with_values(reader, plan, keys)
        except (ConfigError, ValueError) as error:
            kind = ConfigError if isinstance(error, ConfigError) else FormatError
            raise kind(f"{reader.url}: {error}") from None
        attrs = {**entries.attrs, **({"classes": [*plan.names.classes]} if plan.names.classes else {})}
        _, size, modified = environment.build.split("-")
        facts: list[JSON] = [plan.layout, reader.settings.database, size, modified, keys.count]
        id_ = xxhash.xxh3_128_hexdigest(canonical_json([*facts, fields_to_json(plan.fields)]).encode())
        meta = Meta(id_, environment.build, keys.count, plan.layout, parse_fields(plan.fields), attrs)
        unread = bounded([*unread_entries(reader, entries), *left, *more])
        return ForeignLmdbOpener(reader.opener.path, reader.settings, plan, meta, _find_unread, why, tuple(unread))

    def _decided(self, reader: LmdbReader) -> tuple[Plan, Entries, Keys, str | None]:
        """Return how the records are found: by the pattern of the user, by the named preset, or as what is certain."""
        columns, layout, why = reader.settings.columns, self.layout, None
        if columns is not None:
            return *self._plan_of(reader, "columns", columns), None
        if layout is None:
            found = recognise_names(reader)
            if found is None:
                plan, _, keys = self._plan_of(reader, "", parse_pattern({EVERYTHING: "{}"}))
                seen = sampled(keys, _RECOGNISED)
                found = recognise_values(reader, plan, seen)
                if found is None:
                    raise self._undecided(reader, seen)
            layout, why = found
            _LOG.info("%s is opened with layout %r: %s", reader.url, *found)
        return *self._plan_of(reader, layout, preset_pattern(reader, layout)), why

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
            state = [reader.environment.build, reader.settings.database, *sorted(key.hex() for key in plan.others)]
            places: JSON = str(leading) if plan.is_all else dict(pattern.to_json())
            index = index_path("lmdb-keys", _VERSION, reader.opener.path, plan.listed, places, *state)
            plan = replace(plan, index=index)
        keys = keys_of(self.location, plan)
        if layout in PRESETS:
            check_counts(reader, plan, entries, keys.count)
        return plan, entries, keys

    def _undecided(self, reader: LmdbReader, keys: Sequence[bytes]) -> Exception:
        values = [value for key in keys if (value := reader.get(key)) is not None]
        given = reader.settings.changed()

        def opened(arguments: Mapping[str, Any]) -> Backend:
            return FOREIGN_LMDB(self.location.path, **{**given, **arguments})

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
        return undecided(reader.url, self.location.path, held, readings, why)


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
        entries = [records.entry(place.path, key) for key in sampled(keys, _SAMPLED)]
        samples = [value for key in entries if (value := reader.get(key)) is not None]
        taken = {*dict(plan.pattern.places), *(part.name for value in values for part in value.parts)}
        if name == EVERYTHING:
            found, more = _everything(plan, place.path, samples, taken)
            values.append(found)
            left += more
        elif not samples and entries and name not in declared:
            raise ValueError(f"it has no entry {key_text(entries[0])!r}, which columns names for {name!r}")
        else:
            try:
                values.append(value_at(name, declared.get(name), place, samples, {*taken, *plan.pattern.names}))
            except ValueError as error:
                raise ValueError(f"the values of {name!r} differ: {error}") from None
    return replace(plan, values=tuple(values)), left


def _everything(
    plan: Plan, place: Template, samples: Sequence[memoryview], taken: Collection[str]
) -> tuple[Value, list[str]]:
    """Return how values are read by their parts, and what is not read."""
    if not samples:
        raise ValueError("it has no record from which to infer the fields")
    codec, contents = _contents(plan.codec, samples)
    found = infer(contents, taken=taken)
    if found.reads_little:
        columns = {"value": {"path": "{}", "kind": "bytes"}}
        raise ValueError(f"{'; '.join(found.left[:6])}; columns={columns!r} reads the bytes of each value")
    check_names({*plan.pattern.names} - ({KEY} if not plan.key else set()), [part.name for part in found.parts])
    return Value(place, codec, found.parts, found.form), [*found.left]


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


def _find_unread(environment: Environment, opener: ForeignLmdbOpener) -> tuple[str, ...]:
    """Return the parts of an open environment that no record holds."""
    found = _Finder(opener, opener.plan.layout if opener.settings.columns is None else None)
    with lmdb_errors(opener.url), reading(environment, opener) as reader:
        return found._found(environment, reader).unread or ()


def _opener(url: str | StoreURL, *, layout: str | None = None, **options: Any) -> ForeignLmdbOpener:
    path, in_url = file_path(url)
    location = EnvironmentLocation(path, parse_options(ForeignOptions, in_url, options, url))
    return _Finder(location, layout).opener()


FOREIGN_LMDB = Engine(_opener, presets=presets_of("lmdb"))
"""Opens environments of other tools; the options are `ForeignOptions`."""
