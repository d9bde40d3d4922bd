"""Forks, and runs epochs of a loader, while threads read: ``python _fork_loop.py FORKS EPOCHS FOLDER [MONGODB_URL]``.

The stores hold JPEGs with restart markers, of which crops are decoded. The datasets have a seed, because PyTorch's global
generator has a lock of its own, which a fork may copy locked. A child or worker that is stuck prints the stacks of
its threads and ends. Prints how many children and epochs ended well.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader

import storeds
from photographs import jpeg
from storeds import StoreDataset
from storeds.transforms import Compose, RandomCrop, ToTensor

COUNT, STUCK = 16, 60.0


def open_stores(urls: Sequence[str]) -> list[StoreDataset]:
    """Write a store to each URL and return its datasets."""
    picture = jpeg(3, (640, 480), restart_marker_blocks=4)
    transform = Compose([RandomCrop(32), ToTensor()])
    datasets = []
    for url in urls:
        with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
            writer.append({"image": picture, "label": label} for label in range(COUNT))
        datasets.append(StoreDataset(url, decode="tensor", transform=transform, seed=1))
    return datasets


def check(dataset: StoreDataset, draw: random.Random) -> None:
    """Read a batch."""
    indices = draw.sample(range(COUNT), 2)
    assert [label for _, label in dataset.__getitems__(indices)] == indices


def begin_worker(number: int = 0) -> None:
    """Print the stacks of a forked process that is stuck, and end it."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(STUCK, exit=True)


def fork(datasets: Sequence[StoreDataset]) -> bool:
    """Read every store in a forked child; return whether it ended well."""
    child = os.fork()
    if child == 0:
        begin_worker()
        try:
            for dataset in datasets:
                check(dataset, random.Random(child))
            os._exit(0)
        finally:  # an error, which the parent counts
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def epoch(datasets: Sequence[StoreDataset]) -> bool:
    """Run an epoch with two forked workers; return whether it gave each sample once."""
    loader: DataLoader[Any] = DataLoader(
        ConcatDataset(datasets),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="fork",
        worker_init_fn=begin_worker,
    )
    labels = [label for _, batch in loader for label in batch.tolist()]
    return sorted(labels) == sorted([*range(COUNT)] * len(datasets))


def main(forks: int, epochs: int, urls: Sequence[str]) -> None:
    """Fork and run epochs while two threads read, and end with status 1 if one of the threads failed."""
    sys.setswitchinterval(1e-4)  # threads take turns often, so that forks meet them at more places
    torch.set_num_threads(1)
    datasets, stop, failures = open_stores(urls), threading.Event(), list[BaseException]()
    for dataset in datasets:
        # The first call of an operation of PyTorch initialises it under a lock, which a fork may copy locked.
        check(dataset, random.Random(0))

    def read(number: int) -> None:
        draw = random.Random(number)
        try:
            while not stop.is_set():
                check(datasets[draw.randrange(len(datasets))], draw)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    forked = sum(fork(datasets) for _ in range(forks))
    sys.stdout.write(f"{forked} children\n")
    finished = sum(epoch(datasets) for _ in range(epochs))
    sys.stdout.write(f"{finished} epochs\n")
    stop.set()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


if __name__ == "__main__":
    folder = sys.argv[3]
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        ["memory://forks", f"lmdb://{folder}/forks.lmdb", f"hdf5://{folder}/forks.h5", *sys.argv[4:]],
    )
