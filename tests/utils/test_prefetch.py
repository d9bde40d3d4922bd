"""`ReadAhead`: results in order, errors in their place, and threads that end with the iterator."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import pytest

from storeds._utils.prefetch import ReadAhead
from storeds.errors import ClosedError


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("storeds-read-ahead")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 60
    while reading_threads() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert reading_threads() == []


def test_results_come_in_order_and_errors_in_their_place() -> None:
    released = [threading.Event() for _ in range(6)]

    def work(job: int) -> int:
        assert released[job].wait(60)
        if job == 4:
            raise ValueError("four")
        return job

    results = ReadAhead(work, iter(range(6)), 3)
    for event in reversed(released):
        event.set()
    assert list(itertools.islice(results, 4)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="four"):
        next(results)
    assert list(results) == []
    assert reading_threads() == []


def test_the_error_of_the_first_failing_job_comes_in_its_place_and_no_further_job_is_begun() -> None:
    begun: list[int] = []
    failing = threading.Event()

    def work(job: int) -> int:
        begun.append(job)
        if job == 0:
            assert failing.wait(60)
            return job
        failing.set()
        raise ValueError(f"job {job}")

    results = ReadAhead(work, iter(range(20)), 8, threads=2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="job 1"):
        list(results)
    assert len(begun) <= 3


@pytest.mark.parametrize("how", ["end", "close", "drop", "cycle"])
def test_threads_end_with_the_iterator(how: str) -> None:
    results = ReadAhead(abs, iter(range(9)), 2)
    assert reading_threads() == []
    assert next(results) == 0
    assert reading_threads()
    if how == "end":
        assert list(results) == list(range(1, 9))
    elif how == "close":
        results.close()
        assert list(results) == []
    elif how == "cycle":
        results.itself = results  # type: ignore[attr-defined]
    del results
    gc.collect()
    wait_for_no_threads()


def test_an_iterator_is_not_for_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    results = ReadAhead(abs, iter(range(9)), 2)
    next(results)
    with monkeypatch.context() as child:
        child.setattr("storeds._utils.prefetch.os.getpid", lambda: -1)
        with pytest.raises(ClosedError, match="process that created it"):
            next(results)
    wait_for_no_threads()
