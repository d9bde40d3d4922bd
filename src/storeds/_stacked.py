"""A batch of samples in the form of one array for each of their elements, of which a batch of tensors is made in one step."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from storeds._by_value import by_value
from storeds._lent import lent_memory
from storeds.protocols import Array, Backend, Field, Reader
from storeds.readers.array import ArrayReader
from storeds.readers.base import INDEX

__all__ = ["StackedSamples", "stacking_elements", "unmarked"]


def stacking_elements(reader: Reader[Any], backend: Backend) -> Mapping[str, Field]:
    """Return the elements of a reader's samples if arrays can stand for batches of them, else nothing."""
    if type(reader) is not ArrayReader or not reader.stored:  # a subclass may make anything of a record
        return {}
    declared = {**backend.meta.fields, INDEX: Field("int")}
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


class StackedSamples(list[Any]):
    """A batch of samples that are made when they are looked at; equal to what `ArrayReader` makes of the records.

    `storeds.collate` and torch's ``default_collate`` make tensors of the arrays as they are, in the same memory. A pickle or
    copy of it is a plain list, and so it behaves once it is changed.

    Parameters
    ----------
    arrays : mapping of str to Array
        Element → its values, shape (n, *shape); the index is not among them.
    indices : sequence of int
        Of the samples.
    elements : mapping of str to Field
        In the order in which samples have them.
    as_dict : bool
        Whether samples are dicts; tuples else.
    """

    def __init__(
        self, arrays: Mapping[str, Array], indices: Sequence[int], elements: Mapping[str, Field], as_dict: bool
    ) -> None:
        super().__init__(itertools.repeat(None, len(indices)))
        every = {**arrays, INDEX: np.array(indices, np.int64)} if INDEX in elements else arrays
        self._arrays = {name: every[name] for name in elements}
        self._elements, self._as_dict = elements, as_dict
        self._is_whole = True  # as it was read: neither changed, nor handed out as tensors
        self._made = False

    def make(self) -> None:
        """Make all samples, if that was not done."""
        if not self._made:
            self._made, self._is_whole = True, False
            self[:] = [self._sample(at) for at in range(len(self))]

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or for a slice a list of them."""
        if self._made:
            return super().__getitem__(index)
        places = range(len(self))[index]
        return [self._sample(at) for at in places] if isinstance(places, range) else self._sample(places)

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self._made else map(self._sample, range(len(self)))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return super().__repr__() if self._made else f"StackedSamples({', '.join(self._elements)}; count={len(self)})"

    def collated(self) -> Any:
        """Return the batch, as PyTorch's ``default_collate`` makes it of the samples; None once they were changed."""
        if self._made:
            return None
        tensors = {name: _tensor(array, copy=not self._is_whole) for name, array in self._arrays.items()}
        self._is_whole = False
        return tensors if self._as_dict else list(tensors.values())

    def _sample(self, at: int) -> Any:
        sample = {name: self._element(array, self._elements[name], at) for name, array in self._arrays.items()}
        return _Dict(sample) if self._as_dict else _Tuple(sample.values())

    def _element(self, array: Array, field: Field, at: int) -> Any:
        # A copy: who keeps one sample would keep the whole batch else, and who sends it to a process would send that.
        return array[at].item() if field.is_scalar else torch.from_numpy(array[at, ...].copy())


def _tensor(array: Array, *, copy: bool) -> torch.Tensor:
    """Return the values where the training process sees them, if this is a worker with memory for that; else in place."""
    made = torch.from_numpy(array)
    lent = lent_memory(made.shape, made.dtype)
    if lent is not None:
        return lent.copy_(made)
    return by_value(made.clone() if copy else made)


def _collate(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    made = batch.collated() if isinstance(batch, StackedSamples) else None
    if made is not None:
        return made
    return collate([unmarked(sample) for sample in batch], collate_fn_map=collate_fn_map)


def unmarked(sample: Any) -> Any:
    """Return a plain tuple or dict for a sample of `StackedSamples`; any other as it is."""
    if type(sample) is _Tuple:
        return tuple(sample)
    return dict(sample) if type(sample) is _Dict else sample


default_collate_fn_map[_Tuple] = default_collate_fn_map[_Dict] = _collate


def _after_making(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    @functools.wraps(plain)
    def method(self: StackedSamples, *arguments: Any, **options: Any) -> Any:
        self.make()
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
    setattr(StackedSamples, _name, _after_making(_name))
