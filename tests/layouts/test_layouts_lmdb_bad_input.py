"""Foreign LMDB stores that are damaged, contradict themselves, or attack the reader."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch

import storeds
from _foreign_lmdb import Raw, basicsr, caffe, datum, encoded, numpy_to_msgpack, ocr, pickled, put, tensorpack
from storeds.errors import ConfigError, FormatError, MissingDependencyError, RecordError, StoreNotFoundError
from storeds.layouts.lmdb import CaffeLmdb, ForeignLmdb, KeyedLmdb, OcrLmdb, PickledLmdb, TensorpackLmdb

JPEGS = [encoded(number) for number in range(6)]
SAMPLES = [(JPEGS[n], n) for n in range(6)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))


def faults(backend: ForeignLmdb) -> dict[int, str]:
    """Return position → what is wrong, and check that the others read."""
    found = backend.get_many(range(len(backend)))
    return {n: item.reason for n, item in enumerate(found) if isinstance(item, RecordError)}


class Runs:
    """Pickles as a call."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("depth", [150, 100_000])
def test_deeply_nested_msgpack_gives_record_errors(depth: int, tmp_path: Path) -> None:
    deep = [Raw(start * depth + b"\xc0") for start in (b"\x91", b"\x81\xa1a")]
    points = [[1, [[2]]], *deep, [3, [[4]]]]
    with TensorpackLmdb(f"lmdb://{tensorpack(tmp_path / 't', points, numpy_to_msgpack)}") as tensors:
        bad = faults(tensors)
    assert sorted(bad) == [1, 2]
    assert all(why == "refused: its msgpack nests deeper than 100 levels" for why in bad.values())


def test_a_deeply_nested_pickle_gives_a_record_error(tmp_path: Path) -> None:
    values = [(1, [[2]]), Raw(b"\x80\x02" + b"]" * 9000 + b"a" * 8999 + b"."), (3, [[4]])]
    with PickledLmdb(f"lmdb://{pickled(tmp_path / 'p', values)}") as backend:
        assert faults(backend) == {1: "refused: it nests deeper than 100 levels"}


def test_unreadable_records_give_record_errors(tmp_path: Path) -> None:
    values = [
        SAMPLES[0],
        Raw(pickle.dumps(SAMPLES[1])[:-9]),
        (JPEGS[2], Runs(os.system, "x")),
        SAMPLES[3],
        (1, 2, 3),
        (JPEGS[5], "5"),
    ]
    with PickledLmdb(f"lmdb://{pickled(tmp_path / 'p', values)}", fields="image:image,label:int") as backend:
        found = backend.get_many([3, 2, 3, 0])
        assert [isinstance(item, RecordError) for item in found] == [False, True, False, False]
        bad = faults(backend)
    assert sorted(bad) == [1, 2, 4, 5]
    assert "system" in bad[2]
    assert "'label'" in bad[5]
    points = [[1, 2], Raw(b"\xc1"), Raw(b"\xdd\xff\xff\xff\xff"), [3, 4]]
    with TensorpackLmdb(f"lmdb://{tensorpack(tmp_path / 't', points, numpy_to_msgpack)}") as tensors:
        assert sorted(faults(tensors)) == [1, 2]


