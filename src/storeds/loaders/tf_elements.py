"""Describes the elements of samples for TensorFlow: types, shapes, and how to pass a block of values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from storeds._utils.arguments import integer
from storeds.datasets.assembly import declared_elements
from storeds.datasets.map_dataset import StoreDataset
from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Field, SampleContext
from storeds.readers import ArrayReader, ImageReader
from storeds.records.fields import canonical_json

__all__ = ["TEXT", "Element", "Parts", "elements_of", "to_array", "values_of"]


TEXT = np.dtype(object)
"""The NumPy dtype of byte strings that become tf.string."""


def values_of(sample: Any, names: Sequence[str]) -> list[Any]:
    """Return the values of a sample in the order of `names`; raises ConfigError for other samples."""
    if isinstance(sample, Mapping):
        return [sample[name] for name in names]
    if isinstance(sample, tuple) and len(sample) == len(names):
        return list(sample)
    raise ConfigError(f"the reader returns {type(sample).__name__}, expected a value for each of {', '.join(names)}")


def to_array(value: Any, name: str, *, is_image: bool, is_json: bool) -> Array:
    """Return the value of an element as an array; raises ConfigError if TensorFlow has no type for it."""
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
        return np.asarray(value, np.int64)  # without a dtype, a larger int would become object or uint64
    array = np.asarray(value)
    if array.dtype.kind not in "?biufc":
        raise _no_type(name, f"{type(value).__name__} of dtype {array.dtype}")
    return array


def _of_tensor(value: torch.Tensor, name: str, *, is_image: bool) -> Array:
    try:
        array: Array = value.detach().cpu().numpy()
    except TypeError:  # NumPy lacks the type, such as bfloat16
        raise _no_type(name, str(value.dtype)) from None
    return np.moveaxis(array, -3, -1) if is_image and array.ndim >= 3 else array


def _of_list(arrays: Sequence[Array], name: str) -> Array:
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        raise ConfigError(
            f"element {name!r} is a list of values of shapes {', '.join(map(str, shapes[:3]))}, which cannot be "
            "stacked; a transform can make them equal"
        )
    return np.stack(arrays)


def _no_type(name: str, what: str) -> ConfigError:
    return ConfigError(f"element {name!r} is {what}, for which TensorFlow has no type; a transform can convert it")


def _text(value: bytes) -> Array:
    array = np.empty((), object)
    array[()] = value
    return array


Shape: TypeAlias = tuple[int | None, ...]
Parts: TypeAlias = tuple[Array, ...]

_INSPECTED = 4
_SHAPED = ("image", "mask", "boxes", "keypoints", "labels")
_SCALARS: dict[str, Any] = {"int": "<i8", "float": "<f8", "bool": "?", "str": "O", "bytes": "O", "json": "O"}


@dataclass(frozen=True)
class Element:
    """One element of all samples, and how a block of its values is passed to TensorFlow.

    Attributes
    ----------
    name : str
        Its name in the sample.
    dtype : numpy.dtype
        ``object`` for byte strings.
    shape : tuple of (int or None)
        Of one value; None for a varying dimension.
    is_image : bool
        Whether to convert channels-first tensors to channels-last.
    is_json : bool
        Whether values are JSON.
    way : str
        ``"dense"``: one stacked array. ``"ragged"``, for batches: the flat values, and the row lengths of each ragged
        dimension. ``"packed"``, for single samples: the flat values and their shapes.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    is_image: bool = False
    is_json: bool = False
    way: str = "dense"

    @property
    def _rank(self) -> int:
        """The number of ragged dimensions: all up to the last that varies."""
        return max(at for at, size in enumerate(self.shape) if size is None) + 1

    def array(self, value: Any) -> Array:
        """Return a value as an array; raises ConfigError if its dtype or shape is not the element's."""
        found = to_array(value, self.name, is_image=self.is_image, is_json=self.is_json)
        if found.dtype != self.dtype:
            raise ConfigError(f"element {self.name!r} is of dtype {found.dtype}, where others are of {self.dtype}")
        fits = [want in (None, got) for want, got in zip(self.shape, found.shape, strict=False)]
        if not all(fits) or found.ndim != len(self.shape):
            raise ConfigError(
                f"element {self.name!r} has shape {found.shape}, expected {self.shape}; if its shape varies, pass "
                f"shapes={{{self.name!r}: {(None,) * found.ndim}}}"
            )
        return found

    def lay_out(self, values: Sequence[Array]) -> Parts:
        """Return the arrays that pass a block of values to TensorFlow."""
        if self.way == "dense":
            return (self._stack(values),)
        shapes = np.array([value.shape for value in values], np.int64)
        if self.way == "packed":
            return np.concatenate([value.reshape(-1) for value in values]), shapes
        rank = self._rank
        flat = np.concatenate([value.reshape(-1, *value.shape[rank:]) for value in values])
        # Each length of dimension `at` repeats for every row of the dimensions before it.
        return flat, *(np.repeat(shapes[:, at], shapes[:, :at].prod(axis=1)) for at in range(rank))

    def _stack(self, values: Sequence[Array]) -> Array:
        shapes = sorted({value.shape for value in values})
        if len(shapes) > 1:
            raise ConfigError(
                f"values of element {self.name!r} of shapes {', '.join(map(str, shapes[:3]))} cannot be stacked: pass "
                "ragged=True, or make their sizes equal with a transform"
            )
        return np.stack(values)

    def transport(self, tf: Any, size: int | None) -> tuple[Any, ...]:
        """Return the TensorSpecs of `lay_out`'s result for blocks of `size` samples; None means any number."""
        dtype = tf.string if self.dtype == TEXT else tf.as_dtype(self.dtype)
        if self.way == "dense":
            return (tf.TensorSpec((size, *self.shape), dtype),)
        if self.way == "packed":
            return tf.TensorSpec((None,), dtype), tf.TensorSpec((size, len(self.shape)), tf.int64)
        rows = (tf.TensorSpec((size if at == 0 else None,), tf.int64) for at in range(self._rank))
        return tf.TensorSpec((None, *self.shape[self._rank :]), dtype), *rows

    def cut(self, tf: Any, parts: Sequence[Any]) -> tuple[Any, ...]:
        """Return a block, in the graph, whose first dimension is the samples."""
        if self.way == "dense":
            return tuple(parts)
        flat, shapes = parts
        return tf.RaggedTensor.from_row_lengths(flat, tf.reduce_prod(shapes, axis=1), validate=False), shapes

    def assemble(self, tf: Any, parts: Sequence[Any]) -> Any:
        """Return the element, in the graph, of a batch or of a single sample cut from a block."""
        if self.way == "dense":
            return parts[0]
        if self.way == "ragged":
            return tf.RaggedTensor.from_nested_row_lengths(parts[0], parts[1:], validate=False)
        return tf.ensure_shape(tf.reshape(parts[0], parts[1]), self.shape)


