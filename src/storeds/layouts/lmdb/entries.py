"""Separates the records of a database from entries that describe it, and describes a database for messages.

An entry describes the store only where that is certain: its key is unlike the pattern of all others, or a name that tools
use for it, and its value is unlike every record's. The user's ``exclude`` decides about doubtful entries.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storeds._utils.text import counted
from storeds.backends.base import check_most_is_read
from storeds.backends.readings import shown_value
from storeds.errors import MissingDependencyError
from storeds.layouts.codecs import (
    decode_json,
    decode_msgpack,
    decompress,
    is_compressed,
    is_image,
    is_npz,
    is_video,
    unpickle,
)
from storeds.layouts.lmdb.environment import LmdbReader, key_text, listed_keys
from storeds.layouts.lmdb.values import plain
from storeds.protocols import JSON

__all__ = [
    "KEYS",
    "LEN",
    "Entries",
    "beginning_of",
    "check_databases",
    "conversion_script",
    "describe_database",
    "entries_of",
    "record_keys",
    "sample_records",
    "unread_entries",
]


KEYS, LEN = b"__keys__", b"__len__"
_COUNTS = (
    *(LEN, b"length", b"len", b"num-samples", b"num_samples", b"n_samples", b"nsamples", b"num-images", b"num_images"),
    *(b"num_examples", b"num_records", b"__length__", b"__count__", b"__size__", b"count", b"size", b"total"),
)
_CLASSES = (b"classes", b"class_names", b"__classes__", b"__class_names__", b"label_names", b"categories")
_OTHERS = (b"class_to_idx", b"idx_to_class", b"__meta__", b"__metadata__", b"metadata", b"meta", b"meta_info", b"info")
_DATABASES = (b"train", b"val", b"valid", b"test", b"labels", b"images", b"data", b"meta", b"keys")
_ENDS = 32  # keys inspected at each end: keys of one pattern are neighbours, descriptions come before or after them
_MOST_DEVIATING = 16
_ALIKE = 8  # records that an entry is compared with
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
    doubtful : list of bytes
        Entries that may or may not be records.
    keys : set of bytes
        The keys of everything that is not a record.
    """

    count: tuple[bytes, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    databases: dict[bytes, int] = field(default_factory=dict)
    doubtful: list[bytes] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)


def entries_of(reader: LmdbReader) -> Entries:
    """Return the entries of the database that are not records, from a few reads and cached in the reader."""
    if "entries" not in reader.memo:
        reader.memo["entries"] = _find(reader)
    found: Entries = reader.memo["entries"]
    return found


def _find(reader: LmdbReader) -> Entries:
    keys = list(dict.fromkeys([*reader.first_keys(_ENDS), *reader.last_keys(_ENDS)]))
    numbered, certain, deviating = _deviating_keys(keys)
    named = [
        key for key in (*_COUNTS, KEYS, *_CLASSES, *_OTHERS) if key not in deviating and reader.get(key) is not None
    ]
    # Records are not read here, since one damaged record must not prevent opening.
    unclear = deviating if certain else keys
    inside = [key for key in (*unclear, *_DATABASES) if len(reader.get(key) or b"") == _DATABASE]
    inside = [key for key in inside if reader.entries_of_database(key) is not None]
    candidates = list(dict.fromkeys([*deviating, *named, *inside]))
    alike = _signatures(reader, [key for key in keys if key not in candidates]) if candidates else set()
    found = Entries()
    excluded = reader.opener.settings.exclude
    for key in candidates:
        value = reader.get(key)
        if value is not None:
            _judge(reader, found, key, value, alike, numbered, reader.entries - len(candidates))
    for key in excluded or ():
        if reader.get(key) is not None and key not in found.keys:
            found.unread[key] = "excluded by exclude="
    if excluded is not None:
        found.doubtful.clear()
    found.keys.update(found.unread, found.databases)
    return found


