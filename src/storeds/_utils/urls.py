"""Parses store URLs, and rejects those whose password would be taken for something else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from storeds.errors import ConfigError, password_start, redact, redact_message
from storeds.registry import BACKENDS

__all__ = ["FILE_ENGINES", "StoreURL", "file_path", "file_url", "redact", "redact_message"]

FILE_ENGINES = ("lmdb", "hdf5")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_EXPLICIT_PATH = re.compile(r"\.{0,2}/(?!/)|~")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store's URL or bare path, parsed once; `str` and `repr` show no secret.

    Attributes
    ----------
    text : str
        As written, secrets included.
    scheme : str or None
        In lower case; None for a bare path whose engine is not known yet.
    path : str
        Of a file: as written, without options. Of any other store: everything after ``://``.
    options : mapping of str to str
        What follows the ``?`` of a file's URL. The options of other engines stay in `path`.
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
            The URL lacks a slash or its scheme, cannot be a path, has a password where only a path belongs, or has
            malformed options.
        """
        if isinstance(url, StoreURL):
            return url
        text = os.fspath(url)
        match = _SCHEME.match(text)
        scheme, rest = (match[1].lower(), text[match.end() :]) if match else (None, text)
        if scheme is None:
            _reject_one_slash(text)
        if scheme is None or scheme in FILE_ENGINES:
            _reject_impossible_path(text, rest)
            _reject_password(text, scheme, rest)
        elif scheme.startswith("mongodb"):
            _reject_bare_characters(text, rest)
        if scheme not in FILE_ENGINES:
            return cls(text, scheme, rest)
        path, _, query = rest.partition("?")
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

    def without_options(self) -> StoreURL:
        """Return the same URL without its options."""
        return StoreURL(f"{self.scheme}://{self.path}", self.scheme, self.path) if self.options else self

    def __str__(self) -> str:
        return self.redacted


def file_path(url: str | StoreURL) -> tuple[str, dict[str, str]]:
    """Return the absolute path and the options of a file store's URL of any scheme, or of a bare path.

    ``lmdb://data/x.lmdb`` is relative, ``lmdb:///data/x.lmdb`` absolute, as in fsspec. Raises ConfigError.
    """
    parsed = StoreURL.parse(url)
    if parsed.scheme is not None and parsed.scheme not in FILE_ENGINES:  # the engine of a plug-in
        path, _, query = parsed.path.partition("?")
        parsed = StoreURL(parsed.text, parsed.scheme, path, _parse_query(query, parsed.text))
    return parsed.file, dict(parsed.options)


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


def _reject_impossible_path(url: str, rest: str) -> None:
    """Reject what no operating-system call accepts as a path, before one raises ValueError."""
    try:
        is_path = b"\0" not in os.fsencode(rest)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise ConfigError(f"{redact(url)!r}: expected a path, and no path holds a NUL or half of a surrogate pair")


def _reject_one_slash(url: str) -> None:
    match = _ONE_SLASH.match(url)
    if match and match[1].lower() in BACKENDS.names():
        raise ConfigError(
            f"{redact(url)!r}: write two slashes, {match[1]}://…, and pass a str, since a Path drops one of them; "
            "to name a file like this, begin its path with ./"
        )


def _reject_password(url: str, scheme: str | None, rest: str) -> None:
    """Reject a password in a path or a name: messages show paths unredacted."""
    start = password_start(rest)
    path = rest.partition("?")[0] if scheme else rest
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
