"""Links, external storage and virtual datasets of foreign HDF5 files: what is followed, and the errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from storeds.errors import ConfigError, FormatError, StoredsError, UnavailableError
from storeds.layouts.hdf5 import ParallelHdf5

Make = Callable[[h5py.File], None]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "a.h5"


def write(path: Path, make: Make) -> str:
    with h5py.File(path, "w") as file:
        make(file)
    return str(path)


def outside(path: Path) -> Path:
    """Write a file beside the store's folder, and return its path."""
    other = path.parent.parent / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(6)
    (path.parent.parent / "raw.bin").write_bytes(np.arange(6).tobytes())
    return other


def elsewhere(file: h5py.File, sort: str, other: str) -> None:
    file["y"] = np.arange(6)
    if sort == "link":
        file["x"] = h5py.ExternalLink(other, "/x")
    elif sort == "soft link to a link":
        file["there"] = h5py.ExternalLink(other, "/")
        file["columns/x"] = h5py.SoftLink("/there/x")
    elif sort == "external storage":
        file.create_dataset("x", (6,), "i8", external=[(other.replace("other.h5", "raw.bin"), 0, 48)])
    else:
        layout = h5py.VirtualLayout((6,), "i8")
        layout[:] = h5py.VirtualSource(other, "x", (6,))
        file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize("sort", ["link", "soft link to a link", "external storage", "virtual dataset"])
@pytest.mark.parametrize("name", ["absolute", "../other.h5"])
def test_links_out_of_the_folder_need_allow_outside(path: Path, sort: str, name: str) -> None:
    other = outside(path)
    url = write(path, lambda file: elsewhere(file, sort, str(other) if name == "absolute" else name))
    options: dict[str, Any] = {"columns": {"x": "columns/x" if sort.startswith("soft") else "x"}}
    with pytest.raises(StoredsError, match=r"outside of the store's folder; allow_outside=True"):
        ParallelHdf5(url, **options)
    with pytest.raises(StoredsError, match=r"outside of the store's folder; allow_outside=True"):
        ParallelHdf5.guess_can_open(url, **options)
    with pytest.raises(StoredsError, match=r"outside of the store's folder; allow_outside=True"):
        storeds.open_backend(url)
    with ParallelHdf5(url, allow_outside=True, **options) as backend:
        assert backend.get_many([4, 1]) == [{"x": 4}, {"x": 1}]
        assert backend.column("x").tolist() == list(range(6))


def test_columns_out_of_the_folder_need_allow_outside(path: Path) -> None:
    outside(path)
    url = write(path, lambda file: file.create_dataset("y", data=range(6)))
    for name in ("../other.h5::x", f"{path.parent.parent}/other.h5::x"):
        with pytest.raises(ConfigError, match="outside of the store's folder"):
            ParallelHdf5(url, columns={"x": name, "y": "y"})
        assert len(ParallelHdf5(url, columns={"x": name, "y": "y"}, allow_outside=True)) == 6


@pytest.mark.parametrize("sort", ["link", "external storage", "virtual dataset"])
def test_links_inside_the_folder_and_missing_targets(path: Path, sort: str) -> None:
    other = outside(path)
    inside = path.parent / "other.h5"
    os.rename(other, inside)
    os.rename(path.parent.parent / "raw.bin", path.parent / "raw.bin")
    url = write(path, lambda file: elsewhere(file, sort, "other.h5"))
    with ParallelHdf5(url) as backend:
        assert backend.get_many([5, 0], ["x"]) == [{"x": 5}, {"x": 0}]
    gone = path.parent / ("raw.bin" if sort == "external storage" else "other.h5")
    gone.unlink()
    for allowed in (False, True):
        with pytest.raises(FormatError, match=f"{gone}, which is missing"):
            ParallelHdf5(url, allow_outside=allowed)
    with pytest.raises(FormatError, match=f"{gone}, which is missing"):
        storeds.open_backend(url)


def test_removed_source_of_a_virtual_dataset_is_an_error(path: Path) -> None:
    os.rename(outside(path), path.parent / "other.h5")
    url = write(path, lambda file: elsewhere(file, "virtual dataset", "other.h5"))
    with ParallelHdf5(url, columns={"x": "x"}) as backend:
        assert backend.get_many([3]) == [{"x": 3}]
        (path.parent / "other.h5").unlink()
        with pytest.raises(UnavailableError, match="a source of a virtual dataset"):
            backend.get_many([3])


def test_virtual_dataset_with_holes(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["a"] = np.arange(3)
        layout = h5py.VirtualLayout((6,), "i8")
        layout[:3] = h5py.VirtualSource(file["a"])
        file.create_virtual_dataset("x", layout)

    with pytest.raises(FormatError, match="sources for only 3 of its 6"):
        ParallelHdf5(write(path, make), columns={"x": "x"})


def test_circular_links(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["x"], file["y"] = h5py.SoftLink("/y"), h5py.SoftLink("/x")

    with pytest.raises(StoredsError, match="leads through more than"):
        ParallelHdf5(write(path, make), columns={"x": "x"})
