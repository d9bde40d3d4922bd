"""Reads many stores as one backend, with one range of positions over any mix of files, collections and engines."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import pickle
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import xxhash

from storeds.backends.base import StoreBackend, bounded
from storeds.errors import ClosedError, ConfigError, FormatError, RecordError
from storeds.protocols import JSON, Array, Backend, Field, Meta, Record
from storeds.records.columns import (
    SCALARS,
    check_where,
    column_of,
    matching_positions,
    read_arrays,
    read_column,
    stack_records,
    stackable,
)
from storeds.records.fields import UNCHECKED, Count, pictures, with_verdicts, without_verdicts
from storeds.records.roles import role_text

__all__ = ["CONCATENATED", "ConcatenatedBackend", "Place", "check_same_classes"]


CONCATENATED = "concatenated"
_SHOWN = 2
# Backends kept in memory, some KiB each; each engine's pool limits open handles to far fewer.
_LIVE = 512


_Kept: TypeAlias = Backend | tuple[type[StoreBackend], tuple[Any, ...]]


def _keep(member: Backend, shared: dict[Hashable, Any]) -> _Kept:
    """Close a member and return the class and arguments that restore it; other backends than `StoreBackend` stay open.

    There may be thousands, so equal fields and attrs of all members are one object, in `shared`.
    """
    if not isinstance(member, StoreBackend):
        return member
    fields, attrs = member.meta.fields, member.meta.attrs
    member.meta = replace(
        member.meta,
        fields=shared.setdefault(tuple(fields.items()), fields),
        attrs=shared.setdefault(json.dumps(attrs, sort_keys=True), attrs),
    )
    kept = type(member), member._recipe()
    member.close()
    return kept


def _restored(kept: Sequence[_Kept], number: int) -> Backend:
    found = kept[number]
    return found[0]._restore(*found[1]) if isinstance(found, tuple) else found


class Place(NamedTuple):
    """The store that holds a record of a concatenation, and the position in it."""

    url: str
    position: int


class ConcatenatedBackend(StoreBackend):
    """Reads several stores as one: the records of the first, then those of the second, and so on.

    `open_backend` returns one for a list of URLs, or for a pattern such as ``hdf5://data/*.h5``.

    Parameters
    ----------
    members : iterable of Backend
        In order, consumed one by one. A ``StoreBackend`` is closed after its meta is read, and restored for reading.
    url : str, optional
        The name of the whole; by default the URLs of the first members.

    Raises
    ------
    ConfigError
        There are no members, or their class names differ.
    FormatError
        Members differ in their fields or in the order of the fields.

    Notes
    -----
    ``meta.id`` is a checksum over the members' ids in order, and ``meta.build`` over their builds. ``meta.attrs`` holds
    the attrs that are equal in all members.

    A `RecordError` has this backend's ``url`` and position. Its message and ``reason`` also name the member and the
    position in it.

    A call reads the members that it needs one after the other, with one ``get_many`` each.
    """

    _unread: list[str] | None  # not pickled

    def __init__(self, members: Iterable[Backend], url: str | None = None) -> None:
        merger, kept, shared = _MetaMerger(), list[_Kept](), dict[Hashable, Any]()
        for member in members:
            merger.add(member)
            kept.append(_keep(member, shared))
        if not merger.counts:
            raise ConfigError("there is nothing to concatenate: the list of stores is empty")
        counts = np.array(merger.counts, np.int64)
        self._setup(url or merger.names(), merger.meta(), kept, counts)
        self._unread = bounded(merger.unread)

    def _setup(self, url: str, meta: Meta, kept: list[_Kept], counts: Array) -> None:
        super().__init__(url, meta)
        self._kept, self._counts = kept, counts
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        # lru_cache has no lock that a fork could copy locked. It does not refer to `self`, so handles are released with
        # `self`. A backend that is evicted during a read is closed after it.
        self._member: Callable[[int], Backend] = functools.lru_cache(_LIVE)(functools.partial(_restored, kept))
        self._closed = False
        self._unread = None

    def _recipe(self) -> tuple[Any, ...]:
        # Paths of one folder are nearly equal, so they compress well.
        return self.url, self.meta, zlib.compress(pickle.dumps(self._kept, pickle.HIGHEST_PROTOCOL), 1), self._counts

    @classmethod
    def _restore(cls, *recipe: Any) -> Self:
        url, meta, packed, counts = recipe
        backend = cls.__new__(cls)
        backend._setup(url, meta, pickle.loads(zlib.decompress(packed)), counts)  # noqa: S301  # its own pickle
        return backend

    def __repr__(self) -> str:
        return f"ConcatenatedBackend({self.url!r}, count={self.meta.count}, members={len(self._counts)})"

    def place(self, position: int) -> Place:
        """Return the store and position of the record at `position`; no I/O. Raises IndexError."""
        (at,) = self._check_positions([position]).tolist()
        number = int(np.searchsorted(self._ends, at, side="right"))
        return Place(self._member(number).url, at - int(self._starts[number]))

    def select(self, where: Mapping[str, Any], /) -> Array:
        """Return the ascending int64 positions of records whose fields equal (or are in) the given values.

        Each member's engine selects its records if it can.
        """
        checked = check_where(where, self.meta.fields, self.url)
        found = [self._select(member, checked) + start for start, member in self._members()]
        return np.concatenate(found).astype(np.int64, copy=False)

    def close(self) -> None:
        # docstring inherited
        self._closed = True
        self._member.cache_clear()  # type: ignore[attr-defined]  # declared as a plain callable
        for member in self._kept:
            if not isinstance(member, tuple):
                member.close()

    def stored_bytes(self) -> int | None:
        # docstring inherited
        total = 0
        for _, member in self._members():
            size = member.stored_bytes() if isinstance(member, StoreBackend) else None
            if size is None:
                return None
            total += size
        return total

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        return {"members": len(self._counts)}

    def advice(self) -> list[str]:
        # docstring inherited
        advice = [member.advice() for _, member in self._members() if isinstance(member, StoreBackend)]
        return list(dict.fromkeys(text for texts in advice for text in texts))

    def unread(self) -> list[str]:
        # docstring inherited
        if self._unread is None:
            left = [member.unread() for _, member in self._members() if isinstance(member, StoreBackend)]
            self._unread = bounded(dict.fromkeys(entry for entries in left for entry in entries))
        return list(self._unread)

    def leftovers(self) -> str | None:
        # docstring inherited
        found = (member.leftovers() for _, member in self._members() if isinstance(member, StoreBackend))
        return next((left for left in found if left is not None), None)

    def members(self) -> Iterator[Backend]:
        """Yield the stores, in order."""
        return (member for _, member in self._members())

    def _members(self) -> Iterator[tuple[int, Backend]]:
        """Yield the start position of each member, and the member."""
        self._check_open()
        for number, start in enumerate(self._starts.tolist()):
            yield start, self._member(number)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        self._check_open()
        out: list[Record | RecordError] = []
        for member, first, inside in self._shares(np.array(positions, np.int64)):
            places: list[int] = inside.tolist()
            lacking = self._lacking(member, fields)
            held = tuple(name for name in fields if name not in lacking) if lacking else fields
            for at, found in enumerate(member.get_many(places, held)):
                if isinstance(found, RecordError):
                    found = self._rename(found, positions[first + at], Place(member.url, places[at]))
                elif lacking:
                    found.update(lacking)
                out.append(found)
        return out

    def _select(self, member: Backend, where: Mapping[str, Sequence[Any]]) -> Array:
        """Return the matching positions of one member; without verdicts, all of its images count as unchecked."""
        rest = dict(where)
        for name, values in where.items():
            lacking = self._lacking(member, (name,))
            if lacking:
                if lacking[name] not in values:
                    return np.empty(0, np.int64)
                del rest[name]
        return matching_positions(member, rest) if rest else np.arange(len(member), dtype=np.int64)

    def _lacking(self, member: Backend, fields: Sequence[str]) -> dict[str, str | float]:
        """Return the verdict fields that only other members have, each with the value for unchecked images."""
        missing = (name for name in fields if name not in member.meta.fields)
        return {name: UNCHECKED if self.meta.fields[name].kind == "str" else math.nan for name in missing}

    def _shares(self, positions: Array) -> Iterator[tuple[Backend, int, Array]]:
        """Yield each member of ascending `positions`, the index of its first position, and its own positions."""
        numbers = np.searchsorted(self._ends, positions, side="right")  # skips empty members
        inside = positions - self._starts[numbers]
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(positions)]
        for first, last in itertools.pairwise(cuts):
            yield self._member(int(numbers[first])), first, inside[first:last]

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        self._check_open()
        names, asked = stackable(self, fields), self._check_positions(positions)
        order = np.argsort(asked, kind="stable")
        out = {name: _empty(self.meta.fields[name], len(asked)) for name in names}
        try:
            for member, first, inside in self._shares(asked[order]) if len(asked) else ():
                found = read_arrays(member, inside, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
                for name, array in found.items():
                    out[name][order[first : first + len(inside)]] = array
        except RecordError:  # read records instead, to raise the first error in the caller's order, with its URL
            return stack_records(self, asked, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
        return out

    def _rename(self, error: RecordError, position: int, place: Place) -> RecordError:
        reason = f"{error.reason or error} (record {place.position} of {place.url})"
        renamed = type(error).at(self.url, position, reason, key=error.key, kind=error.kind)
        renamed.__cause__ = error.__cause__
        return renamed

    def _column(self, name: str, field: Field) -> Array:
        column: Array | None = None
        for start, member in self._members():
            lacks = self._lacking(member, (name,))
            part = column_of(field, [lacks[name]] * len(member)) if lacks else read_column(member, name)
            if column is None:
                column = np.empty((self.meta.count, *part.shape[1:]), part.dtype)
            column[start : start + len(part)] = part
        assert column is not None
        return column

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.url} was closed; open it again with open_backend")


def _columns_of(member: Backend) -> dict[str, str]:
    """Return field → dataset of a foreign HDF5 file with parallel datasets; empty for other stores."""
    if member.meta.layout != "parallel" or not isinstance(member, StoreBackend):
        return {}
    where = member.handle_settings().get("where")
    return {name: str(path).lstrip("/") for name, path in where.items()} if isinstance(where, dict) else {}


def _empty(field: Field, count: int) -> Array:
    dtype = np.dtype(field.dtype).newbyteorder("=") if field.kind == "array" else SCALARS[field.kind]
    return np.empty((count, *(size or 0 for size in field.shape or ())), dtype)


class _MetaMerger:
    """Combines the metas of members, and raises an error for members that do not fit together."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._urls: list[str] = []
        self._ids, self._builds = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._fields: Mapping[str, Field] = {}
        self._judged = False  # whether a member has verdicts on its pictures
        self._fast_crops: list[int | None] = []
        self._attrs: dict[str, JSON] = {}
        self._with_classes: Backend | None = None
        self._columns: dict[str, str] = {}
        self.unread: dict[str, None] = {}  # each unread part once, as equal stores have the same

    def add(self, member: Backend) -> None:
        meta = member.meta
        if isinstance(member, StoreBackend):
            self.unread.update(dict.fromkeys(member.unread()))
        if not self.counts:
            self._fields, self._attrs = without_verdicts(meta.fields), dict(meta.attrs)
            self._columns = _columns_of(member)
        self._check_fields(member)
        self._check_classes(member)
        self._judged = self._judged or bool(pictures(meta.fields))
        self._fast_crops.append(meta.fast_crops)
        for name in [name for name in self._attrs if _text(meta.attrs, name) != _text(self._attrs, name)]:
            del self._attrs[name]
        self.counts.append(meta.count)
        if len(self._urls) < _SHOWN:
            self._urls.append(member.url)
        self._ids.update(f"{meta.id}\n".encode())
        self._builds.update(f"{meta.build}\n".encode())

    def names(self) -> str:
        more = len(self.counts) - len(self._urls)
        return f"[{', '.join([*self._urls, *([f'{more} more'] if more else [])])}]"

    def meta(self) -> Meta:
        ids, builds = self._ids.hexdigest(), self._builds.hexdigest()
        fields = with_verdicts(self._fields) if self._judged else self._fields
        known = [each for each in self._fast_crops if each is not None]
        fast_crops = sum(known) if len(known) == len(self.counts) else None
        return Meta(ids, builds, Count(sum(self.counts)), CONCATENATED, fields, self._attrs, fast_crops)

    def _check_fields(self, member: Backend) -> None:
        fields = without_verdicts(member.meta.fields)
        if list(fields.items()) == list(self._fields.items()):
            return
        first = self._urls[0]
        for name in (*self._fields, *fields):
            if fields.get(name) != self._fields.get(name):
                has, had = _described(fields.get(name)), _described(self._fields.get(name))
                raise FormatError(
                    f"stores with different fields cannot be read as one: {name!r} is {had} in {first}, and {has} in "
                    f"{member.url}{self._side_by_side(member)}"
                )
        raise FormatError(
            f"stores with different fields cannot be read as one: the order is {', '.join(self._fields)} in {first}, and "
            f"{', '.join(fields)} in {member.url}"
        )

    def _side_by_side(self, member: Backend) -> str:
        """Return advice on reading two files that hold columns of the same records, as PatchCamelyon's; or ``""``."""
        columns, first = _columns_of(member), self._urls[0]
        same_folder = os.path.dirname(first) == os.path.dirname(member.url)
        apart = columns.keys().isdisjoint(self._columns)
        if not (columns and self._columns and apart and same_folder and member.meta.count == self.counts[0]):
            return ""
        file = os.path.basename(member.url)
        both = {**self._columns, **{name: f"{file}::{where}" for name, where in columns.items()}}
        return f"; where both hold columns of the same records, open {first} with columns={both}"

    def _check_classes(self, member: Backend) -> None:
        if "classes" not in member.meta.attrs:
            return
        if self._with_classes is None:
            self._with_classes = member
        check_same_classes(self._with_classes, member)


def check_same_classes(one: Backend, other: Backend) -> None:
    """Raise ConfigError if both stores name their classes and the names differ."""
    names, others = (_text(each.meta.attrs, "classes") for each in (one, other))
    if names is not None and others is not None and names != others:
        raise ConfigError(
            f"{one.url} and {other.url} have different class names, so one label would mean different things: "
            f"{_short(names)} and {_short(others)}; pack both with the same classes, or open each by itself"
        )


def _text(attrs: Mapping[str, JSON], name: str) -> str | None:
    # Compare as text: in Python, 1, 1.0 and True are equal.
    return json.dumps(attrs[name], sort_keys=True) if name in attrs else None


def _described(field: Field | None) -> str:
    if field is None:
        return "absent"
    kind = f"{field.kind} {field.dtype} {list(field.shape or ())}" if field.kind == "array" else field.kind
    return f"{kind} ({role})" if (role := role_text(field)) else kind


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"
