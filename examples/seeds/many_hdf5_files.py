"""Read many HDF5 files with `data` and `label`, which plain h5py wrote, as one dataset with workers."""

from __future__ import annotations

import tempfile

import h5py
import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader

import storeds

LENGTHS = (10, 3, 27)  # samples in each file


def write(folder: str) -> list[str]:
    paths, start = [], 0
    for number, length in enumerate(LENGTHS):
        paths.append(f"{folder}/part-{number}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["data"] = np.arange(start, start + length, dtype="float32")[:, None].repeat(8, axis=1)
            file["label"] = np.arange(start, start + length) % 5
        start += length
    return paths


def main(folder: str) -> None:
    paths = write(folder)

    # One address space over all files; each is opened once, after the workers have started, and a batch is one call.
    dataset = storeds.StoreDataset(f"hdf5://{folder}/part-*.h5", reader="array", fields=["data", "label"])
    assert len(dataset) == sum(LENGTHS)
    assert dataset[12][0][0] == 12 and dataset[-1][1] == 39 % 5
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
        found = torch.cat([data[:, 0] for data, _ in loader])
        assert sorted(found.tolist()) == list(range(40))

    # The same by PyTorch's own means.
    parts = ConcatDataset([storeds.StoreDataset(path, reader="array", fields=["data", "label"]) for path in paths])
    assert all(torch.equal(parts[n][0], dataset[n][0]) for n in range(40))

    # Or merged into one store with checksums.
    storeds.convert(f"hdf5://{folder}/part-*.h5", f"lmdb://{folder}/all.lmdb")
    assert storeds.verify(f"lmdb://{folder}/all.lmdb").ok
    print(f"{len(dataset)} samples of {len(paths)} files")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
