"""Reads many stores as one backend, with one range of positions over any mix of files, collections and engines."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import xxhash

from storeds.backends.base import StoreBackend, bounded
from storeds.backends.class_numbers import join_classes
from storeds.errors import ClosedError, ConfigError, FormatError, RecordError
from storeds.protocols import JSON, Array, Backend, Field, Meta, Place, Record
from storeds.records.arrays import read_arrays, stack_records, stackable
from storeds.records.columns import read_column
from storeds.records.meta import Count
from storeds.records.roles import role_text
from storeds.records.verdict_fields import without_verdicts
from storeds.records.where import check_where, matching_positions

__all__ = ["CONCATENATED", "ConcatenatedBackend"]


CONCATENATED = "concatenated"
_SHOWN = 2


class ConcatenatedBackend(StoreBackend):
    """Reads several stores as one: the records of the first, then those of the second, and so on.

    `open_backend` returns one for a list of URLs, or for a pattern such as ``hdf5://data/*.h5``.

    Parameters
    ----------
    members : iterable of Backend
        In order, consumed one by one. They close with the whole.
    url : str, optional
        The name of the whole; by default the URLs of the first members.

    Raises
    ------
    ConfigError
        There are no members, or their class names differ and cannot be joined.
    FormatError
        Members differ in their fields or in the order of the fields.

    Notes
    -----
    ``meta.id`` is a checksum over the members' ids in order, and ``meta.build`` over their builds. ``meta.attrs`` holds
    the attrs that are equal in all members. If class names differ, ``classes`` are those of all members in the order of
    first appearance, and every way of reading gives labels by these.

    A `RecordError` has this backend's ``url`` and position. Its message and ``reason`` also name the member and the
    position in it.

    A call reads the members that it needs one after the other, with one ``get_many`` each.
    """

    def __init__(self, members: Iterable[Backend], url: str | None = None) -> None:
        self._members: list[Backend] = []
        shared: dict[Any, Any] = {}
        for member in members:
            if self._members:
                _check_fields(self._members[0], member)
            _share_meta(member, shared)
            self._members.append(member)
        if not self._members:
            raise ConfigError("there is nothing to concatenate: the list of stores is empty")
        classes, self._numbers = join_classes(self._members)
        super().__init__(url or _names(self._members), _merged_meta(self._members, classes if self._numbers else None))
        self._ends: Array = np.cumsum([len(member) for member in self._members])
        self._starts: Array = self._ends - [len(member) for member in self._members]
        self._closed = False

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # closing one of them must not close the members of the other

    def __repr__(self) -> str:
        return f"ConcatenatedBackend({self.url!r}, count={self.meta.count}, members={len(self._members)})"

    def place(self, position: int, /) -> Place:
        """Return the store and position of the record at `position`; no I/O. Raises IndexError."""
        (at,) = self._check_positions([position]).tolist()
        number = int(np.searchsorted(self._ends, at, side="right"))
        return Place(self._members[number].url, at - int(self._starts[number]))

    def place_text(self, position: int) -> str:
        # docstring inherited
        place = self.place(position)
        member = self._members[int(np.searchsorted(self._ends, position, side="right"))]
        more = member.place_text(place.position) if isinstance(member, StoreBackend) else ""
        return f" (record {place.position} of {place.url}){more}"

    def select(self, where: Mapping[str, Any], /) -> Array:
        """Return the ascending int64 positions of records whose fields equal (or are in) the given values.

        Each member's engine selects its records if it can.
        """
        checked = check_where(where, self.meta.fields, self.url)
        self._check_open()
        found = [
            matching_positions(member, self._numbers[at].where(checked) if at in self._numbers else checked)
            for at, member in enumerate(self._members)
        ]
        return np.concatenate([each + start for each, start in zip(found, self._starts, strict=True)])

    def close(self) -> None:
        # docstring inherited
        self._closed = True
        for member in self._members:
            member.close()

    def stored_bytes(self) -> int | None:
        # docstring inherited
        sizes = [member.stored_bytes() if isinstance(member, StoreBackend) else None for member in self.members()]
        return None if None in sizes else sum(filter(None, sizes))

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        return {"members": len(self._members)}

    def advice(self) -> list[str]:
        # docstring inherited
        advice = [member.advice() for member in self.members() if isinstance(member, StoreBackend)]
        return list(dict.fromkeys(text for texts in advice for text in texts))

    def unread(self) -> list[str]:
        # docstring inherited
        unread = [member.unread() for member in self.members() if isinstance(member, StoreBackend)]
        return bounded(dict.fromkeys(entry for entries in unread for entry in entries))

    def leftovers(self) -> str | None:
        # docstring inherited
        found = (member.leftovers() for member in self.members() if isinstance(member, StoreBackend))
        return next((left for left in found if left is not None), None)

    def members(self) -> Iterator[Backend]:
        """Yield the stores, in order."""
        self._check_open()
        return iter(self._members)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        self._check_open()
        out: list[Record | RecordError] = []
        for number, first, inside in self._shares(np.array(positions, np.int64)):
            member, numbers = self._members[number], self._numbers.get(number)
            places: list[int] = inside.tolist()
            for at, found in enumerate(member.get_many(places, fields)):
                if numbers is not None and not isinstance(found, RecordError):
                    try:
                        found = numbers.record(found)
                    except ValueError as error:
                        found = RecordError.at(member.url, places[at], str(error))
                if isinstance(found, RecordError):
                    found = self._rename(found, positions[first + at], Place(member.url, places[at]))
                out.append(found)
        return out

    def _shares(self, positions: Array) -> Iterator[tuple[int, int, Array]]:
        """Yield the number of each member of ascending `positions`, the index of its first, and its own positions."""
        numbers = np.searchsorted(self._ends, positions, side="right")  # skips empty members
        inside = positions - self._starts[numbers]
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(positions)] if len(positions) else []
        for first, last in itertools.pairwise(cuts):
            yield int(numbers[first]), first, inside[first:last]

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        self._check_open()
        names, asked = stackable(self, fields), self._check_positions(positions)
        order = np.argsort(asked, kind="stable")
        try:
            found = [self._arrays(number, inside, names) for number, _, inside in self._shares(asked[order])]
        except ValueError:  # a RecordError too: read records instead, to raise the first one in the caller's order
            found = []
        if not found:
            return stack_records(self, asked, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
        places = np.argsort(order)
        return {name: np.concatenate([arrays[name] for arrays in found])[places] for name in names}

    def _arrays(self, number: int, inside: Array, names: Sequence[str]) -> dict[str, Array]:
        found = read_arrays(self._members[number], inside, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy
        numbers = self._numbers.get(number)
        return found if numbers is None else numbers.record(found)

    def _rename(self, error: RecordError, position: int, place: Place) -> RecordError:
        reason = f"{error.reason or error} (record {place.position} of {place.url})"
        renamed = type(error).at(self.url, position, reason, key=error.key, kind=error.kind)
        renamed.__cause__ = error.__cause__
        return renamed

    def _column(self, name: str, field: Field) -> Array:
        self._check_open()
        return np.concatenate([self._column_of(number, name) for number in range(len(self._members))])

    def _column_of(self, number: int, name: str) -> Array:
        column, numbers = read_column(self._members[number], name), self._numbers.get(number)
        if numbers is None or name not in numbers.tables:
            return column
        try:
            found: Array = numbers.values(name, column)
        except ValueError as error:
            at = int(np.flatnonzero((column >= len(numbers.tables[name])).reshape(len(column), -1).any(1))[0])
            place = Place(self._members[number].url, at)
            fault = RecordError.at(place.url, at, str(error))
            raise self._rename(fault, int(self._starts[number]) + at, place) from None
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.url} was closed; open it again with open_backend")


def _check_fields(first: Backend, member: Backend) -> None:
    """Raise FormatError if two stores differ in their fields or the order of these, apart from verdicts on pictures."""
    had, has = without_verdicts(first.meta.fields), without_verdicts(member.meta.fields)
    for one, other in itertools.zip_longest(had.items(), has.items()):
        if one != other:
            raise FormatError(
                f"stores with different fields cannot be read as one: {_described(one)} in {first.url}, and "
                f"{_described(other)} in {member.url}"
            )


def _share_meta(member: Backend, shared: dict[Any, Any]) -> None:
    """Make equal fields and attrs of all members one object, since there may be thousands of members."""
    if isinstance(member, StoreBackend):
        fields, attrs = member.meta.fields, member.meta.attrs
        fields, member._codec = shared.setdefault(tuple(fields.items()), (fields, member._codec))
        attrs = {name: shared.setdefault((name, _text(attrs, name)), value) for name, value in attrs.items()}
        member.meta = replace(member.meta, fields=fields, attrs=attrs)


def _names(members: Sequence[Backend]) -> str:
    more = len(members) - _SHOWN
    return f"[{', '.join([*(each.url for each in members[:_SHOWN]), *([f'{more} more'] if more > 0 else [])])}]"


def _merged_meta(members: Sequence[Backend], classes: JSON) -> Meta:
    """Return the meta of all members together, with these class names if theirs differ."""
    metas = [member.meta for member in members]
    fields, attrs = metas[0].fields, metas[0].attrs
    if any(meta.fields != fields for meta in metas):
        fields = without_verdicts(fields)  # not all members have verdicts on their pictures
    ids, builds = (
        "".join(f"{each}\n" for each in texts).encode() for texts in zip(*((m.id, m.build) for m in metas), strict=True)
    )
    crops = [meta.fast_crops for meta in metas if meta.fast_crops is not None]
    return Meta(
        xxhash.xxh3_128_hexdigest(ids),
        xxhash.xxh3_128_hexdigest(builds),
        Count(sum(meta.count for meta in metas)),
        CONCATENATED,
        fields,
        {
            name: attrs[name] if classes is None or name != "classes" else classes
            for name in attrs
            if (classes is not None and name == "classes") or len({_text(meta.attrs, name) for meta in metas}) == 1
        },
        sum(crops) if len(crops) == len(metas) else None,
    )


def _text(attrs: Mapping[str, JSON], name: str) -> str | None:
    # Compare as text: in Python, 1, 1.0 and True are equal.
    return json.dumps(attrs[name], sort_keys=True) if name in attrs else None


def _described(named: tuple[str, Field] | None) -> str:
    if named is None:
        return "there is no further field"
    name, field = named
    kind = f"{field.kind} {field.dtype} {list(field.shape or ())}" if field.kind == "array" else field.kind
    role = role_text(field)
    return f"{name!r} is {kind} ({role})" if role else f"{name!r} is {kind}"
