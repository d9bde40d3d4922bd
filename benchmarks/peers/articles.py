"""LMDB, HDF5 and MongoDB as articles show them: a Dataset that opens its store in the worker and reads item by item."""

from __future__ import annotations

import pickle
from typing import Any

import h5py
import lmdb
import numpy as np
import pymongo
from torch.utils.data import Dataset

from benchmarks.peers._job import Epoch, Job
from benchmarks.peers._torchvision import ToImage, loader
from benchmarks.photos import listed


class Items(Dataset[tuple[Any, int]]):
    """What the three have in common."""

    def __init__(self, job: Job, count: int) -> None:
        self.job, self.count = job, count
        self.to_image = ToImage()
        self.store: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.store is None:
            self.store = self.opened()
        blob, number = self.read(index)
        return self.to_image(blob), number

    def opened(self) -> Any:
        raise NotImplementedError

    def read(self, index: int) -> tuple[bytes, int]:
        raise NotImplementedError

    def write(self, blobs: list[bytes]) -> None:
        raise NotImplementedError


class Lmdb(Items):
    """A pickled pair under each key."""

    def opened(self) -> Any:
        return lmdb.open(str(self.job.work / "lmdb"), readonly=True, lock=False, readahead=False, meminit=False)

    def read(self, index: int) -> tuple[bytes, int]:
        with self.store.begin(write=False) as txn:
            blob, number = pickle.loads(txn.get(b"%08d" % index))
        return blob, number

    def write(self, blobs: list[bytes]) -> None:
        with lmdb.open(str(self.job.work / "lmdb"), map_size=1 << 36) as env, env.begin(write=True) as txn:
            for number, blob in enumerate(blobs):
                txn.put(b"%08d" % number, pickle.dumps((blob, number)))


class Hdf5(Items):
    """One variable-length dataset of all images."""

    def opened(self) -> Any:
        return h5py.File(self.job.work / "photos.h5", "r")

    def read(self, index: int) -> tuple[bytes, int]:
        return self.store["images"][index].tobytes(), int(self.store["labels"][index])

    def write(self, blobs: list[bytes]) -> None:
        with h5py.File(self.job.work / "photos.h5", "w") as file:
            images = file.create_dataset("images", (len(blobs),), h5py.vlen_dtype(np.uint8))
            for number, blob in enumerate(blobs):
                images[number] = np.frombuffer(blob, np.uint8)
            file["labels"] = np.arange(len(blobs))


class Mongodb(Items):
    """One document a photo."""

    def opened(self) -> Any:
        return pymongo.MongoClient(self.job.mongodb)["blogs"]["photos"]

    def read(self, index: int) -> tuple[bytes, int]:
        document = self.store.find_one({"_id": index})
        return document["image"], document["label"]

    def write(self, blobs: list[bytes]) -> None:
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(self.job.mongodb)
        with client:
            client["blogs"]["photos"].insert_many(
                {"_id": number, "image": blob, "label": number} for number, blob in enumerate(blobs)
            )


ENGINES = {"lmdb": Lmdb, "hdf5": Hdf5, "mongodb": Mongodb}


def items(job: Job) -> Items:
    return ENGINES[job.options["engine"]](job, len(listed(job.photos)))


def prepare(job: Job) -> None:
    items(job).write([path.read_bytes() for path in listed(job.photos)])


def epochs(job: Job) -> Epoch:
    batches = loader(items(job), job.batch, job.workers, shuffle=True)
    return lambda: batches
