"""What layouts of serialised values share: finding their keys, and making fields of what some records hold."""

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
from storeds.backends.readings import bounded, check_most_is_read
from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.lmdb.base import ForeignLmdb, Survey
from storeds.layouts.lmdb.decode import decode_json, decompress, is_msgpack_list
from storeds.layouts.lmdb.description import by_hand
from storeds.layouts.lmdb.entries import KEYS, LEN, beginning_of, entries_of, record_keys, sample_records
from storeds.layouts.lmdb.environment import ForeignOptions, Look
from storeds.layouts.lmdb.frames import clips_of, load_either
from storeds.layouts.lmdb.inference import Wanted, are_videos, coerce, kind_of, merge, names_for, parse_wanted
from storeds.layouts.lmdb.keys import Keys, NumberedKeys, in_order_of_numbers
from storeds.layouts.lmdb.unpickler import PickleError, unpickle
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = [
    "PickledLmdb",
    "PyarrowLmdb",
    "SerialisedLmdb",
    "SerialisedOptions",
    "TensorpackLmdb",
    "is_pyarrow",
    "why_not_pyarrow",
]


# The root offset and the first bytes of the table of an Arrow message, which follows a few counts.
_MESSAGE = b"\x10\0\0\0\0\0\x0a\0\x0c\0"


def is_pyarrow(value: bytes | memoryview) -> bool:
    """Whether `value` begins as what ``pyarrow.serialize`` made."""
    head = bytes(value[:48])
    small = all(int.from_bytes(head[at : at + 4], "little") < 1 << 16 for at in (0, 4))
    return len(head) == 48 and small and _MESSAGE in head


def why_not_pyarrow(key: bytes) -> str:
    """Return what to tell the owner of such a store, in which `key` gave it away."""
    return (
        f"{key.decode()} and the values were written by pyarrow.serialize, a format that pyarrow removed and that has no other "
        "reader; write the store anew from its source, or, in an environment of its own with Python 3.11 and "
        "'pyarrow==11.0.0', read each value with pyarrow.deserialize and write it with storeds.open_writer"
    )


class PyarrowLmdb(ForeignLmdb):
    """Recognises such stores, and refuses to open one, with what to do."""

    layout = "pyarrow"

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        key = _telltale(look)
        return None if key is None else why_not_pyarrow(key)

    def _survey(self, look: Look) -> Survey:
        key = _telltale(look)
        if key is None:
            raise FormatError(f"{look.url} was not written by pyarrow.serialize: neither __len__ nor __keys__ is of it")
        raise FormatError(f"{look.url}: {why_not_pyarrow(key)}")

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> NoReturn:
        raise AssertionError("such a store never opens")


def _telltale(look: Look) -> bytes | None:
    found: dict[bytes, Any] = {key: look.get(key) for key in (b"__len__", b"__keys__")}
    return next((key for key, value in found.items() if value is not None and is_pyarrow(value)), None)


_SAMPLES = 32
_COMMON_WIDTHS = (0, 4, 5, 6, 7, 8, 9, 10, 12)
_WHOLE = -1
_NODES = ("atomic_numbers", "pos", "numbers", "positions")  # entries with one item for each node of a graph
_How = tuple[str, tuple[Any, ...]]


class SerialisedOptions(ForeignOptions):
    """Options of layouts whose values say nothing about themselves.

    Attributes
    ----------
    fields : str, list or mapping
        Names for the parts of a value, in order: ``"image,label"``, with kinds where the guess is wrong: ``"image,name:str"``.
        As a mapping, a declaration as for `open_writer`. Of a store of mappings, those of its entries to read.
    any_shape : bool
        Declare every dimension of an array as one that may differ from record to record.
    """

    fields: Any = None
    any_shape: bool = False

    @field_validator("fields", mode="before")
    @classmethod
    def _parse(cls, given: Any) -> Wanted | None:
        return parse_wanted(given)


