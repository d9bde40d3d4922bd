"""Functions behind `storeds.transforms`: resize, crop, flip, convert and normalise Pillow images and tensors.

No function changes its argument. If there is nothing to do, it returns the argument itself.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from storeds.protocols import Array, Cropped, Window
from storeds.records.fields import layout_of

__all__ = [
    "INTERPOLATIONS",
    "DeferredImage",
    "ToNormalized",
    "center_window",
    "check_normalize",
    "crop",
    "crop_and_resize",
    "draw_aspect",
    "draw_int",
    "draw_uniform",
    "draw_window",
    "flip",
    "in_order",
    "normalize",
    "owned",
    "resize",
    "shorter_edge",
    "size_of",
    "to_tensor",
]


ImageT = TypeVar("ImageT", Image.Image, torch.Tensor)

INTERPOLATIONS: dict[str, tuple[Image.Resampling, str | None]] = {
    "nearest": (Image.Resampling.NEAREST, "nearest"),
    "nearest-exact": (Image.Resampling.NEAREST, "nearest-exact"),
    "bilinear": (Image.Resampling.BILINEAR, "bilinear"),
    "bicubic": (Image.Resampling.BICUBIC, "bicubic"),
    "box": (Image.Resampling.BOX, None),
    "hamming": (Image.Resampling.HAMMING, None),
    "lanczos": (Image.Resampling.LANCZOS, None),
}
"""Names of each interpolation in Pillow and torch. torch lacks some of them (None)."""

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SMOOTH = ("bilinear", "bicubic")
_MAX_PIXELS = 2**28


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


def shorter_edge(height: int, width: int, size: int, who: str) -> tuple[int, int]:
    """Return the (height, width) with shorter edge `size`. The longer edge is rounded down, as in torchvision."""
    longer = int(size * max(height, width) / min(height, width))
    # One line of 65,500 pixels would need 10 GB at size 224. Raise an error that the dataset's policy can handle.
    if size * longer > _MAX_PIXELS:
        raise ValueError(
            f"{who}: an image {height} high and {width} wide would have more than {_MAX_PIXELS} pixels with a shorter edge "
            f"of {size}; give both edges"
        )
    return (longer, size) if width <= height else (size, longer)


def resize(image: ImageT, size: tuple[int, int], interpolation: str, who: str) -> ImageT:
    """Resize to (height, width), with antialiasing for smooth interpolations."""
    if size_of(image, who) == size:
        return image
    resample, mode = INTERPOLATIONS[interpolation]
    if isinstance(image, Image.Image):
        return image.resize((size[1], size[0]), resample)
    if mode is None:
        names = ", ".join(name for name, (_, torch_mode) in INTERPOLATIONS.items() if torch_mode)
        raise TypeError(f"{who}: interpolation {interpolation!r} is for Pillow images; tensors support {names}")
    return _resize_tensor(image, size, mode, who)


def _resize_tensor(image: torch.Tensor, size: tuple[int, int], mode: str, who: str) -> torch.Tensor:
    dtype = image.dtype
    if dtype == torch.bool or dtype.is_complex:
        raise TypeError(f"{who} takes tensors of integers or floats, not {dtype}")
    # torch resizes these dtypes natively. Other dtypes are converted to a float that represents all their values.
    native = dtype in (torch.float32, torch.float64) or (dtype == torch.uint8 and image.device.type == "cpu")
    work = dtype if native else torch.float32 if dtype.is_floating_point or dtype == torch.uint8 else torch.float64
    batch = image if image.ndim == 4 else image.reshape(-1, *image.shape[-3:])
    out = _interpolate(batch.to(work), size, mode)
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
        # For a width of one pixel, torch 2.13 computes wrong values or, for uint8, fails an internal assertion. The
        # transposed image, resized in one direction at a time, gives the right result.
        return _interpolate(_interpolate(batch.mT, (1, height), mode), (1, size[0]), mode).mT
    return torch.nn.functional.interpolate(batch, size=size, mode=mode, align_corners=False, antialias=True)


def crop(image: ImageT, top: int, left: int, height: int, width: int, who: str) -> ImageT:
    """Cut out a window. Outside the image it is zero. The result owns its memory, or is the whole image itself."""
    image_height, image_width = size_of(image, who)
    if (top, left, height, width) == (0, 0, image_height, image_width):
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


def crop_and_resize(
    image: Any, window: tuple[int, int, int, int], size: tuple[int, int], interpolation: str, who: str
) -> Any:
    """Resize a window (top, left, height, width) inside the image. A returned tensor is contiguous.

    A `Cropped` is that window already, perhaps decoded at a smaller scale.
    """
    if isinstance(image, Cropped):
        (image,) = image.images
        window = (0, 0, *size_of(image, who))
        if window[2:] == size:
            return owned(image)
    if not isinstance(image, torch.Tensor):
        return resize(crop(image, *window, who), size, interpolation, who)
    top, left, height, width = window
    if (height, width) == size:
        return crop(image, *window, who).contiguous()
    part = image[..., top : top + height, left : left + width]
    if _is_interleaved(part):
        # torch's kernel for channels-last tensors takes half the time, which outweighs two copies.
        together = part[None].contiguous(memory_format=torch.channels_last)
        return resize(together, size, interpolation, who)[0].contiguous()
    return resize(part, size, interpolation, who).contiguous()


def _is_interleaved(image: torch.Tensor) -> bool:
    return image.ndim == 3 and image.shape[0] == 3 and image.stride(0) == 1 and image.dtype == torch.uint8


def center_window(height: int, width: int, size: tuple[int, int]) -> Window:
    """Return the window of `size` (height, width) in the middle of an image, rounded as in torchvision."""
    return _middle(height, size[0]), _middle(width, size[1]), *size


def _middle(length: int, wanted: int) -> int:
    return round((length - wanted) / 2) if wanted <= length else -((wanted - length) // 2)


def flip(image: ImageT) -> ImageT:
    """Mirror left to right."""
    if isinstance(image, Image.Image):
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if image.dtype in _UNSIGNED:  # torch cannot flip these
        return image.view(_UNSIGNED[image.dtype]).flip(-1).view(image.dtype)
    return image.flip(-1)


def normalize(image: object, mean: Sequence[float], std: Sequence[float], who: str, *, inplace: bool) -> torch.Tensor:
    """Subtract a mean and divide by a deviation, one per channel or one for all."""
    if not isinstance(image, torch.Tensor) or not image.is_floating_point():
        kind = image.dtype if isinstance(image, torch.Tensor) else type(image).__qualname__
        raise TypeError(f"{who} takes a floating tensor, not {kind}; put ToTensor before it")
    means, stds = check_normalize(image, mean, std, who)
    target = image if inplace else image.clone()
    return target.sub_(means).div_(stds)


def check_normalize(
    image: torch.Tensor, mean: Sequence[float], std: Sequence[float], who: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means and deviations that fit the image, or its float32 version; raise ValueError if they do not fit."""
    size_of(image, who)
    channels = max(len(mean), len(std))
    if channels not in (1, image.shape[-3]):
        raise ValueError(f"{who} has numbers for {channels} channels, but the image has {image.shape[-3]}")
    dtype = image.dtype if image.is_floating_point() else torch.float32
    means, stds, is_zero = _by_channel(tuple(mean), tuple(std), dtype, image.device)
    if is_zero:
        raise ValueError(f"{who}: a deviation of {min(std)} is zero in {dtype}")
    return means, stds


