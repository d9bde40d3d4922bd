"""Seals, which bind a packed record to its position and its store, and the checksum of a column that is read alone.

A seal is a 64-bit number: the checksum of the packed record XOR the salt of the store XOR the position. So a record that
was changed, moved within its store, or copied from another store does not match. ``docs/decisions/0027`` compares
alternatives.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import xxhash

from storeds.errors import FormatError
from storeds.protocols import Array

__all__ = ["SEAL", "Seals", "check_column", "column_checksum"]

SEAL = "_seal"
"""The name of the seal where an engine stores it as a field."""

_SALTS = 1 << 62  # fits into an int64 without its sign: some engines have no other integers
_MISMATCH = "its checksum does not match its bytes, or it belongs to another store"


@dataclass(frozen=True, slots=True)
class Seals:
    """Seals and checks the records of one store.

    Attributes
    ----------
    salt : int
        Random, below 2**62.
    count : int
        Number of records; 0 while a writer does not know it yet.
    """

    salt: int = field(default_factory=lambda: secrets.randbelow(_SALTS))
    count: int = 0

    @classmethod
    def of(cls, text: Any, count: int, url: str) -> Self:
        """Return the seals of a store of `count` records with the salt of its meta; raises FormatError."""
        try:
            salt = int(text, 16)
        except (TypeError, ValueError):
            salt = -1
        if not 0 <= salt < _SALTS:
            raise FormatError(f"{url}: the store's meta has no valid salt ({text!r}); write the store again")
        return cls(salt, count)

    @property
    def text(self) -> str:
        """The salt as in the meta: 16 hexadecimal digits."""
        return f"{self.salt:016x}"

    def seal(self, digest: bytes, position: int) -> bytes:
        """Return the seal, 8 big-endian bytes, of a record with this checksum."""
        return (int.from_bytes(digest, "big") ^ self.salt ^ position).to_bytes(8, "big")

    def match(self, digests: bytes, seals: bytes, positions: Sequence[int] | Array) -> bool:
        """Whether records with these checksums have these seals, 8 big-endian bytes each, end to end, at these positions."""
        if len(positions) == 1:  # without the overhead of NumPy
            return int.from_bytes(digests, "big") ^ int.from_bytes(seals, "big") ^ int(positions[0]) == self.salt
        marks = np.asarray(positions, np.int64).view(np.uint64) ^ np.uint64(self.salt)
        return bool((np.frombuffer(digests, ">u8") ^ np.frombuffer(seals, ">u8") == marks).all())

    def fault(self, seal: Any, digest: bytes, position: int) -> str | None:
        """Return the fault of the record at `position` with this seal and checksum, or None if they match."""
        if type(seal) is not int:
            return "it has no seal"
        place = seal ^ int.from_bytes(digest, "big") ^ self.salt
        if place == position:
            return None
        if 0 <= place < self.count:
            return f"the record there belongs to position {place}, or its seal is damaged"
        return _MISMATCH


def column_checksum(data: bytes | memoryview | Array) -> str:
    """Return the checksum of a column that is read alone: xxh3-64 of its bytes, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data.data if isinstance(data, np.ndarray) else data)


def check_column(name: str, data: bytes | memoryview | Array, expected: Any, url: str) -> None:
    """Raise FormatError if a column does not match its checksum in the meta of its store."""
    if column_checksum(data) != expected:
        raise FormatError(f"{url}: column {name!r} does not match its checksum; copy it again")
