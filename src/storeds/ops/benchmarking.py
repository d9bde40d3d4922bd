"""Measures how fast a store gives batches by number of workers, and which stage takes most of the time."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from storeds._utils.arguments import integer
from storeds._utils.locations import redact
from storeds.backends.base import StoreBackend
from storeds.errors import ConfigError
from storeds.ops.common import Progress, ProgressHook
from storeds.protocols import JSON, Meta

if TYPE_CHECKING:
    from storeds.config import Config
    from storeds.config.loader import Loader
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.loaders.loader import StoreLoader

__all__ = ["BenchReport", "Measurement", "bench", "machine", "versions"]

_TRANSFORM = [{"name": "RandomResizedCrop", "size": 224}, "RandomHorizontalFlip", "ToTensor"]
_ENOUGH = 0.9  # of the best rate; more workers add little
_PACKAGES = ("storeds", "torch", "numpy", "Pillow", "simplejpeg", "av", "lmdb", "h5py", "pymongo", "msgspec", "xxhash")


@dataclass(frozen=True)
class Measurement:
    """What a `StoreLoader` gave with one number of workers.

    Attributes
    ----------
    workers : int
        Worker processes; 0 is the training process itself.
    samples, bad : int
        Samples received; bad ones that others replaced.
    seconds : float
        From the first request of the measurement to its last batch.
    start_seconds : float
        From the start of the workers until each has made a batch.
    stages : dict
        Stage → seconds of one worker per sample: ``read``, ``decode``, ``transform``, ``collate``, and ``waiting``, the
        rest of its time, which goes into sending batches and waiting for requests.
    """

    workers: int
    samples: int
    bad: int
    seconds: float
    start_seconds: float
    stages: dict[str, float]

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def shares(self) -> dict[str, float]:
        """Stage → its share of the workers' time."""
        total = sum(self.stages.values())
        return {stage: spent / total for stage, spent in self.stages.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON."""
        return {**asdict(self), "samples_per_second": self.rate, "shares": self.shares}


@dataclass(frozen=True)
class BenchReport:
    """The result of `bench`.

    Attributes
    ----------
    url : str
        Without secrets.
    layout : str
    count : int
        Number of samples.
    reader : str
        Name of the reader's class.
    batch_size : int or None
    measurements : list of Measurement
        One for each number of workers.
    workers : int
        Recommended: the fewest that reach 90 % of the best rate.
    bottleneck : str
        The stage that takes most of the time with that number of workers.
    advice : list of str
        What to change.
    machine, versions : dict
        The environment of the measurements.
    """

    url: str
    layout: str
    count: int
    reader: str
    batch_size: int | None
    measurements: list[Measurement]
    workers: int
    bottleneck: str
    advice: list[str] = field(default_factory=list)
    machine: dict[str, JSON] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def find(self, workers: int) -> Measurement:
        """Return the measurement with this number of workers; raises KeyError."""
        return {measured.workers: measured for measured in self.measurements}[workers]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**asdict(self), "measurements": [measured.to_json() for measured in self.measurements]}


def bench(
    url: str | None = None,
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
    progress: ProgressHook | None = None,
) -> BenchReport:
    """Measure how fast a store or the dataset of a config gives batches, and find the stage that takes most of the time.

    Parameters
    ----------
    url : str, optional
        As for `open_backend`; by default the URL of the config.
    layout, options
        As for `open_backend`.
    config : path or mapping, optional
        A training config. Its dataset and its loader are measured.
    split : str, optional
        A split of the config.
    reader, decode, transform
        As for `StoreDataset`; they override those of the config. The default without a config is the image reader with
        ``RandomResizedCrop(224)``, ``RandomHorizontalFlip`` and ``ToTensor`` if the store has images, else the array
        reader without a transform.
    workers : sequence of int, optional
        Numbers of worker processes to try; by default 0, 1, 2, 4, … up to the CPUs that this process may use.
    batch_size : int, optional
        That of the config by default, or 64.
    seconds : float
        Duration of each measurement, without the start of the workers.
    progress : callable, optional
        Called with a `Progress` after every batch; it counts measurements.

    Returns
    -------
    BenchReport

    Raises
    ------
    ConfigError
        An argument is invalid, there are no samples, or they make no batch.
    BadSamplesError
        There are hardly any good samples.
    StoreNotFoundError, FormatError, UnavailableError
        The store cannot be opened.

    Notes
    -----
    Samples are read in random order without a config. Bad samples are counted and replaced. If processes start by spawn
    or forkserver, a script needs the usual guard, ``if __name__ == "__main__"``.
    """
    counts = sorted({integer("workers", each, 0) for each in (_usual_workers() if workers is None else workers)})
    if not counts:
        raise ConfigError("workers is an empty list; name at least one number of processes, such as 0")
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds must be more than 0, got {seconds}")
    given = {"reader": reader, "decode": decode, "transform": transform}
    dataset, settings = _opened(url, layout, options, config, split, given)
    size = settings.batch_size if batch_size is None else integer("batch_size", batch_size, 1)
    with dataset.backend:
        if not len(dataset):
            where = f" that match where={dataset.where}" if dataset.where else ""
            raise ConfigError(f"nothing to measure: {dataset.url} has no samples{where}; pack some first")
        found: list[Measurement] = []
        for number in counts:
            loader = _loader(dataset, settings, size, number)
            loader.set_epoch(len(found))  # so that no number of workers reads what another one just read
            found.append(_measure(loader, dataset, number, seconds, progress, Progress(len(found), len(counts), 0)))
        own = dataset.backend.advice() if isinstance(dataset.backend, StoreBackend) else []
        best = _best(found)
        return BenchReport(
            url=redact(dataset.url),
            layout=dataset.backend.meta.layout,
            count=len(dataset),
            reader=type(dataset.reader).__name__,
            batch_size=size,
            measurements=found,
            workers=best.workers,
            bottleneck=_bottleneck(best),
            advice=[*_advice(redact(dataset.url), best, found), *own],
            machine=machine(),
            versions=versions(),
        )


def _usual_workers() -> list[int]:
    """Return 0, 1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0))
    return [0, *(1 << power for power in range(cpus.bit_length()) if 1 << power < cpus), cpus]


