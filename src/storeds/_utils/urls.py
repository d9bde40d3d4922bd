"""Reads store URLs, and refuses those whose password would be taken for something else."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from storeds.errors import ConfigError, password_start, redact, redact_message
from storeds.registry import BACKENDS

__all__ = ["file_path", "file_url", "redact", "redact_message", "split_options", "split_scheme"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_FILES = (None, "lmdb", "hdf5")
_A_PATH = re.compile(r"\.{0,2}/(?!/)|~")  # meant as such, whatever it holds


def split_scheme(url: str) -> tuple[str | None, str]:
    """Return (lower-case scheme, the rest); the scheme of a bare path is None.

    Raises
    ------
    ConfigError
        What seems a path is a URL that lacks a slash or its scheme, no path can be such, or a file is given a user and a
        password.
    """
    match = _SCHEME.match(url)
    scheme, rest = (match[1].lower(), url[match.end() :]) if match else (None, url)
    if scheme is None:
        _refuse_one_slash(url)
    if scheme in _FILES:
        _refuse_no_path(url, rest)
        _refuse_user(url, scheme, rest)
    elif scheme.startswith("mongodb"):
        _refuse_bare_characters(url, rest)
    return scheme, rest


def _refuse_bare_characters(url: str, rest: str) -> None:
    """Refuse a user and password that hold what ends them: which host is meant would be a guess."""
    # A collection or an option may hold an @ by mistake; behind the one that counts come hosts, and a slash.
    user, _, password = rest[: max(rest.rfind("/"), 0)].rpartition("@")[0].partition(":")
    if any(c in "@:/?" or c.isspace() or not c.isprintable() for c in user + password):
        raise ConfigError(
            f"{redact(url)!r}: blanks, control characters, @, :, / and ? in the user or the password must be "
            "percent-encoded, as urllib.parse.quote_plus does"
        )


def _refuse_no_path(url: str, rest: str) -> None:
    """Refuse what no operating-system call takes as a path, before one raises ValueError."""
    try:
        is_path = b"\0" not in os.fsencode(rest)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise ConfigError(f"{redact(url)!r}: expected a path, and no path holds a NUL or half of a surrogate pair")


def _refuse_one_slash(url: str) -> None:
    match = _ONE_SLASH.match(url)
    if match and match[1].lower() in BACKENDS.names():
        raise ConfigError(
            f"{redact(url)!r}: write two slashes, {match[1]}://…, and give it as text, since a Path keeps one of them; "
            "a path that is meant so begins with ./"
        )


def _refuse_user(url: str, scheme: str | None, rest: str) -> None:
    """Refuse a password where a path or a name belongs: messages about paths show them whole."""
    start = password_start(rest)
    path = rest.partition("?")[0] if scheme else rest
    if start is None or _A_PATH.match(rest) or os.path.lexists(os.path.expanduser(path)):
        return
    if rest.startswith("[") and redact_message(rest) == rest:  # how several stores are shown
        return
    shown = redact(f"{url[: len(url) - len(rest) + start]}***{url[url.rindex('@') :]}")
    what = (
        f"{scheme}:// is for files, which have no password" if scheme else "a URL begins with its scheme, mongodb://…"
    )
    raise ConfigError(f"{shown!r}: {what}; a path that is meant so begins with ./")


def file_path(url: str) -> tuple[str, dict[str, str]]:
    """Return the absolute path and the options of a file store's URL, or of a bare path.

    ``lmdb://data/x.lmdb`` is relative, ``lmdb:///data/x.lmdb`` absolute, as fsspec reads them. Raises ConfigError.
    """
    scheme, path, options = split_options(url)
    if not path:
        raise ConfigError(
            f"{redact(url)!r}: expected a path, as in {scheme or 'lmdb'}://data/train or {scheme or 'lmdb'}:///data/train"
        )
    return os.path.abspath(os.path.expanduser(path)), options


def split_options(url: str) -> tuple[str | None, str, dict[str, str]]:
    """Return the scheme, the path as it is written, and the options; a bare path has only the path. Raises ConfigError."""
    scheme, rest = split_scheme(url)
    path, _, query = rest.partition("?") if scheme else (rest, "", "")
    return scheme, path, _parse_query(query, url)


def file_url(scheme: str, path: str) -> str:
    """Return the URL of an absolute path."""
    return f"{scheme}://{path}"


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
