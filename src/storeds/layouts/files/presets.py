"""The arrangements of folders and tar files that open as stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from storeds.layouts.files.folders import flat, imagefolder
from storeds.layouts.files.masks import masks
from storeds.layouts.files.rows import Rows
from storeds.layouts.files.tars import tar

__all__ = ["PRESETS", "FilesPreset"]


@dataclass(frozen=True)
class FilesPreset:
    """One arrangement.

    Attributes
    ----------
    rows : callable
        Lists its rows: ``rows(path, **options)``.
    about : str
        What one record is, for `storeds formats`.
    why : str
        Why a path is certainly this.
    columns : mapping
        Its pattern; none, since its options say more.
    """

    rows: Callable[..., Rows]
    about: str
    why: str
    columns: Mapping[str, str] = field(default_factory=dict)


PRESETS: dict[str, FilesPreset] = {
    "imagefolder": FilesPreset(
        imagefolder,
        "an image of a folder with one sub-folder per class, the label",
        "it is a folder with folders of images, which are its classes",
    ),
    "flat": FilesPreset(flat, "an image of a folder", "it is a folder of images without folders"),
    "masks": FilesPreset(
        masks,
        "an image and the mask of the same name in another folder",
        "its folders have the names of images and their masks",
    ),
    "tar": FilesPreset(
        tar,
        "members of tar files with the same name up to the first dot",
        "it is a tar file, a folder or a pattern of them",
    ),
}
"""The name of a layout → what it is."""
