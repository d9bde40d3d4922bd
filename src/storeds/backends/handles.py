"""Owns every open engine handle of a process: sharing, a bounded count, leases, and forks.

A handle (an LMDB environment, a file descriptor, a MongoClient) is used and closed only in the process that
opened it. Equal backends share one. When too many are open, the pool closes the least recently used; it never closes
one that a reader uses. Each engine has its own pool, created *after* the engine is imported: fork hooks run in reverse
order of registration, so ours take the pool's lock before h5py takes libhdf5's. An opening thread takes them in the
same order; the other order deadlocks. Handles that check the process id follow s3torchconnector; the LRU of handles
with picklable openers follows xarray's ``CachingFileManager``.
"""

from __future__ import annotations

import atexit
import os
import stat
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from storeds._utils.locations import check_status, refused, sniff_descriptor, stat_store
from storeds.errors import ClosedError, ConfigError

__all__ = ["HandlePool", "HandleRef", "Lease", "OpenStore", "Opener"]

H = TypeVar("H")


class Opener(Protocol[H]):
    """Opens one handle; holds configuration only."""

    @property
    def url(self) -> str:
        """The store or server, secrets removed."""
        ...

    def key(self) -> Hashable:
        """Return the identity of the opened resource: two openers with equal keys share one handle."""
        ...

    def options(self) -> Hashable:
        """Return the settings that all users of a shared handle must agree on."""
        ...

    def open(self) -> H: ...

    def close(self, handle: H, /) -> None: ...

    def abandon_after_fork(self, handle: H, /) -> None:
        """Release, in a forked child, a handle that the parent opened, without affecting the parent."""
        ...


