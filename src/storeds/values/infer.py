"""Infers the fields of values that nobody declared, and converts values to the form of their fields."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.protocols import Array, Field, Kind
from storeds.records.fields import parse_fields
from storeds.values.codecs import image_of_text, is_image, is_video, numbers_of

__all__ = [
    "WHOLE",
    "Inferred",
    "Parts",
    "coerce",
    "evenly",
    "field_name",
    "field_names",
    "field_of",
    "form_of",
    "holds_nan",
    "infer",
    "names_for",
    "part_of",
    "plain",
]

Path = tuple[Any, ...]
"""Where a part of a value lies: the keys of mappings and the numbers in lists that lead to it."""
Parts = tuple[tuple[str, Path, Field], ...]
"""The name of each field, the part of a value that it holds, and its kind."""
WHOLE: Path = ()
"""The part of a value that is the value itself."""

_NAMES = {"image": "image", "int": "label", "str": "text", "array": "array", "float": "value", "bool": "flag"}
_ARRAY_KINDS = "biufc"
_SCALARS: tuple[tuple[Kind, type], ...] = (
    ("bool", bool),
    ("int", int),
    ("float", float),
    ("str", str),
    ("bytes", bytes),
)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` positions of ``0 … count - 1``, evenly distributed, with the first and the last."""
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)}) if count else []


@dataclass(frozen=True)
class Inferred:
    """The fields of values.

    Attributes
    ----------
    form : str
        What `form_of` returns for most values; the others are bad records.
    fields : Parts
    left : tuple of str
        Parts that are not read, each with a reason.
    """

    form: str
    fields: Parts
    left: tuple[str, ...] = ()


def infer(samples: Sequence[Any], *, lists: bool = False, taken: Collection[str] = ()) -> Inferred:
    """Return the fields of values by some of them: the parts of a tuple or list, the entries of a mapping, or the value.

    A mapping inside of it that holds arrays gives a field for each of its entries.

    Parameters
    ----------
    samples : sequence
        At least one.
    lists : bool
        Lists of numbers are arrays, as in JSON.
    taken : collection of str
        Names that other fields have.

    Raises
    ------
    ValueError
        The values do not agree, or no field can hold half of their parts.
    """
    forms = Counter(map(form_of, samples))
    ((form, count),) = forms.most_common(1)
    if 2 * count <= len(samples):
        raise ValueError(f"its records have several forms: {', '.join(sorted(forms))}")
    samples = [value for value in samples if form_of(value) == form]
    first = samples[0]
    parts = [WHOLE]
    if isinstance(first, Mapping) or (isinstance(first, (list, tuple)) and first):
        parts = [path for part in _parts_of(samples) for path in _paths([(part,)], samples)]
    fields, videos, left = dict[Path, Field](), list[bool](), list[str]()
    for part in parts:
        try:
            values = [part_of(value, part) for value in samples]
            if isinstance(first, Mapping) and any(value is None for value in values):
                raise ValueError("null in some records")
            fields[part] = field_of(values, lists=lists)
            videos.append(all(isinstance(value, (bytes, memoryview)) and is_video(value) for value in values))
        except ValueError as error:
            left.append(f"part {_shown(part)}: {error}" if part else f"its values: {error}")
    if 2 * len(left) >= len(parts):
        columns = {"value": {"path": "{}", "kind": "bytes"}}
        raise ValueError(f"{'; '.join(left[:6])}; columns={columns!r} reads the bytes of each value")
    labels = [".".join(map(_entry_text, part)) for part in fields]
    if not isinstance(first, Mapping):
        by_kind = [at for at, part in enumerate(fields) if len(part) < 2]
        named = names_for([[*fields.values()][at] for at in by_kind], [videos[at] for at in by_kind])
        for at, name in zip(by_kind, named, strict=True):
            labels[at] = name
    names = field_names(labels, taken)
    found = parse_fields(dict(zip(names, fields.values(), strict=True)))
    return Inferred(form, tuple((name, part, found[name]) for name, part in zip(names, fields, strict=True)), (*left,))


