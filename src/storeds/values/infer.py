"""Infers the fields of values that nobody declared: one rule for every source of `pack` and every store of other tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from storeds.protocols import Array, Field, Kind
from storeds.records.canonical_json import canonical_json
from storeds.records.fields import parse_fields
from storeds.values.codecs import image_of_text, is_image, is_video, numbers_of
from storeds.values.coerce import (
    TEXTUAL,
    any_inside,
    coerce,
    is_array,
    is_encoded,
    is_file,
    is_picture,
    missing,
    stacked,
)
from storeds.values.names import field_names, names_for

__all__ = [
    "WHOLE",
    "Inferred",
    "Part",
    "Path",
    "evenly",
    "field_of",
    "fit",
    "form_of",
    "holds_data",
    "infer",
    "lacks",
    "leaves",
    "part_of",
    "path_text",
    "value_at",
]

Path = tuple[Any, ...]
"""Where a part of a value lies: the keys of mappings and the numbers in lists that lead to it."""
WHOLE: Path = ()
"""The part of a value that is the value itself."""

_ARRAY_KINDS = "biufc"
_EXACT = 2**53  # float64 holds each integer up to this one
_SCALARS: tuple[tuple[Kind, type], ...] = (
    ("bool", bool),
    ("int", int),
    ("float", float),
    ("str", str),
    ("bytes", bytes),
)


class Part(NamedTuple):
    """A field, and the part of a value that it holds.

    Attributes
    ----------
    name : str
    path : Path
    field : Field
    optional : bool
        Whether the part is absent or null in some records, where the field has NaN, or null in JSON.
    """

    name: str
    path: Path
    field: Field
    optional: bool = False

    def of(self, value: Any) -> Any:
        """Return the value of the field, in the form of its kind; raises ValueError."""
        if self.optional:
            found = value_at(value, self.path)
            return missing(self.field) if found is None else coerce(self.field, found)
        return coerce(self.field, part_of(value, self.path))


@dataclass(frozen=True)
class Inferred:
    """The fields of values.

    Attributes
    ----------
    form : str
        What `form_of` returns for most values; the others are bad records.
    parts : tuple of Part
    left : tuple of str
        Parts that are not read, each with a reason.
    """

    form: str
    parts: tuple[Part, ...]
    left: tuple[str, ...] = ()

    @property
    def reads_little(self) -> bool:
        """Whether at least half of the parts are not read."""
        return len(self.left) >= len(self.parts)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` positions of ``0 … count - 1``, evenly distributed, with the first and the last."""
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)}) if count else []


# Values with parts.


def infer(samples: Sequence[Any], *, taken: Collection[str] = (), texts: tuple[type, ...] = ()) -> Inferred:
    """Return the fields of values by some of them: the parts of a tuple or list, the entries of a mapping, or the value.

    A mapping inside of it that holds arrays or bytes gives a field for each of its entries. A part that is absent or null
    in some values has NaN there, or null in JSON; one that is absent in most is not read.

    Parameters
    ----------
    samples : sequence
        At least one.
    taken : collection of str
        Names that other fields have.
    texts : tuple of type
        Types whose values become text, beside dates and UUIDs.

    Raises
    ------
    ValueError
        Half of the values have another form than the others.
    """
    forms = Counter(map(form_of, samples))
    ((form, count),) = forms.most_common(1)
    if 2 * count <= len(samples):
        raise ValueError(f"its records have several forms: {', '.join(sorted(forms))}")
    samples = [value for value in samples if form_of(value) == form]
    first = samples[0]
    has_parts = isinstance(first, Mapping) or (isinstance(first, (list, tuple)) and bool(first))
    found, videos, left = dict[Path, tuple[Field, bool]](), list[bool](), list[str]()
    for path in leaves(samples) if has_parts else [WHOLE]:
        values = [value_at(value, path) for value in samples]
        try:
            if 2 * sum(lacks(value, path) for value in samples) > len(samples):
                raise ValueError("absent in most records")
            field = field_of(values, texts=texts)
            is_null = any(value is None for value in values)
            found[path] = field, is_null and field.kind in ("float", "json")
            videos.append(all(isinstance(value, (bytes, memoryview)) and is_video(value) for value in values))
        except ValueError as error:
            shown = path[0] if len(path) == 1 else path_text(path)
            left.append(f"part {shown!r}: {error}" if path else f"its values: {error}")
    labels = [path_text(path) for path in found]
    if not isinstance(first, Mapping):
        by_kind = [at for at, path in enumerate(found) if len(path) < 2]
        kinds = [field for field, _ in found.values()]
        named = names_for([kinds[at] for at in by_kind], [videos[at] for at in by_kind])
        for at, name in zip(by_kind, named, strict=True):
            labels[at] = name
    names = field_names(labels, taken)
    fields = {name: field for name, (field, _) in zip(names, found.values(), strict=True)}
    declared = parse_fields(fields) if fields else {}
    parts = (
        Part(name, path, declared[name], optional)
        for name, (path, (_, optional)) in zip(names, found.items(), strict=True)
    )
    return Inferred(form, (*parts,), (*left,))


