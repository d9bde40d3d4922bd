"""Provides the samples of a store as a ``tf.data.Dataset``: a generator over a `StoreLoader`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from storeds._utils.arguments import integer
from storeds.batching.collate import Skipped
from storeds.datasets.assembly import declared_elements
from storeds.datasets.map_dataset import StoreDataset
from storeds.errors import ConfigError, MissingDependencyError, RecordError, suggest
from storeds.loaders.loader import StoreLoader
from storeds.loaders.sampler import EpochSampler
from storeds.protocols import Array, Field
from storeds.readers.reader import built_in
from storeds.records.canonical_json import canonical_json

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["Element", "elements_of", "to_tf_dataset"]

Shape: TypeAlias = tuple[int | None, ...]

_INSPECTED = 4
_ROWS = ("boxes", "keypoints", "labels")  # roles of elements with a row for each object
_TEXT = np.dtype(object)  # of byte strings, which become tf.string


def to_tf_dataset(
    source: Any,
    *,
    batch_size: int | None = None,
    drop_remainder: bool = False,
    ragged: bool | Collection[str] = False,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    epoch: int | None = None,
    block_size: int | None = None,
    window: int | None = None,
    num_replicas: int | None = None,
    rank: int | None = None,
    read_batch: int = 32,
    read_ahead: int = 2,
    **dataset_arguments: Any,
) -> tf.data.Dataset:
    """Return a ``tf.data.Dataset`` with exactly the samples of a `StoreDataset`.

    Parameters
    ----------
    source : StoreDataset, or what it takes
        A list of URLs or a pattern is read as one dataset.
    batch_size : int, optional
        Samples per batch, read in one storage call; single samples by default.
    drop_remainder : bool
        Drop a smaller last batch, so that the batch dimension is static.
    ragged : bool or collection of str
        Whether elements of varying shape become a ``tf.RaggedTensor`` in a batch, or the names of such elements.
        Otherwise the samples of a batch must have equal shapes.
    shapes : mapping of str to sequence, optional
        Shapes of elements, with None for a varying dimension, instead of the inferred ones; see Notes.
    shuffle, block_size, window, num_replicas, rank
        The order of each epoch, and the part of it for this process, as for `EpochSampler`.
    seed : int, optional
        Seed of the order and of the samples' randomness. A `StoreDataset` passed as `source` keeps its own seed for the
        samples.
    epoch : int, optional
        Epoch of the first pass; by default the one set on `source`, or 0. Each new pass is the next epoch.
    read_batch : int
        Samples per storage call when there is no `batch_size`.
    read_ahead : int
        Number of threads that read ahead.
    **dataset_arguments
        For `StoreDataset`: ``reader``, ``transform``, ``on_error``, ``as_dict`` and so on.

    Returns
    -------
    tf.data.Dataset
        Yields tuples, or dicts with ``as_dict=True``. Its cardinality is known, except with ``on_error="skip"``, which
        leaves out bad samples and makes their batches smaller.

    Raises
    ------
    MissingDependencyError
        TensorFlow is not installed.
    ConfigError
        An argument is malformed or contradicts another.
    StoreNotFoundError, FormatError, UnavailableError
        The store cannot be opened. Later errors are raised by TensorFlow as its own types, with our message at the end.

    Notes
    -----
    *Elements*: Pillow images and channels-first image tensors become channels-last; they are uint8 unless a transform
    changes that. NumPy arrays from a transform stay unchanged. int, float and bool become int64, float64 and bool. str,
    bytes, json (as canonical text) and images with ``decode="bytes"`` become ``tf.string``. Arrays keep their dtype.

    *Shapes*: images vary in height and width, boxes and the like in number, and arrays where their field says so. The
    other dimensions are those of a few samples, which are made for that: one that is equal in all of them is fixed.
    """
    try:
        import tensorflow
    except ImportError as error:
        raise MissingDependencyError(
            f"to_tf_dataset needs TensorFlow, which cannot be imported ({error}): pip install 'storeds[tf]'"
        ) from error
    if not isinstance(source, StoreDataset):
        source = StoreDataset(source, seed=seed, **dataset_arguments)
    elif dataset_arguments:
        raise ConfigError(
            f"pass {', '.join(dataset_arguments)} when you make the StoreDataset; this one exists already"
        )
    if drop_remainder and batch_size is None:
        raise ConfigError("drop_remainder drops a smaller last batch, and there are no batches: pass batch_size")
    skips = source.report().on_error == "skip"
    if drop_remainder and skips:
        raise ConfigError(
            "drop_remainder needs batches of equal size, and on_error='skip' makes some smaller: use 'replace'"
        )
    elements = elements_of(source, {} if shapes is None else shapes, ragged)
    part: dict[str, Any] = {"num_replicas": num_replicas, "rank": rank}
    sampler = EpochSampler(source, shuffle=shuffle, seed=seed, block_size=block_size, window=window, **part)
    loader = StoreLoader(
        source,
        sampler=sampler,
        batch_size=integer("read_batch", read_batch, 1) if batch_size is None else integer("batch_size", batch_size, 1),
        drop_last=drop_remainder,
        collate_fn=_Columns(elements),
        start_method="thread",
        num_workers=read_ahead,
        prefetch_factor=1,
    )
    if epoch is not None:
        loader.set_epoch(epoch)
    size = batch_size if drop_remainder else None
    specs = [e.spec(tensorflow) if batch_size is None else e.batch_spec(tensorflow, size) for e in elements]
    arranged = partial(_arranged, elements, source.as_dict)
    made = tensorflow.data.Dataset.from_generator(
        lambda: map(arranged, _passed(loader, elements, None if batch_size is None else tensorflow)),
        output_signature=arranged(specs),
    )
    count = len(sampler) if batch_size is None else len(loader)
    return made if skips else made.apply(tensorflow.data.experimental.assert_cardinality(count))


def _arranged(elements: Sequence[Element], as_dict: bool, values: Iterable[Any]) -> Any:
    return dict(zip([element.name for element in elements], values, strict=True)) if as_dict else tuple(values)


def _passed(loader: StoreLoader, elements: Sequence[Element], tf: Any | None) -> Iterator[Iterable[Any]]:
    """Yield the values of one pass that TensorFlow gets: batches or, without `tf`, single samples."""
    for columns in loader:
        if tf is None:
            yield from zip(*columns, strict=True)
        else:
            yield [element.batch(tf, column) for element, column in zip(elements, columns, strict=True)]


@dataclass(frozen=True)
class Element:
    """One element of all samples.

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
    ragged : bool
        Whether a batch is a ``tf.RaggedTensor`` down to the last dimension that varies.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    is_image: bool = False
    is_json: bool = False
    ragged: bool = False

    def array(self, value: Any) -> Array:
        """Return a value as an array; raises ConfigError if its dtype or shape is not the element's."""
        found = _to_array(value, self.name, is_image=self.is_image, is_json=self.is_json)
        if found.dtype != self.dtype:
            raise ConfigError(f"element {self.name!r} is of dtype {found.dtype}, where others are of {self.dtype}")
        fits = [want in (None, got) for want, got in zip(self.shape, found.shape, strict=False)]
        if not all(fits) or found.ndim != len(self.shape):
            raise ConfigError(
                f"element {self.name!r} has shape {found.shape}, expected {self.shape}; if its shape varies, pass "
                f"shapes={{{self.name!r}: {(None,) * found.ndim}}}"
            )
        return found

    @property
    def _ragged_rank(self) -> int:
        return max((at + 1 for at, size in enumerate(self.shape) if size is None), default=0) if self.ragged else 0

    def batch(self, tf: Any, values: Sequence[Array]) -> Any:
        """Return the values of a batch as one array or ragged tensor."""
        rank, shapes = self._ragged_rank, np.array([value.shape for value in values], np.int64)
        if rank:
            flat = np.concatenate([value.reshape(-1, *value.shape[rank:]) for value in values])
            # Each length of dimension `at` repeats for every row of the dimensions before it.
            lengths = [np.repeat(shapes[:, at], shapes[:, :at].prod(axis=1)) for at in range(rank)]
            return tf.RaggedTensor.from_nested_row_lengths(flat, lengths, validate=False)
        if len(np.unique(shapes, axis=0)) > 1:
            raise ConfigError(
                f"values of element {self.name!r} of shapes {', '.join(map(str, shapes[:3].tolist()))} cannot be "
                "stacked: pass ragged=True, or make their sizes equal with a transform"
            )
        return np.stack(values)

    def spec(self, tf: Any, *batch: int | None) -> Any:
        """Return the ``tf.TensorSpec`` of a value, or of a dense batch."""
        return tf.TensorSpec((*batch, *self.shape), tf.string if self.dtype == _TEXT else tf.as_dtype(self.dtype))

    def batch_spec(self, tf: Any, size: int | None) -> Any:
        """Return the spec of a batch of `size` values; None means any number."""
        dense, rank = self.spec(tf, size), self._ragged_rank
        inner = (None,) * rank + self.shape[rank:]
        return tf.RaggedTensorSpec((size, *inner), dense.dtype, rank, tf.int64) if rank else dense


