"""Functions that move pixels for `storeds.transforms`: flip, pad, rotate and warp Pillow images, tensors and masks.

They compute in torchvision's order, so that their pixels are equal to torchvision's. None changes its argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from storeds.protocols import Array
from storeds.transforms.functional import INTERPOLATIONS, ImageT, size_of

__all__ = [
    "PADDING_MODES",
    "Matrix",
    "expanded_size",
    "inverse_matrix",
    "moved_points",
    "pad",
    "pad_mask",
    "rotate_pillow",
    "turned",
    "warp",
    "warp_mask",
    "warp_pillow",
]

Colour = float | Sequence[float] | None
"""One number for all channels, or one for each. None is zero, but does not blend with smooth interpolation."""

Matrix = tuple[float, float, float, float, float, float]
"""Rows (a, b, c) and (d, e, f): position (x, y) of the result shows (ax + by + c, dx + ey + f) of the image."""

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")

_INTEGERS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Unsigned dtypes that torch cannot index, and dtypes of the same bits."""


def pad(image: ImageT, padding: tuple[int, int, int, int], fill: Colour, mode: str, who: str) -> ImageT:
    """Add pixels at the left, top, right and bottom."""
    height, width = size_of(image, who)
    if not any(padding):
        return image
    if isinstance(image, Image.Image):
        padded: ImageT = _pad_pillow(image, padding, fill, mode, who)
        return padded
    if mode != "constant":
        return _picked(image, *_sources(height, width, padding, mode))
    left, top, right, bottom = padding
    shape = (*image.shape[:-2], top + height + bottom, left + width + right)
    if isinstance(fill, Sequence) and len(fill) > 1:
        out = image.new_empty(shape)
        out[:] = _channels(fill, image, who, None).to(image.dtype)
    else:
        out = image.new_full(shape, (fill[0] if isinstance(fill, Sequence) else fill) or 0)
    out[..., top : top + height, left : left + width] = image
    return out


def pad_mask(mask: torch.Tensor, padding: tuple[int, int, int, int], fill: int, mode: str) -> torch.Tensor:
    """Add pixels to an integer tensor (..., height, width) at the left, top, right and bottom."""
    height, width = mask.shape[-2:]
    if mode != "constant":
        return _picked(mask, *_sources(height, width, padding, mode))
    left, top, right, bottom = padding
    out = mask.new_full((*mask.shape[:-2], top + height + bottom, left + width + right), fill)
    out[..., top : top + height, left : left + width] = mask
    return out


