"""Handles: shared, bounded, never closed under a reader, and never used in two processes."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from shares import FULL
from storeds.backends.handles import HandlePool, HandleRef
from storeds.errors import ClosedError

DEADLINE = 60.0


@dataclass(eq=False)
class Handle:
    """What the fake engine opens; knows everything that was done to it."""

    name: str
    setting: str = "same"
    pid: int = field(default_factory=lambda: os.getpid())  # one test replaces os.getpid
    closed: int = 0
    abandoned: int = 0


@dataclass
class Engine:
    """The fake engine: remembers every handle."""

    handles: list[Handle] = field(default_factory=list)
    on_open: Callable[[], Any] = lambda: None
    on_close: Callable[[], Any] = lambda: None

    @property
    def live(self) -> list[str]:
        return [handle.name for handle in self.handles if not handle.closed and not handle.abandoned]


@dataclass(frozen=True)
class Opener:
    engine: Engine
    name: str
    setting: str = "same"

    @property
    def url(self) -> str:
        return f"fake://{self.name}"

    def key(self) -> str:
        return self.name

    def open(self) -> Handle:
        self.engine.on_open()
        handle = Handle(self.name, self.setting)
        self.engine.handles.append(handle)
        return handle

    def close(self, handle: Handle, /) -> None:
        assert handle.pid == os.getpid(), "closed in a process that did not open it"
        self.engine.on_close()
        handle.closed += 1

    def abandon_after_fork(self, handle: Handle, /) -> None:
        assert handle.pid != os.getpid(), "abandoned in the process that opened it"
        handle.abandoned += 1


class Owner:
    """Stands for a backend."""

    def __init__(self, pool: HandlePool[Handle], opener: Opener) -> None:
        self.ref = pool.ref(self, opener)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def pool() -> Iterator[HandlePool[Handle]]:
    made: HandlePool[Handle] = HandlePool(limit=2, quiesce=True)
    yield made
    made.close_all()


def in_threads(*bodies: Callable[[], None]) -> None:
    """Run bodies at once and raise the first thing that one of them raised."""
    failures: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "deadlock"
    if failures:
        raise failures[0]


def in_fork(body: Callable[[], None]) -> str:
    """Run `body` in a forked child; return "" or its traceback. A child that hangs is killed and fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            body()
        except BaseException:
            said = traceback.format_exc().encode()
        finally:
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        if not select.select([pipe], [], [], DEADLINE)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "the child hangs"
        answer = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return answer or ("" if status == 0 else f"the child died with status {status}")


# Sharing


def test_nothing_opens_before_the_first_lease(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    assert engine.handles == []
    with owner.ref.lease() as handle:
        assert engine.handles == [handle]
    assert engine.live == ["a"]


def test_equal_keys_share_one_handle(pool: HandlePool[Handle], engine: Engine) -> None:
    first, second = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "a"))
    with first.ref.lease() as one, second.ref.lease() as two, first.ref.lease() as three:
        assert one is two is three
    assert len(engine.handles) == len(pool) == 1


def test_a_shared_handle_closes_with_its_last_owner(pool: HandlePool[Handle], engine: Engine) -> None:
    first, second = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "a"))
    for owner in (first, second):
        with owner.ref.lease():
            pass
    first.ref.close()
    assert engine.live == ["a"]
    second.ref.close()
    assert engine.live == []
    assert [handle.closed for handle in engine.handles] == [1]


