"""Tells how much of a cut scan is there where its codes cannot be followed: arithmetic coding.

The picture is decoded twice, ended plainly and after noise: up to the cut both agree. libjpeg warns of neither.
"""

from __future__ import annotations

import numpy as np
import simplejpeg

from storeds.jpeg.entropy import Walk
from storeds.jpeg.finding import MAX_PIXELS, Frame
from storeds.jpeg.structure import EOI, Structure, units_of
from storeds.protocols import Array

__all__ = ["walk_by_endings"]

# No ff, so that no marker arises; more than a decoder reads ahead.
_NOISE = np.random.default_rng(0).integers(0, 255, 64, np.uint8).tobytes()


def walk_by_endings(blob: bytes, found: Structure) -> Walk:
    """Return how much of the last scan of a cut file is there: ``done`` if nothing depends on what follows, else ``unknown``.

    The last few bytes of a scan may not matter to any pixel. Of a file with several scans only all or nothing can be told.
    """
    frame = found.frame
    if frame is None or "arithmetic" not in frame.process or frame.width * frame.height > MAX_PIXELS:
        return Walk(0, "unknown")
    whole, single = blob[: found.end].rstrip(b"\xff"), len(found.scans) == 1
    try:
        differ = _pixels(whole + EOI, frame, small=single) != _pixels(whole + _NOISE + EOI, frame, small=single)
    except ValueError:
        return Walk(0, "unknown")
    units = units_of(found, found.scans[-1])
    if not differ.any():
        return Walk(units, "done")
    if not single:
        return Walk(0, "unknown")
    across = max(component.h for component in found.components) if len(found.components) > 1 else 1
    down = max(component.v for component in found.components) if len(found.components) > 1 else 1
    rows, columns = differ.nonzero()
    return Walk(int((rows // down * -(-differ.shape[1] // across) + columns // across).min()), "unknown")


def _pixels(blob: bytes, frame: Frame, *, small: bool) -> Array:
    """Return the lightness of the picture, of each 8 x 8 pixels if `small`."""
    side = 8 if small else 1
    pixels = np.zeros((-(-frame.height // side), -(-frame.width // side), 1), np.uint8)
    # The noise that is left over is warned of, so warnings do not count here; the pixels are in memory of our own.
    options = {"min_height": 1, "min_width": 1, "min_factor": 8} if small else {}
    simplejpeg.decode_jpeg(blob, colorspace="GRAY", buffer=pixels, strict=False, **options)
    return pixels[:, :, 0]
