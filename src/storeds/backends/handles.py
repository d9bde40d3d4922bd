"""Owns every open handle of a process: shares them, bounds their number, and closes them before a fork.

A *handle* is an open file, environment or client, see `storeds.backends.raw.HandleOpener`. A `Lease` keeps one open. Handles that
nobody leases close when their last owner goes, when too many are open (the least recently used first), and before a fork, so
that a child inherits nothing to close; s3torchconnector releases its clients so. A fork waits until other threads end their
leases, except those that may wait for a network: their handles stay open in the child, where nobody uses them.
"""

from __future__ import annotations

import atexit
import logging
import os
import resource
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from storeds._utils.files import os_failure
from storeds.backends.raw import HandleOpener
from storeds.errors import ClosedError, StoredsError

__all__ = ["POOL", "HandlePool", "HandleRef", "Lease"]

H = TypeVar("H")
_LOG = logging.getLogger("storeds")
# Open handles that nobody leases: a quarter of the descriptors that a process may have, and often 256.
_LIMIT = min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, 128), 1024)
_PATIENCE = 1.0  # seconds
_INHERITED: list[Any] = []  # in a child: handles of its parent, which must not be collected


class _Entry(Generic[H]):
    """A handle in the pool; `handle` is None while it is opened, and after it was closed."""

    def __init__(self, opener: HandleOpener[H], key: Hashable) -> None:
        self.opener, self.key = opener, key
        self.handle: H | None = None
        self.is_opening = True
        self.owners: set[HandleRef[H]] = set()
        self.attached: dict[HandleRef[H], Any] = {}
        """What owners made of the handle; it goes with the handle, or its owner."""


class Lease(Generic[H]):
    """A context in which the handle of a reference stays open. A class: a generator costs more than some reads.

    It opens the handle where necessary. An OSError meanwhile, or in the body, becomes an error that names the store.
    """

    __slots__ = ("entry", "ref", "thread")
    entry: _Entry[H]
    thread: int

    def __init__(self, ref: HandleRef[H]) -> None:
        self.ref = ref

    def __enter__(self) -> H:
        self.thread = threading.get_ident()
        try:
            return self._begin()
        except BaseException as error:  # also an interrupt: nobody else would end the lease
            self._end()
            self._convert(error, "opened")
            raise

    def _begin(self) -> H:
        ref, pool = self.ref, self.ref.pool
        with pool.locked():
            if pool._forking is not None:
                pool._wait_for_fork(self)
            if ref.closed:
                raise ClosedError(f"{ref.opener.url} was closed; open it again with open_backend")
            entry = ref.entry
            handle = None if entry is None else entry.handle
            if entry is not None and handle is not None:
                self.entry = entry
                pool._leases.add(self)
                pool._entries.move_to_end(entry.key)
                return handle
        return self._share_or_open()

    def _share_or_open(self) -> H:
        ref, pool = self.ref, self.ref.pool
        while True:
            key = ref.opener.key()
            with pool.locked():
                pool._wait_for_fork(self)
                entry = pool._entries.get(key)
                if entry is not None and pool._is_opened_by(entry, self.thread):
                    key, entry = object(), None  # a signal handler reads while its thread opens this handle
                if entry is None:
                    entry = pool._announce(self, key)
                    break
                if entry.handle is not None:
                    return self._share(entry, entry.handle)
                pool._changed.wait()  # another thread opens it
        handle = ref.opener.open()
        with pool.locked():
            entry.handle, entry.is_opening = handle, False
            entry.owners.add(ref)
            ref.entry = entry
            pool._changed.notify_all()
        return handle

    def _share(self, entry: _Entry[H], handle: H) -> H:
        pool, ref = self.ref.pool, self.ref
        ref.entry = entry
        self.entry = entry
        pool._leases.add(self)
        entry.owners.add(ref)
        if entry.opener != ref.opener:
            _LOG.debug("%s shares the handle that was opened for %s", ref.opener.url, entry.opener.url)
        pool._entries.move_to_end(entry.key)
        return handle

    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        self._end()
        if error is not None:
            self._convert(error, "read")

    def _end(self) -> None:
        pool = self.ref.pool
        with pool.locked():
            if self in pool._leases:
                pool._leases.discard(self)
                if self.entry.is_opening:  # which failed
                    pool._remove(self.entry)
                    pool._changed.notify_all()
                elif not self.entry.owners and not pool._is_leased(self.entry):
                    pool._remove(self.entry)
            if pool._forking is not None:
                pool._changed.notify_all()
            if len(pool._entries) > pool._limit:  # more leases than that existed at once
                pool._evict(pool._limit)
        pool._forget_dropped()

    def _convert(self, error: BaseException, done: str) -> None:
        """Raise an error that names the store for a failed system call."""
        if isinstance(error, OSError) and not isinstance(error, StoredsError):  # some of ours are OSErrors too
            raise os_failure(self.ref.opener.url, done, error) from error


