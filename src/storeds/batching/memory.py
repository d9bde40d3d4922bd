"""Memory for the tensors of batches, and the slots of the training process, in which workers write them.

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
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from storeds.batching.buffers import BufferPool, as_tensor, grown, map_file, shared_pool, tensor_at
from storeds.errors import ConfigError
from storeds.protocols import Array
from storeds.transforms.operations import DeferredImage

__all__ = [
    "PackedBatch",
    "Samples",
    "SlotMemory",
    "SlotName",
    "SlotPool",
    "empty_batch",
    "finished",
    "finished_for_caller",
    "is_plain",
    "is_tv_tensor",
    "plain_tensor",
    "scaled_together",
    "use_memory",
]

Empty: TypeAlias = Callable[[Sequence[int], torch.dtype], torch.Tensor]

_ALIGNMENT = 64  # bytes: the start of each tensor in a slot


class BatchMemory(Protocol):
    """Makes the tensors of a batch."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...


_thread = threading.local()


@contextmanager
def use_memory(memory: BatchMemory | None) -> Iterator[None]:
    """Make the batches of this thread in `memory`."""
    _thread.memory = memory
    try:
        yield
    finally:
        _thread.memory = None


def empty_batch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in the memory of this thread's batch.

    In a worker of a plain DataLoader, other processes may map it, so PyTorch sends it without a copy.
    """
    memory: BatchMemory | None = getattr(_thread, "memory", None)
    if memory is None and get_worker_info() is not None:
        memory = shared_pool()
    if memory is None:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return memory.empty(shape, dtype)


# --- What batches are made of ---


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


# --- Images that are scaled to floats in the memory of their batch ---


class Samples(list[Any]):
    """The samples of one batch that nothing else refers to. In another process they are a list.

    Attributes
    ----------
    joined : dict
        Element → the tensor in which its images lie one behind the other, and these images, as the samples have them.
    """

    def __init__(self, samples: Sequence[Any]) -> None:
        super().__init__(samples)
        self.joined: dict[Any, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


def scaled_together(images: Sequence[DeferredImage], empty: Empty) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return images of any sizes as floats that lie one behind the other in a flat tensor; and that tensor."""
    whole = empty((sum(each.image.numel() for each in images),), torch.float32)
    parts = torch.split(whole, [each.image.numel() for each in images])
    return whole, [each.scaled(part.view(each.image.shape)) for each, part in zip(images, parts, strict=True)]


def finished(samples: Sequence[Any], empty: Empty = empty_batch) -> Samples:
    """Return samples without deferred images: those of an element are scaled in one memory, which `empty` makes."""
    made = Samples(samples)
    waiting: dict[Any, list[int]] = {}
    for at, sample in enumerate(samples):
        elements = sample.items() if isinstance(sample, dict) else enumerate(sample) if type(sample) is tuple else ()
        for name, value in elements:
            if isinstance(value, DeferredImage):
                waiting.setdefault(name, []).append(at)
    for name, places in waiting.items():
        whole, parts = scaled_together([samples[at][name] for at in places], empty)
        if len({part.shape for part in parts}) == 1:
            made.joined[name] = whole.view(len(parts), *parts[0].shape), parts
        for at, part in zip(places, parts, strict=True):
            sample = made[at]
            made[at] = (
                {**sample, name: part} if isinstance(sample, dict) else (*sample[:name], part, *sample[name + 1 :])
            )
    return made


def finished_for_caller(samples: Sequence[Any]) -> list[Any]:
    """Return samples without deferred images, for a caller that may keep them.

    In a worker, where samples become a batch, those of an element lie in one memory, which is held as long as one of them.
    Elsewhere each has its own, which is used again: fresh memory for every image costs about as much as resizing it.
    """
    if len(samples) > 1 and get_worker_info() is not None:
        return finished(samples, shared_pool().empty)
    return [sample for each in samples for sample in finished([each], _singles.empty)]


_singles = BufferPool(limit=64, smallest=1 << 18)  # images of a usual batch


# --- Slots: the training process ---

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


class _Slot:
    """Anonymous memory for one batch, which only this process keeps alive. It has no name in any file system."""

    def __init__(self, pool: str, place: int) -> None:
        self.place, serial = place, next(_serials)
        unopened = SlotName(pool, place, serial, "")
        self.file = os.memfd_create(unopened.label)
        self.name = unopened._replace(path=f"/proc/{os.getpid()}/fd/{self.file}")
        weakref.finalize(self, os.close, self.file).atexit = False
        self.memory: Array = np.empty(0, np.uint8)
        self.is_leased = self.is_retired = False

    def mapped(self, size: int) -> Array:
        """Return at least so much of the memory."""
        if len(self.memory) < size:
            self.memory = map_file(self.file, os.fstat(self.file).st_size)
        return self.memory


_serials = itertools.count()
_POOLS: weakref.WeakValueDictionary[str, SlotPool] = weakref.WeakValueDictionary()


