"""Built-in transforms that convert values: `ToDtype` for elements of a sample, and `MultiHot` for labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch

from storeds.errors import ConfigError, suggest
from storeds.protocols import ROLES, Field
from storeds.transforms.adjust import converted
from storeds.transforms.arguments import as_tuple, check_bool, checked_int, set_fields

__all__ = ["MultiHot", "ToDtype", "torch_dtype"]

_DTYPES = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool",
)  # fmt: skip

_Dtype = str | torch.dtype


@dataclass(frozen=True)
class ToDtype:
    """Convert tensors to a dtype.

    Parameters
    ----------
    dtype : str, torch.dtype or mapping
        Such as ``"float32"``. In a sample, a single dtype is for the images. A mapping names elements or roles:
        ``{"image": "float32", "mask": "int64"}``. The name of an element wins over its role. Other elements stay.
    scale : bool
        For images: whether white stays white. Then uint8 0 to 255 become floats 0 to 1, and the other way round.

    Raises
    ------
    ConfigError
        A dtype is unknown.
    """

    dtype: _Dtype | Mapping[str, _Dtype]
    scale: bool = False

    def __post_init__(self) -> None:
        check_bool("ToDtype", "scale", self.scale)
        if isinstance(self.dtype, Mapping):
            if not self.dtype:
                raise ConfigError("ToDtype: dtype must name an element or a role, but the mapping is empty")
            set_fields(self, dtype={name: _checked_dtype(dtype) for name, dtype in self.dtype.items()})
        else:
            set_fields(self, dtype=_checked_dtype(self.dtype))

    def __hash__(self) -> int:
        return hash(repr(self))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the dtype, or `image` itself if it has this dtype.

        Raises
        ------
        TypeError
            The argument is not a tensor, a float image cannot be scaled to so many bits, or `dtype` names no dtype for
            images.
        """
        dtype: Any = self.dtype
        if isinstance(dtype, Mapping):
            if "image" not in dtype:
                raise TypeError(f"ToDtype has dtypes for {', '.join(dtype)}, and none for 'image'")
            dtype = dtype["image"]
        return self.of_image(image, _torch_dtype(dtype))

    def of_image(self, image: Any, dtype: torch.dtype) -> torch.Tensor:
        """Convert an image."""
        if not isinstance(image, torch.Tensor):
            kind = type(image).__qualname__
            raise TypeError(f"ToDtype takes a torch tensor, not {kind}; put ToTensor before it, or use decode='tensor'")
        return converted(image, dtype, self.scale, "ToDtype")

    def dtypes(self, fields: Mapping[str, Field]) -> dict[str, torch.dtype]:
        """Return the dtypes of the elements that it converts.

        Parameters
        ----------
        fields : mapping of str to Field
            Element → its declaration.

        Raises
        ------
        ConfigError
            A name is neither that of an element nor a role.
        """
        if not isinstance(self.dtype, Mapping):
            return {name: _torch_dtype(self.dtype) for name, field in fields.items() if field.role == "image"}
        for name in self.dtype:
            if name not in fields and name not in ROLES:
                known = [*fields, *(role for role in ROLES if role not in fields)]
                raise ConfigError(f"ToDtype: no element or role {name!r}; {suggest(name, known, 'elements and roles')}")
        chosen = {name: self.dtype.get(name, self.dtype.get(field.role or "")) for name, field in fields.items()}
        return {name: _torch_dtype(dtype) for name, dtype in chosen.items() if dtype is not None}


def _checked_dtype(dtype: Any) -> str:
    """Return the name of a dtype of torch."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else dtype
    if name not in _DTYPES:
        raise ConfigError(f"ToDtype: unknown dtype {dtype!r}; {suggest(name, _DTYPES, 'dtypes')}")
    return str(name)


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as ``"float32"`` or ``"torch.float32"``; raise ConfigError if there is none."""
    return _torch_dtype(_checked_dtype(name))


def _torch_dtype(name: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, str(name))
    return found


@dataclass(frozen=True)
class MultiHot:
    """Convert the labels of a sample to a vector with 1 for each class that it has, and 0 for the others.

    For ``target_transform=``.

    Parameters
    ----------
    classes : int or sequence of str
        Number of classes, or their names in order, if labels are names.

    Raises
    ------
    ConfigError
        The number is below 1, or a name is there twice.
    """

    classes: int | Sequence[str]

    def __post_init__(self) -> None:
        names = as_tuple(self.classes)
        if names is None:
            set_fields(self, classes=checked_int("MultiHot", "classes", self.classes, least=1))
            return
        if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise ConfigError(
                f"MultiHot: classes must be a number of classes, or a list of different names, not {self.classes!r}"
            )
        set_fields(self, classes=names)

    def __call__(self, labels: Any) -> torch.Tensor:
        """Return a float32 vector, one number per class.

        Parameters
        ----------
        labels : int, str, or sequence, array or tensor of them
            Class indices from 0, or names. Perhaps none.

        Raises
        ------
        TypeError, ValueError
            A label is no class index or name, or no class has it.
        """
        names = as_tuple(self.classes)
        count = self.classes if isinstance(self.classes, int) else len(self.classes)
        vector = torch.zeros(count)
        for label in _listed(labels):
            if names is not None and isinstance(label, str):
                if label not in names:
                    raise ValueError(f"MultiHot: no class {label!r}; {suggest(label, names, 'classes')}")
                vector[names.index(label)] = 1
                continue
            if isinstance(label, bool) or not isinstance(label, Integral):
                what = "class indices or names" if names is not None else "class indices"
                raise TypeError(f"MultiHot takes {what}, not {label!r}")
            index = int(label)
            if not 0 <= index < count:
                raise ValueError(f"MultiHot: the label {index} is not one of {count} classes, 0 to {count - 1}")
            vector[index] = 1
        return vector


def _listed(labels: Any) -> list[Any]:
    """Return single labels."""
    if isinstance(labels, (torch.Tensor, np.ndarray, np.generic)):
        flat: list[Any] = labels.reshape(-1).tolist()
        return flat
    return list(labels) if isinstance(labels, (list, tuple, set, frozenset)) else [labels]
