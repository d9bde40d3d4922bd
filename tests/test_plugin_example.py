"""Tests of the plug-in under examples/: storeds finds the installed package, and the conformance kit passes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from shares import examples

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "examples" / "plugin-sqlite"
PAGE = ROOT / "docs" / "extending.md"


def run(place: Path, *command: object, folder: Path) -> str:
    """Run a command that finds the packages at `place`; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package and what an installer makes of its pyproject.toml; needs no network."""
    place, ignored = tmp_path_factory.mktemp("site"), shutil.ignore_patterns("__pycache__")
    shutil.copytree(PLUGIN / "src" / "storeds_sqlite", place / "storeds_sqlite", ignore=ignored)
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = place / "storeds_sqlite-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    with (info / "entry_points.txt").open("w") as file:
        for group, points in project["entry-points"].items():
            print(f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), sep="\n", file=file)
    return place


def test_it_passes_the_conformance_kit(installed: Path, tmp_path: Path) -> None:
    shutil.copy(PLUGIN / "tests" / "test_sqlite.py", tmp_path)
    profile = f"settings.register_profile('few', max_examples={examples(50)}); settings.load_profile('few')"
    (tmp_path / "conftest.py").write_text(f"from hypothesis import settings\n\n{profile}\n")
    # In memory, because every commit of SQLite waits for the disk, which would double the time.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="storeds-plugin-", dir=memory) as stores:
        # A separate folder, and no settings: those of this repository, or of a folder above, must not apply.
        alone = ["-c", os.devnull, "--rootdir", tmp_path, f"--basetemp={stores}/of-tests"]
        kit = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *alone]
        printed = run(installed, *kit, folder=tmp_path)
    assert re.search(r"\b[5-9][0-9] passed", printed), printed
    assert "skipped" not in printed


COMMANDS = """
import json, sqlite3
from typer.testing import CliRunner
from storeds.cli import app

def storeds(*arguments):
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)

plugins = [row for row in storeds("plugins")["plugins"] if row["origin"] == "storeds-sqlite"]
database = sqlite3.connect("a.db")
database.execute("CREATE TABLE t (x INTEGER, name TEXT)")
database.executemany("INSERT INTO t VALUES (?, ?)", [(n, str(n)) for n in range(9)])
database.commit()
storeds("convert", "sqlite://a.db", "sqlite://b.db")
storeds("convert", "sqlite://b.db", "lmdb://c.lmdb")
storeds("verify", "sqlite://b.db")
print(json.dumps([plugins, *(storeds("info", url) for url in ("sqlite://a.db", "sqlite://b.db", "lmdb://c.lmdb"))]))
"""


def test_it_is_listed_and_used_by_every_command(installed: Path, tmp_path: Path) -> None:
    plugins, table, native, copy = json.loads(run(installed, "-c", COMMANDS, folder=tmp_path))
    own = {(row["sort"], row["name"], row["state"]) for row in plugins}
    assert own == {("backend", "sqlite", "ok"), ("layout", "sqlite/table", "ok")}
    assert (table["layout"], native["layout"]) == ("sqlite/t", "storeds/1")
    assert native["id"] == copy["id"]


def test_the_page_shows_the_real_text() -> None:
    blocks = re.findall(r"^```(?:python|toml) notest (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    for name, block in blocks:
        text = (PLUGIN / name).read_text()
        for part in block.split("...\n"):  # what is left out
            assert part.strip("\n") in text, f"{name} does not hold:\n{part}"
