"""Codecs of single values: what they read, and damaged or hostile bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import random
import subprocess
import tracemalloc
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import lz4.frame
import numpy as np
import pytest
import torch

import storeds
from _foreign_lmdb import Runs, archive, datum, encoded, numpy_to_msgpack
from shares import FULL, SEED
from storeds.values.codecs import CODECS, CodecError, decode_json, decode_npz, decompress, sniff, unpickle

JPEG = encoded(0)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


HARMFUL = {
    "posix.system": Runs(os.system, "touch harmed"),
    "builtins.eval": Runs(eval, "open('harmed', 'w')"),
    "builtins.getattr": Runs(getattr, "text", "format"),
    "numpy.fromfile": Runs(np.fromfile, "/etc/passwd"),
    "subprocess.Popen": Runs(subprocess.Popen, ["touch", "harmed"]),
    "builtins.bytearray": Runs(bytearray, 1 << 40),
    "collections.deque": __import__("collections").deque([1]),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_unpickle_refuses_foreign_names_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module, _, short = name.rpartition(".")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps((JPEG, HARMFUL[name]), protocol)
        with pytest.raises(CodecError, match=rf"(numpy.*|{module}|__builtin__|commands)\.{short}|bytearray"):
            unpickle(data)
    assert not Path("harmed").exists()


CUBE = np.arange(24, dtype="u1").reshape(2, 3, 4)
AXES: list[Any] = [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, -1), [0, 1, 2], (0, 1, 2.0), "012"]
OF_ITSELF = np.array([None], object)
OF_ITSELF[0] = [OF_ITSELF]
HOSTILE: list[tuple[bytes, str]] = [
    (pickle.dumps(np.array([None, print])), r"names builtins\.print"),
    (pickle.dumps(np.empty((1, 1, 1), object)), "one or two dimensions"),
    (pickle.dumps(OF_ITSELF), "nests deeper"),
    (pickle.dumps(np.array(["a", "b"], object)).replace(b"K\x02\x85", b"K\x03\x85"), "objects of another size"),
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
    (b"\x80\x02cnumpy\ndtype\n)\x81.", "half-built"),
    (b"(ios\nsystem\n.", "operation 'i'"),
    (b"\x80\x02\x82\x01.", "operation 0x82"),
    (b"P0\n.", "operation 'P'"),
    (b"\x80\x06N.", "operation 0x80"),
    (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "cut short"),
    (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "damaged"),
    (b"\x80\x05\x96\xff\xff\xff\xff\xff\0\0\0.", "cut short"),
    (b"Nr\xff\xff\xff\x7f.", "refer to value 2147483647"),  # a memo of two thousand million places
    (b"Np99999999\n.", "refer to value 99999999"),
    (b"Np99999999999999999999\n.", "operation 'p'"),
    (b"]q\x00h\x00a.", "nests deeper"),
    (b"(" * 101 + b".", "damaged"),
    (b"N", "cut short"),
    (b"N.x", "bytes follow its value"),
    (b"Nb.", "damaged|refused"),
    (b"I" + b"9" * 5000 + b"\n.", "damaged: "),
    (b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.", "encodes"),
    (b"cbuiltins\nbytes\n(I1000000000000\ntR.", "argument"),
    (b"cbuiltins\nbytes\n.", "class"),
    (b"c_codecs\nencode\n(N}X\x05\0\0\0_callNstb.", r"sets the state of _codecs\.encode"),
    (b"cnumpy\ndtype\n(N}X\x05\0\0\0dtypeNstb.", "damaged"),
    (b"\x80\x04]2.", "operation '2'"),
    (b"K\x00q\x000" + b"ccollections\nOrderedDict\n)Rq\x01K\x00h\x00s0h\x01q\x000" * 5000 + b"h\x00.", "nests deeper"),
    (b"cbuiltins\nbytes\n)\x81.", "NEWOBJ"),
    (pickle.dumps(bytearray(3), 4), r"names builtins\.bytearray"),
    (b"(cposix\nsystem\nVtouch harmed\no.", "names posix.system"),
    *(
        (pickle.dumps(Runs(CUBE.__reduce_ex__(5)[0], CUBE.tobytes(), CUBE.dtype, CUBE.shape, "K", axes)), "axes")
        for axes in AXES
    ),
    (pickle.dumps(torch.zeros(2)), r"names torch\._utils\._rebuild_tensor_v2"),
]


@pytest.mark.parametrize(("data", "why"), HOSTILE)
def test_hostile_operations_of_a_pickle_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        unpickle(data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_objects_are_lists_of_plain_data(protocol: int, order: Any) -> None:
    texts = [["a", None, 1.5], ["longer", "é", 2]]
    for values in (texts, texts[0], []):
        array = np.array(values, object, order=order)
        assert unpickle(pickle.dumps(array, protocol)) == array.tolist()
    assert unpickle(pickle.dumps(np.empty((1 << 40, 0), object), protocol)) == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_unpickle_equals_pickle_loads_for_plain_data(protocol: int) -> None:
    names, arrays = ["a", "b"], [np.arange(6).reshape(2, 3).T, np.zeros((0, 4)), np.array(3.5), np.array(["é", "b"])]
    scalars = [np.float32(2), np.bool_(True), np.int64(-1), None, True, -(2**80), 1.5, "é\n", b"", b"\0\xff" * 3000]
    nested = [[1, [2, (3,)]], {"a": {b"b": ()}}, [arrays[0]] * 2, {(1, (2,)): "a", (3,): "b"}, [names, {"n": names}]]
    for value in (*arrays, *scalars, *nested):
        data = pickle.dumps(value, protocol)
        assert repr(unpickle(data)) == repr(pickle.loads(data))
    swapped = np.arange(3, dtype=">i4")
    assert unpickle(pickle.dumps(swapped, protocol)).tolist() == [0, 1, 2]


WHOLE: dict[str, list[bytes]] = {
    "pickle": [
        pickle.dumps(value, protocol)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        for value in (
            (JPEG[:9], 5, np.arange(2), {"a": [1.5], (1, "b"): b"c"}),
            [np.arange(6.0).reshape(2, 3).T, np.float32(2), np.array(["é"])],
            {"n": OrderedDict(y=None)},
        )
    ],
    "msgpack": [numpy_to_msgpack({"x": np.arange(3), "y": [np.float32(1), "z", b"w", {"a": 1}]})],
    "json": [json.dumps({"x": {"__ndarray__": [[2], "float64", [1.0, 2.0]]}, "y": [1, None, "z"]}).encode()],
    "npz": [archive(x=np.arange(3), y=np.array("é"))],
    "npy": [npy(np.arange(6).reshape(2, 3))],
    "datum": [datum(bytes(12), 3, (3, 2, 2)), datum(JPEG, 1, encoded=True), datum(shape=(1, 1, 2), floats=[0.5, 1])],
    "text": ["wörd".encode()],
    "tensorpack": [gzip.compress(b"\x01", mtime=0), lz4.frame.compress(b"\x01")],
}


def damaged(whole: bytes, random: random.Random) -> bytes:
    """Return `whole` with up to 4 bytes replaced, removed or inserted, parts repeated, or its end cut off."""
    blob = bytearray(whole)
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(blob) + 1), random.choice((0, 0, 1, 1, 1, 2, 9))
        start = random.randrange(len(blob) + 1)
        new = random.choice((random.randbytes(size), blob[start : start + size], bytes([random.randrange(256)])))
        blob[at : at + random.choice((0, 1, 1, size))] = new
        if random.random() < 0.05:
            del blob[random.randrange(len(blob) + 1) :]
    return bytes(blob)


@pytest.mark.filterwarnings("ignore")  # of NumPy and of Python's parser, about what damage made of a type
@pytest.mark.parametrize("codec", WHOLE)
def test_random_damage_raises_only_codec_error(codec: str) -> None:
    source = random.Random(f"{SEED} {codec}")
    for number in range(10_000 if FULL else 250):
        whole = source.choice(WHOLE[codec])
        value = source.randbytes(source.randrange(60)) if number % 20 == 0 else damaged(whole, source)
        with contextlib.suppress(CodecError):
            CODECS[codec](value)


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
        with pytest.raises(CodecError, match="nests deeper than 100 levels"):
            unpickle(NESTED[name](depth) + b".")


@pytest.mark.parametrize("form", [b"}%sNs.", b"}(%sNu.", b"ccollections\nOrderedDict\n)R%sNs."])
def test_deeply_nested_and_shared_keys_are_refused_before_they_are_hashed(form: bytes) -> None:
    shared = b"K\x01\x85q\x00" + b"".join(b"0h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    for key, why in ((b"N" + b"\x85" * 1_000_000, "deeper than 100 levels"), (shared, "so many places")):
        with pytest.raises(CodecError, match=why):
            unpickle(form % key)


def array_of(data: bytes, kind: bytes, shape: bytes) -> bytes:
    return b"\x80\x05cnumpy._core.numeric\n_frombuffer\n(%bcnumpy\ndtype\n(V%b\ntR(%btVC\ntR." % (data, kind, shape)


@pytest.mark.parametrize(
    ("data", "kind", "shape"),
    [
        (b"C\0", b"S0", b"I1000000000000\n"),
        (b"C\0", b"u1", b"I0\nI" + b"9" * 30 + b"\n"),
        (b"C\0", b"S999999999", b"I0\nI1000000000\n"),
        (b"C\1a", b"u1", b"I-1\nI-1\n"),
        (b"C\1a", b"u1", b"I1\n" * 33),
        (b"C\1a", b"u1", b"I01\n"),
        (b"C\1a", b"u1", b"(Va\nI1000000000000\nt"),
        (b"C\1a", b"u1", b"\x8b\0\0\x01\0" + b"\x7f" * 0x10000 + b"q\0" + b"h\0" * 99_999),
    ],
)
def test_impossible_shapes_are_refused(data: bytes, kind: bytes, shape: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(CodecError):  # NumPy allows impossible sizes of empty arrays
        assert unpickle(array_of(data, kind, shape)).size == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24
    assert unpickle(array_of(b"C\1a", b"u1", b"I1\n")).tolist() == [97]


def test_a_bytearray_cannot_be_extended_under_an_array() -> None:
    used = array_of(b"\x96" + (64).to_bytes(8, "little") + bytes(64) + b"q\0", b"u1", b"I64\n")
    with pytest.raises(CodecError, match="exports"):
        unpickle(b"(" + used[:-1] + b"h\0(" + b"K\1" * 250 + b"et.")


@pytest.mark.parametrize("step", [b"h%ch%c\x86", b"(h%ch%ct", b"](h%ch%ce"])
def test_few_bytes_do_not_become_gigabytes(step: bytes) -> None:
    """Each list or tuple holds the one before it twice: 60 of them are 2 ** 60 parts."""
    data = b"]q\x00" + b"".join(b"0" + step % (n, n) + b"q%c" % (n + 1) for n in range(60)) + b"."
    with pytest.raises(CodecError, match="so many places"):
        unpickle(data)


# The C unpickler would allocate 256 MiB for each of these.
@pytest.mark.parametrize(
    "data",
    [b"Nr\0\0\0\1.", b"Np16777216\n.", b"B\0\0\0\x10.", *(b"%c\0\0\0\x10\0\0\0\0." % code for code in b"\x8d\x8e\x96")],
)
def test_sizes_that_lie_allocate_nothing(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(CodecError):
        unpickle(b"\x80\x05" + data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_places_in_the_memo_of_honest_pickles_are_read() -> None:
    keys = [b"%d" % n for n in range(70_000)]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert unpickle(pickle.dumps(keys, protocol)) == keys
    assert unpickle(pickle.dumps([str(n) for n in range(120_000)], 0))[-1] == "119999"


@pytest.mark.parametrize(
    ("decode", "value", "why"),
    [
        (decompress, zlib.compress(bytes(9))[:-3], "cut short"),
        (decompress, b"\x78\x9c" + b"\xff" * 9, "damaged"),
        (decompress, lz4.frame.compress(bytes(99))[:-9], "cut short"),
        (decompress, b"\x04\x22\x4d\x18" + b"\xff" * 9, "damaged"),
        (CODECS["text"], b"\xff", "damaged"),
        (decode_json, b"{", "damaged"),
        (decode_json, b"[" * 100_000, "deeper|damaged"),
        (decode_npz, b"PK\x03\x04", "npz is damaged"),
    ],
)
def test_damaged_values_raise_value_error(decode: Callable[[bytes], Any], value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(value)


def test_values_that_decompress_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MOST", "_MOST_TEXT", "_MOST_ARRAYS"):
        monkeypatch.setattr(f"storeds.values.codecs.{limit}", 1 << 16)
    for value in (zlib.compress(bytes(1 << 20)), lz4.frame.compress(bytes(1 << 20))):
        with pytest.raises(CodecError, match="refused"):
            decompress(value)
    with pytest.raises(CodecError, match="refused"):
        decode_npz(archive(x=np.zeros(1 << 20, np.uint8)))
    with pytest.raises(CodecError, match="refused"):
        CODECS["json"](gzip.compress(b" " * (1 << 20)))


def claiming(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    """The bytes of an ``.npy`` whose header says more than follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + b"abc"


