"""Compares annotated photographs in a store with the same files through torchvision's transforms v2.

Run as ``python -m benchmarks.samples``. *Detection*: a photograph and 10 boxes, random crop, flip, floats, normalisation,
as ``(images, targets)`` lists. *Segmentation*: a photograph and a mask of class ids, the same transforms, as tensors. The
other side is a Dataset over files as torchvision's documentation writes it: Pillow decodes, ``tv_tensors`` wrap,
``transforms.v2`` transforms. Both use PyTorch's worker processes. Needs torchvision.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks._common import Result, Spread, compare, parser, report
from benchmarks.photos import listed, make_photos
from storeds import StoreLoader, build_loader, pack

_TARGET, _BOXES, _CLASSES, _SIDE = 1.5, 10, 5, 320
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_SCALE = [0.3, 1.0]


def enable_torchvision() -> None:
    """Make torchvision importable beside a CPU build of torch, where it is in a folder of its own."""
    try:
        import torchvision  # noqa: F401  # only tries
    except Exception:  # not installed, or its operators need another build of torch
        sys.path.append(str(Path(sys.prefix, "vision")))
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def annotate(folder: Path, count: int, long: int) -> list[Path]:
    """Write photographs, a COCO file with 10 boxes for each, and a mask of class ids for each; return the photographs."""
    make_photos(folder, count, long=long)
    paths, rng = listed(folder / "photos"), np.random.default_rng(0)
    images, annotations = [], []
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            width, height = image.size
        mask = np.zeros((height, width), np.uint8)
        images.append({"id": number, "file_name": str(path.relative_to(folder)), "width": width, "height": height})
        for _ in range(_BOXES):
            left, top = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
            across, down = int(rng.integers(8, width // 2)), int(rng.integers(8, height // 2))
            category = int(rng.integers(1, _CLASSES + 1))
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": number,
                    "category_id": category,
                    "bbox": [left, top, across, down],
                    "area": across * down,
                    "iscrowd": 0,
                }
            )
            mask[top : top + down, left : left + across] = category
        target = folder / "data/masks" / path.relative_to(folder / "photos").with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(target)
        link = folder / "data/images" / path.relative_to(folder / "photos")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.hardlink_to(path)
    categories = [{"id": number, "name": f"class {number}"} for number in range(1, _CLASSES + 1)]
    body = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(body))
    return paths


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
        rows = json.loads((folder / "instances.json").read_text())["annotations"]
        self.boxes: list[list[list[int]]] = [[] for _ in paths]
        self.labels: list[list[int]] = [[] for _ in paths]
        for row in rows:
            left, top, across, down = row["bbox"]
            self.boxes[row["image_id"]].append([left, top, left + across, top + down])
            self.labels[row["image_id"]].append(row["category_id"] - 1)
        self.transforms = v2.Compose(
            [
                v2.ToImage(),
                v2.RandomResizedCrop(_SIDE, scale=_SCALE, antialias=True),
                v2.RandomHorizontalFlip(),
                *([v2.SanitizeBoundingBoxes()] if task == "detection" else []),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(_MEAN, _STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from torchvision import tv_tensors

        path = self.paths[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        if self.task == "segmentation":
            with Image.open(
                self.folder / "data/masks" / path.relative_to(self.folder / "photos").with_suffix(".png")
            ) as mask:
                return self.transforms(image, tv_tensors.Mask(torch.from_numpy(np.array(mask))))
        size = (image.height, image.width)
        boxes = tv_tensors.BoundingBoxes(self.boxes[index], format="XYXY", canvas_size=size, dtype=torch.float32)
        return self.transforms(image, {"boxes": boxes, "labels": torch.tensor(self.labels[index])})


def lists(batch: Sequence[Any]) -> Any:
    """Return images and targets as lists, as torchvision's detectors take them."""
    return tuple(zip(*batch, strict=True))


