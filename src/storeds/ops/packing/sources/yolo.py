"""A source for data sets of YOLO: pictures, and text files with one object a line."""

from __future__ import annotations

import json
import os
import posixpath
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storeds._utils.text import counted, some
from storeds.config.files import read_mapping
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    BadItem,
    Fingerprint,
    Problem,
    Root,
    StringArray,
    file_state,
    path_fault,
    read_file,
    show,
)
from storeds.ops.packing.sources.columns import check_classes
from storeds.ops.packing.sources.folders import FoundFile, Walk
from storeds.ops.packing.sources.text import open_text
from storeds.ops.packing.sources.yolo_labels import LabelFile, as_stored, task_of
from storeds.protocols import JSON, Field, Record

__all__ = ["SPLITS", "YoloSource", "is_yolo_file", "is_yolo_folder", "labels_of"]

SPLITS = ("train", "val", "valid", "test", "minival")
_YAML = (".yaml", ".yml")
_SPLIT_FOLDER = re.compile(r"(train|val|valid|validation|test|minival)(\d{4})?")
_MOST_KEYPOINTS = 100_000  # of an object
_CLASS_FILES = ("classes.txt", "labels/classes.txt")
_OTHER_TEXT = re.compile(r"(classes|notes|labels|train|val|valid|test|readme.*)\.txt", re.I)
_HOW = "name them in data.yaml, in classes.txt (one name a line), or with classes= (--classes cat,dog)"


