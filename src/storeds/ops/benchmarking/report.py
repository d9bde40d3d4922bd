"""What a benchmark found: figures, where the time goes, and what to do about it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from storeds._utils.locations import StoreURL
from storeds.protocols import JSON

if TYPE_CHECKING:
    from storeds.ops.benchmarking.runner import Batch

__all__ = [
    "PARTS",
    "BenchReport",
    "Bottleneck",
    "Measurement",
    "advise",
    "best_workers",
    "bottleneck_of",
    "machine",
    "versions",
]


PARTS = ("storage", "decode", "transform", "collate", "transport")
_ENOUGH = 0.9  # of the best rate: further workers would be there for little


@dataclass(frozen=True)
class Measurement:
    """One figure: a stage of the work, by a number of workers, cold or warm.

    Attributes
    ----------
    stage : str
        ``raw``: records as the store has them. ``decoded``: and what the reader makes of them. ``full``: and transformed,
        collated and handed to the process that trains.
    workers : int
        0 is the process itself.
    cache : str
        ``cold`` or ``warm``.
    samples, bad, records, bytes : int
        Asked for; of these, bad ones; records read for them; bytes in their values.
    seconds : float
        From the first request to the last batch; the start of the workers is not in it.
    start_seconds : float
        What that took.
    parts : dict
        Part of the work → seconds that one worker spends on it for one sample. ``transport`` is what is left of the workers'
        time: handing batches over, and waiting.
    left_in_cache : float or None
        For a cold figure, the share of the store's files that was in the page cache all the same, where that is known.
    """

    stage: str
    workers: int
    cache: str
    samples: int
    bad: int
    records: int
    bytes: int
    seconds: float
    start_seconds: float
    parts: dict[str, float]
    left_in_cache: float | None = None

    @classmethod
    def of(
        cls, stage: str, workers: int, cache: str, done: Sequence[Batch], seconds: float, start_seconds: float
    ) -> Measurement:
        """Return the figure for batches that were done in so many seconds."""
        samples = sum(batch.samples for batch in done)
        spent = {part: sum(batch.seconds.get(part, 0.0) for batch in done) for part in PARTS}
        spent["transport"] = max(seconds * max(workers, 1) - sum(spent.values()), 0.0)
        return cls(
            stage=stage,
            workers=workers,
            cache=cache,
            samples=samples,
            bad=sum(batch.bad for batch in done),
            records=sum(batch.records for batch in done),
            bytes=sum(batch.bytes for batch in done),
            seconds=seconds,
            start_seconds=start_seconds,
            parts={part: spent[part] / samples for part in PARTS},
        )

    @property
    def rate(self) -> float:
        """Good samples a second."""
        return (self.samples - self.bad) / self.seconds

    @property
    def mib_rate(self) -> float:
        """MiB of values a second."""
        return self.bytes / self.seconds / 2**20

    @property
    def shares(self) -> dict[str, float]:
        """Part of the work → its share of the workers' time."""
        total = sum(self.parts.values())
        return {part: seconds / total for part, seconds in self.parts.items()} if total else dict(self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON."""
        rates = {"samples_per_second": self.rate, "mib_per_second": self.mib_rate}
        return {**asdict(self), **rates, "records_per_second": self.records / self.seconds, "shares": self.shares}


@dataclass(frozen=True)
class Bottleneck:
    """The part of the work that takes most of the workers' time.

    Attributes
    ----------
    part : str
        ``storage``, ``decode``, ``transform``, ``collate`` or ``transport``.
    share : float
        Of their time, 0 to 1.
    workers : int
        With so many of them.
    cache : str
        ``cold`` or ``warm``.
    """

    part: str
    share: float
    workers: int
    cache: str


@dataclass(frozen=True)
class BenchReport:
    """What `bench` measured.

    Attributes
    ----------
    url : str
        Secrets removed.
    layout : str
    count : int
        Samples.
    reader : str
    images : bool
        Whether something is decoded; if not, there is no stage ``decoded``.
    transform : str or None
        What was applied, in words.
    batch_size : int
    seconds : float
        For each figure.
    measurements : list of Measurement
    workers : int or None
        Recommended: the fewest that give 90 % of the best rate. None where no sample was good.
    bottleneck, cold_bottleneck : Bottleneck or None
        With that number of workers; cold is a first epoch, warm one whose files are in memory.
    advice : list of str
        What to do.
    notes : list of str
        What the figures do not show, and why.
    machine, versions : dict
        What the figures depend on.
    """

    url: str
    layout: str
    count: int
    reader: str
    images: bool
    transform: str | None
    batch_size: int
    seconds: float
    measurements: list[Measurement]
    workers: int | None
    bottleneck: Bottleneck | None
    cold_bottleneck: Bottleneck | None
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, JSON] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def find(self, stage: str, workers: int, cache: str = "warm") -> Measurement | None:
        """Return that figure, if it was measured."""
        return _find(self.measurements, stage, workers, cache)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**asdict(self), "measurements": [measured.to_json() for measured in self.measurements]}


def best_workers(measurements: Iterable[Measurement]) -> int | None:
    """Return the fewest workers whose whole pipeline, warm, gives 90 % of the best rate; None where no sample is good."""
    rates = {m.workers: m.rate for m in measurements if m.stage == "full" and m.cache == "warm"}
    best = max(rates.values(), default=0.0)
    return min((workers for workers, rate in rates.items() if rate >= _ENOUGH * best), default=None) if best else None


def bottleneck_of(measurements: Iterable[Measurement], workers: int | None, cache: str) -> Bottleneck | None:
    """Return where the time of the whole pipeline goes."""
    if workers is None:
        return None
    full = _find(measurements, "full", workers, cache)
    if full is None:
        return None
    part, share = max(full.shares.items(), key=lambda item: item[1])
    return Bottleneck(part, share, workers, cache)


def _find(measurements: Iterable[Measurement], stage: str, workers: int, cache: str) -> Measurement | None:
    asked = (stage, workers, cache)
    return next((m for m in measurements if (m.stage, m.workers, m.cache) == asked), None)


_WHAT_TO_DO = {
    "transform": (
        "the transform takes most of the time: shrink images first (storeds pack --max-side), or do what works on whole "
        "batches on the accelerator"
    ),
    "collate": "making batches takes most of the time: hand out uint8 and scale on the accelerator, or fewer elements a sample",
    "transport": (
        "handing batches from the workers to this process takes most of the time: hand out uint8 and scale on the "
        "accelerator, or use fewer workers"
    ),
}


def advise(
    url: str,
    measurements: Sequence[Measurement],
    workers: int | None,
    bottlenecks: tuple[Bottleneck | None, Bottleneck | None],
    decode: str | None,
) -> list[str]:
    """Return what to do.

    Parameters
    ----------
    url : str
    measurements : sequence of Measurement
    workers : int or None
        Recommended.
    bottlenecks : (Bottleneck or None, Bottleneck or None)
        Warm, and cold.
    decode : str or None
        The decoder that was used; None for the reader's choice.
    """
    return [
        *_about_workers(measurements, workers),
        *_about_parts(url, *bottlenecks, decode),
        *_about_bad(url, measurements),
    ]


def _about_workers(measurements: Sequence[Measurement], workers: int | None) -> Iterator[str]:
    rates = {m.workers: m.rate for m in measurements if m.stage == "full" and m.cache == "warm"}
    if workers is None:
        return
    text = f"num_workers = {workers} gives {rates[workers]:,.0f} samples/s"
    if workers and 0 in rates:
        text += f", {rates[workers] / rates[0]:.1f} times what this process does alone"
    if any(more > workers for more in rates):
        text += "; more workers add little or nothing"
    elif len(rates) > 1:
        text += "; these are the most that were tried"
    yield text
    # A worker has one thread of torch's; this process has one for each CPU, which pays for large tensors alone.
    if rates.get(1, 0.0) > 2 * rates.get(0, float("inf")):
        yield "this process alone is far slower than one worker: torch's threads may hinder it, so try OMP_NUM_THREADS=1"


def _about_parts(url: str, warm: Bottleneck | None, cold: Bottleneck | None, decode: str | None) -> Iterator[str]:
    if warm is not None and warm.part == "transport" and not warm.workers:
        yield (
            "most of the time is the loader's own, calls for each batch and sample, as samples are so small: larger batches "
            "have fewer of them"
        )
    elif warm is not None:
        yield _WHAT_TO_DO.get(warm.part) or (
            _faster_decoding(decode) if warm.part == "decode" else _faster_reading(url)
        )
    if cold is not None and cold.part == "storage":
        yield (
            "a first epoch waits for the disk: block_size in [loader] reads neighbours together, and a file that fits into "
            "memory can be read once before"
        )


def _faster_reading(url: str) -> str:
    less = "fields=[…] with only what the training uses, or smaller records (of images: storeds pack --max-side)"
    if (StoreURL.parse(url).scheme or "").startswith("mongodb"):
        return f"reading takes most of the time: a server nearer by, a copy in a file (storeds convert), {less}"
    return f"reading takes most of the time, though the files are in memory, so there is little else to save: {less}"


def _faster_decoding(decode: str | None) -> str:
    smaller = "pack smaller images (storeds pack --max-side)"
    if decode not in (None, "pil"):
        return f"decoding takes most of the time: {smaller}, or use more CPUs"
    return f"decoding takes most of the time: decode = 'tensor' is faster than Pillow images; or {smaller}"


def _about_bad(url: str, measurements: Sequence[Measurement]) -> Iterator[str]:
    worst = max(measurements, key=lambda m: m.bad / max(m.samples, 1), default=None)
    if worst is not None and worst.bad:
        yield (
            f"{100 * worst.bad / worst.samples:.3g} % of the samples were bad, and are in no rate: storeds verify {url} says which "
            "and why"
        )


_PACKAGES = ("storeds", "torch", "numpy", "Pillow", "simplejpeg", "av", "lmdb", "h5py", "pymongo")


def machine() -> dict[str, JSON]:
    """Return what the machine is, and how busy; the threads are torch's in this process, since a worker has one."""
    found: dict[str, JSON] = {
        "cpu": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
    }
    import torch

    found["torch_threads"] = torch.get_num_threads()
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
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
