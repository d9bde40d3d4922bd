"""Makes small pictures of files and arrays, and what lies over them: masks, boxes and keypoints.

A `Panel` is one picture of a record. It says in words what its pixels cannot show: a size, a range of values, an error.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from storeds.pictures import MAX_PIXELS
from storeds.pictures.decoders import check_pixels
from storeds.pictures.formats import decode_reason, open_picture
from storeds.pictures.header import SOI
from storeds.protocols import Array, Field
from storeds.records.annotations import box_edges, check_row_counts
from storeds.records.roles import boxes_of

__all__ = ["Panel", "class_name", "draw_parts", "panel_of", "write"]

_SIDE, _TINY = 192, 96  # pixels of the longer side of a small picture; a smaller one is enlarged

_COLOURS = [
    "crimson",
    "limegreen",
    "gold",
    "royalblue",
    "darkorange",
    "cyan",
    "magenta",
    "greenyellow",
    "sienna",
    "teal",
]
_PALETTE = np.array([(*ImageColor.getrgb(name), 140) for name in _COLOURS], np.uint8)
_IGNORED = 255  # the usual class id of pixels without a class
_FRAMES = 8
_POINT, _RADIUS = "#ff00ff", 3
_font = functools.cache(ImageFont.load_default)
_LAYERS = {"mask": "masks", "boxes": "boxes", "keypoints": "keypoints"}


@dataclass
class Panel:
    """One picture of a record.

    Attributes
    ----------
    name : str
        The element.
    image : PIL.Image.Image or None
        In mode RGB; None if there is nothing to see.
    size : (int, int)
        Height and width of the original, in which coordinates are given.
    note : str
        What the picture does not show, or why there is none.
    layers : dict
        ``masks``, ``boxes`` and ``keypoints`` → a transparent picture of the size of `image`, which lies over it.
    """

    name: str
    image: Image.Image | None = None
    size: tuple[int, int] = (0, 0)
    note: str = ""
    layers: dict[str, Image.Image] = field(default_factory=dict)


def panel_of(name: str, value: Any) -> Panel:
    """Return the panel of a picture file, a Pillow image, or an array or a tensor (…, channels, height, width).

    Several frames are a strip of at most eight. Numbers other than uint8 are stretched from their least to their greatest;
    floats from 0 to 1 are not. What cannot be shown gets a panel that says why. Raises nothing.
    """
    try:
        if isinstance(value, bytes):
            value = open_picture(value, 0 if value.startswith(SOI) else MAX_PIXELS)
            check_pixels(value.width, value.height, MAX_PIXELS)
        if isinstance(value, Image.Image):
            size, pixels, notes = _of_image(value)
        else:
            value = np.asarray(value)
            pixels = np.moveaxis(value.reshape(-1, *((1, 1, 1, *value.shape)[-3:])), 1, -1)
            size, notes = pixels.shape[1:3], [f"{value.dtype} {' × '.join(map(str, value.shape))}"]
        frames = pixels[np.linspace(0, len(pixels) - 1, min(len(pixels), _FRAMES)).astype(int)]
        channels = 3 if frames.shape[-1] >= 3 else 1
        if frames.shape[-1] not in (1, 3):
            notes.append(f"the first {channels} of {frames.shape[-1]} channels")
        step = max(max(size) // (4 * _SIDE), 1) if frames.dtype != np.uint8 else 1
        frames, note = _stretched(frames[:, ::step, ::step, :channels])
        notes += [note] if note else []
        if len(pixels) > 1:
            notes.append(f"{len(frames)} of {len(pixels)} frames")
        image = Image.fromarray(np.concatenate([_small(frame, len(frames)) for frame in frames], axis=1))
    except Exception as error:  # decoders raise any exception on damaged bytes
        return Panel(name, note=decode_reason(error))
    scale = max(_TINY // max(image.size), 1)
    image = image.resize((scale * image.width, scale * image.height), Image.Resampling.NEAREST)
    return Panel(name, image, size, ", ".join(notes))


def _of_image(image: Image.Image) -> tuple[tuple[int, int], Array, list[str]]:
    """Return the height and width of an image, its pixels as one frame, and notes."""
    size = image.height, image.width
    notes = [f"{image.format or ''} {image.mode}".strip(), f"{image.width} × {image.height}"]
    image.draft("RGB", (_SIDE, _SIDE))
    if image.mode[0] in "IF":  # 16 and 32 bits
        return size, np.asarray(image)[None, ..., None], notes
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(over, mask=over)
        notes.append("on white")
    return size, np.asarray(image.convert("RGB"))[None], notes


def _small(frame: Array, count: int) -> Array:
    """Return one of `count` frames, in RGB and small."""
    image = Image.fromarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))
    image.thumbnail((_SIDE, _SIDE) if count == 1 else (_SIDE // 2, _SIDE // 2))
    return np.asarray(image)


def draw_parts(panel: Panel, parts: Mapping[str, tuple[Field, Any]], classes: Sequence[str] | None) -> None:
    """Put masks, boxes and keypoints over a panel.

    Parameters
    ----------
    panel : Panel
    parts : mapping
        Element → its declaration and value: class ids of masks, coordinates in pixels, classes of boxes.
    classes : sequence of str, optional
        The names of class ids.
    """
    declared = {name: each for name, (each, _) in parts.items()}
    check_row_counts({name: value for name, (_, value) in parts.items()}, declared)
    if panel.image is None:
        return
    scale = np.array(panel.image.size) / panel.size[::-1]
    for name, (each, value) in parts.items():
        if each.role not in _LAYERS:
            continue
        layer = panel.layers.setdefault(_LAYERS[each.role], Image.new("RGBA", panel.image.size))
        pen = ImageDraw.Draw(layer)
        if each.role == "mask":
            layer.alpha_composite(_coloured(np.asarray(value)).resize(layer.size, Image.Resampling.NEAREST))
        elif each.role == "boxes":
            start, _, stop = box_edges(np.asarray(value, np.float64).reshape(-1, 4), each.format or "xyxy")
            rows = [other for other, e in declared.items() if e.role == "labels" and boxes_of(other, declared) == name]
            labels = [class_name(label, classes) for label in parts[rows[0]][1]] if rows else [""] * len(start)
            colours = dict(zip(dict.fromkeys(labels), itertools.cycle(_COLOURS), strict=False))
            corners = _in_layer(np.concatenate([start, stop], axis=1), np.tile(scale, 2))
            for (left, top, right, bottom), label in zip(corners, labels, strict=False):
                pen.rectangle((left - 1, top - 1, right, bottom), outline=colours[label], width=2)
                write(pen, (left + 3, top + 1), label[:_SIDE], colours[label], right - left, halo="#ffffff")
        else:
            points = np.asarray(value, np.float64)
            points = points.reshape(-1, points.shape[-1])
            if points.shape[-1] == 3:
                points = points[points[:, 2] > 0]
            # A point (0, 0) is the centre of the first pixel, and a box (0, 0, 1, 1) is all of it.
            for x, y in _in_layer(points[:, :2] + 0.5, scale):
                pen.ellipse((x - _RADIUS, y - _RADIUS, x + _RADIUS - 1, y + _RADIUS - 1), _POINT)


def _in_layer(rows: Array, scale: Array) -> list[list[int]]:
    """Return coordinates in pixels of a layer. What lies far outside, where no pen reaches, stays outside."""
    pixels = (np.nan_to_num(rows) * scale).round().clip(-_SIDE, 10 * _SIDE)
    return pixels.astype(int).tolist()  # type: ignore[no-any-return]  # ndarray.tolist


def write(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    text: str,
    colour: str,
    width: int,
    size: int = 11,
    halo: str | None = None,
) -> None:
    """Write the end of a line that is wider than `width`, because paths differ at their ends."""
    font = _font(size)
    text = text.encode("latin-1", "replace").decode("latin-1")  # Pillow's own font has no other characters
    text = "".join(letter if letter.isprintable() else "?" for letter in text[-max(width, 4) // 4 :])
    while text and pen.textlength(text, font) > width:
        text = f"..{text[3:]}" if len(text) > 3 else ""
    pen.text(at, text, colour, font, stroke_width=0 if halo is None else 1, stroke_fill=halo)


def class_name(label: Any, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number if it has none."""
    number = label.item() if hasattr(label, "item") else label
    return classes[number] if classes and isinstance(number, int) and 0 <= number < len(classes) else str(number)


def _coloured(ids: Array) -> Image.Image:
    """Return a picture of class ids, or of one mask for each instance."""
    if ids.ndim == 3:
        ids = ((ids != 0) * np.arange(1, len(ids) + 1)[:, None, None]).max(axis=0, initial=0)
    pixels = _PALETTE[(ids.astype(np.int64) - 1) % len(_PALETTE)]
    pixels[ids == _IGNORED] = (128, 128, 128, 140)
    pixels[ids == 0] = 0
    return Image.fromarray(pixels)


def _stretched(pixels: Array) -> tuple[Array, str]:
    """Return pixels as uint8, and what that did to their values."""
    if pixels.dtype == np.uint8:
        return pixels, ""
    numbers = pixels.astype(np.float64)
    finite = np.isfinite(numbers)
    if not finite.any():
        return np.zeros(pixels.shape, np.uint8), "no finite value"
    low, high = numbers[finite].min(), numbers[finite].max()
    if pixels.dtype.kind == "f" and low >= 0 and high <= 1:  # as ToTensor makes them
        low, high = 0.0, 1.0
    scaled = np.where(finite, numbers - low, 0) / ((high - low) or 1)
    return (255 * scaled).round().astype(np.uint8), f"stretched from {low:g} to {high:g}"
