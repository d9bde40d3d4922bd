"""Names what a native LMDB file holds: its databases, their keys, and the options of its URL."""

from __future__ import annotations

from storeds.backends.raw import BackendOptions

__all__ = ["COLUMNS", "COUNT_BITS", "META", "PAGES", "RECORDS", "LmdbOptions", "position_key"]

RECORDS, COLUMNS, META = b"records", b"columns", b"meta"
PAGES = b"_pages"  # among the columns: where the values lie in the file, as first page << COUNT_BITS | number of pages
COUNT_BITS = 24  # more than the pages of the largest value


class LmdbOptions(BackendOptions, frozen=True):
    """Options of ``lmdb://`` stores.

    Attributes
    ----------
    readahead : bool or None
        Let the kernel read ahead around what is read. By default it does so only for stores of other tools with large
        values: of native stores it knows what will be read.
    """

    readahead: bool | None = None


def position_key(position: int) -> bytes:
    """Return the key of a record: its position as 8 big-endian bytes."""
    return position.to_bytes(8, "big")
