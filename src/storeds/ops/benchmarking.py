"""Measures how fast a store gives batches by number of workers, and which stage takes most of the time."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import structs

from storeds._utils.arguments import check_int
from storeds._utils.tables import text_table
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.backends.view import describe
from storeds.config import Config, Split, build_loader, load_config
from storeds.datasets.assembly import reader_name
from storeds.datasets.batch import STAGES
from storeds.errors import ConfigError
from storeds.ops.progress import Progress, ProgressHook
from storeds.redaction import redact

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.loaders.loader import StoreLoader

__all__ = ["BenchReport", "Measurement", "bench"]

_TRANSFORM = [{"name": "RandomResizedCrop", "size": 224}, "RandomHorizontalFlip", "ToTensor"]
_ENOUGH = 0.9  # of the best rate; more workers add little


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
        Name of the reader.
    batch_size : int or None
    measurements : list of Measurement
        One for each number of workers.
    workers : int
        Recommended: the fewest that reach 90 % of the best rate.
    bottleneck : str
        The stage that takes most of the time with that number of workers.
    advice : list of str
        What to change; with the most workers, what `StoreLoader.why_slow` says.
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

    def __str__(self) -> str:
        stages = (*STAGES, "waiting")
        rows = (
            (
                f"{each.workers}",
                f"{each.rate:,.0f}",
                f"{each.start_seconds:.2f}",
                *(f"{1e6 * each.stages[stage]:,.0f}" for stage in stages),
            )
            for each in self.measurements
        )
        headings = ("workers", "samples/s", "start s", *(f"{stage} µs" for stage in stages))
        table = text_table(dict.fromkeys(headings, "right"), rows)
        size = f"{self.url}: {counted(self.count, 'sample')}, batches of {self.batch_size}"
        return "\n".join((table, "", size, *(f"advice: {each}" for each in self.advice)))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**asdict(self), "measurements": [measured.to_json() for measured in self.measurements]}


def bench(
    url: str | os.PathLike[str] | None = None,
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
    counts = sorted({check_int("workers", each, 0) for each in (_usual_workers() if workers is None else workers)})
    if not counts:
        raise ConfigError("workers is an empty list; name at least one number of processes, such as 0")
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds must be more than 0, got {seconds}")
    given = {
        "url": None if url is None else os.fspath(url),
        "layout": layout,
        "options": options,
        "reader": reader,
        "decode": decode,
        "transform": transform,
    }
    size = {} if batch_size is None else {"batch_size": check_int("batch_size", batch_size, 1)}
    measured = _config({name: value for name, value in given.items() if value is not None}, size, config, split)
    found: list[Measurement] = []
    for number in counts:
        settings = structs.replace(measured.loader, num_workers=number)
        loader = build_loader(structs.replace(measured, loader=settings), split)
        dataset: StoreDataset = loader.dataset  # type: ignore[assignment]  # build_loader made it
        with dataset.backend:
            if not len(loader):
                where = f" that match where={dataset.where}" if dataset.where else ""
                raise ConfigError(f"nothing to measure: {dataset.url} has no samples{where} that make a batch")
            loader.set_epoch(len(found))  # so that no number of workers reads what another one just read
            found.append(_measure(loader, number, seconds, progress, Progress(len(found), len(counts), 0)))
            if number == counts[-1]:
                advice = [loader.why_slow(), *describe(dataset.backend).advice]
    best = _best(found)
    more = "; more workers add little or nothing" if best is not found[-1] else ""
    if any(each.bad for each in found):
        advice.append(f"bad samples were replaced: storeds verify {redact(dataset.url)} lists them")
    return BenchReport(
        url=redact(dataset.url),
        layout=dataset.backend.meta.layout,
        count=len(dataset),
        reader=reader_name(dataset.reader),
        batch_size=loader.batch_size,
        measurements=found,
        workers=best.workers,
        bottleneck=max(best.stages, key=lambda stage: best.stages[stage]),
        advice=[f"num_workers = {best.workers} gives {best.rate:,.0f} samples/s{more}", *advice],
    )


def _usual_workers() -> list[int]:
    """Return 0, 1, 2, 4, … and the number of CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0))
    return [0, *(1 << power for power in range(cpus.bit_length()) if 1 << power < cpus), cpus]


def _config(
    given: Mapping[str, Any],
    size: Mapping[str, int],
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    split: str | None,
) -> Config:
    """Return a config with these settings instead of its own: of the dataset, and the size of batches."""
    changes: dict[str, Any] = {**given, "on_error": "replace", "max_bad": None, "max_bad_fraction": None}
    if config is None:
        if "url" not in given or split is not None:
            raise ConfigError("nothing to measure: pass a store, or a config with its split")
        with open_backend(given["url"], layout=given.get("layout"), **given.get("options", {})) as backend:
            has_images = any(declared.kind == "image" for declared in backend.meta.fields.values())
        usual = {"reader": "image", "transform": _TRANSFORM if given.get("decode") != "bytes" else None}
        changes = (usual if has_images else {"reader": "array"}) | changes
        if changes["reader"] != "image" and "transform" not in given:
            changes["transform"] = None
        config = {"dataset": changes, "loader": {"batch_size": 64, "shuffle": True}}
    loaded = load_config(config)
    settings = loaded.loader_for(split)
    settings = structs.replace(settings, persistent_workers=settings.start_method != "thread", **size)
    tables = {
        name: Split({key: value for key, value in table.dataset.items() if key not in changes})
        for name, table in loaded.splits.items()
    }
    dataset = loaded.dataset.replaced(changes)
    return structs.replace(loaded, dataset=dataset, loader=settings, splits=tables, allow_overlap=True)


def _measure(
    loader: StoreLoader, workers: int, seconds: float, progress: ProgressHook | None, state: Progress
) -> Measurement:
    """Receive batches for `seconds`, after every worker has made one."""
    began = time.perf_counter()
    batches = _endless(loader)
    for _ in range(max(workers, 1)):
        next(batches)
    loader.reset_stats()
    start = time.perf_counter()
    received = 0
    while time.perf_counter() < start + seconds or received < max(workers, 1):
        next(batches)
        received += 1
        if progress is not None:
            progress(state)
    spent = time.perf_counter() - start
    batches.close()
    stats = loader.stats()
    stages = {stage: stats["seconds"][stage] for stage in STAGES}
    stages["waiting"] = max(spent * max(workers, 1) - sum(stages.values()), 0.0)
    return Measurement(
        workers=workers,
        samples=stats["samples"],
        bad=stats["bad"],
        seconds=spent,
        start_seconds=start - began,
        stages={stage: total / stats["samples"] for stage, total in stages.items()},
    )


def _endless(loader: StoreLoader) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _best(measurements: Sequence[Measurement]) -> Measurement:
    """Return the measurement with the fewest workers that reach 90 % of the best rate."""
    least = _ENOUGH * max(measured.rate for measured in measurements)
    return next(measured for measured in measurements if measured.rate >= least)
