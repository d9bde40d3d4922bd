"""`ThreadLoader`: a `StoreLoader` whose workers are threads of the training process."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch

from storeds._utils.prefetch import ReadAhead
from storeds.batching.buffers import BufferPool
from storeds.datasets.epoch import draw_seed
from storeds.datasets.tree import inside
from storeds.errors import ConfigError
from storeds.loaders.device import map_tensors
from storeds.loaders.loader import BatchFetcher, Request, Result, StoreLoader

__all__ = ["ThreadLoader"]


class ThreadLoader(StoreLoader):
    """A `StoreLoader` that makes batches in threads instead of processes.

    Reading, decoding, resizing and scaling run outside Python's lock, so threads keep all CPUs busy, and no batch is
    copied between processes. Samples, order, policies, state and `set_epoch` are those of a loader with processes. Use it
    with transforms of storeds, or others that spend their time outside Python; transforms written in Python take turns.

    Parameters
    ----------
    dataset : Dataset
        Map-style and thread-safe, as a `StoreDataset` is.
    num_workers : int
        Threads; 0 makes each batch when the training loop asks for it.
    prefetch_factor : int
        How many batches each thread makes in advance.
    **arguments
        `sampler`, or `shuffle` and `seed`, as for `StoreLoader`; `batch_size`, `drop_last`, `collate_fn`, `pin_memory` and
        `pin_memory_device`, as for `torch.utils.data.DataLoader`. The default ``collate_fn`` is `storeds.collate`.

    Raises
    ------
    ConfigError
        An argument is for processes only, or contradicts another.

    Notes
    -----
    *Memory*: the tensors of a batch that `storeds.collate` makes lie in memory that a later batch uses, once nothing
    refers to a tensor of the batch or a view of one. Fresh memory of that size costs as much as filling it.

    *Threads and processes*: iterate in one thread, in the process that made the loader. Do not fork during a pass, as
    another loader with workers would: a thread may be writing to a log file, which Python would leave locked in the
    child. Each thread of the pool computes with one thread of torch. After a break, the threads finish their batches
    and end.
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
        self.num_threads: int = num_workers
        self.threads_ahead: int = prefetch_factor
        self._memory = BufferPool(num_workers * (prefetch_factor + 1) + 2)

    @property
    def _hands(self) -> int:
        return self.num_threads

    def __iter__(self) -> Any:
        # A generator begins an epoch at its first batch, as that of StoreLoader does.
        # Threads draw from torch's generator in no fixed order, so samples without a seed share one that is drawn here.
        seedless = any(getattr(dataset, "seed", 0) is None for dataset in inside(self.dataset))
        self._position.fix_seed()
        drawn = draw_seed(self.generator) if seedless else None
        requests = self._position.requests(*self._batching, drawn)
        fetcher = BatchFetcher(self.dataset, self.collate_fn, self._memory, self._position.plan)
        batches: ReadAhead[Request, Result] = ReadAhead(
            partial(_fetch, fetcher, self.pin_memory and torch.cuda.is_available()),
            map(Request, requests),
            self.num_threads * self.threads_ahead,
            threads=self.num_threads,
            begin=partial(_compute_alone, torch.get_num_threads()),
        )
        wait = True
        try:
            yield from self._received(batches)
        except GeneratorExit:
            # The garbage collector may close the generator while its thread holds a lock that a worker thread needs.
            wait = False
            raise
        finally:
            batches.close(wait=wait)


def _fetch(fetcher: BatchFetcher, pin: bool, request: Request) -> Result:
    result = fetcher[request]
    return result._replace(batch=map_tensors(result.batch, torch.Tensor.pin_memory)) if pin else result


def _compute_alone(elsewhere: int) -> None:
    """Make torch compute with one thread in this thread, and with as many as before in threads that begin later."""
    torch.get_num_threads()  # torch initialises the number once in each thread, which must not happen later
    torch.set_num_threads(1)
    # The setting also becomes the default of later threads. A thread that ends at once restores that default.
    last = threading.Thread(target=torch.set_num_threads, args=(elsewhere,))
    last.start()
    last.join()
