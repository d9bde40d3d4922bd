"""The elements of samples as TensorFlow sees them: types, shapes, and how a block of values crosses over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from storeds._suggest import suggest
from storeds.dataset import StoreDataset
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Field, SampleContext
from storeds.readers.array import ArrayReader
from storeds.readers.base import INDEX
from storeds.readers.image import ImageReader
from storeds.record import canonical_json

__all__ = ["Element", "Parts", "elements_of", "values_of"]

Shape: TypeAlias = tuple[int | None, ...]
Parts: TypeAlias = tuple[Array, ...]

_LOOKS = 4
_SCALARS: dict[str, Any] = {"int": "<i8", "float": "<f8", "bool": "?", "str": "O", "bytes": "O", "json": "O"}
_TEXT = np.dtype(object)  # what NumPy holds strings of bytes in on their way to tf.string


@dataclass(frozen=True)
class Element:
    """One element of all samples, and how a block of its values crosses over.

    Attributes
    ----------
    name : str
        Its name in the sample.
    dtype : numpy.dtype
        ``object`` for strings of bytes.
    shape : tuple of (int or None)
        Of one value; None for what differs.
    is_image : bool
        Whether tensors are channels-first, and become channels-last.
    is_json : bool
        Whether values are JSON.
    way : str
        ``"dense"``: one stacked array. ``"ragged"``, for a batch: the values end to end, and the lengths of the rows of
        each ragged dimension. ``"packed"``, to be cut apart again: the values end to end, and their shapes.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    is_image: bool = False
    is_json: bool = False
    way: str = "dense"

    @property
    def _rank(self) -> int:
        """How many dimensions a ragged tensor has that are ragged: all down to the last that differs."""
        return max(at for at, size in enumerate(self.shape) if size is None) + 1

    def array(self, value: Any) -> Array:
        """Return a value as an array of this element's type and shape; raises ConfigError for one of another."""
        found = _to_array(value, is_image=self.is_image, is_json=self.is_json)
        if found.dtype != self.dtype:
            raise ConfigError(f"element {self.name!r} is of dtype {found.dtype}, where others are of {self.dtype}")
        fits = [want in (None, got) for want, got in zip(self.shape, found.shape, strict=False)]
        if not all(fits) or found.ndim != len(self.shape):
            raise ConfigError(
                f"element {self.name!r} has shape {found.shape}, not {self.shape}; say what differs: "
                f"shapes={{{self.name!r}: {(None,) * found.ndim}}}"
            )
        return found

    def lay_out(self, values: Sequence[Array]) -> Parts:
        """Return a block of values as the arrays that cross over."""
        if self.way == "dense":
            return (self._stack(values),)
        shapes = np.array([value.shape for value in values], np.int64)
        if self.way == "packed":
            return np.concatenate([value.reshape(-1) for value in values]), shapes
        rank = self._rank
        flat = np.concatenate([value.reshape(-1, *value.shape[rank:]) for value in values])
        # A row of dimension `at` comes once for everything above it.
        return flat, *(np.repeat(shapes[:, at], shapes[:, :at].prod(axis=1)) for at in range(rank))

    def _stack(self, values: Sequence[Array]) -> Array:
        shapes = sorted({value.shape for value in values})
        if len(shapes) > 1:
            raise ConfigError(
                f"values of element {self.name!r} of shapes {', '.join(map(str, shapes[:3]))} make no dense batch: pass "
                "ragged=True, or give them one size by a transform"
            )
        return np.stack(values)

    def transport(self, tf: Any, size: int | None) -> tuple[Any, ...]:
        """Return the specs of what `lay_out` gives of blocks of `size` samples, or of any number."""
        dtype = tf.string if self.dtype == _TEXT else tf.as_dtype(self.dtype)
        if self.way == "dense":
            return (tf.TensorSpec((size, *self.shape), dtype),)
        if self.way == "packed":
            return tf.TensorSpec((None,), dtype), tf.TensorSpec((size, len(self.shape)), tf.int64)
        rows = (tf.TensorSpec((size if at == 0 else None,), tf.int64) for at in range(self._rank))
        return tf.TensorSpec((None, *self.shape[self._rank :]), dtype), *rows

    def cut(self, tf: Any, parts: Sequence[Any]) -> tuple[Any, ...]:
        """Return a block, in the graph, so that its first dimension is that of the samples."""
        if self.way == "dense":
            return tuple(parts)
        flat, shapes = parts
        return tf.RaggedTensor.from_row_lengths(flat, tf.reduce_prod(shapes, axis=1), validate=False), shapes

    def assemble(self, tf: Any, parts: Sequence[Any]) -> Any:
        """Return the element, in the graph: of a batch, or of a single sample that was cut out of a block."""
        if self.way == "dense":
            return parts[0]
        if self.way == "ragged":
            return tf.RaggedTensor.from_nested_row_lengths(parts[0], parts[1:], validate=False)
        return tf.ensure_shape(tf.reshape(parts[0], parts[1]), self.shape)


