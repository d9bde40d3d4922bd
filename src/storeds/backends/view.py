"""`View`: some records of some stores, read as one backend."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import xxhash

from storeds.backends.class_numbers import ClassNumbers
from storeds.backends.joining import alike, joined_meta, joined_url
from storeds.backends.positions import check_positions
from storeds.backends.unread import bounded
from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Backend, ChooseBoxes, Description, Meta, Place, Record, SupportsDescription
from storeds.records.arrays import read_arrays, stack_records, stackable
from storeds.records.columns import TEXT, check_has_column, read_column
from storeds.records.index import Index
from storeds.records.parts import choose_at, read_parts
from storeds.records.where import check_where, matching_positions

__all__ = ["View", "describe", "place_text", "position_in_whole", "stores_in", "whole"]

_FILE = "file"


class View:
    """Some records of some stores as one backend: those of the first store, then those of the second, and so on.

    `open_backend` returns one of all records for a list of URLs, or for a pattern such as ``hdf5://data/*.h5``.

    Parameters
    ----------
    stores : iterable of Backend
        In order, consumed one by one. They close with the view. They may be views.
    index : Index, optional
        Positions among the records of all stores, end to end. By default the view has all records.
    how : optional
        What selected the positions, such as the conditions of `select`. Messages show its text, and ``id`` depends on its ``repr``.
    url : str, optional
        The name of the stores together. By default the URLs of the first ones in brackets, or the URL of a single store
        of which there is an `index`.
    meta, counts : optional
        What the stores say together, and how many records each has, where that is known: then no store is asked before it is
        read. They have the fields and attributes of `meta`.

    Attributes
    ----------
    stores : list of Backend
    how

    Raises
    ------
    ConfigError
        There are no stores, or their class names differ and cannot be joined.
    FormatError
        Stores differ in their fields or in the order of the fields.

    Notes
    -----
    ``meta.id`` is a checksum over the ids of the stores in order, and ``meta.attrs`` holds the attributes that are equal in
    all stores. If class names differ, ``classes`` are those of all stores in the order of first appearance, and every way
    of reading gives labels by these. With an `index` of a single store, `Meta` is that of the store, except ``count``, and
    ``id`` and ``build``, which also depend on the selection.

    Errors count records as ``url`` does: a `RecordError` has the position among all records that ``url`` names. In a view
    of several stores, its message and ``reason`` also name the store and the position in it.

    A call reads the stores that it needs one after the other, with one ``get_many`` each.
    """

    url: str
    stores: list[Backend]
    how: Any

    def __init__(
        self,
        stores: Iterable[Backend],
        index: Index | None = None,
        how: Any = None,
        *,
        url: str | None = None,
        meta: Meta | None = None,
        counts: Sequence[int] | None = None,
    ) -> None:
        self.stores = alike(stores) if meta is None else stores  # type: ignore[assignment]  # then they are a sequence
        self.how, self._index = how, index
        self._numbers: dict[int, ClassNumbers] = {}
        self._names: tuple[str, ...] | None = None
        self._bounds: Array = np.cumsum([0, *(map(len, self.stores) if counts is None else counts)])
        # Of a part of one store, what the store returns is right as it is, errors included.
        self._only = self.stores[0] if index is not None and len(self.stores) == 1 and url is None else None
        if self._only is not None:
            self.url, found = self._only.url, self._only.meta
        else:
            self.url = url or joined_url(self.stores)
            found, self._numbers = joined_meta(self.stores) if meta is None else (meta, {})
        if index is not None:
            id_ = xxhash.xxh3_128_hexdigest(f"{found.id}\n{index.name if how is None else repr(how)}".encode())
            found = replace(found, id=id_, build=index.name, count=len(index))
        self.meta: Meta = found
        if meta is None and any(store.meta.fields != found.fields for store in self.stores):
            self._names = tuple(found.fields)

    def __len__(self) -> int:
        return self.meta.count

    def __repr__(self) -> str:
        of = f"{len(self.stores)} stores" if self._only is None else repr(self._only)
        return f"View({self.url!r}, {of}{'' if self.how is None else f', {self.how}'}, count={self.meta.count})"

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # closing one of them must not close the stores of the other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # docstring inherited
        for store in self.stores:
            store.close()

    # --- Reading ---

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        names = self._names if fields is None else self._check_fields(fields)
        asked = self._in_stores(self._checked(positions))
        if self._only is not None:
            return self._only.get_many(asked, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
        order, inside, shares = self._by_store(asked)
        places: list[int] = inside.tolist()
        found: list[Record | RecordError] = []
        for number, first, last in shares:
            found += self._read(number, places[first:last], names)
        if order is None:
            return found
        out: list[Any] = [None] * len(found)
        for at, each in zip(order.tolist(), found, strict=True):
            out[at] = each
        return out

    def _read(self, number: int, places: list[int], names: Sequence[str] | None) -> list[Record | RecordError]:
        """Return records of one store, as the view gives them."""
        return self._as_ours(self.stores[number].get_many(places, names), number, places)

    def _as_ours(self, found: list[Record | RecordError], number: int, places: list[int]) -> list[Record | RecordError]:
        """Return what a store gave for `places`, with the class numbers and errors of the view."""
        store, numbers = self.stores[number], self._numbers.get(number)
        for at, each in enumerate(found):
            if numbers is not None and not isinstance(each, RecordError):
                try:
                    each = found[at] = numbers.record(each)
                except ValueError as error:
                    each = RecordError.at(store.url, places[at], str(error))
            if isinstance(each, RecordError):
                found[at] = self._renamed(each, number, places[at])
        return found

    def _renamed(self, error: RecordError, number: int, place: int) -> RecordError:
        store = self.stores[number]
        reason = f"{error.reason or error} (record {position_in_whole(store, place)} of {store.url})"
        renamed = type(error).at(self.url, int(self._bounds[number]) + place, reason, key=error.key, kind=error.kind)
        renamed.__cause__ = error.__cause__
        return renamed

    def get_parts(
        self, positions: Sequence[int], choose: ChooseBoxes, /, fields: Sequence[str] | None = None
    ) -> list[Record | RecordError]:
        """Return parts of records; see `storeds.protocols.SupportsParts`."""
        names = tuple(self.meta.fields) if fields is None else self._check_fields(fields)
        asked = self._in_stores(self._checked(positions))
        if self._only is not None:
            return read_parts(self._only, asked.tolist(), choose, names)
        order, inside, shares = self._by_store(asked)
        places = np.arange(len(asked)) if order is None else order
        out: list[Any] = [None] * len(asked)
        for number, first, last in shares:
            at, within = places[first:last].tolist(), inside[first:last].tolist()
            found = read_parts(self.stores[number], within, partial(choose_at, choose, at), names)
            for place, each in zip(at, self._as_ours(found, number, within), strict=True):
                out[place] = each
        return out

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        names, checked = stackable(self, fields), self._checked(positions)
        asked = self._in_stores(checked)
        if self._only is not None:
            return read_arrays(self._only, asked, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
        order, inside, shares = self._by_store(asked)
        try:
            found = [self._arrays(number, inside[first:last], names) for number, first, last in shares]
        except ValueError:  # a RecordError too: read records instead, to raise the first one in the caller's order
            found = []
        if not found:
            return stack_records(self, checked, names)  # type: ignore[arg-type]  # as above
        if order is None:
            return found[0]
        back = np.argsort(order)
        return {name: np.concatenate([arrays[name] for arrays in found])[back] for name in names}

    def _arrays(self, number: int, inside: Array, names: Sequence[str]) -> dict[str, Array]:
        found = read_arrays(self.stores[number], inside, names)  # type: ignore[arg-type]  # as above
        numbers = self._numbers.get(number)
        return found if numbers is None else numbers.record(found)

    def column(self, name: str, /) -> Array:
        """Return a field of all records; see `storeds.protocols.SupportsColumns`.

        Of several stores without a field ``file``, it is the path of the store of each record, from the folder that holds all:
        folds and groups may keep what is in one file together.
        """
        if name == _FILE and name not in self.meta.fields:
            parts = self._files()
        else:
            self._check_fields([name])
            check_has_column(self.url, name, self.meta.fields[name])
            parts = [self._column(number, name) for number in range(len(self.stores))]
        column: Array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return column if self._index is None else column[self._index.positions]

    def _files(self) -> list[Array]:
        if len(self.stores) == 1:
            return [read_column(self.stores[0], _FILE)]
        paths = [store.url.partition("://")[2] for store in self.stores]
        are_files = all(path.startswith("/") for path in paths)
        start = len(os.path.commonpath([*map(os.path.dirname, paths)])) if are_files else 0
        named = zip(self.stores, paths, strict=True)
        return [np.full(len(store), path[start:].lstrip("/"), TEXT) for store, path in named]

    def _column(self, number: int, name: str) -> Array:
        store, numbers = self.stores[number], self._numbers.get(number)
        column = read_column(store, name)
        if numbers is None or name not in numbers.tables:
            return column
        try:
            found: Array = numbers.values(name, column)
        except ValueError as error:
            at = int(np.flatnonzero((column >= len(numbers.tables[name])).reshape(len(column), -1).any(1))[0])
            raise self._renamed(RecordError.at(store.url, at, str(error)), number, at) from None
        return found

    def member_numbers(self) -> Array:
        """Return the number of the store that has each record, shape (n,), int64; no I/O."""
        found: Array = np.repeat(np.arange(len(self.stores)), np.diff(self._bounds))
        if isinstance(self._only, View):
            found = self._only.member_numbers()
        return found if self._index is None else found[self._index.positions]

    def expect(self, numbers: Sequence[int]) -> None:
        """Say in which order the stores will be read first. One that is still copied is copied in this order."""
        if isinstance(self._only, View):
            self._only.expect(numbers)

    def select(self, where: Mapping[str, Any], /) -> Array:
        """Return the ascending int64 positions of records whose fields equal (or are in) the given values.

        The engine of each store selects its records if it can.
        """
        checked = check_where(where, self.meta.fields, self.url)
        found = []
        for number, store in enumerate(self.stores):
            numbers = self._numbers.get(number)
            own = matching_positions(store, checked if numbers is None else numbers.where(checked))
            found.append(own + self._bounds[number])
        if self._index is None:
            return np.concatenate(found)
        is_match = np.zeros(int(self._bounds[-1]), bool)
        is_match[np.concatenate(found)] = True
        return np.flatnonzero(is_match[self._index.positions])

    def _check_fields(self, fields: Sequence[str]) -> Sequence[str]:
        for name in fields:
            if name not in self.meta.fields:
                raise ConfigError(f"{self.url} has no field {name!r}; {suggest(name, self.meta.fields, 'fields')}")
        return fields

    def _checked(self, positions: Sequence[int]) -> Array:
        return check_positions(
            positions, self.meta.count, self.url if self._only is None else f"the selection from {self.url}"
        )

    def _in_stores(self, positions: Array) -> Array:
        """Return the positions among the records of all stores."""
        return positions if self._index is None else self._index.positions[positions]

    def _by_store(self, asked: Array) -> tuple[Array | None, Array, list[tuple[int, int, int]]]:
        """Divide positions among the records of all stores.

        Returns
        -------
        order : ndarray or None
            Sorts `asked` by store; None if a single store has all of them.
        inside : ndarray
            The positions in their stores, in that order.
        shares : list of tuple
            The number of each store, and the start and end of its positions in `inside`.
        """
        if not len(asked):
            return None, asked, []
        if len(self.stores) == 1:
            return None, asked, [(0, 0, len(asked))]
        numbers = np.searchsorted(self._bounds, asked, side="right") - 1  # the last of equal bounds: skips empty stores
        inside = asked - self._bounds[numbers]
        first = int(numbers[0])
        if not np.any(numbers != first):
            return None, inside, [(first, 0, len(asked))]
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
        return order, inside[order], list(zip(numbers[starts].tolist(), starts, [*starts[1:], len(asked)], strict=True))

    # --- What it says of itself ---

    def place(self, position: int, /) -> Place:
        """Return the store and position of a record; no I/O. Raises IndexError."""
        _, inside, ((number, _, _),) = self._by_store(self._in_stores(self._checked([position])))
        return place_in(self.stores[number], int(inside[0]))

    def describe(self) -> Description:
        # docstring inherited
        if self._only is not None:
            return describe(self._only)
        found = [describe(store) for store in self.stores]
        sizes = [each.bytes for each in found]
        return Description(
            bytes=None if None in sizes else sum(filter(None, sizes)),
            settings={"members": len(self.stores)},
            advice=list(dict.fromkeys(itertools.chain.from_iterable(each.advice for each in found))),
            unread=bounded(dict.fromkeys(itertools.chain.from_iterable(each.unread for each in found))),
            faults=bounded(dict.fromkeys(itertools.chain.from_iterable(each.faults for each in found))),
            leftovers=next((each.leftovers for each in found if each.leftovers is not None), None),
            writer=next((each.writer for each in found if each.writer is not None), None),
        )


def place_in(backend: Backend, position: int) -> Place:
    """Return where a record of any backend lies."""
    return backend.place(position) if isinstance(backend, SupportsDescription) else Place(backend.url, position)


def place_text(backend: Backend, position: int) -> str:
    """Return what names a record besides ``backend.url`` and its position: its store, its ``_id``; text to append to messages."""
    place = place_in(backend, position)
    of = "" if place.url == backend.url else f" (record {place.position} of {place.url})"
    return f"{of} ({place.name})" if place.name else of


def describe(backend: Backend) -> Description:
    """Return what a backend says of itself; a third party's may say nothing."""
    return backend.describe() if isinstance(backend, SupportsDescription) else Description()


def stores_in(backend: Backend) -> Iterator[Backend]:
    """Yield the stores that hold the records of a view, or the backend itself."""
    if isinstance(backend, View):
        for store in backend.stores:
            yield from stores_in(store)
    else:
        yield backend


def whole(backend: Backend) -> Backend:
    """Return the backend of all records that ``backend.url`` names."""
    if not isinstance(backend, View) or backend._index is None:
        return backend
    return View(backend.stores, url=backend.url) if backend._only is None else whole(backend._only)


def position_in_whole(backend: Backend, position: int) -> int:
    """Return the position of a record among all that ``backend.url`` names, as errors count."""
    if not isinstance(backend, View) or backend._index is None:
        return position
    at = int(backend._index.positions[position])
    return at if backend._only is None else position_in_whole(backend._only, at)
