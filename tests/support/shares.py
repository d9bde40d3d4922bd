"""How many of the repeated cases one run takes: a few in `make test`, all in `make test-full`."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["FULL", "SEED", "examples", "share"]

T = TypeVar("T")

FULL = bool(os.environ.get("STOREDS_TEST_FULL"))
"""Whether this run takes every case."""

# Set in the environment, so that the processes of pytest-xdist agree, also at midnight.
SEED = int(os.environ.setdefault("STOREDS_TEST_SEED", str(datetime.datetime.now(datetime.UTC).toordinal())))
"""Chooses the cases of this run. It changes every day; set ``STOREDS_TEST_SEED`` to repeat a run."""


def examples(count: int) -> int:
    """Return how many examples Hypothesis tries where `make test-full` tries `count`."""
    return count if FULL else max(10, count // 5)


def share(cases: Iterable[T], count: int) -> list[T]:
    """Return `count` of the cases in their order, chosen by `SEED`, or all of them in `make test-full`."""
    every = list(cases)
    if FULL or count >= len(every):
        return every
    taken = sorted(random.Random(f"{SEED} {len(every)} {count}").sample(range(len(every)), count))
    return [every[at] for at in taken]
