"""Foreign LMDB stores that are damaged, contradict themselves, or attack the reader."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import subprocess
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _foreign_lmdb import Raw, basicsr, caffe, datum, encoded, numpy_to_msgpack, ocr, pickled, put, tensorpack
from shares import examples
from storeds.errors import ConfigError, FormatError, MissingDependencyError, RecordError, StoreNotFoundError
from storeds.layouts.lmdb import (
    CaffeLmdb,
    ForeignLmdb,
    KeyedLmdb,
    OcrLmdb,
    PickledLmdb,
    PickleError,
    TensorpackLmdb,
    decode_json,
    decode_npz,
    decompress,
    parse_datum,
    unpickle,
)

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


HARMFUL = {
    "posix.system": Runs(os.system, "touch harmed"),
    "builtins.eval": Runs(eval, "open('harmed', 'w')"),
    "builtins.getattr": Runs(getattr, "text", "format"),
    "numpy.fromfile": Runs(np.fromfile, "/etc/passwd"),
    "subprocess.Popen": Runs(subprocess.Popen, ["touch", "harmed"]),
    "builtins.bytearray": Runs(bytearray, 1 << 40),
    "collections.deque": __import__("collections").deque([1]),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", HARMFUL)
def test_unpickle_refuses_foreign_names_before_anything_runs(
    name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps((JPEGS[0], HARMFUL[name]), protocol)
    module, _, short = name.rpartition(".")
    with pytest.raises(PickleError, match=rf"(numpy.*|{module}|__builtin__|commands)\.{short}|bytearray"):
        unpickle(data)
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps(np.array([None, print])), "objects"),
        (pickle.dumps(np.zeros(2, "i4,f4")), "dtype"),
        (pickle.dumps(np.zeros(2, "M8[s]")), "dtype"),
        (pickle.dumps({1, 2}), "refused"),
        (pickle.dumps(1j), "complex"),
        (pickle.dumps(np.ndarray), "class"),
        (pickle.dumps(np.dtype("i4")), "half-built"),
        (b"\x80\x04\x8c\x05numpy\x94\x8c\x0fcore.multiarray\x94\x93.", r"numpy\.core\.multiarray"),
        (b"\x80\x04\x8c\x0dnumpy.testing\x8c\x09_rand\x93.".replace(b"\x09_", b"\x05_"), "refused"),
        (b"cnumpy\nndarray\n(I1000000000000\ntR.", r"calls numpy\.ndarray"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR.", "half-built"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93)\x81.", r"builtins\.eval"),
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "NEWOBJ"),
        (b"(ios\nsystem\n.", "operation 'i'"),
        (b"\x80\x02\x82\x01.", "operation 0x82"),
        (b"P0\n.", "operation 'P'"),
        (b"\x80\x06N.", "newer"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "cut short"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "cut short: a frame"),
        (b"Nr\xff\xff\xff\x7f.", "refer to value 2147483647"),  # a memo of two thousand million places
        (b"]q\x00h\x00a.", "several places"),
        (b"(" * 101 + b".", "nests"),
        (b"N", "cut short"),
        (b"NN.", "more than one value"),
        (b"N.x", "bytes follow its value"),
        (b"0.", "cut short"),
        (b"a.", "cut short"),
        (b"NNa.", "not a container"),
        (b"Nb.", "damaged|refused"),
        (b"N)R.", "not a name"),
        (b"I" + b"9" * 5000 + b"\n.", "not an integer"),
        (b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "encodes"),
        (b"cbuiltins\nbytes\n(I1000000000000\ntR.", "argument"),
        (b"cbuiltins\nbytearray\n(I1000000000000\ntR.", "bytearray with something else"),
        (b"cbuiltins\nbytearray\n(I01\ntR.", "bytearray with something else"),
        (b"cbuiltins\nbytearray\n(Va\nVutf-16\ntR.", "bytearray with something else"),
        (b"cbuiltins\nbytearray\n(]tR.", "bytearray with something else"),
        (b"cbuiltins\nbytearray\n(Va\nVlatin-1\nVstrict\ntR.", "bytearray with something else"),
        (b"cbuiltins\nbytearray\n.", "class"),
        (b"\x80\x02cnumpy\ndtype\n(N}X\x04\0\0\0callNstb.", "sets the state"),
        (b"\x80\x04]2.", "operation '2'"),
        (b"\x80\x04(K\x01K\x02t\x94h\x00\x86.", "several places"),
        (b"\x80\x02ccollections\nOrderedDict\n)Rq\x00K\x00h\x00s.", "several places"),
        (
            b"K\x00q\x000" + b"ccollections\nOrderedDict\n)Rq\x01K\x00h\x00s0h\x01q\x000" * 5000 + b"h\x00.",
            "nests deeper",
        ),
        (b"cbuiltins\nbytearray\n)\x81.", "NEWOBJ"),
    ],
)
def test_hostile_operations_of_a_pickle_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(PickleError, match=why):
        unpickle(data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_unpickle_equals_pickle_loads_for_plain_data(protocol: int) -> None:
    arrays = [
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 4)),
        np.array(3.5),
        np.array(["é", "b"]),
    ]
    scalars = [np.float32(2), np.bool_(True), np.int64(-1), None, True, -(2**80), 1.5, "é\n", b"", b"\0\xff" * 3000]
    for value in [*arrays, *scalars, [1, [2, (3,)]], {"a": {b"b": ()}}, [arrays[0], arrays[0]]]:
        data = pickle.dumps(value, protocol)
        assert repr(unpickle(data)) == repr(pickle.loads(data))
    swapped = np.arange(3, dtype=">i4")
    assert unpickle(pickle.dumps(swapped, protocol)).tolist() == [0, 1, 2]


@settings(max_examples=examples(200))
@given(st.binary(max_size=60), st.integers(0, 5), st.data())
def test_random_damage_raises_only_value_error(junk: bytes, protocol: int, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps((JPEGS[0][:9], 5, np.arange(2), {"a": [1.5]}), protocol))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for attempt in (junk, bytes(whole)):
        for read in (unpickle, parse_datum):
            with contextlib.suppress(ValueError):
                read(attempt)


NESTED = {
    "lists": lambda depth: b"]" * depth + b"a" * (depth - 1),
    "lists with marks": lambda depth: b"](" * (depth - 1) + b"]" + b"e" * (depth - 1),
    "dicts": lambda depth: b"}N" * (depth - 1) + b"}" + b"s" * (depth - 1),
    "tuples of one": lambda depth: b"N" + b"\x85" * depth,
    "tuples of two": lambda depth: b"N" * (depth + 1) + b"\x86" * depth,
    "tuples with marks": lambda depth: b"(" * depth + b"t" * depth,
}


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_refused(name: str) -> None:
    unpickle(NESTED[name](100) + b".")
    for depth in (101, 1000, 100_000):
        with pytest.raises(PickleError, match="nests deeper than 100 levels"):
            unpickle(NESTED[name](depth) + b".")


@pytest.mark.parametrize("form", [b"}%sNs.", b"}(%sNu.", b"(%sNd."])
def test_deeply_nested_keys_are_refused_before_they_are_hashed(form: bytes) -> None:
    with pytest.raises(PickleError, match="nests deeper than 100 levels"):
        unpickle(form % (b"N" + b"\x85" * 1_000_000))


def test_nesting_below_the_limit_is_read() -> None:
    value: Any = 1
    for _ in range(33):
        value = [(value,), {"a": value}, 2]
        value = [value[:1], value[2]]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert unpickle(pickle.dumps(value, protocol)) == value
    wide = [[n] for n in range(5000)]
    assert unpickle(pickle.dumps(wide)) == wide
    keys = {(1, (2,)): "a", (3,): "b"}
    assert unpickle(pickle.dumps(keys)) == keys


@pytest.mark.parametrize("axes", [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, -1), [0, 1, 2], (0, 1, 2.0), "012"])
def test_axes_that_are_not_a_permutation_are_refused(axes: Any) -> None:
    array = np.arange(24, dtype="u1").reshape(2, 3, 4)
    rebuild = array.__reduce_ex__(5)[0]
    with pytest.raises(PickleError, match="axes"):
        unpickle(pickle.dumps(Runs(rebuild, array.tobytes(), array.dtype, array.shape, "K", axes)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_bytearrays_and_strided_arrays_of_every_protocol(protocol: int) -> None:
    for content in (b"", b"a\xff\0", bytes(range(256)) * 40):
        assert bytes(unpickle(pickle.dumps(bytearray(content), protocol))) == content
    array = np.arange(2 * 30 * 40, dtype=">f4").reshape(2, 30, 40)
    for strided in (array.transpose(1, 2, 0), array.T, array[::-1, :, ::2], array.transpose(2, 0, 1)):
        found = unpickle(pickle.dumps(strided, protocol))
        assert found.shape == strided.shape
        assert (found == strided).all()


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


def storage(said: int = 4) -> bytes:
    """Return what ``torch.save`` writes of a storage of 4 zeros, with another count in it if `said`."""
    pickled = pickletools.genops(pickle.dumps(torch.zeros(4)))
    data = next(given for _, given, _ in pickled if isinstance(given, bytes))
    return data.replace(b"cpuq\x03K\x04", b"cpuq\x03K" + bytes([said]))


class Tensor:
    """Pickles as a call on a storage, with whatever sizes."""

    def __init__(self, data: Any, offset: Any = 0, size: Any = (4,), stride: Any = (1,)) -> None:
        self.given: tuple[Any, ...] = (data, offset, size, stride, False, OrderedDict())

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.given


class Stored:
    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self.data,)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (Tensor(Stored(storage()), size=(5,)), "outside its storage of 4"),
        (Tensor(Stored(storage()), offset=1), "outside its storage"),
        (Tensor(Stored(storage()), size=(10**9,), stride=(0,)), "outside its storage"),
        (Tensor(Stored(storage()), offset=-1), "without a shape"),
        (Tensor(Stored(storage()), stride=(-1,)), "not numbers"),
        (Tensor(Stored(storage()), size=[4]), "not numbers"),
        (Tensor(Stored(storage(said=9))), "a storage of 9 numbers"),
        (Tensor(Stored(storage()[:-1])), "a storage of 4 numbers in 23 bytes"),
        (Tensor(Stored(b"PK\x03\x04")), "damaged|refused"),
        (Tensor(Stored(pickle.dumps(1) * 5)), "a form that only torch reads"),
        (Tensor(Stored(pickle.dumps(Stored(storage())))), "a tensor's storage names"),
        (Tensor(b"zeros"), "without a storage"),
        (Stored(storage()), "half-built"),
        (Stored(b""), "cut short"),
        (torch.zeros(2, requires_grad=True).to_sparse(), "refused"),
    ],
)
def test_hostile_tensors_are_refused(tensor: Any, why: str) -> None:
    with pytest.raises(PickleError, match=why):
        unpickle(pickle.dumps(tensor))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_tensors_equal_those_of_torch(protocol: int) -> None:
    kinds = [torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    plain = [torch.arange(24).reshape(2, 3, 4).to(kind) for kind in (*kinds, torch.complex64)]
    views = [plain[0].mT, plain[1][:, 1:, ::2], plain[2][1, 2], torch.zeros(0, 3)]
    for tensor in (*plain, *views):
        found = unpickle(pickle.dumps([tensor], protocol))[0]
        assert (found.dtype, found.shape) == (tensor.numpy().dtype, tensor.shape)
        assert np.array_equal(found, tensor.numpy())
    halves = torch.tensor([1.5, -2.0, 3e38], dtype=torch.bfloat16)
    assert np.array_equal(unpickle(pickle.dumps(halves, protocol)), halves.float().numpy())


@settings(max_examples=examples(200))
@given(st.data())
def test_damaged_tensors_raise_only_pickle_error(data: st.DataObject) -> None:
    blob = bytearray(pickle.dumps({"x": torch.arange(6.0).reshape(2, 3)}))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PickleError):
        unpickle(bytes(blob))


@pytest.mark.parametrize(
    ("decode", "value", "why"),
    [
        (decompress, zlib.compress(bytes(9))[:-3], "cut short"),
        (decompress, b"\x78\x9c" + b"\xff" * 9, "damaged"),
        (decompress, lz4.frame.compress(bytes(99))[:-9], "cut short"),
        (decompress, b"\x04\x22\x4d\x18" + b"\xff" * 9, "damaged"),
        (decode_json, b"{", "damaged"),
        (decode_json, b"[" * 100_000, "deeper|damaged"),
        (decode_npz, b"PK\x03\x04", "npz is damaged"),
    ],
)
def test_damaged_values_raise_value_error(decode: Callable[[bytes], Any], value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(value)


def test_values_that_decompress_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.layouts.lmdb.values._MOST", 1 << 16)
    archive = io.BytesIO()
    np.savez_compressed(archive, x=np.zeros(1 << 20, np.uint8))
    for value in (zlib.compress(bytes(1 << 20)), lz4.frame.compress(bytes(1 << 20))):
        with pytest.raises(ValueError, match="refused"):
            decompress(value)
    with pytest.raises(ValueError, match="refused"):
        decode_npz(archive.getvalue())


def test_lz4_values_name_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [(b"%d" % n, lz4.frame.compress(numpy_to_msgpack({"x": n}))) for n in range(3)]
    url = f"lmdb://{put(tmp_path / 's', values)}"
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(MissingDependencyError, match="pip install lz4"):
        storeds.open_backend(url)


def test_an_npz_of_objects_is_refused() -> None:
    archive = io.BytesIO()
    np.savez(archive, x=np.array([Runs(os.system, "x")], object))
    with pytest.raises(ValueError, match="array of objects"):
        decode_npz(archive.getvalue())


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
