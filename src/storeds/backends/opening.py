"""Opens stores for reading and writing, from a URL, a path, a pattern or a list of these; detects foreign layouts.

Detection asks each layout of the engine whether it fits a store that is not native.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storeds._utils.files import os_failure
from storeds._utils.globs import matches, pattern_of
from storeds._utils.urls import REMOTE, StoreURL, file_url, split_options
from storeds.backends.engine import Engine
from storeds.backends.file_stores import engine_at
from storeds.backends.selecting import select
from storeds.backends.staged.opening import READ, cache_of, copy_of, open_copy
from storeds.backends.store import Store
from storeds.backends.unread import SHOWN, bounded
from storeds.backends.versions.naming import version_place
from storeds.backends.versions.reading import VersionedStore, open_version
from storeds.backends.view import View
from storeds.errors import (
    ConfigError,
    FormatError,
    StoredsError,
    suggest,
)
from storeds.redaction import redact
from storeds.registry import BACKENDS, FOREIGN, LAYOUTS, import_object

if TYPE_CHECKING:
    from storeds.backends.writer import Sink, StoreWriter
    from storeds.protocols import JSON, Backend

__all__ = ["COMMIT_EVERY", "engine_of_suffix", "open_backend", "open_writer", "scheme_of", "with_scheme"]

_LOG = logging.getLogger("storeds")

COMMIT_EVERY = 1000
"""Records of a durable batch, by default."""
_LMDB_DATA = "data.mdb"
_STAGE = "stage"
_NATIVE = ("storeds/1", "native")
_OF_FOLDERS = "hdf5"
"""The engine that may read the files of a folder as one store."""
_TARS = (".tar", ".tar.gz", ".tgz")
_SUFFIXES = {
    ".lmdb": "lmdb",
    ".mdb": "lmdb",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".hdf": "hdf5",
    ".he5": "hdf5",
}


def open_backend(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    layout: str | None = None,
    stage: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    **options: Any,
) -> Backend:
    """Open a store, or several as one, for reading.

    Parameters
    ----------
    url : str or path, or a list of them
        ``lmdb://path``, ``hdf5://path``, ``mongodb://host/db/collection``, ``memory://name``, the URL of a registered
        backend, or a bare path or ``file:///path``, whose engine is detected by its magic bytes first and its suffix second. ``?`` starts
        options, unless a file has exactly that name; ``?where=label == 3`` opens the records that meet a condition. A folder of images, or tar shards of WebDataset, ``shard-*.tar``, open too:
        their scheme is ``files``.

        A path may contain ``*``, ``[…]`` and ``**``: all files that match are read as one store, in the byte order of
        their paths. If a file of exactly that name exists, only that file is opened. A list may contain patterns and mix
        engines. Both return a `storeds.backends.View`. Where ``columns`` name files, as in ``{episode}.h5::actions[]``, the files of
        a folder or pattern are one store of HDF5.
    layout : str, optional
        ``"storeds/1"`` for the native layout, or the name of a registered foreign layout. By default, a native store opens
        as such, and any other store with the one foreign layout that fits, which is logged.
    stage : path or mapping, optional
        A folder of a local disk, or ``{"path": …, "limit": "500GB"}``: one process of the machine copies the store there, unless
        it is there, and all read the copy; see `storeds.ops.stage`. Stores at ``s3://``, ``gs://``, ``az://``, ``https://`` and
        ``hf://`` are read so alone; by default from the folder in ``$STOREDS_STAGE``.
    **options
        Options of the backend: `LmdbOptions`, `Hdf5Options`, and ``client_factory`` of MongoDB. Every store of a list gets all of them.

    Returns
    -------
    Backend
        It holds `Meta`, and no open handle until its first read. Thread-safe, picklable, usable after a fork.

    Raises
    ------
    ConfigError
        The URL, the scheme, the layout or an option is unknown or malformed; a foreign store can be read in several ways,
        or most of it would not be read. The message shows the argument that decides.
    StoreNotFoundError, FormatError, UnavailableError
        Nothing exists there, or no file matches; something else exists there; the server cannot be reached.
    """
    backend = _open(url, layout, options if stage is None else {**options, _STAGE: stage})
    unread = [*_unread(backend)]
    if unread:
        shown = "; ".join(bounded(dict.fromkeys(unread), SHOWN))
        _LOG.warning("%s: not read: %s; `storeds info` lists all", backend.url, shown)
    return backend


def _unread(backend: Backend) -> Iterator[str]:
    """Yield what no record of the stores in a backend holds; a version has none, and opens no member for this."""
    if isinstance(backend, View) and not isinstance(backend, VersionedStore):
        for store in backend.stores:
            yield from _unread(store)
    elif isinstance(backend, Store):
        yield from backend.unread()


def _open(
    url: str | os.PathLike[str] | StoreURL | Sequence[str | os.PathLike[str]],
    layout: str | None,
    options: Mapping[str, Any],
) -> Backend:
    if isinstance(url, Sequence) and not isinstance(url, (str, bytes)):
        return View(itertools.chain.from_iterable(_open_each(each, layout, options) for each in url))
    parsed = with_scheme(url)
    if "where" in parsed.options:
        rest = {name: value for name, value in parsed.options.items() if name != "where"}
        return select(_open(replace(parsed, options=rest), layout, options), parsed.options["where"])
    pattern = None if _names_files(parsed, options) else _pattern_of_stores(parsed)
    if pattern is None:
        return _open_one(parsed, layout, options)
    return View(_open_each(parsed, layout, options), url=_pattern_url(parsed, pattern))


def _names_files(url: StoreURL, options: Mapping[str, Any]) -> bool:
    """Whether ``columns`` names the files of a folder, which then are one store."""
    columns = {**url.options, **options}.get("columns")
    if url.scheme not in (None, _OF_FOLDERS) or "::" not in str(columns):
        return False
    engine: Engine = import_object(FOREIGN[_OF_FOLDERS])
    return engine.is_folder_of_files is not None and engine.is_folder_of_files(url, columns)


def _open_whole(url: StoreURL, layout: str | None, options: Mapping[str, Any]) -> Backend | None:
    """Open a copy, or a folder that is one store: of the files that ``columns`` names, or of versions; None for another store."""
    if _STAGE in options or url.scheme in REMOTE:
        return _open_copy(url, layout, options)
    if _names_files(url, options):
        return _open_files(url, layout, options)
    place = version_place(url, options) if layout in (None, *_NATIVE) else None
    if place is None:
        return None
    given = {**url.options, **options}
    return open_version(place, given.pop("version", None), given)


def _open_files(url: StoreURL, layout: str | None, options: Mapping[str, Any]) -> Backend:
    if layout is not None:
        raise ConfigError(f"{url}: columns= says how to read these files; leave out layout={layout!r}")
    engine: Engine = import_object(FOREIGN[_OF_FOLDERS])
    return engine(replace(url, scheme=_OF_FOLDERS), **options)


def with_scheme(url: str | os.PathLike[str] | StoreURL) -> StoreURL:
    """Parse a URL or a path; the path of a file with options, ``x.h5?group=train``, gets its scheme, unless a file has that name."""
    parsed = StoreURL.parse(url)
    path, options = split_options(parsed.path)
    if parsed.scheme is not None or path == parsed.path:
        return parsed
    whole = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(whole) or _is_tar(path):
        return StoreURL.parse(f"{scheme_of(path, writing=False)}://{whole}?{options}")
    return parsed


def _open_one(url: StoreURL, layout: str | None, options: Mapping[str, Any]) -> Backend:
    """Open a store by the named layout, its engine, the plug-in that claims it, or what finds out what it is.

    Raises
    ------
    ConfigError
        The engine or layout is unknown, or several plug-ins claim the store.
    """
    found = _open_whole(url, layout, options)
    if found is not None:
        return found
    if url.scheme is None:
        url = replace(url, scheme=_engine_of_path(url))
    scheme = url.scheme or ""
    target, why = _backend_of(scheme), None
    holds_foreign = getattr(target, "holds_foreign", None)
    if layout not in (None, *_NATIVE):
        target = LAYOUTS.get(f"{scheme}/{layout}")
    elif layout is None and holds_foreign is not None and holds_foreign(url, options):
        claims = _plugin_claims(url, options)
        if len(claims) > 1:
            shown = " or ".join(f"layout={name!r} ({why})" for name, why in claims.items())
            raise ConfigError(f"{url}: several layouts claim this store; pass {shown}")
        if claims:
            ((name, why),) = claims.items()
            _LOG.info("%s is opened with layout %r: %s", url, name, why)
            target = LAYOUTS.get(f"{scheme}/{name}")
        elif scheme in FOREIGN:  # otherwise the engine says what is wrong
            target = import_object(FOREIGN[scheme])
    if layout is not None and getattr(target, "presets", None):
        options = {**options, "layout": layout}
    # A class of another package gets the URL as written.
    backend: Backend = target(url if isinstance(target, Engine) else url.text, **options)
    if isinstance(backend, Store):
        backend.recognised = why
    return backend


def _open_copy(url: StoreURL, layout: str | None, options: Mapping[str, Any]) -> Backend:
    """Open a store that is read from a local copy, in the folder that the option ``stage`` names."""
    rest = {name: value for name, value in options.items() if name != _STAGE}
    cache = cache_of(url, options.get(_STAGE), READ)
    copy = copy_of(url, cache, rest, open_backend, open_writer)
    return open_copy(copy, url, rest, lambda local, own: _open(local, layout, own))


def _backend_of(scheme: str) -> Any:
    if scheme not in BACKENDS.names():
        known = suggest(scheme, BACKENDS.names(), "backends")
        raise ConfigError(
            f"unknown backend {scheme!r}; {known}. storeds reads and writes local or mounted files, and MongoDB: for other "
            f"storage, mount it or copy its files, then pass a path without {scheme}://"
        )
    return BACKENDS.get(scheme)


def _plugin_claims(url: StoreURL, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the layouts of plug-ins that read the store at `url`, each with the reason."""
    claims: dict[str, str] = {}
    for name in LAYOUTS.names():
        engine, _, layout = name.partition("/")
        guess = None
        if engine == url.scheme and not LAYOUTS.is_built_in(name):
            guess = getattr(LAYOUTS.get(name), "guess_can_open", None)
        if guess is not None:
            with contextlib.suppress(StoredsError):
                if why := guess(url.text, **options):
                    claims[layout] = why
    return claims


