"""Photographs cropped at random from those of scikit-image and scikit-learn, as files or as bytes.

Every photo is another window of a real picture: 500 pixels on the longer side in about 40 KiB, or 2,000 in about 380 KiB.
The same seed gives the same pixels. A photo's number is its place in the sorted list of all.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_LARGE = 1000  # pixels: scaled-up pictures are smooth, so they need a higher quality to have a camera's bytes
_SCALES = 0.55, 1.0  # of the largest window of that shape
_PORTRAITS = 0.25  # their share


def pictures() -> dict[str, Image.Image]:
    """Return the photographs in colour that scikit-image and scikit-learn carry."""
    import skimage.data
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]

    found = {name: getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket")}
    found["motorcycle"], *_ = skimage.data.stereo_motorcycle()  # type: ignore[no-untyped-call]  # has few types
    found |= {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
    return {name: Image.fromarray(pixels).convert("RGB") for name, pixels in found.items()}


def quality(long: int) -> int:
    """Return the JPEG quality that gives photos of this size as many bytes as a camera's have."""
    return 88 if long <= _LARGE else 93


def crop(picture: Image.Image, rng: np.random.Generator, long: int) -> Image.Image:
    """Return a random window, scaled to `long` pixels on its longer side and three quarters of that on the other."""
    short = 3 * long // 4
    width, height = (short, long) if rng.random() < _PORTRAITS else (long, short)
    part = min(picture.width / width, picture.height / height) * rng.uniform(*_SCALES)
    across, down = width * part, height * part
    left, top = rng.uniform(0, picture.width - across), rng.uniform(0, picture.height - down)
    return picture.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, left + across, top + down))


def jpegs(count: int, long: int, distinct: int = 256) -> list[bytes]:
    """Return JPEGs of `distinct` photos; a comment makes the bytes of each unique."""
    rng, sources = np.random.default_rng(0), list(pictures().values())
    encoded = []
    for at in range(min(count, distinct)):
        buffer = io.BytesIO()
        crop(sources[at % len(sources)], rng, long).save(buffer, "JPEG", quality=quality(long))
        encoded.append(buffer.getvalue())
    marks = (b"\xff\xd8\xff\xfe\x00\x0a" + at.to_bytes(8, "big") for at in range(count))  # a comment of 8 bytes
    return [mark + encoded[at % len(encoded)][2:] for at, mark in enumerate(marks)]


def make_photos(folder: Path, count: int, long: int = 500) -> dict[str, Any]:
    """Write `count` photos as an ImageFolder, ``folder/photos``, and return what the JSON says about them.

    Beside the photos lies ``means.npy``: the mean of each photo's channels, by its number, in [0, 1].
    """
    rng, sources = np.random.default_rng(0), pictures()
    names = sorted(sources)
    for name in names:
        (folder / "photos" / name).mkdir(parents=True)
    for at in range(count):
        name = names[at % len(names)]
        path = folder / f"photos/{name}/{at:06}.jpg"
        crop(sources[name], rng, long).save(path, "JPEG", quality=quality(long))
    paths = listed(folder / "photos")
    np.save(folder / "means.npy", np.array([_mean(path) for path in paths]))
    size = sum(path.stat().st_size for path in paths) // count
    return {"count": count, "pixels": [long, 3 * long // 4], "quality": quality(long), "mean_bytes": size}


def listed(photos: Path) -> list[Path]:
    """Return the photos in the order of their numbers, which is the one of torchvision's ImageFolder."""
    return sorted(photos.glob("*/*.jpg"))


def _mean(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image).mean((0, 1)) / 255
