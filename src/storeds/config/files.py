"""Parses config files in TOML, YAML and JSON.

Config files may be untrusted, so parsing takes bounded time. Any value may be a secret, so messages show only keys and
line numbers. Errors drop the parser's exception as context, because it quotes the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from storeds._utils.arguments import DEEPEST
from storeds._utils.locations import redact, redact_message
from storeds.datasets.source import shown_key
from storeds.errors import ConfigError, StoreNotFoundError

__all__ = ["parse_toml", "parse_yaml", "read_mapping"]

_MOST_BYTES = 1 << 20  # of a file
_MOST_EXPANDED = 16 << 20  # characters of YAML after expanding every alias
_NODE = 320  # characters that each node counts as: PyYAML composes 50,000 nodes in about two seconds
_MOST_DIGITS = 400  # of a number; a float64 needs at most 325
_MOST_PARTS = 64  # of a dotted key: tomllib takes quadratic time in the number of parts

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash: Path collapses two into one
_QUOTED_BY_YAML = re.compile(r"(alias|anchor|tag|handle) (['\"]).*\2")
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE_TAG = "tag:yaml.org,2002:merge"

# Texts and comments. An unclosed one extends to the end, so that matching takes linear time.
_JSON_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_TOML_TEXT = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:""")?'
    r"|'''(?:[^']++|'(?!''))*+(?:''')?"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_BRACKET = re.compile(r"[\[\]{}]")
_LONG_NUMBER = re.compile(rf"(?<![\w.+-])[+-]?\d[\d_]{{{_MOST_DIGITS},}}")
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping in a ``.toml``, ``.yaml``, ``.yml`` or ``.json`` file of at most 1 MiB.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        The file cannot be parsed, is too large or too deep, repeats a key or holds no mapping; or the path is a URL.
    """
    path = Path(path)
    shown = redact(str(path))
    if _URL.match(shown):
        raise ConfigError(
            f"{shown} is a URL; expected the path of a config, which ends in {', '.join(_PARSERS)}; "
            "StoreDataset takes the URL of a store"
        )
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(f"{shown}: a config ends in {', '.join(_PARSERS)}")
    try:
        found = parse(_read(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        wrong: ConfigError | StoreNotFoundError = StoreNotFoundError(f"no config at {shown}: {error.strerror}")
    except yaml.MarkedYAMLError as error:
        wrong = ConfigError(f"{shown}: {_explain_yaml(error)}")
    except UnicodeDecodeError as error:
        wrong = ConfigError(f"{shown}: not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}")
    except (OSError, ValueError, yaml.YAMLError) as error:
        wrong = ConfigError(f"{shown}: {redact_message(str(error))}")
    else:
        if isinstance(found, dict):
            return found
        wrong = ConfigError(f"{shown}: expected tables such as [dataset], found {type(found).__name__}")
    raise wrong


def _read(path: Path) -> str:
    # Opening a FIFO would wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("a config is a regular file, and this is a pipe, a device or a socket")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError("a config is at most 1 MiB; name many stores by a pattern such as data/*.h5")
    return data.decode("utf-8-sig")


# TOML and JSON


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables in `text`; raises ValueError."""
    _check(text, _TOML_TEXT, dotted_keys=True)
    return tomllib.loads(text)


def _parse_json(text: str) -> Any:
    _check(text, _JSON_TEXT, dotted_keys=False)
    return json.loads(text, object_pairs_hook=_without_repetition)


def _check(text: str, quoted: re.Pattern[str], *, dotted_keys: bool) -> None:
    """Raise ValueError, with the line and column, for text that would make a parser very slow or recurse too deeply."""
    bare = quoted.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text)
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"{_at(bare, bracket.start())}nested more than {DEEPEST} deep")
    if number := _LONG_NUMBER.search(bare):
        raise ValueError(f"{_at(bare, number.start())}a number of more than {_MOST_DIGITS} digits")
    if dotted_keys and (key := _LONG_KEY.search(bare)):
        raise ValueError(f"{_at(bare, key.start())}a key of more than {_MOST_PARTS} parts")


def _at(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}: "


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raises ValueError for a repeated key, where json.loads would keep the last one."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in made if keys.count(key) > 1)
        raise ValueError(f"the key {shown_key(twice)!r} appears twice")
    return made


# YAML


class _YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader with limits on alias expansion, nesting and digits; rejects repeated keys.

    Errors give line and column. PyYAML's exceptions for invalid values are replaced, since they quote the values.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._size = 0
        self._sizes: dict[int, int] = {}  # id of a finished node → its size with aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no annotation here
        before = self._size
        self._depth += 1
        if self._depth > DEEPEST:
            raise _wrong(f"nested more than {DEEPEST} deep", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _wrong("this alias is part of the value that it refers to", event.start_mark)
            self._size += self._sizes[id(node)]
        else:
            self._size += _NODE + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            self._sizes[id(node)] = self._size - before
            if isinstance(node, yaml.MappingNode):
                _check_keys(node)
        if self._size > _MOST_EXPANDED:
            raise _wrong("more than 50,000 values or 16 MiB of text by now, aliases written out", event.start_mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        if node.tag in _NUMBER_TAGS and len(node.value) > _MOST_DIGITS:
            raise _wrong(f"a number of more than {_MOST_DIGITS} digits", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            pass
        raise _wrong(f"this is not a valid {kind}", node.start_mark)


def _check_keys(node: yaml.MappingNode) -> None:
    """Raise an error for a repeated key, where PyYAML would silently keep the last one."""
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE_TAG:
            if (key.tag, key.value) in seen:
                raise _wrong("this key appears twice", key.start_mark)
            seen.add((key.tag, key.value))


def _wrong(text: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, mark)


def parse_yaml(text: str) -> Any:
    """Return the single document in `text`; raises yaml.YAMLError."""
    return _YamlLoader(text).get_single_data()


def _explain_yaml(error: yaml.MarkedYAMLError) -> str:
    """Return the problem and its line, without PyYAML's excerpt of the file, which may contain a secret."""
    parts = [(error.context, error.context_mark), (error.problem, error.problem_mark)]
    lines = [f"{_place(mark)}{text}" for text, mark in parts if text]
    return "; ".join(_QUOTED_BY_YAML.sub(r"\1 ***", line) for line in lines)


def _place(mark: yaml.Mark | None) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": parse_toml,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".json": _parse_json,
}
