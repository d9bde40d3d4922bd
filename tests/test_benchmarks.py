"""benchmarks: the command, what a run writes, and that the documentation names entries that exist."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import __main__ as command
from benchmarks._common import ENTRIES, Result, Run, entry, figure, ratio, run_entry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
NAMED = re.compile(r"python -m benchmarks((?:[ \n]+[a-z]\w*)+)")


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Give the registry, and leave it as it was."""
    before = dict(ENTRIES)
    yield ENTRIES
    ENTRIES.clear()
    ENTRIES.update(before)


def test_the_documentation_names_entries_that_exist() -> None:
    pytest.importorskip("skimage")
    command.load()
    named = {
        (page.name, name)
        for page in PAGES
        for found in NAMED.findall(page.read_text())
        for name in found.replace("``", "").split()
    }
    assert {(page, name) for page, name in named if name not in {*ENTRIES, "all"}} == set()


SECTIONS = ["Beside others", "Reading and packing", "Out of the page cache", "Random crops", "Samples with many parts"]


def test_every_section_of_figures_names_its_entry() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    texts = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert [section for section in SECTIONS if not NAMED.search(texts[section])] == []


def test_a_run_takes_turns(entries: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    @entry("turns", "Two ways")
    def turns(run: Run) -> Iterator[Result]:
        run.setup["records"] = run.count(1000)
        yield run.compare("ours ÷ theirs", lambda: calls.append("o"), lambda: calls.append("t"), least=0.0, seconds=0)
        yield ratio("met", [2.0, 4.0, 9.0], [1.0, 1.0, 3.0], least=3.0)
        yield figure("missed", "bytes", [2048], most=1024)

    assert not run_entry("turns", Run(tmp_path, scale=0.1, rounds=2), tmp_path / "out")
    assert "".join(calls) == "ot" + "to" + "ot"  # one round that does not count
    found = json.loads((tmp_path / "out/turns.json").read_text())
    assert found["setup"] == {"scale": 0.1, "rounds": 2, "records": 100}
    assert [(row["name"], row["met"]) for row in found["results"][1:]] == [("met", True), ("missed", False)]
    assert found["results"][1]["figure"] == {"min": 2.0, "median": 3.0, "max": 4.0}
    shown = capsys.readouterr().out
    assert "turns: Two ways" in shown
    assert re.search(r"missed +│ bytes +│ 2,048 +│ ≤ 1024 +│ no", shown)


def test_the_command_lists_and_runs_entries(
    entries: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("skimage")

    @entry("own", "An entry")
    def own(run: Run) -> Iterator[Result]:
        yield figure("size", "bytes", [run.scale, run.rounds], most=10)

    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert command.main() == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} >= {"reading", "peers", "own"}
    how = ["own", "--scale", "0.5", "--rounds", "1", "--json", str(tmp_path), "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *how])
    assert command.main() == 0
    (row,) = json.loads((tmp_path / "own.json").read_text())["results"]
    assert (row["name"], row["figure"]["min"], row["figure"]["max"]) == ("size", 0.5, 1)


def test_an_entry_without_a_target_is_refused(entries: dict[str, Any], tmp_path: Path) -> None:
    @entry("aimless", "A figure that nothing limits")
    def aimless(run: Run) -> Iterator[Result]:
        yield figure("size", "bytes", [2048])

    with pytest.raises(AssertionError, match="aimless has no target"):
        run_entry("aimless", Run(tmp_path), tmp_path / "out")


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["arrays", "reading", "loaders", "rows", "blocks", "volumes", "packing", "crops"])
def test_entries_that_nobody_runs_daily_still_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    command.load()
    assert list(ENTRIES[name].measure(Run(tmp_path, scale=0.001, rounds=1)))


def test_an_entry_stops_where_a_way_gives_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    from benchmarks import reading

    wrong = lambda backend, positions, fields: {"data": np.zeros((len(positions), 128), "f4")}  # noqa: E731
    monkeypatch.setattr(reading, "read_arrays", wrong)
    with pytest.raises(AssertionError, match="other rows than h5py gives"):
        list(ENTRIES["arrays"].measure(Run(tmp_path, scale=0.1, rounds=1)))
