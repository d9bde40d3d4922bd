"""Makes small pictures of files and arrays, and what lies over them: masks, boxes and keypoints.

A `Panel` is one picture of a record. It says in words what its pixels cannot show: a size, a range of values, an error.
"""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from storeds.jpeg import MAX_PIXELS
from storeds.jpeg.formats import decode_reason
from storeds.protocols import Array, Field
from storeds.readers.decoders import check_pixels
from storeds.records.roles import box_edges, boxes_of

__all__ = ["Panel", "class_name", "draw_parts", "panel_of_file", "panel_of_pixels"]

_SIDE = 192  # pixels of the longer side of a small picture

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
    masks : dict
        Element → class colours of mode RGBA, transparent where the class is 0.
    boxes : list
        Left, top, right, bottom, class and colour of each.
    points : list
        x and y of each, from the edge of the picture.
    """

    name: str
    image: Image.Image | None = None
    size: tuple[int, int] = (0, 0)
    note: str = ""
    masks: dict[str, Image.Image] = field(default_factory=dict)
    boxes: list[tuple[Any, ...]] = field(default_factory=list)
    points: list[list[float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the panel as JSON, with its pictures as data URIs."""
        found: dict[str, Any] = {"name": self.name, "note": self.note, "size": self.size[::-1]}
        if self.image is not None:
            masks = [{"name": name, "src": _data_uri(mask, "PNG")} for name, mask in self.masks.items()]
            found |= {"src": _data_uri(self.image, "JPEG"), "shown": self.image.size, "masks": masks}
            found |= {"boxes": self.boxes, "points": self.points}
        return found


def _data_uri(image: Image.Image, form: str) -> str:
    """Return a picture as a ``data:`` URI."""
    file = io.BytesIO()
    image.save(file, form, quality=82, subsampling=0)  # colours of thin lines stay where they are
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


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
    height, width = chosen.shape[1:3]
    notes += [note] if note else []
    if len(frames) > 1:
        notes.append(f"{len(chosen)} of {len(frames)} frames")
    side = _SIDE if len(chosen) == 1 else _SIDE // 2
    small = [_small(Image.fromarray(np.broadcast_to(frame, (height, width, 3))), side) for frame in chosen]
    strip = np.concatenate([np.asarray(each) for each in small], axis=1)
    return Panel(name, Image.fromarray(strip), size, ", ".join(notes))


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
    for name, (each, value) in parts.items():
        if each.role == "mask":
            panel.masks[name] = _coloured(np.asarray(value))
        elif each.role == "boxes":
            start, _, stop = box_edges(np.asarray(value, np.float64).reshape(-1, 4), each.format or "xyxy")
            rows = [other for other, e in declared.items() if e.role == "labels" and boxes_of(other, declared) == name]
            labels = [class_name(label, classes) for label in parts[rows[0]][1]] if rows else [""] * len(start)
            colours = dict(zip(dict.fromkeys(labels), itertools.cycle(_COLOURS), strict=False))
            corners = _most(panel, np.concatenate([start, stop], axis=1), name)
            panel.boxes += [(*box, label, colours[label]) for box, label in zip(corners, labels, strict=False)]
        elif each.role == "keypoints":
            points = np.asarray(value, np.float64)
            points = points.reshape(-1, points.shape[-1])
            if points.shape[-1] == 3:
                points = points[points[:, 2] > 0]
            # A point (0, 0) is the centre of the first pixel, and a box (0, 0, 1, 1) is all of it.
            panel.points += _most(panel, points[:, :2] + 0.5, name)


def _most(panel: Panel, rows: Array, name: str) -> list[list[float]]:
    """Return the first rows, as JSON takes them, and note if there are more."""
    if len(rows) > _MOST:
        panel.note += f", the first {_MOST:,} of {len(rows):,} {name}"
    return np.nan_to_num(rows[:_MOST]).round(2).tolist()  # type: ignore[no-any-return]  # ndarray.tolist


def class_name(label: Any, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number if it has none."""
    number = label.item() if hasattr(label, "item") else label
    return classes[number] if classes and isinstance(number, int) and 0 <= number < len(classes) else str(number)


def _coloured(ids: Array) -> Image.Image:
    """Return a small picture of class ids, or of one mask for each instance."""
    if ids.ndim == 3:
        ids = ((ids != 0) * np.arange(1, len(ids) + 1)[:, None, None]).max(axis=0, initial=0)
    pixels = _PALETTE[(ids.astype(np.int64) - 1) % len(_PALETTE)]
    pixels[ids == _IGNORED] = (128, 128, 128, 140)
    pixels[ids == 0] = 0
    small = Image.fromarray(pixels)
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.NEAREST)
    return small


def _panel_of_image(name: str, image: Image.Image) -> Panel:
    if image.mode[0] in "IF":  # 16 and 32 bits
        return panel_of_pixels(name, np.asarray(image))
    size, note = (image.height, image.width), ""
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image, note = Image.new("RGB", image.size, "white"), "on white"
        image.paste(over, mask=over)
    return Panel(name, _small(image.convert("RGB"), _SIDE), size, note)


def _small(image: Image.Image, side: int) -> Image.Image:
    image.thumbnail((side, side))
    return image


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
