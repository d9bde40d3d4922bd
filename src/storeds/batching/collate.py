"""`collate`: makes a batch of samples, drops skipped ones, pads or lists values that differ in size, copies each value once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np
import torch
from PIL import Image
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from storeds.batching.buffers import Empty, empty_batch
from storeds.batching.memory import is_plain
from storeds.batching.padding import Padded, check_channels, padded
from storeds.errors import BadSamplesError, ConfigError, suggest
from storeds.protocols import Array
from storeds.transforms.tail import Tail

__all__ = [
    "Ragged",
    "Skipped",
    "collate",
    "collate_columns",
    "finished",
    "good_samples",
    "is_tv_tensor",
    "plain_tensor",
    "plain_value",
]

_Map: TypeAlias = dict[Any, Callable[..., Any]]
_Key: TypeAlias = str | int
Ragged: TypeAlias = Literal["mask", "pad", "list"]
_PadImages: TypeAlias = bool | Collection[_Key] | Mapping[Any, float]


@dataclass(frozen=True)
class Skipped:
    """Takes the place of a bad sample. `storeds.collate` drops it; using it as a sample raises ConfigError.

    Parameters
    ----------
    index : int
        The sample's index.
    url : str
        The store, with secrets removed.
    position : int
        The record's position in the store.
    fault : str
        The kind of fault, as in ``StoreDataset.report()``.
    reason : str
        What is wrong with the sample.
    """

    index: int
    url: str
    position: int
    fault: str
    reason: str

    def _refuse(self, *_: Any) -> NoReturn:
        raise ConfigError(
            f"sample {self.index} of {self.url} was skipped ({self.reason}), and this collate_fn cannot drop it: "
            "pass collate_fn=storeds.collate, or use on_error='replace'"
        )

    def __len__(self) -> int:
        self._refuse()

    def __iter__(self) -> Iterator[Any]:
        self._refuse()

    def __getitem__(self, index: Any) -> Any:
        self._refuse()


def _refuse_batch(batch: Sequence[Skipped], **_: Any) -> NoReturn:
    batch[0]._refuse()


# If the first sample of a batch was skipped, torch's default_collate calls this function; else it calls len() of it.
default_collate_fn_map[Skipped] = _refuse_batch


def collate(
    batch: Sequence[Any],
    *,
    pad: Collection[str | int] = (),
    ragged: Mapping[Any, Ragged] | None = None,
    pad_images: _PadImages = False,
    declared: Mapping[Any, Ragged] | None = None,
    tails: Mapping[Any, Tail] | None = None,
    empty: Empty = empty_batch,
) -> Any:
    """Return a batch of samples, as PyTorch's ``default_collate`` does, with three differences.

    It drops a `Skipped` in the place of a bad sample, or inside one that a StackDataset made. It pads or lists values
    that differ in size, as `ragged` and `pad_images` say. And values that differ in their first dimension only are
    padded without being named. Tensors of torchvision become plain tensors, as in PyTorch.

    Parameters
    ----------
    batch : sequence
        Samples: tuples, dicts or single values.
    pad : collection of str or int
        Elements for which `ragged` is ``"mask"``.
    ragged : mapping of str or int to str
        What becomes of an element whose first dimension differs between samples, such as boxes: by name in a dict, by
        place in a tuple. It applies to every batch, even if all lengths are equal.

        ``"mask"``: values padded with zeros at the end, and a mask. In a tuple they are a `Padded`. In a dict the values
        stay under their name, for example ``boxes``, and the mask is added under ``boxes_mask``.
        ``"pad"``: the padded values alone.
        ``"list"``: a list with the value of each sample, of any shapes.
    pad_images : bool, collection or mapping
        Pad images and masks of different heights and widths at the right and at the bottom to the largest of the batch,
        and add a mask (batch, height, width), which is True where there are pixels. In a dict the mask of ``image`` is
        ``image_mask``. True means each ``tv_tensors.Image`` and ``Mask``; in a `storeds.StoreLoader` each element that the store
        declares as an image or a mask. A collection names the elements. A mapping also says what fills them:
        ``{"image": 0, "mask": 255}``. By default zero does. Masks of instances (n, height, width) get the mask of `ragged`
        instead.
    declared : mapping of str or int to str
        As `ragged`, for what that does not name. It has no effect on an element that a transform left out, or of which it
        made something without a length. `storeds.StoreLoader` passes what the store declares.
    tails : mapping of str or int to Tail
        What is left to do for elements that are uint8. `storeds.StoreLoader` passes the ends of transforms.
    empty : callable
        Returns an uninitialised tensor of a shape and a dtype. By default it has memory that a later batch uses, once nothing
        refers to the tensor or a view of it.

    Returns
    -------
    Any
        The structure of a sample. In a worker, tensors are in memory that the training process sees.

    Raises
    ------
    BadSamplesError
        Every sample was skipped.
    ConfigError
        Values cannot be batched; the message says which and what to do.

    Examples
    --------
    >>> collate_fn = functools.partial(storeds.collate, ragged={"boxes": "list"}, pad_images=True)

    In a config, write ``ragged`` and ``pad_images`` into the ``[loader]`` table.
    """
    samples = good_samples(batch)
    first = samples[0]
    columns: dict[_Key, Sequence[Any]]
    if isinstance(first, Mapping):
        columns = {name: [sample[name] for sample in samples] for name in first}
    else:
        columns = dict(enumerate(zip(*samples, strict=True))) if isinstance(first, tuple) else {0: samples}
    ways = _ways(pad, ragged or {}, declared or {}, columns)
    fills = _fills(pad_images, columns)
    tails = tails or {}
    made = {
        name: _collated(values, name, ways.get(name), fills.get(name), tails.get(name), empty)
        for name, values in columns.items()
    }
    if isinstance(first, Mapping):
        return _with_masks(made)
    if isinstance(first, tuple):
        return type(first)(*made.values()) if hasattr(first, "_fields") else list(made.values())
    return made[0]


def good_samples(batch: Sequence[Any]) -> list[Any]:
    """Return the samples of a batch without skipped ones; raise an error if none is left."""
    skips = [_skip_in(sample) for sample in batch]
    samples = [sample for sample, skip in zip(batch, skips, strict=True) if skip is None]
    if not skips:
        raise ConfigError("a batch needs at least one sample, and received none")
    if not samples:
        skip = skips[0]
        first = f"; the first: sample {skip.index} of {skip.url}, {skip.reason}" if skip is not None else ""
        raise BadSamplesError(
            f"all {len(batch)} samples of a batch were skipped{first}. A StoreDataset that reads the whole batch replaces "
            "them, but ConcatDataset and the like read a part of it: open the stores as one dataset, "
            "StoreDataset([url, …]), or use on_error='replace'"
        )
    return samples


def collate_columns(columns: Mapping[str, Array], as_dict: bool) -> Any:
    """Return what `collate` returns for samples, from one array of shape (batch, …) for each of their elements."""
    tensors = {name: torch.from_numpy(column).contiguous() for name, column in columns.items()}
    return tensors if as_dict else list(tensors.values())


def _skip_in(sample: Any) -> Skipped | None:
    """Return the `Skipped` that a sample is, or contains: a StackDataset makes one sample of several."""
    parts = sample.values() if isinstance(sample, Mapping) else sample if type(sample) in (tuple, list) else (sample,)
    return next((part for part in parts if isinstance(part, Skipped)), None)


def _ways(
    pad: Collection[_Key],
    ragged: Mapping[Any, Ragged],
    declared: Mapping[Any, Ragged],
    columns: Mapping[_Key, Sequence[Any]],
) -> dict[_Key, str]:
    """Return what becomes of each named element; raise ConfigError if the arguments are malformed."""
    for name, way in ragged.items():
        if way not in get_args(Ragged):
            raise ConfigError(f"ragged: {name!r} is {way!r}; {suggest(str(way), get_args(Ragged), 'values')}")
    _check_names("pad", pad, columns)
    _check_names("ragged", ragged, columns)
    with_length = (torch.Tensor, np.ndarray)
    usual = {
        name: way
        for name, way in declared.items()
        if name in columns and (way == "list" or isinstance(columns[name][0], with_length))
    }
    return {**usual, **dict.fromkeys(pad, "mask"), **ragged}


def _fills(pad_images: _PadImages, columns: Mapping[_Key, Sequence[Any]]) -> Mapping[_Key, float]:
    """Return each element that is padded as an image, with the value that fills it."""
    if isinstance(pad_images, bool):
        return {
            name: 0.0 for name, values in columns.items() if pad_images and is_tv_tensor(values[0], "Image", "Mask")
        }
    if isinstance(pad_images, str) or not isinstance(pad_images, Collection):
        raise ConfigError(
            f"pad_images is True, a list of elements or a mapping of elements to the value that fills them, not {pad_images!r}"
        )
    _check_names("pad_images", pad_images, columns)
    return pad_images if isinstance(pad_images, Mapping) else dict.fromkeys(pad_images, 0.0)


def _check_names(argument: str, names: Collection[_Key], elements: Collection[_Key]) -> None:
    for name in names:
        if name not in elements:
            raise ConfigError(
                f"{argument} names {name!r}, and samples have no such element: {', '.join(map(repr, elements))}"
            )


def _with_masks(made: Mapping[_Key, Any]) -> dict[_Key, Any]:
    """Return the elements of a batch by name, each mask as an element of its own."""
    batch: dict[_Key, Any] = {}
    for name, value in made.items():
        if isinstance(value, Padded):
            if f"{name}_mask" in made:
                raise ConfigError(
                    f"the mask of {name!r} would replace the element '{name}_mask': leave that element out or rename it"
                )
            batch[name], batch[f"{name}_mask"] = value
        else:
            batch[name] = value
    return batch


def _collated(
    values: Sequence[Any], name: _Key, way: str | None, fill: float | None, tail: Tail | None, empty: Empty
) -> Any:
    """Return one element of a batch: as a list, in a tensor, or padded; `fill` is that of an image."""
    is_padded = way in ("mask", "pad") or (fill is not None and way != "list")
    if tail is not None and not is_padded:
        floats, values = finished(values, tail, empty)
        is_batch = way is None and {value.shape for value in values} == {values[0].shape}
        if is_batch and floats.numel() == len(values) * values[0].numel():
            return floats.view(len(values), *values[0].shape)
    if way == "list":
        return list(map(plain_value, values))
    try:
        if is_padded:
            rows = way is not None or (is_tv_tensor(values[0], "Mask") and values[0].ndim == 3)
            tensors, fill_with = list(map(_tensor_of, values)), fill or 0.0
            made = padded(tensors, empty, rows=rows, sizes=fill is not None, fill=fill_with, tail=tail)
            return made.values if way == "pad" else made
        return torch_collate(values, collate_fn_map=_map(empty))
    except ConfigError as error:
        raise ConfigError(f"element {name!r}: {error}") from error


def finished(images: Sequence[Any], tail: Tail, empty: Empty) -> tuple[torch.Tensor, list[Any]]:
    """Do what is left to do for some images, one behind the other in one memory; return that memory, and all images."""
    sizes = [image.numel() if tail.is_waiting(image) else 0 for image in images]
    whole = empty((sum(sizes),), torch.float32)
    parts = zip(images, torch.split(whole, sizes), strict=True)
    return whole, [tail(plain_tensor(image), part.view(image.shape)) if len(part) else image for image, part in parts]


def _tensor_of(value: Any) -> torch.Tensor:
    if isinstance(value, Image.Image):
        _refuse_images([value])
    try:
        return plain_tensor(torch.as_tensor(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"it cannot be padded, because a {type(value).__name__} makes no tensor: {error}. Leave it out of pad, ragged and "
            "pad_images, or use ragged 'list'"
        ) from error


def is_tv_tensor(value: Any, *names: str) -> bool:
    """Return whether a value is of one of these classes of ``torchvision.tv_tensors``; does not import torchvision."""
    module = sys.modules.get("torchvision.tv_tensors")
    return module is not None and isinstance(value, tuple(getattr(module, name, ()) for name in names))


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of torchvision as a plain one, in the same memory; other tensors unchanged."""
    if type(value) is torch.Tensor or not is_tv_tensor(value, "TVTensor"):
        return value
    return value.as_subclass(torch.Tensor)