def test_a_store_of_objects_raises_an_error_with_their_class(tmp_path: Path) -> None:
    path = pickled(tmp_path / "s", [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    with pytest.raises(FormatError, match=r"record 0.*torch\.nn\.modules\.linear\.Linear.*\nTo convert it by hand:\n"):
        PickledLmdb(f"lmdb://{path}")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"said": 5}, "says 5 records and __keys__ lists 6"),
        ({"said": 7}, "says 7 records and __keys__ lists 6"),
        ({"keys": [b"0", b"1", b"2"], "said": 3}, "lists 3, so 5 entries are expected, and it has 8"),
        ({"keys": [b"%d" % n for n in range(8)], "said": 8}, "lists 8, so 10 entries are expected, and it has 8"),
        ({"said": "six"}, "'six', not a number"),
        ({"said": -1}, "not a number"),
        ({"keys": [b"0", 1]}, "key 1 of __keys__ is a int instead of text"),
        ({"keys": 6}, "a int, not a list"),
        ({"keys": [0, 1, 2, True]}, "key 0 of __keys__ is a int instead of text"),
        ({"keys": [0, -1]}, "key 0 of __keys__ is a int instead of text"),
        ({"keys": [2**80]}, "key 0 of __keys__ is a int instead of text"),
        ({"keys": np.array(6)}, "a ndarray, not a list"),
        ({"keys": np.zeros((2, 3), int)}, "a ndarray, not a list"),
        ({"keys": np.arange(6.0)}, "key 0 of __keys__ is a float instead of text"),
        ({"keys": np.arange(5)}, "says 6 records and __keys__ lists 5"),
        ({"keys": Runs(os.system, "x")}, r"__keys__ cannot be read.*system"),
        ({"said": Runs(os.system, "x")}, r"__len__ cannot be read.*system"),
    ],
)
def test_wrong_counts_and_key_lists_raise_format_error(how: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = pickled(tmp_path / "s", SAMPLES, **how)
    with pytest.raises(FormatError, match=why):
        PickledLmdb(f"lmdb://{path}")


def test_partial_opens_an_incomplete_store(tmp_path: Path) -> None:
    path = pickled(tmp_path / "p", SAMPLES, keys=[b"%d" % n for n in range(8)], said=9)
    with PickledLmdb(f"lmdb://{path}?partial=true") as backend:
        assert len(backend) == 8
        assert faults(backend) == {n: f"its key '{n}' is missing from the database" for n in (6, 7)}


def test_text_recognition_with_a_wrong_count(tmp_path: Path) -> None:
    labelled = [(JPEGS[n], f"w{n}") for n in range(4)]
    for said, why in ((5, "says 5, so 11 entries are expected, and it has 9"), (3, "says 3, so 7 entries")):
        url = f"lmdb://{ocr(tmp_path / str(said), labelled, said=said)}"
        with pytest.raises(FormatError, match=why):
            OcrLmdb(url)
        with OcrLmdb(url, partial=True) as backend:
            assert list(faults(backend)) == ([4] if said == 5 else [])
    damaged = ocr(tmp_path / "n", [*labelled, (JPEGS[0], b"\xff")])
    with OcrLmdb(f"lmdb://{damaged}") as backend:
        assert list(faults(backend)) == [4]
        assert backend.get_many([4], ["image"]) == [{"image": JPEGS[0]}]
    with pytest.raises(FormatError, match="not a number"):
        OcrLmdb(f"lmdb://{put(tmp_path / 'x', [(b'num-samples', b'many')])}")
    with pytest.raises(FormatError, match="no entry 'num-samples'"):
        OcrLmdb(f"lmdb://{put(tmp_path / 'y', [(b'a', b'b')])}")


def test_text_recognition_without_a_count(tmp_path: Path) -> None:
    """The count is written last: without it, half a store must not pass for a whole one, nor for one of images alone."""
    samples = [(JPEGS[n % 6], f"w{n}") for n in range(50)]
    for form in ("09", ""):
        url = f"lmdb://{ocr(tmp_path / f's{form}', samples, counted=False, form=form)}"
        assert KeyedLmdb.guess_can_open(url) is None
        with pytest.raises(
            FormatError, match=r"no entry 'num-samples', .*may be incomplete; .*partial=True.* the 50 records"
        ):
            storeds.open_backend(url)
        with storeds.open_backend(url, partial=True) as backend:
            assert backend.meta.layout == "ocr"
            assert len(backend) == 50
    holes = put(
        tmp_path / "h",
        [
            (b"image-000000002", JPEGS[0]),
            (b"label-000000002", b"a"),
            (b"image-000000003", JPEGS[1]),
            (b"lexicon", b"x"),
        ],
    )
    with OcrLmdb(f"lmdb://{holes}", partial=True) as backend:
        missing = "its key '{}' is missing from the database".format
        assert faults(backend) == {0: missing("image-000000001"), 2: missing("label-000000003")}


def test_numbered_images_without_labels_are_keyed(tmp_path: Path) -> None:
    path = put(tmp_path / "s", [(b"image-%09d" % n, JPEGS[n]) for n in range(6)])
    with storeds.open_backend(f"lmdb://{path}") as backend:
        assert backend.meta.layout == "keyed"
        assert len(backend) == 6


def test_images_mixed_with_other_values_fit_no_layout(tmp_path: Path) -> None:
    images = [(b"%04d" % n, JPEGS[n]) for n in range(6)]
    url = f"lmdb://{put(tmp_path / 's', [*images, *((b'text-%04d' % n, b'words') for n in range(6))])}"
    with pytest.raises(FormatError, match="tried: caffe, frames, json, keyed"):
        storeds.open_backend(url)


def test_a_wrong_count_without_a_key_list(tmp_path: Path) -> None:
    numbers = [(b"%d" % n, pickle.dumps(SAMPLES[n])) for n in range(6)]
    names = [(b"n%d" % n, pickle.dumps(SAMPLES[n])) for n in range(6)]
    for number, entries in enumerate((numbers, names)):
        for said in (5, 7):
            path = put(tmp_path / f"{number}{said}", [*entries, (b"__len__", pickle.dumps(said))])
            with pytest.raises(
                FormatError, match=f"__len__ says {said} records, so {said + 1} entries are expected, and it has 7"
            ):
                PickledLmdb(f"lmdb://{path}")


def test_keys_that_are_not_text(tmp_path: Path) -> None:
    path = put(tmp_path / "s", [(n.to_bytes(4, "big") + b"\xff", JPEGS[n]) for n in range(6)])
    url = f"lmdb://{path}"
    with pytest.raises(FormatError, match="00000000ff.*keys='hex'"):
        KeyedLmdb(url)
    with KeyedLmdb(url, keys="hex") as backend:
        assert backend.get_many([5]) == [{"image": JPEGS[5], "key": "00000005ff"}]
        assert backend.keys().tolist()[0] == "00000000ff"


def test_keys_of_datum_messages_that_are_not_text(tmp_path: Path) -> None:
    message = datum(bytes(12), 3, (3, 2, 2))
    path = put(tmp_path / "s", [(b"a", message), (b"\xff\xfe", message)])
    with CaffeLmdb(f"lmdb://{path}") as backend:
        assert list(faults(backend)) == [1]
        assert isinstance(backend.get_many([1])[0], RecordError)
        assert backend.keys().tolist() == ["a", "\\xff\\xfe"]


def test_a_wrong_meta_info_file(tmp_path: Path) -> None:
    images = {f"{n}.png": JPEGS[n] for n in range(4)}
    for listed in (["0.png", "1.png"], [*images, "absent.png"]):
        path = basicsr(tmp_path / str(len(listed)), images, listed=listed)
        with pytest.raises(
            FormatError, match=f"lists {len(listed)}, so {len(listed)} entries are expected, and it has 4"
        ):
            KeyedLmdb(f"lmdb://{path}")
        with KeyedLmdb(f"lmdb://{path}", partial=True) as backend:
            assert list(faults(backend)) == ([4] if len(listed) == 5 else [])


def test_damaged_and_differing_datum_messages(tmp_path: Path) -> None:
    whole = datum(bytes(12), 3, (3, 2, 2))
    bad = [whole[:-3], whole[:9], b"", datum(bytes(11), 3, (3, 2, 2)), datum(JPEGS[0], 1, encoded=True), b"\xff" * 30]
    messages = [whole, *bad, whole, datum(bytes(12), 3, (3, 4, 1))]
    # Opening inspects 16 of these 29 messages, and not the one with a JPEG.
    with CaffeLmdb(
        f"lmdb://{caffe(tmp_path / 's', messages[:1] * 20 + messages)}", fields="array,label,key"
    ) as backend:
        found = backend.get_many([0])
        assert isinstance(found[0], dict)
    with pytest.raises(FormatError, match="differ"):
        CaffeLmdb(f"lmdb://{caffe(tmp_path / 'd', [whole, bad[-2]])}")
    messages = [whole] * 8 + [*bad[:4], *bad[5:]]
    with CaffeLmdb(f"lmdb://{caffe(tmp_path / 'c', messages)}") as backend:
        reasons = faults(backend)
    assert sorted(reasons) == [8, 9, 10, 11, 12]
    assert "cut short" in reasons[8] or "bytes" in reasons[8]
    assert "(3, 2, 2) and holds 11" in reasons[11]


def test_empty_stores(tmp_path: Path) -> None:
    empty = f"lmdb://{put(tmp_path / 'e', [])}"
    for cls in (KeyedLmdb, CaffeLmdb):
        with cls(empty) as backend:
            assert len(backend) == 0
            assert backend.get_many([]) == []
            assert backend.column("key").tolist() == []
    with OcrLmdb(f"lmdb://{ocr(tmp_path / 'o', [])}") as backend:
        assert len(backend) == 0
    url = f"lmdb://{pickled(tmp_path / 'p', [])}"
    with pytest.raises(FormatError, match="no record from which to infer the fields.*fields="):
        PickledLmdb(url)
    with PickledLmdb(url, fields="image:image,label:int") as backend:
        assert backend.column("label").tolist() == []


def test_missing_stores_and_databases(tmp_path: Path) -> None:
    path = put(tmp_path / "s", [(b"a", JPEGS[0])], database=b"train")
    with pytest.raises(ConfigError, match="no database 'test'.*'train'"):
        KeyedLmdb(f"lmdb://{path}", database="test")
    with KeyedLmdb(f"lmdb://{path}?database=train") as backend:
        assert len(backend) == 1
    with pytest.raises(StoreNotFoundError):
        KeyedLmdb(f"lmdb://{tmp_path}/absent")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError, match=r"without data\.mdb"):
        KeyedLmdb(f"lmdb://{tmp_path}/folder")
    with pytest.raises(ConfigError, match="colour"):
        KeyedLmdb(f"lmdb://{path}", colour=1)


