"""Rows of files: fields, and values of which some are references to files, read later and in threads.

A source of `pack` is a function that returns `Rows`; a folder or tar shards that open as a store are listed by the same functions.
The idea of lazy references to files is that of fsspec's ``OpenFile``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Self

from storeds._utils.files import read_at
from storeds._utils.text import printable
from storeds.protocols import JSON, Backend, Field, Record

__all__ = [
    "Bad",
    "BadItem",
    "File",
    "FileStatus",
    "OpenFiles",
    "Part",
    "Reference",
    "Row",
    "Rows",
    "from_start",
    "read_file",
]


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

    __slots__ = ("_status", "path", "what")

    def __init__(self, path: str, status: os.stat_result | None = None, what: str = "") -> None:
        self.path, self.what, self._status = path, what, status

    @property
    def size(self) -> int:  # type: ignore[override]  # found when it is needed: opening a folder asks for no sizes
        # docstring inherited
        return self.state[0]

    @property
    def state(self) -> tuple[int, ...]:  # type: ignore[override]
        # docstring inherited
        try:
            self._status = self._status or os.stat(self.path)
        except (OSError, ValueError):  # reading the file reports why
            return 0, 0
        return self._status.st_size, self._status.st_mtime_ns

    def read(self) -> bytes:
        # docstring inherited
        try:
            return read_file(self.path)
        except BadItem as error:
            if not self.what:
                raise
            raise BadItem(f"{self.what} {error}") from None


class FileStatus(NamedTuple):
    """Numbers that change with a file, named as `os.stat` names them."""

    st_size: int
    st_mtime_ns: int


class OpenFiles:
    """Files that are opened once each, and closed when a ``with`` block ends."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def descriptor(self, path: str) -> int:
        """Return the descriptor of the file at `path`; raises OSError."""
        if path not in self._descriptors:
            self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptors[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class Part(Reference):
    """Some bytes of a file, such as a member of a tar archive.

    Parameters
    ----------
    path : str
    offset, size : int
        Bytes.
    status : FileStatus or os.stat_result
        Of the file, when its members were listed.
    """

    __slots__ = ("offset", "path", "size", "state")

    def __init__(self, path: str, offset: int, size: int, status: FileStatus | os.stat_result) -> None:
        self.path, self.offset, self.size = path, offset, size
        self.state = (offset, size, status.st_size, status.st_mtime_ns)

    def read(self) -> bytes:
        # docstring inherited
        with OpenFiles() as files:
            return self.read_from(files)

    def read_from(self, files: OpenFiles) -> bytes:
        """Return the bytes, through an open file that several parts share; raises `BadItem`."""
        try:
            descriptor = files.descriptor(self.path)
            status, data = os.fstat(descriptor), read_at(descriptor, self.size, self.offset)
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
        Returns more of them, about what listing and reading the items found, and what they left out.
    watched : callable
        Returns the paths of the folders and files that were listed, each with its status before that. Any change of the items,
        except of the bytes of a file, changes one of these.
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
    watched: Callable[[], Mapping[str, os.stat_result]] = dict
    stores: Sequence[Backend] = ()
    is_encoded: bool = False

    def read(self, row: Row) -> Record:
        """Return the record of an item; raises `BadItem`. Thread-safe."""
        values = row.read()
        return values if self.finish is None else self.finish(values)


def from_start(generate: Callable[[], Iterable[Row | Bad]]) -> Callable[[int], Iterator[Row | Bad]]:
    """Return the ``items`` of a source whose rows cost little, from a generator function of all rows."""
    return lambda start: islice(generate(), start, None)


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
