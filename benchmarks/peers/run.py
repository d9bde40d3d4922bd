"""The entry `peers`: every entrant is a process that keeps its workers, and runs one epoch a round while others wait."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks._common import ROOT, Result, Run, entry, figure, ratio
from benchmarks.peers.entrants import ENTRANTS, RATIOS, Entrant
from benchmarks.photos import make_photos

_CONSOLE = Console(highlight=False)
_QUIET = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


class Failed(Exception):  # noqa: N818  # what happened to an entrant, no fault of the program
    """An entrant raised or ended; the message says which, and where its output is."""


class Process:
    """One entrant, in a Python of its own; raises Failed where its first epoch is not right.

    Parameters
    ----------
    python : str
        The interpreter.
    job : dict
        What `benchmarks.peers._job.Job` holds, and ``module`` and ``output``.
    log : Path
        Where its output goes.
    """

    def __init__(self, python: str, job: dict[str, Any], log: Path) -> None:
        self._log = log
        temporary = Path(job["work"]).parent / "tmp"  # libraries leave files there, which go with the folder
        temporary.mkdir(exist_ok=True)
        with open(log, "wb") as errors:
            # A session of its own, so that the worker processes it leaves behind can be ended with it.
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers._child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, **_QUIET, "TMPDIR": str(temporary)},
                start_new_session=True,
            )
        try:
            self.about = self._ask(json.dumps(job))
        except BaseException:
            self.close()
            raise

    def epoch(self) -> tuple[float, float]:
        """Run an epoch, and return its seconds and the processor seconds of the entrant and its workers."""
        before = self._processor()
        return self._ask("epoch")["seconds"], self._processor() - before

    def close(self) -> None:
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Before it is waited for: until then its id, which is the group's too, can belong to nobody else.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _processor(self) -> float:
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                after_name = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(after_name[3]) == self._process.pid:
                ticks += int(after_name[11]) + int(after_name[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "it ended by itself"}')
        if "error" in answer:
            raise Failed(f"{answer['error']}; see {self._log}")
        return answer


def started(run: Run, job: dict[str, Any], stack: ExitStack) -> Iterator[tuple[Entrant, Process]]:
    """Start the chosen entrants; print and note those that fail."""
    logs = ROOT / "build/bench/peers-logs"
    logs.mkdir(parents=True, exist_ok=True)
    absent = run.setup["absent"] = dict[str, str]()
    only = run.options.get("only", "").lower().split("+")
    # Not resolved: the link is what makes it the Python of a virtual environment.
    python = shutil.which(run.options.get("python", sys.executable)) or sys.executable
    for entrant in ENTRANTS:
        if not any(part in entrant.name.lower() for part in only):
            continue
        slug = "".join(letter if letter.isalnum() else "-" for letter in entrant.name)
        asked = {**job, "work": str(run.folder / slug), "module": entrant.module, "output": entrant.output}
        asked["options"] = dict(entrant.options)
        try:
            process = Process(python if "peer" in entrant.tags else sys.executable, asked, logs / f"{slug}.txt")
        except Failed as error:
            absent[entrant.name] = str(error)
            _CONSOLE.print(f"[bold red]out[/]: {entrant.name}: {error}")
            continue
        stack.callback(process.close)
        run.setup[entrant.name] = process.about
        _CONSOLE.print(f"ready: {entrant.name}")
        yield entrant, process


@entry(
    "peers",
    "A shuffled epoch of photographs to float32 batches: storeds, files, WebDataset, LitData, FFCV, …",
    needs="the libraries",
)
def peers(run: Run) -> Iterator[Result]:
    from storeds.testing.mongod import run_mongod

    long = int(run.options.get("long", 500))
    count = run.count(4000 if long <= 1000 else 512, 70)
    photos = make_photos(run.folder, count, long)
    run.setup["photos"] = photos
    job = {"photos": str(run.folder / "photos"), "quality": photos["quality"], "batch": 64, "workers": 2}
    seconds: dict[Entrant, list[float]] = {}
    processor: dict[Entrant, list[float]] = {}
    with ExitStack() as stack:
        job["mongodb"] = stack.enter_context(run_mongod(run.folder / "mongod"))
        running = dict(started(run, job, stack))
        for number in range(run.rounds):
            order = list(running)
            random.Random(number).shuffle(order)
            for entrant in order:
                try:
                    spent, used = running[entrant].epoch()
                except Failed as error:
                    run.setup["absent"][entrant.name] = str(error)
                    del running[entrant]
                    seconds.pop(entrant, None)
                    continue
                seconds.setdefault(entrant, []).append(spent)
                processor.setdefault(entrant, []).append(1000 * used / count)
            _CONSOLE.print(f"round {number + 1} of {run.rounds}")
    for entrant in running:
        detail = f"{statistics.median(processor[entrant]):.2f} ms of processor time a photo"
        yield figure(entrant.name, "images/s", [count / each for each in seconds[entrant]], detail=detail)
    yield from ratios(seconds)


def ratios(seconds: dict[Entrant, list[float]]) -> Iterator[Result]:
    """Yield the ratios whose two sides ran."""
    for wanted in RATIOS:
        over, under = (fastest(seconds, tags) for tags in (wanted.over, wanted.under))
        if over is not None and under is not None:
            detail = f"{over.name} ÷ {under.name}"
            yield ratio(wanted.name, seconds[under], seconds[over], least=wanted.least, detail=detail)


def fastest(seconds: dict[Entrant, list[float]], tags: frozenset[str]) -> Entrant | None:
    """Return the entrant with all of these tags whose median is the smallest."""
    found = [entrant for entrant in seconds if tags <= entrant.tags]
    return min(found, key=lambda entrant: statistics.median(seconds[entrant]), default=None)
