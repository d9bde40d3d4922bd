"""Files of masks: those that lost class ids to compression, and class ids without a name."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from storeds._utils.text import counted, some
from storeds.jpeg.formats import decode_reason
from storeds.ops.packing.rows import BadItem, File
from storeds.ops.packing.sources.paths import show
from storeds.readers.annotations import grey_step

__all__ = ["MaskCheck", "MaskFile", "lossy_notes"]

_JPEG_SUFFIXES = (".jpg", ".jpeg")
_UNNAMED = 255  # marks pixels without a class in most data sets with masks of 8 bits


@dataclass(frozen=True)
class MaskCheck:
    """Checks what the writer does not: the class ids of masks. Thread-safe.

    Parameters
    ----------
    classes : int or None
        How many classes have a name. None: masks are not decoded, and their ids not checked.
    ignore_index : int or None
        The class id that needs no name; None for 255.
    """

    classes: int | None = None
    ignore_index: int | None = None

    def fault(self, mask: bytes, path: str) -> str | None:
        """Return what is wrong with the mask at `path`, or None."""
        if mask.startswith(b"\xff\xd8\xff") and not path.lower().endswith(_JPEG_SUFFIXES):
            return (
                "is a JPEG, whatever its name says: lossy compression changes class ids; get it as PNG, or name it .jpg to "
                "pack it anyway"
            )
        if self.classes is None:
            return None
        try:
            found = _ids(mask)
        except Exception as error:  # decoders raise any exception on damaged bytes
            return f"cannot be read: {decode_reason(error)}"
        free = _UNNAMED if self.ignore_index is None else self.ignore_index
        unnamed = [number for number in found if not 0 <= number < self.classes and number != free]
        if not unnamed:
            return None
        return (
            f"contains class ids without a name: {some(map(str, unnamed), 8)}; there are "
            f"{counted(self.classes, 'class', 'classes')}, and {free} marks pixels without a class; correct classes= "
            "(--classes), ignore_index= (--option ignore_index=…) or the mask"
        )


class MaskFile(File):
    """The bytes of a mask, checked when they are read.

    Parameters
    ----------
    file : File
    name : str
        Its path below the root, for messages.
    check : MaskCheck
    """

    __slots__ = ("_check",)

    def __init__(self, file: File, name: str, check: MaskCheck) -> None:
        self.path, self.size, self.state = file.path, file.size, file.state
        self.what, self._check = f"its mask {show(name)}", check

    def read(self) -> bytes:
        # docstring inherited
        mask = super().read()
        fault = self._check.fault(mask, self.path)
        if fault is not None:
            raise BadItem(f"{self.what} {fault}")
        return mask


def _ids(mask: bytes) -> list[int]:
    """Return the class ids in a mask."""
    with Image.open(io.BytesIO(mask)) as opened:
        pixels = np.asarray(opened)
        if pixels.ndim != 2:  # the writer refuses it
            return []
        if pixels.dtype.kind == "u" and pixels.itemsize <= 2:  # much faster than sorting
            step = grey_step(opened.mode, mask)
            return [int(number) // step for number in np.flatnonzero(np.bincount(pixels.ravel()))]
    return [int(number) for number in np.unique(pixels)]


def lossy_notes(paths: Sequence[str]) -> list[str]:
    """Return a sentence about those masks that are JPEGs by their names, if there are any."""
    lossy = [path for path in paths if path.lower().endswith(_JPEG_SUFFIXES)]
    if not lossy:
        return []
    return [
        f"{counted(len(lossy), 'mask is a JPEG', 'masks are JPEGs')} ({some(map(show, lossy), 3)}): lossy compression "
        "changes class ids at edges; get the masks as PNG if you can"
    ]
