"""Finds the records of an LMDB environment by a pattern, and reads the values of their fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from storeds.backends.base import bounded
from storeds.layouts.codecs import CODECS, CodecError, is_image, parse_datum, sniff
from storeds.layouts.infer import WHOLE, coerce, field_of, form_of, part_of
from storeds.layouts.lmdb.entries import beginning_of
from storeds.layouts.lmdb.environment import LmdbReader, key_text
from storeds.layouts.names import Names, pack_names
from storeds.layouts.pattern import KEY, Pattern, Place, Template
from storeds.protocols import JSON, Array, Field, Record

__all__ = [
    "NumberedKeys",
    "Part",
    "Plan",
    "Records",
    "Value",
    "decode",
    "element",
    "frames_part",
    "key_index",
    "matcher",
    "unmatched",
    "value_at",
]

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


@dataclass(frozen=True)
class Part:
    """A field, and the part of a value that it holds: an index, the key of a mapping, or `WHOLE`."""

    name: str
    field: Field
    part: Any = WHOLE


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
    form : str
        What `storeds.layouts.infer.form_of` returns for their content; ``""`` for any.
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
        Of the values at the place of ``"*"``, and of ``__keys__``.
    listed : str
        Where the keys of records are listed: ``__keys__``, ``meta_info.txt`` or ``""``.
    numbers : NumberedKeys, optional
        The keys, if they need no scan.
    index : Path, optional
        The file of the cache folder that holds the keys otherwise.
    values : tuple of Value
    names : tuple of (str, Field)
        The fields of the other names in braces.
    classes : tuple of str
        The texts of the name ``label``.
    frames : int or str, optional
        The part of a value that is the list of frames, for records that are its elements.
    """

    layout: str
    pattern: Pattern
    others: frozenset[bytes] = frozenset()
    key: str = ""
    codec: str = "bytes"
    listed: str = ""
    numbers: NumberedKeys | None = None
    index: Path | None = None
    values: tuple[Value, ...] = ()
    names: tuple[tuple[str, Field], ...] = ()
    classes: tuple[str, ...] = ()
    frames: Any = None

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of the records, in order."""
        parts = [(part.name, part.field) for value in self.values for part in value.parts]
        frames = 1 if self.pattern.has_rows else len(parts)
        found = dict([*parts[:frames], *self.names, *parts[frames:]])
        return {**found, self.key: Field("str")} if self.key else found

    @property
    def is_all(self) -> bool:
        """Whether every entry that describes nothing is a record, or a list of records."""
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
    keys: Iterable[bytes]
    facts: dict[str, JSON] = {}
    if listed is not None:
        keys = listed()
    elif plan.is_all:
        others = plan.others
        keys = _in_order(lambda: (key for key in reader.walk() if key not in others) if others else reader.walk())
    else:
        keys = _matching(reader, plan)
    names = [name for name in plan.pattern.names if name != KEY] if not plan.pattern.has_rows else []
    if names:
        keys, match = list(keys), matcher(plan.leading)
        matches = [found for key in keys if (found := match.fullmatch(key))]
        texts = {name: {key_text(found[name]) for found in matches} for name in names}
        facts["classes"] = [*sorted(texts.get("label", ()), key=str.encode)]
        facts["kinds"] = {
            name: "int" if name == "label" or all(map(str.isdigit, found)) else "str" for name, found in texts.items()
        }
    if not plan.pattern.has_rows:
        if not plan.is_all:
            facts["unread"] = [*unmatched(reader, plan)]
        return pack_names(keys, (), facts)
    keys = list(keys)
    lengths = [_length(reader, plan, key) for key in keys]
    return pack_names(keys, np.cumsum([0, *lengths]), facts)


def _in_order(walk: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Return keys in order of their numbers if all are decimal, else in the order of `walk`, which is called twice."""
    numbers, widths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for chunk in _chunks(walk()):
        sizes = np.fromiter(map(len, chunk), np.int64, len(chunk))
        if not b"".join(chunk).isdigit() or sizes.max() > _MOST_DIGITS:
            return walk()
        numbers.append(np.array(chunk).astype(np.int64))
        widths.append(sizes)
    values, sizes = np.concatenate(numbers), np.concatenate(widths)
    order = np.lexsort((sizes, values))
    return (b"%0*d" % pair for pair in zip(sizes[order].tolist(), values[order].tolist(), strict=True))


