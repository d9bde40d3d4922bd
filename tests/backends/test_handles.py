"""Handles: shared, bounded, never closed under a reader, and never used in two processes."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from _writing import DEADLINE, in_fork
from shares import FULL
from storeds.backends.handles import HandlePool
from storeds.errors import ClosedError


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

    def read(self) -> Handle:
        """Lease the handle for a moment, and return it."""
        with self.ref.lease() as handle:
            assert (handle.closed, handle.pid) == (0, os.getpid())
            return handle


Pool = HandlePool[Handle]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made: Pool = HandlePool(limit=2, quiesce=True)
    yield made
    made.close_all()


def in_threads(*bodies: Callable[[], object]) -> None:
    """Run bodies at once and raise the first thing that one of them raised."""
    failures: list[BaseException] = []

    def run(body: Callable[[], object]) -> None:
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


# Sharing


def test_equal_keys_share_one_handle_from_the_first_lease_to_the_last_owner(pool: Pool, engine: Engine) -> None:
    first, second = Owner(pool, Opener(engine, "a", "slow")), Owner(pool, Opener(engine, "a", "fast"))
    assert engine.handles == []
    with first.ref.lease() as one, second.ref.lease() as two, first.ref.lease() as three:
        assert one is two is three
    assert one.setting == "slow"  # that of the first opener
    assert len(engine.handles) == len(pool) == 1
    first.ref.close()
    assert engine.live == ["a"]
    second.ref.close()
    assert engine.live == []
    assert [handle.closed for handle in engine.handles] == [1]


def test_an_open_that_fails_leaves_nothing_behind(pool: Pool, engine: Engine) -> None:
    def fail() -> None:
        raise OSError("broken")

    owner = Owner(pool, Opener(engine, "a"))
    engine.on_open = fail
    for _ in range(3):
        with pytest.raises(OSError, match="broken"):
            owner.read()
    assert len(pool) == 0
    engine.on_open = lambda: None
    assert owner.read().name == "a"


# Bounds and leases


def test_the_least_recently_used_handle_is_closed_first(pool: Pool, engine: Engine) -> None:
    owners = {name: Owner(pool, Opener(engine, name)) for name in "abc"}
    for name in "abac":
        owners[name].read()
    assert engine.live == ["a", "c"]
    owners["b"].read()
    assert sorted(engine.live) == ["b", "c"]
    assert len(engine.handles) == 4


def test_a_leased_handle_is_never_closed_to_make_room(pool: Pool, engine: Engine) -> None:
    owners = [Owner(pool, Opener(engine, name)) for name in "abcde"]
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(owner.ref.lease())
        assert engine.live == list("abcde")
        pool.close_all()
        assert engine.live == list("abcde")
    assert len(engine.live) == len(pool) == 2


def test_close_waits_for_the_lease(pool: Pool, engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with owner.ref.lease():
        with owner.ref.lease():
            owner.ref.close()
            assert engine.live == ["a"]
        assert engine.live == ["a"]
    assert engine.live == []
    assert len(pool) == 0


def test_release_under_a_lease_and_a_new_owner_before_it_ends(pool: Pool, engine: Engine) -> None:
    first, second = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "a"))
    with first.ref.lease() as one:
        first.ref.release()
        with second.ref.lease() as two:
            assert one is two
    assert engine.live == ["a"]  # it belongs to the second now


def test_release_and_close_all_are_not_the_end(pool: Pool, engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    for forget in (owner.ref.release, pool.close_all):
        owner.read()
        forget()
        assert engine.live == []
    owner.read()
    assert [handle.closed for handle in engine.handles] == [1, 1, 0]


def test_close_is_the_end_and_idempotent(pool: Pool, engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    owner.ref.close()
    owner.ref.close()
    with pytest.raises(ClosedError, match="fake://a was closed; open it again"):
        owner.read()
    assert engine.handles == []


def test_a_replaced_store_is_opened_again_and_its_old_handle_closes_with_its_readers(
    pool: Pool, engine: Engine
) -> None:
    first, second = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "a"))
    with first.ref.lease() as old:
        second.read()
        second.ref.invalidate()
        assert second.read() is not old
        assert not old.closed
    assert first.read() is old
    first.ref.close()
    assert [handle.closed for handle in engine.handles] == [1, 0]


def test_an_exception_under_a_lease_ends_it(pool: Pool, engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    with pytest.raises(KeyError), owner.ref.lease():
        raise KeyError("mine")
    pool.close_all()
    assert engine.live == []


def test_many_threads_over_many_handles(pool: Pool, engine: Engine) -> None:
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


def test_a_handle_closes_with_its_owner_and_its_last_lease(pool: Pool, engine: Engine) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    owner.read()
    with owner.ref.lease() as handle:
        del owner
        gc.collect()
        assert not handle.closed
    assert engine.live == []
    Owner(pool, Opener(engine, "a")).read()
    gc.collect()
    assert engine.live == []


def _drop_in_a_cycle(pool: Pool, opener: Opener) -> None:
    owner = Owner(pool, opener)
    owner.itself = owner  # type: ignore[attr-defined]  # only the garbage collector frees it
    owner.read()


@pytest.mark.parametrize("moment", ["on_open", "on_close"])
def test_garbage_collected_inside_the_critical_section(engine: Engine, moment: str) -> None:
    pool: Pool = HandlePool(limit=1, quiesce=True)
    gc.disable()
    try:
        _drop_in_a_cycle(pool, Opener(engine, "garbage"))
        setattr(engine, moment, gc.collect)
        owner = Owner(pool, Opener(engine, "a"))

        def use() -> None:
            owner.read()
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
    clients: Pool = HandlePool(limit=4, quiesce=False)
    collections: Pool = HandlePool(limit=4, quiesce=False)
    client = Owner(clients, Opener(engine, "client"))
    client.read()
    gc.disable()
    try:
        _drop_in_a_cycle(collections, Opener(Engine(on_close=client.ref.close), "collection"))
        setattr(engine, moment, gc.collect)
        other = Owner(clients, Opener(engine, "other"))

        def open_and_close_another() -> None:
            other.read()
            other.ref.close()

        in_threads(open_and_close_another)
    finally:
        gc.enable()
    assert engine.live == []


def test_owners_dropped_by_one_thread_while_others_open(pool: Pool, engine: Engine) -> None:
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
    pool: Pool = HandlePool(limit=2, quiesce=quiesce)
    owner, never = Owner(pool, Opener(engine, "a")), Owner(pool, Opener(engine, "b"))
    parents = owner.read()

    def grandchild() -> None:
        owner.read()
        assert [handle.abandoned for handle in engine.handles] == [1, 1, 0]

    def child() -> None:
        assert len(pool) == 0
        assert parents.abandoned == 1
        assert owner.read() is not parents
        in_fork(grandchild)
        never.read()
        pool.close_all()
        assert parents.closed == 0
        assert engine.live == []
        owner.ref.close()

    for _ in range(2):
        in_fork(child)
        assert (parents.closed, parents.abandoned) == (0, 0)
        assert owner.read() is parents
    pool.close_all()


def test_owners_may_die_in_the_child(pool: Pool, engine: Engine) -> None:
    owners = [Owner(pool, Opener(engine, name)) for name in "ab"]
    for owner in owners:
        owner.read()
    del owner

    def child() -> None:
        owners.clear()
        gc.collect()
        assert [(handle.closed, handle.abandoned) for handle in engine.handles] == [(0, 1), (0, 1)]

    in_fork(child)
    assert engine.live == ["a", "b"]


def test_a_fork_waits_for_an_open_only_where_the_engine_needs_it(engine: Engine) -> None:
    opening, finish = threading.Event(), threading.Event()

    def slowly() -> None:
        opening.set()
        assert finish.wait(DEADLINE)

    pool: Pool = HandlePool(limit=2, quiesce=False)
    slow, quick = Owner(pool, Opener(engine, "slow")), Owner(pool, Opener(engine, "quick"))

    def child() -> None:
        engine.on_open = lambda: None
        slow.read()
        quick.read()

    def fork() -> None:
        assert opening.wait(DEADLINE)
        try:
            in_fork(child)  # while the open is under way: finish is not set yet
        finally:
            finish.set()

    engine.on_open = slowly
    in_threads(slow.read, fork)
    pool.close_all()


@pytest.mark.parametrize("quiesce", [True, False])
def test_forks_while_threads_open_read_and_close(engine: Engine, quiesce: bool) -> None:
    pool: Pool = HandlePool(limit=2, quiesce=quiesce)
    owners = [Owner(pool, Opener(engine, name)) for name in "abcd"]
    stop, started = threading.Event(), threading.Barrier(5)

    def reader(number: int) -> Callable[[], None]:
        def body() -> None:
            started.wait(DEADLINE)
            at = number
            while not stop.is_set():
                at += 1
                owners[at % 4].read()
                if at % 5 == 0:
                    owners[at % 4].ref.release()

        return body

    def child() -> None:
        for owner in owners:
            owner.read()
        pool.close_all()

    def forks() -> None:
        started.wait(DEADLINE)
        try:
            for _ in range(50 if FULL else 20):
                in_fork(child)
        finally:
            stop.set()

    in_threads(forks, *map(reader, range(4)))
    pool.close_all()
    assert all(handle.closed == 1 for handle in engine.handles)


def test_a_fork_that_ran_no_hooks_is_noticed(pool: Pool, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(pool, Opener(engine, "a"))
    parents = owner.read()
    elsewhere = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: elsewhere)
    assert owner.read() is not parents
    assert (parents.closed, parents.abandoned) == (0, 1)
    owner.ref.close()
