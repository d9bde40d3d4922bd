"""Draws the pictures that `verify` found damaged on one sheet, as they decode once mended."""

from __future__ import annotations

import functools
import io
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, features

from storeds.decode import check_pixels
from storeds.errors import ConfigError, RecordError
from storeds.jpeg import repair
from storeds.jpeg.estimate import MAX_PIXELS
from storeds.ops.checks import Finding
from storeds.protocols import Backend
from storeds.stores import open_backend

__all__ = ["ContactSheet"]

_MOST = 200  # tiles: some 2,000 x 4,000 pixels
_COLUMNS = 10
_SIDE, _GAP, _LINE = 160, 12, 15
_LINES = 3
_WHITE, _BLACK, _GREY, _RED = (255, 255, 255), (0, 0, 0), (190, 190, 190), (170, 0, 0)


class ContactSheet:
    """A PNG with the first 200 damaged pictures; under each its position and key, what was found, how much is there.

    Parameters
    ----------
    path : str or path
        Where it goes, ending in ``.png``. What is there is replaced, in one step.

    Raises
    ------
    ConfigError
        Nothing can be written there: told now, and not after hours of checking.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() != ".png":
            raise ConfigError(f"a contact sheet is a PNG, and {os.fspath(path)!r} does not end in .png")
        if self.path.is_dir():
            raise ConfigError(f"the contact sheet {path} is a folder; name a file")
        self._write(b"", publish=False)

    def draw(
        self,
        url: str,
        findings: Sequence[Finding],
        *,
        layout: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> int:
        """Write the sheet for what was found in the pictures of the store at `url`; return how many are on it.

        Parameters
        ----------
        url, findings
            What was checked, and the report's findings.
        layout, options
            As they were given to `verify`.

        Raises
        ------
        StoredsError
            The store cannot be opened, or the sheet not be written.
        """
        told = [finding for finding in findings if finding.position is not None and finding.kind != "column"]
        chosen = told[:_MOST]
        columns = min(_COLUMNS, max(len(chosen), 3))
        rows = -(-len(chosen) // columns)
        across, down = _SIDE + _GAP, _SIDE + _LINES * _LINE + _GAP
        sheet = Image.new("RGB", (columns * across + _GAP, rows * down + _LINE + 2 * _GAP), _WHITE)
        pen = ImageDraw.Draw(sheet)
        shown = f"{len(chosen)} of {len(told)}" if len(told) > len(chosen) else f"{len(chosen)}"
        _text(pen, (_GAP, _GAP // 2), f"{shown} damaged pictures", _BLACK)
        for number, (finding, picture) in enumerate(_pictures(url, chosen, layout, options or {})):
            left, top = _GAP + number % columns * across, _LINE + _GAP + number // columns * down
            _tile(sheet, pen, left, top, finding, picture)
        buffer = io.BytesIO()
        sheet.save(buffer, "PNG")
        self._write(buffer.getvalue(), publish=True)
        return len(chosen)

    def _write(self, data: bytes, *, publish: bool) -> None:
        """Write `data` beside the target, and put it into its place or away."""
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.partial")
        try:
            with open(aside, "xb") as file:
                file.write(data)
            if publish:
                os.replace(aside, self.path)
        except OSError as error:
            raise ConfigError(f"the contact sheet {self.path} cannot be written: {error.strerror}") from None
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)


def _pictures(
    url: str, findings: Sequence[Finding], layout: str | None, options: Mapping[str, Any]
) -> Iterator[tuple[Finding, Image.Image | None]]:
    """Yield each finding with its picture, no larger than a tile; None where nothing decodes."""
    if not findings:  # then the store may be one that cannot even be opened
        return
    with open_backend(url, layout=layout, **options) as backend:
        for finding in findings:
            yield finding, _thumbnail(backend, finding)


def _thumbnail(backend: Backend, finding: Finding) -> Image.Image | None:
    # Of a crash only the position is known; reading it here would be another one.
    if finding.image is None or finding.position is None or finding.kind in ("too_large", "image", "truncated_header"):
        return None
    (record,) = backend.get_many([finding.position], [finding.image])
    if isinstance(record, RecordError):
        return None
    try:
        with Image.open(io.BytesIO(repair(record[finding.image]))) as image:
            check_pixels(*image.size, MAX_PIXELS)
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
            small = image.convert("RGB")
    except Exception:  # decoders raise whatever they like on damaged bytes
        return None
    small.thumbnail((_SIDE, _SIDE))
    factor = max(min(_SIDE // small.width, _SIDE // small.height), 1)
    return small.resize((factor * small.width, factor * small.height), Image.Resampling.NEAREST)


def _tile(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, left: int, top: int, finding: Finding, picture: Image.Image | None
) -> None:
    if picture is None:
        pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), _GREY)
        why = "not read" if finding.image is None else "too large" if finding.kind == "too_large" else "does not decode"
        _text(pen, (left + 8, top + _SIDE // 2 - _LINE // 2), why, _BLACK)
    else:
        sheet.paste(picture, (left + (_SIDE - picture.width) // 2, top + _SIDE - picture.height))
    name = str(finding.position) if finding.key is None else f"{finding.position}: {finding.key}"
    kind = f"{finding.kind} ({finding.format})" if finding.format else finding.kind
    lines = (name, kind, f"{finding.severity} is there" if finding.severity else "")
    for number, (line, ink) in enumerate(zip(lines, (_BLACK, _RED, _BLACK), strict=True)):
        _text(pen, (left, top + _SIDE + 2 + number * _LINE), line, ink)


def _text(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, ink: tuple[int, int, int]) -> None:
    """Write one line as wide as a tile; what is too long loses its middle, since paths differ at their ends."""
    font = _font()
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if not isinstance(font, ImageFont.FreeTypeFont):  # without FreeType Pillow's font has no other letters
        text = text.encode("latin-1", "replace").decode("latin-1")
    kept = min(len(text), _SIDE // 2)
    while kept > 2 and pen.textlength(_shortened(text, kept), font) > _SIDE:
        kept -= 1
    pen.text(at, _shortened(text, kept), ink, font)


def _shortened(text: str, kept: int) -> str:
    return text if len(text) <= kept else f"{text[: kept // 3]}..{text[kept // 3 - kept :]}"


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(11) if features.check("freetype2") else ImageFont.load_default()
