"""Stores and their handles when processes fork, close and let go, whatever their threads are doing."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from _processes import Row, open_rows
from _stores import CHUNKED, COUNT, TRUTH, read_all, record, write, written
from _writing import DEADLINE, in_fork, server_pids, wait_for
from shares import FULL, SEED
from storeds import StoreDataset
from storeds.testing import run_mongod


@pytest.fixture(scope="module")
def stores(mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Engine → URL of a store that holds `TRUTH`."""
    with written(mongodb, tmp_path_factory.mktemp("stores")) as urls:
        yield urls


FILES = ["lmdb", "hdf5", CHUNKED]


class TestForks:
    """`os.fork` at any moment: the child reads, the parent goes on."""

    @pytest.mark.parametrize("engine", FILES)
    def test_by_c_code_that_runs_no_hooks(self, stores: dict[str, str], engine: str) -> None:
        # In a new process: this one may have threads of PyMongo that end, whose request for the GIL the child would inherit.
        done = subprocess.run(
            [sys.executable, "-c", _C_FORK, stores[engine]], capture_output=True, text=True, timeout=DEADLINE
        )
        assert (done.stdout, done.returncode) == ("1 parent\n1 child\n1 parent\n", 0), done.stderr

    def test_a_server_that_does_not_answer_holds_up_no_fork(self, stores: dict[str, str], tmp_path: Path) -> None:
        with run_mongod(tmp_path) as uri:
            (server,) = server_pids(tmp_path)
            url = f"{uri}/db/store"
            write(url, [record(number) for number in range(COUNT)])
            opening, reading = open_rows(url), open_rows(url)
            reading[0]
            found: list[list[Row]] = []

            def read(dataset: StoreDataset) -> None:
                found.append(read_all(dataset))

            threads = [threading.Thread(target=read, args=(each,)) for each in (opening, reading)]
            os.kill(server, signal.SIGSTOP)
            for thread in threads:
                thread.start()
            threads[0].join(1)
            # The child may use neither the parent's connection nor the lock that the parent's thread holds.
            in_fork(lambda: check_in_child(open_rows(stores["mongodb"]), stores["mongodb"]))
            assert found == []
            assert all(thread.is_alive() for thread in threads)
            os.kill(server, signal.SIGCONT)
            for thread in threads:
                thread.join(DEADLINE)
            assert found == [TRUTH] * 2

    def test_by_a_read_that_another_thread_waits_for(
        self, stores: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As for libhdf5's lock, which a read holds that a signal handler interrupts: the fork must not wait for the other."""
        dataset, this, pread = open_rows(stores["hdf5"]), threading.get_ident(), os.pread
        lock, is_waiting, thread = threading.RLock(), threading.Event(), threading.Thread(target=lambda: dataset[:])

        def locked_pread(*call: Any) -> bytes:
            if threading.get_ident() != this:
                is_waiting.set()
            with lock:
                if not is_waiting.is_set():
                    thread.start()
                    assert is_waiting.wait(DEADLINE)
                    in_fork(lambda: check_in_child(dataset, stores["hdf5"]))
                return pread(*call)

        dataset[0]  # opening is no read
        monkeypatch.setattr(os, "pread", locked_pread)
        assert read_all(dataset) == TRUTH
        thread.join(DEADLINE)
        assert is_waiting.is_set()


PLUGIN = """
import os, threading, time
from storeds import plugins

entered, ended = threading.Event(), []
go = threading.Event()
os.register_at_fork(before=go.set)  # runs before the hook of storeds, which was registered earlier

class Opener(plugins.Opener):
    url = "mine://x"
    key = open = lambda self: "mine"
    close = lambda self, handle: None

def read():
    with plugins.POOL.leased(Opener()):
        entered.set()
        go.wait()
        time.sleep(0.5)  # without the hook, the fork does not wait for this
        ended.append(True)

threading.Thread(target=read).start()
entered.wait()
child = os.fork()
if not child:
    os._exit(not ended)
print(os.waitpid(child, 0)[1])
"""


def test_a_fork_waits_for_a_read_of_an_engine_of_a_plug_in() -> None:
    done = subprocess.run([sys.executable, "-c", PLUGIN], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout, done.stderr) == ("0\n", "")


class TestSignals:
    """`os.fork` in a signal handler, at any step of a read of its own thread."""

    STEPS = 8

    @pytest.mark.parametrize(("engine", "threads"), [*((engine, 0) for engine in FILES), ("hdf5", 2)])
    def test_the_child_reads(self, stores: dict[str, str], engine: str, threads: int, brisk_threads: None) -> None:
        dataset = open_rows(stores[engine])

        def read() -> None:
            assert read_all(dataset) == TRUTH

        read()
        with running([read] * threads):
            for step in steps_of(dataset, self.STEPS // (1 + threads)):
                with on_signal(lambda: in_fork(lambda: check_in_child(dataset, stores[engine]))):
                    found, _ = signalled(dataset, step)
                assert found == [label for _, _, label in TRUTH]
        assert read_all(dataset) == TRUTH

    @pytest.mark.parametrize("engine", FILES)
    def test_the_child_goes_on_with_the_read(self, stores: dict[str, str], engine: str) -> None:
        dataset, parent = open_rows(stores[engine]), os.getpid()
        assert read_all(dataset) == TRUTH
        for step in steps_of(dataset, self.STEPS):
            children: list[int] = []
            try:
                with on_signal(functools.partial(fork_into, children)):
                    found, _ = signalled(dataset, step)
                assert found == [label for _, _, label in TRUTH]
                if os.getpid() != parent:
                    check_in_child(dataset, stores[engine])
                    os._exit(0)
            finally:
                if os.getpid() != parent:
                    os._exit(1)
            if children:  # a read may take fewer steps than the one that was counted
                assert wait_for(children[0]) == 0


def signalled(dataset: StoreDataset, step: int) -> tuple[list[int], int]:
    """Read all labels, and send this thread a signal at one step; return the labels, and the number of steps."""
    count = 0

    def profile(*_: object) -> None:
        nonlocal count
        count += 1
        if count == step:
            signal.raise_signal(signal.SIGUSR1)

    positions = range(COUNT)
    sys.setprofile(profile)
    try:
        records = dataset.backend.get_many(positions)
    finally:
        sys.setprofile(None)
    return [record["label"] for record in records if isinstance(record, dict)], count


def steps_of(dataset: StoreDataset, most: int) -> list[int]:
    """Return some of the steps of a read."""
    _, count = signalled(dataset, 0)
    return list(range(1, count)) if FULL else sorted(random.Random(SEED).sample(range(1, count), min(most, count - 1)))


def fork_into(children: list[int]) -> None:
    children.append(os.fork())


@contextlib.contextmanager
def on_signal(call: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def check_in_child(dataset: StoreDataset, url: str) -> None:
    """Read with what was inherited, and with a dataset of the child's own."""
    for each in (dataset, open_rows(url)):
        assert read_all(each) == TRUTH
        each.close()


_C_FORK = """
import ctypes, os, sys
import storeds

backend = storeds.open_backend(sys.argv[1])
parent = os.getpid()

def say():
    found = backend.get_many(range(len(backend)))
    right = [each["label"] for each in found] == backend.column("label").tolist()
    print(int(right), "parent" if os.getpid() == parent else "child", flush=True)
    return backend._ref.entry.handle

inherited = say()
child = ctypes.PyDLL(None).fork()
if child == 0:
    os._exit(say() is inherited)
_, status = os.waitpid(child, 0)
assert say() is inherited
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture
def brisk_threads() -> Iterator[None]:
    """Let threads take turns often: more interleavings, and the main thread gets its turn among busy ones."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


@contextlib.contextmanager
def running(targets: Sequence[Callable[[], None]]) -> Iterator[list[int]]:
    """Call each target over and over in a thread; yields how often each has returned. The first failure is raised."""
    stop, failures, rounds = threading.Event(), list[BaseException](), [0] * len(targets)

    def run(at: int) -> None:
        try:
            while not stop.is_set() and not failures:
                targets[at]()
                rounds[at] += 1
        except BaseException as error:
            failures.append(error)
            rounds[at] = sys.maxsize

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(targets))]
    for thread in threads:
        thread.start()
    try:
        yield rounds
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
    for failure in failures:
        raise failure


def test_a_child_holds_none_of_its_parents_files(stores: dict[str, str]) -> None:
    before = descriptors()
    datasets = [open_rows(stores[engine]) for engine in FILES]
    for dataset in datasets:
        dataset[0]

    def check() -> None:
        assert descriptors() <= before

    in_fork(check)


def descriptors() -> set[tuple[str, str]]:
    """Return the number and the target of what this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found
