"""What engines share whose stores are files: how one is found, identified and described."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from storeds._utils.file_systems import file_system_advice, file_system_of
from storeds._utils.files import check_status, engine_of_file, os_failure, staging_folder, stat_store
from storeds._utils.urls import file_url
from storeds.backends.raw import BackendOptions, HandleOpener
from storeds.protocols import JSON, Description

__all__ = ["FileLocation", "describe_file", "engine_at"]

Opts = TypeVar("Opts", bound=BackendOptions)


@dataclass(frozen=True)
class FileLocation(HandleOpener[Any], Generic[Opts]):
    """Base of openers of files: a subclass names its engine, and opens, closes and attaches.

    Parameters
    ----------
    path : str
        Absolute.
    settings : BackendOptions
    """

    path: str
    settings: Opts
    engine: ClassVar[str]

    @property
    def url(self) -> str:
        return file_url(self.engine, self.path)

    @property
    def data_path(self) -> str:
        """The file that is opened."""
        return self.path

    def key(self) -> Hashable:
        # A published file never changes, so a handle shows what is stored. By inode: h5py and py-lmdb open a file once, whatever its path; py-lmdb refuses to open it a second time.
        status, engine = engine_at(self.data_path, self.url)
        check_status(self.data_path, status, engine, self.engine, self.url)
        return self.engine, status.st_dev, status.st_ino


def engine_at(path: str, url: str) -> tuple[os.stat_result, str | None]:
    """Return the status of the file or folder at `path`, and its engine by its first bytes: ``lmdb``, ``hdf5`` or None.

    Raises
    ------
    StoreNotFoundError
        Nothing is there.
    UnavailableError
        The system does not allow access, for example for lack of permission.
    FormatError
        It is neither a file nor a folder.
    """
    status = stat_store(path, url)
    if stat.S_ISDIR(status.st_mode):
        return status, None
    try:
        return status, engine_of_file(path)
    except OSError as error:
        raise os_failure(url, "read", error) from None


def describe_file(
    path: str, url: str, settings: Mapping[str, JSON], advice: list[str], *, recognised: str | None = None
) -> Description:
    """Return the description of a store that is one file, with what its engine adds to settings and advice."""
    from storeds.backends.staging import active_writer

    writer, folder = active_writer(path), staging_folder(path)
    return Description(
        stat_store(path, url).st_size,
        {"file_system": file_system_of(path)[0], **settings},
        [*file_system_advice(path), *advice],
        recognised=recognised,
        leftovers=str(folder) if writer is None and os.path.exists(folder) else None,
        writer=writer,
    )
