"""storeds and its peers on the same photographs, in one run: rates, ratios, JSON and a plot.

Run as ``python -m benchmarks.peers --python PATH``, PATH being the Python that has the peers; ``--photos 210 --rounds 1``
for a quick look, ``--long 2000`` for larger photos. Each entrant is a process that stays, with its workers; in every
round each runs one epoch, alone, in another order. Before that it runs one that is checked: every photo once, under its
number, of the right shape, dtype and content.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks._common import parser, report
from benchmarks.peers._entrants import ENGINES, ENTRANTS, EQUAL, RATIOS, Entrant, crop_ratios, tags
from benchmarks.peers._figures import against_each, equal_engines, plot, rate_rows, ratio_rows
from benchmarks.peers._process import Failed, Missing, Process
from benchmarks.photos import LONG, default_count, default_quality, make_photos
from storeds.errors import MissingDependencyError
from storeds.testing.mongod import run_mongod

_CONSOLE = Console()
_EXACT = tags("storeds float32 exact")


def pythons(given: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each module that has its own, and under ``""`` that of all peers."""
    found = {"": sys.executable}
    for one in given:
        module, _, path = one.rpartition("=")
        # Not resolved: the link is what makes it the Python of a virtual environment.
        found[module] = shutil.which(path) or path
    return found


def python_of(entrant: Entrant, known: dict[str, str]) -> str:
    own = sys.executable if "peer" not in entrant.tags else known[""]
    return known.get(entrant.module, own)


def slug(entrant: Entrant) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in entrant.name)


def start(entrant: Entrant, folder: Path, job: dict[str, Any], given: argparse.Namespace) -> Process:
    request = {**job, "work": str(folder / slug(entrant)), "module": entrant.module, "output": entrant.output}
    request["options"] = dict(entrant.options)
    logs = given.out.parent / "peers-logs"
    logs.mkdir(parents=True, exist_ok=True)
    return Process(python_of(entrant, pythons(given.python)), request, logs / f"{slug(entrant)}.txt", given.deadline)


class Run:
    """The remaining entrants, their rates so far, and why the others failed."""

    def __init__(self, photos: int) -> None:
        self.photos = photos
        self.running: dict[Entrant, Process] = {}
        self.rates: dict[Entrant, list[float]] = {}
        self.processor: dict[str, list[float]] = {}
        self.about: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        self.load: list[float] = []
        self.read = 0.0

    def add(self, entrant: Entrant, process: Process) -> None:
        self.running[entrant], self.rates[entrant] = process, []
        self.processor[entrant.name], self.about[entrant.name] = [], process.about

    def lose(self, entrant: Entrant, why: str) -> None:
        self.absent[entrant.name] = why
        _CONSOLE.print(f"[bold red]out[/]: {entrant.name}: {why}", highlight=False)
        process = self.running.pop(entrant, None)
        self.rates.pop(entrant, None)
        if process:
            process.close()

    def round(self, number: int) -> None:
        order = list(self.running)
        random.Random(number).shuffle(order)
        self.load.append(os.getloadavg()[0])
        for entrant in order:
            try:
                cost = self.running[entrant].epoch()
            except Failed as error:
                self.lose(entrant, f"failed: {error}")
                continue
            self.rates[entrant].append(self.photos / cost.seconds)
            self.processor[entrant.name].append(1000 * cost.processor / self.photos)
            self.read += cost.read

    def close(self) -> None:
        for process in self.running.values():
            process.close()


def measure(run: Run, entrants: Sequence[Entrant], folder: Path, job: dict[str, Any], given: Any) -> None:
    """Start all, then run the rounds."""
    for entrant in entrants:
        if "mongodb" in (*entrant.tags, entrant.options.get("engine")) and job["mongodb"] is None:
            run.lose(entrant, "there is no MongoDB server")
            continue
        try:
            run.add(entrant, start(entrant, folder, job, given))
        except Missing as error:
            run.lose(entrant, f"not installed in {python_of(entrant, pythons(given.python))}: {error}; see the README")
        except Failed as error:
            run.lose(entrant, f"failed: {error}")
        else:
            _CONSOLE.print(f"ready: {entrant.name}", highlight=False)
    for number in range(given.rounds):
        run.round(number)
        _CONSOLE.print(f"round {number + 1} of {given.rounds}", highlight=False)


