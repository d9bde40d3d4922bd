"""Changes single config values from texts such as ``loader.batch_size=16``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from storeds.errors import ConfigError, suggest

__all__ = ["override"]


def override(config: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `config` in which each override ``table.key=value`` is set, in order.

    The value is read as TOML, else as JSON, else as text: ``16``, ``true``, ``null``, ``[8, 8]``,
    ``{name = "Resize", size = 8}``, ``lmdb://x.lmdb``. A number in the path is a list index: ``dataset.transform.0.size=128``.

    Raises
    ------
    ConfigError
        An override has no ``=``, its value is malformed, its path passes through a value that is neither a table nor a
        list, or it names an unknown split. Messages show no values. `Config` rejects unknown keys later.
    """
    changed: Any = dict(config)
    for text in overrides:
        path, equals, value = text.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            start = re.split(r"[=:@/\s]", text)[0][:40]  # safe to show: a secret can only follow these characters
            raise ConfigError(f"overrides: {start!r}… must read table.key=value, as in loader.batch_size=16")
        _check_split(changed, keys, path)
        changed = _with(changed, keys, _value(value, path), path)
    return changed  # type: ignore[no-any-return]  # a mapping stays one


def _check_split(config: Mapping[str, Any], keys: list[str], path: str) -> None:
    """Raise ConfigError for a misspelt split, which would otherwise create a new one."""
    splits = config.get("splits")
    if keys[0] == "splits" and len(keys) > 1 and isinstance(splits, Mapping) and splits:
        names = [str(name) for name in splits]
        if keys[1] not in names:
            raise ConfigError(f"overrides: {path}: unknown split {keys[1]!r}; {suggest(keys[1], names, 'splits')}")


def _with(node: Any, keys: list[str], value: Any, path: str) -> Any:
    """Return a copy of `node` with the item at path `keys` set to `value`."""
    if not keys:
        return value
    key, *rest = keys
    if node is None or isinstance(node, Mapping):
        table = dict(node or {})
        key = next((known for known in table if str(known) == key), key)  # YAML has keys that are numbers
        return {**table, key: _with(table.get(key), rest, value, path)}
    if isinstance(node, list):
        place = int(key) if key.isdecimal() else len(node)
        if place >= len(node):
            raise ConfigError(f"overrides: {path}: the list has {len(node)} items, counted from 0, and no item {key!r}")
        return [*node[:place], _with(node[place], rest, value, path), *node[place + 1 :]]
    raise ConfigError(f"overrides: {path}: cannot set {key!r}: its parent is a {type(node).__name__}, not a table")


def _value(text: str, path: str) -> Any:
    text = text.strip()
    if not text:
        raise ConfigError(f"overrides: {path} has no value; write null for none, or two quotes for empty text")
    with suppress(ValueError):
        return tomllib.loads(f"value = {text}")["value"]
    with suppress(ValueError):
        return json.loads(text)
    if text[0] in "[{\"'":
        raise ConfigError(f"overrides: the value of {path} is neither TOML nor JSON")
    return text
