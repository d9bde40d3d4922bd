"""Layouts whose values are encoded images: text recognition, images by key, images in several resolutions, lists of frames."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from storeds._utils.text import counted
from storeds.backends.base import bounded
from storeds.errors import ConfigError, FormatError, MissingDependencyError
from storeds.layouts.codecs import decode_tensorpack, is_image, is_video
from storeds.layouts.lmdb.base import ForeignLmdb, LayoutInfo
from storeds.layouts.lmdb.entries import KEYS, beginning_of, entries_of, record_keys, sample_records
from storeds.layouts.lmdb.environment import DATA, ForeignOptions, LmdbReader, key_text
from storeds.layouts.lmdb.keys import NumberedKeys, in_order_of_numbers
from storeds.layouts.lmdb.values import coerce, kind_of, merge, names_for
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = [
    "WHOLE",
    "FramesLmdb",
    "KeyedLmdb",
    "KeyedOptions",
    "OcrLmdb",
    "ResolutionsLmdb",
    "ResolutionsOptions",
    "clips_of",
    "resolutions",
]


_COUNT, _IMAGE = b"num-samples", b"image-"
_OWN = re.compile(rb"(image|label)-[0-9]{1,18}")
_NUMBERED_IMAGE = re.compile(rb"image-[0-9]{1,18}")
_META_INFO = "meta_info.txt"
_LINE = re.compile(r"(?P<name>.+?)(?: \(\d+, ?\d+(?:, ?\d+)?\)(?: -?\d+)?)?")
_GLANCES = 3


class OcrLmdb(ForeignLmdb):
    """Text recognition: ``num-samples``, ``image-000000001`` and ``label-000000001``, counted from 1 or from 0.

    Fields: ``image``, and ``label`` (str) unless the store has no labels. Other entries, such as a lexicon, are not read.
    """

    layout = "ocr"

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        value = reader.get(_COUNT)
        if value is None:
            numbers = _first_number(reader)
            return None if numbers is None else f"image-{numbers} and label-{numbers}, but no {_COUNT.decode()}"
        first = next((key for key in (b"image-%09d" % 1, b"image-%09d" % 0) if reader.get(key) is not None), None)
        if first is None and bytes(value[:20]).strip(b"0 \n"):
            return None  # a count of other things
        return f"{_COUNT.decode()} ({bytes(value[:20])!r}){f' and {first.decode()}' if first else ''}"

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        value = reader.get(_COUNT)
        if value is None:
            return self._inspect_uncounted(reader)
        if not bytes(value).strip().isdigit() or len(value) > 18:
            raise FormatError(f"{reader.url}: {_COUNT.decode()} is {bytes(value[:40])!r}, not a number of records")
        count = int(bytes(value))
        # Most stores count from 1; those that count from 0 have no image with the number `count`.
        start = 0 if reader.get(b"image-%09d" % 0) is not None and reader.get(b"image-%09d" % count) is None else 1
        last = start + count - 1
        labelled = count == 0 or any(reader.get(b"label-%09d" % at) is not None for at in (start, start + 1, last))
        due = 1 + count * (1 + labelled)
        if reader.entries < due or reader.get(b"image-%09d" % (last + 1)) is not None:
            self._check_count(reader, due, f"{_COUNT.decode()} says {count}")
        return self._info_of(reader, NumberedKeys(count, start=start, width=9), labelled=labelled)

    def _inspect_uncounted(self, reader: LmdbReader) -> LayoutInfo:
        """Inspect a store without a count; tools write the count last, so the store may be incomplete."""
        first = _first_number(reader)
        if first is None:
            raise FormatError(
                f"{reader.url} has no entry {_COUNT.decode()!r}, so it is not a store for text recognition"
            )
        width = len(first) if first.startswith("0") and len(first) > 1 else 0
        start = min(int(first), 1)
        last = max(int(key[len(_IMAGE) :]) for key in reader.walk() if _NUMBERED_IMAGE.fullmatch(key))
        count = last - start + 1
        if not self._settings.partial:
            raise FormatError(
                f"{reader.url} has image-{first} and label-{first} but no entry {_COUNT.decode()!r}, which tools write last, so it "
                f"may be incomplete; write it again, add {_COUNT.decode()!r}, or open it with "
                f"partial=True, which reads the {count} records up to the last image, {_IMAGE.decode()}{last:0{width}}"
            )
        return self._info_of(reader, NumberedKeys(count, start=start, width=width), labelled=True)

    def _info_of(self, reader: LmdbReader, keys: NumberedKeys, *, labelled: bool) -> LayoutInfo:
        unread = list[str]()
        if reader.entries > len(entries_of(reader).keys) + keys.count * (1 + labelled):
            known = {_COUNT, *entries_of(reader).keys}
            others = (key for key in reader.walk() if key not in known and not _OWN.fullmatch(key))
            unread = bounded(f"key {key_text(key)!r}: {beginning_of(reader.get(key) or b'')}" for key in others)
        fields = {"image": Field("image")} | ({"label": Field("str")} if labelled else {})
        return LayoutInfo(keys, fields, unread=tuple(unread))

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in fields:
            value = self._fetch(reader, b"%s-%s" % (name.encode(), key))
            values[name] = value if name == "image" else str(value, "utf-8")
        return values

    def _key_text(self, key: bytes) -> str:
        return f"image-{key.decode()}"


def _first_number(reader: LmdbReader) -> str | None:
    """Return the digits of the first key if it is ``image-…`` and a label with the same number exists."""
    for key, _ in reader.first(1):
        if _NUMBERED_IMAGE.fullmatch(key) and reader.get(b"label-" + key[len(_IMAGE) :]) is not None:
            return key[len(_IMAGE) :].decode()
    return None


class KeyedOptions(ForeignOptions):
    """Options of the ``keyed`` layout.

    Attributes
    ----------
    keys : str
        How field ``key`` shows a key: as ``"text"``, or as ``"hex"``, hexadecimal digits, for keys that are not text.
    """

    keys: Literal["text", "hex"] = "text"


class KeyedLmdb(ForeignLmdb):
    """An encoded image or video under any key, as BasicSR, mmengine and LSUN store them.

    Fields: ``image`` (or ``video``, bytes) and ``key``. Records are in the order of the keys' bytes. If BasicSR wrote a
    ``meta_info.txt`` beside the data, its lines list the records and their order.
    """

    layout = "keyed"
    Options: ClassVar[type[ForeignOptions]] = KeyedOptions

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        first = sample_records(reader, _GLANCES)
        if not first or reader.get(KEYS) is not None or OcrLmdb._guess(reader) or resolutions(reader):
            return None
        images, videos = (sum(test(value) for _, value in first) for test in (is_image, is_video))
        listed = _meta_info(reader)
        if max(images, videos) == 0 or (max(images, videos) < len(first) and listed is None):
            return None
        what = "images" if images else "videos"
        return f"{what} under keys such as {first[0][0][:40]!r}{f', listed in {_META_INFO}' if listed else ''}"

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        listed = _meta_info(reader)
        if listed is None:
            keys = self._index_keys(reader)
            why = f"its index lists {keys.count} keys"
        else:
            status = os.stat(listed)
            keys = self._index_keys(reader, _META_INFO, status.st_size, status.st_mtime_ns)
            why = f"{_META_INFO} lists {keys.count}"
        self._check_count(reader, keys.count + len(entries_of(reader).keys), why)
        left = reader.entries - keys.count - len(entries_of(reader).keys)
        unread = (f"{counted(left, 'entry', 'entries')} that {_META_INFO} does not list",) if left > 0 else ()
        first = sample_records(reader, 1)
        holds_videos = bool(first) and is_video(first[0][1])
        data = {"video": Field("bytes")} if holds_videos else {"image": Field("image")}
        return LayoutInfo(keys, {**data, "key": Field("str")}, unread=unread)

    def _find_keys(self, reader: LmdbReader) -> Iterable[bytes]:
        listed = _meta_info(reader)
        return self._checked(record_keys(reader) if listed is None else _listed_keys(listed, reader.url), reader.url)

    def _checked(self, keys: Iterable[bytes], url: str) -> Iterator[bytes]:
        if self._as_hex:
            yield from keys
            return
        for key in keys:
            if not key.isascii():
                try:
                    key.decode()
                except UnicodeDecodeError:
                    raise FormatError(
                        f"{url}: its key {key[:40].hex()} (in hexadecimal) is not text; keys='hex' shows keys like this"
                    ) from None
            yield key

    def _key_text(self, key: bytes) -> str:
        return key.hex() if self._as_hex else key.decode()

    @property
    def _as_hex(self) -> bool:
        return bool(self._settings.keys == "hex")

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {"key": self._key_text(key)}
        for name in fields:
            if name != "key":
                values[name] = self._fetch(reader, key)
        return values


def _meta_info(reader: LmdbReader) -> str | None:
    folder, name = os.path.split(reader.opener.data_path)
    if name != DATA:
        return None
    path = os.path.join(folder, _META_INFO)
    return path if os.path.isfile(path) else None


def _listed_keys(path: str, url: str) -> Iterator[bytes]:
    """Yield the keys of lines such as ``0001_s001.png (480,480,3) 1``: the names without suffixes."""
    try:
        with open(path, encoding="utf-8") as lines:
            for line in filter(None, map(str.strip, lines)):
                match = _LINE.fullmatch(line)
                name = match["name"] if match else line
                yield os.path.splitext(name)[0].encode()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: {_META_INFO} beside it cannot be read: {error}") from None


_KEY = re.compile(rb"([1-9][0-9]{0,4})-([0-9]{5,})")
_MOST = 32
_WIDTH = 5


class ResolutionsOptions(ForeignOptions):
    """Options of the ``resolutions`` layout.

    Attributes
    ----------
    resolution : int, optional
        The size to read; required if the store has several.
    """

    resolution: int | None = None


class ResolutionsLmdb(ForeignLmdb):
    """Images in one of several resolutions, as rosinality's ``prepare_data.py`` for StyleGAN2 writes them; field ``image``."""

    layout = "resolutions"
    Options: ClassVar[type[ForeignOptions]] = ResolutionsOptions

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        found = resolutions(reader)
        return f"images in the resolutions {_listed(found)}" if found else None

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        found, count = resolutions(reader), entries_of(reader).count
        if not found or count is None:
            raise FormatError(
                f"{reader.url} is not a StyleGAN2 store: it lacks keys such as 256-00000 or the entry 'length'"
            )
        resolution = self._chosen(reader, found)
        said = count[1]
        self._check_count(
            reader, said * len(found) + len(entries_of(reader).keys), f"length says {said} images of each size"
        )
        unread = tuple(
            f"resolution {other}: {counted(said, 'image')}; resolution={other} reads it"
            for other in found
            if other != resolution
        )
        return LayoutInfo(NumberedKeys(said, width=_WIDTH), {"image": Field("image")}, how=resolution, unread=unread)

    def _chosen(self, reader: LmdbReader, found: list[int]) -> int:
        wanted: int | None = self._settings.resolution
        chosen = found[0] if wanted is None and len(found) == 1 else wanted
        if chosen not in found:
            what = "has no such resolution" if chosen is not None else "holds each image in several resolutions"
            raise ConfigError(
                f"{reader.url} {what}; pass one of them: {', '.join(f'resolution={one}' for one in found)}"
            )
        return chosen

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        return {"image": self._fetch(reader, self._full(key))}

    def _key_text(self, key: bytes) -> str:
        return self._full(key).decode()

    def _full(self, key: bytes) -> bytes:
        return b"%d-%b" % (self._info.how, key)


