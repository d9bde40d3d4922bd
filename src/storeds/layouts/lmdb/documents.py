"""Layouts of values that describe themselves: JSON, msgpack and npz, each also compressed.

Among others, ase, fairchem and UNITER write such stores.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from storeds.errors import MissingDependencyError
from storeds.layouts.codecs import (
    decode_document,
    decode_msgpack,
    decode_npz,
    decompress,
    is_compressed,
    is_msgpack_list,
    is_npz,
    numbers_of,
)
from storeds.layouts.lmdb.entries import KEYS, sample_records
from storeds.layouts.lmdb.environment import LmdbReader
from storeds.layouts.lmdb.images import clips_of
from storeds.layouts.lmdb.serialised import SerialisedLmdb
from storeds.layouts.lmdb.values import (
    coerce,
    fitting,
    kind_of,
    merge,
)
from storeds.protocols import Field

__all__ = ["JsonLmdb", "MsgpackLmdb", "NpzLmdb"]

_GLANCES = 3


class _Documents(SerialisedLmdb):
    """Base: a subclass recognises a value by its first bytes, and decodes it."""

    what: str

    @classmethod
    @abstractmethod
    def _decode(cls, value: memoryview) -> Any:
        """Return the content of a value; raises ValueError."""

    @classmethod
    @abstractmethod
    def _begins(cls, value: memoryview) -> bool:
        """Whether the first bytes of a value allow this form."""

    def _load(self, value: memoryview) -> Any:
        return self._decode(value)

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        shown = sample_records(reader, _GLANCES)
        if not shown or not all(cls._begins(value) for _, value in shown):
            return None
        try:
            found = [cls._decode(value) for _, value in shown]
        except MissingDependencyError as error:  # tools compress msgpack by lz4; opening raises this error
            return str(error) if cls.layout == "msgpack" else None
        except ValueError:
            return None
        if not all(isinstance(content, (dict, list)) and content for content in found) or cls._fits_another_layout(
            reader
        ):
            return None
        return f"{cls.what} under keys such as {shown[0][0][:40]!r}"

    @classmethod
    def _fits_another_layout(cls, reader: LmdbReader) -> bool:
        return False


class JsonLmdb(_Documents):
    """Mappings in JSON, plain or compressed by zlib, gzip or lz4, such as atoms in the ``.aselmdb`` files of ase and fairchem.

    Lists of numbers are arrays. Text that is a base64 image in every record is an image.
    """

    layout = "json"
    what = "JSON"

    @classmethod
    def _begins(cls, value: memoryview) -> bool:
        return bytes(value[:1]) in (b"{", b"[") or is_compressed(value)

    @classmethod
    def _decode(cls, value: memoryview) -> Any:
        return decode_document(value)

    def _merged(self, values: list[Any]) -> Field:
        arrays = [numbers_of(value) for value in values]
        if not all(array is not None for array in arrays):
            return super()._merged(values)
        # Empty lists have no type. Integers occur among reals because JSON writers drop ".0".
        kinds = {array.dtype for array in arrays if array is not None and array.size} or {np.dtype("<f8")}
        dtype = np.result_type(*kinds)
        found = [
            kind_of(array.astype(dtype)) for array in arrays if array is not None and (array.size or array.ndim > 1)
        ]
        return merge(found or [Field("array", "<f8", (None,))], any_shape=self._settings.any_shape)

    @staticmethod
    def _coerce(field: Field, value: Any) -> Any:
        # docstring inherited; a list of numbers is an array
        if field.kind != "array" or not isinstance(value, list):
            return coerce(field, value)
        array = np.array(value, field.dtype)
        if not array.size and array.ndim < len(field.shape or ()):
            array = array.reshape(tuple(size or 0 for size in field.shape or ()))
        return fitting(field, array)


class MsgpackLmdb(_Documents):
    """Mappings or lists in msgpack, plain or compressed by lz4, with arrays as msgpack-numpy packs them, for example UNITER's."""

    layout = "msgpack"
    what = "msgpack"

    @classmethod
    def _begins(cls, value: memoryview) -> bool:
        first = value[0] if len(value) else 0
        return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF or is_compressed(value)

    @classmethod
    def _decode(cls, value: memoryview) -> Any:
        return decode_msgpack(decompress(value))

    @classmethod
    def _fits_another_layout(cls, reader: LmdbReader) -> bool:
        keys = reader.get(KEYS)
        return (keys is not None and is_msgpack_list(keys)) or clips_of(reader) == "certain"


class NpzLmdb(_Documents):
    """One ``.npz`` archive per record, as ``numpy.savez`` writes it, for example UNITER's image features."""

    layout = "npz"
    what = "npz archives"

    @classmethod
    def _begins(cls, value: memoryview) -> bool:
        return is_npz(value)

    @classmethod
    def _decode(cls, value: memoryview) -> Any:
        return decode_npz(value)
