"""Pads what differs in size to one tensor: rows with a mask of rows, images with a mask of pixels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from storeds.batching.buffers import Empty
from storeds.errors import ConfigError
from storeds.transforms.tail import Tail

__all__ = ["Padded", "check_channels", "padded"]


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


def padded(
    values: Sequence[torch.Tensor],
    empty: Empty,
    *,
    rows: bool,
    sizes: bool,
    fill: float = 0,
    tail: Tail | None = None,
) -> Padded:
    """Pad values to the largest of them, at the end of each dimension in which they may differ.

    Parameters
    ----------
    values : sequence of torch.Tensor
    empty : callable
        Makes the tensors.
    rows : bool
        Whether they differ in their first dimension. It is padded with zeros, and the mask tells the rows.
    sizes : bool
        Whether they differ in their last two dimensions, as images and masks do. These are padded with `fill`, and
        without `rows` the mask tells the pixels.
    fill : float
    tail : Tail, optional
        What is left to do for values that are uint8.
    """
    if not sizes:
        values = _with_shape_of_rows(values)
    shapes = [tuple(value.shape) for value in values]
    if not rows:
        check_channels(values)
    least = rows + 2 * sizes  # dimensions
    alike = {(len(shape), shape[rows : len(shape) - 2 * sizes]) for shape in shapes}
    if len(alike) > 1 or any(len(shape) < least for shape in shapes):
        what = "length" if rows else "height and width, the last two dimensions, which pad_images pads"
        raise ConfigError(
            f"values of shapes {', '.join(sorted(set(map(str, shapes))))} make no batch, because they differ in more than their "
            f"{what}: add a transform that unifies their size (Resize, RandomResizedCrop), for images and masks pass "
            "pad_images=True or name this element there, or pass a custom collate_fn"
        )
    largest = [max(edges) for edges in zip(*shapes, strict=True)]
    is_waiting = [tail is not None and tail.is_waiting(value) for value in values]
    types = [torch.float32 if waits else value.dtype for value, waits in zip(values, is_waiting, strict=True)]
    dtype = functools.reduce(torch.promote_types, types)
    batch = empty((len(values), *largest), dtype)
    mask = empty((len(values), *(largest[:1] if rows else largest[-2:])), torch.bool)
    mask.zero_()
    if sizes:
        _check_fill(fill, dtype)
    for value, waits, shape, out, there in zip(values, is_waiting, shapes, batch, mask, strict=True):
        if rows:
            out[shape[0] :] = 0
            out = out[: shape[0]]
        if sizes:
            out[..., shape[-2] :, :].fill_(fill)
            out[..., : shape[-2], shape[-1] :].fill_(fill)
            out = out[..., : shape[-2], : shape[-1]]
        if tail is not None and waits:
            tail(value, out)
        else:
            out.copy_(value)
        there[tuple(map(slice, shape[:1] if rows else shape[-2:]))] = True
    return Padded(batch, mask)


def _with_shape_of_rows(values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return tensors of which those without rows have the shape of the others' rows: empty lists in JSON tell none."""
    shape = max(values, key=lambda tensor: (tensor.numel() > 0, tensor.ndim)).shape[1:]
    return [each.new_zeros((0, *shape)) if each.ndim and not len(each) else each for each in values]


def check_channels(images: Sequence[torch.Tensor]) -> None:
    """Refuse to pad images that differ in their channels: grey ones would lack green and blue."""
    pictures = [each for each in images if each.ndim == 3 and each.dtype in (torch.uint8, torch.float32)]
    counts = {len(each) for each in pictures}
    if len(counts) > 1 and counts <= {1, 2, 3, 4}:
        raise ConfigError(
            f"images of {' and '.join(map(str, sorted(counts)))} channels make no batch: read them in one mode, mode='RGB' or "
            "'L'. If they are sequences of different lengths, name their element in pad"
        )


def _check_fill(fill: float, dtype: torch.dtype) -> None:
    """Refuse a value that the dtype would change: -1 would become 255 in a mask of uint8."""
    if not dtype.is_floating_point and not dtype.is_complex and torch.tensor(fill).to(dtype).item() != fill:
        raise ConfigError(
            f"pad_images fills with {fill}, which {str(dtype).removeprefix('torch.')} cannot hold: choose another value, or add a "
            "transform that converts the values, such as ToDtype"
        )
