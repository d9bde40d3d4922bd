"""Draws damaged pictures that `verify` found on one sheet, those of which least is left first."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from storeds._utils.locations import redact
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.errors import ConfigError, RecordError
from storeds.jpeg import MAX_PIXELS, repair
from storeds.jpeg.formats import decode_reason
from storeds.ops.verifying.checks import Finding
from storeds.protocols import Backend
from storeds.readers.decoders import check_pixels

__all__ = ["ContactSheet"]

_OF_A_KIND = 30  # tiles
_COLUMNS, _SIDE = 10, 160  # tiles in a row, pixels of a tile
_GAP, _LINE, _HEADING = 12, 15, 30
_ACROSS, _DOWN = _SIDE + _GAP, _SIDE + 2 * _LINE + _GAP  # pixels from tile to tile
_WHITE, _PALE, _BLACK, _RED = "#ffffff", "#f0f0f0", "#000000", "#aa0000"


class ContactSheet:
    """A PNG with damaged pictures, the most frequent kind of damage first.

    For each kind it shows the 30 pictures of which least is left. Each has its position and key, and the share that is
    left. A picture that does not decode has an empty tile, which says why.

    Parameters
    ----------
    path : str or path
        The file, ending in ``.png``. An existing file is replaced atomically.

    Raises
    ------
    ConfigError
        The file cannot be written. This is checked before the sheet is drawn, which may be after hours of checking.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        if self.path.suffix.lower() != ".png" or self.path.is_dir():
            raise ConfigError(f"a contact sheet is a file that ends in .png, not {os.fspath(path)!r}")
        if not os.access(self.path.absolute().parent, os.W_OK):
            raise ConfigError(f"the contact sheet {self.path} cannot be written: its folder is missing or read-only")

    def draw(
        self,
        url: str,
        findings: Sequence[Finding],
        *,
        layout: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> int:
        """Write the sheet for the findings in the store at `url`; return how many pictures are drawn.

        Parameters
        ----------
        url, findings
            The store, and the findings of its report.
        layout, options
            As for `verify`.

        Raises
        ------
        StoredsError
            The store cannot be opened.
        OSError
            The sheet cannot be written.
        """
        kinds: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.position is not None and finding.kind != "column":
                kinds.setdefault(finding.kind, []).append(finding)
        height = 2 * (_GAP + _HEADING) + sum(_HEADING + _rows(found) * _DOWN for found in kinds.values())
        sheet = Image.new("RGB", (_COLUMNS * _ACROSS + _GAP, height), _WHITE)
        pen = ImageDraw.Draw(sheet)
        damaged = counted(sum(map(len, kinds.values())), "damaged picture")
        _text(pen, (_GAP, _GAP), f"{redact(url)}: {damaged}", _BLACK, sheet.width, size=16)
        top, drawn = _GAP + _HEADING, 0
        if kinds:  # else the store may be one that cannot be opened
            with open_backend(url, layout=layout, **(options or {})) as backend:
                for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
                    heading = f"{kind}: {counted(len(found), 'picture')}"
                    _text(pen, (_GAP, top + 4), heading, _RED, sheet.width, size=14)
                    worst = sorted(found, key=lambda finding: (finding.recovered or 0.0, finding.position))
                    for number, finding in enumerate(worst[:_OF_A_KIND]):
                        row, column = divmod(number, _COLUMNS)
                        at = _GAP + column * _ACROSS, top + _HEADING + row * _DOWN
                        drawn += _draw_tile(sheet, pen, at, backend, finding)
                    top += _HEADING + _rows(found) * _DOWN
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.partial")
        try:
            sheet.save(aside, "PNG")
            os.replace(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)
        return drawn


def _rows(found: Sequence[Finding]) -> int:
    """Return how many rows of tiles a kind of damage has."""
    return -(-min(len(found), _OF_A_KIND) // _COLUMNS)


def _draw_tile(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, at: tuple[int, int], backend: Backend, finding: Finding
) -> bool:
    """Draw a tile and the lines below it; return whether the picture could be drawn."""
    left, top = at
    pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), _PALE)
    picture = _thumbnail(backend, finding)
    if isinstance(picture, str):
        _text(pen, (left + 4, top + _SIDE // 2), picture, _BLACK, _SIDE - 8)
    else:
        sheet.paste(picture, (left + (_SIDE - picture.width) // 2, top + (_SIDE - picture.height) // 2))
    key = "" if finding.key is None else f": {finding.key}"
    share = f"{finding.severity} is left" if finding.severity else ""
    for number, (line, ink) in enumerate(((f"{finding.position}{key}", _BLACK), (share, _RED))):
        _text(pen, (left, top + _SIDE + 2 + number * _LINE), line, ink, _SIDE)
    return not isinstance(picture, str)


def _thumbnail(backend: Backend, finding: Finding) -> Image.Image | str:
    """Read a picture, repair and decode it, and scale it to the size of a tile; or return why that is impossible."""
    nothing = finding.recovered == 0.0 and finding.kind != "corrupt_data"  # of which decoders may show something
    if (
        nothing or finding.image is None or finding.position is None
    ):  # without an image: a crash, which may happen again
        return finding.message
    (record,) = backend.get_many([finding.position], [finding.image])
    if isinstance(record, RecordError):
        return record.reason or str(record)
    try:
        with Image.open(io.BytesIO(repair(record[finding.image]))) as image:
            check_pixels(*image.size, MAX_PIXELS)
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
            small = image.convert("RGB")
    except Exception as error:  # decoders raise any exception on damaged bytes
        return decode_reason(error)
    small.thumbnail((_SIDE, _SIDE))
    return small


def _text(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, ink: str, width: int, size: int = 11) -> None:
    """Write the end of a line that is wider than `width`, because paths differ at their ends."""
    font = ImageFont.load_default(size)
    text = text.encode("latin-1", "replace").decode("latin-1")  # Pillow's own font has no other characters
    text = "".join(letter if letter.isprintable() else "?" for letter in text[-width // 4 :])
    while pen.textlength(text, font) > width:
        text = f"..{text[3:]}"
    pen.text(at, text, ink, font)
