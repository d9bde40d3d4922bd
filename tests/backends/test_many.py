"""Many stores as one: patterns, lists, positions, meta, errors, handles, and the conformance kit over all of it.

Imports the private parser of patterns to list what each pattern matches.
"""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import storeds
from _packing import stored_records
from make_store import make_store
from storeds import StoreDataset
from storeds.backends import Store, View
from storeds.backends.opening import scheme_of
from storeds.errors import ConfigError, FormatError, RecordError, StoreNotFoundError, UnavailableError
from storeds.plugins import POOL
from storeds.protocols import JSON, Backend, Meta, Record
from storeds.testing import ArrayTests, MakeUrl, PickleTests, ReadTests, assert_same

FIELDS = {"image": "image", "label": "int", "text": "str"}


def record(number: int) -> Record:
    return {"image": b"%d" % number * 50, "label": number, "text": f"№ {number}"}


def write(url: str | Path, numbers: Iterable[int], attrs: Mapping[str, JSON] | None = None, **how: Any) -> str:
    make_store(FIELDS, map(record, numbers), url, attrs=attrs, **how)
    return str(url)


def numbers_of(backend: Backend, positions: Sequence[int] | None = None) -> list[int]:
    found = backend.get_many(range(len(backend)) if positions is None else positions, list(FIELDS))
    assert_same(found, [record(row["label"]) for row in found if isinstance(row, dict)])
    return [row["label"] for row in found if isinstance(row, dict)]


def corrupt(file: Path, value: bytes) -> None:
    """Change the first byte of `value` where it lies in a file."""
    data = bytearray(file.read_bytes())
    data[data.index(value)] ^= 1
    file.write_bytes(data)


# The conformance kit. A concatenation has no writer, and an id of its own.


class TestList(ReadTests, ArrayTests, PickleTests):
    """One store of each engine, the second of them empty; what the kit calls the URL is only their common name."""

    test_an_unknown_option_is_an_error = None  # type: ignore[assignment]  # the test of options below does it

    @pytest.fixture
    def make_url(self, tmp_path: Path, mongodb_database: str) -> MakeUrl:
        numbers = itertools.count()
        self.mongodb = mongodb_database
        return lambda: f"{tmp_path}/{next(numbers)}"

    def members(self, url: str) -> list[str]:
        return [f"lmdb://{url}.lmdb", f"hdf5://{url}.h5", f"{self.mongodb}/c{Path(url).name}"]

    def open(self, url: str) -> Backend:
        return storeds.open_backend(self.members(url))

    def write(self, url: str, fields: Mapping[str, Any], records: Iterable[Record], **how: Any) -> Meta:
        every = list(records)
        parts: tuple[list[Record], ...] = every[: len(every) // 3], [], every[len(every) // 3 :]
        for member, part in zip(self.members(url), parts, strict=True):
            super().write(member, fields, part, **how)
        with self.open(url) as backend:
            return backend.meta


# Positions


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), data=st.data())
def test_positions_equal_those_of_a_list(counts: list[int], data: st.DataObject) -> None:
    starts = list(itertools.accumulate(counts, initial=0))
    urls = [f"memory://many-{secrets.token_hex(8)}" for _ in counts]
    for url, start, count in zip(urls, starts, counts, strict=False):
        write(url, range(start, start + count))
    total = starts[-1]
    with storeds.open_backend(urls) as backend:
        assert isinstance(backend, View)
        assert len(backend) == total
        assert backend.column("label").tolist() == list(range(total))
        asked = data.draw(st.lists(st.integers(0, total - 1), max_size=20)) if total else []
        assert numbers_of(backend, asked) == asked
        for at in asked:
            url, inside, _ = backend.place(at)
            assert starts[urls.index(url)] + inside == at
            assert inside < counts[urls.index(url)]
        for outside in (-1, total, total + 7):
            with pytest.raises(IndexError):
                backend.place(outside)
        wanted = data.draw(st.lists(st.integers(-1, total), max_size=4))
        assert backend.select({"label": wanted}).tolist() == sorted(at for at in set(wanted) if 0 <= at < total)


