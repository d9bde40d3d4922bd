"""`BackendTests`: everything that a backend and its writer must do, checked against a plain list of records."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import pytest

from storeds.backends.opening import open_writer
from storeds.errors import ClosedError, StoreNotFoundError
from storeds.protocols import Backend
from storeds.testing.kit import SMALL, Kit, MakeUrl, Written, assert_same, fingerprint, reference_id, small_records
from storeds.testing.properties import PropertyTests
from storeds.testing.reads import ArrayTests, ReadTests
from storeds.testing.writes import PublishTests, WriteTests

__all__ = ["BackendTests", "PickleTests", "ProcessTests"]


def _answer(pipe: Connection, backend: Backend | bytes, batches: Sequence[Sequence[int]]) -> None:
    """Send the fingerprints of batches read with a backend (an object or a pickle); send a traceback on failure."""
    try:
        # The parent pickled the backend itself, so that the test controls when.
        opened: Backend = pickle.loads(backend) if isinstance(backend, bytes) else backend
        prints = [fingerprint(opened.get_many(batch)) for batch in batches]
        opened.close()
        pipe.send(prints)
    except BaseException:
        pipe.send(traceback.format_exc())


def _write_and_die(url: str, count: int, how: Mapping[str, Any]) -> None:
    """Append small records, then end the process with SIGKILL, as the kernel does when memory runs out."""
    writer = open_writer(url, SMALL, **how)
    writer.append(small_records(count))
    os.kill(os.getpid(), signal.SIGKILL)


_BATCHES = [[3, 0, 3], list(range(24)), [], [23]]
_DEADLINE = 90


class PickleTests(Kit):
    """Contract of pickling a `storeds.Backend`, within one process."""

    @pytest.mark.parametrize("duplicate", [lambda b: pickle.loads(pickle.dumps(b)), copy.copy, copy.deepcopy])
    def test_a_copy_of_a_used_backend_works(self, written: Written, duplicate: Callable[[Any], Any]) -> None:
        with self.open(written.url) as backend:
            backend.get_many([0])
            twin = duplicate(backend)
            assert type(twin) is type(backend)
            assert twin.meta == backend.meta
            assert twin.url == backend.url
            assert_same(twin.get_many([5, 1]), [written.records[5], written.records[1]])
            twin.close()
            assert_same(backend.get_many([2]), [written.records[2]])
        again = duplicate(twin)
        again.close()
        with pytest.raises(ClosedError):
            again.get_many([0])

    def test_a_pickle_is_small_whatever_the_count(self, make_url: MakeUrl) -> None:
        sizes = []
        for count in (10, 1000):
            url = make_url()
            self.write(url, {"blob": "bytes", "label": "int"}, [{"blob": b"x" * 50, "label": 7}] * count)
            with self.open(url) as backend:
                backend.get_many(range(count))
                sizes.append(len(pickle.dumps(backend)))
        assert max(sizes) < 4096
        assert abs(sizes[1] - sizes[0]) < 64

    def test_unpickling_opens_nothing(self, written: Written) -> None:
        with self.open(written.url) as backend:
            backend.get_many([0])
            pickled = pickle.dumps(backend)
        files, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
        twin = pickle.loads(pickled)
        # Fewer is fine: a client that was just closed may still be ending its threads.
        assert set(os.listdir("/proc/self/fd")) <= files
        assert threading.active_count() <= threads
        assert len(twin) == 24
        twin.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # the tests do that on purpose
class ProcessTests(Kit):
    """Contract of a `storeds.Backend` with other processes. Not run if ``cross_process`` is False."""

    @pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
    def test_a_pickle_reads_in_a_fresh_process(self, written: Written, start_method: str) -> None:
        with self.open(written.url) as backend:
            backend.get_many([0])
            child = _Child(pickle.dumps(backend), start_method)
            assert child.answer() == _expected(written)

    @pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
    def test_a_forked_child_reads_with_its_parents_backend(self, written: Written, used: bool) -> None:
        with self.open(written.url) as backend:
            if used:
                backend.get_many([0])
            child = _Child(backend, "fork")
            assert_same(backend.get_many([2, 9]), [written.records[2], written.records[9]])
            assert child.answer() == _expected(written)
            # The child has closed its copy and is gone.
            assert_same(backend.get_many([4]), [written.records[4]])

    def test_children_are_forked_while_threads_read(self, written: Written) -> None:
        stop, failures = threading.Event(), list[BaseException]()

        def read_on() -> None:
            try:
                while not stop.is_set():
                    assert_same(backend.get_many([7, 7, 1]), [written.records[at] for at in (7, 7, 1)])
            except BaseException as error:
                failures.append(error)

        with self.open(written.url) as backend:
            threads = [threading.Thread(target=read_on) for _ in range(3)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(3):
                    assert _Child(backend, "fork").answer() == _expected(written)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
        assert failures == []

    def test_a_child_may_close_backends_of_its_parent(self, written: Written) -> None:
        with self.open(written.url) as backend:
            backend.get_many([0])
            twin = self.open(written.url)
            twin.get_many([0])
            children = [_Child(each, "fork") for each in (backend, twin, backend)]
            twin.close()
            assert [child.answer() for child in children] == [_expected(written)] * 3
            assert_same(backend.get_many([4]), [written.records[4]])

    @pytest.mark.parametrize("replaces", [False, True], ids=["new", "overwrite"])
    def test_a_killed_writer_changes_nothing_and_is_resumed(self, make_url: MakeUrl, replaces: bool) -> None:
        url, how = make_url(), {"commit_every": 4, "overwrite": replaces, **self.options}
        old = self.write(url, {"old": "int"}, [{"old": 1}]) if replaces else None
        process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(url, 9, how))
        process.start()
        process.join(_DEADLINE)
        assert process.exitcode == -signal.SIGKILL
        process.close()
        if old is None:
            with pytest.raises(StoreNotFoundError):
                self.open(url)
        else:
            with self.open(url) as backend:
                assert backend.meta == old
                assert backend.get_many([0]) == [{"old": 1}]
        with self.writer(url, SMALL, resume=True, overwrite=replaces) as writer:
            assert writer.count == 8
            writer.append(small_records(3, start=8))
        assert writer.meta is not None
        assert writer.meta.id == reference_id(SMALL, small_records(11))
        with self.open(url) as backend:
            assert_same(backend.get_many(range(11)), small_records(11))


class _Child:
    """A process that reads batches with a backend."""

    def __init__(self, backend: Backend | bytes, start_method: str) -> None:
        context: Any = multiprocessing.get_context(start_method)
        self._answers, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_answer, args=(sender, backend, _BATCHES))
        self._process.start()
        sender.close()

    def answer(self) -> list[str]:
        """Return the fingerprints from the process after it ended; fail with its traceback if it failed."""
        try:
            if not self._answers.poll(_DEADLINE):
                pytest.fail(f"the child process did not answer within {_DEADLINE} s")
            got = self._answers.recv()
            self._process.join(_DEADLINE)
            assert self._process.exitcode == 0
        finally:
            if self._process.is_alive():
                self._process.kill()
            self._process.join()
            self._process.close()
            self._answers.close()
        assert isinstance(got, list), f"in the child process:\n{got}"
        return got


def _expected(written: Written) -> list[str]:
    return [fingerprint([written.records[at] for at in batch]) for batch in _BATCHES]


class BackendTests(ReadTests, ArrayTests, WriteTests, PublishTests, PickleTests, PropertyTests, ProcessTests):
    """The conformance suite of a backend. A subclass whose name begins with ``Test`` runs it.

    Notes
    -----
    A subclass defines:

    ``make_url``
        A fixture (required) that returns a function. Each call returns the URL of a new, empty target. The fixture may
        clean up when its test ends.
    ``options`` : mapping
        Keyword arguments for `storeds.open_backend` and `storeds.open_writer`, for example a client factory.
    ``cross_process`` : bool
        False for an engine within one process. Then the suite leaves out the tests with other processes.

    The suite needs a writer with `flush` and `suspend`, as in the protocol `Writer`. It checks the optional
    capabilities `SupportsColumns` and `SupportsWhere` if a backend has them, and `SupportsBatchArrays` or its default.
    """

    cross_process: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.cross_process:
            for name in vars(ProcessTests):
                if name.startswith("test_"):
                    setattr(cls, name, None)  # pytest collects functions only
