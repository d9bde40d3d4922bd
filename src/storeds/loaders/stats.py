"""Adds up what the batches took that a training loop received, by stage and worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from storeds.datasets.batch import Counted, Work

__all__ = ["LoaderStats", "StageTotals"]


@dataclass
class StageTotals:
    """The batches that a training loop received so far, of all workers or of one.

    Attributes
    ----------
    batches, samples : int
    work : Work
        What making them took, added up.
    """

    batches: int = 0
    samples: int = 0
    work: Work = field(default_factory=Work)

    def add(self, samples: int, work: Work) -> None:
        """Add a batch."""
        self.batches += 1
        self.samples += samples
        self.work.add(work)


@dataclass
class LoaderStats:
    """The work behind the batches that a training loop received so far.

    Attributes
    ----------
    totals : StageTotals
        Of all workers.
    workers : dict
        Worker → its totals; 0 without workers.
    starting, waiting, training : float
        Seconds of the training loop: until the first batch of a pass, until later ones, and between them.
    waits : int
        Batches that were waited for, apart from the first of each pass.
    bad, repaired : int
        Samples.
    seen : Counter
        A leaf of the dataset → the samples that were requested from it.
    """

    totals: StageTotals = field(default_factory=StageTotals)
    workers: dict[int, StageTotals] = field(default_factory=dict)
    starting: float = 0.0
    waiting: float = 0.0
    training: float = 0.0
    waits: int = 0
    bad: int = 0
    repaired: int = 0
    seen: Counter[int] = field(default_factory=Counter)

    def wait(self, seconds: float, *, is_first: bool) -> None:
        """Add what the training loop waited for a batch."""
        if is_first:
            self.starting += seconds
        else:
            self.waiting += seconds
            self.waits += 1

    def add(self, worker: int, size: int, work: Work, counted: Sequence[Counted]) -> None:
        """Add a batch that the training loop received."""
        for totals in (self.totals, self.workers.setdefault(worker, StageTotals())):
            totals.add(size, work)
        for each in counted:
            self.seen[each.leaf] += each.seen
        repaired = [event.repaired for each in counted for event in each.events]
        self.repaired += sum(repaired)
        self.bad += len(repaired) - sum(repaired)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers: seconds and bytes."""
        loop = {"starting": self.starting, "waiting": self.waiting, "training": self.training}
        totals = _numbers(self.totals)
        return {
            **totals,
            "seconds": {**loop, **totals["seconds"]},
            "bad": self.bad,
            "repaired": self.repaired,
            "workers": {worker: _numbers(each) for worker, each in sorted(self.workers.items())},
        }


def _numbers(totals: StageTotals) -> dict[str, Any]:
    return {
        "batches": totals.batches,
        "samples": totals.samples,
        "bytes": totals.work.bytes,
        "cold_bytes": totals.work.cold_bytes,
        "seconds": dict(totals.work.seconds),
    }