def test_each_store_touched_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [write(f"memory://many-{secrets.token_hex(8)}", range(3)) for _ in range(3)]
    calls, get_many = list[tuple[str, int]](), Store.get_many

    def counted(self: Store, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> Any:
        calls.append((self.url, len(positions)))
        return get_many(self, positions, fields)

    monkeypatch.setattr(Store, "get_many", counted)
    with storeds.open_backend(urls) as backend:
        backend.get_many([8, 0, 7, 0, 2])
    assert calls == [(urls[0], 3), (urls[2], 2)]


# What a pattern matches


def matched(pattern: str) -> list[str]:
    """Return the files that a pattern matches: each store holds its own path."""
    with storeds.open_backend(pattern) as backend:
        return [record["path"] for record in backend.get_many(range(len(backend)))]  # type: ignore[index]


@pytest.fixture(scope="module")
def stores_in_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, itself of an awkward name, with stores in files of all sorts of names."""
    root = tmp_path_factory.mktemp("patterns") / "[ab]*" / "here"
    for name in (
        *("part-1.h5", "part-10.h5", "part-2.h5", "PART-3.h5", "é.h5", "b.lmdb", "who?.h5", ".hidden.h5"),
        *("sub/part-1.h5", "sub/deep/part-1.h5", "[x].h5", "x.h5", "y]z.h5"),
        *("ü#%20/a b.h5", "ü#%20/c?locking=x.h5", "ü#%20/d[1].h5", "ü#%20/d1.h5", "star/*.h5", "star/x.h5"),
    ):
        engine = "lmdb" if name.endswith(".lmdb") else "hdf5"
        plain = root.parent.parent / "store"  # a path without special characters, which a writer refuses
        make_store({"path": "str"}, [{"path": name}], f"{engine}://{plain}")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        plain.rename(root / name)
    (root / ".part-4.h5.partial").mkdir()
    shutil.copy(root / "x.h5", root / ".part-4.h5.partial" / "data.h5")
    (root / "sub/deep/loop").symlink_to(root, target_is_directory=True)
    return root


@pytest.fixture
def tree(stores_in_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, as the working directory and the home."""
    monkeypatch.chdir(stores_in_folders)
    monkeypatch.setenv("HOME", str(stores_in_folders))
    return stores_in_folders


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("part-*.h5", ["part-1.h5", "part-10.h5", "part-2.h5"]),  # in the order of their bytes
        ("hdf5://*-[0-9].h5", ["PART-3.h5", "part-1.h5", "part-2.h5"]),
        ("lmdb://../../[[]ab]*/here/*.lmdb?readahead=true", ["b.lmdb"]),
        ("**/part-1.h5", ["part-1.h5", "sub/deep/part-1.h5", "sub/part-1.h5"]),
        ("sub/**/*.h5", ["sub/deep/part-1.h5", "sub/part-1.h5"]),
        ("sub/**", ["sub/deep/part-1.h5", "sub/part-1.h5"]),
        (".*.h5", [".hidden.h5"]),
        ("*]z.h5", ["y]z.h5"]),
        ("sub/deep/loop/part-[2].h5", ["part-2.h5"]),
        ("lmdb://~/b.*", ["b.lmdb"]),
        # A path that exists is no pattern.
        ("hdf5://[x].h5?locking=false", ["[x].h5"]),
        ("ü#%20/d[1].h5", ["ü#%20/d[1].h5"]),
        ("star/*.h5", ["star/*.h5"]),
        ("ü#%20/d[[]1].h5", ["ü#%20/d[1].h5"]),
        ("ü#%20/[ac]*.h5", ["ü#%20/a b.h5", "ü#%20/c?locking=x.h5"]),
    ],
)
def test_patterns(tree: Path, pattern: str, expected: Sequence[str]) -> None:
    assert matched(pattern) == list(expected)


def test_a_pattern_is_taken_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("a.h5", [1])
    backend = storeds.open_backend("*.h5")
    write("b.h5", [2])
    monkeypatch.chdir("/")
    assert numbers_of(backend) == [1]
    assert numbers_of(storeds.open_backend(backend.url)) == [1, 2]


