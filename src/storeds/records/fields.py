"""Describes a store: the declaration of its fields, verdicts on images, spatial elements, and the stored form of `Meta`."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import xxhash

from storeds.errors import ConfigError, FormatError
from storeds.protocols import JSON, KINDS, Field, Meta
from storeds.records.roles import ROLE_KEYS, check_rows, parse_role, role_to_json

__all__ = [
    "NATIVE",
    "UNCHECKED",
    "WRITTEN_BY",
    "Channels",
    "Count",
    "Layout",
    "canonical_json",
    "fields_from_json",
    "fields_to_json",
    "holds_integers",
    "holds_pixels",
    "is_image_like",
    "is_mask",
    "is_pixel_array",
    "is_spatial",
    "layout_of",
    "meta_from_text",
    "meta_to_text",
    "new_build",
    "parse_fields",
    "pictures",
    "verdict_fields",
    "with_pictures",
    "with_verdicts",
    "without_verdicts",
]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")  # short enough for the keys and file names of every engine
_DTYPE_KINDS = "biufc"


def fields_to_json(fields: Mapping[str, Field]) -> JSON:
    """Return the declared fields as a list, which keeps their order in every JSON implementation."""
    rows: list[JSON] = []
    for name, field in fields.items():
        row: dict[str, JSON] = {"name": name, "kind": field.kind}
        if field.kind == "array":
            row["dtype"] = field.dtype
            row["shape"] = list(field.shape or ())
        rows.append({**row, **role_to_json(field)})
    return rows


def fields_from_json(rows: Any) -> dict[str, Field]:
    """Return the fields that `fields_to_json` wrote; raises ConfigError for invalid rows."""
    return parse_fields({row["name"]: {key: row[key] for key in row if key != "name"} for row in rows})


def parse_fields(fields: Mapping[str, Any]) -> dict[str, Field]:
    """Validate a declaration such as ``{"image": "image", "x": {"kind": "array", "dtype": "float32", "shape": [3, None]}}``.

    Raises
    ------
    ConfigError
        A name or kind is invalid, or there is no field.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise ConfigError(f"fields: expected a mapping of at least one name to its kind, got {fields!r}")
    return check_rows({name: _parse_field(name, spec) for name, spec in fields.items()})


def _parse_field(name: object, spec: object) -> Field:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "; a leading underscore is reserved" if str(name).startswith("_") else ""
        raise ConfigError(f"field name {name!r} must match [a-z][a-z0-9_]* and have at most 100 characters{hint}")
    if isinstance(spec, str):
        spec = Field(spec)  # type: ignore[arg-type]  # the kind is checked below
    elif isinstance(spec, Mapping):
        unknown = set(spec) - {"kind", "dtype", "shape", *ROLE_KEYS}
        if unknown or "kind" not in spec:
            raise ConfigError(
                f"field {name!r}: expected kind, dtype and shape, and for a role {', '.join(ROLE_KEYS)}, got {dict(spec)!r}"
            )
        role = {key: spec[key] for key in ROLE_KEYS if key in spec}
        spec = Field(spec["kind"], spec.get("dtype"), spec.get("shape"), **role)
    if not isinstance(spec, Field) or spec.kind not in KINDS:
        kind = spec.kind if isinstance(spec, Field) else spec
        raise ConfigError(f"field {name!r}: unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    if spec.kind == "array":
        spec = _parse_array_field(name, spec)
    elif spec.dtype is not None or spec.shape is not None:
        raise ConfigError(f"field {name!r}: only an array has a dtype and a shape, not {spec.kind}")
    return parse_role(name, spec)


def _parse_array_field(name: str, spec: Field) -> Field:
    if spec.dtype is None or spec.shape is None:
        raise ConfigError(
            f"field {name!r}: an array needs its dtype and shape, for example dtype='float32', shape=(3, None)"
        )
    try:
        dtype = np.dtype(spec.dtype)
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy evaluates the text of some dtypes
        raise ConfigError(f"field {name!r}: {spec.dtype!r} is not a NumPy dtype ({error})") from None
    if dtype.kind not in _DTYPE_KINDS or dtype.itemsize > 16 or dtype.char in "gG":
        raise ConfigError(
            f"field {name!r}: dtype {dtype} cannot be stored; booleans, integers, floats up to 64 bit and complex can"
        )
    if not isinstance(spec.shape, (list, tuple)) or not all(map(_is_size, spec.shape)):
        raise ConfigError(f"field {name!r}: shape {spec.shape!r} must be a list of sizes or None")
    return dataclasses.replace(spec, dtype=dtype.newbyteorder("<").str, shape=tuple(spec.shape))


def _is_size(size: object) -> bool:
    return size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)


_MAX_DEPTH = 100  # so that valid JSON never exhausts the stack of a reader


