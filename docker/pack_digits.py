"""Pack the 1,797 handwritten digits of scikit-learn into two stores, one per split."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # it ships no type information

from storeds import ops

SPLITS = ("train", "val")


def draw(folder: Path) -> None:
    """Write the digits as PNGs, one sub-folder per class; every fifth is for validation."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        place = folder / SPLITS[number % 5 == 0] / f"digit-{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(place / f"{number:04d}.png")


def main() -> None:
    """Pack each split into the URL in ``DIGITS_URL``, where ``{split}`` stands for its name."""
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        for split in SPLITS:
            url = os.environ["DIGITS_URL"].replace("{split}", split)
            # A versioned store is never written over.
            meta = ops.pack(Path(folder, split), url, overwrite=not url.endswith("/"))
            sys.stdout.write(f"packed {meta.count} images as {split}, id {meta.id}\n")


if __name__ == "__main__":
    main()
