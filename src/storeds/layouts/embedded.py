"""Recognises images, videos and lists of numbers in values, and chooses the values to inspect."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import numpy as np

from storeds.jpeg import sniff
from storeds.protocols import Array

__all__ = ["evenly", "image_of_text", "is_image", "is_video", "numbers_of"]

_PICTURES = {"PNG", "GIF", "TIFF", "JPEG 2000", "JPEG XL", "WebP", "AVIF", "HEIC", "HEIF", "QOI", "PSD"}
_MATROSKA = b"\x1a\x45\xdf\xa3"
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,")
_HEAD = 64  # characters, which are 48 bytes
_URL_SAFE = str.maketrans("-_", "+/")


def is_image(blob: bytes | memoryview) -> bool:
    """Whether the bytes begin like an encoded image."""
    head = bytes(blob[:32])
    if head.startswith(b"BM"):  # two letters are weak evidence, so the reserved bytes must be zero too
        return len(blob) > 26 and head[6:10] == b"\0\0\0\0"
    return head.startswith(b"\xff\xd8\xff") or sniff(head) in _PICTURES


def is_video(blob: bytes | memoryview) -> bool:
    """Whether the bytes begin like a video: MP4, Matroska and WebM, or AVI."""
    head = bytes(blob[:32])
    return sniff(head) == "MP4" or head.startswith(_MATROSKA) or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")


def image_of_text(text: str) -> bytes | None:
    """Return the image that `text` encodes in base64 or as a ``data:`` URI, or None."""
    start = _DATA_URI.match(text[:_HEAD])
    body = text[start.end() :] if start else text
    head = _decoded(body[: _HEAD + _HEAD // 16].replace("\n", "").replace("\r", "")[:_HEAD])
    if head is None or not is_image(head):
        return None
    return _decoded(re.sub(r"\s+", "", body))


def _decoded(text: str) -> bytes | None:
    text = text.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def numbers_of(value: Any) -> Array | None:
    """Return a list of numbers, or of equally long such lists, as an array; None for anything else."""
    if not isinstance(value, list):
        return None
    try:
        found = np.array(value)
    except ValueError:  # ragged
        return None
    return found if found.dtype.kind in "bif" else None


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` positions of ``0 … count - 1``, evenly distributed, with the first and the last."""
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)}) if count else []
