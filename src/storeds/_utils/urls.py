"""Parses the URLs of stores. Rejects those whose password would be taken for something else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, unquote_to_bytes

from storeds.errors import ConfigError
from storeds.redaction import password_of, redact

__all__ = ["FILE_ENGINES", "REMOTE", "StoreURL", "file_path", "file_url", "split_options"]

FILE_ENGINES = ("lmdb", "hdf5", "files")
REMOTE = ("s3", "gs", "az", "https", "http", "hf")
"""Schemes of files that are read from a local copy."""
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
        What follows the ``?`` of the URL of a file, here or elsewhere, see `split_options`. The options of other engines stay in `path`, except
        ``version`` of a URL that ends in a slash.
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
        elif scheme in REMOTE:
            path, _, query = rest.partition("?")
        elif scheme.startswith("mongodb"):
            _reject_bare_characters(text, rest)
            path, query = _split_version(rest)
        return cls(text, scheme, path, _parse_query(query, text))

    @property
    def file(self) -> str:
        """The absolute path of a file; raises ConfigError where the URL has none."""
        if not self.path:
            scheme = self.scheme or "lmdb"
            raise ConfigError(f"{str(self)!r}: expected a path, as in {scheme}://data/train or {scheme}:///data/train")
        return os.path.abspath(os.path.expanduser(self.path))

    def __str__(self) -> str:
        return redact(self.text)


def split_options(text: str) -> tuple[str, str]:
    """Return the path in ``path?options`` and the options; all of it is the path if a file has exactly that name."""
    path, mark, options = text.partition("?")
    return (text, "") if mark and os.path.lexists(os.path.expanduser(text)) else (path, options)


def _split_version(text: str) -> tuple[str, str]:
    """Return the path and the options of a MongoDB URL without ``version``, and that option, if its path ends in a slash."""
    path, _, query = text.partition("?")
    options = query.split("&")
    own = [option for option in options if option.startswith("version=")] if path.endswith("/") else []
    if not own:
        return text, ""
    others = "&".join(option for option in options if option not in own)
    return f"{path}?{others}" if others else path, "&".join(own)


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
    if password_of(rest) is None or _EXPLICIT_PATH.match(rest) or os.path.lexists(os.path.expanduser(path)):
        return
    what = (
        f"{scheme}:// is for files, which have no password" if scheme else "a URL begins with its scheme, mongodb://…"
    )
    raise ConfigError(f"{redact(url)!r}: {what}; to name a file like this, begin its path with ./")


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