def stored(url: str, task: str, batch: int, workers: int) -> StoreLoader:
    """Return a loader of the same samples from a store."""
    crop = {"name": "RandomResizedCrop", "size": _SIDE, "scale": _SCALE}
    normalise = {"name": "Normalize", "mean": _MEAN, "std": _STD}
    fields = ["image", "boxes", "labels"] if task == "detection" else ["image", "mask"]
    return build_loader(
        {
            "dataset": {
                "url": url,
                "reader": "sample",
                "fields": fields,
                "decode": "tensor",
                "seed": 0,
                "transforms": [crop, "RandomHorizontalFlip", "ToTensor", normalise],
            },
            "loader": {
                "batch_size": batch,
                "shuffle": True,
                "num_workers": workers,
                "collate": "detection" if task == "detection" else "storeds",
            },
        }
    )


def epoch(loader: Any) -> Callable[[], int]:
    """Return a function that runs one epoch and returns the number of images."""

    def run() -> int:
        return sum(len(images) for images, _ in loader)

    return run


def measure(task: str, work: Path, paths: Sequence[Path], given: Any) -> Iterator[Result]:
    """Compare both ways on one task, and check that each gives every photograph once, in the right shape."""
    target = f"lmdb://{work / task}.lmdb"
    if task == "detection":
        pack(work / "instances.json", target, kind="coco", root=work, fast_crops=given.fast_crops)
    else:
        pack(work / "data", target, kind="masks", fast_crops=given.fast_crops)
    files = DataLoader(
        Files(work, paths, task),
        given.batch,
        shuffle=True,
        num_workers=given.workers,
        persistent_workers=True,
        collate_fn=lists if task == "detection" else None,
    )
    ours = stored(target, task, given.batch, given.workers)
    for name, loader in (("storeds", ours), ("files", files)):
        check(name, task, loader, len(paths))
    ratio, mine, theirs = compare(epoch(ours), epoch(files), rounds=given.rounds, seconds=0.0)
    rates = f"{_rate(len(paths), mine)} against {_rate(len(paths), theirs)} images/s"
    yield Result(f"{task}, {given.long} pixels", "ratio", ratio, f"≥ {_TARGET}", ratio.median >= _TARGET, rates)


def check(name: str, task: str, loader: Any, count: int) -> None:
    """Raise AssertionError unless an epoch of `loader` has `count` images of the right form."""
    seen = 0
    for images, targets in loader:
        seen += len(images)
        for image, target in zip(images, targets, strict=True):
            assert image.shape == (3, _SIDE, _SIDE), (name, image.shape)
            assert image.dtype == torch.float32, (name, image.dtype)
            if task == "segmentation":
                assert target.shape == (_SIDE, _SIDE), (name, target.shape)
                assert int(target.max()) <= _CLASSES, (name, target.max())
            else:
                assert target["boxes"].shape == (len(target["labels"]), 4), (name, target["boxes"].shape)
    assert seen == count, (name, seen)


def _rate(count: int, seconds: Spread) -> str:
    return f"{count / seconds.median:,.0f}"


def main() -> int:
    options = parser(__doc__ or "", "samples.json")
    options.add_argument("--photos", type=int, default=1000)
    options.add_argument("--long", type=int, default=500, help="pixels on the longer side")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--fast-crops", action="store_true", help="pack with restart markers; needs jpegtran")
    options.add_argument("--tasks", nargs="+", default=["detection", "segmentation"])
    given = options.parse_args()
    enable_torchvision()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        paths = annotate(Path(folder), given.photos, given.long)
        for task in given.tasks:
            results.extend(measure(task, Path(folder), paths, given))
    setup = {
        "photos": given.photos,
        "pixels": given.long,
        "boxes": _BOXES,
        "batch": given.batch,
        "workers": given.workers,
        "fast_crops": given.fast_crops,
        "rounds": given.rounds,
        "page_cache": "warm: everything was written just before",
    }
    met = report("Annotated photographs: storeds ÷ files with torchvision v2", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
