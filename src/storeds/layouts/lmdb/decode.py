"""Decodes values that describe themselves: JSON, msgpack and npz, also compressed by zlib, gzip or lz4; never a pickle."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from storeds.errors import MissingDependencyError
from storeds.layouts.lmdb.unpickler import MAX_DEPTH
from storeds.protocols import Array

__all__ = ["decode_json", "decode_msgpack", "decode_npz", "decompress", "is_compressed", "is_msgpack_list", "is_npz"]

_MOST = 1 << 30  # bytes that one value may unfold to
_NUMBERS = "biufc"
_LZ4, _NPZ = b"\x04\x22\x4d\x18", b"PK\x03\x04"
_ZLIB, _GZIP = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), b"\x1f\x8b\x08"
_WRITER_S_OPTION = "allow_pickle"  # np.savez of old stored its own keyword as an array

_json = msgspec.json.Decoder().decode
_msgpack = msgspec.msgpack.Decoder().decode


def is_compressed(value: bytes | memoryview) -> bool:
    """Whether `value` begins as what zlib, gzip or lz4 made."""
    head = bytes(value[:4])
    return head.startswith((_LZ4, _GZIP, *_ZLIB))


def is_npz(value: bytes | memoryview) -> bool:
    """Whether `value` begins as a zip file, which an ``.npz`` is."""
    return bytes(value[:4]) == _NPZ


def is_msgpack_list(value: bytes | memoryview) -> bool:
    """Whether `value` begins as a list in msgpack."""
    return bytes(value[:1]) in (b"\xdc", b"\xdd") or 0x90 <= (value[0] if len(value) else 0) <= 0x9F


def decompress(value: bytes | memoryview) -> bytes | memoryview:
    """Return what a compressed value holds, and any other as it is; raises ValueError, MissingDependencyError."""
    if not is_compressed(value):
        return value
    if bytes(value[:4]) == _LZ4:
        return _unlz4(value)
    try:
        machine = zlib.decompressobj(wbits=47)  # zlib's header or gzip's
        found = machine.decompress(value, _MOST)
    except zlib.error as error:
        raise ValueError(f"its compressed bytes are damaged: {error}") from None
    return _whole(found, machine.eof)


def _unlz4(value: bytes | memoryview) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise MissingDependencyError("values compressed by lz4 need the package lz4: pip install lz4") from None
    machine = lz4.frame.LZ4FrameDecompressor()
    try:
        found: bytes = machine.decompress(bytes(value), max_length=_MOST)
    except RuntimeError as error:
        raise ValueError(f"its compressed bytes are damaged: {error}") from None
    return _whole(found, machine.eof)


def _whole(found: bytes, ended: bool) -> bytes:
    if not ended:
        raise ValueError(
            f"refused: it unfolds to more than {_MOST} bytes" if len(found) >= _MOST else "its bytes are cut short"
        )
    return found


def decode_json(value: bytes | memoryview) -> Any:
    """Return what JSON text holds; raises ValueError."""
    return _bounded(_json, value, "JSON")


def decode_msgpack(value: bytes | memoryview) -> Any:
    """Return what msgpack holds, with arrays as the package msgpack-numpy writes them; raises ValueError."""
    return _revive(_bounded(_msgpack, value, "msgpack"), MAX_DEPTH)


def _bounded(decode: Callable[[bytes | memoryview], Any], value: bytes | memoryview, what: str) -> Any:
    try:
        return decode(value)
    except RecursionError:  # of the parser, which has no bound of its own
        raise _too_deep(what) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its {what} is damaged: {error}") from None


def _too_deep(what: str) -> ValueError:
    return ValueError(f"refused: its {what} nests deeper than {MAX_DEPTH} levels")


def _revive(value: Any, depth: int) -> Any:
    """Return what msgpack-numpy packed, `depth` levels at most: it writes an array as a mapping with the key ``nd``."""
    if not isinstance(value, (list, dict)):
        return value
    if not depth:
        raise _too_deep("msgpack")
    if isinstance(value, list):
        return [_revive(item, depth - 1) for item in value]
    entries = {key.decode("latin-1") if isinstance(key, bytes) else key: item for key, item in value.items()}
    if not {"nd", "type", "data"} <= entries.keys():
        return {key: _revive(item, depth - 1) for key, item in value.items()}
    return _msgpack_array(entries)


def _msgpack_array(entries: Mapping[Any, Any]) -> Any:
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


def decode_npz(value: bytes | memoryview) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` by their names, single values as such; raises ValueError."""
    try:
        with zipfile.ZipFile(io.BytesIO(value)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > _MOST:
                raise ValueError(f"refused: its arrays take more than {_MOST} bytes")
            found = {member.filename.removesuffix(".npy"): _npy(_member(archive, member)) for member in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"its npz is damaged: {error}") from None
    found.pop(_WRITER_S_OPTION, None)
    return found


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as file:
        return file.read(member.file_size)  # and not more, whatever is in there


def _npy(data: bytes) -> Any:
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("refused: an array of objects; only numbers and text are read")
    array: Array = np.frombuffer(data, dtype, offset=file.tell())
    array = array.reshape(shape, order="F" if fortran else "C")
    if array.dtype.kind in "US":
        return array.tolist()
    return array if array.ndim else array[()]
