"""Writers exclude each other, and a dead one is in nobody's way: what is published is always one job's records, whole."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

import storeds
from _writing import FIELDS, WriterProcess, die_at_command, fork, leftovers_in
from make_store import make_store
from shares import FULL, SEED, share
from storeds import errors

MakeUrl = Callable[[str], str]
TRIALS = {"lmdb": 1, "hdf5": 1, "mongodb": 3}
STEP = 1 if FULL else 7  # from one command at which a writer dies to the next
LOST = "another writer has taken over or dropped this write"


def job_of(url: str) -> str | None:
    """Return the one job whose records are published, all of them in order; None when nothing is."""
    try:
        with storeds.open_backend(url) as backend:
            records: Any = backend.get_many(range(len(backend)))
    except errors.StoreNotFoundError:
        return None
    assert [record["at"] for record in records] == list(range(len(records)))
    (job,) = {record["job"] for record in records} or {"empty"}
    return str(job)


class Schedule:
    """Two processes that write the same store, in a random order of steps; each step's outcome is checked."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.chance = url, random.Random(seed)
        self.is_mongodb = url.startswith("mongodb:")
        self.writers = [WriterProcess(url) for _ in range(2)]
        self.jobs: list[str | None] = [None, None]
        self.published: str | None = None
        self.failed = 0

    def run(self, steps: int) -> None:
        try:
            for step in range(steps):
                self.step(self.chance.randrange(2), step)
                assert job_of(self.url) in (self.published, "empty")
        finally:
            for writer in self.writers:
                writer.resume()
                writer.kill()

    def step(self, which: int, number: int) -> None:
        writer, job = self.writers[which], self.jobs[which]
        if job is None:
            resume = self.chance.random() < 0.5
            fresh = f"job{which}"
            job = fresh
            self.outcome(which, "begin", job, overwrite=self.chance.random() < 0.8, resume=resume)
            return
        action = self.chance.choice(["append", "append", "flush", "publish", "suspend", "abort", "kill", "stall"])
        if action == "kill":
            writer.kill()
            self.writers[which], self.jobs[which] = WriterProcess(self.url), None
        elif action == "stall" and self.is_mongodb:
            self.stall(which, job)
        elif action == "stall":
            self.outcome(which, "flush", job)
        else:
            self.outcome(which, action, job, **({"count": self.chance.randrange(1, 9)} if action == "append" else {}))

    def outcome(self, which: int, action: str, job: str, **options: Any) -> None:
        self.take(which, action, job, self.writers[which].ask(action, job, **options))

    def take(self, which: int, action: str, job: str, reply: Any) -> None:
        if isinstance(reply, Exception):
            self.failed += 1
            self.jobs[which] = None
            if action != "begin":  # what a failed writer does in its with block
                self.writers[which].ask("abort", job)
        elif action == "begin":
            self.jobs[which] = job
        elif action in ("publish", "suspend", "abort"):
            self.jobs[which] = None
            if action == "publish":
                self.published = job

    def stall(self, which: int, job: str) -> None:
        """Stop a writer between two commands of a step; it seems dead, another takes over, and it goes on."""
        writer, other = self.writers[which], 1 - which
        action = self.chance.choice(["append", "publish"])
        writer.tell(action, job, stop_at=self.chance.randrange(1, 9), **({"count": 7} if action == "append" else {}))
        if writer.is_stopped():
            for _ in range(self.chance.randrange(4)):
                self.step_of_other(other)
            writer.resume()
        before = self.published
        self.take(which, action, job, writer.reply())
        # One that was stopped after its rename has published, and the other may have replaced that.
        found = job_of(self.url)
        assert found in (before, self.published, "empty")
        self.published = before if found == before else self.published

    def step_of_other(self, other: int) -> None:
        job = self.jobs[other]
        if job is None:
            self.outcome(other, "begin", f"job{other}", overwrite=True, resume=self.chance.random() < 0.3)
        else:
            action = self.chance.choice(["append", "flush", "publish"])
            self.outcome(other, action, job, **({"count": 5} if action == "append" else {}))


