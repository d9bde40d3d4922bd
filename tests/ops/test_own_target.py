"""No operation replaces a store that it reads, whatever name or view of it is given."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

import storeds
from _packing import storeds_command
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, errors

MakeUrl = Callable[[str], str]
REFUSED = "itself, which writing would replace"


def write(url: str) -> str:
    make_store({"image": "image", "label": "int"}, ({"image": jpeg(n), "label": n % 2} for n in range(4)), url)
    return storeds.info(url).build


class Wrapper(Dataset[Any]):
    """A data set of a user that changes the samples of another one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


SOURCES: dict[str, Callable[[str], Any]] = {
    "url": lambda url: url,
    "backend": storeds.open_backend,
    "dataset": StoreDataset,
    "selected": lambda url: StoreDataset(url, where={"label": 1}),
    "joined": lambda url: StoreDataset([url]),
    "selected of joined": lambda url: StoreDataset([url], where={"label": 1}),
    "subset": lambda url: Subset(StoreDataset(url), [0, 2]),
    "concatenated": lambda url: ConcatDataset([StoreDataset(url), StoreDataset(url)]),
    "wrapped": lambda url: Wrapper(Subset(StoreDataset(url), [0])),
}


@pytest.mark.parametrize(
    ("operation", "engine"),
    [(storeds.pack, "lmdb"), (storeds.convert, "hdf5"), (storeds.repair, "mongodb"), (storeds.convert, "memory")],
)
def test_a_store_is_never_its_own_target(make_engine_url: MakeUrl, operation: Any, engine: str) -> None:
    url, other = make_engine_url(engine), make_engine_url(engine)
    build, _ = write(url), write(other)
    for source in (url, [url], [other, url]):
        if operation is not storeds.pack or source is url:  # pack joins data sets, see below
            with pytest.raises(errors.ConfigError, match=REFUSED):
                operation(source, url, overwrite=True)
    assert (storeds.info(url).build, storeds.info(url).leftovers) == (build, None)


@pytest.mark.parametrize("source", SOURCES)
def test_pack_finds_the_store_inside_its_source(tmp_path: Path, source: str) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    build = write(url)
    with pytest.raises(errors.ConfigError, match=REFUSED):
        storeds.pack(SOURCES[source](url), url, overwrite=True)
    assert storeds.info(url).build == build
    assert storeds.pack(SOURCES[source](url), f"hdf5://{tmp_path}/b.h5").count > 0


def test_a_link_to_the_source_is_the_source(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    build = write(url)
    (tmp_path / "link.lmdb").symlink_to(tmp_path / "a.lmdb")
    (tmp_path / "folder").symlink_to(tmp_path)
    os.link(tmp_path / "a.lmdb", tmp_path / "hard.h5")
    commands = (["pack", "--max-side", "16"], ["convert"], ["repair"])
    for target, (command, *options) in itertools.product(("link.lmdb", "folder/a.lmdb", "hard.h5"), commands):
        shown = storeds_command(command, url, tmp_path / target, "--overwrite", *options, code=2)
        assert REFUSED in " ".join(shown.split())
    assert storeds.info(url).build == build


def test_a_file_of_another_tool_is_not_replaced_either(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6)
    before = path.read_bytes()
    for operation in (storeds.pack, storeds.convert):
        with pytest.raises(errors.ConfigError, match=REFUSED):
            operation(str(path), f"hdf5://{path}", overwrite=True)
    assert path.read_bytes() == before


def test_a_collection_of_another_tool_is_not_replaced_either(mongodb_database: str, database: Any) -> None:
    url, things = f"{mongodb_database}/things", database["things"]
    things.insert_many([{"label": n} for n in range(3)])
    before = list(things.find())
    for operation in (storeds.pack, storeds.convert):
        with pytest.raises(errors.StoreExistsError, match="no store"):
            operation(url, url, overwrite=True, layout="query")
    assert list(things.find()) == before
