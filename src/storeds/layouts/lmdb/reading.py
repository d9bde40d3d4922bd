"""Reads the records of an LMDB environment of another tool, by a plan that was found when it was opened."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np

from storeds.backends.file_stores import describe_file
from storeds.backends.lmdb.files import Environment, lmdb_errors
from storeds.backends.raw import Fault, Rows
from storeds.layouts.lmdb.environment import EnvironmentLocation, LmdbReader, key_text, reading
from storeds.layouts.lmdb.recognising import listed_keys_of
from storeds.layouts.lmdb.records import Keys, NumberedKeys, Plan, Records, key_index
from storeds.layouts.names import Names
from storeds.layouts.tree import Found, TreeStore
from storeds.protocols import JSON, Array, Description
from storeds.records.codec import RecordCodec
from storeds.records.columns import TEXT
from storeds.values.coerce import any_inside, is_nan
from storeds.values.infer import evenly

if TYPE_CHECKING:
    from storeds.layouts.lmdb.tree import LmdbLocation

__all__ = ["ForeignLmdbStore", "keys_of", "sampled"]


class ForeignLmdbStore(TreeStore):
    """An environment of another tool, read by a plan."""

    def __init__(self, location: LmdbLocation, environment: Environment, found: Found) -> None:
        super().__init__(location, environment, found)
        self._environment, self._location, self._plan = environment, location, found.plan
        self._records = Records(found.plan, keys_of(environment, location, found.plan))

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
            with reading(self._environment, self._location) as reader:
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
        return self.keys() if name == self._plan.key else None

    def keys(self) -> Array:
        # docstring inherited
        with reading(self._environment, self._location):  # its transaction keeps errors of LMDB out of the walk
            return np.array([*map(self._records.key_text, self._records.keys)], dtype=TEXT)

    def describe(self) -> Description:
        # docstring inherited
        settings = self._location.settings
        readahead: JSON = "by size of values" if settings.readahead is None else settings.readahead
        columns: Mapping[str, JSON] = self._plan.pattern.to_json()
        how: dict[str, JSON] = {"readonly": True, "lock": False, "readahead": readahead}
        return describe_file(
            self._location.data_path,
            self._location.url,
            {**how, "database": settings.database, "columns": dict(columns)},
            [],
            recognised=self.found.why,
        )


def keys_of(environment: Environment, location: EnvironmentLocation, plan: Plan) -> Keys:
    """Return the keys of all records; the first time, this finds them."""
    if plan.index is None:
        return plan.numbers or NumberedKeys(0)
    return Names(plan.index, functools.partial(_scan, environment, location, plan))


def _scan(environment: Environment, location: EnvironmentLocation, plan: Plan) -> Array:
    """Return the array of the index of keys."""
    with lmdb_errors(location.url), reading(environment, location) as reader:
        return key_index(reader, plan, functools.partial(listed_keys_of, reader, plan) if plan.listed else None)


def sampled(keys: Keys, most: int) -> list[bytes]:
    """Return the keys of some records, evenly distributed."""
    return keys.many(evenly(keys.count, most))
