"""Foreign HDF5 files, written with plain h5py or PyTables as other programs write them, and their records.

Nothing here uses `storeds`. Each writer returns the records that must be read from the file, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from _layout_case import LayoutCase, Truth
from photographs import jpeg, photograph

__all__ = [
    "HDF5",
    "N",
    "blob",
    "chunked",
    "class_groups",
    "pixels",
    "robomimic",
    "video_jpegs",
    "video_numbered",
    "vlen_jpeg",
    "write",
]

N = 12
Arrays = Mapping[str, Any]
DRAW = np.random.default_rng(1)
LENGTHS = {"walk_2": 3, "walk_10": 5, "run": 1, "jump": 4}
ORDER = ("jump", "run", "walk_2", "walk_10")  # natural order


def pixels(count: int = N, size: tuple[int, int] = (24, 16)) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(photograph(at, size)) for at in range(count)])


def blob(at: int) -> bytes:
    return jpeg(at, (32 + at, 24))


def write(path: Path, datasets: Arrays, **attributes: Any) -> Path:
    """Write datasets by path, and attributes of the root."""
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update(attributes)
    return path


def _fields(arrays: Arrays, row: Any) -> dict[str, Any]:
    """Return one record, under the names of its fields."""
    return {name.replace("/", "_"): _plain(value[row]) for name, value in arrays.items()}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


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


def vlen_jpeg(path: Path) -> Truth:
    with h5py.File(path, "w") as file:
        train = file.create_group("train")
        images = train.create_dataset("Images", (N,), h5py.vlen_dtype("u1"))
        for at in range(N):
            images[at] = np.frombuffer(blob(at), "u1")
        train["score"] = np.linspace(0, 1, N, dtype=">f4")
        train["good"] = np.arange(N) % 2 == 0
        train["name"] = [f"№ {at}" for at in range(N)]
        boxes = train.create_dataset("boxes", (N,), h5py.vlen_dtype("<i2"))
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
    """JPEGs as strings of fixed length. HDF5 stores them whole, but returns them up to their first NUL."""
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


def matlab(path: Path) -> Truth:
    """As MATLAB 7.3 writes: a user block, reversed axes, vectors as matrices, cells by reference."""
    data, label = np.ascontiguousarray(pixels().transpose(0, 3, 1, 2)), np.arange(N) % 3
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("X", data=data, chunks=(5, 3, 16, 24), compression="gzip")
        file["column"] = label.astype("f8").reshape(1, N)
        file.create_dataset("packed", data=label.astype("u1").reshape(1, N), chunks=(1, 5), compression="gzip")
        file["row"] = label.astype(">i4").reshape(N, 1)
        file["scale"], file["title"] = np.ones((1, 1)), np.frombuffer(b"a title", "u1").astype("u2").reshape(7, 1)
        file["#refs#/a"] = np.zeros((3, 3))
        for name, kind in (
            ("X", "uint8"),
            ("packed", "uint8"),
            ("row", "int32"),
            ("scale", "double"),
            ("title", "char"),
        ):
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
        file["column"].attrs["MATLAB_class"] = np.bytes_("double")
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + path.read_bytes()[512:])
    return [
        {"x": data[at], "column": float(label[at]), "packed": int(label[at]), "row": int(label[at])} for at in range(N)
    ]


def many_files(path: Path) -> Truth:
    """Columns in several files, which a pattern reads as one store."""
    data = pixels()
    for part, rows in enumerate((range(5), range(5, 6), range(6, N))):
        with h5py.File(f"{str(path).removesuffix('.h5')}_{part}.h5", "w") as file:
            file["data"], file["label"] = data[list(rows)], np.array(rows, ">i8")
    return [{"data": data[at], "label": at} for at in range(N)]


def pcam(path: Path) -> Truth:
    """PatchCamelyon: images in one file, labels of shape (N, 1, 1, 1) in another of the folder, ``split_train_y.h5``."""
    data, label = pixels(), (np.arange(N) % 2).astype("u1")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(4, 16, 24, 3), compression="gzip")
    with h5py.File(path.with_name("split_train_y.h5"), "w") as file:
        file["y"] = label.reshape(N, 1, 1, 1)
    return [{"image": data[at], "label": int(label[at])} for at in range(N)]


def pytables(path: Path) -> Truth:
    tables: Any = pytest.importorskip("tables")
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


def aloha(path: Path) -> Truth:
    """An episode as ALOHA records it."""
    arrays = {name: DRAW.random((40, 14)) for name in ("action", "observations/qpos", "observations/qvel")}
    frames = np.stack([np.asarray(photograph(at, (32, 24))) for at in range(40)])
    write(path, arrays, sim=True)
    with h5py.File(path, "a") as file:
        file.create_dataset("observations/images/top", data=frames, chunks=(1, 24, 32, 3))
    return [_fields({**arrays, "observations/images/top": frames}, at) for at in range(40)]


def aloha_compressed(path: Path) -> Truth:
    """The same with JPEGs padded to one length, as ALOHA's converter writes."""
    blobs = [jpeg(at, (32, 24)) for at in range(40)]
    padded = np.stack([np.frombuffer(blob.ljust(max(map(len, blobs)), b"\0"), "u1") for blob in blobs])
    lengths = np.array([[len(blob) for blob in blobs]], "f4")
    write(path, {"action": np.zeros((40, 14)), "observations/images/top": padded, "compress_len": lengths})
    return [{"action": np.zeros(14), "observations_images_top": blob} for blob in blobs]


