"""A death at any moment: the target is absent, or whole and as before; going on ends where an undisturbed run does."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import storeds
from _writing import content, fork, server_pids
from make_store import make_store
from photographs import jpeg
from shares import FULL, SEED
from storeds import Meta, errors
from storeds.ops import Progress
from storeds.testing import run_mongod

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
KILLS = 100 if FULL else 5
COUNT = 90


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree of 90 photographs in three classes."""
    root = tmp_path_factory.mktemp("crashes") / "tree"
    for number in range(COUNT):
        file = root / f"class{number % 3}" / f"{number:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(number % 12) + bytes([number]))
    return root


@pytest.fixture(scope="module")
def packed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"lmdb://{tmp_path_factory.mktemp('packed')}/whole.lmdb"
    storeds.pack(tree, url)
    return url


def wait(pid: int, seconds: float, signal_number: int) -> int:
    """Send a signal to a child after so many seconds, unless it ended before; return its exit status."""
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], seconds)
        if not select.select([descriptor], [], [], 0)[0]:
            os.kill(pid, signal_number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(descriptor)


def run_until_killed(work: Callable[[bool], object], check: Callable[[], None]) -> tuple[int, int]:
    """Kill `work` at random moments until it has died `KILLS` times; return how often it was killed and ended."""
    chance = random.Random(SEED)
    start = time.perf_counter()
    assert wait(fork(lambda: work(False)), 60, signal.SIGKILL) == 0
    whole = time.perf_counter() - start
    killed = ended = 0
    while killed < KILLS:
        # Moments spread over more than a whole run, since a resumed one is shorter and a busy machine slower.
        code = wait(fork(lambda: work(True)), chance.uniform(0, 1.1 * whole), signal.SIGKILL)
        check()
        assert code in (0, -9)
        killed, ended = killed + (code == -9), ended + (code == 0)
    return killed, ended


@pytest.mark.share(3)
@pytest.mark.parametrize("operation", ["pack", "convert"])
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_at_random_moments_the_target_is_as_before_or_whole(
    make_engine_url: MakeUrl, tree: Path, packed: str, engine: str, operation: str
) -> None:
    url, old = make_engine_url(engine), make_engine_url("memory")
    whole = storeds.info(packed).id
    for each in (url, old):
        make_store({"old": "int"}, ({"old": n} for n in range(5)), each)
    before = storeds.info(old).id

    def work(resume: bool) -> None:
        run(operation, tree, packed, url, resume=resume)

    seen: set[str | None] = set()

    def check() -> None:
        found = content(url)
        seen.add(found)
        assert found in (before, whole)
        if found == whole:  # so that the next run has something to replace
            make_store({"old": "int"}, ({"old": n} for n in range(5)), url, overwrite=True)

    check()
    killed, _ = run_until_killed(work, check)
    assert killed == KILLS
    work(True)
    assert content(url) == whole
    assert storeds.info(url).leftovers is None
    assert seen >= {before}


def test_an_export_killed_at_random_moments_leaves_the_folder_of_before_or_the_whole_one(
    packed: str, tmp_path: Path
) -> None:
    before, whole, out = tmp_path / "before", tmp_path / "whole", tmp_path / "out"
    make_store({"old": "int"}, ({"old": n} for n in range(5)), "memory://crashes", overwrite=True)
    for folder in (before, out):
        storeds.export("memory://crashes", folder, format="folder")
    storeds.export(packed, whole, format="folder")

    def check() -> None:
        assert files_of(out) in (files_of(before), files_of(whole))
        if files_of(out) == files_of(whole):  # so that the next run has something to replace
            storeds.export("memory://crashes", out, format="folder", overwrite=True)

    killed, _ = run_until_killed(lambda _: storeds.export(packed, out, format="folder", overwrite=True), check)
    assert killed == KILLS
    storeds.export(packed, out, format="folder", overwrite=True)
    assert files_of(out) == files_of(whole)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(operation: str, tree: Path, packed: str, url: str, **options: Any) -> Meta:
    """Pack the tree, or convert the packed store, to `url`, in place of what is there."""
    if operation == "pack":
        return storeds.pack(tree, url, commit_every=7, overwrite=True, **options)
    return storeds.convert(packed, url, commit_every=7, overwrite=True, **options)


@pytest.mark.parametrize("operation", ["pack", "convert"])
def test_a_server_killed_in_the_middle_is_one_error_and_the_work_goes_on(
    tree: Path, packed: str, tmp_path: Path, operation: str
) -> None:
    data = tmp_path / "mongod"
    data.mkdir()

    def kill_server(state: Progress) -> None:
        for pid in server_pids(data):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(errors.UnavailableError), run_mongod(data) as uri:
        url = f"{uri}/db/store?serverSelectionTimeoutMS=500&timeoutMS=10000"
        make_store({"old": "int"}, [{"old": 1}], url)
        run(operation, tree, packed, url, progress=kill_server)
    with run_mongod(data) as uri:
        url = f"{uri}/db/store"
        assert content(url) not in (None, storeds.info(packed).id)
        assert "partial" in str(storeds.info(url).leftovers)
        assert run(operation, tree, packed, url, resume=True).id == storeds.info(packed).id
        assert content(url) == storeds.info(packed).id


@pytest.mark.share(4)
@pytest.mark.parametrize("operation", ["pack", "convert"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_ctrl_c_and_sigterm_keep_what_is_durable(
    tree: Path, packed: str, tmp_path: Path, engine: str, sent: signal.Signals, operation: str
) -> None:
    # The signal comes from inside, after the first batch, so that its moment is certain.
    url = f"{engine}://{tmp_path}/store"
    source = str(tree) if operation == "pack" else packed
    code = (
        "import os, signal, storeds, storeds.cli as cli, storeds.ops as ops\n"
        # A shell that runs the tests in the background makes them ignore Ctrl-C.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"done = ops.{operation}\n"
        f"kill = lambda _: os.kill(os.getpid(), {int(sent)})\n"
        f"ops.{operation} = lambda *a, **k: done(*a, **{{**k, 'progress': kill}})\n"
        f"import sys; sys.argv = ['storeds', {operation!r}, {source!r}, {url!r}, '--commit-every', '7']\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[sent], done.stderr
    assert content(url) is None
    assert run(operation, tree, packed, url, resume=True).id == storeds.info(packed).id
