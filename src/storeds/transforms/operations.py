"""What transforms do to one sample, once their random numbers are drawn.

The functions resize, crop, flip, convert and normalise Pillow images and tensors. None changes its argument; if there is
nothing to do, it returns the argument itself. A built-in transform that moves pixels returns an `Operation`, and
`JointTransform` applies it to every element of the sample. Images, masks and coordinates so move alike.

Coordinates are continuous: pixel i covers [i, i + 1]. Masks hold class ids, so operations copy pixels of masks and never
compute new ones. The centre of a mask's pixel and of the image's pixel beside it come from the same place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from storeds.protocols import Array, Cropped, Window
from storeds.records.samples import ORIENTATIONS

__all__ = [
    "Axes",
    "Cut",
    "Flip",
    "Operation",
    "Orient",
    "Size",
    "check_channels",
    "crop",
    "crop_and_resize",
    "extent",
    "flip",
    "in_order",
    "normalize",
    "pixels_of",
    "size_of",
    "to_tensor",
]

ImageT = TypeVar("ImageT", Image.Image, torch.Tensor)

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}
_SMOOTH = ("bilinear", "bicubic")
_OF_TORCH = ("nearest", "nearest-exact", *_SMOOTH)
_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def size_of(image: object, who: str) -> tuple[int, int]:
    """Return (height, width) of an image; raise TypeError or ValueError, which name `who`, if it has no pixels."""
    if isinstance(image, Image.Image):
        width, height = image.size
    elif isinstance(image, torch.Tensor):
        if image.ndim < 3:
            raise ValueError(f"{who}: a tensor image has shape (channels, height, width), not {tuple(image.shape)}")
        channels, height, width = image.shape[-3:]
        if width in (3, 4) and channels not in (1, 3, 4) and height > 4:
            raise ValueError(
                f"{who}: a tensor image has shape (channels, height, width), but {tuple(image.shape)} looks like (height, "
                "width, channels): put the channels first, image.permute(2, 0, 1)"
            )
    else:
        raise TypeError(f"{who} takes a Pillow image or a torch tensor, not {type(image).__qualname__}")
    if not height or not width:
        raise ValueError(f"{who}: the image has no pixels: it is {height} high and {width} wide")
    return height, width


def extent(image: Image.Image | torch.Tensor) -> tuple[int, int]:
    """Return (height, width) of an image, or of a mask, without checks."""
    height, width = image.size[::-1] if isinstance(image, Image.Image) else image.shape[-2:]
    return height, width


def _resize(image: ImageT, size: tuple[int, int], interpolation: str) -> ImageT:
    """Resize to (height, width), with antialiasing for smooth interpolations."""
    if isinstance(image, Image.Image):
        return image.resize((size[1], size[0]), _RESAMPLING[interpolation])
    if interpolation not in _OF_TORCH:
        raise TypeError(f"interpolation {interpolation!r} is for Pillow images; tensors support {', '.join(_OF_TORCH)}")
    dtype = image.dtype
    # torch resizes these dtypes natively. Other dtypes are converted to a float that represents all their values.
    # For a width of one pixel of uint8, torch 2.13 fails, or writes beyond the end of its result.
    is_native_uint8 = dtype == torch.uint8 and image.device.type == "cpu" and size[1] > 1
    native = dtype in (torch.float32, torch.float64) or is_native_uint8
    work = dtype if native else torch.float32 if dtype.is_floating_point or dtype == torch.uint8 else torch.float64
    batch = image if image.ndim == 4 else image.reshape(-1, *image.shape[-3:])
    out = _interpolate(batch.to(work), size, interpolation)
    if not native and not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        # Bicubic interpolation overshoots. Clamp, so that values do not wrap around.
        out = out.round_().clamp_(limits.min, limits.max)
    return out.to(dtype).reshape(*image.shape[:-2], *size)


def _interpolate(batch: torch.Tensor, size: tuple[int, int], mode: str) -> torch.Tensor:
    if mode not in _SMOOTH:
        return torch.nn.functional.interpolate(batch, size=size, mode=mode)
    height = batch.shape[-2]
    if size[1] == 1 and height > 1:
        # For a width of one pixel, torch 2.13 computes wrong values. The transposed image, resized in one direction at a
        # time, gives the right result.
        return _interpolate(_interpolate(batch.mT, (1, height), mode), (1, size[0]), mode).mT
    return torch.nn.functional.interpolate(batch, size=size, mode=mode, align_corners=False, antialias=True)


def crop(image: ImageT, window: Window) -> ImageT:
    """Cut out (top, left, height, width). Outside the image it is zero. The result owns its memory, or is the image itself."""
    top, left, height, width = window
    if window == (0, 0, *extent(image)):
        return image
    if isinstance(image, Image.Image):
        return image.crop((left, top, left + width, top + height))
    inside_top, inside_left = max(top, 0), max(left, 0)
    inside = image[..., inside_top : max(top + height, 0), inside_left : max(left + width, 0)]
    if inside.shape[-2:] == (height, width):
        # A view would keep the whole image in memory, and in-place changes of the crop would change it.
        return inside.clone(memory_format=torch.contiguous_format)
    out = image.new_zeros((*image.shape[:-2], height, width))
    rows, columns = inside_top - top, inside_left - left
    out[..., rows : rows + inside.shape[-2], columns : columns + inside.shape[-1]] = inside
    return out


def crop_and_resize(image: Any, window: Window, size: tuple[int, int], interpolation: str) -> Any:
    """Resize a window (top, left, height, width) of the image. A returned tensor is contiguous.

    A window of another size than the result lies inside the image. A `Cropped` is the window already, perhaps decoded at
    a smaller scale.
    """
    if isinstance(image, Cropped):
        (image,) = image.images
        window = (0, 0, *extent(image))
        if window[2:] == size:  # the result must share no memory with what the decoder returned
            is_tensor = isinstance(image, torch.Tensor)
            return image.clone(memory_format=torch.contiguous_format) if is_tensor else image.copy()
    if window[2:] == size:
        return in_order(crop(image, window))
    if isinstance(image, Image.Image):
        return _resize(crop(image, window), size, interpolation)
    top, left, height, width = window
    part = image[..., top : top + height, left : left + width]
    if part.ndim == 3 and part.shape[0] == 3 and part.stride(0) == 1 and part.dtype == torch.uint8:
        # torch's kernel for channels-last tensors takes half the time, which outweighs two copies.
        together = part[None].contiguous(memory_format=torch.channels_last)
        # NumPy puts the channels first in three quarters of the time.
        return torch.from_numpy(np.ascontiguousarray(_resize(together, size, interpolation)[0].numpy()))
    return _resize(part, size, interpolation).contiguous()


def flip(image: ImageT, *, vertical: bool = False) -> ImageT:
    """Mirror left to right, or top to bottom."""
    if isinstance(image, Image.Image):
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM if vertical else Image.Transpose.FLIP_LEFT_RIGHT)
    axis, unsigned = -2 if vertical else -1, image.dtype
    if unsigned in _UNSIGNED:  # torch cannot flip these
        return image.view(_UNSIGNED[unsigned]).flip(axis).view(unsigned)
    return image.flip(axis)


def in_order(image: Any) -> Any:
    """Return a contiguous tensor; return other values unchanged."""
    return image.contiguous() if isinstance(image, torch.Tensor) else image


# --- Floats ---


def normalize(image: object, mean: Sequence[float], std: Sequence[float], *, inplace: bool) -> torch.Tensor:
    """Subtract a mean and divide by a deviation, one per channel or one for all."""
    if not isinstance(image, torch.Tensor) or not image.is_floating_point():
        kind = image.dtype if isinstance(image, torch.Tensor) else type(image).__qualname__
        raise TypeError(f"Normalize takes a floating tensor, not {kind}; put ToTensor before it")
    check_channels(image, mean, std)
    means, stds = _by_channel(tuple(mean), tuple(std), image.dtype, image.device)
    target = image if inplace else image.clone()
    return target.sub_(means).div_(stds)


def check_channels(image: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError if means and deviations do not fit the channels of an image."""
    size_of(image, "Normalize")
    channels = max(len(mean), len(std))
    if channels not in (1, image.shape[-3]):
        raise ValueError(f"Normalize has numbers for {channels} channels, but the image has {image.shape[-3]}")


