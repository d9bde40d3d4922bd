"""Caffe's ``Datum`` messages: encoded images, or raw pixels and numbers, with a label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import field_validator

from storeds.errors import ConfigError, FormatError
from storeds.fields import parse_fields
from storeds.layouts._embedded import is_image
from storeds.layouts._lmdb_base import ForeignLmdb, Survey
from storeds.layouts._lmdb_datum import Datum, parse_datum
from storeds.layouts._lmdb_entries import entries_of, sample_records
from storeds.layouts._lmdb_env import ForeignOptions, Look
from storeds.layouts._lmdb_fields import fitting, merge
from storeds.layouts._lmdb_keys import Keys
from storeds.protocols import Array, Field

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
        Declare every dimension of an array as one that may differ from record to record.
    """

    fields: tuple[str, ...] | None = None
    any_shape: bool = False

    @field_validator("fields", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return tuple(given.split(",")) if isinstance(given, str) else given


@dataclass(frozen=True)
class _Names:
    data: str
    label: str
    key: str


class CaffeLmdb(ForeignLmdb):
    """Datum messages under any text keys, in the order of the keys' bytes, which is Caffe's own.

    Fields: ``image`` (encoded) or ``array`` (raw, channels x height x width: uint8, or float32 from ``float_data``),
    ``label`` (int) and ``key`` (str).
    """

    layout = "caffe"
    Options: ClassVar[type[ForeignOptions]] = CaffeOptions

    @property
    def _settings(self) -> CaffeOptions:
        settings = self._opener.settings
        assert isinstance(settings, CaffeOptions)
        return settings

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        first = sample_records(look, 2)[:2]
        if not first:
            return None
        try:
            found = [parse_datum(value) for _, value in first]
            kinds = {_field_of(datum).kind for datum in found}
        except ValueError:
            return None
        # A few bytes may be a message by chance; pixels that are as many as it says, or an image, are none.
        if any(datum.encoded and not is_image(datum.data) for datum in found) or not all(map(_has_pixels, found)):
            return None
        return f"Caffe Datum messages ({' and '.join(sorted(kinds))})"

    def _survey(self, look: Look) -> Survey:
        keys = self._index_keys(look)
        self._check_count(look, keys.count + len(entries_of(look).keys), f"its index lists {keys.count} keys")
        field = self._data_field(look, keys)
        given = self._settings.fields
        names = given or (field.kind, "label", "key")
        if len(names) != _PARTS:
            raise ConfigError(f"{look.url}: fields names {len(names)} of {_PARTS} parts: {field.kind}, label, key")
        fields = parse_fields(dict(zip(names, (field, Field("int"), Field("str")), strict=True)))
        if len(fields) != _PARTS:
            raise ConfigError(f"{look.url}: fields names one part twice: {', '.join(names)}")
        return Survey(keys, fields, how=_Names(*names))

    def _data_field(self, look: Look, keys: Keys) -> Field:
        found, failed = [], ""
        for position, key in self._spread_keys(look, keys, _SAMPLES):
            try:
                found.append(_field_of(parse_datum(look.get(key) or memoryview(b""))))
            except ValueError as error:
                failed = failed or f"record {position}: {error}"
        if failed and not found:
            raise FormatError(f"{look.url}: no record is a Datum message; {failed}")
        if not found:
            return Field("image")
        try:
            return merge(found, any_shape=self._settings.any_shape)
        except ValueError as error:
            raise FormatError(f"{look.url}: its messages differ: {error}") from None

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        names: _Names = self._survey_found.how
        values: dict[str, Any] = {names.key: key.decode()}
        if fields == (names.key,):
            return values
        datum = parse_datum(self._fetch(look, key))
        values[names.label] = datum.label
        if names.data in fields:
            values[names.data] = _value_of(datum, self._survey_found.fields[names.data])
        return values


def _has_pixels(datum: Datum) -> bool:
    return datum.encoded or (datum.channels > 0 and datum.height > 0 and datum.width > 0)


def _field_of(datum: Datum) -> Field:
    if datum.encoded:
        return Field("image")
    array = _pixels(datum)
    return Field("array", array.dtype.str, array.shape)


def _value_of(datum: Datum, field: Field) -> Any:
    if datum.encoded != (field.kind == "image"):
        raise ValueError(f"its Datum holds {'an encoded image' if datum.encoded else 'raw pixels'}, unlike others'")
    return datum.data if datum.encoded else fitting(field, _pixels(datum))


def _pixels(datum: Datum) -> Array:
    shape = (datum.channels, datum.height, datum.width)
    flat: Array = np.frombuffer(datum.data, np.uint8) if len(datum.data) else datum.floats
    if flat.size != shape[0] * shape[1] * shape[2]:
        raise ValueError(f"its Datum says {shape} and holds {flat.size} values")
    return flat.reshape(shape)
