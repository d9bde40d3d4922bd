"""Pickled values under numbers: what ``pickle.dumps`` of each sample leaves, with ``__len__`` and ``__keys__`` beside."""

from __future__ import annotations

from typing import Any

from storeds._unpickle import PickleError, unpickle
from storeds.errors import FormatError
from storeds.layouts._lmdb_clips import clips_of
from storeds.layouts._lmdb_entries import KEYS, LEN, entries_of, sample_records
from storeds.layouts._lmdb_env import Look
from storeds.layouts._lmdb_serialised import SerialisedLmdb

__all__ = ["PickledLmdb"]

_OLD = (b"(", b"]", b"}", b"c")  # how tuples, lists, mappings and arrays begin in protocols 0 and 1


class PickledLmdb(SerialisedLmdb):
    """Pickled values under ``0``, ``1``, …, or other keys, with pickled ``__len__`` and ``__keys__``, one of them, or neither.

    A value is a tuple or list, a mapping with text keys, or a bare array or bytes; its parts become fields.
    """

    layout = "pickled"

    def _load(self, value: memoryview, *, views: bool = False) -> Any:
        return unpickle(value, views=views)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        entries = entries_of(look)
        if look.get(LEN) is not None and entries.count is None:
            return _broken_count(look)
        if look.get(KEYS) is not None and entries.count is None:
            return None  # tensorpack's
        shown = sample_records(look, 3)
        if not shown:
            return f"{entries.count[0].decode()} ({entries.count[1]})" if entries.count else None
        if not all(_is_pickle(value) for _, value in shown) or clips_of(look) == "certain":
            return None
        counted = f", {entries.count[0].decode()} ({entries.count[1]})" if entries.count else ""
        listed = " and __keys__" if look.get(KEYS) is not None else ""
        where = "numbers" if all(key.isdigit() for key, _ in shown) else f"keys such as {shown[0][0][:40]!r}"
        try:
            unpickle(shown[0][1], views=True)
        except PickleError as error:
            return f"pickles under {where} (but {error})" if "refused" in str(error) or counted or listed else None
        return f"pickles under {where}{counted}{listed}"


def _broken_count(look: Look) -> str | None:
    """Say what is wrong with ``__len__``, if it is the kind of value that it should be."""
    value = look.get(LEN)
    try:
        unpickle(value or b"")
    except PickleError as error:
        raise FormatError(f"{look.url}: {LEN.decode()} does not read as a pickle: {error}") from None
    return None


def _is_pickle(value: memoryview) -> bool:
    """Whether a value is a pickle: from protocol 2 on it says so, before that it must read as one."""
    if len(value) > 1 and value[0] == 0x80:
        return value[1] <= 5
    if len(value) < 3 or value[-1] != 0x2E or bytes(value[:1]) not in _OLD:
        return False
    try:
        unpickle(value, views=True)
    except PickleError as error:
        return "refused" in str(error)
    return True
