"""Make the photographs of docs/annotated.md, with a box and a mask for each thing on them.

Round parts of three photographs are pasted onto parts of three others.
"""

import json
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image

classes = ["cat", "astronaut", "rocket"]
objects = [Image.fromarray(getattr(skimage.data, name)()) for name in ["chelsea", "astronaut", "rocket"]]
places = [Image.fromarray(load_sample_image(name)) for name in ["china.jpg", "flower.jpg"]]
places.append(Image.fromarray(skimage.data.coffee()))
palette = [0, 0, 0, 230, 80, 60, 60, 160, 90, 70, 110, 220] + [0] * 753 + [255] * 3

rng = np.random.default_rng(0)
for split, count in [("train", 80), ("val", 20)]:
    for kind in ["images", "masks"]:
        Path("pasted", kind, split).mkdir(parents=True)
    images, boxes = [], []
    for number in range(count):
        place = places[rng.integers(3)]
        left, top = rng.integers(place.width - 200), rng.integers(place.height - 150)
        photo = place.crop((left, top, left + 200, top + 150))
        mask = Image.new("P", photo.size)
        mask.putpalette(palette)
        for _ in range(rng.integers(1, 4)):
            label, side = int(rng.integers(3)), int(rng.integers(40, 90))
            left, top = int(rng.integers(200 - side)), int(rng.integers(150 - side))
            disc = Image.new("L", (side, side))
            ImageDraw.Draw(disc).ellipse((0, 0, side - 1, side - 1), fill=255)
            photo.paste(objects[label].resize((side, side)), (left, top), disc)
            ImageDraw.Draw(mask).ellipse((left, top, left + side - 1, top + side - 1), fill=label + 1, outline=255)
            box = {"bbox": [left, top, side, side], "area": side * side, "iscrowd": 0}
            boxes.append({"id": len(boxes) + 1, "image_id": number, "category_id": label + 1, **box})
        photo.save(f"pasted/images/{split}/{number:03}.jpg", quality=90)
        mask.save(f"pasted/masks/{split}/{number:03}.png")
        images.append({"id": number, "file_name": f"{number:03}.jpg", "width": 200, "height": 150})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
    body = {"images": images, "annotations": boxes, "categories": categories}
    Path(f"{split}.json").write_text(json.dumps(body))
Path("pasted/classes.txt").write_text("background\ncat\nastronaut\nrocket\n")