def test_engines_mix_under_a_bare_pattern(tmp_path: Path) -> None:
    write(tmp_path / "b.lmdb", [1])
    os.rename(write(tmp_path / "c.h5", [2]), tmp_path / "a")  # known by what it is
    with storeds.open_backend(tmp_path / "*") as backend:
        assert numbers_of(backend) == [2, 1]
    assert scheme_of(f"{tmp_path}/*", writing=False) == "hdf5"


def test_options_reach_every_store(tmp_path: Path) -> None:
    urls = [write(tmp_path / f"{n}.lmdb", [n]) for n in range(2)]
    assert numbers_of(storeds.open_backend(f"lmdb://{tmp_path}/*?readahead=true")) == [0, 1]
    assert numbers_of(storeds.open_backend(urls, readahead=True)) == [0, 1]
    with pytest.raises(ConfigError, match="'readahead' is given in the URL and as a keyword"):
        storeds.open_backend(f"lmdb://{tmp_path}/*?readahead=true", readahead=True)
    with pytest.raises(StoreNotFoundError, match="no file matches"):
        storeds.open_backend(f"{tmp_path}/*.lmdb?readahead=true")
    with pytest.raises(ConfigError, match="write lmdb://… or hdf5://…"):
        storeds.open_writer(f"{tmp_path}/b.lmdb?readahead=true", FIELDS)


# What is refused


@pytest.mark.parametrize(
    ("urls", "error", "reported"),
    [
        ("{}/*.hdf5", StoreNotFoundError, r"no file matches .*/\*\.hdf5: .* holds .*a\.h5"),
        ("{}/nowhere/[0-9].h5", StoreNotFoundError, r"nowhere is not there; .* holds .*a\.h5"),
        ("hdf5://{}/*.h5", FormatError, r"b\.h5"),
        ("{}/[an]*", FormatError, "notes"),
        (["{}/a.h5", "{}/z.h5"], StoreNotFoundError, r"z\.h5"),
        ("hdf5://{}/*?locking=maybe", ConfigError, "locking.*'best-effort'"),
        ([], ConfigError, "empty"),
        ([None], ConfigError, "not NoneType"),
    ],
    ids=str,
)
def test_what_is_no_list_of_stores(tmp_path: Path, urls: Any, error: type[Exception], reported: str) -> None:
    write(tmp_path / "a.h5", [1])
    (tmp_path / "b.h5").write_text("hello")
    (tmp_path / "c.h5").mkdir()
    (tmp_path / "notes").mkdir()
    if isinstance(urls, str):
        urls = urls.format(tmp_path)
    elif urls and isinstance(urls[0], str):
        urls = [url.format(tmp_path) for url in urls]
    with pytest.raises(error, match=reported):
        storeds.open_backend(urls)


def test_a_folder_that_cannot_be_listed_is_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> Any:
        raise PermissionError(13, "Permission denied")

    write(tmp_path / "a.h5", [1])
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UnavailableError, match="cannot be listed: Permission denied"):
        storeds.open_backend(f"hdf5://{tmp_path}/**/*.h5")


def test_the_same_store_twice_only_if_both_are_listed(tmp_path: Path) -> None:
    url = write(tmp_path / "a.h5", [1, 2])
    assert numbers_of(storeds.open_backend([url, url])) == [1, 2, 1, 2]
    (tmp_path / "link.h5").symlink_to(tmp_path / "a.h5")
    for pattern in (f"hdf5://{tmp_path}/*.h5", [f"{tmp_path}/*"]):
        with pytest.raises(ConfigError, match=r"same store twice, as .*a\.h5 and .*link\.h5"):
            storeds.open_backend(pattern)
    assert numbers_of(storeds.open_backend([f"{tmp_path}/a*", f"{tmp_path}/link*"])) == [1, 2, 1, 2]


BOXES = {"kind": "array", "dtype": "f4", "shape": [None, 4], "role": "boxes", "format": "xyxy"}


