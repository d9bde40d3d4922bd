"""A loader whose workers are threads of this process: nothing is copied between processes, nothing is started anew."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from storeds._utils.prefetch import ReadAhead
from storeds.batching.buffer_pool import BufferPool, use_buffer_pool
from storeds.datasets.epoch import making_for
from storeds.datasets.seeds import draw_seed
from storeds.errors import ConfigError
from storeds.loaders.consumption import Draws
from storeds.loaders.loader import StoreLoader, map_tensors
from storeds.loaders.sampler import epoch_takers
from storeds.transforms.deferred import deferring

__all__ = ["ThreadLoader"]


class ThreadLoader(StoreLoader):
    """A `StoreLoader` that makes batches in threads instead of processes.

    Reading, decoding, resizing and scaling run outside Python's lock, so threads keep all CPUs busy, and a batch is used
    where it was made. Samples, order, policies, state and `set_epoch` are those of a loader with processes. Worth it where
    transforms are storeds' own, or others that spend their time outside Python; ones written in Python take turns.

    Parameters
    ----------
    dataset : Dataset
        Map-style and thread-safe, as a `StoreDataset` is.
    num_workers : int
        Threads; 0 makes each batch when it is asked for.
    prefetch_factor : int
        Batches that each thread is ahead.
    **arguments
        `sampler`, or `shuffle` and `seed`, as for `StoreLoader`; `batch_size`, `drop_last`, `collate_fn`, `pin_memory` and
        `pin_memory_device`, as for `torch.utils.data.DataLoader`. By default batches are made by `storeds.collate`.

    Raises
    ------
    ConfigError
        An argument is for processes alone, or contradicts another.

    Notes
    -----
    *Memory*: the tensors of a batch that `storeds.collate` makes lie in memory which is used again once nobody holds a
    tensor of that batch, or a view of one: an allocation of that size costs as much as filling it.

    *Threads and processes*: iterate in one thread, in the process that made the loader. Start no processes by fork while a
    pass is under way, as another loader with workers would: a thread may be writing to a log, and Python leaves the child
    with that file locked. Each thread of the pool computes
    alone: torch's own threads would only stand in each other's way. A break ends the threads after the batches that they
    are at.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        **arguments: Any,
    ) -> None:
        for name in ("multiprocessing_context", "persistent_workers", "worker_init_fn", "timeout"):
            if arguments.get(name):
                raise ConfigError(f"ThreadLoader takes no {name}: its workers are threads; leave it out")
        if isinstance(prefetch_factor, bool) or not isinstance(prefetch_factor, int) or prefetch_factor < 1:
            raise ConfigError(
                f"ThreadLoader: prefetch_factor is a number of batches, 1 or more, got {prefetch_factor!r}"
            )
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise ConfigError(f"ThreadLoader: num_workers is a number of threads, 0 or more, got {num_workers!r}")
        super().__init__(dataset, num_workers=0, **arguments)
        self.num_threads, self.threads_ahead = num_workers, prefetch_factor
        self._reused = BufferPool(num_workers * (prefetch_factor + 1) + 2)

    def __iter__(self) -> Any:
        # A generator, so that an epoch begins at its first batch, as that of a StoreLoader does.
        batches, wait = _Batches(self), True
        try:
            yield from batches
        except GeneratorExit:
            # Perhaps the garbage collector's, which runs anywhere, also where a lock is held that a thread waits for.
            wait = False
            raise
        finally:
            batches.close(wait=wait)

    def _make(self, seed: int | None, job: tuple[int, Any]) -> Any:
        """Return the batch of an epoch and some indices: what a worker process does."""
        epoch, indices = job
        with making_for(epoch, seed):
            return self._batch(indices)

    def _batch(self, indices: Any) -> Any:
        if self.batch_size is None:
            return self._pinned(self._finished(self.dataset[indices]))
        many = getattr(self.dataset, "__getitems__", None)
        with deferring() if self._defers else contextlib.nullcontext():
            samples = many(indices) if many is not None else [self.dataset[index] for index in indices]
        with use_buffer_pool(self._reused):
            return self._pinned(self._finished(samples))

    def _finished(self, samples: Any) -> Any:
        return samples if self.collate_fn is None else self.collate_fn(samples)

    def _pinned(self, batch: Any) -> Any:
        pins = self.pin_memory and torch.cuda.is_available()
        return map_tensors(batch, torch.Tensor.pin_memory) if pins else batch


class _Batches(Draws):
    """One pass: draws the indices of a batch when a thread is to begin it, and counts what the loop was given."""

    def __init__(self, loader: ThreadLoader) -> None:
        self._num_yielded = self._send_idx = 0
        self._num_workers = loader.num_threads
        # Not `or`: a batch sampler that has no batch is false.
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._sampler_iter: Iterator[Any] = iter(sampler)
        ahead = loader.num_threads * loader.threads_ahead
        # Threads cannot share torch's generator in any order of their own, so samples without a seed share a drawn one.
        seedless = any(getattr(dataset, "seed", 0) is None for dataset in epoch_takers(loader.dataset))
        self._results: ReadAhead[Any, Any] = ReadAhead(
            partial(loader._make, draw_seed() if seedless else None),
            self._draw(),
            ahead,
            threads=loader.num_threads,
            begin=partial(_compute_alone, torch.get_num_threads()),
        )

    def _draw(self) -> Iterator[Any]:
        with contextlib.suppress(StopIteration):
            while True:
                yield self._next_index()

    def _next_index(self) -> Any:
        drawn = next(self._sampler_iter)
        self._send_idx += 1
        return self.epoch, drawn

    def __iter__(self) -> Iterator[Any]:
        for batch in self._results:
            self._num_yielded += 1
            yield batch

    def close(self, *, wait: bool) -> None:
        self._results.close(wait=wait)


def _compute_alone(elsewhere: int) -> None:
    """Have the present thread compute by itself, and threads that begin later with as many as before."""
    torch.get_num_threads()  # torch looks up how many there are once in each thread, which must not come later
    torch.set_num_threads(1)
    # What one thread sets is its own and that of later ones, so another, which ends at once, has the last word.
    last = threading.Thread(target=torch.set_num_threads, args=(elsewhere,))
    last.start()
    last.join()