def canonical_json(value: JSON) -> str:
    """Return the canonical JSON text of `value`: sorted keys, no spaces, no NaN. Raises ValueError."""
    _check_json(value, 0)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _check_json(value: object, depth: int) -> None:
    # json.dumps silently turns tuples into lists and other keys into strings.
    if depth > _MAX_DEPTH:
        raise ValueError(f"JSON nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"JSON keys are str, not {type(key).__name__} ({key!r})")
            _check_text(key)
            _check_json(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value!r}")
    elif value is not None and not isinstance(value, (int, float)):
        raise ValueError(f"JSON holds dict, list, str, int, float, bool and None, not {type(value).__name__}")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text with a lone surrogate at character {error.start} has no UTF-8 form") from None


UNCHECKED = ""
"""The finding of a picture that was not examined."""


def verdict_fields(image: str) -> tuple[str, str]:
    """Return the names of the fields that hold the verdict on an image field: its finding, and the share that is left."""
    return f"{image}_finding", f"{image}_recovered"


def pictures(fields: Mapping[str, Field]) -> dict[str, tuple[str, str]]:
    """Return each image field that has a verdict, with the names of the two fields that hold it."""
    pairs = {name: verdict_fields(name) for name, field in fields.items() if field.kind == "image"}
    return {image: pair for image, pair in pairs.items() if tuple(map(fields.get, pair)) == _VERDICT}


def without_verdicts(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields that describe no picture: those that samples have by default."""
    verdicts = {name for pair in pictures(fields).values() for name in pair}
    return {name: field for name, field in fields.items() if name not in verdicts}


def with_verdicts(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields with a verdict for each image.

    Raises
    ------
    ConfigError
        A field with the name of a verdict has another kind.
    """
    found = dict(fields)
    for image in [name for name, field in fields.items() if field.kind == "image"]:
        for name, field in zip(verdict_fields(image), _VERDICT, strict=True):
            if found.setdefault(name, field) != field:
                raise ConfigError(
                    f"field {name!r} holds the verdict on the pictures in {image!r}, so it is of kind {field.kind}, not "
                    f"{found[name].kind}; rename it"
                )
    return found


_VERDICT = (Field("str"), Field("float"))

Channels: TypeAlias = Literal["first", "last"]
Layout: TypeAlias = Literal["first", "last", "none"]
_CHANNELS = (1, 3, 4)
_WORD = re.compile(r"[a-z]+")
_MASK = re.compile("(mask|seg|segm|segmentation|semantic|labelmap|trimap|label|target)s?")
_IN_IMAGES = re.compile("(mask|bbox|keypoint|landmark|polygon|contour)(e?s)?|box(es)?")
_LEAST = 8  # pixels: a smaller array is a table, such as boxes of shape (n, 4)


def layout_of(shape: Sequence[int | None]) -> Layout | None:
    """Return where the channels are in arrays of that shape, or None if that is ambiguous.

    ``"none"``: a single channel, shape (height, width). ``"last"`` or ``"first"``: of the last three dimensions, exactly that
    end is 1, 3 or 4. Earlier dimensions count frames. A dimension of None, which varies between records, is not channels.
    """
    if len(shape) == 2:
        return "none"
    if len(shape) < 2 or (shape[-1] in _CHANNELS) == (shape[-3] in _CHANNELS):
        return None
    return "last" if shape[-1] in _CHANNELS else "first"


def is_mask(name: str) -> bool:
    """Whether the name of an element is typical for masks of classes: ``mask``, ``seg_map``, ``labels``."""
    return any(map(_MASK.fullmatch, _WORD.findall(name)))


def is_image_like(field: Field) -> bool:
    """Whether the shape of an array is that of an image with channels, or of a sequence of frames."""
    shape = field.shape or ()
    return len(shape) > 2 and layout_of(shape) is not None and any(_fits(size, []) for size in _spatial_sizes(shape))


def holds_pixels(field: Field, channels: Channels | None = None) -> bool:
    """Whether arrays are pixels of a Pillow image: uint8 with 1, 3 or 4 channels, or uint16 with a single one.

    Parameters
    ----------
    field : Field
    channels : str, optional
        Where the channels are, if the user says it. Otherwise they may be where the shape allows it.
    """
    shape = field.shape or ()
    if field.kind != "array" or len(shape) not in (2, 3):
        return False
    ends = {"first": shape[:1], "last": shape[-1:], None: (shape[0], shape[-1]), "none": (1,)}
    counts = ends["none" if len(shape) == 2 else channels or layout_of(shape)]
    if field.dtype == "<u2":
        return set(counts) == {1}
    return field.dtype == "|u1" and any(count is None or count in _CHANNELS for count in counts)


def with_pictures(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields of a store. If it declares no image, arrays of pixels in the shape of one get the role image."""
    if any(_is_declared_picture(name, field) for name, field in fields.items()):
        return dict(fields)
    return {
        name: dataclasses.replace(field, role="image") if is_pixel_array(field) and not is_mask(name) else field
        for name, field in fields.items()
    }


def _is_declared_picture(name: str, field: Field) -> bool:
    return field.role == "image" or (field.kind == "image" and field.role is None and not is_mask(name))


def is_pixel_array(field: Field) -> bool:
    """Whether an array without a role has the dtype and the shape of one image, which tells where the channels are."""
    if field.role is not None or not holds_pixels(field):
        return False
    sizes = _spatial_sizes(field.shape or ())
    return len(sizes) == 1 and _fits(sizes[0], [])  # two sizes where it is ambiguous


def is_spatial(name: str, field: Field, data: Field | None) -> bool:
    """Whether an element has image coordinates: an image, a map of pixels, boxes or points."""
    if field.role is not None:
        return field.role in ("image", "mask", "boxes", "keypoints")
    if field.kind == "image":
        return True
    if field.is_scalar or field.kind == "str":
        return False
    if any(map(_IN_IMAGES.fullmatch, _WORD.findall(name))):
        return True
    images = _spatial_sizes(data.shape) if data is not None and data.shape is not None and data is not field else []
    return any(_fits(size, images) for size in _spatial_sizes(field.shape or ()))


def _fits(size: tuple[int | None, int | None], images: list[tuple[int | None, int | None]]) -> bool:
    """Whether a map of that size may belong to images of one of these sizes; without sizes, any large enough map may."""
    height, width = size
    if any(edge is not None and edge < _LEAST for edge in size):
        return False
    if height is None or width is None or not images:
        return True
    return any(
        high is None or wide is None or abs(high * width - wide * height) <= max(high, wide, height, width)
        for high, wide in images
    )


def holds_integers(field: Field) -> bool:
    """Whether the values of an element may be class numbers."""
    return field.kind == "image" or (field.dtype or "").lstrip("<>|=")[:1] in ("b", "i", "u")


def _spatial_sizes(shape: Sequence[int | None]) -> list[tuple[int | None, int | None]]:
    """Return what (height, width) of images of that shape may be; empty for fewer than two dimensions."""
    if len(shape) < 2:
        return []
    layout = layout_of(shape)
    first, last = (shape[-2], shape[-1]), (shape[-3] if len(shape) > 2 else None, shape[-2])
    if layout is None:
        return [first, last]
    return [last if layout == "last" else first]


class Count(int):
    """An int below 2**64 whose pickle has a fixed size of 8 bytes."""

    def __reduce__(self) -> tuple[Callable[[bytes], Count], tuple[bytes]]:
        return _unpickle_count, (self.to_bytes(8, "little"),)


def _unpickle_count(data: bytes) -> Count:
    return Count(int.from_bytes(data, "little"))


NATIVE = "storeds/1"
WRITTEN_BY = "native stores are written by storeds.open_writer, `storeds pack` or `storeds convert`"


def new_build() -> str:
    """Return a random id for one published state of a store."""
    return secrets.token_hex(16)


def meta_to_text(meta: Meta, **extra: JSON) -> str:
    """Return canonical JSON of `meta` and `extra`, with their checksum, ``check``."""
    body: dict[str, JSON] = {
        "attrs": dict(meta.attrs),
        "build": meta.build,
        "count": meta.count,
        "fields": fields_to_json(meta.fields),
        "id": meta.id,
        "layout": meta.layout,
        **({} if meta.fast_crops is None else {"fast_crops": meta.fast_crops}),
        **extra,
    }
    return canonical_json({**body, "check": _meta_checksum(body)})


def meta_from_text(text: str | bytes, url: str) -> tuple[Meta, Mapping[str, Any]]:
    """Return the `Meta` in `text` and the whole JSON object; raises FormatError if it is damaged."""
    try:
        body = json.loads(text)
        check = body.pop("check")
        count, fast_crops = Count(body["count"]), body.get("fast_crops")
        fields = fields_from_json(body["fields"])
        meta = Meta(body["id"], body["build"], count, body["layout"], fields, body["attrs"], fast_crops)
        intact = check == _meta_checksum(body)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"{url}: the store's meta is unreadable ({type(error).__name__}: {error}); {_ADVICE}"
        ) from None
    if not intact:
        raise FormatError(f"{url}: the store's meta does not match its checksum; {_ADVICE}")
    if meta.layout != NATIVE:
        raise FormatError(
            f"{url}: layout {meta.layout!r} is newer than this storeds, which reads {NATIVE!r}; upgrade storeds"
        )
    return meta, body


def _meta_checksum(body: Mapping[str, JSON]) -> str:
    """Return the xxh3-64 of canonical JSON, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(canonical_json(dict(body)).encode())


_ADVICE = "copy the store again from its source"
