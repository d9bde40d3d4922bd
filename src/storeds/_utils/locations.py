"""Finds stores: parses URLs, expands patterns, and identifies files by their first bytes.

Rejects URLs whose password would be taken for something else.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from storeds._utils.text import some
from storeds.errors import (
    ConfigError,
    FormatError,
    StoredsError,
    StoreNotFoundError,
    UnavailableError,
    password_start,
    redact,
    redact_message,
)

__all__ = [
    "FILE_ENGINES",
    "CutShortError",
    "Glob",
    "StoreURL",
    "file_path",
    "file_system",
    "file_system_advice",
    "file_system_of",
    "file_url",
    "glob_of",
    "nearest",
    "read_at",
    "redact",
    "redact_message",
    "refused",
    "sniff",
    "split_options",
]

FILE_ENGINES = ("lmdb", "hdf5")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FILE_URL = re.compile(r"file:(?:(?!//)|//(?P<host>[^/]*))(?P<path>/[^?]*)(?P<options>.*)", re.IGNORECASE | re.DOTALL)
_EXPLICIT_PATH = re.compile(r"\.{0,2}/(?!/)|~")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store's URL or bare path, parsed once; `str` and `repr` show no secret.

    Attributes
    ----------
    text : str
        As written, secrets included; of a ``file://`` URL, its path.
    scheme : str or None
        In lower case; None for a bare path whose engine is not known yet.
    path : str
        Of a file: as written, without options. Of any other store: everything after ``://``.
    options : mapping of str to str
        What follows the ``?`` of a file's URL, see `split_options`. The options of other engines stay in `path`.
    """

    text: str = field(repr=False)
    scheme: str | None
    path: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def parse(cls, url: str | os.PathLike[str] | StoreURL) -> StoreURL:
        """Return the parsed URL; a `StoreURL` is returned as it is.

        Raises
        ------
        ConfigError
            The URL cannot be a path, has a password where only a path belongs, or has
            malformed options.
        """
        if isinstance(url, StoreURL):
            return url
        text = _path_of_file_url(os.fspath(url))
        match = _SCHEME.match(text)
        scheme, rest = (match[1].lower(), text[match.end() :]) if match else (None, text)
        path, query = split_options(rest) if scheme in FILE_ENGINES else (rest, "")
        if scheme is None or scheme in FILE_ENGINES:
            if "\0" in rest:
                raise ConfigError(f"{redact(text)!r}: expected a path, and no path holds a NUL")
            _reject_password(text, scheme, rest, path)
        elif scheme.startswith("mongodb"):
            _reject_bare_characters(text, rest)
        return cls(text, scheme, path, _parse_query(query, text))

    @property
    def redacted(self) -> str:
        """The text with its secrets replaced by ``***``."""
        return redact(self.text)

    @property
    def file(self) -> str:
        """The absolute path of a file; raises ConfigError where the URL has none."""
        if not self.path:
            scheme = self.scheme or "lmdb"
            raise ConfigError(
                f"{self.redacted!r}: expected a path, as in {scheme}://data/train or {scheme}:///data/train"
            )
        return os.path.abspath(os.path.expanduser(self.path))

    def __str__(self) -> str:
        return self.redacted


def split_options(text: str) -> tuple[str, str]:
    """Return the path in ``path?options`` and the options: a path with a ``?`` if a file has that name, the longest such."""
    path, _, options = text.partition("?")
    whole = text
    while len(whole) > len(path):
        if os.path.lexists(os.path.expanduser(whole)):
            return whole, text[len(whole) + 1 :]
        whole = whole.rpartition("?")[0]
    return path, options


def file_path(url: str | StoreURL) -> tuple[str, dict[str, str]]:
    """Return the absolute path and the options of a file store's URL of any scheme, or of a bare path.

    ``lmdb://data/x.lmdb`` is relative, ``lmdb:///data/x.lmdb`` absolute, as in fsspec. Raises ConfigError.
    """
    parsed = StoreURL.parse(url)
    if parsed.scheme is not None and parsed.scheme not in FILE_ENGINES:  # the engine of a plug-in
        path, query = split_options(parsed.path)
        parsed = StoreURL(parsed.text, parsed.scheme, path, _parse_query(query, parsed.text))
    return parsed.file, dict(parsed.options)


def _path_of_file_url(text: str) -> str:
    """Return the path that a ``file://`` URL names (RFC 8089), with its options; any other text as it is."""
    if text[:5].lower() != "file:" or os.path.lexists(text):
        return text
    match = _FILE_URL.fullmatch(text)
    if match is None or (match["host"] or "localhost").lower() != "localhost":
        raise ConfigError(
            f"{redact(text)!r}: a file URL names an absolute path of this computer, as in file:///data/train.h5; for files of "
            "another one, mount them, then pass the path"
        )
    return os.fsdecode(unquote_to_bytes(match["path"])) + match["options"]