def _chunks(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    walk = iter(keys)
    while chunk := [*islice(walk, _CHUNK)]:
        yield chunk


def _matching(reader: LmdbReader, plan: Plan) -> list[bytes]:
    """Return the keys at the leading place, unless another place with more literal text matches them too."""
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
    for at in range(len(plan.leading.names)):
        if all(texts[at].isdigit() for texts in found.values()):
            found = {key: (*texts[:at], int(texts[at]), *texts[at + 1 :]) for key, texts in found.items()}
    return sorted(found, key=lambda key: (found[key], key))


def unmatched(reader: LmdbReader, plan: Plan) -> list[str]:
    """Return descriptions of the entries that no place matches."""
    places = [matcher(place.path) for _, place in plan.pattern.places]
    left = (key for key in reader.walk() if key not in plan.others and not any(p.fullmatch(key) for p in places))
    described = [f"key {key_text(key)!r}: {beginning_of(reader.get(key) or b'')}" for key in islice(left, _DESCRIBED)]
    more = sum(1 for _ in left)
    return bounded([*described, *([f"and {more} more"] if more else [])])


# Values.


def decode(codec: str, value: memoryview) -> Any:
    """Return the content of a value; raises ValueError."""
    if codec != "datum":
        return CODECS[codec](value)
    datum = parse_datum(value)
    return (bytes(datum.data) if datum.encoded else datum.pixels), datum.label


def value_at(name: str, declared: Field | None, place: Place, samples: Sequence[memoryview]) -> Value:
    """Return how the values at the place of one field are read, by some of them.

    Raises
    ------
    ValueError
        They differ.
    """
    codec = _codec_of(samples, declared)
    contents = []
    for sample in samples:
        try:
            contents.append(_single(codec, decode(codec, sample)))
        except CodecError:
            continue  # reading it gives a RecordError
    if declared is None:
        try:
            declared = field_of(contents, any_shape=True)
        except ValueError:
            if codec != "json":
                raise
            codec, declared = "text", Field("str")  # some texts look like numbers
    return Value(place.path, codec, (Part(name, declared),))


def _codec_of(samples: Sequence[memoryview], declared: Field | None) -> str:
    """Return the codec of values by their first bytes, or else by what decodes them all."""
    if declared is not None and declared.kind in ("image", "bytes", "str"):
        return "text" if declared.kind == "str" else "bytes"
    forms = {sniff(sample) for sample in samples}
    if forms & {"image", "video"}:
        return "bytes"
    for name in ("pickle", "npz", "npy"):
        if name in forms:
            return name
    return next((name for name in ("json", "text") if _decodes_all(name, samples)), "bytes")


def _decodes_all(codec: str, samples: Sequence[memoryview]) -> bool:
    try:
        for sample in samples:
            decode(codec, sample)
    except CodecError:
        return False
    return True


def _single(codec: str, content: Any, form: str = "") -> Any:
    """Return the array of an npz that has a single one, where one field holds the whole value."""
    return next(iter(content.values())) if codec == "npz" and not form and len(content) == 1 else content


def frames_part(value: Any) -> Any:
    """Return where the frames are in a value: `WHOLE`, an index or a key; None unless it has exactly one list of images."""
    if _are_frames(value):
        return WHOLE
    if isinstance(value, Mapping):
        found = [name for name, part in value.items() if _are_frames(part)]
    elif isinstance(value, (list, tuple)):
        found = [at for at, part in enumerate(value) if _are_frames(part)]
    else:
        return None
    return found[0] if len(found) == 1 else None


def _are_frames(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(item, (bytes, memoryview)) and is_image(item) for item in value)


def element(content: Any, frames: Any, row: int) -> Any:
    """Return the content of a value with one frame in place of their list, which is the part `frames`; raises ValueError."""
    frame = part_of(part_of(content, frames), row)
    if frames == WHOLE:
        return frame
    entries = content.items() if isinstance(content, Mapping) else enumerate(content)
    found = {part: frame if part == frames else item for part, item in entries}
    return found if isinstance(content, Mapping) else [*found.values()]


def _length(reader: LmdbReader, plan: Plan, key: bytes) -> int:
    """Return the number of frames of a video; a value that cannot be read counts as one record, an error."""
    try:
        value = decode(plan.codec, reader.get(key) or memoryview(b""))
    except CodecError:
        return 1
    part = frames_part(value)
    return 1 if part is None else len(part_of(value, part))


_Clip = tuple[bytes, Any]
"""A key and its decoded value."""
_Step = tuple[Value, list[Part], Callable[[Sequence[bytes]], bytes] | None]


class Records:
    """Reads the records of a store by its plan; each process makes its own.

    Parameters
    ----------
    plan : Plan
    keys : NumberedKeys or Names
    """

    def __init__(self, plan: Plan, keys: NumberedKeys | Names) -> None:
        self.plan, self.keys = plan, keys
        self._fields = plan.fields
        self._match = matcher(plan.leading)
        self._bounds = keys.numbers if isinstance(keys, Names) and plan.pattern.has_rows else None
        self._asked: dict[tuple[str, ...], list[_Step]] = {}
        texts = [len(text.encode()) for text in plan.leading.texts]
        self._cut = slice(texts[0], -texts[1] or None) if len(texts) == 2 else None
        self._labels = {text: number for number, text in enumerate(plan.classes)}

    @property
    def count(self) -> int:
        """The number of records."""
        return self.keys.count if self._bounds is None else int(self._bounds[-1])

    def locate(self, positions: Sequence[int]) -> list[tuple[int, bytes, int, int]]:
        """Return the position and key of each record, and the number of its list and its index there; `positions` ascend."""
        if self._bounds is None:
            return [(at, key, 0, 0) for at, key in zip(positions, self.keys.many(positions), strict=True)]
        lists: list[int] = (np.searchsorted(self._bounds, positions, "right") - 1).tolist()
        numbers = sorted(set(lists))
        keys = dict(zip(numbers, self.keys.many(numbers), strict=True))
        starts = self._bounds.tolist()
        return [(at, keys[number], number, at - starts[number]) for at, number in zip(positions, lists, strict=True)]

    def key_texts(self) -> Iterator[str]:
        """Yield the key of each record as text: field ``key``, or else the key of its entry."""
        if self._bounds is None:
            yield from (self.key_text(key) for key in self.keys)
            return
        for key, length in zip(self.keys, np.diff(self._bounds).tolist(), strict=True):
            yield from (f"{key_text(key)}/{row}" for row in range(length))

    def key_text(self, key: bytes) -> str:
        """Return the key of a record as text."""
        if not self.plan.key:
            return key_text(key)
        return key_text(self._texts(key)[self.plan.pattern.names.index(KEY)])

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

    def read(
        self, reader: LmdbReader, key: bytes, number: int, row: int, fields: tuple[str, ...], last: list[_Clip]
    ) -> Record:
        """Return at least `fields` of a record; values may be views into the pages of the transaction.

        Parameters
        ----------
        reader : LmdbReader
        key : bytes
        number, row : int
            As `locate` returns them.
        fields : tuple of str
        last : list
            Caches the list that was read last, since a batch usually asks for all of its elements.

        Raises
        ------
        ValueError, lmdb.Error
        """
        record: dict[str, Any] = {}
        if self.plan.key in fields:
            record[self.plan.key] = self.key_text(key)
        if self._bounds is not None:
            record |= {"video": number, "frame": row}
        elif self.plan.names:
            record |= self._named(key)
        for value, parts, fill in self._steps(fields):
            entry = key if fill is None else fill(self._texts(key))
            if self._bounds is not None:
                if not last or last[0][0] != entry:
                    last[:] = [(entry, decode(value.codec, _fetch(reader, entry)))]
                record |= _parts(value, parts, element(last[0][1], self.plan.frames, row))
            elif value.codec == "bytes":
                record[parts[0].name] = _fetch(reader, entry)
            elif value.codec == "text":
                record[parts[0].name] = str(_fetch(reader, entry), "utf-8")
            else:
                content = decode(value.codec, _fetch(reader, entry))
                record |= _parts(value, parts, _single(value.codec, content, value.form))
        return record

    def _steps(self, fields: tuple[str, ...]) -> list[_Step]:
        """Return the places that hold some of `fields`, with these parts, and the function that makes a key."""
        if fields not in self._asked:
            found = []
            for value in self.plan.values:
                parts = [part for part in value.parts if part.name in fields]
                fill = None if value.place == self.plan.leading else _filler(value.place, self.plan.pattern.names)
                found += [(value, parts, fill)] if parts else []
            self._asked[fields] = found
        return self._asked[fields]

    def _named(self, key: bytes) -> Record:
        texts = dict(zip(self.plan.pattern.names, self._texts(key), strict=True))
        found: dict[str, Any] = {}
        for name, declared in self.plan.names:
            text = key_text(texts[name])
            found[name] = self._labels[text] if name == "label" else int(text) if declared.kind == "int" else text
        return found


def _filler(place: Template, names: Sequence[str]) -> Callable[[Sequence[bytes]], bytes]:
    """Return the function that makes the key of an entry from the texts of the names."""
    literals = [text.encode() for text in place.texts]
    indices = [names.index(name) for name in place.names]
    if len(indices) == 1:
        return lambda texts: literals[0] + texts[indices[0]] + literals[1]

    def fill(texts: Sequence[bytes]) -> bytes:
        return literals[0] + b"".join(texts[at] + text for at, text in zip(indices, literals[1:], strict=True))

    return fill


def _parts(value: Value, parts: Sequence[Part], content: Any) -> Record:
    """Return parts of the content of a value; raises ValueError."""
    if value.form and form_of(content) != value.form:
        raise ValueError(f"its value is {form_of(content)}, the others are {value.form}")
    return {part.name: coerce(part.field, part_of(content, part.part)) for part in parts}


def _fetch(reader: LmdbReader, key: bytes) -> memoryview:
    value = reader.get(key)
    if value is None:
        raise ValueError(f"its key {key_text(key)!r} is missing from the database")
    return value