def _sources(
    height: int, width: int, padding: tuple[int, int, int, int], mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row and the column of the image that each row and column of the padded image shows."""
    left, top, right, bottom = padding
    rows, columns = (
        np.pad(np.arange(length), ends, mode=mode)  # type: ignore[call-overload]  # one of PADDING_MODES
        for length, ends in ((height, (top, bottom)), (width, (left, right)))
    )
    return torch.from_numpy(rows), torch.from_numpy(columns)


def _picked(image: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the pixels at `rows` × `columns`."""
    if image.dtype in _INTEGERS:
        return _picked(image.view(_INTEGERS[image.dtype]), rows, columns).view(image.dtype)
    return image.index_select(-2, rows.to(image.device)).index_select(-1, columns.to(image.device))


def _channels(fill: Colour, image: torch.Tensor, who: str, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a fill colour as a tensor of shape (1 or channels, 1, 1)."""
    numbers = list(fill) if isinstance(fill, Sequence) else [fill or 0]
    if len(numbers) not in (1, image.shape[-3]):
        raise ValueError(f"{who}: fill has numbers for {len(numbers)} channels, but the image has {image.shape[-3]}")
    return torch.tensor(numbers, dtype=dtype, device=image.device).reshape(-1, 1, 1)


def _pad_pillow(image: Image.Image, padding: tuple[int, int, int, int], fill: Colour, mode: str, who: str) -> Any:
    if mode == "constant":
        out = ImageOps.expand(image, border=padding, fill=_pillow_colour(fill, image, who))
    else:
        left, top, right, bottom = padding
        pixels: Array = np.asarray(image)
        sides = ((top, bottom), (left, right), (0, 0))[: pixels.ndim]
        out = Image.fromarray(np.pad(pixels, sides, mode=mode))  # type: ignore[call-overload]  # NumPy types modes as literals
    if image.mode == "P":
        out.putpalette(image.getpalette() or [])
    return out


def _pillow_colour(fill: Colour, image: Image.Image, who: str) -> Any:
    """Return a fill colour as Pillow expects it."""
    count = len(image.getbands())
    numbers = tuple(fill) if isinstance(fill, Sequence) else (fill or 0,)
    if len(numbers) not in (1, count):
        raise ValueError(f"{who}: fill has numbers for {len(numbers)} channels, but the image has {count}")
    if image.mode != "F":
        numbers = tuple(int(number) for number in numbers)
    if count == 1:
        return numbers[0]
    return numbers if len(numbers) > 1 else numbers * count


def inverse_matrix(
    center: tuple[float, float], angle: float, translate: tuple[float, float], shear: tuple[float, float]
) -> Matrix:
    """Return the matrix from the result to the image, for a rotation by `angle` degrees, a shear and a translation.

    The order of operations is torchvision's: in floating point, another order would give other pixels.
    """
    turn, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -(a * math.tan(shear_x) + math.sin(turn))
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = math.cos(turn) - c * math.tan(shear_x)
    x, y = center[0] + translate[0], center[1] + translate[1]
    return d, -b, 0.0 + (center[0] - d * x - -b * y), -c, a, 0.0 + (center[1] - -c * x - a * y)


def turned(image: torch.Tensor, angle: float, expand: bool) -> torch.Tensor | None:
    """Return a tensor (..., height, width) turned by a multiple of 90 degrees, or None if this needs interpolation."""
    angle %= 360
    if angle == 0:
        return image
    if angle not in (90, 180, 270) or (angle != 180 and not expand and image.shape[-1] != image.shape[-2]):
        return None
    if image.dtype in _INTEGERS:
        return torch.rot90(image.view(_INTEGERS[image.dtype]), int(angle // 90), (-2, -1)).view(image.dtype)
    return torch.rot90(image, int(angle // 90), (-2, -1))


def expanded_size(matrix: Matrix, height: int, width: int) -> tuple[int, int]:
    """Return (height, width) of the smallest canvas that holds all of a warped tensor."""
    half = torch.tensor((0.5 * width, 0.5 * height))
    corners = torch.tensor([[-1.0, -1.0, 1.0], [-1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])
    corners[:, :2] *= half
    ends = torch.matmul(corners, torch.tensor(matrix).view(2, 3).T).aminmax(dim=0)
    # Without truncation, an error of 1e-7 would add a row.
    low, high = ((end + half).mul_(1.0 / 1e-4).trunc_().mul_(1e-4) for end in ends)
    columns, rows = (high.ceil_() - low.floor_()).tolist()
    return int(rows), int(columns)


def _grid(matrix: Matrix, size: tuple[int, int], out: tuple[int, int], image: torch.Tensor) -> torch.Tensor:
    """Return the position in the image, from -1 to 1, that each pixel of the result shows: (1, height, width, 2)."""
    dtype = image.dtype if image.is_floating_point() else torch.float32
    height, width = out
    base = torch.empty(1, height, width, 3, dtype=dtype, device=image.device)
    base[..., 0] = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, steps=width, device=image.device)
    rows = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, steps=height, device=image.device)
    base[..., 1] = rows[:, None]
    base[..., 2] = 1
    theta = torch.tensor(matrix, dtype=dtype, device=image.device).reshape(1, 2, 3).transpose(1, 2)
    theta = theta / torch.tensor([0.5 * size[1], 0.5 * size[0]], dtype=dtype, device=image.device)
    return base.view(1, height * width, 3).bmm(theta).view(1, height, width, 2)


def warp(
    image: torch.Tensor, matrix: Matrix, out: tuple[int, int], interpolation: str, fill: Colour, who: str
) -> torch.Tensor:
    """Warp a tensor by a matrix whose origins are the centres of the image and of the result, of size `out`."""
    if interpolation not in ("nearest", "bilinear"):
        raise TypeError(
            f"{who}: interpolation {interpolation!r} is for Pillow images; tensors support nearest, bilinear"
        )
    grid = _grid(matrix, (image.shape[-2], image.shape[-1]), out, image)
    batch = image.reshape(-1, *image.shape[-3:])
    grid = grid.expand(len(batch), -1, -1, -1)
    pixels = batch.to(grid.dtype)
    if fill is not None:
        pixels = torch.cat((pixels, torch.ones_like(pixels[:, :1])), dim=1)
    pixels = torch.nn.functional.grid_sample(pixels, grid, interpolation, "zeros", align_corners=False)
    if fill is not None:
        colour = _channels(fill, image, who, grid.dtype)
        pixels, inside = pixels[:, :-1], pixels[:, -1:]
        if interpolation == "nearest":
            pixels = torch.where(inside < 0.5, colour, pixels)
        else:
            pixels = (pixels - colour).mul_(inside).add_(colour)
    if not image.is_floating_point():
        pixels = pixels.round_()
    return pixels.to(image.dtype).reshape(*image.shape[:-2], *out)


def warp_mask(mask: torch.Tensor, matrix: Matrix, out: tuple[int, int], fill: int) -> torch.Tensor:
    """Warp an integer tensor (..., height, width) as `warp` does with interpolation nearest, without rounding ids."""
    height, width = mask.shape[-2:]
    rows, columns = torch.meshgrid(torch.arange(height) + 1.0, torch.arange(width) + 1.0, indexing="ij")
    grid = _grid(matrix, (height, width), out, rows)
    # Sample row and column numbers, which float32 holds, instead of class ids, which it may not. Zero is outside.
    places = torch.nn.functional.grid_sample(torch.stack((rows, columns))[None], grid, "nearest", "zeros", False)[0]
    is_inside = (places[0] > 0).to(mask.device)
    row, column = (places.to(torch.int64) - 1).clamp_(min=0).to(mask.device)
    bits = mask.view(_INTEGERS[mask.dtype]) if mask.dtype in _INTEGERS else mask
    picked = bits[..., row, column].view(mask.dtype)
    return torch.where(is_inside, picked, mask.new_full((), fill))


def rotate_pillow(
    image: Image.Image,
    angle: float,
    interpolation: str,
    expand: bool,
    center: tuple[float, float] | None,
    fill: Colour,
    who: str,
) -> Image.Image:
    """Rotate counterclockwise by `angle` degrees."""
    colour = _pillow_colour(fill, image, who)
    resample: Any = INTERPOLATIONS[interpolation][0]
    _check_resampling(interpolation, who)
    return image.rotate(angle, resample, expand, center, fillcolor=colour)


def warp_pillow(image: Image.Image, matrix: Matrix, interpolation: str, fill: Colour, who: str) -> Image.Image:
    """Warp by a matrix whose origins are the upper left corners."""
    colour = _pillow_colour(fill, image, who)
    resample: Any = INTERPOLATIONS[interpolation][0]
    _check_resampling(interpolation, who)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=colour)


def _check_resampling(interpolation: str, who: str) -> None:
    if interpolation not in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        raise ValueError(
            f"{who}: Pillow cannot rotate with interpolation {interpolation!r}; use nearest, bilinear, bicubic"
        )


def moved_points(points: Array, matrix: Matrix, size: tuple[int, int], out: tuple[int, int]) -> Array:
    """Return where points (..., 2) of an image of `size` lie in the result of `warp` by this matrix."""
    a, b, c, d, e, f = matrix
    forward = np.linalg.inv(np.array([[a, b], [d, e]]))
    origin = 0.5 * size[1] + c, 0.5 * size[0] + f
    moved: Array = (points - origin) @ forward.T + (0.5 * out[1], 0.5 * out[0])
    return moved
