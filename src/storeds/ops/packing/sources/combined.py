"""Sources made of others: some items of one, as PyTorch's Subset, or several in a row, as its ConcatDataset."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import PackSource, Problem, strata_of
from storeds.protocols import JSON, Field, Record

__all__ = ["ChainedSource", "PickedSource"]


class PickedSource:
    """Items of another source, in an order of their own.

    Parameters
    ----------
    source : PackSource
        One without problems.
    indices : iterable of int
        Which of its items; negative ones count from its end.
    """

    problems: Sequence[Problem] = ()

    def __init__(self, source: PackSource, indices: Iterable[Any]) -> None:
        self._source, everything = source, range(len(source))
        self._indices = array("q", (everything[int(index)] for index in indices))
        digest = xxhash.xxh3_64_hexdigest(self._indices.tobytes())
        self.fields: Mapping[str, Field] = source.fields
        self.attrs: Mapping[str, JSON] = source.attrs
        self.notes: Sequence[str] = tuple(getattr(source, "notes", ()))
        self.fingerprint: JSON = {"kind": "picked", "xxh3": digest, "of": source.fingerprint}

    def __len__(self) -> int:
        return len(self._indices)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._source.name(self._indices[index])

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._source.size(self._indices[index])

    def strata(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the label of each item."""
        everything = list(strata_of(self._source))
        return (everything[index] for index in self._indices)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        return self._source.read(self._indices[index])


class ChainedSource:
    """Several sources in a row.

    Parameters
    ----------
    sources : list of PackSource
        Without problems, and with the same fields.

    Raises
    ------
    ConfigError
        Their class names differ, so one label would mean several classes.
    """

    problems: Sequence[Problem] = ()

    def __init__(self, sources: Sequence[PackSource]) -> None:
        self._sources = list(sources)
        first = self._sources[0]
        for other in self._sources[1:]:
            if other.attrs.get("classes") != first.attrs.get("classes"):
                raise ConfigError(
                    f"the datasets in a row have different classes, so one label would mean several: "
                    f"{first.attrs.get('classes')} and {other.attrs.get('classes')}; pack each by itself"
                )
        self._ends = list(itertools.accumulate(map(len, self._sources)))
        self.fields: Mapping[str, Field] = first.fields
        same = all(other.attrs == first.attrs for other in self._sources)
        named = {"classes": first.attrs["classes"]} if "classes" in first.attrs else {}
        self.attrs: Mapping[str, JSON] = first.attrs if same else named
        self.notes: Sequence[str] = tuple(
            dict.fromkeys(note for source in self._sources for note in getattr(source, "notes", ()))
        )
        prints: list[JSON] = [source.fingerprint for source in self._sources]
        self.fingerprint: JSON = {"kind": "chained", "of": prints}

    def _find(self, index: int) -> tuple[PackSource, int]:
        index = range(len(self))[index]
        number = bisect.bisect_right(self._ends, index)
        return self._sources[number], index - (self._ends[number - 1] if number else 0)

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int, /) -> str:
        # docstring inherited
        source, at = self._find(index)
        return source.name(at)

    def size(self, index: int, /) -> int:
        # docstring inherited
        source, at = self._find(index)
        return source.size(at)

    def strata(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the label of each item."""
        for source in self._sources:
            yield from strata_of(source)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        source, at = self._find(index)
        return source.read(at)
