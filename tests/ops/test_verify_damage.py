"""Stores with flipped bits: `verify` reports the damage, or there is none, and the process that calls it survives.

For each engine, `make test` verifies 8 damaged copies, chosen by the seed of the run; `make test-full` verifies 1,000.

Some tests replace the program of the child processes, to make them crash.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import storeds
from damage import KINDS, Damage, Truth, columns, read, records, survey, value_of
from make_store import make_store
from photographs import jpeg
from shares import FULL, share
from storeds.errors import StoredsError
from storeds.ops import Progress

NUMBERS = share(range(1000), 8)
"""The damaged copies that this run verifies."""
COUNT = 40
WORKERS = "storeds.ops.verifying.workers"
# How the program of a child process begins.
CONNECT = (
    "import sys\nfrom multiprocessing.connection import Connection\npipe = Connection({})\nsys.path[:] = pipe.recv()\n"
)
HANGS = """
import time
from storeds.ops.verifying.workers import Checker
check = Checker.check
def check_or_hang(self, start, stop):
    while start <= 300 < stop:
        time.sleep(1)
    return check(self, start, stop)
Checker.check = check_or_hang
serve(pipe)
"""

Store = tuple[str, Path, Truth]


@pytest.fixture(scope="module", params=["lmdb", "hdf5"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return build(request.param, tmp_path_factory.mktemp("whole") / "store")


def build(scheme: str, path: Path, count: int = COUNT) -> Store:
    """Write records of every kind, with photographs of about 2 KB, and return what they are."""
    url = f"{scheme}://{path}"
    rows = (
        record | {"image": jpeg(at, (80, 56)), "label": at % 10, "key": f"{at}.jpg"}
        for at, record in enumerate(records(count, 0))
    )
    make_store({**KINDS, "key": "str"}, rows, url, attrs={"classes": [str(label) for label in range(10)]})
    with storeds.open_backend(url) as backend:
        return scheme, path, Truth(backend.meta, list(map(value_of, read(backend))), columns(backend))


def flip(data: bytes, bits: list[int]) -> bytes:
    flipped = bytearray(data)
    for bit in bits:
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def copy_of(number: int, data: bytes) -> bytes:
    """Return damaged copy `number` of a file, in which one to three bits are flipped."""
    chance = random.Random(number)
    return flip(data, [chance.randrange(8 * len(data)) for _ in range(chance.randint(1, 3))])


@pytest.mark.share(1)
def test_flipped_bits_are_reported_or_harmless(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, path, truth = store
    data = path.read_bytes()
    monkeypatch.setattr(f"{WORKERS}.DEADLINE", 5.0)

    def report_on(number: int) -> str:
        victim = tmp_path / f"{number}.{scheme}"
        victim.write_bytes(copy_of(number, data))
        try:
            found = storeds.verify(f"{scheme}://{victim}", workers=1).findings
            reported = str({finding.kind for finding in found} or "")
        except StoredsError as error:
            reported = type(error).__name__ if str(error) else "WRONG: no message"
        victim.unlink()
        return reported

    with ThreadPoolExecutor(2) as two:
        reports = dict(zip(NUMBERS, two.map(report_on, NUMBERS), strict=True))
    assert not {number: report for number, report in reports.items() if "WRONG" in report}
    # After the threads have ended, because a process with threads should not fork.
    silent = [Damage(f"copy {n}", functools.partial(copy_of, n)) for n, report in reports.items() if not report]
    assert set(survey(scheme, path, truth, silent)) <= {"intact"}
    if FULL:  # the few copies of another run may all be right
        assert len(silent) < len(NUMBERS) / 2


# Damage that kills LMDB: a node's place in a page that leads behind the end of the file. `verify` reads such files safely.


def test_records_that_crash_the_reader_are_named(tmp_path: Path) -> None:
    _, path, _ = build("lmdb", tmp_path / "store")
    lead_astray(path, (COUNT - 1).to_bytes(8, "big"))
    report = storeds.verify(f"lmdb://{path}")
    assert {finding.kind for finding in report.findings} == {"crash"}
    positions = [finding.position for finding in report.findings]
    assert COUNT - 1 in positions
    assert len(set(positions)) == len(positions) == COUNT - report.images < 10


def test_columns_that_crash_the_reader_are_named(tmp_path: Path) -> None:
    count = 4  # the columns come first in the file
    _, path, _ = build("lmdb", tmp_path / "store", count)
    lead_astray(path, b"weight")
    report = storeds.verify(f"lmdb://{path}")
    assert {finding.position for finding in report.findings} == {None}
    assert "weight" in str([finding.message for finding in report.findings])
    assert report.images == count


def lead_astray(path: Path, key: bytes) -> None:
    """Flip the highest bit of the offset of the node with `key` in its LMDB leaf page: SIGBUS, so near the file's end."""
    data = path.read_bytes()
    page_size, leaf = 4096, 2
    for start in range(2 * page_size, len(data), page_size):
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, start)
        if number * page_size == start and flags == leaf:
            for at in range(start + 16, start + lower, 2):
                (node,) = struct.unpack_from("<H", data, at)
                (size,) = struct.unpack_from("<H", data, start + node + 6)
                if data[start + node + 8 : start + node + 8 + size] == key:
                    path.write_bytes(flip(data, [8 * (at + 1) + 7]))
                    return
    raise AssertionError(f"no leaf holds {key!r}")


