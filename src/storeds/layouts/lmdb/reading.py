"""Reads the records of an LMDB environment of another tool, by a plan that was found when it was opened."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lmdb
import numpy as np

from storeds.backends.file_stores import describe_file
from storeds.backends.handles import POOL
from storeds.backends.lmdb.files import Environment, lmdb_errors
from storeds.backends.raw import Fault, Opener, RawStore, Rows
from storeds.layouts.lmdb.environment import EnvironmentLocation, LmdbReader, database_of, key_text
from storeds.layouts.lmdb.presets import listed_keys_of
from storeds.layouts.lmdb.records import Keys, NumberedKeys, Plan, Records, key_index
from storeds.layouts.names import Names
from storeds.protocols import JSON, Array, Description, Meta
from storeds.records.codec import RecordCodec
from storeds.records.columns import TEXT
from storeds.values.coerce import any_inside, is_nan
from storeds.values.infer import evenly

__all__ = ["ForeignLmdbOpener", "keys_of", "reading", "sampled"]


@dataclass(frozen=True)
class ForeignLmdbOpener(EnvironmentLocation, Opener[Environment]):
    """Opens an environment whose records were found.

    Nothing may write into the store while it is open. The store has no checksums: `Meta.id` depends on the layout, the size
    and modification time of the file, the number of records and the fields.

    Parameters
    ----------
    plan : Plan
        How the records are read.
    meta : Meta
    find_unread : callable
        Finds what no record holds, in an open environment: a function of a module, so that it pickles.
    why : str or None
        Why it is read so, if the user did not say it.
    unread : tuple of str or None
        What no record holds; None after unpickling, as it may be long.
    """

    plan: Plan
    meta: Meta
    find_unread: Callable[[Environment, ForeignLmdbOpener], tuple[str, ...]]
    why: str | None = None
    unread: tuple[str, ...] | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "unread": None}

    def attach(self, handle: Environment, /) -> ForeignLmdbStore:
        return ForeignLmdbStore(handle, self)


class ForeignLmdbStore(RawStore):
    """An environment of another tool, read by a plan."""

    def __init__(self, environment: Environment, opener: ForeignLmdbOpener) -> None:
        self._environment, self._opener, self.meta = environment, opener, opener.meta
        self._records = Records(opener.plan, keys_of(opener, opener.plan))

    @property
    def build(self) -> str:
        # docstring inherited
        return self._environment.build

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        declared = self.meta.fields
        codec = RecordCodec({name: declared[name] for name in declared if fields is None or name in fields})
        out: list[Any] = []
        while len(out) < len(positions):
            with reading(self._environment, self._opener) as reader:
                out += self._read_until_error(reader, positions[len(out) :], codec)
        return Rows(out)

    def _read_until_error(self, reader: LmdbReader, positions: list[int], codec: RecordCodec) -> list[Any]:
        """Return records up to the first error of LMDB, and that error; after it, the transaction cannot be used."""
        names, records = tuple(codec.fields), self._records
        jsons = [name for name, field in codec.fields.items() if field.kind == "json"]
        out: list[Any] = []
        for key in records.keys.many(positions):
            try:
                values = records.read(reader, key, names)
                loose = {name: values[name] for name in jsons if any_inside(values[name], is_nan)}
                stored = codec.canonical({name: values[name] for name in names} | dict.fromkeys(loose))
                out.append(codec.to_user_values(stored) | loose)
            except (ValueError, RecursionError, lmdb.Error) as error:
                out.append(Fault(str(error), key_text(key)))
                if isinstance(error, lmdb.Error):
                    break
        return out

    def values(self, name: str) -> Array | None:
        # docstring inherited
        return self.keys() if name == self._opener.plan.key else None

    def keys(self) -> Array:
        # docstring inherited
        with reading(self._environment, self._opener):  # its transaction keeps errors of LMDB out of the walk
            return np.array([*map(self._records.key_text, self._records.keys)], dtype=TEXT)

    def unread(self) -> tuple[str, ...]:
        # docstring inherited
        found = self._opener.unread
        if found is None:
            found = self._opener.find_unread(self._environment, self._opener)
        return found

    def describe(self) -> Description:
        # docstring inherited
        settings = self._opener.settings
        readahead: JSON = "by size of values" if settings.readahead is None else settings.readahead
        columns: Mapping[str, JSON] = self._opener.plan.pattern.to_json()
        how: dict[str, JSON] = {"readonly": True, "lock": False, "readahead": readahead}
        return describe_file(
            self._opener.data_path,
            self._opener.url,
            {**how, "database": settings.database, "columns": dict(columns)},
            [],
            recognised=self._opener.why,
        )


@contextmanager
def reading(environment: Environment, location: EnvironmentLocation) -> Iterator[LmdbReader]:
    """Begin a transaction on the database that holds the records."""
    database = database_of(environment, location.settings.database, location.url)
    with environment.env.begin(db=database, buffers=True) as txn:
        yield LmdbReader(txn, database, location, environment)


def keys_of(location: EnvironmentLocation, plan: Plan) -> Keys:
    """Return the keys of all records; the first time, this finds them."""
    if plan.index is None:
        return plan.numbers or NumberedKeys(0)
    return Names(plan.index, functools.partial(_scan, location, plan))


def _scan(location: EnvironmentLocation, plan: Plan) -> Array:
    """Return the array of the index of keys."""
    with (
        lmdb_errors(location.url),
        POOL.leased(location) as environment,
        reading(environment, location) as reader,
    ):
        return key_index(reader, plan, functools.partial(listed_keys_of, reader, plan) if plan.listed else None)


def sampled(keys: Keys, most: int) -> list[bytes]:
    """Return the keys of some records, evenly distributed."""
    return keys.many(evenly(keys.count, most))
