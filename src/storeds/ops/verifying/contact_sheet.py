"""Draws damaged pictures that `verify` found on one sheet: the worst and typical ones of each kind of damage."""

from __future__ import annotations

import functools
import io
import math
import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageChops, ImageDraw, ImageFont, features

from storeds._utils.locations import redact
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.errors import ConfigError, RecordError
from storeds.jpeg import MAX_PIXELS, repair
from storeds.jpeg.formats import decode_reason
from storeds.jpeg.header import Structure, parse
from storeds.ops.verifying.checks import Finding
from storeds.protocols import Backend
from storeds.readers.decoders import check_pixels

__all__ = ["ContactSheet"]

_MAX_TILES = 200  # about 2,000 x 5,000 pixels
_SIDE = 160  # pixels of a tile
_COLUMNS = 10
_TYPICAL = 2 * _COLUMNS  # tiles of a kind after a row of the worst
_MAX_LISTED = 40  # pictures without a tile
_GAP, _LINE, _HEADING = 12, 15, 30
_LINES = 3
_WHITE, _BLACK, _PALE, _GREY, _RED = (255, 255, 255), (0, 0, 0), (240, 240, 240), (110, 110, 110), (170, 0, 0)
_HATCH, _HATCH_RED = 7, (200, 0, 0)  # pixels from line to line
# Reading the record of a crash would crash this process; the other kinds never decode.
_UNDRAWN = ("crash", "record", "too_large", "not_jpeg", "truncated_header")


class _Chosen(NamedTuple):
    finding: Finding
    rank: str  # among the pictures of its kind


class _Tile(NamedTuple):
    chosen: _Chosen
    picture: _Thumbnail


@dataclass
class _Section:
    """One kind of damage: how many pictures have it, and the drawn ones."""

    kind: str
    count: int
    tiles: list[_Tile] = field(default_factory=list)


class ContactSheet:
    """A PNG with up to 200 damaged pictures, the most frequent kind of damage first.

    For each kind it shows the ten pictures of which least is left, and twenty evenly spaced from these to the best. For a
    kind that loses nothing it shows ten. Each has its position and key, the share that is left, and its rank. The lost
    part is hatched if its place is known. Pictures that do not decode are listed at the end.

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
        if self.path.suffix.lower() != ".png":
            raise ConfigError(f"a contact sheet is a PNG, but {os.fspath(path)!r} does not end in .png")
        if self.path.is_dir():
            raise ConfigError(f"the contact sheet {path} is a folder; pass a file name")
        self._write(b"", publish=False)

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
            The store cannot be opened, or the sheet cannot be written.
        """
        found = [finding for finding in findings if finding.position is not None and finding.kind != "column"]
        sections, listed = _collect(url, found, layout, options or {})
        buffer = io.BytesIO()
        title = f"{redact(url)}: {counted(len(found), 'damaged picture')}; hatched: lost or uncertain"
        _paint(title, sections, listed).save(buffer, "PNG")
        self._write(buffer.getvalue(), publish=True)
        return sum(len(section.tiles) for section in sections)

    def _write(self, data: bytes, *, publish: bool) -> None:
        """Write `data` to a file beside the target, and rename it to the target or remove it."""
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


def _collect(
    url: str, findings: Sequence[Finding], layout: str | None, options: Mapping[str, Any]
) -> tuple[list[_Section], list[Finding]]:
    """Return the sections with their tiles, and the pictures that do not decode."""
    if not findings:  # the store may be one that cannot be opened
        return [], []
    kinds: dict[str, list[Finding]] = {}
    listed: list[Finding] = []
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    sections = [_Section(kind, len(found)) for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1]))]
    left = _MAX_TILES
    with open_backend(url, layout=layout, **options) as backend:
        for section in sections:
            drawn = [finding for finding in kinds[section.kind] if _may_decode(finding)]
            listed += [finding for finding in kinds[section.kind] if not _may_decode(finding)]
            choice = list(_choose(drawn, left))
            for chosen in choice:
                try:
                    section.tiles.append(_Tile(chosen, _read(backend, chosen.finding)))
                except _UndecodableError as error:
                    listed.append(_with_reason(chosen.finding, str(error)))
            left -= len(section.tiles)
            if not section.tiles:  # the others will not decode either
                tried = {id(chosen.finding) for chosen in choice}
                listed += [finding for finding in drawn if id(finding) not in tried]
    return [section for section in sections if section.tiles], listed


