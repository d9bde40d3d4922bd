"""What all benchmarks share: interleaved rounds, the machine they ran on, one table and one JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

FIELDS = {"image": "image", "label": "int", "key": "str"}
_PACKAGES = ("storeds", "numpy", "lmdb", "h5py", "pymongo", "msgspec", "xxhash", "torch")


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum over the rounds."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        if self.min == self.max:
            return _short(self.median)
        return f"{_short(self.median)}  ({_short(self.min)} – {_short(self.max)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Result:
    """One line of a report: a figure, what it is held against, and whether its median gets there."""

    name: str
    unit: str
    figure: Spread
    target: str
    met: bool
    detail: str = ""


def compare(
    ours: Callable[[], object], bare: Callable[[], object], *, rounds: int, seconds: float
) -> tuple[Spread, Spread, Spread]:
    """Time two ways in turn; return bare time ÷ our time (above 1: we are faster), our and their seconds a pass.

    Both run once unmeasured. Each round repeats a pass until `seconds` are over and swaps who goes first, so that
    drift of the machine falls on both.
    """
    ours(), bare()
    times: dict[Callable[[], object], list[float]] = {ours: [], bare: []}
    for number in range(rounds):
        for run in (ours, bare) if number % 2 else (bare, ours):
            times[run].append(_seconds_a_pass(run, seconds))
    ratios = [theirs / mine for mine, theirs in zip(times[ours], times[bare], strict=True)]
    return Spread.of(ratios), Spread.of(times[ours]), Spread.of(times[bare])


def _seconds_a_pass(run: Callable[[], object], seconds: float) -> float:
    start, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - start < seconds:
        run()
        passes += 1
    return (time.perf_counter() - start) / passes


def make_records(count: int, size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return records with incompressible bytes of about `size`, a label and a key, as an image set has them."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(size * 3 // 4, size * 5 // 4 + 1, count)
    return [
        {"image": rng.bytes(int(n)), "label": at % 1000, "key": f"class_{at % 1000:04}/image_{at:08}.jpg"}
        for at, n in enumerate(sizes)
    ]


def parser(description: str, out: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--rounds", type=int, default=7, help="measured rounds, at least 5 for figures to publish")
    options.add_argument("--work", type=Path, help="folder for the stores, on the disk to measure; a temporary one")
    options.add_argument("--out", type=Path, default=Path("build/bench") / out, help="where the JSON goes")
    options.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return options


def report(title: str, results: Sequence[Result], setup: Mapping[str, Any], out: Path) -> bool:
    """Print a table, write the JSON, and return whether every target was met."""
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "unit", "median  (min – max)", "target", "met", "detail"):
        table.add_column(heading, overflow="fold")
    for result in results:
        met = "yes" if result.met else "[bold red]no[/]"
        table.add_row(result.name, result.unit, str(result.figure), result.target, met, result.detail)
    Console().print(table)
    body = {
        "title": title,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "setup": dict(setup),
        "results": [asdict(result) for result in results],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(body, indent=2) + "\n")
    Console().print(f"written to {out}")
    return all(result.met for result in results)


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores this process may use, memory, load, kernel."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the figures depend on."""
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