@pytest.mark.parametrize(
    ("fields", "others", "reported"),
    [
        (FIELDS, {**FIELDS, "label": "float"}, r"'label' is int in \S*a\.h5, and 'label' is float in \S*b\.h5"),
        (
            FIELDS,
            {**FIELDS, "box": {**BOXES, "role": None, "format": None}},
            r"no further field in .*, and 'box' is array <f4 \[None, 4\] in",
        ),
        (FIELDS, dict(reversed(FIELDS.items())), r"'image' is image in \S*a\.h5, and 'text' is str in"),
        ({"box": BOXES}, {"box": {**BOXES, "format": "xywh"}}, r"\(boxes xyxy\) in .*\(boxes xywh\) in"),
    ],
    ids=["kind", "more", "order", "role"],
)
def test_fields_must_be_the_same_in_the_same_order(tmp_path: Path, fields: Any, others: Any, reported: str) -> None:
    for name, each in (("a.h5", fields), ("b.h5", others)):
        storeds.open_writer(tmp_path / name, each).publish()
    with pytest.raises(FormatError, match=reported):
        storeds.open_backend([tmp_path / "a.h5", tmp_path / "b.h5"])


def test_attrs_that_are_equal_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [1], {"classes": ["cat", "dog"], "made": "here", "day": 1})
    write(tmp_path / "b.h5", [2], {"classes": ["cat", "dog"], "made": "here", "day": True, "more": 1})
    with storeds.open_backend(f"hdf5://{tmp_path}/*.h5") as backend:
        assert backend.meta.attrs == {"classes": ["cat", "dog"], "made": "here"}
    write(tmp_path / "c.h5", [3])
    with storeds.open_backend(f"hdf5://{tmp_path}/*.h5") as backend:
        assert backend.meta.attrs == {}
    write(tmp_path / "d.h5", [3], {"classes": ["dog", "cat"]})
    with pytest.raises(ConfigError, match=r'd\.h5 and .*c\.h5 have different class names.*\["dog", "cat"\] and none'):
        storeds.open_backend(f"hdf5://{tmp_path}/*.h5")


# The names of classes in three stores, and the names of the labels of their records.
NAMED = (
    (["cat", "dog"], ["dog", "cat", "dog"]),
    (["dog", "cat"], ["dog", "cat", "cat"]),
    (["eel", "dog", "ape", "cat"], ["ape", "cat", "eel", "dog"]),
)
LABELLED: dict[str, Any] = {
    "label": "int",
    "labels": {"kind": "array", "dtype": "uint8", "shape": [None], "role": "labels"},
    "fixed": {"kind": "array", "dtype": "int32", "shape": [2]},
    "key": "str",
}


@pytest.fixture
def named(tmp_path: Path) -> list[str]:
    """Three stores, of LMDB, HDF5 and LMDB, with the classes of `NAMED`."""
    urls = [f"{tmp_path}/{number}.{suffix}" for number, suffix in enumerate(("lmdb", "h5", "lmdb"))]
    for url, (classes, names) in zip(urls, NAMED, strict=True):
        numbers = [classes.index(name) for name in names]
        rows = [
            {"label": n, "labels": np.array([n, 0], np.uint8), "fixed": np.array([n, 9], np.int32), "key": f"{url}/{n}"}
            for n in numbers
        ]
        make_store(LABELLED, rows, url, attrs={"classes": classes})
    return urls


def test_labels_of_stores_with_other_classes_are_numbered_by_name(named: list[str], tmp_path: Path) -> None:
    union, names = ["cat", "dog", "eel", "ape"], [name for _, each in NAMED for name in each]
    expected = [union.index(name) for name in names]
    firsts = [union.index(classes[0]) for classes, each in NAMED for _ in each]
    opened: Any
    backend: Any
    with storeds.open_backend(named) as opened:
        for backend in (opened, pickle.loads(pickle.dumps(opened))):
            assert backend.meta.attrs["classes"] == union
            records = backend.get_many(range(10))
            assert [row["label"] for row in records] == backend.column("label").tolist() == expected
            assert [row["labels"].tolist() for row in records] == [
                [*pair] for pair in zip(expected, firsts, strict=True)
            ]
            assert {row["labels"].dtype for row in records} == {np.dtype("u1")}
            own = [classes.index(name) for classes, each in NAMED for name in each]
            assert [row["fixed"][0] for row in records] == own  # its numbers are no classes
            assert backend.get_arrays([9, 0, 4, 0], ["label"])["label"].tolist() == [
                expected[at] for at in (9, 0, 4, 0)
            ]
            for number, name in enumerate(union):
                places = [at for at, each in enumerate(names) if each == name]
                assert backend.select({"label": [number, 99]}).tolist() == places
    dataset = StoreDataset(named, reader="array", fields=["fixed", "label"], where={"label": "eel"})
    assert (dataset.classes, dataset.targets) == (union, [2])
    meta = storeds.convert(named, f"lmdb://{tmp_path}/all.lmdb")
    assert meta.attrs["classes"] == union
    assert [row["label"] for row in stored_records(tmp_path / "all.lmdb")] == expected


