"""What a source of `pack` gives: its fields, and rows whose pictures are read later, in threads.

A source is a function that returns `Rows`. `Listing` counts the rows and cuts them into chunks. The idea of lazy references to
files is that of fsspec's ``OpenFile``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from storeds._utils.files import read_at
from storeds._utils.text import printable
from storeds.errors import ConfigError
from storeds.protocols import JSON, Backend, Field, Record

__all__ = ["Bad", "BadItem", "File", "Listing", "Part", "Reference", "Row", "Rows", "from_start", "read_file"]


class BadItem(Exception):  # noqa: N818  # `pack` handles it by its policy and never raises it to the caller
    """An item cannot be packed. The text is the reason, without the name of the item."""


@dataclass(frozen=True)
class Bad:
    """An item that cannot be packed.

    Attributes
    ----------
    name : str
        The item in messages: a path below the root, ``file.csv line 7``, ``shard.tar: member.jpg``.
    reason : str
        What is wrong with it.
    kept : bool
        It is packed all the same, with ``on_bad="keep"``.
    """

    name: str
    reason: str
    kept: bool = False

    def __str__(self) -> str:
        return f"{printable(self.name)}: {printable(self.reason)}"


class Reference:
    """A value of a row that is read later, in a thread, and perhaps never. Subclasses are cheap to create.

    Attributes
    ----------
    size : int
        About how many bytes `read` returns.
    state : tuple of int
        Numbers that change when the bytes change, for the fingerprint of the source.
    """

    __slots__ = ()
    size: int
    state: tuple[int, ...]

    def read(self) -> Any:
        """Return the value; raises `BadItem`. Thread-safe."""
        raise NotImplementedError


class File(Reference):
    """The bytes of a regular file.

    Parameters
    ----------
    path : str
    status : optional
        Of the file, if it is known.
    what : str
        What messages call the file, if it is not what gives the item its name.
    """

    __slots__ = ("path", "size", "state", "what")

    def __init__(self, path: str, status: os.stat_result | None = None, what: str = "") -> None:
        self.path, self.what = path, what
        try:
            status = status or os.stat(path)
        except (OSError, ValueError):  # reading the file reports why
            self.size, self.state = 0, (0, 0)
        else:
            self.size, self.state = status.st_size, (status.st_size, status.st_mtime_ns)

    def read(self) -> bytes:
        # docstring inherited
        try:
            return read_file(self.path)
        except BadItem as error:
            if not self.what:
                raise
            raise BadItem(f"{self.what} {error}") from None


class Part(Reference):
    """Some bytes of a file, such as a member of a tar archive.

    Parameters
    ----------
    path : str
    offset, size : int
        Bytes.
    status
        Of the file.
    """

    __slots__ = ("offset", "path", "size", "state")

    def __init__(self, path: str, offset: int, size: int, status: os.stat_result) -> None:
        self.path, self.offset, self.size = path, offset, size
        self.state = (offset, size, status.st_size, status.st_mtime_ns)

    def read(self) -> bytes:
        # docstring inherited
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status, data = os.fstat(descriptor), read_at(descriptor, self.size, self.offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise BadItem(f"{self.path} cannot be read: {error.strerror}") from None
        if (status.st_size, status.st_mtime_ns) != self.state[2:] or len(data) != self.size:
            raise BadItem(f"{self.path} changed after its members were listed")
        return data


@dataclass(frozen=True, slots=True)
class Row:
    """An item of a source.

    Attributes
    ----------
    name : str
        As for `Bad`.
    values : dict
        Field → its value, or a `Reference` to it.
    """

    name: str
    values: Mapping[str, Any]

    @property
    def size(self) -> int:
        """About how many bytes the item takes."""
        return sum(
            value.size if isinstance(value, Reference) else len(value)
            for value in self.values.values()
            if isinstance(value, (Reference, bytes))
        )

    def read(self) -> Record:
        """Return the values with every reference read; raises `BadItem`."""
        return {name: value.read() if isinstance(value, Reference) else value for name, value in self.values.items()}


@dataclass(kw_only=True)
class Rows:
    """A finite, ordered source of records.

    Parameters
    ----------
    fields : mapping of str to Field
        The fields of the new store, in order.
    items : callable
        ``items(start)`` yields each `Row` or `Bad` from item `start` on, in the same order every time. Called in the
        thread that packs, at least once to list the source (unless it has a `state`) and once to read it. For a
        source without random access, ``from_start(generator)``.
    attrs : mapping
        The attributes of the new store, such as class names.
    finish : callable, optional
        Turns the values of a row, read, into a record; raises `BadItem`. Called in threads.
    state : object
        Its ``repr`` changes when the items or their order change, as far as this can be seen without reading blobs. Resuming
        compares it. The default is all rows, and the sizes and times of their files.
    count : int, optional
        The number of items, if there is a state.
    strata : callable, optional
        Yields each `Row` with its ``key`` and ``label`` alone, or a `Bad`, for sources whose items are expensive.
    columns : mapping
        For a list or a table: each column and its field, or None for a column that is left out.
    notes : list of str
        Sentences that `pack` logs as warnings.
    late_notes : callable
        Returns more of them, about what listing and reading the items found.
    stores : sequence of Backend
        The stores that it reads. `pack` refuses to replace them.
    is_encoded : bool
        The source takes `max_side` and `quality`, and has applied them.
    """

    fields: Mapping[str, Field]
    items: Callable[[int], Iterable[Row | Bad]]
    attrs: Mapping[str, JSON] = field(default_factory=dict)
    finish: Callable[[Record], Record] | None = None
    state: object = None
    count: int | None = None
    strata: Callable[[], Iterable[Row | Bad]] | None = None
    columns: Mapping[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    late_notes: Callable[[], Iterable[str]] = list
    stores: Sequence[Backend] = ()
    is_encoded: bool = False

    def read(self, row: Row) -> Record:
        """Return the record of an item; raises `BadItem`. Thread-safe."""
        values = row.read()
        return values if self.finish is None else self.finish(values)


def from_start(generate: Callable[[], Iterable[Row | Bad]]) -> Callable[[int], Iterator[Row | Bad]]:
    """Return the ``items`` of a source whose rows cost little, from a generator function of all rows."""
    return lambda start: islice(generate(), start, None)


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

    def chunks(self, start: int, most_bytes: int, most_items: int) -> Iterator[tuple[range, list[Row | Bad]]]:
        """Yield the items from `start` on with their numbers, in chunks of about `most_bytes`.

        Raises
        ------
        ConfigError
            The source has fewer or more items than were listed.
        """
        chunk: list[Row | Bad] = []
        first, size = start, 0
        for item in self.rows.items(start) if self._few is None else self._few[start:]:
            chunk.append(item)
            size += item.size if isinstance(item, Row) else 0
            if size >= most_bytes or len(chunk) >= most_items:
                yield range(first, first + len(chunk)), chunk
                first, chunk, size = first + len(chunk), [], 0
        if chunk:
            yield range(first, first + len(chunk)), chunk
        if first + len(chunk) != self.count:
            raise ConfigError(
                f"the source has {first + len(chunk):,} items now, and had {self.count:,} when it was listed: it changed "
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


_READ = 1 << 20  # bytes


def read_file(path: str) -> bytes:
    """Return the bytes of a regular file; raises `BadItem`. It never blocks, as opening a FIFO would."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        hint = "; folders are separated by /, and this path has \\: replace it in the list" if "\\" in path else ""
        raise BadItem(f"cannot be read: {error.strerror}{hint}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadItem("is not a regular file")
        # Asking for one byte more than the size finds the end of the file in the same call.
        parts = [os.read(descriptor, status.st_size + 1)]
        while len(parts[0]) != status.st_size and parts[-1]:
            parts.append(os.read(descriptor, _READ))
    except OSError as error:
        raise BadItem(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts)
