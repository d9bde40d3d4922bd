"""Annotated photographs in a store, against the same files through torchvision's transforms v2, as its guide writes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks._common import Result, Run, entry
from benchmarks.photos import listed, make_photos
from storeds import build_loader, pack

_BOXES, _CLASSES, _SIDE, _BATCH = 10, 5, 320, 16
_MEAN, _STD, _SCALE = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], [0.3, 1.0]


def enable_torchvision() -> None:
    """Make torchvision importable beside a CPU build of torch, where it is in a folder of its own."""
    try:
        import torchvision  # noqa: F401  # only tries
    except Exception:  # not installed, or its operators need another build of torch
        sys.path.append(str(Path(sys.prefix, "vision")))
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def annotate(folder: Path, count: int) -> list[Path]:
    """Write photographs, a COCO file with 10 boxes for each, and a mask of class ids for each; return the photographs."""
    make_photos(folder, count)
    paths, rng = listed(folder / "photos"), np.random.default_rng(0)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            width, height = image.size
        mask = np.zeros((height, width), np.uint8)
        images.append({"id": number, "file_name": str(path.relative_to(folder)), "width": width, "height": height})
        for _ in range(_BOXES):
            left, top = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
            across, down = int(rng.integers(8, width // 2)), int(rng.integers(8, height // 2))
            category = int(rng.integers(1, _CLASSES + 1))
            place = {"id": len(annotations), "image_id": number, "category_id": category, "iscrowd": 0}
            annotations.append({**place, "bbox": [left, top, across, down], "area": across * down})
            mask[top : top + down, left : left + across] = category
        target, link = mask_of(folder, path), folder / "data/images" / path.relative_to(folder / "photos")
        for each in (target, link):
            each.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(target)
        link.hardlink_to(path)
    categories = [{"id": number, "name": f"class {number}"} for number in range(1, _CLASSES + 1)]
    body = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(body))
    return paths


def mask_of(folder: Path, path: Path) -> Path:
    return folder / "data/masks" / path.relative_to(folder / "photos").with_suffix(".png")


class Files(Dataset[Any]):
    """Photographs and their annotations in files, as torchvision's tutorials read them.

    Parameters
    ----------
    folder : Path
        What `annotate` wrote.
    paths : sequence of Path
    task : str
        ``detection`` or ``segmentation``.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], task: str) -> None:
        from torchvision.transforms import v2

        self.folder, self.paths, self.task = folder, paths, task
        self.boxes: list[list[list[int]]] = [[] for _ in paths]
        self.labels: list[list[int]] = [[] for _ in paths]
        for row in json.loads((folder / "instances.json").read_text())["annotations"]:
            left, top, across, down = row["bbox"]
            self.boxes[row["image_id"]].append([left, top, left + across, top + down])
            self.labels[row["image_id"]].append(row["category_id"] - 1)
        sanitize = [v2.SanitizeBoundingBoxes()] if task == "detection" else []
        crop = v2.RandomResizedCrop(_SIDE, scale=_SCALE, antialias=True)
        floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
        self.transforms = v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), *sanitize, *floats])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from torchvision import tv_tensors

        path = self.paths[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        if self.task == "segmentation":
            with Image.open(mask_of(self.folder, path)) as mask:
                return self.transforms(image, tv_tensors.Mask(torch.from_numpy(np.array(mask))))
        size = (image.height, image.width)
        boxes = tv_tensors.BoundingBoxes(self.boxes[index], format="XYXY", canvas_size=size, dtype=torch.float32)
        return self.transforms(image, {"boxes": boxes, "labels": torch.tensor(self.labels[index])})


def lists(batch: Sequence[Any]) -> Any:
    """Return images and targets as lists, as torchvision's detectors take them."""
    return tuple(zip(*batch, strict=True))


def epoch(loader: Any) -> Callable[[], int]:
    return lambda: sum(len(images) for images, _ in loader)


def check(name: str, task: str, loader: Any, count: int) -> None:
    """Raise AssertionError unless an epoch of `loader` has `count` images of the right form."""
    seen = 0
    for images, targets in loader:
        seen += len(images)
        for image, target in zip(images, targets, strict=True):
            shape, dtype = tuple(image.shape), image.dtype
            if task == "segmentation":
                fits = target.shape == (_SIDE, _SIDE) and int(target.max()) <= _CLASSES
            else:
                fits = target["boxes"].shape == (len(target["labels"]), 4)
            if shape != (3, _SIDE, _SIDE) or dtype != torch.float32 or not fits:
                raise AssertionError(f"{name} gives an image of {shape} {dtype} with {target}")
    if seen != count:
        raise AssertionError(f"{name} gives {seen} images, not {count}")


@entry(
    "samples",
    "Photographs with 10 boxes or a mask each, cropped, flipped and normalised: a store against files with torchvision",
)
def samples(run: Run) -> Iterator[Result]:
    enable_torchvision()
    count = run.count(1000, 2 * _BATCH)
    paths = annotate(run.folder, count)
    crop = {"name": "RandomResizedCrop", "size": _SIDE, "scale": _SCALE}
    steps = [crop, "RandomHorizontalFlip", "ToTensor", {"name": "Normalize", "mean": _MEAN, "std": _STD}]
    for task, source, kind, fields, collate in (
        ("detection", "instances.json", "coco", ["image", "boxes", "labels"], "detection"),
        ("segmentation", "data", "masks", ["image", "mask"], "storeds"),
    ):
        url = f"lmdb://{run.folder / task}.lmdb"
        more: dict[str, Any] = {"root": run.folder} if kind == "coco" else {}
        pack(run.folder / source, url, kind=kind, **more)
        given = {"url": url, "reader": "sample", "fields": fields, "decode": "tensor", "seed": 0, "transforms": steps}
        how = {"batch_size": _BATCH, "shuffle": True, "num_workers": 2, "persistent_workers": True, "collate": collate}
        ours = build_loader({"dataset": given, "loader": how})
        kept: dict[str, Any] = {"shuffle": True, "num_workers": 2, "persistent_workers": True}
        files: Any = Files(run.folder, paths, task)
        theirs: Any = DataLoader(files, _BATCH, collate_fn=lists if task == "detection" else None, **kept)
        for name, loader in (("storeds", ours), ("files", theirs)):
            check(name, task, loader, count)
        yield run.compare(task, epoch(ours), epoch(theirs), least=1.5, count=count, seconds=0.0)
