"""Foreign HDF5 layouts read what was written: any order, duplicates, workers, columns, conversion, detection.

Imports a private class to count the reads of a chunk.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import storeds
from _foreign_hdf5 import LENGTHS, ORDER, PARALLEL, PER_SAMPLE, PER_VIDEO, STORES, Truth, blob, pcam, pytables
from _verdicts import unjudged
from storeds import StoreDataset, open_backend
from storeds.layouts.hdf5 import ParallelHdf5, PerSampleHdf5, PerVideoHdf5
from storeds.protocols import Backend, SupportsColumns
from storeds.readers import VideoReader
from storeds.testing import assert_same, fingerprint

CLASSES = {"parallel": ParallelHdf5, "per_sample": PerSampleHdf5, "per_video": PerVideoHdf5}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path_factory.mktemp("cache")))


def check_reads(backend: Backend, truth: Truth) -> None:
    count = len(truth)
    assert isinstance(backend, Backend)
    assert isinstance(backend, SupportsColumns)
    assert len(backend) == backend.meta.count == count
    forward = backend.get_many(range(count))
    assert fingerprint(forward) == fingerprint(truth)
    asked = random.Random(7).choices(range(count), k=2 * count)  # in disorder, with duplicates
    assert fingerprint(backend.get_many(asked)) == fingerprint([truth[at] for at in asked])
    for name, field in backend.meta.fields.items():
        assert_same(backend.get_many([3, 1], [name]), [{name: truth[at][name]} for at in (3, 1)])
        if field.is_scalar:
            assert backend.column(name).tolist() == [row[name] for row in truth]
        elif field.kind == "str":
            assert list(backend.column(name)) == [row[name] for row in truth]
        elif field.is_fixed:
            assert_same(backend.column(name), np.stack([row[name] for row in truth]))


def open_in(folder: Path) -> list[str]:
    """Return the files in `folder` that this process has open.

    Other descriptors do not count: those of a DataLoader that just ended close at any time.
    """
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if Path(path).is_relative_to(folder))


class Batches(Dataset[str]):
    """A hash of each of several datasets, read in random order as one batch."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets

    def __len__(self) -> int:
        return len(self.datasets)

    def __getitem__(self, number: int) -> str:
        dataset = self.datasets[number]
        return hash_of(dataset[disorder(len(dataset))])


def disorder(count: int) -> list[int]:
    return random.Random(3).choices(range(count), k=2 * count)


def hash_of(samples: list[Any]) -> str:
    return fingerprint(
        {name: value.numpy() if hasattr(value, "numpy") else value for name, value in sample.items()}
        for sample in samples
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Truth]]:
    """The path of each store, and its records."""
    out = {}
    for name, store in STORES.items():
        if name == "pytables" and find_spec("tables") is None:
            continue
        path = tmp_path_factory.mktemp(name) / "store.h5"
        out[name] = path, store.write(path)
    return out


