"""Folders of photographs that train, and are verified, without packing: against torchvision, and against their packed store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import storeds
from benchmarks._common import Result, Run, entry, figure
from benchmarks.packing import write_tree
from benchmarks.samples import enable_torchvision

_SIDE, _MEAN, _STD, _BATCH = 224, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 64
_TRANSFORM = [
    {"name": "RandomResizedCrop", "size": _SIDE},
    "RandomHorizontalFlip",
    "ToTensor",
    {"name": "Normalize", "mean": _MEAN, "std": _STD},
]


def loader(url: Path | str) -> Any:
    dataset = storeds.StoreDataset(url, decode="tensor", transform=_TRANSFORM, seed=0)
    return storeds.StoreLoader(dataset, batch_size=_BATCH, shuffle=True, num_workers=2, persistent_workers=True)


def of_torchvision(root: Path) -> Any:
    """Return the loader of torchvision's ImageFolder, as its tutorials write it."""
    enable_torchvision()
    from torchvision import datasets
    from torchvision.transforms import v2

    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
    transform = v2.Compose([v2.RandomResizedCrop(_SIDE, antialias=True), v2.RandomHorizontalFlip(), *floats])
    data = datasets.ImageFolder(root, transform)
    return DataLoader(data, _BATCH, shuffle=True, num_workers=2, persistent_workers=True)


def epoch(loader: Any) -> Callable[[], int]:
    return lambda: sum(len(images) for images, _ in loader)


def check_same(root: Path, url: str) -> None:
    """Raise unless the samples of a folder and of its packed store are equal."""
    stores = [storeds.StoreDataset(each, decode="tensor", transform=_TRANSFORM, seed=0) for each in (root, url)]
    for index in range(0, len(stores[0]), 97):
        (image, label), (packed, number) = (store[index] for store in stores)
        if label != number or not torch.equal(image, packed):
            raise AssertionError(f"sample {index} of the folder is not that of the store")


@entry(
    "folders",
    "A shuffled epoch of a folder of 4,000 photographs: StoreLoader, against torchvision's ImageFolder and the packed store",
)
def folders(run: Run) -> Iterator[Result]:
    root, count = run.folder / "photos", run.count(4000, 200)
    url = f"lmdb://{run.folder}/photos.lmdb"
    write_tree(root, count, 500)
    storeds.pack(root, url)
    check_same(root, url)
    folder, packed, files = epoch(loader(root)), epoch(loader(url)), epoch(of_torchvision(root))
    if not folder() == packed() == files() == count:
        raise AssertionError("an epoch has other samples")
    yield run.compare("folder ÷ torchvision's ImageFolder", folder, files, least=1.5, count=count, seconds=0)
    yield run.compare("packed store ÷ folder", packed, folder, count=count, seconds=0)
    unjudged = f"lmdb://{run.folder}/unjudged.lmdb"
    storeds.pack(root, unjudged, check=False)
    of_folder = partial(storeds.verify, root)
    # Pictures that are intact by a stored verdict are not examined again, so the two do different work.
    for what, store, least in (("packed store without verdicts", unjudged, 0.8), ("packed store", url, None)):
        yield run.compare(
            f"verify: folder ÷ {what}", of_folder, partial(storeds.verify, store), least=least, count=count
        )


@entry("folder_opening", "Opening a folder of 100,000 files: the first time, which lists it, and later")
def folder_opening(run: Run) -> Iterator[Result]:
    count = run.count(100_000, 1000)
    first: list[float] = []
    later: list[float] = []
    for number in range(run.rounds):
        root = run.folder / f"many{number}"
        for at in range(count):
            path = root / f"class_{at % 100:03}/{at:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for each in (
            root,
            *root.iterdir(),
        ):  # a folder that changed just now is listed again, since its time may not tell
            os.utime(each, (0, 0))
        for times in (first, later):
            start = time.perf_counter()
            with storeds.open_backend(root) as backend:
                times.append(time.perf_counter() - start)
                if len(backend) != count:
                    raise AssertionError(f"{root} has {len(backend)} records")
    yield figure(f"first opening of {count:,} files", "s", first, most=2)
    yield figure("later opening", "s", later, most=0.1)
