"""Measures what a store gives: raw, decoded and as batches, cold and warm, by number of workers; and what holds it back."""

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
from storeds.ops.benchmarking.settings import BenchSettings
from storeds.ops.progress import Progress, ProgressHook
from storeds.protocols import Array, Backend

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.ops.benchmarking.runner import Batch, Runner

__all__ = ["BenchPlot", "BenchReport", "Bottleneck", "Measurement", "bench"]


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
    """Measure how fast the store at `url` gives records, decoded images and whole batches, and find what holds it back.

    Parameters
    ----------
    url : str
        What `open_backend` takes.
    layout, options
        As for `open_backend`.
    config : path or mapping, optional
        A training config: what its ``[dataset]`` says is measured, but for the URL, and its ``batch_size`` and ``pad``.
    split : str, optional
        Of the config.
    reader, decode, transform
        As for `StoreDataset`, over those of the config. Without a config: the image reader where the store has images, and
        ``RandomResizedCrop(224)``, ``RandomHorizontalFlip``, ``ToTensor``; else the array reader, and no transform.
    workers : sequence of int, optional
        Numbers of worker processes to try; by default 0, 1, 2, 4 and so on up to the CPUs that this process may use.
    batch_size : int, optional
        64, or what the config says.
    seconds : float
        For each figure; there are up to five for a number of workers.
    cold : bool
        Whether to measure a first epoch too, for which the store's files are dropped from the page cache, over and over:
        whoever else reads them meanwhile is slowed down.
    progress : callable, optional
        Called with a `Progress` at every batch; it counts figures.

    Returns
    -------
    BenchReport

    Raises
    ------
    ConfigError
        An argument makes no sense, or the store holds no samples.
    StoreNotFoundError, FormatError, UnavailableError
        From opening the store.

    Notes
    -----
    Every figure is of random order. Bad samples are counted and left out. Where processes start by spawn or
    forkserver, a script needs the usual guard, ``if __name__ == "__main__"``.
    """
    settings = BenchSettings.of(
        config, split, reader=reader, decode=decode, transform=transform, layout=layout, options=options
    )
    settings = settings.measuring(workers, batch_size, seconds)
    with open_backend(url, layout=settings.layout, **settings.options) as backend:
        return _Bench(backend, settings.fitted(backend.meta), progress).run(cold)


@dataclass
class _Bench:
    """One benchmark: the store, which is opened anew for each loader, and what was found so far."""

    backend: Backend
    settings: BenchSettings
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
            self.notes.append("the samples are no images that are decoded, so there is no stage between raw and full")
        for workers in self.settings.workers:
            for stage in stages:
                self._measure(stage, workers)
        return self._report()

    @contextmanager
    def _dataset(self) -> Iterator[StoreDataset]:
        """Give a dataset with a backend of its own: one that has read nothing, whose files nobody here has mapped."""
        from storeds.datasets.map_dataset import StoreDataset

        dataset = StoreDataset(self._revived(), **self.settings.arguments)
        try:
            yield dataset
        finally:
            dataset.close()

    def _revived(self) -> Backend:
        copy: Backend = pickle.loads(pickle.dumps(self.backend))  # noqa: S301  # just made, of our own object
        return copy

    def _check_count(self) -> None:
        if self.count:
            return
        where = self.settings.arguments.get("where")
        selected = f", of {len(self.backend)} records, for where={where}" if where else ""
        raise ConfigError(f"nothing to measure: {self.backend.url} holds no samples{selected}; pack some first")

    def _note_load(self) -> None:
        load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if load > cpus / 2:
            self.notes.append(
                f"the machine was busy before this began (load {load:.1f} on {cpus} CPUs): it can do better"
            )

    def _collate(self, dataset: StoreDataset) -> Callable[[Sequence[Any]], Any]:
        """Return what makes batches; a list does where samples of a store without a config do not fit together."""
        from storeds.ops.benchmarking.runner import Probe, once

        collate = self.settings.collate()
        try:
            Probe(dataset, "full", collate).__getitems__(
                next(once(self.count, min(self.settings.batch_size, 16), self.rng))
            )
        except ConfigError as error:
            if self.settings.from_config:
                raise
            self.notes.append(f"samples are handed over as lists, since they do not stack: {error}")
            return list
        return collate

    def _cold_cache(self) -> PageCache | None:
        """Return the page cache if it can be dropped, and note why if it cannot."""
        with self._revived() as backend:
            cache = PageCache.of(backend)
        state = cache.drop()
        if state.reason:
            self.notes.append(
                f"{'cold figures may be warm' if state.is_cold else 'nothing is measured cold'}: {state.reason}"
            )
        return cache if state.is_cold else None

    def _measure(self, stage: str, workers: int) -> None:
        from storeds.ops.benchmarking.runner import Probe, Runner, endless, once

        size, seconds = self.settings.batch_size, self.settings.seconds
        with self._dataset() as dataset:
            runner = Runner(Probe(dataset, stage, self.collate), stage, workers, self._told)
            if self.cache is not None and stage != "decoded":
                self._measure_cold(runner, self.cache)
            elif self.seen is None:
                runner.measure(once(self.count, size, self.rng), seconds, "unknown")
                self.seen = runner.seen
            assert self.seen is not None
            # Only what was read just before is warm, whatever the size of the store.
            batches = endless(self.seen, size, self.rng)
            runner.touch(batches)
            self.found.append(runner.measure(batches, seconds, "warm"))

    def _measure_cold(self, runner: Runner, cache: PageCache) -> None:
        from storeds.ops.benchmarking.runner import once

        state = cache.drop()
        batches = once(self.count, self.settings.batch_size, self.rng)
        measured = runner.measure(batches, self.settings.seconds, "cold")
        self.seen = runner.seen
        self.found.append(replace(measured, left_in_cache=state.left))

    def _told(self, batch: Batch) -> None:
        self.read, self.bad = self.read + batch.bytes, self.bad + batch.bad
        if self.progress is not None:
            self.progress(Progress(len(self.found), self.total, self.read, bad=self.bad))

    def _report(self) -> BenchReport:
        workers = best_workers(self.found)
        warm, cold = (bottleneck_of(self.found, workers, cache) for cache in ("warm", "cold"))
        settings, url = self.settings, redact(self.backend.url)
        advice = advise(url, self.found, workers, (warm, cold), settings.arguments.get("decode"))
        with self._revived() as backend:
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