@pytest.fixture(scope="module")
def in_workers(
    written: dict[str, tuple[Path, Truth]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """What two spawned workers read of each store, in random order and with duplicates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOREDS_CACHE", str(tmp_path_factory.mktemp("cache")))
        datasets: list[Any] = []
        for name, (path, _) in written.items():
            store = STORES[name]
            source: Any = open_backend(store.url(path), layout=store.layout, **store.options)
            datasets.append(StoreDataset(source, reader="array", as_dict=True))
            datasets[-1][[0, 1]]  # used before the workers start
        loader = DataLoader(Batches(datasets), batch_size=None, num_workers=2, multiprocessing_context="spawn")
        yield dict(zip(written, loader, strict=True))


@pytest.mark.parametrize("name", STORES)
def test_each_store_is_detected_read_and_converted(
    tmp_path: Path, name: str, written: dict[str, tuple[Path, Truth]], in_workers: dict[str, str]
) -> None:
    if name not in written:
        pytest.skip("PyTables is not installed")
    (path, truth), store = written[name], STORES[name]
    url, options = store.url(path), dict(store.options)
    before = open_in(path.parent)
    for file in sorted(path.parent.glob(Path(url).name)):
        seen = {layout: cls.guess_can_open(str(file), **options) for layout, cls in CLASSES.items()}
        assert [layout for layout, why in seen.items() if why] == [store.layout], seen
    assert open_in(path.parent) == before
    with open_backend(url, **options) as backend:
        assert backend.meta.layout == store.read_as
        check_reads(backend, truth)
        check_reads(pickle.loads(pickle.dumps(backend)), truth)
        again = open_backend(url, layout=store.layout, **options)
        assert backend.meta == again.meta  # deterministic, from a kept index too
        assert len(pickle.dumps(backend)) < 4096
    assert in_workers[name] == fingerprint([truth[at] for at in disorder(len(truth))])
    target = f"lmdb://{tmp_path}/native.lmdb"
    storeds.convert(url, target, layout=store.layout, options=options)
    with open_backend(target) as native:
        assert fingerprint(unjudged(native.get_many(range(len(truth))))) == fingerprint(truth)
    assert storeds.verify(target, workers=0).ok


def test_dataset_decodes_images_with_labels(tmp_path: Path) -> None:
    truth = PER_SAMPLE["class_groups"](tmp_path / "a.h5")
    dataset: Any = StoreDataset(tmp_path / "a.h5", layout="per_sample")
    assert dataset.classes == ["Ant", "bee"]
    assert dataset.targets == [row["label"] for row in truth]
    image, label = dataset[7]
    assert (image.size, label) == ((32 + 3, 24), 1)


def test_video_reader_reads_frames(tmp_path: Path) -> None:
    PER_VIDEO["video_jpegs"](tmp_path / "a.h5")
    backend = PerVideoHdf5(str(tmp_path / "a.h5"))
    assert list(backend.column("video")) == [name for name in ORDER for _ in range(LENGTHS[name])]
    assert backend.column("frame").tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 0, 1, 2, 3, 4]
    dataset: Any = StoreDataset(backend, reader=VideoReader(decode="bytes"))
    assert len(dataset) == 4
    clip, label = dataset[2]
    assert (list(clip), label) == ([blob(2), blob(3), blob(4)], 2)


def test_threads_and_forked_workers_read_the_same(tmp_path: Path) -> None:
    truth = PARALLEL["chunked"](tmp_path / "a.h5")
    expected = fingerprint(truth)
    with ParallelHdf5(str(tmp_path / "a.h5")) as backend:

        def read(_: int) -> str:
            return fingerprint(backend.get_many(range(len(truth))))

        with ThreadPoolExecutor(4) as threads:
            reading = threads.map(read, range(16))
            loader: Any = DataLoader(
                StoreDataset(backend, reader="array", as_dict=True),
                batch_size=4,
                num_workers=2,
                multiprocessing_context="fork",
                collate_fn=list,
            )
            assert hash_of([sample for batch in loader for sample in batch]) == expected
            assert set(reading) == {expected}


def test_columns_in_several_files(tmp_path: Path) -> None:
    truth = pcam(tmp_path / "split_train_x.h5")
    columns = {"image": "x", "label": "split_train_y.h5::y"}
    with ParallelHdf5(str(tmp_path / "split_train_x.h5"), columns=columns) as backend:
        assert list(backend.meta.fields) == ["image", "label"]
        check_reads(backend, truth)
        check_reads(pickle.loads(pickle.dumps(backend)), truth)
    options = "columns=image:x,label:split_train_y.h5::y"
    with open_backend(f"hdf5://{tmp_path}/split_train_x.h5?{options}", layout="parallel") as backend:
        check_reads(backend, truth)
    with open_backend(tmp_path / "split_train_x.h5", columns=columns) as found:
        assert found.meta.layout == "parallel"


def test_two_stores_in_one_file_open_together(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for part, count in (("train", 5), ("val", 3)):
            file[f"{part}_img"] = np.full((count, 2, 2), count, "u1")
            file[f"{part}_labels"] = np.arange(count)
    train, val = (
        ParallelHdf5(str(path), columns={"image": f"{part}_img", "label": f"{part}_labels"})
        for part in ("train", "val")
    )
    assert (len(train), len(val)) == (5, 3)
    for backend, count in ((train, 5), (val, 3), (train, 5)):
        assert [(row["image"].max(), row["label"]) for row in backend.get_many([1, 2]) if isinstance(row, dict)] == [
            (count, 1),
            (count, 2),
        ]
    assert train.meta.build != val.meta.build


def test_pytables_arrays_and_tables(tmp_path: Path) -> None:
    pytest.importorskip("tables")
    truth = pytables(tmp_path / "a.h5")
    with ParallelHdf5(str(tmp_path / "a.h5")) as backend:
        check_reads(backend, truth)
    with ParallelHdf5(str(tmp_path / "a.h5"), columns={"x": "table/number", "y": "vl_array"}) as backend:
        assert_same(backend.get_many([3]), [{"x": 9, "y": truth[3]["vl_array"]}])


@pytest.fixture
def big_endian(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for code in ("i2", "i8", "u4", "f4", "f8", "c8"):
            values = np.arange(12).reshape(4, 3).astype(f">{code}")
            for how in ("flat", "gzip"):
                extra = {"chunks": (2, 3), "compression": "gzip"} if how == "gzip" else {}
                file.create_dataset(f"{code}_{how}", data=values, **extra)
    return tmp_path / "a.h5"


def test_big_endian_arrays_become_native(big_endian: Path) -> None:
    dataset: Any = StoreDataset(ParallelHdf5(str(big_endian)), reader="array", as_dict=True)
    for name, tensor in dataset[2].items():
        assert tensor.tolist() == [6, 7, 8], name
    assert len(dataset[0]) == 12
