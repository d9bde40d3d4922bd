"""Makes small pictures of files and arrays, and what lies over them: masks, boxes and keypoints.

A `Panel` is one picture of a record. It says in words what its pixels cannot show: a size, a range of values, an error.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from storeds.jpeg import MAX_PIXELS
from storeds.jpeg.formats import decode_reason
from storeds.protocols import Array, Field
from storeds.readers.decoders import check_pixels
from storeds.records.roles import box_edges, boxes_of, check_row_counts

__all__ = ["Panel", "class_name", "draw_parts", "panel_of_file", "panel_of_pixels", "write"]

_SIDE, _TINY = 192, 96  # pixels of the longer side of a small picture; a smaller one is enlarged

_COLOURS = [
    "#e6194b",
    "#3cb44b",
    "#ffe119",
    "#4363d8",
    "#f58231",
    "#42d4f4",
    "#f032e6",
    "#bfef45",
    "#9a6324",
    "#469990",
]
_PALETTE = np.array([[int(text[at : at + 2], 16) for at in (1, 3, 5)] + [140] for text in _COLOURS], np.uint8)
_IGNORED = 255  # the usual class id of pixels without a class
_FRAMES = 8
_MOST = 300  # boxes or points
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


def panel_of_file(name: str, blob: bytes) -> Panel:
    """Return the panel of a picture file; of bytes that do not decode, one that says why. Raises nothing."""
    try:
        with Image.open(io.BytesIO(blob)) as image:
            size = image.height, image.width
            check_pixels(*image.size, MAX_PIXELS)
            kind = f"{image.format} {image.mode}"
            image.draft("RGB", (_SIDE, _SIDE))
            panel = _panel_of_image(name, image)
    except Exception as error:  # decoders raise any exception on damaged bytes
        return Panel(name, note=decode_reason(error))
    return Panel(name, panel.image, size, f"{kind}, {size[1]} × {size[0]}{panel.note and ', ' + panel.note}")


def panel_of_pixels(name: str, values: Any) -> Panel:
    """Return the panel of a Pillow image, or of an array or a tensor (…, channels, height, width).

    Several frames are a strip of at most eight. Numbers other than uint8 are stretched from their least to their greatest;
    floats from 0 to 1 are not.
    """
    if isinstance(values, Image.Image):
        panel = _panel_of_image(name, values)
        panel.note = f"{values.mode}, {values.width} × {values.height}{panel.note and ', ' + panel.note}"
        return panel
    pixels = np.asarray(values)
    if pixels.ndim < 2 or not pixels.size:
        return Panel(name, note=f"no pixels: {pixels.dtype} of shape {pixels.shape}")
    frames = pixels.reshape(-1, *(pixels.shape[-3:] if pixels.ndim > 2 else (1, *pixels.shape)))
    size, notes = (frames.shape[-2], frames.shape[-1]), [f"{pixels.dtype} {' × '.join(map(str, pixels.shape))}"]
    chosen = frames[np.linspace(0, len(frames) - 1, min(len(frames), _FRAMES)).astype(int)]
    channels = 3 if frames.shape[1] >= 3 else 1
    if frames.shape[1] not in (1, 3):
        notes.append(f"the first {channels} of {frames.shape[1]} channels")
    step = max(max(size) // (4 * _SIDE), 1)
    chosen, note = _stretched(np.moveaxis(chosen[:, :channels, ::step, ::step], 1, -1))
    notes += [note] if note else []
    if len(frames) > 1:
        notes.append(f"{len(chosen)} of {len(frames)} frames")
    side = _SIDE if len(chosen) == 1 else _SIDE // 2
    small = [Image.fromarray(np.broadcast_to(frame, (*frame.shape[:2], 3))) for frame in chosen]
    for each in small:
        each.thumbnail((side, side))
    strip = np.concatenate([np.asarray(each) for each in small], axis=1)
    return Panel(name, _enlarged(Image.fromarray(strip)), size, ", ".join(notes))


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
            corners = _in_layer(panel, name, np.concatenate([start, stop], axis=1), np.tile(scale, 2))
            for (left, top, right, bottom), label in zip(corners, labels, strict=False):
                pen.rectangle((left - 1, top - 1, right, bottom), outline=colours[label], width=2)
                write(pen, (left + 3, top + 1), label[:_SIDE], colours[label], right - left, halo="#ffffff")
        else:
            points = np.asarray(value, np.float64)
            points = points.reshape(-1, points.shape[-1])
            if points.shape[-1] == 3:
                points = points[points[:, 2] > 0]
            # A point (0, 0) is the centre of the first pixel, and a box (0, 0, 1, 1) is all of it.
            for x, y in _in_layer(panel, name, points[:, :2] + 0.5, scale):
                pen.ellipse((x - _RADIUS, y - _RADIUS, x + _RADIUS - 1, y + _RADIUS - 1), _POINT)


def _in_layer(panel: Panel, name: str, rows: Array, scale: Array) -> list[list[int]]:
    """Return the first rows in pixels of a layer, and note if there are more."""
    if len(rows) > _MOST:
        panel.note += f", the first {_MOST:,} of {len(rows):,} {name}"
    # What lies far outside, where no pen reaches, stays outside.
    pixels = (np.nan_to_num(rows[:_MOST]) * scale).round().clip(-_SIDE, 10 * _SIDE)
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


def _panel_of_image(name: str, image: Image.Image) -> Panel:
    if image.mode[0] in "IF":  # 16 and 32 bits
        return panel_of_pixels(name, np.asarray(image))
    size, note = (image.height, image.width), ""
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image, note = Image.new("RGB", image.size, "white"), "on white"
        image.paste(over, mask=over)
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    return Panel(name, _enlarged(small), size, note)


def _enlarged(image: Image.Image) -> Image.Image:
    """Return a picture of a few pixels at a size at which they can be seen, and drawn over."""
    scale = max(_TINY // max(image.size), 1)
    return image.resize((scale * image.width, scale * image.height), Image.Resampling.NEAREST)


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
