"""HDF5 files of other tools: what a pattern reads, what is certain, links and damage; everything else is a clear error."""

from __future__ import annotations

import os
import pickle
import random
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from _foreign_hdf5 import HDF5, blob, pixels, video_jpegs, video_numbered, vlen_jpeg, write
from _layout_case import lines_of
from shares import FULL
from storeds import StoreDataset, open_backend
from storeds.errors import ConfigError, FormatError, RecordError, StoredsError, UnavailableError
from storeds.layouts.hdf5.files import Address, ForeignOptions, Hdf5Files

Arrays = dict[str, Any]
PICTURE = np.frombuffer(blob(1), "u1")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STOREDS_CACHE", str(folder))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store" / "a.h5"


def array(*shape: int, dtype: str = "f4") -> Any:
    return np.zeros(shape, dtype)


TABLE = np.array([(1, b"a"), (2, b"b")], [("n", "i4"), ("word", "S2")])
CLIPS = {f"v/{at}/{name}": rows for at in "ab" for name, rows in (("t", TABLE), ("frames", pixels(2)))}
BRACES = {"{a}/x}y": np.arange(4), "{a}/z": array(4, 2)}

# The datasets, the arguments, a position, and some fields of the record there.
READ: list[tuple[dict[str, Any], dict[str, Any], int, dict[str, Any]]] = [
    (BRACES, {"columns": {"x": "{{a}}/x}}y[]"}}, 3, {"x": 3}),
    (BRACES, {}, 2, {"x_y": 2}),
    (
        {"x": np.arange(5), "label": 3, "task": "lift"},
        {"columns": {"x": "x[]", "label": "label", "task": "task", "fps": "@fps"}},
        4,
        {"x": 4, "label": 3, "task": "lift", "fps": 25},
    ),
    ({"t": TABLE}, {"columns": {"n": "t/n[]", "word": "t/word[]"}}, 1, {"n": 2, "word": "b"}),
    (CLIPS, {"group": "v"}, 3, {"t_n": 2, "t_word": "b", "video": "b", "frame": 1}),
    (
        {f"{name}/{at}": at for at in range(3) for name in "xy"},
        {"columns": {"x": "x/{}", "y": "y/{}"}},
        1,
        {"x": 1, "y": 1},
    ),
    ({f"g/{at}": at for at in range(100)}, {"layout": "per_file"}, 0, {"f99": 99}),  # and not the first 64
    ({"1": 1, "12345678901234567890": 2}, {"columns": {"x": "{number}"}}, 1, {"number": "12345678901234567890"}),
]


@pytest.mark.parametrize(("datasets", "arguments", "position", "record"), READ)
def test_a_pattern_reads(path: Path, datasets: Arrays, arguments: Arrays, position: int, record: Arrays) -> None:
    write(path, {**datasets, "@fps": 25})
    store: Any = open_backend(path, **arguments)
    assert store.get_many([position], list(record)) == [record]


CASES_DIFFER = {"T": array(3, 2), "t": np.arange(3), "t_2": np.arange(3) + 5}
CLIENTS = {
    f"c/f{at}/{name}": rows
    for at in range(3)
    for name, rows in (("label", np.arange(2) + 9), ("pixels", array(2, 4, 4)))
}
VIDEO_NAMES = {"v/array": array(3, 2), "v/frame": np.arange(3) + 7, "v/Step": np.arange(3)}
UNITS = {"a": array(2), "b": array(2), "a@unit": "m", "b@unit": "s", "@unit": "?", "b@only": 1}