def test_a_label_without_a_name_is_not_taken_for_a_class_of_another_store() -> None:
    urls = [f"memory://many-{secrets.token_hex(8)}" for _ in range(2)]
    write(urls[0], [0, -1, 2], {"classes": ["cat", "dog"]})
    write(urls[1], [0], {"classes": ["dog", "cat", "eel"]})
    backend: Any
    with storeds.open_backend(urls) as backend:
        first, unlabelled, unnamed, last = backend.get_many(range(4), ["label"])
        assert [row["label"] for row in (first, unlabelled, last)] == [0, -1, 1]
        assert isinstance(unnamed, RecordError)
        message = f"field 'label' has class 2, which its store does not name.*record 2 of {urls[0]}"
        with pytest.raises(RecordError, match=f"record 2 .*{message}"):
            backend.column("label")
        with pytest.raises(RecordError, match=f"record 2 .*{message}"):
            backend.get_arrays([0, 2], ["label"])
        assert backend.select({"label": [2]}).tolist() == []
        assert backend.select({"label": [-1]}).tolist() == [1]


@pytest.mark.parametrize(
    ("role", "values", "found"),
    [
        ({"kind": "str", "role": "label"}, ["dog"], ["dog", "dog"]),
        ({"kind": "json", "role": "labels"}, [[], [0, 1]], [[], [0, 1], [], [1, 2]]),
    ],
    ids=["text", "lists"],
)
def test_labels_of_text_stay_and_lists_are_renumbered(role: dict[str, Any], values: Any, found: Any) -> None:
    rows = [{"of": value} for value in values]
    urls = [make_store({"of": role}, rows, attrs={"classes": names}) for names in (["cat", "dog"], ["dog", "eel"])]
    with storeds.open_backend(urls) as backend:
        assert backend.meta.attrs["classes"] == ["cat", "dog", "eel"]
        assert backend.get_many(range(len(found))) == [{"of": value} for value in found]


LABEL, MASK = {"kind": "int", "role": "label"}, {"kind": "array", "dtype": "uint8", "shape": [1, 1], "role": "mask"}


@pytest.mark.parametrize(
    ("fields", "classes", "together", "numbers"),
    [
        ({"x": LABEL}, (["a", "b"], ["a", "b", "c"]), ["a", "b", "c"], {"x": (1, 1)}),
        ({"x": LABEL}, (["c", "a", "b"], ["a", "b"]), ["c", "a", "b"], {"x": (1, 2)}),
        ({"x": LABEL}, ({"x": ["a", "b"]}, ["b", "c"]), {"x": ["a", "b", "c"]}, {"x": (1, 2)}),
        # Class ids that cannot be renumbered keep their names.
        ({"x": MASK}, (["a", "b"], ["a", "b", "c"]), ["a", "b", "c"], {"x": (1, 1)}),
        ({"x": "int"}, (["a", "b", "c"], ["a", "b"]), ["a", "b", "c"], {"x": (1, 1)}),
        (
            {"x": LABEL, "y": MASK},
            ({"x": ["a", "b"], "y": ["r", "s"]}, {"x": ["b", "a"], "y": ["r", "s", "t"]}),
            {"x": ["a", "b"], "y": ["r", "s", "t"]},
            {"x": (1, 0), "y": (1, 1)},
        ),
    ],
    ids=["more", "fewer", "mapping and list", "more of a mask", "fewer without a role", "of each field"],
)
def test_class_1_of_two_stores_keeps_its_name(fields: Any, classes: Any, together: Any, numbers: Any) -> None:
    row = {name: np.ones((1, 1), np.uint8) if spec is MASK else 1 for name, spec in fields.items()}
    urls = [make_store(fields, [row], attrs={"classes": each}) for each in classes]
    with storeds.open_backend(urls) as backend:
        assert backend.meta.attrs["classes"] == together
        for name, expected in numbers.items():
            assert [int(np.ravel(row[name])[0]) for row in backend.get_many([0, 1])] == list(expected)  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "classes"),
    [
        ({"kind": "int"}, (["a", "b"], ["b", "a"])),  # nothing says that they are classes
        (MASK, (["a", "b"], ["b", "a"])),
        (LABEL, ({"other": ["a"]}, {"other": ["b"]})),
        (LABEL, ({"x": ["a"]}, {"x": ["b"], "other": ["c"]})),
        ({"kind": "array", "dtype": "uint8", "shape": [None], "role": "labels"}, (["a"], [str(n) for n in range(300)])),
    ],
    ids=["no role", "mask", "another field", "a field in one store only", "too many for the dtype"],
)
def test_classes_that_cannot_be_joined_are_refused(fields: dict[str, Any], classes: Any) -> None:
    urls = [make_store({"x": fields}, [], attrs={"classes": each}) for each in classes]
    with pytest.raises(ConfigError, match="have different class names|cannot hold the numbers of 301 classes"):
        storeds.open_backend(urls)


