"""Tells a database's records from entries that describe it: how many there are, class names, databases inside it.

An entry describes the store only where that is certain: its key is unlike the pattern of all others, or a name that tools
use for it, and its value is unlike every record's. The user's ``exclude`` decides about doubtful entries.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storeds.backends.readings import shown_value
from storeds.errors import MissingDependencyError
from storeds.layouts.embedded import is_image, is_video
from storeds.layouts.lmdb.decode import decode_json, decode_msgpack, decompress, is_compressed, is_npz
from storeds.layouts.lmdb.environment import Look, key_text
from storeds.layouts.lmdb.inference import plain
from storeds.layouts.lmdb.unpickler import unpickle
from storeds.protocols import JSON

__all__ = ["KEYS", "LEN", "Entries", "beginning_of", "entries_of", "record_keys", "sample_records"]

KEYS, LEN = b"__keys__", b"__len__"
_COUNTS = (
    *(LEN, b"length", b"len", b"num-samples", b"num_samples", b"n_samples", b"nsamples", b"num-images", b"num_images"),
    *(b"num_examples", b"num_records", b"__length__", b"__count__", b"__size__", b"count", b"size", b"total"),
)
_CLASSES = (b"classes", b"class_names", b"__classes__", b"__class_names__", b"label_names", b"categories")
_OTHERS = (b"class_to_idx", b"idx_to_class", b"__meta__", b"__metadata__", b"metadata", b"meta", b"meta_info", b"info")
_DATABASES = (b"train", b"val", b"valid", b"test", b"labels", b"images", b"data", b"meta", b"keys")
_ENDS = (
    32  # keys looked at from either end: those of one pattern lie side by side, what describes them before or behind
)
_ODD = 16
_ALIKE = 8  # records that an entry is compared with
_LARGEST = 1 << 16  # bytes of a value that is kept as an attribute
_DATABASE = 48  # bytes of a value that stands for a database inside another
_UNKNOWN = object()


@dataclass
class Entries:
    """What of a database describes it.

    Attributes
    ----------
    count : tuple of bytes and int, or None
        The entry that says how many records there are, and what it says.
    attrs : mapping of str to JSON
        What was read: ``classes``, and others under their keys.
    unread : mapping of bytes to str
        Entries that are neither records nor read, each with what it is.
    databases : mapping of bytes to int
        The named databases among the entries, each with its number of entries.
    doubtful : list of bytes
        Entries that may be records, or not.
    keys : set of bytes
        Everything that is no record.
    """

    count: tuple[bytes, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    unread: dict[bytes, str] = field(default_factory=dict)
    databases: dict[bytes, int] = field(default_factory=dict)
    doubtful: list[bytes] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)


def entries_of(look: Look) -> Entries:
    """Return what describes the database; found once for a look, by a few reads."""
    if "entries" not in look.memo:
        look.memo["entries"] = _find(look)
    found: Entries = look.memo["entries"]
    return found


def _find(look: Look) -> Entries:
    keys = list(dict.fromkeys([*look.first_keys(_ENDS), *look.last_keys(_ENDS)]))
    numbered, certain, odd = _odd_keys(keys)
    named = [key for key in (*_COUNTS, KEYS, *_CLASSES, *_OTHERS) if key not in odd and look.get(key) is not None]
    # Values of certain records stay unread: one damaged record must not keep the store from opening.
    unclear = odd if certain else keys
    inside = [key for key in (*unclear, *_DATABASES) if len(look.get(key) or b"") == _DATABASE]
    inside = [key for key in inside if look.entries_of_database(key) is not None]
    candidates = list(dict.fromkeys([*odd, *named, *inside]))
    alike = _signatures(look, [key for key in keys if key not in candidates]) if candidates else set()
    found = Entries()
    excluded = look.opener.settings.exclude
    for key in candidates:
        value = look.get(key)
        if value is not None:
            _judge(look, found, key, value, alike, numbered, look.entries - len(candidates))
    for key in excluded or ():
        if look.get(key) is not None and key not in found.keys:
            found.unread[key] = "left out by exclude="
    if excluded is not None:
        found.doubtful.clear()
    found.keys.update(found.unread, found.databases)
    return found


def _signatures(look: Look, records: list[bytes]) -> set[Any]:
    """Return what the values of some records look like."""
    step = max(1, len(records) // _ALIKE)
    return {_signature(value) for key in records[::step] if (value := look.get(key)) is not None}


def record_keys(look: Look) -> Iterator[bytes]:
    """Yield the keys of all records in the database's own order."""
    others = entries_of(look).keys
    return (key for key in look.walk() if key not in others) if others else look.walk()


def sample_records(look: Look, count: int) -> list[tuple[bytes, memoryview]]:
    """Return the first few records in the database's own order, and the last one, which something else would hide behind."""
    others = entries_of(look).keys
    first = [pair for pair in look.first(count + len(others)) if pair[0] not in others][:count]
    last = next((key for key in look.last_keys(len(others) + 1) if key not in others), None)
    if last is not None and all(key != last for key, _ in first) and (value := look.get(last)) is not None:
        first.append((last, value))
    return first