class _Entry(Generic[H]):
    def __init__(self, opener: Opener[H], key: Hashable, handle: H) -> None:
        self.opener, self.key, self.pid = opener, key, os.getpid()
        self.handle: H | None = handle
        self.owners: set[int] = set()
        self.leases = 0
        self.doomed = False

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self.opener.close(handle)

    def abandon_after_fork(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self.opener.abandon_after_fork(handle)


class Lease(Generic[H]):
    """A context in which a handle stays open. A class, because a generator costs more than some reads."""

    __slots__ = ("_entry", "_ref")

    def __init__(self, ref: HandleRef[H]) -> None:
        self._ref = ref

    def __enter__(self) -> H:
        self._entry, handle = self._ref.pool.acquire(self._ref)
        return handle

    def __exit__(self, *_: object) -> None:
        self._ref.pool.release(self._entry)


class _Exclusive:
    """The critical section of a pool; see `HandlePool._start`."""

    __slots__ = ("_before", "_lock", "_pool")

    def __init__(self, pool: HandlePool[Any]) -> None:
        self._pool, self._lock = pool, pool._lock

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before, self._pool._inside = self._pool._inside, True

    def __exit__(self, *_: object) -> None:
        self._pool._inside = self._before
        self._lock.release()


class HandleRef(Generic[H]):
    """One backend's reference to a handle, which opens on first use.

    While `opened` is set, the pool passes it to the opener's ``key`` and ``open``, which then open no file twice.
    """

    def __init__(self, pool: HandlePool[H], opener: Opener[H]) -> None:
        self.pool: HandlePool[H] = pool
        self.opener: Opener[H] = opener
        self.opened: OpenStore | None = None
        self.entry: _Entry[H] | None = None
        self.closed: bool = False

    def lease(self) -> Lease[H]:
        """Open the handle if necessary and keep it open for the body of a ``with``."""
        return Lease(self)

    def release(self) -> None:
        """Hold no handle until the next lease."""
        self.pool.forget(self)

    def invalidate(self) -> None:
        """Release the handle, and stop sharing it: the store was replaced."""
        self.pool.invalidate(self)

    def close(self) -> None:
        """Release the handle for good; it closes once no other reference or lease uses it."""
        self.closed = True
        self.pool.forget(self)


class HandlePool(Generic[H]):
    """The handles of one engine in this process. Thread-safe; correct after a fork.

    Parameters
    ----------
    limit : int
        Maximum number of open handles that no lease uses.
    quiesce : bool
        Whether a fork waits until opens, closes and reads end. Engines with global state about open files (LMDB, HDF5)
        need it; engines that may wait for a network must not use it.
    """

    def __init__(self, *, limit: int, quiesce: bool) -> None:
        self._limit = limit
        self._entries: OrderedDict[Hashable, _Entry[H]] = OrderedDict()
        self._start()
        self._dropped: deque[HandleRef[H]] = deque()
        os.register_at_fork(after_in_child=self._reset_in_child)
        if quiesce:
            os.register_at_fork(before=self._lock_for_fork, after_in_parent=self._unlock_after_fork)
        atexit.register(self.close_all)

    def _start(self) -> None:
        # Garbage collection may run finalizers inside our own critical section. The lock is reentrant, so they do not
        # block; with `_inside` set they only queue their reference for `_sweep`.
        self._lock = threading.RLock()
        self._inside = False
        self._pid = os.getpid()
        self._leases = 0
        self._forking = False
        self._changed = threading.Condition(self._lock)

    def ref(self, owner: object, opener: Opener[H]) -> HandleRef[H]:
        """Return a reference that ends with `owner`, or earlier by `HandleRef.close`."""
        ref = HandleRef(self, opener)
        weakref.finalize(owner, self._drop, ref).atexit = False
        return ref

    def acquire(self, ref: HandleRef[H]) -> tuple[_Entry[H], H]:
        if self._pid != os.getpid():  # forked by C code that runs no hooks
            self._reset_in_child()
        with self._exclusive():
            while self._forking:
                self._wait()
            self._sweep()
            if ref.closed:
                raise ClosedError(f"{ref.opener.url} was closed; open it again with open_backend")
            self._abandon_inherited(ref)
            entry = ref.entry
            if entry is None or entry.handle is None or entry.doomed:
                entry = self._find_or_open(ref)
            entry.leases += 1
            self._leases += 1
            if self._entries.get(entry.key) is entry:  # not invalidated
                self._entries.move_to_end(entry.key)
            assert entry.handle is not None
            return entry, entry.handle

    def _find_or_open(self, ref: HandleRef[H]) -> _Entry[H]:
        opener: Any = ref.opener
        shared = () if ref.opened is None else (ref.opened,)
        key = opener.key(*shared)
        entry = self._entries.get(key)
        if entry is not None and type(entry.opener) is not type(opener) and entry.leases == 0:
            # Another layout opened it, perhaps during detection; its backend opens it again if needed.
            self._remove(entry)
            entry = None
        if entry is None:
            self._evict(self._limit - 1)
            entry = self._entries[key] = _Entry(opener, key, opener.open(*shared))
        elif entry.opener.options() != opener.options():
            raise ConfigError(
                f"{opener.url} is already open in this process with other options: {entry.opener.options()} there, "
                f"{opener.options()} here; use the same options, or close the other backend first"
            )
        entry.owners.add(id(ref))
        entry.doomed = False
        ref.entry = entry
        return entry

    def release(self, entry: _Entry[H]) -> None:
        with self._exclusive():
            entry.leases -= 1
            self._leases -= 1
            if self._forking and self._leases <= 0:
                self._changed.notify_all()
            if entry.doomed and entry.leases == 0:
                self._remove(entry)
            if len(self._entries) > self._limit:  # more leases than that existed at once
                self._evict(self._limit)
            self._sweep()

    def forget(self, ref: HandleRef[H]) -> None:
        with self._lock:
            self._dropped.append(ref)
            if not self._inside:
                with self._exclusive():
                    self._sweep()

    def invalidate(self, ref: HandleRef[H]) -> None:
        with self._exclusive():
            entry = ref.entry
            if entry is not None and self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            self._forget(ref)

    def close_all(self) -> None:
        """Close every handle that no lease uses; references stay valid and reopen on their next use."""
        with self._exclusive():
            self._sweep()
            for entry in [entry for entry in self._entries.values() if entry.leases == 0]:
                self._remove(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def _exclusive(self) -> _Exclusive:
        return _Exclusive(self)

    # The methods below run inside the critical section.

    def _wait(self) -> None:
        self._inside = False  # other threads may enter while this one waits
        self._changed.wait()
        self._inside = True

    def _evict(self, keep: int) -> None:
        idle = [entry for entry in self._entries.values() if entry.leases == 0]
        for entry in idle[: max(0, len(self._entries) - keep)]:
            self._remove(entry)

    def _abandon_inherited(self, ref: HandleRef[H]) -> None:
        """Abandon a handle that the parent invalidated before the fork; no list contains it."""
        if ref.entry is not None and ref.entry.pid != os.getpid():
            ref.entry.abandon_after_fork()
            ref.entry = None

    def _forget(self, ref: HandleRef[H]) -> None:
        self._abandon_inherited(ref)
        entry, ref.entry = ref.entry, None
        if entry is None or entry.handle is None:
            return
        entry.owners.discard(id(ref))
        if not entry.owners:
            entry.doomed = True
            if entry.leases == 0:
                self._remove(entry)

    def _remove(self, entry: _Entry[H]) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        entry.close()

    def _sweep(self) -> None:
        while self._dropped:
            self._forget(self._dropped.popleft())

    # Finalizers and fork hooks.

    def _drop(self, ref: HandleRef[H]) -> None:
        self._dropped.append(ref)
        if self._lock.acquire(blocking=False):
            try:
                if not self._inside:
                    with self._exclusive():
                        self._sweep()
            finally:
                self._lock.release()

    def _lock_for_fork(self) -> None:
        # py-lmdb's close waits for running operations; in the child, operations of the parent's other threads never
        # end. New leases wait meanwhile, so a thread must not request a second lease while it holds one.
        self._lock.acquire()
        self._inside = True
        while self._leases > 0:
            self._forking = True
            self._wait()

    def _unlock_after_fork(self) -> None:
        self._forking = self._inside = False
        self._changed.notify_all()
        self._lock.release()

    def _reset_in_child(self) -> None:
        self._start()
        inherited, self._entries = self._entries, OrderedDict()
        for entry in inherited.values():
            entry.abandon_after_fork()


T = TypeVar("T")


class OpenStore:
    """What the native backend and all candidate layouts share of one store that is being opened.

    `storeds.open_backend` creates one, passes it to each class that has ``shares_open_store = True``, and closes it.
    It opens nothing by itself. Used by one thread.
    """

    def __init__(self) -> None:
        self._shared: dict[Hashable, tuple[Any, Callable[[Any], object]]] = {}
        self._inspected: dict[str, tuple[os.stat_result, str | None]] = {}

    @classmethod
    @contextmanager
    def borrow(cls, opened: OpenStore | None) -> Iterator[OpenStore]:
        """Yield `opened`, left open at the end, or for None a new one that is closed at the end."""
        if opened is not None:
            yield opened
        else:
            with cls() as own:
                yield own

    def share(self, name: Hashable, open: Callable[[], T], close: Callable[[T], object]) -> T:
        """Return the shared object `name`; the first caller opens it."""
        if name not in self._shared:
            self._shared[name] = open(), close
        found: T = self._shared[name][0]
        return found

    def take(self, name: Hashable) -> None:
        """Transfer the shared object `name` to the caller, who must close it."""
        del self._shared[name]

    def descriptor(self, path: str) -> int:
        """Return a read-only descriptor of the file at `path`; ``take(path)`` keeps it. Raises OSError."""
        return self.share(path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), os.close)

    def inspect_file(self, path: str, url: str) -> tuple[os.stat_result, str | None]:
        """Return the status of the file or folder at `path`, and its engine by its magic bytes: ``lmdb``, ``hdf5`` or None.

        Raises
        ------
        StoreNotFoundError
            Nothing is there.
        UnavailableError
            The system does not allow access, for example for lack of permission.
        FormatError
            It is neither a file nor a folder.
        """
        if path not in self._inspected:
            status = stat_store(path, url)
            engine = None
            if not stat.S_ISDIR(status.st_mode):
                try:
                    descriptor = self.descriptor(path)
                    # The status of the opened file: it may have replaced the one that `stat` saw.
                    status = os.fstat(descriptor)
                    engine = sniff_descriptor(descriptor, status.st_size)
                except OSError as error:
                    raise refused(url, "read", error) from None
            self._inspected[path] = status, engine
        return self._inspected[path]

    def check_file(self, path: str, kind: str, url: str) -> os.stat_result:
        """Return the status of the store file at `path`; raises unless it is a regular file of engine `kind`."""
        status, engine = self.inspect_file(path, url)
        check_status(path, status, engine, kind, url)
        return status

    def close(self) -> None:
        """Close all shared objects that were not taken, in reverse order."""
        while self._shared:
            _, (found, close) = self._shared.popitem()
            close(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
