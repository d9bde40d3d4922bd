"""Sources for folders of images: one sub-folder per class, as torchvision's ImageFolder reads them, or no classes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from storeds._utils.text import some
from storeds.errors import ConfigError
from storeds.ops.packing.rows import Bad, Row, Rows, from_start
from storeds.ops.packing.sources.paths import IMAGE_SUFFIXES, Root, Walk, class_notes, folders_in, show
from storeds.protocols import Field

__all__ = ["flat", "imagefolder"]

_SUFFIXES = " ".join(IMAGE_SUFFIXES)


def imagefolder(
    path: str | os.PathLike[str],
    *,
    allow_outside: bool = False,
    allow_empty: bool = False,
    include_hidden: bool = False,
) -> Rows:
    """Rows of a folder with one sub-folder per class, in the order and with the labels of torchvision's ImageFolder.

    Parameters
    ----------
    path : path
        The folder. Images directly in it have no class; they are left out, as ImageFolder leaves them out.
    allow_outside : bool
        Follow links that lead out of the folder.
    allow_empty : bool
        Accept classes without images.
    include_hidden : bool
        Include hidden files, and hidden folders as classes: ``.git``, ``.ipynb_checkpoints``, ``__MACOSX``.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It has no sub-folders, or one of them has no images.
    """
    root = Root(path, allow_outside=allow_outside)
    walk = Walk(root, include_hidden=include_hidden)
    classes = folders_in(os.fspath(path), walk.hidden)
    if not classes:
        left_out = "".join(f"; {note}" for note in walk.notes())
        raise ConfigError(f"{path} has no sub-folders; expected one per class, each with its images{left_out}")

    def items() -> Iterator[Row | Bad]:
        empty = []
        # A class whose name is not UTF-8 is bad but keeps its place: the labels after it must not change.
        for label, name in enumerate(classes):
            found = False
            for each in walk.files(name):
                found = True
                yield (
                    each if isinstance(each, Bad) else Row(each[0], {"image": each[1], "label": label, "key": each[0]})
                )
            if not found:
                empty.append(show(name))
        if empty and not allow_empty:
            raise ConfigError(
                f"{path}: no images in {some(empty, 8)}; remove these folders, put images ({_SUFFIXES}) in, or pass "
                "allow_empty=True (--option allow_empty=true)"
            )
        rows.notes = [*class_notes(classes), *walk.notes()]

    rows = Rows(
        fields={"image": Field("image"), "label": Field("int"), "key": Field("str")},
        attrs={"classes": [show(name) for name in classes]},
        items=from_start(items),
    )
    return rows


def flat(path: str | os.PathLike[str], *, allow_outside: bool = False, include_hidden: bool = False) -> Rows:
    """Rows of a folder of images without labels, including the folders below it.

    Parameters
    ----------
    path : path
        The folder.
    allow_outside : bool
        Follow links that lead out of the folder.
    include_hidden : bool
        Include hidden files and folders.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no images.
    """
    walk = Walk(Root(path, allow_outside=allow_outside), include_hidden=include_hidden)
    folders_in(os.fspath(path))

    def items() -> Iterator[Row | Bad]:
        empty = True
        for each in walk.files(""):
            empty = False
            yield each if isinstance(each, Bad) else Row(each[0], {"image": each[1], "key": each[0]})
        rows.notes = walk.notes()
        if empty:
            left_out = "".join(f"; {note}" for note in rows.notes)
            raise ConfigError(f"{path} contains no images ({_SUFFIXES}), not even in folders below it{left_out}")

    rows = Rows(fields={"image": Field("image"), "key": Field("str")}, items=from_start(items))
    return rows
