"""The report of a benchmark: measurements, where the time goes, and advice."""

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
_ENOUGH = 0.9  # of the best rate; more workers add little


@dataclass(frozen=True)
class Measurement:
    """One measurement: a stage of the work with a number of workers, cold or warm.

    Attributes
    ----------
    stage : str
        ``raw``: read records. ``decoded``: read and decode. ``full``: read, decode, transform, collate and transfer to
        the training process.
    workers : int
        Worker processes; 0 is the process itself.
    cache : str
        ``cold`` or ``warm``.
    samples, bad, records, bytes : int
        Samples requested; bad ones among them; records read for them; bytes in their values.
    seconds : float
        From the first request to the last batch, without the start of the workers.
    start_seconds : float
        The start of the workers.
    parts : dict
        Part of the work → seconds of one worker per sample. ``transport`` is the rest of the workers' time: transferring
        batches, and waiting.
    left_in_cache : float or None
        For a cold measurement, the share of the store's files that was cached nevertheless, if known.
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
        """Return the measurement for batches that took `seconds`."""
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
        """Good samples per second."""
        return (self.samples - self.bad) / self.seconds

    @property
    def mib_rate(self) -> float:
        """MiB of values per second."""
        return self.bytes / self.seconds / 2**20

    @property
    def shares(self) -> dict[str, float]:
        """Part of the work → its share of the workers' time."""
        total = sum(self.parts.values())
        return {part: seconds / total for part, seconds in self.parts.items()} if total else dict(self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON."""
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
        Its share of their time, 0 to 1.
    workers : int
        The number of workers.
    cache : str
        ``cold`` or ``warm``.
    """

    part: str
    share: float
    workers: int
    cache: str


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
    images : bool
        Whether images are decoded; if not, there is no stage ``decoded``.
    transform : str or None
        The transform in words.
    batch_size : int
    seconds : float
        Duration of each measurement.
    measurements : list of Measurement
    workers : int or None
        Recommended: the fewest that reach 90 % of the best rate. None if no sample was good.
    bottleneck, cold_bottleneck : Bottleneck or None
        With that number of workers. Cold is a first epoch; warm is an epoch whose files are cached.
    advice : list of str
        What to change.
    notes : list of str
        Limits of these measurements, and why.
    machine, versions : dict
        The environment of the measurements.
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
        """Return this measurement, or None if it was not made."""
        return _find(self.measurements, stage, workers, cache)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**asdict(self), "measurements": [measured.to_json() for measured in self.measurements]}


def best_workers(measurements: Iterable[Measurement]) -> int | None:
    """Return the fewest workers that reach 90 % of the best warm rate of the whole pipeline; None if no sample is good."""
    rates = {m.workers: m.rate for m in measurements if m.stage == "full" and m.cache == "warm"}
    best = max(rates.values(), default=0.0)
    return min((workers for workers, rate in rates.items() if rate >= _ENOUGH * best), default=None) if best else None


def bottleneck_of(measurements: Iterable[Measurement], workers: int | None, cache: str) -> Bottleneck | None:
    """Return the part that takes most of the whole pipeline's time."""
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
        "the transform takes most of the time: scale images down first (storeds pack --max-side), or transform whole "
        "batches on the accelerator"
    ),
    "collate": "collating takes most of the time: return uint8 and convert on the accelerator, or return fewer elements per sample",
    "transport": (
        "transferring batches from the workers takes most of the time: return uint8 and convert on the accelerator, or "
        "use fewer workers"
    ),
}


def advise(
    url: str,
    measurements: Sequence[Measurement],
    workers: int | None,
    bottlenecks: tuple[Bottleneck | None, Bottleneck | None],
    decode: str | None,
) -> list[str]:
    """Return advice as sentences.

    Parameters
    ----------
    url : str
    measurements : sequence of Measurement
    workers : int or None
        The recommended number.
    bottlenecks : (Bottleneck or None, Bottleneck or None)
        Warm and cold.
    decode : str or None
        The decoder; None for the default of the reader.
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
        text += f", {rates[workers] / rates[0]:.1f} times as much as this process alone"
    if any(more > workers for more in rates):
        text += "; more workers add little or nothing"
    elif len(rates) > 1:
        text += ", the largest number tried"
    yield text
    # torch uses one thread in a worker, but one per CPU in this process, which helps only with large tensors.
    if rates.get(1, 0.0) > 2 * rates.get(0, float("inf")):
        yield "this process alone is much slower than one worker: torch's threads may slow it down, so try OMP_NUM_THREADS=1"


def _about_parts(url: str, warm: Bottleneck | None, cold: Bottleneck | None, decode: str | None) -> Iterator[str]:
    if warm is not None and warm.part == "transport" and not warm.workers:
        yield (
            "the loader's calls per batch and sample take most of the time, because samples are small: use larger batches"
        )
    elif warm is not None:
        yield _WHAT_TO_DO.get(warm.part) or (
            _faster_decoding(decode) if warm.part == "decode" else _faster_reading(url)
        )
    if cold is not None and cold.part == "storage":
        yield (
            "a first epoch waits for the disk: block_size in [loader] reads neighbours together, and a file that fits into "
            "memory can be read once beforehand"
        )


def _faster_reading(url: str) -> str:
    less = "select fields=[…] that the training uses, or store smaller records (for images: storeds pack --max-side)"
    if (StoreURL.parse(url).scheme or "").startswith("mongodb"):
        return f"reading takes most of the time: use a nearer server or a copy in a file (storeds convert), {less}"
    return f"reading takes most of the time although the files are in memory: {less}"


def _faster_decoding(decode: str | None) -> str:
    smaller = "pack smaller images (storeds pack --max-side)"
    if decode not in (None, "pil"):
        return f"decoding takes most of the time: {smaller}, or use more CPUs"
    return f"decoding takes most of the time: decode = 'tensor' is faster than Pillow images; or {smaller}"


def _about_bad(url: str, measurements: Sequence[Measurement]) -> Iterator[str]:
    worst = max(measurements, key=lambda m: m.bad / max(m.samples, 1), default=None)
    if worst is not None and worst.bad:
        yield (
            f"{100 * worst.bad / worst.samples:.3g} % of the samples were bad, and no rate includes them: storeds verify {url} reports which "
            "and why"
        )


_PACKAGES = ("storeds", "torch", "numpy", "Pillow", "simplejpeg", "av", "lmdb", "h5py", "pymongo")


def machine() -> dict[str, JSON]:
    """Describe the machine and its load. `torch_threads` are those of this process; a worker has one."""
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
    """Return the versions of Python and of the installed packages."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
