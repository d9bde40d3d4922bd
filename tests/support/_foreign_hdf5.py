"""Foreign HDF5 files, written with plain h5py or PyTables as other programs write them, and their records.

Nothing here uses `storeds`. Each writer returns the records that must be read from the file, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from _layout_case import LayoutCase, Truth
from photographs import jpeg, photograph

__all__ = ["HDF5", "blob", "chunked", "class_groups", "pixels", "video_jpegs", "video_numbered", "vlen_jpeg", "write"]

N = 12
ROWS = range(N)
Arrays = Mapping[str, Any]
DRAW = np.random.default_rng(1)
LENGTHS = {"walk_2": 3, "walk_10": 5, "run": 1, "jump": 4}
ORDER = ("jump", "run", "walk_2", "walk_10")  # natural order


def pixels(count: int = N, size: tuple[int, int] = (24, 16)) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(photograph(at, size)) for at in range(count)])


def blob(at: int) -> bytes:
    return jpeg(at, (32 + at, 24))


def raw(content: bytes) -> np.ndarray[Any, Any]:
    """Return bytes as most programs store them: an array of uint8."""
    return np.frombuffer(content, "u1")


def vlen(rows: Iterable[Any], dtype: str = "u1") -> np.ndarray[Any, Any]:
    """Return rows of different lengths, as one dataset stores them."""
    every = list(rows)
    found = np.empty(len(every), h5py.vlen_dtype(dtype))
    for at, row in enumerate(every):
        found[at] = raw(row) if isinstance(row, bytes) else row
    return found


def write(path: Path, values: Arrays) -> Path:
    """Write datasets by path; a mapping has the arguments of `create_dataset`, and ``place@name`` is an attribute."""
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            place, is_attribute, attribute = name.partition("@")
            if is_attribute:
                file[place or "/"].attrs[attribute] = value
            elif isinstance(value, Mapping):
                file.create_dataset(name, **value)
            else:
                file[name] = value
    return path


def rows_of(columns: Arrays) -> Truth:
    """Return the records of columns of one length."""
    return [dict(zip(columns, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def chunked(path: Path) -> Truth:
    """`data` and `label`, as in most tutorials."""
    columns = {"data": pixels(), "label": np.arange(N) % 3}
    how = {"chunks": (5, 16, 24, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}
    label = columns["label"].astype(">i4")
    write(path, {"data": {"data": columns["data"], **how}, "label": label, "classes": [b"cat", b"dog", b"emu"]})
    return rows_of(columns)


def vlen_jpeg(path: Path) -> Truth:
    columns: dict[str, Any] = {
        "Images": [blob(at) for at in ROWS],
        "boxes": [np.arange(at % 4, dtype="<i2") for at in ROWS],
        "good": [at % 2 == 0 for at in ROWS],
        "name": [f"№ {at}" for at in ROWS],
        "score": np.linspace(0, 1, N, dtype=">f4"),
    }
    stored = {**columns, "Images": vlen(columns["Images"]), "boxes": vlen(columns["boxes"], "<i2")}
    write(path, {f"train/{name}": column for name, column in stored.items()})
    return rows_of({name.lower(): column for name, column in columns.items()})


def opaque_jpeg(path: Path) -> Truth:
    blobs = [blob(at) for at in ROWS]
    padded = [np.void(each.ljust(max(map(len, blobs)) + 3, b"\0")) for each in blobs]
    write(path, {"image": np.array(padded), "label": np.arange(N, dtype="u8")})
    return rows_of({"image": blobs, "label": ROWS})


def string_jpeg(path: Path) -> Truth:
    """JPEGs as strings of fixed length. HDF5 stores them whole, but returns them up to their first NUL."""
    blobs = [blob(at) for at in ROWS]
    values = np.array(blobs, f"S{max(map(len, blobs)) + 1}")
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(values.itemsize)
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    with h5py.File(write(path, {"label": np.arange(N)}), "a") as file:
        dataset = h5py.h5d.create(file.id, b"image", kind, h5py.h5s.create_simple((N,)))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
    return rows_of({"image": blobs, "label": ROWS})


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
        kinds = {
            "X": "uint8",
            "packed": "uint8",
            "row": "int32",
            "scale": "double",
            "title": "char",
            "column": "double",
        }
        for name, kind in kinds.items():
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + path.read_bytes()[512:])
    return rows_of({"x": data, "column": label.astype("f8"), "packed": label, "row": label})


def many_files(path: Path) -> Truth:
    """Columns in several files, which a pattern reads as one store."""
    data = pixels()
    for part, rows in enumerate((range(5), range(5, 6), range(6, N))):
        file = path.with_name(f"{path.stem}_{part}.h5")
        write(file, {"data": data[list(rows)], "label": np.array(rows, ">i8")})
    return rows_of({"data": data, "label": ROWS})


def pcam(path: Path) -> Truth:
    """PatchCamelyon: images in one file, labels of shape (N, 1, 1, 1) in another of the folder, ``split_train_y.h5``."""
    data, label = pixels(), (np.arange(N) % 2).astype("u1")
    write(path, {"x": {"data": data, "chunks": (4, 16, 24, 3), "compression": "gzip"}})
    write(path.with_name("split_train_y.h5"), {"y": label.reshape(N, 1, 1, 1)})
    return rows_of({"image": data, "label": label})


def pytables(path: Path) -> Truth:
    tables: Any = pytest.importorskip("tables")
    columns: dict[str, Any] = {
        "c_array": pixels(),
        "e_array": np.arange(3 * N, dtype="f4").reshape(N, 3),
        "labels": np.arange(N),
        "table_number": np.arange(N) ** 2,
        "table_word": [f"w{at}" for at in ROWS],
        "vl_array": [blob(at) for at in ROWS],
    }
    with tables.open_file(str(path), "w") as file:
        file.create_carray("/", "c_array", obj=columns["c_array"], filters=tables.Filters(complevel=5, complib="zlib"))
        file.create_earray("/", "e_array", tables.Float32Atom(), (0, 3)).append(columns["e_array"])
        file.create_array("/", "labels", columns["labels"])
        jpegs = file.create_vlarray("/", "vl_array", tables.UInt8Atom())
        for each in columns["vl_array"]:
            jpegs.append(raw(each))
        table = file.create_table("/", "table", {"number": tables.Int32Col(), "word": tables.StringCol(5)})
        table.append([*zip(columns["table_number"], columns["table_word"], strict=True)])
        table.flush()
        table.cols.number.create_index()
    return rows_of(columns)


def aloha(path: Path) -> Truth:
    """An episode as ALOHA records it."""
    arrays = {name: DRAW.random((40, 14)) for name in ("action", "observations/qpos", "observations/qvel")}
    frames = pixels(40, (32, 24))
    write(path, {**arrays, "@sim": True, "observations/images/top": {"data": frames, "chunks": (1, 24, 32, 3)}})
    return _named_by_path({**arrays, "observations/images/top": frames})


def _named_by_path(arrays: Arrays) -> Truth:
    return rows_of({name.replace("/", "_"): array for name, array in arrays.items()})


def aloha_compressed(path: Path) -> Truth:
    """The same with JPEGs padded to one length, as ALOHA's converter writes."""
    blobs = [jpeg(at, (32, 24)) for at in range(40)]
    padded = np.stack([raw(each.ljust(max(map(len, blobs)), b"\0")) for each in blobs])
    lengths = np.array([[len(each) for each in blobs]], "f4")
    write(path, {"action": np.zeros((40, 14)), "observations/images/top": padded, "compress_len": lengths})
    return rows_of({"action": np.zeros((40, 14)), "observations_images_top": blobs})


