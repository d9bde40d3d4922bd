"""Puts restart markers into a JPEG, without changing a coefficient, so that a crop decodes only what it touches.

The program ``jpegtran`` codes the picture again with a restart marker every few MCUs and with optimised Huffman tables.
Its header segments are then those of the original, byte for byte. See docs/decisions/0033.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import simplejpeg

from storeds.errors import ConfigError, StoredsError
from storeds.pictures.cuts import is_ready
from storeds.pictures.header import MAX_PIXELS, METADATA, SOI, Structure, parse
from storeds.pictures.verdict import Verdict, examine, pillow_pixels

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


class Marked(NamedTuple):
    """Result of `RestartMarker.mark`.

    Attributes
    ----------
    blob : bytes
        The picture to store.
    outcome : str
        ``"added"``, ``"had them"``, or why the original is kept.
    """

    blob: bytes
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
        try:
            found.transformed(simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8), colorsubsampling="444"), 4)
        except ValueError as error:
            raise ConfigError(f"fast_crops=True (--fast-crops) cannot use {program}: {error}; {_INSTALL}") from None
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
        kept = Marked(blob, HAD)
        if not blob.startswith(SOI):
            return kept._replace(outcome="no JPEG")
        found = parse(blob)
        if found.ending != "eoi" or not found.scans or not (verdict or examine(blob)).is_whole:
            return kept._replace(outcome="damaged")
        if found.multi_picture and found.end < len(blob):  # the first picture holds the positions of the others
            return kept._replace(outcome="several pictures in one file")
        if not _FEWEST_PIXELS <= found.pixels <= MAX_PIXELS:
            return kept._replace(outcome="too small" if found.pixels < _FEWEST_PIXELS else "too large")
        had = found.scans[0].interval if is_ready(blob) else 0
        wanted = restart_intervals(found.grid(range(len(found.components))).columns)
        if had and had <= _COARSE * wanted[0]:
            return kept
        try:
            most = len(blob) * (_GROWTH_LARGE if found.pixels > _LARGE else _GROWTH)
            tries = (self._spliced(blob, found, each) for each in wanted if not had or each < had)
            marked = next((each for each in tries if len(each) <= most), None)
            if marked is None:
                return kept if had else kept._replace(outcome="would grow too much")
            if not np.array_equal(pillow_pixels(blob), pillow_pixels(marked)):
                return kept._replace(outcome="decodes to other pixels")
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # of jpegtran, or of Pillow, which may raise errors of any type
            return kept._replace(outcome=_brief(error))
        return Marked(marked, ADDED)

    def _spliced(self, blob: bytes, found: Structure, interval: int) -> bytes:
        """Return the picture with markers, with the metadata of the original and the bytes that follow it."""
        coded = self.transformed(blob, interval)
        made = parse(coded)
        metadata = [blob[start:stop] for marker, start, stop in found.segments if marker in METADATA]
        tables = [coded[start:stop] for marker, start, stop in made.segments if marker not in METADATA]
        return b"".join((SOI, *metadata, *tables, coded[made.scans[0].start :], blob[found.end :]))

    def transformed(self, blob: bytes, interval: int) -> bytes:
        """Return what ``jpegtran`` writes: the picture with a marker every `interval` MCUs, without its metadata.

        Raises
        ------
        ValueError
            The program refuses the picture, warns about it, or writes something else.
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
        if not is_ready(done.stdout):
            raise ValueError(
                "it writes no sequential JPEG with the restart markers that it should (MozJPEG's does not)"
            )
        return done.stdout


@functools.cache
def restart_intervals(columns: int) -> tuple[int, ...]:
    """Return the intervals to try for rows of so many MCUs, the best first, then larger ones."""
    aim = max(_FEWEST_MCUS, columns / _PER_ROW)
    divisors = [each for each in range(1, columns + 1) if columns % each == 0]
    best = min(divisors, key=lambda each: (max(each / aim, aim / each), -each))
    return tuple(each for each in divisors if each >= best)


def _brief(error: Exception) -> str:
    """Return the first words of a message, without what differs from picture to picture."""
    return re.sub(r"\d+", "…", str(error).partition(" (")[0])[:80]