def test_a_shared_handle_has_the_settings_of_its_first_opener(
    pool: HandlePool[Handle], engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Owner(pool, Opener(engine, "a", "slow")), Owner(pool, Opener(engine, "a", "fast"))
    with caplog.at_level("DEBUG", "storeds"), first.ref.lease() as one, second.ref.lease() as two:
        assert one is two
    assert one.setting == "slow"
    assert "fake://a shares the handle that was opened for fake://a" in caplog.text
    first.ref.release()
    second.ref.release()
    with second.ref.lease() as three:
        assert three.setting == "fast"


def test_an_open_that_fails_leaves_nothing_behind(pool: HandlePool[Handle], engine: Engine) -> None:
    def fail() -> None:
        raise OSError("broken")

    owner = Owner(pool, Opener(engine, "a"))
    engine.on_open = fail
    for _ in range(3):
        with pytest.raises(OSError, match="broken"), owner.ref.lease():
            pass
    assert len(pool) == 0
    engine.on_open = lambda: None
    with owner.ref.lease() as handle:
        assert handle.name == "a"


# Bounds and leases


def test_the_least_recently_used_handle_is_closed_first(pool: HandlePool[Handle], engine: Engine) -> None:
    owners = {name: Owner(pool, Opener(engine, name)) for name in "abc"}
    for name in "abac":
        with owners[name].ref.lease():
            pass
    assert engine.live == ["a", "c"]
    with owners["b"].ref.lease():
        pass
    assert sorted(engine.live) == ["b", "c"]
    assert len(engine.handles) == 4


def test_a_leased_handle_is_never_closed_to_make_room(pool: HandlePool[Handle], engine: Engine) -> None:
    owners = [Owner(pool, Opener(engine, name)) for name in "abcde"]
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(owner.ref.lease())
        assert engine.live == list("abcde")
        pool.close_all()
        assert engine.live == list("abcde")
    assert len(engine.live) == len(pool) == 2


def test_close_waits_for_the_lease(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with owner.ref.lease():
        with owner.ref.lease():
            owner.ref.close()
            assert engine.live == ["a"]
        assert engine.live == ["a"]
    assert engine.live == []
    assert len(pool) == 0


def test_release_under_a_lease_and_a_new_owner_before_it_ends(pool: HandlePool[Handle], engine: Engine) -> None:
    first, second = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "a"))
    with first.ref.lease() as one:
        first.ref.release()
        with second.ref.lease() as two:
            assert one is two
    assert engine.live == ["a"]  # it belongs to the second now


