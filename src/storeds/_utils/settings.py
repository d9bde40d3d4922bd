"""Settings that msgspec validates: options of stores, and the tables of a config. No message shows a value."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from storeds._utils.urls import StoreURL
from storeds.errors import ConfigError, suggest
from storeds.redaction import is_secret, redact, redact_message

__all__ = ["Settings", "in_words", "parse_options"]

_ERROR = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<place>\$.*)`)?", re.DOTALL)
_TYPES = {
    "array": "a list",
    "object": "a table",
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings: frozen, without unknown names, and with secrets hidden in `repr`.

    Attributes
    ----------
    parsers : mapping of str to callable
        Setting → the function that parses its value, before its type is checked. It raises ValueError.
    renamed : mapping of str to str
        Former name of a setting → its name.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def validated(cls, given: Mapping[str, Any], where: str, what: str = "key") -> Self:
        """Return the settings with these values. Texts such as ``8`` and ``true`` become numbers and bools.

        Parameters
        ----------
        given : mapping of str to any
            Name → value.
        where : str
            Begins the message of an error.
        what : str
            What a message calls a setting.

        Raises
        ------
        ConfigError
            A name is unknown, a value is missing or has the wrong type. The message shows no value.
        """
        for name in given:
            if name not in cls.__struct_fields__:
                listing = _instead(cls, str(name), f"{what}s")
                raise ConfigError(f"{where}: unknown {what} {redact(str(name))!r}; {listing}")
        parsed = dict(given)
        name = ""
        try:
            for name in cls.parsers.keys() & given.keys():
                parsed[name] = cls.parsers[name](given[name])
            return msgspec.convert(parsed, cls, strict=False, dec_hook=_unchanged)
        except msgspec.ValidationError as error:
            wrong = _explained(str(error), cls)
        except ValueError as error:
            wrong = str(error)
            wrong = wrong if wrong.startswith(name) else f"{name}: {wrong}"
        raise ConfigError(f"{where}: {wrong}")  # outside the handler: the error as context would show the value

    @classmethod
    def defaults(cls) -> Mapping[str, Any]:
        """Return name → default of the settings that have one."""
        return _defaults(cls)

    def changed(self) -> dict[str, Any]:
        """Return name → value of the settings that differ from their default."""
        values, defaults = {name: getattr(self, name) for name in self.__struct_fields__}, self.defaults()
        # Whether an array equals its default is no bool.
        return {name: each for name, each in values.items() if (each == defaults.get(name, _NOTHING)) is not True}

    def __repr__(self) -> str:
        shown = (f"{name}={_hidden(getattr(self, name))!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(shown)})"


_NOTHING = object()


@functools.cache  # it takes msgspec a millisecond
def _defaults(cls: type[Settings]) -> Mapping[str, Any]:
    fields = {field.name: (field.default, field.default_factory) for field in msgspec.structs.fields(cls)}
    made = {name: value if factory is msgspec.NODEFAULT else factory() for name, (value, factory) in fields.items()}
    return {name: value for name, value in made.items() if value is not msgspec.NODEFAULT}


S = TypeVar("S", bound=Settings)


def parse_options(cls: type[S], in_url: Mapping[str, str], keywords: Mapping[str, Any], url: str | StoreURL) -> S:
    """Validate the options of a URL and of a call together; raises ConfigError without showing any value."""
    shown = redact(str(url))
    for name in in_url.keys() & keywords.keys():
        raise ConfigError(f"{shown}: option {name!r} is given in the URL and as a keyword; give it once")
    return cls.validated({**in_url, **keywords}, shown, "option")


def _unchanged(expected: type, value: Any) -> Any:
    """Return a value of a type that msgspec does not know; raises TypeError if it is of another one."""
    if not isinstance(value, expected):
        raise TypeError(f"expected {expected.__name__}, got {type(value).__name__}")
    return value


def _instead(cls: type[Settings], name: str, what: str) -> str:
    """Return what to write instead of an unknown name."""
    if name in cls.renamed:
        return f"its name is {cls.renamed[name]!r} now"
    return suggest(name, cls.__struct_fields__, what)


def _explained(text: str, cls: type[Settings]) -> str:
    """Return msgspec's message in our words, without values."""
    match = _ERROR.fullmatch(text)
    assert match is not None
    what, place = match["what"], (match["place"] or "$").removeprefix("$").removeprefix(".")
    declared = _declared(cls, place)
    if what.startswith("Object missing required field"):
        name = what.split("`")[1]
        return f"{f'{place}.{name}' if place else name} is needed"
    if what.startswith("Object contains unknown field"):
        inner = declared if isinstance(declared, type) and issubclass(declared, Settings) else cls
        name = what.split("`")[1]
        return f"unknown key {f'{place}.{redact(name)}'!r}; {_instead(inner, name, 'keys')}"
    if what.startswith("Invalid enum value"):
        allowed = [
            repr(value)
            for part in (declared, *get_args(declared))
            if get_origin(part) is Literal
            for value in get_args(part)
        ]
        return f"{place}: expected {', '.join(allowed)}"
    words = f"a key of this table: {in_words(what)}" if match["key"] else in_words(what)
    return redact_message(f"{place}: {words}" if place else words)


def in_words(what: str) -> str:
    """Return msgspec's description of a wrong value with plain names of types: ``expected an integer >= 1``."""
    words = re.sub(
        "`([a-z| ]+)`", lambda found: " or ".join(_TYPES.get(each, each) for each in found[1].split(" | ")), what
    )
    return f"{words[0].lower()}{words[1:]}"


def _declared(cls: type[Settings], place: str) -> Any:
    """Return the type of the setting at a place such as ``loader.batch_size``."""
    declared: Any = cls
    for name in place.split("."):
        hints = get_type_hints(declared) if isinstance(declared, type) and issubclass(declared, Settings) else {}
        declared = hints.get(name.partition("[")[0], declared)
        if "[" in name:  # a part of a table or a list
            declared = (get_args(declared) or (declared,))[-1]
    return declared


def _hidden(value: Any) -> Any:
    """Return a value of a setting with its secrets replaced by ``***``."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            redact(key) if isinstance(key, str) else key: "***" if is_secret(str(key)) else _hidden(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(map(_hidden, value))
    return value
