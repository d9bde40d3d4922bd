"""`Agreement`: what two runs must agree on, for a place in an epoch to mean the same in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash

from storeds._utils.arguments import check_int
from storeds.errors import ConfigError
from storeds.loaders.plan import Plan
from storeds.loaders.planning import PlanSettings

__all__ = ["Agreement"]

_VERSION = 1
_SETTINGS = ("shuffle", "block_size", "window", "drop_last")
_OPTIONAL = ("store", "where")  # compared where both know them: without where=, the count is enough


class Agreement:
    """Writes what a run is of into its states, and compares it with what another run's state says.

    Parameters
    ----------
    data : Any
        The dataset, or its number of samples.
    count : int
        Its number of samples.
    settings : PlanSettings
    plan : Plan
        What they make of `data`.

    Attributes
    ----------
    data : dict
        ``count``, ``store`` and ``where``: the number of samples, the identity of the store, and which records are selected.
    """

    def __init__(self, data: Any, count: int, settings: PlanSettings, plan: Plan) -> None:
        self._url_of: Any = getattr(getattr(data, "backend", None), "url_of", None)
        self.data = {"count": count, "store": _store_id(data), "where": _where_digest(data)}
        self._settings = {name: getattr(settings, name) for name in _SETTINGS}
        self._plan = plan.key

    def state(self, seed: int | None, epoch: int, place: int) -> dict[str, Any]:
        """Return the state of a run at a place, as a small dict that JSON can hold."""
        plan = {"plan": self._plan} if self._plan else {}
        return {"version": _VERSION, **self._of(seed), **plan, "epoch": epoch, "position": place}

    def check(self, state: Any, seed: int | None, *, any_seed: bool) -> None:
        """Raise ConfigError if a state is malformed or of a run that differs; the message lists the differences."""
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            found = state.get("version") if isinstance(state, Mapping) else state
            raise ConfigError(f"not a sampler's state of version {_VERSION}: version is {found!r}")
        own = self._of(seed)
        missing = [name for name in (*own, "epoch", "position") if name not in state]
        if missing:
            raise ConfigError(f"the sampler's state lacks {', '.join(missing)}")
        differing = []
        for name, value in own.items():
            saved = state[name]
            unknown = (name in _OPTIONAL and None in (saved, value)) or (name == "seed" and any_seed)
            if saved != value and not unknown:  # digests of where= say nothing to a reader
                is_digest = name == "where"
                differing.append(
                    "another where=, fold or keys_file selected the records"
                    if is_digest
                    else f"{name} was {saved!r} and is {value!r}"
                )
        url = self._url_of(state["store"]) if self._url_of is not None and state["store"] != own["store"] else None
        if url is not None:
            raise ConfigError(f"the state is of another version of the store: open {url} to go on with it")
        if state.get("plan", "") != self._plan:
            differing.append("another plan of its epochs: other weights, classes, sources, groups or buckets")
        if differing:
            raise ConfigError(f"the state belongs to another sampler: {'; '.join(differing)}")
        if state["seed"] is not None:
            check_int("seed", state["seed"])

    def _of(self, seed: int | None) -> dict[str, Any]:
        return {**self.data, "seed": seed, **self._settings}


def _store_id(data: Any) -> str | None:
    identity = getattr(getattr(getattr(data, "backend", None), "meta", None), "id", None)
    return identity if isinstance(identity, str) else None


def _where_digest(data: Any) -> str | None:
    where, how = getattr(data, "where", None), getattr(getattr(data, "records", None), "how", None)
    subsets = getattr(how, "subsets", None)
    named = where if isinstance(where, Mapping) else {}  # a condition is among the subsets
    if not named and subsets is None:
        return None
    selected = repr(sorted(named.items())) + (subsets or "")
    return xxhash.xxh3_64_hexdigest(selected.encode())
