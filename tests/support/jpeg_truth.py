"""The parts of a whole JPEG, the true share of a cut one, and what libjpeg says of a damaged one.

Nothing here uses `storeds`: a parser that trusts its file finds the parts, a comparison of pixels the share, and Debian's
``djpeg`` (package libjpeg-turbo-progs) the damage.
"""

from __future__ import annotations

import functools
import io
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from PIL import Image

__all__ = ["EOI", "FRAMES", "Anatomy", "Part", "all_by_djpeg", "anatomy", "by_djpeg", "mcus_there"]

EOI = b"\xff\xd9"
_SOS = 0xDA
FRAMES = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCA))
_PROCESSES: tuple[Literal["baseline", "extended", "progressive", "lossless"], ...]
_PROCESSES = ("baseline", "extended", "progressive", "lossless")
_APPS = frozenset((0xFE, *range(0xE0, 0xF0)))
_MARKER_IN_SCAN = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")


@dataclass(frozen=True)
class Part:
    """Bytes `start` to `stop`; `at` is the byte after the last FF of a segment's marker, as fill bytes may precede it."""

    kind: Literal["SOI", "segment", "data", "EOI", "more"]
    start: int
    at: int
    stop: int
    marker: int = 0

    @property
    def is_comment(self) -> bool:
        """Whether no decoder needs the payload: APPn and COM."""
        return self.kind == "segment" and self.marker in _APPS


@dataclass(frozen=True)
class Anatomy:
    """All parts of a whole JPEG, and the contents of its frame header."""

    parts: tuple[Part, ...]
    size: tuple[int, int]
    mcu: tuple[int, int]
    process: Literal["baseline", "extended", "progressive", "lossless"]
    arithmetic: bool
    scans: tuple[Part, ...]
    end: int

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs in a row, and rows of them."""
        return -(-self.size[0] // self.mcu[0]), -(-self.size[1] // self.mcu[1])

    @property
    def huffman(self) -> bool:
        """Whether the codes are Huffman codes of 8 × 8 coefficients, which storeds can follow."""
        return not self.arithmetic and self.process != "lossless"

    @property
    def one_scan(self) -> bool:
        return self.process != "progressive" and len(self.scans) == 1

    def segments(self, *, before_data: bool) -> list[Part]:
        """Return the segments before the first scan's data, or those after it."""
        return [p for p in self.parts if p.kind == "segment" and (p.start < self.scans[0].start) == before_data]

    def gaps(self) -> list[tuple[int, int]]:
        """Return (end, start) of the data of each pair of adjacent scans."""
        return [(a.stop, b.start) for a, b in pairwise(self.scans)]


@functools.cache
def anatomy(whole: bytes) -> Anatomy:
    """Parse a JPEG that is known to be whole."""
    parts = [Part("SOI", 0, 1, 2)]
    while parts[-1].kind != "EOI":
        start = parts[-1].stop
        at = start
        while whole[at] == 0xFF:
            at += 1
        marker = whole[at]
        if at == start:
            raise ValueError(f"no marker at byte {start}")
        if marker == EOI[1]:
            parts.append(Part("EOI", start, at, at + 1))
            continue
        stop = at + 1 + int.from_bytes(whole[at + 1 : at + 3])
        parts.append(Part("segment", start, at, stop, marker))
        if marker == _SOS:
            found = _MARKER_IN_SCAN.search(whole, stop)
            assert found is not None
            parts.append(Part("data", stop, stop, found.start()))
    end = parts[-1].stop
    if end < len(whole):
        parts.append(Part("more", end, end, len(whole)))
    return _with_frame(whole, tuple(parts), end)


def _with_frame(whole: bytes, parts: tuple[Part, ...], end: int) -> Anatomy:
    frame = next(part for part in parts if part.marker in FRAMES)
    height, width, count = (int.from_bytes(whole[frame.at + n : frame.at + m]) for n, m in ((4, 6), (6, 8), (8, 9)))
    factors = [whole[frame.at + 10 + 3 * number] for number in range(count)]
    # A single component is coded block by block, whatever its sampling factors.
    across = max(f >> 4 for f in factors) if count > 1 else 1
    down = max(f & 15 for f in factors) if count > 1 else 1
    scans = tuple(part for part in parts if part.kind == "data")
    process = _PROCESSES[frame.marker & 3]
    unit = 1 if process == "lossless" else 8
    arithmetic = frame.marker >= 0xC9
    return Anatomy(parts, (width, height), (unit * across, unit * down), process, arithmetic, scans, end)


