"""LMDB environments of other tools: patterns, descriptions, values, damage; everything else is a clear error."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lmdb
import lz4.frame
import msgspec
import numpy as np
import pytest
import torch

import storeds
from _foreign_lmdb import (
    COUNT,
    JPEGS,
    LMDB,
    Raw,
    Runs,
    aselmdb,
    atoms,
    basicsr,
    caffe,
    datum,
    numbered,
    numpy_to_msgpack,
    ocr,
    open_catalyst,
    pickled,
    put,
    records_of,
    tensorpack,
)
from _layout_case import Refusal, lines_of
from shares import FULL, SEED
from storeds.errors import (
    ConfigError,
    FormatError,
    MissingDependencyError,
    RecordError,
    StoredsError,
    StoreNotFoundError,
    UnavailableError,
)
from storeds.protocols import Field
from storeds.records.columns import read_column
from storeds.registry import LAYOUTS
from storeds.testing import fingerprint

PACK: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "storeds"


def faults(url: Any, **options: Any) -> dict[int, str]:
    """Return position → what is wrong, and check that the others read."""
    with storeds.open_backend(url, **options) as backend:
        found = backend.get_many(range(len(backend)))
    return {at: item.reason for at, item in enumerate(found) if isinstance(item, RecordError)}


# Patterns.


def pairs(path: Path, count: int = 4) -> Path:
    parts = {"image": JPEGS.__getitem__, "mask": JPEGS[::-1].__getitem__, "info": lambda n: b'{"id": %d}' % n}
    return put(path, [(f"{n:04}_{name}".encode(), part(n)) for n in range(count) for name, part in parts.items()])


PATTERNS: dict[str, tuple[Callable[[Path], Path], dict[str, Any], list[dict[str, Any]]]] = {
    "entries that share a name": (
        pairs,
        {"image": "{}_image", "mask": "{}_mask", "info": "{}_info"},
        [{"image": JPEGS[n], "mask": JPEGS[::-1][n], "info": {"id": n}, "key": f"{n:04}"} for n in range(4)],
    ),
    "classes": (
        lambda path: put(path, [(b"dog/1", JPEGS[0]), (b"cat/1", JPEGS[1]), (b"cat/2/x", JPEGS[2])]),
        {"image": "{label}/{}"},
        [
            {"image": JPEGS[n], "label": label, "key": key}
            for n, label, key in ((1, 0, "1"), (2, 0, "2/x"), (0, 1, "1"))
        ],
    ),
    "numbers without zeros": (
        lambda path: put(path, [(b"%d/%d" % (v, f), b"%d" % (v * f)) for v in (2, 10) for f in (9, 10)]),
        {"product": "{video}/{frame}"},
        [{"product": v * f, "video": v, "frame": f} for v in (2, 10) for f in (9, 10)],
    ),
    "a closer place": (
        lambda path: put(path, [(b"a", JPEGS[0]), (b"a.txt", b"1a"), (b"b", JPEGS[1]), (b"b.txt", b"2")]),
        {"image": "{}", "text": "{}.txt"},
        [{"image": JPEGS[0], "text": "1a", "key": "a"}, {"image": JPEGS[1], "text": "2", "key": "b"}],
    ),
    "a shared value": (
        lambda path: put(path, [(b"img/1", JPEGS[0]), (b"img/2", JPEGS[1]), (b"version", b"7")]),
        {"image": "img/{}", "version": "version"},
        [{"image": JPEGS[n], "version": 7, "key": f"{n + 1}"} for n in (0, 1)],
    ),
    "a declared kind": (
        lambda path: put(path, [(b"a", b"1"), (b"b", b"2")]),
        {"code": {"path": "{}", "kind": "str"}},
        [{"code": "1", "key": "a"}, {"code": "2", "key": "b"}],
    ),
    "all parts": (
        lambda path: put(path, [(b"x", pickle.dumps((JPEGS[0], 1)))]),
        {"*": "{}"},
        [{"image": JPEGS[0], "label": 1, "key": "x"}],
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_reads(name: str, tmp_path: Path) -> None:
    write, columns, records = PATTERNS[name]
    path = write(tmp_path / "s")
    assert records_of(f"lmdb://{path}", columns=columns) == records
    with storeds.open_backend(path, columns=columns) as backend:
        assert (backend.meta.layout, storeds.info(str(path), options={"columns": columns}).unread) == ("columns", [])
        assert pickle.loads(pickle.dumps(backend)).get_many([0]) == records[:1]


def test_what_a_pattern_does_not_match_is_reported_and_a_missing_entry_is_a_record_error(tmp_path: Path) -> None:
    path = pairs(tmp_path / "s")
    url = f"lmdb://{path}?columns=image:{{}}_image,info:{{}}_info"
    assert storeds.info(url).unread == [f"key '{n:04}_mask': an image of {len(JPEGS[::-1][n])} bytes" for n in range(4)]
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.delete(b"0002_info")
    assert faults(url) == {2: "its key '0002_info' is missing from the database"}


# Entries that are not records.


@pytest.mark.parametrize(
    ("key", "count"),
    [("__len__", pickle.dumps(6, 0)), ("length", b"6"), ("num_samples", pickle.dumps(6))],
    ids=["__len__", "length", "num_samples"],
)
def test_a_count_in_any_form_is_checked_and_no_record(key: str, count: bytes, tmp_path: Path) -> None:
    values = [pickle.dumps((JPEGS[n], n)) for n in range(6)]
    assert records_of(numbered(tmp_path / "s", values, {key: count})) == [
        {"image": JPEGS[n], "label": n} for n in range(6)
    ]
    with pytest.raises(FormatError, match=f"{key} says 9 records, so 10 entries are expected, and it has 7"):
        storeds.open_backend(numbered(tmp_path / "t", values, {key: b"9"}))


@pytest.mark.parametrize(
    ("sort", "key", "value", "expected"),
    [
        ("pickles", "mean", np.eye(2, dtype=np.int64), [[1, 0], [0, 1]]),
        ("pictures", "class_to_idx", np.zeros(0), []),
        ("json", "mean", {"rgb": np.arange(3)}, {"rgb": [0, 1, 2]}),
        ("pickles", "class_to_idx", np.zeros(0), []),
    ],
)
def test_a_description_may_be_an_array(tmp_path: Path, value: Any, expected: Any, sort: str, key: str) -> None:
    values = {
        "pickles": [pickle.dumps((blob, n)) for n, blob in enumerate(JPEGS[:4])],
        "pictures": JPEGS[:4],
        "json": [b'{"x": %d}' % n for n in range(4)],
    }[sort]
    for start in (b"", b"name"):
        path = put(tmp_path / f"s{start!r}", [(start + b"%08d" % n, each) for n, each in enumerate(values)])
        put(path, [(key.encode(), pickle.dumps(value))])
        with storeds.open_backend(path) as backend:
            assert (len(backend), backend.meta.attrs) == (4, {key: expected})


def test_class_names_and_unread_descriptions(tmp_path: Path) -> None:
    more = {"classes": pickle.dumps(["cat", "dog"]), "length": b"6", "mean": bytes(3)}
    more["preview"] = pickle.dumps(JPEGS[0])
    dataset = storeds.StoreDataset(
        url := numbered(tmp_path / "s", [pickle.dumps((JPEGS[n], n % 2)) for n in range(6)], more)
    )
    assert (len(dataset), dataset.classes, dataset.targets) == (6, ["cat", "dog"], [0, 1] * 3)
    assert [entry.partition(":")[0] for entry in storeds.info(url).unread] == ["key 'mean'", "key 'preview'"]
    images = {b"ape.jpg": JPEGS[0], b"info": JPEGS[1], b"owl.jpg": JPEGS[2]}
    put(tmp_path / "t", {**images, b"classes": pickle.dumps(["a", "b"]), b"length": b"3"}.items())
    with storeds.open_backend(tmp_path / "t") as backend:  # an image is no description, whatever its name
        keys = read_column(backend, "key").tolist()
        assert (keys, backend.meta.attrs) == (["ape.jpg", "info", "owl.jpg"], {"classes": ["a", "b"]})
    put(tmp_path / "u", images.items())
    assert storeds.info(f"lmdb://{tmp_path}/u?exclude=info").unread == ["key 'info': excluded by exclude="]


def word_vectors(n: int) -> bytes:
    return pickle.dumps(np.full(5, n, "f4"))


WORDS_OF: dict[str, Callable[[int], bytes]] = {
    "arrays": word_vectors,
    "mappings": lambda n: pickle.dumps({"features": np.full((n + 1, 4), n, "f4"), "boxes": n}),
    "pictures": lambda n: JPEGS[n],
    "json": lambda n: b'{"a": %d}' % n,
    "msgpack": lambda n: PACK({"a": n}),
    "texts": lambda n: b"word %d" % n,
    "bytes": lambda n: bytes([254, n]) * 40,
}


COUNTS = ("length", "num-samples", "num_examples", "count", "size", "total")


@pytest.mark.parametrize("form", WORDS_OF)
def test_an_entry_that_reads_as_the_records_is_one_whatever_its_name(tmp_path: Path, form: str) -> None:
    names = sorted([*("ape", "dog", "owl", "mean", "std", "ids", "index", "names", "keys"), *COUNTS, "classes", "meta"])
    put(tmp_path / "s", [(name.encode(), WORDS_OF[form](n)) for n, name in enumerate(names)])
    given: dict[str, Any] = {"columns": {"value": "{}"}} if form in ("texts", "bytes", "msgpack") else {}
    with storeds.open_backend(tmp_path / "s", **given) as backend:
        found = [*backend.keys()]  # type: ignore[attr-defined]
    assert (found, faults(tmp_path / "s", **given)) == (names, {})


LISTINGS: dict[str, Callable[[list[bytes]], bytes]] = {
    "pickle": pickle.dumps,
    "texts in a pickle": lambda keys: pickle.dumps([key.decode() for key in keys]),
    "json": lambda keys: json.dumps([key.decode() for key in keys]).encode(),
    "msgpack": PACK,
    "array": lambda keys: pickle.dumps(np.array(keys)),
}


@pytest.mark.parametrize(
    ("form", "listing"), [*zip(("arrays", "mappings", "pictures", "json", "arrays"), LISTINGS, strict=True)]
)
def test_an_entry_that_lists_the_keys_of_all_records_gives_their_order(tmp_path: Path, form: str, listing: str) -> None:
    keys = [b"b%d" % (n * 7 % 10) for n in range(10)]
    entries = [(key, WORDS_OF[form](n)) for n, key in enumerate(keys)]
    for name in ("keys", "ids"):
        put(tmp_path / name, [*entries, (name.encode(), LISTINGS[listing](keys)), (b"length", b"10")])
        backend: Any
        with storeds.open_backend(tmp_path / name) as backend:
            assert ([*backend.keys()], storeds.info(str(tmp_path / name)).unread) == (
                [key.decode() for key in keys],
                [],
            )
    put(tmp_path / "part", [*entries, (b"keys", LISTINGS[listing](keys[:9]))])
    with storeds.open_backend(tmp_path / "part", columns={"value": {"path": "{}", "kind": "bytes"}}) as backend:
        assert len(backend) == 11  # a list of some keys may mean anything


def test_other_databases_are_reported(tmp_path: Path) -> None:
    put(tmp_path / "s", [(b"%d" % n, JPEGS[n]) for n in range(6)])
    put(tmp_path / "s", [(b"%d" % n, b"3") for n in range(4)], database=b"labels")
    assert storeds.info(f"{tmp_path}/s").unread == ["database 'labels'; database='labels' reads it"]
    assert len(storeds.open_backend(tmp_path / "s")) == 6


# Values.


def test_kinds_are_inferred_from_most_records(tmp_path: Path) -> None:
    values = [(b"\0damaged" if n == 0 else JPEGS[n], n if n % 2 else n + 0.5, None, [n]) for n in range(COUNT)]
    with storeds.open_backend(pickled(tmp_path / "s", values)) as backend:
        numbers = Field("array", "<i8", (1,))
        fields = {"image": Field("image"), "value": Field("float"), "json": Field("json"), "array": numbers}
        assert backend.meta.fields == fields
        assert backend.get_many([1]) == [{"image": JPEGS[1], "value": 1.0, "json": None, "array": np.array([1])}]


def test_entries_of_mappings_hide_no_other_field(tmp_path: Path) -> None:
    path = pickled(tmp_path / "s", [{"T": n, "t": n + 0.5, b"t": "x", "label": n, "key": n} for n in range(3)])
    fields = {"t": 1.5, "t_2": "x", "t_3": 1, "label": 1, "key": 1}
    assert records_of(f"lmdb://{path}")[1] == fields
    for place, taken in (("{label}", "label"), ("{}", "key")):
        with pytest.raises(ConfigError, match=re.escape(f"{place} would take the name of the stored {taken!r}")):
            storeds.open_backend(path, columns={"*": place})
    with storeds.open_backend(
        path, columns={"*": "{number}", "label": {"path": "{number}", "kind": "bytes"}}
    ) as backend:
        assert {name: backend.meta.fields[name].kind for name in ("label", "label_2")} == {
            "label": "bytes",
            "label_2": "int",
        }


@pytest.mark.parametrize("depth", [90, 150, 3000])
def test_json_that_nests_too_deep_is_a_bad_record(depth: int, tmp_path: Path) -> None:
    deep = b'{"x": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    path = put(tmp_path / "s", [(b"%02d" % n, deep if n == 7 else b'{"x": {"a": 1}}') for n in range(20)])
    with storeds.open_backend(path, layout="json") as store:
        found = store.get_many(range(20))
    assert [isinstance(record, RecordError) for record in found] == [n == 7 and depth > 100 for n in range(20)]


def test_arrays_that_no_field_can_hold_are_reported_with_their_place(tmp_path: Path) -> None:
    ragged = {"boxes": {"of": [np.ones(1), np.ones(2)], "n": np.ones(2)}, "label": 3}
    path = numbered(tmp_path / "s", [pickle.dumps(ragged)] * 4)
    assert storeds.info(str(path)).unread == [
        "part 'boxes.of': no field can hold a list of arrays of several shapes or types"
    ]
    late = [pickle.dumps({"a": {"b": [n] if n != 33 else [np.ones(1)]}, "label": n}) for n in range(100)]
    assert faults(numbered(tmp_path / "t", late)) == {33: "it holds an array, unlike the others"}


@pytest.mark.parametrize("form", ["pickle", "json", "msgpack"])
def test_nan_and_infinities_make_no_record_bad(tmp_path: Path, form: str) -> None:
    dump: Callable[[Any], bytes] = {
        "pickle": pickle.dumps,
        "json": lambda value: json.dumps(value).encode(),
        "msgpack": PACK,
    }[form]
    values = [{"a": {"b": [math.nan if n == 33 else 1.5, "x"]}, "c": math.inf} for n in range(100)]
    path = numbered(tmp_path / "s", [dump(value) for value in values])
    assert str(records_of(path, **({"layout": "msgpack"} if form == "msgpack" else {}))) == str(values)


def test_atoms_and_a_damaged_array_in_json(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"numbers": [1] * n, "cell": {"__ndarray__": [[n], "int64", [5] * n]}, "energy": -1.5 * n} for n in (2, 4, 3)
    ]
    url = aselmdb(tmp_path / "val.aselmdb", rows)
    with storeds.open_backend(url) as backend:
        assert backend.meta.attrs == {"nextid": 4, "deleted_ids": [], "metadata": {"title": "atoms"}}
        assert [record["cell"].tolist() for record in records_of(url)] == [[5] * n for n in (2, 4, 3)]
    for number, wrong in enumerate(
        ([[9], "int64", [1]], [[1], "O", [None]], [[1], "<U3", ["a"]], [3], "x", 7, [[1], "f8", [{}]])
    ):
        many = [*rows * 20, {**rows[0], "cell": {"__ndarray__": wrong}}, rows[0]]
        assert list(faults(aselmdb(tmp_path / f"{number}", many))) == [60]


@pytest.mark.parametrize("version", [1, 2])
def test_graphs_of_open_catalyst_are_read_by_the_example(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a layout of a plug-in; the library names the class that its unpickler refuses."""
    monkeypatch.setattr(LAYOUTS, "_known", dict(LAYOUTS._known))
    url = open_catalyst(tmp_path / "is2re.lmdb", 12, version)
    with pytest.raises(ConfigError, match=r"the pickle names torch_geometric\.data\.data\.Data"):
        storeds.open_backend(url)
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "open_catalyst.py"))
    with storeds.open_backend(url, layout="open_catalyst") as backend:
        assert backend.meta.fields["pos"] == Field("array", "<f4", (None, None))
        for number, record in zip((7, 0, 7), backend.get_many([7, 0, 7]), strict=True):
            truth, found = atoms(number), cast("dict[str, Any]", record)
            assert found.keys() == truth.keys()
            assert all(np.array_equal(found[name], np.asarray(value)) for name, value in truth.items())
    with pytest.raises(KeyError, match="system"):
        example["entries_of"](pickle.dumps({"x": Runs(os.system, "touch harmed")}))


