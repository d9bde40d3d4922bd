"""Finds out what an LMDB environment of another tool is, and which records it holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.engine import Engine
from storeds.backends.lmdb.files import Environment, lmdb_errors
from storeds.backends.lmdb.reading import is_native
from storeds.backends.unread import bounded
from storeds.errors import ConfigError, FormatError
from storeds.layouts.lmdb.entries import Entries, beginning_of, entries_of, unread_entries
from storeds.layouts.lmdb.environment import (
    EnvironmentLocation,
    ForeignOptions,
    LmdbReader,
    check_main_database,
    key_text,
    reading,
)
from storeds.layouts.lmdb.reading import ForeignLmdbStore, keys_of, sampled
from storeds.layouts.lmdb.recognising import (
    candidates,
    check_counts,
    counted_plan,
    key_listing,
    preset_pattern,
    recognise_names,
    recognise_values,
)
from storeds.layouts.lmdb.records import Keys, Plan, Records, Value, matcher, unmatched, value_at
from storeds.layouts.names import Names
from storeds.layouts.pattern import EVERYTHING, KEY, NameFields, Pattern, Template, check_names, parse_pattern
from storeds.layouts.presets import PRESETS, presets_of
from storeds.layouts.tree import Found, Tree, TreeOpener, meta_of
from storeds.protocols import JSON, Field
from storeds.records.cache import index_path
from storeds.records.fields import fields_to_json, parse_fields
from storeds.records.meta import WRITTEN_BY
from storeds.values.codecs import CODECS, CodecError, inspect, is_pickle
from storeds.values.infer import infer

__all__ = ["FOREIGN_LMDB"]

_VERSION = 3  # of the index of keys
_RECOGNISED, _SAMPLED = 16, 32  # records that are inspected
_SHOWN = 11
_KEYED = ("keyed", "caffe", "columns")
"""The layouts with the field ``key``."""


@dataclass(frozen=True)
class LmdbLocation(EnvironmentLocation):
    """An environment, and what the user says of it; a pattern counts more than a layout."""

    @contextmanager
    def tree(self, handle: Environment, /) -> Iterator[LmdbTree]:
        # docstring inherited
        with lmdb_errors(self.url), reading(handle, self) as reader:
            yield LmdbTree(self, reader)

    def store(self, handle: Environment, found: Found, /) -> ForeignLmdbStore:
        # docstring inherited
        return ForeignLmdbStore(self, handle, found)


class LmdbTree(Tree):
    """The database that holds the records, in one transaction."""

    def __init__(self, location: LmdbLocation, reader: LmdbReader) -> None:
        self._location, self._reader = location, reader
        self._sampled: tuple[Plan, list[bytes]] | None = None

    def is_native(self) -> bool:
        # docstring inherited
        return is_native(self._reader.environment, self._reader.url)

    def check(self) -> None:
        # docstring inherited
        if self._reader.settings.database is None:
            check_main_database(self._reader.environment, self._reader.url)

    def recognise(self) -> tuple[str | None, str]:
        # docstring inherited
        found = recognise_names(self._reader) or recognise_values(self._reader, *self._all_values())
        return found or (None, self._why_not())

    def _all_values(self) -> tuple[Plan, list[bytes]]:
        """Return how to read every value by itself, and the keys of some."""
        if self._sampled is None:
            plan, _, keys = self._plan("", parse_pattern({EVERYTHING: "{}"}))
            self._sampled = plan, sampled(keys, _RECOGNISED)
        return self._sampled

    def _why_not(self) -> str:
        reader, (_, keys) = self._reader, self._all_values()
        try:
            for value in map(reader.get, keys):
                if value is not None and is_pickle(value):
                    CODECS["pickle"](value)
        except CodecError as error:
            return f"storeds cannot read its pickles: {error}"
        return "" if reader.entries else f"it is empty; {WRITTEN_BY}"

    def entries(self) -> Iterator[str]:
        # docstring inherited
        for key in self._reader.keys(_SHOWN):
            yield f"{key_text(key)!r} ({beginning_of(self._reader.get(key) or b'')})"

    def candidates(self) -> Iterator[dict[str, Any]]:
        # docstring inherited
        return candidates(self._reader, self._all_values()[1])

    def pattern(self, layout: str) -> Pattern:
        # docstring inherited
        return preset_pattern(self._reader, layout)

    def find(self, layout: str, pattern: Pattern | None) -> Found:
        # docstring inherited
        assert pattern is not None
        reader = self._reader
        plan, entries, keys = self._plan(layout, pattern)
        left = _left(reader, plan, keys)
        try:
            plan, more = _with_values(reader, plan, keys)
        except (ConfigError, ValueError) as error:
            kind = ConfigError if isinstance(error, ConfigError) else FormatError
            raise kind(f"{reader.url}: {error}") from None
        attrs = {**entries.attrs, **({"classes": [*plan.names.classes]} if plan.names.classes else {})}
        build = reader.environment.build
        _, size, modified = build.split("-")
        facts: list[JSON] = [layout, reader.settings.database, size, modified, keys.count, fields_to_json(plan.fields)]
        meta = meta_of(layout, facts, build, keys.count, parse_fields(plan.fields), attrs)
        return Found(meta, pattern, plan, tuple(bounded([*unread_entries(reader, entries), *left, *more])))

    def _plan(self, layout: str, pattern: Pattern) -> tuple[Plan, Entries, Keys]:
        reader = self._reader
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
        keys = keys_of(reader.environment, self._location, plan)
        if layout in PRESETS:
            check_counts(reader, plan, entries, keys.count)
        return plan, entries, keys


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


def _opener(url: str | StoreURL, *, layout: str | None = None, **options: Any) -> TreeOpener:
    path, in_url = file_path(url)
    settings = parse_options(ForeignOptions, in_url, options, url)
    return TreeOpener(LmdbLocation(path, settings, layout if settings.columns is None else None))


FOREIGN_LMDB = Engine(_opener, presets=presets_of("lmdb"))
"""Opens environments of other tools; the options are `ForeignOptions`."""
