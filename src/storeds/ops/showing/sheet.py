"""Draws records on one picture: the first panel of each, with what lies over it, and two lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from storeds.ops.showing.panels import write
from storeds.ops.showing.records import Shown

__all__ = ["draw_sheet"]

_COLUMNS, _SIDE = 10, 160  # tiles in a row, pixels of a tile
_GAP, _LINE, _HEADING = 12, 15, 30
_ACROSS, _DOWN = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP  # pixels from tile to tile
_WHITE, _PALE, _BLACK, _RED = "#ffffff", "#f0f0f0", "#000000", "#aa0000"


def draw_sheet(title: str, records: Sequence[Shown]) -> Image.Image:
    """Return a picture of the records, ten in a row."""
    rows = -(-len(records) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * _ACROSS + _GAP, 2 * _GAP + _HEADING + rows * _DOWN), _WHITE)
    pen = ImageDraw.Draw(sheet)
    write(pen, (_GAP, _GAP), title, _BLACK, sheet.width - 2 * _GAP, size=16)
    for number, record in enumerate(records):
        row, column = divmod(number, _COLUMNS)
        left, top = _GAP + column * _ACROSS, _GAP + _HEADING + row * _DOWN
        pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), _PALE)
        panel = record.panels[0] if record.panels else None
        if panel is None or panel.image is None:
            text = panel.note if panel else "; ".join(record.texts) or record.label
            write(pen, (left + 4, top + _SIDE // 2), text, _BLACK, _SIDE - 8)
        else:
            tile = panel.image.copy()
            for layer in panel.layers.values():
                tile.paste(layer, mask=layer)
            tile.thumbnail((_SIDE, _SIDE))
            sheet.paste(tile, (left + (_SIDE - tile.width) // 2, top + (_SIDE - tile.height) // 2))
        place = f"{record.position}: {record.key}" if record.key else f"{record.position}"
        last, colour = (record.notes[0], _RED) if record.notes else (record.label, _BLACK)
        write(pen, (left, top + _SIDE + 2), place, _BLACK, _SIDE)
        write(pen, (left, top + _SIDE + 2 + _LINE), last, colour, _SIDE)
    return sheet
