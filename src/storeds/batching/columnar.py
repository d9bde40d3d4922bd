"""A batch of samples in the form of one array for each of their elements, of which a batch of tensors is made in one step."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import (
    collate,
    collate_float_fn,
    collate_int_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)

from storeds.batching.shared_memory import lent_memory, send_inline
from storeds.protocols import Array, Backend, Field, Reader
from storeds.readers import ArrayReader
from storeds.readers.base import INDEX

__all__ = ["ColumnarBatch", "stacking_elements", "unmarked"]


def stacking_elements(reader: Reader[Any], backend: Backend) -> Mapping[str, Field]:
    """Return the elements of a reader's samples if arrays can stand for batches of them, else nothing."""
    if type(reader) is not ArrayReader or not reader.stored:  # a subclass may make anything of a record
        return {}
    declared = {INDEX: Field("int"), **backend.meta.fields}
    elements = {name: declared[name] for name in reader.fields}
    return elements if all(field.is_fixed for field in elements.values()) else {}


class _Tuple(tuple[Any, ...]):
    """A sample by whose type torch's ``default_collate`` finds out that the batch may be at hand already."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return tuple, (list(self),)


class _Dict(dict[str, Any]):
    """The same, as a dict."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


class ColumnarBatch(list[Any]):
    """A batch of samples that are made when they are looked at; equal to what `ArrayReader` makes of the records.

    `storeds.collate` and torch's ``default_collate`` make tensors of the arrays as they are, in the same memory. A pickle or
    copy of it is a plain list, and so it behaves once samples were looked at.

    Parameters
    ----------
    read : callable
        Reads the values: element → array of shape (n, *shape); the index is not among them. Called at once, and again only
        by who looks at samples after the batch was handed out.
    indices : sequence of int
        Of the samples.
    elements : mapping of str to Field
        In the order in which samples have them.
    as_dict : bool
        Whether samples are dicts; tuples else.
    """

    def __new__(cls, *arguments: Any) -> Any:
        """Return a plain list of what is given, as who makes a list of a batch's own type expects."""
        return super().__new__(cls) if len(arguments) > 1 else list(*arguments)

    def __init__(
        self,
        read: Callable[[], Mapping[str, Array]],
        indices: Sequence[int],
        elements: Mapping[str, Field],
        as_dict: bool,
    ) -> None:
        super().__init__(itertools.repeat(None, len(indices)))
        self._read, self._indices = read, indices
        self._elements, self._as_dict = elements, as_dict
        self._arrays: dict[str, Array] | None = None
        self._first: Any = None  # torch's default_collate looks at it, and then at nothing else
        self._made = False
        self._stacked()

    def make(self) -> None:
        """Make all samples, if that was not done: from then on they are those of a list, and whoever changes one changes it."""
        if not self._made:
            samples = [self._sample(at) for at in range(len(self))]
            if self._first is not None:
                samples[0] = self._first
            self._made, self._arrays = True, None
            self[:] = samples

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or for a slice a list of them."""
        if not self._made and type(index) is int and index == 0 and len(self):
            self._first = self._sample(0) if self._first is None else self._first
            return self._first
        self.make()
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        self.make()
        return super().__iter__()

    def __radd__(self, other: Any) -> Any:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, ([unmarked(sample) for sample in self],)

    def __repr__(self) -> str:
        return super().__repr__() if self._made else f"StackedSamples({', '.join(self._elements)}; count={len(self)})"

    def collated(self) -> Any:
        """Return the batch, as PyTorch's ``default_collate`` makes it of the samples; None once they were looked at."""
        if self._made or not self._is_as_read(self._first):
            return None
        tensors = {name: _tensor(array) for name, array in self._stacked().items()}
        self._arrays = None  # whoever got the tensors may write into them
        return tensors if self._as_dict else list(tensors.values())

    def _stacked(self) -> dict[str, Array]:
        """Return the values of each element, shape (n, *shape), read again after they were handed out."""
        if self._arrays is None:
            arrays = self._read()
            own = {INDEX: np.array(self._indices, np.int64)} if INDEX in self._elements else {}
            every = {**own, **arrays}
            self._arrays = {name: every[name] for name in self._elements}
        return self._arrays

    def _sample(self, at: int) -> Any:
        stacked = self._stacked()
        sample = {name: self._element(array, self._elements[name], at) for name, array in stacked.items()}
        return _Dict(sample) if self._as_dict else _Tuple(sample.values())

    def _element(self, array: Array, field: Field, at: int) -> Any:
        # A copy: who keeps one sample would keep the whole batch else, and who sends it to a process would send that.
        return array[at].item() if field.is_scalar else torch.from_numpy(array[at, ...].copy())

    def _is_as_read(self, first: Any) -> bool:
        """Whether the first sample, which somebody has looked at, is still what would be made."""
        if first is None:
            return True
        made = self._sample(0)
        if self._as_dict and list(first) != list(made):
            return False
        pairs = zip(first.values(), made.values(), strict=True) if self._as_dict else zip(first, made, strict=True)
        return all(_is_same(one, other) for one, other in pairs)