def test_sums_of_datasets_with_other_classes_are_refused() -> None:
    urls = [f"memory://many-{secrets.token_hex(8)}" for _ in range(2)]
    for url, classes in zip(urls, (["cat", "dog"], ["dog", "eel"]), strict=True):
        write(url, [0], {"classes": classes})
    cats, dogs = (StoreDataset(url, decode="bytes") for url in urls)
    with pytest.raises(ConfigError, match=r'different class names.*\["cat", "dog"\] and \["dog", "eel"\].*as a list'):
        cats + dogs
    # Without the label, nothing depends on the names.
    texts = [StoreDataset(url, reader="array", fields=["text"]) for url in urls]
    assert len(texts[0] + texts[1]) == 2


def test_only_one_store_can_be_written(tmp_path: Path) -> None:
    for url in (f"hdf5://{tmp_path}/*.h5", f"{tmp_path}/[0-9].lmdb"):
        with pytest.raises(ConfigError, match=r"is a pattern, and a writer writes one store: name it without \* and"):
            storeds.open_writer(url, FIELDS)
    with pytest.raises(ConfigError, match="a list of 2; write one after the other"):
        storeds.open_writer(["a.h5", "b.h5"], FIELDS)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    os.rename(write(tmp_path / "plain.h5", [2]), tmp_path / "a[1].h5")
    write(tmp_path / "a[1].h5", [4], overwrite=True)  # a file of exactly that name
    assert numbers_of(storeds.open_backend(tmp_path / "a[1].h5")) == [4]


# What it says of itself


def test_meta_is_made_of_the_members(tmp_path: Path) -> None:
    for suffix in ("h5", "lmdb"):
        for number in range(3):
            write(tmp_path / f"{number}.{suffix}", range(number, number + 2))
    hdf5, lmdb = (storeds.open_backend(f"{tmp_path}/*.{suffix}").meta for suffix in ("h5", "lmdb"))
    assert (hdf5.id, hdf5.count, hdf5.fields) == (lmdb.id, 6, lmdb.fields)
    assert hdf5.layout == "concatenated"
    assert hdf5.build != lmdb.build
    turned = storeds.open_backend([f"{tmp_path}/{number}.h5" for number in (2, 1, 0)]).meta
    assert turned.id != hdf5.id
    assert turned.build != hdf5.build
    write(tmp_path / "1.h5", range(1, 3), overwrite=True)
    again = storeds.open_backend(f"{tmp_path}/*.h5").meta
    assert again.id == hdf5.id
    assert again.build != hdf5.build


