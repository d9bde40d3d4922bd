"""Opens LMDB files, and reads of them what LMDB does not tell: whether they are complete, and where their values lie."""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lmdb
import numpy as np

from storeds._utils.locations import CutShortError
from storeds.errors import ConfigError, FormatError
from storeds.protocols import Array
from storeds.records.fields import WRITTEN_BY

__all__ = ["check_length", "lmdb_errors", "open_environment", "page_ranges", "value_pages"]

_META = struct.Struct("<40xI92xQQ")  # of page 0 and 1: page size, last page, transaction id
_PAGE = struct.Struct("<10xHH2x")  # flags, end of the list of nodes
# Low and high half of a size, flags, size of the key. In branches, the first three number a page.
_NODE = struct.Struct("<HHHH")
_BRANCH = _BIG = 1  # flags of a page, and of a node whose value has pages of its own
_TREE = struct.Struct("<40xQ")  # root page of a named database
_COUNT_BITS = 24  # of a number that holds a page and how many: more than the pages of the largest value


def open_environment(path: str, *, readahead: bool, databases: int) -> Any:
    """Open a published file read-only and without a lock file."""
    return lmdb.open(
        path, subdir=False, readonly=True, lock=False, meminit=False, readahead=readahead, max_dbs=databases
    )


@contextmanager
def lmdb_errors(url: str) -> Iterator[None]:
    """Convert LMDB's errors about a file that is damaged, or that is no native store, to FormatError."""
    try:
        yield
    except lmdb.NotFoundError as error:
        raise FormatError(f"{url} is an LMDB file, but not a native store: {error}; {WRITTEN_BY}") from error
    except lmdb.Error as error:
        if "already open" in str(error):
            raise ConfigError(
                f"{url} was changed while this process has it open; close every backend of it first"
            ) from error
        raise FormatError(f"{url} cannot be read by LMDB: {error}; copy it again") from error


def check_length(descriptor: int, url: str) -> None:
    """Raise FormatError if an LMDB file is cut short: its reader would die of SIGBUS at the first missing page."""
    size = os.fstat(descriptor).st_size
    first = os.pread(descriptor, _META.size, 0)
    page_size: int = _META.unpack(first)[0] if len(first) == _META.size else 0
    second = os.pread(descriptor, _META.size, page_size)
    if not page_size or len(second) < _META.size:
        raise FormatError(f"{url} is cut short or damaged: {size} bytes do not hold an LMDB header; copy it again")
    last, _ = max((_META.unpack(page)[1:] for page in (first, second)), key=lambda meta: int(meta[1]))
    if (last + 1) * page_size > size:
        raise CutShortError(
            f"{url} is cut short: its header says {(last + 1) * page_size} bytes, the file has {size}; copy it again"
        )


def value_pages(descriptor: int, page_size: int, tree: bytes) -> Array:
    """Return the pages of each value in an LMDB file, in order of the keys, as int64.

    Parameters
    ----------
    descriptor, page_size : int
        Of the file.
    tree : bytes
        What the main database holds under the name of the database.

    Returns
    -------
    array
        First page × 2**24 + number of pages. Small values share one.
    """
    found = array.array("q")

    def walk(number: int) -> None:
        page = os.pread(descriptor, page_size, number * page_size)
        flags, end = _PAGE.unpack_from(page)
        for at in struct.unpack_from(f"<{end // 2 - _PAGE.size // 2}H", page, _PAGE.size):
            low, high, kind, key_size = _NODE.unpack_from(page, at)
            if flags & _BRANCH:
                walk(low | high << 16 | kind << 32)
            elif kind & _BIG:
                first = int.from_bytes(page[at + _NODE.size + key_size :][:8], "little")
                size = _PAGE.size + (low | high << 16)
                found.append(first << _COUNT_BITS | -(-size // page_size))
            else:
                found.append(number << _COUNT_BITS | 1)

    (root,) = _TREE.unpack(tree)
    if root < 1 << 63:  # otherwise the database is empty
        walk(root)
    return np.frombuffer(found, "<i8")


def page_ranges(pages: Array, page_size: int) -> tuple[Array, Array]:
    """Return the begins and ends of values in a file, in bytes, from elements of `value_pages`."""
    starts = (pages >> _COUNT_BITS) * page_size
    return starts, starts + (pages & (1 << _COUNT_BITS) - 1) * page_size
