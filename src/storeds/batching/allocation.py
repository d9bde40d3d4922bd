"""Memory for the tensors of a batch: `empty_batch` for one tensor, `in_one_memory` for a list of different sizes.

Sent one by one, each tensor of a list would take a file descriptor. So a worker copies them into one memory, and sends
that once: each tensor is then pickled as a place in it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import torch
from torch.utils.data import get_worker_info

from storeds.batching.shared_memory import _TaggedTensor, batch_memory, fits_inline, send_inline
from storeds.transforms.functional import DeferredImage

__all__ = [
    "TensorLike",
    "empty_batch",
    "in_one_memory",
    "is_plain",
    "is_tv_tensor",
    "layout_of",
    "plain_tensor",
    "write",
]

TensorLike: TypeAlias = torch.Tensor | DeferredImage

_ALIGNMENT = 64  # bytes: the start of each tensor in a memory


def is_tv_tensor(value: Any, *names: str) -> bool:
    """Return whether a value is of one of these classes of ``torchvision.tv_tensors``; does not import torchvision."""
    module = sys.modules.get("torchvision.tv_tensors")
    return module is not None and isinstance(value, tuple(getattr(module, name, ()) for name in names))


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of torchvision as a plain one, in the same memory; other tensors unchanged."""
    if type(value) is torch.Tensor or not is_tv_tensor(value, "TVTensor"):
        return value
    return value.as_subclass(torch.Tensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a copy of the values in ordinary memory is equivalent to the tensor."""
    return tensor.is_cpu and tensor.layout == torch.strided and not tensor.requires_grad


def layout_of(value: TensorLike) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of a value in a batch."""
    if isinstance(value, DeferredImage):
        return tuple(value.image.shape), torch.float32
    return tuple(value.shape), value.dtype


def write(value: TensorLike, out: torch.Tensor) -> None:
    """Copy a value to `out`, which has its shape; a deferred image is scaled there."""
    if isinstance(value, DeferredImage):
        value.scale_into(value.image, out)
    else:
        out.copy_(value)


def empty_batch(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor, in memory that the training process sees if this is a worker and it is not small."""
    memory = batch_memory(shape, dtype)
    if memory is not None:
        return memory
    nbytes = math.prod(shape) * dtype.itemsize
    if get_worker_info() is None or fits_inline(nbytes):
        return torch.empty(shape, dtype=dtype, device="cpu")
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]  # torch leaves it without types
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


def in_one_memory(values: Sequence[TensorLike]) -> list[torch.Tensor]:
    """Return the tensors in a list, which a worker sends with one file descriptor or inline.

    A worker copies them into one memory. Elsewhere only deferred images are copied, because they need memory in any case.
    The tensors of a list share this memory: it is released when nothing refers to any of them.

    Parameters
    ----------
    values : sequence of torch.Tensor or DeferredImage
        Of any shapes and dtypes. Tensors on a device, sparse ones and such with gradients stay as they are.
    """
    in_worker = get_worker_info() is not None
    copied = [isinstance(value, DeferredImage) or (in_worker and is_plain(value)) for value in values]
    starts, size = [0] * len(values), 0
    for at, value in enumerate(values):
        if copied[at]:
            shape, dtype = layout_of(value)
            starts[at], size = size, size + -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    whole = send_inline(empty_batch((size,), torch.uint8))
    return [
        _place(value, whole, start, in_worker) if copy else value  # type: ignore[misc]  # deferred images are copied
        for value, copy, start in zip(values, copied, starts, strict=True)
    ]


def _place(value: TensorLike, whole: torch.Tensor, start: int, in_worker: bool) -> torch.Tensor:
    """Copy a value to a place in `whole`, and return the tensor there."""
    out = _tensor_at(whole, start, *layout_of(value))
    write(value, out)
    if not in_worker:
        return out
    part = out.as_subclass(_PartTensor)
    part._whole = whole
    return part


def _tensor_at(whole: torch.Tensor, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    return whole.as_subclass(torch.Tensor)[start : start + size].view(dtype).view(shape)


class _PartTensor(_TaggedTensor):
    """A tensor in a part of a memory that is sent once for all of its parts."""

    _whole: torch.Tensor


def _reduce_part(part: _PartTensor) -> Any:
    plain, whole = part.plain(), part._whole
    start = plain.data_ptr() - whole.data_ptr() if plain.numel() else 0
    if not plain.is_contiguous() or plain.requires_grad or not 0 <= start <= whole.nbytes - plain.nbytes:
        return part.reduce_copy()  # it was changed in place since
    # A pickle holds an object once, so the memory is sent with the first of its parts.
    return _tensor_at, (whole, start, tuple(plain.shape), plain.dtype)


ForkingPickler.register(_PartTensor, _reduce_part)
