"""One store of any engine, as a backend: leases its handle, verifies rows, names bad records, and makes values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from storeds.backends.blocks import KeptBlocks
from storeds.backends.handles import POOL, HandleRef, Lease
from storeds.backends.positions import check_positions, outside
from storeds.backends.raw import Fault, Opener, RawStore, Rows
from storeds.backends.unread import bounded
from storeds.errors import ConfigError, RecordError, StoreNotFoundError, UnavailableError, suggest
from storeds.protocols import Array, ChooseBoxes, Description, Meta, Place, Record
from storeds.records.arrays import stack_packed, stack_records, stackable
from storeds.records.codec import RecordCodec
from storeds.records.columns import check_has_column, column_from_records
from storeds.records.meta import NATIVE
from storeds.records.parts import choose_at, parts_of_records, parts_of_stored
from storeds.records.verifier import Verifier
from storeds.records.where import check_where, positions_by_columns

__all__ = ["Store"]

_BATCH = 64  # records


class Store:
    """The `storeds.Backend` of one store. `storeds.open_backend` makes it; nothing derives from it.

    Parameters
    ----------
    opener : Opener
        Of the engine, or of a layout of another tool.

    Raises
    ------
    StoreNotFoundError, FormatError, UnavailableError, ConfigError
        Nothing exists there; it is not a complete store; the engine cannot be reached; an option is wrong.

    Notes
    -----
    *When does it read?* The constructor reads the meta through a handle and releases it, so that a process usually holds no
    handle when it forks. Reads open one on first use, and share it with other stores of the same file or server. *What is
    verified?* Records of native stores that are read whole, by their seals. Numbers and texts may be read alone, once their
    column matched its checksum. *Processes*: a pickle holds the opener and the meta.
    """

    def __init__(self, opener: Opener[Any]) -> None:
        self._opener = opener
        self._unread: list[str] | None = None
        self._begin()
        try:
            with Lease(self._ref) as handle:
                meta = self._opened(handle) if opener.is_current(handle) else None
            if meta is None:
                self._ref.invalidate()
                with Lease(self._ref) as handle:
                    meta = self._opened(handle)
        except BaseException:
            self._ref.close()
            raise
        self._ref.release()
        self.recognised: str | None = None
        """Why a plug-in claimed the store, if no argument said so."""
        self.url: str = opener.url
        self.meta: Meta = meta
        self._codec = RecordCodec(meta.fields)
        self._blocks = KeptBlocks(opener.url, meta)

    @classmethod
    def known(cls, opener: Opener[Any], meta: Meta) -> Self:
        """Return a store whose meta is known, without opening it; a read raises UnavailableError if another store is there."""
        store = cls.__new__(cls)
        store.__setstate__(
            {"_opener": opener, "recognised": None, "url": opener.url, "meta": meta, "_codec": RecordCodec(meta.fields)}
        )
        return store

    def through(self, wrap: Callable[[Opener[Any]], Opener[Any]]) -> Self:
        """Return the same store as it is opened by another opener, given the one of this store."""
        return self.known(wrap(self._opener), self.meta)

    def _begin(self) -> None:
        self._ref: HandleRef[Any] = POOL.ref(self, self._opener)
        self._needs_whole: dict[tuple[str, ...], bool] = {}
        self._is_renewed = False  # by this process

    def _opened(self, handle: Any) -> Meta:
        raw = self._opener.attach(handle)
        raw.check()
        self._opener = self._opener.settled(raw)
        self._unread = bounded(raw.unread())
        return raw.meta

    def __getstate__(self) -> dict[str, Any]:
        # What is not read may be a long list, and the process that opened the store has reported it.
        left_out = ("_ref", "_unread", "_needs_whole", "_is_renewed", "_blocks")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._unread = None
        self._blocks = KeptBlocks(self.url, self.meta)
        self._begin()

    def __len__(self) -> int:
        return self.meta.count

    def __repr__(self) -> str:
        return f"Store({self.url!r}, count={self.meta.count})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # docstring inherited
        self._ref.close()

    # Reading.

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        # docstring inherited
        wanted = self._check_fields(fields)
        if type(positions) is not list or set(map(type, positions)) != {int}:  # for a list of int, NumPy is slower
            positions = check_positions(positions, self.meta.count, self.url).tolist()
        if not positions:
            return []
        ascending = sorted(set(positions))
        if ascending[0] < 0 or ascending[-1] >= self.meta.count:
            raise outside(ascending[0], ascending[-1], self.meta.count, self.url)
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

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        """Return the records at `positions`, which ascend strictly; they may have more than the requested fields."""
        found, has_faults = self._read_once(positions, fields)
        if has_faults and not self._is_renewed:
            self._is_renewed = True
            if self._opener.renew():
                self._ref.invalidate()
                found, _ = self._read_once(positions, fields)
        return found

    def _read_once(self, positions: list[int], fields: tuple[str, ...]) -> tuple[list[Record | RecordError], bool]:
        with _Reading(self) as raw:
            verifier = raw.verifier
            if verifier is None or self._are_apart(raw, fields):
                found = raw.read(positions, fields).records
                has_faults = Fault in set(map(type, found))
            else:
                rows = raw.read(positions, None)
                found = rows.records
                has_faults = not verifier.seals.match(rows.digests, rows.seals, positions)
                if has_faults:
                    self._find_faults(verifier, rows, positions)
            if verifier is not None and self._codec.has_packed_values:
                has_faults = self._make_values(found) or has_faults
            return self._named(raw, found, positions) if has_faults else found, has_faults

    def _are_apart(self, raw: RawStore, fields: tuple[str, ...]) -> bool:
        """Whether these fields are read without their records, since their columns match their checksums."""
        if fields not in self._needs_whole:
            has_numbers_alone = all(field.is_scalar for field in self.meta.fields.values())
            is_whole = self._codec.needs_whole(fields) and not (has_numbers_alone and raw.has_flat_columns)
            self._needs_whole[fields] = is_whole
        return not self._needs_whole[fields] and self._are_intact(raw, fields)

    def _find_faults(self, verifier: Verifier, rows: Rows, positions: list[int]) -> None:
        """Put a fault in place of each record that does not match its seal."""
        for at, position in enumerate(positions):
            digest, seal = (each[8 * at : 8 * at + 8] for each in (rows.digests, rows.seals))
            fault = verifier.seals.fault(int.from_bytes(seal, "big"), digest, position)
            if fault is not None and not isinstance(rows.records[at], Fault):
                rows.records[at] = Fault(fault, _key_in(rows.records[at]))

    def _make_values(self, records: list[Any]) -> bool:
        """Convert values as msgpack unpacks them to those that users get; return whether a record has others, now a fault."""
        convert, has_faults = self._codec.to_user_values, False
        for at, record in enumerate(records):
            if type(record) is dict:
                try:
                    convert(record)
                except ValueError as error:
                    records[at], has_faults = Fault(str(error), _key_in(record)), True
        return has_faults

    def _named(self, raw: RawStore, records: list[Any], positions: list[int]) -> list[Record | RecordError]:
        """Return records with an error that names its place instead of each fault."""
        return [
            RecordError.at(self.url, position, each.reason + _in_brackets(raw.name(position)), key=each.key)
            if isinstance(each, Fault)
            else each
            for each, position in zip(records, positions, strict=True)
        ]

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields of many records as arrays; see `storeds.protocols.SupportsBatchArrays`."""
        names = stackable(self, fields)
        asked = check_positions(positions, self.meta.count, self.url)
        if len(asked):
            with _Reading(self) as raw:
                found = self._stacked(raw, asked, names)
            if found is not None:
                return found
        # Reading the records one by one reports which one is bad, and why.
        return stack_records(self, asked, names)  # type: ignore[arg-type]  # typed as a Sequence, which ndarray is not for mypy

    def _stacked(self, raw: RawStore, positions: Array, names: Sequence[str]) -> dict[str, Array] | None:
        verifier, declared = raw.verifier, self.meta.fields
        is_alone = verifier is None or (
            all(declared[name].is_scalar for name in names) and self._are_intact(raw, names)
        )
        found = raw.stacked(positions, names, whole=not is_alone)
        if is_alone or verifier is None:
            return None if found is None else found.arrays
        if found is not None:
            return found.arrays if verifier.seals.match(found.digests, found.seals, positions) else None
        unique, places = np.unique(positions, return_inverse=True)
        rows = raw.read(unique.tolist(), None)
        if not verifier.seals.match(rows.digests, rows.seals, unique):
            return None
        try:
            return stack_packed([rows.records[at] for at in places.tolist()], names, declared)
        except (ValueError, TypeError):  # a value is not as declared
            return None

    def get_parts(
        self, positions: Sequence[int], choose: ChooseBoxes, /, fields: Sequence[str] | None = None
    ) -> list[Record | RecordError]:
        """Return parts of records; see `storeds.protocols.SupportsParts`.

        Of native stores, small records are read whole, and others the first time, to verify them.
        """
        wanted = self._check_fields(fields)
        asked: list[int] = check_positions(positions, self.meta.count, self.url).tolist()
        unique, out = sorted(set(asked)), dict[int, Record | RecordError]()
        with _Reading(self) as raw:
            if raw.verifier is not None:
                stored = self._blocks.records(raw, unique, wanted, lambda position: self.get_many([position])[0])
            else:
                found = raw.arrays(unique, wanted)
                stored = {} if found is None else dict(zip(unique, found.records, strict=True))
            inside = [at for at, position in enumerate(asked) if position in stored]
            place_of = {position: place for place, position in enumerate(stored)}
            places = [place_of[asked[at]] for at in inside]
            parts = parts_of_stored([*stored.values()], places, partial(choose_at, choose, inside))
            out.update(zip(inside, self._named(raw, parts, [asked[at] for at in inside]), strict=True))
        rest = [at for at in range(len(asked)) if at not in out]
        if rest:
            whole = parts_of_records(self, [asked[at] for at in rest], partial(choose_at, choose, rest), wanted)
            out.update(zip(rest, whole, strict=True))
        return [out[at] for at in range(len(asked))]

    def digests(self) -> Array:
        """Return the checksum of each record of a native store, shape (n, 8), uint8.

        Reads and verifies all records; raises the RecordError of the first that is bad.
        """
        found: list[bytes] = []
        for start in range(0, len(self), _BATCH):
            positions = list(range(start, min(start + _BATCH, len(self))))
            with _Reading(self) as raw:
                rows = raw.read(positions, None)
                if raw.verifier is None:
                    raise ConfigError(f"{self.url} is no native store, so its records have no checksums")
                is_intact = raw.verifier.seals.match(rows.digests, rows.seals, positions)
            if not is_intact:
                raise next(each for each in self.get_many(positions) if isinstance(each, RecordError))
            found.append(rows.digests)
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 8)

    # Columns.

    def column(self, name: str, /) -> Array:
        # docstring inherited
        (name,) = self._check_fields([name])
        check_has_column(self.url, name, self.meta.fields[name])
        found = None
        with _Reading(self) as raw:
            if raw.verifier is None:
                found = raw.values(name)
            elif raw.verifier.has_checksum(name):
                parts = raw.column(name)
                found = None if parts is None else raw.verifier.column(name, parts)
        return column_from_records(self, name) if found is None else found

    def _are_intact(self, raw: RawStore, names: Sequence[str]) -> bool:
        """Whether these fields can be read without their records, since their columns match their checksums."""
        verifier = raw.verifier
        if verifier is None or not raw.reads_fields:
            return False
        if verifier.intact.issuperset(names):
            return True
        return all(verifier.is_intact(name, partial(raw.column, name)) for name in names)

    def select(self, where: Mapping[str, Any], /) -> Array:
        """Return the ascending int64 positions of records whose fields equal (or are in) the given values."""
        checked = check_where(where, self.meta.fields, self.url)
        with _Reading(self) as raw:
            found = raw.select(checked)
        return positions_by_columns(self, checked) if found is None else found

    def keys(self) -> Array:
        """Return the key of every record; see `storeds.protocols.SupportsKeys`. Raises ConfigError if there are none."""
        with _Reading(self) as raw:
            found = raw.keys()
        return self.column("key") if found is None else found

    def positions(self, keys: Sequence[str], /) -> Array:
        """Return the int64 positions of the records with these keys, the first of several; raises ConfigError for others."""
        wanted, places = set(keys), dict[str, int]()
        for at, key in enumerate(self.keys().tolist()):
            if key in wanted:
                places.setdefault(key, at)
        for key in keys:
            if key not in places:
                raise ConfigError(f"{self.url} has no record with the key {key!r}")
        return np.array([places[key] for key in keys], np.int64)

    # Information about the store.

    def place(self, position: int, /) -> Place:
        # docstring inherited
        (at,) = check_positions([position], self.meta.count, self.url).tolist()
        if self.meta.layout == NATIVE:
            return Place(self.url, at)
        with _Reading(self) as raw:
            return Place(self.url, at, raw.name(at))

    def unread(self) -> list[str]:
        """Return the parts of the store that no record holds, each with a reason; see `bounded`."""
        if self._unread is None:
            with _Reading(self) as raw:
                self._unread = bounded(raw.unread())
        return list(self._unread)

    def describe(self) -> Description:
        # docstring inherited
        with _Reading(self) as raw:
            found = raw.describe()
        return replace(found, unread=self.unread(), recognised=self.recognised or found.recognised)

    def _check_fields(self, fields: Sequence[str] | None) -> tuple[str, ...]:
        if fields is None:
            return tuple(self.meta.fields)
        for name in fields:
            if name not in self.meta.fields:
                raise ConfigError(f"{self.url} has no field {name!r}; {suggest(name, self.meta.fields, 'fields')}")
        return tuple(dict.fromkeys(fields))


class _Reading(Lease[Any]):
    """A lease of the handle of a store that was opened before; gives the store as it is read through that handle."""

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store, self.ref = store, store._ref

    def __enter__(self) -> RawStore:
        store = self.store
        try:
            handle = super().__enter__()
        except StoreNotFoundError as error:
            raise UnavailableError(f"{store.url} was there when it was opened and is gone now: {error}") from error
        try:
            attached = self.entry.attached
            raw: RawStore | None = attached.get(self.ref)
            if raw is None:
                raw = attached[self.ref] = store._opener.attach(handle)
            build = raw.build
            if build != store.meta.build:
                raise UnavailableError(
                    f"{store.url} was replaced while in use or changed (build {store.meta.build} was opened, build {build} is "
                    "there now); open it again"
                )
        except BaseException:
            self._end()
            raise
        return raw


def _key_in(record: Any) -> str | None:
    key = record.get("key") if isinstance(record, dict) else None
    return key if isinstance(key, str) else None


def _in_brackets(name: str) -> str:
    return f" ({name})" if name else ""


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
