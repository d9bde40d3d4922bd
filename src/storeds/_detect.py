"""Finds the foreign layout of a store that is not a native one, by what the layouts themselves say they see."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from storeds._url import redact
from storeds.errors import ConfigError, MissingDependencyError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.registry import LAYOUTS

__all__ = ["detect_layout", "layouts_of"]

_LOG = logging.getLogger("storeds")


def layouts_of(scheme: str) -> list[str]:
    """Return the names of the foreign layouts of one engine."""
    return [name.partition("/")[2] for name in LAYOUTS.names() if name.partition("/")[0] == scheme]


def detect_layout(url: str, scheme: str, options: Mapping[str, Any], why_not_native: StoredsError) -> Any:
    """Return the class of the one layout that recognises the store at `url`.

    Raises
    ------
    ConfigError
        Several do; the message says what each saw.
    StoredsError
        None does: `why_not_native`, of its own class, and what was looked for.
    """
    seen = list(_seen(url, scheme, options))
    if not seen:
        names = layouts_of(scheme)
        if not names or isinstance(why_not_native, (StoreNotFoundError, ConfigError)):
            raise why_not_native
        hint = f"; no foreign layout recognises it either (looked for: {', '.join(names)}; layout= names one)"
        raise type(why_not_native)(f"{why_not_native}{hint}") from why_not_native
    if len(seen) > 1:
        told = "; ".join(f"{name!r}: {why}" for name, _, why in seen)
        raise ConfigError(f"{redact(url)} fits several layouts, so pass layout= with one of them: {told}")
    ((name, target, why),) = seen
    _LOG.info("%s is opened with layout %r: %s", redact(url), name, why)
    return target


def _seen(url: str, scheme: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield the layouts that recognise the store: name, class, and what was seen."""
    for name in layouts_of(scheme):
        try:
            target = LAYOUTS.get(f"{scheme}/{name}")
        except (MissingDependencyError, ConfigError):
            continue  # a stranger's, which cannot be loaded; by its name it says why
        recognise = getattr(target, "recognise", None)
        if recognise is None:
            continue
        try:
            why = recognise(url, **options)
        except UnavailableError:
            raise
        except StoredsError:
            continue
        if why:
            yield name, target, why
