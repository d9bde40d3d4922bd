"""Checks an LMDB file's header before it is mapped, because LMDB itself crashes on a damaged or shortened one.

A file cut short kills its reader with SIGBUS at the first touch of a missing page, and a flipped byte in a meta
page can abort it. The two meta pages therefore are compared with the file's size, and a published store carries a
*stamp* in the unused end of its first page: the last transaction's id, and a checksum over both meta pages and the root
page of the main database. A stamp of another transaction says nothing: some tool has written since.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import xxhash

from storeds.errors import FormatError

__all__ = ["Header", "check_lmdb_file", "read_header", "stamp_lmdb_file"]

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META_AT = 16  # a page header comes first
_META = struct.Struct("<IIQQ")  # magic, version, address, map size
_DB = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow pages, entries, root
_TAIL = struct.Struct("<QQ")  # last page, transaction id
_STAMP = struct.Struct("<8sQ8s")  # magic, transaction id, xxh3-64
_STAMP_MAGIC = b"storeds\x01"
_NO_PAGE = 2**64 - 1
_HEAD = _META_AT + _META.size + 2 * _DB.size + _TAIL.size


@dataclass(frozen=True, slots=True)
class Header:
    """What the newer meta page says: size of a page, root of the main database, last page, id of the last transaction."""

    page_size: int
    root: int
    last: int
    transaction: int


def check_lmdb_file(path: str, url: str) -> None:
    """Raise FormatError unless the LMDB file at `path` is as long as its header says and its stamp holds."""
    with open(path, "rb") as file:
        read_header(file.fileno(), url)


def read_header(descriptor: int, url: str) -> Header:
    """Return the header of an open LMDB file; raises FormatError unless the file is as long as that says, and its stamp holds."""
    size = os.fstat(descriptor).st_size
    page_size, pages = _meta_pages(descriptor, size, url)
    metas = [_parse(page, number, url) for number, page in enumerate(pages)]
    root, last, transaction = max(metas, key=lambda meta: meta[2])
    if (last + 1) * page_size > size:
        raise FormatError(
            f"{url} is cut short: its header speaks of {(last + 1) * page_size} bytes, the file has {size}; copy it again"
        )
    if root != _NO_PAGE and not 1 < root <= last:
        raise FormatError(f"{url}: the header points outside the file; copy it again")
    magic, stamped, digest = _STAMP.unpack(pages[0][-_STAMP.size :])
    applies = magic == _STAMP_MAGIC and stamped == transaction
    if applies and digest != _digest(descriptor, page_size, pages, root):
        raise FormatError(f"{url}: the header does not match its checksum; copy it again")
    return Header(page_size, root, last, transaction)


def stamp_lmdb_file(path: str) -> None:
    """Write the stamp into the LMDB file at `path`, which nobody may have open."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        page_size, pages = _meta_pages(descriptor, os.fstat(descriptor).st_size, path)
        if any(pages[0][-_STAMP.size :]):
            raise FormatError(f"{path}: this LMDB uses the end of its first page, where the stamp belongs")
        metas = [_parse(page, number, path) for number, page in enumerate(pages)]
        root, _, transaction = max(metas, key=lambda meta: meta[2])
        digest = _digest(descriptor, page_size, pages, root)
        os.pwrite(descriptor, _STAMP.pack(_STAMP_MAGIC, transaction, digest), page_size - _STAMP.size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _meta_pages(descriptor: int, size: int, url: str) -> tuple[int, list[bytes]]:
    head = os.pread(descriptor, _HEAD, 0)
    page_size = _DB.unpack_from(head, _META_AT + _META.size)[0] if len(head) == _HEAD else 0
    if page_size not in (1 << bits for bits in range(9, 17)) or size < 2 * page_size:
        raise FormatError(f"{url} is cut short or damaged: {size} bytes do not hold an LMDB header; copy it again")
    return page_size, [os.pread(descriptor, page_size, number * page_size) for number in (0, 1)]


def _parse(page: bytes, number: int, url: str) -> tuple[int, int, int]:
    magic, version, _, _ = _META.unpack_from(page, _META_AT)
    if magic != _MAGIC or version != _VERSION:
        raise FormatError(
            f"{url}: LMDB meta page {number} is damaged, or of a newer LMDB (version {version}); copy it again"
        )
    root = _DB.unpack_from(page, _META_AT + _META.size + _DB.size)[7]
    last, transaction = _TAIL.unpack_from(page, _META_AT + _META.size + 2 * _DB.size)
    return root, last, transaction


def _digest(descriptor: int, page_size: int, pages: list[bytes], root: int) -> bytes:
    main = b"" if root == _NO_PAGE else os.pread(descriptor, page_size, root * page_size)
    return xxhash.xxh3_64_digest(pages[0][: -_STAMP.size] + pages[1] + main)