class HandleRef(Generic[H]):
    """One owner's reference to a handle, which opens on the first lease."""

    def __init__(self, pool: HandlePool, opener: HandleOpener[H]) -> None:
        self.pool, self.opener = pool, opener
        self.entry: _Entry[H] | None = None
        self.closed: bool = False

    def lease(self) -> Lease[H]:
        """Keep the handle open for the body of a ``with``."""
        return Lease(self)

    def release(self) -> None:
        """Own no handle until the next lease."""
        self.pool._dropped.append(self)
        self.pool._forget_dropped()

    def invalidate(self) -> None:
        """Release the handle, and stop sharing it: it shows what is not stored any more."""
        pool = self.pool
        with pool.locked():
            if self.entry is not None:
                pool._hide(self.entry)
            pool._forget(self)

    def close(self) -> None:
        """Release the handle for good; it closes once no other reference or lease uses it."""
        self.closed = True
        self.release()


class HandlePool:
    """The handles of this process. Thread-safe; correct after a fork.

    Parameters
    ----------
    limit : int
        Maximum number of open handles that no lease uses.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._dropped: deque[HandleRef[Any]] = deque()
        self._start()
        os.register_at_fork(after_in_child=self._reset_in_child)
        self.wait_before_forks()  # also for the engines of plug-ins
        atexit.register(self.close_all)

    def _start(self) -> None:
        self._pid = os.getpid()
        # Garbage collection may run finalizers while this thread has the lock, and signal handlers may read or fork there,
        # so it is reentrant. `with` takes it in C: an interrupt cannot leave it taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # a lease, an opening or a fork ends
        self._entries: OrderedDict[Hashable, _Entry[Any]] = OrderedDict()
        self._leases: set[Lease[Any]] = set()
        self._closing: deque[tuple[HandleOpener[Any], Any]] = deque()
        self._forking: int | None = None  # the thread that waits to fork, or forks

    def wait_before_forks(self) -> None:
        """Have forks wait for leases. An engine calls it again after it has imported a library with hooks of its own.

        Hooks run in reverse order. So this one runs before that of h5py, which takes the lock that reading threads need.
        """
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork)

    def ref(self, owner: object, opener: HandleOpener[H]) -> HandleRef[H]:
        """Return a reference that ends with `owner`, or earlier by `HandleRef.close`."""
        ref = HandleRef(self, opener)
        weakref.finalize(owner, self._drop, ref).atexit = False
        return ref

    @contextmanager
    def leased(self, opener: HandleOpener[H]) -> Iterator[H]:
        """Keep a handle open for the body of a ``with``, without an owner."""
        ref = HandleRef(self, opener)
        try:
            with Lease(ref) as handle:
                yield handle
        finally:
            ref.close()

    def close_all(self) -> None:
        """Close every handle that no lease uses; references stay valid and reopen on their next use."""
        with self.locked():
            self._sweep()
            self._evict(0)
        self._close_slow()

    def __len__(self) -> int:
        return len(self._entries)

    def locked(self) -> threading.RLock:
        """Return the lock of this process."""
        if self._pid != os.getpid():  # forked by C code that runs no hooks
            self._reset_in_child()
        return self._lock

    def _is_inside(self) -> bool:
        """Whether this thread has the lock."""
        is_owned: bool = self.locked()._is_owned()  # type: ignore[attr-defined]  # as `threading.Condition` asks
        return is_owned

    def _forget_dropped(self) -> None:
        """Forget references that were dropped; inside of the lock, whose statements count on what they found, later."""
        if (self._dropped or self._closing) and not self._is_inside():
            with self.locked():
                self._sweep()
            self._close_slow()

    def _close_slow(self) -> None:
        """Close, without the lock, what may wait for a network meanwhile."""
        with suppress(IndexError):  # another thread takes the last one
            while self._closing:
                opener, handle = self._closing.popleft()
                opener.close(handle)

    # The methods below run while this thread has the lock.

    def _wait_for_fork(self, lease: Lease[Any]) -> None:
        """Wait for the end of a fork, unless it waits for this thread, which may need another handle to end its lease."""
        while self._forking not in (None, lease.thread) and not self._has_leases(lease.thread):
            self._changed.wait()

    def _has_leases(self, thread: int) -> bool:
        return any(lease.thread == thread for lease in self._leases)

    def _announce(self, lease: Lease[H], key: Hashable) -> _Entry[H]:
        """Return the entry of a handle that this thread opens next, without the lock."""
        self._evict(self._limit - 1)
        lease.entry = self._entries[key] = _Entry(lease.ref.opener, key)
        self._leases.add(lease)
        return lease.entry

    def _is_leased(self, entry: _Entry[Any]) -> bool:
        return any(lease.entry is entry for lease in self._leases)

    def _is_opened_by(self, entry: _Entry[Any], thread: int) -> bool:
        return entry.is_opening and any(lease.entry is entry and lease.thread == thread for lease in self._leases)

    def _evict(self, keep: int) -> None:
        idle = [entry for entry in self._entries.values() if not self._is_leased(entry)]
        for entry in idle[: max(0, len(self._entries) - keep)]:
            self._remove(entry)

    def _forget(self, ref: HandleRef[Any]) -> None:
        entry, ref.entry = ref.entry, None
        if entry is not None:
            entry.owners.discard(ref)
            entry.attached.pop(ref, None)
            if not entry.owners and not self._is_leased(entry):
                self._remove(entry)

    def _hide(self, entry: _Entry[Any]) -> None:
        """Give an entry a key that no opener has."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            entry.key = object()
            self._entries[entry.key] = entry

    def _remove(self, entry: _Entry[Any]) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        handle, entry.handle = entry.handle, None
        entry.attached.clear()
        if handle is not None and entry.opener.may_wait:
            self._closing.append((entry.opener, handle))
        elif handle is not None:
            entry.opener.close(handle)

    def _sweep(self) -> None:
        while self._dropped:
            self._forget(self._dropped.popleft())

    # Finalizers and forks.

    def _drop(self, ref: HandleRef[Any]) -> None:
        # A finalizer runs at any moment and must not wait: the thread with the lock, or the next one, forgets the reference.
        self._dropped.append(ref)
        if not self._is_inside() and self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()
            self._close_slow()

    def _before_fork(self) -> None:
        thread = threading.get_ident()
        self.locked().acquire()
        if self._forking == thread:  # the hook of another engine ran before
            self._lock.release()
            return
        while self._forking is not None:  # another thread forks
            self._changed.wait()
        self._forking = thread
        # A read of this thread, which a signal handler interrupted, may hold what others wait for: do not wait long then.
        patience = _PATIENCE if self._has_leases(thread) else None
        while any(not lease.ref.opener.may_wait and lease.thread != thread for lease in self._leases):
            if not self._changed.wait(patience):
                break
        self._sweep()
        for entry in list(self._entries.values()):
            if not entry.opener.may_wait and not self._is_leased(entry):
                self._remove(entry)

    def _after_fork(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = None
            self._changed.notify_all()
            self._lock.release()

    def _reset_in_child(self) -> None:
        # The thread that forked may be inside of a read, which goes on in the child.
        thread, leases, entries = threading.get_ident(), self._leases, self._entries
        self._start()
        self._leases = {lease for lease in leases if lease.thread == thread}
        used = {lease.entry for lease in leases}
        for key, entry in entries.items():
            if self._is_leased(entry):
                self._entries[key] = entry
                continue
            handle, entry.handle = entry.handle, None
            if entry.opener.may_wait or entry in used:
                _INHERITED.append(handle)  # closing it may wait for a thread that the child does not have
            elif handle is not None:  # after a fork by C code
                entry.opener.close(handle)


POOL = HandlePool()
"""The pool of this process."""
