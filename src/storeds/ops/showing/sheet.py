"""Draws records on one picture, as the page shows them: equal tiles with boxes, masks and keypoints, class and key below."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from storeds.ops.showing.panels import Box, Panel
from storeds.ops.showing.records import Shown

__all__ = ["draw_sheet"]

_COLUMNS, _SIDE = 10, 160  # tiles in a row, pixels of a tile
_GAP, _LINE, _HEADING, _MARGIN = 12, 17, 30, 4
_PAPER, _WELL, _INK, _DIM, _BAD, _POINT = "#fafaf8", "#ededea", "#1c1d1f", "#5d6066", "#a3180f", "#ff4fd8"
_CHIP, _DOT, _RADIUS = 14, 9, 3
_font = functools.cache(ImageFont.load_default)


def draw_sheet(title: str, records: Sequence[Shown], across: int = 1) -> Image.Image:
    """Return a picture of the records, ten pictures in a row; `across` of them belong to one record."""
    columns = max(_COLUMNS // across, 1)
    wide, down = across * (_SIDE + 2) - 2 + _GAP, _SIDE + 2 * _LINE + _GAP  # pixels from record to record
    rows = -(-len(records) // columns)
    sheet = Image.new(
        "RGB", (max(columns * wide, _COLUMNS * (_SIDE + _GAP)) + _GAP, 2 * _GAP + _HEADING + rows * down), _PAPER
    )
    pen = ImageDraw.Draw(sheet)
    _write(pen, (_GAP, _GAP), title, _INK, sheet.width - 2 * _GAP, size=16)
    for number, record in enumerate(records):
        row, column = divmod(number, columns)
        left, top = _GAP + column * wide, _GAP + _HEADING + row * down
        for at, panel in enumerate(record.in_tile or [Panel("", note="; ".join(record.texts))]):
            sheet.paste(_tile(panel), (left + at * (_SIDE + 2), top))
        if record.tags:
            _write(
                pen, (left + _MARGIN, top + _MARGIN), " ".join(record.tags), "#ffffff", _SIDE - 2 * _MARGIN, back=_BAD
            )
        text, first = left, top + _SIDE + 3
        if record.label:
            pen.ellipse((left, first + 3, left + _DOT, first + 3 + _DOT), record.colour)
            text += _DOT + 5
        _write(pen, (text, first), record.label or "; ".join(record.texts), _INK, wide - _GAP - (text - left))
        _write(pen, (left, first + _LINE), record.key or f"record {record.position}", _DIM, wide - _GAP)
    return sheet


def _tile(panel: Panel) -> Image.Image:
    """Return a panel with what lies over it, in the middle of a square."""
    tile = Image.new("RGB", (_SIDE, _SIDE), _WELL)
    pen = ImageDraw.Draw(tile)
    if panel.image is None:
        _write(pen, (_MARGIN, _SIDE // 2 - 8), panel.note, _DIM, _SIDE - 2 * _MARGIN)
        return tile
    scale = min(_SIDE / panel.image.width, _SIDE / panel.image.height)
    scale = max(int(scale), 1) if scale > 1 else scale  # a small picture is enlarged by whole pixels
    size = max(round(scale * panel.image.width), 1), max(round(scale * panel.image.height), 1)
    resampling = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    picture = panel.image.resize(size, resampling)
    for mask in panel.masks:
        over = mask.convert("RGBA").resize(size, Image.Resampling.NEAREST)
        picture.paste(over, mask=over)
    marks = ImageDraw.Draw(picture)
    for box in panel.boxes:
        _draw_box(marks, box, size)
    for x, y in panel.points:
        middle = round(x * size[0]), round(y * size[1])
        corners = [each + step for step in (-_RADIUS, _RADIUS - 1) for each in middle]
        marks.ellipse(corners, _POINT)
    tile.paste(picture, ((_SIDE - size[0]) // 2, (_SIDE - size[1]) // 2))
    return tile


def _draw_box(pen: ImageDraw.ImageDraw, box: Box, size: tuple[int, int]) -> None:
    left, top, right, bottom = (round(share * whole) for share, whole in zip(box.corners, size * 2, strict=True))
    pen.rectangle((left - 1, top - 1, max(right, left), max(bottom, top)), outline=box.colour, width=2)
    if box.name and right - left > 2 * _CHIP and bottom - top > _CHIP:
        _write(pen, (left + 1, top + 1), box.name, "#000000", right - left - 2, size=10, back=box.colour)


def _write(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    text: str,
    colour: str,
    width: int,
    size: int = 12,
    back: str | None = None,
) -> None:
    """Write a line, cut at its end where it is wider than `width`, on a ground if `back` is given."""
    font = _font(size)
    text = (
        text.split("\n", 1)[0].encode("latin-1", "replace").decode("latin-1")
    )  # Pillow's own font has no other characters
    text = "".join(letter if letter.isprintable() else "?" for letter in text[: max(width, 4)])
    while text and pen.textlength(text, font) > width - (4 if back else 0):
        text = f"{text[:-3]}.." if len(text) > 3 else ""
    if back is not None and text:
        left, top = at
        pen.rectangle((left, top, left + round(pen.textlength(text, font)) + 3, top + size + 3), back)
        at = left + 2, top
    pen.text(at, text, colour, font)
