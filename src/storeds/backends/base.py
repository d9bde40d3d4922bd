"""Common behaviour of backends: checks requests, orders reads, selects fields, pickles and closes.

`StoreBackend` is the base for any engine, `HandleBackend` for engines that keep a handle open. An engine implements how
to read `Meta`, sorted records and columns. Plug-ins may use both as base classes.
"""

from __future__ import annotations

import copy
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from storeds._utils.file_systems import file_system, file_system_advice
from storeds._utils.files import os_failure, staging_folder, stat_store
from storeds._utils.settings import Settings
from storeds._utils.urls import file_url
from storeds.backends.handles import HandlePool, HandleRef, Lease, Opener, OpenStore
from storeds.errors import ConfigError, RecordError, UnavailableError, suggest
from storeds.protocols import JSON, Array, Description, Field, Meta, Place, Record
from storeds.records.codec import RecordCodec, Seals
from storeds.records.columns import check_has_column

__all__ = [
    "BackendOptions",
    "FileBackend",
    "FileOpener",
    "Handle",
    "HandleBackend",
    "NativeStoreError",
    "StoreBackend",
    "bounded",
    "check_most_is_read",
    "check_positions",
    "log_unread",
]


class BackendOptions(Settings, frozen=True, kw_only=True):
    """Options of a backend, from the URL's ``?…`` or from keywords; a subclass declares its own.

    A subclass is a `msgspec.Struct`, and ``parsers`` may name a function for each option that is no plain value.
    """


Opts = TypeVar("Opts", bound=BackendOptions)


_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


