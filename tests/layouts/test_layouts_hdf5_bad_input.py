"""Errors in foreign HDF5 files."""

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
from storeds.errors import ConfigError, FormatError, RecordError, StoredsError, StoreNotFoundError
from storeds.layouts.hdf5 import ParallelHdf5, PerSampleHdf5, PerVideoHdf5
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
    ways: list[dict[str, Any]] = [{}, {"columns": {"x": "data", "y": "label"}}]
    for options in ways:
        with pytest.raises(FormatError, match="/?data has 5 rows and /?label has 4.*columns="):
            ParallelHdf5(url, **options)
        with pytest.raises(FormatError, match="/?data has 5 rows and /?label has 4.*columns="):
            ParallelHdf5.guess_can_open(url, **options)
    with pytest.raises(FormatError, match="/data has 5 rows and /label has 4"):
        storeds.open_backend(url)


def test_unknown_names_suggest_existing_ones(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["train/images"], file["train/labels"], file["test/images"] = (
            np.zeros((5, 2)),
            np.arange(5),
            np.zeros((3, 2)),
        )

    url = write(path, make)
    with pytest.raises(ConfigError, match="columns.'x'.*no 'imags'; did you mean 'images'.*images, labels"):
        ParallelHdf5(url, group="train", columns={"x": "imags"})
    with pytest.raises(StoredsError, match="columns.'x'.*no 'imags'; did you mean 'images'"):
        storeds.open_backend(url, group="train", columns={"x": "imags"})
    with pytest.raises(ConfigError, match="'train', a group.*images, labels"):
        ParallelHdf5(url, columns={"x": "train"})
    with pytest.raises(FormatError, match="no 'tain'; did you mean 'train'"):
        ParallelHdf5(url, group="tain")
    with pytest.raises(FormatError, match="/ holds no dataset, but test, train"):
        ParallelHdf5(url)
    assert "group=" in (ParallelHdf5.guess_can_open(url) or "")
    assert (PerSampleHdf5.guess_can_open(url), PerVideoHdf5.guess_can_open(url)) == (None, None)
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


def test_unsupported_dataset_type(path: Path) -> None:
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


def test_type_without_a_numpy_dtype(path: Path) -> None:
    def make(file: h5py.File) -> None:
        h5py.h5d.create(file.id, b"time", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))
        file["good"] = np.arange(3)

    url = write(path, make)
    for read in (ParallelHdf5, ParallelHdf5.guess_can_open, storeds.open_backend):
        with pytest.raises(FormatError, match="/time is of a type that NumPy lacks: .*; columns= names"):
            read(url)
    assert len(ParallelHdf5(url, columns={"x": "good"})) == 3


def test_image_stored_as_string_is_a_bad_record(path: Path) -> None:
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
def test_video_without_frames(path: Path, sort: str) -> None:
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
    with pytest.raises(ConfigError, match="frames='fames' names nothing.*; 'a' holds frames"):
        PerVideoHdf5.guess_can_open(url, frames="fames")


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


def test_sample_of_another_dtype_is_a_bad_record(path: Path) -> None:
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
def test_truncated_file(path: Path, cls: Any, make: Any, keep: float) -> None:
    make(path)
    os.truncate(path, int(path.stat().st_size * keep))
    assert cls.guess_can_open(str(path)) is None
    with pytest.raises(FormatError):
        cls(str(path))


def test_damaged_chunk_affects_only_its_records(path: Path) -> None:
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


def test_integers_beyond_int64_are_bad_records(path: Path) -> None:
    backend = ParallelHdf5(write(path, lambda file: file.create_dataset("x", data=np.array([1, 2**64 - 1], "u8"))))
    assert "beyond the int64 range" in fault(backend, 1)
    with pytest.raises(FormatError, match="int64"):
        backend.column("x")


def test_replaced_file_is_opened_again(path: Path) -> None:
    PER_VIDEO["video_jpegs"](path)
    backend = PerVideoHdf5(str(path))
    backend.get_many([0])
    fresh = path.with_name("fresh.h5")
    PER_VIDEO["video_numbered"](fresh)
    os.replace(fresh, path)
    again = PerVideoHdf5(str(path))
    assert again.meta.build != backend.meta.build
    assert isinstance(again.get_many([0])[0], dict)