def elements_of(
    datasets: Sequence[StoreDataset],
    shapes: Mapping[str, Sequence[int | None]],
    ragged: bool | Collection[str],
    *,
    batched: bool,
) -> list[Element]:
    """Return the elements of samples, from the fields of the datasets or, if these do not suffice, from a few samples.

    Raises
    ------
    ConfigError
        `shapes` or `ragged` is malformed or names an unknown element, the datasets are empty, or samples differ in
        type.
    """
    names = datasets[0].reader.fields
    stated = _stated(shapes, names)
    if isinstance(ragged, str) or not isinstance(ragged, (bool, Collection)):
        raise ConfigError(f"ragged is True, False or a list of elements, such as [{names[0]!r}], not {ragged!r}")
    _check_names("ragged", () if isinstance(ragged, bool) else ragged, names)
    declared = {name: _declared_by_all(datasets, name) for name in names}
    inspected = [] if all(declared.values()) else _inspected_values(datasets)
    elements = []
    for at, name in enumerate(names):
        element = declared[name] or _inferred(datasets, name, [values[at] for values in inspected])
        if name in stated:
            element = replace(element, shape=stated[name])
        wanted = ragged if isinstance(ragged, bool) else name in ragged
        elements.append(replace(element, way=_way(element.shape, wanted, batched=batched)))
    return elements


def _stated(shapes: Mapping[str, Any], names: Sequence[str]) -> dict[str, Shape]:
    """Validate and return the argument `shapes`; raises ConfigError."""
    if not isinstance(shapes, Mapping):
        raise ConfigError(
            f"shapes is a mapping of elements to shapes, such as {{{names[0]!r}: (None,)}}, not {shapes!r}"
        )
    _check_names("shapes", shapes, names)
    stated: dict[str, Shape] = {}
    for name, shape in shapes.items():
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise ConfigError(f"shapes: that of {name!r} is a tuple of lengths, such as (None, 3), not {shape!r}")
        what = f"shapes: a length of {name!r}"
        stated[name] = tuple(None if length is None else integer(what, length, 0) for length in shape)
    return stated


def _check_names(argument: str, given: Iterable[str], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"{argument}: there is no element {name!r}; {suggest(str(name), names, 'elements')}")


def _way(shape: Shape, ragged: bool, *, batched: bool) -> str:
    """Return the `Element.way` for values of this shape."""
    if batched:
        return "ragged" if ragged and None in shape else "dense"
    # Empty arrays are packed too: TensorFlow's `unbatch` crashes with a segmentation fault on them.
    return "packed" if None in shape or 0 in shape else "dense"


def _declared_by_all(datasets: Sequence[StoreDataset], name: str) -> Element | None:
    """Return an element as all stores declare it, or None if the stored value is decoded or transformed."""
    found = [_declared(dataset, name) for dataset in datasets]
    shapes = {each.shape: dataset.url for each, dataset in zip(found, datasets, strict=True) if each is not None}
    if found[0] is None or None in found:
        return None
    return replace(found[0], shape=_common(name, shapes))


