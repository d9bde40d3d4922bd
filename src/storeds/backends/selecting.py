"""Selects records of a store: by the values of fields, by folds of cross-validation, and by a file of keys."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash

from storeds._utils.permutation import permute, round_keys
from storeds._utils.settings import Settings
from storeds._utils.text import counted, some
from storeds.backends.view import View
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.protocols import Array, Backend, Meta
from storeds.records.classes import stored_classes
from storeds.records.columns import check_one_value, read_column
from storeds.records.conditions import Condition
from storeds.records.index import Index
from storeds.records.where import check_where, matching_positions

__all__ = ["Conditions", "Fold", "select"]

_LOG = logging.getLogger("storeds")

_Number = Annotated[int, msgspec.Meta(ge=0)]


class Fold(Settings, frozen=True):
    """One or more of the folds that divide a store, for cross-validation without packing again.

    The division depends on the values of the fields alone, so it is the same in every engine. Folds have equally many
    records of each stratum, as far as whole groups allow.

    Attributes
    ----------
    of : int
        How many folds there are.
    take, without : int or list of int
        The folds to take, from 0; or all but these.
    group_by : str, optional
        A field; the records of one value are in one fold.
    stratify_by : str, optional
        A field, such as ``"label"``, whose values all folds share alike.
    seed : int
        Another one divides in another way.
    """

    of: Annotated[int, msgspec.Meta(ge=2)]
    take: _Number | list[_Number] | None = None
    without: _Number | list[_Number] | None = None
    group_by: str | None = None
    stratify_by: str | None = None
    seed: int = 0

    @classmethod
    def parse(cls, given: Any) -> Fold:
        """Validate a table; raises ConfigError."""
        fold = given if isinstance(given, Fold) else cls.validated(given, "fold")
        numbers = fold._numbers(fold.take) if fold.without is None else fold._numbers(fold.without)
        if (fold.take is None) == (fold.without is None):
            raise ConfigError("fold: set take or without, to the number of a fold or a list of them")
        if not numbers or max(numbers) >= fold.of:
            raise ConfigError(f"fold: of {fold.of} folds, the numbers are 0 to {fold.of - 1}, and it says {numbers}")
        return fold

    def _numbers(self, given: int | list[int] | None) -> list[int]:
        return [given] if isinstance(given, int) else given or []

    def positions(self, backend: Backend) -> Array:
        """Return the positions of the records in the folds that are taken, ascending."""
        chosen = np.isin(self.divided(backend), self._numbers(self.take if self.without is None else self.without))
        return np.flatnonzero(chosen if self.without is None else ~chosen)

    def divided(self, backend: Backend) -> Array:
        """Return the fold of each record."""
        count = len(backend)
        strata = np.zeros(count, np.intp)
        if self.stratify_by is not None:
            strata = np.unique(_values(backend, "stratify_by", self.stratify_by), return_inverse=True)[1]
        if self.group_by is None:
            return self._of_records(strata)
        values = _values(backend, "group_by", self.group_by)
        names, groups, sizes = np.unique(values, return_inverse=True, return_counts=True)
        if len(names) < self.of:
            raise ConfigError(
                f"fold: {self.of} folds need as many groups, and {backend.url} has {len(names)} values of {self.group_by!r}"
            )
        # A group belongs to the stratum that most of its records have. Large groups come first, to the emptiest fold.
        pairs, counts = np.unique(np.stack([groups, strata]), axis=1, return_counts=True)
        main = np.zeros(len(names), np.intp)
        by_count = np.argsort(counts, kind="stable")
        main[pairs[0, by_count]] = pairs[1, by_count]
        hashes = [xxhash.xxh3_64_intdigest(f"{self.seed}/{name}".encode()) for name in names.tolist()]
        fold_of = np.zeros(len(names), np.int32)
        held: dict[int, list[int]] = defaultdict(lambda: [0] * self.of)
        total = [0] * self.of
        for group in sorted(range(len(names)), key=lambda at: (-int(sizes[at]), hashes[at])):
            of_stratum = held[int(main[group])]
            fold = min(range(self.of), key=lambda at: (of_stratum[at], total[at]))
            fold_of[group] = fold
            of_stratum[fold] += int(sizes[group])
            total[fold] += int(sizes[group])
        folds: Array = fold_of[groups]
        return folds

    def _of_records(self, strata: Array) -> Array:
        """Deal the records of each stratum to the folds in turn, in a random order."""
        places = np.arange(len(strata), dtype=np.uint64)
        random = permute(places, len(strata), round_keys("storeds.fold", 1, self.seed)).astype(np.intp)
        order = random[np.argsort(strata[random], kind="stable")]
        folds = np.empty(len(strata), np.int32)
        folds[order] = np.arange(len(strata)) % self.of
        return folds


def _values(backend: Backend, setting: str, name: str) -> Array:
    return check_one_value(read_column(backend, name), f"{backend.url}: fold: {setting}", name)


def listed_positions(backend: Backend, path: str) -> Array:
    """Return the positions of the records whose keys a file lists, one key a line, ascending. Blank lines are no keys.

    Raises
    ------
    ConfigError
        The store has no field ``key``, or lacks a key that the file lists.
    StoreNotFoundError
        There is no such file.
    """
    try:
        # A key may contain the other characters at which str.splitlines splits.
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            keys = {line.removesuffix("\n").removesuffix("\r") for line in file} - {""}
    except FileNotFoundError:
        raise StoreNotFoundError(f"keys_file: there is no file {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"keys_file: {path} is not a text file with a key in each line") from None
    column = read_column(backend, "key").tolist()
    missing = sorted(keys.difference(column))
    if missing:
        raise ConfigError(f"keys_file: {path} lists {len(missing):,} keys that {backend.url} has not: {some(missing)}")
    return np.flatnonzero(np.fromiter((key in keys for key in column), bool, len(column)))


@dataclass(frozen=True)
class Conditions:
    """Selects the records that meet every condition. Picklable.

    Attributes
    ----------
    where : mapping
        Field → accepted values, sorted.
    condition : Condition or None
        What records meet besides.
    fold : Fold or None
        The division is that of the whole store, whatever the other conditions are.
    keys_file : str or None
        A file that lists keys.
    subsets : str or None
        `fold` and the content of `keys_file` as a text, which is equal for equal conditions.
    """

    where: Mapping[str, list[Any]]
    condition: Condition | None
    fold: Fold | None
    keys_file: str | None = field(repr=False)  # its content counts, and not its name
    subsets: str | None

    @classmethod
    def of(
        cls,
        backend: Backend,
        where: Mapping[str, Any] | str | None = None,
        fold: Any = None,
        keys_file: str | os.PathLike[str] | None = None,
    ) -> Conditions:
        """Check conditions for records of a store, as `select` takes them; raises ConfigError."""
        condition = Condition(where) if isinstance(where, str) else None
        if condition is not None:
            where = None
        if where is not None and not where:
            raise ConfigError("where: an empty mapping selects nothing; leave it out to read every record")
        given: Mapping[str, Any] = where if isinstance(where, Mapping) else {}
        named = {name: _class_numbers(backend, name, wanted) for name, wanted in given.items()}
        checked = check_where(named, backend.meta.fields, backend.url)
        parsed = None if fold is None else Fold.parse(fold)
        path = None if keys_file is None else os.path.abspath(keys_file)
        subsets = ([] if parsed is None else [repr(parsed)]) + ([] if path is None else [_digest(path)])
        by_text = {name: sorted(values, key=repr) for name, values in checked.items()}
        if condition is not None:
            subsets.append(repr(condition))
            condition.check(backend.meta.fields)
        return cls(by_text, condition, parsed, path, " ".join(subsets) or None)

    def positions(self, backend: Backend) -> Array:
        """Return the positions of the records that meet every condition, int64, ascending."""
        found = matching_positions(backend, self.where) if self.where else np.arange(len(backend))
        if self.condition is not None:
            found = np.flatnonzero(matching(backend, self.condition))
        if self.fold is not None:
            found = np.intersect1d(found, self.fold.positions(backend), assume_unique=True)
        if self.keys_file is not None:
            found = np.intersect1d(found, listed_positions(backend, self.keys_file), assume_unique=True)
        return found

    def view(self, backend: Backend) -> Backend:
        """Return a view of these records, whose positions are in an `Index`; without any condition, the backend itself."""
        if not len(backend):
            _LOG.warning("%s holds no records", backend.url)
        if not self.where and self.subsets is None:
            return backend
        # As text, since JSON has no infinities.
        index = Index(partial(self.positions, backend), backend.url, backend.meta.build, repr(self.where), self.subsets)
        view = View([backend], index, self)
        if not len(view) and len(backend):
            _LOG.warning("%s selects none of the %s of %s", self, counted(len(backend), "record"), backend.url)
        return view

    def __str__(self) -> str:
        parts = {
            "where": (self.condition and self.condition.text) or self.where or None,
            "fold": self.fold,
            "keys_file": self.keys_file,
        }
        return ", ".join(f"{name}={value!r}" for name, value in parts.items() if value is not None)


def matching(backend: Backend, condition: Condition) -> Array:
    """Return which records of a backend meet a condition, bool; reads only the columns that it names."""
    columns = {name: read_column(backend, name) for name in condition.fields}
    return condition.mask(columns.__getitem__, backend.meta.fields, partial(classes_of, backend.meta))


def classes_of(meta: Meta, name: str) -> Sequence[str] | None:
    """Return the names of the classes whose numbers a field holds; None for any other field."""
    field = meta.fields.get(name)
    if field is None or field.kind != "int":
        return None
    is_label = name == "label" or field.role == "label" or isinstance(meta.attrs.get("classes"), Mapping)
    return stored_classes(meta.attrs, name) if is_label else None


def _class_numbers(backend: Backend, name: str, wanted: Any) -> Any:
    """Return the accepted values of a field, with the numbers of classes for their names."""
    classes = classes_of(backend.meta, name)
    if isinstance(wanted, (list, tuple, set, frozenset)):
        return [_class_number(name, value, classes or ()) for value in wanted]
    return _class_number(name, wanted, classes or ())


def _class_number(name: str, value: Any, classes: Sequence[str]) -> Any:
    """Return the number of a class name; other values unchanged."""
    if callable(value):
        raise ConfigError(f"where: {name!r} takes a value or a list of values, not a function: select with Subset")
    if not isinstance(value, str) or not classes:
        return value
    if value not in classes:
        raise ConfigError(f"where: {name!r} has no class {value!r}; {suggest(value, classes, 'classes')}")
    return classes.index(value)


def select(
    backend: Backend,
    where: Mapping[str, Any] | str | None = None,
    *,
    fold: Any = None,
    keys_file: str | os.PathLike[str] | None = None,
) -> Backend:
    """Return a view of the records of a backend that meet all conditions, in their order; without any, the backend itself.

    Parameters
    ----------
    backend : Backend
        Closing the view closes it too.
    where : mapping or str, optional
        Field → the value, or list of accepted values; or a text, see `storeds.records.conditions.Condition`. A label may be given
        by its class name.
    fold : Fold or mapping, optional
        Folds of the whole store.
    keys_file : path, optional
        A file that lists the keys of records, one a line.

    Raises
    ------
    ConfigError
        A field or a class is unknown, or a value cannot be compared; or the file lists a key that the store lacks.
    StoreNotFoundError
        There is no such file.
    """
    return Conditions.of(backend, where, fold, keys_file).view(backend)


def _digest(path: str) -> str:
    """Return a digest of a file's content; of one that does not exist, which raises an error when it is read, its path."""
    try:
        return xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
    except OSError:
        return path
