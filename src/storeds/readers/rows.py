"""Which records make a sample, and how those of a batch are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from storeds.errors import DecodeError, RecordError
from storeds.protocols import Array, Backend, Record, SampleContext
from storeds.readers.clips import ClipPlan
from storeds.records.arrays import read_arrays
from storeds.records.index import Index

__all__ = ["PADDED", "Clip", "OneRow", "Part", "Read", "Rows", "Window", "read_located"]

Read: TypeAlias = tuple[Sequence[int], "list[Record | RecordError]"]
"""The positions of the records of a sample, of which errors name the first, and what `ElementReader.build` takes."""

PADDED = "_is_pad"
"""Ends the name of the element that says which rows of another lie outside of the episode."""


def read_located(
    locate: Callable[[int, SampleContext], Sequence[int]],
    view: Backend,
    contexts: Sequence[SampleContext],
    stored: Sequence[str],
    known: Mapping[int, RecordError],
) -> list[Read]:
    """Read the records at the positions that `locate` gives for each sample, in one call, without the `known` bad ones.

    Asks for the positions once: a reader that draws them from a global generator would draw others the second time.
    """
    located = [locate(context.index, context) for context in contexts]
    records = iter(view.get_many([at for positions in located for at in positions if at not in known], stored))
    return [(positions, [known[at] if at in known else next(records) for at in positions]) for positions in located]


class Rows(ABC):
    """Which records make the samples of a bound reader. Picklable and thread-safe."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Stored fields that messages name."""
        return ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        """Return the positions of the records of a sample; no I/O."""

    def read(
        self,
        view: Backend,
        contexts: Sequence[SampleContext],
        stored: Sequence[str],
        known: Mapping[int, RecordError],
    ) -> list[Read]:
        """Return the records of each sample, read in one call for each set of fields."""
        return read_located(self.locate, view, contexts, stored, known)

    @abstractmethod
    def pick(self, column: Array) -> Array:
        """Return the value of each sample in a column of all records."""

    def check(self, rows: Sequence[Record], context: SampleContext) -> None:  # noqa: B027  # most rows always make one
        """Raise DecodeError if these records make no sample."""


@dataclass(frozen=True)
class OneRow(Rows):
    """Record *i* is sample *i*."""

    count: int

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        # docstring inherited
        return (index,)

    def pick(self, column: Array) -> Array:
        # docstring inherited
        return column


@dataclass(frozen=True)
class Clip(Rows):
    """Some frames of a video, which is a run of records.

    Parameters
    ----------
    by : str
        Field of the number or name of the video.
    frame : str or None
        Field of the number of the frame.
    runs : Index
        The first position of each video, and the end of the last.
    plan : ClipPlan
        Which frames.
    """

    by: str
    frame: str | None
    runs: Index
    plan: ClipPlan
    count: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.runs.positions) - 1)

    @property
    def needs(self) -> tuple[str, ...]:
        # docstring inherited
        return (self.by,) if self.frame is None else (self.by, self.frame)

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        # docstring inherited
        start, stop = self.runs.positions[index : index + 2].tolist()
        # Creating a generator takes longer than everything else here, so do it only to draw from it.
        generator = context.generator if self.plan.sampling == "random" else None
        return [start + at for at in self.plan.choose(stop - start, generator)]

    def pick(self, column: Array) -> Array:
        # docstring inherited
        return column[self.runs.positions[:-1]]

    def check(self, rows: Sequence[Record], context: SampleContext) -> None:
        # docstring inherited
        start, stop = self.runs.positions[context.index : context.index + 2].tolist()
        count = stop - start
        if self.plan.refuses(count):
            raise DecodeError(
                f"video {rows[0][self.by]} is short: it has {count} frames, but a clip needs {self.plan.needs}; "
                "short='repeat' and 'pad' accept it"
            )

    def name_of(self, record: Record, at: int) -> str:
        """Return what messages call frame `at` of a sample."""
        frame = f"frame {at} of the sample" if self.frame is None else f"frame {record[self.frame]}"
        return f"{frame} of video {record[self.by]}"