def _may_decode(finding: Finding) -> bool:
    nothing = finding.recovered == 0.0 and finding.kind != "corrupt_data"  # of which decoders may show something
    return finding.image is not None and finding.kind not in _UNDRAWN and not nothing


def _choose(findings: list[Finding], limit: int) -> Iterator[_Chosen]:
    """Yield the worst of `findings`, then evenly spaced ones up to the best, at most `limit`."""
    ordered = sorted(findings, key=lambda finding: (finding.recovered or 0.0, finding.position))
    alike = bool(ordered) and ordered[0].recovered == ordered[-1].recovered
    worst = 0 if alike else _COLUMNS
    count = min(len(ordered), _COLUMNS if alike else _COLUMNS + _TYPICAL, limit)
    for number in range(count):
        if count == len(ordered) or number < worst:
            place = number
        else:  # the last one is the best
            place = worst - 1 + (len(ordered) - worst) * (number + 1 - worst) // (count - worst)
        yield _Chosen(ordered[place], "" if alike or count == len(ordered) else _rank(place, worst, len(ordered)))


def _rank(place: int, worst: int, count: int) -> str:
    if place < worst:
        return f"worst {place + 1}"
    return "best" if place == count - 1 else f"quantile {100 * place // (count - 1)} %"


def _read(backend: Backend, finding: Finding) -> _Thumbnail:
    assert finding.position is not None
    assert finding.image is not None
    (record,) = backend.get_many([finding.position], [finding.image])
    if isinstance(record, RecordError):
        raise _UndecodableError(record.reason or str(record))
    return _thumbnail(record[finding.image], finding.recovered)


def _with_reason(finding: Finding, reason: str) -> Finding:
    return Finding(finding.kind, f"{finding.message}; {reason}", finding.position, finding.key, finding.image)


