"""Move records of native stores to other places, as a failing disk or a faulty tool does, without changing a value."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import msgspec
import numpy as np
import pymongo

from plain_formats import database_of

__all__ = [
    "BLOB",
    "change_label",
    "exit_code",
    "flip",
    "graft_record",
    "lead_astray",
    "leaf_nodes",
    "numbered_records",
    "page_number_bits",
    "swap_records",
]

PAGE = 4096
BLOB = 5000  # bytes of an image: two pages of its own in LMDB
_BRANCH, _LEAF, _BIG = 1, 2, 1


def numbered_records(count: int) -> list[dict[str, Any]]:
    """Return records of equal size that say which they are."""
    return [{"image": at.to_bytes(4, "big") * (BLOB // 4), "label": at, "key": f"{at:06d}.jpg"} for at in range(count)]


def swap_records(url: str, a: int, b: int) -> None:
    """Exchange the places of two records, checksums and all."""
    scheme, _, place = url.partition("://")
    if scheme == "lmdb":
        _write_pages(Path(place), {a: b, b: a})
    elif scheme == "hdf5":
        _write_rows(Path(place), {a: b, b: a})
    else:
        _rename_documents(url, a, b)


def graft_record(url: str, other: str, at: int) -> None:
    """Put a record of another store of equal sizes, checksum and all, in the place of this store's; files only."""
    write = _write_pages if url.startswith("lmdb") else _write_rows
    write(Path(url.partition("://")[2]), {at: at}, Path(other.partition("://")[2]))


def _write_pages(path: Path, moves: dict[int, int], origin: Path | None = None) -> None:
    """Give the overflow pages of some records what those of others hold; page numbers stay."""
    data, before = bytearray(path.read_bytes()), (origin or path).read_bytes()
    runs = {int.from_bytes(key, "big"): page for _, key, page in leaf_nodes(before) if page is not None}
    for target, source in moves.items():
        size = PAGE * struct.unpack_from("<I", before, runs[source] * PAGE + 12)[0]
        begin, end = runs[target] * PAGE, runs[target] * PAGE + size
        data[begin + 16 : end] = before[runs[source] * PAGE + 16 : runs[source] * PAGE + size]
    path.write_bytes(data)


def leaf_nodes(data: bytes) -> Iterator[tuple[int, bytes, int | None]]:
    """Yield place in the file, key, and first overflow page of each node of LMDB's leaf pages with keys of 8 bytes."""
    for page in range(2, len(data) // PAGE):
        start = page * PAGE
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, start)
        if (number, flags) != (page, _LEAF):
            continue
        for at in range(start + 16, start + lower, 2):
            node = start + struct.unpack_from("<H", data, at)[0]
            _, _, kind, size = struct.unpack_from("<HHHH", data, node)
            key = data[node + 8 : node + 8 + size]
            if size == 8 and not kind & 2:
                overflow = struct.unpack_from("<Q", data, node + 8 + size)[0] if kind & _BIG else None
                yield node, key, overflow


def page_number_bits(data: bytes) -> Iterator[int]:
    """Yield the bits of all page numbers that lead from LMDB's branch pages and to its overflow pages."""
    for page in range(2, len(data) // PAGE):
        start = page * PAGE
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, start)
        if (number, flags) == (page, _BRANCH):
            for at in range(start + 16, start + lower, 2):
                node = start + struct.unpack_from("<H", data, at)[0]
                yield from range(8 * node, 8 * node + 48)
    for node, key, overflow in leaf_nodes(data):
        if overflow is not None:
            yield from range(8 * (node + 8 + len(key)), 8 * (node + 16 + len(key)))


def lead_astray(path: Path, at: int) -> None:
    """Flip the highest bit of the place of a record's node in its LMDB leaf page: reading it touches what no file has."""
    data = path.read_bytes()
    (node,) = [node for node, key, _ in leaf_nodes(data) if key == at.to_bytes(8, "big")]
    page = node // PAGE * PAGE
    lower = struct.unpack_from("<H", data, page + 12)[0]
    for place in range(page + 16, page + lower, 2):
        if struct.unpack_from("<H", data, place)[0] == node - page:
            path.write_bytes(flip(data, 8 * place + 15))


def flip(data: bytes, bit: int) -> bytes:
    """Return `data` with one bit flipped."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _write_rows(path: Path, moves: dict[int, int], origin: Path | None = None) -> None:
    with h5py.File(path) as file:
        group = file["records"]
        whole = [name for name in group if isinstance(group[name], h5py.Dataset)]
        cut = [name for name in group if name not in whole]
        places = {name: (group[name].id.get_offset(), group[name].nbytes // len(group[name])) for name in whole}
        places |= {name: (group[name]["data"].id.get_offset(), int(group[name]["offsets"][1])) for name in cut}
    data, before = bytearray(path.read_bytes()), (origin or path).read_bytes()
    for start, size in places.values():
        for target, source in moves.items():
            data[start + target * size : start + (target + 1) * size] = before[
                start + source * size : start + (source + 1) * size
            ]
    path.write_bytes(data)


def change_label(url: str, at: int, label: int, key: str) -> None:
    """Give one record another label, and another key of equal length, as an update or a failing disk does."""
    scheme, _, place = url.partition("://")
    if scheme == "hdf5":
        with h5py.File(place) as file:
            group = file["records"]
            first = int(group["key/offsets"][at])
            edits = {
                group["label"].id.get_offset() + 8 * at: label.to_bytes(8, "little"),
                group["key/data"].id.get_offset() + first: key.encode(),
            }
        with open(place, "r+b") as raw:
            for offset, data in edits.items():
                raw.seek(offset)
                raw.write(data)
    elif scheme == "lmdb":
        _change_in_lmdb(place, at, label, key)
    else:
        with database_of(url) as (database, name):
            database[name].update_one({"_id": at}, {"$set": {"label": label, "key": key}})


def _change_in_lmdb(path: str, at: int, label: int, key: str) -> None:
    with lmdb.open(path, subdir=False, lock=False, max_dbs=3) as env:
        records, columns = (env.open_db(name) for name in (b"records", b"columns"))
        txn: Any
        with env.begin(write=True) as txn:
            value = txn.get(at.to_bytes(8, "big"), db=records)
            row = msgspec.msgpack.decode(value[:-8]) | {"label": label, "key": key}
            txn.put(at.to_bytes(8, "big"), msgspec.msgpack.encode(row) + value[-8:], db=records)
            labels = np.frombuffer(txn.get(b"label", db=columns), "<i8").copy()
            labels[at] = label
            txn.put(b"label", labels.tobytes(), db=columns)
            texts, offsets = txn.get(b"key", db=columns), np.frombuffer(txn.get(b"key.offsets", db=columns), "<i8")
            texts = texts[: offsets[at]] + key.encode() + texts[offsets[at + 1] :]
            txn.put(b"key", texts, db=columns)


def exit_code(check: Callable[[], bool]) -> int:
    """Return 0 or 1 for whether `check` is true in a forked child; a negative number is the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _rename_documents(url: str, a: int, b: int) -> None:
    with database_of(url) as (database, name):
        collection: pymongo.collection.Collection[Any] = database[name]
        first, second = collection.find_one({"_id": a}), collection.find_one({"_id": b})
        assert first is not None
        assert second is not None
        collection.delete_many({"_id": {"$in": [a, b]}})
        collection.insert_many([{**first, "_id": second["_id"]}, {**second, "_id": first["_id"]}])
