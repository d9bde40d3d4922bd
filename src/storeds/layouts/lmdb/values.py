"""Decodes values that describe themselves, and infers the fields of values that nobody declared.

JSON, msgpack and npz may be compressed by zlib, gzip or lz4. No pickle is read here.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from storeds.errors import ConfigError, MissingDependencyError
from storeds.layouts.embedded import image_of_text, is_image, is_video
from storeds.layouts.lmdb.unpickler import MAX_DEPTH
from storeds.protocols import KINDS, Array, Field, Kind
from storeds.records.fields import parse_fields

__all__ = [
    "Wanted",
    "are_videos",
    "coerce",
    "decode_json",
    "decode_msgpack",
    "decode_npz",
    "decompress",
    "fitting",
    "is_compressed",
    "is_msgpack_list",
    "is_npz",
    "kind_of",
    "merge",
    "names_for",
    "parse_wanted",
    "plain",
]


_MOST = 1 << 30  # bytes of one decompressed value
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


def decompress(value: bytes | memoryview) -> bytes | memoryview:
    """Return the decompressed value, or a value that is not compressed unchanged; raises ValueError, MissingDependencyError."""
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
            f"refused: it decompresses to more than {_MOST} bytes" if len(found) >= _MOST else "its bytes are cut short"
        )
    return found


def decode_json(value: bytes | memoryview) -> Any:
    """Return the content of JSON text; raises ValueError."""
    return _bounded(_json, value, "JSON")


def decode_msgpack(value: bytes | memoryview) -> Any:
    """Return the content of msgpack, with arrays as the package msgpack-numpy writes them; raises ValueError."""
    return _revive(_bounded(_msgpack, value, "msgpack"), MAX_DEPTH)


def _bounded(decode: Callable[[bytes | memoryview], Any], value: bytes | memoryview, what: str) -> Any:
    try:
        return decode(value)
    except RecursionError:  # msgspec has no limit of its own
        raise _too_deep(what) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its {what} is damaged: {error}") from None


def _too_deep(what: str) -> ValueError:
    return ValueError(f"refused: its {what} nests deeper than {MAX_DEPTH} levels")


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
    found.pop(_SAVEZ_OPTION, None)
    return found


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as file:
        return file.read(member.file_size)  # a damaged member may hold more


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


Wanted = tuple[tuple[str, Field | None], ...]
"""Names in the order of a record's parts, each with its declared field or None."""

_NAMES = {"image": "image", "int": "label", "str": "text", "array": "array", "float": "value", "bool": "flag"}
_ARRAY_KINDS = "biufc"
_SCALARS: tuple[tuple[Kind, type], ...] = (
    ("bool", bool),
    ("int", int),
    ("float", float),
    ("str", str),
    ("bytes", bytes),
)


def kind_of(value: Any) -> Field:
    """Return the field that can hold a value; raises ValueError."""
    if isinstance(value, (bytes, memoryview)):
        return Field("image" if is_image(value) else "bytes")
    if isinstance(value, np.ndarray):
        return _array_field(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple, dict)) or value is None:
        return Field("json")
    if isinstance(value, str) and image_of_text(value) is not None:
        return Field("image")
    for kind, types in _SCALARS:
        if isinstance(value, types):
            return Field(kind)
    raise ValueError(f"no field can hold a {type(value).__name__}")


def _array_field(value: Array) -> Field:
    if _is_encoded(value):
        return Field("image")
    if value.dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"no field can hold an array of {value.dtype}, only arrays of booleans or numbers")
    return parse_fields({"a": Field("array", value.dtype.str, value.shape)})["a"]


def _is_encoded(value: Array) -> bool:
    """Whether an array of bytes is an encoded image, as OpenCV's imencode returns them."""
    flat = value.dtype == np.uint8 and value.ndim in (1, 2) and value.size == max(value.shape)
    return flat and is_image(value.reshape(-1)[:64].tobytes())


