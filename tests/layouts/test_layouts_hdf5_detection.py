"""Detection of the layout of foreign HDF5 files, by evidence; if two layouts fit, the error names both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from _foreign_hdf5 import blob
from _traps_hdf5 import demonstrations, write
from storeds import open_backend
from storeds.backends import AmbiguousError
from storeds.errors import ConfigError, FormatError, StoredsError
from storeds.layouts.hdf5 import ParallelHdf5, PerEpisodeHdf5, PerFileHdf5, PerSampleHdf5, PerVideoHdf5

CLASSES = {"parallel": ParallelHdf5, "per_sample": PerSampleHdf5, "per_video": PerVideoHdf5}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path_factory.mktemp("cache")))


def fits(path: Path, **options: Any) -> list[str]:
    return [name for name, cls in CLASSES.items() if recognises(cls, path, options)]


def recognises(cls: Any, path: Path, options: Mapping[str, Any]) -> bool:
    try:
        return bool(cls.guess_can_open(str(path), **options))
    except AmbiguousError:
        return True  # in several ways


def test_error_shows_both_layouts_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "series.h5"
    with h5py.File(path, "w") as file:
        for at in range(3):
            file[f"series_{at}"] = np.arange(7.0) + at
    assert "columns" in (ParallelHdf5.guess_can_open(str(path)) or "")
    assert "one a sample" in (PerSampleHdf5.guess_can_open(str(path)) or "")
    with pytest.raises(
        ConfigError, match=r"\n  layout='parallel': 7 records of .*\n  layout='per_sample': 3 records of "
    ):
        open_backend(path)
    assert (len(ParallelHdf5(str(path))), len(PerSampleHdf5(str(path)))) == (7, 3)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_samples_with_boxes_are_recognised_whatever_the_first_has(count: int, encoded: bool, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "boxes.h5", "w") as file:
        for at, rows in enumerate((count, 3, 0)):
            image = np.frombuffer(blob(at), np.uint8) if encoded else np.full((48, 64, 3), at, np.uint8)
            parts = {"image": image, "boxes": np.full((rows, 4), at, "<f4"), "labels": np.full(rows, at)}
            for name, value in parts.items():
                file[f"sample{at}/{name}"] = value
    with open_backend(tmp_path / "boxes.h5") as backend:
        assert backend.meta.layout == "per_sample"
        assert [len(record["labels"]) for record in backend.get_many([0, 1, 2])] == [count, 3, 0]  # type: ignore[index]


def test_groups_of_rows_with_labels_are_no_samples(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "parts.h5", "w") as file:
        for name in ("a", "b"):
            file[f"{name}/image"], file[f"{name}/labels"] = np.zeros((7, 64, 3), np.uint8), np.arange(7)
            file[f"{name}/features"] = np.zeros((7, 5))
    assert PerSampleHdf5.guess_can_open(str(tmp_path / "parts.h5")) is None


DIGITS = (
    r"\n  layout='per_sample', sample='name': 4 records of cat .*, dog .*"
    r"\n  layout='per_sample', sample='dataset': 8 records of array .*, label .*"
    r"\n  layout='per_video': 8 records of array .*, video .*, frame "
)


def test_numbered_pictures_of_one_size_are_ambiguous(tmp_path: Path) -> None:
    path = tmp_path / "digits.h5"
    with h5py.File(path, "w") as file:
        for name in ("cat", "dog"):
            for at in range(4):
                file[f"{name}/{at}"] = np.full((8, 8, 3), at, np.uint8)
    with pytest.raises(ConfigError, match=DIGITS):
        open_backend(path)
    assert PerSampleHdf5(str(path), sample="dataset").column("label").tolist() == [0] * 4 + [1] * 4
    assert PerVideoHdf5(str(path)).column("frame").tolist() == [0, 1, 2, 3] * 2


@pytest.mark.parametrize("prefix", ["", "data/all/"])
@pytest.mark.parametrize("name", ["images", "data", "x"])
def test_rows_in_groups_that_may_be_classes_or_videos_are_ambiguous(tmp_path: Path, name: str, prefix: str) -> None:
    path = tmp_path / "pets.h5"
    rows = {"cat": np.zeros((5, 8, 8, 3), np.uint8), "dog": np.ones((7, 8, 8, 3), np.uint8)}
    with h5py.File(path, "w") as file:
        for group, value in rows.items():
            file[f"{prefix}{group}/{name}"] = value
    with pytest.raises(ConfigError) as raised:
        open_backend(path)
    videos, classes = re.findall(r"\n  (.*?)(?: as the source)?: 12 records", str(raised.value))
    with open_backend(path, **eval(f"dict({videos})")) as backend:
        assert backend.get_many([5], ["video", "frame"]) == [{"video": "dog", "frame": 0}]
    with open_backend(eval(classes)) as backend:
        found: Any = backend.get_many(range(12))
        assert np.array_equal([next(iter(record.values())) for record in found], np.concatenate([*rows.values()]))


def with_attribute(group: h5py.Group) -> None:
    group.attrs["label"] = 1


def with_value(group: h5py.Group) -> None:
    group["label"] = "a word"


@pytest.mark.parametrize(
    ("groups", "name", "describe"),
    [
        (("cat", "dog"), "frames", None),
        (("cat", "dog"), "video", None),
        (("clip_0", "clip_1"), "images", None),
        (("cat", "dog"), "images", with_attribute),
        (("cat", "dog"), "images", with_value),
    ],
)
def test_rows_in_groups_that_can_only_be_videos(
    tmp_path: Path, groups: tuple[str, ...], name: str, describe: Callable[[h5py.Group], None] | None
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group in groups:
            file[f"{group}/{name}"] = np.zeros((5, 8, 8, 3), np.uint8)
            if describe is not None:
                describe(file[group])
    with open_backend(tmp_path / "a.h5") as backend:
        assert backend.get_many([9], ["video", "frame"]) == [{"video": groups[1], "frame": 4}]


FRAMES, SAMPLES = "per_video", "per_sample"


@pytest.mark.parametrize(
    ("layout", "sort", "groups", "names", "sizes"),
    [
        (FRAMES, "named frames", ("cat", "dog"), ("frame_0", "frame_1", "frame_2"), (8, 9, 9)),
        (FRAMES, "in groups named clips", ("clip_0", "clip_1"), ("0", "1", "2"), (8, 8, 8)),
        (FRAMES, "in groups with attributes", ("cat", "dog"), ("0", "1", "2"), (8, 8, 8)),
        (SAMPLES, "in groups named classes", ("class_0", "class_1"), ("0", "1", "2"), (8, 8, 8)),
        (SAMPLES, "of different sizes", ("cat", "dog"), ("0", "1", "2"), (8, 9, 8)),
        (SAMPLES, "not counted in equal steps", ("cat", "dog"), ("3", "4", "17"), (8, 8, 8)),
        (SAMPLES, "with more than numbers in names", ("cat", "dog"), ("n7_0", "n7_1", "n7_2"), (8, 8, 8)),
    ],
)
def test_evidence_for_frames_or_samples(
    tmp_path: Path, layout: str, sort: str, groups: tuple[str, ...], names: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for group in groups:
            for name, size in zip(names, sizes, strict=True):
                file[f"{group}/{name}"] = np.zeros((size, 8, 3), np.uint8)
            if sort.endswith("attributes"):
                file[group].attrs["label"] = 1
    assert fits(path) == [layout]


def numbered(file: h5py.File, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for at in range(3):
        for name, shape in shapes.items():
            file[f"{name}_{at}"] = np.zeros(shape)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"wave": (70,), "label": ()}, ["per_sample"]),  # a column has more than one value
        ({"x": (70, 3), "y": (50, 3)}, ["per_sample"]),  # and columns have equal lengths
        ({"x": (70, 3), "y": (70,)}, ["parallel", "per_sample"]),
    ],
)
def test_evidence_for_numbered_samples_or_columns(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], expected: list[str]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        numbered(file, shapes)
    assert fits(tmp_path / "a.h5") == expected


def test_groups_that_are_stores_are_not_samples(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for subject in range(3):
            file[f"subject_{subject}/x"], file[f"subject_{subject}/y"] = np.zeros((9, 4)), np.zeros(9)
    assert fits(tmp_path / "a.h5") == []
    assert fits(tmp_path / "a.h5", group="subject_1") == ["parallel"]


PICTURE = np.frombuffer(blob(1), "u1")
ONE = np.array([PICTURE], object)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"image": np.zeros((3, 8, 8), "f4"), "label": 1}, ["per_sample"]),  # named an image, whatever its axes
        ({"data": np.zeros((8, 8, 3), "f4"), "label": 1}, ["per_sample"]),  # in colour
        ({"image": ONE, "label": 1}, ["per_sample"]),  # one in each group: no video
        ({"wave": np.zeros(70), "text": "a word"}, ["per_sample"]),
        ({"tom {}.jpg": PICTURE, "rex {}.jpg": PICTURE}, ["per_sample"]),  # classes of pictures, though not numbered
        ({"left.jpg": PICTURE, "right.jpg": PICTURE}, ["per_sample"]),  # the same names in each: samples of two
        ({"frames": np.zeros((5, 8, 8, 3), "u1"), "label": 1}, ["per_video"]),
        ({"frame_0/image": PICTURE, "frame_1/image": PICTURE}, []),  # videos of a sort that no layout reads
        ({"v/frames": np.zeros((5, 8, 8, 3), "u1"), "w/frames": np.zeros((4, 8, 8, 3), "u1")}, []),
    ],
)
def test_evidence_in_groups(tmp_path: Path, names: dict[str, Any], expected: list[str]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for group in ("a", "b", "c"):
            for template, value in names.items():
                name = template.format(group)
                if value is ONE:
                    file.create_dataset(f"{group}/{name}", (1,), h5py.vlen_dtype("u1"))[0] = PICTURE
                else:
                    file[f"{group}/{name}"] = value
    assert fits(tmp_path / "a.h5") == expected


def test_bytes_of_one_picture_are_not_a_column(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["image"], file["label"] = PICTURE, 1
    assert fits(tmp_path / "a.h5") == []


def test_single_values_beside_frames_are_fields_of_the_video(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            file[f"v{number}/frames"] = np.zeros((2 + number, 8, 8, 3), "u1")
            file[f"v{number}/label"], file[f"v{number}/caption"] = number, f"№ {number}"
    with open_backend(tmp_path / "a.h5") as backend:
        assert isinstance(backend, PerVideoHdf5)
        assert backend.column("label").tolist() == [0, 0, 1, 1, 1]
        assert list(backend.column("caption")) == ["№ 0"] * 2 + ["№ 1"] * 3


def test_attributes_of_libraries_are_not_fields(tmp_path: Path) -> None:
    tables: Any = pytest.importorskip("tables")
    with tables.open_file(str(tmp_path / "a.h5"), "w") as file:
        for name, wider in (("cat", 1), ("dog", 2)):
            for at in range(3):
                file.create_array(f"/{name}", f"n{at}", np.zeros((4, 4 + at * wider)), createparents=True)
    with open_backend(tmp_path / "a.h5") as backend:
        assert (backend.meta.layout, list(backend.meta.fields)) == ("per_sample", ["array", "label", "key"])


def test_no_layout_fits_a_native_store(tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/native.h5"
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    (tmp_path / "no.h5").write_bytes(b"neither")
    for cls in CLASSES.values():
        assert cls.guess_can_open(url) is None
        assert cls.guess_can_open(str(tmp_path / "no.h5")) is None
        assert cls.guess_can_open(str(tmp_path / "absent.h5")) is None
        assert cls.guess_can_open(url, columns=3, nothing="x") is None


def array(*shape: int, dtype: str = "f4") -> Any:
    return np.zeros(shape, dtype)


ROWS, FILE, EITHER = ["parallel"], ["per_file"], ["parallel", "per_file"]
NEITHER: list[str] = []


@pytest.mark.parametrize(
    ("expected", "datasets"),
    [
        (ROWS, {"x": array(60, 784, dtype="u1"), "y": array(60, dtype="u1")}),
        (ROWS, {"image": array(600, 784, dtype="u1"), "label": array(600)}),  # flat pictures, a label for each
        (ROWS, {"image": array(240, 240), "label": array(240, 1)}),
        (ROWS, {"data": array(48, 2048, 3), "label": array(48, 1), "normal": array(48, 2048, 3)}),  # ModelNet40
        (ROWS, {"data": array(50, 512, 9), "label": array(50, 512, dtype="u1")}),  # S3DIS
        (ROWS, {"sen1": array(20, 32, 32, 8), "sen2": array(20, 32, 32, 10), "label": array(20, 17)}),  # So2Sat
        (ROWS, {"image": array(20, 64, 64, 3, dtype="u1"), "mask": array(20, 64, 64, dtype="u1")}),
        (ROWS, {"images": array(30, 28, 28), "masks": array(30, 28, 28)}),
        (ROWS, {"data": array(100, 1, 33, 33), "label": array(100, 1, 21, 21)}),  # SRCNN
        (ROWS, {"features": array(500, 512), "coords": array(500, 2)}),  # CLAM
        (ROWS, {"embeddings": array(512, 512)}),
        (ROWS, {"qpos": array(40, 14), "action": array(40, 14)}),
        (ROWS, {"x": array(3, 8, 8, 3, dtype="u1")}),
        (FILE, {"image": array(256, 216), "label": array(256, 216, dtype="u1")}),  # ACDC
        (FILE, {"image": array(8, 8), "mask": array(8, 8)}),
        (FILE, {"rgb": array(3, 48, 64, dtype="u1"), "depth": array(48, 64)}),  # NYU Depth, for FastDepth
        (FILE, {"rgb": array(48, 64, 3, dtype="u1"), "depth": array(48, 64), "K": array(3, 3)}),
        (FILE, {"data": array(30, 40, 3, dtype="u1")}),
        (FILE, {"lr": array(8, 8, 3, dtype="u1"), "hr": array(32, 32, 3, dtype="u1")}),
        (FILE, {"x": array(48, 64), "y": 3}),
        (FILE, {"image": PICTURE, "mask": PICTURE}),
        (FILE, {"image": np.void(blob(1)), "label": 1}),
        (EITHER, {"x": array(240, 240), "y": array(240, 240)}),
        (EITHER, {"image": array(48, 64, 64), "label": array(48, 64, 64)}),  # a volume, or slices of one
        (EITHER, {"image": array(24, 24, 15, 4), "mask": array(24, 24, 15)}),  # four modalities
        (EITHER, {"features": array(500, 512), "coords": array(500, 2), "label": 1}),  # rows would leave the label out
        (EITHER, {"wave": array(700), "label": 1}),
        (NEITHER, {"image": array(500, 784), "label": array(499)}),  # damaged columns, rather than one sample
        (NEITHER, {"mean": 1.0, "std": 2.0}),
    ],
)
def test_evidence_for_rows_or_one_sample(tmp_path: Path, expected: list[str], datasets: dict[str, Any]) -> None:
    path = write(tmp_path / "a.h5", datasets)
    found = []
    for name, cls in {**CLASSES, "per_file": PerFileHdf5, "per_episode": PerEpisodeHdf5}.items():
        try:
            found += [name] if recognises(cls, path, {}) else []
        except FormatError:
            assert expected == NEITHER
    assert sorted(found) == expected
    if "parallel" in found and ParallelHdf5.rules_out_others(str(path)):
        assert found == ["parallel"]


def test_plain_columns_open_the_file_once_and_ask_no_other_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.h5", {"data": array(60, 784), "label": array(60)})
    opened: list[str] = []
    open_file = os.open

    def note(name: Any, *args: Any, **options: Any) -> int:
        opened.append(str(name))
        return open_file(name, *args, **options)

    def guess(*_: object, **__: object) -> None:
        raise AssertionError("asked although the columns are certain")

    monkeypatch.setattr(os, "open", note)
    for cls in (PerEpisodeHdf5, PerFileHdf5, PerSampleHdf5, PerVideoHdf5):
        monkeypatch.setattr(cls, "guess_can_open", guess)
    with open_backend(path) as backend:
        assert opened.count(str(path)) == 1
        assert backend.meta.layout == "parallel"


@pytest.mark.parametrize(
    ("expected", "low", "high", "sizes"),
    [
        ("name", "low_res", "high_res", [((8, 8), (8, 8))] * 4),  # names that fields have
        ("name", "p", "q", [((8, 6), (16, 12)), ((8, 6), (16, 12)), ((9, 6), (18, 12))]),  # one factor
        ("name", "p", "q", [((8, 6), (8, 6)), ((9, 6), (9, 6)), ((10, 6), (10, 6))]),  # sizes that agree
        ("dataset", "p", "q", [((8, 6), (9, 7)), ((8, 7), (12, 6)), ((9, 6), (4, 4))]),
        (None, "p", "q", [((8, 8), (8, 8))] * 3),
    ],
)
@pytest.mark.parametrize("place", ["{part}/pic{at}a", "{part}_{at}"])
def test_evidence_for_pairs_or_samples(
    tmp_path: Path, expected: str | None, low: str, high: str, sizes: list[Any], place: str
) -> None:
    names: dict[str, Any] = {}
    for at, pair in enumerate(sizes):
        for part, size in zip((low, high), pair, strict=True):
            names[place.format(part=part, at=at)] = array(*size, 3, dtype="u1")
    path = write(tmp_path / "a.h5", names)
    if expected is None:
        with pytest.raises(ConfigError, match=r"sample='name'.*\n.*sample='dataset'"):
            PerSampleHdf5(str(path))
        return
    store = PerSampleHdf5(str(path))
    assert len(store) == (len(sizes) if expected == "name" else 2 * len(sizes))
    assert store.meta == PerSampleHdf5(str(path), sample=expected).meta


def test_sample_option_decides(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.h5", {f"g{at}/{name}": np.void(blob(at)) for at in range(4) for name in ("ab", "cd", "ef")}
    )
    counts = {sample: len(PerSampleHdf5(str(path), sample=sample)) for sample in ("dataset", "group", "name")}
    assert counts == {"dataset": 12, "group": 4, "name": 3}


def test_columns_repeat_single_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"x": np.arange(5), "label": 3, "task": "lift"})
    with ParallelHdf5(str(path), columns={"x": "x", "label": "label", "task": "task"}) as store:
        assert store.column("label").tolist() == [3] * 5
        assert store.get_many([4]) == [{"x": 4, "label": 3, "task": "lift"}]
        assert store.unread() == []


def test_columns_of_different_lengths_suggest_those_that_agree(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"in/depths": array(14, 6), "in/labels": array(14), "in/names": array(3)})
    with pytest.raises(StoredsError) as raised:
        open_backend(path)
    columns = {"in_depths": "in/depths", "in_labels": "in/labels"}
    assert f"columns={columns};" in str(raised.value)
    assert len(open_backend(path, columns=columns)) == 14


def test_circular_group_links_are_walked_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["obs/y"] = np.arange(5), array(5, 2)
        file["obs/again"] = h5py.SoftLink("/")
        file["obs/up"] = h5py.SoftLink("/obs")
    with open_backend(tmp_path / "a.h5") as store:
        assert list(store.meta.fields) == ["x", "obs_y"]


def test_unreadable_nested_datasets_are_listed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["obs/y"] = np.arange(5), array(5, 2)
        file["obs/gone"] = h5py.ExternalLink("gone.h5", "/x")
        file.create_dataset("obs/mixed", (5,), np.dtype([("n", "i4"), ("s", h5py.string_dtype())]))
    with open_backend(tmp_path / "a.h5") as store:
        assert list(store.meta.fields) == ["x", "obs_y"]
        gone, mixed = sorted(store.unread())  # type: ignore[attr-defined]
        assert gone.startswith("obs/gone (the external link /obs/gone leads to ")
        assert mixed.startswith("obs/mixed (a table [5]: of a type that no field holds")


def test_unread_datasets_of_videos_and_samples_are_listed(tmp_path: Path) -> None:
    videos = {
        f"v{at}/{name}": value
        for at in range(3)
        for name, value in (("frames", array(9, 8, 8, 3)), ("cuts", array(2, 2)))
    }
    assert open_backend(write(tmp_path / "v.h5", videos)).unread() == [  # type: ignore[attr-defined]
        "cuts (float32 [2, 2]: not one value for each frame, in 'v0')"
    ]
    samples: dict[str, Any] = {
        f"s{at}/{name}": value for at in range(9) for name, value in (("image", array(8, 8, 3)), ("label", at))
    }
    assert open_backend(write(tmp_path / "s.h5", {**samples, "s5/note": 1})).unread() == [  # type: ignore[attr-defined]
        "note (int64 []: in 1 of 9 groups inspected)"
    ]


def test_inconsistent_demonstrations_are_errors(tmp_path: Path) -> None:
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/lost"] = np.array(["demo_7"], dtype="S")
        file["data/demo_0/whole"] = array(3)
    assert PerEpisodeHdf5(str(path)).unread() == ["whole (float32 [3]: not one row for each of 9 steps, in demo_0)"]
    with pytest.raises(FormatError, match="mask 'lost' lists 'demo_7', which /data lacks"):
        PerEpisodeHdf5(str(path), mask="lost")
    with h5py.File(path, "a") as file:
        del file["data/demo_1/rewards"]
        file["data/demo_1/rewards"] = array(4)
    with pytest.raises(FormatError, match=r"demo_1 has 11 actions, and rewards of shape \(4,\)"):
        PerEpisodeHdf5(str(path))


def test_error_shows_what_named_layouts_would_return(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {f"video_{n}/features": np.full((10 + n, 64), n, "f4") for n in range(6)})
    shown = r"\n  layout='per_sample': 6 records of features .*, key .*"
    with pytest.raises(FormatError, match=rf"(?s)\nA layout that is named reads it as:.*{shown}\nTo convert"):
        open_backend(path)
    with open_backend(path, layout="per_sample") as named:
        assert (len(named), named.get_many([5], ["key"])) == (6, [{"key": "video_5"}])