def plain_value(value: Any) -> Any:
    """Return an array of numbers or a tensor as a plain tensor, and any other value as it is."""
    is_numbers = isinstance(value, np.ndarray) and value.dtype.kind not in "SUO"
    return plain_tensor(torch.as_tensor(value)) if is_numbers or isinstance(value, torch.Tensor) else value


def _stack(values: Sequence[torch.Tensor], empty: Empty, *, collate_fn_map: Any = None) -> Any:
    tensors = list(map(plain_tensor, values))
    if len({tensor.shape for tensor in tensors}) == 1:
        alike = len({tensor.dtype for tensor in tensors}) == 1 and all(map(is_plain, tensors))
        if alike:
            return torch.stack(tensors, out=empty((len(tensors), *tensors[0].shape), tensors[0].dtype))
        return default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
    check_channels(tensors)
    return padded(tensors, empty, rows=True, sizes=False)


def _stack_arrays(arrays: Sequence[np.ndarray[Any, Any]], empty: Empty, *, collate_fn_map: Any = None) -> Any:
    if arrays[0].dtype.kind in "SUO":
        return list(arrays)
    return _stack([torch.as_tensor(array) for array in arrays], empty, collate_fn_map=collate_fn_map)


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


def _refuse_images(images: Sequence[Any], **_: Any) -> NoReturn:
    raise ConfigError(
        "Pillow images make no batch: use decode='tensor', a transform that returns tensors (ToTensor), or a custom "
        "collate_fn"
    )


def _map(empty: Empty) -> _Map:
    """Return what makes a batch of values of each type."""
    return {
        **default_collate_fn_map,
        dict: _stack_dicts,
        list: _stack_lists,
        torch.Tensor: functools.partial(_stack, empty=empty),
        np.ndarray: functools.partial(_stack_arrays, empty=empty),
        Image.Image: _refuse_images,
    }