# The datasets, the arguments, and field → its place, as `storeds info` shows it.
NAMED: list[tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = [
    (CASES_DIFFER, {"layout": "parallel"}, {"t": "t[]", "t_2": "t_2[]", "t_3": "T[]"}),
    ({"a/b": array(2, 3), "a_b": np.arange(2)}, {}, {"a_b": "a_b[]", "a_b_2": "a/b[]"}),
    (
        VIDEO_NAMES,
        {"columns": {"*": "{video}/**[]"}},
        {"array": "{video}/array[]", "frame": "{video}/frame[]", "step": "{video}/Step[]"},
    ),
    ({"v/Frame": np.arange(3)}, {"columns": {"*": "{video}/**[]"}}, {"frame_2": "{video}/Frame[]"}),
    (
        UNITS,
        {"columns": {"*": "**", "@": "**"}},
        {"a": "a", "b": "b", "unit": "@unit", "a_unit": "a@unit", "b_unit": "b@unit", "only": "b@only"},
    ),
    (CASES_DIFFER, {"columns": {"*": "**[]", "t": "t_2[]"}}, {"t": "t_2[]", "t_2": "t[]", "t_3": "T[]"}),
    ({"key": array(2), "Key": array(3)}, {"layout": "per_file"}, {"key": "key", "key_2": "Key"}),
]


class TestNames:
    """No name hides another one, and a stored name that is a field's name stays as it is."""

    @pytest.mark.parametrize(("datasets", "arguments", "where"), NAMED)
    def test_are_distinct_and_exact(
        self, path: Path, datasets: Arrays, arguments: Arrays, where: dict[str, str]
    ) -> None:
        write(path, datasets)
        store: Any = open_backend(path, **arguments)
        assert store.describe().settings["where"] == where
        with h5py.File(path) as file:
            for name, place in where.items():
                text, _, attribute = place.format(video="v").partition("@")
                stored = file[text.removesuffix("[]") or "/"]
                value = stored.attrs[attribute] if attribute else stored[0] if "[]" in place else stored[()]
                assert np.array_equal(store.get_many([0])[0][name], value)


class TestDatasets:
    """What users see of foreign files through StoreDataset."""

    def test_pictures_with_labels_open_by_name(self, path: Path) -> None:
        write(path, {"images": pixels(), "labels": np.arange(12) % 3})
        store: Any = open_backend(path)
        assert store.meta.fields["images"].role == "image"
        dataset: Any = StoreDataset(path, reader="array")
        image, label = dataset[7]
        assert (image.shape, label) == ((16, 24, 3), 1)

    @pytest.mark.parametrize(
        ("name", "shape", "dtype", "is_image"),
        [
            ("img", (9, 8, 8, 4), "u1", True),
            ("x", (9, 8, 8, 3), "u1", False),
            ("image", (9, 3, 8, 8), "u1", False),
            ("images", (9, 8, 8, 3), "f4", False),
            ("IMAGES", (9, 8, 8, 1), "u1", True),
        ],
    )
    def test_only_literal_names_are_images(
        self, path: Path, name: str, shape: tuple[int, ...], dtype: str, is_image: bool
    ) -> None:
        write(path, {name: array(*shape, dtype=dtype), "label": np.arange(9)})
        assert (open_backend(path).meta.fields[name.lower()].role == "image") is is_image

    def test_columns_come_from_urls_and_configs(self, path: Path) -> None:
        write(path, {"train/x": np.arange(5), "train/y": np.arange(5), "test/x": np.arange(3)})
        table = {"url": str(path), "reader": "array", "columns": {"x": "train/x[]"}}
        stores: list[Any] = [
            open_backend(f"{path}?columns=x:train/x[]"),
            open_backend(path, columns="x:x[]", group="train"),
            StoreDataset(path, columns={"x": "train/x[]"}, reader="array").backend,
            StoreDataset(storeds.DatasetSettings.parse(table)).backend,
        ]
        assert [store.column("x").tolist() for store in stores] == [[0, 1, 2, 3, 4]] * 4

    def test_a_series_may_lie_in_another_file(self, path: Path) -> None:
        write(path, {f"{at}/x": at for at in range(3)})
        write(path.with_name("y.h5"), {f"g/{at}": 10 * at for at in range(3)})
        store: Any = open_backend(path, columns={"y": "y.h5::g/{}", "x": "{}/x"})
        assert store.get_many([2]) == [{"y": 20, "x": 2, "key": "2"}]
        assert open_backend(path, columns={"*": "y.h5::g/{}"}).get_many([2]) == [{"value": 20, "key": "2"}]


# What opens without arguments, and what never does: (layout or None, the datasets).
CERTAIN: list[tuple[str | None, dict[str, Any]]] = [
    ("parallel", {"x": array(60, 784, dtype="u1"), "y": array(60, dtype="u1")}),
    ("parallel", {"image": array(240, 240), "label": array(240, 1)}),
    ("parallel", {"x": np.arange(5), "obs/y": array(5, 2)}),
    ("parallel", {"words": np.array([b"a", b"b"]), "classes": [b"cat", b"dog", b"emu"]}),
    ("per_video", {f"{name}/frames": array(5, 8, 8, 3, dtype="u1") for name in ("cat", "dog")}),
    (None, {"x": array(240, 240), "y": array(240, 240)}),
    (None, {"image": PICTURE, "label": 1}),
    (None, {"image": array(500, 784), "label": array(499)}),
    (None, {f"x_{at}": array(7, at + 1) for at in range(3)}),
    (None, {f"{name}/{at}": array(8, 8, 3, dtype="u1") for name in ("cat", "dog") for at in range(4)}),
    (None, {f"{name}/v_{at}": array(5 + at, 16) for name in ("rgb", "flow") for at in range(5)}),
]


class TestCertain:
    """Only a structure with one meaning opens without arguments."""

    @pytest.mark.parametrize(("layout", "datasets"), CERTAIN)
    def test_else_an_error_shows_every_reading(self, path: Path, layout: str | None, datasets: Arrays) -> None:
        write(path, datasets)
        if layout is not None:
            assert open_backend(path).meta.layout == layout
            return
        with pytest.raises(ConfigError, match="cannot tell what a record is. It holds:\n  ") as raised:
            open_backend(path)
        lines_of(raised.value)

    def test_lines_of_classes_and_of_videos(self, path: Path) -> None:
        rows = {"cat": pixels(5), "dog": pixels(7)}
        write(path, {f"data/{{all}}/{name}/images": value for name, value in rows.items()})
        with pytest.raises(ConfigError) as raised:
            open_backend(path)
        stores: list[Any] = [open_backend(path, **given) for given in lines_of(raised.value)]
        classes, videos = stores[:2]
        assert classes.get_many([5], ["label"]) == [{"label": 1}]
        assert classes.meta.attrs["classes"] == ["cat", "dog"]
        assert videos.get_many([5], ["video", "frame"]) == [{"video": "dog", "frame": 0}]
        found = [record["images"] for record in videos.get_many(range(12))]
        assert np.array_equal(found, np.concatenate([*rows.values()]))

    @pytest.mark.share(15)
    @pytest.mark.parametrize("seed", range(60))
    def test_every_line_opens_and_keeps_the_names(self, seed: int, path: Path) -> None:
        """Nobody planned these names, which patterns and layouts use too, and values of any type and length."""
        draw = random.Random(seed)
        names = ["T", "t", "t_2", "label", "Label", "key", "video", "frame", "image", "frame_0", "frame_1"]
        names += ["{a}", "b@c", "d[]", "e::f", "**", "3d", "µ", "x y"]
        dtypes = ["u1", "<f4", ">i2", "?", "S3", TABLE.dtype, h5py.ref_dtype, MIXED, h5py.string_dtype()]
        groups = draw.choice([[""], [f"{at}/" for at in "abc"], ["g/a/", "g/b/"], ["train/", "test/"]])
        length = draw.choice([3, 5])
        with h5py.File(path, "w") as file:
            for name in draw.sample(names, draw.randint(1, 5)):
                dtype = draw.choice(dtypes)
                shape = (draw.choice([length, length, length, 4, 9]), *draw.choice([(), (2,), (8, 8, 3)]))
                for group in groups:
                    if draw.random() < 0.1:
                        file.require_group(group or "/").create_dataset(name, data=EMPTY)
                    else:
                        file.require_group(group or "/").create_dataset(name, shape, dtype)
                    file[group or "/"].attrs[draw.choice(["unit", "label", "key"])] = 1
        try:
            store: Any = open_backend(path)
            ways: list[dict[str, Any]] = [{}]
        except StoredsError as error:
            ways = lines_of(error, 0)
        for given in ways:
            store = open_backend(path, **given)
            for field, place in store.describe().settings["where"].items():
                stored = place.removesuffix("[]").rpartition("/")[2].rpartition("@")[2]
                assert field == stored or stored not in store.meta.fields or "/" in place or "@" in place

    def test_a_folder_of_files_names_the_pattern(self, path: Path) -> None:
        write(path, {"x": np.arange(3)})
        with pytest.raises(StoredsError, match=re.escape(f"{path.parent}/*.h5")):
            open_backend(path.parent)


COLUMNS = {"x": array(5, 2), "y": np.arange(4), "g/x": array(5), "single": 3.0}
STRINGS = np.array([[b"a", b"b"]] * 3)
MIXED = np.dtype([("n", "i4"), ("s", h5py.string_dtype())])
GROUPS = {f"s_{at}/{name}": at for at in range(3) for name in ("x", "y")}
VIDEOS = {"a/frames": pixels(2), "a/time": np.arange(2), "b/frames": pixels(3), "b/time": np.arange(2)}

# (datasets, arguments, words of the message)
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (COLUMNS, {"columns": {"a": "x[]", "b": "y[]"}}, "y.. has 4 rows, and others 5; columns= names datasets of one"),
    (COLUMNS, {"columns": {"a": "xx[]"}}, "has no 'xx'; did you mean 'x'"),
    (COLUMNS, {"columns": {"a": "g[]"}}, "'g..' is a group; it holds x"),
    (COLUMNS, {"columns": {"a": "single[]"}}, "single has no rows; leave out .."),
    (COLUMNS, {"columns": {"a": "x[]", "b": "single@unit"}}, "no attribute 'unit'"),
    (COLUMNS, {"columns": {"a": "other.h5::x[]"}}, "other.h5, which is missing"),
    (COLUMNS, {"columns": {"a": "x[].b"}}, "nothing follows"),
    (COLUMNS, {"columns": {"a": "x[]", "*": "x@unit"}}, "takes several values"),
    (COLUMNS, {"columns": {"a": "x[]", "@": "x[]"}}, "attributes have no rows"),
    (COLUMNS, {"layout": "pcam"}, "_x.h5"),
    (COLUMNS, {"frames": "x"}, "unknown option 'frames'"),
    (VIDEOS, {"layout": "per_video"}, "differ in their number of rows: /b/frames has 3, /b/time has 2"),
    ({**VIDEOS, "b/time": array(3, 2)}, {"layout": "per_video"}, "b/time holds float32 .3, 2., unlike field 'time'"),
    ({"x": np.arange(3), "y": STRINGS}, {"columns": {"x": "y/a[]"}}, "is not a table"),
    ({"t": np.zeros(3, [("a", "i4")])}, {"columns": {"x": "t[]"}}, "a table; name a column: t/a"),
    ({}, {}, "It holds: nothing"),
    ({"mean": 1.0}, {"layout": "parallel"}, "no field can hold what is at"),
    (dict.fromkeys(map(str, range(1024)), 1), {"layout": "per_file"}, "holds 1,024 datasets or more"),
    (COLUMNS, {"columns": {"a": {"path": "x[]", "kind": "image"}}}, "declares image, but HDF5 datasets have types"),
    (CLIENTS, {"columns": {"*": "c/{label}/**[]"}}, "{label} would take the name of the stored 'label'; give the"),
    ({"a/Label": 1, "b/Label": 2}, {"columns": {"*": "{label}/**"}}, "{label} would take the name of the stored 'La"),
    ({"a/x": 1, "a@key": "?"}, {"columns": {"*": "{}/**", "@": "{}"}}, "{} would take the name of the stored 'key'"),
]


