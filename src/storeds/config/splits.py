"""Selects the records of a split by the field ``split``, and finds records that two splits share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from storeds._utils.locations import glob_of
from storeds.backends.opening import open_backend, with_scheme
from storeds.errors import ConfigError, RecordError, StoredsError
from storeds.protocols import Backend, Field
from storeds.records.columns import check_where, matching_positions
from storeds.records.fields import NATIVE

if TYPE_CHECKING:
    from storeds.datasets.source import Source

__all__ = ["SPLIT", "Shared", "shared_records", "split_value", "with_split"]

SPLIT = "split"
_FILES = (None, "lmdb", "hdf5")


def split_value(name: str, fields: Mapping[str, Field] | None) -> str | int | None:
    """Return the value of the field ``split`` for split `name`, or None if `fields` has no such field.

    Without `fields`, the field is assumed to be text. Raises ConfigError if it holds integers and `name` is not one.
    """
    kind = "str" if fields is None else fields[SPLIT].kind if SPLIT in fields else None
    if kind == "int":
        try:
            return int(name)
        except ValueError:
            pass
        raise ConfigError(
            f"the store's field 'split' holds integers, so it has no value {name!r}; "
            f"set where = {{ split = 0 }}, or another number, in [splits.{name}.dataset]"
        )
    return name if kind == "str" else None


def with_split(where: Mapping[str, Any] | None, value: str | int) -> dict[str, Any]:
    """Return `where` with the added condition that the field ``split`` is `value`; raises ConfigError if none match."""
    if where is not None and SPLIT in where:
        taken = where[SPLIT]
        if value not in (taken if isinstance(taken, (list, tuple)) else [taken]):
            raise ConfigError(
                f"config: [dataset] where takes only records whose 'split' is {taken!r}, which leaves none for split "
                f"{value!r}; set where in [splits.{value}.dataset]"
            )
    return {**(where or {}), SPLIT: value}


class Shared(NamedTuple):
    """The records that two selections share: how many, and the first one."""

    records: int
    url: str
    position: int
    key: str | None


def shared_records(one: Source, backend: Backend, other: Source) -> Shared | None:
    """Return the records that `one`, whose store is open as `backend`, shares with `other`, or None.

    Two stores are the same if they are one file (by device and inode), one collection, one name in memory, or two
    native stores of equal content. Duplicate images under different records are not detected. Reads at most the columns
    that both conditions use. A store of `other` that cannot be opened shares nothing.
    """
    try:
        condition = _both(one.where, other.where, backend)
        if condition is None:
            return None
        for same in _same_stores(one, backend, other):
            found = _selected(same, condition)
            if found is not None:
                return found
    except StoredsError:  # the other's store is not there yet, or its table is wrong: it says so when it is built
        return None
    return None


def _both(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, backend: Backend) -> dict[str, Any] | None:
    """Return the condition for being selected by both, or None if no record at all can be."""
    fields, url = backend.meta.fields, backend.url
    condition = check_where(one or {}, fields, url)
    for name, values in check_where(other or {}, fields, url).items():
        condition[name] = [value for value in condition[name] if value in values] if name in condition else values
    return None if any(not values for values in condition.values()) else condition


def _selected(backend: Backend, condition: dict[str, Any]) -> Shared | None:
    positions = matching_positions(backend, condition) if condition else range(len(backend))
    if not len(positions):
        return None
    first = int(positions[0])
    key = None
    if "key" in backend.meta.fields:
        (record,) = backend.get_many([first], ("key",))
        key = None if isinstance(record, RecordError) else str(record["key"])
    return Shared(len(positions), backend.url, first, key)


class _Unit(NamedTuple):
    """One store among those that a source names."""

    place: tuple[Any, ...]
    how: str
    """The layout and the options, because they affect which records the store has."""
    url: str


def _same_stores(one: Source, backend: Backend, other: Source) -> Iterator[Backend]:
    """Yield each store, opened as `one` says, that `other` names too."""
    mine, theirs = list(_units(one)), list(_units(other))
    there = {unit.place: unit for unit in theirs}
    for unit in mine:
        if unit.place in there:
            own = backend if len(mine) == 1 else open_backend(unit.url, layout=one.layout, **one.options)
            their = there[unit.place]
            if unit.how == their.how or _holds_the_same(own, their, other, other.layout):
                yield own
    single = len(mine) == len(theirs) == 1 and backend.meta.layout == NATIVE
    if single and _may_be_copy(mine[0], theirs[0]) and _holds_the_same(backend, theirs[0], other, NATIVE):
        yield backend


def _may_be_copy(mine: _Unit, their: _Unit) -> bool:
    """Whether `their` is a different store on the same server or machine: another server may be slow or down."""
    near = their.place[0] in ("file", "memory") or mine.place[:2] == their.place[:2]
    return near and mine.place != their.place


def _holds_the_same(backend: Backend, unit: _Unit, source: Source, layout: str | None) -> bool:
    with open_backend(unit.url, layout=layout, **source.options) as other:
        return other.meta.id == backend.meta.id


def _units(source: Source) -> Iterator[_Unit]:
    for url in [source.url] if isinstance(source.url, str) else source.url:
        parsed = with_scheme(url)
        pattern = glob_of(parsed)
        if pattern is None:
            yield _Unit(_place(parsed.scheme, parsed.path), _how(source, parsed.options), parsed.text)
        else:
            how = _how(source, pattern.options)
            for path in pattern.paths():
                yield _Unit(_place(None, path), how, path)


def _how(source: Source, in_url: Mapping[str, str]) -> str:
    layout = None if source.layout in (NATIVE, "native") else source.layout
    options = {name: str(value) for name, value in {**in_url, **source.options}.items()}
    return json.dumps([layout, options], sort_keys=True)


def _place(scheme: str | None, path: str) -> tuple[Any, ...]:
    if scheme in _FILES:
        path = os.path.abspath(os.path.expanduser(path))
        inner = os.path.join(path, "data.mdb")  # an LMDB environment may be named by its folder
        try:
            status = os.stat(inner if os.path.isfile(inner) else path)
        except OSError:
            return "file", path
        return "file", status.st_dev, status.st_ino
    hosts, slash, rest = path.partition("?")[0].rpartition("@")[2].partition("/")
    return scheme, tuple(sorted(hosts.lower().split(","))), slash + rest