class Part(NamedTuple):
    """The fields that have one window.

    Attributes
    ----------
    offsets : tuple of int
        In steps from the sample's own.
    fields : tuple of str
        Stored fields.
    """

    offsets: tuple[int, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Window(Rows):
    """The records around each step of an episode, which is a run of records. A window never leaves the episode.

    A sample has one window for each of `parts`: field → an array or a list of its rows, and `PADDED`, which says what
    rows lie outside.

    Parameters
    ----------
    runs : Index
        The first position of each episode, and the end of the last.
    parts : tuple of Part
        Which records of which fields.
    is_padded : bool
        Whether rows outside of the episode repeat the nearest one. Otherwise only steps whose windows lie inside are samples.
    """

    runs: Index
    parts: tuple[Part, ...]
    is_padded: bool
    count: int = field(init=False)

    def __post_init__(self) -> None:
        count = self.runs.positions[-1] if self.is_padded else self._whole().sum()
        object.__setattr__(self, "count", int(count))

    def __len__(self) -> int:
        return self.count

    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        # docstring inherited
        steps, start, stop = (int(each[0]) for each in self._steps([index]))
        return sorted({min(max(steps + at, start), stop - 1) for part in self.parts for at in part.offsets})

    def read(
        self,
        view: Backend,
        contexts: Sequence[SampleContext],
        stored: Sequence[str],
        known: Mapping[int, RecordError],
    ) -> list[Read]:
        """Return the windows of each sample, and its own step. Each part takes one call."""
        steps, starts, stops = self._steps([context.index for context in contexts])
        windows: list[list[Record | RecordError]] = [[] for _ in contexts]
        for part in self.parts:
            wanted = steps[:, None] + np.array(part.offsets)
            inside = np.clip(wanted, starts[:, None], stops[:, None] - 1)
            outside = wanted != inside
            positions, places = np.unique(inside, return_inverse=True)
            found = _windows(view, positions.tolist(), places.reshape(inside.shape), part.fields)
            for sample, window, padded in zip(windows, found, outside, strict=True):
                sample.append(window if isinstance(window, RecordError) else {**window, PADDED: padded})
        return [((step,), sample) for step, sample in zip(steps.tolist(), windows, strict=True)]

    def pick(self, column: Array) -> Array:
        # docstring inherited
        return column[self._steps(range(len(self)))[0]]

    def _reach(self) -> tuple[int, int]:
        """Return how many steps before and after a sample's own its windows have."""
        offsets = [offset for part in self.parts for offset in part.offsets]
        return max(-min(offsets, default=0), 0), max(*offsets, 0)

    def _whole(self) -> Array:
        """Return how many samples each episode has if windows are not padded."""
        counts: Array = np.maximum(np.diff(self.runs.positions) - sum(self._reach()), 0)
        return counts

    def _steps(self, indices: Sequence[int]) -> tuple[Array, Array, Array]:
        """Return the step of each sample, and the first step and the end of its episode."""
        asked, bounds = np.asarray(indices, np.int64), self.runs.positions
        if self.is_padded:
            steps, episodes = asked, np.searchsorted(bounds, asked, "right") - 1
        else:
            counts = self._whole()
            ends = np.cumsum(counts)
            episodes = np.searchsorted(ends, asked, "right")
            steps = bounds[episodes] + self._reach()[0] + asked - (ends - counts)[episodes]
        return steps, bounds[episodes], bounds[episodes + 1]


def _windows(view: Backend, positions: list[int], places: Array, fields: tuple[str, ...]) -> list[Record | RecordError]:
    """Return a window for each row of `places`, which are indices into `positions`: field → its rows."""
    if all(view.meta.fields[name].is_fixed for name in fields):
        try:
            arrays = read_arrays(view, positions, fields)
        except RecordError:
            pass  # read again, to know which samples are bad
        else:
            return [{name: arrays[name][at] for name in fields} for at in places]
    records = view.get_many(positions, fields)
    found: list[Record | RecordError] = []
    for at in places.tolist():
        rows: list[Any] = [records[place] for place in at]
        bad = next((row for row in rows if isinstance(row, RecordError)), None)
        found.append({name: [row[name] for row in rows] for name in fields} if bad is None else bad)
    return found
