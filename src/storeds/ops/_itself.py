"""Refuses a copy onto its own source, before anything is written."""

from __future__ import annotations

import os

from storeds._url import file_path, redact
from storeds.concatenated import ConcatenatedBackend
from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.protocols import Backend
from storeds.stores import open_backend, scheme_of

__all__ = ["refuse_itself"]

_FILES = ("lmdb", "hdf5")


def refuse_itself(source: Backend, dst_url: str) -> None:
    """Raise ConfigError if `dst_url` is the store that `source` reads, or one of those that it reads as one."""
    members = source.members() if isinstance(source, ConcatenatedBackend) else [source]
    for member in members:
        if _is_same(member, dst_url):
            raise ConfigError(
                f"{redact(dst_url)} is {member.url} itself, which is only read here and would be replaced; name another target"
            )


def _is_same(source: Backend, dst_url: str) -> bool:
    try:
        if scheme_of(source.url, writing=False) in _FILES and scheme_of(dst_url, writing=True) in _FILES:
            return os.path.samefile(file_path(source.url)[0], file_path(dst_url)[0])
        with open_backend(dst_url, layout="native") as target:
            return target.meta.build == source.meta.build
    except (OSError, StoreNotFoundError, FormatError, ConfigError):  # nothing there; or what the writer refuses itself
        return False