# Stores that do not open, and the lines of their errors.


ANY = {"columns": {"value": "{}"}}
UNDECIDED: dict[str, tuple[Callable[[Path], Any], list[dict[str, Any]]]] = {
    "text": (lambda path: put(path, [(b"foo", b"bar"), (b"z", b"baz")]), [ANY]),
    "pairs": (
        lambda path: put(path, [(b"%d_%s" % (n, part), JPEGS[n]) for n in range(4) for part in (b"img", b"seg")]),
        [{"columns": {"img": "{}_img", "seg": "{}_seg"}}, {"layout": "keyed"}, ANY],
    ),
    "a damaged image": (
        lambda path: put(path, [(b"n%d" % n, b"\0" * 9 if n == 3 else JPEGS[n]) for n in range(9)]),
        [{"layout": "keyed"}, ANY],
    ),
    "in a database": (lambda path: put(path, [(b"foo", b"bar")], database=b"train"), [{"database": "train", **ANY}]),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_an_uncertain_store_is_an_error_with_lines_that_work(name: str, tmp_path: Path) -> None:
    write, lines = UNDECIDED[name]
    path = write(tmp_path / "s")
    with pytest.raises(ConfigError, match="It holds:\n  '") as raised:
        storeds.open_backend(path, **({"database": "train"} if "database" in lines[0] else {}))
    assert lines_of(raised.value) == lines


def unplanned(seed: int, path: Path) -> Path:
    """Write a store that no tool writes: entries of two forms, under keys of any form."""
    draw = random.Random(seed)
    forms: list[Callable[[int], bytes]] = [
        lambda n: draw.randbytes(20),
        lambda n: b"word %d" % n,
        lambda n: JPEGS[n % COUNT],
        lambda n: pickle.dumps((JPEGS[n % COUNT], n)),
        lambda n: json.dumps({"x": n}).encode(),
        lambda n: msgspec.msgpack.encode([n, "x"]),
        lambda n: bytes(8) + bytes([n]),
    ]
    first, second = draw.sample(forms, 2)
    key = draw.choice([b"%d", b"%05d", b"k%d", b"a/%d", b"%d.bin", b"\xff%d"])
    return put(path, [(key % n, (first if n % 2 else second)(n)) for n in range(40)])


@pytest.mark.share(10)
@pytest.mark.parametrize("seed", range(50))
def test_an_unplanned_store_never_opens(seed: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        storeds.open_backend(unplanned(seed, tmp_path / "s"))
    assert lines_of(raised.value)


SAMPLES = [(JPEGS[n], n) for n in range(6)]
WORDS = [(JPEGS[n], f"w{n}") for n in range(4)]
LISTED = [b"%d" % n for n in range(8)]


def listed(**how: Any) -> Callable[[Path], Path]:
    return lambda path: pickled(path, SAMPLES, **how)


REFUSALS: list[Refusal] = [
    (listed(keys=LISTED[:3], said=6), {}, FormatError, "lists 3, so 5 entries are expected, and it has 8"),
    (listed(keys=LISTED, said=8), {}, FormatError, "says 8 records, so 10 entries are expected, and it has 8"),
    (listed(keys=Runs(os.system, "x")), {}, FormatError, r"__keys__ cannot be read.*system"),
    (listed(keys=[b"0", 1]), {}, FormatError, "__keys__ cannot be read: it is not a list of keys"),
    (lambda path: put(path, [(b"num-samples", b"many")]), {"layout": "ocr"}, FormatError, "no number of records"),
    (pairs, {"columns": {"image": "image_{}"}}, FormatError, "no key matches the place 'image_{}'.*'0000_image'"),
    (pairs, {"columns": {"image": "{}_image", "x": "{}_x"}}, FormatError, "no entry '0000_x'.* for 'x'"),
    (pairs, {"columns": {"image": "{}_image[]"}}, ConfigError, r"keys of LMDB have no \[\]"),
    (pairs, {"database": "x"}, ConfigError, "no database 'x'"),
    (lambda path: put(path, [(b"a", JPEGS[0])], database=b"t"), {}, ConfigError, "pass one of them: database='t'"),
    (lambda path: put(path, []), {}, FormatError, "it is empty"),
    (lambda path: pickled(path, []), {"layout": "pickled"}, FormatError, "no record from which to infer the fields"),
    (
        lambda path: pickled(path, [([JPEGS[0]] * (1 + n), n) for n in range(4)]),
        {},
        FormatError,
        r"part 0: no field can hold a list of bytes; columns=\{'value': .* reads the bytes",
    ),
    (lambda path: put(path, [(b"a", pickle.dumps(torch.nn.Linear(1, 1)))]), {}, ConfigError, r"linear\.Linear"),
    (lambda path: pickled(path, [{"pos": Runs(exec, "x")}] * 3), {"layout": "pickled"}, FormatError, r"builtins\.exec"),
    (lambda path: path, {}, StoreNotFoundError, "no store"),
]


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_refusals(number: int, tmp_path: Path) -> None:
    write, options, kind, words = REFUSALS[number]
    with pytest.raises(kind, match=words):
        storeds.open_backend(f"lmdb://{write(tmp_path / 's')}", **options)


def test_missing_lz4_native_and_cut_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "s", [(b"%d" % n, lz4.frame.compress(numpy_to_msgpack({"x": n}))) for n in range(3)])
    with monkeypatch.context() as patch, pytest.raises(MissingDependencyError, match="pip install lz4"):
        patch.setitem(sys.modules, "lz4.frame", None)
        storeds.open_backend(tmp_path / "s")
    with storeds.open_writer(f"lmdb://{tmp_path}/n.lmdb", {"image": "image"}) as writer:
        writer.append([{"image": JPEGS[0]}])
    with pytest.raises(ConfigError, match="is a native store"):
        storeds.open_backend(f"lmdb://{tmp_path}/n.lmdb", layout="keyed")
    cut = put(tmp_path / "cut", [(b"%d" % n, JPEGS[0] * 50) for n in range(50)], folder=False)
    os.truncate(cut, cut.stat().st_size // 2)
    with pytest.raises(FormatError, match="cut short"):
        storeds.open_backend(f"lmdb://{cut}")


# Damaged records.


def test_unreadable_records_are_record_errors(tmp_path: Path) -> None:
    deep = b"\x80\x02" + b"]" * 9000 + b"a" * 8999 + b"."
    values = [
        (1, 1),
        Raw(pickle.dumps((1, 2))[:-4]),
        (2, Runs(os.system, "x")),
        (3, 3),
        (1, 2, 3),
        Raw(deep),
        *[(7, 7)] * 9,
    ]
    bad = faults(pickled(tmp_path / "p", values), layout="pickled")
    assert sorted(bad) == [1, 2, 4, 5]
    assert ("system" in bad[2], "3 parts" in bad[4]) == (True, True)
    points = [[1, 2], Raw(b"\xc1"), Raw(b"\xdd\xff\xff\xff\xff"), Raw(b"\x91" * 150 + b"\xc0"), *[[3, 4]] * 9]
    bad = faults(tensorpack(tmp_path / "t", points, numpy_to_msgpack))
    assert (sorted(bad), bad[3]) == ([1, 2, 3], "refused: its msgpack nests deeper than 100 levels")
    whole = datum(bytes(12), 3, (3, 2, 2))
    wrong = [whole[:-3], whole[:9], b"", datum(bytes(11), 3, (3, 2, 2)), b"\xff" * 30, datum(JPEGS[0], 1, encoded=True)]
    messages = [whole] * 5 + [wrong.pop()] + [whole] * 200 + [part for each in wrong for part in (each, whole, whole)]
    assert sorted(faults(caffe(tmp_path / "c", messages), layout="caffe")) == [5, *range(206, 221, 3)]


def test_counts_that_do_not_fit_open_by_a_pattern(tmp_path: Path) -> None:
    """The error shows it. It reads the entries that are there, in the order of their keys."""
    images = {f"{n}.png": JPEGS[n] for n in range(4)}
    stores = [
        (pickled(tmp_path / "p", SAMPLES, keys=LISTED, said=9), 6),
        (ocr(tmp_path / "o", WORDS, said=5), 4),
        (basicsr(tmp_path / "few", images, listed=["0.png", "1.png"]), 4),
        (basicsr(tmp_path / "more", images, listed=[*images, "absent.png"]), 4),
    ]
    for path, count in stores:
        with pytest.raises(FormatError, match="does not match its own count") as raised:
            storeds.open_backend(path)
        columns = eval(str(raised.value).rpartition("columns=")[2])
        assert len(records_of(f"lmdb://{path}", columns=columns)) == count
    lexicon = put(ocr(tmp_path / "lexicon", WORDS), [(b"lexicon", b"x")])
    assert storeds.info(str(lexicon)).unread == ["key 'lexicon': 'x'"]


@pytest.mark.parametrize("name", ["tuples", "json-in-gzip-with-images-in-base64", "ocr"])
def test_mutated_stores_give_the_same_data_or_a_clear_error(name: str, tmp_path: Path) -> None:
    """In a full run, 150 times: values are changed, cut and swapped. Records of entries that stay read as before."""
    case, draw = LMDB[name], random.Random(f"{SEED} {name}")
    source = tmp_path / "s"
    truth = {fingerprint([record]) for record in case.write(source)}
    with lmdb.open(str(source), readonly=True, lock=False) as env, env.begin() as txn:
        entries = dict(txn.cursor())
    with storeds.open_backend(source) as backend:
        fields = backend.meta.fields
    for number in range(150 if FULL else 25):
        changed = dict(entries)
        for key in draw.sample([*entries], 2):
            value = entries[key]
            at = draw.randrange(len(value))
            flipped = bytes([value[at] ^ 1 << draw.randrange(8)])
            other = entries[draw.choice([*entries])]
            changes = [value[:at] + flipped + value[at + 1 :], value[:at], other, draw.randbytes(draw.randrange(30))]
            changed[key] = draw.choice(changes)
        path = put(tmp_path / str(number), changed.items())
        for options in ({}, {"layout": case.layout}):
            try:
                with storeds.open_backend(path, **options) as backend:
                    found = backend.get_many(range(len(backend)))
            except StoredsError as error:
                assert "Traceback" not in str(error)
                continue
            others = [row for row in found if not isinstance(row, RecordError) and fingerprint([row]) not in truth]
            assert len(others) <= 2 or backend.meta.fields != fields


# Keys and handles.


def test_the_key_index_is_built_once_and_found_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"lmdb://{tmp_path}/s"
    first = LMDB["keyed"].write(tmp_path / "s")[3]["key"]
    with storeds.open_backend(url) as backend:
        state = pickle.dumps(backend)
        with pytest.raises(ConfigError, match="nowhere"):
            backend.positions(["nowhere"])  # type: ignore[attr-defined]
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr("storeds.layouts.lmdb.reading.key_index", None)
        storeds.open_backend(url).close()
    for file in cache.iterdir():  # somebody cleans up: the keys are found again
        file.write_bytes(file.read_bytes()[:-8])
    with pickle.loads(state) as twin:
        assert twin.get_many([3], ["key"]) == [{"key": first}]
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "file" / "cache"))
    with storeds.open_backend(url, layout="keyed") as backend:
        assert pickle.loads(pickle.dumps(backend)).get_many([3], ["key"]) == [{"key": first}]