MOLECULES = {"x": "{formula}/x[]", "y": "{formula}/y[]", "z": "{formula}/z", "grid": "grid"}
"""Conformers of a molecule with the numbers of its atoms, as ANI-1x has them, and a grid of the whole file."""


class TestShared:
    """Arrays that a group, or the file, shares are a field of each of its records."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for formula, conformers, atoms in (("CH4", 4, 5), ("H2O", 6, 3)):
                file[f"{formula}/x"] = np.random.default_rng(atoms).random((conformers, atoms, 3), np.float32)
                file[f"{formula}/y"] = np.arange(conformers) * 1.5
                file[f"{formula}/z"] = np.arange(atoms, dtype=np.uint8) + atoms
            file["grid"] = np.linspace(0, 1, 7)
        return tmp_path / "a.h5"

    def truth(self, path: Path) -> list[dict[str, Any]]:
        with h5py.File(path) as file:
            return [
                {"x": group["x"][row], "y": group["y"][row], "z": group["z"][()], "grid": file["grid"][()]}
                for group in (file["CH4"], file["H2O"])
                for row in range(len(group["y"]))
            ]

    def test_each_record_has_its_own_copy_in_any_order_and_in_workers(self, path: Path) -> None:
        truth, order = self.truth(path), [9, 0, 4, 3, 9, 5]
        with open_backend(path, columns=MOLECULES) as backend:
            for copy in (backend, pickle.loads(pickle.dumps(backend))):
                records: list[Any] = copy.get_many(order, [*MOLECULES])
                for at, record in zip(order, records, strict=True):
                    assert {name: np.asarray(value).tolist() for name, value in record.items()} == {
                        name: value.tolist() for name, value in truth[at].items()
                    }
                records[0]["z"][:] = 0
                records[0]["grid"][:] = 2
                assert records[4]["z"].tolist() == records[5]["z"].tolist() == truth[5]["z"].tolist()
                assert records[4]["grid"].tolist() == truth[0]["grid"].tolist()
        dataset = StoreDataset(path, reader="array", fields=["x", "z"], as_dict=True, columns=MOLECULES)
        loader = storeds.StoreLoader(dataset, batch_size=3, num_workers=2, ragged={"x": "list", "z": "list"})
        assert [z.tolist() for batch in loader for z in batch["z"]] == [each["z"].tolist() for each in truth]


class TestRefused:
    """Each error names the place and what to do."""

    @pytest.mark.parametrize(("datasets", "arguments", "words"), REFUSED)
    def test_arguments(self, path: Path, datasets: Arrays, arguments: Arrays, words: str) -> None:
        write(path, datasets)
        with pytest.raises((ConfigError, FormatError), match=words):
            open_backend(path, **arguments)

    def test_types_without_a_numpy_dtype(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            h5py.h5d.create(file.id, b"time", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))
            file["good"] = np.arange(3)
        with pytest.raises(FormatError, match=r"/time is of a type that NumPy lacks: .*; columns= names"):
            open_backend(path)
        assert len(open_backend(path, columns={"x": "good[]"})) == 3


class TestLargeGroups:
    """The type of every member of a group counts, however many there are."""

    ODD = "#1", "0007_names", "2", "_i_x", "~"

    def test_of_datasets_may_hold_a_group_and_a_type(self, path: Path) -> None:
        write(path, {f"g/{at:04}": at for at in range(1_100)} | {f"g/{odd}/y": 1 for odd in self.ODD})
        with h5py.File(path, "a") as file:
            file["g/type"] = np.dtype("i4")
        store: Any = open_backend(path, columns={"x": "g/{}"})
        assert store.column("x").tolist() == [*range(1_100)]
        assert sorted(store.unread()) == [f"g/{odd}/y (int64 [])" for odd in self.ODD]

    def test_of_groups_may_hold_a_dataset(self, path: Path) -> None:
        write(path, {f"{at:04}/x": np.arange(2) for at in range(1_100)} | dict.fromkeys(self.ODD, np.arange(3)))
        store: Any = open_backend(path, columns={"x": "{label}/x[]"})
        assert (len(store), len(store.meta.attrs["classes"])) == (2_200, 1_100)
        assert sorted(store.unread()) == [f"{odd} (int64 [3])" for odd in self.ODD]


def steps(**more: Any) -> dict[str, Any]:
    """Return two demonstrations, and `more` datasets of each by its number of steps."""
    values = {name.replace("__", "/"): value for name, value in more.items()}
    each = {f"{at}/{name}": array(4 + n, 2) for n, at in enumerate(("d_1", "d_2")) for name in ("w", "x")}
    return each | {
        f"{at}/{name}": value(4 + n) for n, at in enumerate(("d_1", "d_2")) for name, value in values.items()
    }


WORDS = np.zeros((5, 2), [("a", "f4"), ("b", "?")])
PARTLY = np.zeros(5, [("n", "i4"), ("s", "S3", (2,)), ("one", "S3", (1,))])
COLUMN = {"x": np.arange(5), "y": array(5, 2)}
EPISODES = {"*": "{episode}/**[]"}
SAMPLES = {"*": "{}/**"}
PACKED = {"data": np.array([[10, -9], [20, 30]], "i2")}
EMPTY = h5py.Empty("f4")

# The datasets, the arguments, words of the message, and the fields of the line to paste.
LOST: list[tuple[dict[str, Any], dict[str, Any], str, list[str]]] = [
    ({**COLUMN, "t": WORDS}, {}, "t (dataset /t is of a type that no field holds", ["x", "y"]),
    ({**COLUMN, "t": PARTLY}, {}, "t/s (column 's' of dataset /t is of a type", ["t_n", "t_one", "x", "y"]),
    (
        steps(obs=lambda n: array(n + 1, 3)),
        {"columns": EPISODES},
        "obs (it has 5 rows, and others 4; the place '{episode}/obs' gives each record all of them)",
        ["w", "x"],
    ),
    (steps(all=lambda n: np.void(b"abc")), {"columns": EPISODES}, "all (one value for all rows", ["w", "x"]),
    (steps(words=lambda n: STRINGS), {"columns": SAMPLES}, "words (dataset /d_1/words is of a type", ["w", "x"]),
    (
        steps(y=lambda n: array(*[2] * (n - 3))),
        {"columns": SAMPLES},
        "y (/d_1/y and /d_2/y are not samples of the same",
        ["w", "x"],
    ),
    ({"a": 1, "b": STRINGS}, {"layout": "per_file"}, "b (dataset /b is of a type that no field holds", ["a"]),
    (
        {"t": PACKED, "t@scale_factor": 0.1, "n": np.arange(2)},
        {},
        "t (its scale_factor would not be applied)",
        ["n", "t"],
    ),
    ({"t": PACKED, "t@_FillValue": np.int16(-9)}, {"layout": "parallel"}, "t (its _FillValue would", ["t"]),
    (
        steps(t=lambda n: np.arange(n)) | {"d_1/t@add_offset": 1.0},
        {"columns": EPISODES},
        "t (its add_offset",
        ["t", "w", "x"],
    ),
]


class TestLoss:
    """What has the length of the others, or is in every group, is read, or opening is an error with a line that accepts it."""

    @pytest.mark.parametrize(("datasets", "arguments", "words", "fields"), LOST)
    def test_is_an_error_that_names_it_and_the_rest(
        self,
        path: Path,
        datasets: Arrays,
        arguments: Arrays,
        words: str,
        fields: list[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        write(path, datasets)
        with pytest.raises(ConfigError, match=re.escape(f'"*" cannot read all of each record: {words}')) as raised:
            open_backend(path, **arguments)
        (given,) = lines_of(raised.value)
        assert sorted(given["columns"]) == fields
        store: Any = open_backend(path, **given)
        assert not any(isinstance(record, RecordError) for record in store.get_many(range(len(store))))
        left = words.partition(" ")[0]
        assert any(left in entry for entry in store.unread())
        assert left in caplog.text

    @pytest.mark.parametrize(("kind", "columns"), [("virtual", EPISODES), ("type", SAMPLES), ("link", EPISODES)])
    def test_of_what_cannot_be_opened_is_an_error(self, path: Path, kind: str, columns: dict[str, str]) -> None:
        write(path, {f"{at}/x": np.arange(3) for at in "ab"})
        with h5py.File(path, "a") as file:
            for group in (file.create_group(f"{at}/g") for at in "ab"):
                if kind == "link":
                    group["y"] = h5py.ExternalLink("gone.h5", "/x")
                elif kind == "virtual":
                    group.create_virtual_dataset("y", h5py.VirtualLayout((3,), "i8"))
                else:
                    h5py.h5d.create(group.id, b"y", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))
        with pytest.raises(ConfigError, match=r"cannot read all of each record: g/y \(") as raised:
            open_backend(path, columns=columns)
        (given,) = lines_of(raised.value)
        assert [*given["columns"]] == ["x"]

    def test_in_some_groups_is_reported(self, path: Path) -> None:
        write(path, {**steps(), "d_1/t": array(9, 2), "d_2/n": 1, "d_2/u": STRINGS})
        store: Any = open_backend(path, columns=EPISODES)
        assert store.unread() == ["d_1/t (float32 [9, 2])", "d_2/n (int64 [])", "d_2/u (text [3, 2])"]

    @pytest.mark.parametrize("missing", [5, 6])
    def test_a_null_dataspace_has_no_value(self, path: Path, missing: int) -> None:
        write(path, {f"{at}/{name}": EMPTY if name == "y" and at < missing else at for at in range(6) for name in "xy"})
        store: Any = open_backend(path, layout="per_sample")
        if missing == 6:
            assert store.unread()[0] == "0/y (float32 nothing)"
            assert store.get_many([0]) == [{"x": 0, "key": "0"}]
            with pytest.raises(FormatError, match=r"0/y has no value, only a type \(a null dataspace\)"):
                open_backend(path, columns={"y": "{}/y"})
            return
        assert store.unread() == []
        assert "0/y has no value, only a type (a null dataspace)" in fault(store, 0)
        assert store.get_many([5], ["y"]) == [{"y": 5}]


CLIP = {"a/frames": pixels(2), "a/time": np.arange(2), "b/frames": pixels(3)[:0], "b/time": np.arange(0)}
CUTS = {"c/frames": pixels(1), "c/time": np.arange(1), "c/cuts": array(2, 2)}
UNREAD: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({**COLUMN, "fps": 2, "t/x": array(3)}, {"layout": "parallel"}, ["fps (int64 [])", "t/x (float32 [3])"]),
    ({"x": np.arange(5), "y": STRINGS}, {"columns": {"x": "x[]"}}, ["y (text [3, 2])"]),
    ({**GROUPS, "s_1/z": 1}, {"columns": {"*": "{}/**"}}, ["s_1/z (int64 [])"]),
    ({"t": TABLE, "x": np.arange(2)}, {"columns": {"n": "t/n[]", "x": "x[]"}}, ["t/word (a column)"]),
    ({"x": np.arange(2), "y": 1, "y@unit": "m"}, {"columns": {"x": "x[]", "u": "y@unit"}}, ["y (int64 [])"]),
    ({**CLIP, **CUTS}, {"layout": "per_video"}, ["b (no rows)", "c/cuts (float32 [2, 2])"]),
    ({**COLUMN, "n": EMPTY, "classes": h5py.Empty("S3")}, {}, ["classes (text nothing)", "n (float32 nothing)"]),
]


class TestUnread:
    """What no field holds is logged and listed."""

    @pytest.mark.parametrize(("datasets", "arguments", "unread"), UNREAD)
    def test_is_reported(
        self, path: Path, datasets: Arrays, arguments: Arrays, unread: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        write(path, datasets)
        store: Any = open_backend(path, **arguments)
        assert store.unread() == unread
        assert f"not read: {unread[0]}" in caplog.text
        assert storeds.info(str(path), **arguments).unread == unread if "layout" in arguments else True

    def test_unreadable_members_are_reported(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["x"], file["obs/y"] = np.arange(5), array(5, 2)
            file["obs/gone"] = h5py.ExternalLink("gone.h5", "/x")
            file.create_dataset("obs/mixed", (4,), MIXED)
            file["obs/again"] = h5py.SoftLink("/")  # is walked once
        store: Any = open_backend(path, layout="parallel")
        assert list(store.meta.fields) == ["x", "obs_y"]
        mixed, gone = store.unread()
        assert mixed == "obs/mixed (a table [4])"
        assert gone.startswith("obs/gone (the external link ")


def fault(store: Any, position: int) -> str:
    (bad,) = store.get_many([position])
    assert isinstance(bad, RecordError)
    assert (bad.position, bad.url) == (position, store.url)
    return bad.reason


class TestDamage:
    """A bad value makes its own record bad, and no other."""

    @pytest.mark.parametrize("keep", [0.1, 0.999])
    def test_truncated_files(self, path: Path, keep: float) -> None:
        vlen_jpeg(path)
        os.truncate(path, int(path.stat().st_size * keep))
        with pytest.raises(FormatError, match=r"is cut short: [\d,]+ of its [\d,]+ bytes"):
            open_backend(path, layout="parallel")

    def test_values_unlike_the_others(self, path: Path) -> None:
        values: dict[str, Any] = {}
        for at in range(40):
            values[f"s_{at}/image"] = pixels(1)[0] if at != 11 else np.zeros(3, "f4")
            values[f"s_{at}/label"] = at if at != 12 else 1.5
            values[f"s_{at}@place"] = at if at != 14 else "?"
        del values["s_4/label"]
        write(path, values)
        store = open_backend(path, layout="per_sample")
        assert "s_4 has no 'label'" in fault(store, 4)
        assert "/s_11/image is float32 (3,), unlike the others" in fault(store, 11)
        assert "/s_12/label is float64 (), unlike the others" in fault(store, 12)
        assert "attribute 'place' of /s_14 is '?', not int as in others" in fault(store, 14)
        assert sum(isinstance(row, RecordError) for row in store.get_many(range(40))) == 4

    def test_pictures_that_were_written_as_text(self, path: Path) -> None:
        # HDF5 writes of a JPEG given as text all before the first NUL.
        strings = np.array([blob(at)[:4] for at in range(3)], h5py.string_dtype())
        store = open_backend(write(path, {"image": strings, "label": np.arange(3)}))
        assert "only the 4 bytes before the first NUL were written" in fault(store, 1)
        assert store.get_many([1], ["label"]) == [{"label": 1}]

    def test_integers_beyond_int64(self, path: Path) -> None:
        store: Any = open_backend(write(path, {"x": np.array([1, 2**64 - 1], "u8")}), layout="parallel")
        assert "beyond the int64 range" in fault(store, 1)
        with pytest.raises(FormatError, match="int64"):
            store.column("x")

    def test_a_file_replaced_while_open(self, path: Path) -> None:
        video_jpegs(path)
        store = open_backend(path, layout="per_video")
        fresh = path.with_name("fresh.h5")
        video_numbered(fresh)
        os.replace(fresh, path)
        with pytest.raises(UnavailableError):
            pickle.loads(pickle.dumps(store)).get_many([0])
        again = open_backend(path, layout="per_video")
        assert again.meta.build != store.meta.build
        assert isinstance(again.get_many([0])[0], dict)

    @pytest.mark.parametrize("name", ["chunked", "video_jpegs"])
    def test_mutations_are_clear_errors(self, name: str, tmp_path: Path) -> None:
        """In a full run, 1,020 files, in processes of their own: libhdf5 itself may crash or loop on damaged metadata."""
        HDF5[name].write(tmp_path / "a.h5")
        arguments, number, deaths = [str(tmp_path), HDF5[name].layout], 0, 0
        while number < _MUTATIONS:
            command = [sys.executable, "-c", _MUTATE, *arguments, str(number), str(_MUTATIONS)]
            done = subprocess.run(command, capture_output=True, text=True)
            *seen, last = done.stdout.splitlines()
            assert [line for line in [*seen, last] if "raised" in line] == []
            deaths += done.returncode != 0
            number = int(last) + 1
        assert deaths <= max(_MUTATIONS // 50, 2)


_MUTATIONS = 340 if FULL else 25
_MUTATE = """
import pathlib, random, signal, sys
import storeds
folder, layout, start, stop = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data, victim = (folder / "a.h5").read_bytes(), folder / "victim.h5"
for number in range(start, stop):
    print(number, flush=True)
    signal.alarm(60)
    draw, mutated = random.Random(number), bytearray(data)
    for at in draw.sample(range(len(data)), draw.choice([1, 4, 40])):
        mutated[at] = draw.randrange(256)
    victim.write_bytes(mutated)
    try:
        with storeds.open_backend(victim, layout=layout) as store:
            store.unread()
            store.get_many(range(len(store)))
    except storeds.errors.StoredsError:
        pass
    except Exception as error:
        print(number, "raised", type(error).__name__, error, flush=True)
