"""What is wrong with a mask: its size, its channels, its class ids."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from storeds._utils.text import counted, some
from storeds.ops.packing.sources.base import show
from storeds.readers.annotations import grey_step
from storeds.readers.decoders import decode_reason, orientation_of
from storeds.records.roles import check_mask, check_mask_mode

__all__ = ["JPEG_SUFFIXES", "MaskCheck", "lossy_notes"]

JPEG_SUFFIXES = (".jpg", ".jpeg")
_UNNAMED = 255  # marks pixels without a class in most data sets with masks of 8 bits


@dataclass(frozen=True)
class MaskCheck:
    """Checks masks against their images and the class names. Picklable; thread-safe.

    Parameters
    ----------
    classes : int or None
        How many classes have a name. None: masks are not decoded, and their ids not checked.
    ignore_index : int or None
        The class id that needs no name; None for 255.
    field : str
        The name of the field in messages.
    """

    classes: int | None = None
    ignore_index: int | None = None
    field: str = "mask"

    def fault(self, image: bytes, mask: bytes, path: str) -> str | None:
        """Return what is wrong with the mask at `path`, or None.

        An image that cannot be read is not reported here: `pack` examines it.
        """
        try:
            with Image.open(io.BytesIO(mask)) as opened:
                if opened.format == "JPEG" and not path.lower().endswith(JPEG_SUFFIXES):
                    return (
                        f"its mask {show(path)} is a JPEG, whatever its name says: lossy compression changes class ids; get it "
                        "as PNG, or name it .jpg to pack it anyway"
                    )
                check_mask_mode(self.field, opened.mode)
                check_mask(self.field, (opened.height, opened.width), _size(image))
                found = [] if self.classes is None else _ids(opened, mask)
        except ValueError as error:
            return f"its mask {show(path)} cannot be used: {error}{_turned(image, mask)}"
        except Exception as error:  # decoders raise any exception on damaged bytes
            return f"its mask {show(path)} cannot be read: {decode_reason(error)}"
        return self._unnamed(found, path)

    def _unnamed(self, found: list[int], path: str) -> str | None:
        """Return which of the class ids `found` have no name, or None."""
        if self.classes is None:
            return None
        free = _UNNAMED if self.ignore_index is None else self.ignore_index
        unnamed = [number for number in found if not 0 <= number < self.classes and number != free]
        if not unnamed:
            return None
        return (
            f"its mask {show(path)} contains class ids without a name: {some(map(str, unnamed), 8)}; there are "
            f"{counted(self.classes, 'class', 'classes')}, and {free} marks pixels without a class; correct classes= "
            "(--classes), ignore_index= (--ignore-index) or the mask"
        )


def _size(image: bytes) -> tuple[int, int] | None:
    """Return height and width of an image as stored, None if its header cannot be read."""
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return opened.height, opened.width
    except Exception:  # decoders raise any exception on damaged bytes
        return None


def _turned(image: bytes, mask: bytes) -> str:
    """Return advice if the mask has the size of the image after its EXIF orientation is applied."""
    size = _size(image)
    if size is None or (orientation_of(image) or 1) < 5 or _size(mask) != (size[1], size[0]):
        return ""
    return "; the image is turned by its EXIF orientation, and the mask is not: store the image as it is displayed"


def _ids(opened: Image.Image, mask: bytes) -> list[int]:
    """Return the class ids in a mask."""
    pixels = np.asarray(opened)
    if pixels.dtype.kind == "u" and pixels.itemsize <= 2:  # much faster than sorting
        step = grey_step(opened.mode, mask)
        return [int(number) // step for number in np.flatnonzero(np.bincount(pixels.ravel()))]
    return [int(number) for number in np.unique(pixels)]


def lossy_notes(paths: Sequence[str]) -> Iterator[str]:
    """Yield a sentence about masks that are JPEGs, if there are any."""
    if paths:
        yield (
            f"{counted(len(paths), 'mask is a JPEG', 'masks are JPEGs')} ({some(map(show, paths), 3)}): lossy compression "
            "changes class ids at edges; get the masks as PNG if you can"
        )