def file_url(scheme: str, path: str) -> str:
    """Return the URL of an absolute path."""
    return f"{scheme}://{path}"


def _reject_bare_characters(url: str, rest: str) -> None:
    """Reject a user or password that contains a delimiter: which host is meant would be a guess."""
    # The last @ before the last slash ends the password; a collection or an option may contain another.
    user, _, password = rest[: max(rest.rfind("/"), 0)].rpartition("@")[0].partition(":")
    if any(c in "@:/?" or c.isspace() or not c.isprintable() for c in user + password):
        raise ConfigError(
            f"{redact(url)!r}: blanks, control characters, @, :, / and ? in the user or the password must be "
            "percent-encoded, as urllib.parse.quote_plus does"
        )


def _reject_password(url: str, scheme: str | None, rest: str, path: str) -> None:
    """Reject a password in a path or a name: messages show paths unredacted."""
    start = password_start(rest) if "@" in rest else None  # a password ends at an @
    if start is None or _EXPLICIT_PATH.match(rest) or os.path.lexists(os.path.expanduser(path)):
        return
    if rest.startswith("[") and redact_message(rest) == rest:  # the URL that a ConcatenatedBackend shows
        return
    shown = redact(f"{url[: len(url) - len(rest) + start]}***{url[url.rindex('@') :]}")
    what = (
        f"{scheme}:// is for files, which have no password" if scheme else "a URL begins with its scheme, mongodb://…"
    )
    raise ConfigError(f"{shown!r}: {what}; to name a file like this, begin its path with ./")


def _parse_query(query: str, url: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ConfigError(f"{redact(url)!r}: option {redact(part)!r} must read name=value")
        if name in options:
            raise ConfigError(f"{redact(url)!r}: option {name!r} is given twice")
        options[name] = unquote(value)
    return options


class CutShortError(FormatError):
    """A file is truncated: no layout can read it."""


_HDF5 = b"\x89HDF\r\n\x1a\n"
_ENVIRONMENT = "data.mdb"
_LMDB = b"\xde\xc0\xef\xbe"


def sniff(path: str) -> str | None:
    """Return ``"lmdb"``, ``"hdf5"`` or None for the regular file at `path`, by its magic bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sniff_descriptor(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return `size` bytes of an open file from `offset` on, fewer at its end. Linux reads at most 2 GiB at once."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:
        offset, size = offset + len(parts[-1]), size - len(parts[-1])
        parts.append(os.pread(descriptor, size, offset) if size else b"")
    return b"".join(parts)


def sniff_descriptor(descriptor: int, size: int) -> str | None:
    """Return what `sniff` does, for an open file of `size` bytes."""
    if os.pread(descriptor, 32, 0)[16:20] == _LMDB:
        return "lmdb"
    offset = 0
    while offset < size:  # HDF5 allows a user block of 512, 1024, 2048, … bytes in front
        if os.pread(descriptor, len(_HDF5), offset) == _HDF5:
            return "hdf5"
        offset = offset * 2 or 512
    return None


def staging_folder(target: str | Path) -> Path:
    """Return the folder in which a writer builds `target`: beside the file to which symbolic links lead."""
    target = Path(os.path.realpath(target))
    return target.with_name(f".{target.name}.partial")


def stat_store(path: str, url: str) -> os.stat_result:
    """Return the status of the file or folder at `path`; raises StoreNotFoundError, UnavailableError or FormatError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        left = staging_folder(path)
        begun = f"; {left} holds an interrupted write; continue it with resume=True (--resume)" if left.is_dir() else ""
        raise StoreNotFoundError(f"no store at {url}: {nearest(path)}{begun}") from None
    except OSError as error:
        raise refused(url, "looked at", error) from None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise FormatError(f"{url} is not a regular file")
    return status


def check_status(path: str, status: os.stat_result, engine: str | None, kind: str, url: str) -> None:
    """Raise FormatError unless `status` and `engine` are those of a file of engine `kind`."""
    if stat.S_ISDIR(status.st_mode):
        if kind == "lmdb" and os.path.isfile(os.path.join(path, _ENVIRONMENT)):
            raise FormatError(f"{url} is an LMDB environment of another tool, a folder with {_ENVIRONMENT}")
        raise FormatError(f"{url} is a folder; a native {kind} store is one file")
    if engine != kind:
        what = f"is a store of {engine}; write {engine}:// instead" if engine else "does not begin as one"
        raise FormatError(f"{url} is not an {kind} store: the file ({status.st_size} bytes) {what}")


def refused(what: str, done: str, error: OSError) -> StoredsError:
    """Return the error for a failed system call: permission errors are not reported as missing files."""
    never = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)  # no store can exist there
    return (StoreNotFoundError if never else UnavailableError)(f"{what} cannot be {done}: {error.strerror or error}")


