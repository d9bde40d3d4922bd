"""Memory for the tensors of batches: reused within a process (`BufferPool`), or slots that the training process owns.

The training process names a free slot in each request. The worker writes the tensors of the batch into it and sends
their places. When nothing in the training process refers to a tensor of the batch any more, the slot is free again.
docs/decisions/0045-the-batch-is-the-message.md says why, and how long it takes.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import math
import mmap
import os
import resource
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import rebuild_storage_fd, reduce_storage
from torch.utils.data import get_worker_info

from storeds.errors import ConfigError
from storeds.protocols import Array
from storeds.transforms.operations import DeferredImage

__all__ = [
    "BufferPool",
    "PackedBatch",
    "ScaledInPool",
    "SlotMemory",
    "SlotName",
    "SlotPool",
    "TensorLike",
    "empty_batch",
    "in_one_memory",
    "is_plain",
    "is_tv_tensor",
    "layout_of",
    "plain_tensor",
    "use_memory",
    "write",
]

TensorLike: TypeAlias = torch.Tensor | DeferredImage

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
        memory = _shared_pool()
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


def in_one_memory(values: Sequence[TensorLike]) -> list[torch.Tensor]:
    """Return values of any shapes as tensors; the deferred images among them are scaled into one memory."""
    sizes = [value.image.numel() if isinstance(value, DeferredImage) else 0 for value in values]
    whole = empty_batch((sum(sizes),), torch.float32)
    tensors = []
    for value, part in zip(values, torch.split(whole, sizes), strict=True):
        if isinstance(value, DeferredImage):
            part = part.view(value.image.shape)
            value.scale_into(value.image, part)
            tensors.append(part)
        else:
            tensors.append(value)
    return tensors


def _tensor_at(memory: Array, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a memory; it and every view of it refer to one array, which is made here."""
    return _as_tensor(memory[start : start + math.prod(shape) * dtype.itemsize], shape, dtype)


def _as_tensor(array: Array, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor whose bytes are those of an array."""
    if not len(array):  # NumPy's stride of nothing may be 0, which torch does not view as another dtype
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.from_numpy(array).view(dtype).view(tuple(shape))


# --- Memory that one process reuses ---


def _references(arrays: Sequence[Array], at: int) -> int:
    return sys.getrefcount(arrays[at])


_UNUSED = _references([np.empty(1, np.uint8)], 0)


class BufferPool:
    """Makes tensors from a few arrays, and reuses an array when nothing refers to its tensor any more. Thread-safe.

    A tensor made from an array refers to it, and so does every view of that tensor. So the array's reference count shows
    whether anything can still see it. A pickle or copy of the pool is empty.

    Parameters
    ----------
    limit : int
        The number of arrays to keep. Tensors that are kept beyond that get memory of their own.
    smallest : int
        Bytes from which memory is reused.
    """

    def __init__(self, limit: int, smallest: int = 1 << 20) -> None:
        self._limit, self._smallest = limit, smallest
        self._arrays: list[Array] = []
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that nothing else uses."""
        size = math.prod(shape) * dtype.itemsize
        array = self._acquire(size) if size >= self._smallest else None
        if array is None:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        return _tensor_at(array, 0, shape, dtype)

    def _acquire(self, size: int) -> Array | None:
        # Never wait: a fork may have copied the lock while another thread held it.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._unused(size)
        finally:
            self._lock.release()

    def _unused(self, size: int) -> Array | None:
        for at in range(len(self._arrays)):
            if _references(self._arrays, at) == _UNUSED:
                if not size <= len(self._arrays[at]) <= 2 * size:
                    self._arrays[at] = np.empty(size, np.uint8)
                return self._arrays[at]
        if len(self._arrays) < self._limit:
            self._arrays.append(np.empty(size, np.uint8))
            return self._arrays[-1]
        return None

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int, int]]:
        return BufferPool, (self._limit, self._smallest)


class ScaledInPool:
    """Scales deferred images in memory that the process reuses; returns other values unchanged.

    Fresh memory for every image costs a worker of a plain DataLoader about as much as resizing it.
    """

    def __init__(self) -> None:
        self._pool = BufferPool(limit=_MAX_SAMPLES, smallest=1 << 18)

    def __call__(self, value: Any) -> Any:
        return value.scaled(self._pool.empty) if isinstance(value, DeferredImage) else value