def _paint(title: str, sections: Sequence[_Section], listed: Sequence[Finding]) -> Image.Image:
    columns = min(_COLUMNS, max([5, *(len(section.tiles) for section in sections)]))
    across, down = _SIDE + _GAP, _SIDE + _LINES * _LINE + _GAP
    rows = [-(-len(section.tiles) // columns) for section in sections]
    lines = _lines(listed)
    height = _HEADING * (1 + len(sections) + bool(lines)) + down * sum(rows) + _LINE * len(lines) + 2 * _GAP
    sheet = Image.new("RGB", (columns * across + _GAP, height), _WHITE)
    width = sheet.width - 2 * _GAP
    pen = ImageDraw.Draw(sheet)
    _text(pen, (_GAP, _GAP), title, _BLACK, width, size=16)
    top = _HEADING + _GAP
    for section, count in zip(sections, rows, strict=True):
        _text(pen, (_GAP, top + 4), _heading(section), _RED, width, size=14)
        top += _HEADING
        for number, tile in enumerate(section.tiles):
            _paint_tile(sheet, pen, _GAP + number % columns * across, top + number // columns * down, tile)
        top += count * down
    if listed:
        _text(pen, (_GAP, top + 4), f"not drawn, because they do not decode: {len(listed):,}", _RED, width, size=14)
        for number, line in enumerate(lines):
            _paint_line(pen, top + _HEADING + number * _LINE, line, width)
    return sheet


def _heading(section: _Section) -> str:
    shown = len(section.tiles)
    which = "" if shown == section.count else f", {shown} of them here"
    return f"{section.kind}: {counted(section.count, 'picture')}{which}"


def _paint_tile(sheet: Image.Image, pen: ImageDraw.ImageDraw, left: int, top: int, tile: _Tile) -> None:
    (finding, rank), (image, is_marked) = tile
    pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), _PALE)
    sheet.paste(image, (left + (_SIDE - image.width) // 2, top + (_SIDE - image.height) // 2))
    share = f"{finding.severity} is left" if finding.severity else ""
    unknown = "" if is_marked or finding.recovered == 1.0 else "place unknown"
    note = ", ".join(part for part in (rank, unknown) if part)
    lines = ((_name(finding), _BLACK), (share, _RED), (note, _GREY))
    for number, (line, ink) in enumerate(lines):
        _text(pen, (left, top + _SIDE + 2 + number * _LINE), line, ink, _SIDE)


def _lines(listed: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Return the lines of the list as (name, kind, reason). Each kind gets the same number."""
    kinds: dict[str, list[Finding]] = {}
    for finding in listed:
        kinds.setdefault(finding.kind, []).append(finding)
    lines = []
    left = _MAX_LISTED
    for number, (kind, found) in enumerate(sorted(kinds.items(), key=lambda item: len(item[1]))):
        shown = found[: max(left // (len(kinds) - number), 1)]
        left -= len(shown)
        lines += [(_name(finding), _kind(finding), finding.message) for finding in shown]
        if len(found) > len(shown):
            lines.append(("", kind, f"and {len(found) - len(shown):,} more"))
    return lines


def _kind(finding: Finding) -> str:
    return f"{finding.kind} ({finding.format})" if finding.format else finding.kind


def _paint_line(pen: ImageDraw.ImageDraw, top: int, line: tuple[str, str, str], width: int) -> None:
    for number, (text, ink) in enumerate(zip(line, (_BLACK, _RED, _GREY), strict=True)):
        left = number * (_SIDE + _GAP)
        _text(pen, (_GAP + left, top), text, ink, _SIDE if number < 2 else width - left)


def _name(finding: Finding) -> str:
    return str(finding.position) if finding.key is None else f"{finding.position}: {finding.key}"


def _text(
    pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, ink: tuple[int, int, int], width: int, size: int = 11
) -> None:
    """Write one line no wider than `width`. A longer one loses its middle, because paths differ at their ends."""
    font = _font(size)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if not isinstance(font, ImageFont.FreeTypeFont):  # without FreeType, Pillow's font has only Latin-1
        text = text.encode("latin-1", "replace").decode("latin-1")
    lengths = range(1, min(len(text), width // 2) + 1)
    kept = bisect_right(lengths, float(width), key=lambda kept: pen.textlength(_shortened(text, kept), font))
    pen.text(at, _shortened(text, kept), ink, font)


def _shortened(text: str, kept: int) -> str:
    return text if len(text) <= kept else f"{text[: kept // 3]}..{text[kept // 3 - kept :]}"


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size) if features.check("freetype2") else ImageFont.load_default()


class _UndecodableError(Exception):
    """A picture does not decode. The text is the reason."""


class _Thumbnail(NamedTuple):
    """A small picture, and whether its lost part is marked."""

    image: Image.Image
    is_marked: bool


def _thumbnail(blob: Any, recovered: float | None) -> _Thumbnail:
    """Repair and decode a picture, and scale it to the size of a tile.

    Parameters
    ----------
    blob : bytes
    recovered : float or None
        The share of it that is left. The rest is hatched in a JPEG of one scan, where it follows in order.
    """
    try:
        whole = repair(blob)
        with Image.open(io.BytesIO(whole)) as image:
            check_pixels(*image.size, MAX_PIXELS)
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
            small = image.convert("RGB")
    except Exception as error:  # decoders raise any exception on damaged bytes
        raise _UndecodableError(decode_reason(error)) from None
    small.thumbnail((_SIDE, _SIDE))
    factor = max(min(_SIDE // small.width, _SIDE // small.height), 1)
    small = small.resize((factor * small.width, factor * small.height), Image.Resampling.NEAREST)
    # Of corrupt data nobody knows what is left.
    border = None if not recovered or recovered == 1.0 else _border(parse(whole), recovered, small.size)
    if border is not None:
        _hatch(small, border)
    return _Thumbnail(small, border is not None)


def _border(found: Structure, recovered: float, size: tuple[int, int]) -> list[tuple[int, int]] | None:
    """Return the line between the decoded and the lost part in pixels of a thumbnail of this `size`, left to right.

    It is None if the blocks of the picture are not in the order of its rows.
    """
    if not found.is_sequential or not found.scans or len(found.scans[0].places) != len(found.components):
        return None
    grid = found.grid(found.scans[0].places)
    row, column = divmod(math.floor(recovered * grid.units + 1e-6), grid.columns)
    x = min(round(column * grid.width * size[0] / found.width), size[0])
    top, bottom = (min(round(at * grid.height * size[1] / found.height), size[1]) for at in (row, row + 1))
    return [(0, bottom), (x, bottom), (x, top), (size[0], top)]


def _hatch(image: Image.Image, border: list[tuple[int, int]]) -> None:
    width, height = image.size
    lost, lines = Image.new("1", image.size), Image.new("1", image.size)
    ImageDraw.Draw(lost).polygon([*border, (width, height), (0, height)], 1)
    pen = ImageDraw.Draw(lines)
    for x in range(0, width + height, _HATCH):
        pen.line((x, 0, x - height, height), 1)
    image.paste(_HATCH_RED, mask=ImageChops.logical_and(lost, lines))
    ImageDraw.Draw(image).line(border, _HATCH_RED, 2)
