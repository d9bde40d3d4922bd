"""Makes pictures of files and arrays, and says what lies over them: masks, boxes and keypoints.

A `Panel` is one picture of a record. It says in words what its pixels cannot show: a size, a range of values, an error.
Boxes and keypoints are numbers, so that a page draws them sharp at any size, and a sheet the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from PIL import Image, ImageColor

from storeds.pictures import MAX_PIXELS
from storeds.pictures.decoders import check_pixels
from storeds.pictures.formats import decode_reason, open_picture
from storeds.pictures.header import SOI
from storeds.protocols import Array, Field
from storeds.records.annotations import box_edges, check_row_counts
from storeds.records.roles import boxes_of

__all__ = ["Box", "Panel", "class_name", "colour_of", "mark_parts", "panel_of"]

# Black text on each of them has a contrast of at least 7.
_COLOURS = (
    *("#6aa9f4", "#f5a04c", "#63c77a", "#f0848a", "#be97e6", "#f2c94c", "#4cc7cf", "#f59ac8", "#a9cc5b", "#d0a97c"),
    *("#9fb1c9", "#ffab8f"),
)
_IGNORED = 255  # the usual class id of pixels without a class
_OPACITY = 130  # of masks, of 255
_FRAMES, _FRAME_SIDE = 8, 160
_MOST_MARKS = 300  # boxes and keypoints of a picture
_LONGEST = 1600  # pixels of a side


@dataclass(frozen=True)
class Box:
    """A box over a panel.

    Attributes
    ----------
    corners : (float, float, float, float)
        Left, top, right and bottom, as shares of the width and the height of the picture; 1 is its end.
    name : str
        Its class, or nothing.
    colour : str
        That of its class.
    """

    corners: tuple[float, float, float, float]
    name: str
    colour: str


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
    masks : list of PIL.Image.Image
        Transparent pictures with a palette, of the size of `image`.
    boxes : list of Box
    points : list of (float, float)
        Keypoints, as shares of width and height.
    aside : bool
        Whether it is shown only where its record is shown alone.
    """

    name: str
    image: Image.Image | None = None
    size: tuple[int, int] = (0, 0)
    note: str = ""
    masks: list[Image.Image] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    points: list[tuple[float, float]] = field(default_factory=list)
    aside: bool = False

    @property
    def layers(self) -> list[str]:
        """The names of what lies over it."""
        found = {"boxes": self.boxes, "keypoints": self.points, "masks": self.masks}
        return [name for name, marks in found.items() if marks]


def panel_of(name: str, value: Any, pixels: int = _LONGEST**2) -> Panel:
    """Return the panel of a picture file, a Pillow image, or an array or a tensor (…, channels, height, width).

    Several frames are a strip of at most eight. Numbers other than uint8 are stretched from their least to their greatest;
    floats from 0 to 1 are not. What cannot be shown gets a panel that says why. Raises nothing.

    Parameters
    ----------
    name : str
    value : bytes, PIL.Image.Image or array
    pixels : int
        A larger picture is scaled down to about so many.
    """
    try:
        if isinstance(value, bytes):
            value = open_picture(value, 0 if value.startswith(SOI) else MAX_PIXELS)
            check_pixels(value.width, value.height, MAX_PIXELS)
        if isinstance(value, Image.Image):
            size, stack, notes = _of_image(value, pixels)
        else:
            value = np.asarray(value)
            stack = np.moveaxis(value.reshape(-1, *((1, 1, 1, *value.shape)[-3:])), 1, -1)
            size, notes = stack.shape[1:3], [f"{value.dtype} {' × '.join(map(str, value.shape))}"]
        frames = stack[np.linspace(0, len(stack) - 1, min(len(stack), _FRAMES)).astype(int)]
        channels = 3 if frames.shape[-1] >= 3 else 1
        if frames.shape[-1] not in (1, 3):
            notes.append(f"the first {channels} of {frames.shape[-1]} channels")
        width, height = _scaled(size, pixels) if len(frames) == 1 else _scaled(size, _FRAME_SIDE**2)
        step = max(size[0] // max(2 * height, 1), 1) if frames.dtype != np.uint8 else 1
        frames, note = _stretched(frames[:, ::step, ::step, :channels])
        notes += [note] if note else []
        if len(stack) > 1:
            notes.append(f"{len(frames)} of {len(stack)} frames")
        shown = [_resized(frame, (width, height)) for frame in frames]
        image = shown[0] if len(shown) == 1 else Image.fromarray(np.concatenate([*map(np.asarray, shown)], axis=1))
    except Exception as error:  # decoders raise any exception on damaged bytes
        return Panel(name, note=decode_reason(error))
    if len(frames) == 1 and (height, width) != tuple(size):
        notes.append(f"shown at {width} × {height}")
    return Panel(name, image, size, ", ".join(notes))


def _scaled(size: tuple[int, ...], pixels: int) -> tuple[int, int]:
    """Return the width and height at which a picture of a height and width is shown."""
    height, width = size
    scale = min(1.0, math.sqrt(pixels / max(height * width, 1)), _LONGEST / max(height, width, 1))
    return max(round(scale * width), 1), max(round(scale * height), 1)


def _of_image(image: Image.Image, pixels: int) -> tuple[tuple[int, int], Array, list[str]]:
    """Return the height and width of an image, its pixels as one frame, and notes."""
    size = image.height, image.width
    notes = [f"{image.format or ''} {image.mode}".strip(), f"{image.width} × {image.height}"]
    image.draft("RGB", _scaled(size, pixels))
    if image.mode[0] in "IF":  # 16 and 32 bits
        return size, np.asarray(image)[None, ..., None], notes
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(over, mask=over)
        notes.append("on white")
    return size, np.asarray(image.convert("RGB"))[None], notes


def _resized(frame: Array, size: tuple[int, int]) -> Image.Image:
    """Return a frame in RGB, at a width and height."""
    image = Image.fromarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))
    return image if image.size == size else image.resize(size, Image.Resampling.BOX, reducing_gap=2.0)


