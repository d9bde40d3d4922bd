"""`collate`: makes a batch of samples, drops skipped ones, pads values that vary in length, copies each value once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from storeds.batching.shared_memory import batch_memory, fits_inline, send_inline
from storeds.batching.skipped import Skipped
from storeds.errors import BadSamplesError, ConfigError
from storeds.protocols import Array
from storeds.transforms.functional import DeferredImage

__all__ = ["Padded", "collate", "collate_columns", "is_collate"]

_Map: TypeAlias = dict[Any, Callable[..., Any]]


class Padded(NamedTuple):
    """Values of different lengths as one tensor.

    Attributes
    ----------
    values : torch.Tensor
        Shape (batch, longest, …); zero (False) beyond the length of each.
    mask : torch.Tensor
        bool, shape (batch, longest): True where there is a value.
    """

    values: torch.Tensor
    mask: torch.Tensor


def collate(batch: Sequence[Any], *, pad: Collection[str | int] = ()) -> Any:
    """Return a batch of samples, as PyTorch's ``default_collate`` does, with two differences.

    It drops a `Skipped` in the place of a bad sample, or inside one that a StackDataset made. And it pads arrays and
    tensors that differ in their first dimension only, with zeros at the end: they become `Padded`. In a dict sample
    ``{"clip": …}`` the values stay under ``clip``, and the mask is added under ``clip_mask``.

    Parameters
    ----------
    batch : sequence
        Samples: tuples, dicts or single values.
    pad : collection of str or int
        Elements to pad, with a mask, in every batch, even if all lengths are equal; by name in a dict, by place in a
        tuple. Pass ``functools.partial(storeds.collate, pad=["clip"])`` as ``collate_fn``, or write
        ``pad`` into the ``[loader]`` table of a config.

    Returns
    -------
    Any
        The structure of a sample. In a worker, large tensors are in memory that the training process sees, and small
        ones are sent inline.

    Raises
    ------
    BadSamplesError
        Every sample was skipped.
    ConfigError
        Values cannot be batched; the message says which and what to do.
    """
    skips = [_skip_in(sample) for sample in batch]
    samples = [sample for sample, skip in zip(batch, skips, strict=True) if skip is None]
    if not skips:
        raise ConfigError("a batch needs at least one sample, and received none")
    if not samples:
        skip = skips[0]
        first = f"; the first: sample {skip.index} of {skip.url}, {skip.reason}" if skip is not None else ""
        raise BadSamplesError(
            f"all {len(batch)} samples of a batch were skipped{first}. A StoreDataset that reads the whole batch replaces "
            "them, but ConcatDataset and the like read one sample at a time: open the stores as one dataset, "
            "StoreDataset([url, …]), or use on_error='replace'"
        )
    first = samples[0]
    if isinstance(first, Mapping):
        _check_pad(pad, first)
        return _collate_dicts(samples, pad)
    if isinstance(first, tuple):
        _check_pad(pad, range(len(first)))
        columns = [_collate_values(column, at in pad) for at, column in enumerate(zip(*samples, strict=True))]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    return _collate_values(samples, 0 in pad)


def collate_columns(columns: Mapping[str, Array], as_dict: bool) -> Any:
    """Return what `collate` returns for samples, from one array of shape (batch, …) for each of their elements."""
    tensors = {name: _tensor(column) for name, column in columns.items()}
    return tensors if as_dict else list(tensors.values())


def _tensor(column: Array) -> torch.Tensor:
    tensor = torch.from_numpy(column)
    memory = batch_memory(tuple(tensor.shape), tensor.dtype) if get_worker_info() is not None else None
    return send_inline(tensor.contiguous()) if memory is None else memory.copy_(tensor)


def is_collate(collate_fn: Any) -> bool:
    """Return whether a loader's ``collate_fn`` is `collate`, with or without `pad`."""
    return (collate_fn.func if isinstance(collate_fn, functools.partial) else collate_fn) is collate


def _skip_in(sample: Any) -> Skipped | None:
    """Return the `Skipped` that a sample is, or contains: a StackDataset makes one sample of several."""
    parts = sample.values() if isinstance(sample, Mapping) else sample if type(sample) in (tuple, list) else (sample,)
    return next((part for part in parts if isinstance(part, Skipped)), None)


def _collate_dicts(samples: Sequence[Mapping[str, Any]], pad: Collection[str | int]) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for name in samples[0]:
        value = _collate_values([sample[name] for sample in samples], name in pad)
        if isinstance(value, Padded):
            mask = f"{name}_mask"
            if mask in samples[0]:
                raise ConfigError(
                    f"the mask of {name!r} would replace the element {mask!r}: leave that element out or rename it"
                )
            batch[name], batch[mask] = value
        else:
            batch[name] = value
    return batch


def _check_pad(pad: Collection[str | int], elements: Collection[str | int]) -> None:
    for name in pad:
        if name not in elements:
            raise ConfigError(f"pad names {name!r}, and samples have no such element: {', '.join(map(repr, elements))}")


