"""Estimates where the picture of a cut JPEG ends, in about the time of one decode, by decoding it with two endings.

After the plain ending everything is grey, after noise it is not; up to the cut both agree. What is found is the MCU in which
the data end or, about as often, the next one, which the noise completed in the same way; seldom the one after that.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from storeds.jpeg.structure import EOI, Structure

__all__ = ["MAX_PIXELS", "estimate"]

MAX_PIXELS = 1 << 27
"""The most pixels that a picture may claim before anything is allocated for it: above a phone's 108 megapixels."""

# No ff, so that no marker arises; long enough that some of it is read into whatever MCU the data were cut in.
_NOISE = np.random.default_rng(0).integers(0, 255, 512, np.uint8).tobytes()


def estimate(blob: bytes, structure: Structure) -> float | None:
    """Return the share of MCUs that are there, 1.0 if nothing depends on what follows the cut; None if it cannot tell.

    `blob` is cut inside its last scan, which is the first with some of its coefficients. Of a file with several scans only
    0.0 or 1.0 can be told. It cannot tell while `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` is set.
    """
    frame = structure.frame
    if frame is None or frame.width * frame.height > MAX_PIXELS:
        return 0.0
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return None
    whole = blob[: structure.end].rstrip(b"\xff")  # half a marker, which the noise would complete
    scaled = len(structure.scans) == 1
    try:
        plain, noisy = _pixels(whole + EOI, scaled), _pixels(whole + _NOISE + EOI, scaled)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Warning):  # a warning may be an error
        return None
    differ = (plain != noisy).reshape(*plain.shape[:2], -1)
    if not differ.any():
        return 1.0
    # Chroma is smoothed when it is scaled up, so it differs above the cut too; luma does not.
    return _first_unit(differ[:, :, 0], structure) if scaled else 0.0


def _pixels(blob: bytes, scaled: bool) -> npt.NDArray[np.uint8]:
    """Return the pixels, one for each 8 x 8 if `scaled`, as near to what is stored as Pillow gives them."""
    with Image.open(io.BytesIO(blob)) as image:
        if scaled:
            image.draft(
                "YCbCr" if image.mode == "RGB" else image.mode, (max(image.width // 8, 1), max(image.height // 8, 1))
            )
        return np.asarray(image)


def _first_unit(differ: npt.NDArray[np.bool_], structure: Structure) -> float:
    """Return the place of the first MCU that differs, as a share of all."""
    frame = structure.frame
    assert frame is not None
    single = len(structure.components) == 1
    across = 8 * (1 if single else max(component.h for component in structure.components))
    down = 8 * (1 if single else max(component.v for component in structure.components))
    columns, rows = -(-frame.width // across), -(-frame.height // down)
    y, x = np.nonzero(differ)
    scale = max(round(frame.height / differ.shape[0]), round(frame.width / differ.shape[1]))
    row, column = y * scale // down, x * scale // across
    units = columns * rows
    return float((row * columns + column).min(initial=units - 1)) / units