def _opened(
    url: str | None,
    layout: str | None,
    options: Mapping[str, Any] | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    split: str | None,
    given: Mapping[str, Any],
) -> tuple[StoreDataset, Loader]:
    """Return the dataset of a config, of a store, or of a config for another store, and the settings of its loader."""
    from storeds.config import load_config
    from storeds.datasets.assembly import open_source
    from storeds.datasets.map_dataset import StoreDataset

    if config is None and (url is None or split is not None):
        raise ConfigError("nothing to measure: pass a store, or a config with its split")
    loaded: Config = load_config(
        {"dataset": {"url": url}, "loader": {"batch_size": 64, "shuffle": True}} if config is None else config
    )
    source = loaded.source_for(split)
    backend = open_source(url or source.url, layout or source.layout, options or source.options)
    try:
        arguments = loaded.source_for(split, backend.meta.fields).arguments()
        if config is None:
            arguments |= _usual_arguments(backend.meta, given)
        arguments |= {name: value for name, value in given.items() if value is not None}
        # Bad samples are replaced, since that fits every function that makes batches.
        arguments |= {"layout": None, "options": None, "on_error": "replace", "max_bad": None, "max_bad_fraction": None}
        return StoreDataset(backend, **arguments), loaded.loader_for(split)
    except BaseException:
        backend.close()
        raise


