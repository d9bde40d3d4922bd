"""Layouts of serialised values: their keys, the fields inferred from some records, and the formats pickle, tensorpack, pyarrow."""

from __future__ import annotations

import pickle
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
from pydantic import field_validator

from storeds._utils.text import counted
from storeds.backends.base import bounded, check_most_is_read
from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.codecs import (
    CodecError,
    decode_json,
    decode_tensorpack,
    decompress,
    is_msgpack_list,
    is_pickle,
    unpickle,
)
from storeds.layouts.lmdb.base import ForeignLmdb, LayoutInfo
from storeds.layouts.lmdb.entries import (
    KEYS,
    LEN,
    beginning_of,
    conversion_script,
    entries_of,
    record_keys,
    sample_records,
)
from storeds.layouts.lmdb.environment import ForeignOptions, LmdbReader
from storeds.layouts.lmdb.images import clips_of
from storeds.layouts.lmdb.keys import Keys, NumberedKeys, in_order_of_numbers
from storeds.layouts.lmdb.values import (
    Wanted,
    are_videos,
    coerce,
    kind_of,
    merge,
    names_for,
    parse_wanted,
)
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = [
    "PickledLmdb",
    "PyarrowLmdb",
    "SerialisedLmdb",
    "SerialisedOptions",
    "TensorpackLmdb",
]


# The root offset and the first bytes of the table of an Arrow message, which follows a few counts.
_MESSAGE = b"\x10\0\0\0\0\0\x0a\0\x0c\0"


def _is_pyarrow(value: bytes | memoryview) -> bool:
    """Whether `value` begins like the output of ``pyarrow.serialize``."""
    head = bytes(value[:48])
    small = all(int.from_bytes(head[at : at + 4], "little") < 1 << 16 for at in (0, 4))
    return len(head) == 48 and small and _MESSAGE in head


def _why_not_pyarrow(key: bytes) -> str:
    """Return what a user can do with such a store, which entry `key` revealed."""
    return (
        f"pyarrow.serialize wrote {key.decode()} and the values; pyarrow removed this format, and nothing else reads it; "
        "write the store again from its source, or, in a separate environment with Python 3.11 and 'pyarrow==11.0.0', "
        "read each value with pyarrow.deserialize and write it with storeds.open_writer"
    )


class PyarrowLmdb(ForeignLmdb):
    """Recognises stores that ``pyarrow.serialize`` wrote; opening one raises an error that says what to do."""

    layout = "pyarrow"

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        key = _revealing_key(reader)
        return None if key is None else _why_not_pyarrow(key)

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        key = _revealing_key(reader)
        if key is None:
            raise FormatError(
                f"{reader.url} was not written by pyarrow.serialize: neither __len__ nor __keys__ has its form"
            )
        raise FormatError(f"{reader.url}: {_why_not_pyarrow(key)}")

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> NoReturn:
        raise AssertionError("opening such a store raises an error")


def _revealing_key(reader: LmdbReader) -> bytes | None:
    found: dict[bytes, Any] = {key: reader.get(key) for key in (b"__len__", b"__keys__")}
    return next((key for key, value in found.items() if value is not None and _is_pyarrow(value)), None)


_SAMPLES = 32
_COMMON_WIDTHS = (0, 4, 5, 6, 7, 8, 9, 10, 12)
_WHOLE = -1
_NODES = ("atomic_numbers", "pos", "numbers", "positions")  # entries with one item for each node of a graph
_How = tuple[str, tuple[Any, ...]]


class SerialisedOptions(ForeignOptions):
    """Options of layouts whose values have no declared fields.

    Attributes
    ----------
    fields : str, list or mapping
        Names for the parts of a value in order: ``"image,label"``, with kinds where the guess is wrong:
        ``"image,name:str"``. A mapping declares fields as for `open_writer`. If values are mappings, the entries to read.
    any_shape : bool
        Allow every dimension of an array to differ between records.
    """

    fields: Any = None
    any_shape: bool = False

    @field_validator("fields", mode="before")
    @classmethod
    def _parse(cls, given: Any) -> Wanted | None:
        return parse_wanted(given)


