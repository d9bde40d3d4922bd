"""Measures the pictures of a store: mean and deviation for `Normalize`, sizes, classes, duplicates, damage."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from storeds.backends.opening import open_backend
from storeds.backends.selection import Selection
from storeds.errors import ConfigError, DecodeError, RecordError
from storeds.jpeg import read_picture_header
from storeds.ops.common import Progress, ProgressHook, damaged_kinds, in_order
from storeds.ops.inspecting import class_counts
from storeds.protocols import Array, Backend, SampleContext
from storeds.readers import ImageReader
from storeds.records.columns import load_json, read_column, save_json, stats_path
from storeds.records.fields import UNCHECKED, pictures, verdict_fields

__all__ = ["Stats", "stats"]

_LOG = logging.getLogger("storeds")
_MODES = ("RGB", "L")
_BATCH = 32  # records
_LEVELS = np.arange(256, dtype=np.uint64)


@dataclass(frozen=True)
class Stats:
    """The result of `stats`.

    Attributes
    ----------
    url, field, mode : str
        The store, its field of pictures, and the Pillow mode in which they were decoded.
    where : str or None
        What selected the records.
    count : int
        Records of the store, or of the selection.
    examined : int
        Records that were read: all of them, or a random sample.
    decoded : int
        Those of them whose pixels count: the others are damaged, or `mode` cannot hold them.
    seed : int
        Of the sample.
    mean, std : list of float
        Of each channel, over all pixels, where 1 is white. Empty if no picture decodes.
    mean_error, std_error : list of float
        The standard error of each; 0 if every record was examined.
    sizes : dict
        ``width``, ``height``, ``aspect_ratio`` and ``bytes``, each with ``min``, ``p5``, ``median``, ``p95``, ``max`` and
        ``mean`` over the examined pictures, as stored. Empty without a picture.
    classes : dict or None
        Records per label, by class name if there are names. None without a field ``label``.
    duplicates : int
        Examined pictures whose bytes equal those of an earlier one.
    judged : int
        Pictures of which it is known whether they are damaged: all if the store has verdicts, else the examined ones.
    damaged : dict
        Kind of damage → how many of `judged`.
    """

    url: str
    field: str
    mode: str
    where: str | None
    count: int
    examined: int
    decoded: int
    seed: int
    mean: list[float]
    std: list[float]
    mean_error: list[float]
    std_error: list[float]
    sizes: dict[str, dict[str, float]]
    classes: dict[str, int] | None
    duplicates: int
    judged: int
    damaged: dict[str, int]

    @property
    def is_exact(self) -> bool:
        """Whether every record was examined."""
        return self.examined == self.count

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON."""
        return asdict(self)


