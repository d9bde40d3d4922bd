"""Turns stored masks, boxes, keypoints and labels into the tensors of a `Sample`. Bad values raise ValueError.

Writers have checked the values of native stores. Those of foreign stores, and values that the user gave a role, come in
forms of other tools: one flat list, JSON as text, an .npy file. `plain_rows` brings them into the form that
`storeds.records.roles.check_values` checks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from PIL import Image

from storeds.errors import suggest
from storeds.pictures.decoders import UNCHANGED, convert, grey_step
from storeds.protocols import Field
from storeds.records.annotations import Size, check_labels, check_mask, check_mask_mode
from storeds.records.segmentations import rasterised, short

if TYPE_CHECKING:
    import torch

__all__ = [
    "Classes",
    "class_ids",
    "class_number",
    "coordinates_tensor",
    "labels_tensor",
    "mask_tensor",
    "plain_rows",
]

_NPY = b"\x93NUMPY"


# --- Masks ---


def class_ids(name: str, image: Any, blob: bytes, mode: str = UNCHANGED) -> torch.Tensor:
    """Return the class ids of a decoded mask, shape (height, width): uint8, or int32 for files of more bits.

    The ids are the numbers in the file: the indices of a palette, 0 and 1 of a picture of 1 bit, 0 to 3 and 0 to 15 of
    grey PNGs and TIFFs of 2 and 4 bits. Of a TIFF in which 0 is white they are inverted, as Pillow reads it.

    Parameters
    ----------
    name : str
        The element, for messages.
    image : PIL.Image.Image, torch.Tensor or numpy.ndarray
        A picture in the mode of its file, or the ids that a user's decoder returns.
    blob : bytes
        The file.
    mode : str
        The mode to which a picture in colour is converted. It would change the ids of one channel.
    """
    import torch

    if not isinstance(image, Image.Image):
        ids = torch.as_tensor(image)
        if ids.ndim != 2 or ids.is_floating_point() or ids.is_complex():
            raise ValueError(
                f"field {name!r}: the decoder of a mask returns integers of shape (height, width), not {ids.dtype} of shape "
                f"{tuple(ids.shape)}"
            )
        return ids
    if len(image.getbands()) > 1:
        image = convert(image, mode)
    check_mask_mode(name, image.mode)
    pixels = np.asarray(image)
    if pixels.dtype.itemsize > 1:
        return torch.from_numpy(pixels.astype(np.int32))
    ids = torch.from_numpy(pixels.astype(np.uint8))
    step = grey_step(image.mode, blob)
    return ids if step == 1 else ids // step


def mask_tensor(name: str, value: Any, field: Field, size: Size | None) -> torch.Tensor:
    """Return a mask of kind array or json, shape (height, width) or (instances, height, width)."""
    import torch

    if field.kind == "array":
        check_mask(name, value.shape[-2:], size)
        return torch.from_numpy(value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("=")))
    if size is None:
        raise ValueError(
            f"field {name!r}: polygons need the size of the image, and the sample has no image: add it to fields"
        )
    return torch.from_numpy(rasterised(_parsed(name, value), *size, relative=field.relative, name=name))


# --- Boxes and keypoints ---


def plain_rows(name: str, value: Any, role: str) -> Any:
    """Return boxes or keypoints of another tool as the rows that writers take. Other values are left to their check."""
    rows, columns = _parsed(name, value), 4 if role == "boxes" else 3
    if isinstance(rows, np.ndarray) and not rows.size and (role == "boxes" or rows.ndim == 1):
        return []  # whatever its shape
    if role == "keypoints" and isinstance(rows, list):  # COCO keeps those of an instance in one list
        rows = [_split(row, columns) if isinstance(row, list) and len(row) > columns else row for row in rows]
    return _split(rows, columns)


def _split(rows: Any, columns: int) -> Any:
    """Return the rows of one flat list of numbers; other values unchanged."""
    is_list = isinstance(rows, list) and all(isinstance(each, (int, float)) for each in rows)
    is_flat = is_list or (isinstance(rows, np.ndarray) and rows.ndim == 1)
    return np.asarray(rows).reshape(-1, columns).tolist() if is_flat and len(rows) % columns == 0 else rows


def coordinates_tensor(name: str, rows: Any, field: Field, size: Size | None) -> torch.Tensor:
    """Return boxes or keypoints in pixels, float32 of shape (n, 4), (…, 2) or (…, 3). Boxes keep the format of their field."""
    import torch

    numbers = np.asarray(rows, np.float64)
    scaled = 4 if field.role == "boxes" else 2  # a visibility is no coordinate
    if numbers.ndim < 2:  # an empty list
        numbers = np.zeros((0, scaled))
    if field.relative and numbers.size:
        if size is None:
            raise ValueError(
                f"field {name!r}: relative coordinates need the size of the image, and the sample has no image: add it to fields"
            )
        numbers = numbers.copy()
        numbers[..., :scaled] *= np.tile(size[::-1], scaled // 2)
    return torch.from_numpy(numbers.astype(np.float32))


def _parsed(name: str, value: Any) -> Any:
    """Return rows that another tool keeps as JSON text or as an .npy file; other values unchanged."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        if isinstance(value, bytes) and value.startswith(_NPY):
            return np.load(io.BytesIO(value), allow_pickle=False)
        return json.loads(value)
    except (ValueError, EOFError, OSError, RecursionError) as error:
        raise ValueError(
            f"field {name!r}: rows are an array, JSON or an .npy file, not {short(value)}, which do not tell their type: "
            f"convert them ({error})"
        ) from None


