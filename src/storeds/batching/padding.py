"""Pads what differs in size to one tensor: rows with a mask (`pad_rows`), images with a mask of pixels (`pad_images`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from storeds.batching.memory import TensorLike, empty_batch, layout_of, write
from storeds.errors import ConfigError

__all__ = ["Padded", "check_channels", "pad_images", "pad_rows"]


class Padded(NamedTuple):
    """Values of different sizes as one tensor.

    Attributes
    ----------
    values : torch.Tensor
        Shape (batch, longest, …); zero (False) beyond the length of each. Of images: (batch, …, tallest, widest).
    mask : torch.Tensor
        bool, shape (batch, longest): True where there is a value. Of images: (batch, tallest, widest), True where the
        image has pixels.
    """

    values: torch.Tensor
    mask: torch.Tensor


def pad_rows(tensors: Sequence[torch.Tensor], *, sizes_too: bool = False, fill: float = 0) -> Padded:
    """Pad tensors that differ in their first dimension at its end, with zeros.

    With `sizes_too`, they may also differ in their last two dimensions, as masks of instances of different images do;
    these are filled with `fill`.
    """
    if not sizes_too:
        tensors = _with_shape_of_rows(tensors)
    alike = {tensor.shape[1:-2] if sizes_too else tensor.shape[1:] for tensor in tensors}
    if not all(tensor.ndim >= (3 if sizes_too else 1) for tensor in tensors) or len(alike) > 1:
        raise ConfigError(
            f"values of shapes {_shapes(tensors)} make no batch, because they differ in more than their length: add a "
            "transform that unifies their size (Resize, RandomResizedCrop), for images and masks pass pad_images=True or name this "
            "element there, or pass a custom collate_fn"
        )
    longest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    values = empty_batch((len(tensors), *longest), _common_dtype(tensors))
    _check_fill(fill, values.dtype)
    mask = empty_batch((len(tensors), longest[0]), torch.bool)
    values.fill_(fill)
    mask.zero_()
    for row, tensor in enumerate(tensors):
        length = len(tensor)
        values[row, length:] = 0
        out = values[row, :length]
        out = out[..., : tensor.shape[-2], : tensor.shape[-1]] if sizes_too else out
        out.copy_(tensor)
        mask[row, :length] = True
    return Padded(values, mask)


def _with_shape_of_rows(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return tensors of which those without rows have the shape of the others' rows: empty lists in JSON tell none."""
    shape = max(tensors, key=lambda tensor: (tensor.numel() > 0, tensor.ndim)).shape[1:]
    return [each.new_zeros((0, *shape)) if each.ndim and not len(each) else each for each in tensors]


def pad_images(images: Sequence[TensorLike], fill: float) -> Padded:
    """Pad images or masks at the right and at the bottom to the tallest and widest, with `fill`."""
    shapes = [layout_of(image)[0] for image in images]
    check_channels(images)
    if len({shape[:-2] for shape in shapes}) > 1 or any(len(shape) < 2 for shape in shapes):
        raise ConfigError(
            f"pad_images pads values that differ in height and width, the last two dimensions, and these have shapes "
            f"{_shapes(images)}: leave their element out of pad_images"
        )
    height, width = (max(shape[at] for shape in shapes) for at in (-2, -1))
    values = empty_batch((len(images), *shapes[0][:-2], height, width), _common_dtype(images))
    _check_fill(fill, values.dtype)
    mask = empty_batch((len(images), height, width), torch.bool)
    mask.zero_()
    for image, shape, out, pixels in zip(images, shapes, values, mask, strict=True):
        tall, wide = shape[-2:]
        write(image, out[..., :tall, :wide])
        out[..., tall:, :].fill_(fill)
        out[..., :tall, wide:].fill_(fill)
        pixels[:tall, :wide] = True
    return Padded(values, mask)


def check_channels(images: Sequence[TensorLike]) -> None:
    """Refuse to pad images that differ in their channels: grey ones would lack green and blue."""
    layouts = [layout_of(image) for image in images]
    counts = {shape[0] for shape, dtype in layouts if len(shape) == 3 and dtype in (torch.uint8, torch.float32)}
    if len(counts) > 1 and counts <= {1, 2, 3, 4}:
        raise ConfigError(
            f"images of {' and '.join(map(str, sorted(counts)))} channels make no batch: read them in one mode, mode='RGB' or "
            "'L'. If they are sequences of different lengths, name their element in pad"
        )


def _check_fill(fill: float, dtype: torch.dtype) -> None:
    """Refuse a value that the dtype would change: -1 would become 255 in a mask of uint8."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    least, greatest = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if fill != int(fill) or not least <= fill <= greatest:
        raise ConfigError(
            f"pad_images fills with {fill}, and values of {str(dtype).removeprefix('torch.')} are whole numbers from {least} to "
            f"{greatest}: choose one of these, or add a transform that converts the values, such as ToDtype"
        )


def _shapes(values: Sequence[TensorLike]) -> str:
    return ", ".join(sorted({str(layout_of(value)[0]) for value in values}))


def _common_dtype(values: Sequence[Any]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (layout_of(value)[1] for value in values))
