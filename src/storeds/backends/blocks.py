"""Reads boxes of arrays of native records, verified block by block.

A seal covers all bytes of a record. So a record of which parts are wanted is read and verified whole once. Then the checksums of
its blocks go into the cache folder, by which later reads, in any process, verify the blocks that they need.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from mmap import MADV_WILLNEED, PAGESIZE, mmap
from typing import Any, NamedTuple

import numpy as np
import xxhash

from storeds._utils.files import read_into
from storeds._utils.prefetch import ADVISED, blocks_read, will_need
from storeds.backends.raw import RawStore
from storeds.errors import RecordError
from storeds.protocols import Array, Box, Field, Meta, Record
from storeds.records.codec import RecordCodec, canonical_value, checksum, decode, encode
from storeds.records.index import Index
from storeds.records.parts import Spans, StoredArray, size_of_values

__all__ = ["KeptBlocks", "StoredBytes"]

_BLOCK = 1 << 13  # bytes; smaller ones cost more calls, and larger ones more bytes around a box
_LARGE = 1 << 21  # bytes of an array; a smaller one is read whole in the time that loading checksums takes
_MOST = 1 << 20  # bytes of one read of several spans
_KEPT = 1 << 25  # bytes of checksums in memory, of each store


class StoredBytes(NamedTuple):
    """Bytes in the file of a native store, which nothing has verified: a packed record, or the elements of an array.

    Attributes
    ----------
    file : int or mmap
        Its descriptor, or a map.
    start, size : int
    """

    file: int | mmap
    start: int
    size: int

    def part(self, start: int, size: int) -> StoredBytes:
        """Return some of them."""
        return StoredBytes(self.file, self.start + start, size)

    def read(self, start: int, buffer: memoryview) -> memoryview:
        """Return as many bytes as `buffer` has, in it or in the map; fewer where they are unreadable."""
        begin = self.start + start
        if isinstance(self.file, mmap):
            return memoryview(self.file)[begin : begin + len(buffer)]
        try:
            return buffer[: read_into(buffer, self.file, begin)]
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return buffer[:0]

    def will_need(self, starts: Array, stops: Array) -> None:
        """Have ranges loaded from the disk all at once."""
        if not isinstance(self.file, mmap):
            will_need(self.file, self.start + starts, self.start + stops)
            return
        begins = (self.start + starts) // PAGESIZE * PAGESIZE
        for begin, end in zip(begins.tolist(), (self.start + stops).tolist(), strict=True):
            for at in range(begin, end, ADVISED):
                with suppress(OSError, ValueError):  # it is outside of the file
                    self.file.madvise(MADV_WILLNEED, at, min(ADVISED, end - at))


class KeptBlocks:
    """The checksums of the blocks of the records of a native store. Thread-safe.

    Parameters
    ----------
    url : str
    meta : Meta
    """

    def __init__(self, url: str, meta: Meta) -> None:
        self._url, self._meta, self._codec = url, meta, RecordCodec(meta.fields)
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def records(
        self, raw: RawStore, positions: list[int], names: tuple[str, ...], whole: Callable[[int], Record | RecordError]
    ) -> dict[int, Record]:
        """Return fields of records, with a `StoredArray` that verifies what is read in place of each array.

        Without the records that must be read whole: where the arrays are small, or to name what is damaged.

        Parameters
        ----------
        raw, positions, names
            The store, and what to read.
        whole : callable
            Reads a whole record. It decides where a record is new, or a block does not match.
        """
        arrays = tuple(name for name in names if self._meta.fields[name].kind == "array")
        if not any(size_of_values(self._meta.fields[name]) > _LARGE for name in arrays):
            return {}
        found, out = raw.arrays(positions, arrays), dict[int, Record]()
        large = [] if found is None else [*compress(positions, map(_is_large, found.records))]
        found = raw.arrays(large, names) if large else None
        if found is None:
            return {}
        for at, each in zip(large, found.records, strict=True):
            with suppress(ValueError, TypeError, KeyError):  # it is damaged, which the whole record shows
                out[at] = self._record(at, each, names, partial(whole, at))
        return out

    def _record(
        self, position: int, stored: Any, names: Sequence[str], whole: Callable[[], Record | RecordError]
    ) -> Record:
        """Return a record from its packed form, or from its fields; raises ValueError if it does not match what is kept."""
        fields, values, arrays = self._meta.fields, dict[str, Any](), dict[str, Any]()
        known = dict(_parsed(self._of(position, whole), fields))
        for name in names:
            start, size, shape, checksums = known[name]
            each = stored.part(start, size) if isinstance(stored, StoredBytes) else stored[name]
            if fields[name].kind == "array":
                arrays[name] = _BlockedArray((*shape,), np.dtype(fields[name].dtype), each, checksums, name, whole)
                is_known = each.size == size
            else:
                is_packed = isinstance(each, StoredBytes)
                packed = bytes(each.read(0, memoryview(bytearray(size)))) if is_packed else encode(each)
                is_known = checksum(packed) == checksums
                values[name] = decode(packed) if is_known else None
            if not is_known:
                raise ValueError(f"field {name!r} is not as it was")
        self._codec.to_user_values(values)
        return {name: arrays[name] if name in arrays else values[name] for name in names}

    def _of(self, position: int, whole: Callable[[], Record | RecordError]) -> bytes:
        """Return what is kept of a record; otherwise read it, and keep that."""
        kept = self._kept.get(position)
        if kept is None:
            key = (self._url, self._meta.build, "blocks", _BLOCK, position)
            found = Index(lambda: _found_in(whole(), self._meta.fields), *key).positions
            kept = self._kept[position] = found.tobytes()  # no map, which would keep a file open
            with suppress(KeyError):  # other threads forget some too
                while sum(map(len, [*self._kept.values()])) > _KEPT:
                    self._kept.popitem(last=False)
        return kept


def _is_large(record: Any) -> bool:
    """Whether a packed record, or one of its arrays, is large."""
    return any(each.size > _LARGE for each in ([record] if isinstance(record, StoredBytes) else record.values()))


def _found_in(record: Record | RecordError, fields: Mapping[str, Field]) -> Array:
    """Return what is kept of a record: of each value start and size in the packed record, shape, and checksums.

    Of an array, start and size are those of its elements, of which each block has a checksum.
    """
    if isinstance(record, RecordError):
        raise record
    parts: list[Array] = []
    at = 1 if len(fields) < 16 else 3  # bytes before the first name, see docs/format.md
    for name, field in fields.items():
        at += len(encode(name))
        if field.kind == "array":
            array = np.asarray(record[name], field.dtype, order="C")
            size, shape = array.nbytes, array.shape
            at += len(encode([field.dtype, shape])) + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)
            digests = _digests(_blocks(array.reshape(-1).view(np.uint8).data))
        else:
            packed = encode(canonical_value(field, record[name]))
            size, shape, digests = len(packed), (), checksum(packed)
        parts += [np.array([at, size, *shape]), np.frombuffer(digests, np.int64)]
        at += size
    return np.concatenate(parts)


def _parsed(kept: bytes, fields: Mapping[str, Field]) -> Iterator[tuple[str, tuple[int, int, list[int], memoryview]]]:
    """Yield what `_found_in` found of each field."""
    numbers, view, at = np.frombuffer(kept, np.int64), memoryview(kept), 0
    for name, field in fields.items():
        axes = len(field.shape or ()) if field.kind == "array" else 0
        start, size, *shape = numbers[at : at + 2 + axes].tolist()
        at += 2 + axes
        end = at + (-(-size // _BLOCK) if field.kind == "array" else 1)
        yield name, (start, size, shape, view[8 * at : 8 * end])
        at = end


def _blocks(data: memoryview) -> list[memoryview]:
    return [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)]


def _digests(blocks: Sequence[memoryview]) -> bytes:
    """Return the checksums of blocks, end to end."""
    return b"".join(map(xxhash.xxh3_64_digest, blocks))


@dataclass(frozen=True)
class _BlockedArray(StoredArray):
    """Field `name` of a record of a native store, of which each block is verified when it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: StoredBytes
    checksums: memoryview
    name: str
    whole: Callable[[], Any]

    def read(self, boxes: Sequence[Box]) -> list[Array | ValueError]:
        # docstring inherited
        bounds = [[(low, max(low, high)) for low, high, _ in map(slice.indices, box, self.shape)] for box in boxes]
        spans = [Spans.of(self.shape, each, self.dtype.itemsize, _BLOCK) for each in bounds]
        found: list[Any] = [np.empty([high - low for low, high in each], self.dtype) for each in bounds]
        rows = [out.reshape(-1, *each.sides) if out.size else out for out, each in zip(found, spans, strict=True)]
        runs, damaged = [*_runs(spans)], set[int]()
        buffer = memoryview(bytearray(_BLOCK * max((end - first for first, end, _ in runs), default=0)))
        blocks, blocks_before = _blocks(buffer), blocks_read()
        for number, (first, end, members) in enumerate(runs):
            if number == 1 and blocks_read() > blocks_before:  # the first run came from the disk
                rest = np.array([each[:2] for each in runs[1:]]) * _BLOCK
                self.stored.will_need(rest[:, 0], rest[:, 1])
            begin = first * _BLOCK
            view = self.stored.read(begin, buffer[: min(end * _BLOCK, self.stored.size) - begin])
            is_buffer = view.obj is buffer.obj and len(view) == end * _BLOCK - begin
            digests = _digests(blocks[: end - first] if is_buffer else _blocks(view))
            if digests != self.checksums[8 * first : 8 * end]:
                damaged.update(at for _, at, _ in members)
                continue
            for start, at, place in members:
                _, _, sides, strides = spans[at]
                rows[at][place] = np.ndarray(sides, self.dtype, view, start - begin, strides)
        record: Any = self.whole() if damaged else None
        for at in damaged:
            is_bad = isinstance(record, RecordError)
            found[at] = ValueError(record.reason) if is_bad else record[self.name][boxes[at]].copy()
        return found


def _runs(spans: Sequence[Spans]) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Yield the blocks that some boxes touch, the first and the end of each read, with the spans in them.

    Of a span, where it begins, the number of its box, and its number there. A block is read once, or twice where a long read ends.
    """
    each = ((start, at, place) for at, one in enumerate(spans) for place, start in enumerate(one.starts.tolist()))
    first = end = 0
    members: list[tuple[int, int, int]] = []
    for span in sorted(each):
        low, high = span[0] // _BLOCK, -(-(span[0] + spans[span[1]].wide) // _BLOCK)
        if members and (low > end or high - first > _MOST // _BLOCK):
            yield first, end, members
            members = []
        if not members:
            first = end = low
        end = max(end, high)
        members.append(span)
    if members:
        yield first, end, members