def resolutions(reader: LmdbReader) -> list[int]:
    """Return the resolutions of every image in ascending order; an empty list if the keys are of another form."""
    if reader.get(b"length") is None or entries_of(reader).count is None:
        return []
    found: list[int] = []
    key = reader.first_from(b"")
    while key is not None and (match := _KEY.fullmatch(key)) and len(found) < _MOST:
        found.append(int(match[1]))
        key = reader.first_from(match[1] + b"-:")  # a colon sorts after the digits
    image = reader.get(b"%d-%0*d" % (found[0], _WIDTH, 0)) if found else None
    return sorted(found) if image is not None and is_image(image) else []


def _listed(found: list[int]) -> str:
    return ", ".join(map(str, found))


WHOLE = -1
_CLIPS_SHOWN = 4
_FEW = 3  # two images in every value may be a pair, such as an image and its mask


def clips_of(reader: LmdbReader) -> Literal["certain", "possible"] | None:
    """Return whether the values are lists of frames; certain if their lengths differ, or if they have other parts too."""
    if "clips" not in reader.memo:
        reader.memo["clips"] = _clips_of(reader)
    found: Literal["certain", "possible"] | None = reader.memo["clips"]
    return found


def _clips_of(reader: LmdbReader) -> Literal["certain", "possible"] | None:
    try:
        values = [decode_tensorpack(value) for _, value in sample_records(reader, _CLIPS_SHOWN)]
    except (ValueError, MissingDependencyError):
        return None
    parts = {_frames_part(value) for value in values}
    if len(parts) != 1 or None in parts:
        return None
    (part,) = parts
    if part != WHOLE:
        return "certain"
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        return "certain"
    return "possible" if min(lengths) >= _FEW else None


