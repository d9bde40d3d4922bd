"""The memory of batches that workers make: slots of the training process, and what workers send in their place.

The training process names a free slot in each request. The worker writes the tensors of the batch into it and sends
their places. When nothing in the training process refers to a tensor of the batch any more, the slot is free again.
docs/decisions/0045-the-batch-is-the-message.md says why, and how long it takes.
"""

from __future__ import annotations

import itertools
import math
import os
import resource
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from storeds.batching.buffers import Buffer, BufferPool, grown, map_file, tensor_at
from storeds.errors import ConfigError
from storeds.protocols import Array

__all__ = ["PackedBatch", "SlotMemory", "SlotName", "SlotPool", "is_plain"]

_ALIGNMENT = 64  # bytes: the start of each tensor in a slot

# --- The training process ---

_MAX_SLOTS = 256  # each takes two file descriptors


class SlotName(NamedTuple):
    """Names a slot of the training process in a request.

    Attributes
    ----------
    pool : str
        The pool that it belongs to.
    place : int
        Its place in the pool.
    serial : int
        Tells it from earlier slots of the same place.
    path : str
        Where a worker opens its memory.
    """

    pool: str
    place: int
    serial: int
    path: str

    @property
    def label(self) -> str:
        """What the kernel calls the memory."""
        return f"storeds-batch-{self.pool}-{self.serial}"


class _Slot(Buffer):
    """Anonymous memory for one batch, which only this process keeps alive. It has no name in any file system."""

    def __init__(self, pool: str, place: int) -> None:
        unopened = SlotName(pool, place, next(_serials), "")
        self.file = os.memfd_create(unopened.label)
        self.name = unopened._replace(path=f"/proc/{os.getpid()}/fd/{self.file}")
        weakref.finalize(self, os.close, self.file).atexit = False
        self.memory = np.empty(0, np.uint8)
        self.is_requested = False
        """Whether a request names it that has no result yet."""

    def acquire(self) -> bool:
        # docstring inherited
        is_free = not self.is_requested and not self.is_used
        self.is_requested = self.is_requested or is_free
        return is_free

    def fits(self, size: int) -> bool:
        # docstring inherited
        return True  # a worker makes its file as large as it needs

    def map(self, size: int) -> Array:
        """Return at least so much of the memory."""
        if len(self.memory) < size:
            self.memory = map_file(self.file, os.fstat(self.file).st_size)
        return self.memory


_serials = itertools.count()
_POOLS: weakref.WeakValueDictionary[str, SlotPool] = weakref.WeakValueDictionary()


