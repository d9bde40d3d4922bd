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
import logging
import os
import stat
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from storeds._utils.files import check_status, engine_of_descriptor, os_failure, stat_store
from storeds.errors import ClosedError, StoredsError, StoreNotFoundError, UnavailableError

__all__ = ["HandlePool", "HandleRef", "Lease", "OpenStore", "Opener"]

H = TypeVar("H")
_LOG = logging.getLogger("storeds")
_PATIENCE = 1.0  # seconds
_LEFT_OPEN: list[Any] = []  # in a forked child: handles that cannot be closed


class Opener(Protocol[H]):
    """Opens one handle; holds configuration only."""

    @property
    def url(self) -> str:
        """The store or server, secrets removed."""
        ...

    def key(self) -> Hashable:
        """Return the identity of the handle: openers with equal keys share one, with the settings of the first opener.

        A setting that changes what is read belongs in the key. Settings that only change speed do not.
        """
        ...

    def open(self) -> H: ...

    def close(self, handle: H, /) -> None: ...

    def abandon_after_fork(self, handle: H, /) -> None:
        """Release, in a forked child, a handle that the parent opened, without affecting the parent."""
        ...


class _Entry(Generic[H]):
    """A handle in a pool; `handle` is None once it is closed."""

    def __init__(self, opener: Opener[H], key: Hashable, handle: H) -> None:
        self.opener, self.key = opener, key
        self.handle: H | None = handle
        self.owners: set[HandleRef[H]] = set()


class Lease(Generic[H]):
    """A context in which the handle of a reference stays open. A class: a generator costs more than some reads.

    An OSError while it opens the handle, or in the body, becomes an UnavailableError that names the store.

    Parameters
    ----------
    ref : HandleRef
    check : callable, optional
        Given for a store that was opened before: raises if the handle reads another store than then. It is an
        UnavailableError if the store is gone.
    """

    __slots__ = ("check", "entry", "ref", "thread")
    entry: _Entry[H]
    thread: int

    def __init__(self, ref: HandleRef[H], check: Callable[[H], object] | None = None) -> None:
        self.ref, self.check = ref, check

    def __enter__(self) -> H:
        self.thread = threading.get_ident()
        try:
            try:
                handle = self._begin()
                if self.check is not None:
                    self.check(handle)
            except BaseException:  # also an interrupt: nobody else would end the lease
                self._end()
                raise
        except StoreNotFoundError as error:
            if self.check is None:
                raise
            url = self.ref.opener.url
            raise UnavailableError(f"{url} was there when it was opened and is gone now: {error}") from error
        except OSError as error:
            self._convert(error, "opened")
            raise
        return handle

    def _begin(self) -> H:
        ref, pool = self.ref, self.ref.pool
        with pool._exclusive():
            while pool._forking is not None and pool._must_wait(self.thread):
                pool._changed.wait()
            if ref.closed:
                raise ClosedError(f"{ref.opener.url} was closed; open it again with open_backend")
            handle: H | None = None
            while handle is None:
                while (entry := ref.entry) is None or entry.handle is None:
                    ref.entry = pool._find_or_open(ref)
                self.entry = entry
                pool._leases.add(self)
                # A signal handler may fork at each call; its child closed the handle unless `_leases` had the lease.
                handle = entry.handle
            pool._entries.move_to_end(self.entry.key)
        return handle

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self._end()
        if isinstance(error, OSError):
            self._convert(error, "read")

    def _end(self) -> None:
        pool = self.ref.pool
        with pool._exclusive():
            if self in pool._leases:
                pool._leases.discard(self)
                if not self.entry.owners and not pool._is_leased(self.entry):
                    pool._remove(self.entry)
            if pool._forking is not None:
                pool._changed.notify_all()
            if len(pool._entries) > pool._limit:  # more leases than that existed at once
                pool._evict(pool._limit)
        pool._forget_dropped()

    def _convert(self, error: OSError, done: str) -> None:
        """Raise an error that names the store for a failed system call."""
        if not isinstance(error, StoredsError):  # some of ours are OSErrors too
            raise os_failure(self.ref.opener.url, done, error) from error


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
        self.pool._dropped.append(self)
        self.pool._forget_dropped()

    def invalidate(self) -> None:
        """Release the handle, and stop sharing it: the store was replaced."""
        pool = self.pool
        with pool._exclusive():
            entry = self.entry
            if entry is not None and pool._entries.get(entry.key) is entry:
                del pool._entries[entry.key]
                entry.key = object()  # no opener's
                pool._entries[entry.key] = entry
            pool._forget(self)

    def close(self) -> None:
        """Release the handle for good; it closes once no other reference or lease uses it."""
        self.closed = True
        self.release()


