"""Many epochs while primaries are killed and restarted at random: every digest is the same, and no process is left.

Three epochs; `make test-full` (``STOREDS_TEST_FULL``) runs twenty.
"""

from __future__ import annotations

import multiprocessing
import random

import pytest

from integration._epochs import BATCH, Rows, run_epoch
from integration._places import Place
from replica_set import Member, ReplicaSet
from shares import FULL

EPOCHS = 20 if FULL else 3
ROWS = Rows(2000, 1024)


class Chaos:
    """Kills the primary if every node is up, otherwise restarts the node that is not.

    From the main thread, because a node ends with the thread that started it.
    """

    def __init__(self, replica_set: ReplicaSet) -> None:
        self.replica_set = replica_set
        self.killed: list[Member] = []

    def __call__(self) -> None:
        down = [member for member in self.replica_set.members if not member.is_running]
        if down:
            down[0].restart()
            return
        # A majority must be there to take over, or the killed node would be missed until its restart.
        self.replica_set.wait_until_whole()
        self.killed.append(self.replica_set.wait_for_primary())
        self.killed[-1].kill()


@pytest.mark.timeout(600)
def test_epochs_are_the_same_while_primaries_die(harmed_set: ReplicaSet, set_place: Place) -> None:
    others = set(multiprocessing.active_children())  # workers that earlier tests of this process left
    ROWS.write(set_place.url())
    chance, chaos = random.Random(5), Chaos(harmed_set)
    digests = []
    for _ in range(EPOCHS):
        moments = chance.sample(range(ROWS.count // BATCH), k=2)
        digests.append(run_epoch(set_place.url(user="reader", timeoutMS=30_000), dict.fromkeys(moments, chaos)))
    assert digests == [ROWS.digest] * EPOCHS
    assert len(chaos.killed) == EPOCHS
    assert set(multiprocessing.active_children()) <= others
