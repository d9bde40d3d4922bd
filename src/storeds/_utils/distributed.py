"""Integer arguments, and which of how many processes this one is."""

from __future__ import annotations

import operator
from typing import Any

import torch.distributed

from storeds.errors import ConfigError

__all__ = ["integer", "ranks"]


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument as an int; raises ConfigError for a bool, for what is no integer, and outside the limits."""
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


def ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return (how many processes, which of them); torch.distributed's where it is initialised, else (1, 0)."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    if num_replicas is None:
        num_replicas = torch.distributed.get_world_size() if running else 1
    if rank is None:
        rank = torch.distributed.get_rank() if running else 0
    replicas = integer("num_replicas", num_replicas, 1)
    return replicas, integer("rank", rank, 0, replicas - 1)
