"""Decodes the windows of crops out of a JPEG, and as little of the rest as that takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

from storeds.pictures.cuts import JpegCutter, JpegPart
from storeds.pictures.decoders import COLOURS, decode_fast, has_colours, oriented, oriented_size, to_tensor
from storeds.records.samples import ORIENTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from storeds.pictures.header import Header
    from storeds.protocols import Array, CropRequest, Decoder, Window

__all__ = ["decode_windows", "divisor"]

# The warning of libjpeg-turbo about data that go on after the last line of a part.
_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd(9|[0-7])")


def decode_windows(
    decoder: Decoder, blob: bytes, mode: str, header: Header, crops: Sequence[CropRequest], *, orientation: int = 1
) -> tuple[torch.Tensor, ...] | None:
    """Decode the windows of a whole picture. Return None if the picture must be decoded completely.

    This is so, for example, if a window reaches beyond an edge of the picture.

    `decode_fast` decodes a window at a half, a quarter or an eighth of its size, if the crop needs no more pixels. This
    finds no damage outside the windows, so use it only for pictures that are known to be whole.
    """
    full_height, full_width = oriented_size(header, orientation)
    for (top, left, height, width), _ in crops:
        if top < 0 or left < 0 or top + height > full_height or left + width > full_width:
            return None
    if not has_colours(header, mode):
        return None
    shortcuts, cutter = decoder is decode_fast, JpegCutter(blob, header)
    images = []
    for crop in crops:
        by = divisor(crop) if shortcuts else 1
        window = _scaled_down(_stored_window(crop.window, header, orientation), by, header)
        pixels = _window_pixels(cutter, blob, header, window, by, shortcuts=shortcuts)
        if pixels is None:
            return None
        images.append(to_tensor(oriented(pixels, orientation), strided=True))
    return tuple(images)


def divisor(crop: CropRequest) -> int:
    """Return the factor, 1, 2, 4 or 8, by which an image may be decoded smaller so that the window keeps its size."""
    (_, _, height, width), (rows, columns) = crop
    return next(by for by in (8, 4, 2, 1) if by == 1 or (height >= by * rows and width >= by * columns))


def _stored_window(window: Window, header: Header, orientation: int) -> Window:
    """Return where a window of the rotated picture is in the stored one."""
    top, left, height, width = window
    swap, reverse_rows, reverse_columns = ORIENTATIONS[orientation]
    full_height, full_width = oriented_size(header, orientation)
    top = full_height - top - height if reverse_rows else top
    left = full_width - left - width if reverse_columns else left
    return (left, top, width, height) if swap else (top, left, height, width)


def _scaled_down(window: Window, by: int, header: Header) -> Window:
    """Return a window of a picture in the picture that is decoded `by` times smaller."""
    if by == 1:
        return window
    height, width = -(-header.height // by), -(-header.width // by)
    top, left = min(round(window[0] / by), height - 1), min(round(window[1] / by), width - 1)
    return top, left, min(max(round(window[2] / by), 1), height - top), min(max(round(window[3] / by), 1), width - left)


def _window_pixels(
    cutter: JpegCutter, blob: bytes, header: Header, window: Window, by: int, *, shortcuts: bool
) -> Array | None:
    """Return the pixels of a window in the picture that is `by` times smaller; None if all of it must be decoded."""
    top, left, height, width = window
    part = cutter.part(by * top, by * left, by * (top + height), by * (left + width))
    if part is None:
        if by == 1:
            return None
        part = JpegPart(blob, 0, 0, header.height, header.width, ends_early=False)
    rows, columns = -(-part.height // by), -(-part.width // by)
    # simplejpeg raises for the expected warning as well, so the pixels go into a buffer of our own.
    pixels = np.empty((rows, columns, header.components), np.uint8)
    try:
        simplejpeg.decode_jpeg(
            part.blob,
            colorspace=COLOURS[header.components][1],
            fastdct=shortcuts,
            fastupsample=shortcuts,
            min_height=rows,
            min_width=columns,
            min_factor=by,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        rest = _REST.fullmatch(str(error)) if part.ends_early else None
        if rest is None or not (header.interval or rest[1] == "9"):
            return None
    top, left = top - part.top // by, left - part.left // by
    return pixels[top : top + height, left : left + width]
