"""How far the training loop is in what a sampler yielded: a DataLoader draws ahead of it, and is asked."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch.utils.data.dataloader

__all__ = ["Draws", "Pass"]


class Draws:
    """Base of what draws for a loader of ours, as DataLoader's own iterators do: in ``_next_index``, with their counters."""

    _num_yielded: int
    _send_idx: int
    epoch = 0
    """The epoch of the pass that it draws from."""


class Pass:
    """One way through an epoch: how far the sampler is, and how far the training loop."""

    def __init__(
        self,
        epoch: int,
        start: int,
        steps: int,
        replicas: int,
        count: int,
        enter: Callable[[int, int | None], object],
    ) -> None:
        self.epoch, self.start = epoch, start
        self.yielded = 0
        self._steps, self._replicas, self._count = steps, replicas, count
        self._exhausted = False
        self._delivery = _find_delivery(epoch)
        self._enter = enter
        enter(epoch, None if self._delivery is None else self._delivery.workers)

    def draw(self, indices: Iterator[int]) -> int:
        if self._delivery is not None and self._delivery.mark(self.yielded) and self._delivery.workers is None:
            # The batch is made here and next, and another loader's pass may have come in between.
            self._enter(self.epoch, None)
        try:
            index = next(indices)
        except StopIteration:
            self._exhausted = True
            raise
        self.yielded += 1
        return index

    @property
    def consumed(self) -> int:
        """How many of this rank's samples the training loop was given."""
        return self.yielded if self._delivery is None else self._delivery.consumed(self.yielded)

    @property
    def finished(self) -> bool:
        # A BatchSampler with drop_last consumes less than it draws.
        settled = self._exhausted and (self._delivery is None or self._delivery.settled)
        return settled or self.consumed == self._steps

    def position(self, consumed: int) -> int:
        """Return the position in the epoch after so many samples of each rank; padding and what was dropped are past."""
        return self._count if consumed == self._steps else self.start + consumed * self._replicas


class _Delivery:
    """What a DataLoader's iterator handed out of what it drew: whole batches, so each batch's first draw is marked.

    Holds the iterator's attributes but not the iterator, whose workers must end with the loop; when it goes, or turns to
    its next epoch, the count is kept and everything else let go.
    """

    def __init__(self, loader: Any, fields: dict[str, Any]) -> None:
        self._fields: dict[str, Any] | None = fields
        # StatefulDataLoader goes on counting batches where the saved one was, but dispatches from 0.
        self._offset: int = fields["_num_yielded"] if fields.get("_send_idx") == 0 else 0
        self._marks: deque[tuple[int, int]] = deque()
        self._final = (0, False)
        self.workers: int | None = fields.get("_base_seed") if fields.get("_num_workers") else None
        """What its worker processes know it by, if it has any."""
        self._watched = [_watch(each, self._freeze) for each in (loader, fields.get("_sampler_iter"))]

    def mark(self, yielded: int) -> bool:
        """Note, before a draw, which batch it is for; return whether it is the first draw for that batch."""
        if self._fields is None:  # drawn from after its loader's end: by what is unknown, so what was yielded counts
            self._final = (sys.maxsize, True)
            return False
        batch = self._fields.get("_send_idx", self._fields["_num_yielded"])
        if self._marks and batch == self._marks[-1][0]:
            return False
        delivered = self._count()[0]
        while self._marks and self._marks[0][0] < delivered:
            self._marks.popleft()
        self._marks.append((batch, yielded))
        return True

    def consumed(self, yielded: int) -> int:
        delivered = self._count()[0]
        return next((before for batch, before in tuple(self._marks) if batch >= delivered), yielded)

    @property
    def settled(self) -> bool:
        """Whether all that was drawn has been handed out."""
        return self._count()[1]

    def _count(self) -> tuple[int, bool]:
        """Return how many batches were handed out, and whether none is outstanding."""
        fields = self._fields
        if fields is None:
            return self._final
        delivered = fields["_num_yielded"] - self._offset
        if not fields.get("_in_order", True):  # the first outstanding batch ends what is handed out without a gap
            delivered = min([delivered, *fields.get("_task_info", ())])
        return delivered, delivered >= fields.get("_send_idx", 0)

    def _freeze(self, _: object) -> None:
        self._final, self._fields = self._count(), None


def _find_delivery(epoch: int) -> _Delivery | None:
    """Return the delivery of the DataLoader that draws, found on the stack; None without one, or of unknown make.

    A loader of ours that draws is given the epoch.
    """
    kinds = (Draws, getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", Draws))
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Only this method draws: a sampler that a dataset reads inside a worker-less loader is none of that loader's.
        if frame.f_code.co_name == "_next_index":
            loader = frame.f_locals.get("self")
            if isinstance(loader, Draws):
                loader.epoch = epoch
            fields = getattr(loader, "__dict__", {}) if isinstance(loader, kinds) else {}
            known = "_num_yielded" in fields and ("_send_idx" in fields or not fields.get("_num_workers"))
            return _Delivery(loader, fields) if known else None
        frame = frame.f_back
    return None


def _watch(thing: Any, gone: Callable[[object], None]) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(thing, gone)
    except TypeError:  # some iterators written in C
        return None