def _usual_arguments(meta: Meta, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reader and the transform for a store without a config."""
    if all(declared.kind != "image" for declared in meta.fields.values()):
        return {"reader": "array"}
    usual = given["reader"] in (None, "image") and given["decode"] != "bytes"
    return {"reader": "image", "transform": _TRANSFORM if usual else None}


def _loader(dataset: StoreDataset, settings: Loader, batch_size: int | None, workers: int) -> StoreLoader:
    """Return a loader as `build_loader` makes it, whose workers stay."""
    from storeds.loaders.loader import StoreLoader
    from storeds.loaders.sampler import EpochSampler
    from storeds.loaders.threaded import ThreadLoader

    order: dict[str, Any] = {"block_size": settings.block_size, "window": settings.window} if settings.shuffle else {}
    arguments: dict[str, Any] = {
        "sampler": EpochSampler(dataset, shuffle=settings.shuffle, **order),
        "batch_size": batch_size,
        "collate_fn": settings.collate_fn(),
        "num_workers": workers,
    }
    if settings.start_method == "thread":
        return ThreadLoader(dataset, **arguments)
    context = settings.start_method if workers else None
    return StoreLoader(dataset, **arguments, persistent_workers=workers > 0, multiprocessing_context=context)


def _measure(
    loader: StoreLoader,
    dataset: StoreDataset,
    workers: int,
    seconds: float,
    progress: ProgressHook | None,
    state: Progress,
) -> Measurement:
    """Receive batches for `seconds`, after every worker has made one."""
    before, began = dataset.report(), time.perf_counter()
    batches = _endless(loader)
    for _ in range(max(workers, 1)):
        next(batches)
    loader.reset_stats()
    totals = loader._stats.totals
    start = time.perf_counter()
    while time.perf_counter() < start + seconds or totals.batches < max(workers, 1):
        next(batches)
        if progress is not None:
            bad = sum(dataset.report().bad.values()) - sum(before.bad.values())
            progress(Progress(state.done, state.total, 0, bad=bad))
    spent = time.perf_counter() - start
    batches.close()
    stages = dict(totals.seconds)
    stages["waiting"] = max(spent * max(workers, 1) - sum(stages.values()), 0.0)
    return Measurement(
        workers=workers,
        samples=totals.samples,
        bad=sum(dataset.report().bad.values()) - sum(before.bad.values()),
        seconds=spent,
        start_seconds=start - began,
        stages={stage: total / totals.samples for stage, total in stages.items()},
    )


def _endless(loader: StoreLoader) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _best(measurements: Sequence[Measurement]) -> Measurement:
    """Return the measurement with the fewest workers that reach 90 % of the best rate."""
    least = _ENOUGH * max(measured.rate for measured in measurements)
    return next(measured for measured in measurements if measured.rate >= least)


def _bottleneck(measured: Measurement) -> str:
    return max(measured.stages, key=lambda stage: measured.stages[stage])


_REMEDIES = {
    "read": "select fields=[…] that the training uses, store smaller records (storeds pack --max-side), or read from a nearer disk or server",
    "decode": "decode = 'tensor' is faster than Pillow images; storeds pack --max-side makes smaller ones",
    "transform": "make images smaller first (storeds pack --max-side), or transform whole batches on the accelerator",
    "collate": "return uint8 and convert on the accelerator, or return fewer elements per sample",
    "waiting": "return uint8 and convert on the accelerator, use larger batches, or fewer workers",
}


def _advice(url: str, best: Measurement, measurements: Sequence[Measurement]) -> Iterator[str]:
    text = f"num_workers = {best.workers} gives {best.rate:,.0f} samples/s"
    yield text + ("; more workers add little or nothing" if best is not measurements[-1] else "")
    stage = _bottleneck(best)
    yield f"{stage} takes most of the time: {_REMEDIES[stage]}"
    if any(measured.bad for measured in measurements):
        yield f"bad samples were replaced: storeds verify {url} lists them"


def machine() -> dict[str, JSON]:
    """Describe the machine and its load. `torch_threads` are those of this process; a worker has one."""
    import torch

    found: dict[str, JSON] = {
        "cpu": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["accelerator"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
