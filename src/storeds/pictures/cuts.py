"""Makes a small JPEG from the part of a large one that a crop needs, so that less must be decoded.

Each restart interval of a sequential JPEG decodes alone. So the intervals that touch a crop are a JPEG of their own, once
the frame header states their size, the restart markers count from 0 again, and an end marker follows. Without restart
markers the codes of a row depend on those before, and a copy with fewer lines only leaves out what is below the crop.
See ITU-T T.81, E.1.4 and E.2.4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from storeds.pictures.header import Header, read_header
from storeds.protocols import Array

__all__ = ["JpegCutter", "JpegPart", "is_ready"]

_SIDE = 8
# Smoothing of colours reads two pixels beyond a pixel.
_MARGIN = 4
_RST0, _EOI = 0xD0, 0xD9
_RESTARTS = bytes(range(_RST0, _RST0 + 8))
# A part must save so much: with restart markers, libjpeg-turbo uses its slower Huffman decoder, 9 % slower for each pixel.
# Putting the part together takes about 7 % of the time of decoding a photograph of 500 pixels.
_MAX_SHARE = 0.85


class JpegPart(NamedTuple):
    """A small JPEG, and the position of its first pixel in the large one.

    Attributes
    ----------
    blob : bytes
    top, left, height, width : int
        Pixels of the large picture that it holds.
    ends_early : bool
        Whether its data go on after its last line, so that libjpeg-turbo warns of them.
    """

    blob: bytes
    top: int
    left: int
    height: int
    width: int
    ends_early: bool


class JpegCutter:
    """Cuts parts out of one JPEG. Searches for its restart markers once, with the first part.

    Parameters
    ----------
    blob : bytes
        A sequential JPEG without damage: its first scan holds all components (``header.in_one_scan``).
    header : Header
        Header of `blob`.
    """

    def __init__(self, blob: bytes, header: Header) -> None:
        self._blob, self._header = blob, header
        width, height = _unit(blob, header)
        self._unit_width, self._unit_height = width, height
        self._columns, self._rows = -(-header.width // width), -(-header.height // height)
        self._found: tuple[Array | None] | None = None

    def part(self, top: int, left: int, bottom: int, right: int) -> JpegPart | None:
        """Return the smallest part that holds these pixels and the pixels that smoothing reads; None if it is all.

        Pixels that smoothing reads beyond the end of the picture do not exist in the part either, so that the decoder
        treats the edges of the picture alike.
        """
        cut = self._cut(top - _MARGIN, left - _MARGIN, bottom + _MARGIN, right + _MARGIN)
        return cut or self._upper(bottom + _MARGIN)

    def _upper(self, bottom: int) -> JpegPart | None:
        """Return a copy that states fewer lines; None if all are needed."""
        header = self._header
        lines = min(-(-bottom // _SIDE) * _SIDE, header.height)
        if lines == header.height:
            return None
        at, view = header.height_at, memoryview(self._blob)
        blob = b"".join((view[:at], lines.to_bytes(2, "big"), view[at + 2 :]))
        return JpegPart(blob, 0, 0, lines, header.width, ends_early=True)

    def _cut(self, top: int, left: int, bottom: int, right: int) -> JpegPart | None:
        """Return the restart intervals that hold these pixels; None if that does not pay or the markers are not valid."""
        header, interval = self._header, self._header.interval
        if not interval:
            return None
        # Rows at which an interval begins, and columns if an interval begins at each row.
        step = interval // math.gcd(interval, self._columns)
        span = interval if step == 1 and interval < self._columns else self._columns
        first_row = max(top, 0) // (self._unit_height * step) * step
        last_row = min(_round_up(-(-bottom // self._unit_height), step), self._rows)
        first_column = max(left, 0) // (self._unit_width * span) * span
        last_column = min(_round_up(-(-right // self._unit_width), span), self._columns)
        y, x = first_row * self._unit_height, first_column * self._unit_width
        height = min(last_row * self._unit_height, header.height) - y
        width = min(last_column * self._unit_width, header.width) - x
        if height * width > _MAX_SHARE * min(bottom, header.height) * header.width or self._starts is None:
            return None
        blob = self._joined((first_row, last_row), (first_column, last_column), height, width)
        return JpegPart(blob, y, x, height, width, ends_early=False)

    def _joined(self, rows: tuple[int, int], columns: tuple[int, int], height: int, width: int) -> bytes:
        """Return the JPEG of `height` × `width` pixels in these rows and columns of MCUs."""
        starts, header, view = self._starts, self._header, memoryview(self._blob)
        assert starts is not None
        begins, ends = starts[:-1], starts[1:]
        if columns == (0, self._columns):
            first, last = (-(-row * self._columns // header.interval) for row in rows)
            begins, ends = begins[None, first:last], ends[None, first:last]
        else:
            # Each row of MCUs has the same number of intervals.
            first, last = columns[0] // header.interval, columns[1] // header.interval
            begins = begins.reshape(self._rows, -1)[rows[0] : rows[1], first:last]
            ends = ends.reshape(self._rows, -1)[rows[0] : rows[1], first:last]
        at = header.height_at
        pieces = map(slice, begins[:, 0].tolist(), ends[:, -1].tolist())
        blob = bytearray().join(
            (
                view[:at],
                height.to_bytes(2, "big"),
                width.to_bytes(2, "big"),
                view[at + 4 : header.data_at],
                *map(view.__getitem__, pieces),
            )
        )
        # Where the marker after each interval has its second byte.
        markers = (ends - begins).cumsum() + (header.data_at - 1)
        data = np.frombuffer(blob, np.uint8)
        data[markers] = np.frombuffer(_restart_codes(len(markers)), np.uint8)
        data[markers[-1]] = _EOI
        return bytes(blob)

    @property
    def _starts(self) -> Array | None:
        # Not functools.cached_property: up to Python 3.11 all instances share a lock, which a fork may copy locked.
        if self._found is None:
            self._found = (self._find_starts(),)
        return self._found[0]

    def _find_starts(self) -> Array | None:
        """Return the positions of the data of each interval, and of the byte after the marker that follows the last one.

        None if the restart markers are not exactly those that the frame needs, in their order.
        """
        start, count = self._header.data_at, -(-self._rows * self._columns // self._header.interval)
        data = np.frombuffer(self._blob, np.uint8, offset=start)
        (places,) = (data[:-1] == 0xFF).nonzero()
        seconds = data[1:][places]
        codes = seconds.tobytes().translate(None, _NO_MARKER)[:count]
        if len(codes) < count or codes[:-1] != _restart_codes(count - 1) or codes[-1] & 0xF8 == _RST0:
            return None
        places = places[(seconds != 0) & (seconds != 0xFF)]
        starts = np.empty(count + 1, np.int64)
        starts[0] = start
        np.add(places[:count], start + 2, out=starts[1:])
        return starts


_NO_MARKER = b"\x00\xff"  # after ff, these are stuffing and fill bytes


def _restart_codes(count: int) -> bytes:
    """Return the second bytes of the first `count` restart markers of a scan."""
    return (_RESTARTS * (count // 8 + 1))[:count]


def is_ready(blob: bytes) -> bool:
    """Return whether the bytes are a JPEG whose crops decode only the restart intervals that they touch."""
    header = read_header(blob)
    if header is None or not header.in_one_scan or not header.interval:
        return False
    cutter = JpegCutter(blob, header)
    return cutter._columns % header.interval == 0 and cutter._starts is not None


def _unit(blob: bytes, header: Header) -> tuple[int, int]:
    """Return width and height of an MCU in pixels."""
    if header.components == 1:  # its scan has one block per unit, whatever the sampling factors
        return _SIDE, _SIDE
    factors = blob[header.height_at + 6 : header.height_at + 6 + 3 * header.components : 3]
    # A damaged header may say 0.
    return _SIDE * max(1, *(each >> 4 for each in factors)), _SIDE * max(1, *(each & 15 for each in factors))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