def robomimic(path: Path) -> Truth:
    """Demonstrations as robomimic's `dataset_states_to_obs.py` writes them."""
    demos = [_demonstration(steps, ("obs/agentview_image", "next_obs/agentview_image")) for steps in (9, 11, 10)]
    masks = {"mask/train": np.array(["demo_2", "demo_0"], "S"), "mask/valid": np.array(["demo_1"], "S")}
    return _demonstrations(path, demos, masks)


def _demonstration(steps: int, images: tuple[str, ...]) -> dict[str, Any]:
    arrays = {"actions": DRAW.random((steps, 7)), "dones": np.eye(1, steps, steps - 1, dtype="u1")[0]}
    return arrays | {name: DRAW.integers(0, 256, (steps, 12, 12, 3), "u1") for name in images}


def _demonstrations(path: Path, demos: list[dict[str, Any]], others: Arrays) -> Truth:
    datasets = {f"data/demo_{at}/{name}": rows for at, demo in enumerate(demos) for name, rows in demo.items()}
    write(path, {**datasets, **others})
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = '{"env_name": "Lift"}'
        for demo in file["data"].values():
            demo.attrs["model_file"] = "<mujoco/>" * 1000
    return [
        {**_fields(demo, step), "episode": at, "step": step, "key": f"demo_{at}/{step}"}
        for at, demo in enumerate(demos)
        for step in range(len(demo["actions"]))
    ]


def brats(path: Path) -> Truth:
    """Slices of BraTS 2020, a file each: four modalities, a mask of three, and a label."""
    truth = []
    for number in range(3):
        arrays = {"image": DRAW.random((24, 24, 4)), "label": number, "mask": DRAW.integers(0, 2, (24, 24, 3), "u1")}
        write(path.with_name(f"volume_1_slice_{number}.h5"), arrays)
        truth.append({**arrays, "key": f"volume_1_slice_{number}"})
    return truth


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


def opaque_pictures(path: Path) -> Truth:
    """Sixty JPEGs as opaque scalars, some with NULs at their end, under the same five names in twelve groups."""
    places = [(f"g{at:02}", name) for at in range(12) for name in ("ant", "bee", "cow", "dog", "emu")]
    blobs = [jpeg(at) + bytes(at % 3) for at in range(60)]
    write(path, {"/".join(place): np.void(blob) for place, blob in zip(places, blobs, strict=True)})
    return [{"image": blobs[at], "scene": group, "key": f"{group}/{name}"} for at, (group, name) in enumerate(places)]


def class_groups(path: Path) -> Truth:
    """A group of JPEGs, as bytes, for each class."""
    truth = []
    with h5py.File(path, "w") as file:
        for label, name in enumerate(("Ant", "bee")):
            for at in range(5 + label):
                file[f"{name}/n0144_{at}.JPEG"] = np.frombuffer(blob(at + label), "u1")
                truth.append({"image": blob(at + label), "label": label, "key": f"{name}/n0144_{at}.JPEG"})
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


def _by(**columns: str) -> dict[str, Any]:
    return {"columns": {{"every": "*", "attributes": "@"}.get(name, name): place for name, place in columns.items()}}


_SUFFIXES = {"cls": "{label}/{}.cls", "jpg": "{label}/{}.jpg"}

HDF5: dict[str, LayoutCase] = {
    # These open without arguments.
    **{
        write.__name__: LayoutCase(write, "parallel", file="store.h5")
        for write in (contiguous, chunked, vlen_jpeg, opaque_jpeg, string_jpeg, matlab, pytables, aloha)
    },
    "pcam": LayoutCase(pcam, "pcam", file="split_train_x.h5"),
    "many_files": LayoutCase(many_files, "concatenated", file="store.h5", url="store_*.h5"),
    "robomimic": LayoutCase(robomimic, "per_episode", file="store.h5"),
    "video_jpegs": LayoutCase(video_jpegs, "per_video", file="store.h5"),
    "video_arrays": LayoutCase(video_arrays, "per_video", file="store.h5"),
    # These need a line.
    **{
        write.__name__: LayoutCase(write, "columns", arguments, False, "store.h5")
        for write, arguments in (
            (numbered_arrays, _by(every="{}", attributes="{}")),
            (opaque_pictures, _by(image="{scene}/{}")),
            (class_groups, _by(every="{label}/{}")),
            (numbered_pairs, _by(image="image_{}", label="label_{}", place="image_{}@place")),
            (pairs_by_suffix, {"columns": _SUFFIXES}),
        )
    },
    **{
        write.__name__: LayoutCase(write, layout, {"layout": layout}, False, "store.h5")
        for write, layout in (
            (aloha_compressed, "parallel"),
            (video_numbered, "per_video"),
            (sample_groups, "per_sample"),
            (sample_groups_with_attributes, "per_sample"),
        )
    },
    "brats": LayoutCase(brats, "concatenated", {"layout": "per_file"}, False, "store.h5", "volume_*.h5"),
}
"""Every HDF5 store of the tests, by name."""
