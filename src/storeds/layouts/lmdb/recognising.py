"""The presets of foreign LMDB environments, what an environment certainly is, and the ways to read one that is not certain.

Names that one tool alone writes are certain, and so are values that all decode by the codec that their first bytes show. Keys
that fit a second pattern make a store uncertain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from storeds.errors import FormatError
from storeds.layouts.lmdb.entries import KEYS, LEN, Entries, listed_keys
from storeds.layouts.lmdb.environment import DATA, LmdbReader, key_text
from storeds.layouts.lmdb.records import NumberedKeys, Plan
from storeds.layouts.pattern import Pattern, parse_pattern, shared_names
from storeds.layouts.presets import PRESETS
from storeds.values.codecs import CodecError, inspect, is_msgpack_list, is_pickle, sniff

__all__ = [
    "candidates",
    "check_counts",
    "counted_plan",
    "key_listing",
    "listed_keys_of",
    "preset_pattern",
    "recognise_names",
    "recognise_values",
]

_NUM_SAMPLES = b"num-samples"
_META_INFO = "meta_info.txt"
_LINE = re.compile(r"(?P<name>.+?)(?: \(\d+, ?\d+(?:, ?\d+)?\)(?: -?\d+)?)?")
_EARLY = (b"(", b"]", b"}", b"c")
"""The first bytes of tuples, lists, mappings and arrays in protocols 0 and 1 of pickle."""


# Patterns and counts.


def preset_pattern(reader: LmdbReader, layout: str) -> Pattern:
    """Return the pattern of a preset for a store; raises FormatError if it does not fit."""
    kinds = {}
    columns = PRESETS[layout].columns
    if layout == "ocr":
        kinds = {"image": "image", "label": "str"}
        count = bytes(reader.get(_NUM_SAMPLES) or b"")
        if not count.strip().isdigit() or len(count) > 18:
            raise FormatError(
                f"{reader.url} has no number of records under 'num-samples', which tools for text recognition write last: write "
                f"it again, or read what is there with columns={columns!r}"
            )
    elif layout == "keyed":
        kinds = {"image": "image"}
        if any(sniff(reader.get(key) or b"") == "video" for key in reader.keys(3)):
            columns, kinds = {"video": "{}"}, {"video": "bytes"}
    return parse_pattern(
        {name: {"path": place, "kind": kinds[name]} for name, place in columns.items()} if kinds else columns
    )


def counted_plan(reader: LmdbReader, plan: Plan, entries: Entries) -> Plan:
    """Return the plan with the keys of a store that counts its records and numbers them, so that no scan is needed."""
    if entries.count is None or plan.listed or plan.layout == "columns":
        return plan
    name, count = entries.count
    if plan.layout == "ocr" and name == _NUM_SAMPLES:
        start = 1 if reader.get(b"image-%09d" % 0) is None else 0
        return replace(plan, numbers=NumberedKeys(count, start, 9, b"image-"))
    first = next(iter(reader.keys(1, b"0")), b"")
    keys = NumberedKeys(count, int(first), _width_of(first)) if plan.is_all and first.isdigit() else None
    if keys is None or not count or reader.get(keys.many([count - 1])[0]) is None:
        return plan
    return replace(plan, numbers=keys)


def _width_of(key: bytes) -> int:
    """Return the width of keys that are numbers, by the first one; 0 if they have no leading zeros."""
    return len(key) if key.startswith(b"0") and len(key) > 1 else 0


def check_counts(reader: LmdbReader, plan: Plan, entries: Entries, count: int) -> None:
    """Raise FormatError unless the database has as many entries as it says itself, and as it lists keys."""
    due: dict[str, int] = {}
    if entries.count is not None and plan.listed != _META_INFO:
        due[f"{key_text(entries.count[0])} says {entries.count[1]} records"] = entries.count[1]
    if plan.listed:
        due[f"{plan.listed} lists {count}"] = count
    is_ocr = plan.layout == "ocr" and plan.numbers is not None
    # Other entries are reported, such as a lexicon.
    is_more = is_ocr and reader.get(plan.numbers.many([count])[0]) is None  # type: ignore[union-attr]
    for why, number in due.items() if plan.is_all or is_ocr else ():
        expected = number * len(plan.pattern.places) + len(plan.others)
        if reader.entries < expected or (reader.entries > expected and not is_more):
            columns = plan.pattern.to_json()
            raise FormatError(
                f"{reader.url} does not match its own count: {why}, so {expected} entries are expected, and it has "
                f"{reader.entries}; copy it again, or read the entries that are there with columns={columns!r}"
            )


# Lists of keys.


def key_listing(reader: LmdbReader, entries: Entries) -> str:
    """Return where a store lists the keys of its records: an entry such as ``__keys__``, ``meta_info.txt``, or ``""``."""
    return entries.listed or (_META_INFO if _meta_info_path(reader) else "")


def _meta_info_path(reader: LmdbReader) -> str | None:
    """Return the path of the file that BasicSR writes beside the data."""
    folder, name = os.path.split(reader.opener.data_path)
    path = os.path.join(folder, _META_INFO)
    return path if name == DATA and os.path.isfile(path) else None


def listed_keys_of(reader: LmdbReader, plan: Plan) -> Iterable[bytes]:
    """Return the keys that a store lists itself; raises FormatError."""
    if plan.listed == _META_INFO:
        return _lines(_meta_info_path(reader) or "", reader.url)
    try:
        return listed_keys(reader.get(plan.listed.encode()) or b"")
    except CodecError as error:
        raise FormatError(f"{reader.url}: {plan.listed} cannot be read: {error}") from None


def _lines(path: str, url: str) -> Iterator[bytes]:
    """Yield the keys of lines such as ``0001_s001.png (480,480,3) 1``: the names without suffixes."""
    try:
        with open(path, encoding="utf-8") as lines:
            for line in filter(None, map(str.strip, lines)):
                match = _LINE.fullmatch(line)
                yield os.path.splitext(match["name"] if match else line)[0].encode()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: {_META_INFO} beside it cannot be read: {error}") from None


# What a store certainly is.


def recognise_names(reader: LmdbReader) -> tuple[str, str] | None:
    """Return the layout of a store whose keys one tool alone writes, and why; None if there are none."""
    count, keys = reader.get(_NUM_SAMPLES), reader.get(KEYS)
    if count is not None:
        numbered = [b"%s-%09d" % (name, 1) for name in (b"image", b"label")]
        if all(reader.get(key) is not None for key in numbered) or not bytes(count[:20]).strip(b"0 \n"):
            return "ocr", f"num-samples ({bytes(count[:20])!r}), image-000000001 and label-000000001"
    if keys is not None and reader.get(LEN) is None and (is_pickle(keys) or is_msgpack_list(keys)):
        return "tensorpack", "__keys__ in pickle or msgpack, and no __len__"
    return None


def recognise_values(reader: LmdbReader, plan: Plan, keys: Sequence[bytes]) -> tuple[str, str] | None:
    """Return the layout of a store whose values all have one form, and why, by evenly sampled keys; else None."""
    values = [value for key in keys if (value := reader.get(key)) is not None]
    found = [layout for layout in _VALUES if values and all(_fits(layout, value) for value in values)]
    # What is listed and missing is an error of the layout.
    if len(found) != 1 or (not plan.listed and (len(values) < len(keys) or _shared(reader, keys))):
        return None
    return found[0], f"{PRESETS[found[0]].about}; keys such as {key_text(keys[0])[:40]!r}"


_VALUES = ("keyed", "npz", "pickled", "json", "msgpack", "caffe")
"""The presets that the values of a store may show."""


def _fits(layout: str, value: memoryview) -> bool:
    form = sniff(value)
    if layout == "keyed":
        return form in ("image", "video")
    if layout == "pickled":
        early = len(value) > 2 and bytes(value[:1]) in _EARLY and value[-1] == 0x2E
        if form != "pickle" and not early:
            return False
    elif form not in {"npz": ("npz",), "caffe": (None,)}.get(layout, (None, "gzip", "lz4")):
        return False
    try:
        content = inspect(PRESETS[layout].codec, value)
    except CodecError:
        return False
    if layout == "caffe":
        # A few bytes may be a message by chance, but not one with an image or the right number of pixels.
        data, _ = content
        return sniff(data) == "image" if isinstance(data, bytes) else data.size > 0
    return layout in ("npz", "pickled") or (isinstance(content, (dict, list)) and bool(content))


# Ways to read a store.


def _shared(reader: LmdbReader, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the pattern that reads several entries as one record, if some keys have such a structure."""
    return shared_names([*map(key_text, keys)], lambda key: reader.get(key.encode()) is not None, attributes=False)


def candidates(reader: LmdbReader, keys: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each way to read a store that fits its structure."""
    values = [value for key in keys if (value := reader.get(key)) is not None]
    if columns := _shared(reader, keys):
        yield {"columns": columns}
    for layout in _VALUES:
        if any(_fits(layout, value) for value in values):
            yield {"layout": layout}
    if values:
        are_pickles = any(sniff(value) == "pickle" for value in values)
        yield {"columns": {"value": {"path": "{}", "kind": "bytes"} if are_pickles else "{}"}}