def test_release_and_close_all_are_not_the_end(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    for forget in (owner.ref.release, pool.close_all):
        with owner.ref.lease():
            pass
        forget()
        assert engine.live == []
    with owner.ref.lease() as handle:
        assert not handle.closed
    assert [handle.closed for handle in engine.handles] == [1, 1, 0]


def test_close_is_the_end_and_idempotent(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    owner.ref.close()
    owner.ref.close()
    with pytest.raises(ClosedError, match="fake://a was closed; open it again"), owner.ref.lease():
        pass
    assert engine.handles == []


def test_an_exception_under_a_lease_ends_it(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with pytest.raises(KeyError), owner.ref.lease():
        raise KeyError("mine")
    pool.close_all()
    assert engine.live == []


def test_another_thread_closes_while_one_reads(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    reading, closed = threading.Event(), threading.Event()

    def read() -> None:
        with owner.ref.lease() as handle:
            reading.set()
            assert closed.wait(DEADLINE)
            assert not handle.closed

    def close() -> None:
        assert reading.wait(DEADLINE)
        owner.ref.close()
        closed.set()

    in_threads(read, close)
    assert engine.live == []


def test_many_threads_over_many_handles(pool: HandlePool[Handle], engine: Engine) -> None:
    owners = [Owner(pool, Opener(engine, name)) for name in "abcdef"]
    start = threading.Barrier(4)

    def work(number: int) -> Callable[[], None]:
        def body() -> None:
            start.wait(DEADLINE)
            for at in range(500):
                owner = owners[(at * (number + 1)) % len(owners)]
                with owner.ref.lease() as handle:
                    assert not handle.closed
                    if at % 7 == number:
                        owner.ref.release()
                        assert not handle.closed

        return body

    in_threads(*map(work, range(4)))
    assert all(handle.closed <= 1 for handle in engine.handles)
    assert len(engine.live) == len(pool) <= 2


# Garbage collection


def test_a_handle_closes_with_its_owner(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with owner.ref.lease():
        pass
    del owner
    gc.collect()
    assert engine.live == []


def test_a_handle_outlives_its_owner_while_it_is_read(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with owner.ref.lease() as handle:
        del owner
        gc.collect()
        assert not handle.closed
    assert engine.live == []


def _drop_in_a_cycle(pool: HandlePool[Handle], opener: Opener) -> None:
    owner = Owner(pool, opener)
    owner.itself = owner  # type: ignore[attr-defined]  # only the garbage collector frees it
    with owner.ref.lease():
        pass


@pytest.mark.parametrize("moment", ["on_open", "on_close"])
def test_garbage_collected_inside_the_critical_section(engine: Engine, moment: str) -> None:
    pool: HandlePool[Handle] = HandlePool(limit=1, quiesce=True)
    gc.disable()
    try:
        _drop_in_a_cycle(pool, Opener(engine, "garbage"))
        setattr(engine, moment, gc.collect)
        owner = Owner(pool, Opener(engine, "a"))

        def use() -> None:
            with owner.ref.lease() as handle:
                assert not handle.closed
            pool.close_all()

        in_threads(use)
    finally:
        gc.enable()
    assert engine.live == []
    assert all(handle.closed == 1 for handle in engine.handles)


@pytest.mark.parametrize("moment", ["on_open", "on_close"])
def test_a_handle_with_a_claim_on_another_pool_is_collected_inside_that_pools_critical_section(
    engine: Engine, moment: str
) -> None:
    """As a collection's handle has a claim on the process's MongoDB client."""
    clients: HandlePool[Handle] = HandlePool(limit=4, quiesce=False)
    collections: HandlePool[Handle] = HandlePool(limit=4, quiesce=False)
    client = Owner(clients, Opener(engine, "client"))

    def use() -> None:
        with client.ref.lease():
            pass

    use()
    gc.disable()
    try:
        _drop_in_a_cycle(collections, Opener(Engine(on_close=client.ref.close), "collection"))
        setattr(engine, moment, gc.collect)
        other = Owner(clients, Opener(engine, "other"))

        def open_and_close_another() -> None:
            with other.ref.lease():
                pass
            other.ref.close()

        in_threads(open_and_close_another)
    finally:
        gc.enable()
    assert engine.live == []


def test_owners_dropped_by_one_thread_while_others_open(pool: HandlePool[Handle], engine: Engine) -> None:
    start = threading.Barrier(3)

    def work() -> None:
        start.wait(DEADLINE)
        for at in range(200):
            _drop_in_a_cycle(pool, Opener(engine, str(at % 5)))
            if at % 20 == 0:
                gc.collect()

    in_threads(work, work, work)
    gc.collect()
    pool.close_all()
    assert engine.live == []


def test_handles_close_when_the_interpreter_ends() -> None:
    code = """
        from storeds.backends.handles import HandlePool

        class Opener:
            url = "fake://a"
            def key(self): return "a"
            def options(self): return None
            def open(self): return "a handle"
            def close(self, handle): print("closed", handle)
            def abandon_after_fork(self, handle): print("abandoned")

        class Owner: pass
        pool = HandlePool(limit=2, quiesce=True)
        owner = Owner()
        ref = pool.ref(owner, Opener())
        with ref.lease(): pass
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=DEADLINE
    )
    assert (done.stdout, done.stderr) == ("closed a handle\n", "")


# Forks


@pytest.mark.parametrize("quiesce", [True, False])
def test_a_child_opens_its_own_and_leaves_the_parents_alone(engine: Engine, quiesce: bool) -> None:
    pool: HandlePool[Handle] = HandlePool(limit=2, quiesce=quiesce)
    owner, never = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "b"))
    with owner.ref.lease() as parents:
        pass

    def child() -> None:
        assert len(pool) == 0
        assert parents.abandoned == 1
        with owner.ref.lease() as mine, never.ref.lease() as other:
            assert mine is not parents
            assert mine.pid == other.pid == os.getpid()
        pool.close_all()
        assert parents.closed == 0
        assert engine.live == []
        owner.ref.close()

    for _ in range(2):
        assert in_fork(child) == ""
        assert (parents.closed, parents.abandoned) == (0, 0)
        with owner.ref.lease() as again:
            assert again is parents
    pool.close_all()


def test_a_grandchild_opens_its_own(pool: HandlePool[Handle], engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with owner.ref.lease():
        pass

    def grandchild() -> None:
        with owner.ref.lease() as mine:
            assert mine.pid == os.getpid()
        assert [handle.abandoned for handle in engine.handles] == [1, 1, 0]

    def child() -> None:
        with owner.ref.lease() as mine:
            assert mine.pid == os.getpid()
        assert in_fork(grandchild) == ""

    assert in_fork(child) == ""


def test_owners_may_die_in_the_child(pool: HandlePool[Handle], engine: Engine) -> None:
    owners = [Owner(pool, Opener(engine, name)) for name in "ab"]
    for owner in owners:
        with owner.ref.lease():
            pass
    del owner

    def child() -> None:
        owners.clear()
        gc.collect()
        assert [(handle.closed, handle.abandoned) for handle in engine.handles] == [(0, 1), (0, 1)]

    assert in_fork(child) == ""
    assert engine.live == ["a", "b"]


def test_a_fork_waits_for_an_open_only_where_the_engine_needs_it(engine: Engine) -> None:
    opening, finish = threading.Event(), threading.Event()

    def slowly() -> None:
        opening.set()
        assert finish.wait(DEADLINE)

    pool: HandlePool[Handle] = HandlePool(limit=2, quiesce=False)
    slow, quick = Owner(pool, Opener(engine, "slow")), Owner(pool, Opener(engine, "quick"))

    def child() -> None:
        engine.on_open = lambda: None
        for owner in (slow, quick):
            with owner.ref.lease() as handle:
                assert handle.pid == os.getpid()

    def open_slowly() -> None:
        with slow.ref.lease():
            pass

    def fork() -> None:
        assert opening.wait(DEADLINE)
        try:
            assert in_fork(child) == ""  # while the open is under way: finish is not set yet
        finally:
            finish.set()

    engine.on_open = slowly
    in_threads(open_slowly, fork)
    pool.close_all()


@pytest.mark.parametrize("quiesce", [True, False])
def test_forks_while_threads_open_read_and_close(engine: Engine, quiesce: bool) -> None:
    pool: HandlePool[Handle] = HandlePool(limit=2, quiesce=quiesce)
    owners = [Owner(pool, Opener(engine, name)) for name in "abcd"]
    stop, started = threading.Event(), threading.Barrier(5)

    def reader(number: int) -> Callable[[], None]:
        def body() -> None:
            started.wait(DEADLINE)
            at = number
            while not stop.is_set():
                at += 1
                ref: HandleRef[Handle] = owners[at % 4].ref
                with ref.lease() as handle:
                    assert (handle.closed, handle.pid) == (0, os.getpid())
                if at % 5 == 0:
                    ref.release()

        return body

    def child() -> None:
        for owner in owners:
            with owner.ref.lease() as handle:
                assert (handle.closed, handle.pid) == (0, os.getpid())
        pool.close_all()

    def forks() -> None:
        started.wait(DEADLINE)
        try:
            for _ in range(50 if FULL else 20):
                assert in_fork(child) == ""
        finally:
            stop.set()

    in_threads(forks, *map(reader, range(4)))
    pool.close_all()
    assert all(handle.closed == 1 for handle in engine.handles)


def test_a_fork_that_ran_no_hooks_is_noticed(
    pool: HandlePool[Handle], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with owner.ref.lease() as parents:
        pass
    elsewhere = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: elsewhere)
    with owner.ref.lease() as mine:
        assert mine is not parents
        assert mine.pid == elsewhere
    assert (parents.closed, parents.abandoned) == (0, 1)
    owner.ref.close()