class SerialisedLmdb(ForeignLmdb):
    """Base: keys in ``__keys__`` or found by a scan, and fields inferred from some records."""

    Options: ClassVar[type[ForeignOptions]] = SerialisedOptions

    @staticmethod
    def _coerce(field: Field, value: Any) -> Any:
        """Convert a part of a value to the form of its field's kind."""
        return coerce(field, value)

    @abstractmethod
    def _load(self, value: memoryview) -> Any:
        """Return the content of a value; raises ValueError."""

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        for key in (LEN, KEYS):
            value = reader.get(key)
            if value is not None and _is_pyarrow(value):
                raise FormatError(f"{reader.url}: {_why_not_pyarrow(key)}")
        keys = self._all_keys(reader)
        left = reader.entries - keys.count - len(entries_of(reader).keys)
        unread = [f"{counted(left, 'entry', 'entries')} not listed"] if left > 0 else []
        samples = list(self._samples(reader, keys))
        fields, how, others = self._derive(reader, samples)
        return LayoutInfo(keys, fields, how=how, unread=tuple(bounded([*unread, *others])))

    def _all_keys(self, reader: LmdbReader) -> Keys:
        stated_count = self._stated_count(reader)
        entries = entries_of(reader)
        stated = f"{entries.count[0].decode()} says {stated_count} records" if entries.count else ""
        keys: Keys
        if reader.get(KEYS) is not None:
            keys = self._index_keys(reader)
            what = f"{KEYS.decode()} lists {keys.count}"
            if stated_count not in (None, keys.count) and not self._settings.partial:
                raise FormatError(
                    f"{reader.url} does not match its own count: {stated} and {what}; copy it again, or open it with "
                    "partial=True, which reads the entries that it lists"
                )
        elif stated_count is not None and reader.get(b"%0*d" % (self._width(reader), 0)) is not None:
            keys, what = NumberedKeys(stated_count, width=self._width(reader)), stated
        else:
            keys = self._index_keys(reader)
            what = f"{keys.count} keys are there" if stated_count is None else stated
        self._check_count(reader, (keys.count if stated_count is None else stated_count) + len(entries.keys), what)
        return keys

    def _stated_count(self, reader: LmdbReader) -> int | None:
        found = entries_of(reader).count
        if found is not None:
            key, stated_count = found
            if stated_count < 0:
                raise FormatError(f"{reader.url}: {key.decode()} is {stated_count}, not a number of records")
            return stated_count
        value = reader.get(LEN)
        if value is None:
            return None
        try:
            content = self._load(value)
        except ValueError as error:
            raise FormatError(f"{reader.url}: {LEN.decode()} cannot be read: {error}") from None
        raise FormatError(f"{reader.url}: {LEN.decode()} is {str(content)[:40]!r}, not a number of records")

    def _width(self, reader: LmdbReader, number: int = 0) -> int:
        """Return the width of keys, by the key of `number`; 0 if they have no leading zeros."""
        return next((width for width in _COMMON_WIDTHS if reader.get(b"%0*d" % (width, number)) is not None), 0)

    def _find_keys(self, reader: LmdbReader) -> Iterable[bytes]:
        value = reader.get(KEYS)
        if value is None:
            return in_order_of_numbers(lambda: record_keys(reader))
        stated_count = self._stated_count(reader)
        due = reader.entries - len(entries_of(reader).keys) if stated_count is None else stated_count
        numbered = self._as_numbers(value, due, self._width(reader))
        if numbered is not None:
            return numbered
        try:
            found = self._listed(value)
        except ValueError as error:
            raise FormatError(f"{reader.url}: {KEYS.decode()} cannot be read: {error}") from None
        if isinstance(found, np.ndarray) and found.ndim == 1:
            found = found.tolist()
        if not isinstance(found, (list, tuple)):
            raise FormatError(f"{reader.url}: {KEYS.decode()} is a {type(found).__name__}, not a list of keys")
        return self._as_bytes(found, reader)

    def _listed(self, value: memoryview) -> Any:
        """Return the content of ``__keys__``, which is serialised like the records, or JSON."""
        try:
            return self._load(value)
        except ValueError:
            if bytes(value[:1]) != b"[":
                raise
            return decode_json(decompress(value))

    def _as_numbers(self, value: memoryview, count: int, width: int) -> Sequence[bytes] | None:
        """Return the numbers from 0 as keys if exactly these were pickled; comparing is faster than unpickling."""
        if bytes(value[:1]) != b"\x80" or not 0 < count < len(value):
            return None
        keys = [b"%0*d" % (width, number) for number in range(count)]
        return keys if pickle.dumps(keys, min(value[1], pickle.HIGHEST_PROTOCOL)) == value else None

    def _as_bytes(self, keys: Sequence[Any], reader: LmdbReader) -> Iterator[bytes]:
        if keys and all(type(key) is int and 0 <= key < 2**63 for key in keys):  # numbers, not text
            width = self._width(reader, keys[0])
            yield from (b"%0*d" % (width, key) for key in keys)
            return
        for position, key in enumerate(keys):
            if isinstance(key, str):
                key = key.encode()
            if not isinstance(key, (bytes, memoryview)):
                raise FormatError(
                    f"{reader.url}: key {position} of {KEYS.decode()} is a {type(key).__name__} instead of text"
                )
            yield bytes(key)

    # Fields.

    def _derive(self, reader: LmdbReader, samples: list[Any]) -> tuple[dict[str, Field], _How, list[str]]:
        """Return the fields, the form of a value with the place of each field, and the entries that are not read."""
        wanted: Wanted | None = self._settings.fields
        if not samples:
            return *self._without_samples(reader, wanted), []
        forms = Counter(_shape_of(value) for value in samples)
        ((form, count),) = forms.most_common(1)
        if 2 * count <= len(samples):
            raise self._unreadable(reader, f"its records have several forms: {', '.join(sorted(forms))}")
        samples = [value for value in samples if _shape_of(value) == form]  # reading the others gives RecordErrors
        parts, left = _parts(samples[0]), list[str]()
        if isinstance(samples[0], Mapping):
            parts, left = self._entries(reader.url, samples, wanted)
        found = [self._field_at(reader, samples, part, wanted, n) for n, part in enumerate(parts)]
        if isinstance(samples[0], Mapping):
            names = [_field_name(part) for part in parts]
        else:
            names = names_for(found, [are_videos([_part(value, part) for value in samples]) for part in parts])
        if wanted is not None:
            if len(wanted) != len(parts):
                raise ConfigError(
                    f"{reader.url}: fields names {len(wanted)} parts, and a record has {len(parts)}: {', '.join(names)}"
                )
            names = [name for name, _ in wanted]
        return parse_fields(dict(zip(names, found, strict=True))), (form, parts), left

    def _unreadable(self, reader: LmdbReader, why: str) -> FormatError:
        first = sample_records(reader, 1)
        begins = f"; the first value: {beginning_of(first[0][1])}" if first else ""
        return FormatError(f"{reader.url}: {why}{begins}\nTo convert it by hand:\n{conversion_script(reader)}")

    def _entries(
        self, url: str, samples: Sequence[Mapping[Any, Any]], wanted: Wanted | None
    ) -> tuple[tuple[Any, ...], list[str]]:
        """Return the entries of mappings that become fields, by default those in every record, and the other entries."""
        everywhere = dict.fromkeys(entry for sample in samples for entry in sample)
        entries = {_field_name(entry): entry for entry in everywhere}
        if len(entries) < len(everywhere):
            raise FormatError(f"{url}: several entries of its mappings have the same name in lower case")
        if wanted is None:
            common = tuple(e for e in everywhere if all(sample.get(e) is not None for sample in samples))
            left = [f"entry {str(e)!r}: absent or null in some records" for e in everywhere if e not in common]
            named = ",".join(map(_field_name, common))
            advice = f"fields={named!r} reads the entries of every record" if common else "name them with fields="
            check_most_is_read(url, left, len(left), len(everywhere), "entries of a record", advice)
            return common, left
        for name, _ in wanted:
            if name not in entries:
                raise ConfigError(f"{url}: its records have no entry {name!r}; {suggest(name, entries, 'entries')}")
        return tuple(entries[name] for name, _ in wanted), []

    def _without_samples(self, reader: LmdbReader, wanted: Wanted | None) -> tuple[dict[str, Field], _How]:
        if wanted is None or any(field is None for _, field in wanted):
            raise FormatError(
                f"{reader.url} has no record from which to infer the fields; declare them, for example fields='image:image,label:int'"
            )
        return {name: field for name, field in wanted if field is not None}, ("none", tuple(range(len(wanted))))

    def _samples(self, reader: LmdbReader, keys: Keys) -> Iterator[Any]:
        """Yield some records, evenly distributed; raises FormatError if none of them can be read."""
        failed: str | None = None
        some = False
        for position, key in self._sample_keys(reader, keys, _SAMPLES):
            value = reader.get(key)
            try:
                if value is None:
                    raise ValueError("it is missing from the database")
                yield self._load(value)
                some = True
            except ValueError as error:
                failed = failed or f"record {position}: {error}"
        if failed and not some:
            raise self._unreadable(reader, f"no record can be read; {failed}")

    def _field_at(
        self, reader: LmdbReader, samples: list[Any], part: str | int, wanted: Wanted | None, number: int
    ) -> Field:
        declared = wanted[number][1] if wanted is not None and number < len(wanted) else None
        if declared is not None:
            return declared
        try:
            found = self._merged([_part(value, part) for value in samples])
        except ValueError as error:
            what = "its values" if part == _WHOLE else f"part {part!r} of its values"
            raise self._unreadable(reader, f"{what}: {error}; name a kind with fields=") from None
        return _open_dimensions(found, samples, part) if isinstance(samples[0], Mapping) else found

    def _merged(self, values: list[Any]) -> Field:
        """Return the field that can hold all of `values`; raises ValueError."""
        return merge([kind_of(value) for value in values], any_shape=self._settings.any_shape)

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        value = self._load(self._fetch(reader, key))
        form, parts = self._info.how
        if _shape_of(value) != form:
            raise ValueError(f"its value is {_shape_of(value)}, the others are {form}")
        declared = self._info.fields
        places = dict(zip(declared, parts, strict=True))
        make = self._coerce
        return {name: make(declared[name], _part(value, places[name])) for name in fields}


