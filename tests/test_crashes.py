"""A death at any moment: the target is absent, or whole and as before; going on ends where an undisturbed run does."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from photographs import jpeg

import storeds
from storeds import errors
from storeds.testing.mongod import run_mongod

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
KILLS = 100
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


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child and return its pid; its exit code is 0, or 9 after an exception of ours."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except errors.StoredsError:
            os._exit(9)
        finally:
            os._exit(10)
    return pid


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


def content(url: str) -> str | None:
    """Return the id of the store at `url` after reading all of it, or None when nothing is there."""
    try:
        with storeds.open_backend(url) as backend:
            for record in backend.get_many(range(len(backend))):
                if isinstance(record, errors.RecordError):
                    raise record
            return backend.meta.id
    except errors.StoreNotFoundError:
        return None


def run_until_killed(work: Callable[[bool], object], check: Callable[[], None]) -> tuple[int, int]:
    """Kill `work` at random moments until it has died `KILLS` times; return how often it was killed and ended."""
    chance = random.Random(7)
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("operation", ["pack", "convert"])
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_at_random_moments_the_target_is_as_before_or_whole(
    make_engine_url: MakeUrl, tree: Path, packed: str, engine: str, operation: str
) -> None:
    url, old = make_engine_url(engine), make_engine_url("memory")
    whole = storeds.info(packed).id
    with storeds.open_writer(url, {"old": "int"}) as writer:
        writer.append({"old": n} for n in range(5))
    with storeds.open_writer(old, {"old": "int"}) as writer:
        writer.append({"old": n} for n in range(5))
    before = storeds.info(old).id

    def work(resume: bool) -> None:
        if operation == "pack":
            storeds.pack(tree, url, commit_every=7, overwrite=True, resume=resume)
        else:
            storeds.convert(packed, url, commit_every=7, overwrite=True, resume=resume)

    seen: set[str | None] = set()

    def check() -> None:
        found = content(url)
        seen.add(found)
        assert found in (before, whole)
        if found == whole:  # so that the next run has something to replace
            with storeds.open_writer(url, {"old": "int"}, overwrite=True) as writer:
                writer.append({"old": n} for n in range(5))

    check()
    killed, _ = run_until_killed(work, check)
    assert killed == KILLS
    work(True)
    assert content(url) == whole
    assert storeds.info(url).leftovers is None
    assert seen >= {before}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_never_published_is_absent_and_resumes_to_the_same_id(
    make_engine_url: MakeUrl, tree: Path, packed: str, engine: str
) -> None:
    url = make_engine_url(engine)

    def work() -> None:
        storeds.pack(tree, url, commit_every=7, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))

    assert wait(fork(work), 60, signal.SIGKILL) == -9
    assert content(url) is None
    assert storeds.pack(tree, url, commit_every=7, resume=True).id == storeds.info(packed).id
    assert content(url) == storeds.info(packed).id


@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_disk_is_one_error_and_the_target_as_it_was(tree: Path, packed: str, tmp_path: Path, engine: str) -> None:
    if engine == "mongodb":
        return check_full_disk_of_mongodb(tree, packed, tmp_path)
    mount = tmp_path / "small"
    mount.mkdir()
    with mounted_tmpfs(mount, "200k"):
        url = f"{engine}://{mount}/store"
        with storeds.open_writer(url, {"old": "int"}) as writer:
            writer.append([{"old": 1}])
        before = content(url)
        with pytest.raises((errors.StoredsError, OSError), match=r"(?i)space|full"):
            storeds.pack(tree, url, commit_every=7, overwrite=True)
        assert content(url) == before
    return None