def _open_each(url: Any, layout: str | None, options: Mapping[str, Any]) -> Iterator[Backend]:
    """Open the store at `url`, or all that it matches."""
    if not isinstance(url, (str, os.PathLike, StoreURL)):
        raise ConfigError(f"a list of stores holds URLs and paths, not {type(url).__name__}")
    parsed = with_scheme(url)
    pattern = None if _names_files(parsed, options) else _pattern_of_stores(parsed)
    if pattern is None:
        yield _open_one(parsed, layout, options)
        return
    for name in parsed.options.keys() & options.keys():
        raise ConfigError(
            f"{redact(_pattern_url(parsed, pattern))}: option {name!r} is given in the URL and as a keyword; give it once"
        )
    seen: dict[str, str] = {}
    for path in matches(parsed, pattern):
        # A bare path, since in a URL a ? of its name would start the options.
        backend = _open_one(StoreURL(path, parsed.scheme, path), layout, {**parsed.options, **options})
        twin = seen.get(backend.meta.build)
        if twin is not None:
            backend.close()
            raise ConfigError(
                f"{pattern} matches the same store twice, as {twin} and {backend.url}; remove the link or the copy, or "
                "list both, if its records are to count twice"
            )
        seen[backend.meta.build] = backend.url
        yield backend


