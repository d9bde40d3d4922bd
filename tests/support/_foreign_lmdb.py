"""Foreign LMDB stores, written with only the package ``lmdb`` as other tools write them, and their records."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import lz4.frame
import msgspec
import numpy as np
import torch
from PIL import Image

import storeds
from _layout_case import LayoutCase, Truth
from photographs import saved

__all__ = [
    "COUNT",
    "JPEGS",
    "LMDB",
    "Raw",
    "Runs",
    "archive",
    "aselmdb",
    "atoms",
    "basicsr",
    "caffe",
    "datum",
    "encoded",
    "numbered",
    "numpy_to_msgpack",
    "ocr",
    "open_catalyst",
    "pickled",
    "put",
    "records_of",
    "tensorpack",
]


def put(
    path: Path, entries: Iterable[tuple[bytes, bytes]], *, folder: bool = True, database: bytes | None = None
) -> Path:
    """Write keys and values."""
    with lmdb.open(str(path), subdir=folder, map_size=1 << 31, max_dbs=4, lock=False) as env:
        place = env.open_db(database) if database else None
        with env.begin(write=True, db=place) as txn:
            for key, value in entries:
                txn.put(key, value)
    return path


def encoded(number: int, form: str = "JPEG") -> bytes:
    """Return a small image that depends on `number`."""
    pixels = np.random.default_rng(number).integers(0, 256, (8 + number % 5, 9, 3), np.uint8)
    return saved(Image.fromarray(pixels), form)


class Runs:
    """Pickles as a call."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> Any:
        return self.call


class Raw(bytes):
    """A value that is already serialised."""


def numbered(path: Path, values: Sequence[bytes], more: Mapping[str, bytes] | None = None) -> str:
    """Write values under 0, 1, … and other entries beside them; return the URL."""
    entries = {str(number): value for number, value in enumerate(values)} | dict(more or {})
    put(path, [(key.encode(), value) for key, value in entries.items()], folder=False)
    return f"lmdb://{path}"


def pickled(
    path: Path,
    values: Sequence[Any],
    *,
    protocol: int = pickle.DEFAULT_PROTOCOL,
    said: Any = None,
    keys: Any = None,
    **how: Any,
) -> Path:
    """Write ``0``, ``1``, … with ``__keys__`` and ``__len__`` as the blogs about ImageNet in LMDB do."""
    names = [f"{n}".encode("ascii") for n in range(len(values))]
    entries = [
        (name, value if isinstance(value, Raw) else pickle.dumps(value, protocol))
        for name, value in zip(names, values, strict=True)
    ]
    entries.append((b"__keys__", pickle.dumps(names if keys is None else keys, protocol)))
    entries.append((b"__len__", pickle.dumps(len(values) if said is None else said, protocol)))
    return put(path, entries, **how)


def ocr(path: Path, samples: Sequence[tuple[bytes, str]], *, said: int | None = None, start: int = 1) -> Path:
    """Write the format of deep-text-recognition-benchmark's ``create_lmdb_dataset.py``."""
    entries = [
        (f"{name}-{number:09}".encode(), value)
        for number, (image, label) in enumerate(samples, start)
        for name, value in (("image", image), ("label", label.encode()))
    ]
    return put(path, [*entries, (b"num-samples", str(len(samples) if said is None else said).encode())])


def basicsr(path: Path, images: Mapping[str, bytes], *, listed: Sequence[str] | None = None) -> Path:
    """Write BasicSR's folder: keys are names without a suffix, ``meta_info.txt`` lists the names."""
    put(path, ((name.rpartition(".")[0].encode(), blob) for name, blob in images.items()))
    lines = [f"{name} (8,9,3) 1\n" for name in (images if listed is None else listed)]
    (path / "meta_info.txt").write_text("".join(lines))
    return path


