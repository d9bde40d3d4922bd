"""LMDB stores of other tools: records equal those written, in any order, in workers, and after conversion."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import storeds
from _foreign_lmdb import pickled, put, pyarrow
from _foreign_lmdb_cases import CASES, COUNT, JPEGS, NAMED, NUMBERS, Case
from _verdicts import unjudged
from storeds import StoreDataset
from storeds.errors import ConfigError, FormatError, StoreNotFoundError, UnavailableError
from storeds.layouts.lmdb import ForeignLmdb, KeyedLmdb, OcrLmdb, PickledLmdb, PyarrowLmdb
from storeds.protocols import Field, SupportsKeys
from storeds.registry import LAYOUTS
from storeds.testing import PickleTests, ProcessTests, ReadTests, fingerprint

LAYOUT_CLASSES: dict[str, type[ForeignLmdb]] = {
    name.removeprefix("lmdb/"): LAYOUTS.get(name) for name in LAYOUTS.names() if name.startswith("lmdb/")
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=CASES, name="case")
def _case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def opened(case: Case, path: Path) -> ForeignLmdb:
    return LAYOUT_CLASSES[case.layout](f"lmdb://{case.write(path)}", **(case.options or {}))


def digest(sample: Any) -> str:
    return hashlib.sha256(pickle.dumps(fingerprint([sample]))).hexdigest()


def test_records_in_any_order_and_with_duplicates(case: Case, tmp_path: Path) -> None:
    truth = [digest(case.record(n)) for n in NUMBERS]
    with opened(case, tmp_path / "s") as backend:
        assert len(backend) == COUNT
        assert backend.meta.layout == case.layout
        for asked in (list(NUMBERS), [*reversed(NUMBERS)], [5, 1, 5, 23, 0, 0]):
            assert [digest(record) for record in backend.get_many(asked)] == [truth[n] for n in asked]
        for name in backend.meta.fields:
            (part,) = backend.get_many([7], [name])
            assert digest(part) == digest({name: case.record(7)[name]})


def test_columns_and_pickles(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path / "s") as backend:
        for name, field in backend.meta.fields.items():
            if field.kind in ("int", "str", "float", "bool"):
                assert backend.column(name).tolist() == [case.record(n)[name] for n in NUMBERS]
        state = pickle.dumps(backend)
        assert len(state) < 2048
        with pickle.loads(state) as twin:
            assert twin.meta == backend.meta
            assert digest(twin.get_many([3])[0]) == digest(case.record(3))


@dataclass
class Digests(Dataset[tuple[str, int, str]]):
    """The digest of every record of every case."""

    stores: dict[str, ForeignLmdb]

    def __len__(self) -> int:
        return len(self.stores) * COUNT

    def __getitems__(self, asked: list[int]) -> list[tuple[str, int, str]]:
        names = list(self.stores)
        out = []
        for at in asked:
            name, position = names[at // COUNT], at % COUNT
            out.append((name, position, digest(self.stores[name].get_many([position])[0])))
        return out

    def __getitem__(self, at: int) -> tuple[str, int, str]:
        return self.__getitems__([at])[0]


def unchanged(batch: Any) -> Any:
    return batch  # module-level, so that spawned workers can import it


@pytest.fixture(scope="module")
def read_by_workers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the records of each case as two spawned workers read them; all cases share the workers to save time."""
    folder = tmp_path_factory.mktemp("workers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOREDS_CACHE", str(folder / "cache"))
        stores = {name: opened(case, folder / str(number)) for number, (name, case) in enumerate(CASES.items())}
        loader: DataLoader[Any] = DataLoader(
            Digests(stores), batch_size=5, num_workers=2, multiprocessing_context="spawn", collate_fn=unchanged
        )
        found = {(name, position): reported for batch in loader for name, position, reported in batch}
        for backend in stores.values():
            backend.close()
    return {name: [found[name, n] for n in NUMBERS] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_two_spawned_workers(name: str, read_by_workers: dict[str, list[str]]) -> None:
    assert read_by_workers[name] == [digest(CASES[name].record(n)) for n in NUMBERS]


@pytest.mark.share(1)
@pytest.mark.parametrize("name", ["tuples", "keyed", "datum-raw", "tensorpack-msgpack"])
def test_a_dataset_over_two_spawned_workers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    backend = opened(case, tmp_path / "s")
    dataset = StoreDataset(backend, reader="array", fields=list(backend.meta.fields), as_dict=True)
    dataset[0]
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=5, num_workers=2, multiprocessing_context="spawn", collate_fn=unchanged
    )
    records = [{k: np.asarray(v) for k, v in sample.items()} for batch in loader for sample in batch]
    expected = [{k: np.asarray(v) for k, v in case.record(n).items()} for n in NUMBERS]
    assert [repr(record) for record in records] == [repr(record) for record in expected]
    backend.close()


