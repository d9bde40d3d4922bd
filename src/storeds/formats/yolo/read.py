"""Reads data sets of YOLO: which images are in which split, and which have a label file."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from storeds._utils.text import counted, some
from storeds.errors import ConfigError
from storeds.formats.yolo.describing import DataSet, describe
from storeds.formats.yolo.labels import LabelFile, Task, as_stored, labels_of
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows, from_start, read_file
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Root, Walk, path_fault, show
from storeds.protocols import JSON, Field, Record

__all__ = ["yolo"]

_OTHER_TEXT = re.compile(r"(classes|notes|labels|train|val|valid|test|readme.*)\.txt", re.I)


def yolo(
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a data set of YOLO: the data.yaml of Ultralytics, or a folder with ``images`` and ``labels``.

    Parameters
    ----------
    path : path
        The data.yaml, or the folder. A folder with a data.yaml is read as that file says.
    root : path, optional
        The folder that paths in a data.yaml are relative to; by default its ``path``, or its own folder.
    classes : sequence of str or path, optional
        The class names in the order of their numbers, or a file of them. The default is what data.yaml or classes.txt
        says.
    allow_outside
        As for `~storeds.layouts.files.folders.imagefolder`.

    Raises
    ------
    StoreNotFoundError
        The file or the folder does not exist.
    ConfigError
        The data.yaml is not one of YOLO; no class names are given; a split has no images, or no image has labels.
    """
    data = describe(os.fspath(path), None if root is None else os.fspath(root), classes)
    below = Root(data.root, allow_outside=allow_outside)
    listing = _Listing(data, below, Walk(below, known=(".txt",)))
    labels = LabelFile(listing.task(), len(data.classes), data.yaml.kpt_shape)
    has_splits = len({split for _, split, _ in listing.images}) > 1
    # Key → lines left out of its label file, boxes without an area, and keypoints that are perhaps not labelled.
    repeated, flat, unplaced = dict[str, int](), dict[str, int](), dict[str, int]()

    def items() -> Iterator[Row | Bad]:
        for key, split, has_labels in listing.images:
            text = below.file(labels_of(key), "its label file") if has_labels else b""
            yield Row(key, {"image": below.file(key), "labels": text, "split": split, "key": key})
        yield from listing.bad

    def finish(values: Record) -> Record:
        blob, split, key = values["image"], values["split"], str(values["key"])
        objects, lines = labels.parse(values["labels"], labels_of(key))
        for which, number in zip((repeated, flat, unplaced), lines, strict=True):
            if number:
                which[key] = number
        return {
            "image": blob,
            **as_stored(objects, blob),
            **({"split": split} if has_splits else {}),
            "key": key,
        }

    def late_notes() -> Iterator[str]:
        if repeated:
            lines = counted(sum(repeated.values()), "repeated line is", "repeated lines are")
            yield f"{lines} left out of label files, such as {labels_of(min(repeated))}"
        if flat:
            boxes = counted(sum(flat.values()), "box has", "boxes have")
            yield f"{boxes} no width or no height, such as in {labels_of(min(flat))}"
        if unplaced:
            points = counted(sum(unplaced.values()), "keypoint is", "keypoints are")
            yield (
                f"{points} 0 0, such as in {labels_of(min(unplaced))}; without a visibility, nothing tells whether they are "
                "labelled"
            )

    fields = {"image": Field("image", role="image"), **labels.fields, **({"split": Field("str")} if has_splits else {})}
    flips: dict[str, JSON] = {"flip_idx": data.yaml.flip_idx}
    attrs: dict[str, JSON] = {
        "classes": list(data.classes),
        **(flips if data.yaml.kpt_shape and isinstance(data.yaml.flip_idx, list) else {}),
        "source": {"kind": "yolo", "file": os.path.basename(data.file)},
    }
    return Rows(
        fields={**fields, "key": Field("str")},
        attrs=attrs,
        items=from_start(items),
        finish=finish,
        notes=[*data.notes, *listing.notes()],
        late_notes=late_notes,
    )


