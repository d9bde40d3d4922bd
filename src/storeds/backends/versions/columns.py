"""The bytes of a column of a version, which are an ``.npy`` file, and its name, which is a hash of them."""

from __future__ import annotations

import io

import numpy as np
import xxhash

from storeds.errors import FormatError
from storeds.protocols import Array
from storeds.records.columns import TEXT

__all__ = ["column_name", "decode_column", "encode_column"]


def encode_column(column: Array) -> bytes:
    """Return the bytes of a column; those of texts are two arrays, of bounds and of UTF-8."""
    data = io.BytesIO()
    if column.dtype == TEXT:
        texts = [text.encode() for text in column.tolist()]
        bounds = np.cumsum([0, *map(len, texts)], dtype="<i8")
        np.save(data, bounds)
        np.save(data, np.frombuffer(b"".join(texts), np.uint8))
    else:
        np.save(data, column.astype(column.dtype.newbyteorder("<"), copy=False), allow_pickle=False)
    return data.getvalue()


def column_name(data: bytes) -> str:
    """Return the name of the column with these bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def decode_column(data: bytes, name: str, where: str) -> Array:
    """Return the column with these bytes; raises FormatError, which shows `where`, if `name` is not theirs."""
    if column_name(data) != name:
        raise FormatError(f"{where} does not match its name, which is a hash of it: it is damaged; copy it again")
    file = io.BytesIO(data)
    column: Array = np.load(file, allow_pickle=False)
    if file.tell() == len(data):
        return column
    text = np.load(file, allow_pickle=False).tobytes()
    return np.array([text[a:b].decode() for a, b in zip(column[:-1].tolist(), column[1:].tolist(), strict=True)], TEXT)