class _Columns:
    """Makes one list of arrays for each element of a batch of samples."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self._elements = elements

    def __call__(self, samples: Sequence[Any]) -> list[list[Array]]:
        names = [element.name for element in self._elements]
        rows = [_values_of(sample, names) for sample in samples if not isinstance(sample, Skipped)]
        columns = zip(*rows, strict=True)
        return [[e.array(value) for value in column] for e, column in zip(self._elements, columns, strict=True)]


def elements_of(
    dataset: StoreDataset, shapes: Mapping[str, Sequence[int | None]], ragged: bool | Collection[str]
) -> list[Element]:
    """Return the elements of a dataset's samples, from its fields and a few samples.

    Raises
    ------
    ConfigError
        `shapes` or `ragged` names an unknown element, there are no good samples, or samples differ in type.
    """
    names = dataset.reader.fields
    wanted = (names if ragged else ()) if isinstance(ragged, bool) else ragged
    if isinstance(wanted, str):
        raise ConfigError(f"ragged is True, False or a list of elements, such as [{wanted!r}]")
    for name in (*wanted, *shapes):
        if name not in names:
            raise ConfigError(f"there is no element {name!r}; {suggest(str(name), names, 'elements')}")
    declared = declared_elements(dataset.reader, dataset.backend.meta.fields)
    columns = zip(*_inspected(dataset, names), strict=True)
    elements = []
    for name, values in zip(names, columns, strict=True):
        field = declared.get(name, Field("int"))  # the index is not a field
        changed = name in [each for each, _ in dataset._pipeline.transforms]
        is_image = field.kind == "image" and field.role != "mask"
        is_json = field.kind == "json" and (not changed or isinstance(values[0], (dict, list)))
        arrays = [_to_array(value, name, is_image=is_image, is_json=is_json) for value in values]
        types = sorted({f"{array.dtype} of {array.ndim} dimensions" for array in arrays})
        if len(types) > 1:
            raise ConfigError(
                f"element {name!r} of {dataset.url} is {' here and '.join(types)} there; a transform can unify them"
            )
        shape = tuple(
            sizes.pop() if len(sizes) == 1 else None for sizes in map(set, zip(*map(np.shape, arrays), strict=True))
        )
        if name in shapes:
            shape = tuple(
                None if size is None else integer(f"shapes: a length of {name!r}", size, 0) for size in shapes[name]
            )
        elif not changed:
            shape = _varying(dataset, name, field, shape)
        elements.append(Element(name, arrays[0].dtype, shape, is_image, is_json, name in wanted))
    return elements


def _varying(dataset: StoreDataset, name: str, field: Field, shape: Shape) -> Shape:
    """Return the shape found in a few samples, with None for the dimensions that may differ in others."""
    reader = dataset.reader
    own = built_in(reader)
    declared = None if own is None else own.shape_of(name)
    if declared is not None:
        return declared
    if field.role in _ROWS:
        return (None, *shape[1:])
    if field.kind == "array" and field.role is None:
        return tuple(field.shape or ())
    if len(shape) < 2 or dataset.transforms is not None:
        return shape
    at = len(shape) - (2 if field.role == "mask" else 3)  # of the height
    return (*shape[:at], None, None, *shape[at + 2 :])


def _inspected(dataset: StoreDataset, names: Sequence[str]) -> list[list[Any]]:
    """Return the values of a few good samples, evenly spaced from the first to the last."""
    dataset, last = copy.deepcopy(dataset), len(dataset) - 1  # whose counters are its own
    inspected: list[list[Any]] = []
    bad: Any = "there are none"
    for index in sorted({at * last // (_INSPECTED - 1) for at in range(_INSPECTED)}) if last >= 0 else ():
        try:
            sample = dataset[index]
        except RecordError as error:
            sample, bad = None, error
        if isinstance(sample, Skipped):
            bad = sample.reason
        elif sample is not None:
            inspected.append(_values_of(sample, names))
    if not inspected:
        raise ConfigError(f"{dataset.url}: the type of its samples cannot be inferred: {bad}")
    return inspected


def _values_of(sample: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(sample, Mapping):
        return [sample[name] for name in names]
    if isinstance(sample, tuple) and len(sample) == len(names):
        return list(sample)
    raise ConfigError(f"the reader returns {type(sample).__name__}, expected a value for each of {', '.join(names)}")


def _to_array(value: Any, name: str, *, is_image: bool, is_json: bool) -> Array:
    """Return the value of an element as an array; raises ConfigError if TensorFlow has no type for it."""
    if is_json:
        value = canonical_json(value)
    if isinstance(value, (bytes, str)):
        text = np.empty((), object)
        text[()] = value if isinstance(value, bytes) else value.encode()
        return text
    if isinstance(value, (list, tuple)) and value:
        try:
            return np.stack([_to_array(each, name, is_image=is_image, is_json=False) for each in value])
        except ValueError as error:
            raise ConfigError(f"element {name!r} is a list that cannot be stacked: {error}") from error
    try:
        if isinstance(value, torch.Tensor):
            array: Array = value.detach().cpu().numpy()
            return np.moveaxis(array, -3, -1) if is_image and array.ndim >= 3 else array
        # Without a dtype, a larger int would become object or uint64.
        array = np.asarray(value, np.int64 if type(value) is int else None)
        if array.dtype.kind not in "?biufc":
            raise TypeError(f"dtype {array.dtype}")
    except TypeError as error:  # such as bfloat16, which NumPy lacks
        kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise ConfigError(
            f"element {name!r} is {kind}, for which TensorFlow has no type ({error}); a transform can convert it"
        ) from error
    return array[..., None] if isinstance(value, Image.Image) and array.ndim == 2 else array
