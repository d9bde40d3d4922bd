"""Caffe's ``Datum`` messages: encoded images, or raw pixels and numbers, with a label."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import field_validator

from storeds.errors import ConfigError, FormatError
from storeds.layouts.codecs import Datum, is_image, parse_datum
from storeds.layouts.lmdb.base import ForeignLmdb, LayoutInfo
from storeds.layouts.lmdb.entries import entries_of, sample_records
from storeds.layouts.lmdb.environment import ForeignOptions, LmdbReader
from storeds.layouts.lmdb.keys import Keys
from storeds.layouts.lmdb.values import fitting, merge
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = ["CaffeLmdb", "CaffeOptions"]

_SAMPLES = 16
_PARTS = 3


class CaffeOptions(ForeignOptions):
    """Options of the ``caffe`` layout.

    Attributes
    ----------
    fields : str or list
        Other names for the image or array, the label and the key: ``"picture,class_id,name"``.
    any_shape : bool
        Allow every dimension of an array to differ between records.
    """

    fields: tuple[str, ...] | None = None
    any_shape: bool = False

    @field_validator("fields", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return tuple(given.split(",")) if isinstance(given, str) else given


class CaffeLmdb(ForeignLmdb):
    """Datum messages under text keys, in the order of the keys' bytes, as in Caffe.

    Fields: ``image`` (encoded) or ``array`` (raw, channels x height x width: uint8, or float32 from ``float_data``),
    ``label`` (int) and ``key`` (str).
    """

    layout = "caffe"
    Options: ClassVar[type[ForeignOptions]] = CaffeOptions

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        first = sample_records(reader, 2)[:2]
        if not first:
            return None
        try:
            found = [parse_datum(value) for _, value in first]
            kinds = {_field_of(datum).kind for datum in found}
        except ValueError:
            return None
        # A few bytes may be a message by chance, but not one with an image or the right number of pixels.
        if any(datum.encoded and not is_image(datum.data) for datum in found) or not all(map(_has_pixels, found)):
            return None
        return f"Caffe Datum messages ({' and '.join(sorted(kinds))})"

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        keys = self._index_keys(reader)
        self._check_count(reader, keys.count + len(entries_of(reader).keys), f"its index lists {keys.count} keys")
        field = self._data_field(reader, keys)
        given = self._settings.fields
        names = given or (field.kind, "label", "key")
        if len(names) != _PARTS:
            raise ConfigError(f"{reader.url}: fields names {len(names)} of {_PARTS} parts: {field.kind}, label, key")
        fields = parse_fields(dict(zip(names, (field, Field("int"), Field("str")), strict=True)))
        if len(fields) != _PARTS:
            raise ConfigError(f"{reader.url}: fields names one part twice: {', '.join(names)}")
        return LayoutInfo(keys, fields, how=names)

    def _data_field(self, reader: LmdbReader, keys: Keys) -> Field:
        found, failed = [], ""
        for position, key in self._sample_keys(reader, keys, _SAMPLES):
            try:
                found.append(_field_of(parse_datum(reader.get(key) or memoryview(b""))))
            except ValueError as error:
                failed = failed or f"record {position}: {error}"
        if failed and not found:
            raise FormatError(f"{reader.url}: no record is a Datum message; {failed}")
        if not found:
            return Field("image")
        try:
            return merge(found, any_shape=self._settings.any_shape)
        except ValueError as error:
            raise FormatError(f"{reader.url}: its messages differ: {error}") from None

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        data, label, key_field = self._info.how
        values: dict[str, Any] = {key_field: key.decode()}
        if fields == (key_field,):
            return values
        datum = parse_datum(self._fetch(reader, key))
        values[label] = datum.label
        if data in fields:
            values[data] = _value_of(datum, self._info.fields[data])
        return values


def _has_pixels(datum: Datum) -> bool:
    return datum.encoded or (datum.channels > 0 and datum.height > 0 and datum.width > 0)


def _field_of(datum: Datum) -> Field:
    if datum.encoded:
        return Field("image")
    array = datum.pixels
    return Field("array", array.dtype.str, array.shape)


def _value_of(datum: Datum, field: Field) -> Any:
    if datum.encoded != (field.kind == "image"):
        raise ValueError(f"its Datum holds {'an encoded image' if datum.encoded else 'raw pixels'}, unlike the others")
    return datum.data if datum.encoded else fitting(field, datum.pixels)