def _collate_values(values: Sequence[Any], always_pad: bool) -> Any:
    if always_pad:
        values = [value.scaled() if isinstance(value, DeferredImage) else value for value in values]
        return _pad([torch.as_tensor(value) for value in values])
    batch = torch_collate(values, collate_fn_map=_MAP)
    return send_inline(batch) if isinstance(batch, torch.Tensor) else batch


def _stack(values: Sequence[torch.Tensor | DeferredImage], *, collate_fn_map: Any = None) -> Any:
    tensors = [value.scaled() if isinstance(value, DeferredImage) else value for value in values]
    if len({tensor.shape for tensor in tensors}) == 1:
        alike = len({tensor.dtype for tensor in tensors}) == 1 and all(map(_is_plain, tensors))
        memory = batch_memory((len(tensors), *tensors[0].shape), tensors[0].dtype) if alike else None
        if memory is not None:
            torch.stack(tensors, out=memory.as_subclass(torch.Tensor))
            return memory
        if alike and fits_inline(tensors[0].nbytes * len(tensors)):
            return torch.stack(tensors)
        return default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
    _check_channels(tensors)
    return _pad(tensors)


def _check_channels(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse to pad images that differ in their channels: grey ones would lack green and blue."""
    counts = {len(tensor) for tensor in tensors if tensor.ndim == 3 and tensor.dtype in (torch.uint8, torch.float32)}
    if len(counts) > 1 and counts <= {1, 2, 3, 4}:
        raise ConfigError(
            f"images of {' and '.join(map(str, sorted(counts)))} channels make no batch: read them in one mode, mode='RGB' or "
            "'L'. If they are sequences of different lengths, name their element in pad"
        )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a copy of the values in ordinary memory is equivalent to the tensor."""
    return tensor.is_cpu and tensor.layout == torch.strided and not tensor.requires_grad


def _scale(images: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Return float images in one tensor, in memory that the training process sees if this is a worker."""
    shapes = {image.image.shape if isinstance(image, DeferredImage) else None for image in images}
    if len(shapes) > 1:  # or some are floats already
        return _stack(images, collate_fn_map=collate_fn_map)
    batch = _empty((len(images), *images[0].image.shape), torch.float32)
    for image, out in zip(images, batch, strict=True):
        image.scale_into(image.image, out)
    return batch


def _empty(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor, in memory that the training process sees if this is a worker and it is not small."""
    memory = batch_memory(size, dtype)
    if memory is not None:
        return memory
    nbytes = math.prod(size) * dtype.itemsize
    if get_worker_info() is None or fits_inline(nbytes):
        return torch.empty(size, dtype=dtype)
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]  # torch leaves it without types
    strides = torch.empty(size, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, strides)


def _stack_arrays(arrays: Sequence[np.ndarray[Any, Any]], *, collate_fn_map: Any = None) -> Any:
    if arrays[0].dtype.kind in "SUO":
        return list(arrays)
    return _stack([torch.as_tensor(array) for array in arrays], collate_fn_map=collate_fn_map)


def _stack_dicts(values: Sequence[Mapping[Any, Any]], *, collate_fn_map: Any = None) -> Any:
    """Return a dict of batches, or a list if keys differ, as they may in JSON."""
    if any(value.keys() != values[0].keys() for value in values):
        return list(values)
    return {key: torch_collate([value[key] for value in values], collate_fn_map=collate_fn_map) for key in values[0]}


def _stack_lists(values: Sequence[list[Any]], *, collate_fn_map: Any = None) -> Any:
    """Return a list of batches, or of the lists themselves if lengths differ, as they may in JSON."""
    if any(len(value) != len(values[0]) for value in values):
        return list(values)
    return [torch_collate(column, collate_fn_map=collate_fn_map) for column in zip(*values, strict=True)]


def _pad(tensors: Sequence[torch.Tensor]) -> Padded:
    if not all(tensor.ndim for tensor in tensors) or len({tensor.shape[1:] for tensor in tensors}) > 1:
        shapes = ", ".join(sorted({str(tuple(tensor.shape)) for tensor in tensors}))
        raise ConfigError(
            f"values of shapes {shapes} make no batch, because they differ in more than their length: add a transform that "
            "unifies their size (Resize, RandomResizedCrop), or pass a custom collate_fn"
        )
    lengths = [len(tensor) for tensor in tensors]
    size = (len(tensors), max(lengths), *tensors[0].shape[1:])
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    values, mask = _empty(size, dtype), _empty(size[:2], torch.bool)
    values.zero_()
    mask.zero_()
    for row, (tensor, length) in enumerate(zip(tensors, lengths, strict=True)):
        values[row, :length] = tensor
        mask[row, :length] = True
    return Padded(send_inline(values), send_inline(mask))


def _refuse_images(images: Sequence[Any], **_: Any) -> NoReturn:
    raise ConfigError(
        "Pillow images make no batch: use decode='tensor', a transform that returns tensors (ToTensor), or a custom "
        "collate_fn"
    )


_MAP: _Map = {
    **default_collate_fn_map,
    dict: _stack_dicts,
    list: _stack_lists,
    torch.Tensor: _stack,
    DeferredImage: _scale,
    np.ndarray: _stack_arrays,
    Image.Image: _refuse_images,
}