class SlotPool(BufferPool):
    """The slots of one set of workers. For the training process, which alone decides who uses a slot.

    Notes
    -----
    A slot is free, named in a request, or used by the tensors of a batch that was received. Requests that are never
    answered keep their slots, until the pool ends with the loader's iterator.
    """

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        super().__init__(_MAX_SLOTS if soft == resource.RLIM_INFINITY else min(_MAX_SLOTS, soft // 8))
        self.key: str = secrets.token_hex(8)
        _POOLS[self.key] = self

    def acquire(self) -> SlotName | None:
        """Return a slot that nothing uses; None if the training loop holds more batches than there may be slots."""
        name: SlotName | None = self._acquired(0, lambda slot: slot.name)
        return name

    def received(self, name: SlotName) -> _Slot:
        """Return the slot of a result."""
        slot: _Slot = self._buffers[name.place]
        return slot

    def drop_used(self) -> None:
        """Never use the slots of received batches again: a child that is being forked has these batches too."""
        for place, slot in enumerate(self._buffers):
            if slot.is_used and not slot.is_requested:
                self._buffers[place] = _Slot(self.key, place)

    def _made(self, place: int, size: int) -> Buffer:
        slot = _Slot(self.key, place)
        slot.acquire()
        return slot


def _drop_used() -> None:
    for pool in list(_POOLS.values()):
        pool.drop_used()


os.register_at_fork(before=_drop_used)


# --- A worker ---

_opened: dict[int, tuple[SlotName, Array]] = {}
"""The slots that this worker has mapped, by place."""


def _open(name: SlotName) -> int:
    """Open the memory of a slot.

    Raises
    ------
    OSError
        This process may not, or the training process has closed it. Another file may have its number then, which must not
        be written to.
    """
    file = os.open(name.path, os.O_RDWR)
    if os.readlink(f"/proc/self/fd/{file}").partition(" ")[0] == f"/memfd:{name.label}":  # " (deleted)" follows
        return file
    os.close(file)
    raise FileNotFoundError(f"{name.path} is not the memory of a batch")


class SlotMemory:
    """The memory of one batch in a worker: its tensors lie one behind the other in a slot.

    Parameters
    ----------
    name : SlotName

    Raises
    ------
    OSError
        This process may not open the memory of the training process.
    """

    def __init__(self, name: SlotName) -> None:
        self.name, self.size = name, 0
        known, memory = _opened.get(name.place, (None, np.empty(0, np.uint8)))
        self._mappings = [memory if known == name else self._extended(0)]

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor behind those that were made before."""
        start, size = self.size, math.prod(shape) * dtype.itemsize
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        if len(self._mappings[-1]) < self.size:
            # Tensors that were made before stay in the old mapping, which is the same memory.
            self._mappings.append(self._extended(self.size))
        return tensor_at(self._mappings[-1], start, shape, dtype)

    def place(self, tensor: torch.Tensor) -> _Place:
        """Return where a contiguous tensor lies in the slot; copies it there if it was made elsewhere."""
        for mapping in self._mappings:
            start = tensor.data_ptr() - mapping.ctypes.data
            if 0 <= start <= len(mapping) - tensor.nbytes:
                return _Place(start, tuple(tensor.shape), tensor.dtype)
        start = self.size
        self.empty(tensor.shape, tensor.dtype).copy_(tensor)
        return _Place(start, tuple(tensor.shape), tensor.dtype)

    def _extended(self, size: int) -> Array:
        file = _open(self.name)
        try:
            memory = grown(file, size)
        finally:
            os.close(file)
        _opened[self.name.place] = self.name, memory
        return memory


class _Place(NamedTuple):
    """Stands for a tensor in a slot."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a copy of the values in ordinary memory is equivalent to the tensor."""
    return tensor.is_cpu and tensor.layout == torch.strided and not tensor.requires_grad


@dataclass(frozen=True)
class PackedBatch:
    """A batch as a worker sends it. Unpickling it in the training process gives the batch itself.

    Parameters
    ----------
    slot : SlotName or None
        The slot of the request, in which tensors lie.
    size : int
        Its bytes in use.
    content : Any
        The batch, with places instead of tensors; or what takes the place of a batch.
    """

    slot: SlotName | None
    size: int
    content: Any

    @classmethod
    def of(cls, batch: Any, slot: SlotName | None, memory: SlotMemory | None) -> PackedBatch:
        """Return a batch for sending; without `memory`, PyTorch sends its tensors."""

        def packed(tensor: torch.Tensor) -> Any:
            if tensor.requires_grad and not tensor.is_leaf:  # PyTorch raises that in another thread, and hangs
                raise ConfigError("a batch has a tensor that requires gradients, which no worker can send: detach() it")
            if type(tensor) is not torch.Tensor or not is_plain(tensor):
                return tensor
            tensor = tensor.resolve_conj().resolve_neg()  # PyTorch sends the values without
            return memory.place(tensor) if memory is not None and tensor.is_contiguous() else tensor

        content = _map_leaves(batch, torch.Tensor, packed)
        return cls(slot, 0 if memory is None else memory.size, content)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.slot, self.size, self.content)


def _unpacked(name: SlotName | None, size: int, content: Any) -> Any:
    """Return the batch; its tensors in the slot are plain, each with a storage of its own."""
    if name is None:
        return content
    pool = _POOLS.get(name.pool)
    if pool is None:
        raise RuntimeError("a batch of a StoreLoader arrives in the process that made the loader, and nowhere else")
    slot = pool.received(name)
    memory = slot.map(size)
    batch = _map_leaves(content, _Place, lambda place: tensor_at(memory, *place))
    slot.is_requested = False  # from now on, its tensors tell whether it is used
    return batch


def _map_leaves(value: Any, kinds: Any, function: Callable[[Any], Any]) -> Any:
    """Return `value` with `function` applied to its parts of these kinds, in tuples, lists and dicts; others stay."""
    if isinstance(value, kinds):
        return function(value)
    if type(value) is dict:
        return {name: _map_leaves(item, kinds, function) for name, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(_map_leaves(item, kinds, function) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_leaves(item, kinds, function) for item in value))
    return value
