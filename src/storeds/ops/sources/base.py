"""What a source of records for `pack` is, and how one of its items that cannot be packed is told."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from storeds._text import printable
from storeds.protocols import JSON, Field, Record

__all__ = ["BadItem", "PackSource", "Problem", "read_file", "strata_of"]


class BadItem(Exception):  # noqa: N818  # told by policy rather than raised to the user
    """An item cannot be packed; its text is the reason, without the item's name."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one item of a source.

    Attributes
    ----------
    name : str
        How messages call the item: a path below the root, ``file.csv line 7``, ``shard.tar: member.jpg``.
    reason : str
        What is wrong with it.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{printable(self.name)}: {printable(self.reason)}"


class PackSource(Protocol):
    """A finite, ordered source of records. Picklable; `read` may be called in any process, in any order.

    It need not be safe for threads: ``workers=0`` reads a source of yours in the thread that packs, and each worker
    process has its own.

    Attributes
    ----------
    fields : dict
        The declaration of the store to be, in order.
    attrs : dict
        Class names and the like.
    fingerprint : JSON
        Differs when items or their order differ, as far as can be told without reading blobs; short, whatever the
        number of items. A resumed pack compares it.
    problems : list of Problem
        Items found bad while listing, which `read` therefore does not offer.

    Notes
    -----
    Two more attributes are optional. ``notes``, a sequence of sentences, says what `pack` should warn about; ``columns``
    maps each column of a list to the field that it became, or to None. A method ``strata()`` yields the key and the label
    of each item, None for a label that cannot be read, without reading images: `pack` divides classes by it.
    """

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def attrs(self) -> Mapping[str, JSON]: ...

    @property
    def fingerprint(self) -> JSON: ...

    @property
    def problems(self) -> Sequence[Problem]: ...

    def __len__(self) -> int: ...

    def name(self, index: int, /) -> str:
        """Return how messages call item `index`."""
        ...

    def size(self, index: int, /) -> int:
        """Return about how many bytes item `index` takes, without reading it."""
        ...

    def read(self, index: int, /) -> Record:
        """Return the record of item `index`; raises `BadItem` with the reason."""
        ...


def strata_of(source: PackSource) -> Iterator[tuple[str, Any]]:
    """Yield the key and the label of each item: by the source's ``strata``, else by reading every item."""
    known = getattr(source, "strata", None)
    if known is not None:
        yield from known()
        return
    for index in range(len(source)):
        try:
            record = source.read(index)
            yield str(record.get("key", index)), record["label"]
        except BadItem:
            yield source.name(index), None


def read_file(path: str) -> bytes:
    """Return the bytes of a regular file; raises `BadItem`. Never waits, as opening a FIFO would."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadItem(f"cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadItem("is no regular file")
        return _read_all(descriptor, status.st_size)
    except OSError as error:
        raise BadItem(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    # One byte more than there should be shows in the same call that there is no more.
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:
        parts.append(os.read(descriptor, _PART))
    return b"".join(parts)


_PART = 1 << 20