@dataclass
class _DataSet:
    """What a data.yaml or a folder says.

    Parameters
    ----------
    root : str
        The folder that keys are relative to.
    file : str
        What describes the data set, for messages and attributes.
    parts : dict
        Split → folders of images and lists of them, as written. The split is empty without splits.
    classes : list of str
        Class names.
    keypoints : (int, int), optional
        ``kpt_shape``.
    attrs : dict
        Further attributes of the store.
    notes : list of str
        What the user may not expect.
    """

    root: str
    file: str
    parts: dict[str, list[str]]
    classes: list[str]
    keypoints: tuple[int, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class YoloSource:
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

    thread_safe = True

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
        data = _open(os.fspath(path), None if root is None else os.fspath(root), given)
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

    def _task(self, data: _DataSet) -> Any:
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

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._keys[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

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

    def __init__(self, data: _DataSet, *, allow_outside: bool, include_hidden: bool) -> None:
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


# Describing a data set


def is_yolo_file(path: str) -> bool:
    """Whether a YAML file names classes and a split."""
    if not path.lower().endswith(_YAML):
        return False
    try:
        found = read_mapping(path)
    except (ConfigError, StoreNotFoundError):
        return False
    return "names" in found and any(split in found for split in SPLITS)


def is_yolo_folder(path: str) -> bool:
    """Whether a folder has a data.yaml of YOLO, or ``images`` and ``labels`` with text files."""
    return _yaml_in(path) is not None or _has_labels(path)


def _has_labels(path: str) -> bool:
    labels = os.path.join(path, "labels")
    if not os.path.isdir(os.path.join(path, "images")) or not os.path.isdir(labels):
        return False
    try:
        inside = sorted(os.scandir(labels), key=lambda entry: entry.name)
        folders = [labels, *(entry.path for entry in inside if entry.is_dir())][:8]
        return any(name.lower().endswith(".txt") for folder in folders for name in os.listdir(folder))
    except OSError:
        return False


def _yaml_in(folder: str) -> str | None:
    """Return the only YAML file in `folder` that describes a data set of YOLO; data.yaml comes first."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(_YAML))
    except OSError:
        return None
    found = [path for name in names if is_yolo_file(path := os.path.join(folder, name))]
    preferred = [path for path in found if os.path.basename(path).lower().startswith("data.")]
    chosen = preferred or found
    return chosen[0] if len(chosen) == 1 else None


def _open(path: str, root: str | None, classes: list[str] | None) -> _DataSet:
    if root is not None and not os.path.isdir(root):
        raise StoreNotFoundError(f"root={root!r} is not a folder")
    if not os.path.isdir(path):
        return _from_yaml(path, root, classes)
    described = _yaml_in(path)
    if described is not None:
        return _from_yaml(described, root, classes)
    for name in ("data.yaml", "data.yml"):
        if os.path.isfile(broken := os.path.join(path, name)):
            read_mapping(broken)  # raises ConfigError if it is not YAML
    if not os.path.isdir(os.path.join(path, "images")):
        raise ConfigError(
            f"{show(path)} is no data set of YOLO: expected a data.yaml with names and train, or folders images and labels"
        )
    return _DataSet(os.path.abspath(path), path, _parts_in(path), classes or _class_file(path))


def _parts_in(folder: str) -> dict[str, list[str]]:
    """Return the splits of a folder with ``images``: its sub-folders if all have names of splits."""
    entries = [entry for entry in os.scandir(os.path.join(folder, "images")) if not entry.name.startswith(".")]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    is_split = all(_SPLIT_FOLDER.fullmatch(name) for name in names)
    if not names or not is_split or any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries):
        return {"": ["images"]}
    return {name: [f"images/{name}"] for name in names}


def _class_file(folder: str) -> list[str]:
    for name in _CLASS_FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open_text(path, None) as opened:
                lines = [line.strip() for line in opened.read().rstrip().splitlines()]
            if not all(lines):
                raise ConfigError(f"{show(path)} line {lines.index('') + 1} is empty; expected a class name a line")
            found = check_classes(lines, "auto")
            return found or []
    raise ConfigError(f"{show(folder)} gives no class names; {_HOW}")


def _from_yaml(path: str, root: str | None, classes: list[str] | None) -> _DataSet:
    found = read_mapping(path)
    shown = show(path)
    parts = {split: _entries(shown, split, found[split]) for split in SPLITS if found.get(split)}
    if not parts:
        raise ConfigError(f"{shown} names no images: expected train, val or test, with names (of classes)")
    names = classes if classes is not None else _names(shown, found)
    base = _root_of(path, found.get("path"), parts) if root is None else root
    notes: list[str] = []
    for split, entries in parts.items():
        entries[:] = [_moved(base, entry) for entry in entries]
        # Ultralytics reads the test split only when it is asked to, and many files name one that is not there.
        if split == "test" and not any(os.path.exists(os.path.join(base, entry)) for entry in entries):
            notes.append(f"{split} is {some(entries)}, which does not exist, and is left out")
            entries.clear()
    keypoints = _keypoints(shown, found.get("kpt_shape"))
    attrs: dict[str, JSON] = {}
    if keypoints is not None and isinstance(found.get("flip_idx"), list):
        attrs["flip_idx"] = found["flip_idx"]
    kept = {split: entries for split, entries in parts.items() if entries}
    return _DataSet(os.path.abspath(base), path, kept, names, keypoints, attrs, notes)


def _entries(shown: str, split: str, value: Any) -> list[str]:
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(
            f"{shown}: {split} is the path of a folder or a list, or several in a YAML list, not {value!r}"
        )
    return list(entries)


def _moved(base: str, entry: str) -> str:
    """Return an entry as Ultralytics reads it: ``../train/images`` (Roboflow) lies in the root if it is not beside it."""
    if entry.startswith("../") and not os.path.exists(os.path.join(base, entry)):
        return entry[3:]
    return entry


def _root_of(path: str, given: Any, parts: Mapping[str, list[str]]) -> str:
    """Return the folder that ``path`` in a data.yaml names."""
    folder = os.path.dirname(os.path.abspath(path))
    if given is None or given == "":
        return folder
    if not isinstance(given, str):
        raise ConfigError(f"{show(path)}: path is the folder of the data set, not {given!r}")
    # The last is a data set that was moved together with its data.yaml.
    tried = [os.path.normpath(os.path.join(folder, given)), os.path.abspath(given), folder]
    listed = [entry for entries in parts.values() for entry in entries]
    for base in dict.fromkeys(tried):
        if any(os.path.exists(os.path.join(base, _moved(base, entry))) for entry in listed):
            return base
    raise ConfigError(
        f"{show(path)}: path is {show(given)}, and no images are there (tried {', '.join(map(show, dict.fromkeys(tried)))}); "
        "pass root= (--root) if the data set is elsewhere"
    )


def _names(shown: str, found: Mapping[str, Any]) -> list[str]:
    given = found.get("names")
    if isinstance(given, dict):
        numbers = [int(key) if isinstance(key, int) or str(key).isdecimal() else None for key in given]
        if sorted(number for number in numbers if number is not None) != list(range(len(given))):
            raise ConfigError(f"{shown}: the keys of names are {some(map(str, given))}; expected 0 to {len(given) - 1}")
        by_number = dict(zip(numbers, given.values(), strict=True))
        given = [by_number[number] for number in range(len(by_number))]
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{shown}: no class names are in names; {_HOW}")
    for number, name in enumerate(given):
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise ConfigError(f"{shown}: YAML reads the name of class {number} as {name!r}; put it in quotation marks")
    names = check_classes([str(name) for name in given], "auto") or []
    if isinstance(found.get("nc"), int) and found["nc"] != len(names):
        raise ConfigError(f"{shown}: nc is {found['nc']}, but names has {len(names)}")
    return names


def _keypoints(shown: str, shape: Any) -> tuple[int, int] | None:
    if shape is None:
        return None
    is_shape = isinstance(shape, list) and len(shape) == 2 and all(type(number) is int for number in shape)
    if not is_shape or not 1 <= shape[0] <= _MOST_KEYPOINTS or shape[1] not in (2, 3):
        raise ConfigError(
            f"{shown}: kpt_shape is [number of keypoints from 1 to {_MOST_KEYPOINTS:,}, 2 or 3], not {shape!r:.60}"
        )
    return shape[0], shape[1]
