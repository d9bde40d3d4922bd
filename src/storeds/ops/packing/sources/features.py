"""Turns the column types of 🤗 datasets and Arrow into fields, and their values into values of records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import BadItem
from storeds.ops.packing.sources.objects import is_encoded, take
from storeds.protocols import Field
from storeds.records.fields import parse_fields

__all__ = ["TableColumn", "column_of", "feature_of"]

_NUMBER = re.compile(r"u?int\d+|float\d+|half|double|bool")
_SHAPED = re.compile(r"Array[2-5]D")
_LISTS = ("List", "LargeList", "Sequence")


@dataclass(frozen=True)
class TableColumn:
    """One column of a table: what it is, and the field that it becomes.

    Parameters
    ----------
    name : str
        Of the column.
    field : Field
    classes : tuple of str or None
        For labels: their names.
    missing : object
        What stands for a missing value; None where that is an error.
    """

    name: str
    field: Field
    classes: tuple[str, ...] | None = None
    missing: Any = None

    def value(self, found: Any) -> Any:
        """Return the value of the field for what the table holds; raises `BadItem`."""
        if found is None and self.field.kind != "json":
            if self.missing is None:
                raise BadItem(f"its {self.name} is missing (null)")
            return self.missing
        try:
            return take(self.field, self._converted(found))
        except BadItem as error:
            raise BadItem(f"its {self.name} {error}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise BadItem(f"its {self.name} is no {self.field.kind}: {error}") from None

    def _converted(self, found: Any) -> Any:
        kind = self.field.kind
        if kind == "array":
            return np.asarray(found, dtype=self.field.dtype)
        if kind == "float" and isinstance(found, int):
            return float(found)
        if kind == "str" and not isinstance(found, str):
            return found.isoformat() if hasattr(found, "isoformat") else str(found)
        return found


def feature_of(kind: Any, types: Any) -> dict[str, Any]:
    """Return the feature, as 🤗 datasets writes it, that an Arrow type stands for; `types` is ``pyarrow.types``."""
    if types.is_struct(kind):
        names = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
        if names.keys() == {"bytes", "path"} and types.is_binary(names["bytes"]):
            return {"_type": "Image"}
        return {name: feature_of(inner, types) for name, inner in names.items()}
    if types.is_dictionary(kind):
        return feature_of(kind.value_type, types)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        length = kind.list_size if types.is_fixed_size_list(kind) else -1
        return {"_type": "List", "feature": feature_of(kind.value_type, types), "length": length}
    return {"_type": "Value", "dtype": str(kind)}


def column_of(name: str, feature: Any, first: Any, *, has_nulls: bool) -> TableColumn | None:
    """Return the column for a feature, or None for one without values; raises ConfigError for what no field holds.

    Parameters
    ----------
    name : str
    feature : mapping or list
        As 🤗 datasets writes it.
    first : object
        A value, which tells whether bytes are an image.
    has_nulls : bool
        Whether values are missing: numbers and texts are then kept as JSON, floats as NaN.
    """
    sort = feature.get("_type") if isinstance(feature, Mapping) else None
    if sort == "Image":
        return TableColumn(name, Field("image"))
    if sort == "ClassLabel":
        return TableColumn(name, Field("int"), tuple(feature.get("names") or ()))
    if sort == "Value":
        return _value_column(name, str(feature.get("dtype")), first, has_nulls=has_nulls)
    if sort is not None and _SHAPED.fullmatch(sort):
        return TableColumn(name, _array(name, feature["dtype"], list(feature["shape"])))
    if sort in _LISTS and _is_number(inner := feature.get("feature")):
        length = feature.get("length", -1)
        return TableColumn(name, _array(name, inner["dtype"], [None if length is None or length < 0 else length]))
    odd = _unheld(feature)
    if odd is not None:
        raise ConfigError(
            f"column {name!r} holds {odd}, which no field of a store does; name the columns to take with columns= (--columns)"
        )
    return TableColumn(name, Field("json"))


def _value_column(name: str, dtype: str, first: Any, *, has_nulls: bool) -> TableColumn | None:
    if dtype == "null":
        return None
    if "binary" in dtype:
        return TableColumn(name, Field("image" if isinstance(first, bytes) and is_encoded(first) else "bytes"))
    if dtype.startswith(("float", "half", "double")):
        return TableColumn(name, Field("float"), missing=float("nan"))
    if has_nulls:
        return TableColumn(name, Field("json"))
    kinds: dict[str, Callable[[], Field]] = {"bool": lambda: Field("bool"), "number": lambda: Field("int")}
    kind = "bool" if dtype == "bool" else "number" if _NUMBER.fullmatch(dtype) else "text"
    return TableColumn(name, kinds[kind]() if kind in kinds else Field("str"))


def _is_number(feature: Any) -> bool:
    return (
        isinstance(feature, Mapping)
        and feature.get("_type") == "Value"
        and _NUMBER.fullmatch(str(feature.get("dtype"))) is not None
    )


def _array(name: str, dtype: str, shape: list[int | None]) -> Field:
    numpy_name = {"half": "float16", "double": "float64", "float": "float32"}.get(dtype, dtype)
    return parse_fields({name: {"kind": "array", "dtype": np.dtype(numpy_name).str, "shape": shape}})[name]


def _unheld(feature: Any) -> str | None:
    """Return what of a nested feature is neither text nor number."""
    if isinstance(feature, list):
        return _unheld(feature[0]) if feature else None
    if not isinstance(feature, Mapping):
        return None
    sort = feature.get("_type")
    if isinstance(sort, str) and sort not in (*_LISTS, "Value", "ClassLabel", "Translation"):
        if sort.startswith(("Array", "Translation")):
            return None
        return f"{sort} values" if sort in ("Audio", "Video") else f"{sort}s in a list or a group"
    if sort == "Value":
        return "bytes in a list or a group" if "binary" in str(feature.get("dtype")) else None
    inner = (
        [feature["feature"]] if "feature" in feature else [value for key, value in feature.items() if key != "_type"]
    )
    return next((odd for value in inner if (odd := _unheld(value)) is not None), None)
