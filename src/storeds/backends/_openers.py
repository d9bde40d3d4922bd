"""What the openers of stores that are files do alike: their URL, what a handle is a handle of, what sharers agree on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from storeds._files import check_file
from storeds._url import file_url
from storeds.backends.base import BackendOptions

__all__ = ["FileOpener"]

Settings = TypeVar("Settings", bound=BackendOptions)


@dataclass(frozen=True)
class FileOpener(Generic[Settings]):
    """Base of openers: a subclass names its engine and opens a handle.

    Parameters
    ----------
    path : str
        Absolute.
    settings : BackendOptions
    """

    path: str
    settings: Settings
    engine: ClassVar[str]

    @property
    def url(self) -> str:
        return file_url(self.engine, self.path)

    @property
    def data_path(self) -> str:
        """The file that is opened."""
        return self.path

    def key(self) -> Hashable:
        # By inode: h5py and py-lmdb hold one file once, whatever the path; py-lmdb refuses to open one a second time.
        status = check_file(self.data_path, self.engine, self.url)
        return status.st_dev, status.st_ino

    def options(self) -> Hashable:
        return tuple(self.settings.model_dump().items())
