"""Separates the records of a database from the entries that describe it: counts, class names, other databases.

Two rules decide. If the keys of records are decimal numbers, every other key describes the store. Otherwise, only the names
that tools use for descriptions do. An image, video or archive beside records of the same form is always a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from storeds._utils.text import counted
from storeds.backends.base import check_most_is_read
from storeds.errors import MissingDependencyError
from storeds.layouts.codecs import (
    decode_json,
    decompress,
    is_compressed,
    is_image,
    is_pickle,
    is_video,
    sniff,
    unpickle,
)
from storeds.layouts.explain import shown_value
from storeds.layouts.infer import plain
from storeds.layouts.lmdb.environment import LmdbReader, key_text
from storeds.protocols import JSON

__all__ = ["KEYS", "LEN", "Entries", "beginning_of", "check_databases", "entries_of", "unread_entries"]

KEYS, LEN = b"__keys__", b"__len__"
_COUNTS = (
    *(LEN, b"length", b"len", b"num-samples", b"num_samples", b"n_samples", b"nsamples", b"num-images", b"num_images"),
    *(b"num_examples", b"num_records", b"__length__", b"__count__", b"__size__", b"count", b"size", b"total"),
)
_CLASSES = (b"classes", b"class_names", b"__classes__", b"__class_names__", b"label_names", b"categories")
_OTHERS = (
    *(b"class_to_idx", b"idx_to_class", b"__meta__", b"__metadata__", b"metadata", b"meta", b"meta_info", b"info"),
    *(b"mean", b"std"),
)
_DATABASES = (b"train", b"val", b"valid", b"test", b"labels", b"images", b"data", b"meta", b"keys")
_MOST = 32  # entries at each end of the keys that may describe a store
_LARGEST = 1 << 16  # bytes of a value that is kept as an attribute
_DATABASE = 48  # bytes of a value that stands for a database inside another
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
    databases : mapping of bytes to int
        The named databases among the entries, each with its number of entries.
    keys : set of bytes
        The keys of everything that is not a record.
    """

    count: tuple[bytes, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    databases: dict[bytes, int] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)


def entries_of(reader: LmdbReader, records: re.Pattern[bytes] | None) -> Entries:
    """Return the entries of the database that are not records, from a few reads.

    Parameters
    ----------
    reader : LmdbReader
    records : re.Pattern, optional
        Matches the keys of records; by default, those are all other keys.
    """
    found = Entries()
    ends = [*reader.keys_from(b"", _MOST), *reader.keys_before(b"", _MOST)]
    for key in dict.fromkeys([*ends, *_DATABASES]):
        if len(reader.get(key) or b"") == _DATABASE and (count := reader.entries_of_database(key)) is not None:
            found.databases[key] = count
    others = _beside_numbers(reader, found.databases) if records is None else None
    if others is None:
        first = next((key for key in ends if key not in (*_COUNTS, KEYS, *_CLASSES, *_OTHERS)), b"")
        form = _file_form(reader.get(first))
        named = [key for key in (*_COUNTS, KEYS, *_CLASSES, *_OTHERS) if records is None or not records.fullmatch(key)]
        others = [key for key in named if form is None or _file_form(reader.get(key)) != form]
    for key in others:
        value = reader.get(key)
        if value is not None and key not in found.databases:
            _note(found, key, value)
    for key in reader.settings.exclude:
        if reader.get(key) is not None and key not in found.keys:
            found.unread[key] = "excluded by exclude="
    found.keys.update(found.unread, found.databases)
    return found


def _beside_numbers(reader: LmdbReader, databases: dict[bytes, int]) -> list[bytes] | None:
    """Return the keys beside those that begin with a digit, or None if the keys of records are not decimal numbers."""
    first, last = reader.first_from(b"0"), next(iter(reader.keys_before(b":", 1)), b"")
    if first is None or not first.isdigit() or not last.isdigit():
        return None
    before = [key for key in reader.keys_from(b"", _MOST + 1) if key < b"0"]
    after = reader.keys_from(b":", _MOST + 1)
    form = _file_form(reader.get(first))
    if max(len(before), len(after)) > _MOST:
        return None
    if form and any(_file_form(reader.get(key)) == form for key in (*before, *after)):
        return None
    return [key for key in (*before, *after) if key not in databases]


def _file_form(value: memoryview | None) -> str | None:
    """Return the format of a value that is an image, video or archive, and so never a description."""
    form = None if value is None else sniff(value)
    return form if form in ("image", "video", "npz") else None


def _note(found: Entries, key: bytes, value: memoryview) -> None:
    """Add one entry to `found`."""
    if key == KEYS:
        found.keys.add(key)
        return
    content = _plain_value(value)
    if key in _COUNTS and found.count is None and type(content) is int and content >= 0:
        found.count = (key, content)
        found.keys.add(key)
    elif content is not _UNKNOWN and len(value) <= _LARGEST and _keep(found, key, content):
        found.keys.add(key)
    else:
        found.unread[key] = beginning_of(value)


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
    if len(value) > _LARGEST or is_image(value) or is_video(value):
        return _UNKNOWN
    raw = bytes(value)
    if raw.strip().isdigit() and len(raw) < 20:
        return int(raw)
    try:
        if raw.endswith(b"."):
            return unpickle(raw)
    except ValueError:
        if is_pickle(raw):
            return _UNKNOWN
    try:
        if raw[:1] in b'{["' or is_compressed(raw):
            return decode_json(decompress(raw))
    except (ValueError, MissingDependencyError):
        pass
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _UNKNOWN
    return text if text.isprintable() and text else _UNKNOWN


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
    for name, count in _other_databases(reader, entries).items():
        yield f"database {name!r}: {counted(count, 'entry', 'entries')}; database={name!r} reads it"


def _other_databases(reader: LmdbReader, entries: Entries) -> dict[str, int]:
    """Return the other databases, each with its number of entries."""
    database = reader.settings.database
    if not database:
        return {key_text(key): count for key, count in entries.databases.items()}
    return {name: count for name, count in reader.handle.databases().items() if name != database}


def check_databases(reader: LmdbReader, entries: Entries, count: int, unread: list[str]) -> None:
    """Raise ConfigError if the user named no database and most entries are in databases that are not read."""
    others = _other_databases(reader, entries)
    if reader.settings.database is None and others:
        left = sum(others.values())
        largest = max(others, key=lambda name: others[name])
        advice = f"database={largest!r} reads that one, database='' the main one"
        check_most_is_read(reader.url, unread, left, left + count, "entries", advice)
