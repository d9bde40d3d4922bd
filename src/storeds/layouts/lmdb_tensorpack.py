"""What tensorpack's ``LMDBSerializer`` writes: lists in pickle or msgpack, and ``__keys__``."""

from __future__ import annotations

from typing import Any

from storeds._unpickle import PickleError
from storeds.layouts._lmdb_clips import clips_of, load_either
from storeds.layouts._lmdb_decode import is_msgpack_list
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
        return load_either(value, views=views)

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        value = look.get(KEYS)
        if value is None or look.get(LEN) is not None or is_pyarrow(value):
            return None
        form = "pickle" if bytes(value[:1]) == b"\x80" else "msgpack"
        if form == "msgpack" and not is_msgpack_list(value):
            return None  # keys in JSON are not its
        first = next(iter(sample_records(look, 1)), None)
        if first is not None:
            try:
                load_either(first[1], views=True)
            except PickleError as error:
                return f"__keys__ in {form} without __len__ (but {error})"
            except ValueError:
                return None
        elif len(value) > 1 << 20:
            return None
        return None if clips_of(look) == "certain" else f"__keys__ in {form}, and no __len__"