@functools.cache
def _planes(blob: bytes) -> np.ndarray:
    """Decode to planes with Pillow, without the rounding of a conversion to RGB."""
    with Image.open(io.BytesIO(blob)) as image:
        image.draft("YCbCr", image.size)
        pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _same_mcus(whole: bytes, cut: int, junk: bytes = b"") -> int:
    """Return the number of leading MCUs that decode from the first `cut` bytes plus `junk` as from the whole file.

    One too many if the bits that a decoder makes up happen to complete an MCU. Upsampling of chroma reads neighbouring
    MCUs, so the two outermost pixels of each MCU do not count.
    """
    about = anatomy(whole)
    # A cut segment would swallow the end marker.
    cut = max((stop for stop, start in about.gaps() if stop <= cut < start), default=cut)
    there = _planes(whole)
    wrong = there != _planes(whole[:cut].rstrip(b"\xff") + junk + EOI)
    if there.shape[2] > 1:
        for axis, length in enumerate(about.mcu[::-1]):
            edge = (np.arange(there.shape[axis]) + 2) % length < 4
            wrong[(edge, slice(None), slice(1, None)) if axis == 0 else (slice(None), edge, slice(1, None))] = False
    (columns, rows), (width, height) = about.mcus, about.mcu
    padded = np.zeros((rows * height, columns * width), bool)
    padded[: wrong.shape[0], : wrong.shape[1]] = wrong.any(axis=2)
    bad = padded.reshape(rows, height, columns, width).any(axis=(1, 3)).ravel()
    return int(bad.argmax()) if bad.any() else bad.size


def mcus_there(whole: bytes, cut: int) -> int:
    """Return the number of leading MCUs in the first `cut` bytes.

    If the filling of a decoder happens to look like the whole picture, random data after the cut does not.
    """
    junk = random.Random(cut).choices(bytes(range(0xFF)), k=4000)
    return min(_same_mcus(whole, cut), _same_mcus(whole, cut, bytes(junk)))


# --- Damage, as libjpeg's own program sees it. It shares no code with storeds, Pillow or simplejpeg. ---

_DJPEG = shutil.which("djpeg")

# Damage to the picture. "Unknown Adobe color transform code" and "unknown JFIF revision number" concern the header only, and
# libjpeg does not use the "Invalid SOS parameters for sequential JPEG".
_DAMAGE = re.compile(
    rb"^(Corrupt JPEG data.*|Premature end of JPEG file|Inconsistent progression sequence.*)$", re.MULTILINE
)
_EXTRANEOUS = re.compile(rb"\d+ extraneous bytes")
_FAILED = 1  # the exit code of an error; 2 is that of a warning
_SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """Whether `djpeg` returns a picture, and its distinct complaints."""

    decodes: bool
    complaints: tuple[str, ...]

    @property
    def is_damaged(self) -> bool:
        """Whether libjpeg itself reports damage to the picture."""
        return bool(self.complaints)


@functools.cache
def by_djpeg(blob: bytes) -> Seen:
    """Run `djpeg` on one JPEG."""
    assert _DJPEG is not None, "djpeg is missing: apt-get install libjpeg-turbo-progs"
    # Without the third -verbose it prints only the first warning. At 1/8 scale it still follows every code.
    command = [_DJPEG, "-verbose", "-verbose", "-verbose", "-scale", "1/8", "-outfile", "/dev/null"]
    done = subprocess.run(command, input=blob, capture_output=True, timeout=_SECONDS, check=False)
    found = dict.fromkeys(_EXTRANEOUS.sub(b"extraneous bytes", line) for line in _DAMAGE.findall(done.stderr))
    if done.returncode == _FAILED:
        found[done.stderr.rstrip().rpartition(b"\n")[2]] = None
    elif done.returncode not in (0, 2):
        raise RuntimeError(f"djpeg ended with {done.returncode}: {done.stderr[-500:]!r}")
    return Seen(done.returncode != _FAILED, tuple(line.decode("latin-1") for line in found))


def all_by_djpeg(blobs: Iterable[bytes]) -> list[Seen]:
    """Run `djpeg` on many JPEGs, several at a time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(by_djpeg, blobs))
