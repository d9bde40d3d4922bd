"""Checks of arguments that several modules take; a refusal names the argument."""

from __future__ import annotations

from storeds.errors import ConfigError

__all__ = ["check_share"]


def check_share(name: str, value: object) -> None:
    """Raise ConfigError for what is no number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is a share from 0 to 1, got {value!r}")
