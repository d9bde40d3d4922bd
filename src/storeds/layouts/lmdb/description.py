"""Describes a database: what it holds, what of it no record holds, and a program that converts it by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storeds._utils.text import counted
from storeds.backends.readings import check_most_is_read
from storeds.layouts.embedded import is_image
from storeds.layouts.lmdb.entries import beginning_of, entries_of, sample_records
from storeds.layouts.lmdb.environment import Look, key_text, listed_keys

__all__ = ["by_hand", "check_databases", "described", "unread_entries"]

_SHOWN = 8
_PICKLE = "pickle.loads(value) gives what it holds, and runs what it names: for files that you trust"
_LOOP = """\
import lmdb, storeds

with lmdb.open({path!r}, subdir={folder}, readonly=True, lock=False, max_dbs=8) as env:
    with env.begin({database}) as txn, storeds.open_writer({target!r}, {fields}) as writer:
        for key, value in txn.cursor():
            {record}  # {advice}
            writer.append([record])"""


def described(look: Look) -> str:
    """Return what the database holds, in half a sentence."""
    if not look.entries:
        return "it is empty"
    entries = counted(look.entries, "entry", "entries")
    first = look.first(1)[0]
    return f"it holds {entries} under the keys {listed_keys(look.first_keys(_SHOWN + 1))}; the first value: {beginning_of(first[1])}"


def by_hand(look: Look) -> str:
    """Return the shortest program that would convert the store, for a user who knows what its values hold."""
    path = look.opener.path
    name = look.opener.settings.database
    sample = sample_records(look, 1)
    images = bool(sample) and is_image(sample[0][1])
    field = '"image": "image"' if images else '"data": "bytes"'
    value = '"image": value' if images else '"data": value'
    is_pickle = bool(sample) and bytes(sample[0][1][:1]) == b"\x80"
    return _LOOP.format(
        path=path,
        folder=look.opener.data_path != path,
        database=f"db=env.open_db({name.encode()!r}, create=False)" if name else "",
        target=f"lmdb://{path.removesuffix('.lmdb')}-native.lmdb",
        fields=f'{{"key": "str", {field}}}',
        advice=_PICKLE if is_pickle else "what `value` holds goes here",
        record=f'record = {{"key": key.decode(errors="backslashreplace"), {value}}}',
    )


def unread_entries(look: Look) -> Iterator[str]:
    """Yield what describes the database and is not read, and the other databases."""
    entries = entries_of(look)
    for key, what in entries.unread.items():
        yield f"key {key_text(key)!r}: {what}"
    for name, count in _others(look).items():
        yield f"database {name!r}: {counted(count, 'entry', 'entries')}; database={name!r} reads it"


def _others(look: Look) -> dict[str, int]:
    """Return the databases beside the one that is read, each with its number of entries."""
    if not look.opener.settings.database:
        return {key_text(key): count for key, count in entries_of(look).databases.items()}
    return {name: count for name, count in look.handle.databases().items() if name != look.opener.settings.database}


def check_databases(look: Look, count: int, unread: Sequence[str]) -> None:
    """Raise ConfigError where most entries lie in databases that are not read, unless the user named one."""
    others = _others(look)
    if look.opener.settings.database is None and others:
        left = sum(others.values())
        largest = max(others, key=lambda name: others[name])
        advice = f"database={largest!r} reads that one, database='' the main one"
        check_most_is_read(look.url, unread, left, left + count, "entries", advice)
