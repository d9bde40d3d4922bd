"""Make the photographs of docs/tutorial.md: a folder of small images for each class, and two damaged files.

Training images come from the left two thirds of a photograph, validation images from the rest, so they share no pixel.
"""

from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image
from sklearn.datasets import load_sample_image

photos = {name: getattr(skimage.data, name)() for name in ["astronaut", "chelsea", "coffee", "rocket"]}
photos |= {name: load_sample_image(f"{name}.jpg") for name in ["china", "flower"]}

rng = np.random.default_rng(0)
for name, pixels in photos.items():
    photo = Image.fromarray(pixels)
    border = photo.width * 2 // 3  # training crops lie left of it, validation crops right of it
    for split, count, first, last in [("train", 100, 0, border), ("val", 30, border, photo.width)]:
        folder = Path("photos", split, name)
        folder.mkdir(parents=True)
        for number in range(count):
            side = int(rng.integers(80, 120))
            left, top = rng.integers(first, last - side), rng.integers(0, photo.height - side)
            photo.crop((int(left), int(top), int(left) + side, int(top) + side)).save(
                folder / f"{number:03}.jpg", quality=90
            )

whole = Path("photos/train/coffee/000.jpg").read_bytes()
Path("photos/train/coffee/000.jpg").write_bytes(whole[: len(whole) * 6 // 10])  # an interrupted copy
whole = Path("photos/train/rocket/000.jpg").read_bytes()
Path("photos/train/rocket/000.jpg").write_bytes(whole[:-2])  # a camera that forgot the end marker