@functools.lru_cache(maxsize=64)
def _by_channel(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode(False):  # the cached tensors must also work outside inference mode
        means, stds = (torch.tensor(each, dtype=dtype, device=device)[:, None, None] for each in (mean, std))
    return means, stds


def to_tensor(image: object) -> torch.Tensor:
    """Convert to a tensor, as torchvision's ``ToTensor`` does: 8-bit values become float32 in [0, 1]."""
    if isinstance(image, np.ndarray):
        channels = (image[:, :, None] if image.ndim == 2 else image).transpose(2, 0, 1)
        # Always copy: the tensor must share no memory with the array, which may also be read-only or reversed.
        return _scaled(torch.from_numpy(np.array(channels, dtype=image.dtype.newbyteorder("="), order="C")))
    size_of(image, "ToTensor")
    if isinstance(image, Image.Image):
        return _scaled(pixels_of(image))
    assert isinstance(image, torch.Tensor)
    if image.is_floating_point():
        return image.to(torch.float32)
    if image.dtype != torch.uint8:
        raise TypeError(
            f"ToTensor takes a uint8 or floating tensor, not {image.dtype}, whose range is unknown; "
            "first divide by the largest value, 4095 for 12 bits or 65535 for 16"
        )
    return _scaled(image)


def _scaled(image: torch.Tensor) -> torch.Tensor:
    if image.dtype == torch.uint8:
        return image.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return image.contiguous()


def pixels_of(image: Image.Image) -> torch.Tensor:
    """Return the values of a Pillow image, (channels, height, width) in the order of the image; raise an error if they are none."""
    if image.mode in ("P", "PA"):
        raise TypeError(
            "ToTensor: a palette image holds numbers of colours or classes, not intensities: read it with "
            "mode='RGB' for its colours, or with decode='tensor' and mode='unchanged' for the numbers"
        )
    array: Array
    if image.mode.startswith("I;16"):
        wide = np.array(image)
        # torchvision wraps such values to negative numbers.
        if wide.max() > np.iinfo(np.int16).max:
            raise ValueError("ToTensor: the 16-bit image has values over 32767, which int16 cannot hold; use mode 'I'")
        array = wide.astype(np.int16)
    elif image.mode == "1":
        array = np.array(image, np.uint8) * np.uint8(255)
    else:
        array = np.array(image, {"I": np.int32, "F": np.float32}.get(image.mode, np.uint8))
    return torch.from_numpy(array.reshape(image.height, image.width, len(image.getbands()))).permute(2, 0, 1)


# --- Operations ---

Size = tuple[int, int]
"""Height and width in pixels."""
Axes = tuple[float, float, float, float]
"""What multiplies x, what is added to it, and the same of y."""


class Operation:
    """What a transform does to one sample. This base changes nothing."""

    pairs: Sequence[Sequence[int]] = ()
    """Numbers of keypoints that swap, such as those of the left and the right eye."""

    def image(self, image: Any) -> Any:
        """Return the changed image, of the type of `image`: Pillow, or a tensor (…, channels, height, width)."""
        return image

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the changed mask, integers of shape (height, width) or (n, height, width)."""
        return mask

    def axes(self) -> Axes:
        """Return how coordinates change: (scale of x, shift of x, scale of y, shift of y)."""
        return 1.0, 0.0, 1.0, 0.0

    def size(self, height: int, width: int) -> Size:
        """Return (height, width) of the result for an image of that size."""
        return height, width


@dataclass(frozen=True)
class Cut(Operation):
    """Cut out a window (top, left, height, width), and resize it to `result`, (height, width).

    A window that keeps its size may reach beyond the image. Pixels and class ids are 0 there.
    """

    window: Window
    result: Size
    interpolation: str = "bilinear"

    def image(self, image: Any) -> Any:
        # docstring inherited
        return crop_and_resize(image, self.window, self.result, self.interpolation)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        if self.window[2:] == self.result:
            return crop(mask, self.window)
        return torch.from_numpy(_nearest(mask.numpy(), self.window, self.result))

    def axes(self) -> Axes:
        # docstring inherited
        top, left, height, width = self.window
        scale_x, scale_y = self.result[1] / width, self.result[0] / height
        return scale_x, -left * scale_x, scale_y, -top * scale_y

    def size(self, height: int, width: int) -> Size:
        # docstring inherited
        return self.result


@dataclass(frozen=True)
class Flip(Operation):
    """Mirror images of size `canvas`, (height, width), left to right or top to bottom."""

    canvas: Size
    vertical: bool = False
    pairs: Sequence[Sequence[int]] = ()

    def image(self, image: Any) -> Any:
        # docstring inherited
        return flip(image, vertical=self.vertical)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        return flip(mask, vertical=self.vertical)

    def axes(self) -> Axes:
        # docstring inherited
        height, width = self.canvas
        return (1.0, 0.0, -1.0, height) if self.vertical else (-1.0, width, 1.0, 0.0)


@dataclass(frozen=True)
class Orient:
    """Rotate by an EXIF orientation, 1 to 8, what belongs to images of size `canvas`, (height, width) before the rotation.

    Readers rotate the images themselves when they decode them.
    """

    canvas: Size
    orientation: int

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a rotated mask, integers of shape (height, width) or (n, height, width)."""
        swap, reverse_rows, reverse_columns = ORIENTATIONS[self.orientation]
        pixels = mask.numpy()
        pixels = pixels.swapaxes(-1, -2) if swap else pixels
        turned = pixels[..., :: -1 if reverse_rows else 1, :: -1 if reverse_columns else 1]
        return torch.from_numpy(turned.copy())  # a reversed single row is contiguous, and torch refuses it

    def points(self, points: Array) -> Array:
        """Return where points go, floats of shape (…, 2): x and y."""
        swap, reverse_rows, reverse_columns = ORIENTATIONS[self.orientation]
        height, width = self.size()
        turned: Array = points[..., ::-1] if swap else points
        signs = -1 if reverse_columns else 1, -1 if reverse_rows else 1
        shift = width if reverse_columns else 0, height if reverse_rows else 0
        return turned * signs + shift

    def boxes(self, boxes: Array) -> Array:
        """Return where boxes go, floats of shape (n, 4): left, top, right, bottom."""
        corners = self.points(boxes.reshape(-1, 2, 2))
        return np.concatenate([corners.min(1), corners.max(1)], axis=1)

    def size(self) -> Size:
        """Return (height, width) after the rotation."""
        height, width = self.canvas
        return (width, height) if ORIENTATIONS[self.orientation][0] else (height, width)


def _nearest(mask: Array, window: Window, result: Size) -> Array:
    """Resize a window inside a mask: the centre of each new pixel gets the pixel in which it lies."""
    top, left, height, width = window
    rows = ((2 * np.arange(result[0]) + 1) * height) // (2 * result[0]) + top
    columns = ((2 * np.arange(result[1]) + 1) * width) // (2 * result[1]) + left
    # NumPy's take needs a seventh of the time of torch's index_select, and supports every dtype.
    return mask.take(rows, axis=-2).take(columns, axis=-1)
