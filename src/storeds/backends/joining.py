"""What several stores have in common when they are read as one: fields, attributes, class names, and a name."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import xxhash

from storeds.backends.class_numbers import ClassNumbers, join_classes
from storeds.errors import ConfigError, FormatError
from storeds.protocols import JSON, Backend, Field, Meta
from storeds.records.roles import role_text
from storeds.records.verdict_fields import without_verdicts

__all__ = ["CONCATENATED", "alike", "joined_meta", "joined_url"]

CONCATENATED = "concatenated"
_SHOWN = 2


def alike(stores: Iterable[Backend]) -> list[Backend]:
    """Return the stores, consumed one by one, of which equal fields and attributes are one object.

    Raises
    ------
    ConfigError
        There are none.
    FormatError
        They differ in their fields or in the order of the fields, apart from verdicts on pictures.
    """
    found: list[Backend] = []
    shared: dict[Any, Any] = {}
    for store in stores:
        if found:
            _check_fields(found[0], store)
        _deduplicate_meta(store, shared)
        found.append(store)
    if not found:
        raise ConfigError("there is nothing to concatenate: the list of stores is empty")
    return found


def _check_fields(first: Backend, store: Backend) -> None:
    had, has = without_verdicts(first.meta.fields), without_verdicts(store.meta.fields)
    for one, other in itertools.zip_longest(had.items(), has.items()):
        if one != other:
            raise FormatError(
                f"stores with different fields cannot be read as one: {_described(one)} in {first.url}, and "
                f"{_described(other)} in {store.url}"
            )


def _deduplicate_meta(store: Any, shared: dict[Any, Any]) -> None:
    """Make equal fields, attributes and codecs of all stores one object, since there may be thousands of stores."""
    for part in getattr(store, "stores", ()):  # of a view
        _deduplicate_meta(part, shared)
    fields, attrs = store.meta.fields, store.meta.attrs
    kind = tuple(fields.items())
    attrs = {name: shared.setdefault((name, _text(attrs, name)), value) for name, value in attrs.items()}
    with contextlib.suppress(AttributeError):  # what a third party's backend has may be read-only
        store.meta = replace(store.meta, fields=shared.setdefault(kind, fields), attrs=attrs)
    if hasattr(store, "_codec"):
        store._codec = shared.setdefault((kind, "codec"), store._codec)


def joined_url(stores: Sequence[Backend]) -> str:
    """Return the URLs of the first stores in brackets, and how many more there are."""
    more = len(stores) - _SHOWN
    return f"[{', '.join([*(each.url for each in stores[:_SHOWN]), *([f'{more} more'] if more > 0 else [])])}]"


def joined_meta(stores: Sequence[Backend]) -> tuple[Meta, dict[int, ClassNumbers]]:
    """Return the meta of all stores together, and what renumbers the classes of each store that has other ones.

    ``id`` is a checksum over the ids in order, ``build`` over the builds, and ``attrs`` are those that are equal in all.

    Raises
    ------
    ConfigError
        Class names differ and cannot be joined.
    """
    classes, numbers = join_classes(stores)
    metas = [store.meta for store in stores]
    fields, attrs = metas[0].fields, metas[0].attrs
    if any(meta.fields != fields for meta in metas):
        fields = without_verdicts(fields)  # not all stores have verdicts on their pictures
    ids, builds = (
        "".join(f"{each}\n" for each in texts).encode() for texts in zip(*((m.id, m.build) for m in metas), strict=True)
    )
    crops = [meta.fast_crops for meta in metas if meta.fast_crops is not None]
    joined = {name: attrs[name] for name in attrs if len({_text(meta.attrs, name) for meta in metas}) == 1}
    if classes is not None:
        joined["classes"] = classes
    meta = Meta(
        xxhash.xxh3_128_hexdigest(ids),
        xxhash.xxh3_128_hexdigest(builds),
        sum(meta.count for meta in metas),
        CONCATENATED,
        fields,
        joined,
        sum(crops) if len(crops) == len(metas) else None,
    )
    return meta, numbers


def _text(attrs: Mapping[str, JSON], name: str) -> str | None:
    # Compare as text: in Python, 1, 1.0 and True are equal.
    return json.dumps(attrs[name], sort_keys=True) if name in attrs else None


def _described(named: tuple[str, Field] | None) -> str:
    if named is None:
        return "there is no further field"
    name, field = named
    kind = f"{field.kind} {field.dtype} {list(field.shape or ())}" if field.kind == "array" else field.kind
    role = role_text(field)
    return f"{name!r} is {kind} ({role})" if role else f"{name!r} is {kind}"
