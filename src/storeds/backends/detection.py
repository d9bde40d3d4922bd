"""Detects the layout of a store that another tool wrote, by asking each layout of the engine."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storeds._utils.locations import CutShortError, DamagedStoreError, StoreURL
from storeds.backends.base import open_with
from storeds.backends.handles import OpenStore
from storeds.backends.readings import AmbiguousError, Reading, ambiguous, given_by
from storeds.errors import (
    ConfigError,
    MissingDependencyError,
    StoredsError,
    StoreNotFoundError,
    UnavailableError,
    suggest,
)
from storeds.registry import BACKENDS, LAYOUTS

__all__ = ["detect_layout", "layouts_of"]

_LOG = logging.getLogger("storeds")


@dataclass(frozen=True)
class _Answer:
    """The answer of one layout about a store: why it fits, several ways to read it, or why it cannot."""

    name: str
    target: Any
    fits: str | None = None
    refusal: str | None = None
    readings: tuple[Reading, ...] = ()
    option: bool = False  # whether the refusal is about an option, which the user can correct


def layouts_of(scheme: str) -> list[str]:
    """Return the names of the foreign layouts of one engine."""
    return [name.partition("/")[2] for name in LAYOUTS.names() if name.partition("/")[0] == scheme]


def _ask(target: Any, method: str, url: StoreURL, opened: OpenStore, options: Mapping[str, Any]) -> Any:
    """Call a class method of a layout; see `storeds.backends.base.open_with`."""
    if getattr(target, "shares_open_store", False):
        return getattr(target, method)(url, opened=opened, **options)
    return getattr(target, method)(url.text, **options)


def detect_layout(url: StoreURL, opened: OpenStore, options: Mapping[str, Any], why_not_native: StoredsError) -> Any:
    """Return the class of the one layout that fits the store at `url`.

    Raises
    ------
    ConfigError
        There are several readings, of one layout or of several; the message shows what each gives and the argument that
        selects it. Or no layout of the engine has one of the options.
    StoredsError
        None fits: `why_not_native`, of its own class, the layouts that were tried, and why they refused.
    """
    scheme = url.scheme or ""
    names = layouts_of(scheme)
    if not names or isinstance(why_not_native, (StoreNotFoundError, CutShortError, DamagedStoreError)):
        raise why_not_native
    bare, given = url.without_options(), {**url.options, **options}
    native = _options_of(BACKENDS.get(scheme))
    unknown = [option for option in given if option not in native]
    foreign = _foreign_options(url, unknown, native, dict(_loaded(scheme, names))) if unknown else {}
    if isinstance(why_not_native, ConfigError) and not foreign:
        raise why_not_native  # foreign layouts would report the same
    answers = [*_ask_all(scheme, names, bare, opened, given)]
    fitting = [one for one in answers if one.fits is not None or one.readings]
    if not fitting:
        targets = {one.name: one.target for one in answers}
        seen = _say(targets, "describe", bare, opened, given)
        wrong_option = bool(foreign) or any(one.option for one in answers)
        scripts = [] if wrong_option else _say(targets, "conversion_script", bare, opened, given)
        # In HDF5, opening reads names alone; elsewhere it would read all keys or documents.
        named = [*_named(answers, bare, given)] if scheme == "hdf5" and not wrong_option else []
        raise _none_fits(url, answers, foreign, why_not_native, seen, named, scripts) from why_not_native
    if len(fitting) > 1 or fitting[0].readings:
        raise ambiguous(url.redacted, [*_readings(fitting, bare, given)])
    (found,) = fitting
    _LOG.info("%s is opened with layout %r: %s", url.redacted, found.name, found.fits)
    return found.target


def _loaded(scheme: str, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, LAYOUTS.get(f"{scheme}/{name}")
        except (MissingDependencyError, ConfigError):
            continue  # opening with layout= reports why it cannot be loaded


def _foreign_options(
    url: StoreURL, unknown: Iterable[str], native: set[str], targets: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return the options that the native layout lacks, each with the foreign ones that have it.

    Raises
    ------
    ConfigError
        No layout has one of them.
    """
    having = {name: _options_of(target) for name, target in targets.items()}
    foreign = {
        option: [name for name, target in targets.items() if option in having[name] or _takes_any(target)]
        for option in unknown
    }
    for option, names in foreign.items():
        if not names:
            known = sorted(native.union(*having.values()))
            what = f"options of {url.scheme} stores, native and foreign,"
            raise ConfigError(f"{url}: unknown option {option!r}; {suggest(option, known, what)}")
    return foreign


def _options_of(target: Any) -> set[str]:
    """Return the names of a class's options, as far as it lists them."""
    keywords = inspect.signature(target).parameters.values()
    names = {each.name for each in keywords if each.kind is each.KEYWORD_ONLY}
    return {*_fields_of(target), *names} - {"opened"}


def _takes_any(target: Any) -> bool:
    """Whether a class of another package takes options that it does not list."""
    keywords = inspect.signature(target).parameters.values()
    return not _fields_of(target) and any(each.kind is each.VAR_KEYWORD for each in keywords)


