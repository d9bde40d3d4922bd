"""Foreign HDF5 files with datasets or groups for each sample and each video, written with plain h5py, and their records.

Nothing here uses `storeds`. Each writer returns the records that must be read from the file, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from photographs import jpeg, photograph

__all__ = [
    "LENGTHS",
    "ORDER",
    "N",
    "Truth",
    "blob",
    "class_groups",
    "digit_named",
    "field_groups",
    "numbered_arrays",
    "numbered_pairs",
    "opaque_samples",
    "pairs_by_suffix",
    "pixels",
    "sample_groups",
    "sample_groups_in_classes",
    "sample_groups_with_attributes",
    "video_arrays",
    "video_digits",
    "video_jpegs",
    "video_numbered",
]

Truth = list[dict[str, Any]]
N = 12


def pixels(count: int = N, size: tuple[int, int] = (24, 16)) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(photograph(at, size)) for at in range(count)])


def blob(at: int) -> bytes:
    return jpeg(at, (32 + at, 24))


def numbered_arrays(path: Path) -> Truth:
    """`/img_0` … `/img_11`, of different sizes, each with an attribute."""
    with h5py.File(path, "w") as file:
        for at in range(N):
            dataset = file.create_dataset(
                f"img_{at}", data=pixels(1, (8 + at, 9))[0], compression="gzip" if at % 2 else None
            )
            dataset.attrs["label"], dataset.attrs["place"] = at % 3, f"p{at}"
    return [
        {"array": pixels(1, (8 + at, 9))[0], "key": f"img_{at}", "label": at % 3, "place": f"p{at}"} for at in range(N)
    ]


def opaque_samples(path: Path) -> Truth:
    with h5py.File(path, "w") as file:
        for at in range(N):
            file[f"{at:04}"] = np.void(blob(at))
    return [{"image": blob(at), "key": f"{at:04}"} for at in range(N)]


def class_groups(path: Path) -> Truth:
    """A group of JPEGs, as bytes, for each class."""
    truth = []
    with h5py.File(path, "w") as file:
        for label, name in enumerate(("Ant", "bee")):
            for at in range(5 + label):
                file[f"{name}/n0144_{at}.JPEG"] = np.frombuffer(blob(at + label), "u1")
                truth.append({"image": blob(at + label), "label": label, "key": f"{name}/n0144_{at}.JPEG"})
    return truth


def digit_named(path: Path) -> Truth:
    """A group for each class, with numbered pictures of different sizes, which frames of a video never have."""
    truth = []
    with h5py.File(path, "w") as file:
        for label, name in enumerate(("cat", "dog")):
            for at in range(4):
                size = (8 + at, 9 + label * at)
                file[f"{name}/{at}"] = pixels(1, size)[0]
                truth.append({"array": pixels(1, size)[0], "label": label, "key": f"{name}/{at}"})
    return truth


def sample_groups(path: Path) -> Truth:
    """A group for each sample, in a group of their own: JPEG, label and boxes as datasets, text as an attribute."""
    with h5py.File(path, "w") as file:
        for at in range(N):
            group = file.create_group(f"data/sample_{at}")
            group["image"] = np.frombuffer(blob(at), "u1")
            group["label"] = np.array([at % 3], ">i4")
            group["boxes"] = np.arange(4 * (at % 3), dtype=">f4").reshape(-1, 4)
            group.attrs["text"] = f"№ {at}"
            group["image"].attrs["width"] = 32 + at
    return [
        {
            "boxes": np.arange(4 * (at % 3), dtype="<f4").reshape(-1, 4),
            "image": blob(at),
            "label": at % 3,
            "key": f"sample_{at}",
            "text": f"№ {at}",
            "width": 32 + at,
        }
        for at in range(N)
    ]


def sample_groups_with_attributes(path: Path) -> Truth:
    """`/0/img` …; the label is an attribute of the group."""
    with h5py.File(path, "w") as file:
        for at in range(N):
            file.create_dataset(f"{at}/img", data=pixels(at + 1)[at], compression="gzip")
            file[str(at)].attrs["label"] = at % 3
    return [{"img": pixels(at + 1)[at], "key": str(at), "label": at % 3} for at in range(N)]


def sample_groups_in_classes(path: Path) -> Truth:
    """`/cat/img_001/{jpg,label}`: the label is a dataset, the class is another field."""
    truth = []
    with h5py.File(path, "w") as file:
        for number, name in enumerate(("cat", "dog")):
            for at in range(3 + number):
                file[f"{name}/img_{at:03}/jpg"] = np.void(blob(at + number))
                file[f"{name}/img_{at:03}/label"] = 10 * number + at
                key = f"{name}/img_{at:03}"
                truth.append({"jpg": blob(at + number), "label": 10 * number + at, "class": name, "key": key})
    return truth


def numbered_pairs(path: Path) -> Truth:
    """`/image_0`, `/label_0`, `/image_1` …, each image with an attribute."""
    with h5py.File(path, "w") as file:
        for at in range(N):
            file[f"image_{at}"], file[f"label_{at}"] = pixels(1, (8 + at, 9))[0], at % 3
            file[f"image_{at}"].attrs["place"] = f"p{at}"
    return [{"image": pixels(1, (8 + at, 9))[0], "label": at % 3, "key": str(at), "place": f"p{at}"} for at in range(N)]


def pairs_by_suffix(path: Path) -> Truth:
    """`/0001.jpg`, `/0001.cls` …, in a group for each class."""
    truth = []
    with h5py.File(path, "w") as file:
        for label, name in enumerate(("a", "b")):
            for at in range(3):
                file[f"{name}/{at:04}.jpg"] = np.frombuffer(blob(at), "u1")
                file[f"{name}/{at:04}.cls"] = f"{name}{at}"
                truth.append({"cls": f"{name}{at}", "jpg": blob(at), "label": label, "key": f"{name}/{at:04}"})
    return truth


def field_groups(path: Path) -> Truth:
    """`/images/0` …, `/masks/0` …, `/labels/0` …: a group for each field."""
    with h5py.File(path, "w") as file:
        for at in range(N):
            file[f"images/{at}"] = np.frombuffer(blob(at), "u1")
            file[f"masks/{at}"] = np.full((3, 4 + at), at, ">u2")
            file[f"labels/{at}"] = at % 3
    return [
        {"images": blob(at), "labels": at % 3, "masks": np.full((3, 4 + at), at, "<u2"), "key": str(at)}
        for at in range(N)
    ]


LENGTHS = {"walk_2": 3, "walk_10": 5, "run": 1, "jump": 4}
ORDER = ("jump", "run", "walk_2", "walk_10")  # natural order


def _videos(image: str, value: Callable[[int], Any], extra: Callable[[str, int], dict[str, Any]]) -> Truth:
    return [
        {image: value(number + frame), "video": name, "frame": frame, **extra(name, frame)}
        for number, name in enumerate(ORDER)
        for frame in range(LENGTHS[name])
    ]


def video_jpegs(path: Path) -> Truth:
    """A dataset of JPEGs for each video, times beside it, label and rate as attributes."""
    with h5py.File(path, "w") as file:
        for number, name in enumerate(ORDER):
            count = LENGTHS[name]
            frames = file.create_dataset(f"{name}/frames", (count,), h5py.vlen_dtype("u1"))
            for frame in range(count):
                frames[frame] = np.frombuffer(blob(number + frame), "u1")
            file[f"{name}/time"] = np.arange(count) / 25
            file[name].attrs["label"], file[name].attrs["fps"] = number, 25.0
    return _videos("image", blob, lambda name, frame: {"time": frame / 25, "label": ORDER.index(name), "fps": 25.0})


def video_arrays(path: Path) -> Truth:
    """An array (T, H, W, C) for each video."""
    every = pixels(10)
    with h5py.File(path, "w") as file:
        for number, name in enumerate(ORDER):
            file.create_dataset(
                f"videos/{name}/rgb", data=every[number : number + LENGTHS[name]], chunks=(1, 16, 24, 3)
            )
            file[f"videos/{name}"].attrs["caption"] = name.upper()
    return _videos("array", lambda at: every[at], lambda name, frame: {"caption": name.upper()})


def video_numbered(path: Path) -> Truth:
    """A dataset for each frame, `0` … `11`, in each video's group."""
    with h5py.File(path, "w") as file:
        for number, name in enumerate(ORDER):
            for frame in range(LENGTHS[name]):
                file[f"{name}/{frame + 8}"] = np.frombuffer(blob(number + frame), "u1")
            file[name].attrs["label"] = number
    return [
        {**record, "frame": record["frame"] + 8}
        for record in _videos("image", blob, lambda name, frame: {"label": ORDER.index(name)})
    ]


def video_digits(path: Path) -> Truth:
    """Numbered frames. Only the names of their groups distinguish them from the pictures of a class."""
    every = pixels(7)
    with h5py.File(path, "w") as file:
        for number in range(3):
            for frame in range(2 + number):
                file[f"videos/clip_{number}/{frame}"] = every[number + frame]
    return [
        {"array": every[number + frame], "video": f"clip_{number}", "frame": frame}
        for number in range(3)
        for frame in range(2 + number)
    ]
