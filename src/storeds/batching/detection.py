"""`collate_detection`: makes the images and targets that torchvision's detectors take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from storeds.batching.buffers import Empty, empty_batch
from storeds.batching.collate import finished, good_samples, is_tv_tensor, plain_tensor, plain_value
from storeds.errors import ConfigError, suggest
from storeds.records.roles import BOX_FORMATS
from storeds.transforms.coordinates import to_corners
from storeds.transforms.tail import Tail

__all__ = ["collate_detection"]


def collate_detection(
    batch: Sequence[Any],
    *,
    images: str = "image",
    boxes: str = "boxes",
    labels: str | None = "labels",
    masks: str = "masks",
    keypoints: str = "keypoints",
    label_offset: int = 0,
    box_format: str = "xyxy",
    fields: Sequence[str] | None = None,
    tails: Mapping[str, Tail] | None = None,
    empty: Empty = empty_batch,
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """Return a batch as torchvision's detectors take it: ``(images, targets)``, two lists. Drops skipped samples.

    Parameters
    ----------
    batch : sequence
        Samples: dicts, or tuples whose elements `fields` names.
    images, boxes, labels, masks, keypoints : str
        The elements that hold these. Samples need no masks and keypoints. With ``labels=None`` every label is 0.
    label_offset : int
        Added to the labels. Detectors of torchvision keep label 0 for the background, so pass 1 if 0 is a class,
        and make the model with ``num_classes = len(dataset.classes) + 1``.
    box_format : str
        Format of boxes that are plain tensors: ``xyxy``, ``xywh`` or ``cxcywh``. A ``tv_tensors.BoundingBoxes`` has its
        own.
    fields : sequence of str, optional
        The elements of samples that are tuples, in order. `storeds.StoreLoader` passes those of a `StoreDataset`.
    tails, empty
        As for `collate`; of images only.

    Returns
    -------
    images : list of torch.Tensor
        float32 (channels, height, width) of any sizes. 8-bit images are scaled to [0, 1].
    targets : list of dict
        For each image: ``boxes``, float32 (n, 4) as x1, y1, x2, y2; ``labels``, int64 (n,); ``masks``, uint8
        (n, height, width), and ``keypoints``, float32 (n, points, 3), where samples have them. Keypoints without a
        visibility get 1. Other elements keep their names; arrays become tensors.

    Raises
    ------
    BadSamplesError
        Every sample was skipped.
    ConfigError
        Samples lack an element, or it is not what its name says.

    Notes
    -----
    The images of a batch lie in one memory. It is released when nothing refers to any of them.
    """
    if box_format not in BOX_FORMATS:
        raise ConfigError(f"unknown box_format {box_format!r}; {suggest(box_format, BOX_FORMATS, 'formats')}")
    samples = [_named(sample, fields) for sample in good_samples(batch)]
    pictures: list[torch.Tensor] = []
    targets: list[dict[str, Any]] = []
    for sample in samples:
        pictures.append(_image(_element(sample, "images", images), images))
        target: dict[str, Any] = {"boxes": _boxes(_element(sample, "boxes", boxes), boxes, box_format)}
        count = len(target["boxes"])
        if labels is None:
            target["labels"] = torch.full((count,), label_offset, dtype=torch.int64, device="cpu")
        else:
            target["labels"] = (
                _rows(_element(sample, "labels", labels), labels, 1, count).to(torch.int64) + label_offset
            )
        if masks in sample:
            target["masks"] = _rows(sample[masks], masks, 3, count).to(torch.uint8)
        if keypoints in sample:
            target["keypoints"] = _with_visibility(_rows(sample[keypoints], keypoints, 3, count))
        own = (images, boxes, labels, masks, keypoints)
        for name in [name for name in sample if name not in own]:
            if name in ("boxes", "labels", "masks", "keypoints"):
                raise ConfigError(
                    f"element {name!r} would replace the {name} of the targets: pass {name}={name!r}, or rename the element"
                )
            target[name] = plain_value(sample[name])
        targets.append(target)
    _, floats = finished(pictures, (tails or {}).get(images, Tail()), empty)
    return [image.to(torch.float32) for image in floats], targets


def _named(sample: Any, fields: Sequence[str] | None) -> Mapping[str, Any]:
    """Return the elements of a sample by name."""
    if isinstance(sample, Mapping):
        return sample
    names = getattr(sample, "_fields", fields)
    if names is None:
        raise ConfigError(
            "collate_detection needs the names of the elements of a tuple: pass fields=['image', 'boxes', 'labels'], or make "
            "samples that are dicts, as_dict=True"
        )
    return dict(zip(names, sample, strict=True))


def _element(sample: Mapping[str, Any], argument: str, name: str) -> Any:
    if name not in sample:
        raise ConfigError(
            f"collate_detection: samples have no element {name!r}, but {', '.join(map(repr, sample))}: read it too "
            f"(StoreDataset(…, fields=[…])), rename the one that it is (StoreDataset(…, fields={{{name!r}: …}})), or pass {argument}= with its name"
            + ("; labels=None gives all boxes one class" if argument == "labels" else "")
        )
    return sample[name]


def _image(value: Any, name: str) -> torch.Tensor:
    is_image = isinstance(value, torch.Tensor) and value.ndim == 3
    if not is_image or not (value.is_floating_point() or value.dtype == torch.uint8):
        what = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        raise ConfigError(
            f"collate_detection takes images as tensors (channels, height, width) of uint8 or floats, and {name!r} is {what}: "
            "use decode='tensor', or the transforms ToTensor or ToDtype"
        )
    return plain_tensor(value)


def _boxes(value: Any, name: str, box_format: str) -> torch.Tensor:
    """Return boxes as float32 corners."""
    layout = value.format.value.lower() if is_tv_tensor(value, "BoundingBoxes") else box_format
    boxes = _tensor(value, name)
    if layout not in BOX_FORMATS or boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ConfigError(
            f"collate_detection takes boxes of shape (n, 4), and {name!r} is {layout} of shape {tuple(boxes.shape)}"
        )
    if layout == "xyxy":
        return boxes.to(torch.float32)
    return torch.from_numpy(to_corners(boxes.to(torch.float64).numpy(), layout).astype(np.float32))


def _rows(value: Any, name: str, dimensions: int, count: int) -> torch.Tensor:
    """Return what describes boxes row by row."""
    rows = _tensor(value, name)
    if not count and rows.shape[:1] == (0,) and rows.ndim < dimensions:  # an empty list in JSON tells no shape
        rows = rows.new_zeros((0,) * (dimensions - 1) + rows.shape[-1:])
    if rows.ndim != dimensions or len(rows) != count:
        raise ConfigError(
            f"collate_detection: element {name!r} has shape {tuple(rows.shape)}, where {dimensions} dimensions and a row for each "
            f"of {count} boxes are needed"
        )
    return rows


def _with_visibility(keypoints: torch.Tensor) -> torch.Tensor:
    points = keypoints.to(torch.float32)
    return torch.cat([points, torch.ones_like(points[..., :1])], dim=-1) if points.shape[-1] == 2 else points


def _tensor(value: Any, name: str) -> torch.Tensor:
    try:
        return plain_tensor(torch.as_tensor(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"collate_detection: element {name!r} makes no tensor: {error}") from error