def _pattern_of_stores(url: StoreURL) -> str | None:
    """Return the pattern in a URL that names several stores; tar shards are one."""
    return None if url.scheme in (None, "files") and _is_tar(url.path) else pattern_of(url)


def _is_tar(path: str) -> bool:
    return path.lower().endswith(_TARS)


def _pattern_url(url: StoreURL, pattern: str) -> str:
    return file_url(url.scheme, pattern) if url.scheme else pattern


def open_writer(
    url: str | os.PathLike[str],
    fields: Mapping[str, Any],
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    check: bool = True,
    plan: JSON = None,
    **options: Any,
) -> StoreWriter:
    """Open a store for writing; it appears at `url` in one step when the writer publishes.

    Parameters
    ----------
    url : str or path
        As for `open_backend`; the suffix of a bare path names its engine.
    fields : mapping
        Name → kind, in order: ``{"image": "image", "label": "int"}``; an array as `Field` or
        ``{"kind": "array", "dtype": "float32", "shape": [3, None]}``. The keys ``role``, ``format``, ``relative`` and ``of``
        say what the values mean, as in ``{"kind": "image", "role": "mask"}``; `Writer.append` refuses other values.
    overwrite : bool
        Replace an existing store, and discard an interrupted write.
    resume : bool
        Continue after the last durable record of an interrupted write; ``writer.count`` is its number of records.
    commit_every : int
        Records per durable batch.
    check : bool
        Examine each image once and store the verdict with it, see `storeds.pictures.examine`. It takes about two thirds of the
        time of a decode, and uses threads if `Writer.append` gets a list. A record that has a verdict already, in the
        fields ``<image>_finding`` and ``<image>_recovered``, keeps it. Without the check, readers examine images on every read.
    plan : JSON, optional
        Describes the source of the records: a resuming writer must pass an equal plan.

    Returns
    -------
    StoreWriter
        A `storeds.Writer`: a context manager of which a clean exit publishes. An exception keeps the durable records for
        ``resume=True``; `Writer.abort` alone deletes them.

    Raises
    ------
    StoreExistsError
        The target or an interrupted write of it exists, or another writer is writing it.
    ConfigError
        A field, kind or option is unknown, or the resumed writer had other fields; the URL is a pattern or a list.
    """
    if isinstance(url, Sequence) and not isinstance(url, (str, bytes)):
        raise ConfigError(
            f"a writer writes one store, and this is a list of {len(url)}; write one after the other, then read the list as one"
        )
    parsed = with_scheme(url)
    if pattern_of(parsed) is not None:
        raise ConfigError(
            f"{str(parsed)!r} is a pattern, and a writer writes one store: name it without * and […]; patterns are for reading "
            "many stores as one"
        )
    if version_place(parsed) is not None:
        raise ConfigError(
            f"{parsed} names a versioned store, to which `storeds append` (storeds.append) adds the records of a source"
        )
    if parsed.scheme in REMOTE:
        raise ConfigError(
            f"{parsed} names one file, and in the cloud only versioned stores are written: `storeds pack SOURCE "
            "s3://bucket/train/`, with a slash at the end"
        )
    scheme = scheme_of(parsed, writing=True)
    target = _backend_of(scheme)
    make_sink = getattr(target, "sink", None)
    if make_sink is None:
        raise ConfigError(f"{parsed}: backend {scheme!r} can only read")
    sink: Sink = make_sink(parsed if isinstance(target, Engine) else parsed.text, **options)
    from storeds.backends.writer import StoreWriter  # reading needs no writer

    return StoreWriter(
        sink, fields, overwrite=overwrite, resume=resume, commit_every=commit_every, check=check, plan=plan
    )


