"""Foreign HDF5 files, written with plain h5py or PyTables as other people's programs write them, and their truth.

Nothing here uses `storeds`. Each writer returns the records that must be read from the file, in order.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from photographs import jpeg, photograph

__all__ = ["PARALLEL", "PER_SAMPLE", "PER_VIDEO", "Truth", "pcam", "pytables"]

Truth = list[dict[str, Any]]
N = 12


def pixels(count: int = N, size: tuple[int, int] = (24, 16)) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(photograph(at, size)) for at in range(count)])


def blob(at: int) -> bytes:
    return jpeg(at, (32 + at, 24))


def _columns(path: Path, **how: Any) -> Truth:
    """`data` and `label`, as in most tutorials."""
    data, label = pixels(), np.arange(N) % 3
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, **how)
        file.create_dataset("label", data=label, dtype=">i4")
        file["classes"] = [b"cat", b"dog", b"emu"]
    return [{"data": data[at], "label": int(label[at])} for at in range(N)]


def contiguous(path: Path) -> Truth:
    return _columns(path)


def chunked(path: Path) -> Truth:
    return _columns(path, chunks=(5, 16, 24, 3), compression="gzip", shuffle=True, fletcher32=True)


def lzf(path: Path) -> Truth:
    return _columns(path, chunks=(1, 16, 24, 3), compression="lzf", maxshape=(None, 16, 24, 3))


def vlen_jpeg(path: Path) -> Truth:
    with h5py.File(path, "w") as file:
        train = file.create_group("train")
        images = train.create_dataset("Images", (N,), h5py.vlen_dtype("u1"))
        for at in range(N):
            images[at] = np.frombuffer(blob(at), "u1")
        train["score"] = np.linspace(0, 1, N, dtype=">f4")
        train["good"] = np.arange(N) % 2 == 0
        train["name"] = [f"№ {at}" for at in range(N)]
        boxes = train.create_dataset("boxes", (N,), h5py.vlen_dtype(">i2"))
        for at in range(N):
            boxes[at] = np.arange(at % 4)
    scores = np.linspace(0, 1, N, dtype="f4")
    return [
        {
            "images": blob(at),
            "boxes": np.arange(at % 4, dtype="<i2"),
            "good": at % 2 == 0,
            "name": f"№ {at}",
            "score": float(scores[at]),
        }
        for at in range(N)
    ]


def opaque_jpeg(path: Path) -> Truth:
    size = max(len(blob(at)) for at in range(N)) + 3
    with h5py.File(path, "w") as file:
        file["image"] = np.array([np.void(blob(at).ljust(size, b"\0")) for at in range(N)])
        file["label"] = np.arange(N, dtype="u8")
    return [{"image": blob(at), "label": at} for at in range(N)]


def string_jpeg(path: Path) -> Truth:
    """JPEGs as strings of fixed length; HDF5 calls them cut at their first NUL, but wrote all."""
    size = max(len(blob(at)) for at in range(N)) + 1
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(size)
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    with h5py.File(path, "w") as file:
        dataset = h5py.h5d.create(file.id, b"image", kind, h5py.h5s.create_simple((N,)))
        values = np.array([blob(at).ljust(size, b"\0") for at in range(N)], f"S{size}")
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
        file["label"] = np.arange(N)
    return [{"image": blob(at), "label": at} for at in range(N)]


def string_jpeg_chunked(path: Path) -> Truth:
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=np.array([blob(at) for at in range(N)]), chunks=(5,), compression="gzip")
        file["label"] = np.arange(N)
    return [{"image": blob(at), "label": at} for at in range(N)]


PARALLEL: dict[str, Callable[[Path], Truth]] = {
    write.__name__: write
    for write in (contiguous, chunked, lzf, vlen_jpeg, opaque_jpeg, string_jpeg, string_jpeg_chunked)
}


def pcam(folder: Path) -> Truth:
    """PatchCamelyon: images in one file, labels of shape (N, 1, 1, 1) in another."""
    data, label = pixels(), (np.arange(N) % 2).astype("u1")
    with h5py.File(folder / "split_train_x.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(4, 16, 24, 3), compression="gzip")
    with h5py.File(folder / "split_train_y.h5", "w") as file:
        file["y"] = label.reshape(N, 1, 1, 1)
    return [{"image": data[at], "label": int(label[at])} for at in range(N)]


def pytables(path: Path) -> Truth:
    tables: Any = importlib.import_module("tables")

    data = pixels()
    with tables.open_file(str(path), "w") as file:
        file.create_carray("/", "c_array", obj=data, filters=tables.Filters(complevel=5, complib="zlib"))
        extended = file.create_earray("/", "e_array", tables.Float32Atom(), (0, 3))
        extended.append(np.arange(3 * N, dtype="f4").reshape(N, 3))
        file.create_array("/", "labels", np.arange(N))
        jpegs = file.create_vlarray("/", "vl_array", tables.UInt8Atom())
        for at in range(N):
            jpegs.append(np.frombuffer(blob(at), "u1"))
        table = file.create_table("/", "table", {"number": tables.Int32Col(), "word": tables.StringCol(5)})
        for at in range(N):
            table.row["number"], table.row["word"] = at * at, f"w{at}"
            table.row.append()
        table.flush()
        table.cols.number.create_index()
    floats = np.arange(3 * N, dtype="f4").reshape(N, 3)
    return [
        {
            "c_array": data[at],
            "e_array": floats[at],
            "labels": at,
            "table_number": at * at,
            "table_word": f"w{at}",
            "vl_array": blob(at),
        }
        for at in range(N)
    ]


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
    """A group for each class, JPEGs as bytes in it."""
    truth = []
    with h5py.File(path, "w") as file:
        for label, name in enumerate(("Ant", "bee")):
            for at in range(5 + label):
                file[f"{name}/n0144_{at}.JPEG"] = np.frombuffer(blob(at + label), "u1")
                truth.append({"image": blob(at + label), "label": label, "key": f"{name}/n0144_{at}.JPEG"})
    return truth


PER_SAMPLE: dict[str, Callable[[Path], Truth]] = {
    write.__name__: write for write in (numbered_arrays, opaque_samples, class_groups)
}

LENGTHS = {"walk_2": 3, "walk_10": 5, "run": 1, "jump": 4}
ORDER = ("jump", "run", "walk_2", "walk_10")  # as people count


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
    return _videos("image", blob, lambda name, frame: {"label": ORDER.index(name)})


PER_VIDEO: dict[str, Callable[[Path], Truth]] = {
    write.__name__: write for write in (video_jpegs, video_arrays, video_numbered)
}