def _fields_of(target: Any) -> Iterable[str]:
    return getattr(getattr(target, "Options", None), "model_fields", ())


def _ask_all(
    scheme: str, names: list[str], url: StoreURL, opened: OpenStore, given: Mapping[str, Any]
) -> Iterator[_Answer]:
    """Ask each layout, up to a built-in one that rules the other built-in ones out; what is not asked is not imported."""
    settled = False
    for name in names:
        if settled and LAYOUTS.is_built_in(f"{scheme}/{name}"):
            continue
        for _, target in _loaded(scheme, [name]):
            one = _ask_one(name, target, url, opened, given)
            yield one
            if one.fits is not None and hasattr(target, "rules_out_others"):
                own = _options_of(target)
                known = {option: value for option, value in given.items() if option in own}
                settled = settled or _ask(target, "rules_out_others", url, opened, known)


def _ask_one(name: str, target: Any, url: StoreURL, opened: OpenStore, given: Mapping[str, Any]) -> _Answer:
    """Ask one layout whether it fits the store, with the options that it has."""
    if not hasattr(target, "guess_can_open"):
        return _Answer(name, target)
    own = sorted(_options_of(target))
    lacking = [option for option in given if option not in own and not _takes_any(target)]
    try:
        known = {option: value for option, value in given.items() if option not in lacking}
        why = _ask(target, "guess_can_open", url, opened, known)
    except UnavailableError:
        raise
    except AmbiguousError as error:
        return _Answer(name, target, readings=error.readings)
    except StoredsError as error:
        return _Answer(name, target, refusal=str(error), option=isinstance(error, ConfigError))
    except Exception as error:  # an error in a plug-in
        error.add_note(
            f"layout {name!r} ({target.__module__}.{target.__qualname__}) raised this while storeds asked whether it fits {url}"
        )
        raise
    if why and lacking:
        return _Answer(
            name,
            target,
            refusal=f"it fits ({why}), but has no option {lacking[0]!r}; {suggest(lacking[0], own, 'options')}",
        )
    return _Answer(name, target, fits=why or None)


def _readings(fitting: list[_Answer], url: StoreURL, given: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield the ways in which layouts can read a store, each with the argument that selects it."""
    for one in fitting:
        layout = f"layout={one.name!r}"
        if one.fits is not None:
            yield Reading(layout, one.fits, functools.partial(open_with, one.target, url, None, given))
        for reading in one.readings:
            named = len(fitting) == 1 or reading.argument.startswith("layout=")
            argument = reading.argument if named else f"{layout}, {reading.argument}"
            yield Reading(argument, reading.why, reading.open)


def _say(
    targets: Mapping[str, Any], method: str, url: StoreURL, opened: OpenStore, given: Mapping[str, Any]
) -> list[str]:
    """Return what the first layout that has one class method reports of a store that no layout fits."""
    for target in targets.values():
        if hasattr(target, method):
            own = _options_of(target)
            try:
                known = {name: value for name, value in given.items() if name in own}
                return [_ask(target, method, url, opened, known)]
            except Exception:  # the error that this would add to says what is wrong
                return []
    return []


def _named(answers: list[_Answer], url: StoreURL, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each layout returns that does not claim a store, but can open it when it is named."""
    for one in answers:
        if one.refusal is None:
            with contextlib.suppress(Exception):  # the error that this would add to says what is wrong
                yield f"\n  layout={one.name!r}: {given_by(functools.partial(open_with, one.target, url, None, given))}"


def _none_fits(
    url: StoreURL,
    answers: list[_Answer],
    foreign: Mapping[str, list[str]],
    why_not_native: StoredsError,
    seen: list[str],
    named: list[str],
    scripts: list[str],
) -> StoredsError:
    """Return the error for a store that no layout fits: its content, each refusal, and how to read or convert it."""
    start, either = str(why_not_native), " either"
    if isinstance(why_not_native, ConfigError):  # the native layout lacks an option, which need not be the problem
        options = (
            f"option {option!r} is one of {', '.join(names)}, not of native stores" for option, names in foreign.items()
        )
        start, either = f"{url}: {'; '.join(options)}", ""
    names = ", ".join(one.name for one in answers)
    hint = f"no foreign layout fits{either} (tried: {names}; layout= names one)"
    message = "; ".join([start, hint, *seen, *_refusals(answers, str(why_not_native))])
    if named:
        message += f"\nA layout that is named reads it as:{''.join(named)}"
    return type(why_not_native)("\n".join([message, *(f"To convert it by hand:\n{loop}" for loop in scripts)]))


def _refusals(answers: list[_Answer], message: str) -> Iterator[str]:
    """Yield why layouts refused: each reason once, except the one in the main message."""
    reasons: dict[str, list[str]] = {}
    for one in answers:
        if one.refusal is not None and one.refusal != message:
            reasons.setdefault(one.refusal, []).append(one.name)
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}"
