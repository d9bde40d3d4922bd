"""Stores of other tools, one table for the three engines: each is read in every way, and nothing opens by guessing."""

from __future__ import annotations

import pickle
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import storeds
from _foreign_hdf5 import HDF5
from _foreign_lmdb import LMDB
from _foreign_mongodb import MONGODB
from _layout_case import LayoutCase, Truth, lines_of
from _verdicts import unjudged
from conftest import with_path
from mask_files import write as write_files
from storeds.protocols import SupportsKeys
from storeds.testing import assert_same, fingerprint

FILES = {f"{engine} {name}": case for engine, table in (("hdf5", HDF5), ("lmdb", LMDB)) for name, case in table.items()}
if find_spec("tables") is None:
    del FILES["hdf5 pytables"]
CASES = {**FILES, **{f"mongodb {name}": case for name, case in MONGODB.items()}}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path_factory.mktemp("cache")))


def write(case: LayoutCase, folder: Path) -> tuple[str, Truth]:
    """Write a store of files; return what to open, and its records."""
    return str(folder / (case.url or case.file)), case.write(folder / case.file)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A case, what to open, and its records."""
    case = CASES[request.param]
    if request.param in FILES:
        return case, *write(case, tmp_path)
    monkeypatch.chdir(tmp_path)  # the index has a relative path
    truth = case.write(request.getfixturevalue("database"), tmp_path)
    return case, with_path(request.getfixturevalue("mongodb_database"), case.url), truth


def disorder(count: int) -> list[int]:
    return random.Random(3).choices(range(count), k=2 * count)


@pytest.mark.parametrize("store", CASES, indirect=True)
def test_is_read_in_every_way(store: tuple[LayoutCase, str, Truth], tmp_path: Path) -> None:
    case, url, truth = store
    asked = disorder(len(truth))
    backend: Any = storeds.open_backend(url, **case.arguments)
    assert (backend.meta.layout, len(backend)) == (case.layout, len(truth))
    assert bool(backend.describe().recognised) or not case.is_certain or case.layout in ("columns", "concatenated")
    assert len(pickle.dumps(backend)) < 4096
    twins: list[Any] = [pickle.loads(pickle.dumps(backend)), storeds.open_backend(url, **case.arguments)]
    for each in (backend, *twins):
        assert (each.meta.id, each.meta.fields, each.describe().unread) == (
            backend.meta.id,
            backend.meta.fields,
            backend.describe().unread,
        )
        assert fingerprint(each.get_many(range(len(each)))) == fingerprint(truth)
        assert fingerprint(each.get_many(asked)) == fingerprint([truth[at] for at in asked])
    for name, field in backend.meta.fields.items():
        values = [record[name] for record in truth]
        assert_same(backend.get_many([2], [name]), [{name: values[2]}])
        if field.is_scalar or field.kind == "str":
            assert backend.column(name).tolist() == values
        elif field.is_fixed:
            assert_same(backend.column(name), np.stack(values))
    if "key" in backend.meta.fields and isinstance(backend, SupportsKeys):
        keys = backend.keys().tolist()
        assert backend.positions([keys[2], keys[0], keys[2]]).tolist() == [2, 0, 2]
    target, options = f"lmdb://{tmp_path}/copy.lmdb", {**case.arguments}
    storeds.convert(url, target, layout=options.pop("layout", None), options=options)
    with storeds.open_backend(target) as copy:
        assert fingerprint(unjudged(copy.get_many(asked))) == fingerprint([truth[at] for at in asked])
    backend.close()


class Batches(Dataset[str]):
    """A hash of each of several stores, read in disorder as one batch."""

    def __init__(self, stores: list[Any]) -> None:
        self.stores = stores

    def __len__(self) -> int:
        return len(self.stores)

    def __getitem__(self, number: int) -> str:
        store = self.stores[number]
        return fingerprint(store.get_many(disorder(len(store))))


def test_a_fresh_process_reads_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    written = {name: write(case, tmp_path_factory.mktemp("store")) for name, case in FILES.items()}
    stores = [storeds.open_backend(url, **FILES[name].arguments) for name, (url, _) in written.items()]
    stores.append(
        storeds.open_backend(write_files(tmp_path_factory.mktemp("folder"), {f"a/{n}.jpg": n for n in range(3)}))
    )
    for store in stores:
        store.get_many([0])  # used before the worker starts
    loader: Any = DataLoader(Batches(stores), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    *found, of_folder = loader
    expected = {name: fingerprint([truth[at] for at in disorder(len(truth))]) for name, (_, truth) in written.items()}
    assert dict(zip(written, found, strict=True)) == expected
    assert of_folder == Batches(stores)[len(stores) - 1]


@pytest.mark.parametrize("name", [name for name, case in FILES.items() if not case.is_certain])
def test_that_is_not_certain_names_lines_that_work(name: str, tmp_path: Path) -> None:
    case = FILES[name]
    case.write(tmp_path / case.file)
    with pytest.raises(storeds.errors.ConfigError) as raised:
        storeds.open_backend(min(tmp_path.glob(case.url or case.file)))
    assert lines_of(raised.value)
