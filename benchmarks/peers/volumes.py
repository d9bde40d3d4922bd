"""One library's epochs of random patches out of a folder of HDF5 volumes, in a process of its own: seconds of each.

Run as ``python -m benchmarks.peers.volumes NAME FOLDER``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

SIZE, PER_RECORD, BATCH, WORKERS, EPOCHS = 96, 24, 4, 2, 4


def load(path: str, name: str) -> Any:
    """Return a volume with an axis of channels."""
    with h5py.File(path) as file:
        return torch.from_numpy(file[name][:])[None]


def storeds(folder: Path) -> Iterable[Any]:
    from storeds import StoreDataset, StoreLoader

    options = {"size": (SIZE,) * 3, "per_record": PER_RECORD}
    how: dict[str, Any] = {"layout": "per_file", "fields": ["raw", "label"], "as_dict": True}
    dataset = StoreDataset(f"{folder}/*.h5", reader="patch", reader_options=options, seed=0, **how)
    return StoreLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def with_affine(path: Any, name: str) -> tuple[Any, Any]:
    return load(path, name), np.eye(4)


def torchio(folder: Path) -> Iterable[Any]:
    import torchio as library  # type: ignore[import-not-found,unused-ignore]

    def image(kind: Any, path: Path, name: str) -> Any:
        return kind(path, reader=functools.partial(with_affine, name=name))

    subjects = [
        library.Subject(raw=image(library.ScalarImage, path, "raw"), label=image(library.LabelMap, path, "label"))
        for path in sorted(folder.glob("*.h5"))
    ]
    queue = library.Queue(
        library.SubjectsDataset(subjects),
        max_length=4 * PER_RECORD,
        samples_per_volume=PER_RECORD,
        sampler=library.UniformSampler(SIZE),
        num_workers=WORKERS,
    )
    return library.SubjectsLoader(queue, batch_size=BATCH, num_workers=0)  # type: ignore[no-any-return,unused-ignore]


def both(path: str) -> dict[str, Any]:
    return {name: load(path, name) for name in ("raw", "label")}


def monai(folder: Path) -> Iterable[Any]:
    from monai import data, transforms  # type: ignore[import-not-found,unused-ignore]

    crop = transforms.RandSpatialCropSamplesd(["raw", "label"], (SIZE,) * 3, num_samples=PER_RECORD, random_size=False)
    dataset = data.Dataset([*map(str, sorted(folder.glob("*.h5")))], transforms.Compose([both, crop]))
    return data.DataLoader(dataset, batch_size=1, shuffle=True, num_workers=WORKERS, persistent_workers=True)  # type: ignore[no-any-return,unused-ignore]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print there
    name, folder = sys.argv[1], Path(sys.argv[2])
    batches: Iterable[Any] = globals()[name](folder)
    seconds = []
    for _ in range(EPOCHS):
        began, count = time.perf_counter(), 0
        for batch in batches:
            raw = batch["raw"]["data"] if name == "torchio" else batch["raw"]
            if raw.shape[-3:] != (SIZE,) * 3 or bool((raw[0, ..., 0, :] == raw[-1, ..., 0, :]).all()):
                raise AssertionError(f"{name}: no patches, or the same twice")
            count += len(raw)
        seconds.append(time.perf_counter() - began)
        if count != PER_RECORD * len(list(folder.glob("*.h5"))):
            raise AssertionError(f"{name} gave {count} patches")
    print(json.dumps({"epochs": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
