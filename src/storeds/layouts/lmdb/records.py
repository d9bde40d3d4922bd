"""Finds the records of an LMDB environment by a pattern, and reads the values of their fields."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from storeds.backends.unread import bounded
from storeds.layouts.lmdb.entries import beginning_of
from storeds.layouts.lmdb.environment import LmdbReader, key_text
from storeds.layouts.names import Names, pack_names
from storeds.layouts.pattern import KEY, NameFields, Pattern, Place, Template
from storeds.protocols import JSON, Array, Field, Record
from storeds.values.codecs import CODECS, CodecError, inspect, sniff
from storeds.values.coerce import coerce
from storeds.values.infer import WHOLE, Part, field_of, form_of, holds_data, leaves, part_of, path_text
from storeds.values.names import field_name, field_names

__all__ = ["Keys", "NumberedKeys", "Plan", "Records", "Value", "key_index", "matcher", "unmatched", "value_at"]

_DESCRIBED = 200  # unread entries
_MOST_DIGITS = 18
_CHUNK = 1 << 14  # keys that are inspected at once


@dataclass(frozen=True)
class NumberedKeys:
    """Keys that are decimal numbers with leading zeros up to a width, after a literal text."""

    count: int
    start: int = 0
    width: int = 0
    before: bytes = b""

    def many(self, positions: Iterable[int]) -> list[bytes]:
        """Return the keys at `positions`."""
        return [b"%b%0*d" % (self.before, self.width, self.start + position) for position in positions]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.many(range(self.count)))


Keys = NumberedKeys | Names
"""The keys of all records, in order."""


@dataclass(frozen=True)
class Value:
    """How the entries at one place are read.

    Attributes
    ----------
    place : Template
        Their keys.
    codec : str
        The name of a codec; ``bytes`` for values that are stored as they are.
    parts : tuple of Part
        The fields, and the parts of the content that they hold.
    form : str
        What `storeds.values.infer.form_of` returns for their content; ``""`` for any.
    """

    place: Template
    codec: str
    parts: tuple[Part, ...]
    form: str = ""


@dataclass(frozen=True)
class Plan:
    """How the records of a store are found and read; small and picklable.

    Attributes
    ----------
    layout : str
    pattern : Pattern
    others : frozenset of bytes
        Keys of entries that are no records.
    key : str
        The field that holds the key; ``""`` for none.
    codec : str
        Of the values at the place of ``"*"``; ``""`` if the values show it.
    listed : str
        Where the keys of records are listed: ``__keys__``, ``meta_info.txt`` or ``""``.
    numbers : NumberedKeys, optional
        The keys, if they need no scan.
    index : Path, optional
        The file of the cache folder that holds the keys otherwise.
    values : tuple of Value
    names : NameFields
        The fields of the other names in braces.
    """

    layout: str
    pattern: Pattern
    others: frozenset[bytes] = frozenset()
    key: str = ""
    codec: str = ""
    listed: str = ""
    numbers: NumberedKeys | None = None
    index: Path | None = None
    values: tuple[Value, ...] = ()
    names: NameFields = field(default_factory=lambda: NameFields({}, []))

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of the records, in order."""
        found = {part.name: part.field for value in self.values for part in value.parts} | self.names.fields
        return {**found, self.key: Field("str")} if self.key else found

    @property
    def is_all(self) -> bool:
        """Whether every entry that describes nothing is a record."""
        return self.leading.texts == ("", "") and len(self.pattern.places) == 1

    @property
    def leading(self) -> Template:
        """The place of which each match is a record."""
        return self.pattern.leading.path


def matcher(place: Template) -> re.Pattern[bytes]:
    """Return an expression that matches the keys at a place."""
    return re.compile(place.regex(across=True).pattern.encode(), re.DOTALL)


# Keys.


def key_index(reader: LmdbReader, plan: Plan, listed: Callable[[], Iterable[bytes]] | None) -> Array:
    """Return the array of a `Names` file: the keys of all records, and what else only a scan tells.

    Parameters
    ----------
    reader : LmdbReader
    plan : Plan
    listed : callable, optional
        Returns the keys, if the store lists them.
    """
    if listed is not None:
        return pack_names(listed())
    if plan.is_all:
        others = plan.others
        return pack_names(
            _in_order(lambda: (key for key in reader.walk() if key not in others) if others else reader.walk())
        )
    found = _matching(reader, plan)
    texts = [[key_text(text) for text in each] for each in found.values()]
    names = NameFields.infer(plan.pattern.names, texts)
    kinds: JSON = {name: field.kind for name, field in names.fields.items()}
    return pack_names(found, (), {"kinds": kinds, "classes": [*names.classes], "unread": [*unmatched(reader, plan)]})