def _shape_of(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{len(value)} parts"
    return "a mapping" if isinstance(value, Mapping) else "one value"


def _parts(value: Any) -> tuple[str | int, ...]:
    if isinstance(value, (list, tuple)) and value:
        return tuple(range(len(value)))
    return tuple(value) if isinstance(value, Mapping) and value else (_WHOLE,)


def _part(value: Any, part: str | int) -> Any:
    if part == _WHOLE:
        return value
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"it has no part {part!r}") from None


def _open_dimensions(field: Field, samples: Sequence[Mapping[Any, Any]], part: Any) -> Field:
    """Return the field with dimensions that count nodes or edges of a graph left open, even if they are equal in the samples."""
    if field.kind != "array" or not all(any(name in sample for name in _NODES) for sample in samples):
        return field
    counts = [_counts(sample) for sample in samples]
    shapes = [np.shape(sample[part]) for sample in samples]
    opened = tuple(
        None
        if any(all(shape[at] == each[n] for shape, each in zip(shapes, counts, strict=True)) for n in (0, 1))
        else size
        for at, size in enumerate(field.shape or ())
    )
    return Field("array", field.dtype, opened)


def _counts(graph: Mapping[Any, Any]) -> tuple[int, int | None]:
    """Return the numbers of nodes and edges of a graph."""
    nodes = next(len(graph[name]) for name in _NODES if name in graph)
    edges = np.shape(graph["edge_index"]) if "edge_index" in graph else ()
    return nodes, edges[-1] if edges else None


