"""Puts restart markers into a JPEG, without changing a coefficient, so that a crop decodes only what it touches.

The program ``jpegtran`` codes the picture again with a restart marker every few MCUs and with optimised Huffman tables.
Its header segments are then those of the original, byte for byte. See docs/decisions/0033.
"""

from __future__ import annotations

import functools
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import simplejpeg
from PIL import Image

from storeds.errors import ConfigError, StoredsError
from storeds.jpeg.cuts import is_ready
from storeds.jpeg.header import EOI, MAX_PIXELS, SOI, Structure, grid_of, parse, units_of
from storeds.jpeg.verdict import Verdict
from storeds.protocols import Array

__all__ = ["ADDED", "HAD", "Marked", "RestartMarker", "restart_intervals"]

ADDED = "added"
HAD = "had them"

_INSTALL = (
    "install it: apt install libjpeg-turbo-progs (Debian, Ubuntu), dnf install libjpeg-turbo-utils (Fedora), "
    "conda install -c conda-forge libjpeg-turbo, or brew install jpeg-turbo"
)
# Below this, decoding all takes less time than finding the intervals saves.
_FEWEST_PIXELS = 100_000
# How much larger than the original a picture may become: markers cost more of a small one.
_LARGE, _GROWTH, _GROWTH_LARGE = 1 << 20, 1.03, 1.02
# A row of MCUs has about this many intervals, of at least this many MCUs. An existing interval may be larger by a factor.
_PER_ROW, _FEWEST_MCUS, _COARSE = 16, 2, 4
# Upper bound of the bytes that a marker costs: on photographs, 2.5 to 6.2 with the codes that begin again after it.
_MARKER_BYTES = 8
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_COM, _APPS = 0xFE, range(0xE0, 0xF0)
_ALONE = (0x01, *range(0xD0, 0xD8))
_COLOURS = {1: "GRAY", 3: "RGB"}


class Marked(NamedTuple):
    """Result of `RestartMarker.mark`.

    Attributes
    ----------
    blob : bytes
        The picture to store.
    verdict : Verdict or None
        The given one: a strict decode of `blob` gave the same pixels.
    outcome : str
        ``"added"``, ``"had them"``, or why the original is kept.
    """

    blob: bytes
    verdict: Verdict | None
    outcome: str


