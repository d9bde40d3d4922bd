"""Provides the samples of a store as a ``tf.data.Dataset``, with the same reads, decoding and policies.

Each block of samples is read with one storage call, converted to NumPy arrays in storeds' threads, and passed to
TensorFlow as a whole, so a call from TensorFlow into Python is paid once per block. Values of varying shape are passed
as one flat array and their shapes; TensorFlow turns them into single tensors or a ragged tensor again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from storeds._utils.arguments import integer
from storeds._utils.permutation import EpochOrder
from storeds._utils.prefetch import ReadAhead
from storeds.batching.skipped import Skipped
from storeds.datasets.epoch import use_epoch
from storeds.datasets.iterable_dataset import StoreIterable
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.stream import Address, _Failure, _read
from storeds.errors import ConfigError, MissingDependencyError
from storeds.loaders.tf_elements import Element, Parts, elements_of, values_of

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["to_tf_dataset"]


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
    cycle_length: int | None = None,
    block_length: int = 1,
    shuffle_buffer: int = 0,
    read_batch: int = 32,
    read_ahead: int = 2,
    **dataset_arguments: Any,
) -> tf.data.Dataset:
    """Return a ``tf.data.Dataset`` with exactly the samples of a `StoreDataset` or a `StoreIterable`.

    Parameters
    ----------
    source : str, path, sequence of them, Backend, Source, StoreDataset or StoreIterable
        The source of a `StoreDataset`, or a finished dataset. A list or a pattern is read as one dataset, unless
        `cycle_length` is given. A `StoreIterable` keeps its own order.
    batch_size : int, optional
        Samples per batch, read in one storage call; single samples by default.
    drop_remainder : bool
        Drop a smaller last batch, so that the batch dimension is static.
    ragged : bool or collection of str
        Whether elements of varying shape become a ``tf.RaggedTensor`` in a batch, or the names of such elements.
        Otherwise the samples of a batch must have equal shapes.
    shapes : mapping of str to sequence, optional
        Shapes of elements, with None for a varying dimension, instead of the inferred ones; see Notes.
    shuffle : bool
        Shuffle each epoch as `EpochSampler` does: the order depends on (count, seed, epoch) and needs no memory.
        Requires a seed.
    seed : int, optional
        Seed of the order and of the samples' randomness. A `StoreDataset` passed as `source` keeps its own seed for the
        samples.
    epoch : int, optional
        Epoch of the first pass; by default the current epoch of `source`, or 0. Each new pass is the next epoch.
    cycle_length, block_length, shuffle_buffer : int
        With `cycle_length`, the stores of a list or a pattern are interleaved and shuffled in a buffer as by
        `StoreIterable`, which also documents the effect of `seed`.
    read_batch : int
        Samples per storage call when there is no `batch_size`.
    read_ahead : int
        Number of blocks read ahead, each in its own thread.
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

    *Shapes* come from the store's fields; images vary in height and width. The shapes of values from a transform or
    another reader are inferred from a few samples: a dimension that is equal in all of them counts as fixed.
    """
    tensorflow = _tensorflow()
    order = {"cycle_length": cycle_length, "block_length": block_length, "shuffle_buffer": shuffle_buffer}
    plan = _plan(source, shuffle, seed, order, dataset_arguments)
    size = integer("read_batch", read_batch, 1) if batch_size is None else integer("batch_size", batch_size, 1)
    skips = any(dataset._pipeline.on_error == "skip" for dataset in plan.datasets)
    drop = bool(drop_remainder)
    if drop and batch_size is None:
        raise ConfigError("drop_remainder drops a smaller last batch, and there are no batches: pass batch_size")
    if drop and skips:
        raise ConfigError(
            "drop_remainder needs batches of equal size, and on_error='skip' makes some smaller: use 'replace'"
        )
    elements = elements_of(plan.datasets, {} if shapes is None else shapes, ragged, batched=batch_size is not None)
    passes = itertools.count(plan.epoch if epoch is None else integer("epoch", epoch, 0))
    ahead = integer("read_ahead", read_ahead, 0)

    def begin() -> Iterator[Any]:
        return plan.blocks(next(passes), elements, size, ahead, batched=batch_size is not None, drop=drop)

    signature = tuple(element.transport(tensorflow, size if drop else None) for element in elements)
    made = tensorflow.data.Dataset.from_generator(begin, output_signature=signature)
    first = plan.datasets[0]
    names = [element.name for element in elements]

    def assemble(*parts: Any) -> Any:
        values = [element.assemble(tensorflow, part) for element, part in zip(elements, parts, strict=True)]
        return dict(zip(names, values, strict=True)) if first.as_dict else tuple(values)

    if batch_size is None:
        made = made.map(
            lambda *parts: tuple(e.cut(tensorflow, p) for e, p in zip(elements, parts, strict=True))
        ).unbatch()
    made = made.map(assemble)
    if skips:
        return made
    count = plan.count if batch_size is None else plan.count // size if drop else -(-plan.count // size)
    return made.apply(tensorflow.data.experimental.assert_cardinality(count))


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise MissingDependencyError(
            f"to_tf_dataset needs TensorFlow, which cannot be imported ({error}): pip install 'storeds[tf]'"
        ) from error
    return tensorflow


@dataclass(frozen=True)
class _Plan:
    """The datasets to read, and the order of their samples in an epoch."""

    datasets: tuple[StoreDataset, ...]
    addresses: Callable[[int], Iterator[Address]]
    count: int
    epoch: int
    """The current epoch of the source."""

    def blocks(
        self, epoch: int, elements: Sequence[Element], size: int, ahead: int, *, batched: bool, drop: bool
    ) -> Iterator[tuple[Parts, ...]]:
        """Yield the blocks of one pass; raises an error after yielding the samples before it."""
        addresses = self.addresses(epoch)
        jobs = iter(lambda: list(itertools.islice(addresses, size)), [])
        if drop:
            jobs = itertools.takewhile(lambda job: len(job) == size, jobs)
        reads = ReadAhead(partial(_read_block, self.datasets, epoch, elements), jobs, ahead)
        try:
            for block, error in reads:
                if block and not (error and batched):
                    yield block
                if error:
                    raise error
        finally:
            reads.close()


def _plan(source: Any, shuffle: bool, seed: int | None, order: Mapping[str, Any], arguments: dict[str, Any]) -> _Plan:
    if isinstance(source, StoreIterable) or order["cycle_length"] is not None:
        if shuffle:
            raise ConfigError("shuffle is for one dataset; to shuffle a stream, set its seed and shuffle_buffer")
        stream = _stream(source, seed, order, arguments)
        return _Plan(stream.datasets, lambda epoch: stream._addresses(epoch).walk(), len(stream), stream.epoch)
    if order["shuffle_buffer"] or order["block_length"] != 1:
        raise ConfigError(
            "block_length and shuffle_buffer belong to interleaving: pass cycle_length; or use shuffle=True"
        )
    if not isinstance(source, StoreDataset):
        source = StoreDataset(source, seed=seed, **arguments)
    elif arguments:
        raise ConfigError(f"pass {', '.join(arguments)} when you create the StoreDataset; this one exists already")
    seed, count = source.seed if seed is None else seed, len(source)
    if shuffle and seed is None:
        raise ConfigError("shuffle=True needs a seed")

    def walk(epoch: int) -> Iterator[Address]:
        return ((0, index) for index in EpochOrder(count, seed or 0, epoch, shuffle).walk(0, 1, count))

    return _Plan((source,), walk, count, source.epoch)


def _stream(source: Any, seed: int | None, order: Mapping[str, Any], arguments: dict[str, Any]) -> StoreIterable:
    if not isinstance(source, StoreIterable):
        return StoreIterable(source, seed=seed, **order, **arguments)
    if arguments or seed is not None or order != {"cycle_length": None, "block_length": 1, "shuffle_buffer": 0}:
        raise ConfigError("pass the order, seed and dataset arguments of a StoreIterable when you create it")
    if source._loaded is not None:
        raise ConfigError(
            "a state was loaded into this stream, but a tf.data.Dataset starts at the beginning of an epoch: pass a "
            "stream without a loaded state and epoch=, then skip(n) the samples already seen"
        )
    return source


def _read_block(
    datasets: Sequence[StoreDataset], epoch: int, elements: Sequence[Element], addresses: Sequence[Address]
) -> tuple[tuple[Parts, ...], Exception | None]:
    """Return the samples at `addresses`, laid out by element, and the error that stopped reading, or None."""
    names = [element.name for element in elements]
    kept: list[Any] = []
    error = None
    with use_epoch(epoch, None):
        samples = _read(datasets, addresses)
    for sample in samples:
        if isinstance(sample, _Failure):
            error = sample.error
            break
        if not isinstance(sample, Skipped):
            kept.append(values_of(sample, names))
    if not kept:
        return (), error
    columns = zip(*kept, strict=True)
    return tuple(e.lay_out([e.array(v) for v in column]) for e, column in zip(elements, columns, strict=True)), error
