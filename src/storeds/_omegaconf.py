"""Turns what OmegaConf and Hydra hand over into plain dicts and lists, without importing either."""

from __future__ import annotations

import sys
from typing import Any

from storeds.errors import ConfigError

__all__ = ["is_omegaconf", "plain"]


def is_omegaconf(value: Any) -> bool:
    """Whether `value` is a `DictConfig` or a `ListConfig`."""
    omegaconf = sys.modules.get("omegaconf")  # without that import there can be no instance
    return omegaconf is not None and isinstance(value, (omegaconf.DictConfig, omegaconf.ListConfig))


def plain(value: Any) -> Any:
    """Return `value` with every OmegaConf container in it as a dict or a list, its interpolations resolved.

    Raises
    ------
    ConfigError
        A value is missing (``???``), or an interpolation cannot be resolved; the message names the key, never a value.
    """
    if "omegaconf" not in sys.modules:
        return value
    if is_omegaconf(value):
        return _resolved(value)
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def _resolved(container: Any) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

    try:
        return OmegaConf.to_container(container, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key, kind = error.full_key or error.key, type(error)
    if issubclass(kind, MissingMandatoryValue):
        raise ConfigError(f"config: {key} is ???, which means that a value must be given for it")
    hint = "; an environment variable is ${oc.env:NAME} there" if issubclass(kind, InterpolationKeyError) else ""
    raise ConfigError(f"config: OmegaConf cannot resolve the interpolation in {key} ({kind.__name__}){hint}")