def elements_of(
    dataset: StoreDataset, shapes: Mapping[str, Sequence[int | None]], ragged: bool | Collection[str], *, batched: bool
) -> list[Element]:
    """Return the elements of a dataset's samples, from its fields or, where those do not tell, from a few samples.

    Raises
    ------
    ConfigError
        `shapes` or `ragged` names no element; there is no sample to look at; those looked at differ in type.
    """
    names = dataset.reader.fields
    for argument, given in (("shapes", shapes), ("ragged", () if isinstance(ragged, bool) else ragged)):
        for name in given:
            if name not in names:
                raise ConfigError(f"{argument}: there is no element {name!r}; {suggest(name, names, 'elements')}")
    declared = {name: _declared(dataset, name) for name in names}
    looks = [] if all(declared.values()) else list(_looks(dataset))
    elements = []
    for at, name in enumerate(names):
        element = declared[name] or _looked_at(dataset, name, [look[at] for look in looks])
        if name in shapes:
            element = replace(element, shape=tuple(shapes[name]))
        if None in element.shape:
            wanted = ragged if isinstance(ragged, bool) else name in ragged
            element = replace(element, way="packed" if not batched else "ragged" if wanted else "dense")
        elements.append(element)
    return elements


def _declared(dataset: StoreDataset, name: str) -> Element | None:
    """Return an element that is a field as the store has it, or None for one that something is made of."""
    reader = dataset.reader
    if type(reader) not in (ImageReader, ArrayReader) or name in [each for each, _ in dataset._maker.transforms]:
        return None
    field = Field("int") if name == INDEX else dataset.backend.meta.fields[name]
    if field.kind == "image" and isinstance(reader, ImageReader):
        return Element(name, _TEXT, ()) if reader.decode == "bytes" else None
    if field.kind == "array":
        return Element(name, np.dtype(field.dtype), tuple(field.shape or ()))
    return Element(name, np.dtype(_SCALARS.get(field.kind, "O")), (), is_json=field.kind == "json")


def _looks(dataset: StoreDataset) -> Iterator[list[Any]]:
    """Yield the values of a few good samples from all over the dataset; nobody counts them."""
    count = len(dataset)
    places = sorted({at * max(count - 1, 0) // (_LOOKS - 1) for at in range(_LOOKS)}) if count else []
    contexts = [SampleContext(index, dataset.epoch, dataset.seed) for index in places]
    bad: RecordError | None = None
    none = True
    for made in dataset._maker.make(contexts):
        if isinstance(made.sample, RecordError):
            bad = bad or made.sample
        else:
            none = False
            yield values_of(made.sample, dataset.reader.fields)
    if none:
        why = f"those looked at are bad: {bad}" if bad else "there are none"
        raise ConfigError(f"{dataset.url}: the type of its samples cannot be told: {why}") from bad


def values_of(sample: Any, names: Sequence[str]) -> list[Any]:
    """Return the values of a sample, element by element."""
    if isinstance(sample, Mapping):
        return [sample[name] for name in names]
    if isinstance(sample, tuple) and len(sample) == len(names):
        return list(sample)
    raise ConfigError(f"the reader makes {type(sample).__name__}, and not a value for each of {', '.join(names)}")


def _looked_at(dataset: StoreDataset, name: str, values: Sequence[Any]) -> Element:
    field = dataset.backend.meta.fields.get(name)
    is_image = field is not None and field.kind == "image"
    is_json = isinstance(values[0], (dict, list)) and field is not None and field.kind == "json"
    arrays = [_to_array(value, is_image=is_image, is_json=is_json) for value in values]
    types = sorted({f"{array.dtype} of {array.ndim} dimensions" for array in arrays})
    if len(types) > 1:
        raise ConfigError(
            f"{dataset.url}: element {name!r} is {' here and '.join(types)} there; a transform can unify them"
        )
    shape: Shape = tuple(
        sizes.pop() if len(sizes) == 1 else None for sizes in map(set, zip(*(a.shape for a in arrays), strict=True))
    )
    if is_image and len(shape) >= 3 and name not in [each for each, _ in dataset._maker.transforms]:
        shape = (*shape[:-3], None, None, shape[-1])  # nothing gives all images of a store one size
    return Element(name, arrays[0].dtype, shape, is_image, is_json)


def _to_array(value: Any, *, is_image: bool, is_json: bool) -> Array:
    if is_json:
        return _text(canonical_json(value).encode())
    if isinstance(value, torch.Tensor):
        array: Array = value.detach().cpu().numpy()
        return np.moveaxis(array, -3, -1) if is_image and array.ndim >= 3 else array
    if isinstance(value, Image.Image):
        array = np.asarray(value)
        return array[..., None] if array.ndim == 2 else array
    if isinstance(value, (list, tuple)) and value:
        return np.stack([_to_array(each, is_image=is_image, is_json=False) for each in value])
    if isinstance(value, (bytes, str)):
        return _text(value if isinstance(value, bytes) else value.encode())
    if isinstance(value, int) and not isinstance(value, bool):
        return np.asarray(value, np.int64)  # an int beyond it would become an object or a uint64
    array = np.asarray(value)
    if array.dtype.kind not in "?biufc":
        raise ConfigError(f"TensorFlow has no type for {array.dtype} ({type(value).__name__})")
    return array


def _text(value: bytes) -> Array:
    array = np.empty((), object)
    array[()] = value
    return array