_MAX_SAMPLES = 64  # a usual batch


# --- Memory that a worker of a plain DataLoader reuses ---

_MAX_BUFFERS = 32  # of one worker
_SMALLEST_SHARED = 1 << 16  # bytes; PyTorch sends smaller tensors by a copy


class SharedPool:
    """Makes the tensors of a worker in anonymous memory, which PyTorch sends without a copy, and which is used again.

    Each use of a buffer opens its file once more and locks it. PyTorch sends that descriptor with the tensor, and keeps
    it open as long as the tensor lives. Only when all processes have closed it, also those that were forked or killed,
    the kernel drops the lock, and the buffer can be locked again. In no process does another hold the memory.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[int, Array]] = []  # file and memory
        self._leases: dict[int, int] = {}  # address → descriptor, of tensors that this process holds
        ForkingPickler.register(torch.UntypedStorage, self._reduced)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that no process uses."""
        size = math.prod(shape) * dtype.itemsize
        found = self._acquire(size) if size >= _SMALLEST_SHARED else None
        if found is None:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        lease, memory = found
        array = memory[:size]
        self._leases[array.ctypes.data] = lease
        weakref.finalize(array, self._release, array.ctypes.data).atexit = False
        return _as_tensor(array, shape, dtype)

    def _acquire(self, size: int) -> tuple[int, Array] | None:
        """Return a locked descriptor and memory of at least so many bytes; None where files cannot be opened."""
        try:
            for file, memory in self._buffers:
                lease = _locked(file) if size <= len(memory) <= 2 * size else None
                if lease is not None:
                    return lease, memory
            file = os.memfd_create("storeds-buffer")
            memory = _grown(file, size)
            weakref.finalize(memory, os.close, file).atexit = False
            # Where a process holds the oldest one, its memory stays.
            self._buffers = [*self._buffers[1 - _MAX_BUFFERS :], (file, memory)]
            lease = _locked(file)
        except OSError:  # no /proc, or too many open files
            return None
        return None if lease is None else (lease, memory)

    def _release(self, address: int) -> None:
        os.close(self._leases.pop(address))

    def _reduced(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        """Return what PyTorch sends: the descriptor of a tensor in a buffer; of other memory what it always sends."""
        lease = self._leases.get(storage.data_ptr())
        if lease is None or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
            return reduce_storage(storage)  # type: ignore[no-any-return, no-untyped-call]  # torch leaves it without types
        return rebuild_storage_fd, (type(storage), DupFd(lease), storage.nbytes())


@functools.cache
def _shared_pool() -> SharedPool:
    return SharedPool()


def _locked(file: int) -> int | None:
    """Return a new descriptor of a file, which it locks; None if another one has the lock."""
    lease = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lease)
        return None
    return lease


def _grown(file: int, size: int) -> Array:
    """Return the memory of a file, at least so many bytes."""
    try:
        held = os.fstat(file).st_size
        if held < size:
            held = -(-size // _PAGES) * _PAGES
            os.posix_fallocate(file, 0, held)  # fails here, where writing would end the process
        return _map(file, held)
    except OSError as error:
        raise RuntimeError(
            f"no memory is left for a batch of {size:,} bytes, which a worker shares with the training process "
            f"({error}): use smaller batches, fewer workers or a smaller prefetch_factor, or raise the memory limit"
        ) from error


def _map(file: int, size: int) -> Array:
    return np.frombuffer(mmap.mmap(file, size), np.uint8) if size else np.empty(0, np.uint8)


# --- Slots: the training process ---

_MAX_SLOTS = 256  # each takes two file descriptors
_PAGES = 1 << 16  # a slot grows in steps of so many bytes


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
            self.memory = _map(self.file, os.fstat(self.file).st_size)
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
        return _as_tensor(array, shape, dtype)

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
        return _tensor_at(self._mappings[-1], start, shape, dtype)

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
            memory = _grown(file, size)
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
        return _tensor_at(np.frombuffer(bytearray(leaf.values), np.uint8), 0, leaf.shape, leaf.dtype)

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
