"""Writes LMDB stores in the formats of other tools, with only the package ``lmdb``."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
from PIL import Image

__all__ = [
    "basicsr",
    "caffe",
    "datum",
    "encoded",
    "numpy_to_msgpack",
    "ocr",
    "pickled",
    "put",
    "tensorpack",
]


def put(
    path: Path, entries: Iterable[tuple[bytes, bytes]], *, folder: bool = True, database: bytes | None = None
) -> Path:
    """Write keys and values in several transactions."""
    env = lmdb.open(str(path), subdir=folder, map_size=1 << 31, max_dbs=4, lock=False)
    db = env.open_db(database) if database else None
    walk, left = iter(entries), True
    while left:
        with env.begin(write=True, db=db) as txn:
            left = False
            for number, (key, value) in enumerate(walk):
                txn.put(key, value)
                if number == 9999:
                    left = True
                    break
    env.sync()
    env.close()
    return path


def encoded(number: int, form: str = "JPEG") -> bytes:
    """Return a small image that depends on `number`."""
    pixels = np.random.default_rng(number).integers(0, 256, (8 + number % 5, 9, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def pickled(
    path: Path,
    values: Sequence[Any],
    *,
    protocol: int = pickle.DEFAULT_PROTOCOL,
    said: Any = None,
    keys: Any = None,
    names: Sequence[bytes] | None = None,
    **how: Any,
) -> Path:
    """Write ``0``, ``1``, …, or `names`, with ``__keys__`` and ``__len__`` as the blogs about ImageNet in LMDB do."""
    listed = names or [f"{n}".encode("ascii") for n in range(len(values))]

    def entries() -> Iterator[tuple[bytes, bytes]]:
        for key, value in zip(listed, values, strict=True):
            yield key, value if isinstance(value, Raw) else pickle.dumps(value, protocol)
        yield b"__keys__", pickle.dumps(listed if keys is None else keys, protocol)
        yield b"__len__", pickle.dumps(len(values) if said is None else said, protocol)

    return put(path, entries(), **how)


class Raw(bytes):
    """A value that is already serialised."""


def ocr(
    path: Path,
    samples: Sequence[tuple[bytes, str | bytes | None]],
    *,
    said: int | None = None,
    start: int = 1,
    form: str = "09",
    counted: bool = True,
    **how: Any,
) -> Path:
    """Write the format of deep-text-recognition-benchmark's ``create_lmdb_dataset.py``; a label of None is left out.

    With ``counted=False``, write what the tool leaves if it is interrupted.
    """

    def entries() -> Iterator[tuple[bytes, bytes]]:
        for number, (image, label) in enumerate(samples, start):
            yield f"image-{number:{form}}".encode(), image
            if label is not None:
                yield f"label-{number:{form}}".encode(), label.encode() if isinstance(label, str) else label
        if counted:
            yield b"num-samples", str(len(samples) if said is None else said).encode()

    return put(path, entries(), **how)


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
