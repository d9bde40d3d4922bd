"""Codecs of single values: bytes that other tools stored → Python values.

`CODECS` has each codec by name, and `sniff` names the codec that the first bytes of a value show. A codec raises `CodecError`
for any bytes that are not valid, and takes bounded time and memory. None of them runs code.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import IO, Any, Final

import msgspec
import numpy as np

from storeds.errors import MissingDependencyError
from storeds.pictures import format_of_picture as format_of
from storeds.protocols import Array
from storeds.values.unpickle import MAX_DEPTH, CodecError, unpickle

__all__ = [
    "CODECS",
    "CodecError",
    "beginning",
    "decode_datum",
    "decode_document",
    "decode_json",
    "decode_msgpack",
    "decode_npy",
    "decode_npz",
    "decode_tensorpack",
    "decompress",
    "image_of_text",
    "inspect",
    "is_compressed",
    "is_image",
    "is_msgpack_list",
    "is_npz",
    "is_pickle",
    "is_video",
    "numbers_of",
    "sniff",
    "unpickle",
]

# Images and videos.

_PICTURES = {"PNG", "GIF", "TIFF", "JPEG 2000", "JPEG XL", "WebP", "AVIF", "HEIC", "HEIF", "QOI", "PSD"}
_MATROSKA = b"\x1a\x45\xdf\xa3"
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,")
_HEAD = 64  # characters, which are 48 bytes
_URL_SAFE = str.maketrans("-_", "+/")


def is_image(blob: bytes | memoryview) -> bool:
    """Whether the bytes begin like an encoded image."""
    head = bytes(blob[:32])
    if head.startswith(b"BM"):  # two letters are weak evidence, so the reserved bytes must be zero too
        return len(blob) > 26 and head[6:10] == b"\0\0\0\0"
    return head.startswith(b"\xff\xd8\xff") or format_of(head) in _PICTURES


def is_video(blob: bytes | memoryview) -> bool:
    """Whether the bytes begin like a video: MP4, Matroska and WebM, or AVI."""
    head = bytes(blob[:32])
    return format_of(head) == "MP4" or head.startswith(_MATROSKA) or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")


def image_of_text(text: str) -> bytes | None:
    """Return the image that `text` encodes in base64 or as a ``data:`` URI, or None."""
    start = _DATA_URI.match(text[:_HEAD])
    body = text[start.end() :] if start else text
    head = _decoded(body[: _HEAD + _HEAD // 16].replace("\n", "").replace("\r", "")[:_HEAD])
    if head is None or not is_image(head):
        return None
    return _decoded(re.sub(r"\s+", "", body))


def _decoded(text: str) -> bytes | None:
    text = text.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


# Compressed values, JSON, msgpack and arrays.

_MOST = 1 << 28  # bytes of one decompressed value
_MOST_TEXT = 1 << 26  # bytes of decompressed JSON, whose values take up to 25 times as much
_LEAST_TEXT, _TEXT_RATIO = 1 << 22, 64  # bytes that any JSON may become, and those that one may become
_MOST_ARRAYS = 1 << 30  # bytes of all arrays of an npz
_INSPECTED = 1 << 20  # bytes of an array or a value that `inspect` keeps
_DEFLATE_RATIO, _LZ4_RATIO = 1032, 255  # the most bytes that a compressed one becomes
_CHUNK = 1 << 18  # bytes
_NUMBERS = "biufc"
_LZ4, _NPZ = b"\x04\x22\x4d\x18", b"PK\x03\x04"
_ZLIB, _GZIP = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), b"\x1f\x8b\x08"
_SAVEZ_OPTION = "allow_pickle"  # old versions of np.savez stored this keyword as an array

_json = msgspec.json.Decoder().decode
_msgpack = msgspec.msgpack.Decoder().decode


def is_compressed(value: bytes | memoryview) -> bool:
    """Whether `value` begins with the magic bytes of zlib, gzip or lz4."""
    head = bytes(value[:4])
    return head.startswith((_LZ4, _GZIP, *_ZLIB))


def is_npz(value: bytes | memoryview) -> bool:
    """Whether `value` begins as a zip file; an ``.npz`` is one."""
    return bytes(value[:4]) == _NPZ


def is_msgpack_list(value: bytes | memoryview) -> bool:
    """Whether `value` begins as a list in msgpack."""
    return bytes(value[:1]) in (b"\xdc", b"\xdd") or 0x90 <= (value[0] if len(value) else 0) <= 0x9F


def decompress(value: bytes | memoryview, most: int | None = None) -> bytes | memoryview:
    """Return the decompressed value, or a value that is not compressed unchanged.

    Raises CodecError, for more than `most` bytes too, and MissingDependencyError.
    """
    most = _MOST if most is None else most
    if not is_compressed(value):
        return value
    if bytes(value[:4]) == _LZ4:
        return _unlz4(value, most)
    try:
        machine = zlib.decompressobj(wbits=47)  # zlib's header or gzip's
        found = machine.decompress(value, most)
    except zlib.error as error:
        raise CodecError(f"its compressed bytes are damaged: {error}") from None
    return _whole(found, machine.eof, most)


def _unlz4(value: bytes | memoryview, most: int) -> bytes:
    try:
        import lz4.frame
    except ImportError:
        raise MissingDependencyError("values compressed by lz4 need the package lz4: pip install lz4") from None
    machine = lz4.frame.LZ4FrameDecompressor()
    try:
        # It allocates this length first.
        found: bytes = machine.decompress(bytes(value), max_length=min(most, _LZ4_RATIO * len(value)))
    except RuntimeError as error:
        raise CodecError(f"its compressed bytes are damaged: {error}") from None
    return _whole(found, machine.eof, most)


def _whole(found: bytes, ended: bool, most: int) -> bytes:
    if not ended:
        raise CodecError(
            f"refused: it decompresses to more than {most} bytes" if len(found) >= most else "its bytes are cut short"
        )
    return found


def decode_json(value: bytes | memoryview) -> Any:
    """Return the content of JSON text, in which NaN and infinities may stand as Python writes them; raises CodecError."""
    try:
        return _bounded(_json, value, "JSON")
    except CodecError:
        text = bytes(value)
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    return _bounded(lambda text: json.loads(bytes(text)), text, "JSON")


def decode_msgpack(value: bytes | memoryview) -> Any:
    """Return the content of msgpack, with arrays as the package msgpack-numpy writes them; raises CodecError."""
    return _revive(_bounded(_msgpack, value, "msgpack"), MAX_DEPTH)


def _bounded(decode: Callable[[bytes | memoryview], Any], value: bytes | memoryview, what: str) -> Any:
    try:
        return decode(value)
    except RecursionError:  # msgspec has no limit of its own
        raise _too_deep(what) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise CodecError(f"its {what} is damaged: {error}") from None


def _too_deep(what: str) -> CodecError:
    return CodecError(f"refused: its {what} nests deeper than {MAX_DEPTH} levels")


def _revive(value: Any, depth: int) -> Any:
    """Return a value with the arrays that msgpack-numpy packed as mappings with the key ``nd``, for at most `depth` levels."""
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
        raise CodecError("refused: an array of objects or of parts; only numbers are read")
    try:
        dtype = np.dtype(kind)
        if dtype.kind not in _NUMBERS:
            raise CodecError(f"refused: an array of {dtype}; only numbers are read")
        return np.frombuffer(data, dtype).reshape(shape) if entries["nd"] else np.frombuffer(data, dtype, 1)[0]
    except CodecError:
        raise
    except Exception as error:  # NumPy parses the type with Python's parser
        raise CodecError(f"its msgpack is damaged: an array of {kind[:40]!r} ({error})") from None


def decode_npz(value: bytes | memoryview, *, inspected: int | None = None) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` by their names, single values as such; raises CodecError.

    With `inspected`, arrays of more bytes have the right form and no content, see `inspect`.
    """
    left, arrays = _MOST_ARRAYS, dict[str, Any]()
    try:
        with zipfile.ZipFile(io.BytesIO(value)) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                holds = min(member.file_size, _DEFLATE_RATIO * min(member.compress_size, len(value)))
                with archive.open(member) as file:
                    array = _read_npy(file, min(left, holds), inspected)
                left -= array.nbytes
                if name != _SAVEZ_OPTION:
                    arrays[name] = _plain(array)
    except CodecError:
        raise
    except Exception as error:  # damage can make zipfile and its decompressors raise any exception
        raise CodecError(f"its npz is damaged or refused: {error}") from None
    return arrays


