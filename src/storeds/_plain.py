"""A tensor that carries something with it, and is a plain tensor to whoever computes with it, copies or keeps it."""

from __future__ import annotations

from typing import Any, SupportsIndex

import torch
from torch.multiprocessing.reductions import reduce_tensor

__all__ = ["PlainTensor"]


class PlainTensor(torch.Tensor):
    """Base of such tensors: results, copies and pickles are plain, and have memory of their own."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses do

    def plain(self) -> torch.Tensor:
        """Return the same tensor, in the same memory, without what it carries."""
        return self.as_subclass(torch.Tensor)

    def reduce_copy(self) -> Any:
        """Return how torch sends a copy of it to another process: for what was changed into something else since it was made."""
        copied = self.plain().detach().clone().requires_grad_(self.requires_grad)
        return reduce_tensor(copied)  # type: ignore[no-untyped-call]  # torch leaves it without types

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        made = memo[id(self)] = self.plain().clone()
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.plain().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch leaves it without types
