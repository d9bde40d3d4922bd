"""The values of samples as the arrays that TensorFlow takes: images channels-last, text as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from storeds.errors import ConfigError
from storeds.protocols import Array
from storeds.record import canonical_json

__all__ = ["TEXT", "to_array", "values_of"]

TEXT = np.dtype(object)
"""What NumPy holds strings of bytes in on their way to tf.string."""


def values_of(sample: Any, names: Sequence[str]) -> list[Any]:
    """Return the values of a sample, element by element."""
    if isinstance(sample, Mapping):
        return [sample[name] for name in names]
    if isinstance(sample, tuple) and len(sample) == len(names):
        return list(sample)
    raise ConfigError(f"the reader makes {type(sample).__name__}, and not a value for each of {', '.join(names)}")


def to_array(value: Any, name: str, *, is_image: bool, is_json: bool) -> Array:
    """Return the value of an element as an array; raises ConfigError for what TensorFlow has no type for."""
    if is_json:
        return _text(canonical_json(value).encode())
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, name, is_image=is_image)
    if isinstance(value, Image.Image):
        array = np.asarray(value)
        return array[..., None] if array.ndim == 2 else array
    if isinstance(value, (list, tuple)) and value:
        return _of_list([to_array(each, name, is_image=is_image, is_json=False) for each in value], name)
    if isinstance(value, (bytes, str)):
        return _text(value if isinstance(value, bytes) else value.encode())
    if isinstance(value, int) and not isinstance(value, bool):
        return np.asarray(value, np.int64)  # an int beyond it would become an object or a uint64
    array = np.asarray(value)
    if array.dtype.kind not in "?biufc":
        raise _no_type(name, f"{type(value).__name__} of dtype {array.dtype}")
    return array


def _of_tensor(value: torch.Tensor, name: str, *, is_image: bool) -> Array:
    try:
        array: Array = value.detach().cpu().numpy()
    except TypeError:  # bfloat16 and other types that NumPy lacks
        raise _no_type(name, str(value.dtype)) from None
    return np.moveaxis(array, -3, -1) if is_image and array.ndim >= 3 else array


def _of_list(arrays: Sequence[Array], name: str) -> Array:
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        raise ConfigError(
            f"element {name!r} is a list of values of shapes {', '.join(map(str, shapes[:3]))}, which make no array; "
            "a transform can unify them"
        )
    return np.stack(arrays)


def _no_type(name: str, what: str) -> ConfigError:
    return ConfigError(f"element {name!r} is {what}, for which TensorFlow has no type; a transform can convert it")


def _text(value: bytes) -> Array:
    array = np.empty((), object)
    array[()] = value
    return array
