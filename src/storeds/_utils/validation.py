"""Checks of arguments that several modules take; a refusal names the argument."""

from __future__ import annotations

import operator
from typing import Any

import torch.distributed

from storeds.errors import ConfigError

__all__ = ["check_share", "integer", "ranks"]


def check_share(name: str, value: object) -> None:
    """Raise ConfigError for what is no number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is a share from 0 to 1, got {value!r}")


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
