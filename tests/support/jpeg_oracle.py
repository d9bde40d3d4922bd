"""The warnings and errors of libjpeg for a JPEG, from Debian's ``djpeg``.

``djpeg`` runs as a child process with its own build of libjpeg-turbo, so it shares no code with storeds, Pillow or
simplejpeg. The package libjpeg-turbo-progs contains it.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

__all__ = ["DJPEG", "Seen", "examine", "examine_all"]

DJPEG = shutil.which("djpeg")

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
def examine(blob: bytes) -> Seen:
    """Run `djpeg` on one JPEG."""
    assert DJPEG is not None, "djpeg is missing: apt-get install libjpeg-turbo-progs"
    # Without the third -verbose it prints only the first warning. At 1/8 scale it still follows every code.
    command = [DJPEG, "-verbose", "-verbose", "-verbose", "-scale", "1/8", "-outfile", "/dev/null"]
    done = subprocess.run(command, input=blob, capture_output=True, timeout=_SECONDS, check=False)
    found = dict.fromkeys(_EXTRANEOUS.sub(b"extraneous bytes", line) for line in _DAMAGE.findall(done.stderr))
    if done.returncode == _FAILED:
        found[done.stderr.rstrip().rpartition(b"\n")[2]] = None
    elif done.returncode not in (0, 2):
        raise RuntimeError(f"djpeg ended with {done.returncode}: {done.stderr[-500:]!r}")
    return Seen(done.returncode != _FAILED, tuple(line.decode("latin-1") for line in found))


def examine_all(blobs: Iterable[bytes]) -> list[Seen]:
    """Run `djpeg` on many JPEGs, several at a time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(examine, blobs))
