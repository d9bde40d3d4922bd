"""Write the stores that the process tests read, and return their records."""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pymongo

from _processes import Row, row
from conftest import with_path
from make_store import make_store
from storeds import StoreDataset
from storeds.backends import Store
from storeds.backends.mongodb.client import parse_location

__all__ = [
    "CHUNKED",
    "COUNT",
    "DEADLINE",
    "ENGINES",
    "START_METHODS",
    "TRUTH",
    "collection",
    "handle_of",
    "read_all",
    "record",
    "write",
    "written",
]

ENGINES = ("lmdb", "hdf5", "mongodb")
START_METHODS = ("fork", "spawn", "forkserver")
CHUNKED = "hdf5-chunked"  # as h5repack leaves a store: read through a live libhdf5 file
COUNT = 64
DEADLINE = 150.0  # seconds: a hang, not a slow machine

# Each worker of a forkserver would import torch again, which takes longer than all of its reading.
multiprocessing.set_forkserver_preload(["torch", "storeds.datasets.map_dataset", "_processes"])


def record(number: int) -> dict[str, Any]:
    size = (number * 397) % 9000  # none at all, below a page and above it
    return {"image": np.random.default_rng(number).bytes(size), "label": number * 7 % 13}


RECORDS = [record(number) for number in range(COUNT)]
TRUTH = [row((each["image"], each["label"], number)) for number, each in enumerate(RECORDS)]


@contextmanager
def written(mongodb: str, folder: Path, records: Sequence[dict[str, Any]] = RECORDS) -> Iterator[dict[str, str]]:
    """Write a store of records, by default those of `TRUTH`, in each engine; gives engine → URL."""
    urls = {engine: f"{engine}://{folder}/store.{engine}" for engine in ("lmdb", "hdf5")}
    urls["mongodb"] = with_path(with_path(mongodb, f"storeds_test_{secrets.token_hex(6)}"), "store")
    for url in urls.values():
        write(url, records)
    urls[CHUNKED] = f"hdf5://{folder}/chunked.hdf5"
    _rewrite_chunked(folder / "store.hdf5", folder / "chunked.hdf5")
    try:
        yield urls
    finally:
        with collection(urls["mongodb"]) as found:
            found.database.client.drop_database(found.database.name)


def write(url: str, records: Sequence[dict[str, Any]]) -> None:
    make_store({"image": "image", "label": "int"}, records, url)


def _rewrite_chunked(source: Path, target: Path) -> None:
    """Copy a store with plain h5py, every dataset chunked and compressed."""
    with h5py.File(source) as old, h5py.File(target, "w") as new:

        def copy(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                new.create_dataset(name, data=item[()], chunks=True, compression="gzip").attrs.update(item.attrs)

        new.attrs.update(old.attrs)
        old.visititems(copy)


@contextmanager
def collection(url: str) -> Iterator[Any]:
    """Give the collection that a store's URL names, as PyMongo sees it."""
    location = parse_location(url)
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(location.uri)
    with client:
        yield client[location.database][location.collection]


def read_all(dataset: StoreDataset) -> list[Row]:
    return [row(sample) for sample in dataset[:]]


def handle_of(dataset: StoreDataset) -> Any:
    """Return the live handle that a dataset has a share in, or None."""
    assert isinstance(dataset.backend, Store)
    entry = dataset.backend._ref.entry
    return None if entry is None else entry.handle
