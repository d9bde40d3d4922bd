"""Finds the foreign layout of a store that is not a native one, by what the layouts themselves say they see."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storeds._suggest import suggest
from storeds._url import redact, split_options
from storeds.errors import ConfigError, MissingDependencyError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.registry import BACKENDS, LAYOUTS

__all__ = ["detect_layout", "layouts_of"]

_LOG = logging.getLogger("storeds")
_FILES = ("lmdb", "hdf5")  # of other URLs, the options are the engine's own


@dataclass(frozen=True)
class _Looked:
    """What one layout said of a store."""

    name: str
    target: Any
    fits: str | None = None
    refusal: str | None = None


def layouts_of(scheme: str) -> list[str]:
    """Return the names of the foreign layouts of one engine."""
    return [name.partition("/")[2] for name in LAYOUTS.names() if name.partition("/")[0] == scheme]


def detect_layout(url: str, scheme: str, options: Mapping[str, Any], why_not_native: StoredsError) -> Any:
    """Return the class of the one layout that recognises the store at `url`.

    Raises
    ------
    ConfigError
        Several do; the message says what each saw. Or no layout of the engine has one of the options.
    StoredsError
        None does: `why_not_native`, of its own class, what was looked for, and why layouts refused.
    """
    names = layouts_of(scheme)
    if not names or isinstance(why_not_native, StoreNotFoundError):
        raise why_not_native
    targets = dict(_loaded(scheme, names))
    bare, given = _without_options(url, scheme, options)
    foreign = _foreign_options(url, scheme, given, targets)
    if isinstance(why_not_native, ConfigError) and not foreign:
        raise why_not_native  # what it is about, foreign layouts would say too
    looked = [_look(name, target, bare, given) for name, target in targets.items()]
    fitting = [one for one in looked if one.fits is not None]
    if not fitting:
        raise _none_fits(url, looked, foreign, why_not_native, _glimpse(bare, given, targets)) from why_not_native
    if len(fitting) > 1:
        told = "; ".join(f"{one.name!r}: {one.fits}" for one in fitting)
        raise ConfigError(f"{redact(url)} fits several layouts, so pass layout= with one of them: {told}")
    (found,) = fitting
    _LOG.info("%s is opened with layout %r: %s", redact(url), found.name, found.fits)
    return found.target


def _loaded(scheme: str, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, LAYOUTS.get(f"{scheme}/{name}")
        except (MissingDependencyError, ConfigError):
            continue  # a stranger's, which cannot be loaded; by its name it says why


def _without_options(url: str, scheme: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the URL of a file without its options, and these with the keywords; of other URLs they are the engine's."""
    written, path, in_url = split_options(url) if scheme in _FILES else (None, url, {})
    return (f"{written}://{path}" if in_url else url), {**in_url, **options}


def _foreign_options(url: str, scheme: str, given: Iterable[str], targets: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the given options that the native layout lacks, each with the foreign ones that have it.

    Raises
    ------
    ConfigError
        No layout has one of them.
    """
    native = _options_of(BACKENDS.get(scheme))
    having = {name: _options_of(target) for name, target in targets.items()}
    foreign = {
        option: [name for name, target in targets.items() if option in having[name] or _takes_any(target)]
        for option in given
        if option not in native
    }
    for option, names in foreign.items():
        if not names:
            known = sorted(native.union(*having.values()))
            what = f"options of {scheme} stores, native and foreign,"
            raise ConfigError(f"{redact(url)}: unknown option {option!r}; {suggest(option, known, what)}")
    return foreign


def _options_of(target: Any) -> set[str]:
    """Return the names of a class's options, as far as it lists them."""
    keywords = inspect.signature(target).parameters.values()
    return {*_fields_of(target), *(each.name for each in keywords if each.kind is each.KEYWORD_ONLY)}


def _takes_any(target: Any) -> bool:
    """Whether a class, a stranger's, takes options that it does not list."""
    keywords = inspect.signature(target).parameters.values()
    return not _fields_of(target) and any(each.kind is each.VAR_KEYWORD for each in keywords)


def _fields_of(target: Any) -> Iterable[str]:
    return getattr(getattr(target, "Options", None), "model_fields", ())


def _look(name: str, target: Any, url: str, given: Mapping[str, Any]) -> _Looked:
    """Ask one layout what it sees in the store, with those of the options that it has."""
    recognise = getattr(target, "recognise", None)
    if recognise is None:
        return _Looked(name, target)
    own = sorted(_options_of(target))
    lacking = [option for option in given if option not in own and not _takes_any(target)]
    try:
        why = recognise(url, **{option: value for option, value in given.items() if option not in lacking})
    except UnavailableError:
        raise
    except StoredsError as error:
        return _Looked(name, target, refusal=str(error))
    except Exception as error:  # a fault of a plug-in's
        error.add_note(
            f"layout {name!r} ({target.__module__}.{target.__qualname__}) was asked whether {redact(url)} is one"
        )
        raise
    if why and lacking:
        return _Looked(
            name,
            target,
            refusal=f"it fits ({why}), but has no option {lacking[0]!r}; {suggest(lacking[0], own, 'options')}",
        )
    return _Looked(name, target, fits=why or None)


def _glimpse(url: str, given: Mapping[str, Any], targets: Mapping[str, Any]) -> list[str]:
    """Return what lies in a store that no layout recognises, if a layout of its engine can tell."""
    for target in targets.values():
        if hasattr(target, "glimpse"):
            own = _options_of(target)
            try:
                return [target.glimpse(url, **{option: value for option, value in given.items() if option in own})]
            except Exception:  # what it decorates counts: that says what is wrong
                return []
    return []


def _none_fits(
    url: str, looked: list[_Looked], foreign: Mapping[str, list[str]], why_not_native: StoredsError, seen: list[str]
) -> StoredsError:
    """Return the error for a store that no layout recognises, with what lies in it and what each said."""
    start, either = str(why_not_native), " either"
    if isinstance(
        why_not_native, ConfigError
    ):  # that the native layout lacks an option, which need not be what is wrong
        told = (
            f"option {option!r} is one of {', '.join(names)}, not of native stores" for option, names in foreign.items()
        )
        start, either = f"{redact(url)}: {'; '.join(told)}", ""
    names = ", ".join(one.name for one in looked)
    hint = f"no foreign layout recognises it{either} (looked for: {names}; layout= names one)"
    return type(why_not_native)("; ".join([start, hint, *seen, *_refusals(looked, str(why_not_native))]))


def _refusals(looked: list[_Looked], told: str) -> Iterator[str]:
    """Yield why layouts refused, each reason once, and none that is told anyway."""
    reasons: dict[str, list[str]] = {}
    for one in looked:
        if one.refusal is not None and one.refusal != told:
            reasons.setdefault(one.refusal, []).append(one.name)
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}"
