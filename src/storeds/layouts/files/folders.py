"""Folders of images, with one sub-folder per class or without."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, suggest
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.rows import Bad, Row, Rows, from_start
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Root, Walk, folders_in, is_folder, is_hidden, show
from storeds.protocols import JSON, Field
from storeds.values.text import is_int

__all__ = ["class_labels", "class_notes", "flat", "imagefolder"]


def class_notes(classes: Sequence[str]) -> list[str]:
    """Return a warning about class names that look like labels, and are not in their order."""
    if not classes or not all(map(is_int, classes)):
        return []
    moved = next((label for label, name in enumerate(classes) if int(name) != label), None)
    if moved is None or sorted(classes, key=int) == list(classes):
        return []
    return [
        "classes are sorted as text, as ImageFolder sorts them, so labels are not the numbers in their names: class "
        f"{classes[moved]!r} is label {moved}"
    ]


_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev"}
_COMPARED = 1000  # files of a folder


def _doubts(path: str, folders: Sequence[str]) -> list[str]:
    """Return a warning about folders that are taken for classes, and may be splits, or images and their masks."""
    if len(folders) > 1 and {name.lower() for name in folders} <= _SPLITS:
        return [f"{some(map(show, folders))} are taken for classes; if they are splits, name one: {show(folders[0])}"]
    if len(folders) == 2:
        one, other = (_suffixes(os.path.join(path, name)) for name in folders)
        if one and one.keys() == other.keys() and not {*one.values()} & {*other.values()}:
            both = " and ".join(map(show, folders))
            return [
                f"{both} hold files of the same names, and are taken for classes; if one holds masks, say layout='masks' "
                "(--kind masks of pack), image_folder= and mask_folder="
            ]
    return []


def _suffixes(folder: str) -> dict[str, str]:
    """Return the suffix of each of the first files of a folder, by its name without it; none if it cannot be listed."""
    with suppress(OSError), os.scandir(folder) as entries:
        return dict(os.path.splitext(entry.name) for entry in islice(entries, _COMPARED))
    return {}


_SUFFIXES = " ".join(IMAGE_SUFFIXES)


def class_labels(
    path: str, folders: Sequence[str], classes: Sequence[str] | os.PathLike[str] | None
) -> tuple[dict[str, int], list[str]]:
    """Return the label of each class folder, and the class names: those given, or the names of the folders.

    Raises
    ------
    ConfigError
        A folder is none of the classes given.
    """
    given = unique_classes(classes)
    if given is None:
        return {name: label for label, name in enumerate(folders)}, list(map(show, folders))
    for name in folders:
        if name not in given:
            raise ConfigError(
                f"{path}: the folder {show(name)!r} is none of the classes given; {suggest(show(name), given, 'classes')}; add it to "
                "classes= (--classes), or move it out"
            )
    return {name: given.index(name) for name in folders}, given


def imagefolder(
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    allow_empty: bool = False,
) -> Rows:
    """Rows of a folder with one sub-folder per class, in the order and with the labels of torchvision's ImageFolder.

    Parameters
    ----------
    path : path
        The folder. Files directly in it have no class; they are left out, as ImageFolder leaves them out, and counted.
    classes : sequence of str or path, optional
        The class names in the order of their labels, or a file of them, of which the folder may have some only. The
        default is the names of the folders, sorted.
    allow_outside : bool
        Follow links that lead out of the folder.
    allow_empty : bool
        Accept classes without images.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It has no sub-folders, or one of them has no images, or is none of `classes`.
    """
    walk = Walk(Root(path, allow_outside=allow_outside))
    with suppress(OSError):  # the next line reports it
        walk.watch("")
    folders = folders_in(os.fspath(path), walk.hidden)
    if not folders:
        left_out = "".join(f"; {note}" for note in walk.notes())
        raise ConfigError(f"{path} has no sub-folders; expected one per class, each with its images{left_out}")
    labels, names = class_labels(os.fspath(path), folders, classes)

    def items() -> Iterator[Row | Bad]:
        empty = []
        # A class whose name is not UTF-8 is bad but keeps its place: the labels after it must not change.
        for name, label in labels.items():
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

    loose = [entry.name for entry in os.scandir(path) if not is_folder(entry) and not is_hidden(entry.name)]
    outside = [
        f"left out {counted(len(loose), 'file')} that no class folder contains: {some(map(show, sorted(loose)))}"
    ]
    return Rows(
        fields={"image": Field("image"), "label": Field("int"), "key": Field("str")},
        attrs={"classes": list[JSON](names)},
        items=from_start(items),
        notes=[*class_notes(names), *_doubts(os.fspath(path), folders)] if classes is None else [],
        late_notes=lambda: [*(outside if loose else ()), *walk.notes()],
        watched=lambda: walk.watched,
    )


def flat(path: str | os.PathLike[str], *, allow_outside: bool = False) -> Rows:
    """Rows of a folder of images without labels, including the folders below it.

    Parameters
    ----------
    path : path
        The folder.
    allow_outside
        As for `imagefolder`.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no images.
    """
    walk = Walk(Root(path, allow_outside=allow_outside))
    folders_in(os.fspath(path))

    def items() -> Iterator[Row | Bad]:
        empty = True
        for each in walk.files(""):
            empty = False
            yield each if isinstance(each, Bad) else Row(each[0], {"image": each[1], "key": each[0]})
        if empty:
            left_out = "".join(f"; {note}" for note in walk.notes())
            raise ConfigError(f"{path} contains no images ({_SUFFIXES}), not even in folders below it{left_out}")

    return Rows(
        fields={"image": Field("image"), "key": Field("str")},
        items=from_start(items),
        late_notes=walk.notes,
        watched=lambda: walk.watched,
    )
