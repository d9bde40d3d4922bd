"""Base of the layouts that scan a file once and keep the index of its records, and fields of sequences in many datasets."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from storeds.errors import StoredsError, UnavailableError
from storeds.layouts.hdf5.base import ForeignHdf5
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.values import Values, values_of
from storeds.protocols import JSON, Array, Field
from storeds.records.columns import SCALARS, column_of, index_path, load_index, save_index

__all__ = ["IndexedHdf5", "PackedIndex", "RowNumbers", "SequenceRows", "SequenceValues", "StepKeys"]


class PackedIndex:
    """A list of names, a list of numbers and some JSON, in one memory-mapped file of the user's cache folder.

    Parameters
    ----------
    packed : array of int64
        Lengths of the four parts; where each name ends; the numbers; the names as UTF-8 and the JSON, padded.
    """

    def __init__(self, packed: Array) -> None:
        self.count, numbers, names, facts = packed[:4].tolist()
        ends_at = 4 + self.count
        self._ends = packed[4:ends_at]
        self.numbers = packed[ends_at : ends_at + numbers]
        text = packed[ends_at + numbers :].view(np.uint8)
        if len(text) < names + facts:
            raise ValueError("the index is cut short")
        self._text = text[:names]
        self.facts: Any = json.loads(text[names : names + facts].tobytes())

    @classmethod
    def pack(cls, names: Sequence[str], numbers: Array, facts: JSON) -> Array:
        """Return the array of an index."""
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        text, tail = b"".join(encoded), json.dumps(facts).encode()
        body = np.frombuffer((text + tail).ljust(-(-(len(text) + len(tail)) // 8) * 8, b"\0"), np.int64)
        return np.concatenate([[len(names), len(numbers), len(text), len(tail)], ends, numbers, body]).astype(np.int64)

    @classmethod
    def load(cls, key: JSON, build: Callable[[], Array]) -> Self:
        """Return the index kept under `key`, or build and keep it."""
        path = index_path("hdf5", key)
        found = load_index(path)
        if found is not None:
            try:
                return cls(found)
            except ValueError:
                pass
        return cls(save_index(path, build()))

    def name(self, number: int) -> str:
        """Return a name by its number."""
        start = int(self._ends[number - 1]) if number else 0
        return self._text[start : int(self._ends[number])].tobytes().decode("utf-8", "surrogateescape")


class IndexedHdf5(ForeignHdf5):
    """A layout whose records are found by scanning the whole file. The index is kept for the next time."""

    index_version: ClassVar[int]
    index_options: ClassVar[tuple[str, ...]]  # those that the index depends on

    @classmethod
    @abstractmethod
    def _scan(cls, files: Hdf5Files) -> Array:
        """Return the array of the store's `PackedIndex`."""

    @classmethod
    def _index(cls, files: Hdf5Files) -> PackedIndex:
        """Return the index of an open store."""

        def build() -> Array:
            # What the scan opens must not become a part of the identity of `files`.
            with Hdf5Files(files.path, files.url, files.settings, files.opened) as others:
                return cls._scan(others)

        options: Mapping[str, JSON] = files.settings.model_dump()
        key = [cls.layout, cls.index_version, *(options[name] for name in cls.index_options), *files.identity()]
        return PackedIndex.load(key, build)


class _Sequences(Values):
    """A field of sequences that follow each other; `bounds` are the positions of their first records, and the count."""

    def __init__(self, bounds: Array, field: Field) -> None:
        self.field, self.count, self._bounds = field, int(bounds[-1]), bounds

    def _locate(self, positions: Sequence[int]) -> tuple[Array, Array]:
        """Return the numbers of the sequences of records, and of the records in them."""
        wanted = np.asarray(positions, np.int64)
        sequences: Array = np.searchsorted(self._bounds, wanted, "right") - 1
        return sequences, wanted - self._bounds[sequences]


class SequenceRows(_Sequences):
    """Rows of one dataset for each sequence."""

    def __init__(self, files: Hdf5Files, paths: Sequence[str], bounds: Array, field: Field) -> None:
        super().__init__(bounds, field)
        self._files, self._paths = files, paths

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, rows = self._locate(positions)
        out: list[Any] = []
        for sequence in np.unique(sequences).tolist():
            out += self._read(self._paths[sequence], rows[sequences == sequence].tolist())
        return out

    def _read(self, path: str, rows: list[int]) -> list[Any]:
        try:
            dataset = self._files.dataset(path)
            return values_of(self._files, dataset, field=self.field)[""].read(rows)
        except UnavailableError:
            raise
        except (StoredsError, OSError, RuntimeError, KeyError, TypeError) as error:
            reason = str(error).removeprefix(f"{self._files.url}: ")
            return [ValueError(f"dataset {path} cannot be read: {reason}")] * len(rows)


class SequenceValues(_Sequences):
    """A value that all records of a sequence share: its name, an attribute."""

    def __init__(self, bounds: Array, field: Field, values: Sequence[Any]) -> None:
        super().__init__(bounds, field)
        self._values = values

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._values[sequence] for sequence in self._locate(positions)[0].tolist()]

    def column(self) -> Array:
        # docstring inherited
        try:
            return np.repeat(column_of(self.field, self._values), np.diff(self._bounds))
        except OverflowError:
            raise ValueError("it has integers beyond the int64 range") from None


class RowNumbers(_Sequences):
    """The number of each record in its sequence, from 0."""

    def __init__(self, bounds: Array) -> None:
        super().__init__(bounds, Field("int"))

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return list(self._locate(positions)[1].tolist())

    def column(self) -> Array:
        # docstring inherited
        numbers: Array = np.arange(self.count, dtype=SCALARS["int"])
        numbers -= np.repeat(self._bounds[:-1], np.diff(self._bounds))
        return numbers


class StepKeys(_Sequences):
    """The name of a record's sequence and its number there: ``demo_3/17``."""

    def __init__(self, bounds: Array, names: Sequence[str]) -> None:
        super().__init__(bounds, Field("str"))
        self._names = names

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, steps = self._locate(positions)
        return [f"{self._names[at]}/{step}" for at, step in zip(sequences.tolist(), steps.tolist(), strict=True)]
