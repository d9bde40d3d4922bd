"""Compares what is read of a native store with the seals and checksums in its meta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from storeds.errors import FormatError, RecordError
from storeds.protocols import Array, Meta
from storeds.records.codec import Seals
from storeds.records.columns import SCALARS, text_column, text_offsets
from storeds.records.meta import meta_from_text

__all__ = ["Verifier", "native_meta"]


class Verifier:
    """The seals and checksums of one store; remembers which columns matched. Thread-safe.

    Attributes
    ----------
    seals : Seals
        Of the records.
    intact : set of str
        The columns that matched.
    """

    def __init__(self, meta: Meta, seals: Seals, checksums: Mapping[str, Any], url: str) -> None:
        self.seals = seals
        self._meta, self._checksums, self._url = meta, checksums, url
        self.intact: set[str] = set()
        self._damaged: set[str] = set()

    def column(self, name: str, parts: Sequence[Iterable[bytes]]) -> Array:
        """Return a column from its bytes, as `storeds.backends.raw.RawStore.column` gives them; raises FormatError."""
        found = [b"".join(part) for part in parts]
        for part, data in zip(self._parts(name), found, strict=True):
            if not self._matches(part, [data]):
                raise FormatError(f"{self._url}: column {part!r} does not match its checksum; copy it again")
        kind = self._meta.fields[name].kind
        if kind == "str":
            return text_column(found[0], np.frombuffer(found[1], "<i8").tolist())
        return np.frombuffer(bytearray(found[0]), SCALARS[kind])

    def is_intact(self, name: str, read: Callable[[], Sequence[Iterable[bytes]] | None]) -> bool:
        """Whether a column matches its checksum, so that its values need no seal; calls `read` the first time only."""
        if name not in self.intact and name not in self._damaged:
            try:
                parts = read() if self.has_checksum(name) else None
                is_intact = parts is not None and all(map(self._matches, self._parts(name), parts))
            except (FormatError, RecordError):  # whole records show which one is bad
                is_intact = False
            (self.intact if is_intact else self._damaged).add(name)
        return name in self.intact

    def has_checksum(self, name: str) -> bool:
        """Whether a field has a column that can be compared."""
        return name in self._checksums

    def _parts(self, name: str) -> list[str]:
        return [name, text_offsets(name)] if self._meta.fields[name].kind == "str" else [name]

    def _matches(self, part: str, data: Iterable[bytes]) -> bool:
        hasher = xxhash.xxh3_64()
        for piece in data:
            hasher.update(piece)
        return bool(hasher.hexdigest() == self._checksums.get(part))


def native_meta(text: str | bytes, url: str) -> tuple[Meta, Verifier]:
    """Return the meta of a native store from its text, and what verifies its records; raises FormatError."""
    meta, body = meta_from_text(text, url)
    seals = Seals.of(body.get("salt"), meta.count, url)
    return meta, Verifier(meta, seals, body.get("columns", {}), url)
