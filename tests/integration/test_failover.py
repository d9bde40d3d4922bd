"""Nodes that are killed, frozen, full or voted out: the epoch or the writer ends as if nothing had been, or in time."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import storeds
from _processes import digest, loader, open_rows, row
from _writing import FIELDS, WriterProcess
from conftest import with_path
from integration._places import SLACK, Place, rows, write_rows
from make_store import make_store
from mask_files import write
from photographs import jpeg
from replica_set import Member, ReplicaSet
from shares import FULL
from storeds import errors, ops
from storeds.ops import Progress
from storeds.plugins import redact

EPOCHS = 20 if FULL else 2
BATCH = 20
ROWS = rows(2000, 1024)
MID_EPOCH, LATER = 20, 80  # of 100 batches
FROZEN = 4.0  # seconds; the others elect a primary after one
PATIENT: dict[str, Any] = {"timeoutMS": 180_000, "serverSelectionTimeoutMS": 180_000}
"""For tests whose claim is what comes out, not when: a busy machine may take more than the defaults for an election."""


@pytest.fixture
def filled(harmed_set: ReplicaSet, set_place: Place) -> Place:
    """The replica set, whole, with a store of `ROWS`."""
    write_rows(ROWS, set_place.url())
    return set_place


DIGEST = digest(row((each["image"], each["label"], number)) for number, each in enumerate(ROWS))
"""What `run_epoch` returns when every record came out once, as it went in."""


def run_epoch(url: str, events: Mapping[int, Callable[[], object]]) -> str:
    """Read all of a store with two forked workers; return the digest of the records.

    `events` maps the number of a batch to what is called before that batch is taken. The workers go on meanwhile.
    """
    found = []
    with closing(open_rows(url)) as dataset:
        for number, (_, batch) in enumerate(loader(dataset, "fork", batch_size=BATCH)):
            if number in events:
                events[number]()
            found += batch
    return digest(found)


def test_epochs_are_the_same_while_primaries_die(harmed_set: ReplicaSet, filled: Place) -> None:
    others = set(multiprocessing.active_children())  # workers that earlier tests of this process left
    chance, killed = random.Random(5), list[Member]()

    def harm() -> None:
        # In the main thread, because a node ends with the thread that started it.
        down = [member for member in harmed_set.members if not member.is_running]
        if down:
            down[0].restart()
            return
        # A majority must be there to take over, or the killed node would be missed until its restart.
        harmed_set.wait_until_whole()
        killed.append(harmed_set.wait_for_primary())
        killed[-1].kill()

    url = filled.url(user="reader", readPreference="primary", **PATIENT)
    for _ in range(EPOCHS):
        moments = chance.sample(range(len(ROWS) // BATCH), k=2)
        assert run_epoch(url, dict.fromkeys(moments, harm)) == DIGEST
    assert len(killed) == EPOCHS
    assert set(multiprocessing.active_children()) <= others


def test_a_primary_frozen_in_mid_epoch_and_thawed_later(harmed_set: ReplicaSet, filled: Place) -> None:
    primary = harmed_set.wait_for_primary()
    thawing = threading.Timer(FROZEN, primary.thaw)

    def freeze() -> None:
        primary.freeze()
        thawing.start()

    # The last batches are read when a node is back that for a moment still thinks it is the primary.
    events = {MID_EPOCH: freeze, LATER: thawing.join}
    assert run_epoch(filled.url(user="reader", **PATIENT), events) == DIGEST


def test_too_few_nodes_are_one_error_within_the_deadline(harmed_set: ReplicaSet, filled: Place) -> None:
    url, deadline = filled.url(user="reader", timeoutMS=3000), 3.0
    ends: list[float] = []

    def kill_two() -> None:
        primary = harmed_set.wait_for_primary()
        secondary = next(member for member in harmed_set.members if member is not primary)
        for member in (secondary, primary):
            member.kill()
        ends.append(time.monotonic() + deadline)

    with pytest.raises(errors.UnavailableError) as raised:
        run_epoch(url, {MID_EPOCH: kill_two})
    assert time.monotonic() < ends[0] + SLACK
    for part in (redact(url), "timeoutMS=3000", "attempts within"):
        assert part in str(raised.value)
    assert harmed_set.password("reader") not in "".join(traceback.format_exception(raised.value))


def test_a_primary_that_steps_down_while_packing(harmed_set: ReplicaSet, set_place: Place, tmp_path: Path) -> None:
    files = {f"class{n % 3}/{n:03d}.jpg": jpeg(n % 12) + bytes([n]) for n in range(60)}
    deposed: list[Member] = []

    def step_down(progress: Progress) -> None:
        if not deposed:
            deposed.append(harmed_set.wait_for_primary())
            harmed_set.step_down()

    local = storeds.pack(write(tmp_path / "tree", files), f"lmdb://{tmp_path}/local.lmdb")
    packed = storeds.pack(tmp_path / "tree", set_place.url(**PATIENT), commit_every=5, progress=step_down)
    assert deposed
    assert packed.id == local.id
    assert storeds.verify(set_place.url(user="reader")).ok


def test_a_killed_writer_is_resumed_on_another_primary(
    harmed_set: ReplicaSet, set_place: Place, tmp_path: Path
) -> None:
    url, local = set_place.url(**PATIENT), f"lmdb://{tmp_path}/local.lmdb"
    writer = WriterProcess(url)
    writer.ask("begin", "a")
    writer.ask("append", "a", count=700)
    writer.kill()
    harmed_set.wait_for_primary().kill()
    with pytest.raises(errors.StoreNotFoundError, match="interrupted write"):
        storeds.open_backend(set_place.url(user="reader", **PATIENT))
    for target, resume in ((local, False), (url, True)):
        with storeds.open_writer(target, FIELDS, plan="a", commit_every=3, resume=resume) as resumed:
            assert resumed.count == (699 if resume else 0)
            resumed.append({"job": "a", "at": n} for n in range(resumed.count, 1000))
    assert storeds.info(set_place.url(user="reader", **PATIENT)).id == storeds.info(local).id


def test_versions_are_published_while_primaries_die(harmed_set: ReplicaSet, set_place: Place) -> None:
    url = with_path(set_place.url("versions", **PATIENT), "")
    fields, expected = {"n": "int", "key": "str"}, list[int]()

    def source(*numbers: int) -> str:
        return make_store(fields, ({"n": number, "key": f"k{number}"} for number in numbers))

    def kill_primary(_: object = None) -> None:
        harmed_set.heal()
        harmed_set.wait_for_primary().kill()

    for number in range(0, 3 * EPOCHS, 3):
        storeds.append(url, source(number, number + 1, number + 2), progress=kill_primary)
        kill_primary()
        storeds.edit(url, set={f"k{number}": {"n": -number}}, drop=[f"k{number + 1}"])
        expected += [-number, number + 2]
        with closing(storeds.open_backend(url)) as backend:
            assert [record["n"] for record in backend.get_many(range(len(backend)))] == expected  # type: ignore[index]  # none is bad
    assert [each.action for each in ops.log(url)] == ["edit", "append"] * EPOCHS
    assert storeds.verify(url, workers=0).ok
