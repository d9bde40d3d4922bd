"""Functions that change the colours of Pillow images and tensors for `storeds.transforms`.

They compute in torchvision's order, so that their pixels are equal to torchvision's. None changes its argument. A
floating tensor counts as scaled to [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from storeds.transforms.functional import ImageT, size_of

__all__ = [
    "autocontrast",
    "brightness",
    "contrast",
    "converted",
    "equalize",
    "explained",
    "grayscale",
    "greatest",
    "hue",
    "posterize",
    "saturation",
    "sharpness",
    "solarize",
]

_GRAY = (0.2989, 0.587, 0.114)


@contextmanager
def explained(image: Any, who: str) -> Iterator[None]:
    """Make Pillow's errors about a mode name it, and say what to do."""
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:
        if not isinstance(image, Image.Image) or image.mode in ("L", "RGB"):
            raise
        raise ValueError(
            f"{who}: Pillow cannot change colours of mode {image.mode!r} so: read the image with mode 'RGB' or 'L'"
        ) from error


def greatest(dtype: torch.dtype) -> int:
    """Return the value that stands for white: the largest of an integer dtype, 1 for floats."""
    return 1 if dtype.is_floating_point else torch.iinfo(dtype).max


def converted(image: torch.Tensor, dtype: torch.dtype, scale: bool, who: str) -> torch.Tensor:
    """Convert to a dtype. With `scale`, white stays white."""
    if image.dtype == dtype or not scale:
        return image.to(dtype)
    if dtype in (torch.bool,) or image.dtype in (torch.bool,) or dtype.is_complex or image.dtype.is_complex:
        raise TypeError(f"{who} cannot scale {image.dtype} to {dtype}; set scale to false")
    if image.is_floating_point():
        if dtype.is_floating_point:
            return image.to(dtype)
        if torch.iinfo(dtype).bits > {torch.float64: 53, torch.float32: 24}.get(image.dtype, 64):
            raise TypeError(f"{who} cannot scale {image.dtype} to {dtype}, which holds more digits")
        # Not 255 but 255.999: every value of the result gets an equal part of [0, 1].
        return image.mul(greatest(dtype) + 1.0 - 1e-3).to(dtype)
    if dtype.is_floating_point:
        return image.to(dtype).mul_(1.0 / greatest(image.dtype))
    return _shifted(image, dtype)


