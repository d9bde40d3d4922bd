"""Counts the rows of a source of `pack`, and cuts them into chunks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from storeds.errors import ConfigError
from storeds.layouts.files.rows import Bad, Reference, Row, Rows
from storeds.protocols import JSON

__all__ = ["Listing"]

_FEW = 20_000  # items that are kept after listing, some 15 MB


class Listing:
    """The items of a source, listed once.

    Parameters
    ----------
    rows : Rows
    strata : bool
        Whether keys and labels are needed.

    Attributes
    ----------
    count : int
        Bad items count.
    fingerprint : JSON
    strata : list of (str, label) or None
        The key and the label of each item, None for a bad one; the label is None if it cannot be read. Empty unless asked for.
    """

    def __init__(self, rows: Rows, *, strata: bool = False) -> None:
        self.rows = rows
        self.strata: list[tuple[str, Any] | None] = []
        self._few: list[Row | Bad] | None = None  # all items, if they are few
        hashed = xxhash.xxh3_64()
        if rows.state is not None and rows.count is not None:
            self.count = rows.count
            hashed.update(repr(rows.state).encode("utf-8", "backslashreplace"))
            if strata:
                self.strata = [_stratum(*each) for each in enumerate((rows.strata or partial(rows.items, 0))())]
        else:
            self.count, few = 0, list[Row | Bad]()
            for item in rows.items(0):
                if len(few) < _FEW:
                    few.append(item)
                if strata:
                    self.strata.append(_stratum(self.count, item))
                hashed.update(_visible(item).encode("utf-8", "backslashreplace"))
                self.count += 1
            self._few = few if len(few) == self.count else None
        # The items alone do not show the fields.
        declared = repr((list(rows.fields.items()), sorted(rows.attrs.items(), key=str)))
        fields = xxhash.xxh3_64_hexdigest(declared.encode("utf-8", "backslashreplace"))
        self.fingerprint: JSON = {"count": self.count, "xxh3": hashed.hexdigest(), "fields": fields}

    def chunks(
        self, start: int, stop: int, most_bytes: int, most_items: int
    ) -> Iterator[tuple[range, list[Row | Bad]]]:
        """Yield the items from `start` up to `stop` with their numbers, in chunks of about `most_bytes`.

        Raises
        ------
        ConfigError
            The source has fewer or more items than were listed.
        """
        chunk: list[Row | Bad] = []
        first, size = start, 0
        items = self.rows.items(start) if self._few is None else self._few[start:]
        for item in items if stop == self.count else islice(items, max(stop - start, 0)):
            chunk.append(item)
            size += item.size if isinstance(item, Row) else 0
            if size >= most_bytes or len(chunk) >= most_items:
                yield range(first, first + len(chunk)), chunk
                first, chunk, size = first + len(chunk), [], 0
        if chunk:
            yield range(first, first + len(chunk)), chunk
        if first + len(chunk) != max(stop, start):
            raise ConfigError(
                f"the source has {first + len(chunk):,} items now, and had {stop:,} when it was listed: it changed "
                "while it was packed; pack it again with overwrite=True (--overwrite)"
            )


def _stratum(number: int, item: Row | Bad) -> tuple[str, Any] | None:
    if isinstance(item, Bad):
        return None
    return str(item.values.get("key", number)), item.values.get("label")


def _visible(item: Row | Bad) -> str:
    """Return what is known of an item without reading it."""
    if isinstance(item, Bad):
        return repr((item.name, item.reason))
    shown: list[tuple[str, Any]] = []
    for name, value in item.values.items():
        if isinstance(value, Reference):
            value = value.state
        elif isinstance(value, np.ndarray):
            value = (value.dtype, value.shape, value.tobytes())
        shown.append((name, value))
    return repr((item.name, shown))