def _field_name(part: Any) -> str:
    """Return the name of a mapping's entry as a field name."""
    text = part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)
    name = re.sub(r"[^a-z0-9_]", "_", text.lower())
    return name if name[:1].isalpha() else f"f{name}"


_OLD = (b"(", b"]", b"}", b"c")  # the first bytes of tuples, lists, mappings and arrays in protocols 0 and 1


class PickledLmdb(SerialisedLmdb):
    """Pickled values under ``0``, ``1``, …, or other keys, with or without pickled ``__len__`` and ``__keys__``.

    A value is a tuple or list, a mapping with text keys, an array, or bytes; its parts become fields.
    """

    layout = "pickled"

    def _load(self, value: memoryview) -> Any:
        return unpickle(value)

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        entries = entries_of(reader)
        if reader.get(LEN) is not None and entries.count is None:
            return _broken_count(reader)
        if reader.get(KEYS) is not None and entries.count is None:
            return None  # tensorpack wrote it
        shown = sample_records(reader, 3)
        if not shown:
            return f"{entries.count[0].decode()} ({entries.count[1]})" if entries.count else None
        if not all(_is_pickle(value) for _, value in shown) or clips_of(reader) == "certain":
            return None
        counted = f", {entries.count[0].decode()} ({entries.count[1]})" if entries.count else ""
        listed = " and __keys__" if reader.get(KEYS) is not None else ""
        where = "numbers" if all(key.isdigit() for key, _ in shown) else f"keys such as {shown[0][0][:40]!r}"
        try:
            unpickle(shown[0][1])
        except CodecError as error:
            return f"pickles under {where} (but {error})" if "refused" in str(error) or counted or listed else None
        return f"pickles under {where}{counted}{listed}"


