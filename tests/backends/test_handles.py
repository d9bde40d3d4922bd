"""Handles: bounded, never closed under a reader, and closed with their owners."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from _writing import DEADLINE
from storeds.backends.handles import HandlePool


@dataclass(eq=False)
class Handle:
    """What the fake engine opens."""

    name: str
    closed: int = 0


@dataclass
class Engine:
    """The fake engine: remembers every handle. What forks do is tested with real ones, in `test_forks`."""

    handles: list[Handle] = field(default_factory=list)
    on_open: Callable[[], Any] = lambda: None
    on_close: Callable[[], Any] = lambda: None

    @property
    def live(self) -> list[str]:
        return [handle.name for handle in self.handles if not handle.closed]


@dataclass(frozen=True)
class Opener:
    engine: Engine
    name: str

    @property
    def url(self) -> str:
        return f"fake://{self.name}"

    def key(self) -> str:
        return self.name

    def open(self) -> Handle:
        self.engine.on_open()
        handle = Handle(self.name)
        self.engine.handles.append(handle)
        return handle

    def close(self, handle: Handle, /) -> None:
        self.engine.on_close()
        handle.closed += 1

    def abandon_after_fork(self, handle: Handle, /) -> None: ...


class Owner:
    """Stands for a backend."""

    def __init__(self, pool: HandlePool[Handle], opener: Opener) -> None:
        self.ref = pool.ref(self, opener)

    def read(self) -> Handle:
        """Lease the handle for a moment, and return it."""
        with self.ref.lease() as handle:
            assert not handle.closed
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
