"""LMDB stores of other tools, each read against what was written: by hash, in any order, in workers, and converted."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import storeds
from _foreign_lmdb import (
    basicsr,
    caffe,
    datum,
    encoded,
    numpy_to_msgpack,
    ocr,
    pickled,
    put,
    pyarrow,
    tensorpack,
)
from storeds import StoreDataset
from storeds.errors import ConfigError, FormatError, UnavailableError
from storeds.layouts._lmdb_base import ForeignLmdb
from storeds.layouts.lmdb_caffe import CaffeLmdb
from storeds.layouts.lmdb_images import KeyedLmdb, OcrLmdb
from storeds.layouts.lmdb_pickled import PickledLmdb
from storeds.layouts.lmdb_pyarrow import PyarrowLmdb
from storeds.layouts.lmdb_tensorpack import TensorpackLmdb
from storeds.protocols import Field
from storeds.registry import LAYOUTS
from storeds.testing._processes import PickleTests, ProcessTests
from storeds.testing._reads import ReadTests
from storeds.testing._values import fingerprint

LAYOUT_CLASSES: dict[str, type[ForeignLmdb]] = {
    cls.layout: cls for cls in (PickledLmdb, TensorpackLmdb, OcrLmdb, KeyedLmdb, CaffeLmdb, PyarrowLmdb)
}
for _name, _class in LAYOUT_CLASSES.items():
    if f"lmdb/{_name}" not in LAYOUTS.names():
        storeds.register_layout("lmdb", _name, _class)

COUNT = 24
NUMBERS = range(COUNT)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (3, 4, 5), np.uint8)


def vary(number: int) -> np.ndarray[Any, Any]:
    return np.full((2, 1 + number % 3), number, ">f4")


@dataclass(frozen=True)
class Case:
    """A way to write a store, the layout that reads it, and what its records then are."""

    layout: str
    write: Callable[[Path], Path]
    record: Callable[[int], dict[str, Any]]
    options: dict[str, Any] | None = None


JPEGS = [encoded(number) for number in NUMBERS]
PNGS = [encoded(number, "PNG") for number in NUMBERS]
NAMED = sorted((f"lsun/{n * 37 % 101:03}/é{n}.jpg", JPEGS[n]) for n in NUMBERS)

CASES = {
    "tuples": Case(
        "pickled",
        lambda path: pickled(path, [(JPEGS[n], n * 7 % 13) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "label": n * 7 % 13},
    ),
    "old-pickles-in-one-file": Case(
        "pickled",
        lambda path: pickled(path, [(JPEGS[n], float(n), f"é{n}") for n in NUMBERS], protocol=2, folder=False),
        lambda n: {"image": JPEGS[n], "score": float(n), "text": f"é{n}"},
        {"fields": "image,score,text"},
    ),
    "bare-arrays": Case(
        "pickled", lambda path: pickled(path, [picture(n) for n in NUMBERS]), lambda n: {"array": picture(n)}
    ),
    "tuples-of-arrays": Case(
        "pickled",
        lambda path: pickled(path, [(vary(n), np.arange(4) * n, picture(n).T) for n in NUMBERS]),
        lambda n: {"low": vary(n).astype("<f4"), "mid": np.arange(4) * n, "ref": np.ascontiguousarray(picture(n).T)},
        {"fields": ["low", "mid", "ref"]},
    ),
    "mappings-in-a-named-database": Case(
        "pickled",
        lambda path: pickled(path, [{"Image": JPEGS[n], "Boxes": [[n, 1.5]]} for n in NUMBERS], database=b"train"),
        lambda n: {"image": JPEGS[n], "boxes": [[n, 1.5]]},
        {"database": "train"},
    ),
    "pickles-alone": Case(
        "pickled",
        lambda path: put(path, [(b"%06d" % n, pickle.dumps([n, bool(n % 2)])) for n in NUMBERS]),
        lambda n: {"label": n, "flag": bool(n % 2)},
    ),
    "ocr": Case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"wörd {n}") for n in NUMBERS]),
        lambda n: {"image": PNGS[n], "label": f"wörd {n}"},
    ),
    "ocr-without-labels": Case(
        "ocr", lambda path: ocr(path, [(PNGS[n], None) for n in NUMBERS]), lambda n: {"image": PNGS[n]}
    ),
    "keyed": Case(
        "keyed",
        lambda path: put(path, [(key.encode(), blob) for key, blob in NAMED[::-1]], folder=False),
        lambda n: {"image": NAMED[n][1], "key": NAMED[n][0]},
    ),
    "basicsr": Case(
        "keyed",
        lambda path: basicsr(
            path, {f"{(n * 7) % COUNT:04}_s n.png": PNGS[n] for n in range(1, COUNT)} | {"x.png": PNGS[0]}
        ),
        lambda n: (
            {"image": PNGS[n + 1], "key": f"{((n + 1) * 7) % COUNT:04}_s n"}
            if n < COUNT - 1
            else {"image": PNGS[0], "key": "x"}
        ),
    ),
    "datum-encoded": Case(
        "caffe",
        lambda path: caffe(path, [datum(JPEGS[n], n - 3, encoded=True) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "label": n - 3, "key": f"{n:08}_n{n}.jpg"},
    ),
    "datum-raw": Case(
        "caffe",
        lambda path: caffe(path, [datum(picture(n).tobytes(), n, (3, 4, 5)) for n in NUMBERS]),
        lambda n: {"pixels": picture(n), "class_id": n, "name": f"{n:08}_n{n}.jpg"},
        {"fields": "pixels,class_id,name"},
    ),
    "datum-floats": Case(
        "caffe",
        lambda path: caffe(
            path, [datum(label=n, shape=(1, 1, n % 2 + 1), floats=[0.5] * (n % 2 + 1), packed=n > 9) for n in NUMBERS]
        ),
        lambda n: {"array": np.full((1, 1, n % 2 + 1), 0.5, "f4"), "label": n, "key": f"{n:08}_n{n}.jpg"},
    ),
    "tensorpack-pickle": Case(
        "tensorpack",
        # As its ILSVRC12 files: the encoded bytes lie in an array.
        lambda path: tensorpack(path, [[np.frombuffer(JPEGS[n], np.uint8), n] for n in NUMBERS], pickle.dumps),
        lambda n: {"image": JPEGS[n], "label": n},
    ),
    "tensorpack-msgpack": Case(
        "tensorpack",
        lambda path: tensorpack(path, [[picture(n), np.int64(n)] for n in NUMBERS], numpy_to_msgpack, folder=False),
        lambda n: {"array": picture(n), "label": n},
    ),
}


@pytest.fixture(params=CASES, name="case")
def _case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def opened(case: Case, path: Path) -> ForeignLmdb:
    return LAYOUT_CLASSES[case.layout](f"lmdb://{case.write(path)}", **(case.options or {}))


def digest(sample: Any) -> str:
    return hashlib.sha256(pickle.dumps(fingerprint([sample]))).hexdigest()


def same(sample: Any) -> Any:
    return sample  # module-level, so that spawned workers can import it


def test_every_record_in_two_orders_and_with_duplicates(case: Case, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["tuples", "keyed", "datum-raw", "tensorpack-msgpack"])
def test_two_spawned_workers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    backend = opened(case, tmp_path / "s")
    dataset = StoreDataset(backend, reader="array", fields=list(backend.meta.fields), as_dict=True)
    dataset[0]
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=5, num_workers=2, multiprocessing_context="spawn", collate_fn=same
    )
    records = [{k: np.asarray(v) for k, v in sample.items()} for batch in loader for sample in batch]
    expected = [{k: np.asarray(v) for k, v in case.record(n).items()} for n in NUMBERS]
    assert [repr(record) for record in records] == [repr(record) for record in expected]
    backend.close()


def test_convert_and_verify(case: Case, tmp_path: Path) -> None:
    url = f"lmdb://{case.write(tmp_path / 's')}"
    engine = "hdf5" if case.layout in ("ocr", "caffe") else "lmdb"
    target = f"{engine}://{tmp_path}/native.{engine}"
    storeds.convert(url, target, layout=case.layout, options=case.options)
    assert storeds.verify(target, workers=0).findings == []
    with storeds.open_backend(target) as backend:
        assert [digest(record) for record in backend.get_many(NUMBERS)] == [digest(case.record(n)) for n in NUMBERS]


def test_exactly_its_own_layout_recognises_a_store(case: Case, tmp_path: Path) -> None:
    url = f"lmdb://{case.write(tmp_path / 's')}"
    database = {"database": "train"} if case.options and "database" in case.options else {}
    seen = {name: why for name, cls in LAYOUT_CLASSES.items() if (why := cls.recognise(url, **database))}
    assert list(seen) == [case.layout]
    assert all(isinstance(why, str) and why for why in seen.values())
    with storeds.open_backend(url, **(case.options or {})) as backend:
        assert backend.meta.layout == case.layout


def test_a_store_in_use_is_recognised_and_opened_again(tmp_path: Path) -> None:
    case = CASES["old-pickles-in-one-file"]
    url = f"lmdb://{case.write(tmp_path / 's')}"
    for readahead in (False, True):
        with PickledLmdb(url, readahead=readahead) as one:
            one.get_many([0])
            assert PickledLmdb.recognise(url)
            with storeds.open_backend(url, layout="pickled", readahead=readahead) as two:
                assert digest(two.get_many([1])) == digest(one.get_many([1]))
    with PickledLmdb(url) as one:
        one.get_many([0])
        with storeds.open_backend(url) as two:  # a native store is tried first
            assert len(two) == COUNT


def test_native_stores_and_other_things_are_not_recognised(tmp_path: Path) -> None:
    with storeds.open_writer(f"lmdb://{tmp_path}/n.lmdb", {"image": "image"}) as writer:
        writer.append([{"image": JPEGS[0]}])
    (tmp_path / "text").write_text("no store")
    put(tmp_path / "empty", [])
    put(tmp_path / "other", [(b"a", b"text"), (b"\xff\0", b"\0" * 9)])
    for name in ("n.lmdb", "text", "empty", "other", "absent", "."):
        for cls in LAYOUT_CLASSES.values():
            assert cls.recognise(f"lmdb://{tmp_path}/{name}") is None
            assert cls.recognise(f"lmdb://{tmp_path}/{name}", no_such=1) is None
    with storeds.open_backend(f"lmdb://{tmp_path}/n.lmdb") as native:
        native.get_many([0])
        assert KeyedLmdb.recognise(native.url) is None
        with pytest.raises(FormatError, match="native store"):
            KeyedLmdb(native.url)


def test_pyarrow_is_named_with_what_to_do(tmp_path: Path) -> None:
    url = f"lmdb://{pyarrow(tmp_path / 's')}"
    assert "pyarrow.serialize" in (PyarrowLmdb.recognise(url) or "")
    for layout in (None, "pyarrow", "pickled", "tensorpack"):
        with pytest.raises(FormatError, match=r"pyarrow\.serialize.*write the store anew.*pyarrow==11"):
            storeds.open_backend(url, layout=layout)


def test_keys_are_found_once_and_lead_to_positions(
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


def test_a_store_that_changed_is_told(tmp_path: Path) -> None:
    path = CASES["keyed"].write(tmp_path / "s")
    with KeyedLmdb(f"lmdb://{path}") as backend:
        before = backend.meta
        put(path, [(b"zzz", JPEGS[0])], folder=False)
        with pytest.raises(UnavailableError, match="changed"):
            backend.get_many([0])
        with KeyedLmdb(f"lmdb://{path}") as again:
            assert len(again) == COUNT + 1
            assert again.meta.id != before.id


def test_kinds_follow_what_most_records_hold(tmp_path: Path) -> None:
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


def test_entries_of_mappings_may_be_chosen(tmp_path: Path) -> None:
    path = pickled(tmp_path / "s", [{"Image": JPEGS[n], "Class ID": n, 3: 0.5} for n in range(4)])
    with PickledLmdb(f"lmdb://{path}") as backend:
        assert backend.get_many([2]) == [{"image": JPEGS[2], "class_id": 2, "f3": 0.5}]
    with PickledLmdb(f"lmdb://{path}", fields="class_id:float,image") as backend:
        assert backend.get_many([2]) == [{"class_id": 2.0, "image": JPEGS[2]}]
    with pytest.raises(ConfigError, match="no entry 'imgae'.*'image'"):
        PickledLmdb(f"lmdb://{path}", fields="imgae")
