"""The named ways to read stores of other tools: one table for all engines. `storeds formats` lists it, ``layout=`` selects from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storeds.registry import FOREIGN

__all__ = ["PRESETS", "Preset", "layouts", "presets_of"]


@dataclass(frozen=True)
class Preset:
    """A named way to read the stores of one tool or one habit.

    Attributes
    ----------
    engine : str
    about : str
        What a record is, as half a sentence.
    options : str
        The import string of the class or function whose parameters are its options.
    columns : mapping of str to str
        The pattern, as an example where it depends on the names in the store; empty for folders, whose options say more.
    codec : str
        The form of the values, a name of `storeds.values.codecs.CODECS`; ``""`` where the values show it.
    certain : str
        Why a store is certainly of this layout, where that is the same for every store.
    """

    engine: str
    about: str
    options: str
    columns: Mapping[str, str] = field(default_factory=dict)
    codec: str = ""
    certain: str = ""


_LMDB = "storeds.layouts.lmdb.environment:ForeignOptions"
_HDF5 = "storeds.layouts.hdf5.files:ForeignOptions"
_WHOLE_VALUE = {"*": "{}"}
_OF_OCR = {"image": "image-{}", "label": "label-{}"}

PRESETS: Mapping[str, Preset] = {
    "caffe": Preset("lmdb", "a Datum message of Caffe", _LMDB, _WHOLE_VALUE, "datum"),
    "json": Preset(
        "lmdb", "a value in JSON, plain or compressed, such as in .aselmdb files", _LMDB, _WHOLE_VALUE, "json"
    ),
    "keyed": Preset(
        "lmdb", "an encoded image or video, as BasicSR, mmengine and LSUN store them", _LMDB, {"image": "{}"}
    ),
    "msgpack": Preset("lmdb", "a value in msgpack, plain or compressed by lz4", _LMDB, _WHOLE_VALUE, "msgpack"),
    "npz": Preset("lmdb", "an archive of NumPy", _LMDB, _WHOLE_VALUE, "npz"),
    "ocr": Preset(
        "lmdb",
        "an image and a word, as deep-text-recognition-benchmark stores them; num-samples counts them",
        _LMDB,
        _OF_OCR,
    ),
    "pickled": Preset("lmdb", "a pickled value", _LMDB, _WHOLE_VALUE, "pickle"),
    "tensorpack": Preset(
        "lmdb",
        "a list in pickle or msgpack, as LMDBSerializer of tensorpack writes them",
        _LMDB,
        _WHOLE_VALUE,
        "tensorpack",
    ),
    "parallel": Preset("hdf5", "a row of each dataset", _HDF5, {"*": "**[]"}),
    "per_file": Preset("hdf5", "a file", _HDF5, {"*": "**", "@": "/"}),
    "per_sample": Preset("hdf5", "a group of datasets", _HDF5, {"*": "{}/**", "@": "{}/**"}),
    "per_video": Preset(
        "hdf5", "a frame of a video; each group is a video", _HDF5, {"*": "{video}/**[]", "@": "{video}"}
    ),
    "per_episode": Preset(
        "hdf5",
        "a step of a demonstration, as robomimic, robosuite and LIBERO write them",
        _HDF5,
        {"*": "data/{episode}/**[]"},
    ),
    "pcam": Preset(
        "hdf5", "a row of PatchCamelyon's …_x.h5 and …_y.h5", _HDF5, {"image": "x[]", "label": "…_y.h5::y[]"}
    ),
    "named": Preset(
        "mongodb",
        "a document that a JSON index names",
        "storeds.layouts.mongodb.named:NamedOptions",
        {"key": "img_name", "image": "bson_img"},
    ),
    "query": Preset(
        "mongodb",
        "a document that a query finds, or an element of a list in it",
        "storeds.layouts.mongodb.query:ColumnOptions",
        {"image": "crops[].image"},
    ),
    "gridfs": Preset(
        "mongodb",
        "a file of a GridFS bucket",
        "storeds.layouts.mongodb.gridfs:GridfsOptions",
        {"label": "metadata.label"},
    ),
    "imagefolder": Preset(
        "files",
        "an image of a folder with one sub-folder per class, the label",
        "storeds.layouts.files.folders:imagefolder",
        certain="it is a folder with folders of images, which are its classes",
    ),
    "flat": Preset(
        "files",
        "an image of a folder",
        "storeds.layouts.files.folders:flat",
        certain="it is a folder of images without folders",
    ),
    "masks": Preset(
        "files",
        "an image and the mask of the same name in another folder",
        "storeds.layouts.files.masks:masks",
        certain="its folders have the names of images and their masks",
    ),
    "tar": Preset(
        "files",
        "members of tar files with the same name up to the first dot",
        "storeds.layouts.files.tars:tar",
        certain="it is a tar file, a folder or a pattern of them",
    ),
}
"""The name of a layout → how it is read."""

_NEEDS = {"lmdb": "lmdb", "hdf5": "h5py", "mongodb": "pymongo", "files": ""}


def presets_of(engine: str) -> dict[str, Preset]:
    """Return the presets of an engine, by name."""
    return {name: preset for name, preset in PRESETS.items() if preset.engine == engine}


def layouts() -> dict[str, tuple[str, str]]:
    """Return the name of each layout with its scheme, as ``lmdb/keyed``, and what opens it: an import string and the package it needs."""
    return {
        f"{scheme}/{name}": (opener, _NEEDS[preset.engine])
        for scheme, opener in FOREIGN.items()
        for name, preset in presets_of(scheme.partition("+")[0]).items()
    }
