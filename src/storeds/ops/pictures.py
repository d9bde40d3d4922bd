"""Looks at one picture: what triage finds, and whether what is there decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageFile

from storeds.decode import check_pixels, decode_pil, decode_reason
from storeds.errors import ConfigError, DecodeError
from storeds.jpeg import Finding, repair, triage
from storeds.jpeg.examine import examine_jpeg
from storeds.jpeg.finding import MAX_PIXELS

__all__ = ["Picture", "look"]


@dataclass(frozen=True, slots=True)
class Picture:
    """What one blob holds.

    Attributes
    ----------
    finding : storeds.jpeg.Finding
        What `triage` says about it.
    mended : bytes
        The blob as `repair` leaves it; the identical object where that changes nothing.
    problem : str or None
        Why it does not decode, mended.
    too_large : bool
        Whether the problem is that it claims more pixels than anything is allocated for.
    """

    finding: Finding
    mended: bytes
    problem: str | None = None
    too_large: bool = False

    @property
    def recovered(self) -> float:
        """The share of the picture that is there and decodes, a lower bound where the finding's is one."""
        if self.problem is not None:
            return 0.0
        return 1.0 if self.finding.recovered is None else self.finding.recovered


def look(blob: bytes, *, effort: Literal["exact", "deep"] = "exact", decode: bool = False) -> Picture:
    """Return what `blob` holds.

    Parameters
    ----------
    effort : str
        ``deep`` examines the data too and follows every code, ``exact`` the structure alone.
    decode : bool
        Whether JPEGs whose structure is whole are decoded too; all others always are.

    Raises
    ------
    ConfigError
        Pillow is set so that it calls cut pictures whole.
    """
    finding = examine_jpeg(blob, deep=True) if effort == "deep" else triage(blob)
    mended = repair(blob, finding)
    if finding.kind == "truncated_header":
        return Picture(finding, mended, finding.reason)
    if not decode and finding.kind in ("intact", "trailing_data"):
        return Picture(finding, mended)
    return _decode(finding, mended)


def _decode(finding: Finding, mended: bytes) -> Picture:
    if ImageFile.LOAD_TRUNCATED_IMAGES:  # triage sees through it, but only in JPEGs
        raise ConfigError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set in this process, so Pillow would call cut pictures whole; set it "
            "to False while pictures are checked"
        )
    try:
        if finding.frame is not None:
            check_pixels(finding.frame.width, finding.frame.height, MAX_PIXELS)
        decode_pil(mended, "RGB", max_pixels=MAX_PIXELS)
    except DecodeError as error:
        if error.kind == "out_of_range":  # it decodes, and is read in a mode of its own
            return Picture(finding, mended)
        return Picture(finding, mended, str(error), error.kind == "too_large")
    except Image.DecompressionBombError as error:  # Pillow's own limit, on the header as well
        return Picture(finding, mended, str(error), too_large=True)
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        return Picture(finding, mended, decode_reason(error))
    return Picture(finding, mended)
