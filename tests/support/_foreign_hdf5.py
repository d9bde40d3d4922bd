"""Foreign HDF5 files, written with plain h5py or PyTables as other programs write them, and their records.

Nothing here uses `storeds`. Each writer returns the records that must be read from the file, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import _foreign_hdf5_groups as groups
import _foreign_hdf5_tools as tools
from _foreign_hdf5_groups import N, Truth, blob, pixels

__all__ = ["STORES", "LayoutCase", "chunked", "vlen_jpeg"]


@dataclass(frozen=True)
class LayoutCase:
    """How to write a store, and how to read it.

    Attributes
    ----------
    write : callable
        Writes it to a path, and returns its records.
    layout : str
        The layout of the opened store.
    arguments : mapping
        Of `storeds.open_backend`; empty for a store that opens without any.
    file : str
        The name to write to.
    url : str
        The name or pattern to open.
    """

    write: Callable[[Path], Truth]
    layout: str = "columns"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    file: str = "store.h5"
    url: str = "store.h5"


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


def string_jpeg_chunked(path: Path) -> Truth:
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=np.array([blob(at) for at in range(N)]), chunks=(5,), compression="gzip")
        file["label"] = np.arange(N)
    return [{"image": blob(at), "label": at} for at in range(N)]


def virtual(path: Path) -> Truth:
    """A virtual dataset over two files of the folder, and labels through a link into one of them."""
    data = pixels()
    layout = h5py.VirtualLayout(data.shape, "u1")
    for part in range(2):
        other = path.with_name(f"{path.stem}_part{part}.hdf")
        with h5py.File(other, "w") as file:
            file["data"], file["labels"] = data[part::2], np.arange(N)
        layout[part::2] = h5py.VirtualSource(other.name, "data", data[part::2].shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("data", layout)
        file["label"] = h5py.ExternalLink(other.name, "/labels")
    return [{"data": data[at], "label": at} for at in range(N)]


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


def _by(**columns: str) -> dict[str, Any]:
    return {"columns": {{"every": "*", "attributes": "@"}.get(name, name): place for name, place in columns.items()}}


_SUFFIXES = {"cls": "{label}/{}.cls", "jpg": "{label}/{}.jpg"}
_FIELDS = {name: f"{name}/{{}}" for name in ("images", "labels", "masks")}

STORES: dict[str, LayoutCase] = {
    # These open without arguments.
    **{
        write.__name__: LayoutCase(write, "parallel")
        for write in (
            contiguous,
            chunked,
            lzf,
            vlen_jpeg,
            opaque_jpeg,
            string_jpeg,
            string_jpeg_chunked,
            virtual,
            matlab,
            pytables,
            tools.aloha,
            tools.variable_blobs,
        )
    },
    "pcam": LayoutCase(pcam, "pcam", file="split_train_x.h5", url="split_train_x.h5"),
    "many_files": LayoutCase(many_files, "concatenated", url="store_*.h5"),
    "robomimic": LayoutCase(tools.robomimic, "per_episode"),
    "libero": LayoutCase(tools.libero, "per_episode"),
    "video_jpegs": LayoutCase(groups.video_jpegs, "per_video"),
    "video_arrays": LayoutCase(groups.video_arrays, "per_video"),
    "video_arrays_of_a_group": LayoutCase(groups.video_arrays, "per_video", {"group": "videos"}),
    # These need a line.
    "aloha_compressed": LayoutCase(tools.aloha_compressed, "parallel", {"layout": "parallel"}),
    "pcam_by_hand": LayoutCase(pcam, arguments=_by(image="x[]", label="split_train_y.h5::y[]")),
    "video_numbered": LayoutCase(groups.video_numbered, "per_video", {"layout": "per_video"}),
    "video_digits": LayoutCase(groups.video_digits, "per_video", {"layout": "per_video"}),
    "video_features": LayoutCase(tools.video_features, arguments=_by(array="{clip}/{segment}")),
    "numbered_arrays": LayoutCase(groups.numbered_arrays, "per_sample", {"layout": "per_sample"}),
    "opaque_samples": LayoutCase(groups.opaque_samples, arguments=_by(every="{}")),
    "opaque_pictures": LayoutCase(tools.opaque_pictures, arguments=_by(image="{scene}/{}")),
    "cats_and_dogs": LayoutCase(tools.cats_and_dogs, arguments=_by(image="{}")),
    "padded_blobs": LayoutCase(tools.padded_blobs, "per_sample", {"layout": "per_sample"}),
    "class_groups": LayoutCase(groups.class_groups, arguments=_by(every="{label}/{}")),
    "digit_named": LayoutCase(groups.digit_named, arguments=_by(array="{label}/{}")),
    "sample_groups": LayoutCase(groups.sample_groups, "per_sample", {"layout": "per_sample"}),
    "sample_groups_with_attributes": LayoutCase(
        groups.sample_groups_with_attributes, "per_sample", {"layout": "per_sample"}
    ),
    "sample_groups_in_classes": LayoutCase(groups.sample_groups_in_classes, arguments=_by(every="{class}/{}/**")),
    "numbered_pairs": LayoutCase(
        groups.numbered_pairs, arguments=_by(image="image_{}", label="label_{}", place="image_{}@place")
    ),
    "pairs_by_suffix": LayoutCase(groups.pairs_by_suffix, arguments={"columns": _SUFFIXES}),
    "field_groups": LayoutCase(groups.field_groups, arguments={"columns": _FIELDS}),
    "super_resolution": LayoutCase(tools.super_resolution, arguments=_by(lr="lr/{}", hr="hr/{}")),
    "brats": LayoutCase(tools.brats, "concatenated", {"layout": "per_file"}, url="volume_*.h5"),
}
"""Every store of the tests, by name."""
