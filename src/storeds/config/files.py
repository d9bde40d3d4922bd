"""Parses config files in TOML, YAML and JSON.

Any value may be a secret, so messages show only keys and line numbers. Errors drop the parser's exception as context,
because it quotes the file.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from storeds._utils.locations import redact, redact_message
from storeds._utils.settings import shown_key
from storeds.errors import ConfigError, StoreNotFoundError

__all__ = ["parse_yaml", "read_mapping"]

_MOST_VALUES = 100_000  # of a YAML file, aliases written out
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash: Path collapses two into one
_QUOTED_BY_YAML = re.compile(r"(alias|anchor|tag|handle) (['\"]).*\2")


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping in a ``.toml``, ``.yaml``, ``.yml`` or ``.json`` file.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        The file cannot be parsed, repeats a key or holds no mapping; or the path is a URL.
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
        found = parse(path.read_text("utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        wrong: ConfigError | StoreNotFoundError = StoreNotFoundError(f"no config at {shown}: {error.strerror}")
    except yaml.MarkedYAMLError as error:
        wrong = ConfigError(f"{shown}: {_explain_yaml(error)}")
    except (OSError, ValueError, yaml.YAMLError) as error:
        wrong = ConfigError(f"{shown}: {redact_message(str(error))}")
    except RecursionError:
        wrong = ConfigError(f"{shown}: tables and lists are nested too deep")
    else:
        if isinstance(found, dict):
            return found
        wrong = ConfigError(f"{shown}: expected tables such as [dataset], found {type(found).__name__}")
    raise wrong


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_repetition)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raises ValueError for a repeated key, where json.loads would keep the last one."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {shown_key(key)!r} appears twice")
        table[key] = value
    return table


def parse_yaml(text: str) -> Any:
    """Return the single document in `text`; raises yaml.YAMLError.

    Rejects repeated keys, and aliases that multiply to more than 100,000 values.
    """
    loader = _YamlLoader(text)
    node = loader.get_single_node()
    if node is None:
        return None
    _check(node)
    return loader.construct_document(node)


class _YamlLoader(yaml.SafeLoader):
    """PyYAML's safe loader; replaces exceptions for invalid values, since they quote the value."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            pass
        raise _wrong(f"this is not a valid {node.tag.rpartition(':')[2]}", node)


def _check(root: yaml.Node) -> None:
    """Raise an error for a repeated key, where PyYAML would silently keep the last one, and for too many values."""
    nodes, count = [root], 0
    while nodes:
        node = nodes.pop()
        count += 1
        if count > _MOST_VALUES:
            raise _wrong(f"more than {_MOST_VALUES:,} values, aliases written out", node)
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if (key.tag, key.value) in seen:
                        raise _wrong("this key appears twice", key)
                    seen.add((key.tag, key.value))
                nodes += key, value


def _wrong(text: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


def _explain_yaml(error: yaml.MarkedYAMLError) -> str:
    """Return the problem and its line, without PyYAML's excerpt of the file, which may contain a secret."""
    parts = [(error.context, error.context_mark), (error.problem, error.problem_mark)]
    lines = [f"line {mark.line + 1}, column {mark.column + 1}: {text}" for text, mark in parts if text and mark]
    return "; ".join(_QUOTED_BY_YAML.sub(r"\1 ***", line) for line in lines)


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".json": _parse_json,
}
