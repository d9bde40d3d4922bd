"""Parts of a store that no field names: a fold of cross-validation, and the records whose keys a file lists."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash

from storeds._utils.permutation import permute, round_keys
from storeds._utils.settings import Settings
from storeds._utils.text import some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.protocols import Array, Backend
from storeds.records.columns import check_one_value, read_column

__all__ = ["Fold", "listed_keys"]

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

    def mask(self, backend: Backend) -> Array:
        """Return for each record whether it is taken."""
        folds = self.divided(backend)
        taken = np.isin(folds, self._numbers(self.take if self.without is None else self.without))
        mask: Array = taken if self.without is None else ~taken
        return mask

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


def listed_keys(path: str, backend: Backend) -> Array:
    """Return for each record whether a file lists its key, one key a line.

    Raises
    ------
    ConfigError
        The store has no field ``key``, or lacks a key that the file lists.
    StoreNotFoundError
        There is no such file.
    """
    try:
        keys = list(dict.fromkeys(Path(path).read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        raise StoreNotFoundError(f"keys: there is no file {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"keys: {path} is not a text file with a key in each line") from None
    column = read_column(backend, "key").tolist()
    missing = sorted(set(keys).difference(column))
    if missing:
        raise ConfigError(f"keys: {path} lists {len(missing):,} keys that {backend.url} has not: {some(missing)}")
    wanted = set(keys)
    return np.fromiter((key in wanted for key in column), bool, len(column))
