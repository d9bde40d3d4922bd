"""Two layouts of encoded images by key: text recognition with its labels, and any key with an image under it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

from storeds._utils.text import counted
from storeds.backends.readings import bounded
from storeds.errors import FormatError
from storeds.layouts.embedded import is_image, is_video
from storeds.layouts.lmdb.base import ForeignLmdb, Survey
from storeds.layouts.lmdb.entries import KEYS, beginning_of, entries_of, record_keys, sample_records
from storeds.layouts.lmdb.environment import DATA, ForeignOptions, Look, key_text
from storeds.layouts.lmdb.keys import NumberedKeys
from storeds.layouts.lmdb.resolutions import resolutions
from storeds.protocols import Field

__all__ = ["KeyedLmdb", "KeyedOptions", "OcrLmdb"]

_COUNT, _IMAGE = b"num-samples", b"image-"
_OWN = re.compile(rb"(image|label)-[0-9]{1,18}")
_NUMBERED_IMAGE = re.compile(rb"image-[0-9]{1,18}")
_META_INFO = "meta_info.txt"
_LINE = re.compile(r"(?P<name>.+?)(?: \(\d+, ?\d+(?:, ?\d+)?\)(?: -?\d+)?)?")
_GLANCES = 3


class OcrLmdb(ForeignLmdb):
    """Text recognition: ``num-samples``, ``image-000000001`` and ``label-000000001``, counted from 1 or from 0.

    Its fields are ``image`` and, unless no label is there, ``label`` (str). Other entries, a lexicon for instance, are left unread.
    """

    layout = "ocr"

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        value = look.get(_COUNT)
        if value is None:
            numbers = _first_number(look)
            return None if numbers is None else f"image-{numbers} and label-{numbers}, but no {_COUNT.decode()}"
        first = next((key for key in (b"image-%09d" % 1, b"image-%09d" % 0) if look.get(key) is not None), None)
        if first is None and bytes(value[:20]).strip(b"0 \n"):
            return None  # a count of other things
        return f"{_COUNT.decode()} ({bytes(value[:20])!r}){f' and {first.decode()}' if first else ''}"

    def _survey(self, look: Look) -> Survey:
        value = look.get(_COUNT)
        if value is None:
            return self._survey_uncounted(look)
        if not bytes(value).strip().isdigit() or len(value) > 18:
            raise FormatError(f"{look.url}: {_COUNT.decode()} is {bytes(value[:40])!r}, not a number of records")
        count = int(bytes(value))
        # Counted from 1 as a rule; some count from 0, and then have no image of the number `count`.
        start = 0 if look.get(b"image-%09d" % 0) is not None and look.get(b"image-%09d" % count) is None else 1
        last = start + count - 1
        labelled = count == 0 or any(look.get(b"label-%09d" % at) is not None for at in (start, start + 1, last))
        due = 1 + count * (1 + labelled)
        if look.entries < due or look.get(b"image-%09d" % (last + 1)) is not None:
            self._check_count(look, due, f"{_COUNT.decode()} says {count}")
        return self._survey_of(look, NumberedKeys(count, start=start, width=9), labelled=labelled)

    def _survey_uncounted(self, look: Look) -> Survey:
        """Find out about a store without a count, which tools write last: it may be half of one."""
        first = _first_number(look)
        if first is None:
            raise FormatError(f"{look.url} has no entry {_COUNT.decode()!r}, so it is no store of text recognition")
        width = len(first) if first.startswith("0") and len(first) > 1 else 0
        start = min(int(first), 1)
        last = max(int(key[len(_IMAGE) :]) for key in look.walk() if _NUMBERED_IMAGE.fullmatch(key))
        count = last - start + 1
        if not self._opener.settings.partial:
            raise FormatError(
                f"{look.url} has image-{first} and label-{first}, as stores of text recognition have, and no entry {_COUNT.decode()!r}, "
                f"which is written last: it may not be whole; write it again, put {_COUNT.decode()!r} in, or open it with "
                f"partial=True, which reads the {count} records up to the last image, {_IMAGE.decode()}{last:0{width}}"
            )
        return self._survey_of(look, NumberedKeys(count, start=start, width=width), labelled=True)

    def _survey_of(self, look: Look, keys: NumberedKeys, *, labelled: bool) -> Survey:
        unread = list[str]()
        if look.entries > len(entries_of(look).keys) + keys.count * (1 + labelled):
            known = {_COUNT, *entries_of(look).keys}
            others = (key for key in look.walk() if key not in known and not _OWN.fullmatch(key))
            unread = bounded(f"key {key_text(key)!r}: {beginning_of(look.get(key) or b'')}" for key in others)
        fields = {"image": Field("image")} | ({"label": Field("str")} if labelled else {})
        return Survey(keys, fields, unread=tuple(unread))

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in fields:
            value = self._fetch(look, b"%s-%s" % (name.encode(), key))
            values[name] = value if name == "image" else str(value, "utf-8")
        return values

    def _key_text(self, key: bytes) -> str:
        return f"image-{key.decode()}"


def _first_number(look: Look) -> str | None:
    """Return the digits of the first key if that is of an image, and a label of the same number is there."""
    for key, _ in look.first(1):
        if _NUMBERED_IMAGE.fullmatch(key) and look.get(b"label-" + key[len(_IMAGE) :]) is not None:
            return key[len(_IMAGE) :].decode()
    return None


class KeyedOptions(ForeignOptions):
    """Options of the ``keyed`` layout.

    Attributes
    ----------
    keys : str
        How field ``key`` shows a key: as ``"text"``, or in hexadecimal digits, ``"hex"``, where keys are no text.
    """

    keys: Literal["text", "hex"] = "text"


class KeyedLmdb(ForeignLmdb):
    """Any key with an encoded image or film under it, as BasicSR, mmengine and LSUN keep them.

    Fields: ``image`` (or ``video``, bytes) and ``key``. Records come in the order of the keys' bytes, or, where BasicSR left a ``meta_info.txt`` beside the data, in the
    order of its lines, which then say what belongs to the store.
    """

    layout = "keyed"
    Options: ClassVar[type[ForeignOptions]] = KeyedOptions

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        first = sample_records(look, _GLANCES)
        if not first or look.get(KEYS) is not None or OcrLmdb._looks(look) or resolutions(look):
            return None
        images, videos = (sum(test(value) for _, value in first) for test in (is_image, is_video))
        listed = _meta_info(look)
        if max(images, videos) == 0 or (max(images, videos) < len(first) and listed is None):
            return None
        what = "images" if images else "videos"
        return f"{what} under keys such as {first[0][0][:40]!r}{f', listed in {_META_INFO}' if listed else ''}"

    def _survey(self, look: Look) -> Survey:
        listed = _meta_info(look)
        if listed is None:
            keys = self._index_keys(look)
            why = f"its index lists {keys.count} keys"
        else:
            status = os.stat(listed)
            keys = self._index_keys(look, _META_INFO, status.st_size, status.st_mtime_ns)
            why = f"{_META_INFO} lists {keys.count}"
        self._check_count(look, keys.count + len(entries_of(look).keys), why)
        left = look.entries - keys.count - len(entries_of(look).keys)
        unread = (f"{counted(left, 'entry', 'entries')} that {_META_INFO} does not list",) if left > 0 else ()
        first = sample_records(look, 1)
        is_film = bool(first) and is_video(first[0][1])
        data = {"video": Field("bytes")} if is_film else {"image": Field("image")}
        return Survey(keys, {**data, "key": Field("str")}, unread=unread)

    def _find_keys(self, look: Look) -> Iterable[bytes]:
        listed = _meta_info(look)
        return self._checked(record_keys(look) if listed is None else _listed_keys(listed, look.url), look.url)

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
                        f"{url}: its key {key[:40].hex()} (in hexadecimal) is no text; keys='hex' shows keys in this way"
                    ) from None
            yield key

    def _key_text(self, key: bytes) -> str:
        return key.hex() if self._as_hex else key.decode()

    @property
    def _as_hex(self) -> bool:
        settings = self._opener.settings
        assert isinstance(settings, KeyedOptions)
        return settings.keys == "hex"

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {"key": self._key_text(key)}
        for name in fields:
            if name != "key":
                values[name] = self._fetch(look, key)
        return values


def _meta_info(look: Look) -> str | None:
    folder, name = os.path.split(look.opener.data_path)
    if name != DATA:
        return None
    path = os.path.join(folder, _META_INFO)
    return path if os.path.isfile(path) else None


def _listed_keys(path: str, url: str) -> Iterator[bytes]:
    """Yield the keys in lines such as ``0001_s001.png (480,480,3) 1``: the name without its suffix."""
    try:
        with open(path, encoding="utf-8") as lines:
            for line in filter(None, map(str.strip, lines)):
                match = _LINE.fullmatch(line)
                name = match["name"] if match else line
                yield os.path.splitext(name)[0].encode()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{url}: {_META_INFO} beside it does not read: {error}") from None
