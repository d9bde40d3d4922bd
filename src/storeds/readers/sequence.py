"""Reads windows of episodes: around each step, some rows of each field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from storeds._utils.arguments import integer
from storeds.errors import ConfigError, DecodeError, RecordError, suggest
from storeds.pictures.decoders import bad_picture
from storeds.protocols import Array, Backend, Decoder, Field, Record, SampleContext
from storeds.readers.base import INDEX, channels_first
from storeds.readers.image import ImageReader, label_of
from storeds.readers.video import Runs
from storeds.records.arrays import read_arrays
from storeds.records.columns import read_column
from storeds.records.verdict_fields import verdict_fields

if TYPE_CHECKING:
    pass

__all__ = ["SequenceReader"]

_EPISODES = ("episode", "video", "trajectory")
_RANGE = re.compile(r"(-?\d+):(-?\d+)")
_NOW = (0,)
PADDED = "_is_pad"
"""Ends the name of the element that says which rows of another lie outside of the episode."""


class Rows(NamedTuple):
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
class SequenceReader(ImageReader):
    """A step of an episode → windows of the fields around it, for robots, series and videos.

    Sample *i* is step *i* of the store, which holds the steps of an episode one after another. A window never reaches into
    another episode. Reads only the rows that the windows have.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample. Default: those of `windows` and, if there is one, the label. An element without a window has
        the value of its step.
    windows : mapping of str to sequence of int or str
        Element → offsets in steps: ``{"image": [-1, 0], "action": "0:16"}``. Its values get one more dimension, in front.
        Images of one shape become a uint8 tensor of shape (rows, channels, height, width), numbers and arrays a tensor,
        others a list.
    stride : int
        How many steps one offset is.
    ends : str
        ``"pad"``: where a window leaves the episode, the nearest row is repeated, and the element ``<name>_is_pad`` is True
        there (bool, one for each row). ``"drop"``: only steps whose windows all lie inside are samples.
    by : str, optional
        Field of kind int or str that all steps of an episode share. Default: ``episode``, ``video`` or ``trajectory``.
    channels : mapping of str to str, optional
        Elements that are arrays of pixels, and where their channels are stored, ``"last"`` or ``"first"``: they become
        tensors with channels before height and width. Other arrays keep their shape.
    decode, mode, repair, min_recovered, orient, max_pixels
        For each image, as for `ImageReader`; by default images are tensors.

    Notes
    -----
    Fields with the same window are read in one storage call a batch. Where these all have a fixed size, no record is made:
    rows are copied from the arrays of the batch.
    """

    decode: str | Decoder | Mapping[str, str | Decoder] = "tensor"
    windows: Mapping[str, Sequence[int] | str] = field(default_factory=dict)
    stride: int = 1
    ends: str = "pad"
    by: str | None = None
    _windows: Mapping[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    _runs: Runs | None = field(default=None, repr=False, compare=False)
    _rows: tuple[Rows, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("stride", self.stride, 1)
        if self.channels is not None and not isinstance(self.channels, Mapping):
            raise ConfigError("channels is a table of element → 'last' or 'first' here: {'image': 'last'}")
        if self.ends not in ("pad", "drop"):
            raise ConfigError(f"unknown ends {self.ends!r}; {suggest(self.ends, ('pad', 'drop'), 'ends')}")
        if not isinstance(self.windows, Mapping) or not self.windows:
            raise ConfigError(
                "reader 'sequence' needs windows, element → offsets in steps: "
                "reader_options={'windows': {'image': [-1, 0], 'action': '0:16'}}"
            )
        offsets = {name: _offsets(name, given) for name, given in self.windows.items()}
        object.__setattr__(self, "windows", offsets)
        steps = {name: tuple(offset * self.stride for offset in each) for name, each in offsets.items()}
        object.__setattr__(self, "_windows", steps)

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        declared = dict(backend.meta.fields)
        by = self.by or next((name for name in _EPISODES if name in declared), None)
        if by not in declared:
            raise ConfigError(
                f"reader 'sequence' needs a field that distinguishes the episodes, and {backend.url} has "
                f"{'no ' + repr(by) if by else 'neither episode, video nor trajectory'}; "
                f"{suggest(by or 'episode', declared, 'fields')}; name it with by="
            )
        if declared[by].kind not in ("int", "str"):
            raise ConfigError(f"by={by!r} is a field of kind {declared[by].kind}; expected int or str")
        bound = super().bind(backend)
        for name in self.windows:
            if name not in bound.fields:
                raise ConfigError(f"windows names {name!r}; {suggest(name, bound.fields, 'elements of a sample')}")
        padded = [f"{name}{PADDED}" for name in self.windows] if self.ends == "pad" else []
        number = next((n for n in ("step", "frame") if n in declared and declared[n].kind == "int"), None)
        runs = Runs(backend, by, number)
        by_window: dict[tuple[int, ...], list[str]] = {}
        for name, source in bound.elements():
            fields = by_window.setdefault(bound._window(name), [])
            fields += [source, *(verdict_fields(source) if source in bound._judged else ())]
        bound = replace(
            bound,
            fields=(*bound.fields, *padded),
            sources=(*bound.sources, *padded),
            kinds=(*bound.kinds, *[Field("bool")] * len(padded)),
            computed=(*bound.computed, *padded),
            _runs=runs,
            _rows=tuple(Rows(offsets, tuple(dict.fromkeys(fields))) for offsets, fields in by_window.items()),
        )
        return replace(bound, count=bound._count())

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.windows, *label_of(fields))))

    def _with_pictures(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        return dict(fields)  # arrays keep their shape, unless `channels` names them

    def _array_images(self) -> list[str]:
        named = [name for name, _ in zip(self.fields, self.kinds, strict=False) if name in (self.channels or ())]
        return [*dict.fromkeys((*super()._array_images(), *named))]

    def _window(self, name: str) -> tuple[int, ...]:
        """Return the offsets of an element, in steps."""
        return self._windows.get(name, _NOW)

    def _reach(self) -> tuple[int, int]:
        """Return how many steps before and after a sample's own its windows have."""
        offsets = [offset for rows in self._rows for offset in rows.offsets]
        return max(-min(offsets, default=0), 0), max(*offsets, 0)

    @property
    def _bounds(self) -> Array:
        if self._runs is None:
            raise ConfigError("this reader is not bound to a store; call bind first")
        return self._runs.bounds

    def _whole(self) -> Array:
        """Return how many samples each episode has, with ``ends="drop"``."""
        counts: Array = np.maximum(np.diff(self._bounds) - sum(self._reach()), 0)
        return counts

    def _count(self) -> int:
        return int(self._bounds[-1]) if self.ends == "pad" else int(self._whole().sum())

    def _steps(self, indices: Sequence[int]) -> tuple[Array, Array, Array]:
        """Return the step of each sample, and the first step and the end of its episode."""
        asked, bounds = np.asarray(indices, np.int64), self._bounds
        if self.ends == "pad":
            steps, episodes = asked, np.searchsorted(bounds, asked, "right") - 1
        else:
            counts = self._whole()
            ends = np.cumsum(counts)
            episodes = np.searchsorted(ends, asked, "right")
            steps = bounds[episodes] + self._reach()[0] + asked - (ends - counts)[episodes]
        return steps, bounds[episodes], bounds[episodes + 1]

    def column(self, view: Backend, name: str, /) -> Array:
        """Return an element, or another stored field, of the step of each sample."""
        return read_column(view, self.stored_as(name))[self._steps(range(len(self)))[0]]

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        steps, start, stop = (int(each[0]) for each in self._steps([index]))
        return sorted({min(max(steps + at, start), stop - 1) for rows in self._rows for at in rows.offsets})

    def read_windows(self, view: Backend, indices: Sequence[int]) -> tuple[list[list[Record | RecordError]], list[int]]:
        """Return for each sample the windows that `build` takes, field → an array or a list of its rows, and its own step."""
        steps, starts, stops = self._steps(indices)
        windows: list[list[Record | RecordError]] = [[] for _ in indices]
        for rows in self._rows:
            wanted = steps[:, None] + np.array(rows.offsets)
            inside = np.clip(wanted, starts[:, None], stops[:, None] - 1)
            outside = wanted != inside
            positions, places = np.unique(inside, return_inverse=True)
            found = _read(view, positions.tolist(), places.reshape(inside.shape), rows.fields)
            for sample, window, padded in zip(windows, found, outside, strict=True):
                sample.append(window if isinstance(window, RecordError) else {**window, PADDED: padded})
        return windows, steps.tolist()

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        import torch

        windows = {rows.offsets: record for rows, record in zip(self._rows, records, strict=True)}
        sample: dict[str, Any] = {}
        for name, source, declared in zip(self.fields, self.sources, self.kinds, strict=True):
            if source == INDEX and source in self.computed:
                sample[name] = context.index
            elif source in self.computed:
                sample[name] = torch.from_numpy(windows[self._window(name.removesuffix(PADDED))][PADDED])
            else:
                rows = self._values(name, source, declared, windows[self._window(name)], context)
                sample[name] = rows if name in self.windows else rows[0]
        return sample

    def _values(self, name: str, source: str, declared: Field, window: Record, context: SampleContext) -> Any:
        """Return the rows of an element, images decoded."""
        import torch

        values = window[source]
        if name not in self._decoders:
            if not isinstance(values, np.ndarray) and (declared.is_scalar or declared.is_fixed):
                values = np.asarray(values)
            if name in self._layouts:
                values = np.ascontiguousarray(channels_first(values, self._layouts[name]))
            return torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        verdict = [each for each in window if each in verdict_fields(source)] if source in self._judged else []
        images: list[Any] = []
        for at, value in enumerate(values):
            record = {source: value, **{each: window[each][at] for each in verdict}}
            try:
                images.append(self._element(name, source, declared, record, context))
            except DecodeError as error:
                raise bad_picture(f"row {at} of the window of {name!r}: {error}", error.kind) from error.__cause__
        if not all(isinstance(image, torch.Tensor) for image in images):
            return images
        shapes = {tuple(image.shape) for image in images}
        if len(shapes) > 1:
            raise DecodeError(f"the images of a window of {name!r} differ in shape: {sorted(shapes)}")
        return torch.stack(images)


