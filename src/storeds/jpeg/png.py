"""Judges a PNG by its chunks, their checksums, and the rows in its compressed data."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from storeds.jpeg.markers import MAX_PIXELS
from storeds.records.fields import Verdict

__all__ = ["check_png"]

_SIGNATURE = 8  # bytes
_OVERHEAD = 12  # bytes of a chunk's length, type and checksum
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# First column, first row, column step and row step of each pass of an interlaced image.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_READ_SIZE = 1 << 16
_MAX_CHUNKS = 1 << 17


class _Header(NamedTuple):
    width: int
    height: int
    bits: int  # of a pixel
    interlaced: bool

    def passes(self) -> list[tuple[int, int, int]]:
        """Return (pixels per row, rows, bytes per row with the filter byte) of each pass with pixels."""
        steps = _PASSES if self.interlaced else ((0, 0, 1, 1),)
        sizes = [(-(-(self.width - x) // dx), -(-(self.height - y) // dy)) for x, y, dx, dy in steps]
        return [(across, down, 1 + (across * self.bits + 7) // 8) for across, down in sizes if across > 0 and down > 0]


@dataclass
class _Chunks:
    """Result of a walk over the chunks."""

    header: _Header | None = None
    data: list[memoryview] = field(default_factory=list)
    frames: int = 1  # as declared by the file
    end: int = _SIGNATURE
    kind: str = "intact"
    reason: str = ""
    inside: bytes = b""  # name of the cut chunk


def check_png(blob: bytes, *, inflate: bool) -> Verdict:
    """Judge a file with the signature of a PNG.

    Parameters
    ----------
    inflate : bool
        Decompress the data even if all chunks are whole, which takes about as long as a decode.
    """
    found = _walk(memoryview(blob))
    if not found.data:
        kind = "corrupt_data" if found.kind == "corrupt_data" else "truncated_header"
        return Verdict(kind, 0.0, reason=found.reason or f"it ends at byte {found.end} without a picture")
    assert found.header is not None
    if found.header.width * found.header.height > MAX_PIXELS:
        return _verdict(found, 0.0, exact=False) if found.kind != "intact" else Verdict("intact")
    if found.kind != "intact" or inflate:
        share, problem = _rows(found.header, found.data)
        if found.kind != "intact":
            return _verdict(found, share, exact=found.kind == "truncated_file")
        if problem:
            return Verdict("corrupt_data", share, exact=False, reason=problem)
    surplus = len(blob) - found.end
    if surplus:
        return Verdict("trailing_data", reason=f"{surplus:,} bytes follow the picture, which ends at byte {found.end}")
    return Verdict("intact")


def _verdict(found: _Chunks, share: float, *, exact: bool) -> Verdict:
    if found.kind == "truncated_file" and found.frames > 1:
        share, exact = share / found.frames, False
    if found.kind == "truncated_file" and share == 1.0:
        is_data = found.inside == b"IDAT" and len(found.data[-1]) > 0
        if not is_data and found.inside not in (b"", b"IEND"):  # decoders raise for other cut chunks
            return Verdict(found.kind, 0.0, exact=False, reason=f"{found.reason}, after its pixels")
        return Verdict("missing_eoi", reason=f"all of the picture is there, but {found.reason}")
    return Verdict(found.kind, share, exact, found.reason)


def _walk(view: memoryview) -> _Chunks:
    """Walk the chunks up to the last one, or to the first invalid one."""
    found = _Chunks()
    for _ in range(_MAX_CHUNKS):
        at = found.end
        name = bytes(view[at + 4 : at + 8])
        length = int.from_bytes(view[at : at + 4], "big")
        if len(name) == 4 and not (name.isalpha() and name.isascii()):
            found.kind, found.reason = "corrupt_data", f"the bytes at {at} are not a chunk"
        elif len(name) < 4 or at + _OVERHEAD + length > len(view):
            found.kind = "truncated_file"
            found.inside = name if len(name) == 4 else b""
            found.reason = f"it is cut at byte {len(view)}{_inside(name, at)}"
            if name == b"IDAT" and found.header is not None:
                found.data.append(view[at + 8 : at + 8 + length])
        else:
            _add(found, view, name, length)
        if found.kind != "intact" or name == b"IEND":
            return found
    found.kind, found.reason = "corrupt_data", f"it has more than {_MAX_CHUNKS:,} chunks"
    return found


def _inside(name: bytes, at: int) -> str:
    return f", in chunk {name.decode()}, which begins at byte {at}" if len(name) == 4 else ", before the end chunk"


def _add(found: _Chunks, view: memoryview, name: bytes, length: int) -> None:
    """Check a complete chunk and add it."""
    at = found.end
    data = view[at + 8 : at + 8 + length]
    if zlib.crc32(view[at + 4 : at + 8 + length]) != int.from_bytes(
        view[at + 8 + length : at + _OVERHEAD + length], "big"
    ):
        found.kind = "corrupt_data"
        found.reason = f"the checksum of chunk {name.decode()}, bytes {at} to {at + _OVERHEAD + length}, does not match"
        return
    if found.header is None:
        found.header = _read_header(name, data)
        if found.header is None:
            found.kind, found.reason = "corrupt_data", f"chunk {name.decode()} at byte {at} is not a valid header"
            return
    elif name == b"IDAT":
        found.data.append(data)
    elif name == b"acTL" and length >= 4:
        found.frames = int.from_bytes(data[:4], "big")
    found.end = at + _OVERHEAD + length


def _read_header(name: bytes, data: memoryview) -> _Header | None:
    if name != b"IHDR" or len(data) != 13 or data[9] not in _CHANNELS or not data[8]:
        return None
    width, height = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    return _Header(width, height, data[8] * _CHANNELS[data[9]], data[12] == 1) if width and height else None


def _rows(header: _Header, data: list[memoryview]) -> tuple[float, str]:
    """Return the share of the pixels in complete rows of the compressed `data`, and what is wrong with the data."""
    passes = header.passes()
    count, problem = _inflate(data, sum(down * row for _, down, row in passes))
    pixels = 0
    for across, down, row in passes:
        whole = min(count // row, down)
        pixels += whole * across
        count -= whole * row
        if whole < down:
            break
    return pixels / (header.width * header.height), problem


def _inflate(data: list[memoryview], due: int) -> tuple[int, str]:
    """Return the number of bytes in the compressed `data`, counted up to `due`, and what is wrong with the data."""
    inflater = zlib.decompressobj()
    count = 0
    try:
        for part in data:
            for at in range(0, len(part), _READ_SIZE):
                rest: bytes | memoryview = part[at : at + _READ_SIZE]
                while rest and not inflater.eof:
                    count += len(inflater.decompress(rest, 1 << 20))
                    rest = inflater.unconsumed_tail
                    if count > due:  # decoders stop here too
                        return due, ""
        while not inflater.eof and count <= due:
            more = len(inflater.decompress(b"", 1 << 20))
            if not more:
                break
            count += more
    except zlib.error as error:
        return count, f"its compressed data are invalid after {count:,} bytes of rows: {error}"
    if count < due:
        return count, f"its compressed data hold {count:,} bytes of rows, but {due:,} are expected"
    return count, "" if inflater.eof or count > due else "its compressed data do not end with their checksum"