def merge(found: Sequence[Field], *, any_shape: bool) -> Field:
    """Return one field for the values of several records in one place; raises ValueError if they do not agree."""
    kinds = {field.kind for field in found}
    if kinds <= {"image", "bytes"}:  # an image with a damaged beginning looks like bytes
        return Field("image" if "image" in kinds else "bytes")
    if kinds == {"int", "float"}:
        return Field("float")
    if len(kinds) > 1:
        raise ValueError(f"some records hold {' and others '.join(sorted(kinds))}")
    if kinds != {"array"}:
        return found[0]
    dtypes, ranks = {field.dtype for field in found}, {len(field.shape or ()) for field in found}
    if len(dtypes) > 1 or len(ranks) > 1:
        raise ValueError(f"its arrays differ in dtype ({', '.join(map(str, sorted(dtypes, key=str)))}) or dimensions")
    sizes = zip(*(field.shape or () for field in found), strict=True)
    return Field("array", found[0].dtype, tuple(None if any_shape or len(set(s)) > 1 else s[0] for s in sizes))


def are_videos(values: Sequence[Any]) -> bool:
    """Whether every value is an encoded video."""
    return all(isinstance(value, (bytes, memoryview)) and is_video(value) for value in values)


def names_for(fields: Sequence[Field], videos: Sequence[bool] = ()) -> list[str]:
    """Return field names by kind: image, label, text, array, value, flag, json, bytes; numbered if a kind occurs twice.

    `videos` says for each field whether all its values are encoded videos; such a field is called video.
    """
    bases = [_NAMES.get(field.kind, field.kind) for field in fields]
    bases = ["video" if is_clip else base for base, is_clip in zip(bases, videos or [False] * len(bases), strict=True)]
    several, seen = Counter(bases), Counter[str]()
    out = []
    for base in bases:
        out.append(f"{base}{seen[base]}" if several[base] > 1 else base)
        seen[base] += 1
    return out


def coerce(field: Field, value: Any) -> Any:
    """Convert `value` to the form of its field's kind; the codec checks values that do not fit."""
    if isinstance(value, np.ndarray) and field.kind in ("image", "bytes"):
        return value.tobytes() if value.dtype == np.uint8 else value
    if field.kind == "array":
        return fitting(field, np.asarray(value) if isinstance(value, np.generic) else value)
    if field.kind == "image" and isinstance(value, str):
        return image_of_text(value) or value
    if isinstance(value, np.generic):
        value = value.item()
    if field.kind == "str" and isinstance(value, (bytes, memoryview)):
        return str(value, "utf-8")
    return plain(value) if field.kind == "json" else value


def fitting(field: Field, value: Any) -> Any:
    """Return an array; raises ValueError if its shape differs from the shape inferred when the store was opened."""
    if isinstance(value, np.ndarray) and field.shape is not None:
        fits = value.ndim == len(field.shape) and all(
            size in (None, there) for size, there in zip(field.shape, value.shape, strict=True)
        )
        if not fits:
            advice = "; any_shape=True reads arrays of any sizes" if value.ndim == len(field.shape) else ""
            raise ValueError(f"its array has the shape {value.shape}, others {field.shape}{advice}")
    return value


def plain(value: Any) -> Any:
    """Convert values of Python and NumPy to JSON: tuples to lists, NumPy's numbers to numbers, bytes to text."""
    if isinstance(value, dict):
        return {coerce(Field("str"), key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value


def parse_wanted(given: Any) -> Wanted | None:
    """Parse the option ``fields``: ``"image,label:int"``, a list of such names, or a mapping of names to declarations.

    Raises ValueError.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return tuple(parse_fields(given).items())
    parts: list[Any] = given.split(",") if isinstance(given, str) else list(given)
    if all(isinstance(part, tuple) for part in parts):  # parsed already
        return tuple(parts)
    return tuple(_parse_one(part) for part in parts)


def _parse_one(part: Any) -> tuple[str, Field | None]:
    if not isinstance(part, str):
        raise ConfigError(f"fields: expected names such as image or label:int, got {part!r}")
    name, colon, kind = (piece.strip() for piece in part.partition(":"))
    if kind == "array":
        raise ConfigError(f"fields: {part!r}: a mapping declares arrays, with dtype and shape; leave the kind out here")
    if colon and kind not in KINDS:
        raise ConfigError(f"fields: unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    declared = parse_fields({name: kind or "bytes"})[name]
    return name, declared if colon else None
