"""Draws damaged pictures that `verify` found on one sheet: the worst and typical ones of each kind of damage."""

from __future__ import annotations

import functools
import io
import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont, features

from storeds._utils.locations import redact
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.errors import ConfigError, RecordError
from storeds.ops.verifying.checks import Finding
from storeds.ops.verifying.sheet_tiles import SIDE, Thumbnail, UndecodableError, thumbnail
from storeds.protocols import Backend

__all__ = ["ContactSheet"]

_MOST = 200  # tiles: some 2,000 x 5,000 pixels
_COLUMNS = 10
_TYPICAL = 2 * _COLUMNS  # tiles of a kind, after a row of the worst
_MOST_LISTED = 40  # pictures without a tile
_GAP, _LINE, _HEADING = 12, 15, 30
_LINES = 3
_WHITE, _BLACK, _PALE, _GREY, _RED = (255, 255, 255), (0, 0, 0), (240, 240, 240), (110, 110, 110), (170, 0, 0)
# Of a crash only the position is known, and reading it here would be another one; the others never decode.
_UNDRAWN = ("crash", "record", "too_large", "not_jpeg", "truncated_header")


class _Chosen(NamedTuple):
    finding: Finding
    rank: str  # where it stands among those of its kind


class _Tile(NamedTuple):
    chosen: _Chosen
    picture: Thumbnail


@dataclass
class _Section:
    """One kind of damage: how many pictures have it, and which of them are drawn."""

    kind: str
    count: int
    tiles: list[_Tile] = field(default_factory=list)


class ContactSheet:
    """A PNG with up to 200 damaged pictures, the most frequent kind of damage first.

    Of each kind it shows the ten of which least is there, and twenty evenly spaced from these to the best; of a kind
    that loses nothing, ten. Under each are its position and key, the share that is there, and its rank; the lost rest is
    hatched where its place is known. Pictures that do not decode are listed at the end.

    Parameters
    ----------
    path : str or path
        Where it goes, ending in ``.png``. What is there is replaced, in one step.

    Raises
    ------
    ConfigError
        Nothing can be written there: raised now, and not after hours of checking.
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
        """Write the sheet for what was found in the pictures of the store at `url`; return how many are drawn.

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
        found = [finding for finding in findings if finding.position is not None and finding.kind != "column"]
        sections, listed = _collect(url, found, layout, options or {})
        buffer = io.BytesIO()
        _paint(
            f"{redact(url)}: {counted(len(found), 'damaged picture')}; hatched: lost or doubtful", sections, listed
        ).save(buffer, "PNG")
        self._write(buffer.getvalue(), publish=True)
        return sum(len(section.tiles) for section in sections)

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


def _collect(
    url: str, findings: Sequence[Finding], layout: str | None, options: Mapping[str, Any]
) -> tuple[list[_Section], list[Finding]]:
    """Return the sections with their tiles, and the pictures that do not decode."""
    if not findings:  # then the store may be one that cannot even be opened
        return [], []
    kinds: dict[str, list[Finding]] = {}
    listed: list[Finding] = []
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    sections = [_Section(kind, len(found)) for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1]))]
    left = _MOST
    with open_backend(url, layout=layout, **options) as backend:
        for section in sections:
            drawn = [finding for finding in kinds[section.kind] if _may_decode(finding)]
            listed += [finding for finding in kinds[section.kind] if not _may_decode(finding)]
            choice = list(_choose(drawn, left))
            for chosen in choice:
                try:
                    section.tiles.append(_Tile(chosen, _read(backend, chosen.finding)))
                except UndecodableError as error:
                    listed.append(_with_reason(chosen.finding, str(error)))
            left -= len(section.tiles)
            if not section.tiles:  # nor do the others
                tried = {id(chosen.finding) for chosen in choice}
                listed += [finding for finding in drawn if id(finding) not in tried]
    return [section for section in sections if section.tiles], listed


