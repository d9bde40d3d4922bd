"""What tensorpack's ``LMDBSerializer`` writes: lists in pickle or msgpack, and ``__keys__``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from storeds._unpickle import PickleError, unpickle
from storeds.layouts._lmdb_decode import decode_msgpack
from storeds.layouts._lmdb_entries import KEYS, LEN, sample_records
from storeds.layouts._lmdb_env import Look
from storeds.layouts._lmdb_serialised import SerialisedLmdb
from storeds.layouts.lmdb_pyarrow import is_pyarrow

__all__ = ["TensorpackLmdb"]


class TensorpackLmdb(SerialisedLmdb):
    """What tensorpack's ``LMDBSerializer`` writes: ``__keys__``, and lists in pickle or msgpack under ``00000000`` ….

    Arrays in msgpack are as the package msgpack-numpy writes them.
    """

    layout = "tensorpack"

    def _load(self, value: memoryview, *, views: bool = False) -> Any:
        return _either(value)(value, views)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        value = look.get(KEYS)
        if value is None or look.get(LEN) is not None or is_pyarrow(value):
            return None
        first = next(iter(sample_records(look, 1)), None)
        form = "pickle" if _either(value) is _from_pickle else "msgpack"
        if first is not None:
            try:
                _either(first[1])(first[1], True)
            except PickleError as error:
                return f"__keys__ in {form} without __len__ (but {error})"
            except ValueError:
                return None
        elif len(value) > 1 << 20:
            return None
        return f"__keys__ in {form}, and no __len__"


def _from_pickle(value: memoryview, views: bool) -> Any:
    return unpickle(value, views=views)


def _from_msgpack(value: memoryview, views: bool) -> Any:
    return decode_msgpack(value)


def _either(value: memoryview) -> Callable[[memoryview, bool], Any]:
    # A pickle of protocol 2 and later begins with 0x80 and its protocol, and ends with a full stop.
    is_pickle = len(value) > 2 and value[0] == 0x80 and value[1] <= 5 and value[-1] == 0x2E
    return _from_pickle if is_pickle else _from_msgpack