class HandlePool(Generic[H]):
    """The handles of one engine in this process. Thread-safe; correct after a fork.

    Parameters
    ----------
    limit : int
        Maximum number of open handles that no lease uses.
    quiesce : bool
        Whether a fork waits until opens, closes and reads of other threads end. Engines with global state about open
        files (LMDB, HDF5) need it; engines that may wait for a network must not use it.

    Notes
    -----
    A signal handler may fork while its own thread reads. The fork does not wait for that read, and waits for others only
    while they end: they may need a lock of that read. With `quiesce`, the child keeps the handle of the interrupted read.
    """

    def __init__(self, *, limit: int, quiesce: bool) -> None:
        self._limit, self._quiesce = limit, quiesce
        self._dropped: deque[HandleRef[H]] = deque()
        self._start()
        os.register_at_fork(after_in_child=self._reset_in_child)
        if quiesce:
            os.register_at_fork(before=self._lock_for_fork, after_in_parent=self._unlock_after_fork)
        atexit.register(self.close_all)

    def _start(self) -> None:
        self._pid = os.getpid()
        # Garbage collection may run finalizers while this thread has the lock, and signal handlers may read or fork there,
        # so it is reentrant. `with` takes it in C: an interrupt cannot leave it taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # a lease or a fork ends
        self._entries: OrderedDict[Hashable, _Entry[H]] = OrderedDict()
        self._leases: set[Lease[H]] = set()
        self._forking: int | None = None  # the thread that waits to fork

    def ref(self, owner: object, opener: Opener[H]) -> HandleRef[H]:
        """Return a reference that ends with `owner`, or earlier by `HandleRef.close`."""
        ref = HandleRef(self, opener)
        weakref.finalize(owner, self._drop, ref).atexit = False
        return ref

    def _find_or_open(self, ref: HandleRef[H]) -> _Entry[H]:
        opener: Any = ref.opener
        shared = () if ref.opened is None else (ref.opened,)
        key = opener.key(*shared)
        entry = self._entries.get(key)
        if entry is not None and type(entry.opener) is not type(opener) and not self._is_leased(entry):
            # Another layout opened it, perhaps during detection; its backend opens it again if needed.
            self._remove(entry)
            entry = None
        if entry is None:
            self._evict(self._limit - 1)
            entry = self._entries[key] = _Entry(opener, key, opener.open(*shared))
        elif entry.opener != opener:
            _LOG.debug("%s shares the handle that was opened for %s, with its settings", opener.url, entry.opener.url)
        entry.owners.add(ref)
        return entry

    def close_all(self) -> None:
        """Close every handle that no lease uses; references stay valid and reopen on their next use."""
        with self._exclusive():
            self._sweep()
            self._evict(0)

    def __len__(self) -> int:
        return len(self._entries)

    def _exclusive(self) -> threading.RLock:
        """Return the lock of this process."""
        if self._pid != os.getpid():  # forked by C code that runs no hooks
            self._reset_in_child()
        return self._lock

    def _is_inside(self) -> bool:
        """Whether this thread has the lock."""
        is_owned: bool = self._exclusive()._is_owned()  # type: ignore[attr-defined]  # as `threading.Condition` asks
        return is_owned

    def _forget_dropped(self) -> None:
        """Forget references that were dropped; inside of the lock, whose statements count on what they found, later."""
        if self._dropped and not self._is_inside():
            with self._exclusive():
                self._sweep()

    # The methods below run while this thread has the lock.

    def _must_wait(self, thread: int) -> bool:
        """Whether a new lease waits for a fork; the fork waits for threads that have one, and they may need another."""
        return self._forking != thread and all(lease.thread != thread for lease in self._leases)

    def _is_leased(self, entry: _Entry[H]) -> bool:
        return any(lease.entry is entry for lease in self._leases)

    def _evict(self, keep: int) -> None:
        idle = [entry for entry in self._entries.values() if not self._is_leased(entry)]
        for entry in idle[: max(0, len(self._entries) - keep)]:
            self._remove(entry)

    def _forget(self, ref: HandleRef[H]) -> None:
        entry, ref.entry = ref.entry, None
        if entry is not None:
            entry.owners.discard(ref)
            if not entry.owners and not self._is_leased(entry):
                self._remove(entry)

    def _remove(self, entry: _Entry[H]) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        handle, entry.handle = entry.handle, None
        if handle is not None:
            entry.opener.close(handle)

    def _sweep(self) -> None:
        while self._dropped:
            self._forget(self._dropped.popleft())

    # Finalizers and fork hooks.

    def _drop(self, ref: HandleRef[H]) -> None:
        # A finalizer runs at any moment and must not wait: the thread with the lock, or the next one, forgets the reference.
        self._dropped.append(ref)
        if not self._is_inside() and self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _lock_for_fork(self) -> None:
        # py-lmdb's close waits for running operations; in the child, operations of the parent's other threads never
        # end. New leases wait meanwhile, except those of threads that this waits for.
        thread, is_inside = threading.get_ident(), self._is_inside()
        self._lock.acquire()
        # A read that a signal handler interrupted may hold a lock that others wait for, such as libhdf5's.
        interrupted = is_inside or any(lease.thread == thread for lease in self._leases)
        while any(lease.thread != thread for lease in self._leases):
            self._forking = thread
            if not self._changed.wait(_PATIENCE if interrupted else None):
                break

    def _unlock_after_fork(self) -> None:
        self._forking = None
        self._changed.notify_all()
        self._lock.release()

    def _reset_in_child(self) -> None:
        thread, leases, inherited = threading.get_ident(), self._leases, self._entries
        self._start()
        read = {lease.entry for lease in leases} if self._quiesce else set()
        if self._quiesce:  # a read that a signal handler interrupted may go on in the child
            self._leases = {lease for lease in leases if lease.thread == thread}
        for key, entry in inherited.items():
            if self._is_leased(entry):
                self._entries[key] = entry
                continue
            handle, entry.handle = entry.handle, None
            if entry in read:
                _LEFT_OPEN.append(handle)  # closing it may wait for a thread that the child does not have
            elif handle is not None:
                entry.opener.abandon_after_fork(handle)


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
                    engine = engine_of_descriptor(descriptor, status.st_size)
                except OSError as error:
                    raise os_failure(url, "read", error) from None
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