def _frames_part(value: Any) -> Any:
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


_SAMPLES = 8
_NUMBER = 8  # bytes after a key for the number of the video, and again for the number of the frame
_FRAME_FIELDS = ("image", "video", "frame")


class FramesLmdb(ForeignLmdb):
    """Lists of encoded frames in pickle or msgpack; ``(frames, label)`` and ``{"frames": frames, "label": label}`` too.

    Fields: ``image``, ``video`` and ``frame`` (int), as `storeds.readers.VideoReader` expects, and the other parts.

    Notes
    -----
    The first opening reads every value to count the frames.
    """

    layout = "frames"

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        return "every value is a list of encoded images, which are the frames of a video" if clips_of(reader) else None

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        count = entries_of(reader).count
        if count is not None:
            self._check_count(
                reader, count[1] + len(entries_of(reader).keys), f"{count[0].decode()} says {count[1]} videos"
            )
        keys = self._index_keys(reader)
        samples = [
            self._clip(reader, key)
            for key in dict.fromkeys(key[: -2 * _NUMBER] for _, key in self._sample_keys(reader, keys, _SAMPLES))
        ]
        parts = {_frames_part(sample) for sample in samples}
        if len(parts) != 1 or None in parts:
            raise FormatError(f"{reader.url}: its values are not lists of encoded images, alone or with other parts")
        (part,) = parts
        others = self._others(reader, samples, part)
        fields = {
            "image": "image",
            "video": "int",
            "frame": "int",
            **{name: field for name, (_, field) in others.items()},
        }
        return LayoutInfo(keys, parse_fields(fields), how=(part, {name: place for name, (place, _) in others.items()}))

    def _others(self, reader: LmdbReader, samples: list[Any], part: Any) -> dict[str, tuple[Any, Field]]:
        """Return the parts other than the frames: name → place in the value, and field."""
        if part == WHOLE:
            return {}
        first = samples[0]
        places = [place for place in (first if isinstance(first, Mapping) else range(len(first))) if place != part]
        try:
            found = [merge([kind_of(sample[place]) for sample in samples], any_shape=False) for place in places]
        except (ValueError, KeyError, IndexError) as error:
            raise FormatError(f"{reader.url}: the parts other than the frames differ between values: {error}") from None
        names = [str(place) for place in places] if isinstance(first, Mapping) else names_for(found)
        if taken := set(_FRAME_FIELDS).intersection(names):
            raise FormatError(
                f"{reader.url}: {', '.join(sorted(taken))} is the name of a part and of a field of the layout"
            )
        return dict(zip(names, zip(places, found, strict=True), strict=True))

    def _find_keys(self, reader: LmdbReader) -> Iterable[bytes]:
        for number, key in enumerate(in_order_of_numbers(lambda: record_keys(reader))):
            for frame in range(self._length(reader, key)):
                yield key + number.to_bytes(_NUMBER, "big") + frame.to_bytes(_NUMBER, "big")

    def _length(self, reader: LmdbReader, key: bytes) -> int:
        """Return the number of frames of a video; a value that cannot be read counts as one record, an error."""
        try:
            value = self._clip(reader, key)
            part = _frames_part(value)
            return 1 if part is None else len(value if part == WHOLE else value[part])
        except ValueError:
            return 1

    def _clip(self, reader: LmdbReader, key: bytes) -> Any:
        """Return a value; the last one is cached, since a batch usually asks for all frames of a video."""
        kept, value = reader.memo.get("clip", (None, None))
        if kept != key:
            value = decode_tensorpack(self._fetch(reader, key))
            reader.memo["clip"] = (key, value)
        return value

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        key, video, frame = _split(key)
        values: dict[str, Any] = {"video": video, "frame": frame}
        if set(fields) <= values.keys():
            return values
        value = self._clip(reader, key)
        part, others = self._info.how
        declared = self._info.fields
        try:
            values["image"] = (value if part == WHOLE else value[part])[frame]
            values.update((name, coerce(declared[name], value[place])) for name, place in others.items())
        except (KeyError, IndexError, TypeError):
            raise ValueError("its value is not a list of frames, unlike the others") from None
        return values

    def _key_text(self, key: bytes) -> str:
        key, _, frame = _split(key)
        return f"{key_text(key)}/{frame}"


def _split(key: bytes) -> tuple[bytes, int, int]:
    video, frame = key[-2 * _NUMBER : -_NUMBER], key[-_NUMBER:]
    return key[: -2 * _NUMBER], int.from_bytes(video, "big"), int.from_bytes(frame, "big")
