"""Folders of images and tar shards, which open as stores too: their rows are those of `storeds.layouts.files`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from storeds.errors import ConfigError
from storeds.formats.format import Format
from storeds.layouts.files import folders
from storeds.layouts.files.masks import masks
from storeds.layouts.files.rows import Rows
from storeds.layouts.files.tars import tar

__all__ = ["FLAT", "IMAGEFOLDER", "MASKS", "TAR", "flat", "imagefolder"]


def imagefolder(
    path: str | os.PathLike[str],
    *,
    label: bool = True,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    allow_empty: bool = False,
) -> Rows:
    """Rows of a folder with one sub-folder per class, as `storeds.layouts.files.folders.imagefolder` lists them.

    Parameters
    ----------
    path : path
        The folder.
    label : bool
        False to pack all images below the folder without labels, as `flat` does.
    classes : sequence of str or path, optional
        The class names in the order of their labels, or a file of them; by default the names of the folders, sorted.
    allow_outside : bool
        Follow links that lead out of the folder.
    allow_empty : bool
        Accept classes without images.
    """
    if label:
        return folders.imagefolder(path, classes=classes, allow_outside=allow_outside, allow_empty=allow_empty)
    if classes is not None or allow_empty:
        raise ConfigError(
            f"{path}: classes and allow_empty are for labels; leave them out beside label=False (--no-label)"
        )
    return folders.flat(path, allow_outside=allow_outside)


def flat(path: str | os.PathLike[str], *, label: bool = False, allow_outside: bool = False) -> Rows:
    """Rows of a folder of images without labels, as `storeds.layouts.files.folders.flat` lists them.

    Parameters
    ----------
    path : path
        The folder.
    label : bool
        True is an error: nothing gives the labels.
    allow_outside : bool
        Follow links that lead out of the folder.
    """
    if label:
        raise ConfigError(
            f"{path} contains only images, and no sub-folder or list gives their labels; remove label=True (--label)"
        )
    return folders.flat(path, allow_outside=allow_outside)


IMAGEFOLDER = Format(
    about="a folder with one sub-folder of images per class, as torchvision's ImageFolder", read=imagefolder
)
FLAT = Format(about="a folder of images without labels", read=flat)
MASKS = Format(about="a folder of images, and one of masks with the same names", read=masks)
TAR = Format(
    about="tar shards of WebDataset: files with the same name up to the first dot are a record",
    read=tar,
    takes_objects=True,
)
