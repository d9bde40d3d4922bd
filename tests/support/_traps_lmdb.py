"""Writes LMDB stores as well-known tools write them, with the package ``lmdb`` and what those tools use."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import sys
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import lz4.frame
import msgspec
import numpy as np
import pytest
import torch

import storeds
from _foreign_lmdb import put

__all__ = [
    "aselmdb",
    "atoms",
    "grey_video",
    "numbered",
    "open_catalyst",
    "records_of",
    "stylegan2",
    "uniter_images",
    "uniter_texts",
]


def numbered(path: Path, values: Sequence[bytes], more: Mapping[str, bytes] | None = None) -> str:
    """Write values under 0, 1, … and other entries beside them; return the URL."""
    entries = {str(number): value for number, value in enumerate(values)} | dict(more or {})
    put(path, [(key.encode(), value) for key, value in entries.items()], folder=False)
    return f"lmdb://{path}"


class _Data:
    """Stands for torch_geometric's class of that name, whose pickles it makes byte for byte, as far as they are read."""

    def __init__(self, entries: Mapping[str, Any], version: int) -> None:
        if version == 1:
            self.__dict__.update(entries)
            return
        self.__dict__["_store"] = _Storage(entries, self)


class _Storage:
    def __init__(self, entries: Mapping[str, Any], parent: _Data) -> None:
        self._mapping = dict(entries)
        self._parent = parent


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Make the two classes importable under torch_geometric's names, as pickle wants them to be."""
    names = {"torch_geometric.data.data": ("Data", _Data), "torch_geometric.data.storage": ("GlobalStorage", _Storage)}
    modules = {name: types.ModuleType(name) for name in ("torch_geometric", "torch_geometric.data", *names)}
    for module, (name, cls) in names.items():
        cls.__module__, cls.__name__, cls.__qualname__ = module, name, name
        setattr(modules[module], name, cls)
    with mock.patch.dict(sys.modules, modules):
        yield


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


def open_catalyst(path: Path, count: int, *, version: int = 2, protocol: int = -1) -> str:
    """Write an Open Catalyst file: pickled graphs under 0, 1, …, and their number under ``length``; return the URL."""
    with _importable():
        nothing = {"x": None, "edge_attr": None} if version == 1 else {}
        graphs = [pickle.dumps(_Data({**nothing, **atoms(n)}, version), protocol) for n in range(count)]
    return numbered(path, graphs, {"length": pickle.dumps(count, protocol)})


def aselmdb(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write an ``.aselmdb`` as fairchem's ``LMDBDatabase`` does; return the URL."""

    def packed(content: Any) -> bytes:
        return zlib.compress(json.dumps(content).encode())

    entries = {str(number): packed(row) for number, row in enumerate(rows, 1)}
    more = {"nextid": packed(len(rows) + 1), "deleted_ids": packed([]), "metadata": packed({"title": "atoms"})}
    put(path, [(key.encode(), value) for key, value in {**entries, **more}.items()], folder=False)
    return f"lmdb://{path}"


def uniter_images(path: Path, features: Mapping[str, Mapping[str, Any]], *, compress: bool) -> str:
    """Write UNITER's image features: npz, or msgpack as msgpack_numpy packs arrays, under the names of files."""

    def dump(entry: Mapping[str, Any]) -> bytes:
        if compress:
            with io.BytesIO() as out:
                np.savez_compressed(out, **entry)
                return out.getvalue()
        arrays = {
            name: {b"nd": True, b"type": a.dtype.str, b"kind": b"", b"shape": a.shape, b"data": a.tobytes()}
            for name, a in entry.items()
        }
        return msgspec.msgpack.encode(arrays)

    entries = {name: dump(entry) for name, entry in features.items()} | {"__keys__": json.dumps([*features]).encode()}
    put(path, [(key.encode(), value) for key, value in entries.items()])
    return f"lmdb://{path}"


def uniter_texts(path: Path, texts: Mapping[str, Mapping[str, Any]]) -> str:
    """Write UNITER's texts: msgpack, compressed by lz4, under the ids of the questions."""
    entries = [(key, lz4.frame.compress(msgspec.msgpack.encode(dict(text)))) for key, text in texts.items()]
    put(path, [(key.encode(), value) for key, value in entries])
    return f"lmdb://{path}"


def stylegan2(path: Path, images: Mapping[int, Sequence[bytes]]) -> str:
    """Write what rosinality's ``prepare_data.py`` does: each image in several sizes, and how many there are."""
    entries = [(b"%d-%05d" % (size, n), blob) for size, blobs in images.items() for n, blob in enumerate(blobs)]
    put(path, [*entries, (b"length", str(len(next(iter(images.values())))).encode())])
    return f"lmdb://{path}"


def grey_video(brightness: Sequence[int]) -> bytes:
    """Return an MP4 of grey frames; skip the test where PyAV is missing."""
    av: Any = pytest.importorskip("av")
    with io.BytesIO() as out:
        with av.open(out, "w", format="mp4") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
            for value in brightness:
                frame = av.VideoFrame.from_ndarray(np.full((24, 32, 3), value, np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return out.getvalue()


def records_of(url: str, **options: Any) -> list[dict[str, Any]]:
    """Return every record of a store; raises the error of one that is bad."""
    with storeds.open_backend(url, **options) as backend:
        records = backend.get_many(range(len(backend)))
    good = [record for record in records if not isinstance(record, storeds.errors.RecordError)]
    assert len(good) == len(records), records
    return good
