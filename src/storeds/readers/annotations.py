"""Turns stored masks, boxes, keypoints and labels into the tensors of a `Sample`. Bad values raise ValueError."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from PIL import Image

from storeds.errors import suggest
from storeds.protocols import Array, Field
from storeds.readers.instances import rasterised
from storeds.records.roles import check_boxes, check_keypoints, check_labels, check_mask, check_mask_mode

if TYPE_CHECKING:
    import torch

__all__ = [
    "Classes",
    "boxes_tensor",
    "class_ids",
    "class_number",
    "grey_step",
    "holds_class_ids",
    "is_inverted",
    "keypoints_tensor",
    "labels_tensor",
    "mask_tensor",
    "parsed",
]

Size = tuple[int, int]

_NPY = b"\x93NUMPY"
_PNG = b"\x89PNG\r\n\x1a\n"
_TIFF = (b"II*\0", b"MM\0*")
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262


def class_ids(name: str, image: Any, blob: bytes) -> torch.Tensor:
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
    check_mask_mode(name, image.mode)
    pixels = np.asarray(image)
    if pixels.dtype.itemsize > 1:
        return torch.from_numpy(pixels.astype(np.int32))
    ids = torch.from_numpy(pixels.astype(np.uint8))
    step = grey_step(image.mode, blob)
    return ids if step == 1 else ids // step


def holds_class_ids(blob: bytes) -> bool:
    """Return whether a picture has one channel, by its header; False if Pillow cannot read that."""
    try:
        with Image.open(io.BytesIO(blob)) as opened:
            check_mask_mode("", opened.mode)
            return True
    except Exception:  # the decoder says why
        return False


def is_inverted(blob: bytes) -> bool:
    """Return whether a picture is a grey TIFF in which 0 is white. Pillow inverts the numbers of these."""
    if not blob.startswith(_TIFF):
        return False
    try:
        with Image.open(io.BytesIO(blob)) as opened:
            return opened.mode in ("1", "L") and getattr(opened, "tag_v2", {}).get(_PHOTOMETRIC) == 0
    except Exception:  # the decoder says why
        return False


def grey_step(mode: str, blob: bytes) -> int:
    """Return the number by which Pillow multiplies the samples of a grey PNG or TIFF of 2 or 4 bits; 1 for other pictures."""
    bits = 8
    if mode == "L" and blob.startswith(_PNG) and blob[12:16] == b"IHDR" and blob[25:26] == b"\0":
        bits = blob[24]
    elif mode == "L" and blob.startswith(_TIFF):
        with Image.open(io.BytesIO(blob)) as opened:
            bits = getattr(opened, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))[0]
    return {2: 85, 4: 17}.get(bits, 1)


def mask_tensor(name: str, value: Any, field: Field, size: Size | None) -> torch.Tensor:
    """Return a mask of kind array or json, shape (height, width) or (instances, height, width)."""
    import torch

    if field.kind == "array":
        check_mask(name, value.shape[-2:], size)
        return torch.from_numpy(value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("=")))
    if size is None:
        raise ValueError(f"field {name!r}: polygons need the size of the image, and the sample has no image")
    try:
        return torch.from_numpy(rasterised(parsed(name, value), *size, relative=field.relative))
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from None


def boxes_tensor(name: str, value: Any, field: Field, size: Size | None) -> torch.Tensor:
    """Return boxes in pixels, float32 of shape (n, 4), in the format of their field."""
    import torch

    rows = _fours(name, parsed(name, value))
    boxes = check_boxes(name, rows, field, size)
    if field.relative and len(boxes):
        height, width = _required(name, size)
        boxes = boxes * (width, height, width, height)
    return torch.from_numpy(_as_float32(name, boxes).reshape(-1, 4))


def keypoints_tensor(name: str, value: Any, field: Field, size: Size | None) -> torch.Tensor:
    """Return keypoints in pixels, float32 of shape (…, 2) or (…, 3)."""
    import torch

    rows = parsed(name, value)
    if isinstance(rows, list) and rows and isinstance(rows[0], list) and rows[0] and not isinstance(rows[0][0], list):
        rows = [_triples(name, row) if isinstance(row, list) and len(row) > 3 else row for row in rows]
    elif isinstance(rows, np.ndarray) and rows.ndim == 1 and not rows.size:
        rows = []
    elif _is_flat(rows):
        rows = _triples(name, list(rows))
    points = check_keypoints(name, rows)
    if field.relative and points.size:
        height, width = _required(name, size)
        points = points.copy()
        points[..., :2] *= (width, height)
    return torch.from_numpy(_as_float32(name, points))


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

    labels = check_labels(name, parsed(name, value))
    if isinstance(labels, np.ndarray) and (classes is None or not len(labels) or _are_numbers(labels, classes)):
        return torch.from_numpy(labels.astype(np.int64))
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    return torch.tensor([class_number(name, each, classes) for each in values], dtype=torch.int64)


def _are_numbers(labels: Array, classes: Classes) -> bool:
    """Return whether all labels are class numbers."""
    return classes.are_names and bool(labels.min() >= 0 and labels.max() < len(classes.names))


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


def parsed(name: str, value: Any) -> Any:
    """Return rows that another tool keeps as JSON text or as an .npy file; other values unchanged."""
    if not isinstance(value, (str, bytes)):
        return value
    if isinstance(value, bytes) and value.startswith(_NPY):
        try:
            return np.load(io.BytesIO(value), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"field {name!r}: the .npy file is damaged: {error}") from None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    shown = repr(value if len(value) <= 40 else value[:40])
    raise ValueError(
        f"field {name!r}: rows are an array, JSON or an .npy file, not {type(value).__name__} {shown}, which do not tell their "
        "type: convert them"
    )


def _fours(name: str, value: Any) -> Any:
    """Return boxes that may be given as one flat list: four numbers of each."""
    if isinstance(value, np.ndarray) and not value.size:
        return np.zeros((0, 4))  # whatever its shape
    if not _is_flat(value):
        return value
    if len(value) % 4:
        raise ValueError(f"field {name!r}: {len(value)} numbers are no rows of 4")
    return np.asarray(value).reshape(-1, 4)


def _triples(name: str, value: list[Any]) -> Any:
    """Return keypoints that are given as one flat list, as COCO does: x, y and visibility of each."""
    if len(value) % 3:
        raise ValueError(f"field {name!r}: {len(value)} numbers are no triples of x, y and visibility")
    return np.asarray(value).reshape(-1, 3).tolist()


def _is_flat(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.size > 0
    return isinstance(value, list) and bool(value) and all(isinstance(each, (int, float)) for each in value)


def _as_float32(name: str, numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        found = numbers.astype(np.float32)
    if not np.isfinite(found).all():
        raise ValueError(f"field {name!r}: a coordinate is too large for float32; fix it, or leave the row out")
    return found


def _required(name: str, size: Size | None) -> Size:
    if size is None:
        raise ValueError(
            f"field {name!r}: relative coordinates need the size of the image, and the sample has no image: add it to fields"
        )
    return size