@pytest.mark.parametrize("engine", TRIALS)
def test_whatever_two_writers_do_one_job_is_whole(
    make_engine_url: MakeUrl, engine: str, request: pytest.FixtureRequest
) -> None:
    failed = 0
    seeds = range(200 if engine == "mongodb" else 100)
    for number, seed in enumerate(share(seeds, TRIALS[engine])):
        url = make_engine_url(engine)
        schedule = Schedule(url, seed)
        schedule.run(14)
        failed += schedule.failed
        make_store(FIELDS, ({"job": "last", "at": n} for n in range(4)), url, overwrite=True)
        assert job_of(url) == "last"
        assert storeds.verify(url).ok
        assert storeds.info(url).leftovers is None
        if engine == "mongodb":
            assert leftovers_in(request.getfixturevalue("database"), f"store{number}") == []
    assert failed > 0


def write(url: str, job: str, **options: Any) -> None:
    """Write ten records of a job, the last of which has a value that lies in parts."""
    with storeds.open_writer(url, {**FIELDS, "blob": "bytes"}, plan=job, commit_every=4, **options) as writer:
        writer.append({"job": job, "at": n, "blob": bytes(3000 * (n == 9))} for n in range(writer.count, 10))


def test_a_writer_killed_before_any_command_leaves_nothing(
    make_engine_url: MakeUrl, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeds.backends.mongodb.documents._LARGE", 2000)
    url = make_engine_url("mongodb")
    write(url, "old")
    number, status = SEED % STEP + 1 - STEP, -9
    while status == -9:
        number += STEP
        status = die_at_command(lambda: write(url, "new", overwrite=True), number)
        assert job_of(url) in ("old", "new")
        left = leftovers_in(database, "store0")
        assert (storeds.info(url).leftovers is None) == (not left), left
        resume = number % 2 == 0
        write(url, "new" if resume else "old", overwrite=True, resume=resume)
        assert leftovers_in(database, "store0") == []
        write(url, "old", overwrite=True)
        assert leftovers_in(database, "store0") == []
    assert status == 0
    assert number > 15


@pytest.mark.parametrize("engine", ["hdf5", "mongodb"])
def test_a_forked_child_can_neither_use_nor_end_its_parents_writer(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append([{"job": "a", "at": 0}])

        def meddle() -> None:
            with pytest.raises(errors.ClosedError, match="for the process that opened it"):
                writer.append([{"job": "b", "at": 1}])
            writer.abort()

        assert os.waitstatus_to_exitcode(os.waitpid(fork(meddle), 0)[1]) == 0
        writer.append([{"job": "a", "at": 1}])
    assert job_of(url) == "a"


@pytest.mark.parametrize(
    ("action", "how"), [("append", "resume"), ("flush", "overwrite"), ("publish", "resume"), ("publish", "overwrite")]
)
def test_a_writer_that_lost_its_write_can_do_nothing(make_engine_url: MakeUrl, action: str, how: str) -> None:
    url = make_engine_url("mongodb")
    first, second = WriterProcess(url), WriterProcess(url)
    first.ask("begin", "a")
    first.ask("append", "a", count=4)
    assert second.ask("begin", "a", **{how: True}) == (3 if how == "resume" else 0, None)
    reply = first.ask(action, "a", **({"count": 3} if action == "append" else {}))
    assert isinstance(reply, errors.StoredsError)
    assert LOST in str(reply)
    second.ask("append", "a", count=2)
    assert second.ask("publish", "a")[0] == (5 if how == "resume" else 2)
    assert job_of(url) == "a"
    assert storeds.info(url).leftovers is None
    for each in (first, second):
        each.kill()


@pytest.mark.parametrize("overwrite", [True, False])
def test_two_writers_that_begin_at_once_do_not_mix(make_engine_url: MakeUrl, overwrite: bool) -> None:
    url = make_engine_url("mongodb")
    first, second = WriterProcess(url), WriterProcess(url)
    first.tell("begin", "a", stop_at=3, overwrite=overwrite)  # it has found nothing
    assert first.is_stopped()
    second.ask("begin", "b", overwrite=overwrite)
    first.resume()
    assert first.reply() == (0, None)
    for writer, job in ((first, "a"), (second, "b")):
        writer.ask("append", job, count=7)
    assert first.ask("publish", "a")[0] == 7
    assert job_of(url) == "a"
    reply = second.ask("publish", "b")
    assert job_of(url) == ("b" if overwrite else "a")
    if not overwrite:
        assert isinstance(reply, errors.StoreExistsError)
        assert "appeared while it was being written" in str(reply)
    for each in (first, second):
        each.kill()


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_a_file_system_without_locks_is_named(
    make_engine_url: MakeUrl, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(errors.ConfigError, match="cannot be written: .*No locks available"):
        storeds.open_writer(make_engine_url(engine), FIELDS)
