"""Separates the records of a database from the entries that describe it: counts, class names, other databases.

Two rules decide. If the keys of records are decimal numbers, every other key describes the store. Otherwise, only the names
that tools use for descriptions do. An image, video or archive beside records of the same form is always a record.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from storeds.errors import MissingDependencyError
from storeds.layouts.codecs import decode_json, decompress, is_compressed, sniff, unpickle
from storeds.layouts.explain import shown_value
from storeds.layouts.infer import plain
from storeds.layouts.lmdb.environment import LmdbReader, key_text
from storeds.protocols import JSON

__all__ = ["KEYS", "LEN", "Entries", "beginning_of", "entries_of", "unread_entries"]

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
_DESCRIPTIONS = (*_COUNTS, KEYS, *_CLASSES, *_OTHERS)
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
    databases : set of bytes
        The named databases among the entries.
    keys : set of bytes
        The keys of everything that is not a record.
    """

    count: tuple[bytes, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    databases: set[bytes] = field(default_factory=set)
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
    ends = [*reader.keys(_MOST), *reader.keys(_MOST, reverse=True)]
    if not reader.settings.database:
        short = {key for key in (*ends, *_DATABASES) if len(reader.get(key) or b"") == _DATABASE}
        found.databases = set(filter(reader.handle.is_database, short))
    others = _beside_numbers(reader) if records is None else None
    if others is None:
        first = next((key for key in ends if key not in _DESCRIPTIONS), b"")
        form = _file_form(reader.get(first))
        named = [key for key in _DESCRIPTIONS if records is None or not records.fullmatch(key)]
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


def _beside_numbers(reader: LmdbReader) -> list[bytes] | None:
    """Return the keys beside those that begin with a digit, or None if the keys of records are not decimal numbers."""
    ends = [*reader.keys(1, b"0"), *reader.keys(1, b":", reverse=True)]
    if len(ends) < 2 or not b"".join(ends).isdigit():
        return None
    before, after = reader.keys(_MOST + 1, b"0", reverse=True), reader.keys(_MOST + 1, b":")
    form = _file_form(reader.get(ends[0]))
    if max(len(before), len(after)) > _MOST:
        return None
    if form and any(_file_form(reader.get(key)) == form for key in (*before, *after)):
        return None
    return [*reversed(before), *after]


def _file_form(value: memoryview | None) -> str | None:
    """Return the format of a value that is an image, video or archive, and so never a description."""
    form = None if value is None else sniff(value)
    return form if form in ("image", "video", "npz") else None


def _note(found: Entries, key: bytes, value: memoryview) -> None:
    """Add one entry to `found`."""
    content = _UNKNOWN if key == KEYS else _plain_value(value)
    if key in _COUNTS and found.count is None and type(content) is int and content >= 0:
        found.count = (key, content)
    elif key != KEYS and (content is _UNKNOWN or not _keep(found, key, content)):
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
            return decode_json(decompress(raw))
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
    others = filter(reader.handle.is_database, reader.handle.first_keys()) if own else sorted(entries.databases)
    for name in map(key_text, others):
        if name != own:
            yield f"database {name!r}; database={name!r} reads it"
