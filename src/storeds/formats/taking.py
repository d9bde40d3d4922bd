"""Values of Python objects in the form that fields store; pictures that were decoded become references, encoded later.

The sources of datasets and of tables take their values here.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from storeds.layouts.files.rows import BadItem, Reference, read_file
from storeds.pictures.formats import open_picture
from storeds.protocols import Field
from storeds.records.codec import canonical_value
from storeds.values.coerce import as_numpy, coerce, is_file, is_picture, plain

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["LOSSLESS", "original_of", "take"]

# PNG cannot store the pixels of the other modes unchanged.
LOSSLESS = {
    **dict.fromkeys(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), "PNG"),
    **dict.fromkeys(("I", "F", "CMYK", "YCbCr", "LAB", "PA"), "TIFF"),
}
"""Mode of a PIL image → the format that keeps its pixels."""


def take(field: Field, value: Any) -> Any:
    """Return `value` in the form that the field stores, or a `Reference` to it; raises BadItem or TypeError."""
    value = as_numpy(value)
    if value is None and field.kind != "json":
        raise BadItem("is None")
    if field.kind == "image" and is_picture(value):
        original = original_of(value)
        return _Picture(value) if original is None else original
    if field.kind == "image" and is_file(value):
        value = value["bytes"] if value["bytes"] is not None else read_file(str(value["path"]))
    try:
        value = plain(value) if field.kind == "json" else coerce(field, value)
        stored = canonical_value(field, value)
    except ValueError as error:
        raise BadItem(f"cannot be stored: {error}") from None
    return value if field.kind == "json" else stored


class _Picture(Reference):
    """A copy of a PIL image, which a thread encodes without loss."""

    __slots__ = ("image", "size", "state")

    def __init__(self, image: Image.Image) -> None:
        if image.mode not in LOSSLESS:
            raise BadItem(f"is a PIL image of mode {image.mode}, which has no lossless format; pass its array")
        self.image = image.copy()  # a dataset may draw on it again
        self.size, self.state = image.width * image.height * len(image.getbands()), ()

    def read(self) -> bytes:
        # docstring inherited
        buffer = io.BytesIO()
        try:
            self.image.save(buffer, LOSSLESS[self.image.mode])
        except (OSError, ValueError, SyntaxError) as error:
            raise BadItem(f"its PIL image cannot be encoded: {error}") from None
        return buffer.getvalue()


def original_of(image: Image.Image) -> bytes | None:
    """Return the file that a PIL image was opened from, if its pixels are unchanged, or None."""
    if getattr(image, "format", None) is None:
        return None
    # The image may have been drawn on, scaled, or moved to another frame since it was opened.
    try:
        if (file := getattr(image, "fp", None)) is not None:
            place = file.tell()
            file.seek(0)
            data: bytes = file.read()
            file.seek(place)
        else:
            data = read_file(os.fsdecode(image.filename))  # type: ignore[attr-defined]  # of a file that was opened by its path
        with open_picture(data) as opened:
            described = (opened.size, opened.mode, opened.format, opened.getpalette())
            is_same = described == (image.size, image.mode, image.format, image.getpalette())
            return data if is_same and opened.tobytes() == image.tobytes() else None
    except Exception:  # Pillow raises any exception on damaged files; `fp` may be closed
        return None