def _common(name: str, shapes: Mapping[Shape, str]) -> Shape:
    """Return the shape that fits all `shapes`, a mapping of shape → where it was found; raises ConfigError."""
    ranks = {len(shape): f"{shape} in {where}" for shape, where in shapes.items()}
    if len(ranks) > 1:
        raise ConfigError(
            f"element {name!r} differs in its number of dimensions: {', '.join(ranks.values())}; a transform can unify it"
        )
    return tuple(sizes.pop() if len(sizes) == 1 else None for sizes in map(set, zip(*shapes, strict=True)))


def _declared(dataset: StoreDataset, name: str) -> Element | None:
    """Return an element as the store declares its field, or None if the stored value is decoded or transformed."""
    reader = dataset.reader
    if type(reader) not in (ImageReader, ArrayReader) or name in [each for each, _ in dataset._pipeline.transforms]:
        return None
    field = _field_of(dataset, name)
    if field.kind == "image" and isinstance(reader, ImageReader):
        return Element(name, TEXT, ()) if reader.decode == "bytes" else None
    if field.kind == "array":
        shape = reader.shape(name) if isinstance(reader, ArrayReader) else tuple(field.shape or ())
        return Element(name, np.dtype(field.dtype), shape)
    return Element(name, np.dtype(_SCALARS.get(field.kind, "O")), (), is_json=field.kind == "json")


def _inspected_values(datasets: Sequence[StoreDataset]) -> list[list[Any]]:
    """Return the values of a few good samples, spread over some of the datasets, without counting bad ones."""
    full = [dataset for dataset in datasets if len(dataset)]
    if not full:
        raise ConfigError(f"{datasets[0].url}: the type of its samples cannot be inferred: there are none")
    each = _INSPECTED if len(full) == 1 else _INSPECTED // 2  # a sample may be a long clip
    inspected: list[list[Any]] = []
    bad: RecordError | None = None
    for dataset in (full[number] for number in _spread(len(full), _INSPECTED)):
        contexts = [SampleContext(index, dataset.epoch, dataset.seed) for index in _spread(len(dataset), each)]
        for made in dataset._pipeline.make(contexts):
            if isinstance(made.sample, RecordError):
                bad = bad or made.sample
            else:
                inspected.append(values_of(made.sample, dataset.reader.fields))
    if not inspected:
        raise ConfigError(
            f"{full[0].url}: the type of its samples cannot be inferred: the inspected samples are bad: {bad}"
        ) from bad
    return inspected


def _spread(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of `count` indices, evenly spaced from the first to the last."""
    return sorted({at * (count - 1) // (wanted - 1) for at in range(wanted)})


def _field_of(dataset: StoreDataset, name: str) -> Field:
    declared = declared_elements(dataset.reader, dataset.backend.meta.fields)
    return declared.get(name, Field("int"))  # the index is not a field


def _shaped(
    datasets: Sequence[StoreDataset], name: str, field: Field, values: Sequence[Any], *, transformed: bool
) -> Element:
    """Return an element whose role tells which of its dimensions vary: rows, and the height and width of pictures.

    Transforms may give pictures one size, so their sizes are those of the values then.
    """
    is_image = field.role == "image"
    arrays = [to_array(value, name, is_image=is_image, is_json=False) for value in values]
    shape = _common(name, {array.shape: datasets[0].url for array in arrays})
    as_found = transformed or any(dataset.transforms is not None for dataset in datasets)
    if is_image:
        shape = shape if as_found else (*shape[:-3], None, None, *shape[-1:])
    elif field.role == "mask":
        shape = (*(None for _ in shape[:-2]), *(shape[-2:] if as_found else (None, None)))
    elif not transformed:
        shape = (None, *shape[1:])
    return Element(name, arrays[0].dtype, shape, is_image)


def _inferred(datasets: Sequence[StoreDataset], name: str, values: Sequence[Any]) -> Element:
    url, field = datasets[0].url, _field_of(datasets[0], name)
    transformed = any(name == each for dataset in datasets for each, _ in dataset._pipeline.transforms)
    if field.role in _SHAPED:
        return _shaped(datasets, name, field, values, transformed=transformed)
    is_image = field.kind == "image"
    is_json = field.kind == "json" and (not transformed or isinstance(values[0], (dict, list)))
    arrays = [to_array(value, name, is_image=is_image, is_json=is_json) for value in values]
    types = sorted({f"{array.dtype} of {array.ndim} dimensions" for array in arrays})
    if len(types) > 1:
        raise ConfigError(f"{url}: element {name!r} is {' here and '.join(types)} there; a transform can unify them")
    shape = _common(name, {array.shape: url for array in arrays})
    if is_image and len(shape) >= 3 and not transformed:
        shape = (*shape[:-3], None, None, shape[-1])  # images of a store may vary in size
    return Element(name, arrays[0].dtype, shape, is_image, is_json)
