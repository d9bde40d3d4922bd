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

    def __init__(self, job: Job) -> None:
        self.job, self.engine, self.count = job, job.options["engine"], len(listed(job.photos))
        self.to_image = ToImage()
        self.store: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.store is None:
            self.store = open_store(self.job)
        blob, number = READ[self.engine](self.store, index)
        return self.to_image(blob), number


def open_store(job: Job) -> Any:
    if job.options["engine"] == "lmdb":
        return lmdb.open(str(job.work / "lmdb"), readonly=True, lock=False, readahead=False, meminit=False)
    if job.options["engine"] == "hdf5":
        return h5py.File(job.work / "photos.h5", "r")
    return pymongo.MongoClient[Any](job.mongodb)["articles"]["photos"]


def read_lmdb(store: Any, index: int) -> Any:
    with store.begin(write=False) as txn:
        return pickle.loads(txn.get(b"%08d" % index))


def read_hdf5(store: Any, index: int) -> Any:
    return store["images"][index].tobytes(), int(store["labels"][index])


def read_mongodb(store: Any, index: int) -> Any:
    document = store.find_one({"_id": index})
    return document["image"], document["label"]


READ = {"lmdb": read_lmdb, "hdf5": read_hdf5, "mongodb": read_mongodb}


def prepare(job: Job) -> None:
    """Write a pickled pair under each key, one variable-length dataset of all images, or one document a photo."""
    blobs = [path.read_bytes() for path in listed(job.photos)]
    if job.options["engine"] == "lmdb":
        with lmdb.open(str(job.work / "lmdb"), map_size=1 << 36) as env, env.begin(write=True) as txn:
            for number, blob in enumerate(blobs):
                txn.put(b"%08d" % number, pickle.dumps((blob, number)))
    elif job.options["engine"] == "hdf5":
        with h5py.File(job.work / "photos.h5", "w") as file:
            images = file.create_dataset("images", (len(blobs),), h5py.vlen_dtype(np.uint8))
            for number, blob in enumerate(blobs):
                images[number] = np.frombuffer(blob, np.uint8)
            file["labels"] = np.arange(len(blobs))
    else:
        documents = ({"_id": number, "image": blob, "label": number} for number, blob in enumerate(blobs))
        open_store(job).insert_many(documents)


def epochs(job: Job) -> Epoch:
    batches = loader(Items(job), job.batch, job.workers, shuffle=True)
    return lambda: batches
