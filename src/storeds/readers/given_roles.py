"""What a user says about the elements of samples: the option ``roles`` of `SampleReader`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError, suggest
from storeds.protocols import ROLES, Field
from storeds.records.roles import ROLE_KEYS

__all__ = ["check_given_roles", "given_classes", "given_keys", "in_kind_of_role"]

_ROWS = ("boxes", "keypoints", "labels")


def check_given_roles(roles: Any) -> None:
    """Raise ConfigError unless `roles` maps elements to roles, or to mappings of their keys."""
    if not isinstance(roles, (Mapping, type(None))):
        raise ConfigError(f"roles is a mapping from elements to roles, for example {{'mask': 'mask'}}, not {roles!r}")
    for name, spec in (roles or {}).items():
        given = {"role": spec} if isinstance(spec, str) else spec
        known = (*ROLE_KEYS, "classes")
        if not isinstance(given, Mapping):
            raise ConfigError(f"roles: that of {name!r} is the name of a role or a mapping of its keys, not {spec!r}")
        for key in given:
            if key not in known:
                raise ConfigError(f"roles: {name!r} has an unknown key {key!r}; {suggest(key, known, 'keys')}")
        if given.get("role") is not None and given["role"] not in ROLES:
            raise ConfigError(
                f"roles: {name!r} has an unknown role {given['role']!r}; {suggest(given['role'], ROLES, 'roles')}"
            )


def given_keys(roles: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the keys of a declaration that `roles` gives for an element."""
    spec = (roles or {}).get(name, {})
    given = {"role": spec} if isinstance(spec, str) else dict(spec)
    given.pop("classes", None)
    if "role" in given:  # another role than the store's has other keys
        return {"format": None, "relative": False, **given}
    return given


def given_classes(roles: Mapping[str, Any] | None, name: str) -> Sequence[str] | Sequence[int] | None:
    """Return the classes that `roles` gives for a label, or None; raise ConfigError for anything but a list of them."""
    spec = (roles or {}).get(name)
    given = spec.get("classes") if isinstance(spec, Mapping) else None
    if given is None:
        return None
    is_list = isinstance(given, (list, tuple))
    if not is_list or not given or {type(each) for each in given} not in ({str}, {int}):
        raise ConfigError(f"roles: the classes of {name!r} are a list of names or a list of numbers, not {given!r}")
    classes: Sequence[str] | Sequence[int] = given
    return classes


def in_kind_of_role(declared: Field) -> Field:
    """Return the declaration of rows that a store of another tool holds in one dimension, or as text, as kind json."""
    shape = declared.shape or ()
    # Files of other tools with arrays of different shapes do not tell how many columns these have.
    flat = declared.role in ("boxes", "keypoints") and (len(shape) == 1 or shape[-1:] == (None,))
    text = declared.kind in ("str", "bytes") and declared.role in (*_ROWS, "mask")
    if flat or text:
        return dataclasses.replace(declared, kind="json", dtype=None, shape=None)
    if declared.kind == "json" and declared.role == "label":  # at the end of a path
        return dataclasses.replace(declared, kind="str")
    return declared
