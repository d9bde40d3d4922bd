"""Binds each stored record to its position and its store: the seal that lies beside it.

A seal is a 64-bit number: the record's checksum XOR the store's salt XOR the record's position. At another position, or in
another store, the same record has another seal. ``docs/decisions/0027`` compares ways to do this.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from storeds.errors import FormatError
from storeds.protocols import Array

__all__ = ["SEAL", "Places"]

SEAL = "_seal"
_SALTS = 1 << 62  # below the sign of an int64, which some engines have alone
_MISMATCH = "its checksum does not match its bytes, or it belongs to another store"


@dataclass(frozen=True, slots=True)
class Places:
    """The places where the records of one store lie.

    Attributes
    ----------
    salt : int
        Of the store: random, below 2**62.
    count : int
        How many records it has; 0 while a writer does not know yet.
    """

    salt: int = field(default_factory=lambda: secrets.randbelow(_SALTS))
    count: int = 0

    @classmethod
    def of(cls, text: Any, count: int, url: str) -> Self:
        """Return the places of a store of `count` records with the salt that its meta gives; raises FormatError."""
        try:
            salt = int(text, 16)
        except (TypeError, ValueError):
            salt = -1
        if not 0 <= salt < _SALTS:
            raise FormatError(f"{url}: the store's meta has no valid salt ({text!r}); write the store again")
        return cls(salt, count)

    @property
    def text(self) -> str:
        """The salt as meta has it, 16 hexadecimal digits."""
        return f"{self.salt:016x}"

    def seal(self, digest: bytes, position: int) -> bytes:
        """Return the seal, 8 big-endian bytes, of a record with this checksum."""
        return (int.from_bytes(digest, "big") ^ self.salt ^ position).to_bytes(8, "big")

    def seals(self, digests: Sequence[bytes], first: int) -> Array:
        """Return the seals, uint64, of records with these checksums, of which the first lies at `first`."""
        marks = self._marks(np.arange(first, first + len(digests)))
        seals: Array = marks ^ np.frombuffer(b"".join(digests), ">u8")
        return seals

    def digests(self, seals: Array, positions: Array) -> bytes:
        """Return the checksums, end to end, of records with these uint64 seals at these int64 positions."""
        return (self._marks(positions) ^ seals).astype(">u8").tobytes()

    def hold(self, digests: Sequence[bytes], seals: Sequence[bytes | memoryview], positions: Sequence[int]) -> bool:
        """Whether records with these checksums have these seals, 8 big-endian bytes each, at these positions."""
        if len(digests) == 1:
            return int.from_bytes(digests[0], "big") ^ int.from_bytes(seals[0], "big") ^ positions[0] == self.salt
        found = self.digests(np.frombuffer(b"".join(seals), ">u8"), np.array(positions, np.int64))
        return found == b"".join(digests)

    def _marks(self, positions: Array) -> Array:
        marks: Array = positions.view(np.uint64) ^ np.uint64(self.salt)
        return marks

    def fault(self, seal: Any, digest: bytes, position: int) -> str | None:
        """Return what is wrong with the record at `position`, whose checksum is `digest`, or None if it has this seal."""
        if type(seal) is not int:
            return "it has no seal"
        place = seal ^ int.from_bytes(digest, "big") ^ self.salt
        if place == position:
            return None
        if 0 <= place < self.count:
            return f"the record that lies there belongs to position {place}, or its seal is damaged"
        return _MISMATCH
