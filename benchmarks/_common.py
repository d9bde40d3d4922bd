"""What all benchmarks share: the registry of entries, interleaved rounds, and the table and JSON of results."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]


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
    """One line of a report: a figure, and the least or the most that its median should be."""

    name: str
    unit: str
    figure: Spread
    least: float | None = None
    most: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool:
        low = self.least is None or self.figure.median >= self.least
        return low and (self.most is None or self.figure.median <= self.most)

    @property
    def target(self) -> str:
        return (
            "" if self.least is self.most is None else f"≥ {self.least:g}" if self.most is None else f"≤ {self.most:g}"
        )


@dataclass
class Run:
    """One run of an entry: where it writes, and how much it measures.

    Attributes
    ----------
    folder : Path
        A temporary folder, on the disk to measure.
    scale : float
        Multiplies counts of records and photographs, and below 1 the seconds of each measurement.
    rounds : int
    options : dict
        What ``--option name=value`` gives to the entry.
    setup : dict
        What the entry notes about its data, for the JSON.
    """

    folder: Path
    scale: float = 1.0
    rounds: int = 7
    options: dict[str, str] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)

    def count(self, full: int, least: int = 1) -> int:
        """Return `full`, scaled."""
        return max(round(full * self.scale), least)

    @contextlib.contextmanager
    def subfolder(self) -> Iterator[Path]:
        """Give an empty folder, which is removed at the end."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Path(folder)

    def compare(
        self,
        name: str,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        *,
        least: float | None = None,
        count: int = 1,
        seconds: float = 0.3,
    ) -> Result:
        """Time two ways in turn; the figure is their time ÷ our time, so above 1 we are faster.

        Both run once unmeasured. Each round repeats a pass over `count` items until `seconds` are over, and swaps who
        goes first, so that drift of the machine falls on both.
        """
        ours(), theirs()
        times: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
        for number in range(self.rounds):
            for way in (ours, theirs) if number % 2 else (theirs, ours):
                times[way].append(_seconds_a_pass(way, seconds * min(self.scale, 1.0)))
        mine, other = (statistics.median(times[way]) / count * 1e6 for way in (ours, theirs))
        rates = f"{_short(mine)} against {_short(other)} µs each"
        return ratio(name, times[theirs], times[ours], least=least, detail=rates)


def _seconds_a_pass(way: Callable[[], object], seconds: float) -> float:
    start, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - start < seconds:
        way()
        passes += 1
    return (time.perf_counter() - start) / passes


def ratio(name: str, over: Sequence[float], under: Sequence[float], **more: Any) -> Result:
    """Return the quotients of two ways that took turns."""
    return Result(name, "ratio", Spread.of([a / b for a, b in zip(over, under, strict=True)]), **more)


def figure(name: str, unit: str, values: Sequence[float], **more: Any) -> Result:
    """Return a figure that is no ratio."""
    return Result(name, unit, Spread.of(values), **more)


def child(python: str, module: str, *arguments: object) -> dict[str, Any]:
    """Return what a module of `benchmarks.peers` prints in a process of its own, which may be another Python."""
    command = [python, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    found: dict[str, Any] = json.loads(done.stdout or b"{}")
    return found


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a module's function gives in a Python of its own; arguments and result are JSON."""
    name = function.__name__
    code = (
        f"import json, sys; from {function.__module__} import {name}; "
        f"result = json.dumps({name}(*json.loads(sys.argv[1]))); print(result)"
    )
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


Measure = Callable[[Run], Iterable[Result]]


@dataclass(frozen=True)
class Entry:
    """A benchmark: a generator of results, which sets up both ways and checks them before it times them.

    Attributes
    ----------
    title : str
        What it measures, and against what.
    measure : callable
    needs : str
        What most machines lack; such an entry runs only by name.
    """

    title: str
    measure: Measure
    needs: str = ""


ENTRIES: dict[str, Entry] = {}


def entry(name: str, title: str, needs: str = "") -> Callable[[Measure], Measure]:
    """Register the decorated function as an entry."""

    def register(measure: Measure) -> Measure:
        ENTRIES[name] = Entry(title, measure, needs)
        return measure

    return register


def run_entry(name: str, run: Run, out: Path) -> bool:
    """Run one entry, print its table, write its JSON, and return whether every target was met."""
    found = ENTRIES[name]
    results = list(found.measure(run))
    if not any(result.target for result in results):
        raise AssertionError(f"{name} has no target, so --check could not fail")
    table = Table(title=f"{name}: {found.title}", title_justify="left")
    for heading in ("figure", "unit", "median  (min – max)", "target", "met", "detail"):
        table.add_column(heading, overflow="fold")
    for result in results:
        met = "yes" if result.met else "[bold red]no[/]"
        table.add_row(result.name, result.unit, str(result.figure), result.target, met, result.detail)
    Console().print(table)
    body: Mapping[str, Any] = {
        "name": name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "kernel": platform.release()},
        "versions": {name: version(name) for name in ("storeds", "torch", "numpy", "lmdb", "h5py", "pymongo")},
        "setup": {"scale": run.scale, "rounds": run.rounds, **run.options, **run.setup},
        "results": [{**asdict(result), "met": result.met} for result in results],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(body, indent=2) + "\n")
    Console().print(f"written to {out / name}.json")
    return all(result.met for result in results)