def test_sample_groups_are_not_videos_and_numbered_pictures_not_columns(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        for number in range(4):
            file[f"sample_{number}/image"] = np.full((8, 8, 3), number, np.uint8)
            file[f"sample_{number}/label"] = number
    with h5py.File(tmp_path / "pairs.h5", "w") as file:
        for number in range(4):
            file[f"image_{number}"] = np.full((8, 8, 3), number, np.uint8)
            file[f"label_{number}"] = number
    for name in ("groups", "pairs"):
        url = f"hdf5://{tmp_path}/{name}.h5"
        assert (ParallelHdf5.guess_can_open(url), PerVideoHdf5.guess_can_open(url)) == (None, None)
        with storeds.open_backend(url) as backend:
            assert backend.meta.layout == "per_sample"
            assert backend.get_many([3, 1], ["label"]) == [{"label": 3}, {"label": 1}]


def test_sample_without_a_dataset_is_a_bad_record(path: Path) -> None:
    def groups(file: h5py.File) -> None:
        for at in range(9):
            file[f"s_{at}/image"] = np.full((8, 8, 3), at, np.uint8)
            if at not in (0, 4):
                file[f"s_{at}/label"] = at
            if at == 5:
                file[f"s_{at}/note"] = "what most do not have is no field"

    backend = PerSampleHdf5(write(path, groups))
    assert list(backend.meta.fields) == ["image", "label", "key"]
    assert "/s_4 has no 'label'; the names there are image" in fault(backend, 4)
    assert [isinstance(row, RecordError) for row in backend.get_many(range(9))] == [at in (0, 4) for at in range(9)]


def test_damaged_sample_affects_only_its_record(path: Path) -> None:
    def make(file: h5py.File) -> None:
        for at in range(9):
            group = file.create_group(f"s_{at}")
            group.create_dataset("image", data=np.frombuffer(blob(at), "u1"), compression="gzip", fletcher32=True)
            group["label"] = at

    url = write(path, make)
    with h5py.File(url) as file:
        chunk = file["s_4/image"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + 50] ^= 0xFF
    path.write_bytes(data)
    backend = PerSampleHdf5(url)
    assert backend.meta.fields["image"].kind == "image"
    assert [isinstance(row, RecordError) for row in backend.get_many(range(9))] == [at == 4 for at in range(9)]
    assert backend.column("label").tolist() == list(range(9))


@pytest.mark.parametrize("missing", ["label_4", "labels/4"])
def test_field_without_a_sample_is_an_error(path: Path, missing: str) -> None:
    def make(file: h5py.File) -> None:
        images, labels = ("image_", "label_") if missing == "label_4" else ("images/", "labels/")
        for at in range(9):
            file[f"{images}{at}"] = np.full((8, 8, 3), at, np.uint8)
            if at != 4:
                file[f"{labels}{at}"] = at

    url = write(path, make)
    for read in (PerSampleHdf5, PerSampleHdf5.guess_can_open, storeds.open_backend):
        with pytest.raises(
            FormatError, match=f"of the 9 samples in .*, 1 lack .*: the first is {missing}, which is missing"
        ):
            read(url)


def test_label_of_another_kind_is_a_bad_record(path: Path) -> None:
    def make(file: h5py.File) -> None:
        for at in range(40):
            file[f"s_{at}/image"], file[f"s_{at}/label"] = pixels(1)[0], at if at != 12 else 1.5
            file[f"s_{at}"].attrs["place"] = at if at != 14 else "?"

    backend = PerSampleHdf5(write(path, make))
    assert "/s_12/label is float64 (), unlike the others" in fault(backend, 12)
    assert "attribute 'place' of /s_14 is '?', not int as in others" in fault(backend, 14)
    with pytest.raises(FormatError, match="column 'label'"):
        backend.column("label")


def test_groups_that_are_neither_samples_nor_classes(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["a/x"], file["a/deeper/y"], file["b/z"] = np.zeros(3), np.zeros(3), np.zeros(3)

    url = write(path, make)
    assert [cls.guess_can_open(url) for cls in (ParallelHdf5, PerSampleHdf5, PerVideoHdf5)] == [None] * 3
    with pytest.raises(FormatError, match=r"groups of / \(a, b\) are neither samples, .* group= names"):
        PerSampleHdf5(url)


def test_error_lists_what_a_file_holds_if_no_layout_fits(path: Path) -> None:
    def make(file: h5py.File) -> None:
        file["weird"], file["gone"] = 3.0, h5py.SoftLink("/nothing")
        file.create_group("inside/deeper")
        file["type"] = np.dtype("int8")

    url = write(path, make)
    held = "it holds 'gone' (a link), 'inside' (a group of 1), 'type' (a named type), 'weird' (a dataset of shape ())"
    with pytest.raises(FormatError, match=re.escape(held)):
        storeds.open_backend(url)
    with pytest.raises(StoredsError, match=r"its group /inside holds 'deeper' \(a group of 0\)"):
        storeds.open_backend(url, group="inside")
    with pytest.raises(StoredsError, match="its group /inside/deeper is empty"):
        storeds.open_backend(url, group="inside/deeper")
    with h5py.File(path, "w") as file:
        for number in range(10):
            file.create_group(f"g{number}/h")
    with pytest.raises(FormatError, match="'g7' .a group of 1. …"):
        storeds.open_backend(url)


def test_name_that_is_not_utf8_is_shown_as_bytes(path: Path) -> None:
    def make(file: h5py.File) -> None:
        h5py.h5d.create(file.id, b"\xff\xfe", h5py.h5t.STD_I32LE, h5py.h5s.create(h5py.h5s.SCALAR))

    with pytest.raises(FormatError, match=re.escape(r"it holds b'\xff\xfe'")):
        storeds.open_backend(write(path, make))
