"""A subclass of a built-in transform that overrides `__call__` is called, in datasets and in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from make_store import make_store
from photographs import saved
from storeds import StoreDataset, StoreLoader
from storeds.transforms import Normalize, RandomHorizontalFlip, RandomVerticalFlip, Resize, ToTensor

PIXELS = np.random.default_rng(5).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
MASKS = np.random.default_rng(6).integers(0, 9, (3, 6, 8), dtype=np.uint8)
FLOATS = PIXELS.transpose(0, 3, 1, 2).astype(np.float32) / 255


class Doubled(ToTensor):
    def __call__(self, image: Any) -> torch.Tensor:
        return super().__call__(image) * 2


class OnlyMean(Normalize):
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image - torch.tensor(self.mean)[:, None, None]


MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.5, 0.5)
AT_MEAN = np.array(MEAN, np.float32)[:, None, None]
OF_IMAGES = {
    "own ToTensor": ([Doubled(), Normalize(MEAN, STD)], (FLOATS * 2 - AT_MEAN) / np.float32(0.5)),
    "own Normalize": ([ToTensor(), OnlyMean(MEAN, STD)], FLOATS - AT_MEAN),
    "both": ([Doubled(), OnlyMean(MEAN, STD)], FLOATS * 2 - AT_MEAN),
}


@pytest.fixture
def url() -> str:
    fields = {"image": "image", "mask": {"kind": "image", "role": "mask"}}
    pairs = zip(map(Image.fromarray, PIXELS), map(Image.fromarray, MASKS), strict=True)
    return make_store(fields, [{"image": saved(image), "mask": saved(mask)} for image, mask in pairs])


@pytest.mark.parametrize("options", [{"reader": "image", "decode": "tensor"}, {"reader": "sample"}], ids=str)
@pytest.mark.parametrize("case", OF_IMAGES)
def test_its_call_decides_about_images(url: str, case: str, options: dict[str, Any]) -> None:
    steps, expected = OF_IMAGES[case]
    given = {**options, "transforms" if options["reader"] == "sample" else "transform": steps}
    dataset = StoreDataset(url, fields=["image"], as_dict=True, **given)
    (batch,) = StoreLoader(dataset, batch_size=3)
    for made in (torch.stack([dataset[index]["image"] for index in range(3)]), batch["image"]):
        assert np.allclose(made.numpy(), expected, atol=1e-6)


def changed(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": 255 - sample["image"], "mask": sample["mask"] + 100}


def of_samples(kind: type[Any], *arguments: Any) -> Any:
    """Return a subclass of `kind` that changes samples: a callable in `transforms=` takes a dict of elements."""
    return type(f"My{kind.__name__}", (kind,), {"__call__": lambda self, sample: changed(sample)})(*arguments)


@pytest.mark.parametrize("transform", [of_samples(Resize, 4), of_samples(RandomVerticalFlip, 1.0)], ids=type)
def test_in_transforms_its_call_receives_the_sample(url: str, transform: Any) -> None:
    dataset = StoreDataset(url, reader="sample", transforms=[transform], as_dict=True)
    for index in range(3):
        sample = dataset[index]
        assert np.array_equal(sample["image"].numpy(), 255 - PIXELS[index].transpose(2, 0, 1))
        assert np.array_equal(sample["mask"].numpy(), MASKS[index].astype(np.int32) + 100)


def test_a_subclass_that_overrides_no_call_changes_whole_samples(url: str) -> None:
    kinds = [(Resize, ((3, 4),)), (RandomHorizontalFlip, (1.0,))]
    of_its_own = [type(f"My{kind.__name__}", (kind,), {})(*arguments) for kind, arguments in kinds]
    built_in = [kind(*arguments) for kind, arguments in kinds]
    made, expected = (StoreDataset(url, reader="sample", transforms=each)[0] for each in (of_its_own, built_in))
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))