def mark_parts(
    panel: Panel,
    parts: Mapping[str, tuple[Field, Any]],
    classes: Mapping[str, Sequence[str]],
) -> None:
    """Put masks, boxes and keypoints over a panel.

    Parameters
    ----------
    panel : Panel
    parts : mapping
        Element → its declaration and value: class ids of masks, coordinates in pixels, classes of boxes.
    classes : mapping
        Element → the names of its class ids, where there are names.
    """
    declared = {name: each for name, (each, _) in parts.items()}
    check_row_counts({name: value for name, (_, value) in parts.items()}, declared)
    if panel.image is None:
        return
    height, width = panel.size
    for name, (each, value) in parts.items():
        if each.role == "mask":
            panel.masks.append(_coloured(np.asarray(value)).resize(panel.image.size, Image.Resampling.NEAREST))
        elif each.role == "boxes":
            start, _, stop = box_edges(np.asarray(value, np.float64).reshape(-1, 4), each.format or "xyxy")
            rows = [other for other, e in declared.items() if e.role == "labels" and boxes_of(other, declared) == name]
            labels: Any = parts[rows[0]][1] if rows else [None] * len(start)
            known = classes.get(rows[0]) if rows else None
            corners = _shares(np.concatenate([start, stop], axis=1), np.array([width, height, width, height]))
            panel.boxes += [
                Box(corner, "" if label is None else class_name(label, known), colour_of(label, known))
                for corner, label in zip(corners, labels, strict=False)
            ]
        elif each.role == "keypoints":
            points = np.asarray(value, np.float64)
            points = points.reshape(-1, points.shape[-1])
            if points.shape[-1] == 3:
                points = points[points[:, 2] > 0]
            # A point (0, 0) is the centre of the first pixel, and a box (0, 0, 1, 1) is all of it.
            panel.points += _shares(points[:, :2] + 0.5, np.array([width, height]))
    for what in ("boxes", "points"):
        marks = getattr(panel, what)
        if len(marks) > _MOST_MARKS:
            panel.note += f", the first {_MOST_MARKS} of {len(marks):,} {what}"
            del marks[_MOST_MARKS:]


def _shares(rows: Array, whole: Array) -> list[Any]:
    """Return coordinates in pixels as shares of the width and height. What lies far outside stays outside."""
    return [tuple(row) for row in (np.nan_to_num(rows) / whole).clip(-1, 2).tolist()]


def class_name(label: Any, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number if it has none."""
    number = label.item() if hasattr(label, "item") else label
    return classes[number] if classes and isinstance(number, int) and 0 <= number < len(classes) else str(number)


def colour_of(label: Any, classes: Sequence[str] | None) -> str:
    """Return the colour of a class, which is the same wherever it is shown: by its number, or a hash of its name."""
    number = label.item() if hasattr(label, "item") else label
    if isinstance(number, str) and classes and number in classes:
        number = classes.index(number)
    if number is None or isinstance(number, (float, bool)):
        number = int(number or 0)
    if not isinstance(number, int):
        number = xxhash.xxh3_64_intdigest(str(number).encode("utf-8", "surrogatepass"))
    return _COLOURS[number % len(_COLOURS)]


def _coloured(ids: Array) -> Image.Image:
    """Return a transparent picture of class ids, or of one mask for each instance."""
    if ids.ndim == 3:
        ids = ((ids != 0) * np.arange(1, len(ids) + 1)[:, None, None]).max(axis=0, initial=0)
    ids = ids.astype(np.int64)
    entries = (1 + ids % len(_COLOURS)).astype(np.uint8)
    entries[ids == 0], entries[ids == _IGNORED] = 0, len(_COLOURS) + 1
    image = Image.fromarray(entries)
    image.putpalette(bytes([0, 0, 0, *(part for each in _COLOURS for part in ImageColor.getrgb(each)), 128, 128, 128]))
    image.info["transparency"] = bytes([0, *[_OPACITY] * (len(_COLOURS) + 1)])
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
