"""Separates the records of a database from the entries that describe it: counts, class names, other databases.

Three rules decide. If the keys of records are decimal numbers, every other key describes the store. Otherwise, only the
names that tools use for descriptions do. An entry that reads as the records do is a record, whatever its name, unless it
holds the number of the others, or lists their keys.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storeds.errors import MissingDependencyError
from storeds.layouts.explain import shown_value
from storeds.layouts.lmdb.environment import LmdbReader, is_database, key_text
from storeds.protocols import JSON
from storeds.records.codec import canonical_value
from storeds.values.codecs import CODECS, CodecError, decode_json, decompress, inspect, is_compressed, sniff, unpickle
from storeds.values.coerce import plain
from storeds.values.infer import evenly, form_of, infer

__all__ = ["KEYS", "LEN", "Entries", "beginning_of", "entries_of", "listed_keys", "unread_entries"]

_LISTED = 9  # keys of the main database that are looked at for others

KEYS, LEN = b"__keys__", b"__len__"
_COUNTS = (
    *(LEN, b"length", b"len", b"num-samples", b"num_samples", b"n_samples", b"nsamples", b"num-images", b"num_images"),
    *(b"num_examples", b"num_records", b"__length__", b"__count__", b"__size__", b"count", b"size", b"total"),
)
_SIZES = (b"len", b"count", b"size", b"total")  # these may also be of something else, such as a picture
_CLASSES = (b"classes", b"class_names", b"__classes__", b"__class_names__", b"label_names", b"categories")
_OTHERS = (
    *(b"class_to_idx", b"idx_to_class", b"__meta__", b"__metadata__", b"metadata", b"meta", b"meta_info", b"info"),
    *(b"mean", b"std"),
)
_LISTS = (b"keys", b"key_list", b"ids", b"image_ids", b"names", b"filenames", b"index")
"""Names of lists of keys; other tools use them for records, so only a list of all keys is one."""
_DESCRIPTIONS = (*_COUNTS, KEYS, *_CLASSES, *_OTHERS)
_DATABASES = (b"train", b"val", b"valid", b"test", b"labels", b"images", b"data", b"meta", b"keys")
_MOST = 32  # entries at each end of the keys that may describe a store
_LARGEST = 1 << 16  # bytes of a value that is kept as an attribute
_DATABASE = 48  # bytes of a value that stands for a database inside another
_COMPARED = 8  # records with which an entry is compared
_UNKNOWN = object()


@dataclass
class Entries:
    """The entries of a database that are not records.

    Attributes
    ----------
    count : tuple of bytes and int, or None
        The entry that holds the number of records, and this number.
    attrs : mapping of str to JSON
        What was read: ``classes``, and other entries under their keys.
    unread : mapping of bytes to str
        Entries that are neither records nor read, each with a description.
    databases : set of bytes
        The named databases among the entries.
    keys : set of bytes
        The keys of everything that is not a record.
    listed : str
        The entry that lists the keys of all records; ``""`` for none.
    """

    count: tuple[bytes, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    databases: set[bytes] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)
    listed: str = ""


def entries_of(reader: LmdbReader, records: re.Pattern[bytes] | None) -> Entries:
    """Return the entries of the database that are not records, from a few reads.

    Parameters
    ----------
    reader : LmdbReader
    records : re.Pattern, optional
        Matches the keys of records; by default, those are all other keys.
    """
    found = Entries()
    ends = [*reader.keys(_MOST), *reader.keys(_MOST, reverse=True)]
    if not reader.settings.database:
        short = {key for key in (*ends, *_DATABASES) if len(reader.get(key) or b"") == _DATABASE}
        found.databases = {name for name in short if is_database(reader.environment, name)}
    named = [key for key in (*_DESCRIPTIONS, *_LISTS) if records is None or not records.fullmatch(key)]
    named = [key for key in named if reader.get(key) is not None and key not in found.databases]
    known = {key: None for key in ends if key not in {*named, *found.databases}}
    values = [reader.get(key) or memoryview(b"") for key in known]
    is_like = _comparison(reader, [values[at] for at in evenly(len(values), _COMPARED)])
    most = len(named) + len(found.databases)
    lists = [key for key in named if key in (KEYS, *_LISTS) and _lists_keys(reader, key, known.keys(), most)]
    others = _beside_numbers(reader, is_like) if records is None else None
    if others is None:
        others = [key for key in named if key in lists or _describes(reader, key, most, is_like)]
    most = len(others) + len(found.databases)
    for key in others:
        value = reader.get(key)
        if key == KEYS or key in lists:
            found.listed = found.listed or key_text(key)
            found.keys.add(key)
        elif value is not None and key not in found.databases:
            _note(found, key, value, key in _COUNTS and (key not in _SIZES or _counts(reader, value, most)))
    for key in reader.settings.exclude:
        if reader.get(key) is not None and key not in found.keys:
            found.unread[key] = "excluded by exclude="
    found.keys.update(found.unread, found.databases)
    return found


def _beside_numbers(reader: LmdbReader, is_like: Callable[[bytes], bool]) -> list[bytes] | None:
    """Return the keys beside those that begin with a digit, or None if the keys of records are not decimal numbers."""
    ends = [*reader.keys(1, b"0"), *reader.keys(1, b":", reverse=True)]
    if len(ends) < 2 or not b"".join(ends).isdigit():
        return None
    before, after = reader.keys(_MOST + 1, b"0", reverse=True), reader.keys(_MOST + 1, b":")
    if max(len(before), len(after)) > _MOST:
        return None
    others = [*reversed(before), *after]
    # A short text or number beside numbered ones says something about the store.
    return None if any(_has_parts(reader.get(key)) and is_like(key) for key in others) else others


def _has_parts(value: memoryview | None) -> bool:
    content = _UNKNOWN if value is None else _plain_value(value)
    return content is _UNKNOWN or isinstance(content, (Mapping, list, tuple))


def _describes(reader: LmdbReader, key: bytes, most: int, is_like: Callable[[bytes], bool]) -> bool:
    """Whether an entry with the name of a description is one, where at most `most` entries are."""
    if key in _LISTS:
        return False
    return not is_like(key) or (key in _COUNTS and _counts(reader, reader.get(key) or memoryview(b""), most))


def _counts(reader: LmdbReader, value: memoryview, most: int) -> bool:
    """Whether a value is the number of records, where at most `most` entries are none."""
    content = _plain_value(value)
    return type(content) is int and 0 < reader.entries - content <= most


def _lists_keys(reader: LmdbReader, key: bytes, known: Set[bytes], most: int) -> bool:
    """Whether an entry lists the keys of all records, `known` among them, where at most `most` entries are none."""
    try:
        found = listed_keys(reader.get(key) or b"")
    except CodecError:
        return False
    names = set(found)
    return 0 < reader.entries - len(found) <= most and len(names) == len(found) and known <= names


def listed_keys(value: bytes | memoryview) -> list[bytes]:
    """Return the keys that an entry lists, in JSON, pickle or msgpack; raises CodecError."""
    is_json = bytes(value[:1]) == b"["
    found = decode_json(decompress(value)) if is_json else CODECS["tensorpack"](value)
    found = found.tolist() if isinstance(found, np.ndarray) else found
    if not isinstance(found, (list, tuple)) or not all(isinstance(key, (str, bytes)) for key in found):
        raise CodecError("it is not a list of keys, which are text or bytes")
    return [key.encode() if isinstance(key, str) else key for key in found]


def _comparison(reader: LmdbReader, values: Sequence[memoryview]) -> Callable[[bytes], bool]:
    """Return the function that tells whether the entry at a key reads as these values of records do."""
    forms = {sniff(value) for value in values}
    others = [value for value in values if sniff(value) not in ("image", "video")]
    codec, contents = _read_alike(others)
    try:
        found = infer(contents) if contents else None
    except ValueError:
        found = None
    if found is not None and found.reads_little:
        found = None

    def is_like(key: bytes) -> bool:
        value = reader.get(key) or memoryview(b"")
        if (form := sniff(value)) in ("image", "video"):
            return form in forms
        if found is None or key.startswith(b"__"):  # no other program calls a record __meta__
            return False
        if codec in ("text", "bytes") and type(_plain_value(value)) is not type(_plain_value(others[0])):
            return False
        try:
            content = inspect(codec, value)
            for part in found.parts:
                canonical_value(part.field, part.of(content))
        except (ValueError, TypeError, OverflowError, MissingDependencyError):
            return False
        return form_of(content) == found.form

    return is_like


def _read_alike(values: Sequence[memoryview]) -> tuple[str, list[Any]]:
    """Return the first codec that decodes most of the values, and their contents."""
    for codec in ("pickle", "npz", "json", "msgpack", "datum", "text", "bytes"):
        contents = []
        for value in values:
            with contextlib.suppress(CodecError, MissingDependencyError):
                contents.append(inspect(codec, value))
        if 2 * len(contents) > len(values):
            return codec, contents
    return "bytes", []


def _note(found: Entries, key: bytes, value: memoryview, is_count: bool) -> None:
    """Add one entry to `found`."""
    content = _plain_value(value)
    if is_count and found.count is None and type(content) is int and content >= 0:
        found.count = (key, content)
    elif content is _UNKNOWN or not _keep(found, key, content):
        found.unread[key] = beginning_of(value)
    found.keys.add(key)


def _keep(found: Entries, key: bytes, content: Any) -> bool:
    """Keep the content of an entry as an attribute, if it can be JSON."""
    try:
        content = plain(content)
        decode_json(json.dumps(content, allow_nan=False).encode())
    except (TypeError, ValueError):
        return False
    names = _class_names(key, content)
    if names is not None and "classes" not in found.attrs:
        found.attrs["classes"] = list(names)
    else:
        found.attrs[key_text(key).strip("_") or "entry"] = content
    return True


def _class_names(key: bytes, content: Any) -> list[str] | None:
    if key in _CLASSES and isinstance(content, list) and all(isinstance(name, str) for name in content):
        return content
    if key == b"class_to_idx" and isinstance(content, dict):
        numbers = [number for number in content.values() if type(number) is int]
        if sorted(numbers) == list(range(len(content))):
            return sorted(content, key=lambda name: int(content[name]))
    return None


def _plain_value(value: memoryview | bytes) -> Any:
    """Return the content of a short value in any of the forms that tools use, or `_UNKNOWN`."""
    if len(value) > _LARGEST or sniff(value) in ("image", "video"):
        return _UNKNOWN
    raw = bytes(value)
    if raw.strip().isdigit() and len(raw) < 20:
        return int(raw)
    with contextlib.suppress(ValueError, MissingDependencyError):
        if raw.endswith(b"."):
            return unpickle(raw)
        if raw[:1] in b'{["' or is_compressed(raw):
            return decode_json(decompress(raw, _LARGEST))
    with contextlib.suppress(UnicodeDecodeError):
        if raw and (text := raw.decode()).isprintable():
            return text
    return _UNKNOWN


def beginning_of(value: bytes | memoryview) -> str:
    """Return in a few words what a value is and how it begins."""
    form = sniff(value)
    if form in ("image", "video"):
        return f"{'an' if form == 'image' else 'a'} {form} of {len(value)} bytes"
    content = _plain_value(value)
    shown = shown_value(value if content is _UNKNOWN else content)
    return f"{form}: {shown}" if form else shown


def unread_entries(reader: LmdbReader, entries: Entries) -> Iterator[str]:
    """Yield descriptions of entries and databases that are in no record."""
    for key, what in entries.unread.items():
        yield f"key {key_text(key)!r}: {what}"
    own = reader.settings.database
    others = sorted(entries.databases)
    if own:
        others = [name for name in reader.environment.first_keys(_LISTED) if is_database(reader.environment, name)]
    for name in map(key_text, others):
        if name != own:
            yield f"database {name!r}; database={name!r} reads it"
