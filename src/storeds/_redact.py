"""Takes the secrets out of URLs, and out of messages that hold URLs. Imports nothing of storeds, so that errors can use it."""

from __future__ import annotations

import re

__all__ = ["password_start", "redact", "redact_message"]

# What stands in front of user and password, also in a URL that is misspelt: mongo db://, mongodb//, mongodb:/, "://".
_SLASHES = re.compile(r":/+|//+")
_FILE_URL = re.compile(r"\s*(lmdb|hdf5):/", re.IGNORECASE)
# A path with a : in its first part and an @ behind it. A drive, as in C:/ and C:\, is no user.
# Behind a blank only if a host and a path follow: "key: value @x" is prose.
_USER_FIRST = re.compile(r"\s*[^\s/:?]*:(?:(?![/\\\s])|(?=\s.*@[^\s@/]+/))", re.DOTALL)

_WORD = re.compile(r"\S+")
# What stands in front of a password. In none of the three can a scan run past the next colon, so a search is linear.
# A user's name may hold @ and, where the path is no file's, / too. Quotes and the like are what messages put around a
# URL; a / is not among them, because file names may hold : and @.
_BEFORE_PASSWORD = re.compile(
    r"""mongodb(?:\+srv)?:/[^:]*:"""
    r"""|(?:://+|(?<=[\w+.-][\w+.-]):/)[^:/]*:"""
    r"""|(?<![^'"`()\[\]{}<>=,;&?|])[^'"`()\[\]{}<>=,;&?|:/]*:(?=[^/\\])""",
    re.IGNORECASE,
)
# The lookahead makes sure that whatever name is tried is followed by a value: no second try, so linear again.
_HIDDEN_NAME = (
    r"(?=[\w.-]+=[^&;\s])(?:[\w.-]*(?:pass|pwd|secret|token|credential|apikey)[\w.-]*|authMechanismProperties)="
)
_NOT_HIDDEN = r"(?!\*{3}(?:[^\w*\s]|$))"  # what was hidden before keeps the punctuation behind it
_SECRET_OPTION = re.compile(rf"([?&;\s]{_HIDDEN_NAME}){_NOT_HIDDEN}[^&;\s]+", re.IGNORECASE)
_SECRET_OPTION_OF_URL = re.compile(rf"([?&;]{_HIDDEN_NAME}){_NOT_HIDDEN}[^&;]+", re.IGNORECASE)


def redact(url: str) -> str:
    """Return a URL with passwords, tokens and other secrets in it replaced by ``***``.

    Also where they hold blanks, where the URL lacks a slash or its scheme, and where its scheme is misspelt. Of a text
    that may be more than one URL, everything between the first password's start and the last one's end is hidden.
    """
    hidden = redact_message(_SECRET_OPTION_OF_URL.sub(r"\1***", _without_any_password(url)))
    return _without_any_password(hidden)  # what stood before the password may be gone, and another one be the first


def _without_any_password(url: str) -> str:
    start = password_start(url)
    return url if start is None else f"{url[:start]}***{url[url.rindex('@') :]}"


def password_start(url: str) -> int | None:
    """Return where in a URL the password begins, which ends at the last @; None where there is none."""
    at = url.rfind("@")
    user = _USER_FIRST.match(url)
    slashes = None if user else _SLASHES.search(url, 0, max(at, 0))
    colon = url.find(":", slashes.end(), at) if slashes else user.end() - 1 if user else -1
    if slashes and _FILE_URL.match(url) and "/" in url[slashes.end() : colon]:
        return None  # the names of files may hold both
    return colon + 1 if 0 <= colon < at - 1 else None


def redact_message(text: str) -> str:
    """Return `text` with the secrets of any URL in it replaced by ``***``.

    Also where a URL lacks a slash, ``mongodb:/user:password@host``, or its scheme, ``user:password@host``.
    """
    return _SECRET_OPTION.sub(
        r"\1***", _WORD.sub(lambda word: _without_password(word[0]), text) if "@" in text else text
    )


def _without_password(word: str) -> str:
    # Up to the *last* @: a password that should have been percent-encoded may hold @, / and ? itself.
    at = word.rfind("@")
    before = _BEFORE_PASSWORD.search(word, 0, at) if at >= 0 else None
    return f"{word[: before.end()]}***{word[at:]}" if before else word