def form_of(value: Any) -> str:
    """Return the number of parts of a tuple or list, and whether it is a mapping."""
    if isinstance(value, (list, tuple)):
        return f"{len(value)} parts"
    return "a mapping" if isinstance(value, Mapping) else "one value"


def leaves(samples: Sequence[Any], path: Path = WHOLE) -> Iterator[Path]:
    """Yield the paths of the parts of values, and in place of one that leads to mappings with data those of their entries."""
    for entry in _entries([value for sample in samples if (value := value_at(sample, path)) is not None]):
        inner = (*path, entry)
        values = [value for sample in samples if (value := value_at(sample, inner)) is not None]
        are_mappings = all(isinstance(value, Mapping) and not is_file(value) for value in values)
        if values and are_mappings and any(map(holds_data, values)):
            yield from leaves(samples, inner)
        else:
            yield inner


def _entries(values: Sequence[Any]) -> list[Any]:
    """Return the keys of mappings, each once, or the numbers of the items of lists."""
    if isinstance(values[0], Mapping):
        return list(dict.fromkeys(entry for value in values for entry in value))
    return list(range(len(values[0])))


def holds_data(value: Any) -> bool:
    """Whether a value is or contains bytes, arrays or an image in base64, at any depth."""
    return any_inside(value, _is_data_or_base64)


def _is_data_or_base64(value: Any) -> bool:
    return _is_data(value) or is_picture(value) or is_file(value) or _is_base64(value)


def _is_data(value: Any) -> bool:
    """Whether a value is one that JSON cannot hold: bytes or an array."""
    return isinstance(value, (bytes, memoryview, np.ndarray, np.generic))


def _is_base64(value: Any) -> bool:
    return isinstance(value, str) and image_of_text(value) is not None


def value_at(value: Any, path: Path) -> Any:
    """Return a part of a value, or None if it has none."""
    try:
        return part_of(value, path)
    except ValueError:
        return None


def lacks(value: Any, path: Path) -> bool:
    """Whether a value has no such part, not even null."""
    try:
        part_of(value, path)
    except ValueError:
        return True
    return False


def part_of(value: Any, part: Path) -> Any:
    """Return a part of a value; raises ValueError if it has none."""
    try:
        for each in part:
            value = value[each]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"it has no part {path_text(part)!r}") from None
    return value


def path_text(path: Path) -> str:
    """Return a path as text: its entries with dots between."""
    return ".".join(entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry) for entry in path)


# Values in one place.


def fit(values: Sequence[Any]) -> tuple[Field, list[Any]]:
    """Return the field of a column of JSON values, and each value in its form, or a ValueError if it cannot be stored."""
    field = field_of(values)
    if field.kind in ("bool", "int", "str"):
        return field, list(values)
    return field, [_fitted(field, value) for value in values]


def _fitted(field: Field, value: Any) -> Any:
    try:
        if value is None:
            return missing(field)
        if field.kind == "json":
            canonical_json(value)
            return value
        return float(value) if field.kind == "float" else coerce(field, value)
    except ValueError as error:
        return ValueError(f"cannot be stored: {error}")


def field_of(values: Sequence[Any], *, any_shape: bool = False, texts: tuple[type, ...] = ()) -> Field:
    """Return one field for the values of several records in one place; None is an absent value.

    Lists of numbers are arrays, and so are lists of equally long lists if this length is the same in all values. Values
    that do not agree, and numbers or texts of which some are absent, are JSON; an absent real number is NaN.

    Parameters
    ----------
    values : sequence
        At least one.
    any_shape : bool
        Leave every dimension of an array open.
    texts : tuple of type
        Types whose values become text, beside dates and UUIDs.

    Raises
    ------
    ValueError
        No field can hold them: they hold bytes or arrays, and do not agree.
    """
    known = [value for value in values if value is not None]
    if not known:
        return Field("json")
    field = _plain_field(known) or _field_of(known, any_shape, (*texts, *TEXTUAL))
    if len(known) == len(values) or field.kind in ("float", "json"):
        return field
    if field.kind in ("image", "bytes") or any_inside(known, _is_data):  # a record without it is bad
        return field
    return Field("json")