# Any other end of a checking process, made by hand: no known damage makes an engine hang

Fail = Callable[[str, list[int]], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Return a function that makes checking processes run a statement at some records."""

    def install(statement: str, positions: list[int]) -> None:
        patch = f"""
import os, time
from {WORKERS} import Checker, serve
check = Checker._check_record
def check_or_fail(self, position, *rest):
    if position in {positions}:
        {statement}
    return check(self, position, *rest)
Checker._check_record = check_or_fail
serve(pipe)
"""
        monkeypatch.setattr(f"{WORKERS}._BOOT", CONNECT + patch)

    return install


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """URL of a store of 600 records, which is enough for two processes."""
    return make_store({"label": "int"}, ({"label": at} for at in range(600)), f"hdf5://{tmp_path}/numbers")


FAILURES = {
    "os.kill(os.getpid(), 11)": "died of SIGSEGV",
    "os._exit(0)": "ended with exit code 0",
    "time.sleep(1000)": "did not answer for 4 seconds",
}


@pytest.mark.share(2)
@pytest.mark.parametrize(("statement", "message"), FAILURES.items(), ids=FAILURES)
def test_a_checking_process_that_fails_costs_one_record(
    fail: Fail, numbers: str, monkeypatch: pytest.MonkeyPatch, statement: str, message: str
) -> None:
    monkeypatch.setattr(f"{WORKERS}.DEADLINE", 4.0)
    fail(statement, [70, 599])
    seen: list[Progress] = []
    report = storeds.verify(numbers, workers=2, progress=seen.append)
    reported = [(finding.kind, finding.position, finding.message) for finding in report.findings]
    assert reported == [("crash", at, f"the process that read it {message}") for at in (70, 599)]
    assert (seen[-1].done, seen[-1].total, seen[-1].bad) == (600, 600, 2)


def test_a_slow_batch_is_no_finding(fail: Fail, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{WORKERS}.DEADLINE", 4.0)
    fail("time.sleep(0.6)", list(range(8)))
    assert storeds.verify(numbers, workers=1).findings == []


def test_verify_gives_up_after_too_many_crashes(fail: Fail, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{WORKERS}._MAX_TROUBLE", 3)
    fail("os.abort()", list(range(100, 600)))
    seen: list[Progress] = []
    report = storeds.verify(numbers, workers=2, progress=seen.append)
    *crashes, last = report.findings
    assert [finding.position for finding in crashes] == list(range(100, 100 + len(crashes)))
    assert (last.kind, last.position) == ("crash", 100 + len(crashes))
    assert last.message == "too many checking processes died; the records up to 599 were not checked"
    assert seen[-1].done == 600


def test_a_store_that_crashes_on_opening_is_one_finding(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{WORKERS}._BOOT", CONNECT + "import os; os.abort()")
    report = storeds.verify(numbers)
    (finding,) = report.findings
    assert (finding.kind, finding.position) == ("crash", None)
    assert finding.message == "the process that opened the store died of SIGABRT"


# Verifies until two children hang, prints their numbers, and ends.
ENDS = f"""
import os, signal, storeds
from storeds.ops.verifying import workers
workers._BOOT = workers._BOOT.replace("serve(pipe)", {HANGS!r})
children = []
class Popen(workers.subprocess.Popen):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        children.append(self.pid)
workers.subprocess.Popen = Popen
def stop(progress):
    if progress.done and len(children) == 2:
        print(*children, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
storeds.verify({{url!r}}, workers=2, progress=stop)
"""


def test_no_child_outlives_verify(numbers: str) -> None:
    program = ENDS.format(url=numbers)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == -signal.SIGKILL
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) == 2
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            assert select.select([descriptor], [], [], 60)[0], f"child {pid} is still there"
            os.close(descriptor)
