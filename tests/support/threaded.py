"""A `StoreLoader` with threads, as a kind of loader for tables of kinds."""

from __future__ import annotations

from typing import Any

from storeds import StoreLoader

__all__ = ["threaded"]


def threaded(dataset: Any, **arguments: Any) -> StoreLoader:
    return StoreLoader(dataset, start_method="thread", **arguments)