def _odd_keys(keys: list[bytes]) -> tuple[bool, bool, list[bytes]]:
    """Return whether records lie under numbers, whether their keys follow one pattern, and the keys that do not follow it."""
    patterns = Counter(map(_pattern, keys))
    if not patterns:
        return False, False, []
    main, count = (b"#", patterns[b"#"]) if b"#" in patterns else patterns.most_common(1)[0]
    odd = [key for key in keys if _pattern(key) != main]
    singles = all(patterns[_pattern(key)] == 1 for key in odd)
    certain = b"#" in main and singles and len(odd) <= _ODD and (main == b"#" or count > 2 * len(odd))
    return main == b"#", certain, odd if certain else []


def _pattern(key: bytes) -> bytes:
    return re.sub(rb"[0-9]+", b"#", key)


def _judge(
    look: Look, found: Entries, key: bytes, value: memoryview, alike: set[Any], numbered: bool, others: int
) -> None:
    """Enter what one entry is, unless it is a record."""
    if len(value) == _DATABASE and (entries := look.entries_of_database(key)) is not None:
        found.databases[key] = entries
        return
    if key == KEYS:
        found.keys.add(key)
        return
    content = _plain_value(value, others)
    is_number = isinstance(content, int) and not isinstance(content, bool)
    is_record = _signature(value) in alike
    says_count = content == others or key == LEN or (key in _COUNTS and not is_record)
    if is_number and says_count and found.count is None:
        found.count = (key, int(content))
        found.keys.add(key)
    elif key == LEN:
        found.keys.add(key)  # the layout says what is wrong with it
    elif is_record:
        if numbered:
            found.doubtful.append(key)
    elif content is not _UNKNOWN and len(value) <= _LARGEST and _keep(found, key, content):
        found.keys.add(key)
    else:
        found.unread[key] = beginning_of(value)


def _keep(found: Entries, key: bytes, content: Any) -> bool:
    """Keep what an entry says as an attribute, if that can be one."""
    try:
        content = plain(content)
        decode_json(_encode(content))
    except (TypeError, ValueError, UnicodeDecodeError):
        return False
    names = _class_names(key, content)
    if names is not None and "classes" not in found.attrs:
        found.attrs["classes"] = list(names)
    else:
        found.attrs[key_text(key).strip("_") or "entry"] = content
    return True


def _encode(content: Any) -> bytes:
    import json

    return json.dumps(content, allow_nan=False).encode()


def _class_names(key: bytes, content: Any) -> list[str] | None:
    if key in _CLASSES and isinstance(content, list) and all(isinstance(name, str) for name in content):
        return content
    if key == b"class_to_idx" and isinstance(content, dict):
        order = sorted(content, key=lambda name: str(content[name]) if not isinstance(content[name], int) else "")
        if sorted(content.values(), key=str) == sorted(range(len(order)), key=str):
            return sorted(content, key=lambda name: int(content[name]))
    return None


def _plain_value(value: memoryview, count: int | None = None) -> Any:
    """Return what a short value says in any of the forms that tools use, or a mark that says nothing.

    Numbers of 4 or 8 bytes, and in msgpack, are read as such where they are `count`: nothing else tells them apart.
    """
    if len(value) > _LARGEST or is_image(value) or is_video(value):
        return _UNKNOWN
    raw = bytes(value)
    if raw.strip().isdigit() and len(raw) < 20:
        return int(raw)
    for decode in (_pickled, _json):
        try:
            return decode(raw)
        except (ValueError, RecursionError):
            continue
    if count is not None and _is_count(raw, count):
        return count
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _UNKNOWN
    return text if text.isprintable() and text else _UNKNOWN


def _pickled(raw: bytes) -> Any:
    if not raw.endswith(b"."):
        raise ValueError("no pickle")
    return unpickle(raw)


def _json(raw: bytes) -> Any:
    if raw[:1] not in b'{["' and not is_compressed(raw):
        raise ValueError("no JSON")
    try:
        return decode_json(decompress(raw))
    except MissingDependencyError as error:
        raise ValueError(str(error)) from None


def _is_count(raw: bytes, count: int) -> bool:
    if len(raw) in (4, 8) and count in (int.from_bytes(raw, "little"), int.from_bytes(raw, "big")):
        return True
    try:
        return decode_msgpack(raw) == count and len(raw) < 10
    except ValueError:
        return False


def _signature(value: memoryview) -> Any:
    """Return what makes values alike: their form, and the types of their parts."""
    if is_image(value):
        return "image"
    if is_video(value):
        return "video"
    if is_npz(value):
        return "npz"
    raw = bytes(value) if len(value) <= 1 << 20 else b""
    for decode in (_pickled, _json):
        try:
            return decode.__name__, _types(decode(raw))
        except (ValueError, RecursionError):
            continue
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
    """Return what a value is and begins with, in a few words."""
    if is_image(value):
        return f"an image of {len(value)} bytes"
    if is_video(value):
        return f"a video of {len(value)} bytes"
    content = _plain_value(memoryview(value))
    if content is _UNKNOWN or isinstance(content, np.ndarray):
        form = _form(value)
        return f"{form}{shown_value(value if content is _UNKNOWN else content)}"
    return f"{_form(value)}{shown_value(content)}"


def _form(value: bytes | memoryview) -> str:
    head = bytes(value[:2])
    if is_npz(value):
        return "npz: "
    if is_compressed(value):
        return "compressed: "
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return "a pickle: "
    return ""
