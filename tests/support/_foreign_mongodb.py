"""Foreign MongoDB collections and buckets, filled with PyMongo alone as other programs do, and their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gridfs
import numpy as np

from _layout_case import LayoutCase, Truth
from photographs import jpeg

__all__ = ["COUNT", "IMAGES", "MONGODB", "NAMES", "bucket", "named", "query", "write_index"]

COUNT = 24
NAMES = [f"фото/{n:03}.jpg" for n in range(COUNT)]


IMAGES = [jpeg(number, (24, 16)) for number in range(COUNT)]


def write_index(path: Path, names: Sequence[Any], labels: Sequence[Any]) -> str:
    path.write_text(json.dumps({"path_list": names, "label_list": labels}), encoding="utf-8")
    return str(path)


def named(database: Any, folder: Path) -> Truth:
    """As the seed does: documents by name, and an index of names and labels."""
    order = np.random.default_rng(0).permutation(COUNT).tolist()
    database.named.insert_many({"_id": n, "img_name": NAMES[n], "bson_img": IMAGES[n]} for n in order)
    order = [*range(COUNT - 1, -1, -1), 5, 5]  # a user's list may name one twice
    labels = [n * 7 % 5 for n in range(len(order))]
    write_index(folder / "train.json", [NAMES[n] for n in order], labels)
    return [{"key": NAMES[n], "image": IMAGES[n], "label": label} for n, label in zip(order, labels, strict=True)]


def query(database: Any, folder: Path) -> Truth:
    database.any.insert_many(
        {"split": "val" if n % 3 == 0 else "train", "payload": {"jpg": IMAGES[n]}, "meta": {"class": n % 4}}
        for n in range(COUNT)
    )
    ids = [str(document["_id"]) for document in database.any.find({"split": "train"})]
    chosen = [n for n in range(COUNT) if n % 3]
    return [{"image": IMAGES[n], "label": n % 4, "key": id} for n, id in zip(chosen, ids, strict=True)]


def bucket(database: Any, folder: Path) -> Truth:
    files = gridfs.GridFSBucket(database, "photos", chunk_size_bytes=300)  # several chunks a file
    for n in range(COUNT):
        files.upload_from_stream_with_id(n, f"{n}.jpg", IMAGES[n], metadata={"class": n % 4})
    return [{"key": f"{n}.jpg", "image": IMAGES[n], "metadata": {"class": n % 4}, "label": n % 4} for n in range(COUNT)]


_COLUMNS = {"image": "payload.jpg", "label": "meta.class", "key": "_id"}
MONGODB: dict[str, LayoutCase] = {
    "named": LayoutCase(named, "named", {"index": "train.json"}, url="named"),
    "query": LayoutCase(query, "query", {"query": '{"split": "train"}', "columns": _COLUMNS}, url="any"),
    "gridfs": LayoutCase(bucket, "gridfs", {"columns": '{"label": "metadata.class"}'}, url="photos"),
}
"""A store of each layout."""
