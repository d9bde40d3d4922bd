"""Measures how fast a store is (raw, decoded and as batches, cold and warm, by number of workers) and its bottleneck.

`bench` is the entry point. Read this file first, then `runner` (what is timed) and `report` (what is concluded).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storeds._utils.locations import redact
from storeds.backends.base import StoreBackend
from storeds.backends.opening import open_backend
from storeds.errors import ConfigError
from storeds.ops.benchmarking.page_cache import PageCache
from storeds.ops.benchmarking.plot import BenchPlot
from storeds.ops.benchmarking.report import (
    BenchReport,
    Bottleneck,
    Measurement,
    advise,
    best_workers,
    bottleneck_of,
    machine,
    versions,
)
from storeds.ops.common import Progress, ProgressHook
from storeds.protocols import Array, Backend, Meta

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.ops.benchmarking.runner import Batch, Runner

__all__ = ["BenchPlot", "BenchReport", "Bottleneck", "Measurement", "bench"]


_BATCH = 64
_TRANSFORM = [{"name": "RandomResizedCrop", "size": 224}, "RandomHorizontalFlip", "ToTensor"]


def bench(
    url: str,
    *,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    split: str | None = None,
    reader: str | None = None,
    decode: str | None = None,
    transform: Any = None,
    workers: Sequence[int] | None = None,
    batch_size: int | None = None,
    seconds: float = 3.0,
    cold: bool = True,
    progress: ProgressHook | None = None,
) -> BenchReport:
    """Measure how fast the store at `url` gives records, decoded images and batches, and find the bottleneck.

    Parameters
    ----------
    url : str
        As for `open_backend`.
    layout, options
        As for `open_backend`.
    config : path or mapping, optional
        A training config. Its ``[dataset]`` except for the URL, its ``batch_size`` and its ``pad`` are used.
    split : str, optional
        A split of the config.
    reader, decode, transform
        As for `StoreDataset`; they override those of the config. The default without a config is the image reader with
        ``RandomResizedCrop(224)``, ``RandomHorizontalFlip`` and ``ToTensor`` if the store has images, else the array
        reader without a transform.
    workers : sequence of int, optional
        Numbers of worker processes to try; by default 0, 1, 2, 4, … up to the CPUs that this process may use.
    batch_size : int, optional
        64 by default, or that of the config.
    seconds : float
        Duration of each measurement. There are up to five for each number of workers.
    cold : bool
        Also measure a first epoch. This drops the store's files from the page cache repeatedly, which slows down other
        readers of these files.
    progress : callable, optional
        Called with a `Progress` after every batch; it counts measurements.

    Returns
    -------
    BenchReport

    Raises
    ------
    ConfigError
        An argument is invalid, or the store has no samples.
    StoreNotFoundError, FormatError, UnavailableError
        The store cannot be opened.

    Notes
    -----
    All reads are in random order. Bad samples are counted and left out. If processes start by spawn or forkserver, a
    script needs the usual guard, ``if __name__ == "__main__"``.
    """
    settings = _Settings.of(
        config, split, reader=reader, decode=decode, transform=transform, layout=layout, options=options
    )
    settings = settings.measuring(workers, batch_size, seconds)
    with open_backend(url, layout=settings.layout, **settings.options) as backend:
        return _Bench(backend, settings.fitted(backend.meta), progress).run(cold)


@dataclass(frozen=True)
class _Settings:
    """Validated settings of one benchmark.

    Attributes
    ----------
    arguments : dict
        Arguments of `StoreDataset`, without the source, the layout and the options.
    layout : str or None
    options : dict
        Options of the backend.
    from_config : bool
    collate_fn : callable, optional
        `storeds.collate` or `storeds.collate_detection`, with the settings of a config.
    where_of : callable or None
        Gives the ``where`` of a config's split for a store with this `Meta`.
    workers : sequence of int
    batch_size : int
    seconds : float
    """

    arguments: dict[str, Any]
    layout: str | None
    options: dict[str, Any]
    from_config: bool
    collate_fn: Callable[..., Any] | None = None
    where_of: Callable[[Meta], dict[str, Any] | None] | None = None
    workers: Sequence[int] = ()
    batch_size: int = _BATCH
    seconds: float = 3.0

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self.arguments.get("seed") or 0

    @classmethod
    def of(
        cls, config: str | os.PathLike[str] | Mapping[str, Any] | None, split: str | None, **given: Any
    ) -> _Settings:
        """Return the settings of a config, overridden by `given`; raises ConfigError."""
        arguments: dict[str, Any] = {}
        more: dict[str, Any] = {}
        if config is not None:
            from storeds.config import load_config

            loaded = load_config(config)
            arguments, loader = loaded.source_for(split).arguments(), loaded.loader_for(split)
            more = {"collate_fn": loader.collate_fn(), "batch_size": loader.batch_size or 1}
            more["where_of"] = lambda meta: loaded.source_for(split, meta.fields).where
        elif split is not None:
            raise ConfigError(f"split {split!r} needs a config; pass both, or neither")
        arguments |= {name: value for name, value in given.items() if value is not None}
        layout, options = arguments.pop("layout", None), dict(arguments.pop("options", None) or {})
        return cls(arguments, layout, options, config is not None, **more)

    def measuring(self, workers: Sequence[int] | None, batch_size: int | None, seconds: float) -> _Settings:
        """Return the settings with these limits, with defaults for None; raises ConfigError."""
        counts = _usual_workers() if workers is None else list(dict.fromkeys(workers))
        if not counts or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in counts):
            raise ConfigError(f"workers must be a list of numbers of processes, each 0 or more, got {workers!r}")
        size = self.batch_size if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"batch_size must be 1 or more, got {size!r}")
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"seconds must be more than 0, got {seconds}")
        return replace(self, workers=sorted(counts), batch_size=size, seconds=float(seconds))

    def fitted(self, meta: Meta) -> _Settings:
        """Return the settings with defaults that fit a store."""
        arguments = dict(self.arguments)
        if self.where_of is not None:
            arguments["where"] = self.where_of(meta)
        has_images = any(declared.kind == "image" for declared in meta.fields.values())
        arguments.setdefault("reader", "image" if has_images else "array")
        usual = not self.from_config and arguments["reader"] == "image" and arguments.get("decode") != "bytes"
        if usual and "transform" not in arguments:
            arguments["transform"] = _TRANSFORM
        return replace(self, arguments=arguments)

    def images(self, stored: Sequence[str], meta: Meta) -> bool:
        """Return whether samples with these fields contain images to decode."""
        kinds = {field.kind for name, field in meta.fields.items() if name in stored}
        decodes = self.arguments["reader"] != "array" and self.arguments.get("decode") != "bytes"
        return "image" in kinds and decodes


def _usual_workers() -> list[int]:
    """Return 0, 1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0))
    return sorted({0, cpus, *(1 << power for power in range(cpus.bit_length()) if 1 << power < cpus)})


