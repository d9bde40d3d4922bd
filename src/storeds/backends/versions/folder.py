"""The folder of a versioned store: which files it has, and how they appear and go."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from storeds._utils.files import nearest, os_failure
from storeds._utils.urls import file_url
from storeds.backends.staging import reporting, sync_path
from storeds.errors import ConfigError, FormatError, StoreNotFoundError, UnavailableError
from storeds.protocols import Array
from storeds.records.columns import TEXT

__all__ = ["SUFFIXES", "Leftover", "VersionFolder"]

SUFFIXES = {"lmdb": ".lmdb", "hdf5": ".h5"}
_VERSION = re.compile(r"(\d{8})\.json")
_FRESH = ".{}.fresh"
# Names that storeds gives, of members and their unfinished writes, columns, versions, and files that have no name yet.
_OURS = re.compile(
    r"^\.?([0-9a-f]{16}(-\d+-of-\d+)?|version-\d{8})\.(lmdb|h5)(\.partial/|$)|^[0-9a-f]{32}\.npy$|^\d{8}\.json$|^\.[0-9a-f]{16}\.fresh$"
)
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class Leftover(NamedTuple):
    """A file that no kept version needs: its path, size in bytes, and time of the last change in seconds."""

    path: Path
    size: int
    time: float


@dataclass(frozen=True)
class VersionFolder:
    """Where the members, columns and versions of one store are. Picklable.

    Parameters
    ----------
    engine : str
        The scheme of the members: ``lmdb`` or ``hdf5``.
    path : str
        Absolute, without a slash at the end.
    """

    engine: str
    path: str

    @property
    def url(self) -> str:
        """The store, with a slash at the end."""
        return f"{file_url(self.engine, self.path)}/"

    # --- Versions ---

    def numbers(self) -> list[int]:
        """Return the numbers of the versions, ascending; none if there is no such folder."""
        try:
            names = os.listdir(self._versions)
        except OSError as error:
            if error.errno in _NOTHING:
                return []
            raise os_failure(self.url, "listed", error) from None
        return sorted(int(found[1]) for found in map(_VERSION.fullmatch, names) if found)

    def text(self, number: int | None = None) -> str:
        """Return the text of a version, by default of the last one; raises StoreNotFoundError."""
        numbers = self.numbers()
        if not numbers:
            raise StoreNotFoundError(f"no versioned store at {self.url}: {nearest(self._versions)}")
        if number is not None and number not in numbers:
            shown = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
            raise StoreNotFoundError(f"{self.url} has no version {number}; it has {shown}")
        path = self._version(numbers[-1] if number is None else number)
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"{self.url}: {path} cannot be read: {error}") from None

    def publish(self, number: int, text: str) -> bool:
        """Make the version `number` visible, durably and in one step; False if there is one already."""
        with reporting(self.url, Path(self.path)):
            os.makedirs(self._versions, exist_ok=True)
            fresh = os.path.join(self._versions, _FRESH.format(secrets.token_hex(8)))
            try:
                _write(fresh, text.encode())
                os.link(fresh, self._version(number))
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise ConfigError(
                        f"{self.url}: its file system has no hard links, which publish a version"
                    ) from None
                raise
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(fresh)
            sync_path(self._versions)
        return True

    def published(self, number: int) -> float:
        """Return when a version was published, in seconds."""
        try:
            return os.stat(self._version(number)).st_mtime
        except OSError as error:
            raise os_failure(self.url, "looked at", error) from None

    # --- Columns ---

    def put(self, column: Array) -> str:
        """Keep a column durably, and return its name, which is a hash of its content."""
        data = io.BytesIO()
        if column.dtype == TEXT:
            texts = [text.encode() for text in column.tolist()]
            bounds = np.cumsum([0, *map(len, texts)], dtype="<i8")
            np.save(data, bounds)
            np.save(data, np.frombuffer(b"".join(texts), np.uint8))
        else:
            np.save(data, column.astype(column.dtype.newbyteorder("<"), copy=False), allow_pickle=False)
        name = xxhash.xxh3_128_hexdigest(data.getbuffer())
        path = self.column_path(name)
        if not os.path.exists(path):
            with reporting(self.url, Path(self.path)):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                fresh = f"{os.path.dirname(path)}/{_FRESH.format(secrets.token_hex(8))}"
                _write(fresh, data.getbuffer())
                os.replace(fresh, path)
                sync_path(os.path.dirname(path))
        return name

    def get(self, name: str) -> Array:
        """Return a column.

        Raises
        ------
        UnavailableError
            Its file is gone or cannot be read.
        FormatError
            Its bytes are not those that were written.
        """
        path = self.column_path(name)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UnavailableError(f"{self.url}: {path} cannot be read: {error.strerror}") from None
        if xxhash.xxh3_128_hexdigest(data) != name:
            raise FormatError(f"{path} does not match its name, which is a hash of it: it is damaged; copy it again")
        file = io.BytesIO(data)
        column: Array = np.load(file, allow_pickle=False)
        if file.tell() == len(data):
            return column
        text = np.load(file, allow_pickle=False).tobytes()
        return np.array(
            [text[a:b].decode() for a, b in zip(column[:-1].tolist(), column[1:].tolist(), strict=True)], TEXT
        )

    # --- Files ---

    @property
    def members(self) -> str:
        """The folder of the members."""
        return os.path.join(self.path, "members")

    @property
    def _versions(self) -> str:
        return os.path.join(self.path, "versions")

    def _version(self, number: int) -> str:
        return os.path.join(self._versions, f"{number:08}.json")

    def column_path(self, name: str) -> str:
        """Return the path of a column."""
        return os.path.join(self.path, "columns", f"{name}.npy")

    def member_path(self, name: str) -> str:
        """Return the path of a member."""
        return os.path.join(self.members, name)

    def member_names(self) -> list[str]:
        """Return the names of all stores in the folder of members, sorted; whether a version has them does not matter."""
        try:
            return sorted(name for name in os.listdir(self.members) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def leftovers(self, names: set[str], columns: set[str], numbers: set[int], former: set[str]) -> Iterator[Leftover]:
        """Yield each file of a store that is none of these members, columns and versions.

        A member is of the store if it has a name that storeds gives, or is one of the `former` members. Any other file in the
        folder is its owner's.
        """
        wanted = {self.member_path(name) for name in names} | {self.column_path(name) for name in columns}
        wanted |= {self._version(number) for number in numbers}
        for folder in (self.members, os.path.join(self.path, "columns"), self._versions):
            for root, _, files in os.walk(folder):
                for file in files:
                    path = os.path.join(root, file)
                    is_ours = _OURS.search(os.path.relpath(path, folder)) is not None or file in former
                    if path not in wanted and is_ours:
                        with contextlib.suppress(FileNotFoundError):
                            status = os.stat(path)
                            # A file that was moved here is as young as its move.
                            yield Leftover(Path(path), status.st_size, max(status.st_mtime, status.st_ctime))


def _write(path: str, data: bytes | memoryview) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
