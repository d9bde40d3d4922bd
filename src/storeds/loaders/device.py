"""`to_device`: copies batches to a device, one ahead of the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

__all__ = ["map_tensors", "to_device"]


class to_device:  # noqa: N801  # users call it like a function; it is an object because loaders have a length
    """Yield the batches of a loader with their tensors on `device`.

    Parameters
    ----------
    loader : iterable
        Yields batches: tensors in any nesting of tuples, lists and mappings. Other values pass unchanged.
    device : str or torch.device
        On CUDA, each batch is copied from pinned memory on a stream of its own while the training loop uses the one
        before; make the loader with ``pin_memory=True``. On the CPU, batches pass unchanged.

    Notes
    -----
    Can be iterated as often as the loader, and has its ``len``. For one thread. On CUDA it reads one batch ahead, which
    the loader counts as received: take the state from this object.
    """

    def __init__(self, loader: Any, device: str | torch.device) -> None:
        self.loader: Any = loader
        self.device: torch.device = torch.device(device)
        self._states: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.device.type == "cuda":
            return self._ahead()
        if self.device.type == "cpu":
            return iter(self.loader)
        return (map_tensors(batch, lambda tensor: tensor.to(self.device)) for batch in self.loader)

    def state_dict(self) -> Any:
        """Return the loader's state at the batch that was yielded last."""
        return self._states[0] if self._states else self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load the loader's state."""
        self._states.clear()
        self.loader.load_state_dict(state)

    def _counted(self) -> Iterator[Any]:
        """Yield the loader's batches, keeping its state at the last two."""
        self._states.clear()
        has_state = hasattr(self.loader, "state_dict")
        for batch in self.loader:
            if has_state:
                self._states.append(self.loader.state_dict())
                if len(self._states) > 2:
                    self._states.popleft()
            yield batch

    def _ahead(self) -> Iterator[Any]:
        """Yield batches, and copy each while the training loop uses the one before."""
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch declares no types here
        waiting: deque[tuple[Any, Any, torch.cuda.Event]] = deque()
        for batch in self._counted():
            with torch.cuda.stream(side):
                copy = map_tensors(batch, self._copy)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # as above
                done.record(side)
            # Keep the pinned batch until its copy is used: freed earlier, its memory might be overwritten.
            waiting.append((copy, batch, done))
            if len(waiting) > 1:
                yield self._ready(*waiting.popleft())
        self._states.clear()  # no batch is ahead any more
        while waiting:
            yield self._ready(*waiting.popleft())

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor if tensor.is_pinned() or tensor.device.type != "cpu" else tensor.pin_memory()
        return source.to(self.device, non_blocking=True)

    def _ready(self, copy: Any, _: Any, done: torch.cuda.Event) -> Any:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(done)

        def use(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)
            return tensor

        return map_tensors(copy, use)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with `function` applied to each tensor in it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(item, function) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, function) for item in value)
    return value
