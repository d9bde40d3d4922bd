"""Read a random corpus from a store, and list the damaged pictures that no report names.

As a program it does so in a process that sets Pillow's `LOAD_TRUNCATED_IMAGES`: its arguments are a pickle of the corpus and
URLs.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile

import storeds
from jpeg_corpus import Sample
from jpeg_encodings import OTHERS
from photographs import by_pillow

__all__ = ["DECODES", "Given", "complaints", "read_all", "rgb"]

DECODES = ("pil", "tensor", "fast")
_BATCH = 5  # a report keeps the last ten events, and a sample may have two


@dataclass(frozen=True)
class Given:
    """What a dataset gave: the picture, None where it skipped one, and the fault that its report names, by index."""

    pictures: list[Any]
    faults: Mapping[int, str]


def read_all(url: str, **options: Any) -> Given:
    """Read every picture of a store, skipping bad ones."""
    dataset = storeds.StoreDataset(url, fields=("image",), on_error="skip", seed=1, **options)
    pictures: list[Any] = []
    faults: dict[int, str] = {}
    with dataset.backend:
        for start in range(0, len(dataset), _BATCH):
            indices = range(start, min(start + _BATCH, len(dataset)))
            for sample in dataset[list(indices)]:
                pictures.append(None if isinstance(sample, storeds.Skipped) else sample[0])
            events = dataset.report().last
            faults |= {event.index: event.fault for event in events if event.index in indices}
    return Given(pictures, faults)


def complaints(samples: Sequence[Sample], given: Given, *, pixels: bool) -> Iterator[str]:
    """Say what is wrong with what was given; with `pixels`, whole pictures must be as Pillow decodes them."""
    for at, (sample, picture) in enumerate(zip(samples, given.pictures, strict=True)):
        name = f"sample {at}, {sample.encoding} / {sample.damage or 'whole'}"
        fault = given.faults.get(at)
        if picture is None and fault is None:
            yield f"{name}: skipped, and not reported"
        if sample.is_visible and picture is not None and fault is None:
            yield f"{name}: given silently"
        if sample.damage:
            continue
        if picture is None or fault is not None:
            yield f"{name}: {'refused' if picture is None else 'given'} as {fault}"
        elif pixels and "16 bit" not in sample.encoding and not np.array_equal(rgb(picture), by_pillow(sample.blob)):
            yield f"{name}: other pixels than Pillow's"


def rgb(picture: Any) -> Any:
    """Return a picture that a dataset gave as an array, height × width × channels."""
    return np.asarray(picture) if isinstance(picture, Image.Image) else picture.permute(1, 2, 0).numpy()


def main(corpus: str, *urls: str) -> None:
    warnings.filterwarnings("ignore", module=r"PIL\.")
    samples = pickle.loads(Path(corpus).read_bytes())
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    for url in urls:
        foreign = "foreign" in url
        for decode in ("pil", "tensor"):
            given = read_all(url, decode=decode, min_recovered=0.0, **({"layout": "keyed"} if foreign else {}))
            for complaint in complaints(samples, given, pixels=False):
                # Of other formats than JPEG only Pillow's own errors tell, and then it raises none.
                if not any(f", {form} / " in complaint for form in OTHERS):
                    print(f"{url}, {decode}: {complaint}")


if __name__ == "__main__":
    main(*sys.argv[1:])
