"""Threads that work ahead: what an error of one job means for the others.

Imports a private module: the threads have no public name.
"""

from __future__ import annotations

import threading

import pytest

from storeds._utils.prefetch import ReadAhead


def test_after_a_job_failed_none_of_those_behind_it_is_begun() -> None:
    begun: list[int] = []
    failing = threading.Event()

    def work(job: int) -> int:
        begun.append(job)
        if job == 1:
            failing.set()
            raise ValueError("the server is lost")
        assert failing.wait(20)
        return job

    results = ReadAhead(work, iter(range(20)), 8, threads=2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="the server is lost"):
        list(results)
    assert len(begun) <= 3


def test_the_error_of_the_first_failing_job_is_raised_and_results_before_it_are_given() -> None:
    later = threading.Event()

    def work(job: int) -> int:
        if job == 0:
            assert later.wait(20)
            return job
        later.set()
        raise ValueError(f"job {job}")

    results = ReadAhead(work, iter(range(9)), 4, threads=2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="job 1"):
        next(results)
