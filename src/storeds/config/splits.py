"""Selects the records of a split by the field ``split``, and finds records that two splits share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.backends.selecting import Conditions
from storeds.backends.view import stores_in
from storeds.datasets.settings import DatasetSettings, path_text
from storeds.errors import ConfigError, RecordError, StoredsError
from storeds.protocols import Array, Backend, Field
from storeds.records.meta import NATIVE
from storeds.records.where import check_where, matching_positions

__all__ = ["PLACEHOLDER", "shared_records", "urls_of", "with_split"]

PLACEHOLDER = "{split}"
_SPLIT = "split"


def with_split(
    settings: DatasetSettings, changes: Mapping[str, Any], name: str, fields: Mapping[str, Field] | None
) -> dict[str, Any] | None:
    """Return what a split changes about a dataset, with the URL or the condition that selects its records.

    Parameters
    ----------
    settings : DatasetSettings
    changes : mapping
        The table of the split.
    name : str
        The split.
    fields : mapping, optional
        The fields of the store. Without it, a field ``split`` of texts is assumed.

    Returns
    -------
    dict or None
        None if nothing selects the records of this split.

    Raises
    ------
    ConfigError
        The field ``split`` holds integers, and `name` is not one. Or ``where`` leaves no record of the split.
    """
    url = path_text(changes.get("url", settings.url))
    urls = [url] if isinstance(url, str) else url
    if isinstance(urls, (list, tuple)) and any(PLACEHOLDER in each for each in urls if isinstance(each, str)):
        named = [each.replace(PLACEHOLDER, name) for each in urls]
        return {**changes, "url": named[0] if isinstance(url, str) else named}
    if not changes.keys().isdisjoint(("url", "where", "fold", "keys_file")):
        return dict(changes)
    kind = "str" if fields is None else fields[_SPLIT].kind if _SPLIT in fields else None
    if kind not in ("int", "str"):
        return None
    if kind == "int" and not name.lstrip("-").isdecimal():
        raise ConfigError(
            f"the store's field 'split' holds integers, so it has no value {name!r}; "
            f"set where = {{ split = 0 }}, or another number, in [splits.{name}.dataset]"
        )
    own: Any = int(name) if kind == "int" else name
    if isinstance(settings.where, str):
        return {**changes, "where": f"({settings.where}) and {_SPLIT} == {own!r}"}
    taken = (settings.where or {}).get(_SPLIT, name)
    # As texts: before the store is open, the name of a split of numbers is text.
    if name not in map(str, taken if isinstance(taken, (list, tuple)) else [taken]):
        raise ConfigError(
            f"config: [dataset] where takes only records whose 'split' is {taken!r}, which leaves none for split "
            f"{name!r}; set where in [splits.{name}.dataset]"
        )
    return {**changes, "where": {**(settings.where or {}), _SPLIT: own}}


def shared_records(one: DatasetSettings, backend: Backend, other: DatasetSettings) -> str | None:
    """Describe the records that `one`, whose store is open as `backend`, shares with `other`; None if there are none.

    Two stores are the same if they have the same URL, or are native, outside of MongoDB, and of equal content. Duplicate
    images under different records are not detected. Reads at most the columns that both conditions use. A store of
    `other` that cannot be opened shares nothing.
    """
    try:
        condition = _both(one.where, other.where, backend)
        if condition is None:
            return None
        for same in _same_stores(one, backend, other):
            positions = _positions(same, one, other, condition)
            if len(positions):
                place = f"the first at position {positions[0]}{_key(same, int(positions[0]))}"
                return f"{counted(len(positions), 'record')} of {same.url} ({place})"
    except StoredsError:  # the other's store is not there yet, or its table is wrong: it says so when it is built
        pass
    return None


def _positions(
    store: Backend, one: DatasetSettings, other: DatasetSettings, condition: dict[str, Any]
) -> Sequence[int] | Array:
    """Return the positions that both select; `condition` is what their ``where`` says together."""
    is_plain = [
        each.fold is None and each.keys_file is None and not isinstance(each.where, str) for each in (one, other)
    ]
    if all(is_plain):
        return matching_positions(store, condition) if condition else range(len(store))
    mine, theirs = (
        Conditions.of(store, each.where, each.fold, each.keys_file).positions(store) for each in (one, other)
    )
    shared: Array = np.intersect1d(mine, theirs, assume_unique=True)
    return shared


def _both(one: Any, other: Any, backend: Backend) -> dict[str, Any] | None:
    """Return the values for being selected by both, without conditions in text; None if no record at all can be."""
    fields, url = backend.meta.fields, backend.url
    first, second = ({} if isinstance(each, str) else each or {} for each in (one, other))
    condition = check_where(first, fields, url)
    for name, values in check_where(second, fields, url).items():
        condition[name] = [value for value in condition[name] if value in values] if name in condition else values
    return None if any(not values for values in condition.values()) else condition


def _key(backend: Backend, position: int) -> str:
    record = backend.get_many([position], ("key",))[0] if "key" in backend.meta.fields else None
    return "" if record is None or isinstance(record, RecordError) else f", key {str(record['key'])[:60]!r}"


def _same_stores(one: DatasetSettings, backend: Backend, other: DatasetSettings) -> Iterator[Backend]:
    """Yield each store of `backend` that `other` names by the same URL, or that is native and has the same content."""
    mine, theirs = urls_of(one), urls_of(other)
    if (one.layout, one.options, one.join) == (other.layout, other.options, other.join):
        for url in (url for url in mine if url in theirs):
            yield backend if len(mine) == 1 else open_backend(url, layout=one.layout, **(one.options or {}))
    if not any(url.startswith("mongodb") for url in theirs):  # a server may be slow or down
        with open_backend(other.url, layout=NATIVE, **(other.options or {})) as stores:
            ids = {store.meta.id for store in stores_in(stores)}
        yield from (store for store in stores_in(backend) if store.meta.layout == NATIVE and store.meta.id in ids)


def urls_of(source: DatasetSettings) -> list[str]:
    """Return the URLs of a source as a list."""
    return [source.url] if isinstance(source.url, str) else source.url