def _offsets(name: str, given: Any) -> tuple[int, ...]:
    """Return the offsets of a window: integers, or a range such as ``"0:16"``."""
    if isinstance(given, str):
        match = _RANGE.fullmatch(given)
        found = tuple(range(int(match[1]), int(match[2]))) if match else ()
    else:
        found = tuple(given) if isinstance(given, Sequence) else ()
    if not found or any(isinstance(each, bool) or not isinstance(each, int) for each in found):
        raise ConfigError(f"windows: {name!r} has offsets such as [-1, 0] or '0:16', got {given!r}")
    return found


def _read(
    view: Backend, positions: list[int], places: Array, fields: tuple[str, ...]
) -> Iterator[Record | RecordError]:
    """Yield a window for each row of `places`, which are indices into `positions`: field → its rows."""
    declared = view.meta.fields
    if all(declared[name].is_fixed for name in fields):
        try:
            arrays = read_arrays(view, positions, fields)
        except RecordError:
            pass  # read again, to know which samples are bad
        else:
            for at in places:
                yield {name: arrays[name][at] for name in fields}
            return
    records = view.get_many(positions, fields)
    for at in places.tolist():
        rows = [records[place] for place in at]
        bad = next((row for row in rows if isinstance(row, RecordError)), None)
        if bad is not None:
            yield bad
        else:
            yield {name: [row[name] for row in rows] for name in fields}