def test_the_key_index_is_neither_mapped_nor_kept_open(tmp_path: Path, cache: Path) -> None:
    put(tmp_path / "s", ((b"%07d.jpg" % n, JPEGS[0][:64]) for n in range(3000)))
    with storeds.open_backend(tmp_path / "s") as backend:
        (index,) = cache.iterdir()
        asked = np.random.default_rng(0).integers(0, 3000, 300).tolist()
        assert backend.get_many(asked, ["key"]) == [{"key": f"{n:07}.jpg"} for n in asked]
        assert str(index) not in Path("/proc/self/maps").read_text()
        open_files = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
        assert str(index) not in open_files


def test_a_changed_store_raises_unavailable_error(tmp_path: Path) -> None:
    path = tmp_path / "s"
    LMDB["keyed"].write(path)
    with storeds.open_backend(path) as backend:
        put(path, [(b"zzz", JPEGS[0])], folder=False)
        with pytest.raises(UnavailableError, match="changed"):
            backend.get_many([0])
        with storeds.open_backend(path) as again:
            assert (len(again), again.meta.id == backend.meta.id) == (COUNT + 1, False)


@pytest.mark.parametrize(
    ("size", "options", "wanted"), [(1000, {}, False), (200_000, {}, True), (200_000, {"readahead": False}, False)]
)
def test_the_kernel_reads_ahead_where_values_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, options: dict[str, Any], wanted: bool
) -> None:
    put(tmp_path / "s", [(f"{number:04}".encode(), JPEGS[0] + bytes(size)) for number in range(8)])
    noted: list[bool] = []
    open_environment = lmdb.open

    def note(path: str, **how: Any) -> Any:
        noted.append(how["readahead"])
        return open_environment(path, **how)

    monkeypatch.setattr(lmdb, "open", note)
    with storeds.open_backend(f"lmdb://{tmp_path}/s", layout="keyed", **options) as backend:
        assert len(backend.get_many(range(8))) == 8
        assert noted[-1] is wanted


@pytest.mark.parametrize("spelling", ["{}", "{}/data.mdb", "lmdb://{}/", "lmdb://{}/data.mdb"])
def test_an_environment_opens_in_every_spelling(spelling: str, tmp_path: Path) -> None:
    basicsr(tmp_path / "ours", {"b.png": JPEGS[0], "a.png": JPEGS[1]})
    assert [record["key"] for record in records_of(spelling.format(tmp_path / "ours"))] == ["b", "a"]