def _shifted(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert integers to another integer dtype, by a shift of bits."""
    bits = [greatest(each).bit_length() for each in (image.dtype, dtype)]
    if bits[0] > bits[1]:
        wide = image.to(torch.int64) if image.dtype in (torch.uint16, torch.uint32) else image
        return wide.bitwise_right_shift(bits[0] - bits[1]).to(dtype)
    if dtype in (torch.uint16, torch.uint32):
        return image.to(torch.int64).bitwise_left_shift_(bits[1] - bits[0]).to(dtype)
    return image.to(dtype).bitwise_left_shift_(bits[1] - bits[0])


def _checked(image: torch.Tensor, who: str) -> torch.Tensor:
    """Return a contiguous tensor; raise ValueError if its channels are not the 1 or 3 of gray and RGB."""
    size_of(image, who)
    if image.shape[-3] not in (1, 3):
        raise ValueError(f"{who} takes tensors with 1 or 3 channels, not {image.shape[-3]}")
    if image.dtype == torch.bool or image.dtype.is_complex:
        raise TypeError(f"{who} takes tensors of integers or floats, not {image.dtype}")
    # torch's kernels round differently where channels lie last in memory.
    return image.contiguous()


def grayscale(image: ImageT, channels: int, who: str) -> ImageT:
    """Convert to gray, with 1 channel or with 3 equal ones."""
    if isinstance(image, Image.Image):
        gray = image.convert("L")
        return Image.merge("RGB", (gray, gray, gray)) if channels == 3 else gray
    image = _checked(image, who)
    gray_tensor = image if image.shape[-3] == 1 else _gray(image).to(image.dtype)
    return gray_tensor if channels == 1 else gray_tensor.repeat_interleave(3, dim=-3)


def _gray(image: torch.Tensor) -> torch.Tensor:
    """Return the gray levels of an RGB tensor, floats that are not rounded."""
    red, green, blue = image.unbind(dim=-3)
    return red.mul(_GRAY[0]).add_(green, alpha=_GRAY[1]).add_(blue, alpha=_GRAY[2]).unsqueeze(-3)


def _whole_gray(image: torch.Tensor) -> torch.Tensor:
    return _gray(image) if image.is_floating_point() else _gray(image).floor_()


def _blended(image: torch.Tensor, other: torch.Tensor, factor: float) -> torch.Tensor:
    """Return ``factor * image + (1 - factor) * other`` in the range and dtype of the image."""
    mixed = image.mul(factor).add_(other, alpha=1.0 - factor)
    return mixed.clamp_(0, greatest(image.dtype)).to(image.dtype)


def brightness(image: ImageT, factor: float, who: str) -> ImageT:
    """Multiply by a factor."""
    if isinstance(image, Image.Image):
        return ImageEnhance.Brightness(image).enhance(factor)
    image = _checked(image, who)
    return image.mul(factor).clamp_(0, greatest(image.dtype)).to(image.dtype)


def contrast(image: ImageT, factor: float, who: str) -> ImageT:
    """Blend with the mean gray level of the image. A factor of 1 changes nothing."""
    if isinstance(image, Image.Image):
        return ImageEnhance.Contrast(image).enhance(factor)
    image = _checked(image, who)
    if image.shape[-3] == 3:
        levels = _whole_gray(image)
    else:
        levels = image if image.is_floating_point() else image.to(torch.float32)
    return _blended(image, levels.mean(dim=(-3, -2, -1), keepdim=True), factor)


def saturation(image: ImageT, factor: float, who: str) -> ImageT:
    """Blend with the gray image. A factor of 1 changes nothing, and 0 makes the image gray."""
    if isinstance(image, Image.Image):
        return ImageEnhance.Color(image).enhance(factor)
    image = _checked(image, who)
    if image.shape[-3] == 1:
        return image
    return _blended(image, _whole_gray(image), factor)


def hue(image: ImageT, factor: float, who: str) -> ImageT:
    """Turn the hue by a part of the colour circle, -0.5 to 0.5."""
    if isinstance(image, Image.Image):
        turned: ImageT = _hue_of_pillow(image, factor)
        return turned
    image = _checked(image, who)
    if image.shape[-3] == 1:
        return image
    hues, saturations, values = _hsv(converted(image, torch.float32, True, who)).unbind(dim=-3)
    rgb = _rgb(hues.add_(factor).remainder_(1.0), saturations, values)
    return converted(rgb, image.dtype, True, who)


def _hue_of_pillow(image: Image.Image, factor: float) -> Any:
    if image.mode in ("L", "1", "I", "F"):
        return image
    hues, saturations, values = image.convert("HSV").split()
    # Numbers wrap around, as hues do.
    turned = np.array(hues, dtype=np.uint8) + np.int32(factor * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturations, values)).convert(image.mode)


def _hsv(image: torch.Tensor) -> torch.Tensor:
    red, green, _ = image.unbind(dim=-3)
    least, most = torch.aminmax(image, dim=-3)
    is_gray, span = most == least, most - least
    ones = torch.ones_like(most)
    saturations = span / torch.where(is_gray, ones, most)
    divisor = torch.where(is_gray, ones, span).unsqueeze_(dim=-3)
    reds, greens, blues = ((most.unsqueeze(dim=-3) - image) / divisor).unbind(dim=-3)
    is_red, is_green = most == red, most == green
    from_green = reds.add(2.0).sub_(blues).mul_(is_green & ~is_red)
    from_red = blues.sub_(greens).mul_(is_red)
    from_blue = greens.add_(4.0).sub_(reds).mul_(~is_red & ~is_green)
    hues = from_red.add_(from_green).add_(from_blue).mul_(1.0 / 6.0).add_(1.0).fmod_(1.0)
    return torch.stack((hues, saturations, most), dim=-3)


# Which of value, p, q and t is red, green and blue in each sixth of the colour circle.
_SIXTHS = ((0, 2, 1, 1, 3, 0), (3, 0, 0, 2, 1, 1), (1, 1, 3, 0, 0, 2))


def _rgb(hues: torch.Tensor, saturations: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    turn = hues.mul(6)
    sixth = torch.floor(turn)
    part = saturations * turn.sub_(sixth)
    rest = 1.0 - saturations
    q = (1.0 - part).mul_(values).clamp_(0.0, 1.0)
    t = part.add_(rest).mul_(values).clamp_(0.0, 1.0)
    p = rest.mul_(values).clamp_(0.0, 1.0)
    chosen = torch.tensor(_SIXTHS, device=hues.device)[:, sixth.to(torch.int64).remainder_(6)].movedim(0, -3)
    return torch.stack((values, p, q, t), dim=-3).gather(-3, chosen)


def sharpness(image: ImageT, factor: float, who: str) -> ImageT:
    """Blend with the smoothed image. A factor of 1 changes nothing, and 0 smooths it."""
    if isinstance(image, Image.Image):
        return ImageEnhance.Sharpness(image).enhance(factor)
    image = _checked(image, who)
    channels = image.shape[-3]
    if image.shape[-1] <= 2 or image.shape[-2] <= 2:
        return image
    is_float = image.is_floating_point()
    dtype = image.dtype if is_float else torch.float32
    kernel = torch.full((3, 3), 1.0 / 13.0, dtype=dtype, device=image.device)
    kernel[1, 1] = 5.0 / 13.0
    batch = image if image.ndim <= 4 else image.reshape(-1, *image.shape[-3:])
    sharp = batch.to(dtype, copy=True)
    smooth = torch.nn.functional.conv2d(sharp, kernel.expand(channels, 1, 3, 3), groups=channels)
    if not is_float:
        smooth.round_()
    inner = sharp[..., 1:-1, 1:-1]
    inner.add_(smooth.sub_(inner), alpha=1.0 - factor)
    return sharp.clamp_(0, greatest(image.dtype)).to(image.dtype).reshape(image.shape)


def posterize(image: ImageT, bits: int, who: str) -> ImageT:
    """Keep the highest bits of each channel."""
    if isinstance(image, Image.Image):
        return ImageOps.posterize(image, bits)
    image = _checked(image, who)
    if image.is_floating_point():
        levels = 1 << bits
        return image.mul(levels).floor_().clamp_(0, levels - 1).mul_(1.0 / levels)
    have = greatest(image.dtype).bit_length()
    return image if bits >= have else image & (((1 << bits) - 1) << (have - bits))


def solarize(image: ImageT, threshold: float, who: str) -> ImageT:
    """Invert pixels from a threshold on, which is relative to white."""
    if isinstance(image, Image.Image):
        return ImageOps.solarize(image, 255.0 * threshold)  # type: ignore[arg-type]  # it compares only
    image = _checked(image, who)
    white = greatest(image.dtype)
    inverted = 1.0 - image if image.is_floating_point() else image.bitwise_xor(white)
    return torch.where(image >= white * threshold, inverted, image)


def autocontrast(image: ImageT, who: str) -> ImageT:
    """Stretch each channel to the full range."""
    if isinstance(image, Image.Image):
        return ImageOps.autocontrast(image)
    image = _checked(image, who)
    white = greatest(image.dtype)
    levels = image if image.is_floating_point() else image.to(torch.float32)
    least, most = levels.amin(dim=(-2, -1), keepdim=True), levels.amax(dim=(-2, -1), keepdim=True)
    is_flat = most == least
    step = most.sub_(least).mul_(1.0 / white)
    least[is_flat], step[is_flat] = 0.0, 1.0
    return levels.sub(least).div_(step).clamp_(0, white).to(image.dtype)


def equalize(image: ImageT, who: str) -> ImageT:
    """Make all levels of each channel about equally frequent, as Pillow does."""
    if isinstance(image, Image.Image):
        return ImageOps.equalize(image)
    image = _checked(image, who)
    levels = converted(image, torch.uint8, True, who)
    flat: torch.Tensor = levels.flatten(start_dim=-2).to(torch.int64)
    counts = flat.new_zeros((*flat.shape[:-1], 256)).scatter_add_(-1, flat, torch.ones_like(flat))
    sums = counts.cumsum(dim=-1)
    # Pillow leaves the most intense level out of the sum.
    last = counts.gather(-1, sums.argmax(dim=-1, keepdim=True))
    step = (flat.shape[-1] - last).div_(255, rounding_mode="floor")
    before = sums[..., :-1].add(step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(0, 255)
    table = torch.nn.functional.pad(before, (1, 0)).to(torch.uint8)
    equalized = table.gather(-1, flat).reshape(levels.shape)
    return converted(torch.where(step.unsqueeze(-1) != 0, equalized, levels), image.dtype, True, who)