def datum(
    data: bytes = b"",
    label: int = 0,
    shape: tuple[int, int, int] = (0, 0, 0),
    *,
    encoded: bool = False,
    floats: Sequence[float] = (),
    packed: bool = False,
) -> bytes:
    """Return a serialised Caffe ``Datum``."""
    out = b"".join(_varint(tag << 3) + _varint(size) for tag, size in zip((1, 2, 3), shape, strict=True) if size)
    if data:
        out += _varint(4 << 3 | 2) + _varint(len(data)) + data
    out += _varint(5 << 3) + _varint(label & (2**64 - 1))
    if packed:
        out += _varint(6 << 3 | 2) + _varint(4 * len(floats)) + struct.pack(f"<{len(floats)}f", *floats)
    else:
        out += b"".join(_varint(6 << 3 | 5) + struct.pack("<f", value) for value in floats)
    return out + (_varint(7 << 3) + b"\1" if encoded else b"")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def caffe(path: Path, messages: Sequence[bytes], **how: Any) -> Path:
    """Write the format of Caffe's ``convert_imageset``: ``00000000_name.jpg`` → Datum."""
    return put(path, ((b"%08d_n%d.jpg" % (n, n), message) for n, message in enumerate(messages)), **how)


def tensorpack(path: Path, points: Sequence[Any], dumps: Callable[[Any], bytes], **how: Any) -> Path:
    """Write the format of tensorpack's ``LMDBSerializer.save``."""
    keys = [f"{n:08}".encode("ascii") for n in range(len(points))]
    values = (point if isinstance(point, Raw) else dumps(point) for point in points)
    return put(path, [*zip(keys, values, strict=True), (b"__keys__", dumps(keys))], **how)


def numpy_to_msgpack(value: Any) -> bytes:
    """Pack like msgpack after ``msgpack_numpy.patch()``, with ``use_bin_type=True``."""
    return msgspec.msgpack.encode(_msgpack_form(value))