def form_of(value: Any) -> str:
    """Return the number of parts of a tuple or list, and whether it is a mapping."""
    if isinstance(value, (list, tuple)):
        return f"{len(value)} parts"
    return "a mapping" if isinstance(value, Mapping) else "one value"


def _parts_of(values: Sequence[Any]) -> list[Any]:
    """Return the keys of mappings, each once, or the numbers of the items of lists."""
    if isinstance(values[0], Mapping):
        return list(dict.fromkeys(entry for value in values for entry in value))
    return list(range(len(values[0])))


def _paths(paths: list[Path], samples: Sequence[Any]) -> Iterator[Path]:
    """Yield the paths, and in place of one that leads to mappings with arrays those of their entries."""
    for path in paths:
        values = [value for sample in samples if (value := _found(sample, path)) is not None]
        if values and all(isinstance(value, Mapping) for value in values) and any(map(_holds_arrays, values)):
            yield from _paths([(*path, entry) for entry in _parts_of(values)], samples)
        else:
            yield path


def _found(value: Any, path: Path) -> Any:
    try:
        return part_of(value, path)
    except ValueError:
        return None


def part_of(value: Any, part: Path) -> Any:
    """Return a part of a value; raises ValueError if it has none."""
    try:
        for each in part:
            value = value[each]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"it has no part {_shown(part)}") from None
    return value


def _shown(part: Path) -> str:
    return repr(part[0]) if len(part) == 1 else repr(".".join(map(_entry_text, part)))


def _entry_text(entry: Any) -> str:
    return entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)


def field_name(text: str) -> str:
    """Return a text as the name of a field: in lower case, with ``_`` for other characters."""
    name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")[:90] or "field"
    return name if name[0].isalpha() else f"f{name}"


def field_names(labels: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Return a field name of its own for each label: the label itself if it is a free name, else `field_name` and a number.

    No label takes the name that is exactly another one: of ``T`` and ``t``, the first becomes ``t_2``.
    """
    used, names = set(taken), [""] * len(labels)
    for at in sorted(range(len(labels)), key=lambda at: field_name(labels[at]) != labels[at]):
        plain = unique = field_name(labels[at])
        number = 2
        while unique in used:
            unique, number = f"{plain}_{number}", number + 1
        used.add(unique)
        names[at] = unique
    return names


def field_of(
    values: Sequence[Any], *, any_shape: bool = False, lists: bool = False, texts: tuple[type, ...] = ()
) -> Field:
    """Return one field for the values of several records in one place.

    Parameters
    ----------
    values : sequence
        At least one.
    any_shape : bool
        Leave every dimension of an array open.
    lists : bool
        Lists of numbers are arrays, as in JSON.
    texts : tuple of type
        Types whose values become text, such as those of ids.

    Raises
    ------
    ValueError
        The values do not agree, or no field can hold them.
    """
    if any(isinstance(value, texts) for value in values) and all(isinstance(value, (str, *texts)) for value in values):
        return Field("str")
    arrays = [array for value in values if (array := numbers_of(value)) is not None] if lists else []
    if arrays and len(arrays) == len(values):
        return _list_field(arrays, any_shape)
    return _merged([_kind_of(_stacked(value)) for value in values], any_shape)


def _stacked(value: Any) -> Any:
    """Return a list of equal arrays, or of NumPy's numbers of one type, as one array; anything else as it is."""
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], (np.ndarray, np.generic)):
        return value
    forms = {(item.dtype, item.shape) if isinstance(item, (np.ndarray, np.generic)) else None for item in value}
    return np.stack(value) if len(forms) == 1 and value[0].dtype.kind in _ARRAY_KINDS else value


def _list_field(arrays: Sequence[Array], any_shape: bool) -> Field:
    """Return the field of lists of numbers; an empty list tells neither their type nor their number of dimensions."""
    filled = [array for array in arrays if array.size]
    if not filled:
        return Field("json")
    dtypes = {array.dtype for array in filled}
    if np.dtype(bool) in dtypes and len(dtypes) > 1:
        raise ValueError("some of its lists hold booleans and others numbers")
    # Integers occur among reals because JSON writers drop ".0".
    dtype = np.result_type(*dtypes)
    found = _merged([_array_field(array.astype(dtype)) for array in filled], any_shape)
    return found if len(filled) == len(arrays) else Field("array", found.dtype, (None, *(found.shape or ())[1:]))


