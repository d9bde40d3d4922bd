"""What a copy does with each picture of a record: examine it, scale and encode it, repair it, put restart markers into it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from storeds._utils.text import counted
from storeds.ops.verdicts import NOT_EXAMINED
from storeds.pictures import MAX_PIXELS, Verdict, examine, is_ready, repair, set_verdict
from storeds.pictures.decoders import upright
from storeds.pictures.formats import decode_reason, open_picture
from storeds.pictures.restarts import RestartMarker
from storeds.protocols import Field, Record

__all__ = ["Finished", "PictureStep"]

_QUALITY = 90


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a picture.

    Attributes
    ----------
    original : bytes
    verdict : Verdict or None
        On the original bytes.
    is_new : bool
        Whether the verdict is new.
    unencoded : str or None
        Why it is kept though it was to be encoded.
    restarts : str or None
        The outcome of `RestartMarker.mark`, if that was called.
    is_fast : bool
        Whether readers can decode a crop alone: there are restart markers and no known damage.
    fault : str or None
        What is wrong with it, if encoding found that.
    """

    original: bytes
    verdict: Verdict | None
    is_new: bool = False
    unencoded: str | None = None
    restarts: str | None = None
    is_fast: bool = False
    fault: str | None = None

    @property
    def kind(self) -> str:
        """The kind of the verdict, or `NOT_EXAMINED`."""
        return NOT_EXAMINED if self.verdict is None else self.verdict.finding

    @property
    def is_damaged(self) -> bool:
        """Whether a part is known to be missing or wrong."""
        return self.verdict is not None and not self.verdict.is_whole

    @property
    def reason(self) -> str | None:
        """Why nothing of it can be read. Without a verdict, Pillow opens it for that."""
        return self.fault or _unreadable(self.original, self.verdict)


@dataclass(frozen=True)
class PictureStep:
    """Finishes pictures. Thread-safe.

    Parameters
    ----------
    check : bool
        Examine pictures without a verdict; those that may be encoded again are always examined.
    max_side : int or None
        Scale larger images down to this many pixels on their longer side, and encode them again.
    quality : int or None
        Encode every image as JPEG of this quality.
    repairs : bool
        Repair damaged JPEGs. A picture of which nothing is left keeps its bytes.
    marker : RestartMarker, optional
        Puts restart markers into each JPEG that is no mask: masks are decoded whole.
    """

    check: bool = True
    max_side: int | None = None
    quality: int | None = None
    repairs: bool = False
    marker: RestartMarker | None = None

    @property
    def encodes(self) -> bool:
        """Whether images may be encoded again."""
        return self.max_side is not None or self.quality is not None

    def __call__(self, record: Record, name: str, declared: Field) -> Finished:
        """Put a picture of a record into its final form, with its verdict."""
        blob, verdict = record[name], Verdict.of(record, name)
        is_new = verdict is None and (self.check or self.encodes)
        verdict = stored = examine(blob) if is_new else verdict
        fault = unencoded = restarts = None
        if verdict is not None and self.encodes and _unreadable(blob, verdict) is None:
            try:
                encoded = self._encoded(blob, verdict)
            except _NoJpegError as error:
                unencoded = str(error)
            except Exception as error:  # decoders raise any exception on damaged bytes
                fault = _unreadable_image(blob, decode_reason(error))
            else:
                # A damaged picture keeps the verdict on its original bytes, because the new ones look whole.
                if encoded is not None:
                    record[name], stored = encoded, Verdict("intact", 1.0) if verdict.is_whole else verdict
        elif verdict is not None and self.repairs and not verdict.is_whole and verdict.recovered:
            # If nothing is recovered, a grey picture must not replace bytes that another tool may still save.
            record[name] = repair(blob)
        set_verdict(record, name, stored)
        if self.marker is not None and declared.role != "mask":
            record[name], restarts = self.marker.mark(record[name], stored)
        is_fast = (stored is None or stored.is_whole) and is_ready(record[name])
        return Finished(blob, stored, is_new, unencoded, restarts, is_fast, fault)

    def _encoded(self, blob: bytes, verdict: Verdict) -> bytes | None:
        """Return the bytes of the picture to store, encoded again; None if it is small enough, or too large to decode."""
        with open_picture(blob) as image:  # reads only the header
            is_small = self.max_side is None or max(image.size) <= self.max_side
            is_left = (is_small and self.quality is None) or image.width * image.height > MAX_PIXELS
        return None if is_left else self._encode(blob if verdict.is_whole else repair(blob))

    def _encode(self, blob: bytes) -> bytes:
        with open_picture(blob) as opened:
            if opened.mode not in _FOR_JPEG:
                raise _NoJpegError(f"mode {opened.mode}")
            if any(map(_is_deep, opened.tile)):
                raise _NoJpegError("more than 8 bits")
        with open_picture(blob, MAX_PIXELS) as opened:
            profile, image = opened.info.get("icc_profile"), upright(opened)
            if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
                raise _NoJpegError("transparency")
            if image.mode not in ("L", "RGB", "CMYK"):
                image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
            if self.max_side is not None:
                image.thumbnail((self.max_side, self.max_side), Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=self.quality or _QUALITY, icc_profile=profile)
        return buffer.getvalue()


_FOR_JPEG = ("1", "L", "P", "RGB", "CMYK", "YCbCr", "LA", "PA", "RGBA", "RGBX")


class _NoJpegError(Exception):
    """A picture holds what a JPEG cannot."""


def _is_deep(tile: tuple[Any, ...]) -> bool:
    """Return whether the samples of a part of a file, as Pillow describes it, have more than the 8 bits that it reads."""
    codec, args = tile[0], tile[3]
    return ";16" in str(args) or (codec == "ppm" and args[1] > 255)


def _unreadable(blob: bytes, verdict: Verdict | None) -> str | None:
    """Return why nothing of a picture can be read: from its verdict or, without one, from opening it with Pillow."""
    if not blob:
        return "is empty (0 bytes)"
    if verdict is not None:
        return None if verdict.recovered else _unreadable_image(blob, verdict.reason or verdict.finding)
    try:
        with open_picture(blob):
            return None
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        return _unreadable_image(blob, decode_reason(error))


def _unreadable_image(blob: bytes, why: str) -> str:
    return f"cannot be read as an image ({counted(len(blob), 'byte')} beginning {blob[:4].hex(' ')}): {why}"
