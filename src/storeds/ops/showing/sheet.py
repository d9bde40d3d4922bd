"""Draws records on one picture: the first panel of each, with what lies over it, and two lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from storeds.ops.showing.panels import Panel
from storeds.ops.showing.records import Shown

__all__ = ["draw_sheet"]

_COLUMNS, _SIDE = 10, 160  # tiles in a row, pixels of a tile
_GAP, _LINE, _HEADING = 12, 15, 30
_ACROSS, _DOWN = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP  # pixels from tile to tile
_WHITE, _PALE, _BLACK, _RED, _POINT = "#ffffff", "#f0f0f0", "#000000", "#aa0000", "#ff00ff"


def draw_sheet(title: str, records: Sequence[Shown]) -> Image.Image:
    """Return a picture of the records, ten in a row."""
    rows = -(-len(records) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * _ACROSS + _GAP, 2 * _GAP + _HEADING + rows * _DOWN), _WHITE)
    pen = ImageDraw.Draw(sheet)
    _write(pen, (_GAP, _GAP), title, _BLACK, sheet.width - 2 * _GAP, size=16)
    for number, record in enumerate(records):
        row, column = divmod(number, _COLUMNS)
        left, top = _GAP + column * _ACROSS, _GAP + _HEADING + row * _DOWN
        pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), _PALE)
        panel = record.panels[0] if record.panels else Panel("", note="; ".join(record.texts) or record.label)
        if panel.image is None:
            _write(pen, (left + 4, top + _SIDE // 2), panel.note, _BLACK, _SIDE - 8)
        else:
            tile = _tile(panel, panel.image)
            sheet.paste(tile, (left + (_SIDE - tile.width) // 2, top + (_SIDE - tile.height) // 2))
        below = f"{record.position}: {record.key}" if record.key else f"{record.position}"
        _write(pen, (left, top + _SIDE + 2), below, _BLACK, _SIDE)
        _write(
            pen,
            (left, top + _SIDE + 2 + _LINE),
            *((record.notes[0], _RED) if record.notes else (record.label, _BLACK)),
            _SIDE,
        )
    return sheet


def _tile(panel: Panel, image: Image.Image) -> Image.Image:
    tile = image.copy()
    for mask in panel.masks.values():
        over = mask.resize(tile.size, Image.Resampling.NEAREST)
        tile.paste(over, mask=over)
    tile.thumbnail((_SIDE, _SIDE))
    pen, (height, width) = ImageDraw.Draw(tile), panel.size
    across, down = tile.width / max(width, 1), tile.height / max(height, 1)
    for left, top, right, bottom, _, colour in panel.boxes:
        pen.rectangle((left * across, top * down, right * across, bottom * down), outline=colour, width=2)
    for x, y in panel.points:
        pen.ellipse((x * across - 2, y * down - 2, x * across + 2, y * down + 2), _POINT)
    return tile


def _write(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, ink: str, width: int, size: int = 11) -> None:
    """Write the end of a line that is wider than `width`, because paths differ at their ends."""
    font = ImageFont.load_default(size)
    text = text.encode("latin-1", "replace").decode("latin-1")  # Pillow's own font has no other characters
    text = "".join(letter if letter.isprintable() else "?" for letter in text[-width // 4 :])
    while pen.textlength(text, font) > width:
        text = f"..{text[3:]}"
    pen.text(at, text, ink, font)
