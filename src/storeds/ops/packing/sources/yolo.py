"""A source for data sets of YOLO: pictures, and text files with one object a line."""

from __future__ import annotations

import json
import os
import posixpath
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storeds._utils.text import counted, some
from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    BadItem,
    Fingerprint,
    KeyedSource,
    Problem,
    Root,
    StringArray,
    file_state,
    path_fault,
    read_file,
    show,
)
from storeds.ops.packing.sources.columns import check_classes
from storeds.ops.packing.sources.old_folders import FoundFile, Walk
from storeds.ops.packing.sources.text import open_text
from storeds.ops.packing.sources.yolo_data import YoloData, open_yolo_data
from storeds.ops.packing.sources.yolo_labels import LabelFile, as_stored, task_of
from storeds.protocols import JSON, Field, Record

__all__ = ["YoloSource", "labels_of"]

_OTHER_TEXT = re.compile(r"(classes|notes|labels|train|val|valid|test|readme.*)\.txt", re.I)


class YoloSource(KeyedSource):
    """A data set of YOLO: the data.yaml of Ultralytics, or a folder with ``images`` and ``labels``.

    Parameters
    ----------
    path : path
        The data.yaml, or the folder. A folder with a data.yaml is read as that file says.
    root : path, optional
        The folder that paths in a data.yaml are relative to; by default its ``path``, or its own folder.
    classes : sequence of str, optional
        The class names in the order of their numbers. The default is what data.yaml or classes.txt says.
    allow_outside : bool
        Allow images outside the root.
    include_hidden : bool
        Include hidden files and folders.

    Raises
    ------
    StoreNotFoundError
        The file or the folder does not exist.
    ConfigError
        The data.yaml is not one of YOLO; no class names are given; a split has no images, or no image has labels.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        allow_outside: bool = False,
        include_hidden: bool = False,
    ) -> None:
        given = check_classes(classes, "auto")
        data = open_yolo_data(os.fspath(path), None if root is None else os.fspath(root), given)
        self._root = data.root
        listing = _Listing(data, allow_outside=allow_outside, include_hidden=include_hidden)
        self._keys, self._sizes, self._splits = listing.keys, listing.sizes, listing.splits
        self._labelled = listing.labelled
        self.problems: Sequence[Problem] = tuple(listing.problems)
        self.notes: tuple[str, ...] = tuple(listing.notes())
        self._labels = LabelFile(self._task(data), len(data.classes), data.keypoints)
        self._parts = [name for name in data.parts if name in set(listing.used)]
        split = {"split": Field("str")} if len(self._parts) > 1 else {}
        image = {"image": Field("image", role="image")}
        self.fields: Mapping[str, Field] = {**image, **self._labels.fields, **split, "key": Field("str")}
        names: list[JSON] = list(data.classes)
        source: dict[str, JSON] = {"kind": "yolo", "file": os.path.basename(data.file)}
        self.attrs: Mapping[str, JSON] = {"classes": names, **data.attrs, "source": source}
        listing.fingerprint.add(json.dumps([data.classes, self._labels.task, data.keypoints, self._parts]))
        self.fingerprint: JSON = listing.fingerprint.finish("yolo", len(self._keys))

    def _task(self, data: YoloData) -> Any:
        """Return what the first line of all label files describes."""
        if data.keypoints is not None:
            return "keypoints"
        for index in range(len(self)):
            try:
                text = self._read_labels(index).decode("utf-8-sig")
            except (BadItem, UnicodeDecodeError):  # `read` reports it
                continue
            if text.strip():
                return task_of(text.lstrip().split("\n", 1)[0])
        return "boxes"

    def _read_labels(self, index: int) -> bytes:
        if not self._labelled[index]:
            return b""
        path = labels_of(self._keys[index])
        try:
            return read_file(os.path.join(self._root, path.replace("/", os.sep)))
        except BadItem as fault:
            raise BadItem(f"its label file {fault} ({path})") from None

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        objects = self._labels.parse(self._read_labels(index), labels_of(key))
        blob = read_file(os.path.join(self._root, key.replace("/", os.sep)))
        record: Record = {"image": blob, **as_stored(objects, blob)}
        if len(self._parts) > 1:
            record["split"] = self._parts[self._splits[index]]
        record["key"] = key
        return record


class _Listing:
    """Lists the images of a data set and their label files, and what is wrong with them."""

    def __init__(self, data: YoloData, *, allow_outside: bool, include_hidden: bool) -> None:
        self._data, self._root = data, Root(data.root, allow_outside=allow_outside)
        self._walk = Walk(self._root, include_hidden=include_hidden)
        self._texts = Walk(self._root, (".txt",), include_hidden=include_hidden)
        self.keys, self.sizes, self.splits = StringArray(), array("q"), array("q")
        self.labelled = array("b")
        self.fingerprint = Fingerprint()
        self._own: list[Problem] = []
        self._split_of: dict[str, str] = {}  # key → split
        self._by_labels: dict[str, list[str]] = {}  # label file → keys
        self._folders: dict[str, None] = {}  # of labels that belong to folders of images
        self._unlabelled, self._twice = Counter[str](), Counter[tuple[str, str]]()
        found: list[FoundFile] = []
        for split, entries in data.parts.items():
            before = len(found)
            for entry in entries:
                found += self._new(self._images(split, entry), split)
            if len(found) == before and not self.problems and not any(split in pair for pair in self._twice):
                raise ConfigError(f"{data.file}: {split or 'the folder'} has no images in {some(entries)}")
        self._add(found)
        self._report_texts()
        self.used = {split for split in data.parts if split in set(self._split_of.values())}

    @property
    def problems(self) -> list[Problem]:
        return [*self._walk.problems, *self._texts.problems, *self._own]

    def notes(self) -> Iterator[str]:
        """Yield sentences about what the user may not expect."""
        yield from self._data.notes
        yield from self._walk.hidden.notes()
        if self._unlabelled:
            splits = ", ".join(f"{count:,} in {split}" for split, count in self._unlabelled.items() if split)
            where = f" ({splits})" if splits else ""
            yield (
                f"{counted(sum(self._unlabelled.values()), 'image has', 'images have')} no label file{where}, and so no "
                "objects"
            )
        for (first, again), count in self._twice.items():
            where = f"in {first} and in {again}" if first != again else f"twice in {first or 'the folder'}"
            once = f", in {first}" if first else ""
            yield f"{counted(count, 'image is', 'images are')} {where}, and packed once{once}"

    def _images(self, split: str, entry: str) -> list[FoundFile]:
        path = os.path.join(self._root.path, entry)
        relative = posixpath.normpath(os.path.relpath(path, self._root.path).replace(os.sep, "/"))
        fault = path_fault(entry) or (self._root.path_fault(relative) if relative != "." else None)
        if fault:
            raise ConfigError(f"{self._data.file}: {split}: {show(entry)}: {fault}")
        if os.path.isdir(path):
            top = "" if relative == "." else relative
            self._folders[posixpath.dirname(labels_of(f"{top}/x" if top else "x"))] = None
            return list(self._walk.files(top))
        if entry.lower().endswith(".txt") and os.path.isfile(path):
            return list(self._listed(path, relative))
        raise ConfigError(
            f"{self._data.file}: {split} is {show(entry)}, and nothing exists at {show(path)}; it is a folder of images or "
            "a .txt list of them, relative to path; pass root= (--root) if the data set is elsewhere"
        )

    def _listed(self, path: str, relative: str) -> Iterator[FoundFile]:
        """Yield the images in a list, one path a line, as Ultralytics reads it."""
        with open_text(path, None) as opened:
            for number, line in enumerate(opened, 1):
                written = line.strip()
                if not written:
                    continue
                below = posixpath.join(posixpath.dirname(relative), written) if written.startswith("./") else written
                if os.path.isabs(below):
                    below = os.path.relpath(below, self._root.path).replace(os.sep, "/")
                key = posixpath.normpath(below)
                fault = path_fault(key) or self._root.path_fault(key)
                if fault is None and not key.lower().endswith(IMAGE_SUFFIXES):
                    fault = f"ends in none of {' '.join(IMAGE_SUFFIXES)}"
                if fault is None and self._walk.hidden.skips_path(key):
                    continue
                if fault is None:
                    yield (key, *file_state(os.path.join(self._root.path, key)))
                else:
                    self._own.append(Problem(f"{relative} line {number} ({show(written)})", fault))

    def _new(self, found: Sequence[FoundFile], split: str) -> Iterator[FoundFile]:
        """Yield the images that are not in an earlier split, or earlier in this one."""
        for each in found:
            earlier = self._split_of.setdefault(each[0], split)
            keys = self._by_labels.setdefault(labels_of(each[0]), [])
            if each[0] not in keys:
                keys.append(each[0])
                yield each
            else:
                self._twice[earlier, split] += 1

    def _add(self, found: Sequence[FoundFile]) -> None:
        numbers = {split: number for number, split in enumerate(self._data.parts)}
        for key, size, mtime in found:
            labels = labels_of(key)
            same = [other for other in self._by_labels[labels] if other != key]
            if same:
                self._own.append(
                    Problem(key, f"another image has the same label file: {some(sorted(same))} ({labels}); rename one")
                )
                del self._split_of[key]
                continue
            label_path = os.path.join(self._root.path, labels)
            label_size, label_mtime = file_state(label_path)
            # Archives may give every file the time 0, and a broken link is no missing file: reading it reports why.
            has_labels = label_mtime != 0 or os.path.lexists(label_path)
            fault = self._root.path_fault(labels) if has_labels else None
            if fault is not None:
                self._own.append(Problem(key, f"its label file {labels}: {fault}"))
                del self._split_of[key]
                continue
            split = self._split_of[key]
            if not has_labels:
                self._unlabelled[split] += 1
            self.keys.append(key)
            self.sizes.append(size + label_size)
            self.splits.append(numbers[split])
            self.labelled.append(has_labels)
            self.fingerprint.add(key, size, mtime, label_size, label_mtime, numbers[split])
        if len(self.keys) and not any(self.labelled):
            raise ConfigError(
                f"{self._data.file}: none of the {counted(len(self.keys), 'image')} has a label file; expected, for "
                f"example, {labels_of(self.keys[0])} for {self.keys[0]}; --kind flat packs images without labels"
            )

    def _report_texts(self) -> None:
        """Report label files without an image, in the folders that belong to folders of images."""
        for folder in self._folders:
            if not os.path.isdir(os.path.join(self._root.path, folder)):
                continue
            for path, _, _ in self._texts.files(folder):
                is_other = _OTHER_TEXT.fullmatch(posixpath.basename(path)) is not None
                if path not in self._by_labels and not is_other:
                    stem, suffix = posixpath.splitext(path)
                    fault = f"the label file has no image ({_images_of(stem)}.*)"
                    if suffix != ".txt" and f"{stem}.txt" in self._by_labels:
                        fault = f"label files end in .txt, and this one in {suffix}; rename it"
                    self._own.append(Problem(path, fault))


def labels_of(key: str) -> str:
    """Return the label file of an image: in ``labels`` in place of the last ``images``, or beside the image."""
    before, found, after = f"/{key}".rpartition("/images/")
    stem = posixpath.splitext(f"{before}/labels/{after}" if found else f"/{key}")[0]
    return f"{stem}.txt"[1:]


def _images_of(path: str) -> str:
    before, found, after = f"/{path}".rpartition("/labels/")
    return f"{before}/images/{after}"[1:] if found else path