def _signatures(reader: LmdbReader, records: list[bytes]) -> set[Any]:
    """Return the signatures of the values of some records."""
    step = max(1, len(records) // _ALIKE)
    return {_signature(value) for key in records[::step] if (value := reader.get(key)) is not None}


def record_keys(reader: LmdbReader) -> Iterator[bytes]:
    """Yield the keys of all records in the order of the database."""
    others = entries_of(reader).keys
    return (key for key in reader.walk() if key not in others) if others else reader.walk()


def sample_records(reader: LmdbReader, count: int) -> list[tuple[bytes, memoryview]]:
    """Return the first records and the last one, in the order of the database."""
    others = entries_of(reader).keys
    first = [pair for pair in reader.first(count + len(others)) if pair[0] not in others][:count]
    last = next((key for key in reader.last_keys(len(others) + 1) if key not in others), None)
    if last is not None and all(key != last for key, _ in first) and (value := reader.get(last)) is not None:
        first.append((last, value))
    return first


def _deviating_keys(keys: list[bytes]) -> tuple[bool, bool, list[bytes]]:
    """Return whether record keys are numbers, whether they follow one pattern, and the keys that do not follow it."""
    patterns = Counter(map(_pattern, keys))
    if not patterns:
        return False, False, []
    main, count = (b"#", patterns[b"#"]) if b"#" in patterns else patterns.most_common(1)[0]
    deviating = [key for key in keys if _pattern(key) != main]
    singles = all(patterns[_pattern(key)] == 1 for key in deviating)
    certain = (
        b"#" in main and singles and len(deviating) <= _MOST_DEVIATING and (main == b"#" or count > 2 * len(deviating))
    )
    return main == b"#", certain, deviating if certain else []


def _pattern(key: bytes) -> bytes:
    return re.sub(rb"[0-9]+", b"#", key)


def _judge(
    reader: LmdbReader, found: Entries, key: bytes, value: memoryview, alike: set[Any], numbered: bool, others: int
) -> None:
    """Add one entry to `found`, unless it is a record."""
    if len(value) == _DATABASE and (entries := reader.entries_of_database(key)) is not None:
        found.databases[key] = entries
        return
    if key == KEYS:
        found.keys.add(key)
        return
    content = _plain_value(value, others)
    is_number = isinstance(content, int) and not isinstance(content, bool)
    is_record = _signature(value) in alike
    says_count = is_number and (content == others or key == LEN or (key in _COUNTS and not is_record))
    if says_count and found.count is None:
        found.count = (key, int(content))
        found.keys.add(key)
    elif key == LEN:
        found.keys.add(key)  # the layout reports what is wrong with it
    elif is_record:
        if numbered:
            found.doubtful.append(key)
    elif content is not _UNKNOWN and len(value) <= _LARGEST and _keep(found, key, content):
        found.keys.add(key)
    else:
        found.unread[key] = beginning_of(value)


def _keep(found: Entries, key: bytes, content: Any) -> bool:
    """Keep the content of an entry as an attribute, if it can be JSON."""
    try:
        content = plain(content)
        decode_json(json.dumps(content, allow_nan=False).encode())
    except (TypeError, ValueError, UnicodeDecodeError):
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
        order = sorted(content, key=lambda name: str(content[name]) if not isinstance(content[name], int) else "")
        if sorted(content.values(), key=str) == sorted(range(len(order)), key=str):
            return sorted(content, key=lambda name: int(content[name]))
    return None


def _plain_value(value: memoryview, count: int | None = None) -> Any:
    """Return the content of a short value in any of the forms that tools use, or `_UNKNOWN`.

    Binary numbers of 4 or 8 bytes and msgpack are recognised only if they equal `count`.
    """
    if len(value) > _LARGEST or is_image(value) or is_video(value):
        return _UNKNOWN
    raw = bytes(value)
    if raw.strip().isdigit() and len(raw) < 20:
        return int(raw)
    serialised = _deserialised(raw)
    if serialised is not None:
        return serialised[1]
    if count is not None and _is_count(raw, count):
        return count
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _UNKNOWN
    return text if text.isprintable() and text else _UNKNOWN


def _deserialised(raw: bytes) -> tuple[str, Any] | None:
    """Return the format and the content of a pickle or of JSON, None for anything else."""
    try:
        if raw.endswith(b"."):
            return "pickle", unpickle(raw)
    except (ValueError, RecursionError):
        pass
    try:
        if raw[:1] in b'{["' or is_compressed(raw):
            return "JSON", decode_json(decompress(raw))
    except (ValueError, RecursionError, MissingDependencyError):
        pass
    return None


def _is_count(raw: bytes, count: int) -> bool:
    if len(raw) in (4, 8) and count in (int.from_bytes(raw, "little"), int.from_bytes(raw, "big")):
        return True
    try:
        return len(raw) < 10 and decode_msgpack(raw) == count
    except ValueError:
        return False


def _signature(value: memoryview) -> Any:
    """Return the form of a value and the types of its parts; equal for values of one kind."""
    if is_image(value):
        return "image"
    if is_video(value):
        return "video"
    if is_npz(value):
        return "npz"
    raw = bytes(value) if len(value) <= 1 << 20 else b""
    serialised = _deserialised(raw)
    if serialised is not None:
        return serialised[0], _types(serialised[1])
    if raw.strip().isdigit():
        return "digits"
    first = raw[:1]
    return ("msgpack", first) if first and (0x80 <= first[0] <= 0x9F or first[0] >= 0xDC) else "bytes"


def _types(content: Any) -> Any:
    if isinstance(content, (list, tuple)):
        kinds = frozenset(type(part).__name__ for part in content)
        return (len(content), kinds) if len(content) <= _ALIKE else kinds
    if isinstance(content, Mapping):
        return frozenset(map(str, content))
    return type(content).__name__


def beginning_of(value: bytes | memoryview) -> str:
    """Return in a few words what a value is and how it begins."""
    if is_image(value):
        return f"an image of {len(value)} bytes"
    if is_video(value):
        return f"a video of {len(value)} bytes"
    content = _plain_value(memoryview(value))
    return f"{_form(value)}{shown_value(value if content is _UNKNOWN else content)}"


def _form(value: bytes | memoryview) -> str:
    head = bytes(value[:2])
    if is_npz(value):
        return "npz: "
    if is_compressed(value):
        return "compressed: "
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return "a pickle: "
    return ""


_SHOWN = 8
_PICKLE = "pickle.loads(value) returns its content, and can run any code: only for files that you trust"
_LOOP = """\
import lmdb, storeds

with lmdb.open({path!r}, subdir={folder}, readonly=True, lock=False, max_dbs=8) as env:
    with env.begin({database}) as txn, storeds.open_writer({target!r}, {fields}) as writer:
        for key, value in txn.cursor():
            {record}  # {advice}
            writer.append([record])"""


def describe_database(reader: LmdbReader) -> str:
    """Return in half a sentence what the database holds."""
    if not reader.entries:
        return "it is empty"
    entries = counted(reader.entries, "entry", "entries")
    first = reader.first(1)[0]
    return f"it holds {entries} under the keys {listed_keys(reader.first_keys(_SHOWN + 1))}; the first value: {beginning_of(first[1])}"


def conversion_script(reader: LmdbReader) -> str:
    """Return the shortest program that converts the store, for users who know what its values hold."""
    path = reader.opener.path
    name = reader.opener.settings.database
    sample = sample_records(reader, 1)
    images = bool(sample) and is_image(sample[0][1])
    field = '"image": "image"' if images else '"data": "bytes"'
    value = '"image": value' if images else '"data": value'
    is_pickle = bool(sample) and bytes(sample[0][1][:1]) == b"\x80"
    return _LOOP.format(
        path=path,
        folder=reader.opener.data_path != path,
        database=f"db=env.open_db({name.encode()!r}, create=False)" if name else "",
        target=f"lmdb://{path.removesuffix('.lmdb')}-native.lmdb",
        fields=f'{{"key": "str", {field}}}',
        advice=_PICKLE if is_pickle else "put the content of `value` here",
        record=f'record = {{"key": key.decode(errors="backslashreplace"), {value}}}',
    )


def unread_entries(reader: LmdbReader) -> Iterator[str]:
    """Yield descriptions of entries and databases that are in no record."""
    entries = entries_of(reader)
    for key, what in entries.unread.items():
        yield f"key {key_text(key)!r}: {what}"
    for name, count in _others(reader).items():
        yield f"database {name!r}: {counted(count, 'entry', 'entries')}; database={name!r} reads it"


def _others(reader: LmdbReader) -> dict[str, int]:
    """Return the other databases, each with its number of entries."""
    if not reader.opener.settings.database:
        return {key_text(key): count for key, count in entries_of(reader).databases.items()}
    return {name: count for name, count in reader.handle.databases().items() if name != reader.opener.settings.database}


def check_databases(reader: LmdbReader, count: int, unread: Sequence[str]) -> None:
    """Raise ConfigError if the user named no database and most entries are in databases that are not read."""
    others = _others(reader)
    if reader.opener.settings.database is None and others:
        left = sum(others.values())
        largest = max(others, key=lambda name: others[name])
        advice = f"database={largest!r} reads that one, database='' the main one"
        check_most_is_read(reader.url, unread, left, left + count, "entries", advice)