def _plain_field(values: Sequence[Any]) -> Field | None:
    """Return the field of Python's numbers and texts; None if others are among the values."""
    types = set(map(type, values))
    if types <= {int, float}:
        whole = [value for value in values if type(value) is int]
        if float in types:
            return Field("float" if all(-_EXACT <= number <= _EXACT for number in whole) else "json")
        return Field("int" if all(-(2**63) <= number < 2**63 for number in whole) else "json")
    if types == {str}:
        return Field("image" if all(map(_is_base64, values)) else "str")
    if types <= {int, float, bool, str}:
        return Field("bool" if types == {bool} else "json")
    return None


def _field_of(values: Sequence[Any], any_shape: bool, texts: tuple[type, ...]) -> Field:
    if any(isinstance(value, texts) for value in values) and all(isinstance(value, (str, *texts)) for value in values):
        return Field("str")
    try:
        arrays = [array for value in values if (array := _numbers(value)) is not None]
        if len(arrays) == len(values):
            return _list_field(arrays, any_shape)
        return _merged([_kind_of(stacked(value)) for value in values], any_shape)
    except ValueError:
        if all(isinstance(value, (*_JSON, *texts)) and not any_inside(value, _is_data) for value in values):
            return Field("json")
        raise


_JSON = (bool, int, float, str, list, tuple, dict)


def _numbers(value: Any) -> Array | None:
    """Return a list of numbers, or of equally long such lists, as an array; None for anything else, and for true among numbers."""
    if not isinstance(value, (list, tuple)):
        return None
    found = numbers_of(value)
    return None if found is not None and found.dtype.kind != "b" and _holds_bool(value) else found


def _holds_bool(value: Sequence[Any]) -> bool:
    kinds = set(map(type, value))
    return bool in kinds or (not kinds.isdisjoint((list, tuple)) and any(map(_holds_bool, value)))


def _list_field(arrays: Sequence[Array], any_shape: bool) -> Field:
    """Return the field of lists of numbers; an empty list tells neither their type nor their number of dimensions."""
    filled = [array for array in arrays if array.size]
    if not filled:
        return Field("json")
    dtypes = {array.dtype for array in filled}
    if np.dtype(bool) in dtypes and len(dtypes) > 1:
        raise ValueError("some of its lists hold booleans and others numbers")
    if len({array.shape[1:] for array in filled}) > 1:
        raise ValueError("its lists of lists have several lengths")  # such as the polygons of an image
    # Integers occur among reals because JSON writers drop ".0".
    dtype = np.result_type(*dtypes)
    forms = {array.shape: array for array in filled}
    found = _merged([_array_field(array.astype(dtype)) for array in forms.values()], any_shape)
    return found if len(filled) == len(arrays) else Field("array", found.dtype, (None, *(found.shape or ())[1:]))


def _kind_of(value: Any) -> Field:
    """Return the field that can hold a value; raises ValueError."""
    if isinstance(value, (bytes, memoryview)):
        return Field("image" if is_image(value) else "bytes")
    if isinstance(value, np.ndarray):
        return _array_field(value)
    if isinstance(value, np.generic):
        value = value.item()
    if is_picture(value) or is_file(value):
        return Field("image")
    if isinstance(value, (list, tuple, Mapping)):
        return _container_field(value)
    if isinstance(value, str) and _is_base64(value):
        return Field("image")
    for kind, types in _SCALARS:
        if isinstance(value, types):
            return Field(kind)
    raise ValueError(f"no field can hold {'None' if value is None else f'a {type(value).__name__}'}")


def _container_field(value: Any) -> Field:
    found = _numbers(value)
    if found is not None and found.size:
        return _array_field(found)
    if any_inside(value, _is_data):
        what = "arrays of several shapes or types" if any_inside(value, is_array) else "bytes"
        raise ValueError(f"no field can hold a list of {what}")
    return Field("json")


def _array_field(value: Array) -> Field:
    if is_encoded(value):
        return Field("image")
    if value.dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"no field can hold an array of {value.dtype}, only arrays of booleans or numbers")
    return parse_fields({"a": Field("array", value.dtype.str, value.shape)})["a"]


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
