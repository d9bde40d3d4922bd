"""Pickled values under numbers: what ``pickle.dumps`` of each sample leaves, with ``__len__`` and ``__keys__`` beside."""

from __future__ import annotations

from typing import Any

from storeds._unpickle import PickleError, unpickle
from storeds.layouts._lmdb_env import Look
from storeds.layouts._lmdb_serialised import KEYS, LEN, SerialisedLmdb

__all__ = ["PickledLmdb"]


class PickledLmdb(SerialisedLmdb):
    """Pickled values under ``0``, ``1``, …, with pickled ``__len__`` and ``__keys__`` (or one of them, or neither).

    A value is a tuple or list, a mapping with text keys, or a bare array or bytes; its parts become fields.
    """

    layout = "pickled"

    def _load(self, value: memoryview, *, views: bool = False) -> Any:
        return unpickle(value, views=views)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        value = look.get(LEN)
        if value is None:
            return _plain_pickles(look)
        try:
            said = unpickle(value)
        except PickleError:
            return None
        listed = " and __keys__" if look.get(KEYS) is not None else ""
        return f"a pickled __len__ ({said}){listed}" if isinstance(said, int) else None


def _plain_pickles(look: Look) -> str | None:
    """Say so if the database holds pickles under numbers, and neither ``__keys__`` nor ``__len__``."""
    if look.get(KEYS) is not None:
        return None
    first = look.first(3)
    try:
        if not first or not all(key.isdigit() for key, _ in first):
            return None
        if not all(len(value) > 1 and value[0] == 0x80 and value[1] <= 5 for _, value in first):
            return None
        unpickle(first[0][1], views=True)
    except PickleError as error:
        return f"pickles under numbers (but {error})" if "refused" in str(error) else None
    return "pickles under numbers"
