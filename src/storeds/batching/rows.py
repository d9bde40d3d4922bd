"""Scaled images for whoever makes the batch: each a row of one tensor, so that torch's own collating has nothing to copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from storeds.batching.shared_memory import TaggedTensor, lent_memory
from storeds.protocols import Reader
from storeds.readers import ImageReader
from storeds.transforms.deferred import DeferredImage

__all__ = ["Row", "image_element", "join_rows", "to_batch_rows"]


class Row(TaggedTensor):
    """One image of a batch that lies together in memory."""

    _batch: _Batch
    _number: int


@dataclass(eq=False)
class _Batch:
    """The memory of a batch, which is handed out once: a collating that is asked again copies."""

    tensor: torch.Tensor
    is_given: bool = False


def image_element(reader: Reader[Any], as_dict: bool) -> int | str | None:
    """Return where in a sample the image is, or None where nothing tells what samples of that reader are."""
    if type(reader) is not ImageReader or reader.data not in reader.fields:
        return None
    return reader.data if as_dict else reader.fields.index(reader.data)


def to_batch_rows(samples: Sequence[Any], element: int | str) -> list[Any]:
    """Return samples whose images are scaled, and lie together where a worker lends memory for that.

    Parameters
    ----------
    samples : sequence
        Tuples or dicts; anything else among them stays as it is.
    element : int or str
        Where in each the image is.
    """
    places = [at for at, sample in enumerate(samples) if type(sample) in (tuple, dict)]
    settled = list(samples)
    for at, image in zip(places, _rows([samples[at][element] for at in places]), strict=True):
        sample = settled[at]
        if isinstance(sample, dict):
            settled[at] = {**sample, element: image}
        else:
            settled[at] = tuple(image if place == element else value for place, value in enumerate(sample))
    return settled


def _rows(images: Sequence[Any]) -> Sequence[Any]:
    sorts = {_sort(image) for image in images}
    (common,) = sorts if len(sorts) == 1 else (None,)
    if common is not None:
        shape, dtype = common
        batch = lent_memory((len(images), *shape), dtype)
        if batch is not None:
            together = _Batch(batch)
            return [
                _row(image, together, number, out)
                for number, (image, out) in enumerate(zip(images, batch, strict=True))
            ]
    return [image.scaled() if isinstance(image, DeferredImage) else image for image in images]


def _sort(image: Any) -> tuple[torch.Size, torch.dtype] | None:
    """Return what images of one batch have in common, or None for what is no plain tensor."""
    if isinstance(image, DeferredImage):
        return image.image.shape, torch.float32
    plain = type(image) is torch.Tensor and image.device.type == "cpu" and not image.requires_grad
    return (image.shape, image.dtype) if plain and image.layout == torch.strided else None


def _row(image: Any, batch: _Batch, number: int, out: torch.Tensor) -> Row:
    if isinstance(image, DeferredImage):
        image.scale_into(image.image, out)
    else:
        out.copy_(image)
    row = out.as_subclass(Row)
    row._batch, row._number = batch, number
    return row


def join_rows(rows: Sequence[torch.Tensor], *, stack: Any = None, collate_fn_map: Any = None) -> Any:
    """Return the batch that the rows are, or a stack of them where some are missing or in another order.

    Parameters
    ----------
    rows : sequence of torch.Tensor
    stack : callable, optional
        What makes a batch of other tensors; by default what the map has for them, which may be somebody's own.
    collate_fn_map : mapping, optional
        As torch's ``collate`` gives it.
    """
    make = stack or (collate_fn_map or default_collate_fn_map)[torch.Tensor]
    batch = getattr(rows[0], "_batch", None) if stack or make is collate_tensor_fn else None
    if batch is not None and _is_all_of(batch, rows):
        batch.is_given = True
        return batch.tensor
    plain = [row.plain() if isinstance(row, TaggedTensor) else row for row in rows]
    return make(plain, collate_fn_map=collate_fn_map)


def _is_all_of(batch: _Batch, rows: Sequence[torch.Tensor]) -> bool:
    if batch.is_given or len(rows) != len(batch.tensor):
        return False
    return all(_is_row(row, batch, at) for at, row in enumerate(rows))


def _is_row(row: torch.Tensor, batch: _Batch, number: int) -> bool:
    """Whether a tensor is still the row that it was made as."""
    if not isinstance(row, Row) or row._batch is not batch or row._number != number or row.requires_grad:
        return False
    place = batch.tensor[number]
    return row.shape == place.shape and row.is_contiguous() and row.data_ptr() == place.data_ptr()


def _reduce(row: Row) -> Any:
    # A copy: who sends one image would send the whole batch else.
    return reduce_tensor(row.plain().clone())  # type: ignore[no-untyped-call]  # torch leaves it without types


default_collate_fn_map[Row] = join_rows
ForkingPickler.register(Row, _reduce)
