"""Finds the encoded file that a PIL image came from, or encodes the image without loss."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from storeds._text import byte_size
from storeds.ops.sources.base import BadItem, read_file

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["encoded", "is_encoded", "reencoding"]

_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0*", b"GIF8")
# PNG would have to change the pixels of all other modes.
_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}
_TIFF_MODES = {"I", "F", "CMYK", "YCbCr", "LAB", "PA"}


def is_encoded(blob: bytes) -> bool:
    """Whether bytes begin as an image file does."""
    return blob.startswith(_MAGIC) or (blob[:4] == b"RIFF" and blob[8:12] == b"WEBP")


def encoded(image: Image.Image) -> bytes:
    """Return the file that `image` was opened from if it shows the same pixels still, else a PNG or TIFF of it."""
    original = _original(image)
    if original is not None and _shows(original, image):
        return original
    if image.mode not in _PNG_MODES | _TIFF_MODES:
        raise BadItem(f"a PIL image of mode {image.mode} has no lossless file; hand in its array")
    buffer = io.BytesIO()
    try:
        image.save(buffer, "PNG" if image.mode in _PNG_MODES else "TIFF")
    except (OSError, ValueError, SyntaxError) as error:
        raise BadItem(f"its PIL image cannot be encoded: {error}") from None
    return buffer.getvalue()


def reencoding(image: Image.Image) -> str | None:
    """Return what is stored for images such as `image`, as a sentence, or None if it is the file they come from."""
    original = _original(image)
    if original is not None and _shows(original, image):
        return None
    try:
        blob, buffer = encoded(image), io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=90)
    except (BadItem, OSError, ValueError):
        return None
    times = len(blob) / len(buffer.getvalue())
    return (
        f"are decoded, so each is stored as {'PNG' if image.mode in _PNG_MODES else 'TIFF'}; the first takes "
        f"{byte_size(len(blob))}, {times:.1f} times as much as a JPEG of quality 90: pack the folder or a list of the "
        "files to keep them as they are, or pass quality=90 to store JPEG"
    )


def _original(image: Image.Image) -> bytes | None:
    if getattr(image, "format", None) is None:
        return None
    file = getattr(image, "fp", None)
    if file is not None:
        try:
            place = file.tell()
            file.seek(0)
            data: bytes = file.read()
            file.seek(place)
        except (OSError, ValueError, AttributeError):  # closed, or no file that can be read again
            pass
        else:
            return data
    path = getattr(image, "filename", "")
    if not isinstance(path, (str, bytes)) or not path:
        return None
    try:
        return read_file(os.fsdecode(path))
    except (BadItem, ValueError):
        return None


def _shows(data: bytes, image: Image.Image) -> bool:
    # An image that was opened may have been drawn on, made smaller or turned to another frame since.
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as opened:
            if (opened.size, opened.mode, opened.format) != (image.size, image.mode, image.format):
                return False
            if opened.getpalette() != image.getpalette():
                return False
            return opened.tobytes() == image.tobytes()
    except Exception:  # whatever a damaged file makes Pillow raise
        return False
