"""Keeps many names in little memory, and hashes them to a fingerprint."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence

import xxhash

from storeds.protocols import JSON

__all__ = ["Fingerprint", "Texts"]


class Texts(Sequence[str]):
    """A list of str that costs its UTF-8 bytes and 8 more for each, also when pickled.

    Parameters
    ----------
    texts : iterable of str
        No lone surrogates.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._blob = bytearray()
        self._ends = array("q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Add one text."""
        self._blob += text.encode()
        self._ends.append(len(self._blob))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # nobody slices it
        position = range(len(self._ends))[index]
        start = self._ends[position - 1] if position else 0
        return self._blob[start : self._ends[position]].decode()

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends:
            yield self._blob[start:end].decode()
            start = end


class Fingerprint:
    """Hashes what tells one listing from another; the same in every process."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, name: str, *numbers: int) -> None:
        """Take a name and what belongs to it."""
        data = name.encode()
        # Lengths first, so that no two lists of names run together to the same bytes.
        self._hash.update(struct.pack(f"<{len(numbers) + 1}q", len(data), *numbers))
        self._hash.update(data)

    def finish(self, kind: str, count: int) -> dict[str, JSON]:
        """Return the fingerprint of `count` items."""
        return {"kind": kind, "count": count, "xxh3": self._hash.hexdigest()}
