"""Measures the pictures of a store: mean and deviation for `Normalize`, sizes, classes, duplicates, damage."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from storeds._utils.tables import text_table
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.backends.selecting import Conditions
from storeds.errors import ConfigError, DecodeError, RecordError
from storeds.ops.inspecting import brief_classes, class_counts
from storeds.ops.progress import Progress, ProgressHook, in_order
from storeds.ops.verdicts import damaged_kinds, listed
from storeds.pictures import read_picture_header
from storeds.protocols import Array, Backend, SampleContext
from storeds.readers import ElementReader, image
from storeds.records.cache import load_index, load_json, save_index, save_json, stats_path
from storeds.records.columns import read_column
from storeds.records.verdict_fields import UNCHECKED, pictures, verdict_fields

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

    def __str__(self) -> str:
        digits = {"aspect_ratio": 2}
        sizes = [
            (name.replace("_", " "), *(f"{value:,.{digits.get(name, 0)}f}" for value in spread.values()))
            for name, spread in self.sizes.items()
        ]
        columns = {"": "left"} | dict.fromkeys(("min", "5 %", "median", "95 %", "max", "mean"), "right")
        lines = [text_table(columns, sizes)]
        if self.classes is not None:
            lines.append(f"classes: {brief_classes(self.classes)}")
        damaged = sum(self.damaged.values())
        lines.append(f"damaged: {damaged:,} of {self.judged:,}" + (f" ({listed(self.damaged)})" if damaged else ""))
        lines.append(f"exact duplicates: {self.duplicates:,}")
        for name, values, errors in (("mean", self.mean, self.mean_error), ("std", self.std, self.std_error)):
            pairs = zip(values, errors, strict=True)
            channels = (f"{value:.4f}" + (f" ± {error:.4f}" if error else "") for value, error in pairs)
            lines.append(f"{name}: " + ", ".join(channels))
        if self.decoded < self.examined:
            lines.append(f"mean and std are of the {self.decoded:,} that decode in mode {self.mode}")
        more = "" if self.is_exact else "; --all is exact"
        lines.append(f"{self.url}: {self.examined:,} of {counted(self.count, 'record')} examined{more}")
        return "\n".join(lines)


def stats(
    url: str | os.PathLike[str],
    *,
    where: Mapping[str, Any] | str | None = None,
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
        Examine every picture. Then mean and deviation are exact, and the same in every engine. Takes 112 bytes of memory a
        picture. An interrupted call keeps what it examined, and the same call goes on from there.
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
        how = Conditions.of(backend, where)
        view, condition = how.view(backend), repr(how.where) if how.where else None
        reader = _reader(view, field, mode)
        (name,) = reader.fields
        path = stats_path(backend.meta, name, mode, condition)
        # Pictures of a folder may be replaced in place, which its list does not show: nothing found earlier counts.
        is_sealed = "files://" not in backend.url
        kept = load_json(path, Stats) if is_sealed else None
        if kept is not None and _fits(kept, name, mode, len(view)):
            known = replace(kept, url=backend.url)
            if known.is_exact or (not all and (known.examined, known.seed) == (sample, seed)):
                return known
        positions = np.arange(len(view))
        if sample < len(view) and not all:
            positions = np.sort(np.random.default_rng(seed).choice(len(view), sample, replace=False))
        threads = len(os.sched_getaffinity(0)) if workers is None else workers
        unfinished = path.with_suffix(".npy") if is_sealed and len(positions) == len(view) else None
        examined = _examine_all(view, reader, positions, threads, progress, unfinished)
        read = examined[examined["checksum"] > 0]
        kinds = Counter(kind.decode() for kind in examined["damage"].tolist() if kind)
        judged = _verdicts(view, name)
        found = Stats(
            url=backend.url,
            field=name,
            mode=mode,
            where=condition,
            count=len(view),
            examined=len(positions),
            decoded=int((examined["pixels"] > 0).sum()),
            seed=seed,
            **_moments(read[read["pixels"] > 0], 1 - len(positions) / (len(view) or 1)),
            sizes=_sizes(read),
            classes=class_counts(view),
            duplicates=len(read) - len(np.unique(read["checksum"])),
            judged=len(positions) if judged is None else len(view),
            damaged=dict(kinds.most_common()) if judged is None else judged,
        )
        if not save_json(path, found.to_json()):
            _LOG.warning("the statistics of %s are not kept, since %s cannot be written", backend.url, path.parent)
        return found


def _fits(kept: Stats, field: str, mode: str, count: int) -> bool:
    """Return whether statistics of the cache can be those of a field."""
    channels = {len(kept.mean), len(kept.std), len(kept.mean_error), len(kept.std_error)}
    return (kept.field, kept.mode, kept.count) == (field, mode, count) and channels in ({len(mode)}, {0})


def _reader(view: Backend, field: str | None, mode: str) -> ElementReader:
    """Return a reader of the pictures alone, to which every damaged one is an error."""
    name = field or image().bind(view).data or "image"
    declared = view.meta.fields.get(name)
    in_files = declared is not None and declared.kind == "image"  # otherwise there is nothing to repair
    reader = image((name,), mode=mode, repair=not in_files).bind(view)
    if reader.data is None:
        raise ConfigError(f"{view.url}: field {name!r} holds no pictures")
    return reader


def _rows(values: list[tuple[Any, ...]], channels: int) -> Array:
    """Return a row for each picture: size, bytes and checksum as stored, sums over its pixels, damage. 0 is unknown."""
    sums = [("pixels", np.uint64), ("sums", np.uint64, channels), ("squares", np.uint64, channels)]
    stored = [(name, np.uint64) for name in ("height", "width", "bytes", "checksum")]
    return np.array(values, [*stored, *sums, ("damage", "S24")])


def _examine_all(
    view: Backend,
    reader: ElementReader,
    positions: Array,
    threads: int,
    progress: ProgressHook | None,
    unfinished: Path | None,
) -> Array:
    """Return the rows of the records at `positions`. After an interruption they are in the file `unfinished`."""
    nothing = _rows([], len(reader.mode_of(reader.fields[0])))
    kept = None if unfinished is None else load_index(unfinished, nothing.dtype)
    rows = [nothing if kept is None else kept]
    done, volume = len(rows[0]), 0
    batches = np.split(positions[done:], range(_BATCH, len(positions) - done, _BATCH))
    try:
        for _, of_batch in in_order(batches, partial(_examine, view, reader), threads):
            rows.append(of_batch)
            done, volume = done + len(of_batch), volume + int(of_batch["bytes"].sum())
            if progress is not None:
                progress(Progress(done, len(positions), volume))
    except BaseException:  # Ctrl-C, or a lost server
        if unfinished is not None:
            save_index(unfinished, np.concatenate(rows))
        raise
    if unfinished is not None:
        unfinished.unlink(missing_ok=True)
    return np.concatenate(rows)


def _examine(view: Backend, reader: ElementReader, positions: Array) -> Array:
    """Return the rows of the records at `positions`."""
    (name,) = reader.fields
    channels, rows = len(reader.mode_of(name)), []
    for record in view.get_many(positions, reader.stored):  # type: ignore[arg-type]  # an array is a sequence
        stored, levels, damage = (0, 0, 0, 0), np.zeros((channels, 256), np.uint64), ""
        if isinstance(record, RecordError):
            damage = record.kind
        else:
            blob = record[name]
            header = read_picture_header(blob) if isinstance(blob, bytes) else None
            size = (header.height, header.width) if header else (0, 0)
            try:
                picture = reader.build([record], SampleContext(0))[name]
            except DecodeError as error:
                damage = error.kind
            else:
                size = picture.height, picture.width
                levels = np.array(picture.histogram(), np.uint64).reshape(levels.shape)
            stored = (*size, memoryview(blob).nbytes, xxhash.xxh3_64_intdigest(blob))
        rows.append((*stored, levels[0].sum(), levels @ _LEVELS, levels @ (_LEVELS * _LEVELS), damage))
    return _rows(rows, channels)


def _moments(rows: Array, left_out: float) -> dict[str, list[float]]:
    """Return mean, deviation, and their standard errors, each of every channel, for values in [0, 1].

    Pictures differ in size, and one is drawn with all its pixels. So each result is a ratio of two sums over pictures, and
    its error follows from how far each picture is from that ratio (Cochran, Sampling Techniques, chapter 6).

    Parameters
    ----------
    rows : array
        As `_rows` returns, of pictures that decode.
    left_out : float
        The share of the records that was not examined.
    """
    size, sums, squares = rows["pixels"][:, None].astype(float), rows["sums"], rows["squares"]
    pixels = int(rows["pixels"].sum())
    if not pixels:
        return {"mean": [], "std": [], "mean_error": [], "std_error": []}
    # Integers are added, so that the result does not depend on the order.
    mean = sums.sum(0) / pixels
    variance = np.maximum(squares.sum(0) / pixels - mean * mean, 0)
    deviation = np.sqrt(variance)
    from_mean = sums - mean * size
    from_variance = squares - 2 * mean * sums + (mean * mean - variance) * size
    scale = math.sqrt(left_out * len(rows) / max(len(rows) - 1, 1)) / pixels
    mean_error, variance_error = (scale * np.linalg.norm(each, axis=0) for each in (from_mean, from_variance))
    deviation_error = variance_error / np.where(deviation > 0, 2 * deviation, np.inf)
    found = {"mean": mean, "std": deviation, "mean_error": mean_error, "std_error": deviation_error}
    return {name: (each / 255).tolist() for name, each in found.items()}


def _sizes(rows: Array) -> dict[str, dict[str, float]]:
    """Return the spread of widths, heights, aspect ratios and bytes."""
    known = rows[(rows["height"] > 0) & (rows["width"] > 0)]
    columns = {"width": known["width"], "height": known["height"]}
    columns |= {"aspect_ratio": known["width"] / known["height"], "bytes": rows["bytes"]}
    names = ("min", "p5", "median", "p95", "max", "mean")
    return {
        name: dict(zip(names, [*np.percentile(each, (0, 5, 50, 95, 100)).tolist(), float(each.mean())], strict=True))
        for name, each in columns.items()
        if len(each)
    }


def _verdicts(view: Backend, name: str) -> dict[str, int] | None:
    """Return the kinds of damage by the verdicts in the store; None unless all pictures have one."""
    if name not in pictures(view.meta.fields):
        return None
    kinds = Counter(read_column(view, verdict_fields(name)[0]).tolist())
    return None if UNCHECKED in kinds else damaged_kinds(dict(kinds.most_common()))
