"""Stores that become one local file: a file of another machine, and a collection of MongoDB."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from storeds._utils.files import engine_of_file
from storeds._utils.urls import file_url
from storeds.backends.staged.cache import Entry, StageCache
from storeds.backends.staged.copying import Moved, check_native, copy_file, native_meta_of
from storeds.backends.staged.remote import remote_at
from storeds.backends.staging import sync_path
from storeds.errors import FormatError, RecordError, StoredsError, UnavailableError
from storeds.protocols import Backend, Writer
from storeds.redaction import redact

__all__ = ["CollectionCopy", "FileCopy", "SingleCopy", "Staged"]

_BATCH = 64  # records
_OURS = re.compile(r"[0-9a-f]{16}\.\w+")


@dataclass(frozen=True)
class Staged:
    """A store on the local disk.

    Attributes
    ----------
    url : str
        What was asked for, secrets removed.
    local : str
        What to open.
    name : str
        Of the copy, for ``storeds stage --remove``.
    moved : int
        Bytes that were copied now.
    is_current : bool
        False if the store could not be reached, and an earlier copy serves.
    """

    url: str
    local: str
    name: str
    moved: int
    is_current: bool = True


class SingleCopy(ABC):
    """The local file of one store; its name is a hash of the state that was copied.

    Attributes
    ----------
    entry : Entry
    url : str
        Secrets removed.
    suffix : str
        Of the local file.
    """

    entry: Entry
    url: str
    suffix: str

    @abstractmethod
    def state(self) -> str:
        """Return a text that changes with the content of the store; raises StoreNotFoundError or UnavailableError."""

    @abstractmethod
    def copy(self, target: Path, progress: Moved | None) -> int:
        """Make the file, verified, and return how many bytes were copied."""

    def fill(self, progress: Moved | None = None) -> Staged:
        """Copy the store unless its file is there, and return where."""
        with self.entry.locked():
            note, moved = self.entry.read_note(), 0
            try:
                target = self._target()
            except UnavailableError:
                if not note.get("complete"):
                    raise
                return Staged(self.url, str(note["local"]), self.entry.folder.name, 0, is_current=False)
            if not (target.exists() and note.get("complete") and note.get("local") == str(target)):
                moved = self.copy(target, progress)
                self.entry.note(complete=True, local=str(target))
                for old in self.entry.folder.iterdir():
                    if old != target and _OURS.fullmatch(old.name):
                        old.unlink()
            return Staged(self.url, str(target), self.entry.folder.name, moved)

    @abstractmethod
    def renew(self, name: str) -> None:
        """Replace the file by the same one if it is damaged; raises StoredsError if that does not help."""

    def _target(self) -> Path:
        return self.entry.folder / f"{xxhash.xxh3_64_hexdigest(self.state().encode())}{self.suffix}"


class FileCopy(SingleCopy):
    """A file of another machine, or of a mounted disk."""

    def __init__(self, place: str, cache: StageCache) -> None:
        self._remote = remote_at(place)
        self.url, self.suffix = self._remote.url, Path(place).suffix
        self.entry = cache.entry(self.url, place.rpartition("/")[2])
        self._asked = remote_at(place, is_needed=not self.entry.read_note().get("complete"))

    def state(self) -> str:
        # docstring inherited
        return self._asked.state("").tag

    def copy(self, target: Path, progress: Moved | None) -> int:
        # docstring inherited
        size, done = self._remote.state("").size, 0
        self.entry.cache.check_room(size, self.url)

        def count(moved: int) -> None:
            nonlocal done
            done += moved
            if progress is not None:
                progress(done, max(size, done))

        copy_file(self._remote, "", target, self._check, count)
        return done

    def renew(self, name: str) -> None:
        # docstring inherited
        with self.entry.locked(to_repair=True):
            local = Path(self.entry.read_note().get("local", ""))
            try:
                check_native(engine_of_file(str(local)) or "", local, self.url)
            except (StoredsError, OSError):
                if self._target() != local:
                    raise UnavailableError(f"{self.url} was replaced meanwhile; open it again") from None
                self.copy(local, None)
                self.entry.count_repair()

    def _check(self, path: Path) -> None:
        engine = engine_of_file(str(path))
        if engine is None:
            raise FormatError(f"{self.url} is neither an LMDB nor an HDF5 file")
        try:
            native_meta_of(engine, path)
        except FormatError:  # of another tool, which has no checksums; opening it says what else is wrong
            return
        check_native(engine, path, self.url)


class CollectionCopy(SingleCopy):
    """A collection of MongoDB, as a store of LMDB with the same id."""

    suffix = ".lmdb"

    def __init__(
        self,
        url: str,
        cache: StageCache,
        options: Mapping[str, Any],
        open_backend: Callable[..., Backend],
        open_writer: Callable[..., Writer],
    ) -> None:
        self.url, self._source = redact(url), partial(open_backend, url, **options)
        self._writer = open_writer
        self.entry = cache.entry(self.url, self.url.partition("?")[0].rstrip("/").rpartition("/")[2])

    def state(self) -> str:
        # docstring inherited
        with self._source() as source:
            return source.meta.build

    def copy(self, target: Path, progress: Moved | None) -> int:
        # docstring inherited
        fresh = target.with_name(f".{target.name}.fresh")
        moved = 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._source() as source,
            self._writer(file_url("lmdb", str(fresh)), source.meta.fields, overwrite=True, check=False) as writer,
        ):
            for start in range(0, len(source), _BATCH):
                records: list[Any] = source.get_many(range(start, min(start + _BATCH, len(source))))
                for record in records:
                    if isinstance(record, RecordError):
                        raise record
                    moved += sum(len(value) for value in record.values() if isinstance(value, bytes))
                writer.append(records)
                if progress is not None:
                    progress(start + len(records), len(source))
            copy, meta = writer.publish(source.meta.attrs), source.meta
        if meta.layout == copy.layout and meta.id != copy.id:
            raise FormatError(f"{self.url} was copied, and the copy has another id: run storeds verify on it")
        sync_path(fresh)
        os.replace(fresh, target)
        return moved

    def renew(self, name: str) -> None:
        # docstring inherited; each copy is another store, and readers keep the one that they opened
        raise UnavailableError(
            f"{self.url}: its copy is damaged; remove it, storeds stage --remove {self.entry.folder.name}, and open the store again"
        )
