"""Pickled values under numbers: what ``pickle.dumps`` of each sample leaves, with ``__len__`` and ``__keys__`` beside."""

from __future__ import annotations

from typing import Any

from storeds._unpickle import PickleError, unpickle
from storeds.errors import FormatError
from storeds.layouts._lmdb_env import Look
from storeds.layouts._lmdb_serialised import KEYS, LEN, SerialisedLmdb

__all__ = ["PickledLmdb"]


class PickledLmdb(SerialisedLmdb):
    """Pickled values under ``0``, ``1``, …, or other keys, with pickled ``__len__`` and ``__keys__``, one of them, or neither.

    A value is a tuple or list, a mapping with text keys, or a bare array or bytes; its parts become fields.
    """

    layout = "pickled"

    def _load(self, value: memoryview, *, views: bool = False) -> Any:
        return unpickle(value, views=views)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        value = look.get(LEN)
        if value is None:
            return _plain_pickles(look) if look.get(KEYS) is None else None
        try:
            said = unpickle(value)
        except PickleError as error:
            raise FormatError(f"{look.url}: {LEN.decode()} does not read as a pickle: {error}") from None
        listed = " and __keys__" if look.get(KEYS) is not None else ""
        return f"a pickled __len__ ({said}){listed}" if isinstance(said, int) else None


def _plain_pickles(look: Look) -> str | None:
    """Say so if the database holds pickles, and neither ``__keys__`` nor ``__len__``."""
    shown = [*look.first(3), *look.last()]
    if not shown or not all(_begins_as_pickle(value) for _, value in shown):
        return None
    key, value = shown[0]
    where = "numbers" if all(key.isdigit() for key, _ in shown) else f"keys such as {key[:40]!r}"
    try:
        unpickle(value, views=True)
    except PickleError as error:
        return f"pickles under {where} (but {error})" if "refused" in str(error) else None
    return f"pickles under {where}"


def _begins_as_pickle(value: memoryview) -> bool:
    return len(value) > 1 and value[0] == 0x80 and value[1] <= 5