def _kind_of(value: Any) -> Field:
    """Return the field that can hold a value; raises ValueError."""
    if isinstance(value, (bytes, memoryview)):
        return Field("image" if is_image(value) else "bytes")
    if isinstance(value, np.ndarray):
        return _array_field(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple, dict)) or value is None:
        if _holds_bytes(value):
            raise ValueError("no field can hold a list of bytes")
        if _holds_arrays(value):
            raise ValueError("no field can hold a list of arrays of several shapes or types")
        return Field("json")
    if isinstance(value, str) and image_of_text(value) is not None:
        return Field("image")
    for kind, types in _SCALARS:
        if isinstance(value, types):
            return Field(kind)
    raise ValueError(f"no field can hold a {type(value).__name__}")


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(map(_holds_bytes, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (bytes, memoryview))


def _holds_arrays(value: Any) -> bool:
    """Whether a value is or contains an array or a number of NumPy, whose type JSON would lose."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_holds_arrays, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (np.ndarray, np.generic))


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


def _merged(found: Sequence[Field], any_shape: bool) -> Field:
    kinds = {field.kind for field in found}
    if kinds == {"image", "bytes"}:  # an image with a damaged beginning looks like bytes
        return Field("image" if 2 * sum(field.kind == "image" for field in found) > len(found) else "bytes")
    if kinds == {"image", "str"}:  # some texts look like images in base64
        return Field("str")
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
    value = _stacked(value)
    if isinstance(value, np.ndarray) and field.kind in ("image", "bytes"):
        if field.kind == "image" and not _is_encoded(value):
            raise ValueError(f"its array {value.dtype} {value.shape} is no encoded image, unlike the others")
        return value.tobytes() if value.dtype == np.uint8 else value
    if field.kind == "array":
        return _fitting(field, _array(field, value))
    if field.kind in ("image", "bytes") and isinstance(value, str):
        image = image_of_text(value)
        if image is None:
            raise ValueError("found text that is not an image in base64")
        return image
    if isinstance(value, np.generic):
        value = value.item()
    if field.kind == "str" and isinstance(value, (bytes, memoryview)):
        return str(value, "utf-8")
    if field.kind == "json" and _holds_arrays(value):
        raise ValueError("it holds an array, unlike the others")
    return plain(value) if field.kind == "json" else value


def _array(field: Field, value: Any) -> Any:
    """Return a list of numbers, or one of NumPy's numbers, as an array; raises ValueError."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not isinstance(value, list):
        return value
    found = numbers_of(value)
    if found is not None and found.dtype.str == field.dtype:
        return found
    if found is None or (found.size and not np.can_cast(found.dtype, np.dtype(field.dtype), "same_kind")):
        raise ValueError(f"its list has no numbers of type {field.dtype}, unlike the others")
    if not found.size and found.ndim < len(field.shape or ()):
        found = found.reshape(tuple(size or 0 for size in field.shape or ()))
    cast = found.astype(field.dtype)
    if found.dtype.kind in "iu" and cast.tolist() != found.tolist():
        raise ValueError(f"{field.dtype} cannot hold its integers exactly")
    return cast


def _fitting(field: Field, value: Any) -> Any:
    """Return an array; raises ValueError if its shape differs from the shape inferred when the store was opened."""
    if isinstance(value, np.ndarray) and field.shape is not None:
        fits = value.ndim == len(field.shape) and all(
            size in (None, there) for size, there in zip(field.shape, value.shape, strict=True)
        )
        if not fits:
            raise ValueError(f"its array has the shape {value.shape}, others {field.shape}")
    return value


def holds_nan(value: Any) -> bool:
    """Whether a value of JSON contains NaN or an infinity, which Python's parsers of JSON read, and no store can hold."""
    if isinstance(value, (list, dict)):
        return any(map(holds_nan, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


def plain(value: Any) -> Any:
    """Convert values of Python and NumPy to JSON: tuples to lists, NumPy's numbers to numbers, bytes to text."""
    if isinstance(value, dict):
        return {coerce(Field("str"), key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value