def _msgpack_form(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_msgpack_form(item) for item in value]
    if isinstance(value, dict):
        return {name: _msgpack_form(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        shape, data = value.shape, value.tobytes()
        return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": shape, b"data": data}
    if isinstance(value, np.generic):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    return value


def aselmdb(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write an ``.aselmdb`` as fairchem's ``LMDBDatabase`` does; return the URL."""

    def packed(content: Any) -> bytes:
        return zlib.compress(json.dumps(content).encode())

    entries = {str(number): packed(row) for number, row in enumerate(rows, 1)}
    more = {"nextid": packed(len(rows) + 1), "deleted_ids": packed([]), "metadata": packed({"title": "atoms"})}
    put(path, [(key.encode(), value) for key, value in {**entries, **more}.items()], folder=False)
    return f"lmdb://{path}"


def records_of(url: str, **options: Any) -> list[dict[str, Any]]:
    """Return every record of a store; raises the error of one that is bad."""
    with storeds.open_backend(url, **options) as backend:
        records = backend.get_many(range(len(backend)))
    good = [record for record in records if not isinstance(record, storeds.errors.RecordError)]
    assert len(good) == len(records), records
    return good


def atoms(number: int) -> dict[str, Any]:
    """Return what fairchem's ``AtomsToGraphs`` makes of a few atoms."""
    generator = torch.Generator().manual_seed(number)
    count = 2 + number % 3
    return {
        "pos": torch.rand(count, 3, generator=generator),
        "atomic_numbers": torch.randint(1, 90, (count,), generator=generator).float(),
        "cell": torch.rand(1, 3, 3, generator=generator),
        "edge_index": torch.randint(0, count, (2, 3 * count), generator=generator),
        "force": torch.rand(count, 3, generator=generator),
        "natoms": count,
        "y": -1.5 * number,
        "sid": number,
    }


class Data:
    """Stands for torch_geometric's class of that name, whose pickles it makes byte for byte, as far as they are read."""


class GlobalStorage:
    """Stands for another one, in which newer versions keep the values."""


def open_catalyst(path: Path, count: int, version: int) -> str:
    """Write an Open Catalyst file: pickled graphs under 0, 1, …, and their number under ``length``; return the URL."""
    graphs = []
    for number in range(count):
        graph, storage = Data(), GlobalStorage()
        if version == 1:
            graph.__dict__ = {"x": None, "edge_attr": None, **atoms(number)}
        else:
            graph.__dict__["_store"] = storage
            storage.__dict__ = {"_mapping": atoms(number), "_parent": graph}
        data = pickle.dumps(graph, 2)
        for name, module in (("Data", "data"), ("GlobalStorage", "storage")):
            ours, theirs = f"c{__name__}\n{name}\n", f"ctorch_geometric.data.{module}\n{name}\n"
            data = data.replace(ours.encode(), theirs.encode())
        graphs.append(data)
    return numbered(path, graphs, {"length": pickle.dumps(count, 2)})


COUNT = 24
NUMBERS = range(COUNT)
MP4 = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2"
JPEGS = [encoded(number) for number in NUMBERS]
PNGS = [encoded(number, "PNG") for number in NUMBERS]
NAMED = sorted((f"lsun/{n * 37 % 101:03}/é{n}.jpg", JPEGS[n]) for n in NUMBERS)
BASICSR = {f"{(n * 7) % COUNT:04}_s n.png": PNGS[n] for n in range(1, COUNT)} | {"x.png": PNGS[0]}


def picture(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (3, 4, 5), np.uint8)


def vary(number: int) -> np.ndarray[Any, Any]:
    return np.full((2, 1 + number % 3), number, ">f4")


def json_value(number: int) -> bytes:
    entry = {"photo": base64.b64encode(JPEGS[number]).decode(), "box": [number, 0.5], "tags": ["a"] * (number % 2)}
    return gzip.compress(json.dumps(entry).encode())


def features(number: int) -> dict[str, Any]:
    return {"features": np.full((1 + number % 4, 3), number, "<f2"), "name": f"é{number}"}


def archive(**arrays: Any) -> bytes:
    with io.BytesIO() as out:
        np.savez_compressed(out, **arrays)
        return out.getvalue()


def zip_of(number: int) -> dict[str, Any]:
    return {"conf": np.arange(number + 1.0), "size": number}


Write = Callable[[Path], Path]


def _case(layout: str, write: Write, record: Callable[[int], dict[str, Any]], **arguments: Any) -> LayoutCase:
    def written(path: Path) -> Truth:
        write(path)
        return [record(number) for number in NUMBERS]

    return LayoutCase(written, layout, arguments)


def _labelled(number: int) -> dict[str, Any]:
    return {"image": JPEGS[number], "label": number}


LMDB: dict[str, LayoutCase] = {
    "tuples": _case("pickled", lambda path: pickled(path, [(JPEGS[n], n) for n in NUMBERS]), _labelled),
    "old-pickles-in-one-file": _case(
        "pickled",
        lambda path: pickled(
            path, [(JPEGS[n], float(n), f"é{n}", b"", MP4) for n in NUMBERS], protocol=2, folder=False
        ),
        lambda n: {"image": JPEGS[n], "value": float(n), "text": f"é{n}", "bytes": b"", "video": MP4},
    ),
    "tuples-of-arrays": _case(
        "pickled",
        lambda path: pickled(path, [(vary(n), np.arange(4) * n, picture(n).T) for n in NUMBERS]),
        lambda n: {
            "array0": vary(n).astype("<f4"),
            "array1": np.arange(4) * n,
            "array2": np.ascontiguousarray(picture(n).T),
        },
    ),
    "mappings-in-a-named-database": _case(
        "pickled",
        lambda path: pickled(path, [{"Image": JPEGS[n], "Boxes": [[n, 1.5]]} for n in NUMBERS], database=b"train"),
        lambda n: {"image": JPEGS[n], "boxes": np.array([[n, 1.5]])},
        database="train",
    ),
    "pickles-from-1-without-zeros": _case(
        "pickled",
        lambda path: put(path, [(b"%d" % (n + 1), pickle.dumps([n, bool(n % 2)])) for n in NUMBERS]),
        lambda n: {"label": n, "flag": bool(n % 2)},
    ),
    "pickles-under-names": _case(
        "pickled",
        lambda path: put(path, [(f"n{n:03}/é".encode(), pickle.dumps((JPEGS[n], n))) for n in NUMBERS]),
        _labelled,
    ),
    "pickles-of-protocol-0-with-class-names": _case(
        "pickled",
        lambda path: Path(
            numbered(
                path,
                [pickle.dumps((JPEGS[n], n), 0) for n in NUMBERS],
                {"classes": pickle.dumps(["a"], 0), "length": pickle.dumps(COUNT, 0)},
            )
        ),
        _labelled,
    ),
    "ocr": _case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"wörd {n}") for n in NUMBERS]),
        lambda n: {"image": PNGS[n], "label": f"wörd {n}"},
    ),
    "ocr-from-0": _case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"w{n}") for n in NUMBERS], start=0),
        lambda n: {"image": PNGS[n], "label": f"w{n}"},
    ),
    "keyed": _case(
        "keyed",
        lambda path: put(path, [(key.encode(), blob) for key, blob in NAMED[::-1]], folder=False),
        lambda n: {"image": NAMED[n][1], "key": NAMED[n][0]},
    ),
    "keys-that-are-no-text": _case(
        "keyed",
        lambda path: put(path, [(b"\xff" + bytes([n]), JPEGS[n]) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "key": f"\\xff{chr(n)}"},
    ),
    "basicsr": _case(
        "keyed",
        lambda path: basicsr(path, BASICSR),
        lambda n: {"image": [*BASICSR.values()][n], "key": [*BASICSR][n].removesuffix(".png")},
    ),
    "films": _case(
        "keyed",
        lambda path: put(path, [(b"%02d.mp4" % n, MP4 + bytes([n])) for n in NUMBERS]),
        lambda n: {"video": MP4 + bytes([n]), "key": f"{n:02}.mp4"},
    ),
    "datum-encoded": _case(
        "caffe",
        lambda path: caffe(path, [datum(JPEGS[n], n - 3, encoded=True) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "label": n - 3, "key": f"{n:08}_n{n}.jpg"},
    ),
    "datum-raw": _case(
        "caffe",
        lambda path: caffe(path, [datum(picture(n).tobytes(), n, (3, 4, 5)) for n in NUMBERS]),
        lambda n: {"array": picture(n), "label": n, "key": f"{n:08}_n{n}.jpg"},
    ),
    "datum-floats": _case(
        "caffe",
        lambda path: caffe(
            path, [datum(label=n, shape=(1, 1, n % 2 + 1), floats=[0.5] * (n % 2 + 1), packed=n > 9) for n in NUMBERS]
        ),
        lambda n: {"array": np.full((1, 1, n % 2 + 1), 0.5, "f4"), "label": n, "key": f"{n:08}_n{n}.jpg"},
    ),
    "tensorpack-pickle": _case(
        "tensorpack",
        # As its ILSVRC12 files: the encoded bytes lie in an array.
        lambda path: tensorpack(path, [[np.frombuffer(JPEGS[n], np.uint8), n] for n in NUMBERS], pickle.dumps),
        _labelled,
    ),
    "tensorpack-msgpack": _case(
        "tensorpack",
        lambda path: tensorpack(path, [[picture(n), np.int64(n)] for n in NUMBERS], numpy_to_msgpack, folder=False),
        lambda n: {"array": picture(n), "label": n},
    ),
    "json-in-gzip-with-images-in-base64": _case(
        "json",
        lambda path: put(path, [(b"%05d" % n, json_value(n)) for n in NUMBERS]),
        lambda n: {"photo": JPEGS[n], "box": np.array([n, 0.5]), "tags": ["a"] * (n % 2)},
    ),
    # As UNITER's texts, and its features of images.
    "msgpack-in-lz4": _case(
        "msgpack",
        lambda path: put(
            path, [(f"n/{n:02}".encode(), lz4.frame.compress(numpy_to_msgpack(features(n)))) for n in NUMBERS]
        ),
        features,
    ),
    "npz": _case(
        "npz",
        lambda path: put(
            path,
            [
                *((f"{n:02}.npz".encode(), archive(**zip_of(n))) for n in NUMBERS),
                (b"__keys__", json.dumps([f"{n:02}.npz" for n in NUMBERS]).encode()),
            ],
        ),
        zip_of,
    ),
}
"""Every LMDB store of the tests, by name; each has `COUNT` records."""