def test_convert_and_verify(case: Case, tmp_path: Path) -> None:
    url = f"lmdb://{case.write(tmp_path / 's')}"
    truth = [digest(case.record(n)) for n in NUMBERS]
    for engine in ("lmdb", "hdf5"):
        target = f"{engine}://{tmp_path}/native.{engine}"
        storeds.convert(url, target, layout=case.layout, options=case.options)
        assert storeds.verify(target, workers=0).findings == []
        with storeds.open_backend(target) as backend:
            assert [digest(record) for record in unjudged(backend.get_many(NUMBERS))] == truth


def test_exactly_one_layout_fits_a_store(case: Case, tmp_path: Path) -> None:
    url = f"lmdb://{case.write(tmp_path / 's')}"
    general = {name: value for name, value in (case.options or {}).items() if name in ("database", "partial")}
    seen = {name: why for name, cls in LAYOUT_CLASSES.items() if (why := cls.guess_can_open(url, **general))}
    assert list(seen) == [case.layout]
    assert all(isinstance(why, str) and why for why in seen.values())
    with storeds.open_backend(url, **(case.options or {})) as backend:
        assert backend.meta.layout == case.layout


def test_detection_of_a_store_that_is_already_open(tmp_path: Path) -> None:
    case = CASES["old-pickles-in-one-file"]
    url = f"lmdb://{case.write(tmp_path / 's')}"
    for readahead in (False, True):
        with PickledLmdb(url, readahead=readahead) as one:
            one.get_many([0])
            assert PickledLmdb.guess_can_open(url)
            with storeds.open_backend(url, layout="pickled", readahead=not readahead) as two:
                assert digest(two.get_many([1])) == digest(one.get_many([1]))
    with PickledLmdb(url) as one:
        one.get_many([0])
        with storeds.open_backend(url) as two:  # a native store is tried first
            assert len(two) == COUNT


def test_all_layouts_share_one_environment_while_they_detect(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"lmdb://{case.write(tmp_path / 's')}"
    opened: list[str] = []
    open_environment = lmdb.open

    def counted(path: str, **how: Any) -> Any:
        opened.append(path)
        return open_environment(path, **how)

    monkeypatch.setattr(lmdb, "open", counted)
    with storeds.open_backend(url, **(case.options or {})) as backend:
        assert backend.meta.layout == case.layout
        assert len(opened) <= 2  # one may be for the native format


@pytest.mark.parametrize(
    ("size", "options", "wanted"), [(1000, {}, False), (200_000, {}, True), (200_000, {"readahead": False}, False)]
)
def test_the_kernel_reads_ahead_where_values_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, options: dict[str, bool], wanted: bool
) -> None:
    put(tmp_path / "s", [(f"{number:04}".encode(), JPEGS[0] + bytes(size)) for number in range(8)])
    opened: list[bool] = []
    open_environment = lmdb.open

    def noted(path: str, **how: Any) -> Any:
        opened.append(how["readahead"])
        return open_environment(path, **how)

    monkeypatch.setattr(lmdb, "open", noted)
    with storeds.open_backend(f"lmdb://{tmp_path}/s", layout="keyed", **options) as backend:
        assert len(backend.get_many(range(8))) == 8
        assert opened[-1] is wanted


def test_no_layout_fits_native_stores_and_other_files(tmp_path: Path) -> None:
    with storeds.open_writer(f"lmdb://{tmp_path}/n.lmdb", {"image": "image"}) as writer:
        writer.append([{"image": JPEGS[0]}])
    (tmp_path / "text").write_text("no store")
    put(tmp_path / "empty", [])
    put(tmp_path / "other", [(b"a", b"text"), (b"\xff\0", b"\0" * 9)])
    wrong = {
        "text": (FormatError, "not an lmdb store"),
        ".": (FormatError, r"data\.mdb"),
        "absent": (StoreNotFoundError, "no store at"),
    }
    for cls in LAYOUT_CLASSES.values():
        for name in ("n.lmdb", "empty", "other"):
            assert cls.guess_can_open(f"lmdb://{tmp_path}/{name}") is None
        for name, (kind, why) in wrong.items():
            with pytest.raises(kind, match=why):
                cls.guess_can_open(f"lmdb://{tmp_path}/{name}")
        with pytest.raises(ConfigError, match="no_such"):
            cls.guess_can_open(f"lmdb://{tmp_path}/empty", no_such=1)
    with storeds.open_backend(f"lmdb://{tmp_path}/n.lmdb") as native:
        native.get_many([0])
        assert KeyedLmdb.guess_can_open(native.url) is None
        with pytest.raises(FormatError, match="native store"):
            KeyedLmdb(native.url)