def decode_npy(value: bytes | memoryview) -> Any:
    """Return the array of an ``.npy``, a single value or text as such; raises CodecError."""
    try:
        return _plain(_read_npy(io.BytesIO(value), len(value)))
    except CodecError:
        raise
    except Exception as error:  # NumPy parses the header with Python's parser
        raise CodecError(f"its npy is damaged or refused: {error}") from None


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _read_npy(file: IO[bytes], most: int, inspected: int | None = None) -> Array:
    """Return the array in a file; unlike NumPy, this allocates no memory that the header claims before the bytes are read."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:  # for the names of parts only
        raise CodecError(f"refused: an array in version {version} of npy; only numbers and text are read")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise CodecError("refused: an array of objects; only numbers and text are read")
    size = math.prod(shape) * dtype.itemsize
    if size > most:
        raise CodecError(f"refused: {most} bytes cannot hold its array of {dtype} {shape}")
    if inspected is not None and size > inspected and not (dtype == np.uint8 and _is_flat(shape)):
        return np.broadcast_to(np.zeros((), dtype), shape)
    if inspected is not None and size > inspected:
        data = file.read(_HEAD)
        return np.frombuffer(data, dtype) if is_image(data) else np.broadcast_to(np.zeros((), dtype), shape)
    array = np.empty(shape, dtype, order="F" if is_fortran else "C")
    into, at = (array.reshape(-1, order="A").view(np.uint8).data if size else memoryview(b"")), 0
    while at < size and (data := file.read(min(_CHUNK, size - at))):
        into[at : at + len(data)] = data
        at += len(data)
    if at < size:
        raise CodecError(f"its npy is cut short: {at} bytes for an array of {dtype} {shape}")
    return array


def _is_flat(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape may be an encoded image, as OpenCV's imencode returns them."""
    return len(shape) in (1, 2) and math.prod(shape) == max(shape)


