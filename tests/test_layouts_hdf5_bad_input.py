"""What is wrong with foreign HDF5 files, and what must not be followed in them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from _foreign_hdf5 import PARALLEL, PER_SAMPLE, PER_VIDEO, N, blob, pixels
from storeds.errors import ConfigError, FormatError, RecordError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.layouts.hdf5_parallel import ParallelHdf5
from storeds.layouts.hdf5_per_sample import PerSampleHdf5
from storeds.layouts.hdf5_per_video import PerVideoHdf5
from storeds.protocols import Backend

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


def fault(backend: Backend, position: int) -> str:
    (bad,) = backend.get_many([position])
    assert isinstance(bad, RecordError)
    assert (bad.position, bad.url) == (position, backend.url)
    return bad.reason


def test_columns_of_different_lengths(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["data"], file["label"] = np.zeros((5, 2)), np.arange(4)

    url = write(path, make)
    for options in ({}, {"columns": {"x": "data", "y": "label"}}):
        with pytest.raises(FormatError, match="/?data has 5 rows and /?label has 4.*columns="):
            ParallelHdf5(url, **options)
    assert "different lengths" in (ParallelHdf5.recognise(url) or "")


def test_names_that_do_not_exist_and_names_that_do(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["train/images"], file["train/labels"], file["test/images"] = (
            np.zeros((5, 2)),
            np.arange(5),
            np.zeros((3, 2)),
        )

    url = write(path, make)
    with pytest.raises(ConfigError, match="columns.'x'.*no 'imags'; did you mean 'images'.*images, labels"):
        ParallelHdf5(url, group="train", columns={"x": "imags"})
    with pytest.raises(ConfigError, match="'train', a group.*images, labels"):
        ParallelHdf5(url, columns={"x": "train"})
    with pytest.raises(FormatError, match="no 'tain'; did you mean 'train'"):
        ParallelHdf5(url, group="tain")
    with pytest.raises(FormatError, match="/ holds no dataset, but test, train"):
        ParallelHdf5(url)
    assert "group=" in (ParallelHdf5.recognise(url) or "")
    assert (PerSampleHdf5.recognise(url), PerVideoHdf5.recognise(url)) == (None, None)
    assert len(ParallelHdf5(url, group="train")) == 5
    wrong: list[dict[str, Any]] = [
        {"columns": {"X": "train/images"}},
        {"columns": {}},
        {"columns": "x"},
        {"column": {"x": "y"}},
    ]
    for bad in wrong:
        with pytest.raises(ConfigError):
            ParallelHdf5(url, **bad)
    with pytest.raises(ConfigError, match="missing"):
        ParallelHdf5(url, columns={"x": "other.h5::x"})
    with pytest.raises(StoreNotFoundError):
        ParallelHdf5(str(path.with_name("absent.h5")))


def test_a_type_that_no_field_holds(path: Path) -> None:
    def make(file: h5py.File) -> None:
        mixed = np.dtype([("n", "i4"), ("s", h5py.string_dtype())])
        file.create_dataset("mixed", (3,), mixed)
        file.create_dataset("reference", (3,), h5py.ref_dtype)
        file["words"] = np.array([[b"a", b"b"]] * 3)
        file["good"] = np.arange(3)

    url = write(path, make)
    for name in ("mixed", "reference", "words"):
        with pytest.raises(FormatError, match=f"/{name} is of a type that no field holds"):
            ParallelHdf5(url, columns={"x": name})
    with pytest.raises(FormatError, match="columns= names"):
        ParallelHdf5(url)
    assert len(ParallelHdf5(url, columns={"x": "good"})) == 3


def test_images_kept_as_text_are_lost_and_said_to_be(path: Path) -> None:
    def make(file: h5py.File) -> None:
        strings = file.create_dataset("image", (3,), h5py.string_dtype())
        for at in range(3):
            strings[at] = blob(at)[:4]  # what HDF5 writes of a JPEG given as text: all before the first NUL
        file["label"] = np.arange(3)

    backend = ParallelHdf5(write(path, make))
    assert backend.meta.fields["image"].kind == "image"
    assert re.search("only the 4 bytes before the first NUL were written", fault(backend, 1))
    assert backend.get_many([1], ["label"]) == [{"label": 1}]


@pytest.mark.parametrize("sort", ["arrays", "jpegs"])
def test_a_video_without_frames(path: Path, sort: str) -> None:
    def make(file: h5py.File) -> None:
        for name, count in (("a", 2), ("b", 0), ("c", 1)):
            if sort == "arrays":
                file[f"{name}/frames"] = pixels(3)[:count]
            else:
                group = file.create_group(f"{name}/frames")
                for at in range(count):
                    group[str(at)] = np.frombuffer(blob(at), "u1")

    url = write(path, make)
    with pytest.raises(FormatError, match="1 of 3 videos have no frames: 'b'; empty='skip'"):
        PerVideoHdf5(url)
    with PerVideoHdf5(url, empty="skip") as backend:
        assert list(backend.column("video")) == ["a", "a", "c"]
        assert backend.column("frame").tolist() == [0, 1, 0]
    with pytest.raises(FormatError, match=r"frames= .* in each"):
        PerVideoHdf5(url, frames="fames")


def test_videos_that_differ(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["a/frames"], file["a/time"] = pixels(2), np.arange(2)
        file["b/frames"], file["b/time"] = pixels(3), np.arange(2)

    with pytest.raises(FormatError, match="video 'b' has 3 rows in 'frames' and 2 in 'time'"):
        PerVideoHdf5(write(path, make))

    def other(file: h5py.File) -> None:
        file["a/frames"], file["b/frames"] = pixels(2), pixels(2).astype("f4")

    with pytest.raises(FormatError, match="/b/frames holds array <f4"):
        PerVideoHdf5(write(path.with_name("b.h5"), other))

    def attributes(file: h5py.File) -> None:
        file["a/frames"], file["b/frames"] = pixels(2), pixels(2)
        file["a"].attrs["label"] = 1

    with pytest.raises(FormatError, match="'label' of video 'b' is 'missing'"):
        PerVideoHdf5(write(path.with_name("c.h5"), attributes))


def test_one_sample_that_is_not_like_the_others(path: Path) -> None:
    def make(file: h5py.File) -> None:
        for at in range(40):
            file[f"s_{at}"] = np.zeros((2, at)) if at != 11 else np.zeros(3, "f4")

    backend = PerSampleHdf5(write(path, make))
    assert "s_11 is float32 (3,)" in fault(backend, 11)
    assert isinstance(backend.get_many([12])[0], dict)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize(
    ("cls", "make"),
    [
        (ParallelHdf5, PARALLEL["vlen_jpeg"]),
        (ParallelHdf5, PARALLEL["chunked"]),
        (PerSampleHdf5, PER_SAMPLE["class_groups"]),
    ],
)
def test_a_truncated_file(path: Path, cls: Any, make: Any, keep: float) -> None:
    make(path)
    os.truncate(path, int(path.stat().st_size * keep))
    assert cls.recognise(str(path)) is None
    with pytest.raises(FormatError):
        cls(str(path))


def test_a_damaged_chunk_costs_its_own_records_only(path: Path) -> None:
    truth = PARALLEL["chunked"](path)
    with h5py.File(path) as file:
        at = file["data"].id.get_chunk_info(1).byte_offset
    data = bytearray(path.read_bytes())
    data[at + 50] ^= 0xFF
    path.write_bytes(data)
    with ParallelHdf5(str(path)) as backend:
        got = backend.get_many(range(N))
        assert [position for position, row in enumerate(got) if isinstance(row, RecordError)] == [5, 6, 7, 8, 9]
        assert isinstance(got[3], dict)
        assert (got[3]["data"] == truth[3]["data"]).all()
        with pytest.raises(FormatError, match="column 'data'"):
            backend.column("data")


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
def test_what_leaves_the_folder_is_refused_unless_asked_for(path: Path, sort: str, name: str) -> None:
    other = outside(path)
    url = write(path, lambda file: elsewhere(file, sort, str(other) if name == "absolute" else name))
    options = {"columns": {"x": "columns/x" if sort.startswith("soft") else "x"}}
    with pytest.raises(StoredsError, match=r"outside of the store's folder; allow_outside=True"):
        ParallelHdf5(url, **options)
    assert ParallelHdf5.recognise(url, **options) is None
    with ParallelHdf5(url, allow_outside=True, **options) as backend:
        assert backend.get_many([4, 1]) == [{"x": 4}, {"x": 1}]
        assert backend.column("x").tolist() == list(range(6))


def test_columns_in_files_outside_are_refused_unless_asked_for(path: Path) -> None:
    outside(path)
    url = write(path, lambda file: file.create_dataset("y", data=range(6)))
    for name in ("../other.h5::x", f"{path.parent.parent}/other.h5::x"):
        with pytest.raises(ConfigError, match="outside of the store's folder"):
            ParallelHdf5(url, columns={"x": name, "y": "y"})
        assert len(ParallelHdf5(url, columns={"x": name, "y": "y"}, allow_outside=True)) == 6


@pytest.mark.parametrize("sort", ["link", "external storage", "virtual dataset"])
def test_what_stays_in_the_folder_is_read_and_what_is_missing_is_named(path: Path, sort: str) -> None:
    other = outside(path)
    inside = path.parent / "other.h5"
    os.rename(other, inside)
    os.rename(path.parent.parent / "raw.bin", path.parent / "raw.bin")
    url = write(path, lambda file: elsewhere(file, sort, "other.h5"))
    with ParallelHdf5(url) as backend:
        assert backend.get_many([5, 0], ["x"]) == [{"x": 5}, {"x": 0}]
    gone = path.parent / ("raw.bin" if sort == "external storage" else "other.h5")
    gone.unlink()
    for options in ({}, {"allow_outside": True}):
        with pytest.raises(FormatError, match=f"{gone}, which is missing"):
            ParallelHdf5(url, **options)


def test_a_source_that_vanishes_later_is_no_zeros(path: Path) -> None:
    os.rename(outside(path), path.parent / "other.h5")
    url = write(path, lambda file: elsewhere(file, "virtual dataset", "other.h5"))
    with ParallelHdf5(url, columns={"x": "x"}) as backend:
        assert backend.get_many([3]) == [{"x": 3}]
        (path.parent / "other.h5").unlink()
        with pytest.raises(UnavailableError, match="a source of a virtual dataset"):
            backend.get_many([3])


def test_a_virtual_dataset_with_holes(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["a"] = np.arange(3)
        layout = h5py.VirtualLayout((6,), "i8")
        layout[:3] = h5py.VirtualSource(file["a"])
        file.create_virtual_dataset("x", layout)

    with pytest.raises(FormatError, match="sources for only 3 of its 6"):
        ParallelHdf5(write(path, make), columns={"x": "x"})


def test_links_in_a_circle(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["x"], file["y"] = h5py.SoftLink("/y"), h5py.SoftLink("/x")

    with pytest.raises(StoredsError, match="leads through more than"):
        ParallelHdf5(write(path, make), columns={"x": "x"})


def test_integers_beyond_the_range_are_bad_records(path: Path) -> None:
    backend = ParallelHdf5(write(path, lambda file: file.create_dataset("x", data=np.array([1, 2**64 - 1], "u8"))))
    assert "beyond the int64 range" in fault(backend, 1)
    with pytest.raises(FormatError, match="int64"):
        backend.column("x")


def test_a_file_replaced_in_between_is_opened_anew(path: Path) -> None:
    PER_VIDEO["video_jpegs"](path)
    backend = PerVideoHdf5(str(path))
    backend.get_many([0])
    fresh = path.with_name("fresh.h5")
    PER_VIDEO["video_numbered"](fresh)
    os.replace(fresh, path)
    again = PerVideoHdf5(str(path))
    assert again.meta.build != backend.meta.build
    assert isinstance(again.get_many([0])[0], dict)


def test_a_group_for_each_sample_is_taken_for_no_video_and_numbered_pictures_for_no_columns(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        for number in range(4):
            file[f"sample_{number}/image"] = np.full((8, 8, 3), number, np.uint8)
            file[f"sample_{number}/label"] = number
    with h5py.File(tmp_path / "pairs.h5", "w") as file:
        for number in range(4):
            file[f"image_{number}"] = np.full((8, 8, 3), number, np.uint8)
            file[f"label_{number}"] = number
    with pytest.raises(FormatError, match="no native store"):
        storeds.open_backend(tmp_path / "groups.h5")
    assert ParallelHdf5.recognise(f"hdf5://{tmp_path}/pairs.h5") is None