"""


class TestLinks:
    """Links stay in the folder of the store, unless the user allows others."""

    def make(self, path: Path, is_soft: bool, folder: Path, name: str) -> str:
        """Write `path`, whose dataset x lies in another file of `folder`; return its place."""
        write(folder / "other.h5", {"x": np.arange(6), "g/a": np.arange(6), "g/b": array(6, 2)})
        with h5py.File(path, "w") as file:
            file["y"], file["there"] = array(6, 2), h5py.ExternalLink(name, "/")
            file["columns/x"] = h5py.SoftLink("/there/x") if is_soft else h5py.ExternalLink(name, "/x")
        return "columns/x[]"

    @pytest.mark.parametrize("is_soft", [False, True])
    def test_out_of_the_folder_need_allow_outside(self, path: Path, is_soft: bool) -> None:
        outside = path.parent.parent
        columns = {"x": self.make(path, is_soft, outside, str(outside / "other.h5") if is_soft else "../other.h5")}
        for arguments in (dict[str, Any](), {"columns": columns}):
            with pytest.raises(StoredsError, match=r"outside of the store's folder; allow_outside=True"):
                open_backend(path, **arguments)
        store: Any = open_backend(path, columns=columns, allow_outside=True)
        assert store.get_many([4, 1]) == [{"x": 4}, {"x": 1}]
        with pytest.raises(ConfigError, match="outside of the store's folder"):
            open_backend(path, columns={"x": "../other.h5::x[]"})

    @pytest.mark.parametrize(
        ("at", "name", "is_outside"),
        [
            ("real", "other.h5", False),  # beside the file to which the symbolic link leads
            ("links", "other.h5", False),  # beside the symbolic link
            ("real", "/gone/other.h5", False),  # an absolute name that is gone: the file was moved with its folder
            ("real/..", "../real/../other.h5", True),
        ],
    )
    def test_of_a_file_behind_a_symbolic_link(self, tmp_path: Path, at: str, name: str, is_outside: bool) -> None:
        for folder in ("links", "real", at):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        place = self.make(tmp_path / "real/main.h5", False, tmp_path / at, name)
        path = tmp_path / "links/main.h5"
        path.symlink_to(tmp_path / "real/main.h5")
        with h5py.File(path) as file:
            expected = file["columns/x"][()].tolist()
        if is_outside:
            with pytest.raises(FormatError, match="outside of the store's folder"):
                open_backend(path, columns={"x": place})
        store: Any = open_backend(path, columns={"x": place}, allow_outside=is_outside)
        assert store.column("x").tolist() == expected
        (tmp_path / at / "other.h5").unlink()
        with pytest.raises(FormatError, match="other.h5, which is missing|leads to /gone/other.h5"):
            open_backend(path, columns={"x": place}, allow_outside=is_outside)

    def test_a_kept_index_allows_no_more_than_its_settings(self, path: Path) -> None:
        write(path.parent.parent / "other.h5", {f"{at}/x": at for at in range(3)})
        with h5py.File(path, "w") as file:
            file["far"] = h5py.ExternalLink("../other.h5", "/")
        columns = {"x": "far/{}/x"}
        assert len(open_backend(path, columns=columns, allow_outside=True)) == 3
        with pytest.raises(FormatError, match="outside of the store's folder"):
            open_backend(path, columns=columns)

    def test_datasets_with_bytes_in_other_files_are_refused(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (6,), "i8", external=[("/etc/passwd", 0, 48)])
            layout = h5py.VirtualLayout((6,), "i8")
            layout[:3] = h5py.VirtualSource("gone.h5", "x", (3,))  # HDF5 returns zeros
            file.create_virtual_dataset("y", layout)
        for name, words in (
            ("x", "external files such as '/etc/passwd'; gather them with h5repack"),
            ("y", "is virtual"),
        ):
            with pytest.raises(FormatError, match=words):
                open_backend(path, columns={"x": f"{name}[]"})

    def test_a_link_that_leads_nowhere_is_named(self, path: Path) -> None:
        write(path.with_name("other.h5"), {"x": np.arange(3)})
        with h5py.File(path, "w") as file:
            file["x"], file["soft"] = np.arange(3), h5py.SoftLink("/nothing")
            file["far"] = h5py.ExternalLink("other.h5", "/nothing")
        for name in ("soft", "far"):
            with pytest.raises(FormatError, match=f"the link /{name} leads to /nothing, which is missing"):
                open_backend(path, columns={"x": "x[]", "y": f"{name}[]"})
        store: Any = open_backend(path, columns={"x": "x[]"})
        assert sum("which is missing" in each for each in store.unread()) == 2

    def test_a_longer_chain_of_links_takes_no_more_steps_a_link(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        followed, follow = list[str](), Hdf5Files._follow

        def counted(files: Hdf5Files, parent: Any, part: str, *rest: Any) -> Any:
            followed.append(part)
            return follow(files, parent, part, *rest)

        def steps(links: int, name: str) -> int:
            followed.clear()
            files = Hdf5Files(str(path), f"hdf5://{path}", ForeignOptions())
            with pytest.raises(FormatError, match="has no 'z'") if name == "z" else nullcontext():
                files.find(Address(f"/{links}/{name}"))
            files.close()
            return len(followed)

        with h5py.File(path, "w") as file:
            file["0/x"], file["0/y"] = np.arange(3), array(3, 2)
            for at in range(12):
                file[str(at + 1)] = h5py.SoftLink(f"/{at}")
        monkeypatch.setattr(Hdf5Files, "_follow", counted)
        assert steps(12, "x") == 2 * steps(6, "x")
        assert steps(12, "z") < 5 * steps(6, "z")  # of a missing one, each link is asked where it leads

    def test_circles(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = h5py.SoftLink("/y"), h5py.SoftLink("/x")
        with pytest.raises(StoredsError, match="leads through more than"):
            open_backend(path, columns={"x": "x[]"})
        with h5py.File(path, "w") as file:
            file["again"] = file["/"]
        with pytest.raises(StoredsError, match="cannot tell what a record is"):
            open_backend(path)

    def test_a_kept_index_is_renewed_when_a_linked_file_changes(self, path: Path) -> None:
        other = path.with_name("other.h5")
        write(other, {f"s_{at}/x": at for at in range(3)})
        with h5py.File(path, "w") as file:
            file["here"] = h5py.ExternalLink("other.h5", "/")
        for count in (3, 5):
            fresh = write(path.with_name("fresh.h5"), {f"s_{at}/x": at for at in range(count)})
            os.replace(fresh, other)
            store: Any = open_backend(path, columns={"x": "here/{}/x"})
            assert store.column("x").tolist() == list(range(count))
