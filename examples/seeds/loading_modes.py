"""Use every way in which a DataLoader requests samples: batched or not, by sampler, by stream, with workers."""

from __future__ import annotations

import functools
import io
import tempfile

import numpy as np
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import storeds

COUNT = 40


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), 5 * number, np.uint8)).save(file, "jpeg")
    return file.getvalue()[: 40 if number == 7 else None]  # one of them is cut


def main(folder: str) -> None:
    url = f"lmdb://{folder}/photos.lmdb"
    sequence = {"kind": "array", "dtype": "int64", "shape": [None]}
    with storeds.open_writer(url, {"image": "image", "words": sequence, "label": "int"}) as writer:
        writer.append({"image": jpeg(n), "words": np.arange(n % 5), "label": n} for n in range(COUNT))

    labels = storeds.StoreDataset(url, reader="array", fields=["label"])

    # Automatic batching: one storage call a batch.
    (batch,) = next(iter(DataLoader(labels, batch_size=8)))
    assert batch.tolist() == list(range(8))
    shuffled = [int(label) for (batch,) in DataLoader(labels, batch_size=8, shuffle=True) for label in batch]
    assert sorted(shuffled) == list(range(COUNT))

    # A custom batch sampler: batches of even and of odd indices.
    halves = [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]
    assert [len(batch) for (batch,) in DataLoader(labels, batch_sampler=halves)] == [20, 20]

    # Without automatic batching: single samples, or whole batches read by one bulk read.
    assert len(list(DataLoader(labels, batch_size=None))) == COUNT
    bulk = DataLoader(labels, batch_size=None, sampler=BatchSampler(SequentialSampler(labels), 10, drop_last=False))
    assert [len(samples) for samples in bulk] == [10, 10, 10, 10]

    # collate_fn: drops the image that is cut, and pads sequences with a mask.
    dataset = storeds.StoreDataset(
        url, fields=["image", "words", "label"], decode="tensor", on_error="skip", as_dict=True
    )
    collate = functools.partial(storeds.collate, pad=["words"])
    batch = next(iter(DataLoader(dataset, batch_size=10, collate_fn=collate)))
    assert batch["label"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert batch["words_mask"].sum(1).tolist() == [n % 5 for n in batch["label"].tolist()]
    print(dataset.report())

    # Workers: a map-style dataset is shared out by the sampler, a stream by itself; nothing comes twice.
    loader = DataLoader(labels, batch_size=8, sampler=RandomSampler(labels), num_workers=2)
    assert sorted(int(label) for (batch,) in loader for label in batch) == list(range(COUNT))
    stream = storeds.StoreIterable(url, reader="array", fields=["label"])
    loader = DataLoader(stream, batch_size=8, num_workers=2)
    assert sorted(int(label) for (batch,) in loader for label in batch) == list(range(COUNT))
    print("all modes gave every sample once")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
