"""Photographs cropped at random from those of scikit-image and scikit-learn, as a folder.

Run as ``python -m benchmarks.photos FOLDER``. Every photo is another window of a real picture, scaled to 500 pixels on
its longer side, in about 40 KiB; ``--long 2000`` makes larger ones, of about 380 KiB. The same seed gives the same
pixels. `FOLDER/photos` is what torchvision calls an ImageFolder: one folder for each picture that crops were taken from.
A photo's number is its place in the sorted list of all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COUNT, LONG, QUALITY = 4000, 500, 88
# For photos with more than `_LARGE` pixels on the longer side. Scaled-up pictures are smooth, so they need a higher
# quality to have as many bytes as those of cameras.
_LARGE, _LARGE_COUNT, _LARGE_QUALITY = 1000, 512, 93
_SCALES = 0.55, 1.0  # of the largest window of that shape
_PORTRAITS = 0.25  # their share


def pictures() -> dict[str, Image.Image]:
    """Return the photographs in colour that scikit-image and scikit-learn carry."""
    import skimage.data
    from sklearn.datasets import load_sample_image

    names = ("astronaut", "chelsea", "coffee", "rocket")
    found = {name: getattr(skimage.data, name)() for name in names}
    left, *_ = skimage.data.stereo_motorcycle()  # type: ignore[no-untyped-call]  # scikit-image has few types
    found["motorcycle"] = left
    for name in ("china", "flower"):
        found[name] = load_sample_image(f"{name}.jpg")
    return {name: Image.fromarray(pixels) for name, pixels in found.items()}


def default_count(long: int) -> int:
    """Return how many photos of this size a benchmark uses."""
    return COUNT if long <= _LARGE else _LARGE_COUNT


def default_quality(long: int) -> int:
    """Return the JPEG quality that gives photos of this size as many bytes as a camera's have."""
    return QUALITY if long <= _LARGE else _LARGE_QUALITY


def crop(picture: Image.Image, rng: np.random.Generator, long: int = LONG) -> Image.Image:
    """Return a random window, scaled to `long` pixels on its longer side and three quarters of that on the other."""
    short = 3 * long // 4
    width, height = (short, long) if rng.random() < _PORTRAITS else (long, short)
    part = min(picture.width / width, picture.height / height) * rng.uniform(*_SCALES)
    across, down = width * part, height * part
    left, top = rng.uniform(0, picture.width - across), rng.uniform(0, picture.height - down)
    box = (left, top, left + across, top + down)
    return picture.resize((width, height), Image.Resampling.BICUBIC, box=box)


def make_photos(
    folder: Path, count: int = COUNT, quality: int = QUALITY, seed: int = 0, long: int = LONG
) -> dict[str, Any]:
    """Write `count` photos below `folder`, unless they are there, and return what is to be known about them.

    Beside the photos lies ``means.npy``: the mean of each photo's channels, by its number, in [0, 1].
    """
    note = folder / "photos.json"
    wanted = {"count": count, "quality": quality, "seed": seed, "pixels": [long, 3 * long // 4]}
    if note.exists():
        known: dict[str, Any] = json.loads(note.read_text())
        if wanted.items() <= known.items():
            return known
        raise SystemExit(f"{folder} holds other photos ({known}) than are wanted ({wanted}): give another folder")
    rng, sources = np.random.default_rng(seed), pictures()
    names = sorted(sources)
    for name in names:
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
    for at in range(count):
        name = names[at % len(names)]
        crop(sources[name], rng, long).save(folder / f"photos/{name}/{at:06}.jpg", "JPEG", quality=quality)
    paths = listed(folder / "photos")
    np.save(folder / "means.npy", channel_means(paths))
    bytes_a_photo = sum(path.stat().st_size for path in paths) / count
    known = {**wanted, "pictures": names, "mean_bytes": round(bytes_a_photo)}
    note.write_text(json.dumps(known) + "\n")
    return known


def listed(photos: Path) -> list[Path]:
    """Return the photos in the order of their numbers, which is the one of torchvision's ImageFolder."""
    return sorted(photos.glob("*/*.jpg"))


def channel_means(paths: Sequence[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([_mean(path) for path in paths])


def _mean(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    with Image.open(path) as image:
        mean: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.asarray(image).mean((0, 1)) / 255
    return mean


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--photos", type=int, help=f"None: {COUNT}, or {_LARGE_COUNT} large ones")
    options.add_argument("--long", type=int, default=LONG, help="pixels on the longer side")
    options.add_argument("--quality", type=int, help=f"None: {QUALITY}, or {_LARGE_QUALITY} for large ones")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    count, quality = given.photos or default_count(given.long), given.quality or default_quality(given.long)
    print(json.dumps(make_photos(given.folder, count, quality, given.seed, given.long)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
