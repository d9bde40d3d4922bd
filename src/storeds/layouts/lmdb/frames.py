"""Recognises values that are lists of frames, each an encoded image: one value is one video clip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from storeds.errors import FormatError, MissingDependencyError
from storeds.layouts.embedded import is_image
from storeds.layouts.lmdb.base import ForeignLmdb, Survey
from storeds.layouts.lmdb.decode import decode_msgpack, decompress
from storeds.layouts.lmdb.entries import entries_of, record_keys, sample_records
from storeds.layouts.lmdb.environment import Look, key_text
from storeds.layouts.lmdb.inference import coerce, kind_of, merge, names_for
from storeds.layouts.lmdb.keys import in_order_of_numbers
from storeds.layouts.lmdb.unpickler import unpickle
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = ["WHOLE", "FramesLmdb", "clips_of", "frames_part", "load_either"]


WHOLE = -1
_GLANCES = 4
_FEW = 3  # fewer images in every value may as well be a pair, such as a picture and its mask


def load_either(value: memoryview) -> Any:
    """Return what a pickle, or else msgpack, holds; raises ValueError."""
    # A pickle of protocol 2 and later begins with 0x80 and its protocol, and ends with a full stop.
    is_pickle = len(value) > 2 and value[0] == 0x80 and value[1] <= 5 and value[-1] == 0x2E
    return unpickle(value) if is_pickle else decode_msgpack(decompress(value))


def clips_of(look: Look) -> Literal["certain", "possible"] | None:
    """Return whether the values are lists of frames: certainly so where their lengths differ, or other parts stand beside."""
    if "clips" not in look.memo:
        look.memo["clips"] = _clips_of(look)
    found: Literal["certain", "possible"] | None = look.memo["clips"]
    return found


def _clips_of(look: Look) -> Literal["certain", "possible"] | None:
    try:
        values = [load_either(value) for _, value in sample_records(look, _GLANCES)]
    except (ValueError, MissingDependencyError):
        return None
    parts = {frames_part(value) for value in values}
    if len(parts) != 1 or None in parts:
        return None
    (part,) = parts
    if part != WHOLE:
        return "certain"
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        return "certain"
    return "possible" if min(lengths) >= _FEW else None


def frames_part(value: Any) -> Any:
    """Return where in a value its frames lie: `WHOLE`, an index or a key; None where there is no list of images, or several."""
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
_NUMBER = 8  # bytes behind a key for the video's number, and as many for the frame's
_OWN = ("image", "video", "frame")


class FramesLmdb(ForeignLmdb):
    """Lists of encoded frames in pickle or msgpack; ``(frames, label)`` and ``{"frames": frames, "label": label}`` too.

    Fields: ``image``, ``video`` and ``frame`` (int), which `storeds.readers.VideoReader` goes by, and the other parts.

    Notes
    -----
    The first opening reads every value, to count the frames.
    """

    layout = "frames"

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        return "every value is a list of encoded images, which are the frames of a video" if clips_of(look) else None

    def _survey(self, look: Look) -> Survey:
        count = entries_of(look).count
        if count is not None:
            self._check_count(
                look, count[1] + len(entries_of(look).keys), f"{count[0].decode()} says {count[1]} videos"
            )
        keys = self._index_keys(look)
        samples = [
            self._clip(look, key)
            for key in dict.fromkeys(key[: -2 * _NUMBER] for _, key in self._spread_keys(look, keys, _SAMPLES))
        ]
        parts = {frames_part(sample) for sample in samples}
        if len(parts) != 1 or None in parts:
            raise FormatError(f"{look.url}: its values are no lists of encoded images, alone or beside other parts")
        (part,) = parts
        others = self._others(look, samples, part)
        fields = {
            "image": "image",
            "video": "int",
            "frame": "int",
            **{name: field for name, (_, field) in others.items()},
        }
        return Survey(keys, parse_fields(fields), how=(part, {name: place for name, (place, _) in others.items()}))

    def _others(self, look: Look, samples: list[Any], part: Any) -> dict[str, tuple[Any, Field]]:
        """Return the parts beside the frames: name → where it lies, and its field."""
        if part == WHOLE:
            return {}
        first = samples[0]
        places = [place for place in (first if isinstance(first, Mapping) else range(len(first))) if place != part]
        try:
            found = [merge([kind_of(sample[place]) for sample in samples], any_shape=False) for place in places]
        except (ValueError, KeyError, IndexError) as error:
            raise FormatError(
                f"{look.url}: what stands beside the frames differs from value to value: {error}"
            ) from None
        names = [str(place) for place in places] if isinstance(first, Mapping) else names_for(found)
        if taken := set(_OWN).intersection(names):
            raise FormatError(f"{look.url}: {', '.join(sorted(taken))} beside the frames has the name of another field")
        return dict(zip(names, zip(places, found, strict=True), strict=True))

    def _find_keys(self, look: Look) -> Iterable[bytes]:
        for number, key in enumerate(in_order_of_numbers(lambda: record_keys(look))):
            for frame in range(self._length(look, key)):
                yield key + number.to_bytes(_NUMBER, "big") + frame.to_bytes(_NUMBER, "big")

    def _length(self, look: Look, key: bytes) -> int:
        """Return how many frames a video has; a value that does not read is a record that is an error."""
        try:
            value = self._clip(look, key)
            part = frames_part(value)
            return 1 if part is None else len(value if part == WHOLE else value[part])
        except ValueError:
            return 1

    def _clip(self, look: Look, key: bytes) -> Any:
        """Return a value, which is kept until another is read: the frames of a clip are mostly asked for together."""
        kept, value = look.memo.get("clip", (None, None))
        if kept != key:
            value = load_either(self._fetch(look, key))
            look.memo["clip"] = (key, value)
        return value

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        key, video, frame = _split(key)
        values: dict[str, Any] = {"video": video, "frame": frame}
        if set(fields) <= values.keys():
            return values
        value = self._clip(look, key)
        part, others = self._survey_found.how
        declared = self._survey_found.fields
        try:
            values["image"] = (value if part == WHOLE else value[part])[frame]
            values.update((name, coerce(declared[name], value[place])) for name, place in others.items())
        except (KeyError, IndexError, TypeError):
            raise ValueError("its value is no list of frames as the others are") from None
        return values

    def _key_text(self, key: bytes) -> str:
        key, _, frame = _split(key)
        return f"{key_text(key)}/{frame}"


def _split(key: bytes) -> tuple[bytes, int, int]:
    video, frame = key[-2 * _NUMBER : -_NUMBER], key[-_NUMBER:]
    return key[: -2 * _NUMBER], int.from_bytes(video, "big"), int.from_bytes(frame, "big")
