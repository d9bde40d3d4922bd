"""Provides the samples of a store as a ``tf.data.Dataset``: a generator over a `StoreLoader` with threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from storeds._utils.arguments import check_int
from storeds.batching.collate import Skipped
from storeds.datasets.assembly import declared_elements
from storeds.datasets.batch import Ask
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.reading import read
from storeds.errors import ConfigError, MissingDependencyError, RecordError, suggest
from storeds.loaders.loader import StoreLoader
from storeds.loaders.sampler import EpochSampler
from storeds.protocols import Array, Field
from storeds.readers.reader import built_in
from storeds.records.canonical_json import canonical_json

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["to_tf_dataset"]

Shape: TypeAlias = tuple[int | None, ...]

_INSPECTED = 4
_ROWS = ("boxes", "keypoints", "labels")  # roles of elements with a row for each object
_TEXT = np.dtype(object)  # of byte strings, which become tf.string


def to_tf_dataset(
    source: Any,
    *,
    batch_size: int | None = None,
    drop_last: bool = False,
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
    drop_last : bool
        Leave out a smaller last batch, so that the batch dimension is static, and samples that do not divide among ranks.
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
    source = _opened(source, seed, dataset_arguments)
    if drop_last and batch_size is None:
        raise ConfigError("drop_last leaves out a smaller last batch, and there are no batches: pass batch_size")
    skips = source.report().on_error == "skip"
    if drop_last and skips:
        raise ConfigError(
            "drop_last needs batches of equal size, and on_error='skip' makes some smaller: use 'replace'"
        )
    elements = _elements_of(source, shapes or {}, ragged)
    order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "block_size": block_size, "window": window}
    sampler = EpochSampler(source, num_replicas=num_replicas, rank=rank, drop_last=drop_last, **order)
    loader = StoreLoader(
        source,
        sampler=sampler,
        batch_size=check_int("read_batch", read_batch, 1)
        if batch_size is None
        else check_int("batch_size", batch_size, 1),
        drop_last=drop_last,
        collate_fn=partial(_columns, elements),
        num_workers=check_int("read_ahead", read_ahead, 0),
        prefetch_factor=1 if read_ahead else None,
        start_method="thread",
    )
    if epoch is not None:
        loader.set_epoch(epoch)

    def one_pass() -> Iterator[Any]:
        for columns in loader:
            if batch_size is None:
                yield from map(arranged, zip(*columns, strict=True))
            else:
                yield arranged(each.batch(tensorflow, column) for each, column in zip(elements, columns, strict=True))

    arranged = partial(_arranged, elements, source.as_dict)
    sizes = () if batch_size is None else (batch_size if drop_last else None,)
    signature = arranged([element.spec(tensorflow, *sizes) for element in elements])
    made = tensorflow.data.Dataset.from_generator(one_pass, output_signature=signature)
    count = len(sampler) if batch_size is None else len(loader)
    return made if skips else made.apply(tensorflow.data.experimental.assert_cardinality(count))


def _opened(source: Any, seed: int | None, arguments: Mapping[str, Any]) -> StoreDataset:
    if "drop_remainder" in arguments:
        raise ConfigError("drop_remainder is now drop_last")
    if not isinstance(source, StoreDataset):
        return StoreDataset(source, seed=seed, **arguments)
    if arguments:
        raise ConfigError(f"pass {', '.join(arguments)} when you make the StoreDataset; this one exists already")
    return source


def _arranged(elements: Sequence[_Element], as_dict: bool, values: Iterable[Any]) -> Any:
    return dict(zip([element.name for element in elements], values, strict=True)) if as_dict else tuple(values)


@dataclass(frozen=True)
class _Element:
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
    is_ragged : bool
        Whether a batch is a ``tf.RaggedTensor`` down to the last dimension that varies.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    is_image: bool
    is_json: bool
    is_ragged: bool

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
        return max((at + 1 for at, size in enumerate(self.shape) if size is None), default=0) if self.is_ragged else 0

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
        """Return the spec of a value or, with the number of its values (None means any), of a batch."""
        dtype, rank = tf.string if self.dtype == _TEXT else tf.as_dtype(self.dtype), self._ragged_rank
        if batch and rank:
            return tf.RaggedTensorSpec((*batch, *(None,) * rank, *self.shape[rank:]), dtype, rank, tf.int64)
        return tf.TensorSpec((*batch, *self.shape), dtype)


def _columns(elements: Sequence[_Element], samples: Sequence[Any]) -> list[list[Array]]:
    """Return one list of arrays for each element of a batch of samples."""
    names = [element.name for element in elements]
    rows = [_values_of(sample, names) for sample in samples if not isinstance(sample, Skipped)]
    return [[e.array(value) for value in column] for e, column in zip(elements, zip(*rows, strict=True), strict=True)]


def _elements_of(
    dataset: StoreDataset, shapes: Mapping[str, Sequence[int | None]], ragged: bool | Collection[str]
) -> list[_Element]:
    """Return the elements of a dataset's samples, from its fields and a few samples.

    Raises
    ------
    ConfigError
        `shapes` or `ragged` names an unknown element, there are no good samples, or samples differ in type.
    """
    names = dataset.reader.fields
    if isinstance(ragged, str):
        raise ConfigError(f"ragged is True, False or a list of elements, such as [{ragged!r}]")
    wanted = names if ragged is True else ragged or ()
    for name in (*wanted, *shapes):
        if name not in names:
            raise ConfigError(f"there is no element {name!r}; {suggest(str(name), names, 'elements')}")
    declared = declared_elements(dataset.reader, dataset.backend.meta.fields)
    transformed = [name for name, _ in dataset._pipeline.transforms]
    elements = []
    for name, values in zip(names, zip(*_inspected(dataset, names), strict=True), strict=True):
        field = declared.get(name, Field("int"))  # the index is not a field
        is_image = field.kind == "image" and field.role != "mask"
        is_json = field.kind == "json" and (name not in transformed or isinstance(values[0], (dict, list)))
        first = _to_array(values[0], name, is_image=is_image, is_json=is_json)
        element = _Element(name, first.dtype, (None,) * first.ndim, is_image, is_json, name in wanted)
        lengths = map(set, zip(*(element.array(value).shape for value in values), strict=True))
        shape: Shape = tuple(each.pop() if len(each) == 1 else None for each in lengths)
        if name in shapes:
            what = f"shapes: a length of {name!r}"
            shape = tuple(None if size is None else check_int(what, size, 0) for size in shapes[name])
        elif name not in transformed:
            shape = _varying(dataset, name, field, shape)
        elements.append(replace(element, shape=shape))
    return elements


def _varying(dataset: StoreDataset, name: str, field: Field, shape: Shape) -> Shape:
    """Return the shape found in a few samples, with None for the dimensions that may differ in others."""
    own = built_in(dataset.reader)
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
    last = len(dataset) - 1
    inspected: list[list[Any]] = []
    bad: Any = "there are none"
    for index in sorted({at * last // (_INSPECTED - 1) for at in range(_INSPECTED)}) if last >= 0 else ():
        try:
            (sample,) = read(dataset, Ask([index], fill=False)).result()  # which counts nothing
        except RecordError as error:
            bad = error
        else:
            if isinstance(sample, Skipped):
                bad = sample.reason
            else:
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