class SerialisedLmdb(ForeignLmdb):
    """What both do: keys in ``__keys__`` or counted, and fields by what some records hold."""

    Options: ClassVar[type[ForeignOptions]] = SerialisedOptions

    @staticmethod
    def _coerce(field: Field, value: Any) -> Any:
        """Return a part of a value in the form that its field's kind has."""
        return coerce(field, value)

    @property
    def _settings(self) -> SerialisedOptions:
        settings = self._opener.settings
        assert isinstance(settings, SerialisedOptions)
        return settings

    @abstractmethod
    def _load(self, value: memoryview) -> Any:
        """Return what a value holds; raises ValueError."""

    def _survey(self, look: Look) -> Survey:
        for key in (LEN, KEYS):
            value = look.get(key)
            if value is not None and is_pyarrow(value):
                raise FormatError(f"{look.url}: {why_not_pyarrow(key)}")
        keys = self._all_keys(look)
        left = look.entries - keys.count - len(entries_of(look).keys)
        unread = [f"{counted(left, 'entry', 'entries')} not listed"] if left > 0 else []
        samples = list(self._samples(look, keys))
        fields, how, others = self._derive(look, samples)
        return Survey(keys, fields, how=how, unread=tuple(bounded([*unread, *others])))

    def _all_keys(self, look: Look) -> Keys:
        said = self._said_count(look)
        entries = entries_of(look)
        stated = f"{entries.count[0].decode()} says {said} records" if entries.count else ""
        keys: Keys
        if look.get(KEYS) is not None:
            keys = self._index_keys(look)
            what = f"{KEYS.decode()} lists {keys.count}"
            if said not in (None, keys.count) and not self._settings.partial:
                raise FormatError(
                    f"{look.url} is not whole: {stated} and {what}; copy it again, or open it with "
                    "partial=True, which reads what is listed"
                )
        elif said is not None and look.get(b"%0*d" % (self._width(look), 0)) is not None:
            keys, what = NumberedKeys(said, width=self._width(look)), stated
        else:
            keys = self._index_keys(look)
            what = f"{keys.count} keys are there" if said is None else stated
        self._check_count(look, (keys.count if said is None else said) + len(entries.keys), what)
        return keys

    def _said_count(self, look: Look) -> int | None:
        found = entries_of(look).count
        if found is not None:
            key, said = found
            if said < 0:
                raise FormatError(f"{look.url}: {key.decode()} is {said}, not a number of records")
            return said
        value = look.get(LEN)
        if value is None:
            return None
        try:
            content = self._load(value)
        except ValueError as error:
            raise FormatError(f"{look.url}: {LEN.decode()} does not read: {error}") from None
        raise FormatError(f"{look.url}: {LEN.decode()} is {str(content)[:40]!r}, not a number of records")

    def _width(self, look: Look, number: int = 0) -> int:
        """Return how many digits the keys have at least, by the key of `number`; 0 if they have no leading zeros."""
        return next((width for width in _COMMON_WIDTHS if look.get(b"%0*d" % (width, number)) is not None), 0)

    def _find_keys(self, look: Look) -> Iterable[bytes]:
        value = look.get(KEYS)
        if value is None:
            return in_order_of_numbers(lambda: record_keys(look))
        said = self._said_count(look)
        due = look.entries - len(entries_of(look).keys) if said is None else said
        numbered = self._as_numbers(value, due, self._width(look))
        if numbered is not None:
            return numbered
        try:
            found = self._listed(value)
        except ValueError as error:
            raise FormatError(f"{look.url}: {KEYS.decode()} does not read: {error}") from None
        if isinstance(found, np.ndarray) and found.ndim == 1:
            found = found.tolist()
        if not isinstance(found, (list, tuple)):
            raise FormatError(f"{look.url}: {KEYS.decode()} is a {type(found).__name__}, not a list of keys")
        return self._as_bytes(found, look)

    def _listed(self, value: memoryview) -> Any:
        """Return what ``__keys__`` holds: in the form of the records, or in JSON."""
        try:
            return self._load(value)
        except ValueError:
            if bytes(value[:1]) != b"[":
                raise
            return decode_json(decompress(value))

    def _as_numbers(self, value: memoryview, count: int, width: int) -> Sequence[bytes] | None:
        """Return the numbers from 0 as keys if that is what was pickled: comparing is faster than reading."""
        if bytes(value[:1]) != b"\x80" or not 0 < count < len(value):
            return None
        keys = [b"%0*d" % (width, number) for number in range(count)]
        return keys if pickle.dumps(keys, min(value[1], pickle.HIGHEST_PROTOCOL)) == value else None

    def _as_bytes(self, keys: Sequence[Any], look: Look) -> Iterator[bytes]:
        if keys and all(type(key) is int and 0 <= key < 2**63 for key in keys):  # the numbers instead of their digits
            width = self._width(look, keys[0])
            yield from (b"%0*d" % (width, key) for key in keys)
            return
        for position, key in enumerate(keys):
            if isinstance(key, str):
                key = key.encode()
            if not isinstance(key, (bytes, memoryview)):
                raise FormatError(
                    f"{look.url}: key {position} of {KEYS.decode()} is no text but a {type(key).__name__}"
                )
            yield bytes(key)

    # Fields.

    def _derive(self, look: Look, samples: list[Any]) -> tuple[dict[str, Field], _How, list[str]]:
        """Return the fields, the form of a value and where in it each field lies, and what of it is left unread."""
        wanted: Wanted | None = self._settings.fields
        if not samples:
            return *self._without_samples(look, wanted), []
        forms = Counter(_shape_of(value) for value in samples)
        ((form, count),) = forms.most_common(1)
        if 2 * count <= len(samples):
            raise self._unreadable(look, f"its records are of several forms: {', '.join(sorted(forms))}")
        samples = [value for value in samples if _shape_of(value) == form]  # the others are errors in their places
        parts, left = _parts(samples[0]), list[str]()
        if isinstance(samples[0], Mapping):
            parts, left = self._entries(look.url, samples, wanted)
        found = [self._field_at(look, samples, part, wanted, n) for n, part in enumerate(parts)]
        if isinstance(samples[0], Mapping):
            names = [_field_name(part) for part in parts]
        else:
            names = names_for(found, [are_videos([_part(value, part) for value in samples]) for part in parts])
        if wanted is not None:
            if len(wanted) != len(parts):
                raise ConfigError(
                    f"{look.url}: fields names {len(wanted)} parts, and a record has {len(parts)}: {', '.join(names)}"
                )
            names = [name for name, _ in wanted]
        return parse_fields(dict(zip(names, found, strict=True))), (form, parts), left

    def _unreadable(self, look: Look, why: str) -> FormatError:
        first = sample_records(look, 1)
        begins = f"; the first value: {beginning_of(first[0][1])}" if first else ""
        return FormatError(f"{look.url}: {why}{begins}\nTo convert it by hand:\n{by_hand(look)}")

    def _entries(
        self, url: str, samples: Sequence[Mapping[Any, Any]], wanted: Wanted | None
    ) -> tuple[tuple[Any, ...], list[str]]:
        """Return the entries of mappings that become fields, those of every record or those that the user names, and what is left."""
        everywhere = dict.fromkeys(entry for sample in samples for entry in sample)
        entries = {_field_name(entry): entry for entry in everywhere}
        if len(entries) < len(everywhere):
            raise FormatError(f"{url}: several entries of its mappings have one name in lower case")
        if wanted is None:
            common = tuple(e for e in everywhere if all(sample.get(e) is not None for sample in samples))
            left = [f"entry {str(e)!r}: absent or null in some records" for e in everywhere if e not in common]
            named = ",".join(map(_field_name, common))
            advice = f"fields={named!r} reads what every record has" if common else "name them with fields="
            check_most_is_read(url, left, len(left), len(everywhere), "entries of a record", advice)
            return common, left
        for name, _ in wanted:
            if name not in entries:
                raise ConfigError(f"{url}: its records have no entry {name!r}; {suggest(name, entries, 'entries')}")
        return tuple(entries[name] for name, _ in wanted), []

    def _without_samples(self, look: Look, wanted: Wanted | None) -> tuple[dict[str, Field], _How]:
        if wanted is None or any(field is None for _, field in wanted):
            raise FormatError(
                f"{look.url} holds no record to tell the fields by; say what one would hold, as in fields='image:image,label:int'"
            )
        return {name: field for name, field in wanted if field is not None}, ("none", tuple(range(len(wanted))))

    def _samples(self, look: Look, keys: Keys) -> Iterator[Any]:
        """Yield some records, evenly spread; raises FormatError if not one of them reads."""
        failed: str | None = None
        some = False
        for position, key in self._spread_keys(look, keys, _SAMPLES):
            value = look.get(key)
            try:
                if value is None:
                    raise ValueError("it is missing from the database")
                yield self._load(value)
                some = True
            except ValueError as error:
                failed = failed or f"record {position}: {error}"
        if failed and not some:
            raise self._unreadable(look, f"no record reads; {failed}")

    def _field_at(self, look: Look, samples: list[Any], part: str | int, wanted: Wanted | None, number: int) -> Field:
        declared = wanted[number][1] if wanted is not None and number < len(wanted) else None
        if declared is not None:
            return declared
        try:
            found = self._merged([_part(value, part) for value in samples])
        except ValueError as error:
            what = "its values" if part == _WHOLE else f"part {part!r} of its values"
            raise self._unreadable(look, f"{what}: {error}; name a kind with fields=") from None
        return _open_dimensions(found, samples, part) if isinstance(samples[0], Mapping) else found

    def _merged(self, values: list[Any]) -> Field:
        """Return the field that holds all of `values`; raises ValueError."""
        return merge([kind_of(value) for value in values], any_shape=self._settings.any_shape)

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        value = self._load(self._fetch(look, key))
        form, parts = self._survey_found.how
        if _shape_of(value) != form:
            raise ValueError(f"its value is {_shape_of(value)}, others' {form}")
        declared = self._survey_found.fields
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
    """Return the field with those dimensions open that count the nodes or edges of a graph, as equal as they may be in some."""
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
    """Return how many nodes and edges a graph has."""
    nodes = next(len(graph[name]) for name in _NODES if name in graph)
    edges = np.shape(graph["edge_index"]) if "edge_index" in graph else ()
    return nodes, edges[-1] if edges else None


