"""A batch of samples in the form of one array for each of their elements, of which a batch of tensors is made in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from storeds._lent import lent_memory
from storeds.protocols import Array, Backend, Field, Reader
from storeds.readers.array import ArrayReader
from storeds.readers.base import INDEX

__all__ = ["StackedSamples", "stacking_elements"]


def stacking_elements(reader: Reader[Any], backend: Backend) -> Mapping[str, Field]:
    """Return the elements of a reader's samples if arrays can stand for batches of them, else nothing."""
    if type(reader) is not ArrayReader or not reader.stored:  # a subclass may make anything of a record
        return {}
    declared = {**backend.meta.fields, INDEX: Field("int")}
    elements = {name: declared[name] for name in reader.fields}
    return elements if all(field.is_fixed for field in elements.values()) else {}


class StackedSamples(Sequence[Any]):
    """A batch of samples that are made when they are looked at; equal to what `ArrayReader` makes of the records.

    `storeds.collate` makes tensors of the arrays as they are, in the same memory. A pickle or copy of it is a list.

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
        every = {**arrays, INDEX: np.array(indices, np.int64)} if INDEX in elements else arrays
        self._arrays = {name: every[name] for name in elements}
        self._elements, self._as_dict, self._count = elements, as_dict, len(indices)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or for a slice a list of them."""
        places = range(self._count)[index]
        return [self._sample(at) for at in places] if isinstance(places, range) else self._sample(places)

    def __iter__(self) -> Iterator[Any]:
        return map(self._sample, range(self._count))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"StackedSamples({', '.join(self._elements)}; count={self._count})"

    def collated(self) -> Any:
        """Return the batch, as PyTorch's ``default_collate`` makes it of the samples."""
        tensors = {name: _tensor(array) for name, array in self._arrays.items()}
        return tensors if self._as_dict else list(tensors.values())

    def _sample(self, at: int) -> Any:
        sample = {name: self._element(array, self._elements[name], at) for name, array in self._arrays.items()}
        return sample if self._as_dict else tuple(sample.values())

    def _element(self, array: Array, field: Field, at: int) -> Any:
        # A copy: who keeps one sample would keep the whole batch else, and who sends it to a process would send that.
        return array[at].item() if field.is_scalar else torch.from_numpy(array[at, ...].copy())


def _tensor(array: Array) -> torch.Tensor:
    """Return the values where the training process sees them, if this is a worker with memory for that; else in place."""
    made = torch.from_numpy(array)
    lent = lent_memory(made.shape, made.dtype)
    return made if lent is None else lent.copy_(made)