@dataclass
class _Bench:
    """One benchmark: the store, which each loader reopens, and the measurements so far."""

    backend: Backend
    settings: _Settings
    progress: ProgressHook | None
    found: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: Array | None = None
    total: int = 0
    read: int = 0
    bad: int = 0

    def run(self, cold: bool) -> BenchReport:
        import numpy as np

        self.rng = np.random.default_rng(self.settings.seed)
        with self._dataset() as dataset:
            self.count, self.transform = len(dataset), dataset.transform
            self._check_count()
            self.images = self.settings.images(dataset.reader.stored, self.backend.meta)
            self.collate = self._collate(dataset)
        self.cache = self._cold_cache() if cold else None
        stages = ("raw", "decoded", "full") if self.images else ("raw", "full")
        colds = 2 if self.cache else 0
        self.total = len(self.settings.workers) * (len(stages) + colds)
        self._note_load()
        if not self.images:
            self.notes.append("samples contain no images to decode, so there is no stage between raw and full")
        for workers in self.settings.workers:
            for stage in stages:
                self._measure(stage, workers)
        return self._report()

    @contextmanager
    def _dataset(self) -> Iterator[StoreDataset]:
        """Open a dataset with its own backend, which has read nothing and mapped no file yet."""
        from storeds.datasets.map_dataset import StoreDataset

        dataset = StoreDataset(self._reopened(), **self.settings.arguments)
        try:
            yield dataset
        finally:
            dataset.close()

    def _reopened(self) -> Backend:
        copy: Backend = pickle.loads(pickle.dumps(self.backend))  # noqa: S301  # our own object
        return copy

    def _check_count(self) -> None:
        if self.count:
            return
        where = self.settings.arguments.get("where")
        selected = f", of {len(self.backend)} records, for where={where}" if where else ""
        raise ConfigError(f"nothing to measure: {self.backend.url} has no samples{selected}; pack some first")

    def _note_load(self) -> None:
        load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if load > cpus / 2:
            self.notes.append(
                f"the machine was already busy (load {load:.1f} on {cpus} CPUs), so these rates are too low"
            )

    def _collate(self, dataset: StoreDataset) -> Callable[[Sequence[Any]], Any]:
        """Return the function that makes batches: `list` if samples do not stack and there is no config."""
        from storeds.batching.collate import collate as usual
        from storeds.batching.roles import is_collate
        from storeds.loaders.loader import fitted_collate
        from storeds.ops.benchmarking.runner import Probe, once

        given = self.settings.collate_fn
        collate: Callable[[Sequence[Any]], Any] = fitted_collate(given if is_collate(given) else usual, dataset)
        try:
            Probe(dataset, "full", collate).__getitems__(
                next(once(self.count, min(self.settings.batch_size, 16), self.rng))
            )
        except ConfigError as error:
            if self.settings.from_config:
                raise
            self.notes.append(f"batches are lists, because samples do not stack: {error}")
            return list
        return collate

    def _cold_cache(self) -> PageCache | None:
        """Return the page cache of the store if it can be dropped; otherwise note why not."""
        with self._reopened() as backend:
            cache = PageCache.of(backend)
        state = cache.drop()
        if state.reason:
            self.notes.append(
                f"{'cold rates may be warm' if state.is_cold else 'there are no cold rates'}: {state.reason}"
            )
        return cache if state.is_cold else None

    def _measure(self, stage: str, workers: int) -> None:
        from storeds.ops.benchmarking.runner import Probe, Runner, endless, once

        size, seconds = self.settings.batch_size, self.settings.seconds
        with self._dataset() as dataset:
            runner = Runner(Probe(dataset, stage, self.collate), stage, workers, self._count_batch)
            if self.cache is not None and stage != "decoded":
                self._measure_cold(runner, self.cache)
            elif self.seen is None:
                runner.measure(once(self.count, size, self.rng), seconds, "unknown")
                self.seen = runner.seen
            assert self.seen is not None
            # Only the samples read just before are warm, whatever the size of the store.
            batches = endless(self.seen, size, self.rng)
            runner.warm_up(batches)
            self.found.append(runner.measure(batches, seconds, "warm"))

    def _measure_cold(self, runner: Runner, cache: PageCache) -> None:
        from storeds.ops.benchmarking.runner import once

        state = cache.drop()
        batches = once(self.count, self.settings.batch_size, self.rng)
        measured = runner.measure(batches, self.settings.seconds, "cold")
        self.seen = runner.seen
        self.found.append(replace(measured, left_in_cache=state.left))

    def _count_batch(self, batch: Batch) -> None:
        self.read, self.bad = self.read + batch.bytes, self.bad + batch.bad
        if self.progress is not None:
            self.progress(Progress(len(self.found), self.total, self.read, bad=self.bad))

    def _report(self) -> BenchReport:
        workers = best_workers(self.found)
        warm, cold = (bottleneck_of(self.found, workers, cache) for cache in ("warm", "cold"))
        settings, url = self.settings, redact(self.backend.url)
        advice = advise(url, self.found, workers, (warm, cold), settings.arguments.get("decode"))
        with self._reopened() as backend:
            own = backend if isinstance(backend, StoreBackend) else None
            handle = own.handle_settings() if own else {}
            advice += own.advice() if own else []
        return BenchReport(
            url=url,
            layout=self.backend.meta.layout,
            count=self.count,
            reader=settings.arguments["reader"],
            images=self.images,
            transform=None if self.transform is None else repr(self.transform),
            batch_size=settings.batch_size,
            seconds=settings.seconds,
            measurements=self.found,
            workers=workers,
            bottleneck=warm,
            cold_bottleneck=cold,
            advice=advice,
            notes=self.notes,
            machine={**machine(), **{name: handle[name] for name in ("file_system",) if name in handle}},
            versions=versions(),
        )
