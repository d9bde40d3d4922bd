"""A batch that does the end of a transform equals one of whole samples, in every loader."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import EpochSampler, StoreDataset, StoreLoader, collate, collate_detection
from storeds.transforms import Compose, Normalize, RandomHorizontalFlip, Resize, ToTensor
from threaded import threaded

COUNT = 6
ENDS: dict[str, list[Any]] = {
    "both": [ToTensor(), Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])],
    "other": [ToTensor(), Normalize([0.25], [0.125])],
    "one": [ToTensor()],
    "none": [],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a store with two images of its own size in each record, and boxes."""
    records = (
        {
            "image": jpeg(at, (40 + at, 50)),
            "other": jpeg(at + 1, (40 + at, 50)),
            "boxes": np.full((at, 4), [1, 2, 9, 8], np.float32),
            "labels": np.arange(at),
        }
        for at in range(COUNT)
    )
    fields: dict[str, Any] = {
        "image": {"kind": "image", "role": "image"},
        "other": {"kind": "image", "role": "image"},
        "boxes": {"kind": "array", "dtype": "<f4", "shape": [None, 4], "role": "boxes", "format": "xyxy"},
        "labels": {"kind": "array", "dtype": "<i8", "shape": [None], "role": "labels"},
    }
    return make_store(fields, records, f"lmdb://{tmp_path_factory.mktemp('tails')}/boxes.lmdb")


def images(url: str, end: str = "both", size: int | None = 16, **options: Any) -> StoreDataset:
    first = [] if size is None else [Resize((size, size))]
    transform = Compose([*first, RandomHorizontalFlip(), Compose(ENDS[end])])
    options = {"reader": "image", "fields": ["image"], "transform": transform, "decode": "tensor", **options}
    return StoreDataset(url, seed=1, as_dict=True, **options)


def whole(url: str, end: str = "both", **options: Any) -> StoreDataset:
    transforms = [Resize((16, 16)), RandomHorizontalFlip(), *ENDS[end]]
    return StoreDataset(url, decode="tensor", seed=1, as_dict=True, transforms=transforms, **options)


class Doubled(Dataset[Any]):
    """A dataset of a user, which looks at the samples."""

    def __init__(self, inner: StoreDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        image = self.inner[index]["image"]
        assert image.dtype == torch.float32
        return {"image": 2 * image}


def scale_some(image: torch.Tensor) -> torch.Tensor:
    return image.float() / 255 if int(image[0, 0, 0]) % 2 else image


TWO = {"image": [Resize((16, 16)), *ENDS["both"]], "other": [Resize((8, 8)), *ENDS["other"]]}
CASES: dict[str, tuple[Callable[[str], Any], Any]] = {
    **{f"ends in {end}": (functools.partial(images, end=end), collate) for end in ENDS},
    "pillow": (lambda url: images(url, decode="pil"), collate),
    "two elements": (lambda url: images(url, fields=["image", "other"], transform=TWO), collate),
    "parts": (lambda url: Subset(images(url), [4, 1, 1]), collate),
    "joined alike": (lambda url: ConcatDataset([images(url), images(url)]), collate),
    "joined": (lambda url: ConcatDataset([images(url), images(url, "other"), images(url, "one")]), collate),
    "samples": (whole, collate),
    "samples, one end": (functools.partial(whole, end="one"), collate),
    "samples, one more transform": (lambda url: whole(url, transform={"image": torch.neg}), collate),
    "sizes, list": (lambda url: images(url, size=None), functools.partial(collate, ragged={"image": "list"})),
    "sizes, padded": (lambda url: images(url, size=None), functools.partial(collate, pad_images={"image": 0.5})),
    "detection": (lambda url: whole(url, fields=["image", "boxes", "labels"]), collate_detection),
    "detection, two": (lambda url: whole(url), collate_detection),
    "dataset of a user": (lambda url: Doubled(images(url)), collate),
    "before a flip": (
        lambda url: images(url, transform=Compose([Resize((16, 16)), *ENDS["both"], RandomHorizontalFlip(1.0)])),
        collate,
    ),
    "some are floats": (
        lambda url: images(url, transform=Compose([Resize((16, 16)), scale_some, *ENDS["both"]])),
        collate,
    ),
}
LOADERS: list[tuple[Any, int]] = [(StoreLoader, 0), (StoreLoader, 1), (threaded, 2), (DataLoader, 1)]


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [each for part in parts for each in flat(part)]


@pytest.mark.parametrize(
    ("case", "kind", "workers"),
    [(case, *LOADERS[(at + more) % 4]) for at, case in enumerate(CASES) for more in (0, 2)],
)
def test_a_batch_is_that_of_whole_samples(url: str, kind: Any, workers: int, case: str) -> None:
    make, collate_fn = CASES[case]
    data = make(url)
    expected = flat(collate_fn([data[at] for at in range(len(data))]))
    order = {"shuffle": False} if kind is DataLoader else {"sampler": EpochSampler(data, shuffle=False)}
    (batch,) = kind(data, batch_size=len(data), num_workers=workers, collate_fn=collate_fn, **order)
    found = [part for part in flat(batch) if part.dtype != torch.bool]
    wanted = [part for part in expected if part.dtype != torch.bool]
    assert [part.dtype for part in found[:1]] == [torch.uint8 if case == "ends in none" else torch.float32]
    for part in found:
        assert type(part) is torch.Tensor
    for part in wanted:  # a StoreLoader adds what the store declares, such as masks
        assert any(torch.equal(part, other) for other in found)


@pytest.mark.parametrize("kind", [StoreLoader, threaded])
def test_a_transform_that_is_assigned_during_a_pass_holds_from_the_next_batch_on(url: str, kind: Any) -> None:
    data = images(url)
    batches = iter(kind(data, batch_size=2, sampler=EpochSampler(data, shuffle=False)))
    for at, end in enumerate(("both", "other", "none")):
        data.transform = Compose([Resize((16, 16)), *ENDS[end]])
        expected = torch.stack([images(url, transform=data.transform)[2 * at + number]["image"] for number in range(2)])
        assert torch.equal(next(batches)["image"], expected)


def test_clips_have_a_tail_too() -> None:
    fields: dict[str, Any] = {"clip": {"kind": "array", "dtype": "|u1", "shape": [4, 3, 8, 8]}}
    clips = np.random.default_rng(0).integers(0, 256, (3, 4, 3, 8, 8), np.uint8)
    store = make_store(fields, ({"clip": clip} for clip in clips))
    data = StoreDataset(store, reader="array", transform=Compose(ENDS["both"]), channels="first", as_dict=True)
    mean, std = (torch.tensor(each)[:, None, None] for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = (torch.from_numpy(clips).float() / 255 - mean) / std
    (batch,) = storeds.StoreLoader(data, batch_size=3)
    assert torch.equal(batch["clip"], expected)
    assert torch.equal(data[1]["clip"], expected[1])
