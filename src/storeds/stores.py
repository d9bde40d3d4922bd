"""Opens stores for reading and writing: from a URL or a path to the backend that serves it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storeds._files import nearest, sniff
from storeds._url import redact, split_scheme
from storeds._writer import COMMIT_EVERY
from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.registry import BACKENDS, LAYOUTS

if TYPE_CHECKING:
    from storeds.protocols import JSON, Backend, Writer

__all__ = ["open_backend", "open_writer", "scheme_of"]

_SUFFIXES = {
    ".lmdb": "lmdb",
    ".mdb": "lmdb",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".hdf": "hdf5",
    ".he5": "hdf5",
}


def open_backend(url: str | os.PathLike[str], *, layout: str | None = None, **options: Any) -> Backend:
    """Open a store for reading.

    Parameters
    ----------
    url : str or path
        ``lmdb://path``, ``hdf5://path``, ``mongodb://host/db/collection``, ``memory://name``, the URL of a registered
        backend, or a bare path, which opens as what the file *is*: its magic bytes first, its suffix second.
    layout : str, optional
        A registered foreign layout; None and ``"storeds/1"`` stand for the native one.
    **options
        The backend's own: `LmdbOptions`, `Hdf5Options`, `MongodbBackend`.

    Returns
    -------
    Backend
        It has read `Meta` and holds no handle until its first read. Thread-safe, picklable, usable after a fork.

    Raises
    ------
    ConfigError
        The URL, the scheme, the layout or an option is unknown or malformed.
    StoreNotFoundError, FormatError, UnavailableError
        Nothing is there; something else is there; the server cannot be reached.
    """
    url = os.fspath(url)
    scheme = scheme_of(url, writing=False)
    if layout in (None, "storeds/1", "native"):
        target = BACKENDS.get(scheme)
    else:
        target = LAYOUTS.get(f"{scheme}/{layout}")
    backend: Backend = target(url, **options)
    return backend


def open_writer(
    url: str | os.PathLike[str],
    fields: Mapping[str, Any],
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    plan: JSON = None,
    **options: Any,
) -> Writer:
    """Open a store for writing; it appears under `url` when the writer publishes, whole and in one step.

    Parameters
    ----------
    url : str or path
        As for `open_backend`; a bare path is of the engine that its suffix names.
    fields : mapping
        Name → kind, in order: ``{"image": "image", "label": "int"}``; an array as `Field` or
        ``{"kind": "array", "dtype": "float32", "shape": [3, None]}``.
    overwrite : bool
        Replace a store that exists, and drop what an interrupted writer left.
    resume : bool
        Go on after the last durable record of an interrupted writer; ``writer.count`` says where.
    commit_every : int
        Records per durable batch.
    plan : JSON, optional
        What is being written, beyond its fields: a writer that resumes must bring an equal one.

    Returns
    -------
    Writer
        A context manager: a clean exit publishes, an exception aborts.

    Raises
    ------
    StoreExistsError
        The target exists, an interrupted writer left something, or another writer is at it.
    ConfigError
        A field, kind or option is unknown, or the resumed writer had other fields.
    """
    url = os.fspath(url)
    scheme = scheme_of(url, writing=True)
    opener = getattr(BACKENDS.get(scheme), "open_writer", None)
    if opener is None:
        raise ConfigError(f"{redact(url)}: backend {scheme!r} can only read")
    if plan is not None:
        options["plan"] = plan
    writer: Writer = opener(url, fields, overwrite=overwrite, resume=resume, commit_every=commit_every, **options)
    return writer


def scheme_of(url: str, *, writing: bool) -> str:
    """Return the scheme of a URL, or the one a bare path has by its content or suffix."""
    scheme, path = split_scheme(url)
    if scheme is not None:
        return scheme
    by_suffix = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if not writing:
        found = _by_content(path)
        if found is not None:
            return found
    if by_suffix is None:
        suffixes = ", ".join(_SUFFIXES)
        raise ConfigError(
            f"{path!r}: cannot tell the engine; write lmdb://… or hdf5://…, or use one of the suffixes {suffixes}"
        )
    return by_suffix


def _by_content(path: str) -> str | None:
    path = os.path.abspath(os.path.expanduser(path))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        found = sniff(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"no store at {path}: {nearest(path)}") from None
    except OSError as error:
        raise StoreNotFoundError(f"{path} cannot be read: {error.strerror}") from None
    if found is None and os.path.splitext(path)[1].lower() not in _SUFFIXES:
        raise FormatError(f"{path!r} is neither an LMDB nor an HDF5 file")
    return found
