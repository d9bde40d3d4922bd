"""The layout of records whose fields lie under keys of their own: ``0001_image`` and ``0001_mask``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import field_validator

from storeds.errors import FormatError
from storeds.layouts.codecs import decode_json, decode_npz, is_npz
from storeds.layouts.lmdb.base import ForeignLmdb, LayoutInfo
from storeds.layouts.lmdb.entries import entries_of
from storeds.layouts.lmdb.environment import ForeignOptions, LmdbReader, key_text
from storeds.layouts.lmdb.values import coerce, kind_of, merge
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = ["PairsLmdb", "PairsOptions"]

_INSPECTED = 16
_NAME = "{}"


class PairsOptions(ForeignOptions):
    """Options of the ``pairs`` layout.

    Attributes
    ----------
    columns : mapping of str to str
        Field → its keys, with ``{}`` for the name of the record: ``{"image": "{}_image", "mask": "{}_mask"}``. In a URL:
        ``columns=image:{}_image,mask:{}_mask``.
    """

    columns: tuple[tuple[str, str], ...] = ()

    @field_validator("columns", mode="before")
    @classmethod
    def _pairs(cls, columns: Any) -> Any:
        if isinstance(columns, str):
            parts = [part.partition(":") for part in columns.split(",")]
            columns = {name.strip(): keys.strip() for name, _, keys in parts}
        if not isinstance(columns, Mapping):
            return columns
        parse_fields(dict.fromkeys(columns, "int"))
        for name, keys in columns.items():
            if not isinstance(keys, str) or keys.count(_NAME) != 1:
                raise ValueError(
                    f"the keys of {name!r} are a text with one {{}} for the name of the record, not {keys!r}"
                )
        if len(set(columns.values())) != len(columns):
            raise ValueError("two fields have the same keys")
        return tuple(columns.items())


class PairsLmdb(ForeignLmdb):
    """One entry for each field of a record, under keys that share the name of the record.

    Fields: those of the option `columns`, and ``key``, the name. The keys of the first field list the records, in their
    order. Values are encoded images, JSON, NumPy's ``.npz`` with one array, or text; anything else is bytes.
    """

    layout = "pairs"
    Options: ClassVar[type[ForeignOptions]] = PairsOptions

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        columns = getattr(reader.opener.settings, "columns", ())
        return f"columns= names keys such as {columns[0][1]!r}" if columns else None

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        if not self._settings.columns:
            raise FormatError(
                f"{reader.url}: layout 'pairs' needs the keys of each field: options={{'columns': {{'image': '{{}}_image', "
                "'mask': '{}_mask'}}"
            )
        keys = self._index_keys(reader, *(f"{name}:{pattern}" for name, pattern in self._settings.columns))
        if not keys.count:
            raise FormatError(
                f"{reader.url} has no key of the form {self._settings.columns[0][1]!r}; it holds keys such as "
                f"{', '.join(repr(key_text(key)) for key, _ in reader.first(3))}"
            )
        sampled = [key for _, key in self._sample_keys(reader, keys, _INSPECTED)]
        fields = {name: self._field(reader, name, pattern, sampled) for name, pattern in self._settings.columns}
        left = reader.entries - len(entries_of(reader).keys) - keys.count * len(fields)
        unread = (f"{left} entries whose keys columns does not name",) if left > 0 else ()
        return LayoutInfo(keys, {**fields, "key": Field("str")}, unread=unread)

    def _field(self, reader: LmdbReader, name: str, pattern: str, keys: list[bytes]) -> Field:
        """Return the field that holds the values of a column, by some of them."""
        values = [value for key in keys if (value := reader.get(_key(pattern, key))) is not None]
        if not values:
            raise FormatError(
                f"{reader.url} has no entry {key_text(_key(pattern, keys[0]))!r}, which columns names for {name!r}"
            )
        contents = [_decoded(value) for value in values]
        try:
            return merge([kind_of(content) for content in contents], any_shape=True)
        except ValueError as error:
            if all(isinstance(content, (str, int, float)) for content in contents):
                return Field("str")  # texts, of which some look like numbers
            raise FormatError(f"{reader.url}: the values of {name!r} differ: {error}") from None

    def _find_keys(self, reader: LmdbReader) -> Iterable[bytes]:
        """Return the names of the records: what stands for {} in the keys of the first field."""
        before, after = (re.escape(part.encode()) for part in self._settings.columns[0][1].split(_NAME))
        found = re.compile(before + b"(.+)" + after, re.DOTALL)
        others = entries_of(reader).keys
        return (match[1] for key in reader.walk() if key not in others and (match := found.fullmatch(key)))

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {"key": self._key_text(key)}
        for name, pattern in self._settings.columns:
            if name in fields:
                values[name] = _value(self._info.fields[name], self._fetch(reader, _key(pattern, key)))
        return values

    def _key_texts(self, reader: LmdbReader) -> Iterator[str]:
        return map(self._key_text, self._find_keys(reader))


def _key(pattern: str, name: bytes) -> bytes:
    before, _, after = pattern.partition(_NAME)
    return before.encode() + name + after.encode()


def _value(declared: Field, value: memoryview) -> Any:
    if declared.kind in ("image", "bytes"):
        return value
    return str(value, "utf-8") if declared.kind == "str" else coerce(declared, _decoded(value))


def _decoded(value: memoryview) -> Any:
    """Return the content of a value, or its bytes."""
    blob = bytes(value)
    if kind_of(blob).kind == "image":
        return blob
    if is_npz(blob):
        arrays = decode_npz(blob)
        return next(iter(arrays.values())) if len(arrays) == 1 else blob
    try:
        return decode_json(blob)
    except ValueError:
        pass
    try:
        return blob.decode()
    except UnicodeDecodeError:
        return blob