def test_it_is_shown_short_and_without_secrets(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [1])
    files: list[Any] = [tmp_path / "a.h5"] * 5
    with storeds.open_backend(files) as backend:
        assert backend.url == f"[hdf5://{tmp_path}/a.h5, hdf5://{tmp_path}/a.h5, 3 more]"
        assert repr(backend) == f"View({backend.url!r}, 5 stores, count=5)"
    with pytest.raises(UnavailableError, match=r"user:\*\*\*@") as caught:
        storeds.open_backend([*files, "mongodb://user:hush@127.0.0.1:1/db/b?serverSelectionTimeoutMS=50"])
    assert "hush" not in str(caught.value)


# Damage, and stores that go


# Many of them


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def read_at_random(backend: Backend, most: int) -> None:
    """Read everything in random order, with never more than so many descriptors open in between."""
    order = list(range(len(backend)))
    random.Random(7).shuffle(order)
    for start in range(0, len(order), 50):
        batch = order[start : start + 50]
        assert numbers_of(backend, batch) == batch
        assert descriptors() <= most


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_descriptors_are_bounded_in_parent_and_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each, limits = 60, 2 * 20
    monkeypatch.setattr(POOL, "_limit", limits)  # writing more files than it holds takes half a minute
    for number in range(each):
        write(tmp_path / f"{number:03}.h5", [number])
        write(tmp_path / f"{number:03}.lmdb", [each + number])
    gc.collect()  # what earlier tests left must not be closed in the middle
    before = descriptors()
    with storeds.open_backend([f"{tmp_path}/*.h5", f"lmdb://{tmp_path}/*.lmdb"]) as backend:
        assert descriptors() == before
        read_at_random(backend, before + limits)
        assert descriptors() > before + limits // 2  # what is open stays open, for the next batch
        child = multiprocessing.get_context("fork").Process(target=read_at_random, args=(backend, before + limits + 10))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        child.close()
    assert descriptors() <= before


def test_threads_that_need_more_handles_than_the_pool_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No handle is closed under a reader, and closed ones are opened again."""
    monkeypatch.setattr(POOL, "_limit", 2)
    urls = [write(tmp_path / f"{number}.{'h5' if number % 2 else 'lmdb'}", range(50)) for number in range(12)]

    def read(first: int) -> None:
        for at in range(40):
            with storeds.open_backend(urls[(first * 3 + at * (first + 1)) % len(urls)]) as backend:
                assert numbers_of(backend, [at, 3]) == [at, 3]
                POOL.close_all()
                assert numbers_of(backend, [at, 3]) == [at, 3]

    before = descriptors()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))
    gc.collect()
    assert descriptors() <= before


def test_thousands_of_members_pickle_small() -> None:
    url = write(f"memory://many-{secrets.token_hex(8)}", [5], {"classes": [f"class {n}" for n in range(1000)]})
    with View(renamed(url, number) for number in range(2_000)) as backend:
        assert len(pickle.dumps(backend)) < 400 * 2_000
        copy = pickle.loads(pickle.dumps(backend))
        assert_same(copy.get_many([1_999, 0, 500], ["label"]), [{"label": 5}] * 3)
        assert copy.place(1_999).position == 0


def renamed(url: str, number: int) -> Any:
    """Return a store under another id, as no test has the time to write thousands."""
    backend: Any = storeds.open_backend(url)
    fields, attrs = copy.deepcopy((dict(backend.meta.fields), backend.meta.attrs))  # as read from a file of its own
    id_ = f"{random.Random(number).getrandbits(128):032x}"
    backend.meta = replace(backend.meta, id=id_, fields=fields, attrs=attrs)
    return backend


# Operations


def test_info_and_verify(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"{number}.h5", range(number * 4, number * 4 + 4))
    url = f"hdf5://{tmp_path}/*.h5"
    said = storeds.info(url)
    assert (said.count, said.layout, said.handle) == (8, "concatenated", {"members": 2})
    assert said.bytes == sum(os.path.getsize(tmp_path / f"{number}.h5") for number in range(2))
    assert len(storeds.verify(url, workers=0).findings) == 8  # whose images are none
    corrupt(tmp_path / "1.h5", record(6)["image"])
    for workers in (0, 1):
        (finding,) = (each for each in storeds.verify(url, workers=workers).findings if each.kind == "record")
        assert finding.position == 6
        assert "record 2 of" in finding.message