def _is_same(value: Any, made: Any) -> bool:
    if type(value) is not type(made):
        return False
    if isinstance(made, float):
        return struct.pack("d", value) == struct.pack("d", made)  # which tells -0.0, and takes NaN for itself
    if not isinstance(made, torch.Tensor):
        return bool(value == made)
    if (value.dtype, value.shape, value.device, value.layout) != (made.dtype, made.shape, made.device, made.layout):
        return False
    if value.requires_grad or value.is_conj() or value.is_neg():
        return False
    same: bool = value.contiguous().numpy().tobytes() == made.numpy().tobytes()
    return same


def _tensor(array: Array) -> torch.Tensor:
    """Return the values where the training process sees them, if this is a worker with memory for that; else in place."""
    made = torch.from_numpy(array)
    lent = lent_memory(made.shape, made.dtype)
    return send_inline(made.contiguous()) if lent is None else lent.copy_(made)


def _collate(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    known = collate_fn_map is not None and all(collate_fn_map.get(kind) is made for kind, made in _COLLATED.items())
    made = batch.collated() if known and isinstance(batch, ColumnarBatch) else None
    if made is not None:
        return made
    return collate([unmarked(sample) for sample in batch], collate_fn_map=collate_fn_map)


def unmarked(sample: Any) -> Any:
    """Return a plain tuple or dict for a sample of `ColumnarBatch`; any other as it is."""
    if type(sample) is _Tuple:
        return tuple(sample)
    return dict(sample) if type(sample) is _Dict else sample


# What torch makes of elements, as long as nobody says otherwise.
_COLLATED: dict[type, Callable[..., Any] | None] = {
    torch.Tensor: collate_tensor_fn,
    int: collate_int_fn,
    float: collate_float_fn,
    bool: None,
    tuple: None,
    dict: None,
}
register_pytree_node(ColumnarBatch, lambda batch: (list(batch), None), lambda samples, _: list(samples))
register_pytree_node(_Tuple, lambda sample: (list(sample), len(sample)), lambda values, _: tuple(values))
register_pytree_node(
    _Dict,
    lambda sample: (list(sample.values()), list(sample)),
    lambda values, names: dict(zip(names, values, strict=True)),
)
default_collate_fn_map[_Tuple] = default_collate_fn_map[_Dict] = _collate


def _after_making(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    @functools.wraps(plain)
    def method(self: ColumnarBatch, *arguments: Any, **options: Any) -> Any:
        for each in (self, *arguments):  # a list takes the elements of another without asking for them
            if isinstance(each, ColumnarBatch):
                each.make()
        return plain(self, *arguments, **options)

    return method


for _name in (
    *(
        "__setitem__",
        "__delitem__",
        "__add__",
        "__iadd__",
        "__mul__",
        "__rmul__",
        "__imul__",
        "__reversed__",
        "__contains__",
    ),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
):
    setattr(ColumnarBatch, _name, _after_making(_name))