def stats(
    url: str,
    *,
    where: Mapping[str, Any] | None = None,
    field: str | None = None,
    mode: str = "RGB",
    all: bool = False,
    sample: int = 2000,
    seed: int = 0,
    workers: int | None = None,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Stats:
    """Measure the pictures in one field of the store at `url`.

    The result is kept in the cache folder, as long as the store does not change. The same call, or one for less, reads it
    there, and so does ``{name = "Normalize", from = "stats"}`` in a config.

    Parameters
    ----------
    url, layout, options
        As for `open_backend`.
    where : mapping, optional
        Only records whose fields have these values, as for `StoreDataset`.
    field : str, optional
        The field of the pictures: by default ``image``, or the first of kind image that holds no masks.
    mode : str
        ``"RGB"`` or ``"L"``: the ``mode`` of the dataset.
    all : bool
        Examine every picture. Then mean and deviation are exact, and the same in every engine. Takes 32 bytes of memory a
        picture.
    sample : int
        Otherwise examine so many pictures, drawn at random. The errors say how far the result may be off.
    seed : int
        Draws the sample.
    workers : int, optional
        Threads that read and decode, one per CPU by default.
    progress : callable, optional
        Called with a `Progress` after each batch.

    Raises
    ------
    ConfigError
        The store has no such pictures, or an argument is invalid.
    StoredsError
        The store cannot be opened, or its engine becomes unavailable.
    """
    if mode not in _MODES or sample < 1:
        raise ConfigError(f"mode is RGB or L and sample at least 1, got mode={mode!r}, sample={sample!r}")
    with open_backend(url, layout=layout, **(options or {})) as backend:
        view = backend if where is None else _selected(backend, where)
        reader = _reader(view, field, mode)
        (name,) = reader.fields
        condition = repr(view.where) if isinstance(view, Selection) else None
        path = stats_path(backend.meta, name, mode, condition)
        kept = load_json(path)
        if kept is not None:
            known = replace(Stats(**kept), url=backend.url)
            if known.is_exact or (not all and (known.examined, known.seed) == (sample, seed)):
                return known
        positions = np.arange(len(view))
        if sample < len(view) and not all:
            positions = np.sort(np.random.default_rng(seed).choice(len(view), sample, replace=False))
        threads = len(os.sched_getaffinity(0)) if workers is None else workers
        parts = list(_read(view, reader, positions, threads, progress))
        sizes = np.concatenate([part.sizes for part in parts])
        kinds = sum((part.damaged for part in parts), Counter[str]())
        judged, damaged = _verdicts(view, name) or (len(positions), dict(kinds.most_common()))
        mean, std, mean_error, std_error = _moments(
            [part.sums for part in parts], 1 - len(positions) / (len(view) or 1)
        )
        found = Stats(
            url=backend.url,
            field=name,
            mode=mode,
            where=condition,
            count=len(view),
            examined=len(positions),
            decoded=len(positions) - kinds.total(),
            seed=seed,
            mean=mean,
            std=std,
            mean_error=mean_error,
            std_error=std_error,
            sizes=_spreads(sizes),
            classes=class_counts(view),
            duplicates=len(sizes) - len(np.unique(sizes[:, 3])),
            judged=judged,
            damaged=damaged,
        )
        if not save_json(path, found.to_json()):
            _LOG.warning("the statistics of %s are not kept, since %s cannot be written", backend.url, path.parent)
        return found


def _selected(backend: Backend, where: Mapping[str, Any]) -> Backend:
    from storeds.datasets.assembly import select  # it loads torch

    return select(backend, where)


def _reader(view: Backend, field: str | None, mode: str) -> ImageReader:
    """Return a reader of the pictures alone, to which every damaged one is an error."""
    name = field or ImageReader().bind(view).data or "image"
    reader = ImageReader((name,), decode="pil", mode=mode, repair=False).bind(view)
    if reader.data is None:
        raise ConfigError(f"{view.url}: field {name!r} holds no pictures")
    return reader


class _Part(NamedTuple):
    """What some records hold.

    Attributes
    ----------
    sums : array of uint64
        For each picture that decodes: its pixels, the sum of each channel, and the sum of its squares.
    sizes : array of uint64
        For each picture: height and width, 0 if unknown, its bytes, and the checksum of these.
    damaged : Counter
        Kind of damage → pictures.
    """

    sums: Array
    sizes: Array
    damaged: Counter[str]


def _read(
    view: Backend, reader: ImageReader, positions: Array, threads: int, progress: ProgressHook | None
) -> Iterator[_Part]:
    """Yield what the records at `positions` hold, batch by batch, while threads read and decode the next ones."""
    done = volume = 0
    batches = np.split(positions, range(_BATCH, len(positions), _BATCH))
    for batch, part in in_order(batches, partial(_examine, view, reader), threads):
        done, volume = done + len(batch), volume + int(part.sizes[:, 2].sum())
        if progress is not None:
            progress(Progress(done, len(positions), volume))
        # Without anything to estimate, the sums of a batch are enough.
        yield part if len(positions) < len(view) else part._replace(sums=part.sums.sum(0, keepdims=True))


def _examine(view: Backend, reader: ImageReader, positions: Array) -> _Part:
    (name,) = reader.fields
    sums: list[list[int]] = []
    sizes: list[tuple[int, ...]] = []
    damaged: Counter[str] = Counter()
    for record in view.get_many(positions, reader.stored):  # type: ignore[arg-type]  # an array is a sequence
        if isinstance(record, RecordError):
            damaged[record.kind] += 1
            continue
        blob, height, width = record[name], 0, 0
        header = read_picture_header(blob) if isinstance(blob, bytes) else None
        if header is not None:
            height, width = header.height, header.width
        try:
            picture = reader.build([record], SampleContext(0))[name]
        except DecodeError as error:
            damaged[error.kind] += 1
        else:
            width, height = picture.size
            levels = np.array(picture.histogram(), np.uint64).reshape(-1, 256)
            sums.append([width * height, *(levels @ _LEVELS).tolist(), *(levels @ (_LEVELS * _LEVELS)).tolist()])
        sizes.append((height, width, memoryview(blob).nbytes, xxhash.xxh3_64_intdigest(blob)))
    channels = len(reader.mode)  # RGB or L
    return _Part(
        np.array(sums, np.uint64).reshape(-1, 1 + 2 * channels), np.array(sizes, np.uint64).reshape(-1, 4), damaged
    )


def _moments(parts: list[Array], left_out: float) -> list[list[float]]:
    """Return mean, deviation, and their standard errors, each of every channel, for values in [0, 1].

    Pictures differ in size, and one is drawn with all its pixels. So each result is a ratio of two sums over pictures, and
    its error follows from how far each picture is from that ratio (Cochran, Sampling Techniques, chapter 6).

    Parameters
    ----------
    parts : list of array
        As `_Part.sums`.
    left_out : float
        The share of the records that was not examined.
    """
    rows = np.concatenate(parts)
    pixels, *totals = rows.sum(0).tolist()
    found: list[tuple[float, float, float, float]] = []
    size, count, channels = rows[:, 0].astype(float), len(rows), len(totals) // 2
    scale = math.sqrt(left_out * count / max(count - 1, 1)) / (pixels or 1)
    for channel in range(channels if pixels else 0):
        total, squares = totals[channel], totals[channels + channel]
        # Of integers, so that nothing cancels.
        mean, variance = total / pixels, (squares * pixels - total * total) / pixels**2
        deviation = math.sqrt(variance)
        values, squared = (rows[:, column].astype(float) for column in (1 + channel, 1 + channels + channel))
        from_mean = values - mean * size
        from_variance = squared - 2 * mean * values + (mean * mean - variance) * size
        mean_error, variance_error = (scale * float(np.linalg.norm(each)) for each in (from_mean, from_variance))
        deviation_error = variance_error / (2 * deviation) if deviation else 0.0
        found.append((mean / 255, deviation / 255, mean_error / 255, deviation_error / 255))
    return [[channel[number] for channel in found] for number in range(4)]


def _spreads(sizes: Array) -> dict[str, dict[str, float]]:
    height, width, volume = (sizes[:, column].astype(float) for column in range(3))
    known = (height > 0) & (width > 0)
    height, width = height[known], width[known]
    columns = {"width": width, "height": height, "aspect_ratio": width / height, "bytes": volume}
    return {name: _spread(values) for name, values in columns.items() if len(values)}


def _spread(values: Array) -> dict[str, float]:
    points = np.percentile(values, (0, 5, 50, 95, 100)).tolist()
    return dict(zip(("min", "p5", "median", "p95", "max", "mean"), (*points, float(values.mean())), strict=True))


def _verdicts(view: Backend, name: str) -> tuple[int, dict[str, int]] | None:
    """Return how many pictures have a verdict in the store, and the kinds of damage; None unless all have one."""
    if name not in pictures(view.meta.fields):
        return None
    kinds = Counter(read_column(view, verdict_fields(name)[0]).tolist())
    return None if UNCHECKED in kinds else (len(view), damaged_kinds(dict(kinds.most_common())))
