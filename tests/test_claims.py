"""Small files that claim much: a child process opens and reads them all, within a bound of memory."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from storeds.backends.hdf5.headers import _attributes

MOST = 100  # MiB that reading one file may add to the memory of the process
LARGEST = 400_000  # bytes of a file; gzip makes at most 1,032 bytes of one
CLAIMED = 1_500_000_000

READ = r"""
import re, sys, storeds
from storeds.errors import StoredsError
import storeds.layouts.hdf5, storeds.backends.hdf5.reading

def peak(): return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) >> 10
for path, columns in zip(sys.argv[1::2], sys.argv[2::2]):
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak
    before = peak()
    try:
        with storeds.open_backend(path, **({"columns": {"x": columns}} if columns else {})) as backend:
            found = backend.get_many(range(len(backend)))
            print(sum(isinstance(each, StoredsError) for each in found), end=" ")
            try:
                backend.column("x")
            except (StoredsError, ValueError):
                pass
    except StoredsError:
        print("store", end=" ")
    print(peak() - before)
"""


def variable(path: Path, dtype: Any, claims: dict[int, int], **how: Any) -> None:
    """Write 8 items of variable length, and let the references of some claim other lengths."""
    shape = how.pop("shape", (8,))
    with h5py.File(path, "w", libver=how.pop("libver", None), userblock_size=how.pop("userblock_size", 0)) as file:
        dataset = file.create_dataset("x", shape, dtype, **how)
        item = "text" * 100 if h5py.check_string_dtype(dtype) else np.arange(100, dtype=h5py.check_vlen_dtype(dtype))
        for at in range(8) if shape else [()]:
            dataset[at] = item
        file.flush()
        if not dataset.chunks:
            patch(path, {dataset.id.get_offset() + 16 * at: length for at, length in claims.items()})
            return
        mask, raw = dataset.id.read_direct_chunk((0,))
        claimed = bytearray(raw)
        for at, length in claims.items():
            claimed[16 * at : 16 * at + 4] = struct.pack("<I", length)
        dataset.id.write_direct_chunk((0,), bytes(claimed), mask)


def patch(path: Path, lengths: dict[int, int]) -> None:
    with path.open("r+b") as file:
        for at, length in lengths.items():
            file.seek(at)
            file.write(struct.pack("<I", length))


def one_item_many_times(path: Path) -> None:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (4000,), h5py.vlen_dtype("u1"), chunks=(4000,), compression="gzip")
        dataset[0] = np.arange(60_000, dtype="u1")
        file.flush()
        raw = zlib.decompress(dataset.id.read_direct_chunk((0,))[1])
        dataset.id.write_direct_chunk((0,), zlib.compress(raw[:16] * 4000))


def rewritten(path: Path, name: str, sizes: dict[str, int] | None = None, **how: Any) -> None:
    """Write a native store as h5repack would, with a chunk of a dataset that inflates to 300 MiB, or datasets of other sizes."""
    flat = path.with_suffix(".flat")
    with storeds.open_writer(f"hdf5://{flat}", {"x": "str", "n": "int"}) as writer:
        writer.append({"x": "text" * 100, "n": at} for at in range(8))
    with h5py.File(flat) as old, h5py.File(path, "w") as new:
        new.attrs.update(old.attrs)
        for each, data in old["records"].items():
            for part, values in data.items() if isinstance(data, h5py.Group) else [("", data)]:
                full = f"{each}/{part}".rstrip("/")
                options: Any = {"chunks": (8,), "maxshape": (None,), "compression": "gzip", **how}
                copy = new.create_dataset(f"records/{full}", data=values[()], **options)
                copy.resize(((sizes or {}).get(full, len(copy)),))
        if name:
            new.flush()
            new[f"records/{name}"].id.write_direct_chunk((0,), zlib.compress(bytes(300 << 20)))


def compact(path: Path, dtype: Any) -> None:
    """Write 8 items whose references are in the header of the dataset, and let one claim another length."""
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        of_file = h5py.h5t.py_create(dtype, logical=True)
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", of_file, h5py.h5s.create_simple((8,)), properties))
        for at in range(8):
            dataset[at] = "text" * 77 if h5py.check_string_dtype(dtype) else np.arange(308, dtype="u1")
    patch(path, {path.read_bytes().index(struct.pack("<I", 308)): CLAIMED})


def attribute(path: Path, name: str, **how: Any) -> None:
    """Write a text as an attribute of the root and of a dataset, which claim another length."""
    text = "text" * 25
    with h5py.File(path, "w", **how) as file:
        file["x"] = np.arange(16).reshape(8, 2)
        for owner in (file, file["x"]):
            owner.attrs[name] = text
    false_length(path, name, text)


def false_length(path: Path, name: str, text: str) -> None:
    """Let each attribute of this name and text claim another length."""
    data = path.read_bytes()
    places = [found.end() for found in re.finditer(name.encode() + b"\0", data)]
    patch(path, {data.index(struct.pack("<I", len(text)), at): CLAIMED for at in places})


def native_meta(path: Path) -> None:
    rewritten(path, "")
    with h5py.File(path) as file:
        text = file.attrs["meta"]
    false_length(path, "meta", text)


BYTES, TEXT, NUMBERS = h5py.vlen_dtype("u1"), h5py.string_dtype(), h5py.vlen_dtype("<f8")
ROWS, ONE = "x[]", "x"
Write = Callable[[Path], None]

# Name → what writes the file, the columns to open it with, and how many of its records are bad.
CLAIMS: dict[str, tuple[Write, str, str]] = {
    "all": (lambda path: variable(path, BYTES, dict.fromkeys(range(8), CLAIMED)), ROWS, "8"),
    "text": (lambda path: variable(path, TEXT, {3: CLAIMED}), ROWS, "1"),
    "numbers": (lambda path: variable(path, NUMBERS, {0: CLAIMED >> 3, 7: 1 << 31}), ROWS, "2"),
    "chunk": (lambda path: variable(path, BYTES, {0: CLAIMED}, chunks=(8,)), ROWS, "1"),
    "latest": (lambda path: variable(path, TEXT, {5: CLAIMED}, chunks=(8,), libver="latest"), ROWS, "1"),
    "user block": (lambda path: variable(path, BYTES, {5: CLAIMED}, userblock_size=512), ROWS, "1"),
    "too short": (lambda path: variable(path, BYTES, {3: 1}), ROWS, "1"),
    "one of bytes": (lambda path: variable(path, BYTES, {0: CLAIMED}, shape=()), ONE, "1"),
    "one text": (lambda path: variable(path, TEXT, {0: CLAIMED}, shape=()), ONE, "1"),
    "one item many times": (one_item_many_times, ROWS, "store"),
    "compact bytes": (lambda path: compact(path, BYTES), ROWS, "1"),
    "compact texts": (lambda path: compact(path, TEXT), ROWS, "1"),
    "attribute": (lambda path: attribute(path, "note"), ROWS, "0"),
    "attribute, latest": (lambda path: attribute(path, "note", libver="latest"), ROWS, "store"),  # has checksums
    "attribute, user block": (lambda path: attribute(path, "note", userblock_size=512), ROWS, "0"),
    "attribute of MATLAB": (lambda path: attribute(path, "MATLAB_class"), "", "store"),
    "native meta": (native_meta, "", "store"),
    "native": (lambda path: rewritten(path, ""), "", "0"),
    "native texts": (lambda path: rewritten(path, "x/data"), "", "1"),
    "native offsets": (lambda path: rewritten(path, "x/offsets"), "", "8"),
    "native numbers": (lambda path: rewritten(path, "n"), "", "8"),
    "native seals": (lambda path: rewritten(path, "_seal", shuffle=True), "", "8"),
    "native size": (lambda path: rewritten(path, "", {"x/data": 1 << 40}), "", "store"),
}


def test_a_small_file_takes_little_memory_whatever_it_claims(tmp_path: Path) -> None:
    arguments: list[str] = []
    for number, (write, columns, _) in enumerate(CLAIMS.values()):
        path = tmp_path / f"{number}.h5"
        write(path)
        assert path.stat().st_size < LARGEST
        arguments += str(path), columns
    done = subprocess.run([sys.executable, "-c", READ, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(zip(CLAIMS, (line.split() for line in done.stdout.splitlines()), strict=True))
    assert {name: seen for name, (seen, _) in found.items()} == {name: bad for name, (*_, bad) in CLAIMS.items()}
    assert {name: grown for name, (_, grown) in found.items() if int(grown) >= MOST} == {}


@pytest.mark.parametrize("libver", [None, "v108", "latest"])
@pytest.mark.parametrize(("count", "userblock_size"), [(4, 512), (40, 0)])
def test_attributes_are_found_in_every_header(tmp_path: Path, libver: Any, userblock_size: int, count: int) -> None:
    names = {f"né{at}".encode(): len("text" * at) for at in range(count)}
    with h5py.File(tmp_path / "a.h5", "w", libver=libver, userblock_size=userblock_size) as file:
        file.create_group("g", track_order=libver == "latest")
        file.create_dataset("x", (3,), "u1")
        for owner in (file, file["g"], file["x"]):
            for name, length in names.items():
                owner.attrs[name.decode()] = "text" * (length // 4)
    with h5py.File(tmp_path / "a.h5") as file:
        for owner in (file, file["g"], file["x"]):
            values = _attributes(file.id.get_vfd_handle(), owner)
            found = {name: struct.unpack_from("<I", value)[0] for name, value in values}
            assert found == (names if libver is None or count < 9 else {})  # newer versions move many elsewhere