def _broken_count(reader: LmdbReader) -> str | None:
    """Raise FormatError if ``__len__`` is not a pickle; returns None otherwise."""
    value = reader.get(LEN)
    try:
        unpickle(value or b"")
    except CodecError as error:
        raise FormatError(f"{reader.url}: {LEN.decode()} cannot be read as a pickle: {error}") from None
    return None


def _is_pickle(value: memoryview) -> bool:
    """Whether a value is a pickle: by its first byte from protocol 2 on, by reading it before."""
    if len(value) > 1 and value[0] == 0x80:
        return value[1] <= 5
    if len(value) < 3 or value[-1] != 0x2E or bytes(value[:1]) not in _OLD:
        return False
    try:
        unpickle(value)
    except CodecError as error:
        return "refused" in str(error)
    return True


class TensorpackLmdb(SerialisedLmdb):
    """The output of tensorpack's ``LMDBSerializer``: ``__keys__``, and lists in pickle or msgpack under ``00000000`` ….

    Arrays in msgpack have the form of the package msgpack-numpy.
    """

    layout = "tensorpack"

    def _load(self, value: memoryview) -> Any:
        return decode_tensorpack(value)

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        value = reader.get(KEYS)
        if value is None or reader.get(LEN) is not None or _is_pyarrow(value):
            return None
        form = "pickle" if bytes(value[:1]) == b"\x80" else "msgpack"
        if form == "msgpack" and not is_msgpack_list(value):
            return None  # tensorpack does not write keys in JSON
        first = next(iter(sample_records(reader, 1)), None)
        if first is not None:
            try:
                decode_tensorpack(first[1])
            except CodecError as error:
                return f"__keys__ in {form} without __len__ (but {error})" if is_pickle(first[1]) else None
        elif len(value) > 1 << 20:
            return None
        return None if clips_of(reader) == "certain" else f"__keys__ in {form}, and no __len__"