def zipped(member: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", member)
    return file.getvalue()


_TEXT = b"X" + (1 << 18).to_bytes(4, "little") + bytes(1 << 18)
SMALL_AND_LARGE = {
    "npy": ("npy", claiming((1 << 32,))),
    "npy of texts": ("npy", claiming((1,), "<U1000000000")),
    "npz": ("npz", zipped(claiming((1 << 32,)))),
    "npz in two dimensions": ("npz", zipped(claiming((1 << 20, 1 << 20), "<f8"))),
    "lz4": ("msgpack", lz4.frame.compress(b"\xdd\xff\xff\xff\xff")),
    "msgpack": ("msgpack", b"\xdc\0\x10" + b"\xdd\x0f\xff\xff\xff" * 16),
    "texts of ase": ("json", b'{"a":{"__ndarray__":[[1000],"S65536",[' + b"1," * 999 + b"1]]}}"),
    "a bytearray in many places": (
        "pickle",
        b"\x80\5\x96" + (1 << 18).to_bytes(8, "little") + bytes(1 << 18) + b"\x94(" + b"h\0" * 999 + b"l.",
    ),
    "a text that is encoded in many places": (
        "pickle",
        b"\x80\2c_codecs\nencode\nq\0" + _TEXT + b"X\6\0\0\0latin1\x86q\1(" + b"h\0h\1R" * 999 + b"l.",
    ),
}


@pytest.mark.parametrize("name", SMALL_AND_LARGE)
def test_few_bytes_take_little_memory(name: str) -> None:
    codec, value = SMALL_AND_LARGE[name]
    tracemalloc.start()
    with pytest.raises(CodecError):
        CODECS[codec](value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_arrays_in_every_order_and_size_are_read_from_npy() -> None:
    for array in (np.arange(6.0).reshape(2, 3).T, np.zeros((0, 3), "f4"), np.array(3), np.arange(1 << 20)):
        np.testing.assert_array_equal(CODECS["npy"](npy(array)), array)
        np.testing.assert_array_equal(CODECS["npz"](archive(x=array))["x"], array)


def test_encoded_images_in_large_archives_are_still_images(tmp_path: Path) -> None:
    large = np.frombuffer(JPEG + bytes(3 << 20), np.uint8)
    with lmdb.open(str(tmp_path / "s"), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for n in range(3):
            txn.put(b"%06d" % n, archive(x=large if n else large.reshape(-1, 1)))
    with storeds.open_backend(tmp_path / "s") as backend:
        assert backend.meta.fields["x"].kind == "image"
        assert [record["x"] for record in backend.get_many(range(3))] == [large.tobytes()] * 3  # type: ignore[index]


def test_arrays_of_objects_are_refused() -> None:
    objects = np.array([Runs(os.system, "x")], object)
    for codec, value in (("npz", archive(x=objects)), ("npy", npy(objects))):
        with pytest.raises(CodecError, match="an array of objects"):
            CODECS[codec](value)


@pytest.mark.parametrize(
    ("value", "sniffed"),
    [
        (pickle.dumps((JPEG, 3)), "pickle"),
        (pickle.dumps([1], 0), None),
        (numpy_to_msgpack([1, b"a"]), None),
        (lz4.frame.compress(b"\x01"), "lz4"),
        (gzip.compress(b"{}", mtime=0), "gzip"),
        (archive(x=np.arange(2)), "npz"),
        (npy(np.arange(3)), "npy"),
        (datum(JPEG, -3, encoded=True), None),
        ("wörd".encode(), None),
    ],
)
def test_codecs_are_known_by_their_first_bytes(value: bytes, sniffed: str | None) -> None:
    for given in (value, memoryview(value)):
        assert sniff(given) == sniffed
