"""Hands the samples of a store to TensorFlow: a ``tf.data.Dataset`` over the same reads, decoding and policies.

Blocks of samples are read with one storage call each, laid out as NumPy arrays in threads of ours, and handed over whole:
what a call from TensorFlow into Python costs is paid once a block. What differs in shape from sample to sample crosses as
its values end to end, and its shapes; on the other side it becomes single tensors again, or a ragged one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from storeds._utils.arguments import integer
from storeds._utils.permutation import Order
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
    """Return a ``tf.data.Dataset`` of the samples that a `StoreDataset` or a `StoreIterable` gives, bit for bit.

    Parameters
    ----------
    source : str, path, sequence of them, Backend, Source, StoreDataset or StoreIterable
        What a `StoreDataset` takes, or one; a list or a pattern is one dataset, unless there is a `cycle_length`. A
        `StoreIterable` keeps its own order.
    batch_size : int, optional
        Give batches of so many samples, each of which is read in one storage call; single samples by default.
    drop_remainder : bool
        Leave out a last batch that is smaller, so that all shapes are known.
    ragged : bool or collection of str
        Whether elements (or which) that differ in shape make a ``tf.RaggedTensor`` in a batch. If not, the samples of a
        batch must be of one shape.
    shapes : mapping of str to sequence, optional
        An element's shape, None for what differs: instead of what would be found out, see Notes.
    shuffle : bool
        A new order each epoch, that of `EpochSampler`: a function of (count, seed, epoch). Takes no memory. Needs a seed.
    seed : int, optional
        Of the order, and of the samples' randomness, for which a given `StoreDataset` has its own.
    epoch : int, optional
        Of the first pass, by default that which `source` is in, or 0; each further pass that is begun is of the next epoch.
    cycle_length, block_length, shuffle_buffer : int
        With a `cycle_length`, the stores of a list or a pattern are interleaved, and shuffled in a buffer, as by
        `StoreIterable`, which also says what `seed` then does.
    read_batch : int
        How many samples are read together where there is no `batch_size`.
    read_ahead : int
        How many blocks are under way, each in a thread.
    **dataset_arguments
        For `StoreDataset`: ``reader``, ``transform``, ``on_error``, ``as_dict`` and so on.

    Returns
    -------
    tf.data.Dataset
        Of tuples, or of dicts with ``as_dict=True``. Of known cardinality, unless ``on_error="skip"`` may leave samples
        out; batches are smaller by those then.

    Raises
    ------
    MissingDependencyError
        TensorFlow is not installed.
    ConfigError
        An argument is malformed or contradicts another.
    StoreNotFoundError, FormatError, UnavailableError
        From opening the store. What goes wrong later reaches TensorFlow as one of its own errors, whose message ends
        with ours.

    Notes
    -----
    *Elements*: images are channels-last, uint8 where nothing transforms them: Pillow images, and the tensors of an image
    element, which are channels-first; what a transform gives as a NumPy array stays as it is. int, float and bool are
    int64, float64 and bool. str, bytes and json (its canonical text) are ``tf.string``; so are images with
    ``decode="bytes"``. Arrays have their own dtype.

    *Shapes* come from the store's fields; images differ in height and width. For what a transform or another reader
    makes, a few samples are looked at, and a dimension that is the same in all of them is taken for fixed.
    """
    tensorflow = _tensorflow()
    order = {"cycle_length": cycle_length, "block_length": block_length, "shuffle_buffer": shuffle_buffer}
    plan = _plan(source, shuffle, seed, order, dataset_arguments)
    size = integer("read_batch", read_batch, 1) if batch_size is None else integer("batch_size", batch_size, 1)
    skips = any(dataset._pipeline.policy.on_error == "skip" for dataset in plan.datasets)
    drop = bool(drop_remainder)
    if drop and batch_size is None:
        raise ConfigError("drop_remainder leaves out a last batch, and there are none: pass batch_size")
    if drop and skips:
        raise ConfigError(
            "drop_remainder makes all batches alike, and on_error='skip' leaves samples out: use 'replace'"
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
    """What is read, and in which order in an epoch."""

    datasets: tuple[StoreDataset, ...]
    addresses: Callable[[int], Iterator[Address]]
    count: int
    epoch: int
    """The one that the source is in."""

    def blocks(
        self, epoch: int, elements: Sequence[Element], size: int, ahead: int, *, batched: bool, drop: bool
    ) -> Iterator[tuple[Parts, ...]]:
        """Yield the blocks of one pass; an error comes behind what stands before it."""
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
            raise ConfigError("shuffle orders one dataset; a stream is shuffled by its seed and shuffle_buffer")
        stream = _stream(source, seed, order, arguments)
        return _Plan(stream.datasets, lambda epoch: stream._addresses(epoch).walk(), len(stream), stream.epoch)
    if order["shuffle_buffer"] or order["block_length"] != 1:
        raise ConfigError(
            "block_length and shuffle_buffer belong to interleaving: pass cycle_length; or use shuffle=True"
        )
    if not isinstance(source, StoreDataset):
        source = StoreDataset(source, seed=seed, **arguments)
    elif arguments:
        raise ConfigError(f"{', '.join(arguments)} belong to the making of a dataset, and this one is made already")
    seed, count = source.seed if seed is None else seed, len(source)
    if shuffle and seed is None:
        raise ConfigError("shuffle=True needs a seed")

    def walk(epoch: int) -> Iterator[Address]:
        return ((0, index) for index in Order(count, seed or 0, epoch, shuffle).walk(0, 1, count))

    return _Plan((source,), walk, count, source.epoch)


def _stream(source: Any, seed: int | None, order: Mapping[str, Any], arguments: dict[str, Any]) -> StoreIterable:
    if not isinstance(source, StoreIterable):
        return StoreIterable(source, seed=seed, **order, **arguments)
    if arguments or seed is not None or order != {"cycle_length": None, "block_length": 1, "shuffle_buffer": 0}:
        raise ConfigError("the order, the seed and the datasets of a StoreIterable are given when it is made")
    if source._loaded is not None:
        raise ConfigError(
            "a state was loaded into this stream, and a tf.data.Dataset begins at the beginning of an epoch: give a stream "
            "without one, epoch=, and skip(n) what was done"
        )
    return source


def _read_block(
    datasets: Sequence[StoreDataset], epoch: int, elements: Sequence[Element], addresses: Sequence[Address]
) -> tuple[tuple[Parts, ...], Exception | None]:
    """Return the samples at some addresses, laid out element by element, and what came in the way of the rest."""
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
