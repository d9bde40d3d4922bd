"""The folder of a versioned store: which files it has, and how they appear and go."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from storeds._utils.files import nearest, os_failure
from storeds._utils.urls import file_path, file_url
from storeds.backends.staging import reporting, sync_path
from storeds.backends.versions.columns import column_name, decode_column, encode_column
from storeds.backends.versions.place import Leftover, VersionPlace
from storeds.errors import ConfigError, StoreExistsError, UnavailableError
from storeds.protocols import Array

__all__ = ["SUFFIXES", "VersionFolder", "is_of_storeds"]

SUFFIXES = {"lmdb": ".lmdb", "hdf5": ".h5"}
_VERSION = re.compile(r"(\d{8})\.json")
_FRESH = ".{}.fresh"
_OURS = re.compile(
    r"^\.?([0-9a-f]{16}(-\d+-of-\d+)?|version-\d{8})\.(lmdb|h5)(\.partial/|$)|^[0-9a-f]{32}\.npy$|^\d{8}\.json$|^\.[0-9a-f]{16}\.fresh$"
)
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class VersionFolder(VersionPlace):
    """A versioned store in a folder.

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
        # docstring inherited
        return f"{file_url(self.engine, self.path)}/"

    def version_url(self, number: int) -> str:
        # docstring inherited
        return f"{self.url}?version={number}"

    # --- Versions ---

    def numbers(self) -> list[int]:
        # docstring inherited
        try:
            names = os.listdir(self._versions)
        except OSError as error:
            if error.errno in _NOTHING:
                return []
            raise os_failure(self.url, "listed", error) from None
        return sorted(int(found[1]) for found in map(_VERSION.fullmatch, names) if found)

    def _read(self, number: int) -> str:
        path = self._version(number)
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"{self.url}: {path} cannot be read: {error}") from None

    def _found_instead(self) -> str:
        return nearest(self._versions)

    def publish(self, number: int, text: str) -> bool:
        # docstring inherited
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
        # docstring inherited
        try:
            return os.stat(self._version(number)).st_mtime
        except OSError as error:
            raise os_failure(self.url, "looked at", error) from None

    # --- Columns ---

    def put(self, column: Array) -> str:
        # docstring inherited
        data = encode_column(column)
        name = column_name(data)
        path = self.column_path(name)
        if not os.path.exists(path):
            with reporting(self.url, Path(self.path)):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                fresh = f"{os.path.dirname(path)}/{_FRESH.format(secrets.token_hex(8))}"
                _write(fresh, data)
                os.replace(fresh, path)
                sync_path(os.path.dirname(path))
        return name

    def get(self, name: str) -> Array:
        # docstring inherited
        path = self.column_path(name)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UnavailableError(f"{self.url}: {path} cannot be read: {error.strerror}") from None
        return decode_column(data, name, path)

    # --- Members ---

    def member_name(self, stem: str) -> str:
        # docstring inherited
        return stem + SUFFIXES[self.engine]

    def member_url(self, name: str) -> str:
        # docstring inherited
        return file_url(self.engine, self.member_path(name))

    def member_names(self) -> list[str]:
        # docstring inherited
        try:
            return sorted(name for name in os.listdir(self._members) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def member_size(self, name: str) -> int:
        # docstring inherited
        return os.path.getsize(self.member_path(name))

    def has_member(self, name: str) -> bool:
        # docstring inherited
        return os.path.exists(self.member_path(name))

    def adopt(self, url: str | os.PathLike[str], *, move: bool) -> str | None:
        """Return the name of a file that lies in the folder of members, or is moved there; None for another file."""
        path, _ = file_path(os.fspath(url))
        if os.path.dirname(os.path.realpath(path)) == os.path.realpath(self._members):
            return os.path.basename(path)
        if not move:
            return None
        name = self.member_name(os.path.splitext(os.path.basename(path))[0])
        target = self.member_path(name)
        if os.path.lexists(target):
            raise StoreExistsError(f"{target} exists: rename {path}, then merge it")
        with reporting(target, Path(self.path)):
            os.makedirs(self._members, exist_ok=True)
            os.rename(path, target)
        return name

    # --- Files ---

    @property
    def _members(self) -> str:
        return os.path.join(self.path, "members")

    @property
    def _columns(self) -> str:
        return os.path.join(self.path, "columns")

    @property
    def _versions(self) -> str:
        return os.path.join(self.path, "versions")

    def _version(self, number: int) -> str:
        return os.path.join(self._versions, f"{number:08}.json")

    def column_path(self, name: str) -> str:
        """Return the path of a column."""
        return os.path.join(self._columns, f"{name}.npy")

    def member_path(self, name: str) -> str:
        """Return the path of a member."""
        return os.path.join(self._members, name)

    def leftovers(
        self, members: Collection[str], columns: Collection[str], numbers: Collection[int], former: Collection[str]
    ) -> Iterator[Leftover]:
        # docstring inherited
        wanted = {*map(self.member_path, members), *map(self.column_path, columns), *map(self._version, numbers)}
        folders = {"member": self._members, "column": self._columns, "version": self._versions}
        for kind, folder in folders.items():
            for root, _, files in os.walk(folder):
                for file in files:
                    path = os.path.join(root, file)
                    is_ours = is_of_storeds(os.path.relpath(path, folder)) or file in former
                    if path not in wanted and is_ours:
                        with contextlib.suppress(FileNotFoundError):
                            status = os.stat(path)
                            # A file that was moved here is as young as its move.
                            yield Leftover(kind, path, status.st_size, max(status.st_mtime, status.st_ctime))

    def remove(self, leftover: Leftover) -> None:
        # docstring inherited
        Path(leftover.path).unlink(missing_ok=True)


def is_of_storeds(name: str) -> bool:
    """Whether storeds gives such names to members, columns, versions, and their unfinished writes."""
    return _OURS.search(name) is not None


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
