"""What `triage` says about a byte string that should be a JPEG: the `Finding` and its `Frame`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["MAX_PIXELS", "Finding", "Frame", "Kind"]

MAX_PIXELS = 1 << 27
"""The most pixels that a picture may claim before anything is allocated for it: above a phone's 108 megapixels."""

Kind = Literal[
    "intact",
    "trailing_data",
    "missing_eoi",
    "truncated_scan",
    "truncated_header",
    "corrupt_data",
    "not_jpeg",
]


class Frame(NamedTuple):
    """What a JPEG's frame header declares.

    Attributes
    ----------
    width, height : int
        Pixels.
    components : int
        1 for grayscale, 3 for colour, 4 for CMYK and YCCK.
    process : str
        ``baseline``, ``extended``, ``progressive``, ``lossless`` or ``hierarchical``, followed by ``, arithmetic`` where
        the entropy coding is that.
    precision : int
        Bits of a sample.
    """

    width: int
    height: int
    components: int
    process: str
    precision: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one byte string.

    Attributes
    ----------
    kind : str
        ``intact`` (its structure is; only a checksum proves bytes), ``trailing_data`` (a whole picture, then other
        bytes: no damage), ``missing_eoi`` (all there but the end marker), ``truncated_scan`` (the picture ends early),
        ``truncated_header`` (it ends before any pixel), ``corrupt_data`` (something stands where it cannot), or
        ``not_jpeg``.
    reason : str
        One sentence with the places, in bytes from the start.
    offset : int or None
        Where the trouble begins: where the picture ends, is cut, or stops making sense; None if there is none.
    frame : Frame or None
        None if no frame header was met.
    restart_interval : int
        MCUs between restart markers in the last scan, 0 for none.
    scans : int
        Scans that are whole.
    scan : int or None
        Which one, counted from 1, is cut.
    recovered : float or None
        The share of the picture that is there, 0 to 1; None for what is no JPEG. Of a file with one scan, the share of
        its MCUs. Of a file with several, the share of the coefficients, each counted for half as much with every bit of
        precision that is still to come.
    exact : bool
        Whether `recovered` is that share; else it is a lower bound.
    format : str or None
        What it is instead of a JPEG: ``PNG``, ``WebP``, ``GIF``, ``HTML``, ``empty``, … ``unknown``.
    """

    kind: Kind
    reason: str
    offset: int | None = None
    frame: Frame | None = None
    restart_interval: int = 0
    scans: int = 0
    scan: int | None = None
    recovered: float | None = None
    exact: bool = True
    format: str | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether a part of the file is missing or wrong; trailing bytes and other formats are no damage."""
        return self.kind not in ("intact", "trailing_data", "not_jpeg")

    @property
    def share(self) -> str:
        """`recovered` for people: ``62 %``, ``at least 40 %`` or ``unknown``."""
        if self.recovered is None:
            return "unknown"
        # Rounded down, so that only a whole picture is 100 %.
        percent = f"{math.floor(1000 * self.recovered) / 10:g} %"
        return percent if self.exact else f"at least {percent}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {**asdict(self), "frame": self.frame and self.frame._asdict()}

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"