def test_pyarrow_stores_raise_an_error_with_advice(tmp_path: Path) -> None:
    url = f"lmdb://{pyarrow(tmp_path / 's')}"
    assert "pyarrow.serialize" in (PyarrowLmdb.guess_can_open(url) or "")
    for layout in (None, "pyarrow", "pickled", "tensorpack"):
        with pytest.raises(FormatError, match=r"pyarrow\.serialize.*write the store again.*pyarrow==11"):
            storeds.open_backend(url, layout=layout)


def test_the_key_index_is_built_once_and_gives_positions(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"lmdb://{CASES['keyed'].write(tmp_path / 's')}"
    with KeyedLmdb(url) as backend:
        assert backend.keys().tolist() == [key for key, _ in NAMED]
        asked = [NAMED[n][0] for n in (4, 0, 4)]
        assert backend.positions(asked).tolist() == [4, 0, 4]
        with pytest.raises(ConfigError, match="nowhere"):
            backend.positions(["nowhere"])
        state = pickle.dumps(backend)
        backend.get_many([0])
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(KeyedLmdb, "_find_keys", None)
        KeyedLmdb(url).close()
    for file in cache.iterdir():  # somebody cleans up: the keys are found again
        file.write_bytes(file.read_bytes()[:-8])
    with pickle.loads(state) as twin:
        assert twin.get_many([3], ["key"]) == [{"key": NAMED[3][0]}]
    with OcrLmdb(f"lmdb://{CASES['ocr'].write(tmp_path / 'o')}") as backend:
        assert backend.positions(["image-000000002"]).tolist() == [1]


def test_a_changed_store_raises_unavailable_error(tmp_path: Path) -> None:
    path = CASES["keyed"].write(tmp_path / "s")
    with KeyedLmdb(f"lmdb://{path}") as backend:
        before = backend.meta
        put(path, [(b"zzz", JPEGS[0])], folder=False)
        with pytest.raises(UnavailableError, match="changed"):
            backend.get_many([0])
        with KeyedLmdb(f"lmdb://{path}") as again:
            assert len(again) == COUNT + 1
            assert again.meta.id != before.id


def test_kinds_are_inferred_from_most_records(tmp_path: Path) -> None:
    values = [(b"\0damaged" if n == 0 else JPEGS[n], n if n % 2 else n + 0.5, None, [n]) for n in NUMBERS]
    with PickledLmdb(f"lmdb://{pickled(tmp_path / 's', values)}") as backend:
        assert backend.meta.fields == {
            "image": Field("image"),
            "value": Field("float"),
            "json0": Field("json"),
            "json1": Field("json"),
        }
        assert backend.get_many([1]) == [{"image": JPEGS[1], "value": 1.0, "json0": None, "json1": [1]}]
    with PickledLmdb(f"lmdb://{tmp_path}/s", fields="image:bytes,score,nothing,boxes", any_shape="true") as backend:
        assert list(backend.meta.fields) == ["image", "score", "nothing", "boxes"]
        assert backend.meta.fields["image"] == Field("bytes")
    for wrong in ("image", "a,b,c,d,e", "image:no,b,c,d", "A,b,c,d"):
        with pytest.raises(ConfigError, match="field"):
            PickledLmdb(f"lmdb://{tmp_path}/s", fields=wrong)


class TestReadingKit(ReadTests, PickleTests):
    """The conformance kit over pickled mappings, which hold every kind of field; it cannot be written to."""

    @pytest.fixture
    def make_url(self, tmp_path: Path) -> Callable[[], str]:
        numbers = iter(range(99))
        return lambda: f"lmdb://{tmp_path}/{next(numbers):02}"

    def open(self, url: str) -> Any:
        return storeds.open_backend(url, layout="pickled", fields=self.declared.get(url))

    def write(self, url: str, fields: Any, records: Any, **how: Any) -> Any:
        self.declared[url] = fields
        pickled(Path(url.removeprefix("lmdb://")), [dict(record) for record in records])
        with self.open(url) as backend:
            return backend.meta

    declared: dict[str, Any] = {}
    options = {"layout": "pickled"}

    test_a_pickle_reads_in_a_fresh_process = ProcessTests.test_a_pickle_reads_in_a_fresh_process
    test_a_forked_child_reads = ProcessTests.test_a_forked_child_reads_with_its_parents_backend


def test_fields_selects_entries_of_mappings(tmp_path: Path) -> None:
    path = pickled(tmp_path / "s", [{"Image": JPEGS[n], "Class ID": n, 3: 0.5} for n in range(4)])
    with PickledLmdb(f"lmdb://{path}") as backend:
        assert backend.get_many([2]) == [{"image": JPEGS[2], "class_id": 2, "f3": 0.5}]
    with PickledLmdb(f"lmdb://{path}", fields="class_id:float,image") as backend:
        assert backend.get_many([2]) == [{"class_id": 2.0, "image": JPEGS[2]}]
    with pytest.raises(ConfigError, match="no entry 'imgae'.*'image'"):
        PickledLmdb(f"lmdb://{path}", fields="imgae")


@pytest.mark.parametrize("name", ["tuples", "tensorpack-pickle", "ocr", "keyed", "datum-raw"])
def test_positions_finds_records_by_key(name: str, tmp_path: Path) -> None:
    with opened(CASES[name], tmp_path / "s") as backend:
        finder: SupportsKeys = backend  # as the type checker sees it
        assert isinstance(backend, SupportsKeys)
        keys = finder.keys().tolist()
        assert len(set(keys)) == COUNT
        assert finder.positions([keys[3], keys[0], keys[3]]).tolist() == [3, 0, 3]
        assert finder.positions([]).tolist() == []


def test_native_stores_do_not_support_keys(tmp_path: Path) -> None:
    with storeds.open_writer(f"lmdb://{tmp_path}/n.lmdb", {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with storeds.open_backend(f"lmdb://{tmp_path}/n.lmdb") as native:
        assert not isinstance(native, SupportsKeys)


def test_the_key_index_is_neither_mapped_nor_kept_open(tmp_path: Path, cache: Path) -> None:
    entries = ((b"%07d.jpg" % n, JPEGS[0][:64]) for n in range(100_000))
    url = f"lmdb://{put(tmp_path / 's', entries)}"
    with KeyedLmdb(url) as backend:
        (index,) = cache.iterdir()
        assert index.stat().st_size > 1_800_000
        asked = np.random.default_rng(0).integers(0, 100_000, 3000).tolist()
        expected = [f"{n:07}.jpg" for n in asked]
        assert [record["key"] for record in backend.get_many(asked, ["key"]) if isinstance(record, dict)] == expected
        assert str(index) not in Path("/proc/self/maps").read_text()
        open_files = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
        assert str(index) not in open_files
        assert len(pickle.dumps(backend)) < 2048


def test_keys_stay_in_memory_without_a_writable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "file" / "cache"))
    with opened(CASES["keyed"], tmp_path / "s") as backend:
        truth = [digest(CASES["keyed"].record(n)) for n in NUMBERS]
        for each in (backend, pickle.loads(pickle.dumps(backend))):
            assert [digest(record) for record in each.get_many(NUMBERS)] == truth


DESCRIPTIONS: dict[str, tuple[Any, Any]] = {
    "vector": (np.arange(3.0), [0.0, 1.0, 2.0]),
    "matrix": (np.eye(2, dtype=np.int64), [[1, 0], [0, 1]]),
    "no values": (np.zeros(0), []),
    "one value": (np.array([5]), [5]),
    "no dimensions": (np.array(5), 5),
    "in a mapping": ({"rgb": np.arange(3)}, {"rgb": [0, 1, 2]}),
}


@pytest.mark.parametrize("key", ["mean", "class_to_idx"])
@pytest.mark.parametrize("sort", ["pickles", "pictures", "json"])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_may_be_an_array(tmp_path: Path, name: str, sort: str, key: str) -> None:
    value, expected = DESCRIPTIONS[name]
    values = {
        "pickles": [pickle.dumps((blob, n)) for n, blob in enumerate(JPEGS[:4])],
        "pictures": JPEGS[:4],
        "json": [b'{"x": %d}' % n for n in range(4)],
    }[sort]
    records = [(b"%08d" % n, each) for n, each in enumerate(values)]
    path = put(tmp_path / "s", [*records, (key.encode(), pickle.dumps(value))])
    with storeds.open_backend(path) as backend:
        assert (len(backend), backend.meta.attrs) == (4, {key: expected})