def nearest(path: str) -> str:
    """Return which part of a missing absolute `path` exists, and what its folder contains."""
    missing, folder = path, os.path.dirname(path)
    while not os.path.isdir(folder):
        missing, folder = folder, os.path.dirname(folder)
    what = "" if missing == path else f"{missing} is {'no folder' if os.path.lexists(missing) else 'not there'}; "
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{what}{folder} cannot be listed ({error.strerror})"
    return what + (f"{folder} holds {some(names, 8)}" if names else f"{folder} is empty")


_MAGIC = re.compile(r"\*|\[!?\]?[^\]]*\]")


@dataclass(frozen=True)
class Glob:
    """A pattern for files, and how to open the matches.

    Attributes
    ----------
    scheme : str or None
        The engine, if the URL names one.
    pattern : str
        Absolute.
    options : mapping
        The options after the ``?`` of the URL.
    written : str
        The absolute path without expansion of special characters.
    """

    scheme: str | None
    pattern: str
    options: Mapping[str, str] = field(default_factory=dict)
    written: str = ""

    def paths(self) -> list[str]:
        """Return the matching paths, in byte order.

        Raises
        ------
        StoreNotFoundError
            Nothing matches, or a folder cannot be listed.
        """
        found = sorted(set(_matches("/", self.pattern.strip("/").split("/"))), key=os.fsencode)
        if not found:
            raise StoreNotFoundError(f"no file matches {self.pattern}: {nearest(self.written)}")
        return found


def glob_of(url: str | os.PathLike[str] | StoreURL) -> Glob | None:
    """Return the glob pattern in a URL or bare path, or None if it names one store.

    It names one store if it has no special characters, its engine stores no files, or a file of that name exists.
    """
    parsed = StoreURL.parse(url)
    scheme, path = parsed.scheme, parsed.path
    if scheme not in (None, *FILE_ENGINES) or not _MAGIC.search(path):
        return None
    written = os.path.abspath(os.path.expanduser(path))
    if os.path.lexists(written):
        return None
    if path.startswith("~"):
        home, slash, path = path.partition("/")
        path = glob.escape(os.path.expanduser(home)) + slash + path
    # The user did not write the current folder, so its special characters are escaped.
    return Glob(scheme, os.path.normpath(os.path.join(glob.escape(os.getcwd()), path)), parsed.options, written)


def _matches(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield what `parts` of a pattern match in `folder`. Raises errors of folders, where `glob` would pass over them."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from _matches(folder, rest)
        for entry in _list(folder):
            if entry.is_dir(follow_symlinks=False):  # links may form a cycle
                yield from _matches(entry.path, parts)
            elif not rest and not entry.is_dir():
                yield entry.path
        return
    names = [part]
    if _MAGIC.search(part) and not os.path.lexists(os.path.join(folder, part)):
        names = fnmatch.filter([entry.name for entry in _list(folder, part)], part.replace("?", "[?]"))
    for name in names:
        path = os.path.join(folder, name)
        if rest and os.path.isdir(path):
            yield from _matches(path, rest)
        elif not rest and os.path.lexists(path):
            yield path


def _list(folder: str, pattern: str = "*") -> list[os.DirEntry[str]]:
    """Return the entries of a folder; as in a shell, hidden ones, such as interrupted writes, only for a pattern with a dot."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") or pattern.startswith(".")]
    except OSError as error:
        raise refused(folder, "listed", error) from None


# File systems on which locks, mappings or caches of other machines make a database file unsafe or slow.
_NETWORK = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs")


def file_system(path: str) -> str:
    """Return the type of the file system that holds `path`, for example ``ext4``; ``unknown`` if the system does not report it."""
    return file_system_of(path)[0]


def file_system_of(path: str) -> tuple[str, str]:
    """Return the type of the file system that holds `path`, and its mount point."""
    path, best, kind = os.path.realpath(path), os.path.sep, "unknown"
    with contextlib.suppress(OSError), open("/proc/self/mounts", "rb") as mounts:
        for line in map(os.fsdecode, mounts):
            _, place, found, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            if len(place) >= len(best) and Path(path).is_relative_to(place):
                best, kind = place, found
    return kind, best


def file_system_advice(path: str) -> list[str]:
    """Return a warning if `path` lies on a network file system."""
    kind = file_system(path)
    if kind in _NETWORK:
        return [f"it lies on a network file system ({kind}): copy it to a local disk for speed and safety"]
    return []