@contextlib.contextmanager
def server(folder: Path) -> Any:
    """Yield the URL of a MongoDB server, or None if none is installed."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(run_mongod(folder))
        except MissingDependencyError as error:
            _CONSOLE.print(f"no MongoDB: {error}", highlight=False)
            url = None
        yield url


def chosen(names: Sequence[str] | None) -> list[Entrant]:
    """Return the entrants whose name has one of `names` in it."""
    return [one for one in ENTRANTS if names is None or any(name.lower() in one.name.lower() for name in names)]


def options() -> argparse.ArgumentParser:
    found = parser(__doc__ or "", "peers.json")
    found.set_defaults(rounds=5)
    found.add_argument("--long", type=int, default=LONG, help="pixels on the longer side of the photos")
    found.add_argument("--photos", type=int, help=f"None: {default_count(LONG)}, or {default_count(2000)} large ones")
    found.add_argument("--quality", type=int, help="of the JPEGs; None chooses by --long")
    found.add_argument("--batch", type=int, default=64)
    found.add_argument("--workers", type=int, default=2, help="worker processes, or threads, of each entrant")
    found.add_argument("--only", nargs="+", metavar="TEXT", help="entrants with one of these in their name")
    found.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="[MODULE=]PATH",
        help="the Python of all peers, or of the one in that module of benchmarks/peers",
    )
    found.add_argument(
        "--decoder",
        choices=("documented", "simplejpeg"),
        default="documented",
        help="of the peers that hand out bytes: what torchvision documents, or what storeds uses",
    )
    found.add_argument("--deadline", type=float, default=600, help="seconds an entrant may take for one thing")
    return found


def setup(given: Any, photos: dict[str, Any], run: Run) -> dict[str, Any]:
    return {
        "photos": photos,
        "batch": given.batch,
        "workers": given.workers,
        "rounds": given.rounds,
        "decoder": given.decoder,
        "pipeline": "shuffled epoch, decode, RandomResizedCrop(224), flip, float32 normalised by ImageNet's mean and deviation",
        "order": "every entrant once a round, in another order each round",
        "page_cache": "warm: every entrant ran a whole epoch before the first round",
        "read_from_disks_during_the_rounds_mib": round(run.read / 2**20, 1),
        "entrants": run.about,
        "absent": run.absent,
        "load_average_at_each_round": run.load,
        "processor_ms_a_photo": run.processor,
        "rates": {entrant.name: rates for entrant, rates in run.rates.items()},
    }


def main() -> int:
    given = options().parse_args()
    given.out = given.out.absolute()
    given.photos = given.photos or default_count(given.long)
    given.quality = given.quality or default_quality(given.long)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as temporary:
        folder = Path(temporary)
        photos = make_photos(folder, given.photos, given.quality, long=given.long)
        run = Run(given.photos)
        with server(folder / "mongod") as mongodb:
            job = {"photos": str(folder / "photos"), "quality": given.quality, "mongodb": mongodb}
            job |= {"batch": given.batch, "workers": given.workers, "decoder": given.decoder}
            try:
                measure(run, chosen(given.only), folder, job, given)
            finally:
                run.close()
    rates = rate_rows(run.rates, ENTRANTS, run.processor)
    ratios = ratio_rows(run.rates, (*RATIOS, *crop_ratios(given.long), *against_each(run.rates, _EXACT)))
    for loader in EQUAL:
        ratios += equal_engines(run.rates, ENGINES, _EXACT | {loader}, loader)
    met = report("storeds and its peers", [*rates, *ratios], setup(given, photos, run), given.out)
    picture = given.out.with_suffix(".png")
    drawn = plot(rates, "Images a second, decoded and in batches", picture)
    _CONSOLE.print(
        f"written to {picture}" if drawn else "no plot: matplotlib is not installed (pip install matplotlib)"
    )
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
