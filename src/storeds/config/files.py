"""Parses config files in TOML, YAML and JSON.

Any value may be a secret, so messages show only keys and line numbers. Errors drop the parser's exception as context,
because it quotes the file.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storeds.errors import ConfigError, StoreNotFoundError
from storeds.redaction import redact, redact_message

__all__ = ["read_mapping"]


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping in a ``.toml``, ``.yaml``, ``.yml`` or ``.json`` file.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        The file cannot be parsed, repeats a key or holds no mapping.
    """
    path = Path(path)
    shown = redact(str(path))
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(f"{shown}: a config ends in {', '.join(_PARSERS)}")
    try:
        found = parse(path.read_text("utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        wrong: ConfigError | StoreNotFoundError = StoreNotFoundError(f"no config at {shown}: {error.strerror}")
    except (OSError, ValueError) as error:
        wrong = ConfigError(f"{shown}: {redact_message(str(error))}")
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
            raise ValueError(f"the key {redact(key)!r} appears twice")
        table[key] = value
    return table


def _parse_yaml(text: str) -> Any:
    from storeds.config.yaml_text import parse_yaml  # configs in TOML do not wait for PyYAML

    return parse_yaml(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}