@functools.lru_cache(maxsize=64)
def _by_channel(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    with torch.inference_mode(False):  # the cached tensors must also work outside inference mode
        means, stds = (torch.tensor(each, dtype=dtype, device=device)[:, None, None] for each in (mean, std))
    return means, stds, not bool(stds.all())


def to_tensor(image: object, who: str) -> torch.Tensor:
    """Convert to a tensor, as torchvision's ``ToTensor`` does: 8-bit values become float32 in [0, 1]."""
    if isinstance(image, np.ndarray):
        return _scaled(_from_array(image, who))
    size_of(image, who)
    if isinstance(image, Image.Image):
        return _scaled(torch.from_numpy(_pillow_array(image, who)).permute(2, 0, 1))
    assert isinstance(image, torch.Tensor)
    if image.is_floating_point():
        return image.to(torch.float32)
    if image.dtype != torch.uint8:
        raise TypeError(
            f"{who} takes a uint8 or floating tensor, not {image.dtype}, whose range is unknown; "
            "first divide by the largest value, 4095 for 12 bits or 65535 for 16"
        )
    return _scaled(image)


def _scaled(image: torch.Tensor) -> torch.Tensor:
    if image.dtype == torch.uint8:
        return image.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return image.contiguous()


def _from_array(image: Array, who: str) -> torch.Tensor:
    if image.ndim not in (2, 3):
        raise ValueError(f"{who}: an array image has shape (height, width[, channels]), not {image.shape}")
    if layout_of(image.shape) == "first":
        raise ValueError(
            f"{who}: an array image has shape (height, width[, channels]), but {image.shape} looks like (channels, height, "
            "width): pass a tensor, torch.from_numpy(image)"
        )
    channels = (image[:, :, None] if image.ndim == 2 else image).transpose(2, 0, 1)
    try:
        # Always copy: the tensor must share no memory with the array, which may also be read-only or reversed.
        return torch.from_numpy(np.array(channels, dtype=image.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise TypeError(f"{who}: torch has no dtype for an array of {image.dtype}") from None


def _pillow_array(image: Image.Image, who: str) -> Array:
    if image.mode in ("P", "PA"):
        raise TypeError(
            f"{who}: a palette image holds numbers of colours or classes, not intensities: read it with "
            "mode='RGB' for its colours, or with decode='tensor' and mode='unchanged' for the numbers"
        )
    if image.mode.startswith("I;16"):
        wide = np.array(image)
        # torchvision wraps such values to negative numbers.
        if wide.max() > np.iinfo(np.int16).max:
            raise ValueError(f"{who}: the 16-bit image has values over 32767, which int16 cannot hold; use mode 'I'")
        array: Array = wide.astype(np.int16)
    elif image.mode == "1":
        array = np.array(image, np.uint8) * np.uint8(255)
    else:
        array = np.array(image, {"I": np.int32, "F": np.float32}.get(image.mode, np.uint8))
    return array.reshape(image.height, image.width, len(image.getbands()))


@dataclass(frozen=True)
class DeferredImage:
    """A uint8 image and the function that scales it to floats when the batch is collated.

    This saves a pass over memory: the floats go directly into the batch.

    Parameters
    ----------
    image : torch.Tensor
        uint8, shape (channels, height, width).
    scale_into : callable
        ``scale_into(image, out)`` fills `out`, float32 of the same shape.
    """

    image: torch.Tensor
    scale_into: Callable[[torch.Tensor, torch.Tensor], Any]

    def scaled(self, empty: Callable[[Sequence[int], torch.dtype], torch.Tensor] | None = None) -> torch.Tensor:
        """Return the floats in a tensor that `empty` makes, or in a new one."""
        shape = self.image.shape
        out = torch.empty(shape, dtype=torch.float32, device="cpu") if empty is None else empty(shape, torch.float32)
        self.scale_into(self.image, out)
        return out


@dataclass(frozen=True)
class ToNormalized:
    """`ToTensor` followed by `Normalize`, in the memory of the first result or, deferred, in that of the batch.

    Parameters
    ----------
    mean, std, inplace
        As for `storeds.transforms.Normalize`.
    """

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool

    def __call__(self, image: Any) -> torch.Tensor:
        tensor = to_tensor(image, "ToTensor")
        own = tensor is not image and not (isinstance(image, torch.Tensor) and image.is_floating_point())
        return normalize(tensor, self.mean, self.std, "Normalize", inplace=self.inplace or own)

    def later(self, image: Any) -> Any:
        """Return a `DeferredImage` if collating can scale the image, otherwise the result."""
        if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim != 3 or image.is_cuda:
            return self(image)
        check_normalize(image, self.mean, self.std, "Normalize")
        return DeferredImage(image, self.scale_into)

    def scale_into(self, image: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(image).div_(255)
        return normalize(out, self.mean, self.std, "Normalize", inplace=True)


def in_order(image: Any) -> Any:
    """Return a contiguous tensor; return other values unchanged."""
    return image.contiguous() if isinstance(image, torch.Tensor) else image


def owned(image: Any) -> Any:
    """Return a copy of a tensor or Pillow image that shares no memory. That of a tensor is contiguous."""
    is_tensor = isinstance(image, torch.Tensor)
    return image.clone(memory_format=torch.contiguous_format) if is_tensor else image.copy()


class _Scratch(threading.local):
    """Tensors into which a thread draws single numbers. Creating a tensor per number would double the time."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # tensors created in inference mode cannot be written outside it
            self.number = torch.empty(1, device="cpu")
            self.whole = torch.empty(1, dtype=torch.int64, device="cpu")


_scratch = _Scratch()


def draw_uniform(low: float, high: float, generator: torch.Generator | None) -> float:
    """Draw a float32 number between `low` and `high`, as ``torch.empty(1).uniform_`` does."""
    return _scratch.number.uniform_(low, high, generator=generator).item()


def draw_int(count: int, generator: torch.Generator | None) -> int:
    """Draw an integer from 0 to `count` - 1, as ``torch.randint`` does."""
    return int(_scratch.whole.random_(0, count, generator=generator).item())


@functools.lru_cache(maxsize=64)
def _logarithms(ratio: tuple[float, ...]) -> tuple[float, float]:
    low, high = torch.log(torch.tensor(ratio, dtype=torch.float32, device="cpu")).tolist()
    return low, high


def draw_aspect(ratio: Sequence[float], generator: torch.Generator | None) -> float:
    """Draw an aspect ratio between two ends, with a uniform logarithm."""
    low, high = _logarithms(tuple(ratio))
    return _scratch.number.uniform_(low, high, generator=generator).exp_().item()


def draw_window(
    height: int, width: int, scale: Sequence[float], ratio: Sequence[float], generator: torch.Generator | None
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of a window with limits on its area and its aspect ratio (width / height)."""
    # Draw in float32 and in torchvision's order: the same seed gives the same windows.
    for _ in range(10):
        area = height * width * draw_uniform(scale[0], scale[1], generator)
        aspect = draw_aspect(ratio, generator)
        cut_width, cut_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            top = draw_int(height - cut_height + 1, generator)
            left = draw_int(width - cut_width + 1, generator)
            return top, left, cut_height, cut_width
    cut_width, cut_height = width, height
    if width / height < ratio[0]:
        cut_height = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        cut_width = max(1, round(height * ratio[1]))
    return (height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width