@dataclass(frozen=True)
class RestartMarker:
    """Puts restart markers into JPEGs with the program ``jpegtran``. Picklable; thread-safe, one child process per call.

    Parameters
    ----------
    program : str
        Path of ``jpegtran``.
    """

    program: str

    @classmethod
    def find(cls) -> Self:
        """Find ``jpegtran`` on the PATH, and try it on a small picture.

        Raises
        ------
        ConfigError
            It is not installed, or it does not write what readers need.
        """
        program = shutil.which("jpegtran")
        if program is None:
            raise ConfigError(
                f"fast_crops=True (--fast-crops) needs the program jpegtran, which is not there; {_INSTALL}"
            )
        found = cls(program)
        pixels = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
        sample = simplejpeg.encode_jpeg(pixels, colorsubsampling="444")
        try:
            marked = found.transformed(sample, 4)
        except ValueError as error:
            marked, reason = b"", str(error)
        else:
            reason = "it writes no sequential JPEG with the restart markers that it should (MozJPEG's does not)"
        if not is_ready(marked):
            raise ConfigError(f"fast_crops=True (--fast-crops) cannot use {program}: {reason}; {_INSTALL}")
        return found

    def mark(self, blob: bytes, verdict: Verdict | None) -> Marked:
        """Return a picture with restart markers, or the original and why it is kept. A pure function of its arguments.

        Parameters
        ----------
        verdict : Verdict or None
            The verdict on `blob`, if it was examined.

        Raises
        ------
        StoredsError
            The program was killed, or does not start.
        """
        kept = Marked(blob, verdict, HAD)
        if not blob.startswith(SOI):
            return kept._replace(outcome="no JPEG")
        if verdict is not None and not verdict.is_whole:
            return kept._replace(outcome="damaged")
        found = parse(blob)
        reason = _unsuitable(found, len(blob))
        if reason is not None:
            return kept._replace(outcome=reason)
        columns = _columns(found)
        had = found.scans[0].interval if is_ready(blob) else 0
        wanted = restart_intervals(columns)
        if had and had <= _COARSE * wanted[0]:
            return kept
        try:
            marked = self._smallest(blob, found, [each for each in wanted if not had or each < had])
            if marked is None:
                return kept if had else kept._replace(outcome="would grow too much")
            count = len(found.components)
            if not np.array_equal(_pixels(blob, count), _pixels(marked, count)):
                return kept._replace(outcome="decodes to other pixels")
        except ValueError as error:  # of jpegtran, or of a strict decode
            return kept._replace(outcome=_brief(error))
        return Marked(marked, verdict, ADDED)

    def _smallest(self, blob: bytes, found: Structure, wanted: list[int]) -> bytes | None:
        """Return the picture with the first of these intervals that costs little enough; None if none does."""
        assert found.frame is not None
        units = units_of(found, found.scans[0]._replace(places=tuple(range(found.frame.components))))
        is_large = found.frame.width * found.frame.height > _LARGE
        most = len(blob) * (_GROWTH_LARGE if is_large else _GROWTH)
        before: tuple[int, int] | None = None  # size and number of intervals of the last try
        for interval in wanted:
            number = -(-units // interval)
            if before is not None and before[0] - (before[1] - number) * _MARKER_BYTES > most:
                continue  # even so it would be too large
            marked = self._spliced(blob, found, interval)
            if len(marked) <= most:
                return marked
            before = len(marked), number
        return None

    def _spliced(self, blob: bytes, found: Structure, interval: int) -> bytes:
        """Return the picture with markers, with the metadata of the original and the bytes that follow it."""
        made = self.transformed(blob, interval)
        if not is_ready(made):
            raise ValueError("jpegtran wrote something else")
        kept = [blob[start:stop] for start, stop, is_metadata in _segments(blob) if is_metadata]
        *coded, (scan, _, _) = [segment for segment in _segments(made) if not segment[2]]
        tables = [made[start:stop] for start, stop, _ in coded]
        return b"".join((SOI, *kept, *tables, made[scan:], blob[found.end :]))

    def transformed(self, blob: bytes, interval: int) -> bytes:
        """Return what ``jpegtran`` writes: the picture with a marker every `interval` MCUs, without its metadata.

        Raises
        ------
        ValueError
            The program refuses the picture or warns about it.
        StoredsError
            It was killed, or does not start.
        """
        command = [self.program, "-copy", "none", "-optimize", "-restart", f"{interval}B"]
        try:
            done = subprocess.run(command, input=blob, capture_output=True, check=False)  # noqa: S603  # of the PATH
        except OSError as error:
            raise StoredsError(f"{self.program} cannot be started: {error}; repair this, then resume") from error
        if done.returncode < 0:  # Ctrl-C, or out of memory: the next run must not find the original in the store
            raise StoredsError(
                f"{self.program} was ended by signal {-done.returncode}; resume=True (--resume) continues the work"
            )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ValueError(f"jpegtran refuses it: {said[0] if said else f'exit code {done.returncode}'}")
        return done.stdout


def _unsuitable(found: Structure, size: int) -> str | None:
    """Return why no markers are put into a JPEG, or None."""
    frame = found.frame
    if found.ending != "eoi" or frame is None or not found.scans:
        return "damaged"
    if frame.precision != 8:
        return f"{frame.precision} bits a sample"
    if frame.process not in ("baseline", "extended", "progressive"):
        return frame.process
    if found.multi_picture and found.end < size:  # the first picture holds the positions of the others
        return "several pictures in one file"
    pixels = frame.width * frame.height
    if pixels > MAX_PIXELS:
        return "too large"
    return "too small" if pixels < _FEWEST_PIXELS else None


def _columns(found: Structure) -> int:
    """Return the number of MCUs in a row of a scan of all components."""
    assert found.frame is not None
    if len(found.components) == 1:
        return grid_of(found, found.components[0])[0]
    return -(-found.frame.width // (8 * max(component.h for component in found.components)))


@functools.cache
def restart_intervals(columns: int) -> tuple[int, ...]:
    """Return the intervals to try for rows of so many MCUs, the best first, then larger ones."""
    aim = max(_FEWEST_MCUS, columns / _PER_ROW)
    divisors = [each for each in range(1, columns + 1) if columns % each == 0]
    best = min(divisors, key=lambda each: (max(each / aim, aim / each), -each))
    return tuple(each for each in divisors if each >= best)


def _segments(blob: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, stop, whether it is metadata) of the segments of a whole JPEG, up to its end marker."""
    at = len(SOI)
    while (match := _MARKER.search(blob, at)) is not None and match[0] != EOI:
        start, marker = match.start(), blob[match.start() + 1]
        at = start + 2
        if marker not in _ALONE:
            at += blob[at] << 8 | blob[at + 1]
            yield start, at, marker == _COM or marker in _APPS


def _pixels(blob: bytes, components: int) -> Array:
    """Decode a JPEG exactly, as readers do; raise ValueError for damage and for what cannot be decoded."""
    if components in _COLOURS:
        try:
            pixels: Array = simplejpeg.decode_jpeg(blob, colorspace=_COLOURS[components], strict=True)
        except ValueError as error:
            raise ValueError(f"libjpeg warns: {error}") from None
        return pixels
    try:
        with Image.open(io.BytesIO(blob)) as image:
            return np.asarray(image)
    except Exception as error:  # Pillow raises errors of any type, and warnings where a process turns these into errors
        raise ValueError(f"cannot be decoded for comparison: {error}") from error


def _brief(error: ValueError) -> str:
    """Return the first words of a message, without what differs from picture to picture."""
    return re.sub(r"\d+", "…", str(error).partition(" (")[0])[:80]