def robomimic(path: Path) -> Truth:
    """Demonstrations as robomimic's `dataset_states_to_obs.py` writes them."""
    values: dict[str, Any] = {
        "mask/train": np.array(["demo_2", "demo_0"], "S"),
        "mask/valid": np.array(["demo_1"], "S"),
    }
    truth = []
    for at, steps in enumerate((9, 11, 10)):
        arrays = {"actions": DRAW.random((steps, 7)), "dones": np.eye(1, steps, steps - 1, dtype="u1")[0]}
        for name in ("obs/agentview_image", "next_obs/agentview_image"):
            arrays[name] = DRAW.integers(0, 256, (steps, 12, 12, 3), "u1")
        values |= {f"data/demo_{at}/{name}": rows for name, rows in arrays.items()}
        values |= {f"data/demo_{at}@model_file": "<mujoco/>" * 1000, "data@env_args": '{"env_name": "Lift"}'}
        for step, record in enumerate(_named_by_path(arrays)):
            truth.append({**record, "episode": at, "step": step, "key": f"demo_{at}/{step}"})
    write(path, values)
    return truth


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
    values: dict[str, Any] = {}
    for number, name in enumerate(ORDER):
        count = LENGTHS[name]
        values[f"{name}/frames"] = vlen(blob(number + frame) for frame in range(count))
        values |= {f"{name}/time": np.arange(count) / 25, f"{name}@label": number, f"{name}@fps": 25.0}
    write(path, values)
    return _videos("image", blob, lambda name, frame: {"time": frame / 25, "label": ORDER.index(name), "fps": 25.0})


def video_numbered(path: Path) -> Truth:
    """A dataset for each frame, `8` … `12`, in each video's group."""
    values: dict[str, Any] = {}
    for number, name in enumerate(ORDER):
        values |= {f"{name}/{frame + 8}": raw(blob(number + frame)) for frame in range(LENGTHS[name])}
        values[f"{name}@label"] = number
    write(path, values)
    truth = _videos("image", blob, lambda name, frame: {"label": ORDER.index(name)})
    return [{**record, "frame": record["frame"] + 8} for record in truth]


