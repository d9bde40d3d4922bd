"""Finds references in the headers of HDF5 objects: libhdf5 shows none, and allocates the length that one claims."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

__all__ = ["check_attribute", "compact_bytes"]

_LAYOUT, _ATTRIBUTE, _CONTINUATION = 0x08, 0x0C, 0x10  # types of messages
_MOST = 1 << 22  # bytes of the header of an object, whose attributes have at most 64 KiB each
_LENGTH = struct.Struct("<I")


def check_attribute(owner: h5py.Group | h5py.Dataset, name: str) -> None:
    """Raise ValueError if an attribute is no plain value, or a text or list that claims more bytes than its file has.

    Attributes that HDF5 moved out of the header, from the ninth on in files of ``libver="latest"``, are not compared.
    """
    attribute = h5py.h5a.open(owner.id, name.encode("utf-8", "surrogateescape"))
    dtype = attribute.dtype
    if not dtype.hasobject:
        return
    base = np.dtype("u1") if h5py.check_string_dtype(dtype) else h5py.check_vlen_dtype(dtype)
    if base is None or attribute.get_space().get_simple_extent_npoints() != 1:
        raise ValueError(f"attribute {name!r} is not one value")
    descriptor = owner.file.id.get_vfd_handle()
    available = os.fstat(descriptor).st_size
    for found, reference in _attributes(descriptor, owner):
        claimed = _LENGTH.unpack_from(reference)[0] * np.dtype(base).itemsize if len(reference) >= _LENGTH.size else 0
        if found == name.encode("utf-8", "surrogateescape") and claimed > available:
            raise ValueError(f"attribute {name!r} claims {claimed:,} bytes, more than its file has")


def compact_bytes(descriptor: int, dataset: h5py.Dataset) -> bytes:
    """Return the bytes of a dataset whose values are in its header; none if it was never written."""
    for kind, data in _messages(descriptor, dataset):
        if kind == _LAYOUT and data[:1] in (b"\3", b"\4") and data[1:2] == b"\0":
            return data[4 : 4 + int.from_bytes(data[2:4], "little")]
    return b""


def _attributes(descriptor: int, owner: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and stored value of each attribute in the header of an object."""
    for kind, data in _messages(descriptor, owner):
        if kind != _ATTRIBUTE or len(data) < 8:
            continue
        version, _, *sizes = struct.unpack_from("<BBHHH", data)
        name_at = 9 if version == 3 else 8
        if version == 1:  # each part is padded
            sizes = [-(-size // 8) * 8 for size in sizes]
        yield data[name_at : name_at + sizes[0]].partition(b"\0")[0], data[name_at + sum(sizes) :]


def _messages(descriptor: int, owner: Any) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of the messages in the header of an object, as the HDF5 file format specifies them."""
    base, left = owner.file.userblock_size, _MOST
    addresses, lengths = owner.file.id.get_create_plist().get_sizes()
    at = base + h5py.h5o.get_info(owner.id).addr
    prefix = os.pread(descriptor, 34, at)
    if prefix[:4] == b"OHDR":
        flags = prefix[5]
        start = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        wide = 1 << (flags & 3)
        blocks = [(at + start + wide, int.from_bytes(prefix[start : start + wide], "little"))]
        skipped, head = 4, struct.Struct("<BHBH" if flags & 4 else "<BHB")  # a signature before the other blocks
    else:
        blocks, skipped, head = [(at + 16, _LENGTH.unpack_from(prefix, 8)[0])], 0, struct.Struct("<HHBxxx")
    while blocks and left > 0:
        start, size = blocks.pop()
        block, here = os.pread(descriptor, min(size, left), start), 0
        left -= max(len(block), head.size)
        while here + head.size <= len(block):
            kind, size = head.unpack_from(block, here)[:2]
            data, here = block[here + head.size : here + head.size + size], here + head.size + size
            if kind == _CONTINUATION and len(data) >= addresses + lengths:
                address = int.from_bytes(data[:addresses], "little")
                length = int.from_bytes(data[addresses : addresses + lengths], "little")
                blocks.append((min(base + address, 1 << 62) + skipped, max(length - 2 * skipped, 0)))
            else:
                yield kind, data
