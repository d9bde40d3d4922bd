"""Small tensors of a batch that a worker process sends by value: a file descriptor for each would take ten times as long."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import get_worker_info

from storeds._plain import PlainTensor

__all__ = ["MOST_BY_VALUE", "by_value", "goes_by_value"]

MOST_BY_VALUE = 1 << 14  # bytes; more is lent in less time, and does not fill the pipe, which workers take turns at


class _ByValue(PlainTensor):
    """A tensor whose bytes are sent, and not the memory that they lie in."""


def goes_by_value(size: int) -> bool:
    """Whether a tensor of so many bytes is sent by value, so that it need not be made in shared memory."""
    return size <= MOST_BY_VALUE


def by_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a small tensor so that this worker process will send its bytes; any other as it is."""
    if get_worker_info() is None or type(tensor) is not torch.Tensor or not _can_go(tensor):
        return tensor
    return tensor.as_subclass(_ByValue)


def _can_go(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or not goes_by_value(tensor.nbytes) or not tensor.is_contiguous():
        return False
    shared = tensor.is_shared()  # type: ignore[no-untyped-call]  # torch leaves it without types
    return not (shared or tensor.is_conj() or tensor.is_neg())


def _reduce(tensor: _ByValue) -> Any:
    plain = tensor.plain()
    if not _can_go(plain):
        return tensor.reduce_copy()
    return _receive, (plain.reshape(-1).view(torch.uint8).numpy().tobytes(), tuple(plain.shape), plain.dtype)


def _receive(data: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


ForkingPickler.register(_ByValue, _reduce)
