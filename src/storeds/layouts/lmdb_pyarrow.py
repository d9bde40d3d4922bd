"""Names stores that ``pyarrow.serialize`` wrote, which nothing reads any more but an old pyarrow."""

from __future__ import annotations

from typing import Any, NoReturn

from storeds.errors import FormatError
from storeds.layouts._lmdb_base import ForeignLmdb, Survey
from storeds.layouts._lmdb_env import Look

__all__ = ["PyarrowLmdb", "is_pyarrow", "why_not_pyarrow"]

# The root offset and the first bytes of the table of an Arrow message, which follows a few counts.
_MESSAGE = b"\x10\0\0\0\0\0\x0a\0\x0c\0"


def is_pyarrow(value: bytes | memoryview) -> bool:
    """Whether `value` begins as what ``pyarrow.serialize`` made."""
    head = bytes(value[:48])
    small = all(int.from_bytes(head[at : at + 4], "little") < 1 << 16 for at in (0, 4))
    return len(head) == 48 and small and _MESSAGE in head


def why_not_pyarrow(key: bytes) -> str:
    """Return what to tell the owner of such a store, in which `key` gave it away."""
    return (
        f"{key.decode()} and the values were written by pyarrow.serialize, a format that pyarrow removed and that has no other "
        "reader; write the store anew from its source, or, in an environment of its own with Python 3.11 and "
        "'pyarrow==11.0.0', read each value with pyarrow.deserialize and write it with storeds.open_writer"
    )


class PyarrowLmdb(ForeignLmdb):
    """Recognises such stores, and refuses to open one, with what to do."""

    layout = "pyarrow"

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        key = _telltale(look)
        return None if key is None else why_not_pyarrow(key)

    def _survey(self, look: Look) -> Survey:
        key = _telltale(look)
        if key is None:
            raise FormatError(f"{look.url} was not written by pyarrow.serialize: neither __len__ nor __keys__ is of it")
        raise FormatError(f"{look.url}: {why_not_pyarrow(key)}")

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> NoReturn:
        raise AssertionError("such a store never opens")


def _telltale(look: Look) -> bytes | None:
    found: dict[bytes, Any] = {key: look.get(key) for key in (b"__len__", b"__keys__")}
    return next((key for key, value in found.items() if value is not None and is_pyarrow(value)), None)