def _field_name(part: Any) -> str:
    """Return the name of a mapping's entry in the form that fields have."""
    text = part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)
    name = re.sub(r"[^a-z0-9_]", "_", text.lower())
    return name if name[:1].isalpha() else f"f{name}"


_OLD = (b"(", b"]", b"}", b"c")  # how tuples, lists, mappings and arrays begin in protocols 0 and 1


class PickledLmdb(SerialisedLmdb):
    """Pickled values under ``0``, ``1``, …, or other keys, with pickled ``__len__`` and ``__keys__``, one of them, or neither.

    A value is a tuple or list, a mapping with text keys, or a bare array or bytes; its parts become fields.
    """

    layout = "pickled"

    def _load(self, value: memoryview) -> Any:
        return unpickle(value)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        entries = entries_of(look)
        if look.get(LEN) is not None and entries.count is None:
            return _broken_count(look)
        if look.get(KEYS) is not None and entries.count is None:
            return None  # tensorpack's
        shown = sample_records(look, 3)
        if not shown:
            return f"{entries.count[0].decode()} ({entries.count[1]})" if entries.count else None
        if not all(_is_pickle(value) for _, value in shown) or clips_of(look) == "certain":
            return None
        counted = f", {entries.count[0].decode()} ({entries.count[1]})" if entries.count else ""
        listed = " and __keys__" if look.get(KEYS) is not None else ""
        where = "numbers" if all(key.isdigit() for key, _ in shown) else f"keys such as {shown[0][0][:40]!r}"
        try:
            unpickle(shown[0][1])
        except PickleError as error:
            return f"pickles under {where} (but {error})" if "refused" in str(error) or counted or listed else None
        return f"pickles under {where}{counted}{listed}"