def test_a_file_cut_short_is_refused_before_it_is_mapped(tmp_path: Path) -> None:
    path = put(tmp_path / "s", [(b"%d" % n, JPEGS[0] * 50) for n in range(50)], folder=False)
    os.truncate(path, path.stat().st_size // 2)
    for look in (KeyedLmdb, KeyedLmdb.guess_can_open):
        with pytest.raises(FormatError, match="cut short"):
            look(f"lmdb://{path}")


def test_lz4_values_name_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [(b"%d" % n, lz4.frame.compress(numpy_to_msgpack({"x": n}))) for n in range(3)]
    url = f"lmdb://{put(tmp_path / 's', values)}"
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(MissingDependencyError, match="pip install lz4"):
        storeds.open_backend(url)


def test_the_error_for_an_unknown_environment_shows_its_content(tmp_path: Path) -> None:
    put(tmp_path / "words", [(b"foo", b"bar"), (b"z\xff", b"bar")])
    with pytest.raises(FormatError, match=r"it holds 2 entries under the keys 'foo', 'z\\\\xff'"):
        storeds.open_backend(tmp_path / "words")
    put(tmp_path / "many", [(f"{n:03}".encode(), b"bar") for n in range(10)])
    with pytest.raises(FormatError, match=r"10 entries under the keys '000', .*'007' …"):
        storeds.open_backend(tmp_path / "many")
    put(tmp_path / "one", [(b"foo", b"bar")])
    with pytest.raises(FormatError, match="it holds 1 entry under the keys 'foo'"):
        storeds.open_backend(tmp_path / "one")
    put(tmp_path / "none", [])
    with pytest.raises(FormatError, match="; it is empty"):
        storeds.open_backend(tmp_path / "none")