def _may_decode(finding: Finding) -> bool:
    nothing = finding.recovered == 0.0 and finding.exact
    return finding.image is not None and finding.kind not in _UNDRAWN and not nothing


def _choose(findings: list[Finding], most: int) -> Iterator[_Chosen]:
    """Yield the worst of `findings`, then evenly spaced ones up to the best, `most` at most."""
    ordered = sorted(findings, key=lambda finding: (finding.recovered or 0.0, finding.position))
    alike = bool(ordered) and ordered[0].recovered == ordered[-1].recovered
    worst = 0 if alike else _COLUMNS
    count = min(len(ordered), _COLUMNS if alike else _COLUMNS + _TYPICAL, most)
    for number in range(count):
        if count == len(ordered) or number < worst:
            place = number
        else:  # the last of them is the best one
            place = worst - 1 + (len(ordered) - worst) * (number + 1 - worst) // (count - worst)
        yield _Chosen(ordered[place], "" if alike or count == len(ordered) else _rank(place, worst, len(ordered)))


def _rank(place: int, worst: int, count: int) -> str:
    if place < worst:
        return f"worst {place + 1}"
    return "best" if place == count - 1 else f"quantile {100 * place // (count - 1)} %"


def _read(backend: Backend, finding: Finding) -> Thumbnail:
    assert finding.position is not None
    assert finding.image is not None
    (record,) = backend.get_many([finding.position], [finding.image])
    if isinstance(record, RecordError):
        raise UndecodableError(record.reason or str(record))
    return thumbnail(record[finding.image], finding.recovered)


def _with_reason(finding: Finding, reason: str) -> Finding:
    return Finding(finding.kind, f"{finding.message}; {reason}", finding.position, finding.key, finding.image)


def _paint(title: str, sections: Sequence[_Section], listed: Sequence[Finding]) -> Image.Image:
    columns = min(_COLUMNS, max([5, *(len(section.tiles) for section in sections)]))
    across, down = SIDE + _GAP, SIDE + _LINES * _LINE + _GAP
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
    pen.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), _PALE)
    sheet.paste(image, (left + (SIDE - image.width) // 2, top + (SIDE - image.height) // 2))
    share = f"{finding.severity} is there" if finding.severity else ""
    unknown = "" if is_marked or finding.recovered == 1.0 else "place unknown"
    note = ", ".join(part for part in (rank, unknown) if part)
    lines = ((_name(finding), _BLACK), (share, _RED), (note, _GREY))
    for number, (line, ink) in enumerate(lines):
        _text(pen, (left, top + SIDE + 2 + number * _LINE), line, ink, SIDE)


def _lines(listed: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Return the lines of the list, (name, kind, reason); each kind gets the same room."""
    kinds: dict[str, list[Finding]] = {}
    for finding in listed:
        kinds.setdefault(finding.kind, []).append(finding)
    lines = []
    left = _MOST_LISTED
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
        left = number * (SIDE + _GAP)
        _text(pen, (_GAP + left, top), text, ink, SIDE if number < 2 else width - left)


def _name(finding: Finding) -> str:
    return str(finding.position) if finding.key is None else f"{finding.position}: {finding.key}"


def _text(
    pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, ink: tuple[int, int, int], width: int, size: int = 11
) -> None:
    """Write one line no wider than `width`; what is too long loses its middle, since paths differ at their ends."""
    font = _font(size)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if not isinstance(font, ImageFont.FreeTypeFont):  # without FreeType Pillow's font has no other letters
        text = text.encode("latin-1", "replace").decode("latin-1")
    lengths = range(1, min(len(text), width // 2) + 1)
    kept = bisect_right(lengths, float(width), key=lambda kept: pen.textlength(_shortened(text, kept), font))
    pen.text(at, _shortened(text, kept), ink, font)


def _shortened(text: str, kept: int) -> str:
    return text if len(text) <= kept else f"{text[: kept // 3]}..{text[kept // 3 - kept :]}"


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size) if features.check("freetype2") else ImageFont.load_default()