def _broken_count(look: Look) -> str | None:
    """Say what is wrong with ``__len__``, if it is the kind of value that it should be."""
    value = look.get(LEN)
    try:
        unpickle(value or b"")
    except PickleError as error:
        raise FormatError(f"{look.url}: {LEN.decode()} does not read as a pickle: {error}") from None
    return None


def _is_pickle(value: memoryview) -> bool:
    """Whether a value is a pickle: from protocol 2 on it says so, before that it must read as one."""
    if len(value) > 1 and value[0] == 0x80:
        return value[1] <= 5
    if len(value) < 3 or value[-1] != 0x2E or bytes(value[:1]) not in _OLD:
        return False
    try:
        unpickle(value)
    except PickleError as error:
        return "refused" in str(error)
    return True


class TensorpackLmdb(SerialisedLmdb):
    """What tensorpack's ``LMDBSerializer`` writes: ``__keys__``, and lists in pickle or msgpack under ``00000000`` ….

    Arrays in msgpack are as the package msgpack-numpy writes them.
    """

    layout = "tensorpack"

    def _load(self, value: memoryview) -> Any:
        return load_either(value)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        value = look.get(KEYS)
        if value is None or look.get(LEN) is not None or is_pyarrow(value):
            return None
        form = "pickle" if bytes(value[:1]) == b"\x80" else "msgpack"
        if form == "msgpack" and not is_msgpack_list(value):
            return None  # keys in JSON are not its
        first = next(iter(sample_records(look, 1)), None)
        if first is not None:
            try:
                load_either(first[1])
            except PickleError as error:
                return f"__keys__ in {form} without __len__ (but {error})"
            except ValueError:
                return None
        elif len(value) > 1 << 20:
            return None
        return None if clips_of(look) == "certain" else f"__keys__ in {form}, and no __len__"