def inspect(codec: str, value: bytes | memoryview) -> Any:
    """Return the content of a value, but of large arrays and bytes only the form and the beginning.

    So a store is opened in little memory, however much its values decompress to. Raises as the codec does.
    """
    content = decode_npz(value, inspected=_INSPECTED) if codec == "npz" else CODECS[codec](value)
    try:
        return beginning(content)
    except RecursionError:
        raise _too_deep("content") from None


def beginning(content: Any) -> Any:
    """Return a value, but of large arrays and bytes in it only the form and the beginning."""
    if isinstance(content, dict):
        return {key: beginning(item) for key, item in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(map(beginning, content))
    if isinstance(content, bytes):
        return content if len(content) <= _INSPECTED else content[:_INSPECTED]
    if not isinstance(content, np.ndarray) or content.nbytes <= _INSPECTED:
        return content
    if (
        content.dtype == np.uint8
        and _is_flat(content.shape)
        and is_image(head := content.reshape(-1)[:_HEAD].tobytes())
    ):
        return np.frombuffer(head, np.uint8)
    return np.broadcast_to(np.zeros((), content.dtype), content.shape)


def _plain(array: Array) -> Any:
    if array.dtype.kind in "US":
        return array.tolist()
    return array if array.ndim else array[()]


def numbers_of(value: Any) -> Array | None:
    """Return a list of Python's numbers, or of equally long such lists, as an array; None for anything else."""
    if not isinstance(value, (list, tuple)):
        return None
    if any(issubclass(kind, (np.ndarray, np.generic)) for kind in set(map(type, value))):
        return None
    try:
        found = np.array(value)
    except ValueError:  # ragged
        return None
    return found if found.dtype.kind in "bif" else None


# Caffe.

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_WIRES = {
    **dict.fromkeys((_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED), (_VARINT,)),
    _DATA: (_BYTES,),
    _FLOATS: (_BYTES, _FIXED32),
}
"""The wire types of protobuf that the fields may have. Fields of other numbers are skipped."""
_ANY_WIRE = (_VARINT, _FIXED64, _BYTES, _FIXED32)


def decode_datum(message: bytes | memoryview) -> tuple[bytes | Array, int]:
    """Return the encoded image or the values, channels x height x width, of a ``Datum`` of Caffe, and its label."""
    found: dict[int, Any] = {}
    floats = bytearray()
    for number, value in _message_fields(memoryview(message)):
        if number == _FLOATS:
            floats += value
        else:
            found[number] = value if number == _DATA else _int32(value)
    data = found.get(_DATA, b"")
    if found.get(_ENCODED):
        return bytes(data), found.get(_LABEL, 0)
    if len(floats) % 4:
        raise CodecError(f"its Datum is damaged: {len(floats)} bytes of float data")
    shape = tuple(found.get(number, 0) for number in (_CHANNELS, _HEIGHT, _WIDTH))
    flat: Array = np.frombuffer(data, np.uint8) if len(data) else np.frombuffer(floats, "<f4")
    if min(shape) < 0 or flat.size != math.prod(shape):
        raise CodecError(f"its Datum says {shape} and holds {flat.size} values")
    return flat.reshape(shape), found.get(_LABEL, 0)


def _int32(value: int) -> int:
    low = value & (2**32 - 1)
    return low - 2**32 if low >= 2**31 else low


def _message_fields(view: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each known field of a message: a varint, or bytes."""
    at, end = 0, len(view)
    if not end:
        raise CodecError("its Datum is empty")
    while at < end:
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in _WIRES.get(number, _ANY_WIRE):
            raise CodecError(f"its Datum is damaged at byte {at}: field {number} is of wire type {wire}")
        value: Any
        if wire == _VARINT:
            value, at = _varint(view, at)
        else:
            size, at = _varint(view, at) if wire == _BYTES else (4 if wire == _FIXED32 else 8, at)
            if at + size > end:
                raise CodecError(f"its Datum is cut short: field {number} has {size} bytes, {end - at} are there")
            value, at = view[at : at + size], at + size
        if number in _WIRES:
            yield number, value


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    value = 0
    for end in range(at, min(at + 10, len(view))):
        byte = view[end]
        value |= (byte & 0x7F) << 7 * (end - at)
        if byte < 0x80:
            return value & (2**64 - 1), end + 1
    raise CodecError(f"its Datum is cut short or damaged at byte {at}: a number does not end")


# Text.


def _text(value: bytes | memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise CodecError(f"its text is damaged: {error}") from None


_MOST_ITEM = 1 << 8  # bytes; each is as long as the longest of an array of texts
_ARRAY = "__ndarray__"  # ase's key for an array in JSON: shape, dtype and numbers


def decode_document(value: bytes | memoryview) -> Any:
    """Return the content of JSON, plain or compressed, with arrays as ase writes them into mappings; raises CodecError."""
    most = min(max(_LEAST_TEXT, _TEXT_RATIO * len(value)), _MOST_TEXT)
    content = decode_json(decompress(value, most))
    return {name: _array_of(item) for name, item in content.items()} if isinstance(content, dict) else content


def _array_of(item: Any) -> Any:
    if not isinstance(item, dict) or set(item) != {_ARRAY}:
        return item
    try:
        shape, dtype, numbers = item[_ARRAY]
        kind = np.dtype(str(dtype))
        if kind.itemsize > _MOST_ITEM:
            raise CodecError(f"refused: an array of {kind}")
        return np.array(numbers, kind).reshape(shape)
    except CodecError:
        raise
    except Exception as error:  # NumPy parses the type with Python's parser
        raise CodecError(f"its JSON is damaged: an array ({error})") from None


def decode_tensorpack(value: bytes | memoryview) -> Any:
    """Return the content of a pickle, or of msgpack, plain or compressed; raises CodecError."""
    return unpickle(value) if is_pickle(value) else decode_msgpack(decompress(value))


def is_pickle(value: bytes | memoryview) -> bool:
    """Whether `value` begins and ends as a pickle of protocol 2 or later: 0x80, the protocol, …, a full stop."""
    return len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5 and value[-1] == 0x2E


CODECS: Final[Mapping[str, Callable[[bytes | memoryview], Any]]] = MappingProxyType(
    {
        "bytes": bytes,
        "datum": decode_datum,
        "json": decode_document,
        "msgpack": lambda value: decode_msgpack(decompress(value)),
        "npy": decode_npy,
        "npz": decode_npz,
        "pickle": unpickle,
        "tensorpack": decode_tensorpack,
        "text": _text,
    }
)
"""Codecs by name. Each raises CodecError, or MissingDependencyError for values in lz4."""


def sniff(value: bytes | memoryview) -> str | None:
    """Return the name of the codec that the first bytes of a value show with certainty, or None."""
    head = bytes(value[:256])
    for name, magic in (("gzip", _GZIP), ("lz4", _LZ4), ("npy", b"\x93NUMPY")):
        if head.startswith(magic):
            return name
    if is_npz(head):
        size = int.from_bytes(head[26:28], "little")
        return "npz" if head[30 : 30 + size].endswith(b".npy") else None
    if is_image(value):
        return "image"
    if is_video(value):
        return "video"
    return "pickle" if is_pickle(value) else None