def _in_order(walk: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Return keys in order of their numbers if all are decimal, else in the order of `walk`, which is called twice."""
    numbers, widths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    keys = walk()
    while chunk := [*islice(keys, _CHUNK)]:
        sizes = np.fromiter(map(len, chunk), np.int64, len(chunk))
        if not b"".join(chunk).isdigit() or sizes.max() > _MOST_DIGITS:
            return walk()
        numbers.append(np.array(chunk).astype(np.int64))
        widths.append(sizes)
    values, sizes = np.concatenate(numbers), np.concatenate(widths)
    order = np.lexsort((sizes, values))
    return (b"%0*d" % pair for pair in zip(sizes[order].tolist(), values[order].tolist(), strict=True))


def _matching(reader: LmdbReader, plan: Plan) -> dict[bytes, tuple[bytes, ...]]:
    """Return the keys at the leading place in order, unless a place with more literal text matches them, and their names."""
    literal = len("".join(plan.leading.texts))
    closer = [matcher(p.path) for _, p in plan.pattern.places if len("".join(p.path.texts)) > literal]
    match = matcher(plan.leading)
    found = {
        key: texts.groups()
        for key in reader.walk()
        if (texts := match.fullmatch(key))
        and key not in plan.others
        and not any(other.fullmatch(key) for other in closer)
    }
    order: dict[bytes, tuple[Any, ...]] = dict(found)
    for at in range(len(plan.leading.names)):
        if all(texts[at].isdigit() for texts in found.values()):
            order = {key: (*texts[:at], int(texts[at]), *texts[at + 1 :]) for key, texts in order.items()}
    return {key: found[key] for key in sorted(found, key=lambda key: (order[key], key))}


def unmatched(reader: LmdbReader, plan: Plan) -> list[str]:
    """Return descriptions of the entries that no place matches."""
    places = [matcher(place.path) for _, place in plan.pattern.places]
    left = (key for key in reader.walk() if key not in plan.others and not any(p.fullmatch(key) for p in places))
    described = [f"key {key_text(key)!r}: {beginning_of(reader.get(key) or b'')}" for key in islice(left, _DESCRIBED)]
    more = sum(1 for _ in left)
    return bounded([*described, *([f"and {more} more"] if more else [])])


# Values.


def value_at(
    name: str, declared: Field | None, place: Place, samples: Sequence[memoryview], taken: Collection[str] = ()
) -> Value:
    """Return how the values at the place of one field are read, by some of them.

    Mappings of arrays give a field for each of their entries: ``features_boxes``, with a number if that name is in `taken`.

    Raises
    ------
    ValueError
        They differ.
    """
    codec = _codec_of(samples, declared)
    if declared is not None:
        return Value(place.path, codec, (Part(name, WHOLE, declared),))
    contents = []
    for sample in samples:
        with contextlib.suppress(CodecError):  # reading it gives a RecordError
            contents.append(inspect(codec, sample))
    paths = [WHOLE]
    if contents and all(isinstance(content, Mapping) for content in contents) and any(map(holds_data, contents)):
        paths = [*leaves(contents)]
    inside = [f"{name}_{field_name(path_text(path))}" for path in paths]
    labels = [name] if paths == [WHOLE] else field_names(inside, taken)
    parts = [
        Part(label, path, field_of([part_of(content, path) for content in contents], any_shape=True))
        for label, path in zip(labels, paths, strict=True)
    ]
    # Some texts look like numbers.
    if (
        codec == "json"
        and parts[0].field.kind == "json"
        and not all(isinstance(each, (dict, list)) for each in contents)
    ):
        return Value(place.path, "text", (Part(name, WHOLE, Field("str")),))
    return Value(place.path, codec, (*parts,))


def _codec_of(samples: Sequence[memoryview], declared: Field | None) -> str:
    """Return the codec of values by their first bytes, or else by what decodes them all."""
    if declared is not None and declared.kind in ("image", "bytes", "str"):
        return "text" if declared.kind == "str" else "bytes"
    if declared is not None and declared.kind == "array" and _are_raw(samples, declared):
        return "bytes"
    forms = {sniff(sample) for sample in samples}
    if forms & {"image", "video"}:
        return "bytes"
    for name in ("pickle", "npy"):
        if name in forms:
            return name
    return next((name for name in ("json", "text") if _decodes_all(name, samples)), "bytes")


def _are_raw(samples: Sequence[memoryview], declared: Field) -> bool:
    """Whether values are the bare bytes of the declared array."""
    if any(sniff(sample) in ("npy", "pickle") for sample in samples):
        return False
    try:
        for sample in samples:
            coerce(declared, sample)
    except ValueError:
        return False
    return True


def _decodes_all(codec: str, samples: Sequence[memoryview]) -> bool:
    try:
        for sample in samples:
            inspect(codec, sample)
    except CodecError:
        return False
    return True


class Records:
    """Reads the records of a store by its plan; each process makes its own.

    Parameters
    ----------
    plan : Plan
    keys : Keys
    """

    def __init__(self, plan: Plan, keys: Keys) -> None:
        self.plan, self.keys, self.count = plan, keys, keys.count
        self._match = matcher(plan.leading)
        texts = [len(text.encode()) for text in plan.leading.texts]
        self._cut = slice(texts[0], -texts[1] or None) if len(texts) == 2 else None
        self._named = [(name, plan.pattern.names.index(name), plan.names.reader(name)) for name in plan.names.fields]
        # It does not refer to `self`.
        self._steps = functools.lru_cache(16)(functools.partial(_steps_for, plan))

    def key_text(self, key: bytes) -> str:
        """Return the key of a record as text: field ``key``, or else the key of its entry."""
        return key_text(self._texts(key)[self.plan.pattern.names.index(KEY)] if self.plan.key else key)

    def entry(self, place: Template, key: bytes) -> bytes:
        """Return the key of an entry at a place, of the record with this key."""
        return key if place == self.plan.leading else _filler(place, self.plan.pattern.names)(self._texts(key))

    def _texts(self, key: bytes) -> tuple[bytes, ...]:
        if self._cut is not None:
            return (key[self._cut],)
        found = self._match.fullmatch(key)
        if found is None:
            raise ValueError(f"its key {key_text(key)!r} does not match {str(self.plan.leading)!r}")
        return found.groups()

    def read(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> Record:
        """Return at least `fields` of a record; values may be views into the pages of the transaction.

        Raises
        ------
        ValueError, lmdb.Error
        """
        record: dict[str, Any] = {}
        if self.plan.key in fields:
            record[self.plan.key] = self.key_text(key)
        if self._named:
            texts = self._texts(key)
            record |= {name: value(key_text(texts[at])) for name, at, value in self._named}
        for value, parts, fill in self._steps(fields):
            entry = key if fill is None else fill(self._texts(key))
            stored = reader.get(entry)
            if stored is None:
                raise ValueError(f"its key {key_text(entry)!r} is missing from the database")
            if value.codec == "bytes" and parts[0].field.kind != "array":
                record[parts[0].name] = stored
                continue
            content = stored if value.codec == "bytes" else CODECS[value.codec](stored)
            if value.form and form_of(content) != value.form:
                raise ValueError(f"its value is {form_of(content)}, the others are {value.form}")
            record |= {part.name: part.of(content) for part in parts}
        return record


def _steps_for(
    plan: Plan, fields: tuple[str, ...]
) -> list[tuple[Value, tuple[Part, ...], Callable[[Sequence[bytes]], bytes] | None]]:
    """Return the places that hold some of `fields`, with these parts, and the function that makes the key of an entry."""
    found = []
    for value in plan.values:
        parts = tuple(part for part in value.parts if part.name in fields)
        fill = None if value.place == plan.leading else _filler(value.place, plan.pattern.names)
        found += [(value, parts, fill)] if parts else []
    return found


def _filler(place: Template, names: Sequence[str]) -> Callable[[Sequence[bytes]], bytes]:
    """Return the function that makes the key of an entry from the texts of the names."""
    first, *others = (text.encode() for text in place.texts)
    pairs = [(names.index(name), text) for name, text in zip(place.names, others, strict=True)]
    return lambda texts: first + b"".join([texts[at] + text for at, text in pairs])