class SlotPool:
    """The slots of one set of workers. For the training process, which alone decides who uses a slot.

    Notes
    -----
    A slot is free, named in a request, or leased to the tensors of a batch that was received. Requests that are never
    answered keep their slots, until the pool ends with the loader's iterator. Lists are used without a lock: finalizers
    run at any time, also while this thread is in here.
    """

    def __init__(self) -> None:
        self.key = secrets.token_hex(8)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = _MAX_SLOTS if soft == resource.RLIM_INFINITY else min(_MAX_SLOTS, soft // 8)
        self._places = list(range(count))[::-1]  # that have no slot
        self._free: list[_Slot] = []
        self._slots: dict[int, _Slot] = {}
        _POOLS[self.key] = self

    def acquire(self) -> SlotName | None:
        """Return a slot that nothing uses; None if the training loop holds more batches than there may be slots."""
        if not self._free and not self._places:
            return None
        slot = self._free.pop() if self._free else _Slot(self.key, self._places.pop())
        self._slots[slot.place] = slot
        return slot.name

    def receive(self, place: int, size: int) -> _Lease:
        """Return the lease of a batch that arrived in a slot."""
        return _Lease(self, self._slots[place], size)

    def release(self, slot: _Slot) -> None:
        slot.is_leased = False
        if not slot.is_retired:
            self._free.append(slot)

    def retire_leased(self) -> None:
        """Never reuse the slots of batches in use: a child that is being forked holds these batches too."""
        for slot in list(self._slots.values()):
            if slot.is_leased and not slot.is_retired:
                slot.is_retired = True
                self._places.append(slot.place)


class _Lease:
    """Makes the tensors of a batch. The slot is free when this object is gone: the finalizers of the tensors hold it."""

    def __init__(self, pool: SlotPool, slot: _Slot, size: int) -> None:
        slot.is_leased = True
        self._pool, self._slot, self._memory = weakref.ref(pool), slot, slot.mapped(size)

    def tensor(self, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        array = self._memory[start : start + math.prod(shape) * dtype.itemsize]
        # Not at exit: then no worker uses the slot again.
        weakref.finalize(array, _hold, self).atexit = False
        return as_tensor(array, shape, dtype)

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            pool.release(self._slot)


def _hold(lease: _Lease) -> None:
    """Do nothing: what waits for this call keeps the lease alive."""


def _retire_leased() -> None:
    for pool in list(_POOLS.values()):
        pool.retire_leased()


os.register_at_fork(before=_retire_leased)


# --- Slots: a worker ---

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


class _Inline(NamedTuple):
    """Stands for a small tensor that is sent by value."""

    values: bytes
    shape: tuple[int, ...]
    dtype: torch.dtype


# The pipe holds 64 KiB. A worker that is killed while it waits for room there takes the lock of all others with it.
_MAX_INLINE = 1 << 14


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
        The batch, with places instead of tensors.
    """

    slot: SlotName | None
    size: int
    content: Any

    @classmethod
    def of(cls, batch: Any, slot: SlotName | None, memory: SlotMemory | None) -> PackedBatch:
        """Return a batch for sending; without `memory`, PyTorch sends its larger tensors."""

        def packed(tensor: torch.Tensor) -> Any:
            if tensor.requires_grad and not tensor.is_leaf:  # PyTorch raises that in another thread, and hangs
                raise ConfigError("a batch has a tensor that requires gradients, which no worker can send: detach() it")
            if type(tensor) is not torch.Tensor or not is_plain(tensor):
                return tensor
            tensor = tensor.resolve_conj().resolve_neg()  # PyTorch sends the values without
            if not tensor.is_contiguous():
                return tensor
            if memory is not None:
                return memory.place(tensor)
            if tensor.nbytes > _MAX_INLINE:
                return tensor
            values = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            return _Inline(values, tuple(tensor.shape), tensor.dtype)

        content = _map_leaves(batch, torch.Tensor, packed)
        return cls(slot, 0 if memory is None else memory.size, content)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.slot, self.size, self.content)


def _unpacked(slot: SlotName | None, size: int, content: Any) -> Any:
    """Return the batch; its tensors in the slot are plain, each with a storage of its own."""
    lease = None
    if slot is not None:
        pool = _POOLS.get(slot.pool)
        if pool is None:
            raise RuntimeError("a batch of a StoreLoader arrives in the process that made the loader, and nowhere else")
        lease = pool.receive(slot.place, size)

    def tensor(leaf: _Place | _Inline) -> torch.Tensor:
        if isinstance(leaf, _Place):
            assert lease is not None
            return lease.tensor(*leaf)
        return tensor_at(np.frombuffer(bytearray(leaf.values), np.uint8), 0, leaf.shape, leaf.dtype)

    return _map_leaves(content, (_Place, _Inline), tensor)


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
