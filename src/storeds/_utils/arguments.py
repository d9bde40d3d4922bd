"""Checks single arguments, and converts OmegaConf containers to plain ones."""

from __future__ import annotations

import operator
import sys
from typing import Any

from storeds.errors import ConfigError

__all__ = ["DEEPEST", "RENAMED", "check_int", "check_share", "from_omegaconf", "is_omegaconf", "size_and_rank"]

DEEPEST = 64
"""Levels of nested tables and lists that a config may have."""

RENAMED = {"repeat": "replacement", "buckets": "num_buckets", "budget": "max_padded"}
"""Settings of a loader that had another name, for messages."""


def is_omegaconf(value: Any) -> bool:
    """Whether `value` is a `DictConfig` or a `ListConfig`."""
    omegaconf = sys.modules.get("omegaconf")  # instances exist only if somebody imported it
    return omegaconf is not None and isinstance(value, (omegaconf.DictConfig, omegaconf.ListConfig))


def from_omegaconf(value: Any) -> Any:
    """Return `value` with every OmegaConf container converted to a dict or list and its interpolations resolved.

    Raises
    ------
    ConfigError
        A value is missing (``???``), or an interpolation cannot be resolved; the message shows the key, not the value.
    """
    if "omegaconf" not in sys.modules:
        return value
    if is_omegaconf(value):
        return _resolved(value)
    if type(value) is dict:
        return {key: from_omegaconf(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(from_omegaconf, value))
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


def check_share(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must be a number from 0 to 1, got {value!r}")


def check_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument as an int; raises ConfigError unless it is an integer, not a bool, and within the limits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an int, got {value!r}") from None
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be an int, got {value!r}")
    if (least is not None and number < least) or (most is not None and number > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be {wanted}, got {number}")
    return number


def size_and_rank(num_replicas: int | None, rank: int | None, otherwise: tuple[int, int] = (1, 0)) -> tuple[int, int]:
    """Return (number of processes, rank); by default those of torch.distributed if it is initialised, else `otherwise`.

    Raises
    ------
    ConfigError
        A value is out of range, or `num_replicas` alone is given and is not the number of processes.
    """
    import torch.distributed

    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    world, own = (torch.distributed.get_world_size(), torch.distributed.get_rank()) if running else otherwise
    replicas = world if num_replicas is None else check_int("num_replicas", num_replicas, 1)
    if running and rank is None and replicas != world:
        raise ConfigError(
            f"num_replicas is {replicas}, and torch.distributed has {world} processes: leave it out, or pass rank too"
        )
    rank = own if rank is None else rank
    return replicas, check_int("rank", rank, 0, replicas - 1)