# --- Labels ---


class Classes(NamedTuple):
    """The classes of a label.

    Attributes
    ----------
    numbers : mapping
        Class, a name or a number, to its class number. Of classes with one name, to the first one.
    names : tuple of str
        The classes in the order of their class numbers.
    are_names : bool
        Whether classes are names. Then a number is a class number.
    """

    numbers: Mapping[Any, int]
    names: tuple[str, ...]
    are_names: bool

    @classmethod
    def of(cls, classes: Sequence[str] | Sequence[int]) -> Self:
        """Return classes in the order of their class numbers."""
        numbers: dict[Any, int] = {}
        for number, each in enumerate(classes):
            numbers.setdefault(each, number)
        return cls(numbers, tuple(map(str, classes)), not any(isinstance(each, int) for each in classes))


def labels_tensor(name: str, value: Any, classes: Classes | None) -> torch.Tensor:
    """Return the class numbers of several labels, int64 of shape (n,)."""
    import torch

    labels = check_labels(name, _parsed(name, value))
    if isinstance(labels, np.ndarray):
        if classes is None:
            return torch.from_numpy(labels.astype(np.int64))
        labels = labels.tolist()
    return torch.tensor([class_number(name, each, classes) for each in labels], dtype=torch.int64, device="cpu")


def class_number(name: str, value: Any, classes: Classes | None) -> Any:
    """Return the number of a class that is given by its name, or by a number; values of other types unchanged."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        return value
    known = {} if classes is None else classes.numbers
    if value in known:
        return known[value]
    if isinstance(value, str):
        hint = suggest(value, map(str, known), "classes") if known else "the store's attrs have no list of classes"
        raise ValueError(
            f"field {name!r}: {value!r} is no class; {hint}; pass them: roles={{{name!r}: {{'classes': […]}}}}"
        )
    if classes is not None and not (classes.are_names and 0 <= value < len(classes.names)):
        shown = ", ".join(map(str, [*known][:8])) + (" …" if len(known) > 8 else "")
        raise ValueError(
            f"field {name!r}: class {value} has no name: the {len(classes.names)} classes are {shown}; fix the label, or the list of "
            "classes"
        )
    return value
