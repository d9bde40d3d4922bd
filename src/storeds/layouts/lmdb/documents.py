"""Values that say what they are: JSON, msgpack and npz, each also compressed; what ase, fairchem and UNITER write among others."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from storeds.errors import MissingDependencyError
from storeds.layouts.lmdb.decode import (
    decode_json,
    decode_msgpack,
    decode_npz,
    decompress,
    is_compressed,
    is_msgpack_list,
    is_npz,
)
from storeds.layouts.lmdb.entries import KEYS, sample_records
from storeds.layouts.lmdb.environment import Look
from storeds.layouts.lmdb.frames import clips_of
from storeds.layouts.lmdb.inference import coerce, fitting, kind_of, merge
from storeds.layouts.lmdb.serialised import SerialisedLmdb
from storeds.protocols import Field

__all__ = ["JsonLmdb", "MsgpackLmdb", "NpzLmdb"]

_GLANCES = 3
_ARRAY = "__ndarray__"  # what ase calls an array in JSON: shape, dtype and numbers
_NUMBERS = "bif"


class _Documents(SerialisedLmdb):
    """Base: a subclass says how a value begins, and decodes it."""

    what: str

    @classmethod
    @abstractmethod
    def _decode(cls, value: memoryview) -> Any:
        """Return what a value holds; raises ValueError."""

    @classmethod
    @abstractmethod
    def _begins(cls, value: memoryview) -> bool:
        """Whether a value may be of this form, by its first bytes."""

    def _load(self, value: memoryview) -> Any:
        return self._decode(value)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        shown = sample_records(look, _GLANCES)
        if not shown or not all(cls._begins(value) for _, value in shown):
            return None
        try:
            found = [cls._decode(value) for _, value in shown]
        except MissingDependencyError as error:  # msgpack is what tools compress by lz4; opening raises it
            return str(error) if cls.layout == "msgpack" else None
        except ValueError:
            return None
        if not all(isinstance(content, (dict, list)) and content for content in found) or cls._is_another_s(look):
            return None
        return f"{cls.what} under keys such as {shown[0][0][:40]!r}"

    @classmethod
    def _is_another_s(cls, look: Look) -> bool:
        return False


class JsonLmdb(_Documents):
    """Mappings in JSON, plain or compressed by zlib, gzip or lz4, as ase's and fairchem's ``.aselmdb`` keep atoms.

    Lists of numbers are arrays. Text that is an image as base64 in every record is that image.
    """

    layout = "json"
    what = "JSON"

    @classmethod
    def _begins(cls, value: memoryview) -> bool:
        return bytes(value[:1]) in (b"{", b"[") or is_compressed(value)

    @classmethod
    def _decode(cls, value: memoryview) -> Any:
        content = decode_json(decompress(value))
        return {name: _array_of(item) for name, item in content.items()} if isinstance(content, dict) else content

    def _merged(self, values: list[Any]) -> Field:
        arrays = [_numbers(value) for value in values]
        if not all(array is not None for array in arrays):
            return super()._merged(values)
        # An empty list does not tell of what it is one, and integers stand among reals where JSON's writer cut ".0".
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


def _array_of(item: Any) -> Any:
    if not isinstance(item, dict) or set(item) != {_ARRAY}:
        return item
    shape, dtype, numbers = item[_ARRAY]
    return np.array(numbers, np.dtype(str(dtype))).reshape(shape)


def _numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a list of numbers, or of equally long lists of them, as an array; None for anything else."""
    if not isinstance(value, list):
        return None
    try:
        found = np.array(value)
    except ValueError:  # ragged
        return None
    return found if found.dtype.kind in _NUMBERS else None


class MsgpackLmdb(_Documents):
    """Mappings or lists in msgpack, plain or compressed by lz4, with arrays as msgpack-numpy packs them: UNITER's, for example."""

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
    def _is_another_s(cls, look: Look) -> bool:
        keys = look.get(KEYS)
        return (keys is not None and is_msgpack_list(keys)) or clips_of(look) == "certain"


class NpzLmdb(_Documents):
    """Arrays by name in an ``.npz`` each, as ``numpy.savez`` writes them: UNITER's image features, for example."""

    layout = "npz"
    what = "npz archives"

    @classmethod
    def _begins(cls, value: memoryview) -> bool:
        return is_npz(value)

    @classmethod
    def _decode(cls, value: memoryview) -> Any:
        return decode_npz(value)