class StoreBackend(ABC):
    """A backend over one engine: subclasses implement `_read`, `_column` and `close`.

    A pickle holds the attributes; one of `HandleBackend` leaves out its handle.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions
    shares_open_store: ClassVar[bool] = False
    """Whether the class takes a `StoreURL`, and ``opened=``, an `OpenStore`; without it, it takes the URL as text."""
    recognised: str | None = None
    """Why a store of another tool was opened as what it is, if no argument said so."""

    def __init__(self, url: str, meta: Meta) -> None:
        self.url = url
        self.meta = meta
        self._codec = RecordCodec(meta.fields)
        self._key_field = "key" if "key" in meta.fields and meta.fields["key"].kind == "str" else None

    @abstractmethod
    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        """Return the records at `positions`, which ascend strictly; records may contain more fields than requested."""

    @abstractmethod
    def _column(self, name: str, field: Field) -> Array:
        """Return a column of a field that is scalar, ``str`` or a fixed-shape array."""

    @abstractmethod
    def close(self) -> None: ...

    def __len__(self) -> int:
        return self.meta.count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, count={self.meta.count})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        wanted = self._check_fields(fields)
        if type(positions) is not list or set(map(type, positions)) != {int}:  # for a list of int, NumPy is slower
            positions = self._check_positions(positions).tolist()
        if not positions:
            return []
        ascending = sorted(set(positions))
        _check_bounds(ascending[0], ascending[-1], self.meta.count, self.url)
        found = self._read(ascending, wanted)
        if len(wanted) != len(self.meta.fields):
            found = [
                record if isinstance(record, RecordError) else {name: record[name] for name in wanted}
                for record in found
            ]
        by_position = dict(zip(ascending, found, strict=True))
        if len(ascending) == len(positions):
            return list(map(by_position.__getitem__, positions))
        return _copies_for(by_position, positions)

    def column(self, name: str, /) -> Array:
        # docstring inherited
        (name,) = self._check_fields([name])
        field = self.meta.fields[name]
        check_has_column(self.url, name, field)
        return self._column(name, field)

    def stored_bytes(self) -> int | None:
        """Return the size of the store in its engine, in bytes, or None if that is unknown."""
        return None

    def handle_settings(self) -> dict[str, JSON]:
        """Return the settings with which handles of this store are opened."""
        return {}

    def advice(self) -> list[str]:
        """Return advice about the store, its location or its settings; empty when nothing needs attention."""
        return []

    def unread(self) -> list[str]:
        """Return the parts of the store that no record contains: groups, datasets, keys, collections, columns, each with a reason.

        A foreign layout overrides this; use `storeds.backends.base.bounded`, so that the list stays short. It may read the store.
        """
        return []

    def leftovers(self) -> str | None:
        """Return the location of an interrupted write of this store, or None."""
        return None

    def writer(self) -> str | None:
        """Return the process that is currently rewriting this store, or None."""
        return None

    def describe(self) -> Description:
        # docstring inherited
        return Description(
            self.stored_bytes(),
            self.handle_settings(),
            self.advice(),
            self.unread(),
            self.recognised,
            self.leftovers(),
            self.writer(),
        )

    def place(self, position: int, /) -> Place:
        # docstring inherited
        (at,) = self._check_positions([position]).tolist()
        return Place(self.url, at, self.place_text(at).removeprefix(" (").removesuffix(")"))

    def place_text(self, position: int) -> str:
        """Return what else names a record in messages, such as its store or ``_id``: text to append, or ``""``."""
        return ""

    def _check_fields(self, fields: Sequence[str] | None) -> tuple[str, ...]:
        if fields is None:
            return tuple(self.meta.fields)
        for name in fields:
            if name not in self.meta.fields:
                raise ConfigError(f"{self.url} has no field {name!r}; {suggest(name, self.meta.fields, 'fields')}")
        return tuple(dict.fromkeys(fields))

    def _check_positions(self, positions: Sequence[int]) -> Array:
        return check_positions(positions, self.meta.count, self.url)

    def _unsealed(self, position: int, sealed: memoryview | bytes | None, seals: Seals) -> Record | RecordError:
        """Return the record of a packed map followed by its seal, or its error; None means that the bytes are missing."""
        try:
            if sealed is None:
                raise ValueError("it is missing from the store")
            return self._codec.verify_and_decode([sealed], [position], seals)[0]
        except ValueError as error:
            return self._fault(position, error)

    def _fault(self, position: int, reason: object, record: Mapping[str, Any] | None = None) -> RecordError:
        key = (record or {}).get(self._key_field) if self._key_field else None
        named = f"{reason}{self.place_text(position)}"
        return RecordError.at(self.url, position, named, key=key if isinstance(key, str) else None)


class NativeStoreError(ConfigError):
    """A store was to be read as one of another tool, and it is a native one."""


class Handle(Protocol):
    """An open engine handle with the meta of its store."""

    @property
    def meta(self) -> Meta: ...


H = TypeVar("H", bound=Handle)
Open = TypeVar("Open", bound=Opener[Any])


class HandleBackend(StoreBackend, Generic[H, Open]):
    """A backend that reads through a handle of a `HandlePool`, opened on first use in each process.

    The constructor reads `Meta` through a handle and releases it, so a parent usually holds no handle when workers start.
    """

    pool: ClassVar[HandlePool[Any]]

    def __init__(self, opener: Open, opened: OpenStore | None = None) -> None:
        self._opener = opener
        self._ref: HandleRef[H] = self.pool.ref(self, opener)
        self._ref.opened = opened
        try:
            with self._ref.lease() as handle:
                meta = None if self._is_stale(handle) else self._probe(handle)
            if meta is None:
                self._ref.invalidate()
                with self._ref.lease() as handle:
                    meta = self._probe(handle)
        finally:
            self._ref.opened = None
            self._ref.release()
        super().__init__(opener.url, meta)

    def _is_stale(self, handle: H) -> bool:
        """Whether a handle that another backend opened earlier reads a store that was replaced since."""
        return False

    def _probe(self, handle: H) -> Meta:
        """Return the meta of a store that is being opened; override it for checks that workers need not repeat."""
        return handle.meta

    def _build_of(self, handle: H) -> str:
        """Return the build of the store that a handle reads."""
        return handle.meta.build

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ref": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._ref = self.pool.ref(self, self._opener)

    def _lease(self) -> Lease[H]:
        """Keep the handle open for the body of a ``with``; raises UnavailableError if the store was replaced."""
        return Lease(self._ref, self._check_build)

    def _check_build(self, handle: H) -> None:
        build = self._build_of(handle)
        if build != self.meta.build:
            raise UnavailableError(
                f"{self.url} was replaced while in use or changed (build {self.meta.build} was opened, build {build} is there "
                "now); open it again"
            )

    def close(self) -> None:
        # docstring inherited
        self._ref.close()


def _copies_for(found: Mapping[int, Record | RecordError], asked: Sequence[int]) -> list[Record | RecordError]:
    # A record requested twice is returned as two copies: changing one must not change the other.
    out: list[Record | RecordError] = []
    given: set[int] = set()
    for position in asked:
        record = found[position]
        if position in given and not isinstance(record, RecordError):
            record = copy.deepcopy(record)
        given.add(position)
        out.append(record)
    return out


@dataclass(frozen=True)
class FileOpener(Generic[Opts]):
    """Base of openers of files: a subclass names its engine and opens a handle.

    Parameters
    ----------
    path : str
        Absolute.
    settings : BackendOptions
    """

    path: str
    settings: Opts
    engine: ClassVar[str]

    @property
    def url(self) -> str:
        return file_url(self.engine, self.path)

    @property
    def data_path(self) -> str:
        """The file that is opened."""
        return self.path

    def key(self, opened: OpenStore | None = None) -> Hashable:
        # By inode: h5py and py-lmdb open a file once, whatever its path; py-lmdb refuses to open it a second time.
        with OpenStore.borrow(opened) as store:
            status = store.check_file(self.data_path, self.engine, self.url)
        return status.st_dev, status.st_ino


class FileBackend(HandleBackend[H, Open]):
    """A backend of stores each of which is one file; its opener is a `FileOpener`."""

    shares_open_store = True

    @property
    def _path(self) -> str:
        path: str = self._opener.data_path  # type: ignore[attr-defined]  # only `Opener` is declared; subclasses use a FileOpener
        return path

    def stored_bytes(self) -> int | None:
        # docstring inherited
        return stat_store(self._path, self.url).st_size

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        return {"file_system": file_system(self._path)}

    def advice(self) -> list[str]:
        # docstring inherited
        return file_system_advice(self._path)

    def leftovers(self) -> str | None:
        # docstring inherited
        folder = staging_folder(self._path)
        try:
            is_left = folder.exists()
        except OSError as error:
            raise os_failure(f"{self.url}: {folder}", "looked at", error) from None
        return str(folder) if is_left and self.writer() is None else None

    def writer(self) -> str | None:
        # docstring inherited
        from storeds.backends.staging import active_writer

        return active_writer(self._path)


_LOG = logging.getLogger("storeds")
_MOST = 200  # entries that `unread` lists
_SHOWN = 6
_LONGEST_ENTRY = 160  # characters of an entry
_MORE = re.compile(r"and (\d+) more")


def bounded(entries: Iterable[str], most: int = _MOST) -> list[str]:
    """Return at most `most` entries, each shortened to one line; a last entry counts the omitted ones.

    Entries that count omitted ones themselves are added up.
    """
    out: list[str] = []
    more = 0
    for entry in entries:
        remainder = _MORE.fullmatch(entry)
        if remainder is not None:
            more += int(remainder[1])
        elif len(out) < most:
            out.append(entry if len(entry) <= _LONGEST_ENTRY else f"{entry[: _LONGEST_ENTRY - 1]}…")
        else:
            more += 1
    return [*out, f"and {more} more"] if more else out


def check_positions(positions: Sequence[int], count: int, url: str) -> Array:
    """Return positions of records as an int64 array.

    Raises
    ------
    TypeError
        They are not a sequence of integers.
    IndexError
        One lies outside ``[0, count)``.
    """
    try:
        asked = np.asarray(positions)
    except ValueError as error:  # lists of several lengths
        raise TypeError(f"positions must be a sequence of integers ({error})") from None
    if asked.ndim == 1 and not asked.size:
        return np.empty(0, np.int64)
    may_mix = isinstance(positions, (list, tuple)) or asked.dtype.kind == "O"
    if may_mix and not {bool, np.bool_}.isdisjoint(map(type, positions)):  # NumPy takes True among integers for 1
        raise TypeError("positions must be a sequence of integers, and one is a bool")
    # As an unsigned number, a negative one is greater than any count.
    if asked.dtype is _INT64 and asked.ndim == 1 and int(np.maximum.reduce(asked.view(_UINT64))) < count:
        return asked
    if asked.ndim == 1 and asked.dtype.kind in "fO" and all(isinstance(at, (int, np.integer)) for at in positions):
        asked = np.array(positions, object)  # too large for NumPy's integer types, so out of range
    elif asked.ndim != 1 or asked.dtype.kind not in "iu":
        raise TypeError(f"positions must be a sequence of integers, got {asked.dtype} of shape {asked.shape}")
    _check_bounds(int(asked.min()), int(asked.max()), count, url)
    return asked.astype(np.int64, copy=False)


def _check_bounds(low: int, high: int, count: int, url: str) -> None:
    if low < 0 or high >= count:
        raise IndexError(f"position {low if low < 0 else high} is outside [0, {count}) of {url}")


def log_unread(url: str, unread: Sequence[str]) -> None:
    """Log one warning that names the first unread parts of a store."""
    if unread:
        _LOG.warning("%s: not read: %s; `storeds info` lists all", url, "; ".join(bounded(unread, _SHOWN)))


def check_most_is_read(url: str, unread: Sequence[str], left: int, total: int, unit: str, advice: str) -> None:
    """Raise ConfigError if a layout would not read most of a store.

    Parameters
    ----------
    url : str
        Redacted.
    unread : sequence of str
        As `StoreBackend.unread` returns it.
    left, total : int
        The unread amount, and the total.
    unit : str
        Their unit: ``"bytes"``, ``"entries"``, ``"fields"``.
    advice : str
        The exact argument that reads the rest, and the one that ignores it.

    Raises
    ------
    ConfigError
        More than half is unread.
    """
    if 2 * left > total:
        raise ConfigError(
            f"{url}: most of it would not be read, {left:,} of {total:,} {unit}: {'; '.join(bounded(unread, _SHOWN))}; "
            f"{advice}"
        )