class _Listing:
    """Lists the images of a data set, and what is wrong with them and with the names of their label files.

    Attributes
    ----------
    images : list of (str, str, bool)
        The key of each good image, its split, and whether it has a label file.
    bad : list of Bad
    """

    def __init__(self, data: DataSet, root: Root, walk: Walk) -> None:
        self._data, self._root, self._walk = data, root, walk
        self.images: list[tuple[str, str, bool]] = []
        self.bad: list[Bad] = []
        self._twice = Counter[tuple[str, str]]()
        self._folders: dict[str, None] = {}  # of labels that belong to folders of images
        splits: dict[str, str] = {}  # key → split
        for split, entries in data.parts.items():
            found = [each for entry in entries for each in self._in(split, entry)]
            if not found:
                raise ConfigError(f"{data.file}: {split or 'the folder'} has no images in {some(entries)}")
            for each in found:
                if isinstance(each, Bad):
                    self.bad.append(each)
                elif each in splits:
                    self._twice[splits[each], split] += 1
                else:
                    splits[each] = split
        for key, split in splits.items():
            self._add(key, split)
        self._add_lone_labels(set(map(labels_of, splits)))
        if self.images and not any(has_labels for *_, has_labels in self.images):
            key = self.images[0][0]
            raise ConfigError(
                f"{data.file}: none of the {counted(len(self.images), 'image')} has a label file; expected, for example, "
                f"{labels_of(key)} for {key}; kind='flat' (--kind flat) packs images without labels"
            )

    def _in(self, split: str, entry: str) -> Iterator[str | Bad]:
        """Yield the keys of the images in a folder, or in a list with one path a line."""
        path = os.path.join(self._root.path, entry)
        relative = posixpath.normpath(os.path.relpath(path, self._root.path).replace(os.sep, "/"))
        fault = path_fault(entry) or (self._root.path_fault(relative) if relative != "." else None)
        if fault is None and not os.path.isdir(path) and not (entry.lower().endswith(".txt") and os.path.isfile(path)):
            fault = (
                f"nothing exists at {show(path)}; it is a folder of images or a .txt list of them, relative to path; pass "
                "root= (--option root=…) if the data set is elsewhere"
            )
        if fault is not None:
            raise ConfigError(f"{self._data.file}: {split} is {show(entry)}: {fault}")
        if not os.path.isdir(path):
            yield from self._listed(path, relative)
            return
        top = "" if relative == "." else relative
        self._folders[posixpath.dirname(labels_of(posixpath.join(top, "x")))] = None
        for each in self._walk.files(top):
            yield each if isinstance(each, Bad) else each[0]

    def _listed(self, path: str, relative: str) -> Iterator[str | Bad]:
        try:
            lines = read_file(path).decode("utf-8-sig").splitlines()
        except (BadItem, UnicodeDecodeError) as error:
            raise ConfigError(f"the list {show(path)} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            written = line.strip()
            below = posixpath.join(posixpath.dirname(relative), written) if written.startswith("./") else written
            if os.path.isabs(below):
                below = os.path.relpath(below, self._root.path).replace(os.sep, "/")
            key = posixpath.normpath(below)
            fault = self._root.path_fault(key)
            if fault is None and not key.lower().endswith(IMAGE_SUFFIXES):
                fault = f"ends in none of {' '.join(IMAGE_SUFFIXES)}"
            if written and (fault or not self._walk.hidden.skips(key, below=True)):
                yield Bad(f"{relative} line {number} ({show(written)})", fault) if fault else key

    def _add(self, key: str, split: str) -> None:
        labels = labels_of(key)
        # A broken link is no missing file: reading it reports why.
        has_labels = os.path.lexists(os.path.join(self._root.path, labels))
        fault = self._root.path_fault(labels) if has_labels else None
        if fault is None:
            self.images.append((key, split, has_labels))
        else:
            self.bad.append(Bad(key, f"its label file {labels}: {fault}"))

    def _add_lone_labels(self, known: set[str]) -> None:
        """Report label files without an image, in the folders that belong to folders of images."""
        walk = Walk(self._root, (".txt",))
        for folder in self._folders:
            found = walk.files(folder) if os.path.isdir(os.path.join(self._root.path, folder)) else ()
            for each in found:
                if isinstance(each, Bad):
                    self.bad.append(each)
                elif each[0] not in known and not _OTHER_TEXT.fullmatch(posixpath.basename(each[0])):
                    self.bad.append(
                        Bad(each[0], "no image has this label file: the names differ in more than .jpg and .txt")
                    )

    def task(self) -> Task:
        """Return what the first line of all label files describes."""
        if self._data.yaml.kpt_shape is not None:
            return "keypoints"
        for key, _, has_labels in self.images:
            text = b""
            with suppress(BadItem):  # reading the item reports it
                text = read_file(os.path.join(self._root.path, labels_of(key))) if has_labels else b""
            if text.strip():
                first = text.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
                return "polygons" if len(first.split()) > 6 else "boxes"
        return "boxes"

    def notes(self) -> Iterator[str]:
        """Yield sentences about what the user may not expect."""
        yield from self._walk.notes()
        unlabelled = sum(not has_labels for *_, has_labels in self.images)
        if unlabelled:
            yield f"{counted(unlabelled, 'image has', 'images have')} no label file, and so no objects"
        for (first, again), count in self._twice.items():
            where = f"in {first} and in {again}" if first != again else f"twice in {first or 'the folder'}"
            yield f"{counted(count, 'image is', 'images are')} {where}, and packed once{f', in {first}' if first else ''}"