def scheme_of(url: str | os.PathLike[str] | StoreURL, *, writing: bool) -> str:
    """Return the scheme of a URL, or the engine of a bare path by its content or suffix, of a pattern by its first match."""
    parsed = StoreURL.parse(url)
    if parsed.scheme is not None:
        return parsed.scheme
    if writing:
        return _engine_of_suffix(parsed)
    pattern = _pattern_of_stores(parsed)
    if pattern is not None:  # the matches may belong to several engines that keep files
        return scheme_of(matches(parsed, pattern)[0], writing=False)
    return _engine_of_path(parsed)


def engine_of_suffix(path: str) -> str | None:
    """Return the engine whose files have the suffix of a path or URL; None for another file."""
    return _SUFFIXES.get(os.path.splitext(path)[1].lower())


def _engine_of_suffix(url: StoreURL) -> str:
    engine = engine_of_suffix(url.path)
    if engine is None:
        suffixes = ", ".join(_SUFFIXES)
        raise ConfigError(
            f"{url.path!r}: cannot tell the engine; write lmdb://… or hdf5://…, or use one of the suffixes {suffixes}"
        )
    return engine


def _engine_of_path(url: StoreURL) -> str:
    path = os.path.abspath(os.path.expanduser(url.path))
    if os.path.isfile(os.path.join(path, _LMDB_DATA)):  # an LMDB environment in a folder
        return "lmdb"
    place = version_place(url)
    if place is not None:
        return place.engine
    if _is_tar(path) and not os.path.lexists(path) and any(mark in path for mark in "*?[{"):
        return "files"
    status, engine = engine_at(path, path)
    if engine is not None:
        return engine
    if engine_of_suffix(path) is not None:
        return _engine_of_suffix(url)
    if stat.S_ISDIR(status.st_mode):
        suffix = _hdf5_suffix_in(path)
        if suffix is not None:
            raise FormatError(
                f"{path!r} is a folder of HDF5 files; {path + '/*' + suffix!r} reads them as one store, and "
                f"columns={{'*': '{{file}}{suffix}::**[]'}} with the name of each file as a field"
            )
        return "files"
    if _is_tar(path) or _begins_as_tar(path):
        return "files"
    raise FormatError(
        f"{path!r} is neither an LMDB nor an HDF5 nor a tar file; from a list, a Parquet or Arrow file, `storeds pack` makes a store"
    )


def _hdf5_suffix_in(folder: str) -> str | None:
    """Return the suffix of an HDF5 file in a folder, or None."""
    hdf5 = tuple(suffix for suffix, engine in _SUFFIXES.items() if engine == "hdf5")
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise os_failure(folder, "listed", error) from None
    found = next((name for name in names if name.endswith(hdf5) and not name.startswith(".")), None)
    return None if found is None else os.path.splitext(found)[1]


def _begins_as_tar(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(262)[257:] == b"ustar"
