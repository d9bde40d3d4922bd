"""The presets of foreign LMDB environments, what an environment certainly is, and the ways to read one that is not certain.

Names that one tool alone writes are certain, and so are values that all decode by the codec that their first bytes show. Keys
that fit a second pattern make a store uncertain.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from storeds.errors import FormatError
from storeds.layouts.codecs import CodecError, decode_json, decompress, is_msgpack_list, is_pickle, parse_datum, sniff
from storeds.layouts.explain import Preset
from storeds.layouts.infer import WHOLE
from storeds.layouts.lmdb.entries import KEYS, LEN, Entries
from storeds.layouts.lmdb.environment import DATA, LmdbReader, key_text
from storeds.layouts.lmdb.records import NumberedKeys, Plan, decode, frames_part
from storeds.layouts.pattern import Pattern, parse_pattern, shared_names

__all__ = [
    "PRESETS",
    "candidates",
    "check_count",
    "counted_plan",
    "key_listing",
    "listed_keys_of",
    "preset_pattern",
    "recognise_names",
    "recognise_values",
]

_WHOLE_VALUE = {"*": "{}"}
PRESETS: Mapping[str, Preset] = {
    "caffe": Preset("a Datum message of Caffe", _WHOLE_VALUE, "datum"),
    "frames": Preset(
        "a frame; each value is a list of encoded images, alone or with other parts", {"*": "{video}[]"}, "tensorpack"
    ),
    "json": Preset("a value in JSON, plain or compressed, such as in .aselmdb files", _WHOLE_VALUE, "json"),
    "keyed": Preset("an encoded image or video, as BasicSR, mmengine and LSUN store them", {"image": "{}"}, "bytes"),
    "msgpack": Preset("a value in msgpack, plain or compressed by lz4", _WHOLE_VALUE, "msgpack"),
    "npz": Preset("an archive of NumPy", _WHOLE_VALUE, "npz"),
    "ocr": Preset(
        "an image and a word, as deep-text-recognition-benchmark stores them; num-samples counts them",
        {"image": "image-{}", "label": "label-{}"},
    ),
    "pickled": Preset("a pickled value", _WHOLE_VALUE, "pickle"),
    "tensorpack": Preset(
        "a list in pickle or msgpack, as LMDBSerializer of tensorpack writes them", _WHOLE_VALUE, "tensorpack"
    ),
}

_IMAGE = b"image-"
_NUMBERED_IMAGE = re.compile(rb"image-[0-9]{1,18}")
_META_INFO = "meta_info.txt"
_LINE = re.compile(r"(?P<name>.+?)(?: \(\d+, ?\d+(?:, ?\d+)?\)(?: -?\d+)?)?")
_EARLY = (b"(", b"]", b"}", b"c")
"""The first bytes of tuples, lists, mappings and arrays in protocols 0 and 1 of pickle."""


# Patterns and counts.


def preset_pattern(reader: LmdbReader, layout: str) -> Pattern:
    """Return the pattern of a preset for a store; raises ConfigError, FormatError if it does not fit."""
    if layout == "ocr":
        count = reader.get(b"num-samples")
        if count is None:
            _check_uncounted(reader)
        elif not bytes(count).strip().isdigit() or len(count) > 18:
            raise FormatError(f"{reader.url}: num-samples is {bytes(count[:40])!r}, not a number of records")
    return parse_pattern(PRESETS[layout].columns)


def _check_uncounted(reader: LmdbReader) -> None:
    """Raise FormatError for a store of words without a count, unless a part of it is wanted: tools write the count last."""
    first = _first_image(reader)
    if first is None:
        raise FormatError(f"{reader.url} has no entry 'num-samples', so it is not a store for text recognition")
    if not reader.settings.partial:
        keys = _numbered_images(reader)
        raise FormatError(
            f"{reader.url} has image-{first} and label-{first} but no entry 'num-samples', which tools write last, so it "
            f"may be incomplete; write it again, add 'num-samples', or open it with "
            f"partial=True, which reads the {keys.count} records up to the last image, {keys.many([keys.count - 1])[0].decode()}"
        )


def _numbered_images(reader: LmdbReader) -> NumberedKeys:
    """Return the keys of the images up to the last one, of a store without a count."""
    first = _first_image(reader) or "1"
    start, width = min(int(first), 1), len(first) if first.startswith("0") and len(first) > 1 else 0
    numbers = (int(key[len(_IMAGE) :]) for key in reader.walk() if _NUMBERED_IMAGE.fullmatch(key))
    return NumberedKeys(max(numbers, default=0) - start + 1, start, width, _IMAGE)


def _first_image(reader: LmdbReader) -> str | None:
    """Return the digits of the first key if it is ``image-…`` and a label with the same number exists."""
    key = reader.first_from(b"")
    if key and _NUMBERED_IMAGE.fullmatch(key) and reader.get(b"label-" + key[len(_IMAGE) :]) is not None:
        return key[len(_IMAGE) :].decode()
    return None


def counted_plan(reader: LmdbReader, plan: Plan, entries: Entries) -> Plan:
    """Return the plan with the keys of a store that counts its records and numbers them, so that no scan is needed.

    Raises
    ------
    FormatError
        The count does not match the number of entries.
    """
    if plan.layout == "ocr":
        return _words(reader, plan, entries)
    if entries.count is None or plan.listed:
        return plan
    name, count = entries.count
    first = reader.first_from(b"0")
    if not plan.is_all or first is None or not first.isdigit() or plan.pattern.has_rows:
        return plan
    keys = NumberedKeys(count, int(first), _width_of(reader))
    if not count or reader.get(keys.many([count - 1])[0]) is None:
        return plan
    check_count(reader, count + len(plan.others), f"{key_text(name)} says {count} records")
    return replace(plan, numbers=keys)


def _words(reader: LmdbReader, plan: Plan, entries: Entries) -> Plan:
    """Return the plan of images of words: which numbers they have, and whether they have labels."""
    if entries.count is None or entries.count[0] != b"num-samples":
        return replace(plan, numbers=_numbered_images(reader))
    count = entries.count[1]
    # Most stores count from 1; those that count from 0 have no image with the number `count`.
    start = 0 if reader.get(b"image-%09d" % 0) is not None and reader.get(b"image-%09d" % count) is None else 1
    last = start + count - 1
    labelled = count == 0 or any(reader.get(b"label-%09d" % at) is not None for at in (start, start + 1, last))
    due = count * (1 + labelled) + len(entries.keys)
    if reader.entries < due or reader.get(b"image-%09d" % (last + 1)) is not None:
        check_count(reader, due, f"num-samples says {count}")
    pattern = plan.pattern if labelled else parse_pattern({"image": "image-{}"})
    return replace(plan, pattern=pattern, numbers=NumberedKeys(count, start, 9, _IMAGE))


def _width_of(reader: LmdbReader) -> int:
    """Return the width of keys that are numbers; 0 if they have no leading zeros."""
    first = reader.first_from(b"0") or b""
    return len(first) if first.startswith(b"0") and len(first) > 1 else 0


def check_count(reader: LmdbReader, expected: int, why: str) -> None:
    """Raise FormatError unless the database has as many entries as it should."""
    if reader.entries != expected and not reader.settings.partial:
        raise FormatError(
            f"{reader.url} does not match its own count: {why}, so {expected} entries are expected, and it has "
            f"{reader.entries}; copy it again, or open it with partial=True, which reads the entries that it lists"
        )


# Lists of keys.


def key_listing(reader: LmdbReader) -> str:
    """Return where a store lists the keys of its records: ``__keys__``, ``meta_info.txt``, or ``""``."""
    if reader.get(KEYS) is not None:
        return KEYS.decode()
    return _META_INFO if _meta_info_path(reader) else ""


def _meta_info_path(reader: LmdbReader) -> str | None:
    """Return the path of the file that BasicSR writes beside the data."""
    folder, name = os.path.split(reader.opener.data_path)
    path = os.path.join(folder, _META_INFO)
    return path if name == DATA and os.path.isfile(path) else None


def listed_keys_of(reader: LmdbReader, plan: Plan) -> Iterable[bytes]:
    """Return the keys that a store lists itself; raises FormatError."""
    if plan.listed == _META_INFO:
        return _lines(_meta_info_path(reader) or "", reader.url)
    return _keys_entry(reader, plan)


def _lines(path: str, url: str) -> Iterator[bytes]:
    """Yield the keys of lines such as ``0001_s001.png (480,480,3) 1``: the names without suffixes."""
    try:
        with open(path, encoding="utf-8") as lines:
            for line in filter(None, map(str.strip, lines)):
                match = _LINE.fullmatch(line)
                yield os.path.splitext(match["name"] if match else line)[0].encode()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: {_META_INFO} beside it cannot be read: {error}") from None


def _keys_entry(reader: LmdbReader, plan: Plan) -> Iterable[bytes]:
    value = reader.get(KEYS) or memoryview(b"")
    numbers = _as_numbers(value, reader.entries - len(plan.others), _width_of(reader))
    if numbers is not None:
        return numbers
    try:
        is_json = bytes(value[:1]) == b"["  # the values may have another form
        found = decode_json(decompress(value)) if is_json else decode("tensorpack", value)
    except CodecError as error:
        raise FormatError(f"{reader.url}: {KEYS.decode()} cannot be read: {error}") from None
    if isinstance(found, np.ndarray) and found.ndim == 1:
        found = found.tolist()
    if not isinstance(found, (list, tuple)):
        raise FormatError(f"{reader.url}: {KEYS.decode()} is a {type(found).__name__}, not a list of keys")
    return _as_bytes(found, reader)


def _as_numbers(value: memoryview, count: int, width: int) -> Sequence[bytes] | None:
    """Return the numbers from 0 as keys if exactly these were pickled; comparing is faster than unpickling."""
    if bytes(value[:1]) != b"\x80" or not 0 < count < len(value):
        return None
    keys = NumberedKeys(count, 0, width).many(range(count))
    return keys if pickle.dumps(keys, min(value[1], pickle.HIGHEST_PROTOCOL)) == value else None


def _as_bytes(keys: Sequence[Any], reader: LmdbReader) -> Iterator[bytes]:
    if keys and all(type(key) is int and 0 <= key < 2**63 for key in keys):  # numbers, not text
        width = _width_of(reader)
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


# What a store certainly is.


def recognise_names(reader: LmdbReader) -> tuple[str, str] | None:
    """Return the layout of a store whose keys one tool alone writes, and why; None if there are none."""
    count, keys = reader.get(b"num-samples"), reader.get(KEYS)
    if count is not None:
        first = next((key for key in (b"image-%09d" % 1, b"image-%09d" % 0) if reader.get(key) is not None), None)
        if first is not None or not bytes(count[:20]).strip(b"0 \n"):
            return "ocr", f"num-samples ({bytes(count[:20])!r}){f' and {first.decode()}' if first else ''}"
    elif (number := _first_image(reader)) is not None:
        return "ocr", f"image-{number} and label-{number}"
    if keys is not None and reader.get(LEN) is None and (is_pickle(keys) or is_msgpack_list(keys)):
        return "tensorpack", "__keys__ in pickle or msgpack, and no __len__"
    return None


def recognise_values(reader: LmdbReader, plan: Plan, keys: Sequence[bytes]) -> tuple[str, str] | None:
    """Return the layout of a store whose values all have one form, and why, by evenly sampled keys; else None."""
    values = [value for key in keys if (value := reader.get(key)) is not None]
    found = _layouts_of(values)
    if len(found) != 1 or (len(values) < len(keys) and not reader.settings.partial):
        return None
    (layout,) = found
    if not plan.listed and _shared(reader, keys):
        return None
    return layout, f"{PRESETS[layout].about}; keys such as {key_text(keys[0])[:40]!r}"


def _layouts_of(values: Sequence[memoryview]) -> list[str]:
    """Return the presets that read all values, by their first bytes."""
    found = [name for name in ("keyed", "npz", "pickled", "json", "msgpack", "caffe") if _all_fit(name, values)]
    if found not in (["pickled"], ["msgpack"]):
        return found
    contents = [decode(PRESETS[found[0]].codec, value) for value in values]
    parts = {frames_part(content) for content in contents}
    if len(parts) != 1 or None in parts:
        return found
    # Images alone are the frames of a video if their numbers differ. A tuple is a record.
    if parts != {WHOLE} or len({len(content) for content in contents}) > 1:
        return ["frames"]
    return found if all(isinstance(content, tuple) for content in contents) else [*found, "frames"]


def _all_fit(layout: str, values: Sequence[memoryview]) -> bool:
    return bool(values) and all(_fits(layout, value) for value in values)


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
        content = decode(PRESETS[layout].codec, value)
        if (
            layout == "caffe"
        ):  # a few bytes may be a message by chance, but not one with an image or the right number of pixels
            datum = parse_datum(value)
            return sniff(datum.data) == "image" if datum.encoded else datum.pixels.size > 0
    except CodecError:
        return False
    return layout in ("npz", "pickled") or (isinstance(content, (dict, list)) and bool(content))


# Ways to read a store.


def _shared(reader: LmdbReader, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the pattern that reads several entries as one record, if some keys have such a structure."""
    return shared_names([*map(key_text, keys)], lambda key: reader.get(key.encode()) is not None)


def candidates(reader: LmdbReader, keys: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each way to read a store that fits its structure."""
    values = [value for key in keys if (value := reader.get(key)) is not None]
    if columns := _shared(reader, keys):
        yield {"columns": columns}
    for layout in ("keyed", "npz", "pickled", "json", "msgpack", "caffe"):
        if any(_fits(layout, value) for value in values):
            yield {"layout": layout}
    if any(_are_lists(value) for value in values):
        yield {"layout": "frames"}
    if values:
        are_pickles = any(sniff(value) == "pickle" for value in values)
        yield {"columns": {"value": {"path": "{}", "kind": "bytes"} if are_pickles else "{}"}}


def _are_lists(value: memoryview) -> bool:
    try:
        return frames_part(decode("tensorpack", value)) is not None
    except CodecError:
        return False
