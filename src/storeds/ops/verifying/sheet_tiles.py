"""The picture of one tile of a contact sheet: small, with the lost area hatched."""

from __future__ import annotations

import io
import math
from typing import Any, NamedTuple

from PIL import Image, ImageChops, ImageDraw

from storeds.jpeg import MAX_PIXELS, repair
from storeds.jpeg.markers import Structure, grid_of, parse
from storeds.readers.decoders import check_pixels, decode_reason

__all__ = ["SIDE", "Thumbnail", "UndecodableError", "thumbnail"]

SIDE = 160
_RED = (200, 0, 0)
_HATCH = 7  # pixels from line to line


class UndecodableError(Exception):
    """A picture does not decode; says why."""


class Thumbnail(NamedTuple):
    """A small picture, and whether it shows which part of it is lost."""

    image: Image.Image
    is_marked: bool


def thumbnail(blob: Any, recovered: float | None) -> Thumbnail:
    """Return a picture as it decodes once repaired, no larger than a tile.

    Parameters
    ----------
    blob : bytes
    recovered : float or None
        The share of it that is there. What follows is hatched where the format has an order: in a JPEG of one scan.
    """
    try:
        whole = repair(blob)
        with Image.open(io.BytesIO(whole)) as image:
            check_pixels(*image.size, MAX_PIXELS)
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = image.convert("RGB")
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        raise UndecodableError(decode_reason(error)) from None
    small.thumbnail((SIDE, SIDE))
    factor = max(min(SIDE // small.width, SIDE // small.height), 1)
    small = small.resize((factor * small.width, factor * small.height), Image.Resampling.NEAREST)
    # Of a lower bound of 0 nothing is known.
    border = None if not recovered or recovered == 1.0 else _border(parse(whole), recovered, small.size)
    if border is not None:
        _hatch(small, border)
    return Thumbnail(small, border is not None)


def _border(found: Structure, recovered: float, size: tuple[int, int]) -> list[tuple[int, int]] | None:
    """Return the line between what is there and what is lost, in pixels of a thumbnail of that `size`, left to right.

    None where the units of the picture are not in the order of its rows.
    """
    frame, scans = found.frame, found.scans
    sequential = frame is not None and frame.process.startswith(("baseline", "extended"))
    if frame is None or not sequential or not scans or len(scans[0].parts) != len(found.components):
        return None
    if len(found.components) == 1:
        (columns, rows), across, down = grid_of(found, found.components[0]), 8, 8
    else:
        across = 8 * max(component.h for component in found.components)
        down = 8 * max(component.v for component in found.components)
        columns, rows = -(-frame.width // across), -(-frame.height // down)
    row, column = divmod(math.floor(recovered * columns * rows + 1e-6), columns)
    x = min(round(column * across * size[0] / frame.width), size[0])
    top, bottom = (min(round(at * down * size[1] / frame.height), size[1]) for at in (row, row + 1))
    return [(0, bottom), (x, bottom), (x, top), (size[0], top)]


def _hatch(image: Image.Image, border: list[tuple[int, int]]) -> None:
    width, height = image.size
    lost, lines = Image.new("1", image.size), Image.new("1", image.size)
    ImageDraw.Draw(lost).polygon([*border, (width, height), (0, height)], 1)
    pen = ImageDraw.Draw(lines)
    for x in range(0, width + height, _HATCH):
        pen.line((x, 0, x - height, height), 1)
    image.paste(_RED, mask=ImageChops.logical_and(lost, lines))
    ImageDraw.Draw(image).line(border, _RED, 2)
