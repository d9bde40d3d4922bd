"""What tensorpack's ``LMDBSerializer`` writes: lists in pickle or msgpack, and ``__keys__``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from storeds._unpickle import MAX_DEPTH, PickleError, unpickle
from storeds.layouts._lmdb_env import Look
from storeds.layouts._lmdb_serialised import KEYS, LEN, SerialisedLmdb
from storeds.layouts.lmdb_pyarrow import is_pyarrow

__all__ = ["TensorpackLmdb"]

_decode = msgspec.msgpack.Decoder().decode
_NUMBERS = "biufc"


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
        first = next((pair for pair in look.first(3) if pair[0] not in (KEYS, LEN)), None)
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
    try:
        return _revive(_decode(value), MAX_DEPTH)
    except RecursionError:  # of the parser, which has no bound of its own
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its msgpack is damaged: {error}") from None


def _too_deep() -> ValueError:
    return ValueError(f"refused: its msgpack nests deeper than {MAX_DEPTH} levels")


def _revive(value: Any, depth: int) -> Any:
    """Return what msgpack-numpy packed, `depth` levels at most: it writes an array as a mapping with the key ``nd``."""
    if not isinstance(value, (list, dict)):
        return value
    if not depth:
        raise _too_deep()
    if isinstance(value, list):
        return [_revive(item, depth - 1) for item in value]
    entries = {key.decode("latin-1") if isinstance(key, bytes) else key: item for key, item in value.items()}
    if not {"nd", "type", "data"} <= entries.keys():
        return {key: _revive(item, depth - 1) for key, item in value.items()}
    return _array(entries)


def _array(entries: Mapping[Any, Any]) -> Any:
    kind, data, shape = entries["type"], entries["data"], entries.get("shape", [])
    kind = kind.decode("latin-1") if isinstance(kind, bytes) else kind
    if entries.get("kind") in (b"O", "O", b"V", "V") or not isinstance(kind, str) or not isinstance(data, bytes):
        raise ValueError("refused: an array of objects or of parts; only numbers are read")
    try:
        dtype = np.dtype(kind)
        if dtype.kind not in _NUMBERS:
            raise ValueError(f"refused: an array of {dtype}; only numbers are read")
        return np.frombuffer(data, dtype).reshape(shape) if entries["nd"] else np.frombuffer(data, dtype, 1)[0]
    except (TypeError, SyntaxError, IndexError) as error:
        raise ValueError(f"its msgpack is damaged: an array of {kind[:40]!r} ({error})") from None


def _either(value: memoryview) -> Callable[[memoryview, bool], Any]:
    # A pickle of protocol 2 and later begins with 0x80 and its protocol, and ends with a full stop.
    is_pickle = len(value) > 2 and value[0] == 0x80 and value[1] <= 5 and value[-1] == 0x2E
    return _from_pickle if is_pickle else _from_msgpack
