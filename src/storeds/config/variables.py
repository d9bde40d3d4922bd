"""Replaces ``${NAME}`` in the texts of a config by environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from storeds._utils.arguments import DEEPEST, from_omegaconf, is_omegaconf
from storeds.errors import ConfigError
from storeds.redaction import redact

__all__ = ["expand"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand(value: Any, path: tuple[Any, ...] = (), *, variables: bool = True) -> Any:
    """Return `value` with each ``${NAME}`` in its texts replaced by that environment variable, and in plain containers.

    OmegaConf resolves its own containers instead.

    Parameters
    ----------
    value : Any
    path : tuple
        The keys that lead to `value`.
    variables : bool
        Whether to replace variables.

    Raises
    ------
    ConfigError
        A variable is not set, an integer has more than 64 bits, or `value` contains itself or is nested more than 64 deep.
    """
    if len(path) > DEEPEST:
        raise ConfigError(f"config: {_dotted(path[:3])}: nested more than {DEEPEST} deep, or part of itself")
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value) if variables else value
    if isinstance(value, PurePath):
        return type(value)(expand(str(value), path, variables=variables))
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
        raise ConfigError(f"config: {_dotted(path)}: an integer of more than 64 bits")
    if is_omegaconf(value):
        return expand(from_omegaconf(value), path, variables=False)
    if isinstance(value, Mapping):
        return {key: expand(item, (*path, key), variables=variables) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(expand(item, (*path, at), variables=variables) for at, item in enumerate(value))
    return value


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(redact(str(key)) for key in path) or "it"


def _variable(match: re.Match[str]) -> str:
    try:
        return os.environ[match[1]]
    except KeyError:
        pass
    raise ConfigError(f"config: the environment variable {match[1]} is not set, and {match[0]} asks for it")