def opaque_pictures(path: Path) -> Truth:
    """Sixty JPEGs as opaque scalars, some with NULs at their end, under the same five names in twelve groups."""
    places = [(f"g{at:02}", name) for at in range(12) for name in ("ant", "bee", "cow", "dog", "emu")]
    blobs = [jpeg(at) + bytes(at % 3) for at in range(60)]
    write(path, {"/".join(place): np.void(each) for place, each in zip(places, blobs, strict=True)})
    return [{"image": blobs[at], "scene": group, "key": f"{group}/{name}"} for at, (group, name) in enumerate(places)]


def class_groups(path: Path) -> Truth:
    """A group of JPEGs, as bytes, for each class."""
    truth: Truth = [
        {"image": blob(at + label), "label": label, "key": f"{name}/n0144_{at}.JPEG"}
        for label, name in enumerate(("Ant", "bee"))
        for at in range(5 + label)
    ]
    write(path, {record["key"]: raw(record["image"]) for record in truth})
    return truth


def sample_groups(path: Path) -> Truth:
    """A group for each sample, in a group of their own: JPEG, label and boxes as datasets, text as an attribute."""
    columns = {
        "boxes": [np.arange(4 * (at % 3), dtype="<f4").reshape(-1, 4) for at in ROWS],
        "image": [blob(at) for at in ROWS],
        "label": np.arange(N) % 3,
        "key": [f"sample_{at}" for at in ROWS],
        "text": [f"№ {at}" for at in ROWS],
        "width": [32 + at for at in ROWS],
    }
    values: dict[str, Any] = {}
    for record in (truth := rows_of(columns)):
        group = f"data/{record['key']}"
        values |= {f"{group}/image": raw(record["image"]), f"{group}/label": np.array([record["label"]], ">i4")}
        values |= {f"{group}/boxes": record["boxes"].astype(">f4"), f"{group}@text": record["text"]}
        values[f"{group}/image@width"] = record["width"]
    write(path, values)
    return truth


def numbered_pairs(path: Path) -> Truth:
    """`/image_0`, `/label_0`, `/image_1` …, of different sizes, each image with an attribute."""
    images, values = [pixels(1, (8 + at, 9))[0] for at in ROWS], dict[str, Any]()
    for at in ROWS:
        values[f"image_{at}"] = {"data": images[at], "compression": "gzip" if at % 2 else None}
        values |= {f"label_{at}": at % 3, f"image_{at}@place": f"p{at}"}
    write(path, values)
    labels = np.arange(N) % 3
    return rows_of({"image": images, "label": labels, "key": map(str, ROWS), "place": [f"p{at}" for at in ROWS]})


def pairs_by_suffix(path: Path) -> Truth:
    """`/0001.jpg`, `/0001.cls` …, in a group for each class."""
    truth: Truth = [
        {"cls": f"{name}{at}", "jpg": blob(at), "label": label, "key": f"{name}/{at:04}"}
        for label, name in enumerate("ab")
        for at in range(3)
    ]
    values: dict[str, Any] = {}
    for record in truth:
        values |= {f"{record['key']}.jpg": raw(record["jpg"]), f"{record['key']}.cls": record["cls"]}
    write(path, values)
    return truth


_COLUMNS: list[tuple[Callable[[Path], Truth], dict[str, str]]] = [
    (opaque_pictures, {"image": "{scene}/{}"}),
    (class_groups, {"*": "{label}/{}"}),
    (numbered_pairs, {"image": "image_{}", "label": "label_{}", "@": "image_{}"}),
    (pairs_by_suffix, {"cls": "{label}/{}.cls", "jpg": "{label}/{}.jpg"}),
]
_PRESETS: list[tuple[Callable[[Path], Truth], str]] = [
    (aloha_compressed, "parallel"),
    (video_numbered, "per_video"),
    (sample_groups, "per_sample"),
]

HDF5: dict[str, LayoutCase] = {
    # These open without arguments.
    **{
        write.__name__: LayoutCase(write, "parallel", file="store.h5")
        for write in (chunked, vlen_jpeg, opaque_jpeg, string_jpeg, matlab, pytables, aloha)
    },
    "pcam": LayoutCase(pcam, "pcam", file="split_train_x.h5"),
    "many_files": LayoutCase(many_files, "concatenated", file="store.h5", url="store_*.h5"),
    "robomimic": LayoutCase(robomimic, "per_episode", file="store.h5"),
    "video_jpegs": LayoutCase(video_jpegs, "per_video", file="store.h5"),
    # These need a line.
    **{
        write.__name__: LayoutCase(write, "columns", {"columns": columns}, False, "store.h5")
        for write, columns in _COLUMNS
    },
    **{write.__name__: LayoutCase(write, layout, {"layout": layout}, False, "store.h5") for write, layout in _PRESETS},
    "brats": LayoutCase(brats, "concatenated", {"layout": "per_file"}, False, "store.h5", "volume_*.h5"),
}
"""Every HDF5 store of the tests, by name."""
